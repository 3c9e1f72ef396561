// A heap whose members know where they are, so that one can be removed or moved from the
// middle: when a destination becomes available, when a timer is stopped.

package sched

// A key orders the members of a heap: hi first, then lo. Keys are kept in the
// heap's own slots, so that sifting touches no member.
type key struct{ hi, lo uint64 }

func (k key) less(o key) bool { return k.hi < o.hi || k.hi == o.hi && k.lo < o.lo }

// A node can be in heaps; it remembers where, as position + 1, with 0 for
// "not in it", so that the zero value is in none. which tells the heaps
// apart that one node can be in at the same time.
type node interface {
	place(which int, at int32)
}

type slot[T node] struct {
	k key
	v T
}

const heapWidth = 4

// heap has the least key first. Each slot has four below it, so that it is
// half as deep as with two: what costs is to tell members where they are.
type heap[T node] struct {
	which int
	s     []slot[T]
}

func (h *heap[T]) len() int { return len(h.s) }

// push adds v, which must not be in the heap.
func (h *heap[T]) push(k key, v T) {
	h.s = append(h.s, slot[T]{k, v})
	h.up(len(h.s) - 1)
}

// fix gives the member at position at-1 a new key.
func (h *heap[T]) fix(at int32, k key) {
	i := int(at) - 1
	if h.s[i].k == k {
		return
	}
	h.s[i].k = k
	if !h.down(i) {
		h.up(i)
	}
}

// remove takes the member at position at-1 out.
func (h *heap[T]) remove(at int32) {
	i, last := int(at)-1, len(h.s)-1
	h.s[i].v.place(h.which, 0)
	moved := h.s[last]
	// The storage beyond the end must not keep objects alive.
	h.s[last] = slot[T]{}
	h.s = h.s[:last]
	if i == last {
		return
	}
	h.s[i] = moved
	if !h.down(i) {
		h.up(i)
	}
}

// up moves slot i towards the root as far as it belongs.
func (h *heap[T]) up(i int) {
	x := h.s[i]
	for i > 0 {
		parent := (i - 1) / heapWidth
		if !x.k.less(h.s[parent].k) {
			break
		}
		h.s[i] = h.s[parent]
		h.s[i].v.place(h.which, int32(i+1))
		i = parent
	}
	h.s[i] = x
	x.v.place(h.which, int32(i+1))
}

// down moves slot i away from the root as far as it belongs, and says
// whether it moved.
func (h *heap[T]) down(i int) bool {
	start, x, n := i, h.s[i], len(h.s)
	for {
		child := heapWidth*i + 1
		if child >= n {
			break
		}
		for c := child + 1; c < min(heapWidth*i+1+heapWidth, n); c++ {
			if h.s[c].k.less(h.s[child].k) {
				child = c
			}
		}
		if !h.s[child].k.less(x.k) {
			break
		}
		h.s[i] = h.s[child]
		h.s[i].v.place(h.which, int32(i+1))
		i = child
	}
	h.s[i] = x
	x.v.place(h.which, int32(i+1))
	return i > start
}
