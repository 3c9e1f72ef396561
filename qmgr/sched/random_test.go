package sched

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"posthaste/internal/feedback"
	"posthaste/internal/mail"
)

// smallConfig has limits that random histories run into.
func smallConfig(r *rand.Rand) Config {
	cfg := DefaultConfig()
	cfg.Seed = r.Uint64()
	cfg.ActiveLimit = 1 + r.IntN(12)
	cfg.RecipientLimit = 5 + r.IntN(60)
	cfg.RecipientMinimum = 1 + r.IntN(5)
	cfg.MaximalLifetime = 3 * time.Hour
	cfg.BounceLifetime = 2 * time.Hour
	cfg.DelayWarning = time.Duration(r.IntN(2)) * time.Hour
	cfg.FeedbackDebug = r.IntN(2) == 0
	seed := r.Uint64()
	cfg.Transport = func(name mail.Transport, c TransportConfig) TransportConfig {
		r := rand.New(rand.NewPCG(seed, uint64(len(name))))
		c.ProcessLimit = 1 + r.IntN(8)
		c.SlowLimit = max(r.IntN(8)-4, 0)
		c.SlowTime = time.Duration(1+r.IntN(5)) * time.Second
		c.ConcurrencyLimit = r.IntN(6)
		c.InitialConcurrency = 1 + r.IntN(3)
		c.PositiveFeedback = feedback.Feedback{Base: 1, Law: feedback.Law(r.IntN(3))}
		c.NegativeFeedback = feedback.Feedback{Base: 1, Law: feedback.Law(r.IntN(3))}
		c.FailedCohortLimit = r.IntN(3)
		c.BatchLimit = r.IntN(4)
		c.SlotCost = r.IntN(6)
		c.SlotLoan = r.IntN(4)
		c.SlotDiscount = r.IntN(101)
		c.MinimumSlots = r.IntN(3)
		c.RecipientLimit = 5 + r.IntN(40)
		c.ExtraRecipientLimit = r.IntN(10)
		c.RefillLimit = 1 + r.IntN(10)
		c.IdleMax = time.Duration(r.IntN(3)) * time.Second
		switch r.IntN(6) {
		case 0:
			c.Mode = Thread
			c.Order = Order(r.IntN(2))
			c.AgentsPerThread = r.IntN(3)
			c.ThreadQuantum = r.IntN(4)
		case 1:
			c.Mode = FIFO
		case 2:
			c.DestinationRateDelay = time.Duration(r.IntN(3)) * time.Second
		case 3:
			c.TransportRateDelay = time.Duration(r.IntN(2)) * time.Second
		}
		if name == RetryTransport {
			c.DestinationRateDelay, c.TransportRateDelay, c.FailedCohortLimit = 0, 0, 1
		}
		return c
	}
	return cfg
}

var destinations = []string{"a.example", "b.example", "c.example", "d.example", "e.example", "f.example"}

func randomRcpts(r *rand.Rand) []Rcpt {
	n := 1 + r.IntN(3)
	if r.IntN(6) == 0 {
		n = 1 + r.IntN(60)
	}
	var list []Rcpt
	for range n {
		x := rcpt([]string{"smtp", "smtp", "relay", "local", "error"}[r.IntN(5)], destinations[r.IntN(len(destinations))])
		x.Apart = uint32(r.IntN(9) / 7)
		if r.IntN(4) == 0 {
			x.Site = string(x.Nexthop)
		}
		list = append(list, x)
	}
	return list
}

// play runs one random history to its end: every message must then have left
// the queue.
func play(t *testing.T, seed uint64, steps int) { playIn(t, seed, steps, func(*rand.Rand, *world) {}) }

// playIn is play, in a world that begin has made ready.
func playIn(t *testing.T, seed uint64, steps int, begin func(*rand.Rand, *world)) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t, smallConfig(r))
	w.batch = r.IntN(8)
	begin(r, w)
	id := MsgID(0)
	for range steps {
		if w.each != nil {
			w.each(r)
		}
		switch x := r.IntN(100); {
		case x < 25:
			id++
			w.arrive(id, []Flags{0, 0, FlagNullSender, FlagSingleRcpt, FlagTrace}[r.IntN(5)], randomRcpts(r)...)
		case x < 80:
			w.finishOne(r, 6)
		case x < 82:
			w.explain(t)
		case x < 90:
			w.tick(time.Duration(r.IntN(3000)) * time.Millisecond)
		case x < 93:
			w.tick(time.Duration(r.IntN(600)) * time.Second)
		case x < 94 && len(w.order) > 0:
			w.lose(w.order[r.IntN(len(w.order))])
		case x < 95 && len(w.order) > 0:
			w.down(w.order[r.IntN(len(w.order))])
		case x < 96 && r.IntN(2) == 0:
			w.reconfigure(r)
			if r.IntN(2) == 0 {
				w.limits[destinations[r.IntN(len(destinations))]] = testLimit{r.IntN(4), r.IntN(2) == 0}
				w.setLimits()
			}
		case x < 96:
			cfg := w.s.cfg
			if r.IntN(2) == 0 {
				cfg = smallConfig(r)
				cfg.DeferredLimit = w.s.cfg.DeferredLimit
			}
			w.succeed(cfg)
		case x < 99 && id > 0:
			w.operate(r, MsgID(1+r.Uint64N(uint64(id))))
		default:
			w.sleep()
		}
		if r.IntN(4) == 0 {
			w.settleFar()
		}
	}
	w.refuse, w.far.late = nil, false
	if w.end != nil {
		w.end()
	}
	w.settleFar()
	for _, id := range slices.Sorted(maps.Keys(w.mail)) {
		w.command(Event{Kind: EventRelease, Scope: ScopeMessage, ID: id})
	}
	w.step(Event{Kind: EventRelease, Scope: ScopeAll})
	for n := 0; w.left() > 0; n++ {
		if n > 100000 {
			t.Fatalf("seed %d: %d messages never leave", seed, w.left())
		}
		if len(w.order) > 0 {
			w.finishOne(r, 6)
			w.onPass()
		} else if !w.sleep() && w.left() > 0 {
			t.Fatalf("seed %d: %d messages are stuck, and the scheduler does not want to be woken", seed, w.left())
		}
	}
	if st := w.s.Stats(); st.Active+st.Incoming+st.Deferred+st.Hold+st.Rcpts+st.Busy != 0 {
		t.Fatalf("seed %d: nothing is left, and the counts say %+v", seed, st)
	}
	return w
}

