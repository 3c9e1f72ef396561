package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/rate"
)

// randomAllowances draws terms for the tenants of random histories.
func randomAllowances(r *rand.Rand) map[string]TenantTerms {
	list := map[string]TenantTerms{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		var t TenantTerms
		if r.IntN(3) > 0 {
			t.Limits = randomLimits(r)
			t.Limits.Connections = rate.Rate{}
		}
		t.Weight = r.IntN(4)
		if r.IntN(3) == 0 {
			t.Lifetime, t.BounceLifetime = time.Duration(1+r.IntN(4))*time.Hour, time.Duration(r.IntN(3))*time.Hour
		}
		list[name] = t
	}
	return list
}

// changeAllowances has other terms hold, for some of the tenants from now on.
func (w *world) changeAllowances(r *rand.Rand) {
	w.whose = randomAllowances(r)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		if r.IntN(2) == 0 {
			w.step(Event{Kind: EventTenant, Tenant: name, TenantTerms: w.whose[name]})
		}
	}
}

// TestAllowanceHistories plays random histories in which tenants have limits that do not change, and holds them to
// these: how much is under way, and how much began in each span of time.
func TestAllowanceHistories(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 30
	}
	waited, kept := 0, 0
	for seed := range n {
		playIn(t, 9000+seed, 300, func(r *rand.Rand, w *world) {
			w.tenant = func(id MsgID) string { return []string{"", "a", "b", "c", "d", "e"}[int(id)*int(id)%7%6] }
			w.whose = randomAllowances(r)
			if r.IntN(2) == 0 {
				w.terms = randomTerms(r, randomLimits)
			}
			watched(w).forgets()
			w.each = func(*rand.Rand) {
				for _, x := range w.s.tenants {
					if x != nil && x.limit != nil {
						waited += x.limit.waiting
					}
				}
				kept += w.waitingWithPlaces()
			}
		})
	}
	if waited < 20*int(n) || kept == 0 {
		t.Errorf("%d waits and %d places kept in %d histories: this looks at too little", waited, kept, n)
	}
}

// waitingWithPlaces is how many claims wait for their destinations with a place of their tenant's limit.
func (w *world) waitingWithPlaces() (n int) {
	for _, t := range w.s.transports {
		for q := t.firstQueue; q != nil; q = q.nxt {
			for c := range q.claims {
				if c.allowed != nil && !c.open {
					n++
				}
			}
		}
	}
	return n
}

// TestAllowanceBound: the bound of docs/scheduler.md holds for each tenant without a limit, whatever limits others have;
// and none of these is left behind.
func TestAllowanceBound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var limits []Limits
		for range 6 {
			l := Limits{}
			if rapid.Bool().Draw(t, "limited") {
				l.Concurrency = rapid.IntRange(1, 3).Draw(t, "most")
			}
			limits = append(limits, l)
		}
		dests := rapid.SampledFrom([]int{1, 5}).Draw(t, "dests")
		tenantsWithin(t, one(func(c *Config, tc *TransportConfig) {
			tc.BatchLimit = rapid.IntRange(1, 4).Draw(t, "batch")
			tc.ProcessLimit = rapid.IntRange(1, 4).Draw(t, "agents")
			tc.ConcurrencyLimit, tc.InitialConcurrency, tc.AgentsPerThread = 3, 3, 0
			tc.Mode = Mode(rapid.IntRange(0, 2).Draw(t, "mode"))
			if dests == 1 {
				tc.ProcessLimit = 0
			} else {
				tc.ConcurrencyLimit, tc.InitialConcurrency = 0, 1000
			}
		}), dests, limits)
	})
}

