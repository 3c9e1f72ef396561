// Package agent is the common part of the delivery agents (smtp, lmtp, local,
// virtual, pipe, discard, error): it takes delivery requests from the queue
// manager, opens the message's content in the spool, runs as many deliveries
// at once as master.cf's maxproc says, logs what came of each recipient, and
// reports it.
//
// An agent never touches the queue. When the queue manager goes away its
// deliveries go on, and what came of them is kept for the next one, which
// learns of them before it orders anything from this agent (proto.Attach,
// proto.Inventory): a restart of the queue manager sends nothing twice. A
// process that retires, because of a reload or of a table that has changed,
// brings its deliveries to their end however long they take, and calls a
// queue manager that does not know of them: nobody can ask it any more. Only
// a stop of the mail system cuts deliveries off. Other agents may order
// deliveries too (Request.Pass); they do not attach, and the queue manager
// hears of these deliveries only from the agent that ordered them.
//
// A delivery that takes longer than daemon_timeout is cut off, and its
// recipients are deferred. Should it go on even so (a file system hangs), the
// process takes no more orders and ends some minutes later with what hangs in
// it: Postfix's watchdog. A process that does not even answer is left alone by
// the queue manager, which defers the message.
package agent

import (
	"context"
	"io"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// A Deliverer is what each agent is.
type Deliverer interface {
	// Deliver tries to bring the message to every recipient in r, says for
	// each of them what came of it by r.Sent, r.Defer or r.Bounce, and
	// returns. A recipient that is not accounted for is deferred and that is
	// logged as an error of the agent. Deliver is called on many goroutines
	// at once. ctx ends when the service must stop now.
	Deliver(ctx context.Context, r *Request)
}

// A Dismisser is a Deliverer that keeps sessions.
type Dismisser interface {
	// Dismiss closes a session that was kept under this name, if it is still
	// there. It may be called at any time, by many goroutines at once.
	Dismiss(session uint64)
}

// Content is a message's content: CRLF lines, as package mail describes it.
// It is not safe for use by several goroutines at once.
type Content interface {
	Len() int64        // octets
	Bytes() []byte     // all of it, when it is in memory; nil for a large message
	Reader() io.Reader // from the first octet; each call starts anew
	Close() error
}

// A Request is one delivery request. Its exported fields are not to be changed.
type Request struct {
	Envelope *mail.Envelope // Recipients are those of this request
	Nexthop  mail.Nexthop
	// CacheLoad and CacheKeep are the queue manager's advice about sessions:
	// look for a kept one, keep this one.
	CacheLoad, CacheKeep bool
	// Session names the session that the delivery is made over, and Keep is how
	// long it is then kept, as proto.Deliver has them.
	Session uint64
	Keep    time.Duration
	// Most is how many messages may be sent over one connection; 0: the agent decides.
	Most int
	// Source names what connections are to come from, and SourceSpec says what belongs to it, as
	// egress.Parse reads it; empty: as the agent's own settings say. It is for agents that
	// make connections.
	Source, SourceSpec string
	// Advice is what the agent is to do otherwise than its settings say, as shaping.ParseAdvice reads
	// it; empty: nothing. It is for agents that make connections.
	Advice string
	// Provider is who is behind the destination, as proto.Deliver has it; what came of the delivery is counted by it.
	Provider string

	// connecting says that until settled is set the time goes to delay c.
	connecting bool
	started    time.Time // handed to the Deliverer
	settled    time.Time // connection set up: the end of delay c
	order      *proto.Deliver
	from       source
	env        *environment
	sentFrom   string // Source, once the agent has said that it uses it; for the log
	sender     string // the message's, if it leaves with another one; for the log
	// Of mail under the suppression list: it was not delivered because of that, or what has failed.
	suppressed bool
	failure    *proto.SuppressTell

	// reply is what has been said so far: its Outcomes are by position in
	// Envelope.Recipients, with Action 0 for not yet.
	reply proto.DeliverReply
	one   [1]mail.Outcome // room for the Outcomes of one recipient, as most requests have
}

// A source is where a Request comes from.
type source interface {
	content(r *Request) (Content, error)
	pass(r *Request, i int, to mail.Recipient, transport mail.Transport, nexthop mail.Nexthop) (mail.Outcome, error)
	hand(m *proto.Hand) func() error
}

// Content opens the message's content, verified. An error has been worded for
// the log: the caller defers all recipients with it. The caller closes it.
func (r *Request) Content() (Content, error) { return r.from.content(r) }

// ConnectionDone marks the end of connection set-up (the c of delays=a/b/c/d):
// everything until now was DNS, connecting, greeting and TLS; what follows is
// transmission. Local agents need not call it.
func (r *Request) ConnectionDone(now time.Time) { r.settled = now }

// Connecting says that this agent has a connection to set up: when it fails
// before ConnectionDone the time was spent on that.
func (r *Request) Connecting() { r.connecting = true }

// SiteFailure says that the destination as a whole does not work, which the
// scheduler counts against it. What is such a failure is in docs/smtp.md. Only
// the first of a request counts.
func (r *Request) SiteFailure(status dsn.Status, reason string) {
	if r.reply.SiteStatus.IsZero() || r.reply.SitePartly {
		r.reply.SiteStatus, r.reply.SiteReason, r.reply.SitePartly = status, reason, false
	}
}

// SiteBusy says that the destination wants less mail at a time, which the scheduler
// heeds as it does a SiteFailure, but that it has delivered to others in the same
// session: that alone does not make it dead. A SiteFailure before or after it
// counts in its place.
func (r *Request) SiteBusy(status dsn.Status, reason string) {
	if r.reply.SiteStatus.IsZero() {
		r.reply.SiteStatus, r.reply.SiteReason, r.reply.SitePartly = status, reason, true
	}
}

// Pass has recipient i delivered by another transport, with that nexthop, and
// reports what comes of it there (best_mx_transport). The other agent logs it.
// Pass returns when that is done.
func (r *Request) Pass(i int, transport mail.Transport, nexthop mail.Nexthop) {
	r.Adopt(i, r.PassTo(i, r.Envelope.Recipients[i], transport, nexthop))
}

// PassTo has the message delivered to an address, which recipient i is or was
// expanded to, by another transport, with that nexthop (mailbox_transport).
// It returns what came of it when that is done: logged, by the other agent,
// but not reported. Should anything die meanwhile, the queue manager orders
// the whole recipient again.
func (r *Request) PassTo(i int, to mail.Recipient, transport mail.Transport, nexthop mail.Nexthop) mail.Outcome {
	o, err := r.from.pass(r, i, to, transport, nexthop)
	if err == nil {
		return o
	}
	v := r.verdict(dsn.Deferred, dsn.S(4, 3, 0), err.Error())
	r.logPart(i, to.Address, v, Detail{})
	return outcome(v, Detail{})
}

// Adopt reports for recipient i, unchanged and without logging it, what PassTo
// has returned, or what Part has in several parts.
func (r *Request) Adopt(i int, o mail.Outcome) {
	o.Rcpt = r.order.Index[i]
	r.reply.Outcomes[i] = o
}

// SessionKept says that a session for this destination stays open and is free.
func (r *Request) SessionKept() { r.reply.Kept = true }

// SentFrom says that connections for this request come from its Source. Agents that make none
// have no use for a source, and do not call it.
func (r *Request) SentFrom() { r.sentFrom = r.Source }

// ConnectionOpened says that a connection to the destination is being opened: one that was
// kept is not enough, or there is none.
func (r *Request) ConnectionOpened() { r.reply.Opened = true }

// Secured says how the connection that was opened is secured, in words: for those who look at the
// destination.
func (r *Request) Secured(text string) { r.reply.Security = text }

// A Detail is what an agent knows about an outcome besides status and text.
type Detail struct {
	Relay    string // as logged; "none" when empty
	ConnUse  int    // how often the session has been used; logged from 2 on
	TLS      string // protocol and cipher of the session, for events; empty: it was in the clear
	MTA      string // remote host name for Remote-MTA; empty: no remote MTA spoke
	DiagType string // "smtp" for an SMTP reply, "x-unix" for a command's words; empty: our own words
	DiagText string
	Passed   bool       // the next system reports success to the sender (RFC 3461 section 5.2.2)
	Owner    string     // of the list that the recipient is: told of a failure in the sender's place
	Action   dsn.Action // for success: Delivered, Relayed or Expanded; zero: Delivered
}

// Class is what kind of failure a text describes, by the rules of bounce_class_files.
func (r *Request) Class(text string) string { return r.env.classes.Class(text) }

// Pending says whether nothing has been said yet of recipient i.
func (r *Request) Pending(i int) bool { return r.reply.Outcomes[i].Action == 0 }

// Deferred says whether recipient i is to be tried again: soft_bounce and
// status filters may have made that of a Bounce, and filters the contrary of a
// Defer.
func (r *Request) Deferred(i int) bool { return r.reply.Outcomes[i].Action == dsn.Deferred }

// Sent reports recipient i (a position in Envelope.Recipients) as delivered
// and logs it. For a probe it reports the address as deliverable.
func (r *Request) Sent(i int, status dsn.Status, text string, d Detail) {
	if d.Action == 0 {
		d.Action = dsn.Delivered
	}
	r.report(i, d.Action, status, text, d)
}

// Defer reports recipient i as to be tried again and logs it. The class of
// status becomes 4.
func (r *Request) Defer(i int, status dsn.Status, text string, d Detail) {
	r.report(i, dsn.Deferred, status, text, d)
}

// Bounce reports recipient i as never to be tried again and logs it. The
// class of status becomes 5. With soft_bounce it is tried again all the same.
// For a probe it reports the address as undeliverable.
func (r *Request) Bounce(i int, status dsn.Status, text string, d Detail) {
	r.report(i, dsn.Failed, status, text, d)
}

// report settles recipient i and logs it.
func (r *Request) report(i int, action dsn.Action, status dsn.Status, text string, d Detail) {
	v := r.verdict(action, status, text)
	r.settle(i, v, d)
	r.logPart(i, r.Envelope.Recipients[i].Address, v, d)
}

// A verdict is what an agent's word comes to.
type verdict struct {
	action dsn.Action
	status dsn.Status
	text   string
	soft   bool // soft_bounce has made "never" a "later"
}

// verdict finds it: the class of the status follows the action, the filter may
// change both and the text, a probe only finds out, soft_bounce softens.
func (r *Request) verdict(action dsn.Action, status dsn.Status, text string) verdict {
	switch action {
	case dsn.Deferred:
		status = status.WithClass(4)
	case dsn.Failed:
		status = status.WithClass(5)
	}
	action, status, text = r.env.filter.apply(action, status, text)
	failed := action == dsn.Deferred || action == dsn.Failed
	soft := false
	switch probe := r.Envelope.Trace.DontDeliver(); {
	case probe && failed:
		action = dsn.Undeliverable
	case probe:
		action = dsn.Deliverable
	case action == dsn.Failed && r.env.softBounce:
		action, status, soft = dsn.Deferred, status.WithClass(4), true
	}
	return verdict{action, status, text, soft}
}
