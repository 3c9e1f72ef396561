package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/rate"
)

// randomQuotas draws what holds for the tenants of random histories at destinations: limits at each one, at the sites
// and at the provider that randomTerms has, each for itself.
func randomQuotas(r *rand.Rand) map[string]*Quota {
	list := map[string]*Quota{}
	limits := func() Limits {
		l := randomLimits(r)
		l.Connections = rate.Rate{}
		return l
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		site := [2]Share{{"s1", limits()}, {"s2", limits()}}
		provider, both := Share{"p", limits()}, r.IntN(2) == 0
		for i, d := range destinations {
			x := &Quota{}
			k := r.IntN(3)
			if k < 2 && i > 0 {
				x.Shares[SiteLimit] = site[k]
			}
			if k == 0 || k == 1 && both {
				x.Shares[ProviderLimit] = provider
			}
			if r.IntN(3) == 0 {
				x.Shares[OwnLimit] = Share{d, limits()}
			}
			if r.IntN(4) > 0 {
				list[name+" at "+d] = x
			}
		}
	}
	return list
}

// TestQuotaHistories plays random histories in which tenants have limits at places, beside limits of their own and
// those of destinations, and holds them to all of these: how much is under way, and how much began in each span of time.
func TestQuotaHistories(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 60
	}
	waited, kept, parked := 0, 0, 0
	for seed := range n {
		playIn(t, 17000+seed, 300, func(r *rand.Rand, w *world) {
			w.tenant = func(id MsgID) string { return []string{"", "a", "b", "c", "d", "e"}[int(id)*int(id)%7%6] }
			w.quotas = randomQuotas(r)
			if r.IntN(2) == 0 {
				w.whose = randomAllowances(r)
			}
			if r.IntN(2) == 0 {
				w.terms = randomTerms(r, randomLimits)
			}
			w.s.cfg.SharedActiveLimit = r.IntN(4)
			watched(w).forgets()
			w.each = func(*rand.Rand) {
				for _, x := range w.s.shares {
					if x.key.tenant == "" {
						continue
					}
					parked += x.parked
					waited += x.waiting
				}
				kept += w.waitingWithPlaces()
			}
		})
	}
	if waited < 20*int(n) || kept == 0 || parked == 0 {
		t.Errorf("%d waits, %d places kept and %d parked in %d histories: this looks at too little", waited, kept, parked, n)
	}
}

// TestQuotaChanges plays histories in which quotas, the limits of tenants and those of destinations change all the
// time: the counts stay right (Check), and all mail leaves in the end.
func TestQuotaChanges(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 40
	}
	for seed := range n {
		playIn(t, 23000+seed, 300, func(r *rand.Rand, w *world) {
			w.tenant = func(id MsgID) string { return []string{"", "a", "b"}[int(id)%3] }
			w.quotas, w.terms = randomQuotas(r), randomTerms(r, randomLimits)
			w.s.cfg.SharedActiveLimit = r.IntN(4)
			w.each = func(r *rand.Rand) {
				switch r.IntN(20) {
				case 0:
					w.quotas = randomQuotas(r)
				case 1:
					w.terms = randomTerms(r, randomLimits)
				case 2:
					w.changeAllowances(r)
				case 3:
					name, d := string("ab"[r.IntN(2)]), destinations[r.IntN(len(destinations))]
					w.step(Event{Kind: EventQuota, Tenant: name, Transport: "smtp", Site: d, Quota: w.quotas[name+" at "+d]})
				}
			}
			w.end = func() { w.quotas, w.terms, w.whose = nil, nil, nil }
		})
	}
}

// quotaWorld is a world in which tenant "a" may have so much at provider "p", which is behind d1 and d2.
func quotaWorld(t *testing.T, cfg Config, l Limits) *world {
	w := newWorld(t, cfg)
	q := &Quota{}
	q.Shares[ProviderLimit] = Share{"p", l}
	w.quotas = map[string]*Quota{"a at d1": q, "a at d2": q}
	w.tenant = func(id MsgID) string { return []string{"a", "b"}[id%2] }
	return w
}