// TestAllowanceOthersGo: a tenant that may not send now has mail at the only place of a destination, and before that
// of another. The other goes at once.
func TestAllowanceOthersGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) { tc.ConcurrencyLimit, tc.InitialConcurrency = 1, 1 }))
	hour := rate.Rate{N: 1, Per: time.Hour}
	w.whose = map[string]TenantTerms{"news": {Limits: Limits{Messages: hour}}}
	w.tenant = func(id MsgID) string { return []string{"news", "shop"}[int(id)/50] }
	for id := range MsgID(49) {
		w.arrive(id+1, 0, rcpt("smtp", "d"))
	}
	w.arrive(50, 0, rcpt("smtp", "d"))
	w.done(w.order[0], sent, false)
	if w.mail[50].gone == 0 && (len(w.order) != 1 || w.busy[w.order[0]].ID != 50) {
		t.Fatalf("the message of another tenant is not under way: %v", w.order)
	}
	w.done(w.order[0], sent, false)
	if len(w.order) > 0 {
		t.Fatalf("%d deliveries of the tenant began within the hour", 1+len(w.order))
	}
	why := w.s.Explain(2)
	if len(why) != 1 || why[0].Wait != WaitShared || why[0].Gate != "tenant news" || why[0].Until.IsZero() {
		t.Errorf("message 2 waits for %+v", why)
	}
	for len(w.order) == 0 && w.now.Before(epoch.Add(2*time.Hour)) {
		w.sleep()
	}
	if len(w.order) != 1 || w.now.Before(epoch.Add(time.Hour)) {
		t.Errorf("%d deliveries began when the hour was over", len(w.order))
	}
}

// TestAllowanceInTurns: the destinations of a tenant get its places in turn, although one of them is under a shared limit
// that is full nearly always, and has its room when the tenant has none.
func TestAllowanceInTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.ConcurrencyLimit, tc.InitialConcurrency, tc.BatchLimit = 0, 100, 1
		c.SharedActiveLimit = 0
	}))
	w.whose = map[string]TenantTerms{"a": {Limits: Limits{Concurrency: 1}}}
	p := &Terms{Shares: [levels]Share{ProviderLimit: {"p", Limits{Concurrency: 1}}}}
	w.terms = map[string]*Terms{"shared": p, "other": p}
	w.tenant = func(id MsgID) string { return []string{"a", "b"}[id%2] }
	for id := MsgID(1); id < 400; id += 4 {
		w.arrive(id, 0, rcpt("smtp", "other"))    // of b
		w.arrive(id+2, 0, rcpt("smtp", "other"))  // of b
		w.arrive(id+1, 0, rcpt("smtp", "shared")) // of a
		w.arrive(id+3, 0, rcpt("smtp", "free"))   // of a
	}
	began := map[string]int{}
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver {
			began[string(e.Nexthop)]++
		}
	}
	for range 120 {
		// The two never end in one step.
		w.done(w.order[0], sent, false)
	}
	if began["shared"] < 15 || began["free"] < 15 || began["other"] < 15 {
		t.Errorf("deliveries that began: %v", began)
	}
}

// TestAllowanceAtWindow: a tenant with one delivery at a time has mail for a destination whose only place another tenant's
// mail has nearly always, and for one that is free. The two get its places in turn, and the other tenant waits for nothing.
func TestAllowanceAtWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.ConcurrencyLimit, tc.InitialConcurrency, tc.BatchLimit = 1, 1, 1
		c.SharedActiveLimit = 0
	}))
	w.whose = map[string]TenantTerms{"a": {Limits: Limits{Concurrency: 1}}}
	w.tenant = func(id MsgID) string { return []string{"a", "b"}[id%2] }
	began := w.count()
	for id := MsgID(0); id < 400; id += 4 {
		w.arrive(id+1, 0, rcpt("smtp", "busy")) // of b
		w.arrive(id+3, 0, rcpt("smtp", "busy")) // of b
		w.arrive(id+2, 0, rcpt("smtp", "busy")) // of a
		w.arrive(id+4, 0, rcpt("smtp", "free")) // of a
	}
	for range 120 {
		if !slices.ContainsFunc(w.order, func(id EntryID) bool { return w.busy[id].Nexthop == "busy" }) {
			t.Fatal("the destination that is busy has nothing to do")
		}
		w.done(w.order[0], sent, false) // the two never end in one step
	}
	if began["a busy"] < 15 || began["a free"] < 15 || began["b busy"] < 15 {
		t.Errorf("deliveries that began: %v", began)
	}
}

// count counts the deliveries that begin, by tenant and destination.
func (w *world) count() map[string]int {
	began := map[string]int{}
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver {
			began[w.mail[e.ID].tenant+" "+string(e.Nexthop)]++
		}
	}
	return began
}

