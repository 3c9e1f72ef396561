package qmgr

import (
	"context"
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

// What cleanup refuses to record the operator is told of, who would believe
// that the message is on hold; and a message that is gone after all is gone.
func TestRefused(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	ids := st.fill(faketest.Mail{Queue: queue.Deferred, Attempts: 1, Next: time.Now().Add(time.Hour), Content: "x\r\n",
		Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: "a@to.test"}}}})
	id := ids[0]
	st.contra = id
	st.run()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := st.tool.Call(ctx, &proto.Command{Verb: proto.VerbHold, ID: id}, nil)
	if err == nil || !strings.Contains(err.Error(), string(id)+": a change is not recorded") || !strings.Contains(err.Error(), "it cannot be") {
		t.Errorf("hold: %v", err)
	}
	if got := st.explain(id); !strings.Contains(got, "would not outlive a restart: it cannot be") {
		t.Errorf("explain:\n%s", got)
	}
	if got := st.command(proto.Command{Verb: proto.VerbDelete, ID: id}); len(got) != 1 {
		t.Errorf("deleted: %v", got)
	}
	st.waitOp(id, "that it is gone", removed)
}

// order gives an operator's order, and does not wait until it is recorded.
func (st *stage) order(q proto.Command) {
	st.t.Helper()
	conn, err := st.tool.Conn(st.t.Context())
	if err != nil {
		st.t.Fatal(err)
	}
	conn.Go(&q, func([]byte, error) {})
}

// Cleanup is asked to hurry with what somebody waits for, and with nothing else.
func TestUrgent(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	id := st.fill(many(1, "to.test"))[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	urgent := func(want ...int) func() bool { return func() bool { return slices.Equal(st.urgent, want) } }
	o := smtp.next()
	o.answer("defer")
	st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	st.until("nothing is urgent so far", urgent())
	st.command(proto.Command{Verb: proto.VerbHold, ID: id})
	st.until("the change is urgent", urgent(1))
	st.command(proto.Command{Verb: proto.VerbHold, ID: id}) // no change, and nothing on its way
	st.until("no other is", urgent(1))

	// A change on its way was not urgent, but now somebody waits for it.
	st.mu.Lock()
	st.deaf = true
	st.mu.Unlock()
	st.arrive("s@from.test", "b@to.test")
	o = smtp.next()
	o.answer("defer")
	st.until("the deferral is sent", func() bool { return st.unheard > 0 })
	st.order(proto.Command{Verb: proto.VerbHold, ID: "none"})
	st.until("cleanup is asked to hurry", urgent(1, 0))
	st.mu.Lock()
	st.deaf = false
	st.cleanup.Close() // all is sent again, and answered
	st.mu.Unlock()
	st.until("all is sent again", urgent(1, 0, 0))
}

// Whoever waits until all is durable waits for all requests, also when cleanup answers the last of
// them first.
func TestWaitsForEarlier(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} { // whether somebody begins to wait after that answer
		s := &Server{now: time.Now(), closed: true}
		r := newRecorder(s)
		first, last := &request{urgent: true}, &request{urgent: true}
		r.unacked = []*request{first, last}
		var heard int
		if !late {
			last.waiters = append(last.waiters, func() { heard++ })
		}
		r.answered(last, new(proto.RecordReply), nil)
		if late {
			r.after(func() { heard++ })
			r.flush(s.now)
		}
		if heard != 0 {
			t.Errorf("late %v: the first request is not answered, and %d are told that all is durable", late, heard)
		}
		r.answered(first, new(proto.RecordReply), nil)
		if heard != 1 || !r.idle() {
			t.Errorf("late %v: all is answered, and %d are told so; %d requests are left", late, heard, len(r.unacked))
		}
	}
}

