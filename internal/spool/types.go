package spool

import (
	"fmt"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// Subdir is where the mail system keeps its spool, below the queue directory.
const Subdir = "spool"

// Ref says where in the log a record lies. It is good until the segment is
// recycled, and a [Reader] notices when that has happened. Whether the
// content is in the log or in a file of its own is in the record.
type Ref struct {
	File   uint32 // number of the segment's file
	Segno  uint64 // which use of that file: 1 for the log's first segment
	Offset uint32 // of the record's header, in bytes
	Length uint32 // of the record, header included, padding not
}

// IsZero says whether r refers to nothing.
func (r Ref) IsZero() bool { return r.Segno == 0 }

// Append appends r as one field.
func (r Ref) Append(b []byte, tag byte) []byte {
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.Uint(b, 'f', r.File)
		b = pack.Uint(b, 's', r.Segno)
		b = pack.Uint(b, 'o', r.Offset)
		return pack.Uint(b, 'l', r.Length)
	})
}

// Decode reads what Append wrote, given the field's bytes.
func (r *Ref) Decode(field []byte) error {
	p := pack.NewReader(field)
	for p.Next() {
		switch p.Tag() {
		case 'f':
			r.File = uint32(p.Uint())
		case 's':
			r.Segno = p.Uint()
		case 'o':
			r.Offset = uint32(p.Uint())
		case 'l':
			r.Length = uint32(p.Uint())
		}
	}
	return p.Err()
}

// Queue is where a message stands, in Postfix's words. The active queue is a
// matter of qmgr's memory: on disk its messages are incoming or deferred.
type Queue uint8

const (
	Incoming Queue = iota
	Deferred
	Hold
	Corrupt // set aside: it could not be read, and an operator must look
	numQueues
)

// String is Postfix's name for q.
func (q Queue) String() string {
	switch q {
	case Incoming:
		return "incoming"
	case Deferred:
		return "deferred"
	case Hold:
		return "hold"
	case Corrupt:
		return "corrupt"
	}
	return fmt.Sprintf("queue(%d)", uint8(q))
}

// A Message is one to be added to the spool. Its number, size, sender and
// trace flags are taken from the envelope.
type Message struct {
	ID          mail.QueueID // of mail.MakeQueueID with a number from Lease
	Envelope    []byte       // mail.Envelope.Append
	Recipients  []byte       // mail.AppendRecipients
	NRcpt       int          // how many those are; at least 1
	Queue       Queue
	NextAttempt time.Time // zero: at once
	Content     []byte    // either this, not changed until the batch is done,
	File        *File     // or this, which the batch takes over
}

// Field names what a Change sets.
type Field uint8

const (
	SetQueue Field = 1 << iota
	SetNextAttempt
	SetAttempts
	SetWarned // a "still trying" notice was sent
	SetExpire // an operator wants it returned now
)

// A Change is what becomes of a message that stays in the queue. Fields not
// named in Set keep their values. Each Outcome takes the place of its
// recipient's former one; Done is as with [Batch.Done].
type Change struct {
	Set         Field
	Queue       Queue
	NextAttempt time.Time
	Attempts    int
	Warned      bool
	Expire      bool
	Outcomes    []mail.Outcome
	Done        []int
}

// An Entry is what the spool knows of one message without reading it.
type Entry struct {
	ID          mail.QueueID
	Ref         Ref // newest record of its envelope and state, for [Reader.Read]
	Queue       Queue
	NextAttempt time.Time // zero: never set
	Attempts    int
	Size        int64 // of mail.Envelope
	NRcpt       int
	NPending    int  // recipients with something still to do
	Null        bool // the sender is null
	Trace       mail.Trace
	Warned      bool
	Expire      bool

	// Done is a bitmap of the recipients with nothing more to do, bit i%8 of
	// byte i/8 for recipient i; nil when there is none. The record at Ref may
	// know fewer of them: give this to [Stored.Overlay].
	Done []byte
}

// Stats is a snapshot of the spool's numbers.
type Stats struct {
	Messages    int // live
	ByQueue     [numQueues]int
	LiveBytes   int64 // records that matter, and big files
	StateBytes  int64 // of those, what a full checkpoint would write
	BigFiles    int   // messages in files of their own
	BigBytes    int64
	Segments    int // segment files
	Free        int // of those, to be used next
	SegmentSize int64
	DiskBytes   int64 // segment files and big files, spent ones included
	Window      int   // segments that recovery would read
	Full        bool  // Add is refused now

	// Since Open:
	Batches     uint64 // log batches, one write and one sync each
	Commits     uint64 // batches of callers, Post included
	Added       uint64 // messages
	AddedBytes  uint64 // bytes of their records in the log
	Written     uint64 // bytes written to the log, padding and headers included
	Copied      uint64 // bytes the cleaner copied
	Checkpoints uint64 // bytes of states re-recorded to move the recovery point
	Cleaned     uint64 // segments emptied by copying
}

// RecoveryReport is what Open found.
type RecoveryReport struct {
	Segments int   // scanned
	Bytes    int64 // in them
	Records  int   // replayed
	Tail     int   // records of the last process that nobody had been told were durable, recorded again
	Torn     int   // batches dropped: incomplete and never acknowledged
	Alarms   int   // damaged or missing batches that had been durable, each told through Warn
	Orphans  int   // big files without a message, removed
	Clean    bool  // the last process had closed the spool
	Elapsed  time.Duration

	// InDoubt are deliveries that may have been made and may be made again. Exact says that
	// they are those of which the last process had recorded that an agent had them
	// in hand, before each was made, and no others (Options.ExactDoubt); without it there may be some that are
	// not named, and new mail that nobody had begun with is among them.
	// MoreInDoubt counts those over the bound of 1000.
	InDoubt     []Doubt
	MoreInDoubt int
	Exact       bool

	// Unanswered are new messages in the tail: whoever sent them may have been told
	// that they are queued, or, when it was the sync that failed, 451 or nothing, and may
	// send them again. MoreUnanswered counts those over the bound of 1000.
	Unanswered     []mail.QueueID
	MoreUnanswered int

	// Findings are the messages that damage has done something to, by their queue IDs,
	// lost ones among them. MoreFindings counts those over the bound of 1000. All are
	// told through Warn.
	Findings     []Finding
	MoreFindings int
	// Report is what to tell an operator, with the findings in it, when damage was
	// found that was not known before; it is in the directory "damaged", too.
	Report string
}
