package qmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/qmgr/sched"
)

const (
	// agentPatience is how long a transport may take to be reached, and to say
	// what it is still doing for a former queue manager, before it counts as
	// unavailable.
	agentPatience = 15 * time.Second
	// agentIdle is how long a connection to an agent is kept without use, so
	// that services that nobody needs may end.
	agentIdle = 60 * time.Second
	// maxWarm bounds the agents that are connected to ahead of the first order for them.
	maxWarm = 100
)

// A delivery is a request that has been ordered.
type delivery struct {
	// Of the scheduler; the delivery is in Server.entries under it until its outcome is known.
	entry     sched.EntryID
	num       sched.MsgID
	transport mail.Transport
	nexthop   mail.Nexthop
	agent     sched.AgentID // whose session is to be used or kept,
	cache     sched.Cache   // if there is one, if that is worth it,
	keep      time.Duration // and for how long
	// Numbers in the message. They are the delivery's alone: no other order has one of these
	// recipients.
	rcpts []int
	since time.Time // ordered by the scheduler
	// Before that the order can be taken back without a trace. Afterwards the recipients may
	// have got the message even if no answer comes.
	sent bool      // the agent has it
	conn *ipc.Conn // and has it from there
	// Empty before it is sent.
	index []int // the recipients of rcpts that it has
	// While it is not 0 the order is not sent, since somebody else is delivering to one of its
	// recipients.
	awaits int                // former deliveries to some of the same recipients that go on
	reply  proto.DeliverReply // what came of those that have ended
}

// A former delivery is one that a former queue manager ordered, and that goes
// on. Nobody else is to get an order for its recipients.
type former struct {
	id mail.QueueID
	// Those of which nothing has been heard. When it is empty the former delivery is over and
	// release is called.
	rcpts   []int
	conn    *ipc.Conn   // where its outcome will be told; nil: the agent has not called yet
	release func()      // nothing more is awaited there
	waiting []*delivery // orders for some of the same recipients
}

// An agentConn is the way to one transport's process. It belongs to the loop.
type agentConn struct {
	s         *Server
	transport mail.Transport
	conn      *ipc.Conn // where orders go; those of a process that retires are answered where they went
	// An agent process first says what it has in hand. An order before that could be for a
	// recipient that it is delivering to already.
	ready   bool // the inventory has come
	dialing bool
	waiting []*delivery // to be sent when ready
	pending int         // sent and not answered
	// When the last order went or was answered; the connection is closed agentIdle later.
	used time.Time
	req  proto.Deliver    // memory for an order while it is sent,
	to   []mail.Recipient // and for its recipients
}

// deliver orders one delivery.
func (s *Server) deliver(m *message, e *sched.Effect) {
	d := &delivery{entry: e.Entry, num: e.ID, transport: e.Transport, nexthop: e.Nexthop, agent: e.Agent, cache: e.Cache, keep: e.Keep, rcpts: e.Rcpts, since: s.now}
	s.entries[e.Entry] = d
	s.watch()
	for _, i := range d.rcpts {
		if r := m.active.rcpt(i); r != nil {
			r.order = d
		}
	}
	s.order(m, d)
}

// order gives an order to its agent, or keeps it until that can be reached.
func (s *Server) order(m *message, d *delivery) {
	a := s.agents[d.transport]
	if a == nil {
		a = &agentConn{s: s, transport: d.transport}
		s.agents[d.transport] = a
	}
	a.used = s.now
	if a.ready {
		a.send(m, d)
		return
	}
	a.waiting = append(a.waiting, d)
	if !a.dialing {
		a.dial()
	}
}

// warm connects to the agents that the predecessor gave orders to. What they have in
// hand is known when the first order for them comes. One that cannot be reached is
// tried again then.
func (s *Server) warm(transports []mail.Transport) {
	for _, t := range transports {
		if s.agents[t] == nil && len(s.agents) < maxWarm {
			a := &agentConn{s: s, transport: t, used: s.now}
			s.agents[t] = a
			a.dial()
		}
	}
}

