package sched

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"posthaste/internal/adaptive"
	"posthaste/internal/mail"
)

// adaptiveOne is a scheduler's configuration with an adaptive transport.
func adaptiveOne(set func(*Config, *TransportConfig)) Config {
	return one(func(c *Config, t *TransportConfig) {
		t.Adaptive, t.AdaptiveFloor, t.AdaptiveDelay, t.InitialConcurrency, t.ConcurrencyLimit, t.ProcessLimit = true, 1, time.Minute, 5, 20, 100
		set(c, t)
	})
}

// Random histories of destinations that ask for less end with an empty queue, and after every step all invariants
// hold, among them that nothing has a place in a rest: with limits, sources, sites that change, successors, and
// destination_adaptive switched on and off.
func TestAdaptiveHistories(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 30
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rested := 0
			playIn(t, seed, 400, func(r *rand.Rand, w *world) {
				w.step(Event{Kind: EventReconfigured, Config: w.askForLess(r)})
				sharedWorld(r, w)
				w.on = func(e Effect) {
					if e.Kind != EffectDeliver {
						return
					}
					for _, x := range w.s.transports {
						for q := x.firstQueue; q != nil; q = q.nxt {
							if q.rests(w.s.now) {
								rested++
							}
							if q.course != nil && q.limit > 0 && q.window > q.limit {
								t.Fatalf("%s has a window of %d, with a limit of %d", q.name, q.window, q.limit)
							}
						}
					}
				}
			})
			if rested == 0 {
				t.Log("nothing ever rested")
			}
		})
	}
}

// askForLess has destinations ask for less, now and then, and gives the configuration with which they are followed.
func (w *world) askForLess(r *rand.Rand) *Config {
	cfg := w.s.cfg
	plain := cfg.Transport
	cfg.Transport = func(name mail.Transport, c TransportConfig) TransportConfig {
		c = plain(name, c)
		c.Adaptive, c.AdaptiveFloor, c.AdaptiveDelay = name != "local", len(name)%3, time.Duration(len(name))*time.Second
		return c
	}
	w.asked = func(res *Result) {
		if r.IntN(3) == 0 {
			res.Ask = adaptive.Ask(r.IntN(int(adaptive.Away)))
			res.Said, res.After = "421 no", time.Duration(r.IntN(2)*r.IntN(1000))*time.Second
		}
	}
	return &cfg
}

// What was learnt outlives the mail for a destination, and a successor.
func TestLearntStays(t *testing.T) {
	t.Parallel()
	cfg := adaptiveOne(func(*Config, *TransportConfig) {})
	w := newWorld(t, cfg)
	for id := MsgID(1); id <= 30; id++ {
		w.arrive(id, 0, rcpt("smtp", "a"))
	}
	w.asked = func(r *Result) { r.Ask, r.Said = adaptive.Slower, "421 4.7.28 too fast" }
	w.done(w.order[0], deferred, false)
	w.asked = nil
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	d, _ := w.s.Dest("smtp", "a")
	if d.Learnt.Rests.IsZero() || d.Learnt.Pace.IsZero() || d.Busy > 0 {
		t.Fatalf("it does not rest: %+v", d.Learnt)
	}
	w.succeed(cfg)
	if n := len(w.order); n > 0 {
		t.Fatalf("%d deliveries begin in the rest, after a reload", n)
	}
	again, _ := w.s.Dest("smtp", "a")
	if *again.Learnt != *d.Learnt {
		t.Errorf("%+v became %+v", d.Learnt, again.Learnt)
	}
	for w.left() > 0 {
		for len(w.order) > 0 {
			w.done(w.order[0], sent, false)
		}
		w.sleep()
	}
	if _, known := w.s.Dest("smtp", "a"); known {
		t.Fatal("there is no mail for it, and it is not forgotten")
	}
	w.succeed(cfg)
	w.arrive(100, 0, rcpt("smtp", "a"))
	if d, _ := w.s.Dest("smtp", "a"); d.Learnt.Pace.IsZero() {
		t.Error("what was learnt is forgotten with the last message")
	}
}

// What was learnt of a destination is forgotten some time after the last mail for it, however often the process is replaced
// meanwhile, and whether or not the successor has waited for mail in vain.
func TestLearntAges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		step   time.Duration // between two reloads
		n      int
		known  bool
		waited bool // for longer than a successor waits for mail
	}{
		{"young", time.Hour, 5, true, true},
		{"old", time.Hour, 7, false, true},
		{"quick reloads, young", 30 * time.Second, 600, true, false},
		{"quick reloads, old", 30 * time.Second, 900, false, false},
	} {
		cfg := adaptiveOne(func(*Config, *TransportConfig) {})
		w := newWorld(t, cfg)
		for id := MsgID(1); id <= 30; id++ {
			w.arrive(id, 0, rcpt("smtp", "a"))
		}
		w.asked = func(r *Result) { r.Ask, r.Said = adaptive.Slower, "421 4.7.28 too fast" }
		w.done(w.order[0], deferred, false)
		w.asked = nil
		for w.left() > 0 {
			for len(w.order) > 0 {
				w.done(w.order[0], sent, false)
			}
			w.sleep()
		}
		for range c.n {
			w.succeed(cfg)
			w.tick(c.step)
		}
		w.succeed(cfg)
		if c.waited {
			w.tick(2 * time.Minute)
		}
		w.arrive(100, 0, rcpt("smtp", "a"))
		if d, _ := w.s.Dest("smtp", "a"); d.Learnt.Pace.IsZero() == c.known {
			t.Errorf("%s: %+v", c.name, d.Learnt)
		}
	}
}

