package spool

import "posthaste/internal/queue"

// The spool speaks of messages in the words of package queue, by these names.
type (
	Ref      = queue.Ref
	Queue    = queue.Name
	Field    = queue.Field
	Change   = queue.Change
	Entry    = queue.Entry
	Placed   = queue.Placed
	Mark     = queue.Mark
	DueQuery = queue.DueQuery

	DoubtKind = queue.DoubtKind
	Doubt     = queue.Doubt
)

const (
	Incoming  = queue.Incoming
	Deferred  = queue.Deferred
	Hold      = queue.Hold
	Corrupt   = queue.Corrupt
	numQueues = queue.Names

	DoubtHanded = queue.DoubtHanded
	DoubtTrace  = queue.DoubtTrace
	DoubtNew    = queue.DoubtNew

	SetQueue       = queue.SetQueue
	SetNextAttempt = queue.SetNextAttempt
	SetAttempts    = queue.SetAttempts
	SetWarned      = queue.SetWarned
	SetExpire      = queue.SetExpire
)

var (
	ErrFull     = queue.ErrFull
	ErrBroken   = queue.ErrBroken
	ErrTooLarge = queue.ErrTooLarge
	ErrInvalid  = queue.ErrInvalid
	ErrUnstored = queue.ErrUnstored
	ErrSilent   = queue.ErrSilent
	ErrClosed   = queue.ErrClosed
	ErrStale    = queue.ErrStale
	ErrCorrupt  = queue.ErrCorrupt
	ErrUnread   = queue.ErrUnread
)
