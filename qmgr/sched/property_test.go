package sched

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"

	"pgregory.net/rapid"
)

// one is a configuration with one transport setting for all transports.
func one(set func(c *Config, t *TransportConfig)) Config {
	cfg := DefaultConfig()
	set(&cfg, &cfg.DefaultTransports)
	return cfg
}

// sequence plays messages of these sizes to one agent, each arriving after so
// many selections of others, and returns whose entries were selected, and how
// many had been when each message came.
func sequence(w *world, sizes, gaps []int) (seq []MsgID, came []int) {
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver {
			seq = append(seq, e.ID)
		}
	}
	for i, n := range sizes {
		var list []Rcpt
		for k := range n {
			list = append(list, rcpt("smtp", fmt.Sprintf("d%d.%d", i, k)))
		}
		came = append(came, len(seq))
		w.arrive(MsgID(i+1), 0, list...)
		for range gaps[i] {
			if len(w.order) > 0 {
				w.done(w.order[0], sent, false)
			}
		}
	}
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	return seq, came
}

// others counts the entries of other messages between the first and the last
// of message id.
func others(seq []MsgID, id MsgID) (n int) {
	first := slices.Index(seq, id)
	last := first
	for i, x := range seq {
		if x == id {
			last = i
		}
	}
	for _, x := range seq[first:last] {
		if x != id {
			n++
		}
	}
	return n
}

// TestInflation: for every k entries a job lets one slip past. However deep
// preemption goes, it takes at most k/(k-1) of its time; (k+1)/k when those
// that slip past let nobody past themselves.
func TestInflation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(2, 6).Draw(t, "k")
		flat := rapid.Bool().Draw(t, "flat")
		w := newWorld(t, one(func(_ *Config, c *TransportConfig) {
			c.ProcessLimit, c.SlotCost, c.SlotLoan, c.SlotDiscount, c.MinimumSlots = 1, k, 0, 0, 0
		}))
		w.check = false
		sizes := []int{rapid.IntRange(20, 300).Draw(t, "first")}
		sizes = append(sizes, rapid.SliceOfN(rapid.IntRange(1, 40), 1, 60).Draw(t, "sizes")...)
		gaps := rapid.SliceOfN(rapid.IntRange(0, 6), len(sizes), len(sizes)).Draw(t, "gaps")
		if flat {
			for i := range sizes[1:] {
				sizes[i+1] = 1
			}
		}
		seq, came := sequence(w, sizes, gaps)
		for i, n := range sizes {
			bound := n / (k - 1)
			if flat {
				bound = n / k
			}
			if got := others(seq, MsgID(i+1)); got > bound {
				t.Fatalf("slot cost %d: %d entries slip past the %d of message %d, bound %d", k, got, n, i+1, bound)
			}
			// Nobody starves: whoever came later goes first only in slots that
			// this message or an earlier one has paid for.
			wait := n + n/(k-1)
			for e := range i {
				left := sizes[e]
				for _, id := range seq[:came[i]] {
					if id == MsgID(e+1) {
						left--
					}
				}
				if left > 0 {
					wait += left + sizes[e]/(k-1)
				}
			}
			last := 0
			for at, id := range seq {
				if id == MsgID(i+1) {
					last = at
				}
			}
			if got := last + 1 - came[i]; got > wait {
				t.Fatalf("slot cost %d: message %d is done after %d selections, bound %d", k, i+1, got, wait)
			}
		}
	})
}

// TestFIFO: without preemption mail is delivered to each destination in the
// order in which it came, whatever is blocked and for how long.
func TestFIFO(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, one(func(cfg *Config, c *TransportConfig) {
			cfg.ActiveLimit = rapid.IntRange(1, 40).Draw(t, "active")
			c.Mode = FIFO
			c.ProcessLimit = rapid.IntRange(1, 6).Draw(t, "processes")
			c.ConcurrencyLimit = rapid.IntRange(1, 3).Draw(t, "window")
			c.BatchLimit = rapid.IntRange(1, 3).Draw(t, "batch")
		}))
		w.check = false
		last := map[mail.Nexthop]MsgID{}
		w.on = func(e Effect) {
			if e.Kind == EffectDeliver {
				if last[e.Nexthop] > e.ID {
					t.Fatalf("%s: message %d after %d", e.Nexthop, e.ID, last[e.Nexthop])
				}
				last[e.Nexthop] = e.ID
			}
		}
		for i := range rapid.IntRange(1, 60).Draw(t, "messages") {
			var list []Rcpt
			for _, d := range rapid.SliceOfN(rapid.IntRange(0, 4), 1, 12).Draw(t, "rcpts") {
				list = append(list, rcpt("smtp", destinations[d]))
			}
			w.arrive(MsgID(i+1), 0, list...)
			if len(w.order) > 0 && rapid.Bool().Draw(t, "done") {
				w.done(w.order[rapid.IntRange(0, len(w.order)-1).Draw(t, "which")], sent, false)
			}
		}
		for len(w.order) > 0 {
			w.done(w.order[rapid.IntRange(0, len(w.order)-1).Draw(t, "which")], sent, false)
		}
		if w.left() > 0 {
			t.Fatalf("%d messages are left", w.left())
		}
	})
}

