package qmgr

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/rate"
	"posthaste/internal/shaping"
	"posthaste/internal/spooltool/faketest"
	"posthaste/qmgr/sched"
)

// poolsOn is a main.cf with which the queue manager asks what mail goes from.
const poolsOn = "egress_pool_maps = static:none\n"

// members is the text of a pool's.
func members(list ...proto.PoolMember) string { return proto.AppendMembers(nil, list) }

// Agents are told what to send from, and each source has a destination of its own: with a
// window, and dead by itself.
func TestSources(t *testing.T) {
	t.Parallel()
	st := newStage(t, poolsOn+"default_destination_recipient_limit = 1\ninitial_destination_concurrency = 1\n")
	smtp, retry := st.agent("smtp", proto.Inventory{}), st.agent("retry", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) {
		r.Pool, r.Hop = "news", "a.test"
		r.Members = members(proto.PoolMember{Source: "m1", Weight: 1, Spec: "address=192.0.2.1"}, proto.PoolMember{Source: "m2", Weight: 1, Spec: "address=192.0.2.2"})
	}, "a.test")
	st.run()
	st.waitAttached(1)
	specs := map[string]string{"m1": "address=192.0.2.1", "m2": "address=192.0.2.2"}
	seen := map[string]int{}
	for i := range 40 {
		id := st.arrive("s@from.test", "x@a.test")
		o := smtp.next()
		if rows := st.split(); i == 0 && !slices.Contains(rows, "active source "+o.Source+": 1") {
			t.Errorf("%q: nothing waits for %s", rows, o.Source)
		}
		if i == 0 {
			st.located[id] = false // nothing of it is on the disk, so it is selected without being read
			other := map[string]string{"m1": "m2", "m2": "m1"}[o.Source]
			for words, want := range map[string][]mail.QueueID{"source=" + o.Source: {id}, "source=" + other: nil, "source=" + other + " source=" + o.Source: {id},
				"source=" + o.Source + " waits-for=smtp:a.test": {id}, "waits-for=relay:": nil, "waits-for=smtp: queue=active": {id}} {
				if got := st.selectedBriefly(words); !slices.Equal(got, want) {
					t.Errorf("%s selects %q, not %q", words, got, want)
				}
			}
		}
		if specs[o.Source] == "" || specs[o.Source] != o.Spec {
			t.Fatalf("from %q, which is %q", o.Source, o.Spec)
		}
		seen[o.Source]++
		// m1 is refused. With a window of one it is dead at once.
		if o.Source == "m1" {
			o.answer("site")
		} else {
			o.answer("ok")
		}
	}
	if seen["m1"] != 1 || seen["m2"] != 39 {
		t.Errorf("%v: a source that is refused rests", seen)
	}
	var reply proto.SourcesReply
	if err := st.tool.Call(t.Context(), &proto.Sources{}, &reply); err != nil {
		t.Fatal(err)
	}
	if len(reply.Sources) != 2 || reply.Sources[0].Name != "m1" || reply.Sources[0].Spec != specs["m1"] || reply.Sources[1].Pools[0] != (proto.SourcePool{Name: "news", Weight: 1}) {
		t.Fatalf("%+v", reply)
	}
	if d := reply.Sources[0].Dests; len(d) != 1 || d[0].Dest != "x@a.test" || !strings.HasPrefix(d[0].Reason, "4.4.1 ") || len(reply.Sources[1].Dests) != 0 {
		t.Errorf("%+v", reply)
	}
	if got := st.explainDest("a.test"); !strings.Contains(got, "smtp to x@a.test from m1:") {
		t.Errorf("%s", got)
	}
	retry.noMore()
}

