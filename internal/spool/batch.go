package spool

import (
	"posthaste/internal/mail"
)

// A Batch is a set of changes that become durable together or not at all.
// The zero Batch is empty. It may be used again after Reset. It belongs to one
// goroutine until it is given to Commit or Post, and then to the spool until
// that is done.
//
// Changes to a message that is not there (any more) are not an error but
// have no effect: who reports may be late or may repeat itself.
type Batch struct {
	ops  []op
	buf  []byte // encoded parts of ops
	refs []Entry
}

// Add adds a message and returns the index for Entry.
func (b *Batch) Add(m Message) int { panic("not yet") }

// Done records that nothing more is to be done for these recipients, by
// their indexes: delivered, or their failure was notified. With the last
// of them the message is gone.
func (b *Batch) Done(id mail.QueueID, rcpts []int) int { panic("not yet") }

// Update changes a message's state.
func (b *Batch) Update(id mail.QueueID, c Change) int { panic("not yet") }

// Remove removes a message, whoever is still to get it.
func (b *Batch) Remove(id mail.QueueID) int { panic("not yet") }

// Len is the number of changes.
func (b *Batch) Len() int { return len(b.ops) }

// Reset empties b for another use.
func (b *Batch) Reset() { panic("not yet") }

// Entry says how the message of change i stands after the batch, which must
// have been committed without error. It is false when the message is gone.
func (b *Batch) Entry(i int) (Entry, bool) { panic("not yet") }

type op struct{}
