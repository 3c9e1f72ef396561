// Package qmgr is the queue manager: Postfix's qmgr(8). It learns from cleanup
// what is in the queue, decides when what is to be delivered (package sched
// does), orders deliveries from the agents, has the bounce service tell
// senders, and has cleanup record what came of it all.
//
// One goroutine, the loop, owns the scheduler and all that is known of
// messages. What takes time (reading the spool, asking trivial-rewrite,
// connecting to agents) is done beside it and comes back as an input. In one
// turn the loop does all that has come in, and then sends the changes that
// follow from it to cleanup in one request. However many processors there are, the
// loop has one: what does not need its state is done by whoever brings it an input
// (prepare, replied.read).
//
// # Memory
//
// Active messages are in memory with their recipients, within the limits of the scheduler. New
// mail that waits, and the deferred mail that is due next (five messages for each place in the
// active queue), takes some 160 octets for each message, without pointers: a record of the
// scheduler, and a slip in the shell's book, which has the message's place in the log and, for
// qshape, its domains. All other mail takes no memory, however much there is: cleanup is asked
// for it when it is due, and when a command names it.
//
// # Restarts
//
// The queue manager keeps what operators have suspended or limited on disk (package override), in
// data_directory. When it starts, cleanup pushes the incoming queue and is asked for what is
// due. Before an agent is given anything, it says what it is still delivering for a
// predecessor, and what came of deliveries that nobody was there to hear of
// (proto.Inventory). Agents that would not be asked, because they have a successor or because
// their transport is no longer used, call the queue manager themselves. When cleanup restarts,
// changes that it has not confirmed are sent again.
//
// At a reload the old queue manager hands over to the new one the state that is not in the spool,
// in the file qmgr/handover below data_directory: which destinations are dead, the windows and
// the feedback of the others, and which deliveries go on. Only the recipients of those deliveries
// wait, until their agents have said what came of them. The state is cut down to the limits of
// the new settings. A stop and a start forget it, as with Postfix, so that every destination is
// tried again; "postqueue -f" does the same. If there is no handover, for example when the queue
// manager stops during deliveries, the messages being delivered are recorded as not due before
// minimal_backoff_time.
//
// What has been counted for limits of destinations is in the file qmgr/spent there. It is written
// once a minute and at the end, so that a restart does not begin a day's count anew.
//
// # Security
//
// It runs without privileges and does not speak to the network, but for the database of a queue that nodes share: through
// that it carries out what tools on other nodes ask, as it does for root here. The database's account is trusted with all
// of the queue in any case. Tools reach it through a
// socket that the set-gid group may use, for what postqueue does: to list the queue, or a
// selection of it, and to have mail tried now. postqueue itself decides whether its caller
// may (authorized_flush_users, authorized_mailq_users). Everything else, and so whatever
// changes the queue, is reserved to root and mail_owner, as the kernel identifies the peer.
//
// # Parameters
//
// The qmgr_ and _destination_ parameters, defer_transports,
// minimal_backoff_time, maximal_backoff_time, queue_run_delay,
// maximal_queue_lifetime, bounce_queue_lifetime, delay_warning_time,
// confirm_delay_cleared, daemon_timeout, transport_retry_time, fast_flush_domains,
// default_filter_nexthop, helpful_warnings, shared_limit_active_limit. With
// destination_rollup or destination_limit_maps trivial-rewrite is asked what is limited.
//
// # Diagnostics
//
// Log lines are Postfix's: from=<..>, size=, nrcpt= (queue active); removed;
// status=expired, returned to sender.
package qmgr

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/event"
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
	// ResolveFrom is Resolve for mail whose envelope names a pool of sources, if pool is not empty.
	ResolveFrom(ctx context.Context, sender, addr, pool string) (proto.ResolveReply, error)
	// Known is Resolve's answer for any sender if that needs nobody to be asked.
	Known(addr string) (proto.ResolveReply, bool)
	// ForeseeResolve begins to ask what Resolve is going to be asked, without waiting.
	ForeseeResolve(ctx context.Context, sender, addr string)
}

