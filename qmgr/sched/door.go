// The scheduler's vocabulary: everything that goes in through Step (events) and
// everything that comes out (effects). Other packages know the scheduler by the types in
// this file, in config.go and in view.go alone. Each event and effect lists the fields
// that count for it, because one struct serves all kinds: ordinary deliveries then
// allocate nothing, and stories and random tests can print any event.

package sched

import (
	"time"

	"posthaste/internal/adaptive"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// MsgID names a message: mail.QueueID.Number(), unique for ever, never 0.
type MsgID uint64

// EntryID names one delivery request. It is never given twice in a
// Scheduler's life, so that a late report can be told from a current one.
type EntryID uint64

// AgentID names one delivery agent, which carries out one delivery request
// at a time. It is never given twice in a Scheduler's life.
type AgentID uint64

// Queue is where a message is. The values are facts of the scheduler; the
// spool records all of them but Active, which is a message's state between
// its admission and the effect that ends it.
type Queue uint8

const (
	QueueIncoming Queue = iota + 1 // new, waiting for a place in the active queue
	QueueActive                    // being worked on
	QueueDeferred                  // to be tried again later
	QueueHold                      // waiting for an operator
)

// String is the queue's name as tools print it.
func (q Queue) String() string {
	switch q {
	case QueueIncoming:
		return "incoming"
	case QueueActive:
		return "active"
	case QueueDeferred:
		return "deferred"
	case QueueHold:
		return "hold"
	}
	return "unknown"
}

// EventKind says what happened, and which fields of Event count.
type EventKind uint8

const (
	// EventQueued: a message exists. Arrival. The message must be durable.
	// A message that the scheduler already has is ignored.
	EventQueued EventKind = iota + 1

	// EventLoaded answers EffectLoad. ID, Rcpts, Next, Unread, Single.
	EventLoaded

	// EventLoadFailed answers EffectLoad. ID, Corrupt. Without Corrupt the
	// message is tried again after MinimalBackoff.
	EventLoadFailed

	// EventDone: an agent finished a delivery request. Entry, Result.
	EventDone

	// EventLost: an agent died after it had accepted a request. Entry. What
	// it did is unknown; recipients without a recorded outcome are tried again.
	EventLost

	// EventAgentDown: a transport cannot be used: nobody listens, or requests
	// are refused before they are accepted. Transport, Status and Reason (zero
	// for "mail transport unavailable"), Entries: requests that were handed out
	// and never accepted.
	EventAgentDown

	// EventTick: time passed. Any event does what a tick does; a tick is for
	// when nothing else happens before Wake.
	EventTick

	// EventNotified answers EffectNotify. ID, OK: whether the notice is in the
	// queue or was not needed.
	EventNotified

	// EventFlush: try now. Now (ScopeMessage): also what is to be tried first later. Scope: ScopeAll, ScopeSite (Site, and IDs of messages
	// that the shell knows to wait for it), ScopeMessage (ID).
	EventFlush

	// EventHold, EventRelease, EventRemove, EventRequeue and EventExpire are
	// operators' commands. Scope: ScopeMessage (ID), ScopeQueue (Queue), ScopeAll.
	// EventExpire: the message is returned to its sender as if its time were
	// over, at its next attempt, or now with Now set.
	EventHold
	EventRelease
	EventRemove
	EventRequeue
	EventExpire

	// EventCorrupt: an agent has found the content of ID damaged. The message is
	// set aside when the deliveries under way have ended. Scope: ScopeMessage.
	EventCorrupt

	// EventReconfigured: Config replaces the configuration. Destinations keep
	// their windows, within the new limits.
	EventReconfigured

	// EventPauses: Pauses are those that are in force from now on.
	EventPauses

	// EventLimits: Limits are what operators have set of destinations' windows from now on.
	EventLimits

	// EventPause: a pause that has just begun is for some recipients of an active
	// message. ID, Rcpts: Index and Pause. Those that wait for their delivery
	// are parked.
	EventPause

	// EventAttached: there is a source of deferred mail, or another one. Only with
	// Config.DeferredLimit.
	EventAttached

	// EventFetched answers EffectFetch, behind EventQueued for each message that there is.
	// Mark: that of the last, when there were as many as asked for; OK: there is
	// no other behind these.
	EventFetched

	// EventForget answers EffectLeave, for any number of messages. IDs. It must not be given while
	// anything is under way that tells of messages as they were: EventFetched, or an answer to
	// EffectRecall or EffectPass.
	EventForget

	// EventRecalled: ID, which was not in memory, is; EventQueued has come before. Answers
	// EffectRecall, and with Now set it is for the pass of a flush of all mail.
	EventRecalled

	// EventPassed: the pass that EffectPass has asked for is over.
	EventPassed

	// EventTerms: Terms hold from now on for the destination of Transport with the name Site,
	// if it is in memory; nil: none do. Others are told of with their recipients (Rcpt.Terms).
	EventTerms

	// EventTenant: from now on TenantTerms hold for the mail of Tenant that is in memory. A caller that has
	// terms for a tenant gives this event before the recipients of each of its messages (EventLoaded).
	EventTenant

	// EventQuota: Quota holds from now on for the mail of Tenant at the destination of Transport with the name Site, if
	// there is such mail; nil: none does. Others are told of with their recipients (Rcpt.Quota).
	EventQuota

	// EventHints: others, who deliver mail of the same queue, have found destinations dead. Hints.
	EventHints

	// EventPortions: Portions say how much of shared limits this scheduler may use from now on.
	EventPortions
)

// Scope is what a command applies to.
type Scope uint8

const (
	ScopeMessage Scope = iota
	ScopeSite
	ScopeQueue
	ScopeAll
)

// Event is one thing that happened. Which fields count is said at each
// EventKind; the others are ignored. Slices and strings in it are not
// changed; slices are not kept after Step returns, strings may be.
type Event struct {
	Kind EventKind
	ID   MsgID

	Arrival Arrival // EventQueued

	Rcpts  []Rcpt // EventLoaded: at most the Max asked for
	Next   int    // EventLoaded: index of the first recipient not read, for the next EffectLoad
	Unread int    // EventLoaded: undelivered recipients not read yet; 0: all were read
	Single bool   // EventLoaded: as FlagSingleRcpt, for a shell that knows it only now
	Failed bool   // EventLoaded: besides Rcpts there were recipients that have failed for good, and the sender has not been told of them
	// Starts of EventLoaded is when the message is to be tried first; zero: at once. Until then it
	// goes back to the deferred queue, which counts as no attempt, unless it was flushed by its
	// name. Its lifetime and its back-off count from then.
	Starts  time.Time
	Corrupt bool // EventLoadFailed: the message is to be set aside

	Entry  EntryID // EventDone, EventLost
	Result Result  // EventDone

	Transport mail.Transport // EventAgentDown, EventTerms, EventQuota
	Status    dsn.Status     // EventAgentDown
	Reason    string         // EventAgentDown
	Entries   []EntryID      // EventAgentDown

	OK bool // EventNotified

	Scope Scope   // commands
	Site  string  // EventFlush: a recipient domain, any letter case; EventTerms, EventQuota
	IDs   []MsgID // EventFlush of a site: further messages for it; EventForget
	Queue Queue   // commands by queue
	Now   bool    // EventExpire, EventRecalled
	Early bool    // EventRecalled: that of the effect
	Mark  *Mark   // EventFetched

	Config *Config // EventReconfigured

	Pauses []Pause   // EventPauses
	Limits SetLimits // EventLimits; nil: nothing is set

	Terms *Terms // EventTerms

	Hints []Hint // EventHints

	Portions Portions // EventPortions; nil: all of each

	Tenant      string      // EventTenant, EventQuota
	TenantTerms TenantTerms // EventTenant
	Quota       *Quota      // EventQuota; nil: there is none
}

// An Arrival describes a message that has come to exist: newly arrived, or
// recovered from the spool at start.
type Arrival struct {
	Queue    Queue     // QueueIncoming, QueueDeferred or QueueHold
	Created  time.Time // when the queue entry was made: lifetimes count from here
	Next     time.Time // QueueDeferred: when it is due; zero: at once
	Size     int64     // octets
	Rcpts    int       // recipients without a final outcome
	Attempts int       // times that delivery was tried
	Tenant   string    // whose mail it is; "": nobody's
	Flags    Flags
}

// Flags are the properties of a message that scheduling depends on.
type Flags uint16

const (
	FlagNullSender    Flags = 1 << iota // expires by BounceLifetime
	FlagSingleRcpt                      // VERP: one recipient to a delivery request
	FlagTrace                           // a report is wanted whatever the outcome (mail.TraceReport, TraceRecord, NOTIFY=SUCCESS)
	FlagWarned                          // the delay warning was sent
	FlagExpire                          // an operator asked for its return
	FlagNoDelayNotice                   // no delay warning, whatever the configuration says (probes, NOTIFY without DELAY)
	FlagNoticeDue                       // recipients failed for good and no notice has told the sender yet
)

// A Rcpt is one recipient, resolved to where it goes.
//
// nqmgr hands recipients over sorted by transport, queue name, domain and
// address; who loads them should do the same, since agents see them in this
// order.
type Rcpt struct {
	Index     int // in the envelope's recipients
	Transport mail.Transport
	Nexthop   mail.Nexthop
	Queue     string  // destination queue's name, from QueueName
	Site      string  // lower-case domain of the address when it is in fast_flush_domains; else empty
	Pause     PauseID // the pause that is for it; 0: none
	Apart     uint32  // recipients of different values are not put in one delivery request
	Terms     *Terms  // what holds for the destination besides its window; nil: nothing does
	Quota     *Quota  // what holds for the message's tenant at the destination; nil: nothing does
	Pool      *Pool   // the sources that it may go from, with the terms of each; nil: there are none
	// It was tried, and what was recorded of it last is no EffectDeferRcpts: when its message comes up because a limit has
	// room again, or a pause is over, it waits for the message's own time.
	Tried bool
}

// A Result is what a delivery request came to. The outcome of each recipient
// must have been recorded, or be on its way to the log ahead of anything
// that the effects of this event cause to be recorded.
type Result struct {
	Deferred []int // indexes of the recipients to be tried again
	Failed   bool  // some recipient failed for good: a notice is due
	Success  bool  // some recipient with NOTIFY=SUCCESS was delivered: a notice is due

	// SiteFailed says that the destination did not take part, or wants less: connection or
	// handshake failed for all that was left, or it said 421 or the like. Only then
	// Status and Reason count. SitePartly says that it took mail in the same session: its
	// window shrinks, and it is no nearer to being dead.
	SiteFailed bool
	SitePartly bool
	// Opened says that a connection was opened for it. It counts for the connection rates
	// of shared limits.
	Opened bool
	Status dsn.Status
	Reason string

	// Ask is what the destination's reply asks of the sender, After when the reply says that mail may be tried
	// again (0: it does not), and Said the reply itself. They count where the transport is adaptive.
	Ask   adaptive.Ask
	After time.Duration
	Said  string

	// Hungry says that the agent holds a session with the destination open and
	// asks for more. The agent is then kept, at most IdleMax, until
	// EffectDeliver or EffectDismiss names it.
	Hungry bool
}

// EffectKind says what is to be done, and which fields of Effect count.
type EffectKind uint8

const (
	// EffectLoad: read up to Max undelivered recipients of ID, starting with
	// index From, resolve them, and answer EventLoaded or EventLoadFailed. Max is
	// 0 when none is left and only a notice is due. First is set once for each
	// stay in the active queue, and Origin then says from where the message came:
	// that is when "from=<...>, size=N, nrcpt=M (queue active)" is logged, and
	// when a message out of QueueIncoming is worth a flow control token.
	EffectLoad EffectKind = iota + 1

	// EffectDeliver: give recipients Rcpts of ID to agent Agent of Transport and
	// answer EventDone, EventLost or EventAgentDown. With Reuse the agent is one
	// that reported Hungry and was not dismissed since: it has a session with
	// this destination open. Should that be gone by now, a new one will do.
	// Without, Agent is new and has none. Cache says whether to look for a
	// session, and whether to keep the one that is used and report Hungry; Keep
	// says for how long, 0 that it is for the agent to choose.
	EffectDeliver

	// EffectDismiss: Agent of Transport, which reported Hungry, is not needed any
	// more; it closes its session, which may be gone already. Keep is as in
	// EffectDeliver: 0 says that it is for the agent to choose for how long it
	// keeps the session all the same.
	EffectDismiss

	// EffectDeferRcpts: record Status and Reason as a deferred outcome for Rcpts
	// of ID, and log it. It takes the place of the retry transport when that one
	// cannot be used.
	EffectDeferRcpts

	// EffectNotify: send the notice Notice for ID and answer EventNotified when
	// it is durable.
	EffectNotify

	// EffectDefer: record that ID is in the deferred queue, due at Next, tried
	// Attempts times, Warned.
	EffectDefer

	// EffectFinish: nothing is left to do for ID: remove it, log "removed". Every
	// recipient's final outcome has gone to the log before.
	EffectFinish

	// EffectHold, EffectRelease (into deferred, due at Next), EffectRemove (by an
	// operator), EffectRequeue (through cleanup again, under a new ID) carry out
	// commands, EffectCorrupt sets ID aside. An operator's command on a message
	// that is being delivered takes effect when the deliveries under way end.
	EffectHold
	EffectRelease
	EffectRemove
	EffectRequeue
	EffectCorrupt

	// EffectExpire: record that ID is to be returned at its next attempt, so
	// that a restart does not forget it. Next as in EffectDefer.
	EffectExpire

	// EffectNote: log Note. It has no other consequence.
	EffectNote

	// EffectFetch: give deferred messages that are not in memory, as Fetch says, with
	// EventQueued, and then answer EventFetched. What is in memory need not be given.
	EffectFetch

	// EffectLeave: ID need not be in memory. When everything that effects have
	// asked to be recorded of it is durable, answer EventForget, unless it is given
	// another effect before.
	EffectLeave

	// EffectForget: ID, of queue Origin, is not in memory any more, and nothing else has changed.
	EffectForget

	// EffectRecall: ID, which is not in memory, is to be tried now. Answer with EventQueued
	// and EventRecalled with its Early, with Flush set with EventQueued and EventFlush, unless it is gone.
	EffectRecall

	// EffectPass: all deferred mail is flushed. What is not in memory is to be gone through,
	// from the beginning, with EventQueued and EventRecalled for each message, as there is room:
	// while Due is small. Then answer EventPassed.
	EffectPass
)

// Notice is a kind of message to the sender.
type Notice uint8

const (
	// A failure notice does not end a message: other recipients may still be deliverable.
	NoticeFailure Notice = iota + 1 // some recipients failed for good
	// Sent at most once for each message; FlagWarned remembers it.
	NoticeDelay // still trying
	// Answered with OK, it settles every recipient that is left, so that EffectFinish
	// follows unless a failure notice is still due.
	NoticeExpired // out of time: every deferred recipient is returned
	NoticeTrace   // success, or the report that was asked for
)

// Cache is Postfix's pair of session cache hints. In thread mode they are set
// whenever agents may be idle, else when deliveries follow each other within a
// second.
type Cache uint8

const (
	CacheLoad  Cache = 1 << iota // look for a cached session
	CacheStore                   // leave the session in the cache
)

// Effect is one thing to be done. See the package comment for the order in
// which effects must become durable. Rcpts of EffectDeliver stay valid and
// unchanged until the request's end is reported; of EffectDeferRcpts until
// the next Step.
type Effect struct {
	Kind      EffectKind
	Notice    Notice        // EffectNotify
	Cache     Cache         // EffectDeliver
	First     bool          // EffectLoad
	Origin    Queue         // EffectLoad, when First; EffectForget
	Reuse     bool          // EffectDeliver
	Flush     bool          // EffectRecall
	Early     bool          // EffectRecall: for those recipients that have not been tried
	Keep      time.Duration // EffectDeliver, EffectDismiss
	Warned    bool          // EffectDefer, EffectLoad: the delay warning was sent
	Most      int32         // EffectDeliver: deliveries over one connection at most; 0: as the agent's own settings say
	Terms     *Terms        // EffectDeliver: those of the destination; nil: it has none
	ID        MsgID
	Entry     EntryID // EffectDeliver
	Agent     AgentID // EffectDeliver, EffectDismiss
	Transport mail.Transport
	Nexthop   mail.Nexthop
	Source    string // EffectDeliver: what to send from; "": as the agent's own settings say
	Rcpts     []int
	From, Max int // EffectLoad
	Attempts  int // EffectLoad, and effects that end a stay: how often delivery was tried
	Next      time.Time
	Status    dsn.Status
	Reason    string
	Note      *Note
	Fetch     *Fetch // EffectFetch
}

// NoteKind is a kind of log line.
type NoteKind uint8

const (
	NoteExpired       NoteKind = iota + 1 // ID: from=<...>, status=expired, returned to sender
	NoteForceExpired                      // ID: from=<...>, status=force-expired, returned to sender
	NoteClog                              // a destination fills the active queue: Transport, Queue, Count of Total
	NoteFeedback                          // destination_concurrency_feedback_debug: Queue, Limit ... FailCohorts, Feedback, Positive
	NoteDead                              // a destination was declared dead: Transport, Queue, Until
	NoteHint                              // a destination is taken for dead, since somebody else has found that: Transport, Queue, Until, Status, Reason
	NoteAlive                             // a dead destination answered: Transport, Queue, Count messages wait for it
	NoteTransportDown                     // Transport cannot be used, Until
	NoteBadCount                          // rcpt count mismatch: ID, Count
)

// A Note is something worth a log line.
type Note struct {
	Kind      NoteKind
	ID        MsgID
	Transport mail.Transport
	Queue     string
	Count     int
	Total     int
	Until     time.Time
	Status    dsn.Status
	Reason    string

	Positive    bool
	Feedback    float64
	Limit       int
	Window      int
	Success     float64
	Failure     float64
	FailCohorts float64
}
