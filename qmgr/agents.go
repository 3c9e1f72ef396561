// Delivery agents: connections to them, orders, and what comes of these. There is one
// connection to each transport. An agent process serves any number of orders at once; the
// scheduler bounds them.

package qmgr

import (
	"context"
	"errors"
	"slices"
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
	// Of the scheduler. The delivery is in Server.entries under entry until its outcome
	// is known.
	entry     sched.EntryID
	num       sched.MsgID
	transport mail.Transport
	nexthop   mail.Nexthop
	agent     sched.AgentID // whose session is to be used or kept,
	cache     sched.Cache   // if there is one, if that is worth it,
	keep      time.Duration // and for how long
	source    string        // what to send from; "": as the agent's settings say
	advice    string        // what is to be done otherwise than those settings say
	provider  string        // who is behind the destination; empty: not known
	most      int           // messages that may go over that session; 0: as the agent's settings say
	// Numbers of the recipients in the message. They are this delivery's alone: no other
	// order has one of them.
	rcpts []int
	since time.Time // ordered by the scheduler
	// Whether the agent has the order, and over which connection. Before that it can be
	// taken back without a trace. Afterwards the recipients may have got the message even
	// if no answer comes.
	sent bool      // the agent has it
	conn *ipc.Conn // and has it from there
	// The recipients of rcpts that the agent has; empty before the order is sent.
	index []int
	// Former deliveries to some of the same recipients that still go on. While it is not
	// 0 the order is not sent.
	awaits int
	// What came of those that have ended. It is taken into account when the order is
	// sent: it names fewer recipients then, or is not needed at all.
	reply proto.DeliverReply
}

// A former delivery is one that a former queue manager ordered, and that goes
// on. Nobody else is to get an order for its recipients.
type former struct {
	id mail.QueueID
	// Recipients of which nothing has been heard. When all have been, the former delivery
	// is over and release is called.
	rcpts []int
	// Which attempt it is: when the former queue manager took the message up. Zero: not known.
	active time.Time
	conn   *ipc.Conn // where its outcome will be told; nil: the agent has not called yet
	// What is known of it is cleanup's record, and no agent has spoken of it. nexthop is where to, by
	// that, and recorded when; else they are empty.
	onRecord bool
	nexthop  string
	recorded time.Time
	// Ends the hold on conn that keeps it from being closed for idleness.
	release func()
	waiting []*delivery // orders for some of the same recipients
	// Commands that the message is to be queued again, which wait for the end.
	after []sched.Event
}

// An agentConn is the way to one transport's process. It belongs to the loop.
type agentConn struct {
	s         *Server
	transport mail.Transport
	// Where orders go; nil while it is down. Orders that a retiring process has are
	// answered where they went, which may be another connection.
	conn *ipc.Conn
	// Whether the inventory has come: an agent process first says what it has in hand. An
	// order before that could be for a recipient that it is delivering to already.
	ready   bool
	dialing bool
	// Orders to be sent when ready, in the order in which the scheduler made them.
	waiting []*delivery
	pending int // sent and not answered
	// When the last order went or was answered; the connection is closed agentIdle later.
	used time.Time
	// Storage for an order while it is sent, and for its recipients. GoNow encodes at
	// once.
	req proto.Deliver
	to  []mail.Recipient
}

// deliver takes an order from the scheduler. From here until completed or lose, the order
// is in s.entries.
func (s *Server) deliver(m *message, e *sched.Effect) {
	d := &delivery{entry: e.Entry, num: e.ID, transport: e.Transport, nexthop: e.Nexthop, agent: e.Agent, cache: e.Cache, keep: e.Keep, source: e.Source, most: int(e.Most), rcpts: e.Rcpts, since: s.now}
	if e.Terms != nil {
		d.advice, d.provider = e.Terms.Advice, providerOf(e.Terms)
	}
	s.entries[e.Entry] = d
	s.watch()
	for _, i := range d.rcpts {
		if r := m.active.rcpt(i); r != nil {
			r.order = d
		}
	}
	s.orderKept(m, d)
}

