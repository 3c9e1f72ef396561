package storage

import (
	"context"
	"io"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/metrics"
	"posthaste/internal/nodeshare"
	"posthaste/internal/queue"
)

// An Engine keeps the queue on stable storage. It separates cleanup, which alone changes the queue, from
// the storage itself. Readers of the queue use a [Reader] instead.
//
// All methods may be called concurrently. What a method returns about the queue is durable: a change
// in progress is not visible. Errors are of the kinds in package queue; use errors.Is to tell them
// apart. A refused change has no effect. The exception is queue.ErrBroken: its effect is unknown until
// the engine has been opened again. A broken engine stays broken, and so does one that has ended with
// queue.ErrNotOurs.
type Engine interface {
	// Lease reserves n consecutive message numbers, 1 to 1<<20, and returns the first. No number is 0,
	// and none is ever reserved twice for the same queue. Lease need not write anything. Errors: ErrFull,
	// ErrInvalid.
	Lease(n int) (first uint64, err error)

	// NewBatch returns an empty batch, which can be used repeatedly with this engine.
	NewBatch() Batch
	// NewFile starts content that is too long for a batch. An error concerns this message only: ErrFull,
	// ErrUnstored.
	NewFile() (ContentFile, error)
	// InlineLimit is the maximal length, in octets, of content that is part of a batch.
	InlineLimit() int

	// Commit makes b durable, all of it or nothing, including the content of its messages. It takes no
	// context: after a cancelled commit nobody would know who is responsible for the message. Concurrent
	// commits share a sync. Commits of one goroutine about the same message become durable in their order; with one
	// spool, all do. An empty batch waits for everything that was posted before. Errors: ErrFull (only
	// for batches that add mail), ErrBroken, ErrTooLarge, ErrInvalid, ErrUnstored, ErrSilent, ErrNotOurs,
	// ErrClosed.
	Commit(b Batch) error
	// Post makes b durable with the next Commit, or soon without one, and then calls done, which must
	// neither block nor call the engine. b belongs to the engine until then. Posts and Commits about the same message become
	// durable in the order in which they were called; with one spool, all do. A batch that adds no mail is not refused for lack
	// of space. If Post fails, done may be called before Post returns.
	Post(b Batch, done func(error))
	// Hurry makes posted batches durable without waiting for more.
	Hurry()
	// Silent returns ErrSilent while new mail would be refused because the storage does not respond, and
	// nil otherwise.
	Silent() error

	// Locate returns the state of the message with this ID, and Find that of the message with this
	// number; false means that it does not exist any more.
	Locate(id mail.QueueID) (queue.Entry, bool)
	Find(number uint64) (queue.Entry, bool)
	// Entries calls yield for each message until yield returns false. A message that exists throughout is
	// visited once; one that is added or removed meanwhile may be missed.
	Entries(yield func(queue.Entry) bool)
	// Due calls yield for the deferred messages that q selects, in the order of NextAttempt, until yield
	// returns false. It returns the mark of the last one, and whether there are no others behind it.
	// q.Limit bounds the memory used.
	Due(q *queue.DueQuery, yield func(queue.Entry) bool) (last queue.Mark, whole bool)
	// Page appends several hundred messages to list, starting at cursor; 0 is the beginning. next is the
	// cursor for the following page, 0 at the end. They come in the order of their numbers, and a cursor is
	// a number: of those from it on the first are given, whether there is one with it or not.
	Page(cursor uint64, list []queue.Placed) (_ []queue.Placed, next uint64)
	// InHand returns those of rcpts that an agent has in hand according to batch.Handed.
	InHand(id mail.QueueID, rcpts []int) []int
	// Hands calls yield for the deliveries that agents have in hand according to Batch.Handed since the
	// engine was opened, until yield returns false. Those of before are in Recovery, or here.
	Hands(yield func(queue.Doubt) bool)

	// Recovery returns what was found when the engine was opened.
	Recovery() Recovery
	// Maintain does background work, such as cleaning, until ctx ends.
	Maintain(ctx context.Context)
	// Offer publishes the engine's metrics.
	Offer(o *metrics.Offer)

	// Broken is closed when the engine breaks; Err returns nil until then.
	Broken() <-chan struct{}
	Err() error
	// LeaveUnclean has Close make no mark of an orderly end, so that the next process finds Recovery.Unclean, as after
	// a kill: it has to see to what this one could not tell of new mail.
	LeaveUnclean()
	// Close makes posted batches durable, stops the engine, and releases the queue to other processes.
	// Later calls fail with ErrClosed.
	Close() error
}

// A Drainer is an Engine that may have to give up the queue, and waits for deliveries under way then.
type Drainer interface {
	// Doubtful says that deliveries that are in hand have been named as doubtful: nobody will say what came of them.
	// What is recorded of them stays.
	Doubtful(id mail.QueueID, rcpts []int)
}

