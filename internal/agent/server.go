package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"posthaste/internal/bounceclass"
	"posthaste/internal/dsn"
	"posthaste/internal/event"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/reuse"
)

const (
	// remembered is how long an outcome is kept after it was reported: should
	// the queue manager die before its record is durable, the next one is told
	// again. It is many times what recording takes.
	remembered = 10 * time.Second
	// passPatience is how long another transport may take to be reached.
	passPatience = 5 * time.Second
	// maxUnreported bounds what is kept while there is no queue manager.
	maxUnreported = 100000
)

// Options are what an agent's server is made of.
type Options struct {
	Deliverer Deliverer
	Content   func(ctx context.Context, ref queue.Ref, id mail.QueueID) (queueread.Content, error) // as queueread.Opener's
	Log       *maillog.Logger
	// Hand asks cleanup; nil: it cannot be asked.
	Hand func(ctx context.Context, m *proto.Hand, reply *proto.RecordReply) error
	// Queue is where the queue manager is reached. A queue manager that has
	// not heard of what goes on here, or came to an end here, is told there;
	// empty: it has to ask.
	Queue ipc.Address
	// Agent is where another transport is reached, for Request.Pass; nil:
	// none can be reached.
	Agent func(mail.Transport) ipc.Address
	// Limit is how many deliveries run at once; 0: no limit.
	Limit int
	// TimeLimit bounds one delivery (daemon_timeout), a little late perhaps; 0:
	// nothing does. Overdue is told of one that goes on regardless.
	TimeLimit time.Duration
	Overdue   func(mail.QueueID)
	// Reports says that senders may hear of deliveries that nobody has asked
	// for a report of (confirm_delay_cleared).
	Reports    bool
	SoftBounce bool    // soft_bounce
	Filter     *Filter // of outcomes; nil: none
	// Classes says what kind of failure an outcome is, for the log; nil: nobody wants to know.
	Classes    *bounceclass.Rules
	Resolution maillog.Resolution
	// Events has what was logged on stable storage before it is reported; nil: nobody is told of events.
	Events *event.Reporter
	// Suppress knows who must not get mail of lists; nil: there is no such mail.
	Suppress Suppressor
	// Leaves says that mail leaves this system, with the sender that Suppress has for it.
	Leaves bool
	// Before says that Suppress is asked before a delivery (suppress_before_delivery).
	Before bool
}

// environment is what all requests of an agent share.
type environment struct {
	softBounce bool
	filter     *Filter
	classes    *bounceclass.Rules
	resolution maillog.Resolution
	log        *maillog.Logger
	listed     *listed
}

// A Server serves delivery requests from the queue manager.
type Server struct {
	opt   Options
	env   *environment
	slots chan struct{} // one for each delivery that may run; nil: no limit

	// telling is held while an outcome is told; exclusively, when nothing more is
	// to be told over a connection.
	telling sync.RWMutex

	mu      sync.Mutex
	running map[*running]struct{}
	watch   *watch         // of the deliveries that begin now
	recent  told           // kept in case the reporting was in vain
	short   []mail.Outcome // for report to work in
	others  map[mail.Transport]*ipc.Client
	wg      ipc.Workers
	srv     ipc.Server
	// unhanded is what the log is still to be told of deliveries that were not recorded.
	unhanded unhanded
	news     chan struct{} // capacity 1: somebody is to be told of something, perhaps
}

// running is a delivery under way: the order, what the Deliverer sees of it, and
// the answer, in one piece of memory.
type running struct {
	order  proto.Deliver // does not change
	req    Request
	watch  *watch
	conn   *ipc.Conn // whose order it is; nil: of somebody who has left
	called bool      // its outcome will be told by a call of ours: see callQueue

	// Room for an order with one recipient, as most are.
	rcpt  [1]mail.Recipient
	index [1]int
}

// newRunning makes room for an order of conn's.
func newRunning(conn *ipc.Conn) *running {
	run := &running{conn: conn}
	run.order.Envelope.Recipients, run.order.Index = run.rcpt[:0], run.index[:0]
	return run
}

// told is how an Inventory has it.
func (run *running) told() proto.Delivery {
	return proto.Delivery{ID: run.order.Envelope.ID, Index: run.order.Index, Active: run.order.Active}
}

