package qmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/rate"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/table"
	"posthaste/internal/testwait"
	"posthaste/qmgr/sched"
)

// A suspension of a campaign keeps its mail, and no other of the tenant; one of the tenant keeps all of it. Mail that
// waits is let go when it is over.
func TestSuspendTenant(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.keep()
	of := func(tenant, campaign, to string) (id mail.QueueID) {
		m := deferredMail(queue.Hold, time.Minute, "s@from.test", "", to)
		m.Attempts = 0
		m.Envelope.Tenant, m.Envelope.Campaign = tenant, campaign
		return st.fill(m)[0]
	}
	spring, reset, other := of("shop", "spring", "a@to.test"), of("shop", "", "b@to.test"), of("news", "spring", "c@to.test")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.override(proto.OverridePut, "campaign=shop/spring", "the prices are wrong", time.Time{})
	release := func(id mail.QueueID) { st.command(proto.Command{Verb: proto.VerbRelease, ID: id}) }
	release(spring)
	op := st.waitOp(spring, "its deferral", func(op *proto.Op) bool { return len(op.Outcomes) > 0 })
	if op.Attempts != 0 || op.Outcomes[0].Reason != "mail of campaign shop/spring is suspended: the prices are wrong" {
		t.Errorf("recorded: %+v", op)
	}
	st.waitExplain(spring, "campaign shop/spring is suspended by ann")
	expectText(t, st.explain(spring), ": the prices are wrong", `until "posthaste resume --campaign=shop/spring"`)
	for _, id := range []mail.QueueID{reset, other} {
		release(id)
		o := smtp.next()
		if o.Envelope.ID != id {
			t.Fatalf("ordered %s, not %s", o.Envelope.ID, id)
		}
		o.answer("ok")
	}
	st.override(proto.OverridePut, "tenant=shop", "", time.Time{})
	st.override(proto.OverrideRemove, "campaign=shop/spring", "", time.Time{})
	st.waitExplain(spring, "tenant shop is suspended by ann")
	st.override(proto.OverrideRemove, "tenant=shop", "", time.Time{})
	if o := smtp.next(); o.Envelope.ID != spring {
		t.Errorf("ordered %s, not %s", o.Envelope.ID, spring)
	} else {
		o.answer("ok")
	}
}

