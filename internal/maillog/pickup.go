package maillog

import (
	"fmt"
)

// What pickup has to say of files in maildrop, and of messages that the
// sendmail program offers it. All are logged with LogWarning.

// PickupFailed says why a file of maildrop has not been queued. One that is no
// message is left where it is, and complained of once.
type PickupFailed struct{ Path, Reason string }

// Append implements Event.
func (e PickupFailed) Append(b []byte) []byte {
	return append(append(append(b, e.Path...), ": "...), e.Reason...)
}

// AppendFields implements Fielder.
func (e PickupFailed) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "pickup failed"), "path", e.Path), "reason", e.Reason)
}

// PickupSplit says that a file had more recipients than one message of the
// queue takes.
type PickupSplit struct {
	Path  string
	NRcpt int // of the file
	Each  int // of each message, at most
}

// Append implements Event.
func (e PickupSplit) Append(b []byte) []byte {
	return fmt.Appendf(b, "%s: message with %d recipients was queued as several, with at most %d each", e.Path, e.NRcpt, e.Each)
}

// AppendFields implements Fielder.
func (e PickupSplit) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "pickup split"), "path", e.Path)
	return appendNumber(appendNumber(b, "nrcpt", int64(e.NRcpt)), "count", int64(e.Each))
}

// PickupRemoved says that a message without recipients was thrown away.
type PickupRemoved struct {
	ID     string
	Reason string // cleanup's
}

// Append implements Event.
func (e PickupRemoved) Append(b []byte) []byte {
	return append(append(appendID(b, e.ID), "message without recipients removed: "...), e.Reason...)
}

// AppendFields implements Fielder.
func (e PickupRemoved) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "pickup removed"), "queue_id", e.ID), "reason", e.Reason)
}

// PickupInDoubt says that a message may be queued twice: it is in the queue,
// and the sendmail program may not know.
type PickupInDoubt struct {
	ID string
	// Unknown: cleanup could not say whether it has queued the message, and Reason,
	// which begins with the ID, is why. Else the message is in the queue, and Reason
	// is why sendmail was not told.
	Unknown bool
	Reason  string
}

// Append implements Event.
func (e PickupInDoubt) Append(b []byte) []byte {
	if e.Unknown {
		return append(append(b, e.Reason...), "; it goes to maildrop, and may be queued twice"...)
	}
	b = append(append(b, e.ID...), ": in doubt: it is in the queue, and the sendmail program has not waited to hear that: it may be queued twice ("...)
	return append(append(b, e.Reason...), ')')
}

// AppendFields implements Fielder.
func (e PickupInDoubt) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "pickup in doubt"), "queue_id", e.ID), "reason", e.Reason)
}

// PickupWithdrawn says that postdrop has taken back a file whose message is in the queue: it could not
// sync it, and has told its user that the message is not sent.
type PickupWithdrawn struct{ ID, Path string }

// Append implements Event.
func (e PickupWithdrawn) Append(b []byte) []byte {
	b = append(append(b, e.ID...), ": in doubt: it is in the queue, and its file "...)
	return append(append(b, e.Path...), " has been withdrawn: its sender may have been told that it is not sent, and may send it again"...)
}

// AppendFields implements Fielder.
func (e PickupWithdrawn) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "pickup withdrawn"), "queue_id", e.ID), "path", e.Path)
}

// PickupAgain says that a message may have been queued already, by a pickup process that has died.
type PickupAgain struct{ ID, Path string }

// Append implements Event.
func (e PickupAgain) Append(b []byte) []byte {
	b = append(append(b, e.ID...), ": in doubt: a pickup process that died may have queued it already: it may be queued twice ("...)
	return append(append(b, e.Path...), ')')
}

// AppendFields implements Fielder.
func (e PickupAgain) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "pickup again"), "queue_id", e.ID), "path", e.Path)
}
