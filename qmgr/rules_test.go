package qmgr

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
	"posthaste/internal/spool"
	"posthaste/qmgr/sched"
)

// The index finds what looking through the whole list finds.
func TestRuleset(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000000, 0)
	text := rapid.StringMatching(`(domain=|nexthop=)?(\.?[ab](\.[ab]){0,2}|[st]:[ab]|\[a\])|[st]:|\*|sender=([ab]@[ab](\.[ab])?|@\.?[ab](\.[ab])?|<>|/[ab]@/)`)
	rapid.Check(t, func(t *rapid.T) {
		var list []*rule
		for i := range rapid.IntRange(0, 12).Draw(t, "rules") {
			target, err := selection.ParseTarget(text.Draw(t, "target"))
			if err != nil {
				continue
			}
			r := &rule{id: sched.PauseID(i + 1), target: target}
			if rapid.Bool().Draw(t, "ends") {
				r.order.Until = now.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "end")) * time.Second)
			}
			list = append(list, r)
		}
		rs := newRuleset(list)
		if (rs == nil) != (len(list) == 0) {
			t.Fatal("no rules are not nil")
		}
		for range 8 {
			m := &selection.Mail{Sender: rapid.StringMatching(`([abA]@([ab]\.)?[abB])?`).Draw(t, "sender"), Transport: rapid.StringMatching(`[st]`).Draw(t, "transport"),
				Nexthop: rapid.StringMatching(`(\[a\]|([ab]\.){0,2}[abA])`).Draw(t, "nexthop"), Domain: rapid.StringMatching(`([ab]\.){0,2}[abB]`).Draw(t, "domain")}
			var want *rule
			for _, r := range list {
				if want == nil && !r.over(now) && r.target.Match(m) {
					want = r
				}
			}
			if got := rs.find(m, now); got != want {
				t.Fatalf("%+v: found %v, not %v", *m, got, want)
			}
		}
	})
}

// Each kind of target stops what it means, and nothing else: new mail, mail that comes up again, and mail of several recipients.
func TestSuspendTargets(t *testing.T) {
	t.Parallel()
	mails := []struct{ sender, to string }{{"news@a.test", "x@b.test"}, {"ann@a.test", "x@b.test"}, {"news@a.test", "x@hub.test"}, {"", "x@c.test"}, {"bob@sub.a.test", "x@lmtp.test"}}
	for _, c := range []struct {
		target, subject string
		stops           string // numbers of mails
	}{
		{"b.test", "delivery to b.test", "0 1"},
		{"hub.test", "delivery to hub.test", "2"},
		{"[hub.test]", "delivery to [hub.test]", "0 1 2"},
		{"domain=b.test", "delivery to domain b.test", "0 1"},
		{"nexthop=b.test", "delivery to next hop b.test", ""},
		{"lmtp:", "delivery to lmtp:", "4"},
		{"smtp:[hub.test]", "delivery to smtp:[hub.test]", "0 1 2"},
		{"sender=news@a.test", "mail from news@a.test", "0 2"},
		{"sender=@a.test", "mail from @a.test", "0 1 2"},
		{"sender=@.a.test", "mail from @.a.test", "4"},
		{"sender=<>", "mail from <>", "3"},
		{"sender=/^(news|bob)@/", "mail from /^(news|bob)@/", "0 2 4"},
		{"*", "delivery to *", "0 1 2 3 4"},
	} {
		t.Run(strings.ReplaceAll(c.target, "/", "_"), func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "")
			st.routes["b.test"], st.routes["hub.test"], st.routes["lmtp.test"] = "smtp:[hub.test]", "smtp:[hub.test]", "lmtp:unix"
			st.keep()
			if err := st.overrides.Put(override.Entry{Kind: override.Suspension, Target: c.target, By: "ann", Reason: "why", Since: time.Now()}, time.Now()); err != nil {
				t.Fatal(err)
			}
			smtp, lmtp := st.agent("smtp", proto.Inventory{}), st.agent("lmtp", proto.Inventory{})
			st.run()
			st.waitAttached(1)
			for i, m := range mails {
				id := st.arrive(m.sender, m.to)
				if !strings.Contains(" "+c.stops+" ", fmt.Sprintf(" %d ", i)) {
					agent := smtp
					if strings.HasPrefix(st.routes[strings.TrimPrefix(m.to, "x@")], "lmtp") {
						agent = lmtp
					}
					if o := agent.next(); o.Envelope.ID != id {
						t.Errorf("mail %d: %s is ordered", i, o.Envelope.ID)
					} else {
						o.answer("ok")
					}
					continue
				}
				op := st.waitOp(id, "its deferral", func(op *proto.Op) bool { return len(op.Outcomes) > 0 })
				if op.Attempts != 0 || op.Outcomes[0].Reason != c.subject+" is suspended: why" {
					t.Errorf("mail %d: recorded %+v", i, op)
				}
				expectText(t, st.explain(id), "wait and are not tried: ", " is suspended by ann since ")
			}
		})
	}
}

