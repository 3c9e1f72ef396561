package queue

import "posthaste/internal/mail"

// A Withdrawn is a message that an engine had for a delivery before its client was told 250, and does not have any more,
// since whoever kept it in hand was killed. Its client was not told 250 and may send it again, and it may have been
// delivered to some of its recipients.
type Withdrawn struct {
	ID         mail.QueueID
	Sender     string   // empty: or it cannot be read any more
	Recipients []string // empty: they cannot be read any more
	// Settled says that nothing was left to do for it, and that its client was about to be told.
	Settled bool
}
