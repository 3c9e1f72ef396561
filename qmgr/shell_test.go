package qmgr

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/event/eventtest"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/testwait"
	"posthaste/qmgr/sched"
)

// A message's life: some recipients get it, some never will, some later.
func TestLife(t *testing.T) {
	t.Parallel()
	st := newStage(t, "destination_recipient_limit = 10\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	id := st.arrive("s@From.test", "a@to.test", "b@to.test", "c@to.test")
	o := smtp.next()
	if o.Envelope.ID != id || o.Nexthop != "to.test" || !slices.Equal(o.Index, []int{0, 1, 2}) || o.Envelope.Recipients[2].Address != "c@to.test" {
		t.Fatalf("ordered: %+v", o.Deliver)
	}
	if rows, unread := st.shape(false, "active"); !slices.Equal(rows, []string{"to.test: 3"}) || unread != 0 {
		t.Errorf("in the active queue: %v, %d unread", rows, unread)
	}
	if rows, want := st.split(), []string{"active hop smtp:to.test: 1", "active recipient to.test: 3", "active sender from.test: 1"}; !slices.Equal(rows, want) {
		t.Errorf("from all sides: %q, want %q", rows, want)
	}
	o.answer("ok", "fail", "defer")
	op := st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	if op.Attempts != 1 || len(op.Outcomes) != 1 || op.Outcomes[0].Rcpt != 2 || op.Outcomes[0].Action != dsn.Deferred {
		t.Errorf("recorded: %+v", op)
	}
	st.mu.Lock()
	if len(st.notices) != 1 || st.notices[0].ID != id || len(st.notices[0].Outcomes) != 1 || st.notices[0].Outcomes[0].Rcpt != 1 {
		t.Errorf("notices: %+v", st.notices)
	}
	var done []int
	for i := range st.ops {
		done = append(done, st.ops[i].Done...)
	}
	st.mu.Unlock()
	if slices.Sort(done); !slices.Equal(done, []int{0, 1}) {
		t.Errorf("done: %v", done)
	}
	if rows, unread := st.shape(false, "deferred"); !slices.Equal(rows, []string{"to.test: 1"}) || unread != 0 {
		t.Errorf("in the deferred queue: %v, %d unread", rows, unread)
	}
	if rows, _ := st.shape(true, "deferred", "hold"); !slices.Equal(rows, []string{"from.test: 1"}) {
		t.Errorf("senders in the deferred queue: %v", rows)
	}
	st.waitExplain(id, `(?s)`+string(id)+`: deferred queue since .* 1 of 3 recipients pending, tried 1 times\n  1 recipient\(s\).*: next attempt at `)
	st.quiet()
}

// quiet waits until nothing is kept of work: it is called when all messages lie in the book,
// or are gone as far as is recorded. What the queue manager makes of the last reply comes behind that.
func (st *stage) quiet() {
	st.t.Helper()
	testwait.For(st.t, st.work)
}

// work says what is kept of work; "" is nothing.
func (st *stage) work() string {
	done := make(chan string, 1)
	st.srv.post(func() {
		s := st.srv
		problem := ""
		if len(s.messages) > 0 || len(s.entries) > 0 || s.inlined != 0 {
			problem = fmt.Sprintf("%d messages, %d deliveries, %d octets of envelopes are in memory", len(s.messages), len(s.entries), s.inlined)
		}
		if err := s.sched.Check(); err != nil {
			problem += fmt.Sprint(" ", err)
		}
		done <- problem + checkBook(s.book) + s.remains()
	}, sched.Event{})
	if problem := <-done; problem != "" {
		return problem
	}
	return st.accounts()
}

// Mail that was queued before the start is tried when it is due, counted as
// soon as it has been read, and explained with what was said before.
func TestStart(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	later := time.Now().Add(time.Hour)
	waiting := func(q queue.Name, next time.Time, sender string, rcpts ...string) faketest.Mail {
		m := faketest.Mail{Queue: q, Next: next, Attempts: 2, Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now().Add(-time.Minute), Sender: sender, Size: 3}}
		for i, r := range rcpts {
			m.Envelope.Recipients = append(m.Envelope.Recipients, mail.Recipient{Address: r})
			m.Outcomes = append(m.Outcomes, mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "no route\x1b to " + r, Relay: "none", When: time.Now()})
		}
		return m
	}
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf("r@d%d.test", i%2)
	}
	mails := []faketest.Mail{
		waiting(queue.Deferred, time.Now().Add(-time.Second), "s@from.test", "due@to.test"),
		waiting(queue.Deferred, later, "", "a@To.test", "b@other.test", "c@to.test"),
		waiting(queue.Deferred, later, "s@from.test", many...),
		waiting(queue.Hold, later, "s@from.test", "x@to.test"),
	}
	mails[2].Envelope.Tenant, mails[2].Envelope.Campaign = "shop", "spring"
	mails[1].Done, mails[2].Done = []int{2}, []int{0, 39}
	mails[1].Outcomes, mails[2].Outcomes = mails[1].Outcomes[:2], mails[2].Outcomes[1:39]
	ids := st.fill(mails...)
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	o := smtp.next()
	if o.Envelope.ID != ids[0] {
		t.Fatalf("ordered: %+v", o.Deliver)
	}
	o.answer("ok")
	st.waitOp(ids[0], "its removal", removed)
	want := []string{"d0.test: 19", "d1.test: 19", "other.test: 1", "to.test: 1"}
	st.until("everything has been read", func() bool {
		st.mu.Unlock()
		defer st.mu.Lock()
		_, unread := st.shape(false, "deferred", "hold")
		return unread == 1 // what is on hold is for the asker to read
	})
	if rows, _ := st.shape(false, "deferred", "hold"); !slices.Equal(rows, want) {
		t.Errorf("counted %v, not %v", rows, want)
	}
	if rows, _ := st.shape(true, "deferred"); !slices.Equal(rows, []string{": 1", "from.test: 1"}) {
		t.Errorf("senders: %v", rows)
	}
	if rows, want := st.split(), []string{"deferred campaign shop/spring: 1", "deferred recipient d0.test: 19", "deferred recipient d1.test: 19", "deferred recipient other.test: 1",
		"deferred recipient to.test: 1", "deferred sender : 1", "deferred sender from.test: 1", "deferred tenant shop: 1", "hold unread: 1"}; !slices.Equal(rows, want) {
		t.Errorf("from all sides: %q, want %q", rows, want)
	}
	text := st.explain(ids[1])
	for _, want := range []string{"deferred queue", "2 of 3 recipients pending, tried 2 times", "  2 recipient(s): next attempt at " + later.Format(time.DateTime),
		"    a@To.test: at ", " none: 4.4.1 no route? to a@To.test\n    b@other.test: at "} {
		if !strings.Contains(text, want) {
			t.Errorf("explain lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "c@to.test") {
		t.Errorf("explain names a recipient that has it:\n%s", text)
	}
	if text := st.explain(ids[3]); !strings.Contains(text, "on hold: postsuper -H releases it") {
		t.Errorf("explain:\n%s", text)
	}
	if text := st.explain("4jWmK60rlcz1SCpW"); text != "" {
		t.Errorf("explain of none: %s", text)
	}
	st.quiet()
}

// What cleanup has not confirmed when it dies is told its successor, in order,
// and a message whose removal may be unknown to it does not come back.
func TestCleanupDies(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.mu.Lock()
	st.deaf = true
	st.mu.Unlock()
	id := st.arrive("s@from.test", "a@to.test")
	second := st.arrive("s@from.test", "b@to.test")
	for range 2 {
		o := smtp.next()
		if o.Envelope.ID == id {
			o.answer("ok")
		} else {
			o.answer("defer")
		}
	}
	st.until("changes are sent", func() bool { return st.unheard > 0 })
	st.until("all is decided", func() bool {
		st.mu.Unlock()
		defer st.mu.Lock()
		rows, _ := st.shape(false, "deferred")
		rest, _ := st.shape(false, "active", "incoming")
		return len(rows) == 1 && len(rest) == 0
	})
	st.mu.Lock()
	st.deaf = false
	// It recovered without what it had not answered.
	for i, q := range []mail.QueueID{id, second} {
		env := mail.Envelope{ID: q, Sender: "s@from.test", Arrival: time.Now()}
		st.entries = append(st.entries, proto.Entry{Entry: queue.Entry{ID: q, Ref: queue.Ref{Segno: 1, Length: 100}, Size: 100, NRcpt: 1, NPending: 1},
			Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, []mail.Recipient{{Address: fmt.Sprintf("%c@to.test", 'a'+i)}})})
	}
	st.cleanup.Close()
	st.mu.Unlock()
	st.waitAttached(2)
	st.waitOp(id, "its removal", removed)
	st.waitOp(second, "its deferral", inQueue(queue.Deferred))
	if rows, _ := st.shape(false, "active", "incoming", "deferred"); !slices.Equal(rows, []string{"to.test: 1"}) {
		t.Errorf("in the queue: %v", rows)
	}
	select {
	case o := <-smtp.orders:
		t.Errorf("delivered again: %+v", o.Deliver)
	default:
	}
	st.quiet()
}

