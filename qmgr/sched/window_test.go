package sched

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// far is what a world does for a scheduler that does not keep all deferred mail.
type far struct {
	late    bool           // answers to EffectFetch and EventForget wait for the test
	away    map[MsgID]bool // forgotten
	fetch   *Fetch         // unanswered
	leaving []MsgID        // to be forgotten
	passing bool
	passed  MsgID // of the pass: up to here
	fetches int   // that have been answered
	most    int   // deferred messages in memory, at any time
}

// queuedAgain tells of a message that may have been forgotten.
func (l *letter) queuedAgain() Event {
	ev := Event{Kind: EventQueued, ID: l.id, Arrival: Arrival{Queue: l.queue, Created: l.created, Next: l.next, Size: 1000,
		Rcpts: l.pending, Attempts: l.attempts, Flags: l.flags, Tenant: l.tenant}}
	if l.attempts > 0 {
		ev.Arrival.Flags &^= FlagTrace
	}
	return ev
}

// deferredLetters are those that a fetch is for, in order.
func (w *world) deferredLetters(f *Fetch) (list []Event, whole bool) {
	after := mark{toMicros(f.After.Next), f.After.ID}
	var marks []mark
	for id, l := range w.mail {
		if l.gone != 0 || l.queue != QueueDeferred {
			continue
		}
		m := mark{toMicros(l.next), id}
		if l.next.After(f.Sane) && toMicros(f.Amnesty) >= after.next {
			m.next = toMicros(f.Amnesty)
		}
		if m.compare(after) > 0 {
			marks = append(marks, m)
		}
	}
	slices.SortFunc(marks, mark.compare)
	whole = len(marks) <= f.Max
	for _, m := range marks[:min(len(marks), f.Max)] {
		ev := w.mail[m.id].queuedAgain()
		ev.Arrival.Next = toTime(m.next)
		list = append(list, ev)
	}
	return list, whole
}

// farEffect carries out what concerns mail that is not in memory.
func (w *world) farEffect(e Effect) []Event {
	f := &w.far
	l := w.mail[e.ID]
	switch e.Kind {
	case EffectFetch:
		if f.fetch = e.Fetch; !f.late {
			return w.fetched()
		}
	case EffectLeave:
		f.leaving = append(f.leaving, e.ID)
	case EffectForget:
		if l.gone != 0 || l.queue != QueueDeferred && l.queue != QueueHold || len(l.inflight) > 0 {
			w.t.Fatalf("message %d is forgotten in queue %v, gone %d", e.ID, l.queue, l.gone)
		}
		f.away[e.ID] = true
	case EffectRecall:
		switch {
		case l == nil || l.gone != 0:
		case e.Flush:
			return []Event{l.queuedAgain(), {Kind: EventFlush, Scope: ScopeMessage, ID: e.ID}}
		default:
			return []Event{l.queuedAgain(), {Kind: EventRecalled, ID: e.ID, Early: e.Early}}
		}
	case EffectPass:
		f.passing, f.passed = true, 0
	}
	return nil
}

// fetched answers the fetch.
func (w *world) fetched() []Event {
	f := &w.far
	if f.fetch == nil {
		return nil
	}
	list, whole := w.deferredLetters(f.fetch)
	ev := Event{Kind: EventFetched, OK: whole}
	if n := len(list); n > 0 {
		ev.Mark = &Mark{list[n-1].Arrival.Next, list[n-1].ID}
	}
	f.fetch = nil
	f.fetches++
	return append(list, ev)
}

func (w *world) forget() []Event {
	list := w.far.leaving
	if len(list) == 0 || w.s.window.fetching {
		return nil
	}
	w.far.leaving = nil
	return []Event{{Kind: EventForget, IDs: list}}
}

// pass goes on with a flush of all mail.
func (w *world) pass() []Event {
	f := &w.far
	if !f.passing || w.s.Due() > 2 {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(w.mail)) {
		if l := w.mail[id]; id > f.passed && l.gone == 0 && l.queue == QueueDeferred {
			f.passed = id
			if _, known := w.s.Lookup(id); known {
				continue
			}
			return []Event{l.queuedAgain(), {Kind: EventRecalled, ID: id, Now: true}}
		}
	}
	f.passing = false
	return []Event{{Kind: EventPassed}}
}

