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
	names := 0
	for k := range got {
		if strings.HasPrefix(k, "posthaste_destination_todo ") {
			names++
		}
	}
	if names != topDests+2 {
		t.Errorf("%d destinations are published", names)
	}
}