// A queue manager that starts while agents still work for its predecessor
// orders nothing twice: not what runs, not what has ended, in whole or in
// part.
func TestInventory(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	fresh := func(rcpts ...string) faketest.Mail {
		m := faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3}}
		for _, r := range rcpts {
			m.Envelope.Recipients = append(m.Envelope.Recipients, mail.Recipient{Address: r})
		}
		return m
	}
	ids := st.fill(fresh("a@run.test"), fresh("a@part.test", "b@part.test"), fresh("a@whole.test"), fresh("a@new.test"))
	sent := func(i int) mail.Outcome {
		return mail.Outcome{Rcpt: i, Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: "250 ok", Relay: "peer", When: time.Now()}
	}
	late := mail.Outcome{Rcpt: 1, Action: dsn.Deferred, Status: dsn.S(4, 0, 0), Reason: "450", When: time.Now()}
	smtp := st.agent("smtp", proto.Inventory{
		Running: []proto.Delivery{{ID: ids[0], Index: []int{0}}},
		Finished: []proto.Finished{{ID: ids[1], Reply: proto.DeliverReply{Outcomes: []mail.Outcome{sent(0), late}}},
			{ID: ids[2], Reply: proto.DeliverReply{Outcomes: []mail.Outcome{sent(0)}}}},
	})
	st.run()
	got := map[mail.QueueID][]int{}
	for range 2 {
		o := smtp.next()
		got[o.Envelope.ID] = o.Index
		o.answer("ok", "ok")
	}
	if !slices.Equal(got[ids[1]], []int{1}) || !slices.Equal(got[ids[3]], []int{0}) {
		t.Errorf("ordered: %v", got)
	}
	st.waitOp(ids[1], "its removal", removed)
	st.waitOp(ids[2], "its removal", removed)
	st.waitOp(ids[3], "its removal", removed)
	st.waitExplain(ids[0], "being delivered")
	smtp.conn.Push(&proto.Inventory{Finished: []proto.Finished{{ID: ids[0], Reply: proto.DeliverReply{Outcomes: []mail.Outcome{sent(0)}}}}})
	st.waitOp(ids[0], "its removal", removed)
	st.quiet()
	select {
	case o := <-smtp.orders:
		t.Errorf("ordered as well: %+v", o.Deliver)
	default:
	}
}

