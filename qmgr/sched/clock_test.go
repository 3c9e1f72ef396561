package sched

import (
	"testing"
	"time"
)

// A clock that was ahead for a while, and has been put right, expires no mail,
// and leaves no times on record that lie ahead.
func TestClockPutRight(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	s := New(cfg)
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ahead := 10 * 24 * time.Hour
	s.Step(start.Add(ahead), Event{Kind: EventTick}, nil)
	now := start
	step := func(ev Event) []Effect {
		now = now.Add(time.Second)
		return s.Step(now, ev, nil)
	}
	step(Event{Kind: EventQueued, ID: 1, Arrival: Arrival{Queue: QueueIncoming, Created: start, Rcpts: 1}})
	var entry EntryID
	for _, e := range step(Event{Kind: EventLoaded, ID: 1, Next: 1, Rcpts: []Rcpt{{Transport: "smtp", Queue: "to.test", Nexthop: "to.test"}}}) {
		if e.Kind == EffectDeliver {
			entry = e.Entry
		}
	}
	var next time.Time
	for _, e := range step(Event{Kind: EventDone, Entry: entry, Result: Result{Deferred: []int{0}}}) {
		switch e.Kind {
		case EffectNotify:
			t.Errorf("a notice: %v", e.Notice)
		case EffectDefer:
			next = e.Next
		}
	}
	if wait := next.Sub(now); wait < cfg.MinimalBackoff || wait > cfg.MinimalBackoff+cfg.QueueRunDelay {
		t.Errorf("next attempt %v, %v from now", next, wait)
	}
	// What an earlier process has recorded by the wrong clock does not keep mail.
	step(Event{Kind: EventQueued, ID: 2, Arrival: Arrival{Queue: QueueDeferred, Created: start, Next: start.Add(ahead), Rcpts: 1}})
	if info, ok := s.Lookup(2); !ok || info.Next.Sub(now) > cfg.MaximalBackoff+cfg.QueueRunDelay {
		t.Errorf("recorded by the wrong clock: %+v", info)
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
