package qmgr

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/testwait"
	"posthaste/qmgr/sched"
)

// Mail that waits for a place in the active queue goes where it is to go when it is taken up, whatever was found out when
// it came; and what is logged when that is found out is logged once.
func TestPrepareTooEarly(t *testing.T) {
	t.Parallel()
	st := newStage(t, "qmgr_message_active_limit = 1\n")
	st.routes["to.test"] = "smtp:[old.test]"
	st.shares = map[string]func(*proto.ResolveReply){"here.test": func(r *proto.ResolveReply) { r.Flags = proto.ResolveLocal }}
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "abc@to.test") // the resolver knows addresses with an odd number of letters
	first := smtp.next()
	if first.Nexthop != "[old.test]" {
		t.Fatalf("ordered: by %s", first.Nexthop)
	}
	second := st.arrive("s@from.test", "def@to.test")
	notice := st.arrive("", "double-bounce@here.test")
	st.waitHeard(notice)
	st.mu.Lock()
	st.routes["to.test"] = "smtp:[new.test]"
	st.mu.Unlock()
	first.answer("ok")
	o := smtp.next()
	if o.Envelope.ID != second || o.Nexthop != "[new.test]" {
		t.Errorf("ordered: %s by %s", o.Envelope.ID, o.Nexthop)
	}
	o.answer("ok")
	st.waitOp(notice, "its removal", removed)
	if n := strings.Count(st.log.String(), "undeliverable postmaster notification discarded"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, st.log)
	}
}

// waitHeard waits until the queue manager knows a message.
func (st *stage) waitHeard(id mail.QueueID) {
	st.t.Helper()
	num := msgID(id)
	testwait.Until(st.t, "the message is heard of", func() bool {
		known := make(chan bool)
		st.srv.post(func() { known <- st.srv.knows(num) }, sched.Event{})
		return <-known
	})
}

// newMail is what cleanup tells of a new message to somebody.
func newMail(to string) *proto.Entry {
	env := mail.Envelope{ID: mail.MakeQueueID(time.Now(), 77), Arrival: time.Now(), Sender: "s@from.test"}
	return &proto.Entry{Entry: queue.Entry{ID: env.ID, NRcpt: 1, NPending: 1}, Envelope: env.Append(nil),
		Recipients: mail.AppendRecipients(nil, []mail.Recipient{{Address: to}})}
}

// What was found out of a message is of use for the load that it was found out for, and for no other.
func TestPrepared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		e    sched.Effect
		done []byte
		rule uint64
		use  bool
	}{
		{"all of it at once", sched.Effect{First: true, Max: 3}, nil, 0, true},
		{"a part of it", sched.Effect{First: true, Max: 2}, nil, 0, false},
		{"the rest of it", sched.Effect{First: true, From: 1, Max: 3}, nil, 0, false},
		{"not for the first time", sched.Effect{Max: 3}, nil, 0, false},
		{"somebody has it meanwhile", sched.Effect{First: true, Max: 3}, []byte{1}, 0, false},
		{"the rules have changed", sched.Effect{First: true, Max: 3}, nil, 1, false},
	} {
		s := new(Server)
		s.rules.changes.Store(c.rule)
		l := &loading{nrcpt: 3, num: 7}
		m := &message{ready: l, done: c.done}
		got := s.prepared(m, &c.e)
		if (got.num == 7) != c.use || m.ready != nil {
			t.Errorf("%s: used: %v, want %v", c.name, got.num == 7, c.use)
		}
	}
}

// Of what cleanup pushes, new mail that is short enough is prepared.
func TestPrepareWhat(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.run()
	st.waitAttached(1)
	e := func(change func(*proto.Entry)) *proto.Entry {
		p := newMail("abc@to.test")
		change(p)
		return p
	}
	for _, c := range []struct {
		name string
		e    *proto.Entry
		want bool
	}{
		{"new mail", e(func(*proto.Entry) {}), true},
		{"without its envelope", e(func(p *proto.Entry) { p.Envelope = nil }), false},
		{"deferred mail", e(func(p *proto.Entry) { p.Queue = queue.Deferred }), false},
		{"mail to very many", e(func(p *proto.Entry) { p.NRcpt = atOnceRcpts + 1 }), false},
		{"no queue ID", e(func(p *proto.Entry) { p.ID = "x" }), false},
	} {
		l := st.srv.prepare(c.e)
		if (l != nil) != c.want || l != nil && (len(l.rcpts) != 1 || l.rcpts[0].Transport != "smtp" || l.unread != 0 || l.quiet) {
			t.Errorf("%s: %+v", c.name, l)
		}
	}
	st.srv.aheadRcpts.Store(maxAhead)
	if l := st.srv.prepare(newMail("abc@to.test")); l != nil {
		t.Errorf("while the loop has very much to hear of: %+v", l)
	}
}

