package sched

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/rate"
)

// randomPools give most destinations sources, some of which warm up: under their terms, and
// under limits of the source at some of the same levels.
func randomPools(r *rand.Rand, terms map[string]*Terms) map[string]*Pool {
	pools := map[string]*Pool{}
	limits := map[string]Limits{}
	// The same limit has the same numbers, whoever tells of it.
	limit := func(name string, warms bool) Limits {
		l, ok := limits[name]
		if !ok {
			if r.IntN(2) == 0 {
				l = randomLimits(r)
			}
			if warms {
				l.Warmup = rate.Rate{N: 1 + r.Int64N(30), Per: rate.Day}
			}
			limits[name] = l
		}
		return l
	}
	warms := map[string]bool{"m1": r.IntN(2) == 0, "m2": r.IntN(3) == 0}
	waits := r.IntN(3) == 0
	for _, d := range append([]string{"site"}, destinations...) {
		if r.IntN(8) == 0 {
			continue
		}
		pool := &Pool{Name: "p"}
		for i := range 1 + r.IntN(3) {
			mb := Member{Source: fmt.Sprintf("m%d", i+1), Weight: r.IntN(4)}
			x := &Terms{Source: mb.Source}
			if base := terms[d]; base != nil {
				x.Shares, x.Rollup, x.Reuse = base.Shares, base.Rollup, base.Reuse
			}
			for l := range levels {
				name := x.Shares[l].Name
				if name == "" && l == OwnLimit {
					name = d
				}
				if name != "" && r.IntN(3) > 0 {
					x.From[l] = Share{name, limit(fmt.Sprint(l, name, mb.Source), warms[mb.Source] && l != SiteLimit)}
				}
			}
			mb.Terms, mb.Wait = x, waits && warms[mb.Source]
			pool.Members = append(pool.Members, mb)
		}
		pools[d] = pool
	}
	return pools
}

// counted are deliveries by source.
func counted(w *world) map[string]int {
	n := map[string]int{}
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver && e.Transport == "smtp" {
			n[e.Source]++
		}
	}
	return n
}

func poolOf(members ...Member) *Pool { return &Pool{Name: "pool", Members: members} }

// finishAll ends all deliveries, and those that follow.
func finishAll(w *world, o func(Effect) outcome) {
	for len(w.order) > 0 {
		w.done(w.order[0], o(w.busy[w.order[0]]), false)
	}
}

func allSent(Effect) outcome { return sent }

// Sources are drawn by their weights.
func TestSourceWeights(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(*Config, *TransportConfig) {}))
	w.pools["a"] = poolOf(Member{Source: "m1", Weight: 3}, Member{Source: "m2", Weight: 1}, Member{Source: "m3"})
	n := counted(w)
	for i := range 1000 {
		w.arrive(MsgID(i+1), 0, rcpt("smtp", "a"))
		finishAll(w, allSent)
	}
	if n["m1"] < 520 || n["m1"] > 680 || n["m2"] < 140 || n["m2"] > 260 || n["m3"] < 140 || n["m3"] > 260 {
		t.Errorf("weights 3, 1 and 1 had %v of 1000 deliveries", n)
	}
}

// A source that is refused rests at that destination; all others carry on, also with the mail
// that waited for it, and it goes on at other destinations.
func TestSourceRests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.BatchLimit = 1 }))
	pool := poolOf(Member{Source: "m1", Weight: 1}, Member{Source: "m2", Weight: 1})
	w.pools["a"], w.pools["b"] = pool, pool
	n := counted(w)
	var rcpts []Rcpt
	for range 40 {
		rcpts = append(rcpts, rcpt("smtp", "a"))
	}
	w.arrive(1, 0, rcpts...)
	refused := func(e Effect) outcome {
		if e.Source == "m1" && e.Nexthop == "a" {
			return refusedAtOnce
		}
		return sent
	}
	finishAll(w, refused)
	// What was refused goes from the other source at once.
	if n["m1"] > 5 || w.mail[1].pending > 0 {
		t.Errorf("%v deliveries, %d recipients are left", n, w.mail[1].pending)
	}
	if d, ok := w.s.Dest("smtp", SourceQueue("a", "m1")); !ok || d.State != DestDead || d.Source != "m1" {
		t.Errorf("%+v", d)
	}
	clear(n)
	for i := range 20 {
		w.arrive(MsgID(i+2), 0, rcpt("smtp", "a"), rcpt("smtp", "b"))
		finishAll(w, refused)
	}
	if n["m1"] == 0 || n["m2"] <= 20 || n["m1"]+n["m2"] != 40 {
		t.Errorf("%v of 40 deliveries", n)
	}
	// When all are dead, the destination is.
	gone := func(e Effect) outcome {
		if e.Nexthop == "a" {
			return unreachable
		}
		return sent
	}
	w.arrive(100, 0, rcpts...)
	finishAll(w, gone)
	clear(n)
	w.arrive(101, 0, rcpt("smtp", "a"))
	finishAll(w, gone)
	if len(n) != 0 || w.mail[101].queue != QueueDeferred {
		t.Errorf("all sources are dead, and it is tried: %v", n)
	}
	// It is tried from some source when its time has come.
	w.tick(10 * time.Minute)
	finishAll(w, allSent)
	if l := w.mail[101]; l.gone != EffectFinish {
		t.Errorf("it is still there, %d recipients", l.pending)
	}
}