// settleFar does what waits for the test.
func (w *world) settleFar() {
	w.t.Helper()
	for _, list := range [][]Event{w.fetched(), w.forget()} {
		for _, ev := range list {
			w.step(ev)
		}
	}
	w.onPass()
}

func (w *world) onPass() {
	w.t.Helper()
	for list := w.pass(); list != nil; list = w.pass() {
		w.step(list...)
	}
}

// command gives a command for one message, which need not be in memory.
func (w *world) command(ev Event) {
	w.t.Helper()
	if l := w.mail[ev.ID]; l != nil && l.gone == 0 {
		if _, ok := w.s.Lookup(ev.ID); !ok {
			w.step(l.queuedAgain(), ev)
			return
		}
	}
	w.step(ev)
}

// checkFar: what is not in memory is beyond the edge, or on hold.
func (w *world) checkFar() {
	w.t.Helper()
	s, f := w.s, &w.far
	if w.s.cfg.DeferredLimit == 0 {
		return
	}
	f.most = max(f.most, len(s.retries.s))
	for id, l := range w.mail {
		if l.gone != 0 {
			continue
		}
		if _, ok := s.Lookup(id); ok {
			continue
		}
		m := mark{toMicros(l.next), id}
		sane := s.clock.wall + s.longest()
		if l.queue != QueueHold && (!f.away[id] || s.window.whole || m.compare(s.window.edge) <= 0 && m.next <= sane) {
			w.t.Fatalf("message %d in queue %v, due %v, is forgotten (%v); the edge is at %v, all is in memory: %v", id, l.queue, l.next, f.away[id],
				toTime(s.window.edge.next), s.window.whole)
		}
	}
}

// Messages are attempted when they are due, however few of those that are deferred are
// in memory.
func TestWindowTimes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type load struct {
			at    time.Duration
			fails int // attempts that fail
		}
		loads := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) load {
			return load{time.Duration(rapid.IntRange(0, 3000).Draw(t, "at")) * time.Second, rapid.IntRange(0, 5).Draw(t, "fails")}
		}), 1, 40).Draw(t, "mail")
		slices.SortStableFunc(loads, func(a, b load) int { return int(a.at - b.at) })
		attempts := func(limit int) map[MsgID][]time.Time {
			cfg := one(func(c *Config, _ *TransportConfig) { c.QueueRunDelay, c.DeferredLimit = 0, limit })
			w := newWorld(t, cfg)
			w.check = false // TestWindowHistories does
			tried := map[MsgID][]time.Time{}
			w.on = func(e Effect) {
				if e.Kind == EffectDeliver {
					tried[e.ID] = append(tried[e.ID], w.now)
				}
			}
			serve := func() {
				for len(w.order) > 0 {
					e := w.busy[w.order[0]]
					o := sent
					if len(tried[e.ID]) <= loads[e.ID-1].fails {
						o = deferred
					}
					w.done(w.order[0], o, false)
				}
			}
			for i, l := range loads {
				at := epoch.Add(l.at)
				for next := w.s.Wake(); !next.IsZero() && !next.After(at); next = w.s.Wake() {
					w.sleep()
					serve()
				}
				w.now = at
				w.arrive(MsgID(i+1), 0, rcpt("smtp", fmt.Sprintf("d%d.example", i)))
				serve()
			}
			for w.left() > 0 {
				if !w.sleep() {
					t.Fatalf("%d messages are left, and nobody wants to be woken", w.left())
				}
				serve()
			}
			if limit > 0 && w.far.most > limit+limit/4+2 {
				t.Fatalf("%d deferred messages in memory, with a limit of %d", w.far.most, limit)
			}
			return tried
		}
		want := attempts(0)
		for _, limit := range []int{1, 3, 10} {
			got := attempts(limit)
			for id, times := range want {
				if !slices.EqualFunc(times, got[id], time.Time.Equal) {
					t.Fatalf("with %d in memory message %d was tried at %v, with all at %v", limit, id, got[id], times)
				}
			}
		}
	})
}