// explain: every recipient that is left is in one reason, and only those are.
func (w *world) explain(t *testing.T) {
	t.Helper()
	for _, l := range w.mail {
		if _, known := w.s.Lookup(l.id); !known && w.s.cfg.DeferredLimit > 0 {
			continue
		}
		reasons := w.s.Explain(l.id)
		if (l.gone != 0) != (reasons == nil) {
			t.Fatalf("message %d: gone %d, reasons %v", l.id, l.gone, reasons)
		}
		n := 0
		seen := map[int]bool{}
		for _, r := range reasons {
			n += r.Count
			if r.Wait == WaitNone || r.Rcpts != nil && len(r.Rcpts) != r.Count {
				t.Fatalf("message %d: no reason: %+v", l.id, r)
			}
			for _, i := range r.Rcpts {
				if l.final[i] || seen[i] || (r.Wait == WaitDelivery) != l.inflight[i] {
					t.Fatalf("message %d recipient %d: final %v, seen %v, under way %v: %+v", l.id, i, l.final[i], seen[i], l.inflight[i], r)
				}
				seen[i] = true
			}
		}
		if l.gone == 0 && n != l.pending {
			t.Fatalf("message %d: %d recipients left, reasons for %d: %+v", l.id, l.pending, n, reasons)
		}
	}
}

func (w *world) left() (n int) {
	for _, l := range w.mail {
		if l.gone == 0 {
			n++
		}
	}
	return n
}

// finishOne ends a random delivery; one in bad fails in some way.
func (w *world) finishOne(r *rand.Rand, bad int) {
	if len(w.order) == 0 {
		return
	}
	o := sent
	if r.IntN(bad) == 0 {
		o = outcome(1 + r.IntN(3))
		if len(w.pools) > 0 && r.IntN(3) == 0 {
			o = refusedAtOnce
		}
	}
	w.done(w.order[r.IntN(len(w.order))], o, r.IntN(3) == 0)
}

// take removes a busy entry whose agent will not report.
func (w *world) take(id EntryID) Effect {
	e := w.busy[id]
	delete(w.busy, id)
	for i, x := range w.order {
		if x == id {
			w.order = append(w.order[:i], w.order[i+1:]...)
			break
		}
	}
	for _, i := range e.Rcpts {
		delete(w.mail[e.ID].inflight, i)
	}
	return e
}

func (w *world) lose(id EntryID) {
	w.take(id)
	w.step(Event{Kind: EventLost, Entry: id})
}

func (w *world) down(id EntryID) {
	e := w.take(id)
	w.step(Event{Kind: EventAgentDown, Transport: e.Transport, Entries: []EntryID{id}})
}

// reconfigure changes windows, modes and the like; recipient limits stay.
func (w *world) reconfigure(r *rand.Rand) {
	cfg := w.s.cfg
	old := cfg.Transport
	other := smallConfig(r)
	cfg.Transport = func(name mail.Transport, c TransportConfig) TransportConfig {
		a, b := old(name, c), other.Transport(name, c)
		b.RecipientLimit, b.ExtraRecipientLimit = a.RecipientLimit, a.ExtraRecipientLimit
		b.ProcessLimit = max(a.ProcessLimit, b.ProcessLimit) // what is under way stays
		b.SlowLimit, b.SlowTime = max(a.SlowLimit, b.SlowLimit), min(a.SlowTime, b.SlowTime)
		return b
	}
	w.step(Event{Kind: EventReconfigured, Config: &cfg})
}

// operate gives a random command.
func (w *world) operate(r *rand.Rand, id MsgID) {
	ev := Event{Kind: []EventKind{EventFlush, EventFlush, EventHold, EventRelease, EventRemove, EventRequeue, EventExpire}[r.IntN(7)],
		ID: id, Now: r.IntN(2) == 0}
	switch r.IntN(6) {
	case 0:
		if ev.Kind == EventFlush || ev.Kind == EventRelease {
			ev.Scope = ScopeAll
		}
	case 1:
		if ev.Kind == EventFlush {
			ev.Scope, ev.Site = ScopeSite, destinations[r.IntN(len(destinations))]
		}
	}
	if ev.Scope == ScopeMessage {
		w.command(ev)
		return
	}
	w.step(ev)
}

var histories = flag.Uint64("histories", 60, "how many random histories to play")

func TestRandomHistories(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 30
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { play(t, seed, 400) })
	}
}