// An agent that dies takes only its own deliveries with it, and a transport
// that is not there defers what is for it, with the reason.
func TestAgentGone(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	retry := st.agent("retry", proto.Inventory{})
	st.routes["absent.test"] = "nosuch:x"
	st.run()
	st.waitAttached(1)
	id := st.arrive("s@from.test", "a@to.test")
	smtp.next()
	smtp.stop()
	st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	doubt := "warning: " + string(id) + ": in doubt: it was being delivered to to.test when the delivery agent ended: recipients number 0 may have it"
	id = st.arrive("s@from.test", "a@absent.test")
	o := retry.next()
	if o.Nexthop != "4.3.0 mail transport unavailable" {
		t.Errorf("retry gets it for %q", o.Nexthop)
	}
	o.answer("defer")
	op := st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	if len(op.Outcomes) != 1 {
		t.Errorf("recorded: %+v", op)
	}
	for _, want := range []string{"warning: transport smtp: the delivery agent ended in the middle of a delivery",
		doubt, "warning: connect to transport nosuch: ", "warning: transport nosuch is not available until "} {
		st.until("it is logged: "+want, func() bool { return strings.Contains(st.log.String(), want) })
	}
	st.quiet()
}

// An operator's command takes effect when the deliveries under way have
// ended; nothing new is begun before.
func TestCommands(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		verb proto.Verb
		want func(*proto.Op) bool
		done bool // the message is gone
	}{
		{"hold", proto.VerbHold, inQueue(queue.Hold), false},
		{"delete", proto.VerbDelete, removed, true},
		{"requeue", proto.VerbRequeue, removed, true},
		{"expire", proto.VerbExpire, func(op *proto.Op) bool { return op.Expire }, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "default_destination_recipient_limit = 1\ndefault_destination_concurrency_limit = 1\ninitial_destination_concurrency = 1\n")
			m := faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3,
				Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "a@to.test", Original: "b@to.test"}}}}
			id := st.fill(m)[0]
			smtp := st.agent("smtp", proto.Inventory{})
			retry := st.agent("retry", proto.Inventory{})
			st.run()
			o := smtp.next()
			st.waitExplain(id, `1 recipient\(s\) via smtp to to.test: being delivered since .*\n    a@to.test: not tried yet\n  1 recipient\(s\) via smtp to to.test: `+
				`waits since .* for one of the 1 deliveries to this destination to end: that of `+string(id))
			if ids := st.command(proto.Command{Verb: x.verb, ID: id, Now: true}); !slices.Equal(ids, []mail.QueueID{id}) {
				t.Errorf("carried out on %v", ids)
			}
			if x.verb != proto.VerbExpire {
				st.waitExplain(id, "an operator's command waits for the deliveries under way to end")
			}
			o.answer("ok")
			if x.verb == proto.VerbExpire { // the other recipient was not tried
				r := retry.next()
				if r.Nexthop != "4.7.0 message is administratively expired" {
					t.Errorf("retry: %q", r.Nexthop)
				}
				r.answer("defer")
				st.until("the sender is told", func() bool { return len(st.notices) == 1 && st.notices[0].Notice == proto.NoticeExpired })
				st.waitOp(id, "its removal", removed)
			}
			st.waitOp(id, x.name, x.want)
			select {
			case o := <-smtp.orders:
				t.Errorf("ordered: %+v", o.Deliver)
			default:
			}
			if x.verb == proto.VerbRequeue {
				st.mu.Lock()
				if len(st.taken) != 1 || len(st.taken[0].Envelope.Recipients) != 1 || st.taken[0].Envelope.Recipients[0].Address != "b@to.test" {
					t.Errorf("through cleanup: %+v", st.taken)
				}
				st.mu.Unlock()
			}
			if x.verb == proto.VerbHold {
				st.waitExplain(id, "hold queue")
				if ids := st.command(proto.Command{Verb: proto.VerbHold, ID: id}); ids != nil {
					t.Errorf("held again: %v", ids)
				}
				if ids := st.command(proto.Command{Verb: proto.VerbRelease, ID: id, Queue: "deferred"}); ids != nil {
					t.Errorf("released from another queue: %v", ids)
				}
				st.command(proto.Command{Verb: proto.VerbRelease, ID: id})
				o := smtp.next()
				if !slices.Equal(o.Index, []int{1}) {
					t.Errorf("ordered: %+v", o.Deliver)
				}
				o.answer("ok")
				st.waitOp(id, "its removal", removed)
			}
			st.quiet()
		})
	}
}

