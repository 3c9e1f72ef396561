package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestTenantHistories plays random histories in which mail is that of several tenants, a part of them with
// bounded windows, limits and sources.
func TestTenantHistories(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 40
	}
	contested := 0
	for seed := range n {
		playIn(t, seed, 400, func(r *rand.Rand, w *world) {
			tenants, weights := 2+r.IntN(5), 1+r.IntN(3)
			w.tenant = func(id MsgID) string { return []string{"", "a", "b", "c", "d", "e"}[int(id)*int(id)%7%tenants] }
			w.s.cfg.TenantWeight = func(name string) int { return 1 + int(name[0])%weights }
			if r.IntN(3) == 0 {
				w.s.cfg.DeferredLimit = 1 + r.IntN(5)
				w.step(Event{Kind: EventAttached})
			}
			w.onEvent = func(Event) {
				for _, t := range w.s.transports {
					if t.others != nil {
						contested++
					}
				}
			}
		})
	}
	if contested < 100*int(n) {
		t.Errorf("%d steps with several tenants in %d histories: this looks at too little", contested, n)
	}
}

// tenantsAt has several tenants send to one or many destinations, and holds the bound of docs/scheduler.md:
// until a delivery for one that has mail begins, every other has at most two turns. Where agents are scarce, and
// there is mail of others for the same destinations, each of these may keep a turn there for as long.
func tenantsAt(t *rapid.T, cfg Config, dests int) { tenantsWithin(t, cfg, dests, make([]Limits, 6)) }

// tenantsWithin is tenantsAt where tenants have limits. For those the bound is another's.
func tenantsWithin(t *rapid.T, cfg Config, dests int, limits []Limits) {
	tenants := rapid.IntRange(2, 6).Draw(t, "tenants")
	weights := rapid.SliceOfN(rapid.IntRange(1, 3), tenants, tenants).Draw(t, "weights")
	index := func(name string) int { return int(name[0] - 'a') }
	cfg.TenantWeight = func(name string) int { return weights[index(name)] }
	batch := cfg.DefaultTransports.batch()
	w := newWorld(t, cfg)
	var who int
	w.tenant = func(MsgID) string { return string(rune('a' + who)) }
	w.whose = map[string]TenantTerms{}
	for i := range tenants {
		w.whose[string(rune('a'+i))] = TenantTerms{Limits: limits[i]}
	}
	waiting := make([]int, tenants) // recipients that no agent has
	patience := make([]int, tenants)
	bound := func(i int) (n int) {
		for k, weight := range weights {
			if k != i {
				n += 2 * (weight*batch + batch - 1)
			}
		}
		if dests > 1 {
			n *= 2*(tenants-1) + 1
		}
		return n
	}
	w.on = func(e Effect) {
		if e.Kind != EffectDeliver {
			return
		}
		who := index(w.mail[e.ID].tenant)
		waiting[who] -= len(e.Rcpts)
		for i := range patience {
			switch {
			case i == who || waiting[i] == 0 || limits[i] != Limits{}:
				patience[i] = 0
			default:
				if patience[i] += len(e.Rcpts); patience[i] > bound(i) {
					t.Fatalf("%d recipients of others began while tenant %d waited, at most %d may", patience[i], i, bound(i))
				}
			}
		}
	}
	for id := range MsgID(rapid.IntRange(1, 80).Draw(t, "messages")) {
		who = rapid.IntRange(0, tenants-1).Draw(t, "whose")
		var list []Rcpt
		for k := range rapid.IntRange(1, 12).Draw(t, "rcpts") {
			list = append(list, rcpt("smtp", fmt.Sprint("d", (int(id)*3+k)%dests)))
		}
		slices.SortFunc(list, func(a, b Rcpt) int { return int(a.Queue[1]) - int(b.Queue[1]) })
		waiting[who] += len(list)
		w.arrive(id+1, 0, list...)
		for range rapid.IntRange(0, 2).Draw(t, "ends") {
			if len(w.order) > 0 {
				w.done(w.order[0], sent, false)
			}
		}
	}
	for len(w.order) > 0 {
		w.done(w.order[0], sent, false)
	}
	if w.left() > 0 {
		t.Fatalf("%d messages are left", w.left())
	}
}

