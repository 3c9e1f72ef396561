package spool

import (
	"testing"

	"pgregory.net/rapid"
)

// The index finds what a map finds, through growth, removal and numbers that
// meet in the same place.
func TestIndexProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex()
		want := map[uint64]uint32{}
		var list []uint64
		// Few parts of the table, so that these grow long.
		number := rapid.Custom(func(t *rapid.T) uint64 {
			n := rapid.Uint64Range(1, 1<<40).Draw(t, "number")
			for part, _ := hashOf(n); part > 1; part, _ = hashOf(n) {
				n++
			}
			return n
		})
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				n := number.Draw(t, "n")
				if _, ok := want[n]; ok {
					t.Skip("there already")
				}
				want[n] = x.insert(n)
				list = append(list, n)
			},
			"remove": func(t *rapid.T) {
				if len(list) == 0 {
					t.Skip("empty")
				}
				i := rapid.IntRange(0, len(list)-1).Draw(t, "i")
				x.remove(want[list[i]])
				delete(want, list[i])
				list[i] = list[len(list)-1]
				list = list[:len(list)-1]
			},
			"find": func(t *rapid.T) {
				n := number.Draw(t, "n")
				_, there := want[n]
				if _, l := x.find(n); (l != nil) != there {
					t.Fatalf("%d is there: %v, found: %v", n, there, l != nil)
				}
			},
			"": func(t *rapid.T) {
				if x.len() != len(want) {
					t.Fatalf("%d messages, want %d", x.len(), len(want))
				}
				for n, slot := range want {
					if got, l := x.find(n); l == nil || got != slot || l.number != n {
						t.Fatalf("%d is in slot %d, found in %d", n, slot, got)
					}
				}
			},
		})
	})
}
