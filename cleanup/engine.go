package cleanup

import (
	"context"
	"io"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/metrics"
	"posthaste/internal/queue"
)

// An engine keeps the queue on stable storage. It is the door between this service, which
// alone changes the queue, and what the queue is kept in: the log on the local disk (logengine.go). What
// only reads stands behind the door in package queueread.
//
// All methods may be called concurrently. What a method says of the queue is what is durable: a
// change that is on its way is not seen until it is. Errors are of the kinds in package queue and are
// told apart with errors.Is; a refusal has changed nothing, but for queue.ErrBroken, after which nobody
// knows until the engine has been opened again. An engine that says so once says so from then on.
type engine interface {
	// Lease gives n message numbers, 1 to 1<<20: first and those after it. No number is 0, or is
	// given twice in all lives of the queue. It need not write anything. Errors: ErrFull, ErrInvalid.
	Lease(n int) (first uint64, err error)

	// NewBatch gives an empty batch, which may be used for this engine again and again.
	NewBatch() batch
	// NewFile begins content that is too long for a batch. An error is the one message's: ErrFull, ErrUnstored.
	NewFile() (contentFile, error)
	// InlineLimit is the length of content in octets up to which it goes with the batch.
	InlineLimit() int

	// Commit makes b durable, all of it or nothing, and returns nil when it is, with the content of its
	// messages. It takes no context: nobody would know who has the message. Those that wait
	// at the same time share what it costs. Commits of one goroutine become durable in their order. Errors: ErrFull for what adds mail,
	// ErrBroken, ErrTooLarge, ErrInvalid, ErrUnstored, ErrSilent, ErrClosed.
	Commit(b batch) error
	// Post makes b durable with the next Commit, or before long without one, and then calls done, which
	// must not wait for anything nor call the engine. b belongs to the engine until then. Posts and
	// Commits become durable in the order in which they were called. A batch that adds
	// nothing is not refused for want of room. done may be called before Post returns, with an error.
	Post(b batch, done func(error))
	// Hurry has what has been posted made durable without waiting for more.
	Hurry()
	// Silent is nil, or ErrSilent when new mail would be refused now since the storage does not answer.
	Silent() error

	// Locate says how the message with this ID stands, and Find that with this number; false: it is gone.
	Locate(id mail.QueueID) (queue.Entry, bool)
	Find(number uint64) (queue.Entry, bool)
	// Entries calls yield for each message until it returns false. One that is there throughout is given
	// once, one that comes or goes meanwhile perhaps.
	Entries(yield func(queue.Entry) bool)
	// Due calls yield for the deferred messages that q asks for, in the order in which they are due, until it
	// returns false. NextAttempt is the time that counts. It gives the mark of the last, and says
	// whether there is none behind it. Memory is bounded by q.Limit.
	Due(q *queue.DueQuery, yield func(queue.Entry) bool) (last queue.Mark, whole bool)
	// Page appends some hundred messages to list, those from a cursor on, 0 being the beginning; next is
	// the cursor to go on with, 0 at the end. Nothing is given twice.
	Page(cursor uint64, list []queue.Placed) (_ []queue.Placed, next uint64)
	// InHand are those of rcpts of which it is recorded that an agent has them in hand (batch.Handed).
	InHand(id mail.QueueID, rcpts []int) []int

	// Recovery is what was found when the engine was opened.
	Recovery() recovery
	// Maintain does until ctx ends what there is to do beside all else.
	Maintain(ctx context.Context)
	// Offer gives the engine's numbers to whoever publishes them.
	Offer(o *metrics.Offer)

	// Broken is closed when the engine breaks, and Err is nil until then.
	Broken() <-chan struct{}
	Err() error
	// Close makes durable what was posted, ends, and lets others have the queue. Later calls get ErrClosed.
	Close() error
}

// A batch is changes that become durable together. Each method that makes one gives its index for Refused and
// Entry. A change that contradicts the queue, or itself, is ErrInvalid at Commit. What a method is given must
// not change until the batch is done. A batch is used by one goroutine.
type batch interface {
	// Add adds a message.
	Add(m addition) int
	// Update changes a message that stays.
	Update(id mail.QueueID, c queue.Change) int
	// Done says that nothing more is to be done for these recipients, by their indexes. With the last of
	// them the message leaves the queue.
	Done(id mail.QueueID, rcpts []int) int
	// Remove removes a message, whoever is still to get it, and Finish one of which all is done.
	Remove(id mail.QueueID) int
	Finish(id mail.QueueID) int
	// Handed says that an agent is about to deliver to these recipients. What came of it ends that.
	Handed(id mail.QueueID, rcpts []int, nexthop string) int

	// Apart says that each change stands for itself: one that the engine refuses is left out, and Refused,
	// once the batch is durable, says why. It is not for a batch with Add.
	Apart()
	Refused(i int) error
	// Entry is how the message that change i added or updated stood after the batch, once that is durable;
	// false: it was gone.
	Entry(i int) (queue.Entry, bool)
	// Reset empties the batch for another use.
	Reset()
}

// An addition is a message to be added to the queue. Size, sender and trace flags are those of the envelope.
type addition struct {
	ID          mail.QueueID // with a number from Lease
	Envelope    []byte       // as mail.Envelope.Append has it
	Recipients  []byte       // as mail.AppendRecipients has it
	NRcpt       int          // how many those are; at least 1
	Queue       queue.Name
	NextAttempt time.Time   // zero: at once
	Content     []byte      // either this,
	File        contentFile // or this, which the batch takes over
}

// A contentFile is content that is written before its message is committed. It is used by one goroutine.
type contentFile interface {
	io.Writer   // to the end; after an error, of queue's kinds, it is only good for Abort
	io.ReaderAt // what has been written, for filters, checks and signatures
	Size() int64
	// Abort gives the content up. It does nothing once a batch has been committed with it.
	Abort()
}

// A recovery is what was found when the engine was opened.
type recovery struct {
	Summary string // for the log; empty: there was nothing to recover
	// InDoubt are deliveries that may have been made and may be made again; Exact says that they are
	// those that were recorded with Handed and no others. MoreInDoubt counts those over a bound.
	InDoubt     []queue.Doubt
	MoreInDoubt int
	Exact       bool
	// Unanswered are new messages in the queue whose clients may have been told that they are not.
	Unanswered     []mail.QueueID
	MoreUnanswered int
	// Report is what to tell postmaster; empty: no damage was found that was not known before.
	Report string
}
