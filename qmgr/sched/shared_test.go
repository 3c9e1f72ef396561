package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"posthaste/internal/rate"
)

// randomLimits are narrow enough for a random history to run into.
func randomLimits(r *rand.Rand) (l Limits) {
	span := func() rate.Rate {
		return rate.Rate{N: 1 + r.Int64N(8), Per: []time.Duration{time.Second, time.Minute, 10 * time.Minute}[r.IntN(3)]}
	}
	if r.IntN(2) == 0 {
		l.Concurrency = 1 + r.IntN(4)
	}
	if r.IntN(4) == 0 {
		l.Connections = span()
	}
	if r.IntN(4) == 0 {
		l.Messages = span()
	}
	switch r.IntN(6) {
	case 0:
		l.Recipients = span()
	case 1:
		l.Recipients = rate.Rate{N: 5 + r.Int64N(200), Per: rate.Day}
	}
	return l
}

// randomTerms has some destinations share limits: those of two sites, of which one or both
// are a provider's, and some have their own.
func randomTerms(r *rand.Rand, limits func(*rand.Rand) Limits) map[string]*Terms {
	site := [2]Share{{"s1", limits(r)}, {"s2", limits(r)}}
	provider := Share{"p", limits(r)}
	both := r.IntN(2) == 0
	list := map[string]*Terms{}
	for i, d := range destinations {
		x := &Terms{Reuse: r.IntN(3)}
		k := r.IntN(3)
		if k < 2 && i > 0 {
			x.Shares[SiteLimit] = site[k]
		}
		if k == 0 || k == 1 && both {
			x.Shares[ProviderLimit] = provider
		}
		if r.IntN(3) == 0 {
			x.Shares[OwnLimit] = Share{d, limits(r)}
		}
		if r.IntN(8) > 0 {
			list[d] = x
		}
	}
	return list
}

// A watch holds a history against what its limits say, with nothing but what went out.
type watch struct {
	w     *world
	under map[EntryID][]Share
	busy  map[string]int
	log   map[string][]start // by name: what began, not counting what was never made
	most  map[string]int     // deliveries at once, ever
}

type start struct {
	at          time.Time
	entry       EntryID
	rcpts       int
	conn, unset bool
}

// watched begins to watch w, whose terms are not changed from now on.
func watched(w *world) *watch {
	x := &watch{w: w, under: map[EntryID][]Share{}, busy: map[string]int{}, log: map[string][]start{}, most: map[string]int{}}
	w.on = x.effect
	w.onEvent = x.event
	return x
}

func (x *watch) effect(e Effect) {
	if e.Kind != EffectDeliver || e.Transport == RetryTransport || e.Transport == ErrorTransport {
		return
	}
	l := x.w.mail[e.ID]
	shares := []Share{{"tenant " + l.tenant, x.w.whose[l.tenant].Limits}}
	if terms := x.w.marked(l.rcpts[e.Rcpts[0]]).Terms; terms != nil {
		shares = append(shares, terms.Shares[:]...)
	}
	if quota := x.w.quotaOf(l.tenant, x.w.marked(l.rcpts[e.Rcpts[0]])); quota != nil {
		for _, sh := range quota.Shares {
			if sh.Name != "" {
				shares = append(shares, Share{sh.Name + " of " + l.tenant, sh.Limits})
			}
		}
	}
	for _, sh := range shares {
		if sh.Name == "" || sh.Limits == (Limits{}) {
			continue
		}
		x.under[e.Entry] = append(x.under[e.Entry], sh)
		x.busy[sh.Name]++
		x.most[sh.Name] = max(x.most[sh.Name], x.busy[sh.Name])
		if c := sh.Limits.Concurrency; c > 0 && x.busy[sh.Name] > c {
			x.w.t.Fatalf("%s: %d at once, of %d", sh.Name, x.busy[sh.Name], c)
		}
		x.log[sh.Name] = append(x.log[sh.Name], start{x.w.now, e.Entry, len(e.Rcpts), true, false})
		x.within(sh, x.log[sh.Name])
	}
}

