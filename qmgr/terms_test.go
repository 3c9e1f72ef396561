package qmgr

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/internal/statedir"
	"posthaste/internal/testwait"
	"posthaste/qmgr/sched"
)

// limitsOn is a main.cf with which the queue manager asks for limits; what they are a
// stage's shares say.
const limitsOn = "destination_limit_maps = static:none\n"

// shares has the resolver say what is limited for domains.
func (st *stage) share(share func(*proto.ResolveReply), domains ...string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.shares == nil {
		st.shares = map[string]func(*proto.ResolveReply){}
	}
	for _, d := range domains {
		st.shares[d] = share
	}
}

// noMore fails when another delivery is ordered, now or soon.
func (a *fakeAgent) noMore() {
	a.st.t.Helper()
	a.st.quietly()
	select {
	case o := <-a.orders:
		a.st.t.Fatalf("a delivery too many: to %s", o.Nexthop)
	default:
	}
}

// quietly waits until the loop has done all that has been said to it.
func (st *stage) quietly() {
	for range 3 {
		done := make(chan struct{})
		st.srv.post(func() { close(done) }, sched.Event{})
		<-done
	}
}

// Two domains of a provider share its limits: the end of a delivery to one lets the other
// go, and the agent is told how many messages a connection may have.
func TestProviderLimits(t *testing.T) {
	t.Parallel()
	st := newStage(t, limitsOn)
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) {
		r.Provider, r.ProviderLimits = "big", "concurrency=1, messages_per_connection=7"
	}, "a.test", "b.test")
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "x@a.test")
	first := smtp.next()
	if first.Most != 7 || first.Provider != "big" {
		t.Errorf("a connection is for %d messages, the provider is %q", first.Most, first.Provider)
	}
	second := st.arrive("s@from.test", "x@b.test")
	st.waitExplain(second, `via smtp to b.test: waits since .* for one of the 1 deliveries under the limit of provider big to end`)
	if got := st.explainDest("b.test"); !strings.Contains(got, "limit of provider big: 1 of 1 deliveries at once; 1 destination(s) wait") ||
		!strings.Contains(got, "waits for a delivery under the limit of provider big to end") {
		t.Errorf("%s", got)
	}
	smtp.noMore()
	for name, want := range map[string]float64{"posthaste_limit_busy": 1, "posthaste_limit_waiting": 1, "posthaste_limit_parked": 0} {
		if got, ok := st.measured()[name+" provider big"]; !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	first.answer("ok")
	o := smtp.next()
	if o.Nexthop != "b.test" {
		t.Errorf("to %s", o.Nexthop)
	}
	o.answer("ok")
	st.quiet()
}

// Domains of one site are one destination; each delivery has the next hop of its
// recipients. A domain with limits of its own is its own destination within the site.
func TestSiteDestination(t *testing.T) {
	t.Parallel()
	st := newStage(t, "destination_rollup = yes\n")
	smtp := st.agent("smtp", proto.Inventory{})
	site := func(r *proto.ResolveReply) { r.Site = "mx.host.test" }
	st.share(site, "a.test", "b.test")
	st.share(func(r *proto.ResolveReply) { site(r); r.Alone, r.OwnLimits = true, "concurrency=1" }, "c.test")
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "x@a.test", "y@A.test", "x@b.test", "x@c.test")
	got := map[mail.Nexthop]int{}
	var orders []order
	for range 3 {
		o := smtp.next()
		orders = append(orders, o)
		got[o.Nexthop] += len(o.Index)
	}
	if got["a.test"] != 2 || got["b.test"] != 1 || got["c.test"] != 1 {
		t.Errorf("delivered to %v", got)
	}
	for domain, want := range map[string]string{"b.test": "smtp to site:mx.host.test: 2 deliveries under way", "c.test": "limit of domain c.test: 1 of 1 deliveries at once"} {
		if text := st.explainDest(domain); !strings.Contains(text, want) {
			t.Errorf("%s: %s", domain, text)
		}
	}
	for _, o := range orders {
		o.answer("ok", "ok")
	}
	st.quiet()
}

