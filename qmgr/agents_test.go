package qmgr

import (
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
	"posthaste/qmgr/sched"
)

// inLoop has the queue manager's loop call f, and waits until it has.
func (st *stage) inLoop(f func(*Server)) {
	st.t.Helper()
	done := make(chan struct{})
	st.srv.post(func() { f(st.srv); close(done) }, sched.Event{})
	select {
	case <-done:
	case <-time.After(patience):
		st.t.Fatal("the loop does not go on")
	}
}

// A connection to an agent is closed when nobody has used it for a while, and not before: not while an outcome is to
// come over it, whoever ordered the delivery. The next order goes over a new one.
func TestIdleAgent(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "a@to.test")
	o := smtp.next()
	look := func(what string, idle time.Duration, open bool, also func(*Server, *agentConn)) {
		t.Helper()
		st.inLoop(func(s *Server) {
			a := s.agents["smtp"]
			if a.used = s.now.Add(-idle); also != nil {
				also(s, a)
			}
			s.reapAgents()
			if (a.conn != nil) != open || a.ready != open {
				t.Errorf("%s: open %v, ready %v, want %v", what, a.conn != nil, a.ready, open)
			}
			if s.reap.IsZero() == open {
				t.Errorf("%s: it is looked at again at %v", what, s.reap)
			}
		})
	}
	st.inLoop(func(s *Server) {
		if a := s.agents["smtp"]; a.pending != 1 || s.reap.IsZero() || s.watchAt.IsZero() {
			t.Errorf("%d orders are out, idle connections are looked for at %v, deliveries that hang at %v", a.pending, s.reap, s.watchAt)
		}
	})
	look("an order is out", 2*agentIdle, true, nil)
	o.answer("ok")
	st.quiet()
	st.inLoop(func(s *Server) {
		if idle := s.now.Sub(s.agents["smtp"].used); idle >= agentIdle {
			t.Errorf("the answer does not count as use: %v", idle)
		}
	})
	look("it was used a moment ago", agentIdle-1, true, nil)
	look("an order waits", agentIdle, true, func(_ *Server, a *agentConn) { a.waiting = []*delivery{{}} })
	st.inLoop(func(s *Server) { s.agents["smtp"].waiting = nil })
	look("a former delivery goes on", agentIdle, true, func(s *Server, a *agentConn) { s.formers[7] = []*former{{conn: a.conn, release: func() {}}} })
	st.inLoop(func(s *Server) { delete(s.formers, 7) })
	look("nobody needs it", agentIdle, false, nil)
	id := st.arrive("s@from.test", "b@to.test")
	o = smtp.next()
	o.answer("ok")
	st.waitOp(id, "its removal", removed)
	st.quiet()
}

// Of two deliveries the one that has taken too long is given up, and the other is looked at again.
func TestOneHangs(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	slow, quick := st.arrive("s@from.test", "a@slow.test"), st.arrive("s@from.test", "a@quick.test")
	orders := map[mail.Nexthop]order{}
	for range 2 {
		o := smtp.next()
		orders[o.Nexthop] = o
	}
	st.inLoop(func(s *Server) {
		for _, d := range s.entries {
			if d.since = s.now.Add(-s.opt.Settings.DeliveryTime); d.nexthop == "quick.test" {
				d.since = d.since.Add(1)
			}
		}
		s.giveUpOverdue()
		if len(s.entries) != 1 {
			t.Errorf("%d deliveries are left, want that to quick.test", len(s.entries))
		}
		if want := s.now.Add(min(watchPeriod, s.opt.Settings.DeliveryTime)); !s.watchAt.Equal(want) {
			t.Errorf("it is looked at again at %v, not %v", s.watchAt, want)
		}
	})
	op := st.waitOp(slow, "its deferral", inQueue(queue.Deferred))
	if len(op.Outcomes) != 1 || op.Outcomes[0].Status != dsn.S(4, 3, 0) {
		t.Errorf("recorded: %+v", op)
	}
	if lost := st.waitOp(slow, "that it may have arrived", lostOp); !slices.Equal(lost.Handed, []int{0}) || lost.Nexthop != "slow.test" {
		t.Errorf("recorded: %+v", lost)
	}
	o := orders["quick.test"]
	o.answer("ok")
	st.waitOp(quick, "its removal", removed)
	if n := strings.Count(st.log.String(), "timeout receiving delivery status"); n != 1 {
		t.Errorf("%d complaints in\n%s", n, st.log)
	}
	st.inLoop(func(s *Server) {
		if s.giveUpOverdue(); !s.watchAt.IsZero() {
			t.Errorf("nothing is delivered, and it is looked for at %v", s.watchAt)
		}
	})
}