// serve lets time pass for so long: each delivery takes what took says. Those of one moment end in the order in which
// they began.
func (w *world) serve(d time.Duration, took func(e Effect) time.Duration) {
	ends := map[EntryID]time.Time{}
	for end := w.now.Add(d); ; {
		next, at := EntryID(0), end
		for _, id := range w.order {
			if ends[id].IsZero() {
				ends[id] = w.now.Add(took(w.busy[id]))
			}
			if ends[id].Before(at) {
				next, at = id, ends[id]
			}
		}
		if wake := w.s.Wake(); !wake.IsZero() && wake.Before(at) {
			w.sleep()
			continue
		}
		if next == 0 {
			w.tick(end.Sub(w.now))
			return
		}
		w.now = at
		w.done(next, sent, false)
	}
}

// TestAllowanceOfRate: the same with a limit in a time, and with a destination that is slow: however long it takes, its mail
// goes, and the tenant's other mail does not wait for it for longer.
func TestAllowanceOfRate(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name   string
		limits Limits
		took   time.Duration // a delivery to the busy destination
		busy   int           // deliveries there in two hours, at least
		free   int           // the same of the others
	}{
		{"rate", Limits{Messages: rate.Rate{N: 100, Per: time.Hour}}, time.Second, 75, 75},
		{"slow rate", Limits{Messages: rate.Rate{N: 6, Per: time.Hour}}, time.Second, 4, 4},
		{"slow destination", Limits{Concurrency: 1}, 7 * time.Minute, 3, 1000},
		{"day", Limits{Recipients: rate.Rate{N: 20, Per: rate.Day}}, time.Second, 5, 5},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, one(func(c *Config, tc *TransportConfig) {
				tc.ConcurrencyLimit, tc.InitialConcurrency, tc.BatchLimit = 1, 1, 1
				c.SharedActiveLimit = 0
			}))
			w.check = false
			w.whose = map[string]TenantTerms{"a": {Limits: x.limits}}
			w.tenant = func(id MsgID) string { return []string{"a", "b"}[id%2] }
			began := w.count()
			for id := MsgID(0); id < 4*5000; id += 4 {
				w.arrive(id+1, 0, rcpt("smtp", "busy")) // of b
				w.arrive(id+3, 0, rcpt("smtp", "busy")) // of b
				w.arrive(id+2, 0, rcpt("smtp", "busy")) // of a
				w.arrive(id+4, 0, rcpt("smtp", "free")) // of a
			}
			w.serve(2*time.Hour, func(e Effect) time.Duration {
				if e.Nexthop == "busy" {
					return x.took
				}
				return time.Second + 300*time.Millisecond
			})
			if err := w.s.Check(); err != nil {
				t.Error(err)
			}
			if began["a busy"] < x.busy || began["a free"] < x.free {
				t.Errorf("deliveries that began: %v", began)
			}
		})
	}
}

// TestAllowancePatience: however unequal the times are that a destination takes, if it has a turn for a tenant within 4000
// seconds, the tenant's place waits in vain nine times at most (docs/scheduler.md), and all mail goes.
func TestAllowancePatience(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, one(func(c *Config, tc *TransportConfig) {
			tc.ConcurrencyLimit, tc.InitialConcurrency, tc.BatchLimit = 1, 1, 1
			c.SharedActiveLimit = 0
			c.MaximalLifetime = 1000 * time.Hour
		}))
		w.check = false
		w.whose = map[string]TenantTerms{"a": {Limits: Limits{Concurrency: rapid.IntRange(1, 2).Draw(t, "at once")}}}
		if rapid.Bool().Draw(t, "rate") {
			w.whose["a"] = TenantTerms{Limits: Limits{Messages: rate.Rate{N: rapid.Int64Range(1, 100).Draw(t, "n"), Per: time.Hour}}}
		}
		w.tenant = func(id MsgID) string { return []string{"a", "b"}[id%2] }
		for id := MsgID(0); id < 40; id += 2 {
			w.arrive(id+1, 0, rcpt("smtp", "busy"))                                               // of b
			w.arrive(id+2, 0, rcpt("smtp", []string{"busy", "free", "free", "other"}[id/2%4]))    // of a
			w.arrive(1000+id, 0, rcpt("smtp", []string{"free", "other", "free", "free"}[id/2%4])) // of a
		}
		vain, waits := 0, false
		w.onEvent = func(Event) {
			q := w.s.transportIndex["smtp"].queues["busy"]
			if q == nil {
				return
			}
			for c := range q.claims {
				if w.s.tenants[c.tenant] == nil || w.s.tenants[c.tenant].name != "a" {
					continue
				}
				switch had := waits; {
				case had && c.allowed == nil && c.missed != 0:
					vain++
				case c.missed == 0:
					vain = 0
				}
				if waits = c.allowed != nil && !c.open; vain > 9 {
					t.Fatalf("its place has waited %d times in vain", vain)
				}
			}
		}
		most := rapid.SampledFrom([]int{5, 60, 1990}).Draw(t, "most") // of others, and its own: twice
		for w.left() > 0 {
			before := w.left()
			w.serve(20*time.Hour, func(e Effect) time.Duration {
				if e.Nexthop == "busy" {
					return time.Duration(rapid.IntRange(1, most).Draw(t, "took")) * time.Second
				}
				return time.Duration(rapid.IntRange(1, 90).Draw(t, "took")) * time.Second
			})
			if w.left() == before {
				t.Fatalf("%d messages are left", w.left())
			}
		}
	})
}