// Options are what a queue manager is made of.
type Options struct {
	// From main.cf and master.cf. Not changed while the server runs: a reload starts a
	// new process.
	Settings Settings
	Resolver Resolver
	// Open reads a message's record, wherever it lies now.
	Open func(context.Context, queue.Ref, mail.QueueID) (queueread.Stored, error)
	// Viewer reads the parts of a queue that nodes share; nil: the queue is not shared.
	// With a storage.Courier requests go to other nodes, and those of others are carried out, which Self is for: where
	// tools reach this queue manager.
	Viewer viewer
	Self   ipc.Address
	// Metrics is where the service that publishes them is; nil: nothing is published.
	Metrics ipc.Address
	// Submit hands messages to cleanup again (postsuper -r).
	Submit *submit.Client
	Log    *maillog.Logger
	// Cleanup, Bounce, Verify and Agent are where these services are reached.
	Cleanup ipc.Address
	Bounce  ipc.Address
	Verify  ipc.Address
	Agent   func(mail.Transport) ipc.Address
	// Suppress is where it is asked what has come back of mail; nil: no mail is under the suppression list.
	Suppress ipc.Address
	// Overrides keep what is allowed for now; nil: none can be kept.
	Overrides *override.Store
	// Events tells what becomes of mail, before the queue records it; nil: nobody is told.
	Events *event.Reporter
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
	// TookOver, when set, is told when mail goes out: cleanup has told of the incoming queue,
	// and an agent has answered, or there is nothing to deliver. It is told again in later
	// turns.
	TookOver func()
	// Patience is how long a tool waits while cleanup says nothing; zero means
	// askPatience.
	Patience time.Duration
	// ResolveTime is how long the resolver may take for one address; zero means
	// resolveTime. Those that are loaded with it are deferred, too.
	ResolveTime time.Duration
}

