package sched

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// hint is what another one has found of bad.example, good for so long.
func (w *world) hint(left time.Duration) {
	w.t.Helper()
	w.step(Event{Kind: EventHints, Hints: []Hint{{Transport: "smtp", Queue: "bad.example", Nexthop: "bad.example", Status: dsn.S(4, 4, 1), Text: "connection timed out", Until: w.now.Add(left)}}})
}

// bad is the destination bad.example; the zero value when nothing is known of it.
func (w *world) bad() Dest {
	d, _ := w.s.Dest("smtp", "bad.example")
	return d
}

// to is how many deliveries to bad.example are under way.
func (w *world) toBad() (n int) {
	for _, e := range w.busy {
		if e.Nexthop == "bad.example" {
			n++
		}
	}
	return n
}

// What another one has found dead is not tried, for the time that is left of it. Then it is tried here, whatever is said
// meanwhile, and only after that another hint counts.
func TestHint(t *testing.T) {
	t.Parallel()
	cfg := one(func(_ *Config, c *TransportConfig) { c.InitialConcurrency, c.FailedCohortLimit = 1, 1 })
	w := newWorld(t, cfg)
	w.hint(2 * time.Minute)
	w.arrive(1, 0, rcpt("smtp", "bad.example"))
	if d := w.bad(); d.State != DestDead || !d.Hearsay || w.toBad() != 0 || d.Text != "connection timed out" || d.Status != dsn.S(4, 4, 1) {
		t.Fatalf("%+v, %d under way", d, w.toBad())
	}
	w.finishRetries()
	for range 3 { // it is said again and again
		w.tick(time.Minute)
		w.hint(2 * time.Minute)
	}
	if d := w.bad(); d.State == DestDead {
		t.Errorf("two minutes later: %+v", d)
	}
	// The message comes up again, and is tried, whatever has been said.
	for range 100 {
		if w.toBad() > 0 {
			break
		}
		w.hint(5 * time.Minute)
		w.tick(time.Minute)
	}
	if w.toBad() != 1 {
		t.Fatalf("it is not tried: %+v", w.bad())
	}
	w.done(w.order[0], unreachable, false)
	if d := w.bad(); d.State != DestDead || d.Hearsay {
		t.Errorf("it was found dead: %+v", d)
	}
	w.finishRetries()
	w.tick(cfg.MinimalBackoff + time.Second)
	w.hint(time.Minute)
	if d := w.bad(); d.State != DestDead || !d.Hearsay {
		t.Errorf("after a trial: %+v", d)
	}
}

// A destination that has answered here just now is not given up for what others say; one that has not for long is.
func TestHintAgainstSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.InitialConcurrency = 2 }))
	for id := MsgID(1); id <= 9; id++ {
		w.arrive(id, 0, rcpt("smtp", "bad.example"))
	}
	w.done(w.order[0], sent, false)
	w.hint(time.Minute)
	if d := w.bad(); d.State != DestReady {
		t.Errorf("%+v", d)
	}
	w.tick(2 * time.Minute)
	w.hint(time.Minute)
	if d := w.bad(); d.State != DestDead {
		t.Errorf("two minutes later: %+v", d)
	}
	// What was under way then, and succeeds, is an answer.
	w.done(w.order[slices.IndexFunc(w.order, func(id EntryID) bool { return w.busy[id].Nexthop == "bad.example" })], sent, false)
	if d := w.bad(); d.State != DestReady {
		t.Errorf("after a success: %+v", d)
	}
}

// No hint makes a destination dead for longer than a failure does, or where failures do not; and a successor does not take over
// what was only heard.
func TestHintBounds(t *testing.T) {
	t.Parallel()
	cfg := one(func(*Config, *TransportConfig) {})
	w := newWorld(t, cfg)
	w.hint(1000 * time.Hour)
	if d := w.bad(); d.State != DestDead || d.Until.After(w.now.Add(cfg.MinimalBackoff)) {
		t.Errorf("%+v", d)
	}
	if snap := w.s.Snapshot(); len(snap.Dests) != 0 {
		t.Errorf("%+v", snap)
	}
	w.step(Event{Kind: EventHints, Hints: []Hint{{Transport: RetryTransport, Queue: "x", Until: w.now.Add(time.Minute)}}})
	if _, ok := w.s.Dest(RetryTransport, "x"); ok {
		t.Error("a reason is dead")
	}
	for _, off := range []func(*Config, *TransportConfig){func(_ *Config, c *TransportConfig) { c.FailedCohortLimit = 0 },
		func(_ *Config, c *TransportConfig) { c.DestinationRateDelay = time.Second }} {
		w := newWorld(t, one(off))
		w.hint(time.Minute)
		if d := w.bad(); d.State == DestDead {
			t.Errorf("%+v", d)
		}
	}
	small := newWorld(t, one(func(c *Config, _ *TransportConfig) { c.ActiveLimit, c.RecipientLimit = 50, 50 }))
	for i := range 1000 {
		name := fmt.Sprint("d", i)
		small.step(Event{Kind: EventHints, Hints: []Hint{{Transport: "smtp", Queue: name, Nexthop: mail.Nexthop(name), Until: small.now.Add(time.Minute)}}})
	}
	if n := len(small.dests()); n > 100 {
		t.Errorf("%d destinations are remembered for what others say", n)
	}
}

// Whatever others say, and however often, each message is tried here.
func TestHintsKeepNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, one(func(c *Config, tc *TransportConfig) {
			tc.InitialConcurrency = rapid.IntRange(1, 5).Draw(rt, "initial")
			c.MinimalBackoff, c.MaximalBackoff = 5*time.Minute, time.Hour
		}))
		tried := map[MsgID]bool{}
		n := MsgID(rapid.IntRange(1, 20).Draw(rt, "messages"))
		for id := MsgID(1); id <= n; id++ {
			w.arrive(id, 0, rcpt("smtp", "bad.example"))
			if rapid.Bool().Draw(rt, "hint") {
				w.hint(time.Duration(rapid.IntRange(1, 600).Draw(rt, "left")) * time.Second)
			}
		}
		for range 48 * 60 {
			for _, id := range slices.Clone(w.order) {
				e := w.busy[id]
				if e.Nexthop == "bad.example" {
					tried[e.ID] = true
					w.done(id, sent, false)
				} else {
					w.done(id, deferred, false)
				}
			}
			if len(tried) == int(n) {
				return
			}
			w.tick(time.Minute)
			w.hint(10 * time.Minute)
		}
		rt.Fatalf("%d of %d were tried in two days", len(tried), n)
	})
}
