package qmgr

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/statedir"
	"posthaste/internal/testwait"
)

// keep gives the stage a store of overrides, as one that was there before has left it.
func (st *stage) keep() {
	st.t.Helper()
	path := filepath.Join(st.site.Queue, "overrides")
	dir, err := statedir.Open(path)
	if err != nil {
		st.t.Fatal(err)
	}
	if st.overrides, err = override.Open(dir); err != nil {
		st.t.Fatal(err)
	}
	st.t.Cleanup(func() { st.overrides.Close() })
}

func (st *stage) override(op proto.OverrideOp, target, reason string, until time.Time) *proto.OverrideReply {
	st.t.Helper()
	var reply proto.OverrideReply
	q := &proto.Override{Op: op, Entry: proto.OverrideEntry{Of: "suspension", Target: target, By: "ann", Reason: reason, Until: until}}
	if err := st.tool.Call(st.t.Context(), q, &reply); err != nil {
		st.t.Fatal(err)
	}
	if reply.Refused != "" {
		st.t.Fatal(reply.Refused)
	}
	return &reply
}

// explainDest is what the queue manager says of a destination.
func (st *stage) explainDest(text string) string {
	st.t.Helper()
	var reply proto.ExplainReply
	if err := st.tool.Call(st.t.Context(), &proto.Explain{Destination: text}, &reply); err != nil {
		st.t.Fatal(err)
	}
	return strings.Join(reply.Lines, "\n")
}

// waitDest waits until what is said of a destination has all parts: what a flush has stirred settles
// again.
func (st *stage) waitDest(destination string, parts ...string) {
	st.t.Helper()
	testwait.For(st.t, func() string {
		text := st.explainDest(destination)
		if i := slices.IndexFunc(parts, func(p string) bool { return !strings.Contains(text, p) }); i >= 0 {
			return fmt.Sprintf("not said: %q\n%s", parts[i], text)
		}
		return ""
	})
}

func expectText(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q lacks %q", text, p)
		}
	}
}