// TestAllowanceNotForTomorrow: a tenant's place does not wait for a destination that opens only tomorrow, nor for one that
// another node has.
func TestAllowanceNotForTomorrow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) { tc.BatchLimit = 1 }))
	w.whose = map[string]TenantTerms{"a": {Limits: Limits{Concurrency: 1}}}
	w.tenant = func(id MsgID) string { return []string{"a", "b"}[id%2] }
	w.terms["daily"] = &Terms{Shares: [levels]Share{ProviderLimit: {"p", Limits{Messages: rate.Rate{N: 2, Per: rate.Day}}}}}
	w.arrive(2, 0, rcpt("smtp", "free"))  // of a
	w.arrive(4, 0, rcpt("smtp", "daily")) // of a, which waits for the tenant's limit
	w.arrive(1, 0, rcpt("smtp", "daily"))
	w.arrive(3, 0, rcpt("smtp", "daily"))
	w.arrive(6, 0, rcpt("smtp", "free")) // of a
	w.done(w.order[0], sent, false)
	if n := w.waitingWithPlaces(); n > 0 || w.busy[w.order[len(w.order)-1]].ID != 6 {
		t.Errorf("%d places wait; under way: %v", n, w.busy)
	}
	w.arrive(8, 0, rcpt("smtp", "shut")) // of a
	w.arrive(10, 0, rcpt("smtp", "free"))
	w.limits["shut"] = testLimit{most: -1}
	w.setLimits()
	w.done(w.order[len(w.order)-1], sent, false)
	if n := w.waitingWithPlaces(); n > 0 || w.busy[w.order[len(w.order)-1]].ID != 10 {
		t.Errorf("%d places wait for a destination of another; under way: %v", n, w.busy)
	}
}

// TestAllowanceDay: a delivery to more recipients than a tenant has left for the day is divided, what was counted
// outlives the tenant's mail and the scheduler, and the rest goes the next day.
func TestAllowanceDay(t *testing.T) {
	t.Parallel()
	cfg := one(func(c *Config, tc *TransportConfig) { tc.BatchLimit = 50 })
	w := newWorld(t, cfg)
	terms := map[string]TenantTerms{"a": {Limits: Limits{Recipients: rate.Rate{N: 10, Per: rate.Day}}}}
	w.whose = terms
	w.tenant = func(MsgID) string { return "a" }
	list := func(n int) (l []Rcpt) {
		for range n {
			l = append(l, rcpt("smtp", "d"))
		}
		return l
	}
	w.arrive(1, 0, list(7)...)
	w.done(w.order[0], sent, false)
	if w.left() > 0 || len(w.s.tenantIndex) > 0 {
		t.Fatal("the tenant is not forgotten with its mail")
	}
	spent := w.s.Spent()
	if len(spent) != 1 || spent[0].Level != TenantLimit || spent[0].Name != "a" {
		t.Fatalf("counted: %+v", spent)
	}
	v := newWorld(t, cfg)
	v.now, v.whose, v.tenant = w.now, terms, w.tenant
	v.s.RestoreSpent(v.now, spent)
	v.arrive(1, 0, list(5)...)
	if len(v.order) != 1 || len(v.busy[v.order[0]].Rcpts) != 3 {
		t.Fatalf("under way: %+v", v.busy)
	}
	v.done(v.order[0], sent, false)
	if len(v.order) > 0 {
		t.Fatalf("more than ten recipients a day: %+v", v.busy)
	}
	for len(v.order) == 0 && v.now.Before(epoch.Add(2*rate.Day)) {
		v.sleep()
	}
	if day := v.now.Truncate(rate.Day); !v.now.Equal(day) || len(v.order) != 1 {
		t.Errorf("at %v %d deliveries began", v.now, len(v.order))
	}
}

