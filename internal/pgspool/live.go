package pgspool

import (
	"time"
	"unique"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// live is what is known in memory of one message of the queue.
type live struct {
	number  uint64
	created int64 // µs: the time in the queue ID
	next    int64 // µs; 0: never set
	size    int64
	done    uint64 // recipients 0..63; more are in index.more

	shard          uint32
	refSeg, refPos uint32 // row of the newest MSG or STATE record
	refLen         uint32 // its octets
	msgSeg, msgPos uint32 // row of the newest MSG record, which has the envelope
	msgLen         uint32 // its octets, with content that is part of it
	// first is the oldest segment that may have a record with the message's state, if it still exists:
	// the record of the message's end must outlive it. last is the segment of the newest record of any kind.
	first, last uint32

	nrcpt, npending, attempts uint32

	queue, flags, trace uint8
	tenant              unique.Handle[string] // zero: none
}

// Flags of a message, in memory and in its records.
const (
	msgWarned = 1 << iota
	msgExpire
	msgNull // null sender
	msgBig  // content in rows of its own; index.big says where
)

// place is where content lies that has rows of its own: they are consecutive.
type place struct {
	seg, pos, parts uint32
	size            int64 // octets of content
}

func (l *live) id() mail.QueueID { return mail.MakeQueueID(time.UnixMicro(l.created), l.number) }

func (l *live) set(flag uint8, on bool) {
	l.flags &^= flag
	if on {
		l.flags |= flag
	}
}

// setTenant notes the tenant of a message. Nothing is kept of name.
func (l *live) setTenant(name []byte) {
	if len(name) > 0 {
		l.tenant = unique.Make(string(name))
	}
}

// tenantName is the tenant's name; empty: there is none.
func (l *live) tenantName() string {
	if l.tenant == (unique.Handle[string]{}) {
		return ""
	}
	return l.tenant.Value()
}

// isDone says whether nothing more is to be done for recipient i. more is the bits from 64 on.
func isDone(l *live, more []uint64, i uint64) bool { return queue.IsDone(l.done, more, i) }

// setDone marks recipient i, which l has, and returns more, made if need be.
func setDone(l *live, more []uint64, i uint64) []uint64 {
	more, news := queue.SetDone(&l.done, more, i, l.nrcpt)
	if news {
		l.npending--
	}
	return more
}

// doneBitmap is the bits in the form of queue.Entry.Done; nil when there is none.
func doneBitmap(l *live, more []uint64) []byte {
	if l.npending == l.nrcpt {
		return nil
	}
	return queue.DoneBitmap(l.done, more, l.nrcpt)
}

// loadDone sets the bits of l from that form. Bits beyond the last recipient are dropped.
func loadDone(l *live, b []byte) (more []uint64) {
	l.done, l.npending = 0, l.nrcpt
	queue.EachDone(b, l.nrcpt, func(i uint64) { more = setDone(l, more, i) })
	return more
}

// entry is what l says of its message, in the words of package queue.
func (l *live) entry(more []uint64) queue.Entry {
	return queue.Entry{ID: l.id(), Ref: queue.Ref{File: l.shard, Segno: uint64(l.refSeg), Offset: l.refPos, Length: l.refLen},
		Queue: queue.Name(l.queue), NextAttempt: queue.FromMicros(l.next), Attempts: int(l.attempts), Size: l.size,
		NRcpt: int(l.nrcpt), NPending: int(l.npending), Null: l.flags&msgNull != 0, Trace: mail.Trace(l.trace),
		Warned: l.flags&msgWarned != 0, Expire: l.flags&msgExpire != 0, Done: doneBitmap(l, more), Tenant: l.tenantName()}
}