// A suspension of a domain keeps mail that goes to it through a relay host from
// being tried, mailbox by mailbox, is explained at once, costs no attempt, is
// not ended by a flush, and lets other recipients of the same message go.
func TestSuspend(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_destination_recipient_limit = 1\n")
	st.routes["slow.test"], st.routes["quick.test"] = "smtp:[hub.test]", "smtp:[hub.test]"
	st.keep()
	both := deferredMail(queue.Hold, time.Minute, "s@from.test", "", "a@slow.test", "b@quick.test")
	both.Attempts = 0
	ids := st.fill(deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 wait", "before@slow.test"), both)
	old, id := ids[0], ids[1]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.override(proto.OverridePut, "slow.test", "they asked us", time.Time{})
	expectText(t, st.explain(old), "1 recipient(s) are not going to be tried: slow.test is suspended by ann since ", ": they asked us")
	st.command(proto.Command{Verb: proto.VerbRelease, ID: id})
	o := smtp.next()
	if len(o.Envelope.Recipients) != 1 || o.Envelope.Recipients[0].Address != "b@quick.test" {
		t.Fatalf("ordered: %+v", o.Envelope.Recipients)
	}
	o.answer("ok")
	op := st.waitOp(id, "its deferral", func(op *proto.Op) bool { return len(op.Outcomes) > 0 })
	if op.Attempts != 0 || len(op.Outcomes) != 1 || op.Outcomes[0].Reason != "delivery to slow.test is suspended: they asked us" {
		t.Errorf("recorded: %+v", op)
	}
	text := st.explain(id)
	expectText(t, text, "wait and are not tried: slow.test is suspended by ann since ", "until \"posthaste resume slow.test\"")
	if n := strings.Count(text, "is suspended by"); n != 1 {
		t.Errorf("the suspension is named %d times:\n%s", n, text)
	}
	st.command(proto.Command{Verb: proto.VerbFlush, All: true})
	st.command(proto.Command{Verb: proto.VerbFlush, ID: id})
	st.waitDest("slow.test", "slow.test: ", "slow.test is suspended by ann", "last reply to 1 of the first 2 messages, at ", ": 4.2.0 450 wait")
	reply := st.override(proto.OverrideList, "", "", time.Time{})
	if len(reply.Entries) != 1 || reply.Waiting[0] < 1 {
		t.Errorf("listed: %+v", reply)
	}
	if log := st.log.String(); !strings.Contains(log, "delivery to slow.test suspended by ann: they asked us\n") {
		t.Errorf("log:\n%s", log)
	}
	if r := st.override(proto.OverrideRemove, "slow.test", "", time.Time{}); !r.Found {
		t.Error("it was not found")
	}
	seen := map[string]bool{}
	for range 2 { // the other one was made due by the flush, and then waited for the same
		o := smtp.next()
		seen[o.Envelope.Recipients[0].Address] = true
		o.answer("ok")
	}
	if !seen["a@slow.test"] || !seen["before@slow.test"] {
		t.Errorf("delivered: %v", seen)
	}
}

// A damaged file of suspensions is told in the log, and its copy counts.
func TestSuspensionsRestored(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	for _, lost := range []string{"", "overrides", "overrides.copy"} {
		name := filepath.Join(data, "overrides", lost)
		if lost != "" {
			if err := os.WriteFile(name, []byte("lost"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var log bytes.Buffer
		l := maillog.New("postfix/qmgr", maillog.NewWriter(&log, maillog.Classic))
		store, err := openOverrides(data, l)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		if lost == "" {
			err = store.Put(override.Entry{Kind: override.Suspension, Target: "to.test", By: "ann", Since: now}, now)
		}
		if n := len(store.Entries(now)); n != 1 || err != nil {
			t.Errorf("%q lost: %d suspensions, %v", lost, n, err)
		}
		if err := errors.Join(store.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		if told := strings.Contains(log.String(), "its copy counts"); told != (lost == "overrides") {
			t.Errorf("%q lost: log:\n%s", lost, log.String())
		}
	}
}

// What waits in the active queue when a suspension begins is taken out of it.
func TestSuspendActive(t *testing.T) {
	t.Parallel()
	st := newStage(t, "default_destination_concurrency_limit = 1\n")
	st.keep()
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	first := st.arrive("s@from.test", "a@to.test")
	o := smtp.next()
	second := st.arrive("s@from.test", "b@to.test")
	st.waitExplain(second, "waits .* for one of the 1 deliveries")
	st.override(proto.OverridePut, "smtp:to.test", "", time.Now().Add(time.Hour))
	op := st.waitOp(second, "its deferral", inQueue(queue.Deferred))
	if wait := time.Until(op.NextAttempt); op.Attempts != 0 || wait < 50*time.Minute || wait > 61*time.Minute {
		t.Errorf("recorded: %+v, next in %v", op, wait)
	}
	o.answer("ok")
	st.waitOp(first, "its removal", removed)
	expectText(t, st.explain(second), "smtp:to.test is suspended by ann since ", " until ")
}

// What was suspended is suspended after a restart, before anything is tried.
// A second queue manager, as during a reload, knows it as well, and takes
// orders when the first is gone.
func TestSuspensionsLast(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.keep()
	if err := st.overrides.Put(override.Entry{Kind: override.Suspension, Target: "*", By: "ann", Since: time.Now()}, time.Now()); err != nil {
		t.Fatal(err)
	}
	former := st.overrides
	st.keep() // the former one still has the lock
	id := st.fill(faketest.Mail{Queue: queue.Deferred, Next: time.Now().Add(-time.Second), Attempts: 3, Content: "x\r\n",
		Envelope: deferredMail(0, 0, "s@from.test", "", "r@to.test").Envelope})[0]
	st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	op := st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	if op.Attempts != 3 {
		t.Errorf("recorded: %+v", op)
	}
	q := &proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: "suspension", Target: "*"}}
	var reply proto.OverrideReply
	if err := st.tool.Call(t.Context(), q, &reply); err != nil || reply.Refused != override.ErrNotOwner.Error() {
		t.Errorf("%+v, %v", reply, err)
	}
	former.Close()
	st.until("it is the owner", func() bool { return st.overrides.Owner() })
	st.override(proto.OverrideRemove, "*", "", time.Time{})
}

// queue_only_destinations are compared with mail as ETRN is, also when each
// recipient is a destination of its own, and an ETRN starts it.
func TestQueueOnly(t *testing.T) {
	t.Parallel()
	st := newStage(t, "queue_only_destinations = dial.test .dial.test\nfast_flush_domains = dial.test sub.dial.test\nsmtp_destination_recipient_limit = 1\n")
	st.routes["dial.test"], st.routes["sub.dial.test"] = "smtp:[modem.test]", "smtp:[modem.test]"
	due := func(to string) faketest.Mail {
		m := deferredMail(queue.Deferred, time.Minute, "s@from.test", "", to)
		m.Next, m.Attempts = time.Now().Add(-time.Second), 0
		return m
	}
	ids := st.fill(due("a@dial.test"), due("a@sub.dial.test"))
	id, sub := ids[0], ids[1]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	for _, id := range []mail.QueueID{id, sub} {
		op := st.waitOp(id, "its deferral", inQueue(queue.Deferred))
		if op.Attempts != 0 {
			t.Errorf("recorded: %+v", op)
		}
	}
	expectText(t, st.explain(id), "dial.test is queue-only (queue_only_destinations)")
	st.command(proto.Command{Verb: proto.VerbFlush, Site: "dial.test"})
	if o := smtp.next(); o.Envelope.ID != id {
		t.Errorf("ordered: %s", o.Envelope.ID)
	} else {
		o.answer("ok")
	}
	st.waitOp(id, "its removal", removed)
}

// Mail for a destination that an operator has suspended, and that is queue-only besides, waits for the
// suspension, and is counted as such.
func TestSuspendQueueOnly(t *testing.T) {
	t.Parallel()
	st := newStage(t, "queue_only_destinations = dial.test\n")
	st.keep()
	st.run()
	st.waitAttached(1)
	st.override(proto.OverridePut, "dial.test", "the line is down", time.Time{})
	for _, to := range []string{"a@dial.test", "b@dial.test"} {
		st.waitOp(st.arrive("s@from.test", to), "its deferral", inQueue(queue.Deferred))
	}
	testwait.For(t, func() string {
		if reply := st.override(proto.OverrideList, "", "", time.Time{}); len(reply.Entries) != 1 || reply.Waiting[0] != 2 {
			return fmt.Sprintf("listed: %+v", reply)
		}
		return ""
	})
	st.override(proto.OverrideRemove, "dial.test", "", time.Time{})
	expectText(t, st.explainDest("dial.test"), "dial.test is queue-only (queue_only_destinations)")
}

// Of a destination it is said what the scheduler has, what is dead and since when,
// how much waits, and what was last said of it.
func TestExplainDestination(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.fill(deferredMail(queue.Deferred, 2*time.Hour, "s@from.test", "450 4.2.0 come back", "a@to.test", "b@to.test"),
		deferredMail(queue.Hold, time.Hour, "s@from.test", "", "c@to.test"))
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "d@to.test")
	o := smtp.next()
	st.until("everything has been read", func() bool {
		st.mu.Unlock()
		defer st.mu.Lock()
		return !strings.Contains(st.explainDest("to.test"), "not been looked at")
	})
	expectText(t, st.explainDest("to.test"), "to.test: 2 message(s) with 3 recipient(s) in this domain are queued, the oldest since ", "; next attempt at ",
		"; 1 message(s) of the queue, on hold or not due soon, are not looked at for this",
		"smtp to to.test: 1 deliveries under way, 0 wait; window ", "last reply to 1 of the first 2 messages, at ", "4.2.0 450 4.2.0 come back")
	o.answer("ok")
	expectText(t, st.explainDest("[other.test]:25"), "posthaste queue list --nexthop='[other.test]:25'")
	expectText(t, st.explainDest("a b"), "blanks")
}

// With queue_only_destinations = * all mail waits, but for what the queue manager itself decides on: what must
// fail goes back to its sender, and is not kept until somebody asks for it.
func TestAllQueueOnly(t *testing.T) {
	t.Parallel()
	st := newStage(t, "queue_only_destinations = *\n")
	st.routes["never.test"], st.routes["later.test"] = "error:5.1.2 no such host", "retry:4.3.0 no table"
	waits := deferredMail(queue.Deferred, time.Minute, "s@from.test", "", "a@to.test")
	waits.Next, waits.Attempts = time.Now().Add(-time.Second), 0
	id := st.fill(waits)[0]
	bounces, defers := st.agent("error", proto.Inventory{}), st.agent("retry", proto.Inventory{})
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	op := st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	if op.Attempts != 0 {
		t.Errorf("recorded: %+v", op)
	}
	st.arrive("s@from.test", "b@never.test")
	o := bounces.next()
	o.answer("ok")
	st.arrive("s@from.test", "c@later.test")
	o = defers.next()
	o.answer("ok")
	st.command(proto.Command{Verb: proto.VerbFlush, ID: id}) // which is what it waits for
	o = smtp.next()
	if o.Envelope.Recipients[0].Address != "a@to.test" {
		t.Errorf("ordered: %+v", o.Envelope.Recipients)
	}
	o.answer("ok")
	st.waitOp(id, "its removal", removed)
}

// overrideOf carries out an operation on an override of a kind, and returns the answer, also when it is refused.
func (st *stage) overrideOf(kind override.Kind, op proto.OverrideOp, target string) *proto.OverrideReply {
	st.t.Helper()
	var reply proto.OverrideReply
	q := &proto.Override{Op: op, Entry: proto.OverrideEntry{Of: string(kind), Target: target, By: "ann"}}
	if err := st.tool.Call(st.t.Context(), q, &reply); err != nil {
		st.t.Fatal(err)
	}
	return &reply
}