// dial connects beside the loop.
func (a *agentConn) dial() {
	a.dialing, a.ready, a.conn = true, false, nil
	s := a.s
	at := s.opt.Agent(a.transport)
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, agentPatience)
		defer cancel()
		// What the agent says reaches the loop in the order in which it says it:
		// its inventory, and then what came of the deliveries in there.
		told := make(chan struct{})
		first := true // belongs to the one connection's reading goroutine
		client := ipc.NewClient(at, func(conn *ipc.Conn, r *ipc.Request) {
			var inv proto.Inventory
			switch {
			case r.Kind != proto.KindInventory || r.Decode(&inv) != nil:
			case first:
				first = false
				s.post(func() { a.up(conn, &inv) }, sched.Event{})
				close(told)
			default:
				s.post(func() { s.heardOf(conn, &inv, false) }, sched.Event{})
			}
		})
		conn, err := dialOnce(ctx, client)
		if err != nil {
			s.post(func() { a.down(err) }, sched.Event{})
			return
		}
		conn.Push(&proto.Attach{})
		select {
		case <-told:
		case <-conn.Done():
			err = errors.New("the service ended before it said anything")
		case <-ctx.Done():
			err = errors.New("the service accepts connections but does not answer")
			conn.Close()
		}
		if err != nil {
			s.post(func() {
				if a.conn != conn { // it has not said so at the last moment
					a.down(err)
				}
			}, sched.Event{})
		}
		s.tasks.Go(func() {
			select {
			case <-conn.Done():
			case <-s.ctx.Done():
				conn.Close()
				<-conn.Done()
			}
			s.post(func() { a.lost(conn) }, sched.Event{})
		})
	})
}

// dialOnce connects without trying again for long when nobody listens: a
// transport that is not in master.cf must be told from one that starts.
func dialOnce(ctx context.Context, client *ipc.Client) (*ipc.Conn, error) {
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return client.Conn(short)
}

// up: the connection stands, and inv says what is not to be ordered again.
func (a *agentConn) up(conn *ipc.Conn, inv *proto.Inventory) {
	a.conn, a.ready, a.dialing = conn, true, false
	if a.s.reap.IsZero() {
		a.s.reap = a.s.now.Add(agentIdle)
	}
	a.s.heardOf(conn, inv, true)
	waiting := a.waiting
	a.waiting = nil
	if a.s.leaving {
		return // the successor will order them
	}
	for _, d := range waiting {
		if m := a.s.messages[d.num]; m != nil && m.active != nil {
			a.send(m, d)
		}
	}
}

// reapAgents closes connections that have not been used for a while.
func (s *Server) reapAgents() {
	s.reap = time.Time{}
	for _, a := range s.agents {
		switch {
		case a.conn == nil:
		case a.pending == 0 && len(a.waiting) == 0 && !s.awaited(a.conn) && s.now.Sub(a.used) >= agentIdle:
			a.conn.Close()
			a.conn, a.ready = nil, false
		default:
			s.reap = s.now.Add(agentIdle)
		}
	}
}

// send hands a delivery to the agent.
func (a *agentConn) send(m *message, d *delivery) {
	s := a.s
	if s.await(m, d) {
		return
	}
	act := m.active
	index := d.rcpts
	settled := func(i int) bool { return m.isDone(i) || about(&d.reply, i) }
	if slices.ContainsFunc(index, settled) { // a former delivery has
		if index = slices.DeleteFunc(slices.Clone(index), settled); len(index) == 0 {
			s.completed(d, &d.reply)
			return
		}
	}
	req := &a.req
	*req = proto.Deliver{Nexthop: d.nexthop, Envelope: act.env, Index: index, Ref: m.ref, Active: act.since, Session: uint64(d.agent),
		CacheLoad: d.cache&sched.CacheLoad != 0, CacheKeep: d.cache&sched.CacheStore != 0, Keep: d.keep, Exact: s.opt.Settings.ExactDoubt}
	to := slices.Grow(reuse.Truncated(a.to), len(index))[:len(index)]
	for i, idx := range index {
		r := act.rcpt(idx)
		to[i] = r.Recipient
		if r.Original == "" && r.resolved != r.Address {
			to[i].Original = r.Address
		}
		to[i].Address = r.resolved
	}
	req.Envelope.Recipients = to
	if act.env.VERP != "" && act.env.Sender != "" && len(index) == 1 {
		req.Envelope.Sender = verpSender(act.env.Sender, to[0].Orig(), act.env.VERP)
	}
	d.sent, d.conn, d.index = true, a.conn, index
	if act.old && !req.Exact {
		s.log.handOut(m.id, d)
	}
	a.pending++
	a.used = s.now
	a.conn.GoNow(req, func(payload []byte, err error) {
		ans := s.answers.Get()
		ans.a, ans.d, ans.err = a, d, err
		if err == nil {
			ans.err = ans.reply.Decode(payload)
		}
		s.postInput(input{answer: ans})
	})
	*req = proto.Deliver{}
	a.to = reuse.Emptied(to)
}