// within looks back from the latest start. What is to be refunded is not known yet, and
// what was refunded was, when others began: as many as were under way may be too many.
func (x *watch) within(sh Share, log []start) {
	sum := func(r rate.Rate, n func(start) int) (total int) {
		for i := len(log) - 1; i >= 0; i-- {
			s := log[i]
			switch {
			case r.Per == rate.Day && s.at.UTC().YearDay() != x.w.now.UTC().YearDay():
			case r.Per != rate.Day && !s.at.Add(r.Per).After(x.w.now):
			case !s.unset:
				total += n(s)
			}
		}
		return total
	}
	const spare = 8 // the process limit of smallConfig, of each of two transports
	l := sh.Limits
	if n := sum(l.Connections, func(s start) int {
		if s.conn {
			return 1
		}
		return 0
	}); l.Connections.N > 0 && n > int(l.Connections.N)+4*spare {
		x.w.t.Fatalf("%s: %d connections within %v", sh.Name, n, l.Connections)
	}
	if n := sum(l.Messages, func(start) int { return 1 }); l.Messages.N > 0 && n > int(l.Messages.N) {
		x.w.t.Fatalf("%s: %d messages within %v", sh.Name, n, l.Messages)
	}
	if n := sum(l.Recipients, func(s start) int { return s.rcpts }); l.Recipients.Per == rate.Day && n > int(l.Recipients.N) {
		x.w.t.Fatalf("%s: %d recipients within %v", sh.Name, n, l.Recipients)
	}
}

func (x *watch) event(ev Event) {
	switch ev.Kind {
	case EventDone:
		x.ended(ev.Entry, ev.Result.Opened, false)
	case EventLost:
		x.ended(ev.Entry, true, false)
	case EventAgentDown:
		for _, id := range ev.Entries {
			x.ended(id, false, true)
		}
	}
}

func (x *watch) ended(id EntryID, opened, unset bool) {
	for _, sh := range x.under[id] {
		x.busy[sh.Name]--
		for i := range x.log[sh.Name] {
			if s := &x.log[sh.Name][i]; s.entry == id {
				s.conn, s.unset = opened, unset
			}
		}
	}
	delete(x.under, id)
}

// Random histories with shared limits end with an empty queue, and after every step all
// invariants hold, while terms change, destinations change their sites, and the queue
// manager is replaced.
func TestSharedHistories(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 30
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			playIn(t, seed, 400, sharedWorld)
		})
	}
}

// sharedWorld has limits, sources and sites, which change.
func sharedWorld(r *rand.Rand, w *world) {
	w.s.cfg.SharedActiveLimit = r.IntN(4)
	w.terms = randomTerms(r, randomLimits)
	if r.IntN(2) == 0 {
		w.pools = randomPools(r, w.terms)
	}
	if r.IntN(3) == 0 { // parked mail, too, is not all in memory
		w.s.cfg.DeferredLimit = 1 + r.IntN(5)
		w.far.late = r.IntN(2) == 0
		w.step(Event{Kind: EventAttached})
	}
	if r.IntN(2) == 0 {
		for _, d := range destinations[:3] {
			w.site[d] = "site"
		}
		x := &Terms{Rollup: true}
		x.Shares[SiteLimit] = Share{"site", randomLimits(r)}
		w.terms["site"] = x
	}
	stops := PauseID(1000)
	w.each = func(r *rand.Rand) {
		if len(w.pools) > 0 && r.IntN(30) == 0 {
			if name := fmt.Sprintf("m%d", 1+r.IntN(3)); w.stopped[name] != 0 || r.IntN(2) == 0 {
				delete(w.stopped, name)
			} else {
				stops++
				w.stopped[name] = stops
			}
			w.setPauses()
		}
		if r.IntN(40) > 0 {
			return
		}
		// Where mail waits for its place already, some is told of it and some not.
		site := w.terms["site"]
		w.terms = randomTerms(r, randomLimits)
		w.terms["site"] = site
		if len(w.pools) > 0 {
			w.pools = randomPools(r, w.terms)
		}
		for _, d := range destinations[r.IntN(len(destinations)):] {
			w.step(Event{Kind: EventTerms, Transport: "smtp", Site: d, Terms: w.terms[d]})
			if pool := w.pools[d]; pool != nil {
				mb := &pool.Members[r.IntN(len(pool.Members))]
				w.step(Event{Kind: EventTerms, Transport: "smtp", Site: SourceQueue(d, mb.Source), Terms: mb.Terms})
			}
		}
	}
}

// Limits hold at any time, seen from outside; and they are used: some limit of each kind
// of history was reached.
func TestSharedLimitsHold(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 30
	}
	reached := 0
	for seed := range n {
		var x *watch
		playIn(t, seed, 250, func(r *rand.Rand, w *world) {
			w.s.cfg.SharedActiveLimit = r.IntN(3) * 10
			w.check = false
			w.terms = randomTerms(r, randomLimits)
			x = watched(w)
			x.forgets()
		})
		for _, terms := range x.w.terms {
			for _, sh := range terms.Shares {
				if c := sh.Limits.Concurrency; c > 0 && x.most[sh.Name] == c {
					reached++
				}
			}
		}
	}
	if reached < int(n) {
		t.Errorf("limits were reached %d times in %d histories: this proves too little", reached, n)
	}
}