// A Server is the queue manager. New makes it, Run is its life. One goroutine, Run's, which
// is called the loop, owns the scheduler and all that is known of messages; everybody else
// posts inputs to it.
type Server struct {
	opt Options
	// The scheduler. All of its state is behind Take, and only the loop calls it.
	sched *sched.Scheduler

	// mu guards inbox and closed, which are the only state that other goroutines touch.
	// Whatever they have to say is an input for the loop, so that nothing below needs a lock.
	mu    sync.Mutex
	inbox []input
	bell  chan struct{} // capacity 1: there is something in inbox
	room  chan struct{} // holds one for each batch of entries in inbox
	// closed is set when the loop has ended. Later inputs are dropped, and deaf is closed, so
	// that whoever waits for the effect of an input stops waiting.
	closed bool
	deaf   chan struct{}
	// stopping is closed when Run's context has ended.
	stopping <-chan struct{}

	// All that follows belongs to the loop.

	// The time of the present turn. It is read once a turn, so that all decisions of a turn
	// agree.
	now time.Time
	// flushed says that an operator's order to try mail at once has come, and that handOver
	// has not recorded it yet.
	flushed bool
	// queue has the inputs that effects have led to. They are taken before anything from the
	// inbox: what follows from a decision must not be overtaken by news that contradict it.
	queue []input
	spare []input // the last turn's inbox, whose storage is used again
	// Storage for what Take returns. What is in it counts only while a turn carries it out.
	effects []sched.Effect
	// Events that are over, for use again: see then.
	spentEvents reuse.Free[sched.Event]

	// A message that is known is in exactly one of three places. messages has those that are
	// worked on: new mail at once, while there is room for its envelope (maxInline), other
	// mail when the scheduler reads it. book has a slip for every other message in memory:
	// where it lies, and what qshape counts. away counts those that only cleanup knows.
	messages map[sched.MsgID]*message
	book     *book
	away     away
	// New provisional messages that are not looked at yet: see seeToProvisional.
	unordered []sched.MsgID
	inlined   int // octets of message.inline of all messages; at most maxInline

	survey survey     // reads domains for qshape in the background
	sites  flushes    // sites that ETRN and "postqueue -s" have asked for
	rules  rules      // what is not to be tried: suspensions, queue_only_destinations
	auto   automation // what the rules of shaping_files do
	terms  terms      // what is limited, as the resolver says
	spent  spent      // what was counted for that
	ahead  *ahead     // what may be spent of limits by the day; nil: nodes have portions, or nothing counts
	// When tenants whose mail is active are looked up next.
	tenantsAgain time.Time

	// Deliveries that the scheduler has ordered and that have not ended, by its number:
	// waiting for an agent, sent, or waiting for a predecessor's delivery.
	entries map[sched.EntryID]*delivery
	// One for each transport that has been used, whether or not its service answers now. Idle
	// connections are closed at reap.
	agents map[mail.Transport]*agentConn
	// Deliveries that a former queue manager ordered and that go on. Their recipients must not
	// be ordered again. Empty a while after a start, and at once without a predecessor.
	formers map[sched.MsgID][]*former
	// Outcomes of such deliveries that came before cleanup had told of the message: at a reload
	// all services start together. arrive takes them in.
	early map[sched.MsgID][]*proto.Finished
	// Failures that a former delivery has come to, of recipients that were expanded and are
	// not to be tried again. They are kept until the recipient's turn comes, or the message is
	// forgotten. Usually empty.
	verdicts map[sched.MsgID][]mail.Outcome

	// What deliveries came to, for those who look (replies.go), and how providers take mail (standing.go).
	seen      seen
	standings standings

	// Every decision becomes durable by way of log; its comment says in which order.
	log      *recorder
	reap     time.Time // when idle connections to agents are looked for; zero: there are none
	watchAt  time.Time // when hanging deliveries are looked for; zero: there are none
	expectAt time.Time // by when agents should have reported deliveries of a predecessor; zero: none is expected
	// Then cleanup is asked once more what is in hand: see lookForHands.
	lookAgain bool
	callTime  time.Duration // how long these agents have: agentPatience
	looks     lookSizes

	nodes   *nodes   // what other nodes leave of limits; nil: there are none
	courier *courier // the way to other queue managers; nil: there is none
	orders  *orders  // what was ordered while nobody answered; nil: the queue is not shared

	// leaving is set by leave and never reset. From then on nothing is begun: no agent gets an
	// order, and only outcomes are taken in.
	leaving bool
	// Agents that deliver for us are told that we leave, and answer when they have told us all
	// they know. parting counts those that have not answered, parted has all and says which
	// have. The loop waits for them at most partTime.
	parting int
	parted  map[*ipc.Conn]bool

	// in_flow_delay: messages that left the incoming queue since the last report to Flow. For
	// each of them cleanup may let one more in.
	moved int
	deep  bool // the queue is deep: see thrift
	// told says that the incoming queue as it was at the start is known. Until then tools wait
	// for their answers (asked) and the survey does not begin: both would miss messages.
	told bool
	// answered says that some agent has answered. With told it means that mail goes out
	// again: see Options.TookOver.
	answered bool
	// New messages are looked at side by side, and handed to the scheduler in the order in
	// which they came: see inTurn. newest is closed when the newest of them has had its turn;
	// turns counts those that have not.
	newest chan struct{}
	turns  int
	// The highest number of a message that has ever been known here: what is above it is news.
	highest sched.MsgID
	// Messages of the present input that are prepared: see dropReady.
	readied []*message
	settled []int // storage for sortOutcomes
	asked   []*question
	heard   time.Time // when cleanup last pushed entries

	// What follows may be used by any goroutine. Clients dial when they are first used, and
	// again after an error.
	cleanup *ipc.Client
	bounce  *ipc.Client
	verify  *ipc.Client
	// The suppress service; nil: no mail is under the suppression list.
	suppress *ipc.Client
	// tasks are the goroutines that wait for others: they read envelopes, ask trivial-rewrite,
	// write reports. The loop never does that itself. Each ends with an input.
	tasks   ipc.Workers
	judging chan struct{} // capacity 1: held while a page is read for a selection
	viewing chan struct{} // capacity 1: held while a page of another node's part is read
	answers reuse.Pool[answer]
	oldNews reuse.Pool[news]
	// Each message needs a loading, and a loading is large.
	loadings reuse.Pool[loading]
	// How many recipients there are in those that prepare has made, and that the loop has not heard of.
	aheadRcpts atomic.Int64
	// The context of all tasks. It ends when the loop has ended, not when the service is told
	// to stop: outcomes of deliveries under way must still be recorded.
	ctx context.Context
}

// An input is something for the loop to do: a function that takes something in, or one of
// the three things that come most often (so that they need no closure), and an event for
// the scheduler. The parts are taken in the order of the fields; all may be absent.
type input struct {
	// runs in the loop; it may change everything and must not wait
	learn  func()
	news   *news
	load   *loading
	answer *answer
	// An event is large, and most inputs have none that lasts: it is not copied from one list to the next.
	event *sched.Event
}

