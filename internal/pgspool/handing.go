package pgspool

import (
	"encoding/binary"
	"slices"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
)

// A handing is a delivery that an agent has in hand: the message may arrive, or may have arrived, and
// nothing is recorded yet of what came of it. One that is found when a queue is taken over is doubtful.
type handing struct {
	at      int64    // µs: when it was recorded, by this node's clock, for people
	nexthop string   // where to, for people; "": not known
	rcpts   []uint32 // ascending, all pending; not changed once it is in the index
	// It was recorded before this process had the shard, and Recovery names it.
	reported bool
}

// doubt is h in the words of those who look from outside.
func (h *handing) doubt(l *live) queue.Doubt {
	d := queue.Doubt{ID: l.id(), Kind: queue.DoubtHanded, Nexthop: h.nexthop, At: fromMicros(h.at), Rcpts: make([]int, len(h.rcpts))}
	for i, r := range h.rcpts {
		d.Rcpts[i] = int(r)
	}
	return d
}

// maxNexthop bounds a handing's nexthop, in octets.
const maxNexthop = 255

func appendHanding(b []byte, h *handing) []byte {
	return pack.Nested(b, tagHanded, func(b []byte) []byte {
		b = pack.Int(b, tagHandedAt, h.at)
		b = pack.String(b, tagHandedTo, h.nexthop)
		return pack.Nested(b, tagHandedRcpt, func(b []byte) []byte {
			prev := uint32(0)
			for _, i := range h.rcpts {
				b = binary.AppendUvarint(b, uint64(i-prev))
				prev = i
			}
			return b
		})
	})
}

func decodeHanding(b []byte) (h handing, err error) {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case tagHandedAt:
			h.at = r.Int()
		case tagHandedTo:
			h.nexthop = r.String()
		case tagHandedRcpt:
			i := uint64(0)
			for v := r.Bytes(); len(v) > 0; {
				d, n := binary.Uvarint(v)
				if n <= 0 || d > maxRcpts || i+d >= maxRcpts {
					return h, pack.ErrMalformed
				}
				i, v = i+d, v[n:]
				h.rcpts = append(h.rcpts, uint32(i))
			}
		}
	}
	return h, r.Err()
}

// without returns list without the recipients for which settled is true. list is not changed.
func without(list []handing, settled func(uint32) bool) (out []handing) {
	if !slices.ContainsFunc(list, func(h handing) bool { return slices.ContainsFunc(h.rcpts, settled) }) {
		return list
	}
	for _, h := range list {
		if h.rcpts = slices.DeleteFunc(slices.Clone(h.rcpts), settled); len(h.rcpts) > 0 {
			out = append(out, h)
		}
	}
	return out
}

// hand returns list with one more, whose recipients are no longer in the others.
func hand(list []handing, h handing) []handing {
	list = without(list, func(i uint32) bool { _, is := slices.BinarySearch(h.rcpts, i); return is })
	return append(list[:len(list):len(list)], h)
}

// settledBy returns list without those of whom outcomes say what came of it.
func settledBy(list []handing, outcomes []mail.Outcome) []handing {
	if len(list) == 0 || len(outcomes) == 0 {
		return list
	}
	return without(list, func(i uint32) bool {
		return slices.ContainsFunc(outcomes, func(o mail.Outcome) bool { return o.Rcpt == int(i) })
	})
}

// pending returns list without those that are done.
func pending(list []handing, l *live, more []uint64) []handing {
	if len(list) == 0 {
		return list
	}
	return without(list, func(i uint32) bool { return isDone(l, more, uint64(i)) })
}
