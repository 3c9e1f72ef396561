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
)

// diversion gives an order about a diversion, and says what was answered.
func (st *stage) diversion(op proto.OverrideOp, target, nexthop string) *proto.OverrideReply {
	st.t.Helper()
	reply := new(proto.OverrideReply)
	q := &proto.Override{Op: op, Entry: proto.OverrideEntry{Of: "diversion", Target: target, Nexthop: nexthop, By: "ann", Reason: "it is\x1b down"}}
	if err := st.tool.Call(st.t.Context(), q, reply); err != nil {
		st.t.Fatal(err)
	}
	return reply
}

// Mail goes by the other next hop from the moment at which the order is answered: new mail, mail that comes up
// again, and mail that waits for a delivery by the old one. It is told wherever somebody looks, and when it ends
// mail goes as before.
func TestDivert(t *testing.T) {
	t.Parallel()
	st := newStage(t, "default_destination_concurrency_limit = 1\n")
	st.routes["to.test"], st.routes["other.test"] = "smtp:[relay1.test]", "smtp:[other.test]"
	st.keep()
	old := deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 wait", "old@to.test")
	ids := st.fill(old, deferredMail(queue.Hold, time.Minute, "s@from.test", "", "bb@to.test"), deferredMail(queue.Hold, time.Minute, "s@from.test", "", "c@to.test"))
	late := ids[0]
	smtp, lmtp := st.agent("smtp", proto.Inventory{}), st.agent("lmtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	first := st.arrive("s@from.test", "a@to.test")
	begun := smtp.next() // it goes on as it was begun
	waits := map[mail.QueueID]bool{}
	for _, id := range ids[1:] { // it is known where one of them goes, and of the other the resolver would have to be asked
		st.command(proto.Command{Verb: proto.VerbRelease, ID: id})
		st.waitExplain(id, "waits .* for one of the 1 deliveries")
		waits[id] = true
	}
	if r := st.diversion(proto.OverridePut, "[relay1.test]", "lmtp:[relay2.test]:24"); r.Refused != "" {
		t.Fatal(r.Refused)
	}
	var o order
	for range ids[1:] {
		if o = lmtp.next(); !waits[o.Envelope.ID] || o.Nexthop != "[relay2.test]:24" {
			t.Errorf("ordered: %+v by %s", o.Envelope, o.Nexthop)
		}
		delete(waits, o.Envelope.ID)
		if len(waits) > 0 {
			o.answer("ok")
		}
	}
	expectText(t, st.explainDest("[relay1.test]"), `delivery to [relay1.test] is diverted to lmtp:[relay2.test]:24 by ann since `, `, until "posthaste undivert '[relay1.test]'": it is? down`)
	expectText(t, st.explainDest("lmtp:[relay2.test]:24"), "delivery to [relay1.test] is diverted to ")
	expectText(t, st.explain(late), "1 recipient(s) go another way: delivery to [relay1.test] is diverted to lmtp:[relay2.test]:24 by ann since ")
	if text := st.explainDest("to.test"); strings.Count(text, "delivery to [relay1.test] is diverted to lmtp:[relay2.test]:24 by ann") != 1 {
		t.Errorf("of a domain it is said:\n%s", text)
	}
	o.answer("ok")
	begun.answer("ok")
	st.waitOp(first, "its removal", removed)
	st.command(proto.Command{Verb: proto.VerbFlush, ID: late})
	o = lmtp.next()
	if o.Envelope.ID != late {
		t.Errorf("ordered: %+v", o.Envelope)
	}
	var listed proto.ListReply
	if err := st.tool.Call(t.Context(), &proto.List{N: 1, ID: late}, &listed); err != nil || len(listed.Items) != 1 || listed.Items[0].Recipients[0].Diverted != "[relay1.test]" {
		t.Errorf("listed: %+v, %v", listed, err)
	}
	o.answer("ok")
	st.arrive("s@from.test", "c@other.test")
	o = smtp.next() // other mail goes its way
	o.answer("ok")
	if list := st.diversion(proto.OverrideList, "", ""); len(list.Entries) != 1 || list.Entries[0].Nexthop != "lmtp:[relay2.test]:24" {
		t.Errorf("diverted: %+v", list)
	}
	if r := st.diversion(proto.OverrideRemove, "[relay1.test]", ""); !r.Found {
		t.Error("it was not found")
	}
	st.arrive("s@from.test", "d@to.test")
	if o = smtp.next(); o.Nexthop != "[relay1.test]" {
		t.Errorf("ordered: by %s", o.Nexthop)
	}
	o.answer("ok")
	if log := st.log.String(); !strings.Contains(log, "delivery to [relay1.test] diverted to lmtp:[relay2.test]:24 by ann: it is? down\n") || !strings.Contains(log, "diversion of delivery to [relay1.test] ended by ann\n") {
		t.Errorf("log:\n%s", log)
	}
}

// Mail that is for this system stays here, and what must fail or wait does, whatever is diverted.
func TestDivertElsewhere(t *testing.T) {
	t.Parallel()
	s := &Server{}
	rules := func(pairs ...string) {
		var list []*rule
		for i := 0; i < len(pairs); i += 2 {
			target, err := selection.ParseTarget(pairs[i])
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, &rule{target: target, order: override.Entry{Nexthop: pairs[i+1]}})
		}
		s.setDiversions(list)
	}
	for _, c := range []struct {
		flags              proto.ResolveFlags
		transport, nexthop string
		want               string
	}{
		{proto.ResolveLocal, "local", "mta.test", "local mta.test"},
		{proto.ResolveMailbox, "virtual", "box.test", "virtual box.test"},
		{proto.ResolveDefault, "smtp", "to.test", "smtp [all.test]"},
		{proto.ResolveRelay, "relay", "to.test", "relay [all.test]"},
		{proto.ResolveRelay, "relay", "[hub.test]", "smtp to.test"}, // by a transport alone
		{proto.ResolveDefault, "smtp", "a.sub.test", "lmtp [sub.test]:24"},
		{proto.ResolveDefault, "smtp", "[all.test]", "smtp [all.test]"}, // not once more
	} {
		rules("*", "[all.test]", "[hub.test]", "smtp:", ".sub.test", "lmtp:[sub.test]:24", "[all.test]", "[all.test]")
		transport, nexthop := s.divert(c.flags, mail.Transport(c.transport), mail.Nexthop(c.nexthop), "x@to.test")
		if got := fmt.Sprint(transport, " ", nexthop); got != c.want {
			t.Errorf("%s:%s: %s, want %s", c.transport, c.nexthop, got, c.want)
		}
	}
	rules()
	if transport, nexthop := s.divert(proto.ResolveDefault, "smtp", "to.test", "x@to.test"); transport != "smtp" || nexthop != "to.test" {
		t.Errorf("%s:%s", transport, nexthop)
	}
	rules("to.test", "[past.test]")
	s.rules.diversions.Load().list[0].order.Until = time.Now().Add(-time.Second)
	if _, nexthop := s.divert(proto.ResolveDefault, "smtp", "to.test", "x@to.test"); nexthop != "to.test" {
		t.Error("a diversion holds beyond its end")
	}
}