// order sends an order to its agent, or keeps it until the agent can be reached.
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

// warm connects to the agents that the predecessor gave orders to. So what they have in
// hand is known when the first order for them comes, and that order need not wait for a
// dial. An agent that cannot be reached now is tried again then.
func (s *Server) warm(transports []mail.Transport) {
	for _, t := range transports {
		if s.agents[t] == nil && len(s.agents) < maxWarm {
			a := &agentConn{s: s, transport: t, used: s.now}
			s.agents[t] = a
			a.dial()
		}
	}
}

// dial connects in a task. The result comes as up, or down.
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
		// An agent that has a successor may say at once that it wants to go. It is not left
		// before it has said what it has in hand, which tells it from one that failed.
		var free func()
		client := ipc.NewClient(at, func(conn *ipc.Conn, r *ipc.Request) {
			var inv proto.Inventory
			switch {
			// Nothing else is expected from an agent, and what makes no sense harms
			// nobody.
			case r.Kind != proto.KindInventory || r.Decode(&inv) != nil:
			case first:
				first = false
				s.post(func() { a.up(conn, &inv); free() }, sched.Event{})
				close(told)
			default:
				s.post(func() { s.heardOf(conn, &inv, false) }, sched.Event{})
			}
		})
		client.OnDial(func(conn *ipc.Conn) { free = conn.Keep() })
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

// dialOnce connects without trying again for long when nobody listens: a transport that
// is not in master.cf must be told from one that starts. master has the sockets of all
// services open before it starts any, so a second is plenty.
func dialOnce(ctx context.Context, client *ipc.Client) (*ipc.Conn, error) {
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return client.Conn(short)
}

// up takes in that the connection stands. inv says which recipients the agent has in
// hand, so it is taken in before the first order is sent.
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
		// The message may have been removed while the agent was dialled.
		if m := a.s.messages[d.num]; m != nil && m.active != nil {
			a.send(m, d)
		}
	}
}

// reapAgents closes connections that have not been used for agentIdle, so that master's
// max_idle applies to the agents. A connection over which an outcome is still to come
// stays.
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

// send gives an order to the agent, unless it must wait for a former delivery.
func (a *agentConn) send(m *message, d *delivery) {
	s := a.s
	if s.await(m, d) {
		return
	}
	s.applyVerdicts(d)
	act := m.active
	index := d.rcpts
	settled := func(i int) bool { return m.isDone(i) || about(&d.reply, i) }
	if slices.ContainsFunc(index, settled) { // a former delivery has
		if index = slices.DeleteFunc(slices.Clone(index), settled); len(index) == 0 {
			s.completed(d, &d.reply, nil)
			return
		}
	}
	req := &a.req
	*req = proto.Deliver{Nexthop: d.nexthop, Envelope: act.env, Index: index, Ref: m.ref, Active: act.since, Session: uint64(d.agent),
		CacheLoad: d.cache&sched.CacheLoad != 0, CacheKeep: d.cache&sched.CacheStore != 0, Keep: d.keep, Most: d.most, Exact: s.opt.Settings.ExactDoubt, Advice: d.advice,
		Provider: d.provider}
	if d.source != "" {
		req.Source, req.Spec = d.source, s.terms.specOf(d.source)
	}
	if s.opt.Events != nil {
		req.Attempt = s.attempt(d.num)
	}
	to, rewrite := a.recipients(act, index)
	req.Envelope.Recipients = to
	// VERP means one recipient to an order; the scheduler was told so (FlagSingleRcpt).
	if act.env.VERP != "" && act.env.Sender != "" && len(index) == 1 {
		req.Envelope.Sender = verpSender(act.env.Sender, to[0].Orig(), act.env.VERP)
	}
	// There is one sender for all recipients of an order. It may be rewritten for some that
	// would not have needed it, which does them no harm: a foreign sender it is. VERP's comes
	// first: bounces to it are the list's.
	if rewrite {
		req.Envelope.Sender = s.opt.Settings.rewriting.senderFor(req.Envelope.Sender, to, s.now)
	}
	if req.Envelope.Sender == act.env.Sender {
		req.Encoded(m.inline.envelope) // else it is another envelope
	}
	d.sent, d.conn, d.index = true, a.conn, index
	if act.old && !req.Exact {
		s.log.handOut(m.id, d)
	}
	a.pending++
	a.used = s.now
	// The callback runs on the connection's reading goroutine, and so only reads.
	a.conn.GoNow(req, func(payload []byte, err error) {
		ans := s.answers.Get()
		ans.a, ans.d, ans.err = a, d, err
		if err == nil {
			ans.err = ans.reply.Decode(payload)
			ans.said.read(d, &ans.reply)
		}
		s.postInput(input{answer: ans})
	})
	*req = proto.Deliver{}
	a.to = reuse.Emptied(to)
}

