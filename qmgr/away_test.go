package qmgr

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/qmgr/sched"
)

// narrow is a stage on which only three of n deferred messages are in memory, each with a
// domain of its own, due one a minute, and one on hold.
func narrow(t *testing.T, n int, main string) (st *stage, ids []mail.QueueID) {
	st = newStage(t, main)
	st.exact, st.deferredLimit, st.queue.perPage = true, 3, 4
	var mails []faketest.Mail
	for i := range n {
		mails = append(mails, deferredIn(time.Duration(i+60)*time.Minute, fmt.Sprintf("r@d%d.test", i)))
	}
	mails = append(mails, deferredMail(queue.Hold, time.Hour, "s@from.test", "", "held@to.test"))
	return st, st.fill(mails...)
}

// deferredIn is a message that is due in a while.
func deferredIn(d time.Duration, rcpt string) faketest.Mail {
	m := deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 x", rcpt)
	m.Next = time.Now().Add(d)
	return m
}

// inMemory is how many deferred messages and such on hold are in memory, once all has
// settled that can.
func (st *stage) inMemory() (n int) {
	st.t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		ch := make(chan bool)
		st.srv.post(func() {
			s := st.srv.sched.Stats()
			n = s.Deferred + s.Hold
			a := &st.srv.away
			ch <- st.srv.told && a.fetch == nil && a.conn == nil && len(a.reads)+len(a.leaving) == 0 && a.pass == nil && st.srv.log.idle()
		}, sched.Event{})
		if <-ch {
			return n
		}
		if time.Now().After(limit) {
			st.t.Fatal("it never settles")
		}
	}
}

