package qmgr

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/selection"
	"posthaste/internal/testwait"
	"posthaste/qmgr/sched"
)

// limit gives an order about a limit, and says what was answered.
func (st *stage) limit(q proto.Override) *proto.OverrideReply {
	st.t.Helper()
	reply := new(proto.OverrideReply)
	q.Entry.Of, q.Entry.By = "limit", "ann"
	if err := st.tool.Call(st.t.Context(), &q, reply); err != nil {
		st.t.Fatal(err)
	}
	return reply
}

// silent says whether an agent has no order, when all that was begun has settled.
func (st *stage) silent(a *fakeAgent) bool {
	st.t.Helper()
	st.explainDest("to.test") // the loop has done what came before
	select {
	case o := <-a.orders:
		st.t.Errorf("ordered: %+v", o.Envelope.Recipients)
		return false
	default:
		return true
	}
}

// A limit bounds the deliveries to a next hop from the moment at which the order is answered, is told wherever
// somebody looks, and when it is lifted the rest goes.
func TestLimit(t *testing.T) {
	t.Parallel()
	st := newStage(t, "initial_destination_concurrency = 5\n")
	st.keep()
	smtp := st.agent("smtp", proto.Inventory{})
	held := deferredMail(queue.Hold, time.Minute, "s@from.test", "", "a@to.test")
	ids := st.fill(held, held)
	st.run()
	st.waitAttached(1)
	put := proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Target: "to.test", Most: 1, Reason: "they answer\x1b 421"}}
	if r := st.limit(put); r.Refused != "" || len(r.Uses) != 1 || r.Uses[0] != (proto.OverrideUse{}) {
		t.Fatalf("%+v", r)
	}
	for _, id := range ids {
		st.command(proto.Command{Verb: proto.VerbRelease, ID: id})
	}
	o := smtp.next()
	second := ids[0]
	if o.Envelope.ID == second {
		second = ids[1]
	}
	st.waitExplain(second, `waits .* for one of the 1 deliveries .*; delivery to to.test is limited to 1 at a time by ann since .*, until "posthaste unlimit to.test": they answer\? 421`)
	st.silent(smtp)
	st.waitDest("to.test", "delivery to to.test is limited to 1 at a time by ann since ", "window 1 (at most 1, by \"posthaste limit\")")
	var listed proto.ListReply
	if err := st.tool.Call(t.Context(), &proto.List{N: 1, ID: second}, &listed); err != nil || len(listed.Items) != 1 {
		t.Fatal(err, listed)
	}
	if r := listed.Items[0].Recipients[0]; r.Limited != "to.test" || r.Why() != "delivery to to.test is limited to 1 at a time: they answer? 421" || r.Suspended != "" {
		t.Errorf("listed: %+v", r)
	}
	list := st.limit(proto.Override{Op: proto.OverrideList})
	if len(list.Entries) != 1 || list.Entries[0].Most != 1 || list.Uses[0] != (proto.OverrideUse{Destinations: 1, Busy: 1, Todo: 1}) {
		t.Errorf("limited: %+v", list)
	}
	if log := st.log.String(); !strings.Contains(log, "delivery to to.test limited to 1 at a time by ann: they answer? 421\n") {
		t.Errorf("log:\n%s", log)
	}
	if r := st.limit(proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Target: "to.test"}}); !r.Found {
		t.Error("it was not found")
	}
	o.answer("ok")
	o = smtp.next()
	o.answer("ok")
	if log := st.log.String(); !strings.Contains(log, "limit of delivery to to.test lifted by ann\n") {
		t.Errorf("log:\n%s", log)
	}
}