// TestAllowanceOutside: of the mail of a tenant that waits for its limit, SharedActiveLimit messages are in the active
// queue; the others come as these go.
func TestAllowanceOutside(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) { c.ActiveLimit, c.SharedActiveLimit = 1000, 5 }))
	w.whose = map[string]TenantTerms{"a": {Limits: Limits{Concurrency: 1}}}
	w.tenant = func(MsgID) string { return "a" }
	for id := range MsgID(50) {
		w.arrive(id+1, 0, rcpt("smtp", fmt.Sprint("d", id)))
	}
	for n := 50; n > 0; n-- {
		if a := w.s.Stats().Active; a > 6 || a < min(n, 5) {
			t.Fatalf("%d messages of %d are active", a, n)
		}
		w.done(w.order[0], sent, false)
	}
	if w.left() > 0 {
		t.Errorf("%d messages are left", w.left())
	}
}

// TestTenantLifetime: mail of a tenant is returned when its own time is over, and mail with the null sender when that
// of its notices is.
func TestTenantLifetime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) {}))
	w.whose = map[string]TenantTerms{"a": {Lifetime: time.Hour, BounceLifetime: 30 * time.Minute}}
	w.tenant = func(id MsgID) string { return []string{"", "a", "a"}[id-1] }
	w.arrive(1, 0, rcpt("smtp", "d"))
	w.arrive(2, 0, rcpt("smtp", "d"))
	w.arrive(3, FlagNullSender, rcpt("smtp", "d"))
	gone := map[MsgID]time.Duration{}
	for range 200 {
		for len(w.order) > 0 {
			w.done(w.order[0], unreachable, false)
		}
		for id, l := range w.mail {
			if l.gone != 0 && gone[id] == 0 {
				gone[id] = w.now.Sub(epoch)
			}
		}
		if len(gone) == 2 {
			break
		}
		w.sleep()
	}
	if a, b := gone[2], gone[3]; gone[1] != 0 || a < time.Hour || a > 2*time.Hour || b < 30*time.Minute || b >= time.Hour {
		t.Errorf("returned after %v", gone)
	}
}

// TestRunawayCampaign: a tenant's mailing of tens of thousands goes to a destination that takes four at a time. However
// far it has come, a password reset of another tenant begins after one turn, one of the same tenant after a few
// deliveries: it has few recipients, and passes messages that have many (docs/sending-reference.md).
func TestRunawayCampaign(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const window, batch = 4, 5
		w := newWorld(t, one(func(c *Config, tc *TransportConfig) {
			tc.BatchLimit, tc.ConcurrencyLimit, tc.InitialConcurrency = batch, window, window
		}))
		w.check = false
		tenant := "news"
		w.tenant = func(MsgID) string { return tenant }
		var list []Rcpt
		for range 1000 {
			list = append(list, rcpt("smtp", "big"))
		}
		for id := range MsgID(20) {
			w.arrive(id+1, 0, list...)
		}
		for range rapid.IntRange(0, 300).Draw(t, "gone") {
			w.done(w.order[0], sent, false)
		}
		begun, own, other := 0, -1, -1
		w.on = func(e Effect) {
			if e.Kind != EffectDeliver {
				return
			}
			switch e.ID {
			case 101:
				own = begun
			case 102:
				other = begun
			}
			begun++
		}
		w.arrive(101, 0, rcpt("smtp", "big"))
		tenant = "shop"
		w.arrive(102, 0, rcpt("smtp", "big"))
		for range 12 {
			w.done(w.order[0], sent, false)
		}
		if other != 0 {
			t.Fatalf("%d deliveries began before the reset of the other tenant", other)
		}
		if own < 0 || own > 6 {
			t.Fatalf("%d deliveries began before the reset of the same tenant", own)
		}
	})
}
