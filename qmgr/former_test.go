package qmgr

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/statedir"
	"posthaste/qmgr/sched"
)

// said is an outcome for each of these recipients.
func said(word string, rcpts ...int) (list []mail.Outcome) {
	for _, i := range rcpts {
		o := mail.Outcome{Rcpt: i, Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: "250 ok", Relay: "peer", When: time.Now()}
		if word == "defer" {
			o.Action, o.Status, o.Reason = dsn.Deferred, dsn.S(4, 2, 0), "450 later"
		}
		list = append(list, o)
	}
	return list
}

// span are the numbers from i up to, and without, j.
func span(i, j int) (list []int) {
	for ; i < j; i++ {
		list = append(list, i)
	}
	return list
}

// many is mail for n recipients in one domain.
func many(n int, domain string) faketest.Mail {
	m := faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3}}
	for i := range n {
		m.Envelope.Recipients = append(m.Envelope.Recipients, mail.Recipient{Address: fmt.Sprintf("r%03d@%s", i, domain)})
	}
	return m
}

// push says something over the connection that the queue manager has made.
func (a *fakeAgent) push(inv *proto.Inventory) {
	a.st.t.Helper()
	a.st.until("the queue manager comes", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.conn != nil
	})
	a.conn.Push(inv)
}

// A former queue manager's delivery settles its own recipients and no others:
// those who are in the same order are ordered when it has ended.
func TestFormerInPart(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	id := st.fill(many(15, "to.test"))[0]
	smtp := st.agent("smtp", proto.Inventory{Running: []proto.Delivery{{ID: id, Index: span(5, 15)}}})
	st.run()
	st.waitExplain(id, "being delivered")
	smtp.push(&proto.Inventory{Finished: []proto.Finished{{ID: id, Reply: proto.DeliverReply{Outcomes: said("ok", span(5, 15)...)}}}})
	o := smtp.next()
	if !slices.Equal(o.Index, span(0, 5)) {
		t.Errorf("ordered: %v", o.Index)
	}
	o.answer("ok", "ok", "ok", "ok", "defer")
	op := st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	if len(op.Outcomes) != 1 || op.Outcomes[0].Rcpt != 4 {
		t.Errorf("recorded: %+v", op)
	}
	st.quiet()
}

// Every order that waits for a former delivery hears of its end.
func TestFormerOfTwoOrders(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_destination_recipient_limit = 10\n")
	id := st.fill(many(20, "to.test"))[0]
	smtp := st.agent("smtp", proto.Inventory{Running: []proto.Delivery{{ID: id, Index: span(5, 15)}}})
	st.run()
	st.waitExplain(id, "(?s)being delivered.*being delivered")
	smtp.push(&proto.Inventory{Finished: []proto.Finished{{ID: id, Reply: proto.DeliverReply{Outcomes: said("ok", span(5, 15)...)}}}})
	var got []int
	for range 2 {
		o := smtp.next()
		got = append(got, o.Index...)
		o.answer(slices.Repeat([]string{"ok"}, len(o.Index))...)
	}
	if slices.Sort(got); !slices.Equal(got, append(span(0, 5), span(15, 20)...)) {
		t.Errorf("ordered: %v", got)
	}
	st.waitOp(id, "its removal", removed)
	st.quiet()
}

