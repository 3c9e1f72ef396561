package spool

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawLive draws an entry as messages have them, and now and then one as only damage makes
// them.
func drawLive(t *rapid.T, number uint64) live {
	odd := rapid.IntRange(0, 9).Draw(t, "odd") == 0
	n := func(name string, most uint64) uint64 {
		if odd {
			most = 1<<64 - 1
		}
		return rapid.Uint64Range(0, most).Draw(t, name)
	}
	l := live{number: number, created: 1700000000_000000 + int64(n("created", 1e9)), size: int64(n("size", 1<<20)),
		done: n("done", 3), refSeg: uint32(n("refSeg", 70)), refOff: uint32(n("refOff", 1<<20)) << 3, refMeta: uint32(n("refMeta", 400)),
		conSeg: uint32(n("conSeg", 70)), conOff: uint32(n("conOff", 1<<20)) << 3, attempts: uint32(n("attempts", 9)),
		nrcpt: uint32(n("nrcpt", 70)), queue: uint8(n("queue", uint64(numQueues)-1)) % uint8(numQueues), flags: uint8(n("flags", 63)), trace: uint8(n("trace", 7))}
	l.refLen, l.npending = headerLen+l.refMeta+uint32(n("body", 4)), l.nrcpt-uint32(n("finished", 2))
	if n("attempted", 3) > 0 {
		l.next = 1700000000_000000 + int64(n("next", 1e10))
	}
	if n("content", 9) > 0 {
		l.conLen = uint32(l.size) + uint32(n("head", 300))
	}
	if odd {
		l.refOff, l.conOff = uint32(n("anywhere", 0)), uint32(n("somewhere", 0))
	}
	return l
}

// What is packed comes out as it was, whatever it is, and takes no more room than a leaf has.
func TestPackProperty(t *testing.T) {
	once(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var list []live
		number := rapid.Uint64().Draw(t, "first")
		for range rapid.IntRange(1, leafLen).Draw(t, "n") {
			list = append(list, drawLive(t, number))
			number += rapid.Uint64Range(1, 1<<rapid.IntRange(1, 40).Draw(t, "bits")).Draw(t, "gap")
		}
		var p packer
		b := p.pack(list)
		if len(b) > arenaRegion/16 {
			t.Fatalf("%d octets", len(b))
		}
		var got [leafLen]live
		for i := range got { // what was there before does not matter
			got[i] = drawLive(t, 1)
		}
		if n := unpack(b, &got); !slices.Equal(got[:n], list) {
			t.Fatalf("%+v became %+v", list, got[:n])
		}
	})
}

// The index holds what a map holds, in order, however its leaves are packed, split and
// joined; and it gives back the memory of what has left.
func TestIndexProperty(t *testing.T) {
	once(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex()
		x.mem = newArena(4096)
		x.leafLen, x.most = rapid.IntRange(2, 6).Draw(t, "leafLen"), rapid.IntRange(0, 3).Draw(t, "most")
		want := map[uint64]live{}
		top := uint64(1000)
		number := rapid.Uint64Range(1, 2000)
		add := func(t *rapid.T, n uint64) {
			if _, ok := want[n]; ok {
				t.Skip("there already")
			}
			l := drawLive(t, n)
			*x.insert(n) = l
			want[n] = l
		}
		one := func(t *rapid.T) uint64 {
			if len(want) == 0 {
				t.Skip("empty")
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(want))).Draw(t, "message")
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) { add(t, number.Draw(t, "n")) },
			"append": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "many") {
					top++
					add(t, top)
				}
			},
			"remove": func(t *rapid.T) {
				n := one(t)
				x.remove(n)
				delete(want, n)
			},
			"drain": func(t *rapid.T) {
				from := one(t)
				for n := range maps.Clone(want) {
					if n >= from && n < from+30 {
						x.remove(n)
						delete(want, n)
					}
				}
			},
			"edit": func(t *rapid.T) {
				n := one(t)
				l := x.edit(n)
				if l == nil || *l != want[n] {
					t.Fatalf("%d is %+v, want %+v", n, l, want[n])
				}
				*l = drawLive(t, n)
				want[n] = *l
			},
			"tidy":  func(*rapid.T) { x.tidy() },
			"clean": func(*rapid.T) { x.mem.clean(x.pieceOf) },
			"find": func(t *rapid.T) {
				n := number.Draw(t, "n")
				_, there := want[n]
				if l := x.find(n, new(live)); (l != nil) != there || l != nil && *l != want[n] {
					t.Fatalf("%d is there: %v, found: %+v", n, there, l)
				}
			},
			"page": func(t *rapid.T) {
				from, file := number.Draw(t, "from"), uint32(rapid.IntRange(0, 70).Draw(t, "file"))
				f := rapid.SampledFrom([]filter{{}, inStates(file), inContents(file)}).Draw(t, "filter")
				checkPages(t, &x, want, from, f)
			},
			"": func(t *rapid.T) { checkIndex(t, &x, want) },
		})
		for n := range want {
			x.remove(n)
		}
		if x.mem.taken != 0 || len(x.boughs)+len(x.firsts)+len(x.loose)+x.len() != 0 {
			t.Fatalf("empty, it has %d octets, %d boughs, %d loose leaves", x.mem.taken, len(x.boughs), len(x.loose))
		}
	})
}

