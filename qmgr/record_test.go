package qmgr

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
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
	for _, c := range []struct{ name, node, says, not string }{
		{"log", "", "removed", "part of the queue"},
		{"shared", "a", "no longer in this node's part of the queue", "removed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			vanishes(t, c.node, c.says, c.not)
		})
	}
}

// vanishes has one of two messages vanish. Of that one the log says one thing and not another, and of the other message neither.
func vanishes(t *testing.T, node, says, not string) {
	st := newStage(t, "")
	st.node = node
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
	if node == "" {
		st.waitOp(ids[0], "its removal", removed)
	} else {
		// Not removed: this node may have that part of the queue again when cleanup hears of it.
		st.forgotten(ids[0])
	}
	st.waitExplain(ids[1], "deferred queue")
	log := st.log.String()
	if !strings.Contains(log, string(ids[0])+": "+says) || strings.Contains(log, string(ids[0])+": "+not) || strings.Contains(log, string(ids[1])+": "+says) {
		t.Error(log)
	}
	st.quiet()
	st.mu.Lock()
	defer st.mu.Unlock()
	if got := slices.ContainsFunc(st.ops, func(op proto.Op) bool { return op.ID == ids[0] && op.Remove }); got != (node == "") {
		t.Errorf("its removal is recorded: %v", got)
	}
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

// Changes of one message that wait together are one: the last value of each field counts, outcomes replace those of the
// same recipients, and what was not named stays. A removal takes the place of all.
func TestChangesMerge(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := &Server{now: at, closed: true}
	r := newRecorder(s)
	m := &message{id: mail.MakeQueueID(at, 5), num: 5}
	other := &message{id: mail.MakeQueueID(at, 6), num: 6}
	set := func(which queue.Field, c queue.Change) { c.Set = which; r.update(m, proto.Op{Change: c}) }
	set(queue.SetQueue, queue.Change{Queue: queue.Deferred})
	s.now = at.Add(time.Millisecond)
	r.done(other, []int{3})
	r.done(other, nil)
	set(queue.SetNextAttempt, queue.Change{NextAttempt: at.Add(time.Hour), Queue: queue.Hold})
	set(queue.SetAttempts, queue.Change{Attempts: 4})
	set(queue.SetWarned, queue.Change{Warned: true, Attempts: 9})
	set(queue.SetExpire, queue.Change{Expire: true})
	set(0, queue.Change{Outcomes: []mail.Outcome{{Rcpt: 0, Reason: "old"}, {Rcpt: 1, Reason: "first"}}, Warned: false})
	set(0, queue.Change{Outcomes: []mail.Outcome{{Rcpt: 0, Reason: "new"}, {Rcpt: 2, Reason: "third"}}})
	r.done(m, []int{7})
	r.done(m, []int{8})
	if len(r.ops) != 2 || r.ops[1].ID != other.id || !slices.Equal(r.ops[1].Done, []int{3}) {
		t.Fatalf("changes: %+v", r.ops)
	}
	op := r.ops[0]
	all := queue.SetQueue | queue.SetNextAttempt | queue.SetAttempts | queue.SetWarned | queue.SetExpire
	if op.ID != m.id || op.Set != all || op.Queue != queue.Deferred || !op.NextAttempt.Equal(at.Add(time.Hour)) || op.Attempts != 4 || !op.Warned || !op.Expire ||
		!slices.Equal(op.Done, []int{7, 8}) {
		t.Errorf("merged: %+v", op)
	}
	var reasons []string
	for _, o := range op.Outcomes {
		reasons = append(reasons, o.Reason)
	}
	if !slices.Equal(reasons, []string{"new", "first", "third"}) {
		t.Errorf("outcomes: %q", reasons)
	}
	// The time of the oldest says when they go, but for lines of the log that are due before.
	if r.conn = new(ipc.Conn); !r.due().Equal(at.Add(flushDelay)) {
		t.Errorf("they go at %v, not %v", r.due(), at.Add(flushDelay))
	}
	r.leaving = []farewell{{"x", at.Add(-farewellDelay)}}
	if !r.due().Equal(at) {
		t.Errorf("the end of a message is told at %v, not %v", r.due(), at)
	}
	r.leaving[0].at = at.Add(time.Hour)
	if !r.due().Equal(at.Add(flushDelay)) {
		t.Errorf("with a line that is due later they go at %v, not %v", r.due(), at.Add(flushDelay))
	}
	r.conn, r.leaving = nil, nil
	if !r.due().IsZero() {
		t.Errorf("without a cleanup they go at %v", r.due())
	}
	r.finish(m)
	if op := r.ops[0]; len(r.ops) != 2 || !op.Remove || !op.Finished || op.Set != 0 || op.Outcomes != nil || op.Done != nil || !slices.Equal(r.removed, []mail.QueueID{m.id}) {
		t.Errorf("removed: %+v, to be logged: %v", op, r.removed)
	}
	r.remove(other)
	if op := r.ops[1]; !op.Remove || op.Finished || len(r.removed) != 1 {
		t.Errorf("removed by order: %+v, to be logged: %v", op, r.removed)
	}
}

// A removal is remembered as often as it was decided, and as long as something is on its way that may be from before it.
func TestRemovalsRemembered(t *testing.T) {
	t.Parallel()
	s := &Server{now: time.Now(), closed: true, messages: map[sched.MsgID]*message{}, book: newBook()}
	r := newRecorder(s)
	s.log = r
	m := &message{id: mail.MakeQueueID(s.now, 5), num: 5}
	answer := func() {
		q := &request{ops: r.ops}
		r.ops, r.unacked = nil, append(r.unacked, q)
		clear(r.at)
		r.answered(q, new(proto.RecordReply), nil)
	}
	r.remove(m)
	first := r.ops
	r.ops = nil
	clear(r.at)
	r.remove(m)
	if !r.removing(m.id) || r.removing(mail.MakeQueueID(s.now, 6)) || r.removing(mail.MakeQueueID(s.now.Add(-time.Hour), 5)) {
		t.Error("another message is taken for the one that is removed, or that for none")
	}
	answer()
	if !r.removing(m.id) {
		t.Error("of two removals one is recorded, and the message may come back")
	}
	r.ops, r.pushing = first, true
	answer()
	if !r.removing(m.id) {
		t.Error("what cleanup tells of may be from before the removal, and the message may come back")
	}
	r.pushing, s.away.conn = false, new(ipc.Conn)
	r.settleLate()
	if !r.removing(m.id) {
		t.Error("a page may be from before the removal, and the message may come back")
	}
	s.away.conn, s.away.fetch = nil, new(sched.Fetch)
	r.settleLate()
	if !r.removing(m.id) {
		t.Error("what is due may be from before the removal, and the message may come back")
	}
	s.away.fetch, s.away.look = nil, false
	if r.settleLate(); r.removing(m.id) || len(r.late) != 0 || !s.away.look {
		t.Errorf("nothing is on its way, and %d removals are remembered, %d of them late; others may be forgotten: %v", len(r.gone), len(r.late), s.away.look)
	}
}

// What was told of parts of a recipient is unsure until all of it is durable.
func TestUnsure(t *testing.T) {
	t.Parallel()
	s := &Server{now: time.Now(), closed: true}
	r := newRecorder(s)
	m, other := &message{id: "a", num: 5}, &message{id: "b", num: 6}
	tell := func() *request {
		r.update(m, proto.Op{Change: queue.Change{Outcomes: []mail.Outcome{{Parts: []mail.Part{{Address: "x"}}}}}})
		r.update(other, proto.Op{Change: queue.Change{Outcomes: []mail.Outcome{{}}}})
		q := &request{ops: r.ops, waiters: r.waiters}
		r.ops, r.waiters = nil, nil
		clear(r.at)
		r.unacked = append(r.unacked, q)
		return q
	}
	first, last := tell(), tell()
	for i, q := range []*request{first, last} {
		if !r.unsure("a") || r.unsure("b") {
			t.Errorf("%d of two are recorded: unsure of a: %v, of b: %v", i, r.unsure("a"), r.unsure("b"))
		}
		s.away.look = false
		if r.answered(q, new(proto.RecordReply), nil); !s.away.look {
			t.Error("nobody looks whether a message may be forgotten now")
		}
	}
	if r.unsure("a") || len(r.spoken) != 0 {
		t.Errorf("all is recorded, and it is unsure: %v", r.spoken)
	}
}

// An answer that says that the connection is lost changes nothing: the request is sent again. One that says that cleanup
// cannot record is the same; one that is too large never gets through, and nobody is kept waiting for it.
func TestRecordingFails(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		err  error
		over bool
		line string
	}{
		{ipc.ErrLost, false, ""}, {ipc.ErrUnsent, false, ""}, {ipc.RemoteError("disk"), false, "warning: recording in the queue failed: "},
		{ipc.ErrTooLarge, true, "error: recording 1 changes in the queue failed: "},
	} {
		log := new(lockedLog)
		s := &Server{now: time.Now(), closed: true, opt: Options{Log: maillog.New("postfix/qmgr", maillog.NewWriter(log, maillog.Classic))}}
		r := newRecorder(s)
		heard := false
		q := &request{ops: []proto.Op{{ID: "a"}}, waiters: []func(){func() { heard = true }}, removed: []mail.QueueID{"a"}}
		r.unacked = []*request{q}
		r.answered(q, new(proto.RecordReply), x.err)
		if heard != x.over || (len(r.leaving) == 1) != x.over || r.idle() != x.over {
			t.Errorf("%v: who waits is told: %v; %d ends are to be logged; nothing is left: %v", x.err, heard, len(r.leaving), r.idle())
		}
		s.opt.Log.Flush()
		if got := log.String(); (got == "") != (x.line == "") || !strings.Contains(got, x.line) {
			t.Errorf("%v: logged %q", x.err, got)
		}
	}
}

