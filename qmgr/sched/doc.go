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
package sched