// After a reload only those recipients wait whom the old agents are still delivering to. The others of the
// same message, for the same destination, go to an agent at once, and what comes of them is recorded
// while the old deliveries hang.
func TestFormerHangs(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"", "smtp_destination_recipient_limit = 4\n"} {
		st := newStage(t, limit)
		var err error
		if st.state, err = statedir.Open(filepath.Join(t.TempDir(), "state")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { st.state.Close() })
		st.routes["other.test"] = "smtp:other.test"
		m := many(15, "to.test")
		m.Envelope.Recipients[14].Address = "else@other.test"
		id := st.fill(m)[0]
		hanging := []proto.Delivery{{ID: id, Index: []int{3, 4, 9}}, {ID: id, Index: []int{0, 12}}}
		if err := (&handover{written: time.Now(), running: hanging}).leave(st.state); err != nil {
			t.Fatal(err)
		}
		smtp := st.agent("smtp", proto.Inventory{})
		st.run()
		free := []int{1, 2, 5, 6, 7, 8, 10, 11, 13, 14}
		var got []int
		for len(got) < len(free) {
			o := smtp.next()
			got = append(got, o.Index...)
			o.answer(slices.Repeat([]string{"ok"}, len(o.Index))...)
		}
		if slices.Sort(got); !slices.Equal(got, free) {
			t.Errorf("ordered: %v, want %v", got, free)
		}
		st.until("it is recorded who has it", func() bool {
			var done []int
			for i := range st.ops {
				done = append(done, st.ops[i].Done...)
			}
			slices.Sort(done)
			return slices.Equal(done, free)
		})
		st.waitExplain(id, "being delivered")
		smtp.push(&proto.Inventory{Running: hanging})
		smtp.push(&proto.Inventory{Finished: []proto.Finished{{ID: id, Reply: proto.DeliverReply{Outcomes: said("ok", 3, 4, 9)}}}})
		smtp.push(&proto.Inventory{Finished: []proto.Finished{{ID: id, Reply: proto.DeliverReply{Outcomes: said("defer", 0, 12)}}}})
		op := st.waitOp(id, "its deferral", inQueue(queue.Deferred))
		if len(op.Outcomes) != 2 || op.Outcomes[0].Rcpt != 0 || op.Outcomes[1].Rcpt != 12 {
			t.Errorf("recorded: %+v", op)
		}
		select {
		case o := <-smtp.orders:
			t.Errorf("ordered: %+v", o.Deliver)
		default:
		}
		st.quiet()
	}
}

// A delivery that an old agent goes on with is a session with its destination all the same: it has a place in the
// window, as it had before the reload, so that no more are made at once than the site allows. The places that are left
// are for others, and when it ends, there is one more.
func TestFormerHoldsItsPlace(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_destination_concurrency_limit = 2\ninitial_destination_concurrency = 2\n")
	var err error
	if st.state, err = statedir.Open(filepath.Join(t.TempDir(), "state")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.state.Close() })
	var mails []faketest.Mail
	for range 5 {
		mails = append(mails, many(1, "to.test"))
	}
	ids := st.fill(mails...)
	hanging := []proto.Delivery{{ID: ids[0], Index: []int{0}}}
	if err := (&handover{written: time.Now(), running: hanging}).leave(st.state); err != nil {
		t.Fatal(err)
	}
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	for _, id := range ids[1:3] {
		o := smtp.next()
		if o.Envelope.ID != id {
			t.Errorf("ordered: %s, want %s", o.Envelope.ID, id)
		}
		for _, other := range ids[3:] {
			st.waitExplain(other, "waits since .* for one of the 2 deliveries to this destination to end")
		}
		select {
		case o := <-smtp.orders:
			t.Errorf("a second order beside the former delivery: %+v", o.Deliver)
		default:
		}
		o.answer("ok")
	}
	third := smtp.next()
	smtp.push(&proto.Inventory{Running: hanging})
	smtp.push(&proto.Inventory{Finished: []proto.Finished{{ID: ids[0], Reply: proto.DeliverReply{Outcomes: said("ok", 0)}}}})
	fourth := smtp.next() // beside the third
	third.answer("ok")
	fourth.answer("ok")
	for _, id := range ids {
		st.waitOp(id, "its removal", removed)
	}
	st.quiet()
}

