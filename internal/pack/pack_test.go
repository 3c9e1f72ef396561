package pack

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestFields(t *testing.T) {
	t.Parallel()
	b := Bytes(nil, 'b', "")
	b = String(b, 's', "")
	b = String(b, 's', "text")
	b = Uint(b, 'u', uint32(0))
	b = Uint(b, 'u', uint64(1<<64-1))
	b = Int(b, 'i', -5)
	b = Bool(b, 'n', false)
	b = Bool(b, 'y', true)
	var got strings.Builder
	r := NewReader(b)
	for r.Next() {
		got.WriteByte(r.Tag())
		switch r.Tag() {
		case 's':
			if r.String() != "text" {
				t.Errorf("text: %q", r.String())
			}
		case 'u':
			if r.Uint() != 1<<64-1 {
				t.Errorf("number: %d", r.Uint())
			}
		case 'i':
			if r.Int() != -5 {
				t.Errorf("signed number: %d", r.Int())
			}
		case 'y':
			if !r.Bool() {
				t.Error("flag is false")
			}
		}
	}
	if r.Err() != nil || got.String() != "bsuiy" {
		t.Errorf("fields %q, %v", got.String(), r.Err())
	}
}

// A nested field is what its bytes would be as a plain one, however long.
func TestNested(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 127, 128, 129, 16383, 16384, 70000, 1 << 21} {
		inner := bytes.Repeat([]byte("x"), n)
		prefix := []byte("before")
		got := Nested(bytes.Clone(prefix), 't', func(b []byte) []byte { return append(b, inner...) })
		got = append(got, "after"...)
		want := append(Bytes(prefix, 't', inner), "after"...)
		if !bytes.Equal(got, want) {
			t.Errorf("%d octets: the encodings differ", n)
		}
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"a", "a\x05abcd", "a\xff", "a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		r := NewReader([]byte(in))
		for r.Next() {
		}
		if !errors.Is(r.Err(), ErrMalformed) {
			t.Errorf("%q: got %v", in, r.Err())
		}
	}
	r := NewReader(Bytes(nil, 'u', "not a number"))
	r.Next()
	if r.Uint(); !errors.Is(r.Err(), ErrMalformed) {
		t.Errorf("text read as a number: %v", r.Err())
	}
}

func TestNumbersProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.Int64().Draw(t, "i")
		u := rapid.Uint64().Draw(t, "u")
		r := NewReader(Uint(Int(nil, 'i', i), 'u', u))
		var gi int64
		var gu uint64
		for r.Next() {
			if r.Tag() == 'i' {
				gi = r.Int()
			} else {
				gu = r.Uint()
			}
		}
		if r.Err() != nil || gi != i || gu != u {
			t.Fatalf("got %d %d, want %d %d, %v", gi, gu, i, u, r.Err())
		}
	})
}

func FuzzReader(f *testing.F) {
	f.Add(Nested(nil, 'a', func(b []byte) []byte { return Int(b, 'x', 77) }))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		r := NewReader(b)
		for r.Next() {
			r.Uint()
			n += 2 + len(r.Bytes())
		}
		if n > len(b) {
			t.Errorf("%d octets of fields out of %d", n, len(b))
		}
	})
}
