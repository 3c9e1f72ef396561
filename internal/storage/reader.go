package storage

import (
	"context"
	"io"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// A Reader reads the queue where the engine keeps it, without the help of the process that writes it.
// It is the door between who reads mail, which is the queue manager, the delivery agents and bounce, and
// what the queue is kept in. Its methods may be called concurrently.
//
// A record may move while it is read, or be overtaken by a change: what a Reader gives is what was durable when
// ref was given, or later. Errors to tell apart, with errors.Is: queue.ErrStale, it is not
// there any more; queue.ErrCorrupt, it is damaged, which trying again does not mend; queue.ErrUnread, it cannot be read now.
type Reader interface {
	// Read reads the record of message id that lies at ref: envelope, recipients and state.
	Read(ref queue.Ref, id mail.QueueID) (Stored, error)
	// Content opens the content of message id, of which the record lies at ref.
	Content(ref queue.Ref, id mail.QueueID) (Content, error)
	// Close ends the Reader. What it has given stays good until it is closed itself.
	Close() error
}

// A Viewer is a Reader of a queue that several nodes share. It looks at the parts of all of them, whether those that own
// them are alive or not, and owns nothing. Its methods may be called concurrently; errors are queue.ErrUnread.
type Viewer interface {
	// Parts says which parts the queue has, and whose they are now.
	Parts() ([]Part, error)
	// View returns messages of a part in the order of their numbers: at most n of those above after, and up to upto; 0: all.
	// Fewer than n, or none, are not the end: next is what to go on with, 0 at the end. Entries are as the Engine's. A message that exists throughout, and
	// stays in the part, is in one of the pages; one that changes or leaves meanwhile may be shown as it was when the first page was asked for.
	View(ctx context.Context, part int, after, upto uint64, n int) (list []Viewed, next uint64, err error)
}

// A Viewed is a message as a Viewer sees it.
type Viewed struct {
	queue.Entry
	InHand bool // an agent has it for some recipient, or had it when its node died
}

// A Part is a part of a queue that several nodes share.
type Part struct {
	ID    int
	Node  string // whose it is; "": nobody's
	Own   bool   // it is this node's
	Alive bool   // the node that has it has said so, in the time that it has for that
}

// A Stored is a message's record, in memory and verified. It is used by one goroutine.
type Stored interface {
	// Envelope decodes the envelope, without recipients.
	Envelope() (mail.Envelope, error)
	// Recipients decodes those from index from up to to, not included; to < 0: all the rest.
	Recipients(from, to int) ([]mail.Recipient, error)
	// NRcpt is how many there are.
	NRcpt() int
	// Pending says whether there is still something to do for recipient i.
	Pending(i int) bool
	// Overlay adds the recipients that are done by queue.Entry.Done, of which the record may not know.
	Overlay(done []byte)
	// Outcomes are the last ones of recipients that have one.
	Outcomes() ([]mail.Outcome, error)
	// State is how the message stands, as the record has it.
	State() queue.Entry
	// Content opens the content, which may have moved since: then it is ErrStale.
	Content() (Content, error)
}

// A Content is a message's content, as package mail says. It is used by one goroutine. No octet is given that
// has not been verified: the error is then queue.ErrCorrupt, or queue.ErrUnread.
type Content interface {
	io.ReadSeekCloser
	io.WriterTo
	// Len is its octets.
	Len() int64
	// Bytes is all of it when it is short, and in memory; else nil.
	Bytes() []byte
}