// A host that cannot be reached is not tried from a second source, and one that refuses two not
// from a third.
func TestSecondTry(t *testing.T) {
	t.Parallel()
	for o, want := range map[outcome]int{unreachable: 1, refusedAtOnce: 2, enough: 1, deferred: 1} {
		w := newWorld(t, one(func(*Config, *TransportConfig) {}))
		w.pools["a"] = poolOf(Member{Source: "m1"}, Member{Source: "m2"}, Member{Source: "m3"})
		n := counted(w)
		w.arrive(1, 0, rcpt("smtp", "a"), rcpt("smtp", "a"))
		finishAll(w, func(Effect) outcome { return o })
		if n["m1"]+n["m2"]+n["m3"] != want || max(n["m1"], n["m2"], n["m3"]) != 1 || w.mail[1].queue != QueueDeferred || w.mail[1].attempts != 1 {
			t.Errorf("outcome %d: %v, %d attempts counted", o, n, w.mail[1].attempts)
		}
	}
}

// Mail that an operator has returned to its sender while it was being delivered is not tried from
// another source.
func TestNoSecondTryOfExpired(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(*Config, *TransportConfig) {}))
	w.pools["a"] = poolOf(Member{Source: "m1"}, Member{Source: "m2"})
	n := counted(w)
	w.arrive(1, 0, rcpt("smtp", "a"))
	w.step(Event{Kind: EventExpire, Scope: ScopeMessage, ID: 1, Now: true})
	finishAll(w, func(Effect) outcome { return refusedAtOnce })
	if n["m1"]+n["m2"] != 1 {
		t.Errorf("%v: it was tried again after it had been given up", n)
	}
}

// Mail waits when all sources of its pool are suspended, until any of them is back.
func TestSourceResumed(t *testing.T) {
	t.Parallel()
	for _, back := range []string{"m1", "m2", "m3"} {
		w := newWorld(t, one(func(*Config, *TransportConfig) {}))
		w.pools["a"] = poolOf(Member{Source: "m1"}, Member{Source: "m2"}, Member{Source: "m3"})
		n := counted(w)
		var all, left []Pause
		for i := range 3 {
			p := Pause{ID: PauseID(i + 1), Source: fmt.Sprint("m", i+1)}
			all = append(all, p)
			if p.Source != back {
				left = append(left, p)
			}
		}
		w.step(Event{Kind: EventPauses, Pauses: all})
		w.arrive(1, 0, rcpt("smtp", "a"))
		if len(w.order) > 0 || w.mail[1].queue != QueueDeferred {
			t.Fatalf("%v: all sources are suspended", n)
		}
		w.step(Event{Kind: EventPauses, Pauses: left})
		finishAll(w, allSent)
		if n[back] != 1 || w.mail[1].gone != EffectFinish {
			t.Errorf("%s is back: %v", back, n)
		}
	}
}

// A pause of a source at one place keeps it from being used there alone.
func TestSourceAtPlace(t *testing.T) {
	t.Parallel()
	at := func(source, place string) Member {
		return Member{Source: source, Terms: &Terms{Source: source, Place: place}}
	}
	w := newWorld(t, one(func(*Config, *TransportConfig) {}))
	w.pools["a"], w.pools["b"] = poolOf(at("m1", "here")), poolOf(at("m1", "there"))
	w.pools["c"] = poolOf(at("m1", "here"), at("m2", "here"))
	n := counted(w)
	w.step(Event{Kind: EventPauses, Pauses: []Pause{{ID: 1, Source: "m1", Place: "here"}}})
	for i, d := range []string{"a", "b", "c"} {
		w.arrive(MsgID(i+1), 0, rcpt("smtp", d))
	}
	finishAll(w, allSent)
	if n["m1"] != 1 || n["m2"] != 1 || w.mail[1].queue != QueueDeferred || w.mail[2].gone != EffectFinish {
		t.Fatalf("%v: what went from where", n)
	}
	w.step(Event{Kind: EventPauses})
	finishAll(w, allSent)
	if n["m1"] != 2 || w.mail[1].gone != EffectFinish {
		t.Errorf("%v: the pause is over", n)
	}
}