// A message that is held or deleted while it is being delivered is on hold on record before the operator is told, and not
// only when the delivery ends: a restart in between must not have it delivered to anybody.
func TestCommandsDuringDelivery(t *testing.T) {
	t.Parallel()
	for verb, end := range map[proto.Verb]func(*proto.Op) bool{proto.VerbHold: inQueue(queue.Hold), proto.VerbDelete: removed} {
		st := newStage(t, "")
		id := st.fill(many(1, "to.test"))[0]
		smtp := st.agent("smtp", proto.Inventory{})
		st.run()
		o := smtp.next()
		if got := st.command(proto.Command{Verb: verb, ID: id}); len(got) != 1 {
			t.Errorf("%d: %q", verb, got)
		}
		st.mu.Lock()
		if n := len(st.ops); n == 0 || !inQueue(queue.Hold)(&st.ops[n-1]) || st.ops[n-1].Remove {
			t.Errorf("%d: recorded when the operator is told: %+v", verb, st.ops)
		}
		st.ops = nil
		st.mu.Unlock()
		o.answer("defer")
		st.waitOp(id, "the end", end)
		select {
		case o := <-smtp.orders:
			t.Errorf("%d: ordered: %+v", verb, o.Deliver)
		default:
		}
		st.quiet()
	}
}

// A message that cleanup does not have any more when it is deferred is dropped, and not tried again.
func TestVanished(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	ids := st.fill(many(1, "to.test"), many(1, "to.test"))
	st.vanished = ids[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	for range ids {
		o := smtp.next()
		o.answer("defer")
	}
	for _, id := range ids {
		st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	}
	st.waitOp(ids[0], "its removal", removed)
	st.waitExplain(ids[1], "deferred queue")
	if log := st.log.String(); !strings.Contains(log, string(ids[0])+": removed") || strings.Contains(log, string(ids[1])+": removed") {
		t.Error(log)
	}
	st.quiet()
}

// While a message is being queued again it is no wonder that cleanup does not have the old one any more.
func TestRequeuedHasNotVanished(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	m := many(1, "to.test")
	m.Queue, m.Attempts, m.Next = queue.Deferred, 1, time.Now().Add(time.Hour)
	id := st.fill(m)[0]
	st.located[id] = true
	gate := make(chan struct{})
	st.gate = gate
	st.run()
	st.order(proto.Command{Verb: proto.VerbRequeue, ID: id})
	st.until("it is being queued again", func() bool {
		gone := make(chan bool)
		st.srv.post(func() {
			_, ok := st.srv.sched.Lookup(msgID(id))
			gone <- !ok && st.srv.messages[msgID(id)] != nil
		}, sched.Event{})
		return <-gone
	})
	done := make(chan bool)
	st.srv.post(func() { st.srv.log.vanished(id); close(done) }, sched.Event{})
	<-done
	close(gate)
	st.until("it is queued again", func() bool { return strings.Contains(st.log.String(), string(id)+": requeued as ") })
	if log := st.log.String(); strings.Contains(log, string(id)+": removed") {
		t.Error(log)
	}
	st.quiet()
}

// A removal that cleanup refuses is not told as done, neither for one message nor for a selection. Once it is recorded nothing is
// left of the refusal.
func TestRefusedRemoval(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	ids := st.fill(deferredIn(time.Hour, "a@to.test"), deferredIn(time.Hour, "b@to.test"), deferredIn(time.Hour, "c@to.test"))
	st.kept = ids[0]
	st.run()
	st.waitAttached(1)
	err := st.tool.Call(t.Context(), &proto.Command{Verb: proto.VerbDelete, ID: ids[0]}, nil)
	if err == nil || !strings.Contains(err.Error(), string(ids[0])+": a change is not recorded") || !strings.Contains(err.Error(), "it cannot be") {
		t.Errorf("deleted: %v", err)
	}
	st.mu.Lock()
	st.kept = ids[1]
	st.mu.Unlock()
	var reply proto.SelectReply
	if err := st.tool.Call(t.Context(), &proto.Select{IDs: ids[1:], Verb: proto.VerbDelete}, &reply); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(reply.IDs, ids[2:]) || len(reply.Failed) != 1 || !strings.HasPrefix(reply.Failed[0], string(ids[1])+": ") {
		t.Errorf("%+v", reply)
	}
	if want := st.site.Entries()[ids[2]].Size; reply.Octets != want {
		t.Errorf("%d octets are deleted, want %d", reply.Octets, want)
	}
	left := make(chan int, 1)
	st.srv.post(func() {
		st.srv.log.answered(&request{ops: []proto.Op{{ID: ids[0], Remove: true}}}, new(proto.RecordReply), nil)
		left <- len(st.srv.log.refused)
	}, sched.Event{})
	if n := <-left; n != 1 {
		t.Errorf("%d refusals are remembered, want that of %s", n, ids[1])
	}
}
