package qmgr

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/internal/table"
	"posthaste/internal/testwait"
	"posthaste/qmgr/sched"
)

// openPlaces is tenant_destination_limit_maps with these entries.
func openPlaces(t *testing.T, entries string, warn func(string, ...any)) *tenancies {
	t.Helper()
	cfg, err := config.LoadString("tenant_destination_limit_maps = inline:{ " + entries + " }\n")
	if err != nil {
		t.Fatal(err)
	}
	return openTenancies(cfg, table.Options{}, warn)
}

// TestTenantAtProvider: a tenant's limit at a provider holds over all domains of that, its mail for others goes, and so does
// the mail of other tenants there; it is explained and measured, and what the table says anew holds for mail that waits.
func TestTenantAtProvider(t *testing.T) {
	t.Parallel()
	st := newStage(t, "destination_provider_maps = inline:{}\ntenant_destination_limit_maps = inline:{ { news at provider:big = concurrency=1 } }\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) { r.Provider = "big" }, "a.test", "b.test")
	st.run()
	st.waitAttached(1)
	st.arriveOf("news", "s@from.test", "x@a.test")
	first := smtp.next()
	second, third := st.arriveOf("news", "s@from.test", "x@b.test"), st.arriveOf("news", "s@from.test", "y@a.test")
	st.waitExplain(second, `via smtp to b.test: waits since .* for one of the 1 deliveries under the limit of provider big of tenant news to end`)
	st.arriveOf("news", "s@from.test", "x@c.test")
	st.arriveOf("shop", "s@from.test", "x@b.test")
	for range 2 {
		o := smtp.next()
		o.answer("ok")
	}
	smtp.noMore()
	const line = "limit of provider big of tenant news: 1 of 1 deliveries at once; 2 destination(s) wait"
	// What was delivered leaves memory when that is recorded.
	testwait.Until(t, "three messages of news are left", func() bool {
		return strings.Contains(st.explainDest("tenant=news"), "tenant news: 3 message(s) in memory")
	})
	expectText(t, st.explainDest("tenant=news"), line)
	expectText(t, st.explainDest("b.test"), line)
	got := st.measured()
	for name, want := range map[string]float64{"posthaste_limit_busy provider big of tenant news": 1, "posthaste_limit_waiting provider big of tenant news": 2} {
		if n, ok := got[name]; !ok || n != want {
			t.Errorf("%s is %v, want %v", name, n, want)
		}
	}
	more := openPlaces(t, "{ * at * = concurrency=3 }", t.Errorf)
	st.srv.post(func() {
		tenants := st.srv.opt.Settings.tenants
		tenants.mu.Lock()
		tenants.places, tenants.quotas = more.places, nil
		tenants.mu.Unlock()
		st.srv.tenantsAgain = st.srv.now.Add(-time.Second)
	}, sched.Event{})
	for range 2 {
		o := smtp.next()
		if id := o.Envelope.ID; id != second && id != third {
			t.Errorf("ordered %s", id)
		}
		o.answer("ok")
	}
	first.answer("ok")
	st.quiet()
}

// TestTenantPlaces: which entry holds at which place.
func TestTenantPlaces(t *testing.T) {
	t.Parallel()
	at := func(own, site, provider int) string { return fmt.Sprint(own, site, provider) }
	for _, x := range []struct{ entries, tenant, hop, site, provider, want, warning string }{
		{"{ a at provider:p = concurrency=2 } { a at d = concurrency=3 } { a at site:s = concurrency=4 }", "a", "d", "s", "p", at(3, 4, 2), ""},
		{"{ a at provider:p = concurrency=2 }", "b", "d", "s", "p", "", ""},
		{"{ a at provider:p = concurrency=2 } { * at provider:p = concurrency=5 }", "b", "d", "s", "p", at(0, 0, 5), ""},
		{"{ a at provider:p = none } { * at provider:p = concurrency=5 }", "a", "d", "s", "p", "", ""},
		{"{ a at provider:p = concurrency=2 } { a at * = concurrency=7 }", "a", "d", "s", "p", at(0, 0, 2), ""},
		{"{ a at * = concurrency=7 }", "a", "d", "s", "p", at(0, 0, 7), ""},
		{"{ a at * = concurrency=7 }", "a", "d", "s", "", at(0, 7, 0), ""},
		{"{ * at * = concurrency=8 }", "a", "d", "", "", at(8, 0, 0), ""},
		{"{ a at d = connections=5/s }", "a", "d", "", "", at(1, 0, 0), "a at d: connections and messages_per_connection"},
		{"{ a at d = many }", "a", "d", "", "", at(1, 0, 0), "one delivery at a time"},
	} {
		var warned []string
		tenants := openPlaces(t, x.entries, func(f string, args ...any) { warned = append(warned, fmt.Sprintf(f, args...)) })
		is := spot{x.tenant, x.hop, x.site, x.provider}
		for range 2 { // a warning comes once
			q, err := tenants.lookQuota(t.Context(), is)
			got := ""
			if q != nil {
				got = at(q.Shares[sched.OwnLimit].Limits.Concurrency, q.Shares[sched.SiteLimit].Limits.Concurrency, q.Shares[sched.ProviderLimit].Limits.Concurrency)
			}
			if err != nil || got != x.want {
				t.Errorf("%s: %+v: %q, %v", x.entries, is, got, err)
			}
			if q != nil && spotAgain(x.tenant, q) != is {
				t.Errorf("%+v is asked for again as %+v", is, spotAgain(x.tenant, q))
			}
		}
		if x.warning == "" && len(warned) > 0 || x.warning != "" && (len(warned) != 1 || !strings.Contains(warned[0], x.warning)) {
			t.Errorf("%s: warned of %q", x.entries, warned)
		}
	}
}

// TestTenantPlacesAway: mail of a tenant waits while the table cannot be asked, and other mail does not; what was known
// goes on to hold, and the same words are the same quota.
func TestTenantPlacesAway(t *testing.T) {
	t.Parallel()
	st := newStage(t, "tenant_destination_limit_maps = fail:away\n")
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
	tenants := openPlaces(t, "{ a at d = messages=10/h }", t.Errorf)
	is := spot{"a", "d", "", ""}
	old, err := tenants.askQuota(t.Context(), is, new(time.Duration))
	if err != nil || old == nil || old.Shares[sched.OwnLimit].Limits.Messages != (rate.Rate{N: 10, Per: time.Hour}) {
		t.Fatalf("%+v, %v", old, err)
	}
	for _, maps := range []*table.Maps{tenants.places, st.srv.opt.Settings.tenants.places} {
		tenants.places = maps
		tenants.quotas[is] = quota{old, time.Now().Add(-time.Hour)}
		if got, err := tenants.askQuota(t.Context(), is, new(time.Duration)); got != old || err != nil {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// TestTenantPlacesHang: a load of a message to many domains does not wait for a table that hangs for each of them.
func TestTenantPlacesHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := &hangingTable{begun: make(chan struct{}, 1000)}
		maps := table.OpenMaps("tenant_destination_limit_maps", []string{"hang:x"}, table.Options{Types: map[string]table.Opener{"hang": func(string, table.Options) (table.Table, error) { return hangs, nil }}})
		defer maps.Close()
		old := &sched.Quota{}
		tenants := &tenancies{places: maps, known: map[string]tenancy{}, said: map[string]bool{}, quotas: map[spot]quota{{tenant: "a", hop: "d50"}: {is: old}}}
		begun, inVain := time.Now(), time.Duration(0)
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), tenantPatience)
			q, err := tenants.askQuota(ctx, spot{tenant: "a", hop: fmt.Sprint("d", i)}, &inVain)
			cancel()
			if (err == nil) != (i == 50) || i == 50 && q != old {
				t.Errorf("d%d: %v, %v", i, q, err)
			}
		}
		if took := time.Since(begun); took > tenantPatience+slowAnswer {
			t.Errorf("the load waits for %v", took)
		}
	})
}