// A source that is suspended is not drawn; mail waits when all are.
func TestSuspendedSource(t *testing.T) {
	t.Parallel()
	st := newStage(t, poolsOn)
	st.keep()
	id := st.fill(faketest.Mail{Queue: queue.Deferred, Attempts: 1, Next: time.Now().Add(time.Hour), Content: "x\r\n",
		Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: "x@a.test"}}}})[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) {
		r.Pool, r.Hop = "news", "a.test"
		r.Members = members(proto.PoolMember{Source: "m1", Weight: 1, Spec: "address=192.0.2.1"}, proto.PoolMember{Source: "m2", Weight: 1, Spec: "address=192.0.2.2"})
	}, "a.test")
	st.run()
	st.waitAttached(1)
	st.override(proto.OverridePut, "source=m1", "listed", time.Time{})
	for range 10 {
		st.arrive("s@from.test", "x@a.test")
		o := smtp.next()
		if o.Source != "m2" {
			t.Fatalf("from %s, which is suspended", o.Source)
		}
		o.answer("ok")
	}
	st.override(proto.OverridePut, "source=m2", "", time.Time{})
	st.command(proto.Command{Verb: proto.VerbFlush})
	st.waitExplain(id, "source m[12] is suspended by ann since")
	smtp.noMore()
	var reply proto.SourcesReply
	if err := st.tool.Call(t.Context(), &proto.Sources{}, &reply); err != nil {
		t.Fatal(err)
	}
	if len(reply.Sources) != 2 || !strings.HasPrefix(reply.Sources[0].Suspended, "source m1 is suspended by ann since ") || !strings.HasSuffix(reply.Sources[0].Suspended, ": listed") {
		t.Errorf("%+v", reply)
	}
	st.override(proto.OverrideRemove, "source=m1", "", time.Time{})
	o := smtp.next()
	if o.Source != "m1" {
		t.Errorf("from %s", o.Source)
	}
	o.answer("ok")
	st.quiet()
}

// What one source was refused with goes from another at once; the message is removed, and what
// was said first is in no report.
func TestSecondSource(t *testing.T) {
	t.Parallel()
	st := newStage(t, poolsOn)
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) {
		r.Pool, r.Hop = "news", "a.test"
		r.Members = members(proto.PoolMember{Source: "m1", Weight: 1, Spec: "address=192.0.2.1"}, proto.PoolMember{Source: "m2", Weight: 1, Spec: "address=192.0.2.2"})
	}, "a.test")
	st.run()
	st.waitAttached(1)
	id := st.arrive("s@from.test", "x@a.test", "y@a.test")
	first := smtp.next()
	first.answer("ok", "refused")
	second := smtp.next()
	if second.Source == first.Source || len(second.Index) != 1 || second.Index[0] != first.Index[1] {
		t.Fatalf("from %s to %v, after %s to %v", second.Source, second.Index, first.Source, first.Index)
	}
	second.answer("ok")
	st.waitOp(id, "its removal", removed)
	st.quiet()
}