// TestQuotaOthersGo: what a tenant may not send to a provider keeps neither its mail for others, nor the mail of other
// tenants there; it is explained; and it goes when it may.
func TestQuotaOthersGo(t *testing.T) {
	t.Parallel()
	w := quotaWorld(t, one(func(c *Config, tc *TransportConfig) { tc.ConcurrencyLimit, tc.InitialConcurrency = 1, 1 }),
		Limits{Messages: rate.Rate{N: 1, Per: time.Hour}})
	for id := MsgID(2); id <= 40; id += 2 {
		w.arrive(id, 0, rcpt("smtp", []string{"d1", "d2"}[id/2%2]))
	}
	w.arrive(100, 0, rcpt("smtp", "free"))
	w.arrive(101, 0, rcpt("smtp", "d1"))
	w.arrive(103, 0, rcpt("smtp", "d2"))
	var ids []MsgID
	for len(w.order) > 0 {
		ids = append(ids, w.busy[w.order[0]].ID)
		w.done(w.order[0], sent, false)
	}
	if slices.Sort(ids); !slices.Equal(ids, []MsgID{2, 100, 101, 103}) {
		t.Fatalf("these went within the hour: %v", ids)
	}
	why := w.s.Explain(6)
	if len(why) != 1 || why[0].Wait != WaitShared || why[0].Gate != "provider p of tenant a" || why[0].Until.IsZero() {
		t.Errorf("message 6 waits for %+v", why)
	}
	for len(w.order) == 0 && w.now.Before(epoch.Add(2*time.Hour)) {
		w.sleep()
	}
	if len(w.order) != 1 || w.now.Before(epoch.Add(time.Hour)) {
		t.Errorf("%d deliveries began when the hour was over", len(w.order))
	}
}

// TestQuotaInTurns: the destinations of a tenant get its places at a provider in turn, although one of them is under a
// limit of its own that is full nearly always, and has its room when the tenant has none.
func TestQuotaInTurns(t *testing.T) {
	t.Parallel()
	w := quotaWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.ConcurrencyLimit, tc.InitialConcurrency, tc.BatchLimit = 0, 100, 1
		c.SharedActiveLimit = 0
	}), Limits{Concurrency: 1})
	w.whose = map[string]TenantTerms{"a": {Limits: Limits{Concurrency: 2}}}
	busy := &Terms{Shares: [levels]Share{OwnLimit: {"d1", Limits{Concurrency: 1}}}}
	w.terms = map[string]*Terms{"d1": busy, "other": busy}
	for id := MsgID(0); id < 400; id += 4 {
		w.arrive(id+1, 0, rcpt("smtp", "other")) // of b
		w.arrive(id+3, 0, rcpt("smtp", "other")) // of b
		w.arrive(id+2, 0, rcpt("smtp", "d1"))    // of a
		w.arrive(id+4, 0, rcpt("smtp", "d2"))    // of a
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
	if began["d1"] < 15 || began["d2"] < 15 || began["other"] < 15 {
		t.Errorf("deliveries that began: %v", began)
	}
}

// TestQuotaBelowRate: a tenant's limit at a provider is full nearly always, a rate above it is used up nearly always, and the
// place of its destination there is another tenant's nearly always. Its mail for that goes in its turn.
func TestQuotaBelowRate(t *testing.T) {
	t.Parallel()
	w := quotaWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.ConcurrencyLimit, tc.InitialConcurrency, tc.BatchLimit = 0, 100, 1
		c.SharedActiveLimit = 0
	}), Limits{Concurrency: 1})
	w.check = false
	w.whose = map[string]TenantTerms{"a": {Limits: Limits{Messages: rate.Rate{N: 100, Per: time.Hour}}}}
	busy := &Terms{Shares: [levels]Share{OwnLimit: {"d1", Limits{Concurrency: 1}}}}
	w.terms = map[string]*Terms{"d1": busy, "other": busy}
	for id := MsgID(0); id < 4*5000; id += 4 {
		w.arrive(id+1, 0, rcpt("smtp", "other")) // of b
		w.arrive(id+3, 0, rcpt("smtp", "other")) // of b
		w.arrive(id+2, 0, rcpt("smtp", "d1"))    // of a
		w.arrive(id+4, 0, rcpt("smtp", "d2"))    // of a
	}
	began := w.count()
	w.serve(2*time.Hour, func(e Effect) time.Duration {
		return map[mail.Nexthop]time.Duration{"d1": 900 * time.Millisecond, "other": 1100 * time.Millisecond, "d2": 30 * time.Second}[e.Nexthop]
	})
	if err := w.s.Check(); err != nil {
		t.Error(err)
	}
	if began["a d1"] < 60 || began["a d2"] < 60 || began["b other"] < 5000 {
		t.Errorf("deliveries that began: %v", began)
	}
}

