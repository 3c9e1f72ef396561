package queue

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// The bits say what a set says, however they were set, and so does their other form.
func TestDoneBits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint32Range(1, 300).Draw(t, "n")
		var first uint64
		var more []uint64
		set := map[uint64]bool{}
		for _, i := range rapid.SliceOf(rapid.Uint64Range(0, uint64(n-1))).Draw(t, "done") {
			var news bool
			if more, news = SetDone(&first, more, i, n); news == set[i] {
				t.Fatalf("%d: news %v", i, news)
			}
			set[i] = true
		}
		for i := range uint64(n) + 70 { // those beyond are not done
			if IsDone(first, more, i) != set[i] {
				t.Fatalf("%d: %v", i, !set[i])
			}
		}
		b := DoneBitmap(first, more, n)
		found := map[uint64]bool{}
		EachDone(append(slices.Clone(b), 0xff), n, func(i uint64) { found[i] = true })
		for i := range uint64(n) {
			if found[i] != set[i] || set[i] != (b[i/8]>>(i%8)&1 != 0) {
				t.Fatalf("the bitmap has %d: %v", i, found[i])
			}
		}
		if len(found) != len(set) {
			t.Fatalf("%d bits beyond the last recipient", len(found)-len(set))
		}
	})
}

// Indexes survive being stored, and what is no such field is an error or nothing.
func TestRcpts(t *testing.T) {
	t.Parallel()
	want := []int{0, 7, 300, 3, MaxRecipients - 1}
	b := AppendRcpts(pack.Uint(nil, 'x', uint64(9)), 'r', want)
	var got []int
	if err := EachRcpt(b, 'r', func(i uint64) { got = append(got, int(i)) }); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if err := EachRcpt(b, 's', func(i uint64) { t.Errorf("%d", i) }); err != nil {
		t.Error(err)
	}
	if err := EachRcpt(pack.Bytes(nil, 'r', []byte{0x80}), 'r', func(uint64) {}); !errors.Is(err, pack.ErrMalformed) {
		t.Errorf("half a number: %v", err)
	}
}

// What is in hand survives being stored; a list has each recipient once, those of whom something is known are
// left out, and nobody's list is changed.
func TestHandings(t *testing.T) {
	t.Parallel()
	h := Handing{At: 5, Nexthop: "mx.test", Rcpts: []uint32{0, 3, 70}}
	r := pack.NewReader(h.Append(nil, 'h'))
	r.Next()
	if got, err := DecodeHanding(r.Bytes()); err != nil || fmt.Sprint(got) != fmt.Sprint(h) {
		t.Errorf("%+v, %v", got, err)
	}
	list := HandOut(nil, h)
	two := HandOut(list, Handing{At: 6, Rcpts: []uint32{3, 4}})
	show := func(list []Handing) (s string) {
		for i := range list {
			s += fmt.Sprint(list[i].At, list[i].Rcpts)
		}
		return s
	}
	if show(list) != "5 [0 3 70]" || show(two) != "5 [0 70]6 [3 4]" {
		t.Errorf("%s; %s", show(list), show(two))
	}
	told := Told(two, []mail.Outcome{{Rcpt: 3, Action: dsn.Deferred}, {Rcpt: 4, Action: dsn.Delivered}, {Rcpt: 70, Action: dsn.Failed}})
	if show(told) != "5 [0]" || show(two) != "5 [0 70]6 [3 4]" {
		t.Errorf("%s; %s", show(told), show(two))
	}
	if d := two[1].Doubt("x"); d.ID != "x" || d.Kind != DoubtHanded || !slices.Equal(d.Rcpts, []int{3, 4}) || d.At.UnixMicro() != 6 {
		t.Errorf("%+v", d)
	}
	if d := (&Handing{}).Doubt("x"); !d.At.IsZero() {
		t.Errorf("%+v", d)
	}
}
