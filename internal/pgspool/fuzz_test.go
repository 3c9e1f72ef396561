package pgspool

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// FuzzState: whatever is in a row's head, reading it ends, with an error or with what is written again as it is.
// The database is not trusted to be sound.
func FuzzState(f *testing.F) {
	s := state{live: live{number: 7, created: 1800000000123456, nrcpt: 3, size: 10, queue: 1, first: 2}, done: []byte{5}, restSum: 9,
		handed: []handing{{At: 1, Nexthop: "mx", Rcpts: []uint32{0, 2}}}, bodySum: 3, bodyLen: 4}
	f.Add(appendState(nil, &s, true))
	s.msgSeg, s.msgPos, s.big = 4, 5, place{seg: 1, pos: 2, parts: 3, size: 4}
	f.Add(appendState(nil, &s, false))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeState(b, 7, 8, 9)
		if err != nil {
			return
		}
		written := appendState(nil, &s, false)
		again, err := decodeState(written, 7, 8, 9)
		if err != nil || !bytes.Equal(appendState(nil, &again, false), written) {
			t.Errorf("%+v\n%+v, %v", s, again, err)
		}
		l := s.live
		more := loadDone(&l, s.done)
		if l.npending > l.nrcpt || len(more) > int(l.nrcpt/64) {
			t.Errorf("%d of %d pending", l.npending, l.nrcpt)
		}
	})
}

// FuzzRest is the same for the rest of a row, and for the indexes of recipients.
func FuzzRest(f *testing.F) {
	r := rest{envelope: []byte("e"), recipients: []byte("r"), hasEnv: true, outcomes: (&mail.Outcome{Rcpt: 1, Reason: "x"}).Append(nil, tagOutcome)}
	f.Add(r.append(nil))
	f.Add(queue.AppendRcpts(nil, tagRcpts, []int{1, 2, 300}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = eachRcpt(b, func(uint64) {}) // any error will do
		firstOf(b)
		s, err := decodeRest(b)
		if err != nil {
			return
		}
		again, err := decodeRest(s.append(nil))
		if err != nil || s.hasEnv != again.hasEnv || !bytes.Equal(s.envelope, again.envelope) || !bytes.Equal(s.outcomes, again.outcomes) {
			t.Errorf("%+v\n%+v, %v", s, again, err)
		}
		if out := mergeOutcomes(s.outcomes, nil, func(uint64) bool { return false }, 100); len(out) > 100 {
			t.Errorf("%d octets", len(out))
		}
	})
}

// The index is a sorted map, whatever is put in and taken out in whatever order.
func TestIndexProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x, model := newIndex(), map[uint64]int64{}
		for range rapid.IntRange(0, 400).Draw(t, "steps") {
			n := rapid.Uint64Range(1, 500).Draw(t, "number")
			if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				x.remove(n)
				delete(model, n)
				continue
			}
			size := rapid.Int64().Draw(t, "size")
			x.put(&live{number: n, size: size})
			model[n] = size
		}
		if x.n != len(model) {
			t.Fatalf("%d, want %d", x.n, len(model))
		}
		seen, last := 0, uint64(0)
		for from, more := uint64(0), true; more; {
			from, more = x.page(from, func(l *live) {
				if l.number <= last || model[l.number] != l.size {
					t.Fatalf("%d after %d", l.number, last)
				}
				seen, last = seen+1, l.number
			})
		}
		if seen != len(model) {
			t.Fatalf("%d are listed, want %d", seen, len(model))
		}
		for n := range uint64(501) {
			l := x.find(n)
			if size, ok := model[n]; ok != (l != nil) || ok && l.size != size {
				t.Fatalf("%d: %v", n, l)
			}
		}
	})
}

// A part of content that stands in for another is noticed: the checksum is of the message, the kind and the part, too.
func TestSumsTellApart(t *testing.T) {
	t.Parallel()
	seen := map[uint32]bool{}
	for _, s := range []uint32{sum([]byte("x"), rowPART, 1, 0), sum([]byte("x"), rowPART, 1, 1), sum([]byte("x"), rowPART, 2, 0), sum([]byte("x"), rowMSG, 1, 0), sum([]byte("y"), rowPART, 1, 0)} {
		if seen[s] {
			t.Errorf("%x twice", s)
		}
		seen[s] = true
	}
}