// resolveTime is enough for a lookup in the slowest table. Without a bound, one table
// that hangs would keep all mail from being taken up, as loads are bounded in number.
const resolveTime = 100 * time.Second

// New makes a queue manager. It does nothing before Run.
func New(o Options) *Server {
	s := &Server{opt: o, nodes: newNodes(o.Settings.Nodes), bell: make(chan struct{}, 1), judging: make(chan struct{}, 1), viewing: make(chan struct{}, 1), deaf: make(chan struct{}),
		messages: make(map[sched.MsgID]*message), book: newBook(),
		room: make(chan struct{}, maxBatches), entries: make(map[sched.EntryID]*delivery),
		agents: make(map[mail.Transport]*agentConn), formers: make(map[sched.MsgID][]*former), early: make(map[sched.MsgID][]*proto.Finished),
		verdicts: make(map[sched.MsgID][]mail.Outcome), callTime: agentPatience, looks: lookSizes{lookAfter, sweepSlips, lookRecords}}
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
	if o.Suppress != nil {
		s.suppress = ipc.NewClient(o.Suppress, nil)
	}
	s.log = newRecorder(s)
	s.courier = newCourier(&s.opt)
	s.orders = newOrders(s.courier)
	return s
}

// post gives the loop something to do. It never waits, and may be called from
// any goroutine but the loop's own.
func (s *Server) post(learn func(), ev sched.Event) {
	in := input{learn: learn}
	if ev.Kind != 0 {
		in.event = &ev
	}
	s.postInput(in)
}

// postInput is post for an input of another kind.
func (s *Server) postInput(in input) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.inbox = append(s.inbox, in)
	s.mu.Unlock()
	select {
	// A full bell says what there is to say: the loop takes the whole inbox.
	case s.bell <- struct{}{}:
	default:
	}
}

// Run manages the queue until ctx ends. It then orders nothing more, waits for the
// deliveries under way, at most for drain, and records what came of them before it
// returns. It never returns an error: what goes wrong with others is logged and tried
// again.
func (s *Server) Run(ctx context.Context, drain time.Duration) error {
	// Tasks must outlive ctx: stopping means to finish, and their results are part of
	// that.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	end := s.start(ctx, work)
	s.loop(ctx, nil, false, nil)
	s.leave(work, service.Stopping(ctx).Err() == nil && s.opt.State != nil, drain)
	end(stopWork)
	return nil
}

// start does what comes before the first turn, and starts what works beside the loop until work ends. end, which is
// called behind the last turn, waits for all of that.
func (s *Server) start(ctx, work context.Context) (end func(stopWork func())) {
	s.ctx, s.stopping = work, ctx.Done()
	s.now = time.Now()
	s.seen.totals.Since = s.now
	// Before the loop, while nobody else has the scheduler: a snapshot can only be
	// restored into one that has seen no event.
	s.takeOver(s.now)
	s.restoreSpent(s.now)
	s.restoreStanding()
	s.startAutomation()
	s.recall()
	if s.nodes != nil { // it has no share of any limit yet
		s.process(&input{event: &sched.Event{Kind: sched.EventLimits, Limits: s.nodes.within(s, s.operatorLimits())}}, false)
		s.process(&input{event: &sched.Event{Kind: sched.EventPortions, Portions: s.nodes.portions()}}, false)
	}
	if s.ahead != nil {
		s.process(&input{event: &sched.Event{Kind: sched.EventPortions, Portions: s.ahead.portions()}}, false)
	}
	var attaching sync.WaitGroup
	attaching.Go(func() { s.attach(work) })
	if s.nodes != nil {
		attaching.Go(func() { s.shareLimits(work) })
		attaching.Go(func() { s.tellHints(work) })
	}
	if s.courier != nil {
		attaching.Go(func() { s.attend(ctx) }) // what comes later is the successor's
	}
	if s.orders != nil {
		attaching.Go(func() { s.carryOrders(ctx) })
	}
	return func(stopWork func()) {
		// From here on nobody listens. What is posted is dropped, and those who wait for it
		// are released, before their connections are closed.
		s.shut()
		stopWork()
		s.log.sayFarewell(s.now, true)
		s.cleanup.Close()
		s.bounce.Close()
		s.verify.Close()
		if s.suppress != nil {
			s.suppress.Close()
		}
		s.tasks.Wait()
		s.leaveSpent()
		s.leaveStanding()
		attaching.Wait()
	}
}