// A former delivery of which nobody will tell any more does not keep a message. It may have been made: the log
// names it, and so does the list of what may have arrived twice, whoever of its recipients is known to have it.
func TestFormerLost(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	m := many(3, "to.test")
	m.Done = []int{1}
	id := st.fill(m)[0]
	none := proto.Delivery{ID: mail.MakeQueueID(time.Now(), 9), Index: []int{0}}
	smtp := st.agent("smtp", proto.Inventory{Running: []proto.Delivery{{ID: id, Index: []int{0, 1}}, none}})
	st.run()
	st.until("an order waits for it", func() bool {
		waits := make(chan bool)
		st.srv.post(func() {
			f := st.srv.formers[msgID(id)]
			waits <- len(f) == 1 && len(f[0].waiting) == 1
		}, sched.Event{})
		return <-waits
	})
	smtp.stop()
	op := st.waitOp(id, "that it is lost", lostOp)
	if !slices.Equal(op.Handed, []int{0}) || op.Nexthop != "to.test" {
		t.Errorf("recorded: %+v", op)
	}
	st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	if log := st.log.String(); !strings.Contains(log, string(id)+": in doubt: the delivery agent has not said") || strings.Contains(log, string(none.ID)) {
		t.Error(log)
	}
	st.quiet()
}

// When an agent goes, each of the orders that waited for its word ends, however many former deliveries it had.
func TestFormersLost(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	ids := st.fill(many(2, "to.test"), many(1, "to.test"), many(1, "other.test"))
	running := []proto.Delivery{{ID: ids[0], Index: []int{0}}, {ID: ids[0], Index: []int{1}}, {ID: ids[1], Index: []int{0}}, {ID: ids[2], Index: []int{0}}}
	smtp := st.agent("smtp", proto.Inventory{Running: running})
	st.run()
	st.until("orders wait for each of them", func() bool {
		waits := make(chan bool)
		st.srv.post(func() {
			n := 0
			for _, list := range st.srv.formers {
				for _, f := range list {
					n += min(len(f.waiting), 1)
				}
			}
			waits <- n == len(running)
		}, sched.Event{})
		return <-waits
	})
	smtp.stop()
	for _, id := range ids {
		st.waitOp(id, "that it is lost", lostOp)
		st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	}
	st.quiet()
}

// What came of an earlier attempt does not end the one that goes on, whoever tells of it: nothing is ordered beside it.
func TestFormerOfTwoAttempts(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	id := st.fill(many(1, "to.test"))[0]
	now := time.Now()
	earlier := proto.Finished{ID: id, Active: now.Add(-time.Minute), Reply: proto.DeliverReply{Outcomes: said("defer", 0)}}
	smtp := st.agent("smtp", proto.Inventory{Running: []proto.Delivery{{ID: id, Index: []int{0}, Active: now}}, Finished: []proto.Finished{earlier}})
	st.run()
	st.waitExplain(id, "being delivered")
	if err := st.tool.Call(t.Context(), &proto.Inventory{Finished: []proto.Finished{earlier}}, nil); err != nil {
		t.Fatal(err)
	}
	smtp.push(&proto.Inventory{Finished: []proto.Finished{{ID: id, Active: now, Reply: proto.DeliverReply{Outcomes: said("ok", 0)}}}})
	st.waitOp(id, "its removal", removed)
	select {
	case o := <-smtp.orders:
		t.Errorf("ordered: %+v", o.Deliver)
	default:
	}
	st.quiet()
}

// A message that is to be queued again waits for the end of each delivery that a former queue manager ordered, and takes
// along who has not got it.
func TestFormerBeforeRequeue(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	m := many(3, "to.test")
	m.Queue, m.Attempts, m.Next = queue.Deferred, 1, time.Now().Add(time.Hour)
	id := st.fill(m)[0]
	st.located[id] = true
	st.run()
	conn, err := st.tool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	call := func(inv *proto.Inventory) {
		t.Helper()
		if err := conn.Call(t.Context(), inv, nil); err != nil {
			t.Fatal(err)
		}
	}
	call(&proto.Inventory{Running: []proto.Delivery{{ID: id, Index: []int{0}}, {ID: id, Index: []int{1}}}})
	st.command(proto.Command{Verb: proto.VerbRequeue, ID: id})
	taken := func() int {
		st.mu.Lock()
		defer st.mu.Unlock()
		return len(st.taken)
	}
	for i, word := range []string{"ok", "defer"} {
		call(&proto.Inventory{}) // is answered when all that has come before is done
		if n := taken(); n != 0 {
			t.Errorf("queued again while %d deliveries go on", 2-i)
		}
		call(&proto.Inventory{Finished: []proto.Finished{{ID: id, Reply: proto.DeliverReply{Outcomes: said(word, i)}}}})
	}
	st.until("it is queued again", func() bool { return len(st.taken) == 1 })
	var to []string
	for _, r := range st.taken[0].Envelope.Recipients {
		to = append(to, r.Address)
	}
	if !slices.Equal(to, []string{"r001@to.test", "r002@to.test"}) {
		t.Errorf("queued again for %q", to)
	}
	st.quiet()
}