// A connection that was not opened is given back to the rate of connections.
func TestConnectionGivenBack(t *testing.T) {
	t.Parallel()
	st := newStage(t, limitsOn)
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) { r.OwnLimits = "connections=1/h" }, "a.test")
	st.run()
	st.waitAttached(1)
	for range 3 {
		st.arrive("s@from.test", "x@a.test")
	}
	o := smtp.next()
	smtp.noMore()
	o.answer("ok", "reused") // over a session of before, and so the next may open one
	o = smtp.next()
	smtp.noMore()
	o.answer("ok")
	st.waitDest("a.test", "connections 1/h; 1 destination(s) wait; shut until")
	smtp.noMore()
}

// Agents that go silent, or cannot be had, do not keep the places of their deliveries.
func TestSilentAgents(t *testing.T) {
	t.Parallel()
	st := newStage(t, limitsOn+"transport_retry_time = 1s\n") // what is for a.test is not tried again here
	st.deliveryTime = 300 * time.Millisecond
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) { r.Provider, r.ProviderLimits = "p", "concurrency=1" }, "a.test", "b.test")
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "x@a.test")
	silent := smtp.next()
	st.arrive("s@from.test", "x@b.test")
	// Nobody ever answers for a.test. Its place is free when its time is over.
	o := smtp.next()
	if silent.Nexthop != "a.test" || o.Nexthop != "b.test" {
		t.Errorf("to %s, then to %s", silent.Nexthop, o.Nexthop)
	}
	o.answer("ok")
}

// What waits for a limit hears when the limit becomes another, although no mail comes that
// would bring the news.
func TestTermsRenewed(t *testing.T) {
	t.Parallel()
	st := newStage(t, limitsOn)
	smtp := st.agent("smtp", proto.Inventory{})
	limit := func(text string) {
		st.share(func(r *proto.ResolveReply) { r.OwnLimits = text }, "a.test")
	}
	limit("concurrency=1")
	st.run()
	st.waitAttached(1)
	for range 3 {
		st.arrive("s@from.test", "x@a.test")
	}
	smtp.next()
	smtp.noMore()
	limit("concurrency=3")
	st.srv.post(func() { st.srv.terms.again = st.srv.now }, sched.Event{})
	smtp.next()
	smtp.next()
}

// Terms of the same words are the same, and those that say nothing are none.
func TestTermsOf(t *testing.T) {
	t.Parallel()
	var all terms
	ask := func(r proto.ResolveReply, whole bool) *sched.Terms { return all.of(&r, whole) }
	site := proto.ResolveReply{Nexthop: "A.test", Site: "mx", SiteLimits: "concurrency=3"}
	if ask(proto.ResolveReply{Nexthop: "a.test"}, true) != nil || ask(proto.ResolveReply{OwnLimits: "none"}, true) != nil ||
		ask(proto.ResolveReply{Site: "mx", Alone: true}, true) != nil {
		t.Error("terms that say nothing")
	}
	if p := ask(proto.ResolveReply{Provider: "p"}, true); p == nil || providerOf(p) != "p" || p.Shares[sched.ProviderLimit].Limits != (sched.Limits{}) {
		t.Errorf("a provider without limits: %+v", p)
	}
	a := ask(site, true)
	site.Nexthop = "b.test"
	if b := ask(site, true); a == nil || a != b || !a.Rollup || all.siteOf("a.TEST") != "mx" {
		t.Errorf("two domains of a site: %+v, %+v", a, b)
	}
	if c := ask(site, false); c == a || c.Rollup || c.Shares[sched.SiteLimit].Limits.Concurrency != 3 {
		t.Errorf("one recipient at a time: %+v", c)
	}
	full := ask(proto.ResolveReply{Nexthop: "C.test", Site: "mx", Alone: true, Provider: "p", OwnLimits: "messages=5/s, messages_per_connection=9",
		SiteLimits: "concurrency=3", ProviderLimits: "recipients=7/d, messages_per_connection=4"}, true)
	want := sched.Terms{Reuse: 4}
	want.Shares[sched.OwnLimit] = sched.Share{Name: "c.test", Limits: sched.Limits{Messages: rate.Rate{N: 5, Per: time.Second}}}
	want.Shares[sched.SiteLimit] = sched.Share{Name: "mx", Limits: sched.Limits{Concurrency: 3}}
	want.Shares[sched.ProviderLimit] = sched.Share{Name: "p", Limits: sched.Limits{Recipients: rate.Rate{N: 7, Per: rate.Day}}}
	if *full != want {
		t.Errorf("got  %+v\nwant %+v", *full, want)
	}
	r := sched.Rcpt{Transport: "smtp", Nexthop: "A.Test", Queue: "a.test", Terms: a}
	if all.place(&r); r.Queue != "site:mx" || r.Nexthop != "a.test" {
		t.Errorf("%+v", r)
	}
	r = sched.Rcpt{Transport: sched.RetryTransport, Queue: "x", Terms: a}
	if all.place(&r); r.Queue != "x" || r.Terms != nil {
		t.Errorf("%+v", r)
	}
}