// forgets has x forget what was under way when the scheduler is replaced: deliveries of a
// former one hold no places, as they hold none of a window.
func (x *watch) forgets() {
	last := x.w.s
	x.w.onEvent = func(ev Event) {
		if last != x.w.s {
			last = x.w.s
			clear(x.under)
			clear(x.busy)
			clear(x.log)
		}
		x.event(ev)
	}
}

// Of two destinations that share a limit of one each gets every second place, whatever the
// other has; and those of a small site do not wait behind all of a large one.
func TestSharedTurns(t *testing.T) {
	t.Parallel()
	cfg := one(func(_ *Config, c *TransportConfig) { c.BatchLimit, c.FailedCohortLimit = 1, 0 })
	w := newWorld(t, cfg)
	big, small := &Terms{}, &Terms{}
	p := Share{"p", Limits{Concurrency: 2}}
	big.Shares[SiteLimit], big.Shares[ProviderLimit] = Share{"big", Limits{Concurrency: 10}}, p
	small.Shares[SiteLimit], small.Shares[ProviderLimit] = Share{"small", Limits{Concurrency: 10}}, p
	var rcpts []Rcpt
	for d := range 20 {
		name := fmt.Sprintf("big%02d", d)
		w.terms[name] = big
		for range 5 {
			rcpts = append(rcpts, rcpt("smtp", name))
		}
	}
	w.terms["small"] = small
	w.arrive(1, 0, rcpts...)
	for range 5 {
		w.done(w.order[0], sent, false)
	}
	var next []string
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver {
			next = append(next, string(e.Nexthop))
		}
	}
	w.arrive(2, 0, rcpt("smtp", "small"), rcpt("smtp", "small"), rcpt("smtp", "small"))
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	if i := slices.Index(next, "small"); i > 1 {
		t.Errorf("the small site waits for %d deliveries: %v", i, next)
	}
	turns := map[string]int{}
	for _, d := range next {
		turns[d]++
		if turns[d] > turns["big19"]+4 {
			t.Errorf("%s has had %d turns, big19 %d", d, turns[d], turns["big19"])
		}
	}
}

// underLimit has mail for a destination be under a limit of provider p: that for all mail, or that of a tenant.
func (w *world) underLimit(d, tenant string, l Limits) {
	shares := [levels]Share{ProviderLimit: {"p", l}}
	if tenant == "" {
		w.terms[d] = &Terms{Shares: shares}
		return
	}
	if w.quotas == nil {
		w.quotas = map[string]*Quota{}
	}
	w.quotas[tenant+" at "+d] = &Quota{Shares: shares}
	w.tenant = func(MsgID) string { return tenant }
}

// Parked mail is taken back one of each destination in turn, in the order in which it was
// parked, and before mail that comes later: for a limit of all mail, and for one of a tenant.
func TestParkedInTurns(t *testing.T) {
	t.Parallel()
	for _, tenant := range []string{"", "a"} {
		t.Run("tenant "+tenant, func(t *testing.T) {
			t.Parallel()
			parkedInTurns(t, tenant)
		})
	}
}

func parkedInTurns(t *testing.T, tenant string) {
	w := newWorld(t, one(func(c *Config, t *TransportConfig) { c.SharedActiveLimit, t.InitialConcurrency = 1, 1 }))
	var order []MsgID
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver {
			order = append(order, e.ID)
		}
	}
	id := MsgID(0)
	arrive := func(dests ...string) {
		for _, d := range dests {
			w.underLimit(d, tenant, Limits{Concurrency: 1})
			id++
			w.arrive(id, 0, rcpt("smtp", d))
		}
	}
	arrive("a", "a", "a", "a", "a", "b", "b", "c") // 1 goes, 2 waits, the others are parked
	w.done(w.order[0], sent, false)                // 2 goes, and 3 is taken back
	// There is room in the lines at this moment, but not for mail that is new.
	w.s.cfg.SharedActiveLimit = 2
	arrive("d")
	w.s.cfg.SharedActiveLimit = 1
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	if want := []MsgID{1, 2, 3, 6, 8, 4, 9, 7, 5}; !slices.Equal(order, want) {
		t.Errorf("delivered in the order %v, want %v", order, want)
	}
	for _, l := range w.mail {
		if l.attempts > 0 {
			t.Errorf("message %d was tried %d times", l.id, l.attempts)
		}
	}
}