// A message that cleanup does not take again stays as it was; when cleanup
// has taken it and only the answer was lost, it is not sent twice.
func TestRequeueFails(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		t.Run(fmt.Sprint(there), func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "")
			st.refuse = true
			id := st.fill(faketest.Mail{Queue: queue.Deferred, Attempts: 3, Next: time.Now().Add(time.Hour), Content: "x\r\n",
				Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: "a@to.test"}}}})[0]
			st.located[id] = there
			smtp := st.agent("smtp", proto.Inventory{})
			st.run()
			st.command(proto.Command{Verb: proto.VerbRequeue, ID: id})
			if !there {
				st.until("it is gone", func() bool { return strings.Contains(st.log.String(), string(id)+": requeued") })
				st.mu.Lock()
				st.queue.change(&proto.Op{ID: id, Remove: true})
				st.mu.Unlock()
				if text := st.explain(id); text != "" {
					t.Errorf("it is still here: %s", text)
				}
				st.quiet()
				return
			}
			o := smtp.next()
			if o.Envelope.ID != id {
				t.Errorf("ordered: %+v", o.Deliver)
			}
			o.answer("defer")
			if op := st.waitOp(id, "its deferral", func(op *proto.Op) bool { return op.Attempts > 0 }); op.Attempts != 4 {
				t.Errorf("recorded: %+v", op)
			}
			st.quiet()
		})
	}
}

