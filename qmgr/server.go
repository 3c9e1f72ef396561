// Package qmgr is the queue manager: Postfix's qmgr(8). It learns from cleanup
// what is in the queue, decides when what is to be delivered (package sched
// does), orders deliveries from the agents, has the bounce service tell
// senders, and has cleanup record what came of it all.
//
// One goroutine, the loop, owns the scheduler and all that is known of
// messages. What takes time (reading the spool, asking trivial-rewrite,
// connecting to agents) is done beside it and comes back as an input. In one
// turn the loop does all that has come in, and then sends the changes that
// follow from it to cleanup in one request.
//
// # Memory
//
// What is worked on is in memory with its recipients, within the limits of the
// scheduler. New mail that waits, and the deferred mail that is due next, five messages for each place in the
// active queue, takes some 160 octets a message
// without pointers: a record of the scheduler's, and a slip in the shell's
// book: where the message lies, and its domains, for qshape. All other mail, however
// much, takes nothing: cleanup is asked for it when it is due, and when somebody names it.
//
// # Restarts
//
// The queue manager keeps what operators have suspended on disk (package override), in
// data_directory. When it starts cleanup pushes the incoming queue, and is asked for what is due; agents say what they are still
// delivering for a predecessor and what came of deliveries that nobody was there to
// hear of, before they are given anything (proto.Inventory). Agents that it would
// not ask, because they have a successor or mail goes another way now, call it
// themselves. When cleanup restarts, changes that it has not confirmed are sent again.
//
// At a reload the old queue manager hands over to the new one what cannot be
// learnt from the spool, in the file qmgr/handover below data_directory: which destinations
// are dead, the windows and the feedback of the others, and which
// deliveries go on. Only the recipients of these wait, until their agents have said
// what came of them; nothing else does. The new settings bound what is taken over.
// A stop and a start forget all that, as with Postfix: an operator who wants every
// destination to be tried anew has that way, or "postqueue -f". Without a
// handover, as when the queue manager stops while deliveries go on, their messages
// are recorded as to be left alone for minimal_backoff_time.
//
// # Security
//
// It runs without privileges and does not speak to the network. Tools reach
// it through a socket that the set-gid group may use, for what postqueue does:
// to list the queue, or a selection of it, and to have mail tried now. Whether its caller may is for
// that tool to say (authorized_flush_users, authorized_mailq_users). All else,
// and so what would change the queue, is for root and mail_owner, by what the
// kernel says of who has connected.
//
// # Parameters
//
// The qmgr_ and _destination_ parameters, defer_transports,
// minimal_backoff_time, maximal_backoff_time, queue_run_delay,
// maximal_queue_lifetime, bounce_queue_lifetime, delay_warning_time,
// confirm_delay_cleared, daemon_timeout, transport_retry_time, fast_flush_domains, default_filter_nexthop, helpful_warnings.
//
// # Diagnostics
//
// Log lines are Postfix's: from=<..>, size=, nrcpt= (queue active); removed;
// status=expired, returned to sender.
package qmgr

import (
	"context"
	"sync"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/reuse"
	"posthaste/internal/service"
	"posthaste/internal/statedir"
	"posthaste/internal/submit"
	"posthaste/qmgr/sched"
)

// A Resolver says where mail for an address goes. It is package
// rewriteclient's Client, or a table in tests.
type Resolver interface {
	Resolve(ctx context.Context, sender, addr string) (proto.ResolveReply, error)
	// Known is Resolve's answer for any sender if that needs nobody to be asked.
	Known(addr string) (proto.ResolveReply, bool)
	// ForeseeResolve begins to ask what Resolve is going to be asked, without waiting.
	ForeseeResolve(ctx context.Context, sender, addr string)
}