// TestTenantBound: at a destination, and for the agents of a transport.
func TestTenantBound(t *testing.T) {
	t.Parallel()
	t.Run("destination", rapid.MakeCheck(func(t *rapid.T) {
		tenantsAt(t, one(func(c *Config, tc *TransportConfig) {
			tc.BatchLimit = rapid.IntRange(1, 4).Draw(t, "batch")
			tc.ConcurrencyLimit = rapid.IntRange(1, 3).Draw(t, "window")
			tc.InitialConcurrency = tc.ConcurrencyLimit
			tc.Mode = Mode(rapid.IntRange(0, 2).Draw(t, "mode"))
		}), 1)
	}))
	t.Run("transport", rapid.MakeCheck(func(t *rapid.T) {
		tenantsAt(t, one(func(c *Config, tc *TransportConfig) {
			tc.BatchLimit = rapid.IntRange(1, 4).Draw(t, "batch")
			tc.ProcessLimit = rapid.IntRange(1, 3).Draw(t, "agents")
			tc.ConcurrencyLimit, tc.InitialConcurrency, tc.AgentsPerThread = 0, 1000, 0
			tc.Mode = Mode(rapid.IntRange(0, 2).Draw(t, "mode"))
		}), 5)
	}))
}

// TestTenantShares: of tenants that always have mail each gets its weight's part of the agents, to within a turn.
func TestTenantShares(t *testing.T) {
	t.Parallel()
	weights := map[string]int{"a": 1, "b": 2, "c": 5}
	cfg := one(func(c *Config, tc *TransportConfig) {
		c.TenantWeight = func(name string) int { return weights[name] }
		tc.BatchLimit, tc.ProcessLimit, tc.ConcurrencyLimit, tc.InitialConcurrency = 5, 4, 0, 100
	})
	w := newWorld(t, cfg)
	w.check = false
	began := map[string]int{}
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver {
			began[w.mail[e.ID].tenant] += len(e.Rcpts)
		}
	}
	for id := range MsgID(600) {
		w.tenant = func(MsgID) string { return []string{"a", "b", "c"}[id%3] }
		var list []Rcpt
		for range 1 + id%11 {
			list = append(list, rcpt("smtp", fmt.Sprint("d", id)))
		}
		w.arrive(id+1, 0, list...)
	}
	clear(began)
	for range 200 {
		w.done(w.order[0], sent, false)
		for name, weight := range weights {
			if x, y := began[name]*5, began["c"]*weight; x-y > 5*(weight*5+5)+weight*30 || y-x > 5*(weight*5+5)+weight*30 {
				t.Fatalf("recipients begun: %v, for weights %v", began, weights)
			}
		}
	}
	if err := w.s.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestTenantAdmission: however much mail of one tenant there is, new and deferred, and although none of it ever leaves,
// a message of another enters the active queue in the Step in which it comes, or its time comes.
func TestTenantAdmission(t *testing.T) {
	t.Parallel()
	const limit = 90
	cfg := one(func(c *Config, tc *TransportConfig) { c.ActiveLimit, tc.ProcessLimit = limit, 1 })
	w := newWorld(t, cfg)
	w.check = false
	tenant := "big"
	w.tenant = func(MsgID) string { return tenant }
	id := MsgID(0)
	for range 1000 {
		id++
		w.arrive(id, 0, rcpt("smtp", fmt.Sprint("d", id)))
	}
	for range 1000 {
		id++
		w.step(Event{Kind: EventQueued, ID: id, Arrival: Arrival{Queue: QueueDeferred, Created: epoch.Add(-1), Next: epoch, Rcpts: 1, Tenant: tenant}})
	}
	active := func(name string) int {
		if x := w.s.tenantIndex[name]; x != nil {
			return x.active
		}
		return 0
	}
	if n := active("big"); n != limit*freeShare/(freeShare+1) {
		t.Fatalf("%d of its messages are active", n)
	}
	for i := range 8 {
		tenant = fmt.Sprint("small", i)
		id++
		if i%2 == 0 {
			w.arrive(id, 0, rcpt("smtp", "small"))
		} else {
			l := &letter{id: id, rcpts: []Rcpt{rcpt("smtp", "small")}, final: []bool{false}, pending: 1, inflight: map[int]bool{}, queue: QueueDeferred, created: w.now, tenant: tenant}
			w.mail[id] = l
			w.step(Event{Kind: EventQueued, ID: id, Arrival: Arrival{Queue: QueueDeferred, Created: w.now, Next: w.now.Add(1e9), Rcpts: 1, Tenant: tenant}})
			w.tick(1e9 + 1e6)
		}
		if active(tenant) != 1 {
			t.Errorf("the message of %s is not in the active queue, where there are %d", tenant, w.s.stats.Active)
		}
	}
	// It gets no place back before the others have left it enough.
	w.step(Event{Kind: EventRemove, Scope: ScopeMessage, ID: 2})
	if n := active("big"); n != limit*freeShare/(freeShare+1)-1 {
		t.Errorf("%d of its messages are active, of %d", n, w.s.stats.Active)
	}
	if err := w.s.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestTenantPassesOn: a tenant that comes anew has the turn at each of its forty destinations, and one agent. Who waits
// at the last of them does not wait for the others.
func TestTenantPassesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.BatchLimit, tc.ProcessLimit, tc.ConcurrencyLimit, tc.InitialConcurrency = 1, 1, 0, 100
	}))
	tenant := "small"
	w.tenant = func(MsgID) string { return tenant }
	w.arrive(1, 0, rcpt("smtp", "d00"))
	w.arrive(2, 0, rcpt("smtp", "d39"))
	tenant = "wide"
	var list []Rcpt
	for i := range 40 {
		list = append(list, rcpt("smtp", fmt.Sprintf("d%02d", i)))
	}
	w.arrive(3, 0, list...)
	for n := 0; w.mail[2].gone == 0; n++ {
		if n > 4 {
			t.Fatalf("%d deliveries have begun before that of message 2", n)
		}
		w.done(w.order[0], sent, false)
	}
}

