package sched

import (
	"testing"

	"posthaste/internal/dsn"
)

// A destination that wants less, and takes what it wants, gets less at a time, down to
// one delivery, and is never dead for that. When it takes nothing any more it is.
func TestBusyDestination(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.InitialConcurrency, c.ConcurrencyLimit = 8, 8 }))
	for id := MsgID(1); id <= 200; id++ {
		w.arrive(id, 0, rcpt("smtp", "busy.example"))
	}
	busy := func(partly bool) {
		id := w.order[0]
		e := w.busy[id]
		delete(w.busy, id)
		w.order = w.order[1:]
		clear(w.mail[e.ID].inflight)
		w.step(Event{Kind: EventDone, Entry: id, Result: Result{Deferred: e.Rcpts, SiteFailed: true, SitePartly: partly,
			Status: dsn.S(4, 7, 28), Reason: "host busy.example said: 421 4.7.28 too much of you"}})
	}
	state := func() Dest {
		for _, d := range w.dests() {
			if d.Queue == "busy.example" {
				return d
			}
		}
		t.Fatal("it is not known")
		return Dest{}
	}
	if n := len(w.busy); n != 8 {
		t.Fatalf("%d deliveries at first", n)
	}
	for range 30 {
		busy(true)
	}
	if d := state(); d.State != DestReady || d.Window != 1 || d.Busy != 1 {
		t.Errorf("after refusals beside which mail is taken: %+v", d)
	}
	w.done(w.order[0], sent, false)
	if d := state(); d.State != DestReady {
		t.Errorf("after a success: %+v", d)
	}
	for range 10 {
		if state().State == DestReady {
			busy(false)
		}
	}
	if d := state(); d.State != DestDead || d.Text != "delivery temporarily suspended: host busy.example said: 421 4.7.28 too much of you" {
		t.Errorf("after refusals alone: %+v", d)
	}
}
