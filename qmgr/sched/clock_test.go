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

// A clock that goes back keeps nobody waiting until it has caught up: mail is
// tried again within twice the time, with nothing else going on.
func TestClockGoesBack(t *testing.T) {
	t.Parallel()
	for _, back := range []time.Duration{time.Second, time.Hour, 24 * time.Hour, 365 * 24 * time.Hour} {
		cfg := DefaultConfig()
		s := New(cfg)
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		s.Step(start, Event{Kind: EventQueued, ID: 1,
			Arrival: Arrival{Queue: QueueDeferred, Created: start.Add(-time.Hour), Next: start.Add(10 * time.Minute), Rcpts: 1}}, nil)
		begin := start.Add(-back)
		s.Step(begin, Event{Kind: EventTick}, nil)
		now, tried := begin, false
		for turns := 0; !tried && turns < 100; turns++ {
			if now = s.Wake(); now.IsZero() || now.Sub(begin) > 20*time.Minute {
				break
			}
			for _, e := range s.Step(now, Event{Kind: EventTick}, nil) {
				tried = tried || e.Kind == EffectLoad
			}
		}
		if !tried || now.Sub(begin) < 10*time.Minute {
			t.Errorf("%v back: tried %v, after %v", back, tried, now.Sub(begin))
		}
	}
}

// Mail that waits in the active queue while the clock leaps ahead is not
// returned untried: it has not waited for as long as it seems.
func TestClockLeapsAhead(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	s := New(cfg)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	step := func(ev Event) []Effect { return s.Step(now, ev, nil) }
	delivered := map[string]int{}
	note := func(effects []Effect) {
		for _, e := range effects {
			switch e.Kind {
			case EffectLoad:
				for _, d := range step(Event{Kind: EventLoaded, ID: e.ID, Next: 1, Rcpts: []Rcpt{{Transport: "smtp", Queue: "to.test", Nexthop: "to.test"}}}) {
					if d.Kind == EffectDeliver {
						delivered[string(d.Transport)]++
					}
				}
			case EffectDeliver:
				delivered[string(e.Transport)]++
			}
		}
	}
	for id := range MsgID(100) {
		note(step(Event{Kind: EventQueued, ID: id + 1, Arrival: Arrival{Queue: QueueIncoming, Created: now, Rcpts: 1}}))
	}
	now = now.Add(365 * 24 * time.Hour)
	for range 3 {
		now = now.Add(time.Minute)
		note(step(Event{Kind: EventTick}))
	}
	if delivered["retry"] > 0 || delivered["smtp"] == 0 || delivered["smtp"] == 100 {
		t.Errorf("deliveries: %v; some over smtp, none over retry", delivered)
	}
	for range cfg.MaximalBackoff / time.Minute {
		now = now.Add(time.Minute)
		note(step(Event{Kind: EventTick}))
	}
	if delivered["retry"] == 0 {
		t.Errorf("deliveries: %v; what is out of time is not kept for ever", delivered)
	}
}

// Mail that came while the clock was ahead has its lifetime from when that
// is noticed, not from then on.
func TestCreatedAhead(t *testing.T) {
	t.Parallel()
	s := New(DefaultConfig())
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s.Step(now, Event{Kind: EventQueued, ID: 1, Arrival: Arrival{Queue: QueueDeferred, Created: now.AddDate(10, 0, 0), Next: now, Rcpts: 1}}, nil)
	if info, ok := s.Lookup(1); !ok || info.Created.After(now) {
		t.Errorf("created %v, ahead of %v", info.Created, now)
	}
}