// NewServer makes a server.
func NewServer(o Options) *Server {
	s := &Server{opt: o, news: make(chan struct{}, 1), running: make(map[*running]struct{}), others: make(map[mail.Transport]*ipc.Client),
		env: &environment{softBounce: o.SoftBounce, filter: o.Filter, classes: o.Classes, resolution: o.Resolution, log: o.Log, listed: newListed(&o)}}
	if o.Limit > 0 {
		s.slots = make(chan struct{}, o.Limit)
	}
	return s
}

// start makes the server ready for connections. Deliveries get ctx.
func (s *Server) start(ctx context.Context) {
	s.srv = ipc.Server{Handler: func(c *ipc.Conn, r *ipc.Request) { s.handle(ctx, c, r) }, OnClose: s.lost}
}

// lost: a queue manager is gone. Outcomes that it was told last it has not recorded, perhaps, and they
// are kept for its successor, however long that takes to come.
func (s *Server) lost(c *ipc.Conn) {
	s.mu.Lock()
	s.recent.lose(time.Now(), c)
	s.mu.Unlock()
	s.alert()
}

// close frees what the server holds. Nothing is under way any more.
func (s *Server) close() {
	for _, c := range s.others {
		c.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch != nil {
		s.watch.stop()
	}
}

// attached tells a queue manager what is not to be ordered again.
func (s *Server) attached(c *ipc.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var inv proto.Inventory
	for r := range s.running {
		inv.Running = append(inv.Running, r.told())
		r.conn, r.called = c, false // its outcome goes to the new one
	}
	now := time.Now()
	s.recent.prune(now)
	// Whom they were told over another connection may be gone, even if that
	// has not been noticed here yet.
	inv.Finished = s.recent.retell(now, c, inv.Finished)
	c.Push(&inv)
}

// detached: the queue manager at c leaves. What comes of its orders is told to
// its successor.
func (s *Server) detached(c *ipc.Conn, r *ipc.Request) {
	s.telling.Lock()
	s.mu.Lock()
	for run := range s.running {
		if run.conn == c {
			run.conn = nil
		}
	}
	s.mu.Unlock()
	r.Reply(&proto.RecordReply{})
	s.telling.Unlock()
	s.alert()
}

// isClosed says that nobody can be told anything over c.
func isClosed(c *ipc.Conn) bool {
	if c == nil {
		return true
	}
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

func (s *Server) handle(ctx context.Context, c *ipc.Conn, r *ipc.Request) {
	switch r.Kind {
	case proto.KindAttach:
		s.attached(c)
		return
	case proto.KindDismiss:
		s.dismiss(r)
		return
	case proto.KindDetach:
		s.wg.Go(func() { s.detached(c, r) })
		return
	case proto.KindDeliver:
	default:
		r.Fail("agent: unknown request %d", r.Kind)
		return
	}
	run := newRunning(c)
	if err := r.Decode(&run.order); err != nil {
		r.Fail("%v", err)
		return
	}
	r.Free()
	if n := len(run.order.Envelope.Recipients); len(run.order.Index) != n { // a queue manager that cannot count
		run.order.Index = positions(n)
	}
	if !run.order.Passed {
		s.mu.Lock()
		s.running[run] = struct{}{}
		s.mu.Unlock()
	}
	s.wg.Go(func() {
		if s.slots != nil {
			s.slots <- struct{}{}
			defer func() { <-s.slots }()
		}
		reply := s.deliver(ctx, run)
		if run.order.Passed {
			r.Reply(reply)
			return
		}
		s.report(run, c, r, reply)
	})
}

// dismiss has the Deliverer close a session. Saying goodbye may take a moment.
func (s *Server) dismiss(r *ipc.Request) {
	var m proto.Dismiss
	err := r.Decode(&m)
	r.Free()
	if d, ok := s.opt.Deliverer.(Dismisser); ok && err == nil {
		s.wg.Go(func() { d.Dismiss(m.Session) })
	}
}

// report sends the outcome to whoever is the queue manager now.
func (s *Server) report(run *running, asked *ipc.Conn, r *ipc.Request, reply *proto.DeliverReply) {
	now := time.Now()
	fin := proto.Finished{ID: run.order.Envelope.ID, Reply: *reply, Active: run.order.Active}
	keep := fin
	s.telling.RLock()
	defer s.telling.RUnlock()
	s.mu.Lock()
	if !s.opt.Reports {
		s.short = appendShort(reuse.Truncated(s.short), &run.order, reply.Outcomes)
		keep.Reply.Outcomes = s.short
	}
	delete(s.running, run)
	to := run.conn
	if run.called || isClosed(to) {
		to = nil
	}
	s.recent.prune(now)
	s.recent.add(now, to, &keep)
	s.mu.Unlock()
	switch to {
	case nil:
		s.alert() // the next one will be told
	case asked:
		r.Reply(reply)
	default:
		to.Push(&proto.Inventory{Finished: []proto.Finished{fin}})
	}
}

// deliver carries out one request, whatever the Deliverer does. The reply is
// part of run.
func (s *Server) deliver(ctx context.Context, run *running) *proto.DeliverReply {
	s.begin(ctx, run)
	defer s.end(run)
	r := &run.req
	r.begin(s.env, &run.order, run)
	func() {
		defer func() {
			if p := recover(); p != nil {
				s.opt.Log.Panic(p)
			}
		}()
		if s.env.listed.permits(run.watch.ctx, r) && r.handAll(s.opt.Deliverer) {
			s.opt.Deliverer.Deliver(run.watch.ctx, r)
		}
	}()
	reply := &r.reply
	for i := range reply.Outcomes {
		if r.Pending(i) {
			r.Defer(i, dsn.S(4, 3, 0), "the delivery agent did not account for this recipient", Detail{})
		}
	}
	s.env.listed.tell(context.WithoutCancel(ctx), r)
	// What the queue records of this must not be all that is left of it.
	s.opt.Events.Wait(context.WithoutCancel(ctx))
	reply.Stopped = ctx.Err() != nil && !slices.ContainsFunc(reply.Outcomes, func(o mail.Outcome) bool { return o.Action != dsn.Deferred })
	return reply
}

// content opens the message, for Request.Content.
func (run *running) content(r *Request) (Content, error) {
	c, err := run.watch.server.opt.Content(run.watch.ctx, run.order.Ref, run.order.Envelope.ID)
	switch {
	case errors.Is(err, queueread.ErrGone):
		return nil, err
	case err != nil:
		return nil, errors.Join(errors.New("message content cannot be read from the queue"), r.found(err))
	}
	return stored{c, r}, nil
}

// pass has another transport deliver to one address, for Request.PassTo.
func (run *running) pass(r *Request, i int, to mail.Recipient, transport mail.Transport, nexthop mail.Nexthop) (mail.Outcome, error) {
	if run.watch.server.opt.Agent == nil {
		return mail.Outcome{}, errNoTransport
	}
	order := run.order
	order.Nexthop, order.Index, order.Passed = nexthop, []int{r.order.Index[i]}, true
	order.CacheLoad, order.CacheKeep, order.Session = false, false, 0
	order.Envelope.Recipients = []mail.Recipient{to}
	return run.watch.server.pass(run.watch.ctx, transport, &order)
}

// pass orders a delivery to one recipient from another transport.
func (s *Server) pass(ctx context.Context, transport mail.Transport, order *proto.Deliver) (mail.Outcome, error) {
	s.mu.Lock()
	client := s.others[transport]
	if client == nil {
		client = ipc.NewClient(s.opt.Agent(transport), nil)
		s.others[transport] = client
	}
	s.mu.Unlock()
	var reply proto.DeliverReply
	if err := s.order(ctx, client, order, &reply); err != nil {
		s.opt.Log.Warning("transport %s: %v", transport, err)
		return mail.Outcome{}, errors.New("mail transport unavailable")
	}
	if len(reply.Outcomes) != 1 {
		return mail.Outcome{}, errors.New("the delivery agent did not account for this recipient")
	}
	return reply.Outcomes[0], nil
}

// order connects, for a moment only when nobody is there, and asks.
func (s *Server) order(ctx context.Context, client *ipc.Client, order *proto.Deliver, reply *proto.DeliverReply) error {
	dial, cancel := context.WithTimeout(ctx, passPatience)
	defer cancel()
	conn, err := client.Conn(dial)
	if err != nil {
		return err
	}
	return conn.Call(ctx, order, reply)
}
