// Package event is what the mail system tells other programs of the mail that passes through it: one
// [Event] for each thing that becomes of a message. It has the schema of events ([Event.JSON]), makes
// events of what services log ([Of]), and hands them over to the events service, which keeps them in its
// journal ([Reporter]). docs/events.md describes the schema for those who receive events.
//
// # What is promised
//
// A service tells the reporter of an event with Tell, which does not wait. Before it reports an outcome that
// is going to be recorded in the queue, it calls Wait, which returns when all that it has told is on stable
// storage in the journal, or has Then go on when that is so. So no event of a message that has left the queue is missing, whichever process is
// killed in between, as long as the journal can be written. An event may be there twice, with the same
// identifier where the process lived on.
//
// Mail does not depend on it. When the journal does not answer for event_timeout, nobody waits any more until
// it answers again. Meanwhile events are kept in memory; what is over the bound is lost, and counted.
//
// # Parameters
//
// event_service_name, event_sinks, event_timeout, myhostname.
//
// # Diagnostics
//
// "the events service does not answer ...": mail goes on, and events wait in the memory of the process.
// "N events are lost: ...": they are in no journal, and nobody will receive them.
package event

import "time"

// A Kind is what has become of a message.
type Kind string

// The kinds of events. Words are never given another meaning.
const (
	Received  Kind = "received"  // it is in the queue, and its client is told 250
	Rejected  Kind = "rejected"  // its client was told that it is not taken
	Discarded Kind = "discarded" // its client was told 250, and it is thrown away, as a table or filter wants
	Delivered Kind = "delivered" // a recipient has it, or the next system has
	Deferred  Kind = "deferred"  // an attempt has failed, and there will be another
	Bounced   Kind = "bounced"   // a recipient will not get it
	Expired   Kind = "expired"   // the same, because it has waited too long
	Returned  Kind = "returned"  // a notice about it was queued: to its sender, or to postmaster
	Held      Kind = "held"      // an operator has put it on hold
	Released  Kind = "released"  // an operator has let it go on
	Requeued  Kind = "requeued"  // an operator has queued it again, under another queue ID
	Deleted   Kind = "deleted"   // an operator has deleted it
	Suspended Kind = "suspended" // an operator, or a rule, has suspended some deliveries
	Resumed   Kind = "resumed"   // that is over

	BouncedLater Kind = "bounced-later" // a report has come back: a recipient did not get it after all
	Complaint    Kind = "complaint"     // the recipient's provider reports that it is unwanted
	Unsubscribed Kind = "unsubscribed"  // the recipient wants no more mail of the list, or of the tenant
)

// Kinds are all of them, in the order of a message's life.
func Kinds() []Kind {
	return []Kind{Received, Rejected, Discarded, Delivered, Deferred, Bounced, Expired, Returned, Held, Released, Requeued, Deleted,
		Suspended, Resumed, BouncedLater, Complaint, Unsubscribed}
}

// Schema is the version of the form that JSON gives. It changes when a receiver that knows the present one
// could misunderstand another. New fields and kinds do not change it.
const Schema = 1

// MaxRecipients is how many recipients a received event names.
const MaxRecipients = 100

// maxText bounds a text in an event, in octets; what is over it is cut.
const maxText = 1024

// An Event is one of them. Empty fields are not in the JSON form, apart from the sender of a message.
type Event struct {
	Kind Kind
	Time time.Time // when it happened

	QueueID   string
	MessageID string // with its angle brackets
	EnvID     string // ENVID of MAIL FROM (RFC 3461), decoded
	// Sender is the envelope sender in the form of SMTP, without angle brackets. FromMessage says that it is
	// known: empty, it is then the null sender.
	Sender      string
	FromMessage bool
	Size        int64 // octets of the content

	// Of one recipient. Original is the address as it was before aliases and rewriting.
	Recipient, Original string
	// Recipients are all of a message that was received, or the first hundred, or fewer where these are too
	// large for an event; Count is how many there are.
	Recipients []string
	Count      int

	// Of an attempt to deliver.
	Transport   string // the delivery service of master.cf
	NextHop     string
	Relay       string // the server: a host name, local, virtual; empty: none was reached
	RelayAddr   string
	RelayPort   string
	DSN         string // RFC 3463
	Reply       string // what the server said, or why no server was asked
	BounceClass string // by the rules of bounce_class_files
	Attempt     int    // 1 is the first
	Delay       time.Duration
	Delays      *[4]time.Duration // before the queue manager, in it, connection, transmission; nil: none
	TLS         string            // protocol and cipher of the session with the relay
	Source      string            // the egress source that it was sent from; empty: there is none, or it was not sent
	Provider    string            // who is behind the destination, else its site; empty: neither is known

	// Of the client that a message came from, or of the one that was refused.
	ClientName, ClientAddr string
	Helo, Protocol         string
	SASLUser               string
	Stage                  string // the SMTP command that was refused

	Tenant, Campaign string // of a message: whose mail it is, and of which mailing; empty: nobody's, or not known

	NewID  string    // queue ID of the notice of a message that is returned, or under which it was queued again
	Notice string    // which notice that is
	Target string    // what is suspended
	By     string    // who has ordered it
	Until  time.Time // when a suspension ends by itself; zero: it does not

	List     string // the suppression list that the message is under
	Feedback string // the type of a complaint, as its report has it
	// Unverified says that nothing proves the report to be about a message of this system.
	Unverified bool
}

// once says that a message, or a recipient of it, has an event of this kind once.
func (k Kind) once() bool { return k == Received || k == Expired || k == Deleted }

// reported says that an event is told again when the process that has told it is killed: of a message and a recipient,
// it has one identifier, whenever it is told.
func (k Kind) reported() bool { return k == BouncedLater || k == Complaint || k == Unsubscribed }