// Options are what a queue manager is made of.
type Options struct {
	Settings Settings
	Resolver Resolver
	// Open reads a message's record, wherever it lies now.
	Open func(context.Context, queue.Ref, mail.QueueID) (queueread.Stored, error)
	// Submit hands messages to cleanup again (postsuper -r).
	Submit *submit.Client
	Log    *maillog.Logger
	// Cleanup, Bounce, Verify and Agent are where these services are reached.
	Cleanup ipc.Address
	Bounce  ipc.Address
	Verify  ipc.Address
	Agent   func(mail.Transport) ipc.Address
	// Overrides keep what is allowed for now; nil: none can be kept.
	Overrides *override.Store
	// Flow, when set, takes flow control tokens (in_flow_delay): it is told
	// that a message has left the incoming queue, and how many messages are
	// still in it.
	Flow func(moved int, incoming int)
	// State is where a queue manager that retires leaves what its successor is to
	// know; nil: nowhere.
	State *statedir.Dir
	// Deep, when set, is told when the queue has become so deep that memory is to be
	// saved, and when that is over.
	Deep func(deep bool)
	// TookOver, when set, is told when mail goes out: cleanup has told of the incoming queue, and an agent has
	// answered, or there is nothing to deliver. It is told again in later turns.
	TookOver func()
	// Patience is how long a tool waits while cleanup says nothing; zero means
	// askPatience.
	Patience time.Duration
	// ResolveTime is how long the resolver may take for one address; zero means
	// resolveTime. Those that are loaded with it are deferred, too.
	ResolveTime time.Duration
}

// A Server is the queue manager. One goroutine, Run's, owns the scheduler and
// all that is known of messages; everything else sends it inputs.
type Server struct {
	opt Options
	// The scheduler: all of its state is behind Step, and only the loop calls it.
	sched *sched.Scheduler

	// mu guards inbox and closed, the only state that other goroutines touch. Whatever they
	// have to say is an input for the loop, so that nothing below needs a lock.
	mu    sync.Mutex
	inbox []input
	bell  chan struct{} // capacity 1: there is something in inbox
	room  chan struct{} // holds one for each batch of entries in inbox
	// Set when the loop has ended. An input that comes later is dropped: its sender must not
	// wait for an effect, but for deaf.
	closed bool
	deaf   chan struct{} // closed with that: what is posted is not heard

	// What follows belongs to the loop.
	// The time of the present turn. It is read once for each, so that all decisions of a turn
	// agree, and a story can be played again.
	now     time.Time
	flushed bool // an operator's order to try mail at once has come, and handOver has not looked since
	// They go first, so that what follows from a decision is not overtaken by news that
	// contradict it.
	queue []input // inputs that effects led to, before anything from the inbox
	spare []input // the last turn's inbox, for use again
	// Memory for what Step returns; what is in it counts only while a turn carries it out.
	effects []sched.Effect
	// A message that is known is either in messages, or in book, or in away. New mail comes
	// here at once while there is room for its envelope (maxInline); other mail when the
	// scheduler reads it.
	messages map[sched.MsgID]*message // those that are worked on
	// A slip in book has only what tells where the message lies.
	book *book // all others that are in memory
	away away  // and what is not
	// At most maxInline.
	inlined int // octets of message.inline, of all messages
	survey  survey
	sites   flushes
	rules   rules
	// Orders of the scheduler that have not ended, by the scheduler's own number: waiting for
	// an agent, sent, or answered and not yet recorded.
	entries map[sched.EntryID]*delivery
	// One for each transport that has been used, whether or not its service answers now.
	// Connections that are idle are closed at reap.
	agents map[mail.Transport]*agentConn
	// Recipients in them must not be ordered again: the agents still have them from the queue
	// manager before this one. Empty after a while, and after a start without a predecessor.
	formers map[sched.MsgID][]*former // deliveries for a former queue manager that go on
	// An agent may report the end of a delivery before cleanup has told of the message, as all
	// start at the same time. Emptied message by message in arrive.
	early map[sched.MsgID][]*proto.Finished // of mail that cleanup has not told of yet
	// The only way by which decisions become durable; see there for the order in which they
	// do.
	log      *recorder
	reap     time.Time // when connections to agents are looked at for idleness; zero: there are none
	watchAt  time.Time // when deliveries are looked at for hanging; zero: there are none
	expectAt time.Time // when agents should have called that deliver for a predecessor; zero: nobody is expected
	// Set by leave, and never reset. From then on no agent is called, and only outcomes are
	// taken.
	leaving bool // nothing is begun any more
	// Agents with deliveries in progress are told that this process leaves. The loop waits for
	// their answers, at most partTime.
	parting int                // agents that are being parted from
	parted  map[*ipc.Conn]bool // agents that have been told that we leave, and whether they have answered
	// in_flow_delay: for each of them cleanup may let one more in.
	moved int  // messages taken out of incoming since the last report to Flow
	deep  bool // the queue is deep: see thrift
	// Until then tools wait for their answers (asked), and the survey does not begin: both
	// would miss messages.
	told bool // the queue as it was at the start is known
	// With told it means that the predecessor is not missed: see Options.TookOver.
	answered bool // an agent has answered
	// New messages are looked at side by side and handed to the scheduler in the order in
	// which they came. A message waits at most orderPatience for its predecessor.
	newest chan struct{} // closed when the newest new message has had its turn: see inTurn
	turns  int           // new messages whose turn has not come
	// Loads are large, and one is needed for each message: their memory is used again, at most
	// as many as are under way at once.
	loadings []*loading  // for use again
	settled  []int       // memory for judge
	asked    []*question // of tools, and waiting for that
	heard    time.Time   // when cleanup last told of messages

	// Clients dial when they are first used, and again after an error. Each may be used from
	// any goroutine.
	cleanup *ipc.Client
	bounce  *ipc.Client
	verify  *ipc.Client
	// Reading envelopes, asking trivial-rewrite and writing reports wait for others, and so
	// are never done by the loop. Each goroutine ends with an input.
	tasks   ipc.Workers   // goroutines that work for messages
	judging chan struct{} // capacity 1: held by who reads for a selection
	answers reuse.Pool[answer]
	oldNews reuse.Pool[news]
	// Of all tasks. It ends when the loop has, not when the service is told to stop: outcomes
	// of deliveries under way are still to be recorded.
	ctx context.Context
}

