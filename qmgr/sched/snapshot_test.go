package sched

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"

	"pgregory.net/rapid"
)

// succeed replaces the scheduler by another, with these settings, which is given
// what the old one has learnt, and then told the queue as the spool has it.
func (w *world) succeed(cfg Config) {
	w.t.Helper()
	snap, spent := w.s.Snapshot(), w.s.Spent()
	w.s = New(cfg)
	w.s.Restore(w.now, snap)
	w.s.RestoreSpent(w.now, spent)
	w.busy, w.order, w.loads, w.asks = map[EntryID]Effect{}, nil, nil, nil
	ids := make([]MsgID, 0, len(w.mail))
	for id, l := range w.mail {
		clear(l.inflight)
		if l.gone == 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	w.far.fetch, w.far.leaving, w.far.passing = nil, nil, false
	check := w.check
	w.check = false // until all are known
	w.setLimits()
	if len(w.stopped)+len(w.pauses) > 0 {
		w.setPauses()
	}
	for _, id := range ids {
		if w.far.away[id] = cfg.DeferredLimit > 0; !w.far.away[id] || w.mail[id].queue == QueueIncoming {
			w.step(w.mail[id].queuedAgain())
		}
	}
	if w.check = check; cfg.DeferredLimit > 0 {
		w.step(Event{Kind: EventAttached})
	}
}

// A successor knows which destinations are dead, and how many deliveries the
// others can take: nothing is found out again.
func TestSuccessor(t *testing.T) {
	t.Parallel()
	cfg := one(func(_ *Config, c *TransportConfig) { c.InitialConcurrency, c.ConcurrencyLimit = 2, 20 })
	w := newWorld(t, cfg)
	for id := MsgID(1); id <= 40; id++ {
		w.arrive(id, 0, rcpt("smtp", "good.example"))
	}
	for range 10 {
		w.done(w.order[0], sent, false)
	}
	for id := MsgID(41); id <= 44; id++ {
		w.arrive(id, 0, rcpt("smtp", "bad.example"))
	}
	for _, id := range slices.Clone(w.order) {
		if w.busy[id].Nexthop == "bad.example" {
			w.done(id, unreachable, false)
		}
	}
	w.finishRetries()
	want := w.dests()
	w.tick(time.Second)
	w.succeed(cfg)
	w.finishRetries()
	for _, d := range want {
		if d.Transport == RetryTransport {
			continue
		}
		i := slices.IndexFunc(w.dests(), func(x Dest) bool { return x.Queue == d.Queue })
		if i < 0 {
			t.Fatalf("%s is not known", d.Queue)
		}
		if got := w.dests()[i]; got.State != d.State || got.Window != d.Window || !got.Until.Equal(d.Until) || got.Text != d.Text || got.Status != d.Status || got.Waiting != d.Waiting {
			t.Errorf("it was  %+v\nit is now %+v", d, got)
		}
	}
	for _, e := range w.busy {
		if e.Nexthop == "bad.example" {
			t.Error("a delivery to a destination that is dead")
		}
	}
	if n := len(w.busy); n != 12 {
		t.Errorf("%d deliveries at once, with a window of 12", n)
	}
	w.tick(cfg.MinimalBackoff)
	for _, d := range w.dests() {
		if d.State == DestDead {
			t.Errorf("dead for ever: %+v", d)
		}
	}
	if w.s.inherited != nil {
		t.Error("what nobody has asked for is kept")
	}
}

// finishRetries has all excuses recorded.
func (w *world) finishRetries() {
	w.t.Helper()
	for _, id := range slices.Clone(w.order) {
		if w.busy[id].Transport == RetryTransport {
			w.done(id, deferred, false)
		}
	}
}

// A destination that is still almost dead dies of the failure that it lacked.
func TestSuccessorCountsFailures(t *testing.T) {
	t.Parallel()
	cfg := one(func(_ *Config, c *TransportConfig) { c.InitialConcurrency, c.FailedCohortLimit = 1, 3 })
	w := newWorld(t, cfg)
	for id := MsgID(1); id <= 4; id++ {
		w.arrive(id, 0, rcpt("smtp", "bad.example"))
	}
	for range 2 {
		w.done(w.order[0], unreachable, false)
	}
	w.succeed(cfg)
	w.done(w.order[0], unreachable, false)
	if d := w.dests(); d[slices.IndexFunc(d, func(d Dest) bool { return d.Queue == "bad.example" })].State != DestDead {
		t.Errorf("after three failures of three: %+v", d)
	}
}

// Whatever is restored, under whatever settings: the limits are kept, and
// Snapshot gives it back.
func TestRestoreAnything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cfg := one(func(c *Config, tc *TransportConfig) {
			c.RecipientLimit = rapid.IntRange(1, 5).Draw(t, "recipients")
			c.ActiveLimit = 1
			tc.ConcurrencyLimit = rapid.IntRange(0, 5).Draw(t, "limit")
			tc.FailedCohortLimit = rapid.IntRange(0, 2).Draw(t, "cohorts")
			tc.DestinationRateDelay = time.Duration(rapid.IntRange(0, 2).Draw(t, "delay")) * time.Second
		})
		number := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, .5, math.NaN(), math.Inf(1), math.Inf(-1)}))
		names := rapid.SampledFrom([]string{"", "a", "b", "c"})
		times := rapid.Custom(func(t *rapid.T) time.Time {
			return epoch.Add(time.Duration(rapid.IntRange(-1000, 100000).Draw(t, "at")) * time.Second)
		})
		snap := Snapshot{
			Dests: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) DestSnapshot {
				return DestSnapshot{Transport: mail.Transport(rapid.SampledFrom([]string{"", "smtp", "retry", "relay"}).Draw(t, "transport")), Queue: names.Draw(t, "queue"),
					State: DestState(rapid.IntRange(0, 4).Draw(t, "state")), Until: times.Draw(t, "until"), Status: dsn.S(4, 4, 1), Text: "x",
					Window: rapid.IntRange(-2, 1000).Draw(t, "window"), LastDone: times.Draw(t, "done"), Cache: Cache(rapid.Byte().Draw(t, "cache")),
					Success: number.Draw(t, "success"), Failure: number.Draw(t, "failure"), FailCohorts: number.Draw(t, "cohorts")}
			}), 0, 12).Draw(t, "dests"),
			Sites: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) SiteSnapshot {
				ids := rapid.SliceOfN(rapid.Uint64Range(1, 9), 0, 4).Draw(t, "ids")
				st := SiteSnapshot{Transport: "smtp", Queue: names.Draw(t, "queue"), Alive: rapid.Bool().Draw(t, "alive")}
				for _, id := range ids {
					st.Waiting = append(st.Waiting, MsgID(id))
				}
				return st
			}), 0, 4).Draw(t, "sites"),
		}
		w := newWorld(t, cfg)
		w.s.Restore(w.now, snap)
		if err := w.s.Check(); err != nil {
			t.Fatal(err)
		}
		again := New(cfg)
		again.Restore(w.now, w.s.Snapshot())
		order := func(list []DestSnapshot) []DestSnapshot { // that of transports says nothing
			slices.SortStableFunc(list, func(a, b DestSnapshot) int { return strings.Compare(string(a.Transport), string(b.Transport)) })
			return list
		}
		if got, want := order(again.Snapshot().Dests), order(w.s.Snapshot().Dests); len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v\nbecame %+v", want, got)
		}
		for id := MsgID(1); id < 5; id++ {
			w.arrive(id, 0, rcpt("smtp", "a"), rcpt("smtp", "b"), rcpt("relay", "c"))
		}
		for n := 0; n < 300 && (len(w.order) > 0 || w.sleep()); n++ {
			if len(w.order) > 0 {
				w.done(w.order[0], sent, false)
			}
		}
		for id, l := range w.mail {
			if l.gone == 0 {
				t.Fatalf("message %d does not leave", id)
			}
		}
	})
}

// dests are all destinations in core.
func (w *world) dests() (list []Dest) {
	w.s.Dests(func(d Dest) bool { list = append(list, d); return true })
	return list
}
