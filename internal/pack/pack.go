// Package pack is the byte encoding that everything of ours that is stored or
// sent between our processes is made of: tagged fields, one after the other.
//
// A field is a one-byte tag, a length as an unsigned varint, and that many
// bytes. Tags may be absent (the value is then the zero value), may be
// repeated (a list), and tags that a reader does not know are passed over, so
// that a newer writer and an older reader understand each other. A struct
// inside a struct is a field whose bytes are fields again.
//
// # Security
//
// A [Reader] never reads past its bytes, never allocates more than it was
// given, and reports the first malformed field as [ErrMalformed]; it does not
// panic whatever it is fed.
package pack

import (
	"encoding/binary"
	"errors"
)

// ErrMalformed is what a Reader reports when the bytes are not a sequence of
// well-formed fields, or a field does not hold what the caller asked for.
var ErrMalformed = errors.New("pack: malformed field")

// Bytes appends a field. Unlike String and Uint it is written even when
// empty, so that lists may hold empty elements.
func Bytes[T ~string | ~[]byte](b []byte, tag byte, v T) []byte {
	b = append(b, tag)
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

// String appends a field of text or bytes; an empty one is left out.
func String[T ~string | ~[]byte](b []byte, tag byte, v T) []byte {
	if len(v) == 0 {
		return b
	}
	return Bytes(b, tag, v)
}

// Uint appends a number as an unsigned varint; zero is left out.
func Uint[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uint](b []byte, tag byte, v T) []byte {
	if v == 0 {
		return b
	}
	var tmp [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(tmp[:], uint64(v))
	b = append(b, tag, byte(n))
	return append(b, tmp[:n]...)
}

// Int appends a signed number as a zigzag varint; zero is left out.
func Int[T ~int | ~int32 | ~int64](b []byte, tag byte, v T) []byte {
	return Uint(b, tag, uint64(v)<<1^uint64(int64(v)>>63))
}

// Bool appends a flag; false is left out.
func Bool(b []byte, tag byte, v bool) []byte {
	if !v {
		return b
	}
	return append(b, tag, 1, 1)
}

// Nested appends a field whose bytes are what fill appends. It is for
// structs and costs one copy of the inner bytes at most.
func Nested(b []byte, tag byte, fill func([]byte) []byte) []byte {
	// Most nested structs are short: leave one byte for the length and move
	// the bytes up only when they turn out to need more.
	b = append(b, tag, 0)
	start := len(b)
	b = fill(b)
	n := len(b) - start
	if n < 0x80 {
		b[start-1] = byte(n)
		return b
	}
	var tmp [binary.MaxVarintLen64]byte
	l := binary.PutUvarint(tmp[:], uint64(n))
	b = append(b, tmp[1:l]...) // room; contents overwritten by the move
	copy(b[start+l-1:], b[start:start+n])
	copy(b[start-1:], tmp[:l])
	return b
}

// A Reader steps through fields. The zero Reader has none. It is a value to
// keep on the stack:
//
//	for r := pack.NewReader(b); r.Next(); {
//		switch r.Tag() {
//		case 's':
//			m.Sender = r.String()
//		}
//	}
//
// with r.Err() looked at afterwards.
type Reader struct {
	rest []byte
	data []byte
	text string // a copy that ends where rest does; "" when there is none
	tag  byte
	err  error
}

// NewReader returns a Reader over b. The Reader's Bytes point into b.
func NewReader(b []byte) Reader { return Reader{rest: b} }

// NewTextReader is NewReader for fields that are text for the most part: it
// copies b once, and String gives parts of that copy, which live and die together.
func NewTextReader(b []byte) Reader { return Reader{rest: b, text: string(b)} }

// Nested returns a Reader over the fields inside the present one, which
// shares the copy that a NewTextReader has made.
func (r *Reader) Nested() Reader {
	if r.text == "" {
		return Reader{rest: r.data}
	}
	return Reader{rest: r.data, text: r.text[:len(r.text)-len(r.rest)]}
}

// Next steps to the next field and says whether there is one.
func (r *Reader) Next() bool {
	if r.err != nil || len(r.rest) == 0 {
		return false
	}
	tag := r.rest[0]
	n, w := binary.Uvarint(r.rest[1:])
	if w <= 0 || n > uint64(len(r.rest)-1-w) {
		r.err = ErrMalformed
		return false
	}
	r.tag = tag
	r.data = r.rest[1+w : 1+w+int(n)]
	r.rest = r.rest[1+w+int(n):]
	return true
}

// Tag is the tag of the present field.
func (r *Reader) Tag() byte { return r.tag }

// Bytes is the present field, not copied.
func (r *Reader) Bytes() []byte { return r.data }

// String is the present field as text, which stays what it is when the bytes change.
func (r *Reader) String() string {
	if r.text == "" {
		return string(r.data)
	}
	end := len(r.text) - len(r.rest)
	return r.text[end-len(r.data) : end]
}

// Uint is the present field as an unsigned number.
func (r *Reader) Uint() uint64 {
	v, w := binary.Uvarint(r.data)
	if w != len(r.data) || w <= 0 {
		r.fail(ErrMalformed)
		return 0
	}
	return v
}

// Int is the present field as a signed number.
func (r *Reader) Int() int64 {
	u := r.Uint()
	return int64(u>>1) ^ -int64(u&1)
}

// Bool is the present field as a flag.
func (r *Reader) Bool() bool { return r.Uint() != 0 }

// Fail records err, ends the loop, and is how a caller reports that a field
// it understands holds what it cannot be.
func (r *Reader) Fail(err error) { r.fail(err) }

func (r *Reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Err is the first error met, or nil.
func (r *Reader) Err() error { return r.err }