// TestQuotaOfNobody: mail of tenants beyond those that can be told apart is nobody's, and no limit of a tenant becomes that of
// the place for all.
func TestQuotaOfNobody(t *testing.T) {
	t.Parallel()
	w := quotaWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.ConcurrencyLimit, tc.InitialConcurrency, tc.BatchLimit = 0, 100, 1
		c.SharedActiveLimit = 1
	}), Limits{Concurrency: 1})
	w.terms["d1"] = &Terms{Shares: [levels]Share{ProviderLimit: {"p", Limits{Concurrency: 5}}}}
	w.s.tenants = append(w.s.tenants, make([]*tenant, maxTenants+1-len(w.s.tenants))...)
	for id := MsgID(2); id <= 20; id += 2 {
		w.arrive(id, 0, rcpt("smtp", "d1"))
	}
	if len(w.order) != 5 {
		t.Errorf("%d under way of 5", len(w.order))
	}
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	for w.left() > 0 && w.sleep() {
		for len(w.order) > 0 {
			w.done(w.order[0], sent, false)
		}
	}
	if w.left() > 0 {
		t.Errorf("%d messages are left", w.left())
	}
}

// TestQuotaOutside: of the mail of a tenant that waits for its limit at a provider, SharedActiveLimit messages are in the
// active queue, and the tenant's other mail goes; the rest comes as these go, with nobody else's.
func TestQuotaOutside(t *testing.T) {
	t.Parallel()
	w := quotaWorld(t, one(func(c *Config, tc *TransportConfig) { c.ActiveLimit, c.SharedActiveLimit = 20, 5 }), Limits{Concurrency: 1})
	for id := MsgID(2); id <= 200; id += 2 {
		w.arrive(id, 0, rcpt("smtp", "d1"))
	}
	w.arrive(300, 0, rcpt("smtp", "free"))
	if len(w.order) != 2 || w.busy[w.order[1]].ID != 300 {
		t.Fatalf("under way: %+v", w.busy)
	}
	if why := w.s.Explain(200); len(why) != 1 || why[0].Wait != WaitBeyond || why[0].Gate != "provider p of tenant a" {
		t.Errorf("message 200 waits for %+v", why)
	}
	w.done(w.order[1], sent, false)
	for n := 100; n > 0; n-- {
		if a := w.s.Stats().Active; a > 6 || a < min(n, 5) {
			t.Fatalf("%d messages of %d are active", a, n)
		}
		w.done(w.order[0], sent, false)
	}
	if w.left() > 0 {
		t.Errorf("%d messages are left", w.left())
	}
}

// TestQuotaAndShared: a tenant's mail may be under a limit of all mail and under one of the tenant. What either of them has no
// room for waits outside.
func TestQuotaAndShared(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		all, own int // deliveries at once
		gate     string
	}{
		{1, 5, "provider p"},
		{5, 1, "provider p of tenant a"},
		{1, 1, "provider p"},
	} {
		w := quotaWorld(t, one(func(c *Config, tc *TransportConfig) {
			tc.ConcurrencyLimit, tc.InitialConcurrency, tc.BatchLimit = 0, 100, 1
			c.SharedActiveLimit = 2
		}), Limits{Concurrency: x.own})
		w.terms["d1"] = &Terms{Shares: [levels]Share{ProviderLimit: {"p", Limits{Concurrency: x.all}}}}
		for id := MsgID(2); id <= 20; id += 2 {
			w.arrive(id, 0, rcpt("smtp", "d1"))
		}
		if n := w.s.Stats().Active; n != 3 || len(w.order) != 1 {
			t.Errorf("%d of %d: %d messages are active, %d under way", x.own, x.all, n, len(w.order))
		}
		if why := w.s.Explain(20); len(why) != 1 || why[0].Wait != WaitBeyond || why[0].Gate != x.gate {
			t.Errorf("%d of %d: message 20 waits for %+v", x.own, x.all, why)
		}
		for len(w.order) > 0 {
			w.done(w.order[0], sent, false)
		}
		if w.left() > 0 {
			t.Errorf("%d of %d: %d messages are left", x.own, x.all, w.left())
		}
	}
}

