package qmgr

import (
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/queue"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

// Every reason has words of its own, with what it knows in them.
func TestReasons(t *testing.T) {
	t.Parallel()
	s := &Server{book: newBook(), messages: make(map[sched.MsgID]*message)}
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	s.book.add(7, at, queue.Ref{}, 1, false, nil)
	by := string(mail.MakeQueueID(at, 7))
	why := sched.Reason{Since: at, Until: at.Add(time.Hour), Limit: 3, By: 7, Status: dsn.S(4, 4, 1), Text: "timed out"}
	want := map[sched.Wait]string{
		sched.WaitNone:          "about to be taken up",
		sched.WaitDelivery:      "being delivered since 2026-11-21 12:00:00",
		sched.WaitWindow:        "waits since 2026-11-21 12:00:00 for one of the 3 deliveries to this destination to end: that of " + by,
		sched.WaitProcess:       "waits since 2026-11-21 12:00:00 for one of the transport's 3 deliveries to end",
		sched.WaitJob:           "waits since 2026-11-21 12:00:00 for its turn behind message " + by,
		sched.WaitPreempted:     "waits since 2026-11-21 12:00:00 while a smaller message passes: " + by,
		sched.WaitRate:          "waits for the destination's rate delay until 2026-11-21 13:00:00",
		sched.WaitTransportRate: "waits for the transport's rate delay until 2026-11-21 13:00:00",
		sched.WaitRead:          "are being read since 2026-11-21 12:00:00, or wait for room in memory",
		sched.WaitActive:        "waits for one of the 3 places in the active queue",
		sched.WaitRetry:         "next attempt at 2026-11-21 13:00:00",
		sched.WaitSite:          "the destination had failed; next attempt at 2026-11-21 13:00:00, sooner when it answers",
		sched.WaitHold:          "on hold: postsuper -H releases it",
		sched.WaitNotice:        "a notice to the sender is being made since 2026-11-21 12:00:00",
		sched.WaitPause:         "wait by somebody's choice that has just ended; looked at again at 2026-11-21 13:00:00",
		sched.WaitCommand:       "an operator's command waits for the deliveries under way to end",
	}
	for w := sched.WaitNone; w <= sched.WaitPause; w++ {
		why.Wait = w
		if got := s.reasonText(&why); got != want[w] {
			t.Errorf("reason %d: %q, not %q", w, got, want[w])
		}
	}
	why.Wait = sched.WaitTenant
	if got, want := s.reasonText(&why), "waits since 2026-11-21 12:00:00 while another tenant has its turn at the destination"; got != want {
		t.Errorf("another tenant: %q, not %q", got, want)
	}
	why.Wait, why.Dead = sched.WaitSite, at.Add(time.Minute)
	if got, want := s.reasonText(&why), "the destination is considered dead until 2026-11-21 12:01:00 (4.4.1 timed out); "+
		"next attempt at 2026-11-21 13:00:00, sooner when it answers"; got != want {
		t.Errorf("dead destination: %q, not %q", got, want)
	}
}

// So has each reason that depends on more: on a limit with or without an end, on other nodes, on a rule, on what an operator has limited.
func TestReasonsOfLimits(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	s.now = at
	s.rules.set = newRuleset([]*rule{aRule(t, 4, "nexthop=to.test", override.Entry{By: "ann", Since: at})})
	s.rules.limits = newRuleset([]*rule{aRule(t, 5, "smtp:to.test", override.Entry{By: "bob", Since: at, Most: 2})})
	const gate, limited = "provider big", `; delivery to smtp:to.test is limited to 2 at a time by bob since 2026-11-21 12:00:00, until "posthaste unlimit smtp:to.test"`
	for _, c := range []struct {
		why  sched.Reason
		want string
	}{
		{sched.Reason{Wait: sched.WaitDelivery}, "being delivered"},
		{sched.Reason{Wait: sched.WaitWindow, Limit: 2, Transport: "smtp", Nexthop: "to.test"}, "waits for one of the 2 deliveries to this destination to end" + limited},
		{sched.Reason{Wait: sched.WaitWindow, Limit: 2, Transport: "lmtp", Nexthop: "to.test"}, "waits for one of the 2 deliveries to this destination to end"},
		{sched.Reason{Wait: sched.WaitTransportRate}, "waits for the transport's rate delay: another delivery has its turn"},
		{sched.Reason{Wait: sched.WaitShared, Since: at}, "waits since 2026-11-21 12:00:00 for its turn among the destinations of a shared limit"},
		{sched.Reason{Wait: sched.WaitShared, Since: at, Limit: 3, Gate: gate}, "waits since 2026-11-21 12:00:00 for one of the 3 deliveries under the limit of provider big to end"},
		{sched.Reason{Wait: sched.WaitShared, Since: at, Gate: gate, Until: at.Add(time.Hour)}, "waits since 2026-11-21 12:00:00 for the limit of provider big until 2026-11-21 13:00:00"},
		{sched.Reason{Wait: sched.WaitNode, Since: at, Gate: gate}, "wait for a share of the limit of provider big, which other nodes of the cluster have since 2026-11-21 12:00:00"},
		{sched.Reason{Wait: sched.WaitNode, Since: at}, "wait for a share of the destination's concurrency limit, which other nodes of the cluster have since 2026-11-21 12:00:00"},
		{sched.Reason{Wait: sched.WaitBeyond, Gate: gate}, "wait outside the active queue for the limit of provider big"},
		{sched.Reason{Wait: sched.WaitBeyond, Gate: gate, Until: at.Add(time.Hour)}, "wait outside the active queue for the limit of provider big; next attempt at 2026-11-21 13:00:00, sooner when there is room"},
		{sched.Reason{Wait: sched.WaitPause, Pause: 4}, `wait and are not tried: next hop to.test is suspended by ann since 2026-11-21 12:00:00, until "posthaste resume --nexthop=to.test"`},
		{sched.Reason{Wait: sched.WaitPause, Pause: 5}, "wait by somebody's choice that has just ended"},
	} {
		if got := s.reasonText(&c.why); got != c.want {
			t.Errorf("%+v:\n%q, not\n%q", c.why, got, c.want)
		}
	}
}

// aRule is a rule of an operator's.
func aRule(t *testing.T, id sched.PauseID, target string, order override.Entry) *rule {
	t.Helper()
	to, err := selection.ParseTarget(target)
	if err != nil {
		t.Fatal(err)
	}
	return &rule{id: id, target: to, order: order}
}

// An explanation names each recipient once, below what it waits for: those of a group, and all others in the group that stands for them.
func TestExplanation(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	fails := mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 2, 0), Reason: "450 \x1b[2Jlater", When: at}
	parts := mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 2, 0), Reason: "450 later", Relay: "peer", When: at, Parts: []mail.Part{
		{Address: "z@x.test", Action: dsn.Failed, Told: true}, {Address: "a b@x.test", Action: dsn.Failed, Told: true}, {Address: "z@x.test", Action: dsn.Failed, Told: true},
		{Address: "untold@x.test", Action: dsn.Failed}, {Address: "many@x.test", Action: dsn.Failed, Told: true, More: 3}, {Address: "good@x.test", Action: dsn.Delivered, Told: true}}}
	e := &explanation{head: "head", paused: []string{"paused"}, groups: []string{"named", "others", "others again"}, members: [][]int{{3, 0}, nil, nil},
		rcpts: map[int]string{0: "a@to.test", 1: "b b@to.test", 2: "c@to.test", 4: "e@to.test"}, last: map[int]mail.Outcome{0: fails, 2: parts}}
	want := []string{"head", "paused", "named", "    recipient 3: not tried yet", "    a@to.test: at 2026-11-21 12:00:00 none: 4.2.0 450 ?[2Jlater",
		"others", `    "b b"@to.test: not tried yet`, "    c@to.test: at 2026-11-21 12:00:00 peer: 4.2.0 450 later; failed for good, and reported: \"a b\"@x.test, z@x.test", "    e@to.test: not tried yet",
		"others again"}
	if got := e.lines(); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// What is to be tried later has not been forgotten.
	e.starts = at
	if got := e.recipient(1); got != `"b b"@to.test: `+startsText(at) {
		t.Error(got)
	}
	// A list of recipients has an end, and says so; one of as many has none left out.
	for n, more := range map[int]bool{explainRcpts: false, explainRcpts + 2: true} {
		e := &explanation{groups: []string{"all"}, members: [][]int{nil}, rcpts: map[int]string{}}
		for i := range n {
			e.rcpts[i] = "x@to.test"
		}
		got := e.lines()
		if last := got[len(got)-1]; (last == "    and 2 more") != more || len(got) != 2+explainRcpts && !more || len(got) != 3+explainRcpts && more {
			t.Errorf("%d recipients: %d lines, the last %q", n, len(got), last)
		}
	}
}