// What trivial-rewrite says of limits of a source, and of its warm-up, is what the scheduler
// gets: at the level of the provider, else of the site, else of the domain.
func TestMemberTerms(t *testing.T) {
	t.Parallel()
	var all terms
	ask := func(ans proto.ResolveReply, limited bool) *sched.Pool {
		return all.pool(&ans, all.of(&ans, true), true, limited)
	}
	warm := rate.Rate{N: 50, Per: rate.Day}
	m := proto.PoolMember{Source: "m1", Weight: 3, Spec: "address=192.0.2.1", Warmup: 50, Wait: true, OwnLimits: "concurrency=2, messages_per_connection=5"}
	ans := proto.ResolveReply{Transport: "smtp", Nexthop: "[a.test]:26", Hop: "a.test", Pool: "p", Members: members(m)}
	pool := ask(ans, true)
	mb := pool.Members[0]
	if len(pool.Members) != 1 || pool.Name != "p" || mb.Source != "m1" || mb.Weight != 3 || !mb.Wait {
		t.Fatalf("%+v", pool)
	}
	if own := mb.Terms.From[sched.OwnLimit]; own.Name != "a.test" || own.Limits != (sched.Limits{Concurrency: 2, Warmup: warm}) || mb.Terms.Reuse != 5 || mb.Terms.Source != "m1" {
		t.Errorf("%+v", mb.Terms)
	}
	if ask(ans, true) != pool {
		t.Error("the same answer is another pool")
	}
	// Its provider is known without limits that others share, and that of a site is the site where nobody knows it.
	big := ans
	big.Provider = "big"
	if got := providerOf(ask(big, true).Members[0].Terms); got != "big" {
		t.Errorf("the provider is %q", got)
	}
	if got := providerOf(all.pool(&big, nil, true, false).Members[0].Terms); got != "" {
		t.Errorf("the provider of what is diverted is %q", got)
	}
	ans.Site, ans.SiteLimits = "mx.test", "concurrency=7"
	if got := providerOf(ask(ans, true).Members[0].Terms); got != "mx.test" {
		t.Errorf("the provider is %q", got)
	}
	mb = ask(ans, true).Members[0]
	if mb.Terms.From[sched.SiteLimit] != (sched.Share{Name: "mx.test", Limits: sched.Limits{Warmup: warm}}) || mb.Terms.From[sched.OwnLimit].Limits.Warmup.N != 0 ||
		mb.Terms.Shares[sched.SiteLimit].Limits.Concurrency != 7 || !mb.Terms.Rollup {
		t.Errorf("%+v", mb.Terms)
	}
	ans.Provider = "big"
	mb = ask(ans, true).Members[0]
	if mb.Terms.From[sched.ProviderLimit] != (sched.Share{Name: "big", Limits: sched.Limits{Warmup: warm}}) || mb.Terms.From[sched.SiteLimit].Name != "" {
		t.Errorf("%+v", mb.Terms)
	}
	// Domains of a site that have no limits of their own have one queue for a source.
	m.OwnLimits = ""
	ans.Members = members(m)
	one := ask(ans, true).Members[0].Terms
	ans.Nexthop, ans.Hop = "b.test", "b.test"
	if two := ask(ans, true).Members[0].Terms; one != two {
		t.Errorf("%+v and %+v", one, two)
	}
	// What is diverted goes from the pool, and is under no limit of where it does not go.
	if mb := ask(ans, false).Members[0]; mb.Terms.From != (sched.Terms{}).From || mb.Source != "m1" {
		t.Errorf("%+v", mb.Terms)
	}
	// The latest word about a source counts, also when it has been said before.
	m.Spec = "address=192.0.2.9"
	other := ans
	other.Members = members(m)
	ask(other, true)
	if got := all.specOf("m1"); got != "address=192.0.2.9" {
		t.Errorf("%q", got)
	}
	if ask(ans, true); all.specOf("m1") != "address=192.0.2.1" {
		t.Errorf("%q", all.specOf("m1"))
	}
	if none := ask(proto.ResolveReply{Transport: "smtp", Nexthop: "a.test"}, true); none != nil {
		t.Errorf("%+v", none)
	}
}

// The members of a pool are not gone through for each recipient, but what is to be noted of them is noted: another next hop
// at once, another place of a next hop at once, and a later address before long.
func TestPoolNoted(t *testing.T) {
	t.Parallel()
	var all terms
	advice := func(unit string) string { return (&shaping.Settings{}).Advice(unit, "", "") }
	ask := func(addr, hop, unit string) *sched.Terms {
		m := proto.PoolMember{Source: "m1", Weight: 1, Spec: "address=192.0.2.1", Advice: advice(unit)}
		ans := proto.ResolveReply{Transport: "smtp", Nexthop: hop, Hop: "a.test", Recipient: addr, Pool: "p", Members: members(m)}
		return all.pool(&ans, nil, true, true).Members[0].Terms
	}
	x := ask("first@a.test", "a.test", "one.test")
	if all.unitOf("a.test") != "one.test" || all.from[x].addr != "first@a.test" {
		t.Fatalf("%q, %+v", all.unitOf("a.test"), all.from[x])
	}
	ask("second@a.test", "[a.test]:26", "one.test")
	if all.unitOf("[a.test]:26") != "one.test" {
		t.Error("nothing is noted of another next hop")
	}
	ask("x@a.test", "a.test", "two.test")
	if ask("x@a.test", "a.test", "one.test"); all.unitOf("a.test") != "one.test" {
		t.Errorf("its place is %q", all.unitOf("a.test"))
	}
	for i := range notedFor + 1 {
		ask(fmt.Sprintf("r%d@a.test", i), "a.test", "one.test")
	}
	if addr := all.from[x].addr; addr != fmt.Sprintf("r%d@a.test", notedFor) {
		t.Errorf("it is asked about by the address %s", addr)
	}
}