// An input is something for the loop to do: a function that learns, or what is
// to be learned of most often, and an event for the scheduler. All may be absent.
type input struct {
	learn  func()
	news   *news
	load   *loading
	answer *answer
	event  sched.Event
}

// resolveTime is enough for a lookup in the slowest table. Without a bound mail
// that waits would keep all other from being taken up.
const resolveTime = 100 * time.Second

// New makes a queue manager. It does nothing before Run.
func New(o Options) *Server {
	s := &Server{opt: o, bell: make(chan struct{}, 1), judging: make(chan struct{}, 1), deaf: make(chan struct{}),
		messages: make(map[sched.MsgID]*message), book: newBook(),
		room: make(chan struct{}, maxBatches), entries: make(map[sched.EntryID]*delivery),
		agents: make(map[mail.Transport]*agentConn), formers: make(map[sched.MsgID][]*former), early: make(map[sched.MsgID][]*proto.Finished)}
	if s.opt.Patience == 0 {
		s.opt.Patience = askPatience
	}
	if s.opt.ResolveTime == 0 {
		s.opt.ResolveTime = resolveTime
	}
	s.sched = sched.New(o.Settings.Sched)
	s.cleanup = ipc.NewClient(o.Cleanup, s.fromCleanup)
	s.bounce = ipc.NewClient(o.Bounce, nil)
	s.verify = ipc.NewClient(o.Verify, nil)
	s.log = newRecorder(s)
	return s
}

// post gives the loop something to do. It never waits, and may be called from
// any goroutine but the loop's own.
func (s *Server) post(learn func(), ev sched.Event) { s.postInput(input{learn: learn, event: ev}) }

func (s *Server) postInput(in input) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.inbox = append(s.inbox, in)
	s.mu.Unlock()
	select {
	case s.bell <- struct{}{}:
	default:
	}
}

// Run manages the queue until ctx ends. It then orders nothing more, waits
// for the deliveries under way, at most for drain, and records what came of
// them before it returns.
func (s *Server) Run(ctx context.Context, drain time.Duration) error {
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	s.ctx = work
	s.now = time.Now()
	s.takeOver(s.now)
	s.recall()
	var attaching sync.WaitGroup
	attaching.Go(func() { s.attach(work) })
	defer attaching.Wait()
	defer stopWork()
	s.loop(ctx, nil, false, nil)

	s.leave(work, service.Stopping(ctx).Err() == nil && s.opt.State != nil, drain)
	s.shut()
	stopWork()
	s.log.sayFarewell(s.now, true)
	s.cleanup.Close()
	s.bounce.Close()
	s.verify.Close()
	s.tasks.Wait()
	return nil
}

// shut ends the taking of inputs.
func (s *Server) shut() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	close(s.deaf)
}

