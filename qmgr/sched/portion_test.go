package sched

import (
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/rate"
)

// portioned says that of each bound there is so much.
func (w *world) portioned(p map[Bound]int64) {
	w.t.Helper()
	p = maps.Clone(p)
	w.step(Event{Kind: EventPortions, Portions: func(_ LimitName, b Bound, _ rate.Rate) int64 { return p[b] }})
}

// use is what is said of one bound.
func (w *world) use(b Bound) (use SharedUse) {
	for u := range w.s.SharedUses {
		if u.Bound == b {
			use = u
		}
	}
	return use
}

// limitedWorld has mail for two destinations of one provider.
func limitedWorld(t testing.TB, l Limits) *world {
	w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.InitialConcurrency = 10 }))
	terms := &Terms{}
	terms.Shares[ProviderLimit] = Share{"p", l}
	w.terms = map[string]*Terms{"a": terms, "b": terms}
	return w
}

// A scheduler keeps to its portion of a limit that several destinations have in common, and says what it uses and wants: what is
// under way when the portion becomes smaller is in use until it ends.
func TestPortionOfConcurrency(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, Limits{Concurrency: 4})
	w.portioned(map[Bound]int64{BoundConcurrency: -1})
	for id := MsgID(1); id <= 20; id++ {
		w.arrive(id, 0, rcpt("smtp", []string{"a", "b"}[id%2]))
	}
	if u := w.use(BoundConcurrency); len(w.busy) != 0 || u.Busy != 0 || u.Want == 0 || u.Limit.N != 4 || u.LimitName != (LimitName{ProviderLimit, "p", "", ""}) {
		t.Errorf("%d under way without a portion, %+v", len(w.busy), u)
	}
	if r := w.s.Explain(1); len(r) != 1 || r[0].Wait != WaitNode || r[0].Gate != "provider p" {
		t.Errorf("%+v", r)
	}
	for _, c := range []struct {
		portion int64
		want    int
	}{{3, 3}, {1, 3}, {0, 4}, {9, 4}, {-1, 4}} {
		w.portioned(map[Bound]int64{BoundConcurrency: c.portion})
		if len(w.busy) != c.want || w.use(BoundConcurrency).Busy != int64(c.want) {
			t.Errorf("%d under way with a portion of %d, %d are said", len(w.busy), c.portion, w.use(BoundConcurrency).Busy)
		}
	}
	w.done(w.order[0], sent, false)
	if len(w.busy) != 3 {
		t.Errorf("%d under way: one has begun without a portion", len(w.busy))
	}
	w.portioned(map[Bound]int64{BoundConcurrency: 4})
	if len(w.busy) != 4 {
		t.Errorf("%d under way with all of it", len(w.busy))
	}
}

// Of a day's recipients what was spent is in use, also when it is not known any more of how many; and a portion bounds it.
func TestPortionOfDay(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, Limits{Recipients: rate.Rate{N: 100, Per: rate.Day}})
	w.portioned(map[Bound]int64{BoundRecipients: 3})
	for id := MsgID(1); id <= 20; id++ {
		w.arrive(id, 0, rcpt("smtp", "a"))
	}
	for range 10 {
		if len(w.order) > 0 {
			w.done(w.order[0], sent, false)
		}
	}
	if u := w.use(BoundRecipients); u.Busy != 3 || u.Limit.N != 100 || u.Want == 0 {
		t.Errorf("%+v", u)
	}
	other := New(w.s.cfg)
	other.RestoreSpent(w.now, w.s.Spent())
	n := 0
	for u := range other.SharedUses {
		if n++; u.Busy != 3 || u.Limit != (rate.Rate{N: 3, Per: rate.Day}) || u.Want != 0 {
			t.Errorf("after a restart: %+v", u)
		}
	}
	if n != 1 {
		t.Errorf("after a restart: %d uses", n)
	}
}