// A limit that can do nothing, or means something else than the operator believes, is refused, and a dry run
// changes nothing.
func TestLimitRefused(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_destination_concurrency_limit = 7\nlmtp_destination_concurrency_limit = 0\n")
	st.keep()
	st.run()
	st.waitAttached(1)
	for _, c := range []struct {
		target string
		most   int
		raises bool
		says   string
	}{
		{"to.test", 0, false, "a limit of 0 would be a suspension"},
		{"to.test", -1, false, "a limit is a number from 1 to 100000"},
		{"to.test", override.MaxMost + 1, true, "a limit is a number from 1 to 100000"},
		{"To.test", 1, false, "it must be written as to.test"},
		{"sender=a@b.test", 1, false, "a limit is of next hops"},
		{"domain=b.test", 1, false, "a limit is of next hops"},
		{"smtp:to.test", 7, false, "main.cf allows smtp:to.test no more than 7 at a time (destination_concurrency_limit), so that a limit of 7 would change nothing; with --raise it counts"},
		{"to.test", 20, false, "main.cf allows to.test no more than 20"},
		{"smtp:to.test", 7, true, ""},
		{"smtp:to.test", 6, false, ""},
		{"lmtp:", 1000, false, ""}, // main.cf has no limit
		{"to.test", 19, false, ""},
	} {
		q := proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Target: c.target, Most: c.most, Raises: c.raises}, Dry: true}
		if r := st.limit(q); !strings.HasPrefix(r.Refused, c.says) || (c.says == "") != (r.Refused == "") {
			t.Errorf("%s %d: %q", c.target, c.most, r.Refused)
		}
	}
	past := proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Target: "to.test", Most: 1, Until: time.Now().Add(-time.Second)}}
	if r := st.limit(past); r.Refused != "its end lies in the past" {
		t.Errorf("%+v", r)
	}
	if r := st.limit(proto.Override{Op: proto.OverrideList}); len(r.Entries) != 0 {
		t.Errorf("kept: %+v", r.Entries)
	}
}

// A limit holds after a restart, before anything is tried, for each next hop by itself, and ends by itself.
func TestLimitLasts(t *testing.T) {
	t.Parallel()
	st := newStage(t, "initial_destination_concurrency = 5\n")
	st.keep()
	for _, e := range []override.Entry{{Target: "smtp:", Most: 1}, {Target: "smtp:wide.test", Most: 2}} {
		e.Kind, e.By, e.Since = override.Limit, "ann", time.Now()
		if err := st.overrides.Put(e, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	for i := range 6 {
		st.arrive("s@from.test", fmt.Sprintf("r%d@%s.test", i, []string{"to", "wide"}[i%2]))
	}
	begun := map[string]int{}
	var orders []order
	for range 3 {
		o := smtp.next()
		orders = append(orders, o)
		begun[string(o.Nexthop)]++
	}
	if begun["to.test"] != 1 || begun["wide.test"] != 2 {
		t.Errorf("under way at once: %v", begun)
	}
	st.silent(smtp)
	for _, e := range []proto.OverrideEntry{{Target: "smtp:", Most: 1}, {Target: "smtp:wide.test", Most: 2}} {
		e.Until = time.Now().Add(time.Second)
		if r := st.limit(proto.Override{Op: proto.OverridePut, Entry: e}); r.Refused != "" {
			t.Error(r.Refused)
		}
	}
	testwait.For(t, func() string {
		if log := st.log.String(); !strings.Contains(log, "limit of delivery to smtp:wide.test lifted: its time is over\n") {
			return log
		}
		return ""
	})
	for range 3 {
		orders[0].answer("ok")
		orders = append(orders[1:], smtp.next())
	}
	for _, o := range orders {
		o.answer("ok")
	}
}

// Of the limits that name a destination the narrowest counts, whatever their order.
func TestNarrowestLimit(t *testing.T) {
	t.Parallel()
	s := &Server{}
	var list []*rule
	for i, text := range []string{"*", "smtp:", ".test", ".to.test", "a.to.test", "smtp:.to.test", "smtp:a.to.test"} {
		target, err := selection.ParseTarget(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &rule{target: target, order: override.Entry{Most: i + 1}})
	}
	s.setLimits(list)
	for _, c := range []struct {
		transport, nexthop string
		most               int
	}{{"smtp", "A.to.test", 7}, {"smtp", "b.to.test", 6}, {"lmtp", "a.to.test", 5}, {"lmtp", "b.to.test", 4}, {"lmtp", "to.test", 3}, {"smtp", "[x]", 2}, {"lmtp", "[x]", 1}} {
		if n, _ := s.queue[0].event.Limits(mail.Transport(c.transport), mail.Nexthop(c.nexthop)); n != c.most {
			t.Errorf("%s:%s: %d, not %d", c.transport, c.nexthop, n, c.most)
		}
	}
	if n, _ := s.queue[0].event.Limits(sched.RetryTransport, "4.4.1 x"); n != 0 {
		t.Errorf("reasons are limited to %d", n)
	}
	s.setLimits(nil)
	if len(s.queue) != 2 || s.queue[1].event.Limits != nil {
		t.Error("the limits have not been taken back")
	}
	if s.setLimits(nil); len(s.queue) != 2 {
		t.Error("the scheduler is told of nothing")
	}
}
