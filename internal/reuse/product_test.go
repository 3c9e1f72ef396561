//go:build !poison

package reuse

import (
	"slices"
	"sync"
	"testing"
	"unsafe"
)

// A list that is handed on is empty all through and in the same place; one
// with too much room is not handed on.
func TestEmptied(t *testing.T) {
	t.Parallel()
	for _, room := range []int{1, 2, Most - 1, Most} {
		for _, n := range []int{0, 1, room} {
			list := make([]*int, room)
			for i := range list {
				list[i] = new(int)
			}
			got := Emptied(list[:n])
			if got == nil || len(got) != 0 || cap(got) != room || &got[:1][0] != &list[0] {
				t.Errorf("%d of %d elements: %d of %d, or elsewhere", n, room, len(got), cap(got))
			}
			if slices.ContainsFunc(list, func(p *int) bool { return p != nil }) {
				t.Errorf("%d of %d elements: something is left", n, room)
			}
		}
	}
	if got := Emptied(make([]string, 1, Most+1)); got != nil {
		t.Errorf("of a list with room for %d, room for %d is kept", Most+1, cap(got))
	}
	if got := Emptied([]int(nil)); got != nil {
		t.Errorf("nothing has become %v", got)
	}
}

// To hand a list on takes no memory, nor does to fill it again.
func TestAllocations(t *testing.T) {
	list := make([]string, 0, Most)
	if n := testing.AllocsPerRun(100, func() {
		for range Most {
			list = append(list, "x")
		}
		list = Emptied(list)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A buffer that is cut is in the same place, with what was behind its end.
func TestTruncated(t *testing.T) {
	t.Parallel()
	buf := []byte("secret")
	if got := Truncated(buf); len(got) != 0 || string(got[:len(buf)]) != "secret" || &got[:1][0] != &buf[0] {
		t.Errorf("%q is elsewhere, or not empty", got)
	}
}

// Nothing of the poisoned build is left in the product: the types are as long as what they
// stand for, and what was given back is neither touched nor kept aside.
func TestNothingOfThePoison(t *testing.T) {
	t.Parallel()
	if a, b := unsafe.Sizeof(Pool[int]{}), unsafe.Sizeof(func() *int { return nil })+unsafe.Sizeof(sync.Pool{}); a != b {
		t.Errorf("a Pool has %d octets, for %d", a, b)
	}
	if a, b := unsafe.Sizeof(Free[int]{}), unsafe.Sizeof([]*int{}); a != b {
		t.Errorf("a Free has %d octets, for %d", a, b)
	}
	var f Free[int]
	v := f.Get()
	*v = 7
	if f.Put(v); f.Get() != v || *v != 7 {
		t.Error("what was given back last is not what comes, as it was")
	}
}