// warming is a member that may send so many a day to provider p.
func warming(name string, n int64, wait bool) Member {
	mb := Member{Source: name, Weight: 1, Wait: wait, Terms: &Terms{Source: name}}
	mb.Terms.From[ProviderLimit] = Share{"p", Limits{Warmup: rate.Rate{N: n, Per: rate.Day}}}
	return mb
}

// While a source warms up, what is over goes from another, or waits for the next day.
func TestWarmup(t *testing.T) {
	t.Parallel()
	for _, wait := range []bool{false, true} {
		t.Run(fmt.Sprint(wait), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.BatchLimit = 1; c.ConcurrencyLimit = 3 }))
			pool := poolOf(warming("new", 10, wait), Member{Source: "old", Weight: 1})
			var rcpts []Rcpt
			for i := range 90 {
				d := fmt.Sprint("d", i%3)
				w.pools[d] = pool
				rcpts = append(rcpts, rcpt("smtp", d))
			}
			n := counted(w)
			w.arrive(1, 0, rcpts...)
			finishAll(w, allSent)
			switch {
			case n["new"] != 10:
				t.Errorf("the new source has sent %d, and may 10", n["new"])
			case !wait && w.mail[1].pending > 0:
				t.Errorf("%d recipients wait, and the old source may send them", w.mail[1].pending)
			case wait && w.mail[1].pending == 0:
				t.Error("nothing waits for the new source")
			}
			if !wait {
				return
			}
			r := w.s.Explain(1)
			if len(r) == 0 || r[0].Wait != WaitShared || r[0].Gate != "provider p from new" || !r[0].Until.Equal(epoch.Add(rate.Day)) {
				t.Errorf("%+v", r)
			}
			w.tick(rate.Day)
			finishAll(w, allSent)
			if n["new"] != 20 {
				t.Errorf("after two days of ten it has sent %d", n["new"])
			}
		})
	}
}

// A delivery to more recipients than are left for the day is divided, and the rest goes from
// another source.
func TestWarmupDivided(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.BatchLimit = 50 }))
	fresh := warming("new", 3, false)
	fresh.Weight = 1 << 30
	w.pools["a"] = poolOf(fresh, Member{Source: "old"})
	sizes := map[string]int{}
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver {
			sizes[e.Source] += len(e.Rcpts)
		}
	}
	var rcpts []Rcpt
	for range 10 {
		rcpts = append(rcpts, rcpt("smtp", "a"))
	}
	w.arrive(1, 0, rcpts...)
	finishAll(w, allSent)
	if sizes["new"] != 3 || sizes["old"] != 7 {
		t.Errorf("recipients by source: %v", sizes)
	}
}

// What waits when a source is used up goes from another one, also where it stands in line for a
// limit of the source that is below the one that is used up.
func TestWarmupBelow(t *testing.T) {
	t.Parallel()
	for _, below := range [][]Level{{}, {OwnLimit}, {SiteLimit}, {OwnLimit, SiteLimit}} {
		w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.BatchLimit = 1 }))
		n := counted(w)
		for i, d := range []string{"a", "b", "c"} {
			fresh := warming("new", 2, false)
			fresh.Weight = 1 << 30
			fresh.Terms.From[ProviderLimit].Limits.Concurrency = 1
			for _, l := range below {
				fresh.Terms.From[l] = Share{d, Limits{Concurrency: 5}}
			}
			w.pools[d] = poolOf(fresh, Member{Source: "old", Weight: 1})
			w.arrive(MsgID(i+1), 0, rcpt("smtp", d))
		}
		if n["new"] != 1 || n["old"] != 0 {
			t.Fatalf("below %v: %v, and one at once may go", below, n)
		}
		w.done(w.order[0], sent, false) // the next one is the last for today
		if n["new"] != 2 || n["old"] != 1 {
			t.Errorf("below %v: %v, and one waits for tomorrow", below, n)
		}
	}
}