// A diversion holds after a restart, and ends by itself; what cannot be meant is refused.
func TestDiversionLasts(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.keep()
	if err := st.overrides.Put(override.Entry{Kind: override.Diversion, Target: "domain=to.test", Nexthop: "[relay2.test]", By: "ann", Since: time.Now()}, time.Now()); err != nil {
		t.Fatal(err)
	}
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "a@to.test")
	o := smtp.next()
	if o.Nexthop != "[relay2.test]" {
		t.Errorf("ordered: by %s", o.Nexthop)
	}
	o.answer("ok")
	for _, c := range [][3]string{{"sender=a@b.test", "[x.test]", "a diversion is of destinations"}, {"to.test", "", "a diversion needs a next hop"}, {"to.test", "*", "is not a next hop"}, {"to.test", ".x.test", "is not a next hop"},
		{"to.test", "a b", "blanks"}, {"to.test", "to.test", "would be diverted to itself"}, {"to.test", "[X.test]", "must be written as [x.test]"}} {
		if r := st.diversion(proto.OverridePut, c[0], c[1]); !strings.Contains(r.Refused, c[2]) {
			t.Errorf("%s to %q: %q", c[0], c[1], r.Refused)
		}
	}
	var reply proto.OverrideReply
	q := &proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Of: "diversion", Target: "domain=to.test", Nexthop: "[relay2.test]", By: "ann", Until: time.Now().Add(time.Second)}}
	if err := st.tool.Call(t.Context(), q, &reply); err != nil || reply.Refused != "" {
		t.Fatal(err, reply.Refused)
	}
	testwait.For(t, func() string {
		if log := st.log.String(); !strings.Contains(log, "diversion of delivery to domain to.test ended: its time is over\n") {
			return log
		}
		return ""
	})
	st.arrive("s@from.test", "a@to.test")
	if o = smtp.next(); o.Nexthop != "to.test" {
		t.Errorf("ordered: by %s", o.Nexthop)
	}
	o.answer("ok")
}
