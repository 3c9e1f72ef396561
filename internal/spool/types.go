package spool

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// Subdir is where the mail system keeps its spool, below the queue directory.
const Subdir = "spool"

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
	Followed bool  // what a Follower knew was gone on from
	Ahead    int   // of Records, those that it had read
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

	// Withdrawn are messages of the volatile area that the last process had neither kept nor done with.
	// MoreWithdrawn counts those over the bound of 1000.
	Withdrawn     []queue.Withdrawn
	MoreWithdrawn int

	// Findings are the messages that damage has done something to, by their queue IDs,
	// lost ones among them. MoreFindings counts those over the bound of 1000. All are
	// told through Warn.
	Findings     []Finding
	MoreFindings int
	// Report is what to tell an operator, with the findings in it, when damage was
	// found that was not known before; it is in the directory "damaged", too.
	Report string
}