// checkPages walks from a number on over what has its newest record, or its MSG record, in a file.
func checkPages(t *rapid.T, x *index, want map[uint64]live, from uint64, f filter) {
	var room [leafLen]live
	var got, all []uint64
	for next, more := from, true; more; {
		var list []live
		list, next, more = x.page(next, f, &room)
		if more == (len(list) == 0) {
			t.Fatalf("a page of %d, more: %v", len(list), more)
		}
		for i := range list {
			if list[i] != want[list[i].number] {
				t.Fatalf("%+v, want %+v", list[i], want[list[i].number])
			}
			got = append(got, list[i].number)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(want)) {
		if l := want[n]; n >= from && (f.bit == 0 || f.contents && l.conSeg == f.file && l.conLen > 0 || !f.contents && l.refSeg == f.file) {
			all = append(all, n)
		}
	}
	if !slices.Equal(got, all) {
		t.Fatalf("from %d with %+v: %v, want %v", from, f, got, all)
	}
}

// checkIndex compares all.
func checkIndex(t *rapid.T, x *index, want map[uint64]live) {
	last, n := uint64(0), 0
	x.each(func(l *live) {
		if l.number <= last || *l != want[l.number] {
			t.Fatalf("after %d: %+v, want %+v", last, *l, want[l.number])
		}
		last = l.number
		n++
	})
	if n != len(want) || x.len() != n {
		t.Fatalf("%d messages, counted %d, want %d", n, x.len(), len(want))
	}
	for n, l := range want {
		if got := x.find(n, new(live)); got == nil || *got != l {
			t.Fatalf("%d is %+v, want %+v", n, got, l)
		}
	}
}

// The arena keeps what was put into it, wherever that is moved, and gives back what is not used.
func TestArenaProperty(t *testing.T) {
	t.Parallel()
	type piece struct {
		at   uint32
		data []byte
	}
	rapid.Check(t, func(t *rapid.T) {
		const size = 4096
		a := newArena(size)
		defer a.maps.drop()
		pieces := map[uint64]*piece{}
		var number uint64
		owner := func(n uint64, at uint32) *uint32 {
			if p := pieces[n]; p != nil && p.at == at {
				return &p.at
			}
			return nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				data := slices.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, rapid.IntRange(0, 1000).Draw(t, "n"))
				number++
				pieces[number] = &piece{a.put(number, data), data}
			},
			"again": func(t *rapid.T) { // a leaf's piece is another now
				if len(pieces) == 0 {
					t.Skip("empty")
				}
				p := pieces[rapid.SampledFrom(slices.Sorted(maps.Keys(pieces))).Draw(t, "piece")]
				for n, q := range pieces {
					if p == q {
						a.give(p.at)
						p.at = a.put(n, p.data)
					}
				}
			},
			"give": func(t *rapid.T) {
				if len(pieces) == 0 {
					t.Skip("empty")
				}
				n := rapid.SampledFrom(slices.Sorted(maps.Keys(pieces))).Draw(t, "piece")
				a.give(pieces[n].at)
				delete(pieces, n)
			},
			"clean": func(*rapid.T) { a.clean(owner) },
			"": func(t *rapid.T) {
				var sum int64
				for n, p := range pieces {
					if !bytes.Equal(a.piece(p.at), p.data) {
						t.Fatalf("what is at %d, of %d, has changed", p.at, n)
					}
					sum += alignUp(int64(pieceHead+len(p.data)), arenaUnit)
				}
				if a.taken != sum {
					t.Fatalf("%d octets are taken, want %d", a.taken, sum)
				}
			},
		})
		for i := 0; a.wasteful(); i++ {
			if a.clean(owner); i > 1000 {
				t.Fatalf("%d octets of the system for %d, and no end", a.bytes(), a.taken)
			}
		}
		for n := range pieces {
			a.give(pieces[n].at)
		}
		if a.taken != 0 || a.held > 1+arenaReady {
			t.Fatalf("empty, it has %d octets in %d regions", a.taken, a.held)
		}
	})
}