// A pool that is as it was before another change of the table is described so at once.
func TestPoolAsBefore(t *testing.T) {
	t.Parallel()
	var all terms
	for i, weight := range []int{1, 2, 1} {
		m := proto.PoolMember{Source: "m1", Weight: weight, Spec: "address=192.0.2.1"}
		all.pool(&proto.ResolveReply{Transport: "smtp", Nexthop: "a.test", Hop: "a.test", Recipient: "x@a.test", Pool: "p", Members: members(m)}, nil, true, true)
		if in := all.describe()["m1"].Pools; len(in) != 1 || in[0].Weight != weight {
			t.Errorf("%d: %+v, want the weight %d", i, in, weight)
		}
	}
}

// BenchmarkPool is what a recipient of a known pool of fifty sources costs.
func BenchmarkPool(b *testing.B) {
	var all terms
	var list []proto.PoolMember
	for i := range 50 {
		list = append(list, proto.PoolMember{Source: fmt.Sprint("m", i), Weight: 1, Spec: "address=192.0.2.1, helo=mta.test", OwnLimits: "concurrency=10, messages=100/s"})
	}
	ans := proto.ResolveReply{Transport: "smtp", Nexthop: "a.test", Hop: "a.test", Pool: "p", Members: members(list...)}
	for b.Loop() {
		all.pool(&ans, nil, true, true)
	}
}

// Strangers choose destinations, and each has its pool: what is remembered is bounded by the members
// of all of them.
func TestPoolsAreBounded(t *testing.T) {
	t.Parallel()
	var all terms
	var list []proto.PoolMember
	for i := range 256 {
		list = append(list, proto.PoolMember{Source: fmt.Sprint("m", i), Spec: "address=192.0.2.1"})
	}
	ans := proto.ResolveReply{Transport: "smtp", Pool: "p", Members: members(list...)}
	for i := range 2 * maxPooled / len(list) {
		ans.Nexthop = fmt.Sprint("d", i, ".test")
		ans.Hop = ans.Nexthop
		if pool := all.pool(&ans, nil, true, true); len(pool.Members) != len(list) {
			t.Fatal(pool)
		}
		if len(all.pools)*len(list) > maxPooled+len(list) {
			t.Fatalf("%d pools of %d members are remembered", len(all.pools), len(list))
		}
	}
}

// A site that has several sources is described under the name of each of its domains.
func TestSiteFromSource(t *testing.T) {
	t.Parallel()
	st := newStage(t, poolsOn+"destination_rollup = yes\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) {
		r.Site, r.Pool, r.Hop = "mx.host.test", "news", r.Nexthop
		r.Members = members(proto.PoolMember{Source: "m1", Weight: 1, Spec: "address=192.0.2.1"})
	}, "a.test", "b.test")
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "x@a.test", "x@b.test")
	orders := []order{smtp.next(), smtp.next()}
	for _, domain := range []string{"a.test", "b.test"} {
		if text := st.explainDest(domain); !strings.Contains(text, "smtp to site:mx.host.test from m1: 2 deliveries under way") {
			t.Errorf("%s: %s", domain, text)
		}
	}
	for _, o := range orders {
		o.answer("ok")
	}
	st.quiet()
}