// Mail that was called back and removed before it came calls nobody in its turn. So the limit
// looks after the rest itself, also when nothing is to be parked any more.
func TestParkedLookedAfter(t *testing.T) {
	t.Parallel()
	for _, tenant := range []string{"", "a"} {
		for _, off := range []bool{false, true} {
			t.Run(fmt.Sprintf("tenant %s, off %v", tenant, off), func(t *testing.T) {
				t.Parallel()
				parkedLookedAfter(t, tenant, off)
			})
		}
	}
}

func parkedLookedAfter(t *testing.T, tenant string, off bool) {
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) { c.SharedActiveLimit, tc.InitialConcurrency = 1, 1 }))
	w.underLimit("d", tenant, Limits{Concurrency: 1})
	for id := MsgID(1); id <= 5; id++ {
		w.arrive(id, 0, rcpt("smtp", "d")) // 1 goes, 2 waits, the others are parked
	}
	w.manual = true
	w.step(Event{Kind: EventRemove, Scope: ScopeMessage, ID: 2})
	if len(w.loads) != 1 || w.loads[0].ID != 3 {
		t.Fatalf("3 was to be called back: %+v", w.loads)
	}
	w.step(Event{Kind: EventRemove, Scope: ScopeMessage, ID: 3})
	w.manual = false
	w.step(w.load(w.loads[0]))
	if off {
		w.s.cfg.SharedActiveLimit = 0
	}
	w.done(w.order[0], sent, false)
	if len(w.order) > 0 || w.left() != 2 {
		t.Fatalf("%d messages are left, under way: %v", w.left(), w.busy)
	}
	for len(w.order) == 0 && w.sleep() {
	}
	if waited := w.now.Sub(epoch); waited > time.Duration(recheckTime)*time.Microsecond {
		t.Errorf("the next one began after %v", waited)
	}
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	if w.left() > 0 {
		t.Errorf("%d messages are left", w.left())
	}
}

// The rest of a divided delivery goes where the whole was to go, also when that is not the
// site's first domain.
func TestDividedInSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(*Config, *TransportConfig) {}))
	terms := &Terms{Rollup: true}
	terms.Shares[SiteLimit] = Share{"s", Limits{Recipients: rate.Rate{N: 3, Per: rate.Day}}}
	w.site["a"], w.site["b"], w.terms["site"] = "site", "site", terms
	var went []string
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver {
			went = append(went, fmt.Sprint(e.Nexthop, e.Rcpts))
		}
	}
	w.arrive(1, 0, rcpt("smtp", "a"), rcpt("smtp", "b"), rcpt("smtp", "b"), rcpt("smtp", "b"), rcpt("smtp", "b"))
	for range 2 {
		for len(w.order) > 0 {
			w.done(w.order[0], sent, false)
		}
		w.tick(rate.Day)
	}
	if want := []string{"a[0]", "b[1 2]", "b[3 4]"}; !slices.Equal(went, want) {
		t.Errorf("delivered %v, want %v", went, want)
	}
}

// A delivery that no agent could be had for has not used up anything; one whose agent died
// has, for nobody knows what it did.
func TestUnmade(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		w := newWorld(t, one(func(c *Config, _ *TransportConfig) { c.MinimalBackoff, c.QueueRunDelay = time.Minute, 0 }))
		terms := &Terms{}
		terms.Shares[OwnLimit] = Share{"a", Limits{Messages: rate.Rate{N: 1, Per: time.Hour}, Recipients: rate.Rate{N: 2, Per: rate.Day}}}
		w.terms["a"] = terms
		w.arrive(1, 0, rcpt("smtp", "a"), rcpt("smtp", "a"))
		if lost {
			w.lose(w.order[0])
		} else {
			w.down(w.order[0])
		}
		for len(w.order) > 0 { // the retry agent's
			w.done(w.order[0], deferred, false)
		}
		w.tick(10 * time.Minute)
		if again := len(w.order) > 0; again == lost {
			t.Errorf("the agent died: %v; the mail goes again: %v", lost, again)
		}
	}
}

