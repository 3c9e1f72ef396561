package sched

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"posthaste/internal/dsn"
)

// steer begins or ends a pause.
func (w *world) steer(r *rand.Rand, next *PauseID) {
	if len(w.pauses) > 0 && r.IntN(2) == 0 {
		delete(w.pauses, slices.Min(slices.Collect(maps.Keys(w.pauses))))
	} else {
		*next++
		p := testPause{queue: destinations[r.IntN(len(destinations))], odd: r.IntN(3) == 0}
		p.ID, p.Status, p.Reason, p.Flush = *next, dsn.S(4, 3, 2), "suspended", r.IntN(3) == 0
		if r.IntN(2) == 0 {
			p.Until = w.now.Add(time.Duration(r.IntN(3600)) * time.Second)
		}
		for id, o := range w.pauses { // one at a time for a destination: which is meant must not depend on chance
			if o.queue == p.queue {
				delete(w.pauses, id)
			}
		}
		w.pauses[p.ID] = p
	}
	w.setPauses()
}

// obey fails the test when a recipient is delivered to that is not to be tried.
func (w *world) obey(e Effect) {
	if e.Kind != EffectDeliver || e.Transport == RetryTransport || e.Transport == ErrorTransport {
		return
	}
	for _, i := range e.Rcpts {
		p, ok := w.pauses[w.marked(w.mail[e.ID].rcpts[i]).Pause]
		if ok && !p.Flush && (p.Until.IsZero() || p.Until.After(w.now)) {
			w.t.Fatalf("message %d recipient %d is delivered to %s, which is paused until %v", e.ID, i, e.Nexthop, p.Until)
		}
	}
}

// In histories in which destinations are paused and resumed all the time nothing
// is tried that is not to be, every recipient's wait is explained, and when the
// pauses are over all mail leaves.
func TestPausedHistories(t *testing.T) {
	t.Parallel()
	n := *histories / 2
	if *long {
		n = *histories
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playPaused(t, 1000+seed, 300) })
	}
}

func playPaused(t *testing.T, seed uint64, steps int) {
	r := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t, smallConfig(r))
	w.batch = r.IntN(8)
	w.on = w.obey
	var id MsgID
	var pause PauseID
	for range steps {
		switch x := r.IntN(100); {
		case x < 25:
			id++
			w.arrive(id, []Flags{0, 0, FlagNullSender, FlagSingleRcpt}[r.IntN(4)], randomRcpts(r)...)
		case x < 70:
			w.finishOne(r, 6)
		case x < 75:
			w.explain(t)
		case x < 85:
			w.tick(time.Duration(r.IntN(900)) * time.Second)
		case x < 93:
			w.steer(r, &pause)
		case id > 0:
			w.operate(r, MsgID(1+r.Uint64N(uint64(id))))
		}
	}
	clear(w.pauses)
	w.setPauses()
	w.step(Event{Kind: EventRelease, Scope: ScopeAll})
	for n := 0; w.left() > 0; n++ {
		if n > 100000 {
			t.Fatalf("seed %d: %d messages never leave", seed, w.left())
		}
		if len(w.order) > 0 {
			w.finishOne(r, 6)
		} else if !w.sleep() && w.left() > 0 {
			t.Fatalf("seed %d: %d messages are stuck, and the scheduler does not want to be woken", seed, w.left())
		}
	}
	if len(w.s.siteIndex)+len(w.s.parkedAt)+len(w.s.parkedFor)+w.s.stats.Sited != 0 {
		t.Errorf("seed %d: nothing is left, and %d destinations are waited for", seed, len(w.s.siteIndex))
	}
}

// The end of a pause that much mail waits for is spread over steps: one does
// not hold up deliveries.
func TestReleaseInParts(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	w := newWorld(t, cfg)
	w.check = false
	p := testPause{queue: "a.example"}
	p.ID, p.Status, p.Reason = 1, dsn.S(4, 3, 2), "suspended"
	w.pauses[1] = p
	w.step(Event{Kind: EventPauses, Pauses: []Pause{p.Pause}})
	const n = 2*releaseBudget + 500
	for i := range n {
		w.arrive(MsgID(i+1), 0, rcpt("smtp", "a.example"))
	}
	if got := w.s.stats.Sited; got != n {
		t.Fatalf("%d messages wait, not %d", got, n)
	}
	clear(w.pauses)
	w.s.Step(w.now, Event{Kind: EventPauses}, nil)
	for steps := 1; ; steps++ {
		if left := max(n-steps*releaseBudget, 0); w.s.stats.Sited != left {
			t.Errorf("after %d steps %d messages wait, not %d", steps, w.s.stats.Sited, left)
		}
		if w.s.stats.Sited == 0 {
			break
		}
		if at := w.s.Wake(); at.After(w.now) {
			t.Fatal("there is more to release, and the scheduler does not want to be woken now")
		}
		w.s.Step(w.now, Event{Kind: EventTick}, nil)
	}
	if err := w.s.Check(); err != nil {
		t.Error(err)
	}
}