// A listing says what is suspended although it was last deferred for something else, and not of mail on hold.
func TestListSuspended(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.routes["b.test"] = "smtp:[hub.test]"
	st.keep()
	ids := st.fill(deferredMail(spool.Deferred, time.Minute, "s@from.test", "450 wait", "x@b.test", "y@c.test"), deferredMail(spool.Hold, time.Minute, "s@from.test", "", "x@b.test"))
	st.run()
	st.waitAttached(1)
	st.override(proto.OverridePut, "domain=b.test", "they asked", time.Time{})
	var reply proto.ListReply
	if err := st.tool.Call(t.Context(), &proto.List{N: 10}, &reply); err != nil || len(reply.Items) != 2 {
		t.Fatal(err, reply)
	}
	for _, it := range reply.Items {
		first := it.Recipients[0]
		if it.ID == ids[1] {
			if first.Suspended != "" || first.Waits != "" {
				t.Errorf("on hold: %+v", first)
			}
			continue
		}
		if first.Suspended != "domain=b.test" || first.Waits != "delivery to domain b.test is suspended: they asked" || first.Reason != "450 wait" {
			t.Errorf("listed: %+v", first)
		}
		if other := it.Recipients[1]; other.Suspended != "" || other.Why() != "450 wait" {
			t.Errorf("listed: %+v", other)
		}
	}
}

// A suspension whose time is over is logged, and its mail goes, without anybody's doing.
func TestSuspensionEnds(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.keep()
	e := override.Entry{Kind: override.Suspension, Target: "to.test", By: "ann", Since: time.Now(), Until: time.Now().Add(time.Hour)}
	if err := st.overrides.Put(e, time.Now()); err != nil {
		t.Fatal(err)
	}
	due := deferredMail(spool.Deferred, time.Minute, "s@from.test", "", "a@to.test")
	due.Next = time.Now().Add(-time.Second)
	id := st.fill(due)[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.waitOp(id, "its deferral", inQueue(spool.Deferred))
	soon := func() { // the end comes nearer
		e.Until = st.srv.now.Add(50 * time.Millisecond)
		if err := st.overrides.Put(e, st.srv.now); err != nil {
			t.Error(err)
		}
		st.srv.setRules([]override.Entry{e})
	}
	if !st.srv.inLoop(nil, soon) {
		t.Fatal("there is no loop")
	}
	o := smtp.next()
	if o.Envelope.ID != id {
		t.Errorf("ordered: %s", o.Envelope.ID)
	}
	o.answer("ok")
	st.waitOp(id, "its removal", removed)
	st.until("its end is logged", func() bool {
		return strings.Contains(st.log.String(), "delivery to to.test resumed: the time of its suspension is over\n")
	})
	if r := st.override(proto.OverrideList, "", "", time.Time{}); len(r.Entries) != 0 {
		t.Errorf("listed: %+v", r.Entries)
	}
}

// Orders that come at the same time all hold when they are answered.
func TestConcurrentOrders(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.keep()
	st.run()
	st.waitAttached(1)
	const n = 20
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { st.override(proto.OverridePut, fmt.Sprintf("d%d.test", i), "", time.Time{}) })
	}
	wg.Wait()
	var held int
	st.srv.inLoop(nil, func() { held = len(st.srv.rules.set.all()) })
	if held != n {
		t.Errorf("%d of %d hold", held, n)
	}
}
