package queue

import (
	"encoding/binary"
	"slices"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// A Handing is a delivery that an agent has in hand, as an engine keeps it: the message may arrive, or
// have arrived, and nothing is recorded yet of what came of it. One that is found when the queue is opened
// after a crash, or taken over, is in doubt.
type Handing struct {
	At      int64    // µs: when it was recorded, for people
	Nexthop string   // where to, for people; "": not known. MaxNexthop octets at most
	Rcpts   []uint32 // ascending, all pending; not changed once others may know it
	// It was recorded before this process had the queue, and what it found then names it.
	Reported bool
}

// MaxNexthop bounds Handing.Nexthop, in octets.
const MaxNexthop = 255

// Tags of a handing. They are in queues: see the package comment.
const (
	tagHandingAt   = 'a' // µs
	tagHandingTo   = 'h'
	tagHandingRcpt = 'r' // recipients' indexes: a varint for the difference to the one before
)

// Append appends h as one field. Reported is not part of it.
func (h *Handing) Append(b []byte, tag byte) []byte {
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.Int(b, tagHandingAt, h.At)
		b = pack.String(b, tagHandingTo, h.Nexthop)
		return pack.Nested(b, tagHandingRcpt, func(b []byte) []byte {
			prev := uint32(0)
			for _, i := range h.Rcpts {
				b = binary.AppendUvarint(b, uint64(i-prev))
				prev = i
			}
			return b
		})
	})
}

// DecodeHanding reads what Append wrote, given the field's bytes.
func DecodeHanding(field []byte) (h Handing, err error) {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case tagHandingAt:
			h.At = r.Int()
		case tagHandingTo:
			h.Nexthop = r.String()
		case tagHandingRcpt:
			i := uint64(0)
			for v := r.Bytes(); len(v) > 0; {
				d, n := binary.Uvarint(v)
				if n <= 0 || d > MaxRecipients || i+d >= MaxRecipients {
					return h, pack.ErrMalformed
				}
				i, v = i+d, v[n:]
				h.Rcpts = append(h.Rcpts, uint32(i))
			}
		}
	}
	return h, r.Err()
}

// Doubt is h, of message id, in the words of those who look from outside.
func (h *Handing) Doubt(id mail.QueueID) Doubt {
	d := Doubt{ID: id, Kind: DoubtHanded, Nexthop: h.Nexthop, At: FromMicros(h.At), Rcpts: make([]int, len(h.Rcpts))}
	for i, r := range h.Rcpts {
		d.Rcpts[i] = int(r)
	}
	return d
}

// Settled is list without the recipients for which settled is true; list itself if there are none. list is
// not changed.
func Settled(list []Handing, settled func(rcpt uint32) bool) []Handing {
	var out []Handing
	for i, h := range list {
		if !slices.ContainsFunc(h.Rcpts, settled) {
			if out != nil {
				out = append(out, h)
			}
			continue
		}
		if out == nil {
			out = append(make([]Handing, 0, len(list)), list[:i]...)
		}
		if h.Rcpts = slices.DeleteFunc(slices.Clone(h.Rcpts), settled); len(h.Rcpts) > 0 {
			out = append(out, h)
		}
	}
	if out == nil {
		return list
	}
	return out
}

// Told is Settled for the recipients of whom outcomes say what came of it.
func Told(list []Handing, outcomes []mail.Outcome) []Handing {
	if len(list) == 0 || len(outcomes) == 0 {
		return list
	}
	return Settled(list, func(i uint32) bool {
		return slices.ContainsFunc(outcomes, func(o mail.Outcome) bool { return o.Rcpt == int(i) })
	})
}

// HandOut is list with h behind it: what is known of h's recipients of before is over. list is not
// changed.
func HandOut(list []Handing, h Handing) []Handing {
	list = Settled(list, func(i uint32) bool { _, is := slices.BinarySearch(h.Rcpts, i); return is })
	return append(list[:len(list):len(list)], h)
}
