package cleanup

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A slowFollower takes as long for each Read, and counts.
type slowFollower struct {
	takes time.Duration
	reads int
}

func (f *slowFollower) Read(context.Context) {
	time.Sleep(f.takes)
	f.reads++
}

// A log that takes long to look at is looked at less often: a follower has no more than a share of the
// time, as long as it does not fall far behind. It ends when it is told to.
func TestFollowPace(t *testing.T) {
	t.Parallel()
	for takes, every := range map[time.Duration]time.Duration{
		0:                      followPause,
		time.Millisecond:       time.Millisecond + followPause,
		20 * time.Millisecond:  20 * followShare * time.Millisecond,
		100 * time.Millisecond: 100*time.Millisecond + followMost,
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 100*every-1)
			defer stop()
			f := &slowFollower{takes: takes}
			dones := 0
			follow(ctx, f, func() { dones++ })
			if f.reads != 100 || dones != 100 {
				t.Errorf("looks of %v: %d in %v, said %d times; want one every %v", takes, f.reads, 100*every, dones, every)
			}
		})
	}
}