// dismiss tells a transport's process that a session is not needed any more.
// Where nobody is connected there are none that anybody knows of, and where the
// process chooses how long it keeps them (smtp_connection_cache_time_limit) it
// closes them itself.
func (s *Server) dismiss(e *sched.Effect) {
	if a := s.agents[e.Transport]; a != nil && a.conn != nil && e.Keep > 0 {
		_ = a.conn.Push(&proto.Dismiss{Session: uint64(e.Agent)}) // should it not arrive, the session ends by itself
	}
}

// An answer is what an agent has said of a delivery, on its way to the loop.
type answer struct {
	a     *agentConn
	d     *delivery
	reply proto.DeliverReply
	err   error
}

// take has the loop take in the answer, of which nothing is kept but texts and
// copies of its outcomes: its memory is for the next.
func (ans *answer) take() {
	s := ans.a.s
	s.answered = s.answered || ans.err == nil
	ans.a.answered(ans.d, &ans.reply, ans.err)
	*ans = answer{reply: proto.DeliverReply{Outcomes: reuse.Emptied(ans.reply.Outcomes)}}
	s.answers.Put(ans)
}

// verpSender encodes a recipient in the envelope sender: local part,
// delimiter, recipient's local part, delimiter, recipient's domain.
func verpSender(sender, recipient, delimiters string) string {
	local, domain, ok := rfc5322.Split(sender)
	if !ok || len(delimiters) != 2 {
		return sender
	}
	rlocal, rdomain, _ := rfc5322.Split(recipient)
	return local + delimiters[:1] + rlocal + delimiters[1:] + rdomain + "@" + domain
}

// maxNamed bounds the recipients that a line of the log names.
const maxNamed = 20

// answered: the agent has answered, or the connection broke.
func (a *agentConn) answered(d *delivery, reply *proto.DeliverReply, err error) {
	a.pending--
	a.used = a.s.now
	switch {
	case err == nil && reply.Stopped, errors.Is(err, ipc.ErrUnsent):
		// Nobody has got it. It is for the agent's successor, or, when the mail
		// system stops, for ours.
		d.sent = false
		a.waiting = append(a.waiting, d)
		if !a.dialing && !a.s.leaving {
			a.dial()
		}
	case err == nil:
		reply.Outcomes = append(reply.Outcomes, d.reply.Outcomes...)
		a.s.completed(d, reply)
	default:
		a.s.opt.Log.Warning("transport %s: the delivery agent ended in the middle of a delivery: %v", a.transport, err)
		if m := a.s.messages[d.num]; m != nil && len(d.index) > 0 {
			a.s.opt.Log.Warning("%s: in doubt: it was being delivered to %s when the delivery agent ended: recipients number %s may have it, and may get it again",
				m.id, d.nexthop, strings.Trim(fmt.Sprint(d.index[:min(len(d.index), maxNamed)]), "[]"))
		}
		a.s.lose(d)
	}
}

// lost: a connection to the transport is gone. Requests under way have been
// answered with an error each.
func (a *agentConn) lost(conn *ipc.Conn) {
	if a.conn == conn {
		a.conn, a.ready = nil, false
		if len(a.waiting) > 0 && !a.dialing && !a.s.leaving {
			a.dial()
		}
	}
	a.s.silent(conn)
}

// down: the transport cannot be used.
func (a *agentConn) down(err error) {
	a.dialing = false
	if a.s.leaving {
		return // it is reloaded, as we are, or stops
	}
	if len(a.waiting) == 0 {
		return // it was not needed: see warm
	}
	a.s.opt.Log.Warning("connect to transport %s: %v", a.transport, err)
	ev := sched.Event{Kind: sched.EventAgentDown, Transport: a.transport}
	for _, d := range a.waiting {
		ev.Entries = append(ev.Entries, d.entry)
		delete(a.s.entries, d.entry)
	}
	a.waiting = nil
	a.s.then(ev)
}

// completed takes in what came of a delivery and tells the scheduler.
func (s *Server) completed(d *delivery, reply *proto.DeliverReply) {
	if s.entries[d.entry] != d { // ended by another way
		s.tooLate(d, reply)
		return
	}
	delete(s.entries, d.entry)
	ev := sched.Event{Kind: sched.EventDone, Entry: d.entry}
	m := s.messages[d.num]
	if m != nil && m.active != nil {
		s.judge(m, d, reply, &ev.Result)
	}
	if m != nil && reply.Corrupt {
		s.then(sched.Event{Kind: sched.EventCorrupt, Scope: sched.ScopeMessage, ID: d.num})
	}
	if !reply.SiteStatus.IsZero() {
		ev.Result.SiteFailed, ev.Result.Status, ev.Result.Reason = true, reply.SiteStatus, reply.SiteReason
		ev.Result.SitePartly = reply.SitePartly
	}
	ev.Result.Hungry = reply.Kept
	s.then(ev)
}