// Nor does that release a message from hold.
func TestRequeueOfHeldFails(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.refuse = true
	id := st.fill(faketest.Mail{Queue: queue.Hold, Content: "x\r\n",
		Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: "a@to.test"}}}})[0]
	st.run()
	st.command(proto.Command{Verb: proto.VerbRequeue, ID: id})
	st.until("it is said", func() bool { return strings.Contains(st.log.String(), string(id)+": not requeued: ") })
	st.waitExplain(id, "hold queue")
	st.waitOp(id, "where it is", inQueue(queue.Hold))
	st.quiet()
}

// A message that is not in the spool any more is forgotten, not tried for ever. Where nodes share the queue that is no
// alarm: another one has it.
func TestGone(t *testing.T) {
	t.Parallel()
	t.Run("log", func(t *testing.T) {
		t.Parallel()
		goneAtLoad(t, "", ": the message is no longer in the queue")
	})
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		if log := goneAtLoad(t, "a", ": no longer in this node's part of the queue"); strings.Contains(log, "warning") {
			t.Error(log)
		}
	})
}

func goneAtLoad(t *testing.T, node, says string) (log string) {
	st := newStage(t, "")
	st.node = node
	journal, events := eventtest.New(t, "qmgr", nil)
	st.events = events
	st.site.Fill(faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Recipients: []mail.Recipient{{Address: "a@to.test"}}}})
	id := mail.MakeQueueID(time.Now(), 77)
	st.entries = []proto.Entry{{Entry: queue.Entry{ID: id, Ref: queue.Ref{File: 999, Segno: 999, Length: 100}, NRcpt: 1, NPending: 1}}}
	st.run()
	if node == "" {
		st.waitOp(id, "its removal", removed)
	}
	st.until("it is said", func() bool { return strings.Contains(st.log.String(), string(id)+says) })
	st.forgotten(id)
	st.mu.Lock()
	// Another node's is not removed: this one may have it again when cleanup hears of it.
	if slices.ContainsFunc(st.ops, func(op proto.Op) bool { return op.Remove }) != (node == "") {
		t.Errorf("recorded: %+v", st.ops)
	}
	st.mu.Unlock()
	if list := journal.Told(); len(list) > 0 { // nobody here has deleted it
		t.Errorf("events: %q", list)
	}
	if log = st.log.String(); !strings.Contains(log, string(id)+says) {
		t.Error(log)
	}
	st.quiet()
	return log
}

