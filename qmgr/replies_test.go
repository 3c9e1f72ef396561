package qmgr

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/testwait"
)

// A session's answer is the one that most of its recipients got, in the host's words if it has said something.
func TestAnswerOf(t *testing.T) {
	t.Parallel()
	out := func(action dsn.Action, reason, diag string) mail.Outcome {
		o := mail.Outcome{Action: action, Reason: reason}
		if diag != "" {
			o.DiagType, o.DiagText = "smtp", diag
		}
		return o
	}
	ok := out(dsn.Delivered, "250 2.0.0 ok", "")
	full := out(dsn.Deferred, "host a.test[192.0.2.1] said: 452 4.2.2 full (in reply to RCPT TO command)", "452 4.2.2 full")
	for _, c := range []struct {
		outcomes []mail.Outcome
		want     string
	}{
		{[]mail.Outcome{ok}, ""},
		{[]mail.Outcome{full}, "4.2.2 full"},
		{[]mail.Outcome{full, ok, ok}, ""},
		{[]mail.Outcome{ok, full}, ""},
		{[]mail.Outcome{ok, full, out(dsn.Deferred, "", "452 4.2.2 full"), out(dsn.Failed, "", "550 5.1.1 no")}, "4.2.2 full"},
		{[]mail.Outcome{out(dsn.Failed, "unknown user: \"x\"", "")}, " unknown user: \"x\""},
	} {
		a, example := answerOf(c.outcomes)
		if a.Accepted != (c.want == "") || !a.Accepted && a.Status+" "+a.Text != c.want || a.Accepted != (example == "") {
			t.Errorf("%+v: %+v, %q; want %q", c.outcomes, a, example, c.want)
		}
	}
}

// What hosts answer is told as shares of the sessions, in words and in numbers, also of a relay host by which the
// mail for a domain goes, and what has come in and gone out is counted.
func TestReplies(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.routes["to.test"] = "smtp:[hub.test]"
	st.fill(deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 wait", "before@to.test"))
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	for i, word := range []string{"defer", "defer", "ok", "fail"} {
		st.arrive("s@from.test", "a@to.test")
		o := smtp.next()
		o.answer(word, "secured", map[bool]string{true: "reused"}[i == 0])
	}
	ask := func(destination string) *proto.ExplainReply {
		reply := new(proto.ExplainReply)
		if err := st.tool.Call(t.Context(), &proto.Explain{Destination: destination}, reply); err != nil {
			t.Fatal(err)
		}
		return reply
	}
	for _, destination := range []string{"[hub.test]", "to.test"} {
		var reply *proto.ExplainReply
		testwait.For(t, func() string {
			if reply = ask(destination); len(reply.Dests) != 1 || reply.Dests[0].Sessions != 4 {
				return strings.Join(reply.Lines, "\n")
			}
			return ""
		})
		text := strings.Join(reply.Lines, "\n")
		expectText(t, text, "  smtp to [hub.test], last 15 min: 50 % of 4 sessions: 450 later\n", ": 25 % of 4 sessions: accepted", ": 25 % of 4 sessions: 550 never")
		if relay := strings.Contains(text, "its mail goes by smtp to [hub.test]"); relay != (destination == "to.test") {
			t.Errorf("%s:\n%s", destination, text)
		}
		d := &reply.Dests[0]
		if g := d.Replies[0]; d.Transport != "smtp" || d.Nexthop != "[hub.test]" || d.Span != 15*time.Minute || g.Sessions != 2 || g.Code != 450 || g.Text != "later" || g.Example != "450 later" || g.Last.IsZero() {
			t.Errorf("%+v", d)
		}
		if d.Course != nil || d.Securities != nil {
			t.Errorf("nobody has asked for %+v %+v", d.Course, d.Securities)
		}
	}
	// How it has fared is told to who asks for that. The end of a delivery counts in it with the turn after its replies.
	testwait.For(t, func() string {
		var course proto.ExplainReply
		if err := st.tool.Call(t.Context(), &proto.Explain{Destination: "to.test", Course: true}, &course); err != nil || len(course.Dests) != 1 {
			t.Fatalf("%v %+v", err, course)
		}
		sum := proto.CourseMinute{}
		for _, m := range course.Dests[0].Course {
			if m.Window < 1 || m.Busy < 1 || m.Limit != 20 || m.At.IsZero() || m.Took < 0 {
				t.Errorf("%+v", m)
			}
			sum.Sessions, sum.Opened, sum.Away = sum.Sessions+m.Sessions, sum.Opened+m.Opened, sum.Away+m.Away
		}
		if s := course.Dests[0].Securities; sum != (proto.CourseMinute{Sessions: 4, Opened: 3}) || len(s) != 1 || s[0].Text != "TLS 1.3, policy dane" || s[0].Connections != 4 || s[0].Last.IsZero() {
			return fmt.Sprintf("%+v %+v", sum, s)
		}
		return ""
	})
	// What the retry transport reports is what a host said before, and no answer of one now.
	st.mu.Lock()
	st.routes["later.test"] = "retry:4.3.0 no table"
	st.mu.Unlock()
	retry := st.agent("retry", proto.Inventory{})
	late := st.arrive("s@from.test", "c@later.test")
	o := retry.next()
	o.answer("defer")
	st.waitOp(late, "its deferral", inQueue(queue.Deferred))
	testwait.For(t, func() string {
		if text := st.explainDest("*"); !strings.Contains(text, "smtp to [hub.test], last 15 min") || strings.Contains(text, "retry to ") {
			return text
		}
		return ""
	})
	if r := ask("other.test"); len(r.Dests) != 0 {
		t.Errorf("%+v", r.Dests)
	}
	// What an agent has reported counts when it is recorded, which nobody here has waited for.
	testwait.For(t, func() string {
		var shape proto.ShapeReply
		if err := st.tool.Call(t.Context(), &proto.Shape{Queues: []string{"deferred"}, Split: true}, &shape); err != nil {
			t.Fatal(err)
		}
		if got := shape.Totals; got.Since.IsZero() || got.In != 5 || got.Sent != 1 || got.Deferred != 3 || got.Bounced != 1 {
			return fmt.Sprintf("%+v", got)
		}
		return ""
	})
}

// A window in numbers is the one that the words have.
func TestDestInfo(t *testing.T) {
	t.Parallel()
	st := newStage(t, "initial_destination_concurrency = 3\nsmtp_destination_concurrency_failed_cohort_limit = 1\n")
	st.keep()
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	if r := st.limit(proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Target: "to.test", Most: 2}}); r.Refused != "" {
		t.Fatal(r.Refused)
	}
	for range 3 {
		st.arrive("s@from.test", "a@to.test")
	}
	smtp.next()
	smtp.next()
	testwait.For(t, func() string {
		var reply proto.ExplainReply
		if err := st.tool.Call(t.Context(), &proto.Explain{Destination: "to.test"}, &reply); err != nil {
			return err.Error()
		}
		if len(reply.Dests) != 1 {
			return "no destination"
		}
		if d := reply.Dests[0]; d.State != "ready" || d.Window != 2 || d.Limit != 2 || !d.Set || d.Busy != 2 || d.Todo != 1 {
			return strings.Join(reply.Lines, "\n")
		}
		return ""
	})
}