// Several schedulers that divide a rate, whose portions come and go, and never are more than the rate together with what is still
// in use, let no more go in any span of its time than it says, and one more each at most.
func TestPortionOfRate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		whole := rate.Rate{N: rapid.Int64Range(1, 200).Draw(rt, "n"), Per: rapid.SampledFrom([]time.Duration{time.Minute, time.Hour}).Draw(rt, "per")}
		// With more than one recipient each, the last delivery that goes may be more than there is room for.
		most := rapid.IntRange(1, 50).Draw(rt, "recipients")
		const nodes = 3
		var list [nodes]*Scheduler
		var limits [nodes]*shared
		var has [nodes]int64
		for i := range list {
			s := New(one(func(*Config, *TransportConfig) {}))
			s.now = int64(1e15)
			n := s.newShared(sharedKey{level: ProviderLimit, name: "p"})
			n.members++
			s.portions = func(_ LimitName, _ Bound, _ rate.Rate) int64 {
				if has[i] == 0 {
					return -1
				}
				return has[i]
			}
			s.changeLimits(n, Limits{Recipients: whole})
			list[i], limits[i] = s, n
		}
		var went, counts []int64
		for range rapid.IntRange(1, 400).Draw(rt, "steps") {
			i := rapid.IntRange(0, nodes-1).Draw(rt, "node")
			s, n := list[i], limits[i]
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				d := rapid.Int64Range(1, int64(whole.Per/time.Microsecond)/3).Draw(rt, "time")
				for _, s := range list {
					s.now += d
				}
			case 1: // what others use or have is not to be had
				room := whole.N
				for j := range list {
					if j != i {
						room -= max(has[j], limits[j].used(BoundRecipients, s.now))
					}
				}
				has[i] = rapid.Int64Range(0, max(room, 0)).Draw(rt, "portion")
				s.portion(n)
			default:
				if s.room(n) {
					k := rapid.IntRange(1, most).Draw(rt, "of one")
					n.spend(s.now, k)
					went, counts = append(went, s.now), append(counts, int64(k))
				}
			}
		}
		for i, from := range went {
			n := int64(0)
			for j, at := range went[i:] {
				if at-from < int64(whole.Per/time.Microsecond) {
					n += counts[i+j]
				}
			}
			if n > whole.N+int64(nodes*most) {
				rt.Fatalf("%d in %v, of %d", n, whole.Per, whole.N)
			}
		}
	})
}

// What was spent at a larger portion is paid at that: until then the larger one is in use, and no longer.
func TestPortionKept(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, Limits{Messages: rate.Rate{N: 100, Per: time.Hour}})
	w.portioned(map[Bound]int64{BoundMessages: 80})
	for id := MsgID(1); id <= 9; id++ {
		w.arrive(id, 0, rcpt("smtp", "a"))
	}
	if u := w.use(BoundMessages); u.Busy != 80 || len(w.busy) == 0 {
		t.Fatalf("%+v, %d under way", u, len(w.busy))
	}
	w.portioned(map[Bound]int64{BoundMessages: 10})
	if u := w.use(BoundMessages); u.Busy != 80 {
		t.Errorf("what was spent is not kept: %+v", u)
	}
	w.portioned(map[Bound]int64{BoundMessages: -1})
	w.tick(10 * time.Minute)
	if u := w.use(BoundMessages); u.Busy != 0 {
		t.Errorf("what has been paid is kept: %+v", u)
	}
}

// What a source may send in a day while it warms up adds up over several schedulers. Without a portion mail goes from another source, or waits if
// it is to wait for this one; and a portion is asked for in either case, as long as there is something left.
func TestPortionOfWarmup(t *testing.T) {
	t.Parallel()
	for _, wait := range []bool{false, true} {
		w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.BatchLimit = 1; c.ConcurrencyLimit = 3 }))
		pool := poolOf(warming("new", 10, wait), Member{Source: "old", Weight: 1})
		n := counted(w)
		id := MsgID(0)
		more := func() {
			id++
			var rcpts []Rcpt
			for i := range 60 {
				d := string(rune('a' + i%3))
				w.pools[d] = pool
				rcpts = append(rcpts, rcpt("smtp", d))
			}
			w.arrive(id, 0, rcpts...)
			finishAll(w, allSent)
			if !wait && w.mail[id].pending > 0 {
				t.Errorf("%d recipients wait, and the old source may send them", w.mail[id].pending)
			}
		}
		for _, c := range []struct{ portion, sent, busy, want int64 }{{-1, 0, 0, 1}, {4, 4, 4, 1}, {-1, 4, 4, 1}, {6, 6, 6, 1}, {0, 10, 10, 0}} {
			w.portioned(map[Bound]int64{BoundWarmup: c.portion})
			more()
			if u := w.use(BoundWarmup); int64(n["new"]) != c.sent || u.Busy != c.busy || min(u.Want, 1) != c.want && !wait {
				t.Errorf("wait: %v, a portion of %d: %d were sent, %+v", wait, c.portion, n["new"], u)
			}
		}
		if n["old"] == 0 {
			t.Errorf("%v", n)
		}
	}
}