// Mail that comes just before an operator diverts it goes the new way, although it was found out before where it goes. When the loop
// has heard of it, there is room for other mail to be prepared.
func TestPrepareRules(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.routes["to.test"] = "smtp:[old.test]"
	smtp, lmtp := st.agent("smtp", proto.Inventory{}), st.agent("lmtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "abc@to.test") // now it is known where that goes
	first := smtp.next()
	first.answer("ok")
	busy, order := make(chan bool), make(chan bool)
	var left int64
	st.srv.post(func() {
		close(busy)
		<-order
		left = st.srv.aheadRcpts.Load()
		st.srv.setRules([]override.Entry{{Kind: override.Diversion, Target: "domain=to.test", Nexthop: "lmtp:[new.test]", By: "ann", Since: time.Now()}})
	}, sched.Event{})
	<-busy
	id := st.arrive("s@from.test", "abc@to.test")
	testwait.Until(t, "it is prepared", func() bool { return st.srv.aheadRcpts.Load() == 1 })
	close(order)
	o := lmtp.next()
	if o.Envelope.ID != id || o.Nexthop != "[new.test]" {
		t.Errorf("ordered: %s by %s", o.Envelope.ID, o.Nexthop)
	}
	if n := st.srv.aheadRcpts.Load(); left != 1 || n != 0 {
		t.Errorf("%d recipients are prepared, and then %d", left, n)
	}
	o.answer("ok")
}

// The envelope of an order that is made at once goes on as it came, but for its sender where that is another one.
func TestOrderedEnvelope(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	for i, c := range []struct{ verp, want string }{{"", "list@from.test"}, {"+=", "list+abc=to.test@from.test"}} {
		to := []mail.Recipient{{Address: "abc@to.test"}}
		env := mail.Envelope{ID: mail.MakeQueueID(time.Now(), uint64(80+i)), Arrival: time.Now(), Sender: "list@from.test", VERP: c.verp, EnvID: "x-17"}
		st.mu.Lock()
		conn := st.cleanup
		st.mu.Unlock()
		conn.Push(&proto.Entries{List: []proto.Entry{{Entry: queue.Entry{ID: env.ID, NRcpt: 1, NPending: 1}, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, to)}}})
		o := smtp.next()
		if o.Envelope.ID != env.ID || o.Envelope.Sender != c.want || o.Envelope.EnvID != "x-17" {
			t.Errorf("with %q: ordered: %+v", c.verp, o.Envelope)
		}
		o.answer("ok")
	}
}

// cleanup may tell of a message again, while it is being delivered: it is the same one.
func TestToldAgain(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.mu.Lock()
	conn := st.cleanup
	st.mu.Unlock()
	e := newMail("abc@to.test")
	e.ID = mail.MakeQueueID(time.Now().Add(time.Second), 77) // counted as one that has come
	conn.Push(&proto.Entries{List: []proto.Entry{*e}})
	o := smtp.next()
	conn.Push(&proto.Entries{List: []proto.Entry{*e}})
	next := newMail("def@to.test")
	next.ID = mail.MakeQueueID(time.Now().Add(time.Second), 78)
	conn.Push(&proto.Entries{List: []proto.Entry{*next}})
	last := smtp.next() // comes behind what was told again
	came, active := make(chan int64, 1), make(chan bool, 1)
	st.srv.post(func() {
		m := st.srv.messages[77]
		came <- int64(st.srv.seen.totals.In)
		active <- m != nil && m.active != nil
	}, sched.Event{})
	if n, ok := <-came, <-active; n != 2 || !ok {
		t.Errorf("%d messages have come, and the first is under way: %v", n, ok)
	}
	o.answer("ok")
	last.answer("ok")
	st.waitOp(e.ID, "its removal", removed)
}
