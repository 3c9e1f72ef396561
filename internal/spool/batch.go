package spool

import (
	"fmt"
	"slices"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
)

// A Batch is a set of changes that become durable together or not at all.
// The zero Batch is empty. It may be used again after Reset. It belongs to one
// goroutine until it is given to Commit or Post, and then to the spool until
// that is done.
//
// Changes to a message that is not there (any more) are not an error but
// have no effect: who reports may be late or may repeat itself.
type Batch struct {
	ops     []op
	buf     []byte  // encoded parts of ops
	entries []Entry // by op, once durable
	err     error   // first contradiction
	adds    int
	updates int
	apart   bool
	refused map[int]error // changes that were left out, of those that stand apart
}

type opKind uint8

const (
	opAdd opKind = iota
	opDone
	opUpdate
	opRemove
	opFinish // Remove, as all is done
	opHanded
)

// op is one change. What costs time and needs nothing of the spool (encoding,
// checksums) is done when it is made, by the goroutine that makes it.
type op struct {
	kind    opKind
	id      mail.QueueID
	created int64
	number  uint64

	lo, hi  int // Add: metadata; Update: outcomes; in Batch.buf
	metaCRC uint32
	bodyCRC uint32
	body    []byte
	large   *Message // with its File
	msg     live     // Add: what the index will hold, places left out
	staged  int      // place in batchWriter.list, and one; 0: the message is not there

	change  Change
	rcpts   []int
	nexthop string // Handed
	tenant  string // Add
}

func (b *Batch) fail(format string, args ...any) int {
	if b.err == nil {
		b.err = fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	b.ops = append(b.ops, op{})
	return len(b.ops) - 1
}

func (b *Batch) op(kind opKind, id mail.QueueID) *op {
	t, number, err := id.Parse()
	if err != nil {
		t, number = time.Time{}, 0 // no message has number 0
	}
	b.ops = append(b.ops, op{kind: kind, id: id, created: t.UnixMicro(), number: number})
	return &b.ops[len(b.ops)-1]
}

// Add adds a message and returns the index for Entry.
func (b *Batch) Add(m Message) int {
	if m.NRcpt < 1 || m.NRcpt > queue.MaxRecipients {
		return b.fail("message %q with %d recipients", string(m.ID), m.NRcpt)
	}
	if m.Content != nil && m.File != nil {
		return b.fail("message %q with content twice", string(m.ID))
	}
	o := b.op(opAdd, m.ID)
	if o.number == 0 {
		b.ops = b.ops[:len(b.ops)-1]
		return b.fail("%q is not a queue ID of this spool", string(m.ID))
	}
	b.adds++
	o.body = m.Content
	o.bodyCRC = checksum(m.Content)
	mm := meta{created: o.created, envelope: m.Envelope, recipients: m.Recipients, hasEnv: true,
		nrcpt: uint32(m.NRcpt), queue: uint8(m.Queue), next: queue.Micros(m.NextAttempt)}
	if err := scanEnvelope(m.Envelope, &mm); err != nil {
		b.ops = b.ops[:len(b.ops)-1]
		b.adds--
		return b.fail("message %q: %v", string(m.ID), err)
	}
	o.msg = live{number: o.number, created: o.created, next: mm.next, size: mm.size, nrcpt: mm.nrcpt,
		npending: mm.nrcpt, queue: mm.queue, flags: mm.flags, trace: mm.trace}
	o.tenant = string(mm.tenant)
	if m.File != nil {
		large := m // and not &m, with which every m would be on the heap
		o.large = &large
		return len(b.ops) - 1
	}
	b.putMeta(o, &mm)
	return len(b.ops) - 1
}

// scanEnvelope takes from a stored envelope what the index wants to know.
func scanEnvelope(env []byte, m *meta) error {
	g, err := mail.Glance(env)
	m.size, m.trace, m.tenant = g.Size, uint8(g.Trace), g.Tenant
	if g.Null {
		m.flags |= msgNull
	}
	return err
}

func (b *Batch) putMeta(o *op, m *meta) {
	o.lo = len(b.buf)
	b.buf = m.append(b.buf)
	o.hi = len(b.buf)
	o.metaCRC = checksum(b.buf[o.lo:])
}

// sealFile completes op o once the length and checksum of its content file
// are known.
func (b *Batch) sealFile(o *op, length int64, crc uint32) {
	o.msg.flags |= msgBig
	m := o.large
	b.putMeta(o, &meta{created: o.created, envelope: m.Envelope, recipients: m.Recipients, hasEnv: true,
		nrcpt: o.msg.nrcpt, size: o.msg.size, queue: o.msg.queue, next: o.msg.next, flags: o.msg.flags,
		trace: o.msg.trace, tenant: []byte(o.tenant), bigLen: length, bigCRC: crc})
}

// Done records that nothing more is to be done for these recipients, by
// their indexes: delivered, or their failure was notified. With the last
// of them the message is gone.
func (b *Batch) Done(id mail.QueueID, rcpts []int) int {
	b.op(opDone, id).rcpts = rcpts
	return len(b.ops) - 1
}

// Update changes a message's state. It is recorded whole, at the head of the
// log.
func (b *Batch) Update(id mail.QueueID, c Change) int {
	o := b.op(opUpdate, id)
	b.updates++
	o.change, o.rcpts = c, c.Done
	o.lo = len(b.buf)
	for i := range c.Outcomes {
		b.buf = c.Outcomes[i].Append(b.buf, tagOutcome)
	}
	o.hi = len(b.buf)
	return len(b.ops) - 1
}

// Remove removes a message, whoever is still to get it.
func (b *Batch) Remove(id mail.QueueID) int {
	b.op(opRemove, id)
	return len(b.ops) - 1
}

// Apart says that each change stands for itself: they become durable in their
// order, with as many syncs as they take, and one that the spool refuses is
// left out and does not keep the others (Refused). It is not for batches with
// Add. The order among batches is kept as well.
func (b *Batch) Apart() { b.apart = true }

// Refused says why change i was left out of a batch that has been committed
// without error, or nil: see Apart.
func (b *Batch) Refused(i int) error { return b.refused[i] }

// settles says whether b adds mail in place of other mail: a notice, with the
// recipients that it is about done.
func (b *Batch) settles() bool {
	return slices.ContainsFunc(b.ops, func(o op) bool { return o.kind == opDone && len(o.rcpts) > 0 })
}

// twice says whether b adds a message more than once.
func (b *Batch) twice() bool {
	if b.adds < 2 {
		return false
	}
	seen := make(map[uint64]bool, b.adds)
	for i := range b.ops {
		if o := &b.ops[i]; o.kind == opAdd {
			if seen[o.number] {
				return true
			}
			seen[o.number] = true
		}
	}
	return false
}

// Len is the number of changes.
func (b *Batch) Len() int { return len(b.ops) }

// maxKeptOctets bounds the encoded changes' memory that Reset keeps.
const maxKeptOctets = 16 << 10

// Reset empties b for another use. It keeps what memory a batch mostly takes.
// What Add and Update were given is not referred to any more.
func (b *Batch) Reset() {
	*b = Batch{ops: reuse.Emptied(b.ops), buf: reuse.Truncated(b.buf), entries: reuse.Emptied(b.entries)}
	if cap(b.buf) > maxKeptOctets {
		b.buf = nil
	}
}

// Entry says how the message that change i added or updated stood after the
// batch, which must have been committed without error. It is false when the
// message was gone.
func (b *Batch) Entry(i int) (Entry, bool) {
	if i >= len(b.entries) || b.entries[i].Ref.IsZero() {
		return Entry{}, false
	}
	return b.entries[i], true
}
