package spool

import (
	"slices"
	"testing"
)

// A list gives back what was put into it, and what is cut short as far as it goes.
func TestListed(t *testing.T) {
	t.Parallel()
	want := []listed{{batch: 7, number: 1 << 32, created: 1700000000000000}, {batch: 7, number: 1<<32 + 1, created: 1700000000000300},
		{batch: 9, number: 12, created: 1600000000000000}, {batch: 8, number: 1<<63 + 5, created: 0}}
	var b []byte
	var prev listed
	for i := range want {
		b = appendListed(b, &prev, &want[i])
		prev = want[i]
	}
	for n := range len(b) + 1 {
		var got []listed
		eachListed(b[:n], func(x *listed) { got = append(got, *x) })
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) || n == len(b) && len(got) != len(want) {
			t.Fatalf("%d octets of %d: %+v", n, len(b), got)
		}
	}
}

// What waits to be listed is bounded, and a batch of one block stays one.
func TestListBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(1, 0)
	if err := w.guard(func() {
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		w.settle()
		for range maxUnlisted + 500 {
			w.e.w.unlisted = append(w.e.w.unlisted, listed{batch: w.e.promised, number: w.next, created: 1})
		}
		before, off := len(w.e.w.unlisted), w.e.head.off
		msg, mm := w.newMessage(300, 1)
		c := &change{}
		c.add(msg, mm)
		if !w.commit(c) || w.e.head.off != off+blockSize {
			fail("the head went from %d to %d", off, w.e.head.off)
		}
		if n := len(w.e.w.unlisted); n > maxUnlisted || n < maxUnlisted-blockSize || n >= before {
			fail("%d wait to be listed, %d before", n, before)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
