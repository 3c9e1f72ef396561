package overview

import (
	"testing"
	"time"

	"posthaste/internal/proto"
)

// The one line says what is worst about a domain's mail, in the words of an operator.
func TestReason(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 11, 27, 12, 1, 0, 0, time.Local)
	group := func(n, code int, status, text string) proto.ReplyGroup {
		return proto.ReplyGroup{Sessions: n, Code: code, Status: status, Text: text, Accepted: text == ""}
	}
	base := proto.DestInfo{Transport: "smtp", Nexthop: "a.test", State: "ready", Window: 2, Limit: 20, Busy: 2, Todo: 100, Span: 15 * time.Minute}
	with := func(f func(d *proto.DestInfo)) []proto.DestInfo {
		d := base
		f(&d)
		return []proto.DestInfo{d}
	}
	for _, c := range []struct {
		dests     []proto.DestInfo
		suspended string
		want      string
	}{
		{nil, "", "4,310 recipients wait, the oldest for 3 h"},
		{with(func(*proto.DestInfo) {}), "", "window 2 of 20; 4,310 recipients wait, the oldest for 3 h"},
		{with(func(d *proto.DestInfo) {
			d.Sessions, d.Replies = 100, []proto.ReplyGroup{group(50, 421, "4.7.0", "one"), group(33, 421, "4.7.0", "two"), group(17, 0, "", "")}
		}), "", "answers 421 4.7.0 to 83 % of sessions; window 2 of 20; 4,310 recipients wait, the oldest for 3 h"},
		// Two ways to say one thing weigh more than another thing that is said more often than each.
		{with(func(d *proto.DestInfo) {
			d.Sessions, d.Replies = 10, []proto.ReplyGroup{group(4, 450, "", "x"), group(3, 421, "", "y"), group(3, 421, "", "z")}
		}), "", "answers 421 to 60 % of sessions; window 2 of 20; 4,310 recipients wait, the oldest for 3 h"},
		{with(func(d *proto.DestInfo) {
			d.State, d.Window, d.Until, d.Sessions, d.Replies = "dead", 0, until, 3, []proto.ReplyGroup{group(3, 0, "", "connect to *: Connection refused")}
		}), "", "fails in 100 % of sessions: connect to *: Connection refused; considered dead until 12:01:00; 4,310 recipients wait, the oldest for 3 h"},
		{with(func(d *proto.DestInfo) {
			d.Limit, d.Sessions, d.Replies = 0, 3, []proto.ReplyGroup{group(3, 0, "", "")}
		}), "",
			"accepts all mail; window 2; 4,310 recipients wait, the oldest for 3 h"},
		{with(func(d *proto.DestInfo) { d.Limit, d.Set = 2, true }), "", "window 2 of 2, by posthaste limit; 4,310 recipients wait, the oldest for 3 h"},
		{with(func(d *proto.DestInfo) { d.Nexthop, d.Sessions, d.Others = "[hub.test]", 3, 3 }), "", "[hub.test] refuses 100 % of sessions; window 2 of 20; 4,310 recipients wait, the oldest for 3 h"},
		{with(func(d *proto.DestInfo) { d.Nexthop, d.State = "[hub.test]", "suspended" }), "", "[hub.test] pauses after each delivery; 4,310 recipients wait, the oldest for 3 h"},
		{nil, ".test", "suspended by ann; 4,310 recipients wait, the oldest for 3 h"},
		{nil, "b.test", "4,310 recipients wait, the oldest for 3 h"},
	} {
		h := &Hurt{Domain: "A.test", Waiting: 4310, Oldest: "3 h", Destinations: Destinations(&proto.ExplainReply{Dests: c.dests})}
		var suspensions []Suspension
		if c.suspended != "" {
			suspensions = []Suspension{{Target: c.suspended, By: "ann"}}
		}
		if got := reason(h, suspensions); got != c.want {
			t.Errorf("%+v:\n%s, want\n%s", c.dests, got, c.want)
		}
	}
	list := Destinations(&proto.ExplainReply{Dests: with(func(d *proto.DestInfo) {
		d.Sessions, d.Replies = 3, []proto.ReplyGroup{group(2, 421, "4.7.0", "wait"), group(1, 0, "", "")}
	})})
	if r := list[0].Replies; list[0].Minutes != 15 || r[0].Percent != 67 || r[0].Said() != "421 4.7.0 wait" || r[1].Percent != 33 || r[1].Said() != "accepted" {
		t.Errorf("%+v", list)
	}
}