// TestTenantLimit: a tenant's limit holds over all destinations, nobody else waits for it, it is explained and
// measured; and what a table says anew holds for mail that waits.
func TestTenantLimit(t *testing.T) {
	t.Parallel()
	st := newStage(t, "tenant_limit_maps = inline:{ {news = concurrency=1} {* = concurrency=3} }\ntenant_weight_maps = inline:{ {shop = 5} }\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arriveOf("news", "s@from.test", "x@a.test")
	first := smtp.next()
	second := st.arriveOf("news", "s@from.test", "x@b.test")
	st.waitExplain(second, `via smtp to b.test: waits since .* for one of the 1 deliveries under the limit of tenant news to end`)
	st.arriveOf("shop", "s@from.test", "x@b.test")
	st.arrive("s@from.test", "x@b.test")
	for range 2 {
		o := smtp.next()
		o.answer("ok")
	}
	smtp.noMore()
	expectText(t, st.explainDest("tenant=news"), "tenant news: 2 message(s) in memory, 2 of them in the active queue; 1 deliveries under way; weight 1",
		"limit of tenant news: 1 of 1 deliveries at once; 1 destination(s) wait")
	expectText(t, st.explainDest("tenant=nobody"), "tenant nobody: no mail in memory")
	expectText(t, st.explainDest("tenant=no body"), "is not the name of a tenant")
	got := st.measured()
	for name, want := range map[string]float64{"posthaste_limit_busy tenant news": 1, "posthaste_limit_waiting tenant news": 1, "posthaste_tenant_messages news": 2, "posthaste_tenant_deliveries_busy news": 1} {
		if n, ok := got[name]; !ok || n != want {
			t.Errorf("%s is %v, want %v", name, n, want)
		}
	}
	first.answer("ok")
	if o := smtp.next(); o.Envelope.ID != second {
		t.Errorf("ordered %s", o.Envelope.ID)
	} else {
		o.answer("ok")
	}
	st.quiet()
}

// TestTenantTables: what tables say of tenants, and what becomes of what they should not say.
func TestTenantTables(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		main, name string
		want       sched.TenantTerms
		warning    string
	}{
		{"tenant_limit_maps = inline:{ {a = concurrency=2,messages=10/min} {* = recipients=5/d} }", "a",
			sched.TenantTerms{Limits: sched.Limits{Concurrency: 2, Messages: rate.Rate{N: 10, Per: time.Minute}}}, ""},
		{"tenant_limit_maps = inline:{ {a = concurrency=2} {* = recipients=5/d} }", "b", sched.TenantTerms{Limits: sched.Limits{Recipients: rate.Rate{N: 5, Per: rate.Day}}}, ""},
		{"tenant_limit_maps = inline:{ {a = none} {* = recipients=5/d} }", "a", sched.TenantTerms{}, ""},
		{"tenant_limit_maps = inline:{ {a = messages=10/min,speed=2} }", "a", sched.TenantTerms{Limits: sched.Limits{Concurrency: 1, Messages: rate.Rate{N: 10, Per: time.Minute}}}, "one delivery at a time"},
		{"tenant_limit_maps = inline:{ {a = connections=10/min} }", "a", sched.TenantTerms{Limits: sched.Limits{Concurrency: 1}}, "destination_limit_maps"},
		{"tenant_weight_maps = inline:{ {a = 7} }", "a", sched.TenantTerms{Weight: 7}, ""},
		{"tenant_weight_maps = inline:{ {a = 7} }", "b", sched.TenantTerms{}, ""},
		{"tenant_weight_maps = inline:{ {a = 1001} }", "a", sched.TenantTerms{}, "from 1 to 1000"},
		{"tenant_queue_lifetime_maps = inline:{ {a = 2d} }", "a", sched.TenantTerms{Lifetime: 48 * time.Hour}, ""},
		{"tenant_queue_lifetime_maps = inline:{ {a = 2d,bounce=6h} }", "a", sched.TenantTerms{Lifetime: 48 * time.Hour, BounceLifetime: 6 * time.Hour}, ""},
		{"tenant_queue_lifetime_maps = inline:{ {a = soon} }", "a", sched.TenantTerms{}, "is not a time"},
	} {
		cfg, err := config.LoadString(x.main + "\n")
		if err != nil {
			t.Fatal(err)
		}
		var warned []string
		tenants := openTenancies(cfg, table.Options{}, func(f string, args ...any) { warned = append(warned, fmt.Sprintf(f, args...)) })
		for range 2 { // a warning comes once
			got, err := tenants.look(t.Context(), x.name)
			if err != nil || got != x.want {
				t.Errorf("%s: %s: %+v, %v", x.main, x.name, got, err)
			}
		}
		if x.warning == "" && len(warned) > 0 || x.warning != "" && (len(warned) != 1 || !strings.Contains(warned[0], x.warning)) {
			t.Errorf("%s: warned of %q", x.main, warned)
		}
	}
}