// Messages are counted by the destination that they wait for: what was deferred by one, and what is being delivered, of
// mailboxes of a next hop together; new mail and mail on hold wait for none.
func TestShapeByHop(t *testing.T) {
	t.Parallel()
	st := newStage(t, "lmtp_destination_recipient_limit = 1\n")
	st.routes["to.test"], st.routes["box.test"] = "smtp:[hub.test]", "lmtp:[box.test]:24"
	st.fill(deferredMail(queue.Hold, time.Minute, "s@from.test", "", "held@to.test"))
	smtp, lmtp := st.agent("smtp", proto.Inventory{}), st.agent("lmtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	for range 2 {
		st.arrive("s@from.test", "a@to.test")
		o := smtp.next()
		o.answer("defer")
	}
	st.arrive("s@from.test", "a@box.test")
	st.arrive("s@from.test", "b@box.test")
	lmtp.next()
	lmtp.next()
	var got []string
	testwait.For(t, func() string {
		var shape proto.ShapeReply
		if err := st.tool.Call(t.Context(), &proto.Shape{Queues: []string{"incoming", "active", "deferred", "hold"}, Split: true}, &shape); err != nil {
			t.Fatal(err)
		}
		counts := map[string]int{}
		for _, r := range shape.Rows {
			if r.Hops {
				counts[r.Queue+" "+r.Domain] += r.Counts[0]
			}
		}
		got = nil
		for _, k := range slices.Sorted(maps.Keys(counts)) {
			got = append(got, fmt.Sprintf("%s=%d", k, counts[k]))
		}
		if want := "active lmtp:[box.test]:24=2, deferred smtp:[hub.test]=2"; strings.Join(got, ", ") != want {
			return strings.Join(got, ", ")
		}
		return ""
	})
	var shape proto.ShapeReply
	if err := st.tool.Call(t.Context(), &proto.Shape{Queues: []string{"deferred"}}, &shape); err != nil || slices.ContainsFunc(shape.Rows, func(r proto.ShapeRow) bool { return r.Hops }) {
		t.Errorf("qshape is told of next hops: %+v, %v", shape, err)
	}
}