// TestQuotaKept: what was counted outlives the tenant's mail and the scheduler, and other tenants have their own.
func TestQuotaKept(t *testing.T) {
	t.Parallel()
	cfg := one(func(c *Config, tc *TransportConfig) { tc.BatchLimit = 50 })
	day := Limits{Recipients: rate.Rate{N: 10, Per: rate.Day}}
	list := func(d string, n int) (l []Rcpt) {
		for range n {
			l = append(l, rcpt("smtp", d))
		}
		return l
	}
	w := quotaWorld(t, cfg, day)
	w.arrive(2, 0, list("d1", 7)...)
	w.done(w.order[0], sent, false)
	spent := w.s.Spent()
	if len(spent) != 1 || spent[0].Level != ProviderLimit || spent[0].Name != "p" || spent[0].Tenant != "a" {
		t.Fatalf("counted: %+v", spent)
	}
	v := quotaWorld(t, cfg, day)
	v.quotas["b at d1"] = v.quotas["a at d1"]
	v.now = w.now
	v.s.RestoreSpent(v.now, spent)
	v.arrive(2, 0, list("d2", 5)...) // the same provider
	v.arrive(3, 0, list("d1", 9)...) // of b
	if len(v.order) != 2 || len(v.busy[v.order[0]].Rcpts) != 3 || len(v.busy[v.order[1]].Rcpts) != 9 {
		t.Fatalf("under way: %+v", v.busy)
	}
	for len(v.order) > 0 {
		v.done(v.order[0], sent, false)
	}
	if v.left() != 1 {
		t.Errorf("%d messages are left", v.left())
	}
}

// TestQuotaTold: a limit that has changed holds for the mail that waits, at once.
func TestQuotaTold(t *testing.T) {
	t.Parallel()
	w := quotaWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.ConcurrencyLimit, tc.InitialConcurrency, tc.BatchLimit = 0, 100, 1
	}), Limits{Concurrency: 1})
	for id := MsgID(2); id <= 20; id += 2 {
		w.arrive(id, 0, rcpt("smtp", "d1"))
	}
	var waits []string
	w.s.Waiters(func(x Waiter) bool {
		waits = append(waits, fmt.Sprint(x.Tenant, " ", x.Dest.Transport, ":", x.Dest.Queue))
		return true
	})
	if len(w.order) != 1 || len(waits) != 1 || waits[0] != "a smtp:d1" {
		t.Fatalf("%d under way; these wait: %q", len(w.order), waits)
	}
	more := &Quota{}
	more.Shares[ProviderLimit] = Share{"p", Limits{Concurrency: 4}}
	w.step(Event{Kind: EventQuota, Tenant: "a", Transport: "smtp", Site: "d1", Quota: more})
	if len(w.order) != 4 {
		t.Errorf("%d under way", len(w.order))
	}
	w.step(Event{Kind: EventQuota, Tenant: "a", Transport: "smtp", Site: "d1"})
	if len(w.order) != 10 {
		t.Errorf("%d under way without a limit", len(w.order))
	}
}

// TestQuotaOfPool: a tenant's limit at a provider holds over all sources of a pool, also for the mail that goes from
// another one since the first was refused.
func TestQuotaOfPool(t *testing.T) {
	t.Parallel()
	w := quotaWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.BatchLimit, tc.ConcurrencyLimit, tc.InitialConcurrency = 1, 0, 100
	}), Limits{Concurrency: 2})
	w.pools["d1"] = poolOf(Member{Source: "m1", Weight: 1000}, Member{Source: "m2", Weight: 1})
	watched(w)
	var rcpts []Rcpt
	for range 40 {
		rcpts = append(rcpts, rcpt("smtp", "d1"))
	}
	w.arrive(2, 0, rcpts...)
	n := 0
	for len(w.order) > 0 {
		if len(w.order) > 2 {
			t.Fatalf("%d under way", len(w.order))
		}
		e := w.busy[w.order[0]]
		if e.Source == "m1" {
			w.done(w.order[0], refusedAtOnce, false)
			continue
		}
		n++
		w.done(w.order[0], sent, false)
	}
	if n != 40 || w.left() > 0 {
		t.Errorf("%d went from the other source", n)
	}
}

// TestQuotaUnder: a limit that a tenant gets while it has limits at places holds for the mail under these, too.
func TestQuotaUnder(t *testing.T) {
	t.Parallel()
	w := quotaWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.BatchLimit, tc.ConcurrencyLimit, tc.InitialConcurrency = 1, 0, 100
	}), Limits{Concurrency: 5})
	for id := MsgID(2); id <= 60; id += 2 {
		w.arrive(id, 0, rcpt("smtp", []string{"d1", "free"}[id/2%2]))
	}
	if len(w.order) != 5+15 {
		t.Fatalf("%d under way", len(w.order))
	}
	w.step(Event{Kind: EventTenant, Tenant: "a", TenantTerms: TenantTerms{Limits: Limits{Concurrency: 3}}})
	for len(w.order) > 3 {
		w.done(w.order[0], sent, false)
	}
	for len(w.order) > 0 {
		if w.done(w.order[0], sent, false); len(w.order) > 3 {
			t.Fatalf("%d under way", len(w.order))
		}
	}
	if w.left() > 0 {
		t.Errorf("%d messages are left", w.left())
	}
}
