// Package testwait has tests wait for what must happen, but not when: what other
// processes do, and goroutines that a test cannot wait for by a channel. Tests in
// one process that can be played in fake time (testing/synctest) do without it.
package testwait

import (
	"testing"
	"time"
)

// Patience is how long a test waits before it fails. It is far beyond what a slow machine that does much else
// besides needs, and is only ever reached by a failure.
const Patience = 2 * time.Minute

// Pauses between two looks. They grow, so that what comes at once is seen at once, and
// what takes its time does not have the test burn the processor that it needs.
const (
	firstPause = time.Millisecond
	lastPause  = 20 * time.Millisecond
)

// Until waits until f is true. The test ends, with what it waited for, when that
// does not happen within Patience. It is called on the test's goroutine, and so is f.
func Until(t testing.TB, what string, f func() bool) {
	t.Helper()
	For(t, func() string {
		if f() {
			return ""
		}
		return what
	})
}

// For waits until there is no problem: until f returns the empty string. Otherwise
// it is Until, and the test ends with the last problem.
func For(t testing.TB, f func() string) {
	t.Helper()
	limit := time.Now().Add(Patience)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		late := time.Now().After(limit) // before f: it always has a last look
		problem := f()
		if problem == "" {
			return
		}
		if late {
			t.Fatalf("waited in vain: %s", problem)
		}
		time.Sleep(pause)
	}
}
