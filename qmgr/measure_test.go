package qmgr

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/metrics"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/testwait"
)

// measured is what is published, by name and labels.
func (st *stage) measured() map[string]float64 {
	set := metrics.New()
	set.Offer(st.srv.offer)
	values := make(map[string]float64)
	for _, s := range set.Take().Samples {
		values[s.Name+" "+strings.Join(s.Labels, " ")] += s.Value
	}
	return values
}

// The largest backlogs are published whatever they wait for: messages that a
// host has deferred although it answers, mail that waits for a suspension, for a
// window. All else is in one sum, so that nothing is missing.
func TestBacklogs(t *testing.T) {
	t.Parallel()
	st := newStage(t, "default_destination_concurrency_limit = 1\n")
	st.keep()
	if err := st.overrides.Put(override.Entry{Kind: override.Suspension, Target: "paused.test", By: "ann", Since: time.Now()}, time.Now()); err != nil {
		t.Fatal(err)
	}
	var mails []faketest.Mail
	due := func(to string, n int) {
		for range n {
			m := deferredMail(queue.Deferred, time.Minute, "s@from.test", "", to)
			m.Next = time.Now().Add(-time.Second)
			mails = append(mails, m)
		}
	}
	due("a@later.test", 7)
	due("a@paused.test", 5)
	due("a@window.test", 4)
	for i := range 30 {
		due(fmt.Sprintf("a@small%d.test", i), 1)
	}
	st.fill(mails...)
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	for range 7 + 1 + 30 { // window.test has one, and does not answer
		o := smtp.next()
		if o.Nexthop != "window.test" {
			o.answer("defer")
		}
	}
	want := map[string]float64{
		"posthaste_destination_todo smtp later.test":  7,
		"posthaste_destination_todo smtp paused.test": 5,
		"posthaste_destination_todo smtp window.test": 3,
		"posthaste_destination_busy smtp window.test": 1,
		"posthaste_destination_todo other other":      30 - 17,
		"posthaste_destination_todo unknown unknown":  0,
		"posthaste_suspensions ":                      1,
		"posthaste_suspended_messages ":               5,
		"posthaste_domain_todo later.test":            7,
		"posthaste_domain_todo paused.test":           5,
		"posthaste_domain_todo window.test":           4,
		"posthaste_domain_todo other":                 30 - 17,
	}
	var got map[string]float64
	wrong := func() (name string) {
		for k, v := range want {
			if got[k] != v {
				name = k
			}
		}
		return name
	}
	testwait.For(t, func() string {
		if got = st.measured(); wrong() == "" {
			return ""
		}
		return fmt.Sprintf("%s is %v, not %v; all: %v", wrong(), got[wrong()], want[wrong()], got)
	})
	if n := published(got, "posthaste_destination_todo "); n != topDests+2 {
		t.Errorf("%d destinations are published", n)
	}
}

// published is how many samples have a name and labels that begin so.
func published(samples map[string]float64, begin string) (n int) {
	for k := range samples {
		if strings.HasPrefix(k, begin) {
			n++
		}
	}
	return n
}

// Of tenants, of limits in common and of sources that warm up, those with most are published by name, however many there are; tenants
// beyond them are in one sum.
func TestMostPublished(t *testing.T) {
	t.Parallel()
	const n = topDests + topDests/2 + 1 // with a limit of the provider and one of the source each: no multiple of topDests
	st := newStage(t, limitsOn+poolsOn)
	smtp := st.agent("smtp", proto.Inventory{})
	for i := range n {
		st.share(func(r *proto.ResolveReply) {
			r.Provider, r.ProviderLimits, r.Hop = fmt.Sprint("p", i), "concurrency=1", fmt.Sprintf("d%d.test", i)
			r.Pool, r.Members = fmt.Sprint("pool", i), members(proto.PoolMember{Source: fmt.Sprint("m", i), Weight: 1, Warmup: 50, Spec: "address=192.0.2.1"})
		}, fmt.Sprintf("d%d.test", i))
	}
	st.run()
	st.waitAttached(1)
	// The first has two messages, of which one waits: whatever the order, it is among those with most.
	for i := range n + 1 {
		st.arriveOf(fmt.Sprint("t", i%n), "s@from.test", fmt.Sprintf("x@d%d.test", i%n))
	}
	for range n {
		smtp.next()
	}
	want := map[string]float64{
		"posthaste_tenant_messages t0":               2,
		"posthaste_tenant_messages other":            n - topDests,
		"posthaste_tenant_deliveries_busy other":     n - topDests,
		"posthaste_limit_busy provider p0":           1,
		"posthaste_limit_waiting provider p0":        1,
		"posthaste_warmup_recipients m0 provider p0": 1,
		"posthaste_warmup_limit m0 provider p0":      50,
	}
	testwait.For(t, func() string {
		got := st.measured()
		for k, v := range want {
			if got[k] != v {
				return fmt.Sprintf("%s is %v, not %v", k, got[k], v)
			}
		}
		for begin, n := range map[string]int{"posthaste_tenant_messages ": topDests + 1, "posthaste_limit_busy provider ": topDests, "posthaste_warmup_": 2 * topDests} {
			if p := published(got, begin); p != n {
				return fmt.Sprintf("%d of %s, not %d", p, begin, n)
			}
		}
		return ""
	})
}