// The handover says which attempt goes on.
func TestHandoverNamesAttempts(t *testing.T) {
	t.Parallel()
	at := time.UnixMicro(1795251386000001)
	h, got := handover{running: []proto.Delivery{{ID: "x", Index: []int{3}, Active: at}}}, handover{}
	if err := got.decode(h.encode()); err != nil || len(got.running) != 1 || !got.running[0].Active.Equal(at) {
		t.Errorf("%+v, %v", got.running, err)
	}
}

// An agent that nobody would ask calls by itself: what it does is not ordered
// from another, although mail goes another way now, and what came of it is
// recorded before it is answered, also for mail that is not known yet.
func TestAgentCalls(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	ids := st.fill(many(2, "to.test"), many(1, "to.test"))
	attached := make(chan func())
	st.stream = func(c *ipc.Conn) {
		attached <- func() { c.Push(&proto.Entries{List: st.entries, Complete: true}) }
	}
	st.routes["to.test"] = "other:to.test"
	other := st.agent("other", proto.Inventory{})
	st.run()
	tell := <-attached
	conn, err := st.tool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() {
		first <- conn.Call(t.Context(), &proto.Inventory{Running: []proto.Delivery{{ID: ids[0], Index: []int{0, 1}}},
			Finished: []proto.Finished{{ID: ids[1], Reply: proto.DeliverReply{Outcomes: said("ok", 0)}}}}, nil)
	}()
	st.until("the agent is heard", func() bool {
		heard := make(chan bool)
		st.srv.post(func() { heard <- len(st.srv.formers) == 1 }, sched.Event{})
		return <-heard
	})
	tell()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	st.mu.Lock()
	if !slices.ContainsFunc(st.ops, func(op proto.Op) bool { return op.ID == ids[1] && len(op.Outcomes)+len(op.Done) > 0 || op.Remove }) {
		t.Errorf("answered before it was recorded: %+v", st.ops)
	}
	st.mu.Unlock()
	st.waitOp(ids[1], "its removal", removed)
	st.waitExplain(ids[0], "being delivered")
	if err := conn.Call(t.Context(), &proto.Inventory{Finished: []proto.Finished{{ID: ids[0], Reply: proto.DeliverReply{Outcomes: said("ok", 0, 1)}}}}, nil); err != nil {
		t.Fatal(err)
	}
	st.waitOp(ids[0], "its removal", removed)
	select {
	case o := <-other.orders:
		t.Errorf("ordered: %+v", o.Deliver)
	default:
	}
	st.quiet()
}

// An agent is answered although nothing else happens: it waits for that to end.
func TestAgentCallsAtNight(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.run()
	st.waitAttached(1)
	gone := mail.MakeQueueID(time.Now(), 77) // cleanup has to be asked whether there is such a message
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := st.tool.Call(ctx, &proto.Inventory{Finished: []proto.Finished{{ID: gone, Reply: proto.DeliverReply{Outcomes: said("ok", 0)}}}}, nil); err != nil {
		t.Error(err)
	}
}