// What was counted goes to a successor, and what is in a file is not relied on.
func TestSpent(t *testing.T) {
	t.Parallel()
	cfg := one(func(_ *Config, c *TransportConfig) { c.BatchLimit = 50 })
	w := newWorld(t, cfg)
	terms := &Terms{}
	terms.Shares[OwnLimit] = Share{"a", Limits{Recipients: rate.Rate{N: 5, Per: rate.Day}}}
	w.terms["a"] = terms
	w.arrive(1, 0, rcpt("smtp", "a"), rcpt("smtp", "a"), rcpt("smtp", "a"))
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	spent := w.s.Spent()
	if len(spent) != 1 || spent[0].Name != "a" || spent[0].Recipients.Count != 3 {
		t.Fatalf("%+v", spent)
	}
	w.succeed(cfg)
	var sizes []int
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver {
			sizes = append(sizes, len(e.Rcpts))
		}
	}
	w.arrive(2, 0, rcpt("smtp", "a"), rcpt("smtp", "a"), rcpt("smtp", "a"), rcpt("smtp", "a"))
	if len(sizes) != 1 || sizes[0] != 2 {
		t.Errorf("deliveries of %v, with 2 left for today", sizes)
	}
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	w.tick(24 * time.Hour) // to midnight and beyond
	if len(sizes) != 2 || sizes[1] != 2 {
		t.Errorf("deliveries of %v after midnight", sizes)
	}

	spent[0].Recipients = rate.Meter{Due: 1 << 62, Date: 1 << 40, Count: -5}
	spent = append(spent, Spent{Level: 77, Name: "x", Messages: rate.Meter{Count: 3}}, Spent{Messages: rate.Meter{Count: 3}})
	s := New(cfg)
	s.RestoreSpent(w.now, spent)
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	for _, sp := range s.Spent() {
		if m := sp.Recipients; m.Count != 0 || m.Due > w.now.Add(rate.Day).UnixMicro() {
			t.Errorf("taken over: %+v", sp)
		}
	}
}

// Limits that are remembered for what was counted are bounded, and those of one kind have none of another forgotten: a mailing
// to many domains does not give a provider its day once more.
func TestSharedBounded(t *testing.T) {
	t.Parallel()
	s := New(DefaultConfig())
	for i, n := range s.maxResting {
		if n < 1<<15 || n > 1<<17 {
			t.Errorf("%d limits of kind %d are remembered", n, i)
		}
		s.maxResting[i] = 20
	}
	day := rate.Meter{Date: epoch.Unix() / 86400, Count: 7}
	var list []Spent
	for i := range 100 {
		list = append(list, Spent{Level: OwnLimit, Name: fmt.Sprint("d", i), Messages: day}, Spent{Level: OwnLimit, Name: "d", Tenant: fmt.Sprint("t", i), Messages: day})
	}
	list = append(list, Spent{Level: ProviderLimit, Name: "p", Messages: day}, Spent{Level: TenantLimit, Name: "t", Messages: day})
	s.RestoreSpent(epoch, list)
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	n := [kinds]int{}
	for _, sp := range s.Spent() {
		n[sharedKey{sp.Level, sp.Name, sp.Source, sp.Tenant}.kind()]++
	}
	if n != [kinds]int{anyPlace: 20, anyProvider: 1, anyTenant: 1, anyTenantPlace: 20} {
		t.Errorf("remembered by kind: %v", n)
	}
}

// A limit that nobody needs any more is forgotten, at the latest when the day is over; and
// without limits there is nothing to forget.
func TestSharedForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(_ *Config, c *TransportConfig) { c.BatchLimit = 50 }))
	w.arrive(1, 0, rcpt("smtp", "a"))
	w.done(w.order[0], sent, false)
	if w.s.shares != nil || w.s.roots != nil {
		t.Error("there are shared limits, and none is set")
	}
	terms := &Terms{}
	terms.Shares[OwnLimit] = Share{"a", Limits{Concurrency: 3, Messages: rate.Rate{N: 5, Per: rate.Day}}}
	terms.Shares[ProviderLimit] = Share{"p", Limits{Connections: rate.Rate{N: 5, Per: time.Minute}}}
	w.terms["a"] = terms
	w.arrive(2, 0, rcpt("smtp", "a"))
	w.done(w.order[0], sent, false)
	if n := len(w.s.shares); n != 2 {
		t.Errorf("%d limits, 2 have counted something", n)
	}
	w.tick(2 * time.Minute)
	w.tick(25 * time.Hour)
	if n := len(w.s.shares); n != 0 || w.s.resting != [kinds]int{} {
		t.Errorf("%d limits are remembered for nothing, %v at rest", n, w.s.resting)
	}
}
