package sched

import (
	"strings"
	"testing"
	"time"
)

// deferredOf is a scheduler with so many deferred messages.
func deferredOf(n int) *Scheduler {
	s := New(DefaultConfig())
	var out []Effect
	for i := range n {
		out = s.Step(epoch, Event{Kind: EventQueued, ID: MsgID(i + 1), Arrival: Arrival{Queue: QueueDeferred, Created: epoch,
			Next: epoch.Add(time.Hour), Rcpts: 1, Size: 4096}}, out[:0])
	}
	return s
}

// Check says which invariant does not hold, and the first one of several.
func TestCheck(t *testing.T) {
	t.Parallel()
	s := deferredOf(3)
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	s.stats.Hold, s.stats.Active = 7, 8
	if err := s.Check(); err == nil || err.Error() != "sched: hold: 0 records, count 7" {
		t.Errorf("it says %v", err)
	}
	s = deferredOf(3)
	s.retries.s[0].rec, s.retries.s[2].rec = s.retries.s[2].rec, s.retries.s[0].rec
	if err := s.Check(); err == nil || !strings.HasPrefix(err.Error(), "sched: retry heap: ") {
		t.Errorf("it says %v", err)
	}
}

// Nothing is made for messages of which everything holds: a check is made after each step of all random histories.
func TestCheckOfWhatHolds(t *testing.T) {
	allocations := func(n int) float64 {
		s := deferredOf(n)
		return testing.AllocsPerRun(10, func() {
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
	if few, many := allocations(100), allocations(1100); many > few+100 {
		t.Errorf("%g allocations for 100 messages, %g for 1000", few, many)
	}
}