// TestNoticeNotMade: when the bounce service makes no notice, the message stays
// with what there is to tell, until it has.
func TestNoticeNotMade(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.unsent = 2
	id := st.fill(faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3,
		Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}}})[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	deferred := func() (n int) {
		for i := range st.ops {
			if st.ops[i].ID == id && inQueue(queue.Deferred)(&st.ops[i]) {
				n++
			}
		}
		return n
	}
	for try := 1; ; try++ {
		for answered := 0; answered < 2; {
			o := smtp.next()
			words := make([]string, len(o.Index))
			for i, rcpt := range o.Index {
				words[i] = []string{"fail", "defer"}[rcpt]
			}
			o.answer(words...)
			answered += len(words)
		}
		st.until("it is deferred", func() bool { return deferred() == try })
		st.mu.Lock()
		var done []int
		for i := range st.ops {
			done = append(done, st.ops[i].Done...)
		}
		n := len(st.notices)
		last := st.notices[n-1]
		st.mu.Unlock()
		if n != try || len(last.Outcomes) != 1 || last.Outcomes[0].Rcpt != 0 || last.Outcomes[0].Reason != "550 never" {
			t.Fatalf("attempt %d, notice %d: %+v", try, n, last)
		}
		if try == 3 {
			if !slices.Equal(done, []int{0}) {
				t.Errorf("told, and done: %v", done)
			}
			break
		}
		if len(done) > 0 {
			t.Fatalf("not told, but done: %v", done)
		}
		st.command(proto.Command{Verb: proto.VerbFlush, ID: id})
	}
	if n := strings.Count(st.log.String(), "the bounce service has made no notice: "); n != 2 {
		t.Errorf("%d complaints in\n%s", n, st.log)
	}
}

// What fails for very many recipients is told in several notices, each
// recipient in one of them.
func TestManyFailures(t *testing.T) {
	t.Parallel()
	const n = 2*noticeRcpts + 1
	for word, kind := range map[string]proto.NoticeKind{"fail": proto.NoticeFailure, "defer": proto.NoticeExpired} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, fmt.Sprintf("smtp_destination_recipient_limit = %d\nmaximal_queue_lifetime = 0\n", n))
			smtp := st.agent("smtp", proto.Inventory{})
			st.run()
			st.waitAttached(1)
			rcpts := make([]string, n)
			for i := range rcpts {
				rcpts[i] = fmt.Sprintf("r%d@to.test", i)
			}
			id := st.arrive("s@from.test", rcpts...)
			for answered := 0; answered < n; {
				o := smtp.next()
				o.answer(slices.Repeat([]string{word}, len(o.Index))...)
				answered += len(o.Index)
			}
			st.waitOp(id, "its removal", removed)
			st.quiet()
			var told []int
			for _, notice := range st.notices {
				if notice.Notice != kind || len(notice.Outcomes) > noticeRcpts {
					t.Errorf("notice %d about %d recipients", notice.Notice, len(notice.Outcomes))
				}
				for _, o := range notice.Outcomes {
					told = append(told, o.Rcpt)
				}
			}
			slices.Sort(told)
			if len(told) != n || len(slices.Compact(told)) != n {
				t.Errorf("%d of %d recipients are told of %d times", len(slices.Compact(told)), n, len(told))
			}
		})
	}
}

// A notice about recipients of whom much is said is as long as a request may be.
func TestFitting(t *testing.T) {
	t.Parallel()
	list := make([]mail.Outcome, 100)
	for i := range list {
		list[i].DiagText = strings.Repeat("x", noticeBytes/10)
	}
	if part, n := fitting(list); n != 9 || len(part) != 9 || len((&proto.Notify{Outcomes: part}).Append(nil)) > ipc.MaxPayload {
		t.Errorf("%d, %d of 100", len(part), n)
	}
	if part, n := fitting(list[:5]); n != 0 || len(part) != 5 {
		t.Errorf("%d, %d of 5", len(part), n)
	}
	list[0].DiagText = strings.Repeat("x", noticeBytes+1)
	if part, n := fitting(list); n != 1 || len(part) != 1 {
		t.Errorf("%d, %d of 100 when the first is too long: something has to be told", len(part), n)
	}
}

// VERP: each recipient gets the message with a sender of its own.
func TestVERP(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	id := st.fill(faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "list@from.test", VERP: "+=", Size: 3,
		Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}}})[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	var senders []string
	for range 2 {
		o := smtp.next()
		senders = append(senders, o.Envelope.Sender)
		o.answer("ok", "ok")
	}
	slices.Sort(senders)
	if want := []string{"list+a=to.test@from.test", "list+b=to.test@from.test"}; !slices.Equal(senders, want) {
		t.Errorf("senders: %v, not %v", senders, want)
	}
	st.waitOp(id, "its removal", removed)
	st.quiet()
}