// What waits for a destination that failed, and has been forgotten, is called back when
// it answers; and so is what waits for the end of a pause.
func TestWindowRecalls(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]func(w *world){
		"revival": func(w *world) {
			w.arrive(1000, 0, rcpt("smtp", "a.example"))
			w.finishAll()
			w.command(Event{Kind: EventFlush, Scope: ScopeMessage, ID: 1000})
		},
		"pause":      func(w *world) { clear(w.pauses); w.setPauses() },
		"flush":      func(w *world) { w.step(Event{Kind: EventFlush, Scope: ScopeAll}); w.onPass() },
		"flush site": func(w *world) { w.step(Event{Kind: EventFlush, Scope: ScopeSite, Site: "a.example"}) },
		"successor": func(w *world) {
			w.succeed(w.s.cfg)
			w.tick(2 * time.Minute)
			w.arrive(1000, 0, rcpt("smtp", "a.example"))
			w.finishAll()
			w.command(Event{Kind: EventFlush, Scope: ScopeMessage, ID: 1000})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, one(func(c *Config, _ *TransportConfig) { c.DeferredLimit = 4 }))
			if name == "pause" {
				w.pauses[1] = testPause{Pause: Pause{ID: 1, Reason: "suspended"}, queue: "a.example"}
				w.setPauses()
			}
			for id := MsgID(1); id <= 100; id++ {
				w.arrive(id, 0, rcpt("smtp", "a.example"))
			}
			w.finishAll()
			if st := w.s.Stats(); st.Deferred > 6 || st.Sited != 100 {
				t.Fatalf("%d deferred messages in memory, %d counted for what they wait for", st.Deferred, st.Sited)
			}
			w.tick(time.Minute)
			before := w.now
			way(w)
			for len(w.order) > 0 {
				w.done(w.order[0], sent, false)
				w.onPass()
			}
			if n := w.left(); n != 0 || !w.now.Before(before.Add(5*time.Minute)) {
				t.Errorf("%d messages are left at %v", n, w.now)
			}
			if n := len(w.s.window.awayAt); n != 0 {
				t.Errorf("%d messages are remembered", n)
			}
		})
	}
}

// What is on record as due in years is tried soon all the same.
func TestWindowAmnesty(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, _ *TransportConfig) { c.DeferredLimit = 2 }))
	for id := MsgID(1); id <= 20; id++ {
		w.mail[id] = &letter{id: id, rcpts: []Rcpt{rcpt("smtp", "a.example")}, final: make([]bool, 1), pending: 1, inflight: map[int]bool{}, queue: QueueDeferred,
			attempts: 1, created: epoch, next: epoch.AddDate(10, 0, int(id))}
		w.far.away[id] = true
	}
	w.step(Event{Kind: EventAttached})
	for w.left() > 0 {
		if !w.sleep() {
			t.Fatalf("%d messages are stuck", w.left())
		}
		for len(w.order) > 0 {
			w.done(w.order[0], sent, false)
		}
	}
	if late := w.now.Sub(epoch); late > 5000*time.Second {
		t.Errorf("they were tried after %v", late)
	}
}

// The wall clock goes back, and what was deferred is due in a far future.
func TestWindowClockBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, _ *TransportConfig) { c.DeferredLimit = 2; c.MaximalLifetime = 1000 * time.Hour }))
	for id := MsgID(1); id <= 50; id++ {
		w.arrive(id, 0, rcpt("smtp", fmt.Sprintf("d%d.example", id)))
		w.done(w.order[0], deferred, false)
	}
	back := w.now.Add(-240 * time.Hour)
	w.now = back
	w.step(Event{Kind: EventTick})
	for w.left() > 0 {
		if !w.sleep() {
			t.Fatalf("%d messages are stuck", w.left())
		}
		for len(w.order) > 0 {
			w.done(w.order[0], sent, false)
		}
	}
	if late := w.now.Sub(back); late > 5*time.Hour {
		t.Errorf("they were tried after %v", late)
	}
}

// TestWindowHistories plays random histories with a bounded window, and answers that
// come late.
func TestWindowHistories(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 15
	}
	fetches := 0
	for seed := range n {
		w := playIn(t, seed, 400, func(r *rand.Rand, w *world) {
			w.s.cfg.DeferredLimit = 1 + r.IntN(5)
			w.far.late = r.IntN(2) == 0
			w.step(Event{Kind: EventAttached})
		})
		fetches += w.far.fetches
	}
	if fetches < 10*int(n) {
		t.Errorf("%d fetches in %d histories: this looks at too little", fetches, n)
	}
}

// finishAll ends all deliveries in vain.
func (w *world) finishAll() {
	w.t.Helper()
	for len(w.order) > 0 {
		w.done(w.order[0], unreachable, false)
	}
}