// noAccount is what is said of recipients of whom the agent has said nothing.
const noAccount = "the delivery agent did not account for this recipient"

// judge sorts outcomes into what is done, what is to be tried again, and what
// the sender must be told. Every recipient of the order is one of the first
// two: one of whom nothing has been said is to be tried again.
func (s *Server) judge(m *message, d *delivery, reply *proto.DeliverReply, res *sched.Result) {
	a := m.active
	done := reuse.Truncated(s.settled)
	for _, o := range reply.Outcomes {
		r := a.rcpt(o.Rcpt)
		if r == nil || r.order != d || m.isDone(o.Rcpt) {
			continue // not ordered, or said twice: an agent that is out of its mind harms nobody
		}
		r.order = nil
		if a.env.Trace&mail.TraceProbe != 0 {
			s.probed(r.Recipient, &o)
		}
		// Who wants a report gets one, of the first attempt.
		report := a.env.Trace&(mail.TraceReport|mail.TraceRecord) != 0 && !a.again
		cleared := a.warned && s.opt.Settings.ConfirmCleared && a.env.Sender != "" && r.Notify.Delay()
		switch o.Action {
		case dsn.Deferred, dsn.Failed:
			due := a.heed(&o)
			if report || r.Notify.Success() && a.env.Trace == 0 && o.HasGood(false) { // an alias was expanded
				a.success = append(a.success, o)
				res.Success = true
			}
			if o.Action == dsn.Deferred {
				res.Deferred = append(res.Deferred, o.Rcpt)
			} else if !due {
				m.through(o.Rcpt)
				done = append(done, o.Rcpt)
			}
			res.Failed = res.Failed || due
		default:
			old := a.outcomes[o.Rcpt]
			m.through(o.Rcpt)
			if (r.Notify.Success() && !old.HasGood(true) || cleared) && !o.Passed || report {
				// The recipient is only done when the sender has been told;
				// until then what happened is kept with the message.
				a.success = append(a.success, o)
				res.Success = true
				s.log.update(m, proto.Op{Change: queue.Change{Outcomes: []mail.Outcome{o}}})
			} else {
				done = append(done, o.Rcpt)
			}
		}
	}
	s.log.done(m, done)
	s.settled = reuse.Emptied(done)
	for _, i := range d.rcpts {
		if r := a.rcpt(i); r != nil && r.order == d && !m.isDone(i) {
			r.order = nil
			a.missing(i, s.now, noAccount)
			res.Deferred = append(res.Deferred, i)
		}
	}
}

// heed notes why a recipient has not got the message, with what of it has been
// told before (mail.Outcome.Follow). It says whether a notice of failure is due.
func (a *active) heed(o *mail.Outcome) (due bool) {
	if old, ok := a.outcomes[o.Rcpt]; ok {
		o.Follow(&old)
	}
	a.noted(o)
	return o.Untold() || o.Action == dsn.Failed && !o.HasFailed()
}

// missing notes what there is to say of a recipient of whom no agent has said
// anything.
func (a *active) missing(i int, now time.Time, reason string) {
	a.heed(&mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 3, 0), Reason: reason, Relay: "none", When: now})
}

// lose ends a delivery of which nobody will say any more what came of it.
func (s *Server) lose(d *delivery) {
	delete(s.entries, d.entry)
	if d.sent && len(d.index) > 0 {
		s.log.lost(d)
	}
	d.sent = false
	if m := s.messages[d.num]; m != nil && m.active != nil {
		for _, i := range d.rcpts {
			if !m.isDone(i) {
				m.active.missing(i, s.now, "the delivery agent ended in the middle of the delivery")
			}
		}
	}
	s.then(sched.Event{Kind: sched.EventLost, Entry: d.entry})
}

// probed tells the verify service what a probe came to.
func (s *Server) probed(r mail.Recipient, o *mail.Outcome) {
	m := &proto.Probed{Address: r.Orig(), Text: o.Reason, Status: proto.ProbeDefer}
	switch {
	case o.Action == dsn.Deliverable:
		m.Status = proto.ProbeOK
	case o.Status.Class == 5:
		m.Status = proto.ProbeBounce
	}
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, agentPatience)
		defer cancel()
		conn, err := s.verify.Conn(ctx)
		if err == nil {
			err = conn.Send(m)
		}
		if err != nil {
			s.opt.Log.Warning("address probe result for <%s> is lost: %v", s.opt.Log.Address(m.Address), err)
		}
	})
}
