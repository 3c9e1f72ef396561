package spool

import (
	"encoding/binary"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/reuse"
)

// listed is a message with a MSG record in a batch. The next batch with room for it says
// so once more, in another block: of a message that was in one block as a whole the
// ID is known all the same when that block is gone.
type listed struct {
	batch   uint64
	number  uint64
	created int64 // µs, as in the queue ID
}

func (x *listed) id() mail.QueueID { return mail.MakeQueueID(time.UnixMicro(x.created), x.number) }

const (
	// maxUnlisted bounds the messages that wait to be listed. Of more, the oldest are
	// not.
	maxUnlisted = 16 << 10
	// maxListed is the longest of them encoded, in bytes.
	maxListed = 3 * binary.MaxVarintLen64
	// listShare is the part of a batch that a list may take beyond the padding.
	listShare = 32
)

// appendListed encodes x after a list whose last one is prev: differences, which are
// small.
func appendListed(b []byte, prev, x *listed) []byte {
	b = binary.AppendVarint(b, int64(x.batch-prev.batch))
	b = binary.AppendVarint(b, int64(x.number-prev.number))
	return binary.AppendVarint(b, x.created-prev.created)
}

// eachListed calls f for what a LIST has, as far as it can be decoded.
func eachListed(p []byte, f func(*listed)) {
	var x listed
	for len(p) > 0 {
		var d [3]int64
		for i := range d {
			v, n := binary.Varint(p)
			if n <= 0 {
				return
			}
			d[i], p = v, p[n:]
		}
		x.batch += uint64(d[0])
		x.number += uint64(d[1])
		x.created += d[2]
		f(&x)
	}
}

// putList adds a LIST of what waits for it, as much as there is room for in the padding,
// or a little more when the batch is long. It gives how many those are.
func (e *engine) putList() int {
	w := &e.w
	if len(w.unlisted) == 0 || e.planted(plantNoList) {
		return 0
	}
	length := int64(w.end() - headRoom)
	room := alignUp(length, blockSize) - length
	if more := length / listShare / blockSize * blockSize; !w.upkeep && e.head != nil &&
		length+room+more <= min(e.lim.unit, e.head.size-e.head.off) {
		room += more
	}
	w.meta = reuse.Truncated(w.meta)
	var prev listed
	n := 0
	for ; n < len(w.unlisted) && headerLen+int64(len(w.meta))+maxListed+recAlign <= room; n++ {
		w.meta = appendListed(w.meta, &prev, &w.unlisted[n])
		prev = w.unlisted[n]
	}
	if n > 0 {
		w.record(recLIST, 0, 0, w.meta, nil)
	}
	return n
}

// noteListed drops the n that are durable now, and notes those of the batch that was
// written.
func (e *engine) noteListed(n int) {
	w := &e.w
	w.unlisted = append(w.unlisted[:0], w.unlisted[n:]...)
	for i := range w.list {
		if st := &w.list[i]; st.conHere && !st.gone {
			w.unlisted = append(w.unlisted, listed{batch: e.promised, number: st.number, created: st.live.created})
		}
	}
	if more := len(w.unlisted) - maxUnlisted; more > 0 {
		w.unlisted = append(w.unlisted[:0], w.unlisted[more:]...)
	}
}