// A delivery that was ordered before a rest and never begun gives nothing back that ends the rest early.
func TestRestUnmade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, adaptiveOne(func(_ *Config, c *TransportConfig) { c.InitialConcurrency = 5 }))
	for id := MsgID(1); id <= 30; id++ {
		w.arrive(id, 0, rcpt("smtp", "a"))
	}
	slower := func(r *Result) { r.Ask, r.Said = adaptive.Slower, "421 4.7.28 too fast" }
	w.asked = slower
	w.done(w.order[0], deferred, false)
	w.asked = nil
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	for len(w.order) < 2 { // at the pace, after the rest
		w.sleep()
	}
	n := w.s.transportIndex["smtp"].queues["a"].paced
	w.asked = slower
	w.done(w.order[0], deferred, false)
	q := w.s.transportIndex["smtp"].queues["a"]
	if !q.rests(w.s.now) || q.paced != n {
		t.Fatalf("it does not rest: %+v", q.course)
	}
	before := n.msgs.Due
	for len(w.order) > 0 {
		w.s.unmade(w.s.busyEntry(w.order[0]))
		w.take(w.order[0])
	}
	if n.msgs.Due < before {
		t.Errorf("the rest has become shorter by %v", time.Duration(before-n.msgs.Due)*time.Microsecond)
	}
}

// A destination that answers and wants less is not dead, and its mail is not deferred. One of a pool is, if its mail
// can go from another source; while that is dead itself, it is not. One that does not answer is dead as ever.
func TestAskingIsNotDead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		ask  adaptive.Ask
		pool string // sources: m1 is used, m2 is suspended
		dead bool
	}{{"asks", adaptive.Fewer, "", false}, {"says nothing", adaptive.Nothing, "", true}, {"pool", adaptive.Fewer, "m1 m2 m3", true},
		{"pool of one", adaptive.Fewer, "m1", false}, {"pool without others", adaptive.Fewer, "m1 m2", false}, {"pool without answers", adaptive.Nothing, "m1", true}} {
		w := newWorld(t, adaptiveOne(func(_ *Config, t *TransportConfig) { t.InitialConcurrency, t.FailedCohortLimit = 1, 1 }))
		name := "a"
		if c.pool != "" {
			pool := &Pool{Name: "p"}
			for _, source := range strings.Fields(c.pool) {
				pool.Members = append(pool.Members, Member{Source: source})
			}
			w.pools["a"], name = pool, "a from m1"
			w.step(Event{Kind: EventPauses, Pauses: []Pause{{ID: 1, Source: "m2"}, {ID: 2, Source: "m3"}}})
		}
		w.arrive(1, 0, rcpt("smtp", "a"))
		w.arrive(2, 0, rcpt("smtp", "a"))
		w.asked = func(r *Result) { r.Ask = c.ask }
		w.step(Event{Kind: EventPauses, Pauses: []Pause{{ID: 1, Source: "m2"}}})
		w.done(w.order[0], unreachable, false)
		if d, _ := w.s.Dest("smtp", name); (d.State == DestDead) != c.dead {
			t.Errorf("%s: dead is %v", c.name, d.State == DestDead)
		}
	}
}

// A source that rests leaves the mail to those that do not.
func TestRestingSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t, adaptiveOne(func(*Config, *TransportConfig) {}))
	w.pools["a"] = &Pool{Name: "p", Members: []Member{{Source: "m1"}, {Source: "m2"}}}
	for id := MsgID(1); id <= 40; id++ {
		w.arrive(id, 0, rcpt("smtp", "a"))
	}
	w.asked = func(r *Result) { r.Ask = adaptive.Slower }
	for _, id := range w.order {
		if w.busy[id].Source == "m1" {
			w.done(id, deferred, false)
			break
		}
	}
	w.asked = nil
	var from []string
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver && e.Transport == "smtp" {
			from = append(from, e.Source)
		}
	}
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	for _, source := range from {
		if source != "m2" {
			t.Errorf("something goes from %s, which rests", source)
		}
	}
	if len(from) < 30 {
		t.Errorf("only %d deliveries begin", len(from))
	}
}

// Without destination_adaptive nothing follows anything.
func TestNotAdaptive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(*Config, *TransportConfig) {}))
	w.arrive(1, 0, rcpt("smtp", "a"))
	w.asked = func(r *Result) { r.Ask = adaptive.Slower }
	w.arrive(2, 0, rcpt("smtp", "a"))
	w.done(w.order[0], deferred, false)
	if d, _ := w.s.Dest("smtp", "a"); d.Learnt != nil || len(w.s.shares) > 0 {
		t.Errorf("%+v", d)
	}
}

// What strangers can have remembered is bounded.
func TestLearntBounded(t *testing.T) {
	t.Parallel()
	var x transport
	for i := range maxLearnt + 10 {
		x.putLearnt(&learnt{name: fmt.Sprint(i), since: int64(i)})
	}
	if n := len(x.learnt.byName); n != maxLearnt || x.learnt.oldest.Len() != n || x.learnt.take("0") != nil || x.learnt.take("20") == nil {
		t.Errorf("%d are remembered", n)
	}
	if x.putLearnt(&learnt{name: "late", since: 10 * learntTime}); len(x.learnt.byName) != 1 {
		t.Errorf("%d are remembered for ever", len(x.learnt.byName))
	}
}
