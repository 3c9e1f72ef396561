package sched

import (
	"testing"

	"pgregory.net/rapid"
)

// An Index is a map: whatever is added and removed, in a narrow range of
// numbers so that they meet, is found or not as with Go's own.
func TestIndex(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		table := []MsgID{0}
		x := NewIndex(func(i int32) MsgID { return table[i] })
		want := map[MsgID]int32{}
		top := rapid.SampledFrom([]uint64{10, 100, 5000}).Draw(t, "top")
		for _, n := range rapid.SliceOfN(rapid.Uint64Range(1, top), 0, 2000).Draw(t, "numbers") {
			id := MsgID(n)
			if at := want[id]; at != 0 {
				x.Remove(id)
				table[at] = 0
				delete(want, id)
			} else {
				table = append(table, id)
				want[id] = int32(len(table) - 1)
				x.Add(id, want[id])
			}
			x.Remove(MsgID(top + n)) // never there
		}
		for n := range top {
			if id := MsgID(n + 1); x.Find(id) != want[id] {
				t.Fatalf("message %d at %d, not %d", id, x.Find(id), want[id])
			}
		}
		if x.n != len(want) || len(x.slots) > 64 && len(x.slots) > 16*max(x.n, 1) {
			t.Fatalf("%d of %d, in %d slots", x.n, len(want), len(x.slots))
		}
	})
}
