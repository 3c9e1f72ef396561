package spool

import (
	"math/bits"
	"time"

	"posthaste/internal/mail"
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

	queue, flags, trace uint8
}

func (l *live) id() mail.QueueID { return mail.MakeQueueID(time.UnixMicro(l.created), l.number) }

// isDone says whether recipient i of l is done. more is its bits from 64 on.
func isDone(l *live, more []uint64, i uint64) bool {
	if i < 64 {
		return l.done>>i&1 != 0
	}
	w := i/64 - 1
	return w < uint64(len(more)) && more[w]>>(i%64)&1 != 0
}

// setDone marks recipient i and returns more, grown to nrcpt's size if need be.
func setDone(l *live, more []uint64, i uint64) []uint64 {
	if isDone(l, more, i) {
		return more
	}
	l.npending--
	if i < 64 {
		l.done |= 1 << i
		return more
	}
	if more == nil {
		more = make([]uint64, (l.nrcpt+63)/64-1)
	}
	more[i/64-1] |= 1 << (i % 64)
	return more
}

// doneBitmap is the done bits as stored; nil when there is none.
func doneBitmap(l *live, more []uint64) []byte {
	if l.npending == l.nrcpt {
		return nil
	}
	b := make([]byte, (l.nrcpt+7)/8)
	put := func(w int, v uint64) {
		for i := 0; i < 8 && w*8+i < len(b); i++ {
			b[w*8+i] = byte(v >> (8 * i))
		}
	}
	put(0, l.done)
	for w, v := range more {
		put(w+1, v)
	}
	return b
}

// loadDone sets the done bits of l from their stored form; what is past the
// last recipient is dropped.
func loadDone(l *live, b []byte) (more []uint64) {
	l.done, l.npending = 0, l.nrcpt
	for i, v := range b {
		for ; v != 0; v &= v - 1 {
			if r := uint64(i*8 + bits.TrailingZeros8(v)); r < uint64(l.nrcpt) {
				more = setDone(l, more, r)
			}
		}
	}
	return more
}
