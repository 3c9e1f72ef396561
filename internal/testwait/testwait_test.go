package testwait

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a test that notes how it ended.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// What comes ends the waiting when it comes, and what does not ends the test with the
// last problem, after Patience and not before.
func TestWaiting(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		comes   time.Duration // after so long
		at      time.Duration // seen until then at the latest
		failure string
	}{
		{0, 0, ""},
		{3 * time.Millisecond, 3 * time.Millisecond, ""},
		{time.Second, time.Second + lastPause, ""},
		{Patience, Patience + lastPause, ""},
		{time.Hour, Patience + 2*lastPause, "waited in vain: the post"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, start := &recorder{TB: t}, time.Now()
			done := make(chan struct{})
			go func() {
				defer close(done)
				Until(r, "the post", func() bool { return time.Since(start) >= c.comes })
			}()
			<-done
			if took := time.Since(start); r.failure != c.failure || took > c.at || took < min(c.comes, Patience) {
				t.Errorf("what comes after %v: %q after %v", c.comes, r.failure, took)
			}
		})
	}
}
