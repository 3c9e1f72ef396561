package queue

import (
	"time"

	"posthaste/internal/mail"
)

// DoubtKind is why it is not known whether a delivery was made.
type DoubtKind uint8

const (
	// DoubtHanded: an agent had it in hand, which was on stable storage, and nothing
	// is of what came of it.
	DoubtHanded DoubtKind = iota
	// DoubtTrace: a torn batch, which does not count, says that it was made.
	DoubtTrace
	// DoubtNew: it is new mail, which is given out as soon as it is there; whether
	// this was, nothing says.
	DoubtNew
	// DoubtLost: records of the queue are lost, and one of them may have said that it was
	// made, or was being made.
	DoubtLost
)

// A Doubt is a message that some recipients may have got, and may get again.
type Doubt struct {
	ID   mail.QueueID
	Kind DoubtKind
	// Rcpts are the recipients, by index, with DoubtHanded and DoubtLost, ascending; with the others it is empty, and
	// means all that are pending.
	Rcpts []int
	// Nexthop is where to, as was recorded; "": not known.
	Nexthop string
	At      time.Time // when that was recorded; zero: not known
}