// TestTenantTableAway: mail of a tenant of whom nothing is known waits while the table cannot be asked, and other mail does
// not. What was known goes on to hold.
func TestTenantTableAway(t *testing.T) {
	t.Parallel()
	st := newStage(t, "tenant_limit_maps = fail:away\n")
	smtp, retry := st.agent("smtp", proto.Inventory{}), st.agent("retry", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arriveOf("news", "s@from.test", "x@a.test")
	st.arrive("s@from.test", "x@a.test")
	o := smtp.next()
	if o.Envelope.Tenant != "" {
		t.Errorf("mail of %s is tried", o.Envelope.Tenant)
	}
	o.answer("ok")
	if o = retry.next(); o.Envelope.Tenant != "news" || o.Nexthop != "4.3.0 tenant lookup failure" {
		t.Errorf("deferred: %s for %s", o.Nexthop, o.Envelope.Tenant)
	}
	o.answer("defer")
	tenants := st.srv.opt.Settings.tenants
	old := sched.TenantTerms{Weight: 3}
	tenants.known["old"] = tenancy{old, time.Now().Add(-time.Hour)}
	if got, err := tenants.ask(t.Context(), "old"); got != old || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestTenantsOther: of many tenants those with most mail are measured by name, and the others together.
func TestTenantsOther(t *testing.T) {
	t.Parallel()
	var m measurement
	for i := range 10 * topDests {
		m.tenants = append(m.tenants, sched.Tenant{Name: fmt.Sprint("t", i), Messages: i, Busy: 1})
		if len(m.tenants) >= 2*topDests {
			m.cutTenants()
		}
	}
	m.cutTenants()
	if len(m.tenants) != topDests || m.tenants[0].Name != "t199" || m.others.Busy != 9*topDests || m.others.Messages != 180*179/2 {
		t.Errorf("%d tenants, first %s, others %+v", len(m.tenants), m.tenants[0].Name, m.others)
	}
}

// Mail is counted by its tenant for who asks for all sides; mail without one is in no such row.
func TestTenantCensus(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	of := func(tenant string, q queue.Name) faketest.Mail {
		m := deferredMail(q, time.Minute, "s@from.test", "450 wait", "a@to.test")
		m.Envelope.Tenant = tenant
		return m
	}
	st.fill(of("acme", queue.Deferred), of("acme", queue.Deferred), of("acme", queue.Hold), of("shop", queue.Deferred), of("", queue.Deferred))
	st.run()
	var got []string
	for _, row := range st.split() {
		if strings.Contains(row, " tenant ") || strings.Contains(row, " source ") {
			got = append(got, row)
		}
	}
	if want := []string{"deferred tenant acme: 2", "deferred tenant shop: 1", "hold tenant acme: 1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTenantTablesHang: when tables have not answered once, one look-up at a time waits for them, so that the others keep
// no places of loads. What is known holds meanwhile; when they answer again, all ask.
func TestTenantTablesHang(t *testing.T) {
	t.Parallel()
	tenants := &tenancies{known: map[string]tenancy{"old": {terms: sched.TenantTerms{Weight: 3}}}, said: map[string]bool{}}
	hangs := errors.New("no answer")
	first, ok := tenants.mayAsk()
	second, also := tenants.mayAsk()
	if first || second || !ok || !also {
		t.Fatal("tables that answer are asked by one at a time")
	}
	tenants.asked(first, slowAnswer, hangs)
	trial, ok := tenants.mayAsk()
	if _, more := tenants.mayAsk(); !trial || !ok || more {
		t.Errorf("tables that hang: one tries them: %v, %v; more do: %v", trial, ok, more)
	}
	// The second one is told late what the first one knows.
	tenants.asked(second, slowAnswer, hangs)
	if _, more := tenants.mayAsk(); more {
		t.Error("tables that hang are tried by two")
	}
	if got, err := tenants.ask(t.Context(), "old"); got.Weight != 3 || err != nil {
		t.Errorf("what is known is %+v, %v", got, err)
	}
	if _, err := tenants.ask(t.Context(), "new"); !errors.Is(err, errMute) {
		t.Errorf("of whom nothing is known: %v", err)
	}
	tenants.asked(trial, time.Hour, hangs)
	if trial, ok = tenants.mayAsk(); !trial || !ok {
		t.Error("nobody tries them again")
	}
	tenants.asked(trial, time.Hour, nil)
	for range 2 {
		if trial, ok = tenants.mayAsk(); trial || !ok {
			t.Error("they answer, and are not asked by all")
		}
	}
	// An error that comes at once keeps nobody waiting.
	tenants.asked(false, 0, hangs)
	if trial, ok = tenants.mayAsk(); trial || !ok {
		t.Error("after an error they are not asked by all")
	}
}

// TestTenantTablesBegin: when tables begin to hang, a part of the loads waits for them, and the others know within a second
// that they cannot be asked.
func TestTenantTablesBegin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := &hangingTable{begun: make(chan struct{}, 1000)}
		maps := table.OpenMaps("tenant_limit_maps", []string{"hang:x"}, table.Options{Types: map[string]table.Opener{"hang": func(string, table.Options) (table.Table, error) { return hangs, nil }}})
		defer maps.Close()
		tenants := &tenancies{limits: maps, asking: make(chan struct{}, maxAsking), known: map[string]tenancy{}, said: map[string]bool{}}
		ctx, cancel := context.WithTimeout(t.Context(), tenantPatience)
		defer cancel()
		begun := time.Now()
		var quick, waited int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 128 {
			wg.Go(func() {
				_, err := tenants.ask(ctx, fmt.Sprint("t", i))
				mu.Lock()
				defer mu.Unlock()
				switch took := time.Since(begun); {
				case err == nil:
					t.Error("tables that hang have answered")
				case took == slowAnswer && errors.Is(err, errMute):
					quick++
				case took == tenantPatience:
					waited++
				default:
					t.Errorf("%v, %v", took, err)
				}
			})
		}
		wg.Wait()
		if quick != 128-maxAsking || waited != maxAsking || len(hangs.begun) != maxAsking {
			t.Errorf("%d have waited, %d have not, %d have asked", waited, quick, len(hangs.begun))
		}
		// All places are free again, and one at a time tries.
		if trial, ok := tenants.mayAsk(); !trial || !ok || len(tenants.asking) > 0 {
			t.Errorf("%v, %v, %d places are taken", trial, ok, len(tenants.asking))
		}
	})
}

// A hangingTable does not answer.
type hangingTable struct{ begun chan struct{} }

func (h *hangingTable) Lookup(ctx context.Context, _ string) (string, bool, error) {
	h.begun <- struct{}{}
	<-ctx.Done()
	return "", false, ctx.Err()
}
func (*hangingTable) Pattern() bool { return false }
func (*hangingTable) Close() error  { return nil }

// Messages are counted by their campaign while they are worked on, when they have come back from that, and when they were read for
// being counted; what has left is counted no more, and no name stays behind.
func TestCampaigns(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	of := func(campaign, to string) mail.QueueID {
		m := deferredMail(queue.Hold, time.Minute, "s@from.test", "", to)
		m.Envelope.Tenant, m.Envelope.Campaign = "shop", campaign
		return st.fill(m)[0]
	}
	ids := []mail.QueueID{of("Spring", "a@to.test"), of("Spring", "b@to.test"), of("autumn", "c@to.test"), of("", "d@to.test")}
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	want := func(rows ...string) {
		t.Helper()
		testwait.For(t, func() string {
			got := slices.DeleteFunc(st.split(), func(r string) bool { return !strings.Contains(r, " campaign ") })
			if !slices.Equal(got, rows) {
				return fmt.Sprintf("%q, want %q", got, rows)
			}
			return ""
		})
	}
	var orders []order
	for _, id := range ids {
		st.command(proto.Command{Verb: proto.VerbRelease, ID: id})
		orders = append(orders, smtp.next())
	}
	want("active campaign shop/Spring: 2", "active campaign shop/autumn: 1")
	orders[0].answer("defer")
	orders[2].answer("defer")
	want("active campaign shop/Spring: 1", "deferred campaign shop/Spring: 1", "deferred campaign shop/autumn: 1")
	orders[1].answer("ok")
	want("deferred campaign shop/Spring: 1", "deferred campaign shop/autumn: 1")
	st.command(proto.Command{Verb: proto.VerbDelete, ID: ids[0]})
	want("deferred campaign shop/autumn: 1")
	known := make(chan nameID, 1)
	st.srv.post(func() { known <- st.srv.book.names.ids["shop/Spring"] }, sched.Event{})
	if id := <-known; id != 0 {
		t.Errorf("the name of a campaign without mail is number %d", id)
	}
}