// A message whose envelope names a pool is asked about with that, and nothing that was known
// beforehand is used.
func TestPoolOfEnvelope(t *testing.T) {
	t.Parallel()
	st := newStage(t, poolsOn)
	st.pools = func(named string, ans *proto.ResolveReply) {
		if named == "lost" {
			ans.Transport, ans.Nexthop = "retry", `4.3.5 mail system configuration error: egress pool "lost" is not in egress_pool_maps`
			return
		}
		ans.Pool, ans.Hop, ans.Members = named, "to.test", members(proto.PoolMember{Source: named + "-1", Weight: 1, Spec: "address=192.0.2.1"})
	}
	to := func(pool string) faketest.Mail {
		return faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Pool: pool, Size: 3,
			Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "bb@to.test"}}}}
	}
	ids := st.fill(to("news"), to("lost"))
	smtp, retry := st.agent("smtp", proto.Inventory{}), st.agent("retry", proto.Inventory{})
	st.run()
	o := smtp.next()
	if o.Source != "news-1" || len(o.Index) != 2 || o.Envelope.ID != ids[0] {
		t.Errorf("%s from %q to %v", o.Envelope.ID, o.Source, o.Index)
	}
	o.answer("ok", "ok")
	o = retry.next()
	if o.Source != "" || !strings.Contains(string(o.Nexthop), `egress pool "lost"`) {
		t.Errorf("from %q, %s", o.Source, o.Nexthop)
	}
	o.answer("defer", "defer")
	smtp.noMore()
}

// Counts of a source's warm-up, and what is known of its destinations, go through the files.
func TestSourcesOnDisk(t *testing.T) {
	t.Parallel()
	sp := sched.Spent{Level: sched.ProviderLimit, Name: "big", Source: "m1", Warmup: rate.Meter{Date: 20000, Count: 17}}
	list, _, _, err := decodeSpent(encodeSpent([]sched.Spent{sp}, false, nil))
	if err != nil || len(list) != 1 || list[0] != sp {
		t.Errorf("%+v, %v", list, err)
	}
	h := handover{learnt: sched.Snapshot{Dests: []sched.DestSnapshot{{Transport: "smtp", Queue: "a.test from m1", Nexthop: "a.test", Source: "m1", Window: 3}}}}
	var again handover
	if err := again.decode(h.encode()); err != nil || len(again.learnt.Dests) != 1 || again.learnt.Dests[0].Source != "m1" {
		t.Errorf("%+v, %v", again, err)
	}
}

// Mail that waits for a limit of its source is asked about again, with its pool.
func TestSourceLimitsRenewed(t *testing.T) {
	t.Parallel()
	st := newStage(t, poolsOn+"default_destination_recipient_limit = 1\n")
	smtp := st.agent("smtp", proto.Inventory{})
	limits := "concurrency=1"
	say := func(r *proto.ResolveReply) {
		r.Pool, r.Hop, r.Provider = "p", "a.test", "big"
		r.Members = members(proto.PoolMember{Source: "m1", Weight: 1, Spec: "address=192.0.2.1", ProviderLimits: limits})
	}
	st.share(say, "a.test")
	st.pools = func(string, *proto.ResolveReply) {}
	st.run()
	st.waitAttached(1)
	id := st.arrive("s@from.test", "x@a.test", "y@a.test")
	first := smtp.next()
	st.waitExplain(id, "for one of the 1 deliveries under the limit of provider big from m1 to end")
	smtp.noMore()
	st.share(func(r *proto.ResolveReply) { limits = "concurrency=2"; say(r) }, "a.test")
	done := make(chan struct{})
	st.srv.post(func() {
		st.srv.terms.again = st.srv.now.Add(-time.Second)
		close(done)
	}, sched.Event{})
	<-done
	st.srv.post(func() {}, sched.Event{})
	second := smtp.next()
	first.answer("ok")
	second.answer("ok")
}