// What an address probe comes to is told the verify service, by the address that was asked about; of other mail it
// hears nothing.
func TestProbesTold(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	told := make(chan proto.Probed, 10)
	st.serve("verify", func(_ *ipc.Conn, r *ipc.Request) { told <- faketest.Decode[proto.Probed](t, r) })
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	for _, x := range []struct {
		trace  mail.Trace
		action dsn.Action
		status dsn.Status
		want   proto.ProbeStatus
	}{
		{mail.TraceReport, dsn.Deliverable, dsn.S(2, 1, 5), 0},
		{mail.TraceProbe, dsn.Deliverable, dsn.S(2, 1, 5), proto.ProbeOK},
		{mail.TraceProbe, dsn.Undeliverable, dsn.S(5, 1, 1), proto.ProbeBounce},
		{mail.TraceProbe, dsn.Undeliverable, dsn.S(4, 2, 0), proto.ProbeDefer},
	} {
		st.mu.Lock()
		st.number++
		env := mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Trace: x.trace, Recipients: []mail.Recipient{{Address: "a@to.test", Original: "orig@to.test"}}}
		env.ID = mail.MakeQueueID(env.Arrival, st.number)
		e := proto.Entry{Entry: queue.Entry{ID: env.ID, Ref: queue.Ref{Segno: 1, Length: 100}, Size: 3, NRcpt: 1, NPending: 1, Trace: x.trace},
			Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, env.Recipients)}
		st.queue.add(e.Entry)
		st.cleanup.Push(&proto.Entries{List: []proto.Entry{e}})
		st.mu.Unlock()
		o := smtp.next()
		reason := "said of " + x.status.String()
		o.req.Reply(&proto.DeliverReply{Outcomes: []mail.Outcome{{Action: x.action, Status: x.status, Reason: reason, Relay: "peer", When: time.Now()}}})
		st.waitOp(env.ID, "its end", removed)
		if x.trace != mail.TraceProbe {
			continue
		}
		select {
		case got := <-told:
			if got != (proto.Probed{Address: "orig@to.test", Status: x.want, Text: reason}) {
				t.Errorf("%v %v: told %+v", x.action, x.status, got)
			}
		case <-time.After(patience):
			t.Fatalf("%v %v: nothing is told", x.action, x.status)
		}
	}
	st.quiet()
	if n := len(told); n != 0 {
		t.Errorf("told %d more", n)
	}
}

// A redirection takes the place of all recipients, and a filter that of the next host, but not for mail that is there to
// find out where it would go.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		env       mail.Envelope
		main      string
		transport mail.Transport
		nexthop   mail.Nexthop
		to        []mail.Recipient
		done      []int
	}{
		"redirected": {env: mail.Envelope{Redirect: "r@redirect.test"}, transport: "smtp", nexthop: "redirect.test",
			to: []mail.Recipient{{Address: "r@redirect.test", Original: "a@to.test"}}, done: []int{1}},
		"redirected, not filtered": {env: mail.Envelope{Redirect: "r@redirect.test", Filter: "scan:hop"}, transport: "smtp", nexthop: "redirect.test",
			to: []mail.Recipient{{Address: "r@redirect.test", Original: "a@to.test"}}, done: []int{1}},
		"filtered": {env: mail.Envelope{Filter: "scan:hop"}, transport: "scan", nexthop: "hop", to: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test", Original: "c@to.test"}}},
		"filtered by domain": {env: mail.Envelope{Filter: "scan:"}, transport: "scan", nexthop: "to.test",
			to: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test", Original: "c@to.test"}}},
		"filtered at one place": {env: mail.Envelope{Filter: "scan:"}, main: "default_filter_nexthop = place\n", transport: "scan", nexthop: "place",
			to: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test", Original: "c@to.test"}}},
		"asked about": {env: mail.Envelope{Filter: "scan:hop", Trace: mail.TraceReport}, transport: "smtp", nexthop: "to.test",
			to: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test", Original: "c@to.test"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, x.main)
			env := x.env
			env.Arrival, env.Sender, env.Size = time.Now(), "s@from.test", 3
			env.Recipients = []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test", Original: "c@to.test"}}
			id := st.fill(faketest.Mail{Content: "x\r\n", Envelope: env})[0]
			agent := st.agent(x.transport, proto.Inventory{})
			st.run()
			o := agent.next()
			if o.Nexthop != x.nexthop || !slices.EqualFunc(o.Envelope.Recipients, x.to, func(a, b mail.Recipient) bool { return a.Address == b.Address && a.Original == b.Original }) {
				t.Errorf("ordered: %+v", o.Deliver)
			}
			o.answer("defer", "defer")
			op := st.waitOp(id, "its deferral", func(op *proto.Op) bool { return inQueue(queue.Deferred)(op) || op.Remove })
			var done []int
			st.mu.Lock()
			for i := range st.ops {
				done = append(done, st.ops[i].Done...)
			}
			st.mu.Unlock()
			if x.env.Trace == 0 && (!slices.Equal(done, x.done) || len(op.Outcomes) != len(x.to)) {
				t.Errorf("done: %v, want %v; recorded: %+v", done, x.done, op)
			}
			st.quiet()
		})
	}
}