// What was counted is found by the next queue manager; what is damaged is not.
func TestSpentFile(t *testing.T) {
	t.Parallel()
	dir, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if list, ended, _, err := readSpent(dir); list != nil || ended || err != nil {
		t.Errorf("without a file: %v, %v", list, err)
	}
	want := []sched.Spent{{Level: sched.ProviderLimit, Name: "p", Messages: rate.Meter{Due: 5}, Recipients: rate.Meter{Date: 20000, Count: 77}},
		{Name: "a.test", Tenant: "news", Connections: rate.Meter{Due: 1 << 50}}}
	text := encodeSpent(want, true, map[string]int{"day 1 x": 3, "day 1 y": 0})
	if err := dir.Replace(spentName, text); err != nil {
		t.Fatal(err)
	}
	got, ended, lost, err := readSpent(dir)
	if err != nil || !ended || fmt.Sprint(lost) != "map[day 1 x:3 day 1 y:0]" || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("written %+v\nread    %+v, %v", want, got, err)
	}
	for i := range text {
		bad := append([]byte(nil), text...)
		bad[i] ^= 4
		if _, _, _, err := decodeSpent(bad); err == nil {
			t.Errorf("octet %d is damaged, and nobody sees it", i)
		}
		if _, _, _, err := decodeSpent(text[:i]); err == nil {
			t.Errorf("cut at %d, and nobody sees it", i)
		}
	}
}

func FuzzSpent(f *testing.F) {
	f.Add(encodeSpent([]sched.Spent{{Name: "a", Messages: rate.Meter{Due: 5, Date: 3, Count: 1}}}, true, map[string]int{"k": 2})[40:])
	f.Fuzz(func(t *testing.T, body []byte) {
		list, _, _, err := decodeSpent(sealSpent(append(make([]byte, len(spentMagic)+sha256.Size), body...)))
		if err != nil {
			return
		}
		s := sched.New(sched.DefaultConfig())
		s.RestoreSpent(time.Unix(1800000000, 0), list)
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// What was counted is written while the queue manager works, and when it ends, and the next
// one goes on from there.
func TestSpentOverRestart(t *testing.T) {
	t.Parallel()
	dir, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	begin := func() (*stage, *fakeAgent) {
		st := newStage(t, limitsOn)
		st.state = dir
		st.share(func(r *proto.ResolveReply) { r.OwnLimits = "messages=3/d" }, "a.test")
		smtp := st.agent("smtp", proto.Inventory{})
		st.run()
		st.waitAttached(1)
		return st, smtp
	}
	deliver := func(st *stage, smtp *fakeAgent) {
		st.arrive("s@from.test", "x@a.test")
		o := smtp.next()
		o.answer("ok")
	}
	counted := func(n int64) {
		t.Helper()
		testwait.For(t, func() string {
			list, _, _, err := readSpent(dir)
			if err != nil || len(list) != 1 || list[0].Messages.Count != n {
				return fmt.Sprintf("want a count of %d, there is %+v, %v", n, list, err)
			}
			return ""
		})
	}
	st, smtp := begin()
	deliver(st, smtp)
	st.srv.post(func() { st.srv.spent.at = st.srv.now }, sched.Event{})
	counted(1)
	deliver(st, smtp)
	st.retire()
	counted(2)
	st, smtp = begin()
	deliver(st, smtp)
	st.arrive("s@from.test", "x@a.test")
	st.waitDest("a.test", "limit of domain a.test: 3 of 3 messages today; 1 destination(s) wait")
	smtp.noMore()
}