// What waits for a source that is used up goes from another one when that comes back.
func TestWarmupAndRevival(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.BatchLimit = 1; c.InitialConcurrency = 1 }))
	w.pools["a"] = poolOf(warming("new", 2, false), Member{Source: "old", Weight: 1})
	n := counted(w)
	var rcpts []Rcpt
	for range 20 {
		rcpts = append(rcpts, rcpt("smtp", "a"))
	}
	w.arrive(1, 0, rcpts...)
	finishAll(w, func(e Effect) outcome {
		if e.Source == "old" {
			return unreachable
		}
		return sent
	})
	if n["new"] != 2 || w.mail[1].pending < 10 {
		t.Fatalf("%v, %d left", n, w.mail[1].pending)
	}
	for range 12 {
		w.tick(time.Minute)
		finishAll(w, allSent)
	}
	if w.mail[1].pending > 0 || n["new"] != 2 {
		t.Errorf("%v, %d are left: %+v", n, w.mail[1].pending, w.s.Explain(1))
	}
}

// Of a destination that is under two trees of limits, a place in that for all is never kept while
// it waits for one of its source: others that have both go.
func TestTwoTrees(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.BatchLimit = 1 }))
	common := [levels]Share{ProviderLimit: {"p", Limits{Concurrency: 2}}}
	m1, m2 := &Terms{Source: "m1", Shares: common}, &Terms{Source: "m2", Shares: common}
	m1.From[ProviderLimit] = Share{"p", Limits{Messages: rate.Rate{N: 1, Per: time.Hour}}}
	w.pools["a"] = poolOf(Member{Source: "m1", Terms: m1})
	w.pools["b"] = poolOf(Member{Source: "m2", Terms: m2})
	n := counted(w)
	w.arrive(1, 0, rcpt("smtp", "a"), rcpt("smtp", "a"), rcpt("smtp", "a"))
	w.arrive(2, 0, rcpt("smtp", "b"), rcpt("smtp", "b"), rcpt("smtp", "b"))
	finishAll(w, allSent)
	if n["m1"] != 1 || n["m2"] != 3 {
		t.Errorf("%v: the one that may send is kept by the one that may not", n)
	}
	w.tick(3 * time.Hour)
	finishAll(w, allSent)
	w.tick(3 * time.Hour)
	finishAll(w, allSent)
	if n["m1"] != 3 {
		t.Errorf("%v: an hour each", n)
	}
}

// What is known of a destination's source goes to a successor.
func TestSourceSnapshot(t *testing.T) {
	t.Parallel()
	cfg := one(func(_ *Config, c *TransportConfig) { c.BatchLimit = 1 })
	w := newWorld(t, cfg)
	w.pools["a"] = poolOf(Member{Source: "m1", Weight: 1}, Member{Source: "m2", Weight: 1})
	for i := range 10 {
		w.arrive(MsgID(i+1), 0, rcpt("smtp", "a"))
	}
	finishAll(w, func(e Effect) outcome {
		if e.Source == "m1" {
			return unreachable
		}
		return sent
	})
	snap := w.s.Snapshot()
	s := New(cfg)
	s.Restore(w.now, snap)
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	d, ok := s.Dest("smtp", SourceQueue("a", "m1"))
	if !ok || d.State != DestDead || d.Source != "m1" || !strings.HasPrefix(d.Text, "delivery temporarily suspended: connect to a") {
		t.Errorf("%+v", d)
	}
}

// Without pools nothing is drawn, and nothing is kept.
func TestNoSources(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(*Config, *TransportConfig) {}))
	before := w.s.rng
	w.arrive(1, 0, rcpt("smtp", "a"), rcpt("smtp", "b"))
	finishAll(w, allSent)
	if w.s.rng != before || w.s.full != nil || w.s.spilling != nil {
		t.Error("mail without sources has something of them")
	}
}