// leave ends the work: at once, when there is a successor that what goes on can be handed
// over to.
func (s *Server) leave(ctx context.Context, successor bool, drain time.Duration) {
	s.leaving = true
	if successor {
		drain = min(drain, settleTime)
	}
	s.log.after(func() {}) // what is decided is recorded soon
	limit := time.NewTimer(drain)
	defer limit.Stop()
	if s.loop(ctx, limit.C, true, s.underWay) {
		s.part()
		limit.Reset(partTime)
		s.loop(ctx, limit.C, true, func() bool { return s.parting > 0 })
		// What goes on is not waited for; that all is recorded, is.
		s.leaveBehind(successor)
		s.log.after(func() {})
		limit.Reset(recordTime)
		s.loop(ctx, limit.C, true, func() bool { return false })
	}
	if !successor {
		return
	}
	if err := s.handDown(s.goingOn()); err != nil {
		s.opt.Log.Warning("the next queue manager does not know what this one has learnt: %v", err)
		s.leaveBehind(false)
		limit.Reset(recordTime)
		s.loop(ctx, limit.C, true, func() bool { return false })
	}
}

// recordTime is how long a queue manager that ends waits for its decisions to
// be recorded. It is over what a cleanup service takes to end and start again;
// what has not been recorded then is delivered again.
const recordTime = 60 * time.Second