// What is not in memory is listed, selected, explained and counted as what is, and every command
// reaches it.
func TestAwayTools(t *testing.T) {
	t.Parallel()
	const n = 11
	st, ids := narrow(t, n, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	if got := st.inMemory(); got != 3 {
		t.Fatalf("%d messages are in memory, want 3", got)
	}
	if got := st.selected(0, ""); !slices.Equal(got, ids) {
		t.Errorf("listed: %v, want %v", got, ids)
	}
	if got := st.selected(0, "domain=d9.test"); !slices.Equal(got, ids[9:10]) {
		t.Errorf("selected: %v", got)
	}
	if rows, unread := st.shape(false, "deferred", "hold"); len(rows)+unread != n+1 {
		t.Errorf("counted: %v, and %d unread", rows, unread)
	}
	var item proto.ListReply
	if err := st.tool.Call(t.Context(), &proto.List{ID: ids[8]}, &item); err != nil || len(item.Items) != 1 || item.Items[0].Recipients[0].Address != "r@d8.test" {
		t.Errorf("listed by ID: %+v, %v", item, err)
	}
	expectText(t, st.explain(ids[10]), "deferred queue", "next attempt at", "r@d10.test")
	expectText(t, st.explain(ids[n]), "hold queue", "on hold")
	for _, c := range []struct {
		q    proto.Command
		want func(*proto.Op) bool
	}{
		{proto.Command{Verb: proto.VerbHold, ID: ids[10]}, inQueue(queue.Hold)},
		{proto.Command{Verb: proto.VerbDelete, ID: ids[9]}, removed},
		{proto.Command{Verb: proto.VerbDelete, ID: ids[10]}, removed},
		{proto.Command{Verb: proto.VerbExpire, ID: ids[8]}, func(op *proto.Op) bool { return op.Expire }},
	} {
		if got := st.command(c.q); !slices.Equal(got, []mail.QueueID{c.q.ID}) {
			t.Errorf("%+v: %v", c.q, got)
		}
		st.waitOp(c.q.ID, fmt.Sprint(c.q.Verb), c.want)
	}
	if got := st.command(proto.Command{Verb: proto.VerbDelete, ID: ids[9]}); got != nil {
		t.Errorf("deleted twice: %v", got)
	}
	for _, q := range []proto.Command{{Verb: proto.VerbFlush, ID: ids[7]}, {Verb: proto.VerbRelease, ID: ids[n]}} {
		st.command(q)
		o := smtp.next()
		if o.Envelope.ID != q.ID {
			t.Errorf("ordered: %s, not %s", o.Envelope.ID, q.ID)
		}
		o.answer("ok")
		st.waitOp(q.ID, "its removal", removed)
	}
	if got := st.selected(proto.VerbDelete, "sender=s@from.test queue=deferred"); len(got) != 8 {
		t.Errorf("deleted: %v", got)
	}
	if got := st.inMemory(); got != 0 {
		t.Errorf("%d messages are in memory", got)
	}
	st.quiet()
}

// A flush of all mail reaches all, once, and one of a site what is for it; what fails again is
// forgotten again.
func TestAwayFlush(t *testing.T) {
	t.Parallel()
	const n = 25
	st, ids := narrow(t, n, "fast_flush_domains = d20.test d21.test\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.inMemory()
	st.command(proto.Command{Verb: proto.VerbFlush, Site: "D21.test"})
	o := smtp.next()
	if o.Envelope.ID != ids[21] {
		t.Fatalf("ordered: %s, not %s", o.Envelope.ID, ids[21])
	}
	o.answer("defer")
	st.waitOp(ids[21], "its deferral", inQueue(queue.Deferred))
	if got := st.inMemory(); got > 4 {
		t.Errorf("%d messages are in memory", got)
	}
	st.command(proto.Command{Verb: proto.VerbFlush})
	tried := map[mail.QueueID]int{}
	for range n {
		o := smtp.next()
		tried[o.Envelope.ID]++
		o.answer("ok")
	}
	for _, id := range ids[:n] {
		if tried[id] != 1 {
			t.Errorf("%s was tried %d times", id, tried[id])
		}
		st.waitOp(id, "its removal", removed)
	}
	if got := st.inMemory(); got != 0 {
		t.Errorf("%d messages are in memory", got)
	}
	st.quiet()
}

// The flush of a site reaches what waits for a host of that name, also where its recipients are elsewhere: the scheduler alone knows of
// it. That is so for the first page of the queue, which may be the last.
func TestAwayFlushHost(t *testing.T) {
	t.Parallel()
	st, _ := narrow(t, 6, "fast_flush_domains = hub.test\ninitial_destination_concurrency = 1\n")
	st.queue.perPage = 100
	st.routes["behind.test"] = "smtp:hub.test"
	behind := st.fill(deferredIn(-time.Minute, "x@behind.test"))[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	o := smtp.next()
	o.answer("site")
	st.waitOp(behind, "its deferral", inQueue(queue.Deferred))
	st.inMemory()
	st.command(proto.Command{Verb: proto.VerbFlush, Site: "hub.test"})
	if o = smtp.next(); o.Envelope.ID != behind {
		t.Fatalf("ordered: %s, not %s", o.Envelope.ID, behind)
	}
	o.answer("ok")
	st.waitOp(behind, "its removal", removed)
}

// A change that cleanup has refused is known to this process alone: the message stays in memory, as it was changed.
func TestAwayRefused(t *testing.T) {
	t.Parallel()
	const n = 11
	st, ids := narrow(t, n, "")
	st.contra = ids[n-1]
	st.run()
	st.waitAttached(1)
	st.inMemory()
	for _, id := range ids[n-2 : n] {
		var reply proto.CommandReply
		err := st.tool.Call(t.Context(), &proto.Command{Verb: proto.VerbHold, ID: id}, &reply)
		if refused := err != nil && strings.Contains(err.Error(), "a change is not recorded"); refused != (id == st.contra) {
			t.Errorf("%+v, %v", reply, err)
		}
	}
	st.until("it is looked what may be forgotten", func() bool {
		looked := make(chan bool)
		st.srv.post(func() {
			_, busy := st.srv.log.unrecorded()[ids[n-2]]
			looked <- st.srv.log.idle() && !st.srv.away.look && !busy && !st.srv.knows(msgID(ids[n-2]))
		}, sched.Event{})
		return <-looked
	})
	if got := st.explain(st.contra); !strings.Contains(got, ": hold queue since") || !strings.Contains(got, "it cannot be") {
		t.Errorf("it was forgotten:\n%s", got)
	}
}

// What is due is taken up, however much of it there is, and what agents report of mail
// that is not in memory is recorded.
func TestAwayDue(t *testing.T) {
	t.Parallel()
	const n = 40
	st := newStage(t, "")
	st.exact, st.deferredLimit = true, 2
	var mails []faketest.Mail
	for i := range n {
		mails = append(mails, deferredIn(time.Duration(i-n)*time.Minute, fmt.Sprintf("r@d%d.test", i)))
	}
	mails = append(mails, deferredIn(10*time.Hour, "last@to.test"),
		deferredIn(9*time.Hour, "other@to.test"), deferredIn(8*time.Hour, "other@to.test"))
	ids := st.fill(mails...)
	smtp := st.agent("smtp", proto.Inventory{Finished: []proto.Finished{{ID: ids[n], Reply: proto.DeliverReply{Outcomes: said("ok", 0)}}}})
	st.run()
	for range n {
		o := smtp.next()
		o.answer("ok")
	}
	for _, id := range ids[:n] {
		st.waitOp(id, "its removal", removed)
	}
	st.waitOp(ids[n], "its removal", removed)
	if got := st.inMemory(); got < 1 || got > 2 {
		t.Errorf("%d messages are in memory", got)
	}
	if log := st.log.String(); strings.Count(log, "queue active") != n+1 {
		t.Errorf("some message was taken up twice, or not at all:\n%s", log)
	}
	st.quiet()
}
