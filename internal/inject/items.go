package inject

import (
	"bytes"
	"errors"
	"io"
)

// items takes the JSON values off a stream, one after the other: the elements of a list, or values that
// follow each other, of which NDJSON has one a line. It finds where a value ends, and no more: whether
// the value is well formed is for a scanner to say. No more is in memory than one value and a read.
type items struct {
	r     io.Reader
	limit int // octets of a value
	// room is asked for memory before the buffer grows by so much; nil: there is enough.
	room func(n int) error

	buf   []byte
	r0    int  // what has been taken of buf
	list  bool // the values are those of a list
	begun bool
	ended bool // the list's end has come
	eof   bool
}

const firstRead = 16 << 10

// fill reads more. io.EOF says that there is none.
func (t *items) fill() error {
	if t.eof {
		return io.EOF
	}
	if t.r0 > 0 {
		n := copy(t.buf, t.buf[t.r0:])
		t.buf, t.r0 = t.buf[:n], 0
	}
	if len(t.buf) == cap(t.buf) {
		size := max(firstRead, min(2*cap(t.buf), t.limit+firstRead))
		if size <= cap(t.buf) {
			return tooLarge("it is larger than %d octets", t.limit)
		}
		if t.room != nil {
			if err := t.room(size - cap(t.buf)); err != nil {
				return err
			}
		}
		b := make([]byte, len(t.buf), size)
		copy(b, t.buf)
		t.buf = b
	}
	n, err := t.r.Read(t.buf[len(t.buf):cap(t.buf)])
	t.buf = t.buf[:len(t.buf)+n]
	if err == io.EOF {
		t.eof = true
		if n == 0 {
			return io.EOF
		}
		return nil
	}
	return err
}

// peek is the next octet that is no white space. io.EOF says that there is none.
func (t *items) peek() (byte, error) {
	for {
		for t.r0 < len(t.buf) {
			switch c := t.buf[t.r0]; c {
			case ' ', '\t', '\r', '\n':
				t.r0++
			default:
				return c, nil
			}
		}
		if err := t.fill(); err != nil {
			return 0, err
		}
	}
}

// isList says whether what comes first is a list, and enters it.
func (t *items) isList() (bool, error) {
	c, err := t.peek()
	if err != nil {
		return false, endOf(err)
	}
	if c == '[' {
		t.r0++
		t.list = true
	}
	return t.list, nil
}

// endOf is what io.EOF means where more was expected.
func endOf(err error) error {
	if errors.Is(err, io.EOF) {
		return malformed("the JSON ends too soon")
	}
	return err
}

// next takes the next value, which is the caller's until the next call. io.EOF says that there is none.
func (t *items) next() ([]byte, error) {
	if t.ended {
		if _, err := t.peek(); err != nil {
			return nil, err
		}
		return nil, malformed("something stands behind the list")
	}
	c, err := t.peek()
	if !t.list {
		if err != nil {
			return nil, err
		}
		return t.value()
	}
	if err != nil {
		return nil, endOf(err)
	}
	switch {
	case c == ']':
		t.r0++
		t.ended = true
		return t.next()
	case t.begun && c != ',':
		return nil, malformed("a comma or the end of the list was expected")
	case t.begun:
		t.r0++
		if c, err = t.peek(); err != nil {
			return nil, endOf(err)
		}
		if c == ']' {
			return nil, malformed("a value was expected behind the comma")
		}
	}
	t.begun = true
	return t.value()
}

// only takes the one value that there must be.
func (t *items) only() ([]byte, error) {
	item, err := t.next()
	if err == nil {
		err = t.rest()
	}
	return item, endOf(err)
}

// rest reads what follows a single value, which may only be white space. The value stays as it is.
func (t *items) rest() error {
	p := t.buf[t.r0:]
	var more [512]byte
	for eof := t.eof; ; {
		if len(bytes.Trim(p, " \t\r\n")) > 0 {
			return malformed("something stands behind the JSON")
		}
		if eof {
			return nil
		}
		n, err := t.r.Read(more[:])
		p, eof = more[:n], err == io.EOF
		if err != nil && !eof {
			return err
		}
	}
}

// value takes the object that comes.
func (t *items) value() ([]byte, error) {
	if t.buf[t.r0] != '{' {
		return nil, malformed("an object was expected")
	}
	depth, i, quoted := 0, 0, false
	for {
		b := t.buf[t.r0:]
		for i < len(b) {
			if quoted {
				if i, quoted = textEnd(b, i); quoted {
					break // it goes on in what is still to come
				}
				continue
			}
			switch b[i] {
			case '"':
				quoted = true
			case '{', '[':
				if depth++; depth > maxDepth {
					return nil, malformed("the JSON is nested more than %d deep", maxDepth)
				}
			case '}', ']':
				if depth--; depth == 0 {
					if i+1 > t.limit {
						return nil, tooLarge("it is larger than %d octets", t.limit)
					}
					t.r0 += i + 1
					return b[: i+1 : i+1], nil
				}
			}
			i++
		}
		if len(b) > t.limit {
			return nil, tooLarge("it is larger than %d octets", t.limit)
		}
		if err := t.fill(); err != nil {
			return nil, endOf(err)
		}
	}
}

// textEnd is what follows the quote that ends a text of which b[i:] is a part. If it is not there more
// says so, and end is where to look on: at the end of b, or before a backslash there.
func textEnd(b []byte, i int) (end int, more bool) {
	for {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			n = len(b)
		} else {
			n += i
		}
		slashes := n
		for slashes > i && b[slashes-1] == '\\' {
			slashes--
		}
		odd := (n - slashes) % 2
		switch {
		case n == len(b):
			return n - odd, true
		case odd == 0:
			return n + 1, false
		}
		i = n + 1
	}
}
