package sched

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"posthaste/internal/mail"
)

// TestTenantsWithAll plays histories in which mail of tenants meets all that has a say in where it waits: threads,
// shared limits, sources that are suspended, pauses, destinations that other nodes have shut, mail that is not in
// memory, and successors; in every other history also destinations that ask for less, and are followed.
func TestTenantsWithAll(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 25
	}
	contested, both := 0, 0
	for seed := range n {
		playIn(t, 7000+seed, 300, func(r *rand.Rand, w *world) {
			w.tenantsWithAll(r)
			if seed%2 == 1 {
				w.followOnAndOff(r)
			}
			w.onEvent = func(Event) {
				for _, t := range w.s.transports {
					for q := t.firstQueue; q != nil; q = q.nxt {
						if q.others != nil {
							contested++
						}
						if q.paced != nil && q.lined > 0 {
							both++
						}
					}
				}
			}
		})
	}
	if contested < 100*int(n) {
		t.Errorf("%d destinations with mail of several tenants in %d histories: this looks at too little", contested, n)
	}
	if both < 10*int(n) {
		t.Errorf("%d destinations with a pace, and mail that waits for its tenant's limit, in %d histories: this looks at too little", both, n)
	}
}

// followOnAndOff has destinations ask for less. Now and then nothing is followed any more, or it is again.
func (w *world) followOnAndOff(r *rand.Rand) {
	w.step(Event{Kind: EventReconfigured, Config: w.askForLess(r)})
	inner, following := w.each, true
	w.each = func(r *rand.Rand) {
		inner(r)
		if r.IntN(60) > 0 {
			return
		}
		following = !following
		cfg, on := w.s.cfg, following
		plain := cfg.Transport
		cfg.Transport = func(name mail.Transport, c TransportConfig) TransportConfig {
			c = plain(name, c)
			c.Adaptive = on && name != "local"
			return c
		}
		if r.IntN(2) == 0 {
			w.succeed(cfg)
		} else {
			w.step(Event{Kind: EventReconfigured, Config: &cfg})
		}
	}
}

// tenantsWithAll makes w ready for it.
func (w *world) tenantsWithAll(r *rand.Rand) {
	tenants, weights := 1+r.IntN(6), 1+r.IntN(4)
	w.tenant = func(id MsgID) string { return []string{"", "a", "b", "c", "d", "e"}[int(id)*int(id)%7%tenants] }
	cfg := w.s.cfg
	cfg.TenantWeight = func(name string) int { return 1 + int(name[0])%weights }
	cfg.SharedActiveLimit = r.IntN(4)
	if inner := cfg.Transport; r.IntN(2) == 0 {
		quantum := r.IntN(4)
		cfg.Transport = func(name mail.Transport, c TransportConfig) TransportConfig {
			if c = inner(name, c); name != RetryTransport {
				c.Mode, c.ThreadQuantum = Thread, quantum
			}
			return c
		}
	}
	w.terms, w.tries = randomTerms(r, randomLimits), true
	if r.IntN(2) == 0 {
		w.pools = randomPools(r, w.terms)
	}
	if r.IntN(3) == 0 {
		cfg.DeferredLimit = 1 + r.IntN(5)
	}
	if r.IntN(2) == 0 {
		w.whose = randomAllowances(r)
	}
	w.succeed(cfg)
	steering := false
	w.on = func(e Effect) {
		if !steering { // what gives its place up may give it to what is parked next
			w.obey(e)
		}
	}
	stops, pauses := PauseID(100000), PauseID(0)
	w.each = func(r *rand.Rand) {
		switch x := r.IntN(120); {
		case x < 3 && len(w.pools) > 0:
			if name := fmt.Sprintf("m%d", 1+r.IntN(3)); w.stopped[name] != 0 {
				delete(w.stopped, name)
			} else {
				stops++
				w.stopped[name] = stops
			}
			steering = true
			w.setPauses()
			steering = false
		case x < 6:
			steering = true
			w.steer(r, &pauses)
			steering = false
		case x < 12:
			w.limits[destinations[r.IntN(len(destinations))]] = testLimit{r.IntN(4) - 1, r.IntN(2) == 0}
			w.setLimits()
		case x < 13 && w.whose != nil:
			steering = true
			w.changeAllowances(r)
			steering = false
		case x < 15:
			w.terms = randomTerms(r, randomLimits)
			for _, d := range destinations {
				w.step(Event{Kind: EventTerms, Transport: "smtp", Site: d, Terms: w.terms[d]})
			}
			if len(w.pools) > 0 {
				w.pools = randomPools(r, w.terms)
			}
		}
	}
	w.end = func() {
		clear(w.pauses)
		clear(w.stopped)
		clear(w.limits)
		w.setLimits()
		w.setPauses()
	}
}