// A Stasher is an Engine with a volatile area: room for messages that are delivered before anybody is told that they are
// queued, and that nobody is told of if they are lost. A Reader finds a message there by the Ref of its entry; the other
// methods of the Engine do not.
type Stasher interface {
	// Stash writes m, whose content is in memory, without making it durable. Its place is kept until Drop.
	// ErrFull: there is no room, and the oldest messages there are in the way. After other errors but ErrTooLarge and
	// ErrInvalid the area is not used for a while.
	Stash(m Addition) (queue.Entry, error)
	// Drop gives up a place, once: the message is durable in the Engine, or done with. A reader is told ErrStale. settled says
	// that nothing is left to do for it, and that its client is now to be told.
	Drop(ref queue.Ref, settled bool)
}

// A Sharer is an Engine of several nodes, which divide limits among them.
type Sharer interface {
	// Exchange makes a node's exchange, as package nodeshare says; Node and Turn of q are the engine's to say. An error says
	// that nobody knows whether it was made.
	Exchange(q *nodeshare.Request) (nodeshare.Reply, error)
}

// A Noter is an Engine of several nodes, which tell each other what is good for seconds (package nodeshare: NoteTime).
type Noter interface {
	// Notes has this node's note of a topic take the place of its last one, and returns those of others. An empty note takes
	// it away. After an error nobody knows whether it did.
	Notes(topic string, note []byte) ([][]byte, error)
}

// A Batch is a set of changes that become durable together. Methods that add a change return its index for
// Refused and Entry. If a change contradicts the queue, or another change, Commit fails with ErrInvalid. So does
// one of an engine of several spools (package spools) when the batch is not Apart and changes several messages that were there before:
// they may be in different ones, which cannot be written as one.
// Arguments must not be modified until the batch is done. A batch is used by one goroutine.
type Batch interface {
	// Add adds a message.
	Add(m Addition) int
	// Update changes a message, which stays in the queue.
	Update(id mail.QueueID, c queue.Change) int
	// Done marks these recipients, by index, as finished. After the last one the message leaves the queue.
	Done(id mail.QueueID, rcpts []int) int
	// Remove removes a message whatever its remaining recipients; Finish removes one that has none left.
	Remove(id mail.QueueID) int
	Finish(id mail.QueueID) int
	// Handed records that an agent is about to deliver to these recipients. Their outcome ends that.
	Handed(id mail.QueueID, rcpts []int, nexthop string) int

	// Apart makes the changes independent: one that the engine refuses is left out, and Refused returns
	// the reason once the batch is durable. It must not be combined with Add.
	Apart()
	Refused(i int) error
	// Entry returns the state after the batch of the message that change i added or updated, once the
	// batch is durable; false means that it no longer existed.
	Entry(i int) (queue.Entry, bool)
	// Reset empties the batch for another use.
	Reset()
}

// An Addition is a message to be added to the queue. Size, sender and trace flags are those of the envelope.
type Addition struct {
	ID          mail.QueueID // with a number from Lease
	Envelope    []byte       // encoded by mail.Envelope.Append
	Recipients  []byte       // encoded by mail.AppendRecipients
	NRcpt       int          // the number of recipients; at least 1
	Queue       queue.Name
	NextAttempt time.Time   // zero: at once
	Content     []byte      // the content, or nil if it is in File
	File        ContentFile // the content, or nil; the batch takes ownership
}

// A ContentFile is content that is written before its message is committed. It is used by one goroutine.
type ContentFile interface {
	io.Writer   // appends; after an error, of a kind in package queue, only Abort may be called
	io.ReaderAt // reads what has been written, for filters, checks and signatures
	Size() int64
	// Abort discards the content. It has no effect after a batch with the content was committed.
	Abort()
}

// A Recovery is what was found when the engine was opened.
type Recovery struct {
	Summary string // for the log; empty: there was nothing to recover
	// InDoubt are deliveries that may have happened and may be repeated. An engine may leave those out that were in hand
	// when its predecessor ended in order: Hands has them then, since their agents may still be at it. If Exact is true, they are
	// exactly those that were recorded with Handed. MoreInDoubt counts those beyond a limit.
	InDoubt     []queue.Doubt
	MoreInDoubt int
	Exact       bool
	// Unanswered are new messages in the queue whose clients may have been told that they were refused.
	Unanswered     []mail.QueueID
	MoreUnanswered int
	// Withdrawn are messages of a Stasher's volatile area that the last process had neither made durable nor done
	// with. MoreWithdrawn counts those beyond a limit.
	Withdrawn     []queue.Withdrawn
	MoreWithdrawn int
	// Report is a message to the postmaster about new damage; empty if there is none.
	Report string
	// Unclean says that the queue was not closed: whoever had it was killed, or power failed, or LeaveUnclean was called.
	Unclean bool
	// UncleanParts are the parts of a shared queue of which that is true: Ref.File of their messages; none: it is true of all of it.
	UncleanParts []int
	// More says that more of the same follows at once, of what comes into the queue while it is open: the queue manager need
	// not hear of it yet.
	More bool
}