// Destinations that share a limit of their source get their turns all, however much comes for
// others under the limit that all of them share. Whoever has had a turn in one tree and could not
// use it, for want of a place in the other, is not behind those who come later.
func TestTwoTreesAreFair(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.BatchLimit, c.ProcessLimit, c.ConcurrencyLimit = 1, 20, 1 }))
		common := [levels]Share{ProviderLimit: {"p", Limits{Concurrency: 2 + r.IntN(4)}}}
		sites, slow, from := seed%2 == 0, r.IntN(3), 1+r.IntN(2)
		for i, d := range []string{"a", "b", "c", "x", "y"} {
			mb := Member{Source: "m2", Terms: &Terms{Source: "m2", Shares: common}}
			if sites { // each is below a limit of its own, which stands in line for it
				mb.Terms.Shares[OwnLimit] = Share{d, Limits{Concurrency: 5}}
			}
			if i < 3 {
				mb.Source, mb.Terms.Source = "m1", "m1"
				mb.Terms.From[ProviderLimit] = Share{"p", Limits{Concurrency: from}}
			}
			w.pools[d] = poolOf(mb)
			var rcpts []Rcpt
			for range 150 {
				rcpts = append(rcpts, rcpt("smtp", d))
			}
			w.arrive(MsgID(i+1), 0, rcpts...)
		}
		n := map[string]int{}
		for range 150 {
			// Deliveries of the source that is limited may take longer.
			id := w.order[0]
			for range slow {
				if e := w.order[r.IntN(len(w.order))]; w.busy[e].Source == "m2" {
					id = e
				}
			}
			n[string(w.busy[id].Nexthop)]++
			w.done(id, sent, false)
		}
		least, most := min(n["a"], n["b"], n["c"]), max(n["a"], n["b"], n["c"])
		if 2*least < most {
			t.Errorf("seed %d: own limits %v, %d from m1, of %d: %v", seed, sites, from, common[ProviderLimit].Limits.Concurrency, n)
		}
	}
}

// twoTrees is a world in which "both" is a destination from m1 below a limit at which all mail has a place, and below one of m1.
// "domain", from m2, is below the one alone, and "source", from m1, below the other. Of each there are n messages.
func twoTrees(t *testing.T, n int, own, source Limits) (*world, map[string]int) {
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.BatchLimit, tc.ConcurrencyLimit, tc.InitialConcurrency = 1, 0, 100
		c.SharedActiveLimit = 0
	}))
	for d, from := range map[string]string{"both": "m1", "domain": "m2", "source": "m1"} {
		terms := &Terms{Source: from}
		if d != "source" {
			terms.Shares[OwnLimit] = Share{"domain", own}
		}
		if d != "domain" {
			terms.From[ProviderLimit] = Share{"p", source}
		}
		w.pools[d] = poolOf(Member{Source: from, Terms: terms})
	}
	began := w.count()
	for id := range MsgID(3 * n) {
		w.arrive(id+1, 0, rcpt("smtp", []string{"domain", "source", "both"}[id%3]))
	}
	return w, began
}

// A destination in two trees gets its part, although others have both places nearly always, and the two are never free
// in one moment.
func TestTwoTreesBothBusy(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name               string
		own, source        Limits
		domain, from, both time.Duration // that deliveries take
		least              int           // deliveries of each in five minutes
	}{
		{"at once", Limits{Concurrency: 1}, Limits{Concurrency: 1}, 1100, 1300, 900, 30},
		{"several at once", Limits{Concurrency: 2}, Limits{Concurrency: 3}, 1100, 1300, 900, 30},
		{"in a time", Limits{Messages: rate.Rate{N: 30, Per: time.Minute}}, Limits{Messages: rate.Rate{N: 25, Per: time.Minute}}, 1100, 1300, 900, 20},
		{"slow", Limits{Concurrency: 1}, Limits{Concurrency: 1}, 37100, 1300, 900, 2},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			w, began := twoTrees(t, 250, x.own, x.source)
			w.serve(5*time.Minute, func(e Effect) time.Duration {
				return map[mail.Nexthop]time.Duration{"domain": x.domain, "source": x.from, "both": x.both}[e.Nexthop] * time.Millisecond
			})
			if began[" both"] < x.least || began[" domain"] < x.least || began[" source"] < x.least {
				t.Errorf("deliveries that began: %v", began)
			}
		})
	}
}