// TestTenantCost: however many destinations two tenants share, and however short their turns are, one delivery has few
// offers passed on.
func TestTenantCost(t *testing.T) {
	t.Parallel()
	const dests = 300
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) {
		tc.BatchLimit, tc.ProcessLimit, tc.ConcurrencyLimit, tc.InitialConcurrency = 1, 1, 0, 100
	}))
	w.check = false
	for id := range MsgID(2 * dests) {
		w.tenant = func(MsgID) string { return []string{"a", "b"}[id/dests] }
		w.arrive(id+1, 0, rcpt("smtp", fmt.Sprint("d", id%dests)))
	}
	// Who had an offer since when.
	type held struct {
		c     *claim
		since uint64
	}
	offers := func() map[string]held {
		m := map[string]held{}
		for name, q := range w.s.transportIndex["smtp"].queues {
			m[name] = held{q.cur, q.cur.since}
		}
		return m
	}
	before, most := offers(), 0
	for range dests {
		w.done(w.order[0], sent, false)
		n, now := 0, offers()
		for name, h := range now {
			if before[name] != h {
				n++
			}
		}
		before, most = now, max(most, n)
	}
	// The destination that was served has another offer as well.
	if most < 2 || most > maxPasses+2 {
		t.Errorf("%d offers changed with one delivery", most)
	}
}

// TestTenantRipe: deferred mail of a tenant that has its part of the active queue, and whose own time has come, is not
// mail that a flush is waiting for, and a flush means it as well.
func TestTenantRipe(t *testing.T) {
	t.Parallel()
	w := newWorld(t, one(func(c *Config, tc *TransportConfig) { c.ActiveLimit, tc.ProcessLimit = 9, 1 }))
	w.tenant = func(MsgID) string { return "big" }
	for id := range MsgID(20) {
		w.arrive(id+1, 0, rcpt("smtp", "d"))
	}
	l := &letter{id: 100, rcpts: []Rcpt{rcpt("smtp", "d")}, final: []bool{false}, pending: 1, inflight: map[int]bool{}, queue: QueueDeferred, created: w.now, next: w.now.Add(1e9), tenant: "big"}
	w.mail[l.id] = l
	w.step(l.queuedAgain())
	w.tick(2e9)
	if w.s.ripe != 1 || w.s.Due() != 0 {
		t.Errorf("%d messages are due by their own time, and %d by a flush", w.s.ripe, w.s.Due())
	}
	w.step(Event{Kind: EventFlush, Scope: ScopeAll})
	if rec := w.s.recs.at(w.s.recs.find(l.id)); rec.where != whereDue || rec.flags&flagFlush == 0 {
		t.Errorf("a flush of all mail leaves message %d as it was, in place %d", l.id, rec.where)
	}
}