// What agents are still doing for a queue manager that ends is left alone by
// the next one until it has heard of them.
func TestLeftBehind(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.drain = time.Millisecond
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	id := st.arrive("s@from.test", "a@to.test")
	smtp.next()
	before := time.Now()
	st.retire()
	op := st.waitOp(id, "that it waits", inQueue(queue.Deferred))
	if op.NextAttempt.Before(before.Add(st.srv.opt.Settings.Sched.MinimalBackoff)) || op.Attempts != 0 || op.Set&queue.SetAttempts != 0 {
		t.Errorf("recorded: %+v", op)
	}
}

// What an operator holds meanwhile is on hold for the next one.
func TestLeftBehindOnHold(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.drain = time.Millisecond
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	id := st.arrive("s@from.test", "a@to.test")
	smtp.next()
	st.command(proto.Command{Verb: proto.VerbHold, ID: id})
	st.mu.Lock()
	st.ops = nil
	st.mu.Unlock()
	st.retire()
	st.waitOp(id, "that it waits", inQueue(queue.Hold))
	st.mu.Lock()
	defer st.mu.Unlock()
	if slices.ContainsFunc(st.ops, inDeferred) {
		t.Errorf("recorded: %+v", st.ops)
	}
}

func inDeferred(op proto.Op) bool { return inQueue(queue.Deferred)(&op) }

// An agent that says what cannot be harms nobody, and says nothing of others'
// recipients; of whom it says nothing is tried again.
func TestAgentOutOfItsMind(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.routes["other.test"] = "other:other.test"
	m := many(3, "to.test")
	m.Envelope.Recipients[2].Address = "c@other.test"
	id := st.fill(m)[0]
	inv := proto.Inventory{Running: []proto.Delivery{{ID: "x", Index: []int{0}}, {ID: id, Index: []int{7}}, {ID: mail.MakeQueueID(time.Now(), 9), Index: []int{0}}}}
	for _, i := range []int{-1, 1 << 40} {
		inv.Finished = append(inv.Finished, proto.Finished{ID: id, Reply: proto.DeliverReply{Outcomes: said("ok", i)}})
	}
	smtp, other := st.agent("smtp", inv), st.agent("other", proto.Inventory{})
	st.run()
	o, theirs := smtp.next(), other.next()
	for _, i := range []int{-1, 1 << 40, 2} {
		smtp.push(&proto.Inventory{Running: []proto.Delivery{{ID: id, Index: []int{i}}}})
		smtp.push(&proto.Inventory{Finished: []proto.Finished{{ID: id, Reply: proto.DeliverReply{Outcomes: said("ok", i)}}}})
		smtp.push(&proto.Inventory{Finished: []proto.Finished{{ID: "x", Reply: proto.DeliverReply{Outcomes: said("ok", i)}}}})
	}
	o.req.Reply(&proto.DeliverReply{Outcomes: said("ok", -1, 1<<40, 2, 0, 0)})
	theirs.answer("defer")
	op := st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	if len(op.Outcomes) != 2 || op.Outcomes[0].Rcpt != 1 || op.Outcomes[0].Reason != noAccount || op.Outcomes[1].Rcpt != 2 {
		t.Errorf("recorded: %+v", op)
	}
	st.quiet()
	// Nothing that it has made up keeps its connection when it wants to go.
	smtp.mu.Lock()
	conn := smtp.conn
	smtp.mu.Unlock()
	conn.GoAway()
	select {
	case <-conn.Done():
	case <-time.After(patience):
		t.Error("the connection is kept")
	}
}

// A recipient whose agent dies with each attempt is reported when the time of
// the message is over.
func TestExpiryTellsOfAll(t *testing.T) {
	t.Parallel()
	st := newStage(t, "maximal_queue_lifetime = 1d\n")
	m := many(2, "to.test")
	m.Envelope.Arrival = time.Now().Add(-48 * time.Hour)
	id := st.fill(m)[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	smtp.next()
	smtp.stop()
	st.waitOp(id, "its removal", removed)
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.notices) != 1 || st.notices[0].Notice != proto.NoticeExpired || len(st.notices[0].Outcomes) != 2 {
		t.Errorf("notices: %+v", st.notices)
	}
}

