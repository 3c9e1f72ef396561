// Package sched is the queue manager's scheduler: which message goes into the
// active queue, which recipients are delivered next, how many deliveries a
// destination gets at once, when to give a destination up for a while, when
// to try again, and when to give up for good. It is Postfix's nqmgr, with
// threads and hungry agents from ZMailer's scheduler, as a deterministic
// state machine. It does no I/O, starts no goroutine and reads no clock.
//
// The one door is [Scheduler.Step]: something happened, what is to be done?
// The queue manager's shell turns arrivals, agents' reports, the end of
// time spans and operators' commands into events, and carries out the effects
// in the order given.
//
// # Life of a message
//
//	EventQueued ──► incoming ──► active ──► EffectFinish
//	                               ▲  │
//	                  retry, flush │  ▼ EffectDefer
//	                             deferred ──► EffectNotify(NoticeExpired), EffectFinish
//
// Of deferred mail only what is due next need be known (EffectFetch, EffectLeave).
//
// A message enters the active queue with EffectLoad; EventLoaded brings its
// recipients, in batches when there are many. Each EffectDeliver is answered
// with EventDone. When nothing of the message is under way or waiting any
// more, notices are made (EffectNotify, answered with EventNotified), and
// EffectDefer or EffectFinish ends the message's stay.
//
// Mail for a destination or transport that is known not to work goes to
// transport "retry", whose nexthop is the reason ("4.4.1 delivery temporarily
// suspended: connect to ..."), mail that must fail goes to "error" when it is
// resolved; both are ordinary deliveries. Only when "retry" itself cannot be
// used, EffectDeferRcpts asks the shell to record the reason itself.
//
// # What must be durable before what
//
//   - EventQueued: the message is durable before the event.
//   - EventDone: the recipients' outcomes have been handed to the log before
//     the event, so that whatever the effects record is later in the log.
//     They need not be durable: a crash then repeats those deliveries.
//   - EffectNotify: the notice must be durable before EventNotified. The
//     effects that follow rely on it: the message may then be removed.
//   - EffectDefer, EffectFinish, EffectHold, EffectRelease, EffectRemove,
//     EffectCorrupt, EffectExpire: recorded in the order given, behind the outcomes; lazily,
//     for what is lost in a crash is only that a message is tried again.
//     EffectRemove asked for by an operator should be durable before he is told.
//   - EffectRequeue: the new message is durable before the old one goes.
//   - EffectDeliver needs nothing durable but the message itself.
//
// # Structures
//
// They are nqmgr's. A transport is a delivery service; a [Dest], in here a
// queue, is a destination within it, with its concurrency window; a job is a
// message within a transport; a peer is what a job has for a destination; an
// entry is one delivery request, recipients of one message for one destination. A
// record is what is kept of every message, active or not. A site remembers a
// destination that failed for as long as mail waits on its account.
//
// Selection never walks a list: jobs, destinations, candidates for preemption
// and due messages are found through orders that are kept up as things
// change. Decisions are those of a scheduler that does walk (the tests have
// one), and of nqmgr, but for what docs/scheduler.md lists.
//
// # Restarts
//
// Windows, dead destinations and what waits on account of them are not
// recorded, as with Postfix; but a successor may be given them
// ([Scheduler.Snapshot], [Scheduler.Restore]), as at a reload. What another restart loses is only that mail for a
// destination that comes back would have been released before its time. It
// does not make a herd of it: each message has its own retry time on record,
// and mail that has become due meanwhile meets a destination of which nothing
// is known, with the initial window. When that fails, what waits for it is
// deferred, each message to a time of its own again.
//
// # Waits that somebody chose
//
// [Pause] says that some mail is not to be tried (queue_only_destinations, a
// suspension). The shell says which recipients are meant. They are parked: see pause.go.
//
// # Security
//
// What remote systems can choose, names of destinations and replies, is only
// compared and stored. Memory is bounded by the limits on messages and
// recipients, 72 bytes, a place in the heap of retries and one in the index for each message that is known outside the active queue
// (all that are new, and of deferred ones about Config.DeferredLimit: see window.go), and
// the number of dead destinations remembered (twice the recipient limit).
//
// # Parameters
//
// [Config] and [TransportConfig] name them. Each applies as in Postfix, with
// these additions: queue_run_delay spreads retries, scheduler, thread_order,
// thread_agents, thread_quantum and idle_agent_time choose ZMailer's ways for a
// transport, slow_delivery_limit and slow_delivery_time set deliveries aside that wait for
// hosts which do not answer, and feedback may be 1/sqrt_concurrency.
//
// # Diagnostics
//
// EffectNote is for the log. [Scheduler.Explain] says for each recipient what it
// waits for, [Scheduler.Dests] and [Scheduler.Scan] are for listings,
// [Scheduler.Check] is for tests.
package sched
