package qmgr

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/rate"
	"posthaste/internal/testwait"
	"posthaste/qmgr/sched"
)

// A forecast is told of limits in common, of sources, and of what the tables say of tenants, with what was counted today; and of what
// is not known of them yet.
func TestBacklogLimits(t *testing.T) {
	t.Parallel()
	st := newStage(t, limitsOn+poolsOn+"tenant_limit_maps = inline:{ {acme = concurrency=3, recipients=100/d} }\ntenant_weight_maps = inline:{ {acme = 4} }\ntenant_destination_limit_maps = inline:{ {acme at provider:big = recipients=90/d} }\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) {
		r.Provider, r.ProviderLimits, r.Hop = "big", "concurrency=1, messages=50/d, connections=1000/min", "a.test"
		r.Pool, r.Members = "news", members(proto.PoolMember{Source: "m1", Weight: 1, Warmup: 7, Spec: "address=192.0.2.1"})
	}, "a.test")
	of := func(tenant, to string, held queue.Name) mail.QueueID {
		m := deferredMail(held, time.Minute, "s@from.test", "", to)
		m.Envelope.Tenant = tenant
		return st.fill(m)[0]
	}
	first, second := of("acme", "x@a.test", queue.Hold), of("acme", "y@a.test", queue.Hold)
	of("later", "z@b.test", queue.Deferred)
	st.run()
	st.waitAttached(1)
	for _, id := range []mail.QueueID{first, second} {
		st.command(proto.Command{Verb: proto.VerbRelease, ID: id})
	}
	smtp.next() // the other one waits for its end
	st.waitExplain(second, "for one of the 1 deliveries under the limit of provider big to end")
	var reply proto.BacklogReply
	if err := st.tool.Call(t.Context(), &proto.Backlog{}, &reply); err != nil {
		t.Fatal(err)
	}
	want := []proto.BacklogLimit{
		{Level: int(sched.ProviderLimit), Name: "big", Concurrency: 1, N: [4]int64{1000, 50}, Per: [4]time.Duration{time.Minute, rate.Day}, Today: [4]int64{0, 1}},
		{Level: int(sched.ProviderLimit), Source: true, Name: "big", N: [4]int64{3: 7}, Per: [4]time.Duration{3: rate.Day}, Today: [4]int64{3: 1}},
	}
	if len(reply.Dests) != 1 {
		t.Fatalf("%+v", reply)
	}
	if d := reply.Dests[0]; d.Source != "m1" || d.Untold || !d.Shared || !reflect.DeepEqual(d.Limits, want) {
		t.Errorf("%+v", d)
	}
	quota := proto.BacklogQuota{Transport: "smtp", Queue: reply.Dests[0].Queue, Tenant: "acme", Limits: []proto.BacklogLimit{
		{Level: int(sched.ProviderLimit), Name: "big", N: [4]int64{2: 90}, Per: [4]time.Duration{2: rate.Day}, Today: [4]int64{2: 1}}}}
	if !reflect.DeepEqual(reply.Quotas, []proto.BacklogQuota{quota}) {
		t.Errorf("%+v, want %+v", reply.Quotas, quota)
	}
	if !slices.Equal(reply.Members, []proto.BacklogMember{{Transport: "smtp", Queue: reply.Dests[0].Queue, Weight: 1}}) {
		t.Errorf("the pool: %+v", reply.Members)
	}
	tenants := map[string]proto.BacklogTenant{
		"acme": {Name: "acme", Weight: 4, Limit: proto.BacklogLimit{Level: int(sched.TenantLimit), Name: "acme", Concurrency: 3,
			N: [4]int64{2: 100}, Per: [4]time.Duration{2: rate.Day}, Today: [4]int64{2: 1}}},
		"later": {Name: "later", Untold: true},
	}
	if len(reply.Tenants) != len(tenants) {
		t.Errorf("%+v", reply.Tenants)
	}
	for _, x := range reply.Tenants {
		if x != tenants[x.Name] {
			t.Errorf("%+v, want %+v", x, tenants[x.Name])
		}
	}
}

// Mail that waits for a limit outside the active queue comes back when that has room, and not at its own time: a forecast is told of it as
// of mail that has not been tried.
func TestBacklogBeyond(t *testing.T) {
	t.Parallel()
	st := newStage(t, limitsOn+"shared_limit_active_limit = 1\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) { r.Provider, r.ProviderLimits = "big", "concurrency=1" }, "a.test", "b.test", "c.test")
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "x@a.test")
	smtp.next() // the others wait for its end
	st.arrive("s@from.test", "x@b.test")
	st.arrive("s@from.test", "x@c.test")
	testwait.For(t, func() string {
		if n := st.measured()["posthaste_limit_parked provider big"]; n != 1 {
			return fmt.Sprintf("%v messages wait outside the active queue", n)
		}
		return ""
	})
	var reply proto.BacklogReply
	if err := st.tool.Call(t.Context(), &proto.Backlog{}, &reply); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, row := range reply.Rows {
		if n += row.Count; row.Deferred || row.Waits || row.Queue == "" {
			t.Errorf("%+v", row)
		}
	}
	if n != 3 || reply.Suspended != 0 {
		t.Errorf("%d messages of three, and %d that are suspended", n, reply.Suspended)
	}
}