// recipients are those of an order, in the storage for them. rewrite says that the sender is rewritten on the way to one of
// them.
func (a *agentConn) recipients(act *active, index []int) (to []mail.Recipient, rewrite bool) {
	to = slices.Grow(reuse.Truncated(a.to), len(index))[:len(index)]
	for i, idx := range index {
		r := act.rcpt(idx)
		to[i] = r.Recipient
		rewrite = rewrite || r.rewrite
		// The log's orig_to: what the recipient was before trivial-rewrite changed it.
		if r.Original == "" && r.resolved != r.Address {
			to[i].Original = r.Address
		}
		to[i].Address = r.resolved
	}
	return to, rewrite
}

// dismiss tells an agent that a session is not needed any more. Without a connection
// there is no session that anybody knows of. Where the agent decides itself how long it
// keeps sessions (smtp_connection_cache_time_limit), it closes them itself.
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
	said  replied
	err   error
}

// process has the loop take the answer in. Only texts and copies of outcomes are kept of
// it; its storage is for the next one.
func (ans *answer) process() {
	s := ans.a.s
	s.answered = s.answered || ans.err == nil
	ans.a.answered(ans.d, &ans.reply, &ans.said, ans.err)
	*ans = answer{reply: proto.DeliverReply{Outcomes: reuse.Emptied(ans.reply.Outcomes)}}
	s.answers.Put(ans)
}

// verpSender encodes the recipient in the envelope sender, so that a bounce says whom it
// is about: sender's local part, first delimiter, recipient's local part, second
// delimiter, recipient's domain. Delimiters are default_verp_delimiters, or what the
// sender of the mail chose.
func verpSender(sender, recipient, delimiters string) string {
	local, domain, ok := rfc5322.Split(sender)
	if !ok || len(delimiters) != 2 {
		return sender
	}
	rlocal, rdomain, _ := rfc5322.Split(recipient)
	return local + delimiters[:1] + rlocal + delimiters[1:] + rdomain + "@" + domain
}

// maxNamed bounds the recipients that a line of the log names: a log line must not grow
// with a mailing list.
const maxNamed = 20

// answered takes in the answer to an order, or that the connection broke before one came.
func (a *agentConn) answered(d *delivery, reply *proto.DeliverReply, read *replied, err error) {
	a.pending--
	a.used = a.s.now
	switch {
	case err == nil && reply.Stopped, errors.Is(err, ipc.ErrUnsent):
		// The agent has not begun. The order is for the agent's successor or, when the
		// mail system stops, for ours.
		d.sent = false
		a.waiting = append(a.waiting, d)
		if !a.dialing && !a.s.leaving {
			a.dial()
		}
	case err == nil:
		if len(d.reply.Outcomes) > 0 { // most of them may have got another answer than what the agent says
			reply.Outcomes = append(reply.Outcomes, d.reply.Outcomes...)
			read.read(d, reply)
		}
		a.s.completed(d, reply, read)
	default:
		// The agent may have delivered before it died. Nobody can know; the recipients
		// are tried again, and the second line says who may get a second copy, so that
		// the postmaster can tell them.
		a.s.opt.Log.Warning("transport %s: the delivery agent ended in the middle of a delivery: %v", a.transport, err)
		if m := a.s.messages[d.num]; m != nil && len(d.index) > 0 {
			a.s.opt.Log.Warning("%s: in doubt: it was being delivered to %s when the delivery agent ended: recipients number %s may have it, and may get it again",
				m.id, d.nexthop, recipientNumbers(d.index))
		}
		a.s.lose(d)
	}
}