// postqueue -s and ETRN: mail for a site is tried now, whether its domain is
// known from this process's life or from the spool.
func TestFlushSite(t *testing.T) {
	t.Parallel()
	st := newStage(t, "fast_flush_domains = to.test\n")
	later := time.Now().Add(time.Hour)
	old := func(r string) faketest.Mail {
		return faketest.Mail{Queue: queue.Deferred, Attempts: 1, Next: later, Content: "x\r\n",
			Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: r}}}}
	}
	ids := st.fill(old("a@to.test"), old("a@other.test"), old("b@TO.test"))
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.command(proto.Command{Verb: proto.VerbFlush, Site: "To.Test"})
	for round := range 2 {
		var got []mail.QueueID
		for range 2 {
			o := smtp.next()
			got = append(got, o.Envelope.ID)
			o.answer("defer")
		}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values([]mail.QueueID{ids[0], ids[2]}))) {
			t.Errorf("round %d: ordered %v", round, got)
		}
		st.until("both are deferred again", func() bool {
			st.mu.Unlock()
			defer st.mu.Lock()
			rows, _ := st.shape(false, "deferred")
			return slices.Equal(rows, []string{"other.test: 1", "to.test: 2"})
		})
		if round == 0 {
			st.command(proto.Command{Verb: proto.VerbFlush, Site: "to.test"})
		}
	}
	st.quiet()
}

// What was to be tried at once, and has not been when the queue manager is told
// to end, is due for its successor.
func TestFlushHandedOver(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_destination_concurrency_limit = 1\n")
	st.drain = patience
	later := time.Now().Add(time.Hour)
	old := func(r string) faketest.Mail {
		return faketest.Mail{Queue: queue.Deferred, Attempts: 1, Next: later, Content: "x\r\n",
			Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: r}}}}
	}
	ids := st.fill(old("a@to.test"), old("b@to.test"), old("c@to.test"))
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.command(proto.Command{Verb: proto.VerbFlush, ID: ids[0]})
	st.command(proto.Command{Verb: proto.VerbFlush, ID: ids[1]})
	o := smtp.next()
	if o.Envelope.ID != ids[0] && o.Envelope.ID != ids[1] {
		t.Fatalf("ordered %s", o.Envelope.ID)
	}
	st.retire()
	st.until("it orders no more", func() bool { // before that the second message could follow the first
		leaving := make(chan bool, 1)
		st.srv.post(func() { leaving <- st.srv.leaving }, sched.Event{Kind: sched.EventTick})
		return <-leaving
	})
	o.answer("ok")
	waits := ids[0]
	if o.Envelope.ID == waits {
		waits = ids[1]
	}
	op := st.waitOp(waits, "that it is due", func(op *proto.Op) bool { return op.Set&queue.SetNextAttempt != 0 })
	if !op.NextAttempt.Before(later) || op.Set&queue.SetQueue != 0 {
		t.Errorf("recorded %+v", op)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, op := range st.ops {
		if op.ID == ids[2] {
			t.Errorf("nobody asked for %+v", op)
		}
	}
}

// An order to try all mail that comes before the queue is known is carried out
// when it is.
func TestFlushAtStart(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	later := time.Now().Add(time.Hour)
	ids := st.fill(faketest.Mail{Queue: queue.Deferred, Attempts: 1, Next: later, Content: "x\r\n",
		Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: "a@to.test"}}}})
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.srv.trigger([]byte("F"))
	o := smtp.next()
	if o.Envelope.ID != ids[0] {
		t.Errorf("ordered %s", o.Envelope.ID)
	}
	o.answer("ok")
	st.waitOp(ids[0], "its removal", removed)
}

// TestSilentCleanup: a tool does not wait for ever for a queue that nobody
// tells of.
func TestSilentCleanup(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	attached := make(chan *ipc.Conn, 1)
	st.stream = func(c *ipc.Conn) { attached <- c }
	st.patience = 50 * time.Millisecond
	st.run()
	c := <-attached
	var reply proto.ListReply
	err := st.tool.Call(t.Context(), &proto.List{}, &reply)
	if err == nil || !strings.Contains(err.Error(), "the cleanup service does not answer") {
		t.Errorf("answered %v, %+v", err, reply)
	}
	c.Push(&proto.Entries{Complete: true})
	for {
		if err := st.tool.Call(t.Context(), &proto.List{}, &reply); err == nil {
			break
		} else if !strings.Contains(err.Error(), "does not answer") {
			t.Fatal(err)
		}
	}
}