// shut stops the inbox from accepting inputs.
func (s *Server) shut() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	close(s.deaf)
}

// leave ends the work. With a successor, which is the case at a reload, it takes a
// fraction of a second: what goes on is handed over. Otherwise deliveries have drain to
// end.
//
// The order matters. First agents are given time and parted from, so that each outcome is
// either known here or will be told to the successor. Then what goes on is recorded, or
// handed down, and last of all this process stops: a delivery that were in neither place
// would be ordered twice.
func (s *Server) leave(ctx context.Context, successor bool, drain time.Duration) {
	s.leaving = true
	s.keepAll()
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
	// Without the file the successor knows nothing of these deliveries, so their messages
	// are recorded as not due for a while, as at a stop.
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

// loop carries out inputs until ctx ends or limit fires; it says whether limit did. When
// draining, it also ends when nothing is under way any more, as underWay says, and
// everything is recorded.
func (s *Server) loop(ctx context.Context, limit <-chan time.Time, draining bool, underWay func() bool) (late bool) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	armed := time.Now().Add(time.Hour) // when timer fires, by the clock that nobody sets
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
		// Under load this is a few milliseconds, and the end of it further away with each turn: a turn for nothing now and
		// then costs less than to set the timer in each.
		if armed.IsZero() || wait < armed.Sub(s.now) {
			armed = s.now.Add(wait)
			timer.Reset(wait)
		}
		select {
		case <-s.bell:
		case <-timer.C:
			armed = time.Time{}
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

// handOverLimit bounds how many messages are handed over: they are recorded one by one
// while the process ends.
const handOverLimit = 10000

// handOver records as due what an operator has ordered to be tried at once and has not
// been tried yet. The scheduler's record of a flush is in memory only; on disk the
// message still has the time from before the order, and the successor would wait for
// that.
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

// wake is when the loop has something to do if no input comes; zero: never.
func (s *Server) wake() time.Time {
	if len(s.queue) > 0 { // it came last in the turn
		return s.now
	}
	at := s.sched.Wake()
	if s.ahead != nil && s.ahead.used && !s.leaving && (at.IsZero() || s.ahead.at.Before(at)) {
		at = s.ahead.at
	}
	for _, f := range []time.Time{s.log.due(), s.reap, s.watchAt, s.expectAt, s.rules.endAt, s.terms.again} {
		if !f.IsZero() && (at.IsZero() || f.Before(at)) {
			at = f
		}
	}
	return at
}

// turn does all that there is to do now, and then has the recorder send what was decided.
// Inputs are taken one by one, each with everything that follows from it, so that the
// scheduler never sees an event while effects of the one before are still to be carried
// out.
func (s *Server) turn(draining bool) {
	// Before anything may begin: the process may have been stopped for longer than its shares are good.
	if s.nodes != nil && !s.now.Before(s.nodes.holder.Good()) {
		s.applyShares()
		s.followUp(draining)
	}
	s.newDay()
	s.followUp(draining)
	s.mu.Lock()
	batch := s.inbox
	// Two slices take turns: others append to one while the loop reads the other.
	s.inbox = reuse.Truncated(s.spare)
	s.mu.Unlock()
	for i := range batch {
		s.process(&batch[i], draining)
		s.followUp(draining)
		s.dropReady()
	}
	clear(batch)
	s.spare = batch
	// The scheduler's own times: a tick is an event like any other.
	if at := s.sched.Wake(); !at.IsZero() && !at.After(s.now) {
		s.process(&input{event: &sched.Event{Kind: sched.EventTick}}, draining)
		s.followUp(draining)
	}
	if !s.watchAt.IsZero() && !s.now.Before(s.watchAt) {
		s.giveUpOverdue()
		s.followUp(draining)
	}
	// Agents have had agentPatience to call about deliveries of a predecessor. What is
	// not known by now is in doubt, and is tried again.
	if !s.expectAt.IsZero() && !s.now.Before(s.expectAt) {
		s.expectAt = time.Time{}
		s.silent(nil)
		s.followUp(draining)
	}
	if !s.rules.endAt.IsZero() && !s.now.Before(s.rules.endAt) {
		s.endRules()
		s.followUp(draining)
	}
	// Mail that is not in memory comes last of what decides, since everything before may
	// make room for it.
	s.lookAway(draining)
	s.seeToProvisional()
	s.log.flush(s.now)
	s.nextRead() // who has waited for something to be recorded may want a page
	s.followUp(draining)
	if !draining {
		s.lookAround()
	}
	s.thrift()
	s.askAgain()
	s.askTenants()
	s.lookAhead()
	s.keepSpent()
	s.keepStanding()
	s.tellTakeOver()
	if !s.reap.IsZero() && !s.now.Before(s.reap) {
		s.reapAgents()
	}
	// Once a turn, because a system call for each message would be too many.
	if s.opt.Flow != nil {
		s.opt.Flow(s.moved, s.sched.Stats().Incoming)
		s.moved = 0
	}
}

// deepQueue is the number of waiting messages from which garbage is collected sooner.
// With so many, the usual growth of the heap between two collections would be memory for
// half another queue of that size. What is kept for the messages has no pointers, so that
// collecting more often costs little.
const deepQueue = 100000

// thrift tells Options.Deep when the queue becomes deep, and when that is over. The
// threshold for the way back is half, so that a queue near the limit does not switch with
// every message.
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
		s.process(&next, draining)
		s.spend(next.event)
	}
	clear(s.queue)
	s.queue = reuse.Truncated(s.queue)
}

