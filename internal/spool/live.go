package spool

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// live is what is known of one live message.
type live struct {
	number  uint64
	created int64 // µs
	next    int64 // µs, 0: never set
	size    int64
	done    uint64 // recipients 0..63; more are in index.more

	refSeg, refOff, refLen uint32 // newest MSG or STATE record
	refMeta                uint32 // length of its metadata
	conSeg, conOff, conLen uint32 // MSG record

	nrcpt, npending, attempts uint32

	tenant uint32 // engine.tenants has the name; 0: none

	queue, flags, trace uint8
}

func (l *live) id() mail.QueueID { return mail.MakeQueueID(time.UnixMicro(l.created), l.number) }

// isDone says whether recipient i of l is done. more is its bits from 64 on.
func isDone(l *live, more []uint64, i uint64) bool { return queue.IsDone(l.done, more, i) }

// setDone marks recipient i and returns more, grown to nrcpt's size if need be.
func setDone(l *live, more []uint64, i uint64) []uint64 {
	more, news := queue.SetDone(&l.done, more, i, l.nrcpt)
	if news {
		l.npending--
	}
	return more
}

// doneBitmap is the done bits as stored; nil when there is none.
func doneBitmap(l *live, more []uint64) []byte {
	if l.npending == l.nrcpt {
		return nil
	}
	return queue.DoneBitmap(l.done, more, l.nrcpt)
}

// loadDone sets the done bits of l from their stored form; what is past the
// last recipient is dropped.
func loadDone(l *live, b []byte) (more []uint64) {
	l.done, l.npending = 0, l.nrcpt
	queue.EachDone(b, l.nrcpt, func(i uint64) { more = setDone(l, more, i) })
	return more
}