// A message that an agent finds damaged is set aside, not tried for ever.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	id := st.arrive("s@from.test", "a@to.test")
	o := smtp.next()
	o.req.Reply(&proto.DeliverReply{Corrupt: true, Outcomes: []mail.Outcome{{Action: dsn.Deferred, Status: dsn.S(4, 3, 0), Reason: "damaged", Relay: "none", When: time.Now()}}})
	op := st.waitOp(id, "its move", inQueue(queue.Corrupt))
	if len(op.Outcomes) != 1 || op.Outcomes[0].Reason != "damaged" {
		t.Errorf("recorded: %+v", op)
	}
	if text := st.explain(id); text != "" {
		t.Errorf("it is still here: %s", text)
	}
	st.quiet()
}

// What cleanup had read of the queue before a message's removal, and sends
// behind its answer to that, does not bring the message back.
func TestPushedLate(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	attached := make(chan *ipc.Conn, 1)
	st.stream = func(c *ipc.Conn) { attached <- c }
	st.run()
	c := <-attached
	id := st.arrive("s@from.test", "a@to.test")
	o := smtp.next()
	o.answer("ok")
	st.waitOp(id, "its removal", removed)
	entry := proto.Entry{Entry: queue.Entry{ID: id, Ref: queue.Ref{Segno: 1, Length: 100}, Size: 100, NRcpt: 1, NPending: 1},
		Envelope: o.Envelope.Append(nil), Recipients: mail.AppendRecipients(nil, o.Envelope.Recipients)}
	c.Push(&proto.Entries{List: []proto.Entry{entry}})
	c.Push(&proto.Entries{Complete: true})
	next := st.arrive("s@from.test", "b@to.test")
	if o = smtp.next(); o.Envelope.ID != next {
		t.Errorf("ordered again: %+v", o.Deliver)
	}
	o.answer("ok")
	st.waitOp(next, "its removal", removed)
	st.quiet()
	kept := make(chan int, 1)
	for n := 1; n > 0; n = <-kept { // the answer to the last removal may be on its way
		st.srv.post(func() { kept <- len(st.srv.log.gone) + len(st.srv.log.late) }, sched.Event{})
	}
}

// Whoever has the set-gid group's rights can list and flush, and nothing else.
func TestPublic(t *testing.T) {
	t.Parallel()
	public := New(Options{}).IPC().Public
	forward := func(m ipc.Message) ipc.Message {
		return &proto.Forward{Node: "b", Asked: m.Kind(), Payload: m.Append(nil)}
	}
	for _, m := range []ipc.Message{&proto.List{N: 1}, &proto.List{N: 1, Part: 2}, &proto.Nodes{}, forward(&proto.Command{Verb: proto.VerbFlush}), forward(&proto.Select{}), &proto.Command{Verb: proto.VerbFlush}, &proto.Command{Verb: proto.VerbFlush, Site: "to.test"}} {
		if !public(&ipc.Request{Kind: m.Kind(), Payload: m.Append(nil)}) {
			t.Errorf("%+v is refused", m)
		}
	}
	closed := []ipc.Message{&proto.Explain{ID: "x"}, &proto.Shape{}, &proto.Record{}, &proto.Attach{}, forward(&proto.Explain{ID: "x"}),
		forward(&proto.Override{Op: proto.OverrideList}), forward(&proto.Inventory{}), forward(&proto.List{N: 1}), forward(forward(&proto.Select{}))}
	for v := range proto.Verb(20) {
		if v != proto.VerbFlush {
			closed = append(closed, forward(&proto.Command{Verb: v, ID: "x"}), forward(&proto.Select{Verb: max(v, 2)}))
			closed = append(closed, &proto.Command{Verb: v, ID: "x"})
		}
	}
	for _, m := range closed {
		if public(&ipc.Request{Kind: m.Kind(), Payload: m.Append(nil)}) {
			t.Errorf("%+v is allowed", m)
		}
	}
}