// history plays a fixed mixture and returns every effect, printed.
func history(t *testing.T, batch int) (text string, delivered []string) {
	cfg := one(func(cfg *Config, c *TransportConfig) {
		cfg.Seed, cfg.RecipientLimit, cfg.ActiveLimit, cfg.FeedbackDebug = 42, 50, 50, true
		c.ProcessLimit, c.RecipientLimit, c.BatchLimit, c.ConcurrencyLimit = 7, 60, 3, 4
	})
	w := newWorld(t, cfg)
	w.batch = batch
	var b strings.Builder
	w.on = func(e Effect) {
		note := e.Note
		e.Note = nil
		fmt.Fprintf(&b, "%+v %+v\n", e, note)
		if e.Kind == EffectDeliver && e.Transport != RetryTransport {
			for _, r := range e.Rcpts {
				delivered = append(delivered, fmt.Sprintf("%d/%d", e.ID, r))
			}
		}
	}
	for i := range 40 {
		var list []Rcpt
		for k := range 1 + (i*i*7)%90 {
			list = append(list, rcpt([]string{"smtp", "relay"}[k%2], destinations[(i+k*k)%6]))
		}
		w.arrive(MsgID(i+1), 0, list...)
		for range i % 9 {
			w.done(w.order[(i*3)%len(w.order)], sent, i%2 == 0)
		}
		w.tick(time.Second)
	}
	for len(w.order) > 0 {
		w.done(w.order[len(w.order)/2], sent, false)
	}
	if w.left() > 0 {
		t.Fatalf("%d messages are left", w.left())
	}
	slices.Sort(delivered)
	return b.String(), delivered
}

// TestDeterminism: the same events have the same effects, byte for byte.
func TestDeterminism(t *testing.T) {
	t.Parallel()
	a, _ := history(t, 5)
	for range 5 {
		if b, _ := history(t, 5); a != b {
			t.Fatalf("the same history, other effects: %s", firstDifference(a, b))
		}
	}
}

// TestBatches: whatever the batches in which recipients are read, the same
// are delivered, each once.
func TestBatches(t *testing.T) {
	t.Parallel()
	_, want := history(t, 0)
	if len(slices.Compact(slices.Clone(want))) != len(want) {
		t.Fatal("delivered twice")
	}
	for _, batch := range []int{1, 2, 7, 30} {
		if _, got := history(t, batch); !slices.Equal(got, want) {
			t.Errorf("batches of %d: %d recipients delivered, not %d", batch, len(got), len(want))
		}
	}
}

// TestRecipientBounds: the formulas of Postfix's scheduler document, for all
// recipients and for those of each transport, plus what first reads may take
// (see checker.limits).
func TestRecipientBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var limit, extra int
		cfg := one(func(cfg *Config, c *TransportConfig) {
			cfg.ActiveLimit = rapid.IntRange(1, 20).Draw(t, "active")
			cfg.RecipientMinimum = rapid.IntRange(1, 5).Draw(t, "minimum")
			cfg.RecipientLimit = rapid.IntRange(cfg.ActiveLimit, 80).Draw(t, "recipients")
			limit = rapid.IntRange(cfg.RecipientLimit, 120).Draw(t, "limit")
			extra = rapid.IntRange(0, 20).Draw(t, "extra")
			c.RecipientLimit, c.ExtraRecipientLimit = limit, extra
			c.ProcessLimit, c.BatchLimit, c.SlotCost, c.RefillLimit = 3, 2, 2, rapid.IntRange(1, 20).Draw(t, "refill")
			c.MinimumSlots = 0
		})
		w := newWorld(t, cfg)
		all := cfg.RecipientMinimum * cfg.ActiveLimit
		check := func() {
			sum := all
			for _, tr := range w.s.transports {
				sum += limit + extra
				n := 0
				for m := w.s.firstActive; m != nil; m = m.nxt {
					for _, j := range m.jobs {
						if j.tport == tr {
							n += j.rcptCount
						}
					}
				}
				if bound := all + limit + extra + cfg.RecipientLimit; n > bound {
					t.Fatalf("%s: %d recipients in memory, bound %d", tr.name, n, bound)
				}
			}
			if bound := sum + cfg.RecipientLimit; w.s.stats.Rcpts > bound {
				t.Fatalf("%d recipients in memory, bound %d", w.s.stats.Rcpts, bound)
			}
		}
		for i := range rapid.IntRange(1, 40).Draw(t, "messages") {
			transport := rapid.SampledFrom([]string{"smtp", "relay"}).Draw(t, "transport")
			var list []Rcpt
			for k := range rapid.IntRange(1, 150).Draw(t, "rcpts") {
				list = append(list, rcpt(transport, destinations[k%6]))
			}
			w.arrive(MsgID(i+1), 0, list...)
			check()
			for range rapid.IntRange(0, 10).Draw(t, "done") {
				if len(w.order) > 0 {
					w.done(w.order[0], sent, false)
					check()
				}
			}
		}
	})
}