// process takes in one input, gives its event to the scheduler, and carries out the
// effects.
func (s *Server) process(in *input, draining bool) {
	if in.learn != nil {
		in.learn()
	}
	if in.news != nil {
		s.hear(in.news)
	}
	if in.answer != nil {
		in.answer.process()
	}
	if in.load != nil {
		s.processLoad(in.load, draining)
	}
	if in.event != nil {
		s.step(in.event, draining)
	}
}

// processLoad takes in what a load gave.
func (s *Server) processLoad(l *loading, draining bool) {
	if l.tenantKnown && l.tenantErr == nil {
		// Before its recipients: none of them is to begin under other terms.
		s.step(&sched.Event{Kind: sched.EventTenant, Tenant: l.env.Tenant, TenantTerms: l.tenant}, draining)
	}
	ev := s.spentEvents.Get()
	m := s.learn(l, ev)
	if ev.Kind != 0 {
		s.step(ev, draining)
	}
	// The recipients are in memory now, and the envelope as it came was worth keeping for an order that is made at once.
	if m != nil && m.active != nil && m.active.complete {
		s.dropInline(m)
	}
	s.spend(ev)
	s.release(l) // the event's recipients are in it
}

// step gives an event to the scheduler, and carries out the effects.
func (s *Server) step(ev *sched.Event, draining bool) {
	if ev.Kind == sched.EventFlush {
		s.flushed = true
	}
	s.effects = s.sched.Take(s.now, ev, reuse.Truncated(s.effects))
	for i := range s.effects {
		s.carry(&s.effects[i], draining)
	}
}

// then has ev given to the scheduler when the effects at hand have been carried out.
func (s *Server) then(ev sched.Event) {
	e := s.spentEvents.Get()
	*e = ev
	s.queue = append(s.queue, input{event: e})
}

// spend keeps an event that the scheduler has seen for the next one. nil is none.
func (s *Server) spend(ev *sched.Event) {
	if ev != nil {
		*ev = sched.Event{}
		s.spentEvents.Put(ev)
	}
}

// carry carries out one effect. What it orders from others is answered by an input. When
// draining, nothing new is begun: the successor will do it, and what is not begun leaves
// no trace that it would have to undo.
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
		// What is not reported now stays pending: the successor tries it again, and reports
		// what comes of that.
		if !draining {
			s.notifyKept(m, e.Notice)
		}
	case sched.EffectDefer:
		s.deferMessage(m, e)
	case sched.EffectFinish:
		s.finish(m)
	case sched.EffectHold:
		s.tellOrdered(m, event.Held)
		s.moveTo(m, queue.Hold, time.Time{})
	case sched.EffectRelease:
		s.tellOrdered(m, event.Released)
		s.moveTo(m, queue.Deferred, e.Next)
	case sched.EffectRemove:
		s.tellOrdered(m, event.Deleted)
		s.log.remove(m)
		s.forget(m)
	case sched.EffectRequeue:
		s.requeue(m, e.Origin == sched.QueueHold)
	case sched.EffectCorrupt:
		// Postfix's words, for those whose log analysis looks for them.
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
		s.logNote(m, e.Note)
	default:
		s.carryAway(m, e)
	}
}
