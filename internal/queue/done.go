package queue

import (
	"encoding/binary"
	"math/bits"

	"posthaste/internal/pack"
)

// MaxRecipients bounds the recipients of a message, and so the memory for their bits. Postfix's
// smtpd_recipient_limit has no such bound, but a message to millions does not arrive by SMTP.
const MaxRecipients = 1 << 22

// How an engine remembers with which recipients nothing more is to be done: a bit for each, those of
// the first 64 beside what else it knows of the message, since few messages have more, and those of the
// others in a slice, which is nil while none of them is set. The form of Entry.Done is for everybody else.

// IsDone says whether the bit of recipient i is set.
func IsDone(first uint64, more []uint64, i uint64) bool {
	if i < 64 {
		return first>>i&1 != 0
	}
	w := i/64 - 1
	return w < uint64(len(more)) && more[w]>>(i%64)&1 != 0
}

// SetDone sets the bit of recipient i of n, and returns more, made if need be, and whether the bit was
// not set before.
func SetDone(first *uint64, more []uint64, i uint64, n uint32) (_ []uint64, news bool) {
	if IsDone(*first, more, i) {
		return more, false
	}
	if i < 64 {
		*first |= 1 << i
		return more, true
	}
	if more == nil {
		more = make([]uint64, (n+63)/64-1)
	}
	more[i/64-1] |= 1 << (i % 64)
	return more, true
}

// DoneBitmap is the bits of n recipients in the form of Entry.Done.
func DoneBitmap(first uint64, more []uint64, n uint32) []byte {
	b := make([]byte, (n+7)/8)
	put := func(w int, v uint64) {
		for i := 0; i < 8 && w*8+i < len(b); i++ {
			b[w*8+i] = byte(v >> (8 * i))
		}
	}
	put(0, first)
	for w, v := range more {
		put(w+1, v)
	}
	return b
}

// EachDone calls f for each of n recipients whose bit is set in that form. Bits beyond the last
// recipient are passed over.
func EachDone(b []byte, n uint32, f func(i uint64)) {
	for k, v := range b {
		for ; v != 0; v &= v - 1 {
			if i := uint64(k*8 + bits.TrailingZeros8(v)); i < uint64(n) {
				f(i)
			}
		}
	}
}

// AppendRcpts appends the indexes of recipients as one field, for the record that they are done.
func AppendRcpts(b []byte, tag byte, rcpts []int) []byte {
	return pack.Nested(b, tag, func(b []byte) []byte {
		for _, i := range rcpts {
			b = binary.AppendUvarint(b, uint64(i))
		}
		return b
	})
}

// EachRcpt calls f for each index in the fields of that tag in b. The error is pack.ErrMalformed.
func EachRcpt(b []byte, tag byte, f func(i uint64)) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() != tag {
			continue
		}
		for v := r.Bytes(); len(v) > 0; {
			i, n := binary.Uvarint(v)
			if n <= 0 {
				return pack.ErrMalformed
			}
			f(i)
			v = v[n:]
		}
	}
	return r.Err()
}