// loop carries out inputs until ctx ends or limit fires, which it says; when
// draining, also until nothing is under way any more and all is recorded.
func (s *Server) loop(ctx context.Context, limit <-chan time.Time, draining bool, underWay func() bool) (late bool) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.now = time.Now()
		if s.turn(draining); draining && !underWay() {
			if s.handOver(); s.log.idle() {
				return false
			}
		}
		wait := time.Hour
		if at := s.wake(); !at.IsZero() {
			wait = max(at.Sub(s.now), 0)
		}
		timer.Reset(wait)
		select {
		case <-s.bell:
		case <-timer.C:
		case <-limit:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// underWay says whether an agent has an order of ours.
func (s *Server) underWay() bool {
	for _, d := range s.entries {
		if d.sent {
			return true
		}
	}
	return false
}

// handOverLimit bounds how many messages are handed over.
const handOverLimit = 10000

// handOver records that mail is due that was to be tried at once by an
// operator's order, and has not been: the successor is told by the spool when
// mail is to be tried, and there it has the time from before the order.
func (s *Server) handOver() {
	if !s.flushed {
		return
	}
	s.flushed = false
	left := handOverLimit
	yield := func(info sched.Info) bool {
		if m := s.message(info.ID); info.Flushed && m != nil {
			s.log.update(m, proto.Op{Change: queue.Change{Set: queue.SetNextAttempt, NextAttempt: s.now}})
			left--
		}
		return left > 0
	}
	for cursor := s.sched.Scan(0, handOverLimit, yield); cursor != 0; cursor = s.sched.Scan(cursor, handOverLimit, yield) {
	}
}

// wake is when the loop next has something to do by itself.
func (s *Server) wake() time.Time {
	at := s.sched.Wake()
	for _, f := range []time.Time{s.log.due(), s.reap, s.watchAt, s.expectAt, s.rules.endAt} {
		if !f.IsZero() && (at.IsZero() || f.Before(at)) {
			at = f
		}
	}
	return at
}

// turn does all that there is to do now, and records it in one piece.
func (s *Server) turn(draining bool) {
	s.mu.Lock()
	batch := s.inbox
	s.inbox = reuse.Truncated(s.spare)
	s.mu.Unlock()
	for i := range batch {
		s.take(&batch[i], draining)
		s.followUp(draining)
	}
	clear(batch)
	s.spare = batch
	if at := s.sched.Wake(); !at.IsZero() && !at.After(s.now) {
		s.take(&input{event: sched.Event{Kind: sched.EventTick}}, draining)
		s.followUp(draining)
	}
	if !s.watchAt.IsZero() && !s.now.Before(s.watchAt) {
		s.giveUpOverdue()
		s.followUp(draining)
	}
	if !s.expectAt.IsZero() && !s.now.Before(s.expectAt) {
		s.expectAt = time.Time{}
		s.silent(nil)
		s.followUp(draining)
	}
	if !s.rules.endAt.IsZero() && !s.now.Before(s.rules.endAt) {
		s.endRules()
		s.followUp(draining)
	}
	s.lookAway(draining)
	s.log.flush(s.now)
	s.nextRead() // who has waited for something to be recorded may want a page
	s.followUp(draining)
	if !draining {
		s.lookAround()
	}
	s.thrift()
	s.tellTakeOver()
	if !s.reap.IsZero() && !s.now.Before(s.reap) {
		s.reapAgents()
	}
	if s.opt.Flow != nil {
		s.opt.Flow(s.moved, s.sched.Stats().Incoming)
		s.moved = 0
	}
}

// deepQueue is from how many messages on the heap is to grow less before
// garbage is collected: that would be memory for half another queue of the size.
// What is kept for them has no pointers, so that collecting costs no more.
const deepQueue = 100000

// thrift has garbage collected sooner while the queue is deep.
func (s *Server) thrift() {
	st := s.sched.Stats()
	n := st.Incoming + st.Deferred + st.Hold
	if s.opt.Deep == nil || s.deep == (n > deepQueue) || s.deep && n > deepQueue/2 {
		return
	}
	s.deep = !s.deep
	s.opt.Deep(s.deep)
}

// tellTakeOver says that mail goes out, when it does.
func (s *Server) tellTakeOver() {
	if s.opt.TookOver == nil || !s.told {
		return
	}
	if st := s.sched.Stats(); s.answered || st.Incoming == 0 && st.Active == 0 {
		s.opt.TookOver()
	}
}

// followUp takes the inputs that effects led to, and those that these lead to.
func (s *Server) followUp(draining bool) {
	for j := 0; j < len(s.queue); j++ {
		next := s.queue[j] // a copy: what it leads to may move the queue
		s.take(&next, draining)
	}
	clear(s.queue)
	s.queue = reuse.Truncated(s.queue)
}

func (s *Server) take(in *input, draining bool) {
	if in.learn != nil {
		in.learn()
	}
	if in.news != nil {
		s.hear(in.news)
	}
	if in.answer != nil {
		in.answer.take()
	}
	if in.load != nil {
		in.event = s.learn(in.load)
		defer s.release(in.load)
	}
	if in.event.Kind == 0 {
		return
	}
	if in.event.Kind == sched.EventFlush {
		s.flushed = true
	}
	s.effects = s.sched.Step(s.now, in.event, reuse.Truncated(s.effects))
	for i := range s.effects {
		s.carry(&s.effects[i], draining)
	}
}

// then has ev given to the scheduler after the effects at hand.
func (s *Server) then(ev sched.Event) { s.queue = append(s.queue, input{event: ev}) }

// carry carries out one effect. What it orders from others is answered by an
// input. When draining nothing new is begun: the successor will.
func (s *Server) carry(e *sched.Effect, draining bool) {
	m := s.message(e.ID)
	if e.Kind == sched.EffectRecall {
		s.away.recalls = append(s.away.recalls, *e)
		return
	}
	if m == nil && e.ID != 0 {
		return // gone by another way; the scheduler hears of it
	}
	switch e.Kind {
	case sched.EffectLoad:
		if !draining {
			s.load(m, e)
		}
	case sched.EffectDeliver:
		if !draining {
			s.deliver(m, e)
		}
	case sched.EffectDismiss:
		s.dismiss(e)
	case sched.EffectDeferRcpts:
		s.deferRcpts(m, e)
	case sched.EffectNotify:
		if !draining {
			s.notify(m, e.Notice, 0)
		}
	case sched.EffectDefer:
		s.deferMessage(m, e)
	case sched.EffectFinish:
		s.finish(m)
	case sched.EffectHold:
		s.moveTo(m, queue.Hold, time.Time{})
	case sched.EffectRelease:
		s.moveTo(m, queue.Deferred, e.Next)
	case sched.EffectRemove:
		s.log.remove(m)
		s.forget(m)
	case sched.EffectRequeue:
		s.requeue(m, e.Origin == sched.QueueHold)
	case sched.EffectCorrupt:
		s.opt.Log.Warning("saving corrupt message \"%s\" from queue \"active\" to queue \"corrupt\"", m.id)
		s.moveTo(m, queue.Corrupt, time.Time{})
		s.forget(m)
	case sched.EffectExpire:
		op := proto.Op{Change: queue.Change{Set: queue.SetExpire | queue.SetNextAttempt, Expire: true, NextAttempt: e.Next}}
		if info, ok := s.sched.Lookup(e.ID); ok && info.Queue != sched.QueueHold { // it may have been there
			op.Set |= queue.SetQueue
			op.Queue = queue.Deferred
		}
		s.log.update(m, op)
	case sched.EffectNote:
		s.note(m, e.Note)
	default:
		s.carryAway(m, e)
	}
}