// TestMemory: what a million deferred messages cost.
func TestMemory(t *testing.T) {
	if !*long {
		t.Skip("a million messages")
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := New(DefaultConfig())
	var out []Effect
	for i := range 1_000_000 {
		out = s.Step(epoch, Event{Kind: EventQueued, ID: MsgID(i + 1), Arrival: Arrival{Queue: QueueDeferred, Created: epoch,
			Next: epoch.Add(time.Duration(i%100000+1) * time.Second), Rcpts: 1, Size: 4096}}, out[:0])
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := after.HeapAlloc - before.HeapAlloc
	t.Logf("%d bytes a message", used/1_000_000)
	if used > 120<<20 {
		t.Errorf("a million deferred messages use %d MiB", used>>20)
	}
	if s.Stats().Deferred != 1_000_000 {
		t.Errorf("%d deferred", s.Stats().Deferred)
	}
}

// TestClock: time never goes back, and catches up.
func TestClock(t *testing.T) {
	t.Parallel()
	var c clock
	for _, x := range []struct{ wall, sane int64 }{{100, 100}, {200, 200}, {50, 200}, {60, 205}, {150, 250}, {300, 300}, {290, 300}, {310, 310}} {
		if got := c.advance(x.wall); got != x.sane {
			t.Errorf("at %d: %d, not %d", x.wall, got, x.sane)
		}
	}
}

func TestQueueName(t *testing.T) {
	t.Parallel()
	per := TransportConfig{BatchLimit: 1}
	if got := QueueName(&per, "local", "Host.Example", "User"); got != "user@host.example" {
		t.Error(got)
	}
	if got := QueueName(&per, RetryTransport, "4.4.1 X", "u"); got != "4.4.1 x" {
		t.Error(got)
	}
	if got := QueueName(&TransportConfig{BatchLimit: 50}, "smtp", "Host.Example", "u"); got != "host.example" {
		t.Error(got)
	}
}

// Nothing is known of a destination after a restart, and mail for it that has
// become due meanwhile comes at once. It sees no more than the first window
// of deliveries all the same, and when it fails again the mail comes back
// spread over time.
func TestRestartIsNoHerd(t *testing.T) {
	t.Parallel()
	const n = 500
	cfg := DefaultConfig()
	s := New(cfg)
	var deliveries []EntryID
	var next []time.Time
	step := func(ev Event) {
		events := []Event{ev}
		for len(events) > 0 {
			out := s.Step(epoch, events[0], nil)
			events = events[1:]
			for _, e := range out {
				switch e.Kind {
				case EffectLoad:
					events = append(events, Event{Kind: EventLoaded, ID: e.ID, Rcpts: []Rcpt{rcpt("smtp", "back.example")}, Next: 1})
				case EffectDeliver:
					if e.Transport == RetryTransport {
						events = append(events, Event{Kind: EventDone, Entry: e.Entry, Result: Result{Deferred: e.Rcpts}})
					} else {
						deliveries = append(deliveries, e.Entry)
					}
				case EffectDefer:
					next = append(next, e.Next)
				}
			}
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	}
	for id := range MsgID(n) {
		step(Event{Kind: EventQueued, ID: id + 1, Arrival: Arrival{Queue: QueueDeferred, Created: epoch.Add(-time.Hour), Next: epoch.Add(-time.Minute), Rcpts: 1}})
	}
	if len(deliveries) != cfg.DefaultTransports.InitialConcurrency {
		t.Fatalf("%d deliveries at once", len(deliveries))
	}
	for _, id := range slices.Clone(deliveries) {
		step(Event{Kind: EventDone, Entry: id, Result: Result{Deferred: []int{0}, SiteFailed: true, Status: dsn.S(4, 4, 1), Reason: "no"}})
	}
	if len(next) != n || len(deliveries) != cfg.DefaultTransports.InitialConcurrency {
		t.Fatalf("%d messages deferred, %d deliveries", len(next), len(deliveries))
	}
	// A tenth of the time does not see more than twice its share.
	counts := map[time.Duration]int{}
	for _, at := range next {
		counts[at.Sub(epoch)/(cfg.QueueRunDelay/10)]++
	}
	for tenth, k := range counts {
		if k > 2*n/10 {
			t.Errorf("%d of %d come back in one tenth (%v) of queue_run_delay", k, n, tenth)
		}
	}
	if len(counts) < 10 {
		t.Errorf("all come back in %d tenths of queue_run_delay", len(counts))
	}
}