// Many destinations that are slow have their turns all; and of a source's place for others no more than half of the time is
// lost by that.
func TestTwoTreesIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.BatchLimit, tc.ConcurrencyLimit, tc.InitialConcurrency = 1, 0, 100
		c.SharedActiveLimit = 0
	}))
	id := MsgID(0)
	send := func(d, source string, n int, own string) {
		terms := &Terms{Source: source}
		if own != "" {
			terms.Shares[OwnLimit] = Share{own, Limits{Concurrency: 1}}
		}
		if source == "m1" {
			terms.From[ProviderLimit] = Share{"p", Limits{Concurrency: 1}}
		}
		w.pools[d] = poolOf(Member{Source: source, Terms: terms})
		for range n {
			id++
			w.arrive(id, 0, rcpt("smtp", d))
		}
	}
	began := w.count()
	for i := range 5 {
		own := fmt.Sprint("slow", i)
		send(own, "m2", 50, own)
		send("both"+own, "m1", 20, own)
	}
	const served = 5300 * time.Millisecond
	send("free", "m1", 400, "")
	const all = 40 * time.Minute
	w.serve(all, func(e Effect) time.Duration {
		if e.Source == "m1" {
			return served
		}
		return 61 * time.Second
	})
	gone := began[" free"]
	for i := range 5 {
		n := began[fmt.Sprint(" bothslow", i)]
		if n == 0 {
			t.Errorf("nothing of m1 went to slow%d", i)
		}
		gone += n
	}
	if used := time.Duration(gone) * served; used < all/2 {
		t.Errorf("the place of m1 was used for %v of %v: %v", used, all, began)
	}
}

// Who keeps a place in one tree while it waits in the other gives it back when its limits change, when its mail
// goes, and when it has waited for long enough.
func TestTwoTreesHalf(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world){
		"time": func(w *world) { w.tick(2 * time.Hour) },
		"terms": func(w *world) {
			w.step(Event{Kind: EventTerms, Transport: "smtp", Site: SourceQueue("both", "m1"), Terms: &Terms{Source: "m1"}})
		},
		"removed": func(w *world) {
			for id := MsgID(3); id <= 15; id += 3 {
				w.step(Event{Kind: EventRemove, Scope: ScopeMessage, ID: id})
			}
		},
		"shut": func(w *world) {
			w.limits["both"] = testLimit{most: -1}
			w.setLimits()
		},
		"suspended": func(w *world) {
			w.stopped["m1"] = 7
			w.setPauses()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := twoTrees(t, 5, Limits{Concurrency: 1}, Limits{Concurrency: 1})
			end := func(d mail.Nexthop) {
				w.tick(time.Second)
				for _, id := range w.order {
					if w.busy[id].Nexthop == d {
						w.done(id, sent, false)
						return
					}
				}
			}
			// It loses a turn of each kind, and then one of its source's again.
			q := w.s.transportIndex["smtp"].queues[SourceQueue("both", "m1")]
			for range 3 {
				end("domain")
				end("source")
			}
			if q.half == nil {
				t.Fatalf("it keeps no place: under way are %v", w.busy)
			}
			if change(w); q.half != nil {
				t.Error("it keeps its place still")
			}
		})
	}
}

// A source that is dead at a destination and has sent what it may today is dead: nothing that waits for another goes to
// wait for it.
func TestSourceDeadAndSpent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.BatchLimit, c.ConcurrencyLimit, c.InitialConcurrency = 1, 1, 1 }))
	fresh := warming("new", 1, false)
	fresh.Weight = 1 << 30
	w.pools["a"] = poolOf(fresh, Member{Source: "old", Weight: 1})
	n := counted(w)
	w.arrive(1, 0, rcpt("smtp", "a"))
	w.done(w.order[0], unreachable, false)
	for id := range MsgID(3) {
		w.arrive(2+id, 0, rcpt("smtp", "a"))
	}
	if n["new"] != 1 || n["old"] != 1 {
		t.Fatalf("%v: this is no case of it", n)
	}
	w.done(w.order[0], unreachable, false) // Check looks at what waits where
	finishAll(w, allSent)
	for id := range MsgID(4) {
		if w.mail[1+id].queue != QueueDeferred {
			t.Errorf("message %d is in the queue %v", 1+id, w.mail[1+id].queue)
		}
	}
}

// What an operator has suspended while an agent had it is not tried from another source.
func TestNoSecondTryOfPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(*Config, *TransportConfig) {}))
	w.pools["a"] = poolOf(Member{Source: "m1"}, Member{Source: "m2"})
	n := counted(w)
	w.arrive(1, 0, rcpt("smtp", "a"))
	p := testPause{queue: "a"}
	p.ID, p.Status, p.Reason = 1, dsn.S(4, 3, 2), "suspended"
	w.pauses[1] = p
	w.setPauses()
	finishAll(w, func(Effect) outcome { return refusedAtOnce })
	if n["m1"]+n["m2"] != 1 || w.mail[1].queue != QueueDeferred {
		t.Errorf("%v: it was tried after it had been suspended", n)
	}
}