// Handed out and lost deliveries: the former come before what is sent, as long as they go on; both have limits, and
// neither is for a message that is gone.
func TestHandOutLimits(t *testing.T) {
	t.Parallel()
	s := &Server{now: time.Now(), closed: true, messages: map[sched.MsgID]*message{5: {id: "a", num: 5}}, book: newBook(), entries: map[sched.EntryID]*delivery{}}
	r := newRecorder(s)
	d := func(n int) *delivery {
		x := &delivery{entry: sched.EntryID(len(s.entries) + 1), num: 5, sent: true, index: make([]int, n), nexthop: "hop"}
		s.entries[x.entry] = x
		return x
	}
	r.handOut("a", d(maxHandOuts))
	r.handOut("a", d(maxHandOuts+1))
	if len(r.handed) != 1 {
		t.Errorf("%d deliveries are to be recorded, want the one that is not too large", len(r.handed))
	}
	unsent, over := d(1), d(2)
	unsent.sent = false
	r.handOut("a", unsent)
	r.handOut("a", over)
	delete(s.entries, over.entry)
	r.ops = []proto.Op{{ID: "b"}}
	if r.handedOut(); len(r.ops) != 2 || len(r.ops[0].Handed) != maxHandOuts || r.ops[0].Nexthop != "hop" || r.ops[1].ID != "b" || len(r.handed) != 0 {
		t.Errorf("%d changes, %d deliveries left", len(r.ops), len(r.handed))
	}
	for range maxHandOuts + 1 {
		r.handOut("a", d(1))
	}
	if len(r.handed) != maxHandOuts {
		t.Errorf("%d deliveries are to be recorded, want %d", len(r.handed), maxHandOuts)
	}
	r.ops = nil
	gone := d(1)
	gone.num = 6
	if r.lost(gone); len(r.ops) != 0 {
		t.Errorf("recorded of a message that is gone: %+v", r.ops)
	}
	r.since = time.Time{}
	if r.lost(d(2)); len(r.ops) != 1 || !r.ops[0].Lost || !r.since.Equal(s.now) {
		t.Errorf("recorded %+v, since %v", r.ops, r.since)
	}
	s.now = s.now.Add(time.Second)
	if r.lost(d(1)); len(r.ops) != 2 || r.since.Equal(s.now) {
		t.Errorf("%d changes are recorded, the oldest since %v", len(r.ops), r.since)
	}
}
