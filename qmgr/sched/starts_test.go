package sched

import (
	"testing"
	"time"
)

// A message that is to be tried first later is not tried before: not when its record is read early, and not by
// a flush, but for one of it by name. Its lifetime and its back-off count from its first time.
func TestStarts(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	s := New(cfg)
	born := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now, starts := born, born.Add(2*cfg.MaximalLifetime)
	var entries []Effect
	var deferred, notices []Effect
	var step func(Event)
	step = func(ev Event) {
		for _, e := range s.Step(now, ev, nil) {
			switch e.Kind {
			case EffectLoad:
				step(Event{Kind: EventLoaded, ID: e.ID, Next: 1, Starts: starts, Rcpts: []Rcpt{{Transport: "smtp", Queue: "to.test", Nexthop: "to.test"}}})
			case EffectDeliver:
				entries = append(entries, e)
			case EffectDefer:
				deferred = append(deferred, e)
			case EffectNotify:
				notices = append(notices, e)
			}
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	}
	arrive := func(id MsgID) {
		step(Event{Kind: EventQueued, ID: id, Arrival: Arrival{Queue: QueueDeferred, Created: born, Next: starts, Rcpts: 1}})
	}
	arrive(1)
	arrive(2)
	for _, ev := range []Event{{Kind: EventTick}, {Kind: EventFlush, Scope: ScopeAll}, {Kind: EventFlush, Scope: ScopeMessage, ID: 1}} {
		for range 2 {
			now = now.Add(cfg.MaximalBackoff + cfg.QueueRunDelay)
			deferred = nil
			step(ev)
			step(Event{Kind: EventTick})
			for _, e := range deferred {
				if !e.Next.Equal(starts) || e.Attempts != 0 {
					t.Errorf("%+v: waits until %v, tried %d times", ev, e.Next, e.Attempts)
				}
			}
		}
		if len(entries) > 0 {
			t.Fatalf("%+v: tried before its time", ev)
		}
	}
	step(Event{Kind: EventFlush, Scope: ScopeMessage, ID: 1, Now: true})
	step(Event{Kind: EventTick})
	if len(entries) != 1 || entries[0].ID != 1 {
		t.Fatalf("by name: %+v", entries)
	}
	step(Event{Kind: EventDone, Entry: entries[0].Entry})
	now, entries, deferred = starts, nil, nil
	step(Event{Kind: EventTick})
	if len(entries) != 1 || entries[0].ID != 2 {
		t.Fatalf("at its time: %+v", entries)
	}
	step(Event{Kind: EventDone, Entry: entries[0].Entry, Result: Result{Deferred: []int{0}}})
	if len(deferred) != 1 || deferred[0].Attempts != 1 || len(notices) != 0 {
		t.Fatalf("%+v, notices %+v", deferred, notices)
	}
	if wait := deferred[0].Next.Sub(now); wait < cfg.MinimalBackoff || wait > cfg.MinimalBackoff+cfg.QueueRunDelay {
		t.Errorf("tried again after %v", wait)
	}
	now, entries = starts.Add(cfg.MaximalLifetime+time.Minute), nil
	step(Event{Kind: EventTick})
	if len(entries) != 1 {
		t.Fatalf("at the end of its lifetime: %+v", entries)
	}
	if step(Event{Kind: EventDone, Entry: entries[0].Entry, Result: Result{Deferred: []int{0}}}); len(notices) != 1 || notices[0].Notice != NoticeExpired {
		t.Errorf("%+v", notices)
	}
}
