package pgspool

import (
	"fmt"
	"slices"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// A batch implements storage.Batch. What needs nothing of the queue, such as checksums, is done by the
// goroutine that fills it.
type batch struct {
	ops     []op
	err     error // the first contradiction
	adds    int
	cost    int           // octets that it will take, about
	apart   bool          // see storage.Batch.Apart
	entries []queue.Entry // by change, once durable; those that it did not add or update are zero
	refused map[int]error // changes that were left out
}

type opKind uint8

const (
	opAdd opKind = iota
	opDone
	opUpdate
	opRemove
	opHanded
)

// op is one change.
type op struct {
	kind    opKind
	id      mail.QueueID
	number  uint64
	created int64 // µs

	// opAdd
	add     storage.Addition
	msg     live
	bodySum uint32
	big     *place // where the content of add.File has been written; nil: it has not been
	home    *shard // whose that is; nil: it has not been
	unpin   func() // for its segment; nil: there is nothing to do

	change  queue.Change // opUpdate
	rcpts   []int
	nexthop string // opHanded
}

func (b *batch) fail(format string, args ...any) int {
	if b.err == nil {
		b.err = fmt.Errorf("%w: %s", queue.ErrInvalid, fmt.Sprintf(format, args...))
	}
	b.ops = append(b.ops, op{})
	return len(b.ops) - 1
}

func (b *batch) op(kind opKind, id mail.QueueID) *op {
	t, number, err := id.Parse()
	if err != nil {
		t, number = time.Time{}, 0 // no message has number 0
	}
	b.ops = append(b.ops, op{kind: kind, id: id, created: t.UnixMicro(), number: number})
	b.cost += 64
	return &b.ops[len(b.ops)-1]
}

// Add implements storage.Batch.
func (b *batch) Add(m storage.Addition) int {
	_, number, err := m.ID.Parse()
	switch {
	case err != nil || number == 0:
		return b.fail("%q is not a queue ID of this queue", string(m.ID))
	case m.NRcpt < 1 || m.NRcpt > queue.MaxRecipients:
		return b.fail("message %q with %d recipients", string(m.ID), m.NRcpt)
	case m.Content != nil && m.File != nil:
		return b.fail("message %q with content twice", string(m.ID))
	case m.Queue >= queue.Names:
		return b.fail("message %q into %v", string(m.ID), m.Queue)
	}
	o := b.op(opAdd, m.ID)
	b.adds++
	b.cost += len(m.Envelope) + len(m.Recipients) + len(m.Content)
	o.add = m
	o.msg = live{number: o.number, created: o.created, next: queue.Micros(m.NextAttempt), nrcpt: uint32(m.NRcpt), npending: uint32(m.NRcpt), queue: uint8(m.Queue)}
	if err := scanEnvelope(m.Envelope, &o.msg); err != nil && b.err == nil {
		b.err = fmt.Errorf("%w: message %q: %w", queue.ErrInvalid, string(m.ID), err)
	}
	o.msg.set(msgBig, m.File != nil)
	o.bodySum = sum(m.Content, rowMSG, o.number, 0)
	return len(b.ops) - 1
}

// Update implements storage.Batch.
func (b *batch) Update(id mail.QueueID, c queue.Change) int {
	o := b.op(opUpdate, id)
	o.change, o.rcpts = c, c.Done
	for i := range c.Outcomes {
		b.cost += 64 + len(c.Outcomes[i].Reason)
	}
	return len(b.ops) - 1
}

// Done implements storage.Batch.
func (b *batch) Done(id mail.QueueID, rcpts []int) int {
	b.op(opDone, id).rcpts = rcpts
	b.cost += 4 * len(rcpts)
	return len(b.ops) - 1
}

// Remove implements storage.Batch.
func (b *batch) Remove(id mail.QueueID) int {
	b.op(opRemove, id)
	return len(b.ops) - 1
}

// Finish implements storage.Batch. It is Remove: a takeover need not tell the two apart.
func (b *batch) Finish(id mail.QueueID) int { return b.Remove(id) }

// Handed implements storage.Batch.
func (b *batch) Handed(id mail.QueueID, rcpts []int, nexthop string) int {
	o := b.op(opHanded, id)
	o.rcpts = slices.Clone(rcpts)
	slices.Sort(o.rcpts)
	o.rcpts = slices.Compact(o.rcpts)
	o.nexthop = nexthop[:min(len(nexthop), queue.MaxNexthop)]
	b.cost += 4 * len(rcpts)
	return len(b.ops) - 1
}

// Apart implements storage.Batch.
func (b *batch) Apart() { b.apart = true }

// Refused implements storage.Batch.
func (b *batch) Refused(i int) error { return b.refused[i] }

// Entry implements storage.Batch.
func (b *batch) Entry(i int) (queue.Entry, bool) {
	if i >= len(b.entries) || b.entries[i].Ref.IsZero() {
		return queue.Entry{}, false
	}
	return b.entries[i], true
}

// Reset implements storage.Batch.
func (b *batch) Reset() {
	clear(b.ops)
	clear(b.entries)
	*b = batch{ops: b.ops[:0], entries: b.entries[:0]}
}

// refuse notes why change i is left out.
func (b *batch) refuse(i int, err error) {
	if b.refused == nil {
		b.refused = make(map[int]error)
	}
	b.refused[i] = err
}
