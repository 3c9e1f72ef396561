package queue

import "errors"

// Refusals of an engine. They are told apart with errors.Is; the errors themselves say
// more. Nothing of what was refused has happened, save with ErrBroken, when nobody knows
// until the next recovery. The texts are in the log, where people look for them.
var (
	// ErrFull: no room for more mail now. 452 4.3.1; deliveries go on.
	ErrFull = errors.New("spool: full")
	// ErrBroken: a write or sync failed. Nothing will be written by this
	// process any more: 451 4.3.0, stop delivering, open the engine anew.
	ErrBroken = errors.New("spool: broken")
	// ErrTooLarge: the batch cannot be written as one atomic unit.
	ErrTooLarge = errors.New("spool: batch too large")
	// ErrInvalid: the batch contradicts the queue or itself.
	ErrInvalid = errors.New("spool: invalid batch")
	// ErrUnstored: the content of a large message could not be written. The
	// message is refused, 451 4.3.0; others are not concerned.
	ErrUnstored = errors.New("spool: content file")
	// ErrSilent: the disk has not answered for a while, and nobody knows whether it
	// will. 451 4.3.0 for new mail, which is not kept waiting.
	ErrSilent = errors.New("spool: the disk does not answer")
	// ErrNotOurs: another node owns the queue, or this one's lease has run out. Nothing will be
	// written or delivered by this process any more: 451 4.3.0, stop delivering, open the engine anew,
	// which waits until the queue can be owned.
	ErrNotOurs = errors.New("spool: the queue is not this node's")
	// ErrClosed: the engine was closed.
	ErrClosed = errors.New("spool: closed")
)

// What comes of reading a record. They are told apart with errors.Is.
var (
	// ErrStale: the record is no longer where the Ref says. Ask cleanup again (Locate).
	ErrStale = errors.New("spool: stale reference")
	// ErrCorrupt: what is there fails its checksum, also when read again.
	ErrCorrupt = errors.New("spool: damaged record")
	// ErrUnread: it could not be read now. That may pass, and says nothing about
	// what is there.
	ErrUnread = errors.New("spool: cannot be read")
)