// lost takes in that a connection is gone. Requests under way have been answered with an
// error each before this. Orders that wait are sent over a new connection.
func (a *agentConn) lost(conn *ipc.Conn) {
	if a.conn == conn {
		a.conn, a.ready = nil, false
		if len(a.waiting) > 0 && !a.dialing && !a.s.leaving {
			a.dial()
		}
	}
	a.s.silent(conn)
}

// down takes in that an agent could not be reached: the scheduler is told that the
// transport is unavailable, and defers what waits for it.
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

// completed takes in what came of a delivery and tells the scheduler. An order that is
// not in entries any more was given up (watchdog), and its outcome counts all the same. read is what was found in reply
// beside the loop; nil: nothing was.
func (s *Server) completed(d *delivery, reply *proto.DeliverReply, read *replied) {
	if s.entries[d.entry] != d { // ended by another way
		s.tooLate(d, reply)
		return
	}
	delete(s.entries, d.entry)
	ev := sched.Event{Kind: sched.EventDone, Entry: d.entry}
	m := s.messages[d.num]
	s.note(d, reply, read)
	if m != nil && m.active != nil {
		s.sortOutcomes(m, d, reply, &ev.Result)
	}
	if m != nil && reply.Corrupt {
		s.then(sched.Event{Kind: sched.EventCorrupt, Scope: sched.ScopeMessage, ID: d.num})
	}
	if !reply.SiteStatus.IsZero() {
		ev.Result.SiteFailed, ev.Result.Status, ev.Result.Reason = true, reply.SiteStatus, reply.SiteReason
		ev.Result.SitePartly = reply.SitePartly
	}
	s.readAsk(d, reply, &ev.Result)
	ev.Result.Hungry, ev.Result.Opened = reply.Kept, reply.Opened
	s.then(ev)
}

// noAccount is what is said of recipients of whom the agent has said nothing.
const noAccount = "the delivery agent did not account for this recipient"

// sortOutcomes sorts outcomes into what is done, what is to be tried again, and what the
// sender must be told. Every recipient of the order is one of the first two: one of whom
// nothing has been said is tried again.
func (s *Server) sortOutcomes(m *message, d *delivery, reply *proto.DeliverReply, res *sched.Result) {
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
		// A recipient that failed stays pending until the sender has been told: if this
		// process dies before, the next one tries the recipient again. Not so one that was
		// expanded: some of its members have the message.
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
			} else if len(o.Parts) > 0 {
				s.log.update(m, proto.Op{Change: queue.Change{Outcomes: []mail.Outcome{o}}})
				s.log.urgent = true // the next queue manager reads it from the disk
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
	// One change for all, which is merged with others of this message.
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

// heed keeps why a recipient has not got the message. What has been told of it before is
// carried over (mail.Outcome.Follow), so that the sender does not hear of the same failed
// member of an alias with each attempt. It says whether a notice of failure is due.
func (a *active) heed(o *mail.Outcome) (due bool) {
	if old, ok := a.outcomes[o.Rcpt]; ok {
		o.Follow(&old)
	}
	a.noted(o)
	return o.Untold() || o.Action == dsn.Failed && !o.HasFailed()
}

// missing keeps a deferral for a recipient of whom no agent has said anything.
func (a *active) missing(i int, now time.Time, reason string) {
	a.heed(&mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 3, 0), Reason: reason, Relay: "none", When: now})
}

// lose ends a delivery of which nobody will say any more what came of it. That it may
// have been made is recorded, for the report of what may have arrived twice; then its
// recipients are tried again.
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

// probed tells the verify service what an address probe came to. It is best effort: a
// result that is lost means that the address is probed again.
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
