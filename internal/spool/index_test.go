package spool

import (
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
		done: n("done", 3), refSeg: uint32(n("refSeg", 20)), refOff: uint32(n("refOff", 1<<20)) << 3, refMeta: uint32(n("refMeta", 400)),
		conSeg: uint32(n("conSeg", 20)), conOff: uint32(n("conOff", 1<<20)) << 3, attempts: uint32(n("attempts", 9)),
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
		if n := units(len(b)); n >= maxUnits {
			t.Fatalf("%d units", n)
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
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex()
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
			"tidy":    func(*rapid.T) { x.tidy() },
			"compact": func(*rapid.T) { x.compact() },
			"find": func(t *rapid.T) {
				n := number.Draw(t, "n")
				_, there := want[n]
				if l := x.find(n, new(live)); (l != nil) != there || l != nil && *l != want[n] {
					t.Fatalf("%d is there: %v, found: %+v", n, there, l)
				}
			},
			"page": func(t *rapid.T) {
				from, file := number.Draw(t, "from"), uint32(rapid.IntRange(0, 20).Draw(t, "file"))
				checkPages(t, &x, want, from, file)
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

// checkPages walks from a number on over what has something in a file.
func checkPages(t *rapid.T, x *index, want map[uint64]live, from uint64, file uint32) {
	var room [leafLen]live
	states, contents, last := map[uint64]bool{}, map[uint64]bool{}, from
	walk := func(s, c uint64, seen map[uint64]bool) {
		for next, more := from, true; more; {
			var list []live
			list, next, more = x.page(next, s, c, &room)
			for i := range list {
				if list[i].number < from || seen[list[i].number] {
					t.Fatalf("from %d: %d after %d", from, list[i].number, last)
				}
				last = list[i].number
				seen[last] = true
			}
		}
	}
	walk(fileBit(file), 0, states)
	walk(0, fileBit(file), contents)
	for n, l := range want {
		if n >= from && (l.refSeg == file && !states[n] || l.conSeg == file && !contents[n]) {
			t.Fatalf("from %d: %+v is not among what is in %d", from, l, file)
		}
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

// Memory that was given back is used again, also for what is shorter, and no two pieces
// overlap.
func TestArenaProperty(t *testing.T) {
	t.Parallel()
	type piece struct {
		at   uint32
		data []byte
	}
	rapid.Check(t, func(t *rapid.T) {
		a := newArena()
		defer a.maps.drop()
		var list []piece
		var sum int64
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				data := slices.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, rapid.IntRange(1, (maxUnits-1)*arenaUnit).Draw(t, "n"))
				list = append(list, piece{a.put(data), data})
				sum += int64(units(len(data))) * arenaUnit
			},
			"give": func(t *rapid.T) {
				if len(list) == 0 {
					t.Skip("empty")
				}
				i := rapid.IntRange(0, len(list)-1).Draw(t, "i")
				a.give(list[i].at, len(list[i].data))
				sum -= int64(units(len(list[i].data))) * arenaUnit
				list = slices.Delete(list, i, i+1)
			},
			"": func(t *rapid.T) {
				for _, p := range list {
					if !slices.Equal(a.piece(p.at, len(p.data)), p.data) {
						t.Fatalf("what is at %d has changed", p.at)
					}
				}
				if a.taken != sum {
					t.Fatalf("%d octets are taken, want %d", a.taken, sum)
				}
			},
		})
		most := a.size()
		for _, p := range list {
			a.give(p.at, len(p.data))
		}
		for _, p := range list {
			a.put(p.data)
		}
		if a.size() != most {
			t.Fatalf("%d octets of the system, %d for the same again", most, a.size())
		}
	})
}