// One that was withdrawn, and has never been tried, is reported as well.
func TestExpiryTellsOfWithdrawn(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	m := many(3, "to.test")
	m.Queue, m.Attempts, m.Done = queue.Hold, 1, []int{1}
	id := st.fill(m)[0]
	st.run()
	st.waitAttached(1)
	st.command(proto.Command{Verb: proto.VerbExpire, ID: id})
	st.command(proto.Command{Verb: proto.VerbRelease, ID: id})
	st.waitOp(id, "its removal", removed)
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.notices) != 1 || len(st.notices[0].Outcomes) != 2 || st.notices[0].Outcomes[0].Rcpt != 0 ||
		st.notices[0].Outcomes[1].Rcpt != 2 || st.notices[0].Outcomes[1].Status != dsn.S(4, 7, 0) {
		t.Errorf("notices: %+v", st.notices)
	}
}

// A message that cannot be read for the moment is not given up, even if its
// time is over: nothing could be said of it.
func TestExpiryOfUnreadable(t *testing.T) {
	t.Parallel()
	st := newStage(t, "maximal_queue_lifetime = 1d\n")
	m := many(2, "to.test")
	m.Envelope.Arrival = time.Now().Add(-48 * time.Hour)
	id := st.fill(m)[0]
	st.unreadable = true
	st.run()
	st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.notices) != 0 || slices.ContainsFunc(st.ops, func(op proto.Op) bool { return op.Remove }) {
		t.Errorf("notices: %+v, recorded: %+v", st.notices, st.ops)
	}
}

// A resolver that does not answer defers mail, and says so in the log.
func TestMuteResolver(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.mute, st.resolveTime = true, 10*time.Millisecond
	id := st.fill(many(2, "to.test"))[0]
	retry := st.agent("retry", proto.Inventory{})
	st.run()
	o := retry.next()
	if o.Nexthop != "4.3.0 address resolver failure" || len(o.Index) != 2 {
		t.Errorf("ordered: %+v", o.Deliver)
	}
	o.answer("defer", "defer")
	st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	if n := strings.Count(st.log.String(), "warning: "+string(id)+": address resolver failure: no answer within 10ms"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, st.log)
	}
}

// The resolver is asked ahead about each recipient that is still to have the
// mail, once, and about none whose mail goes elsewhere whoever they are.
func TestForesee(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	long := many(2*maxForeseen+5, "to.test")
	long.Done = []int{0, 1, maxForeseen, 2*maxForeseen + 4}
	long.Outcomes = []mail.Outcome{{Rcpt: 2, Action: dsn.Failed, Status: dsn.S(5, 0, 0), Reason: "no"}}
	redirected, filtered := many(3, "to.test"), many(3, "to.test")
	redirected.Envelope.Redirect = "elsewhere@to.test"
	filtered.Envelope.Filter = "smtp:[filter.test]"
	var want []string
	for i, to := range long.Envelope.Recipients {
		if i != 2 && !slices.Contains(long.Done, i) {
			want = append(want, "s@from.test "+to.Address)
		}
	}
	ids := st.fill(redirected, filtered, long)
	st.agent("smtp", proto.Inventory{})
	st.run()
	for _, id := range ids {
		st.until("it is active", func() bool { return strings.Contains(st.log.String(), string(id)+": from=<s@from.test>") })
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if !slices.Equal(st.foreseen, want) {
		t.Errorf("asked about %q, want %q", st.foreseen, want)
	}
}

// A stop while the resolver is asked is no failure of it.
func TestStopWhileResolving(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.mute = true
	st.fill(many(2, "to.test"))
	t.Cleanup(func() { // when all has stopped
		if strings.Contains(st.log.String(), "resolver") {
			t.Errorf("log:\n%s", st.log)
		}
	})
	st.run()
	st.until("the resolver is asked", func() bool { return st.asked.Load() > 0 })
	st.retire()
}
