// Package sched is the queue manager's scheduler. It decides which messages
// enter the active queue, which recipients are delivered next, how many
// simultaneous deliveries a destination gets, when a destination is considered
// dead, when a message is retried, and when it expires. It is Postfix's nqmgr,
// with the threads and hungry agents of ZMailer's scheduler, as a
// deterministic state machine. It does no I/O, starts no goroutine and reads
// no clock.
//
// Its only entry point is [Scheduler.Step], a function from an event to
// effects. The queue manager's shell turns arrivals, agents' reports, timers
// and operators' commands into events, and carries out the effects in the
// given order.
//
// # Life of a message
//
//	EventQueued ──► incoming ──► active ──► EffectFinish
//	                               ▲  │
//	                  retry, flush │  ▼ EffectDefer
//	                             deferred ──► EffectNotify(NoticeExpired), EffectFinish
//
// Only the deferred mail that is due next needs to be in memory (EffectFetch,
// EffectLeave).
//
// A message enters the active queue with EffectLoad. EventLoaded brings its
// recipients, in batches if there are many. Each EffectDeliver is answered
// with EventDone. When no recipient of the message is in delivery or waiting
// any more, notices are sent (EffectNotify, answered with EventNotified), and
// EffectDefer or EffectFinish ends the message's stay in the active queue.
//
// Mail for a destination or transport that is known not to work goes to the
// transport "retry", whose next hop is the reason ("4.4.1 delivery temporarily
// suspended: connect to ..."). Mail that must fail goes to "error" when it is
// resolved. Both are ordinary deliveries. Only if "retry" itself cannot be
// used, EffectDeferRcpts asks the shell to record the reason.
//
// # What must be durable before what
//
//   - EventQueued: the message is durable before the event.
//   - EventDone: the recipients' outcomes have been handed to the log before
//     the event, so that the records of the effects come later in the log. The
//     outcomes need not be durable: after a crash those deliveries are
//     repeated.
//   - EffectNotify: the notice must be durable before EventNotified, because
//     the effects that follow may remove the message.
//   - EffectDefer, EffectFinish, EffectHold, EffectRelease, EffectRemove,
//     EffectCorrupt, EffectExpire: recorded in the given order, after the
//     outcomes. They may be recorded lazily: all that a crash can lose is that
//     a message is tried again. What an operator has asked for
//     must be durable before the operator is told; the shell sees to that where
//     the effect comes later, when deliveries end.
//   - EffectRequeue: the new message is durable before the old one is removed.
//   - EffectDeliver requires only that the message itself is durable.
//
// # Structures
//
// The structures are nqmgr's. A transport is a delivery service. A queue
// ([Dest] to callers) is a destination of a transport, with its concurrency
// window. A job is a message within a transport. A peer is the part of a job
// for one destination. An entry is a delivery request: recipients of one
// message for one destination. A record is what is kept of every message,
// active or not. A site keeps a destination that failed, for as long as mail
// waits because of it.
//
// Selection never walks a list: jobs, destinations, candidates for preemption
// and due messages are kept in ordered structures that are updated with each
// change. The decisions are the same as those of a scheduler that does walk
// (there is one in the tests), and as those of nqmgr except for what
// docs/scheduler.md lists.
//
// # Tenants
//
// A message may be a tenant's ([Arrival].Tenant). Where a second tenant has mail, a
// transport has a lane for each, with a job list of its own, and a destination a claim for
// each (lane.go). Both are served by deficit round robin of recipients (seats.go), and so
// is the door of the active queue, where no tenant may take all places (admit.go).
//
// # Restarts
//
// As in Postfix, windows, dead destinations and the mail that waits for them
// are not recorded. But they can be passed to a successor, as at a reload
// ([Scheduler.Snapshot], [Scheduler.Restore]). All that another restart loses
// is that mail for a destination that recovers would have been released before
// its retry time. There is no thundering herd: each message has its own
// recorded retry time, and due mail meets an unknown destination with the
// initial window. If that fails, the waiting mail is deferred again, each
// message to its own time.
//
// # Suspended mail
//
// A [Pause] says that some mail is not to be tried (queue_only_destinations, a
// suspension). The shell says which recipients it covers. They are parked: see
// pause.go.
//
// # Shared limits
//
// A destination may be under limits that it shares with others: of its domain, of the
// site that its mail hosts make, of the provider behind them ([Terms], with each
// recipient). They bound deliveries at once, and the rates of connections,
// messages and recipients (shared.go). A destination whose limits have no room is no
// candidate. It stands in a line and is called when its turn has come, at a cost that
// does not depend on how many wait (gate.go). Waiting is no attempt. Of the mail that
// waits for one limit only a part is in the active queue; the rest is parked outside
// (beyond.go). What was counted can be kept over a restart ([Scheduler.Spent]).
//
// # Following the answers
//
// With TransportConfig.Adaptive the window of a destination, and the pace of its deliveries, follow what it answers
// (adaptive.go, package internal/adaptive). Result.Ask is what a reply asks.
//
// # Security
//
// Data that remote systems can choose, names of destinations and replies, is
// only compared and stored. Memory is bounded by the limits on messages and
// recipients, and by the number of dead destinations that are remembered
// (twice the recipient limit), and of shared limits (those in use, and of each
// kind some more for their counts: 131,072 of domains and sites). Each message outside the active queue needs 72
// bytes, a place in the heap of retries, and one in the index. That includes
// all new messages, and about Config.DeferredLimit deferred ones (see
// window.go).
//
// # Parameters
//
// [Config] and [TransportConfig] name the parameters. They have the meaning
// that they have in Postfix, with these additions: queue_run_delay spreads
// retries; scheduler, thread_order, thread_agents, thread_quantum and
// idle_agent_time select ZMailer's methods for a transport; slow_delivery_limit
// and slow_delivery_time set deliveries aside that wait for hosts which do not
// answer; feedback may be 1/sqrt_concurrency.
//
// # Diagnostics
//
// EffectNote is for the log. [Scheduler.Explain] says for each recipient what
// it waits for. [Scheduler.Dests] and [Scheduler.Scan] are for listings, and
// [Scheduler.Check] is for tests.
package sched
