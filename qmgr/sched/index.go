package sched

// An Index finds what is kept of messages by their numbers. The things lie in
// a table of their own, at positions from 1 on; the index has four octets for
// each, and as many again of room, and asks the table whose number is at a
// position. The queue manager's shell has one beside the scheduler's.
type Index struct {
	slots []int32 // positions; 0: free. The length is a power of two
	shift uint    // of a hash, to get a slot
	// members; the table is kept at most three quarters full
	n int
	// The table's answer: whose number is at a position.
	at func(int32) MsgID
}

// minIndex is the least number of slots, as a power of two.
const minIndex = 6

// NewIndex makes an index of a table that has message at(i) at position i.
func NewIndex(at func(i int32) MsgID) *Index {
	return &Index{slots: make([]int32, 1<<minIndex), shift: 64 - minIndex, at: at}
}

// home is where id is looked for first. Numbers are given in sequence:
// Fibonacci hashing spreads them evenly.
func (x *Index) home(id MsgID) int { return int(uint64(id) * 0x9e3779b97f4a7c15 >> x.shift) }

// Find is the position of id; 0 when it is not there.
func (x *Index) Find(id MsgID) int32 {
	for i := x.home(id); ; i = (i + 1) & (len(x.slots) - 1) {
		if at := x.slots[i]; at == 0 || x.at(at) == id {
			return at
		}
	}
}

// Add notes that id, which is not there yet, is at a position. The table has
// it there already.
func (x *Index) Add(id MsgID, at int32) {
	if x.n++; 4*x.n > 3*len(x.slots) {
		x.resize(2 * len(x.slots))
	}
	x.put(id, at)
}

func (x *Index) put(id MsgID, at int32) {
	i := x.home(id)
	for x.slots[i] != 0 {
		i = (i + 1) & (len(x.slots) - 1)
	}
	x.slots[i] = at
}

// Remove forgets id, which the table still has. Those behind it move up, so
// that each is found without passing over a free slot.
func (x *Index) Remove(id MsgID) {
	mask := len(x.slots) - 1
	i := x.home(id)
	for x.slots[i] == 0 || x.at(x.slots[i]) != id {
		if x.slots[i] == 0 {
			return
		}
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; x.slots[j] != 0; j = (j + 1) & mask {
		// The one at j may move to i unless its home lies between the two.
		if h := x.home(x.at(x.slots[j])); (j-h)&mask >= (j-i)&mask {
			x.slots[i] = x.slots[j]
			i = j
		}
	}
	x.slots[i] = 0
	if x.n--; 16*x.n < len(x.slots) && len(x.slots) > 1<<minIndex {
		x.resize(len(x.slots) / 4)
	}
}

// resize moves everything into slots of another number.
func (x *Index) resize(n int) {
	old := x.slots
	n = max(n, 1<<minIndex)
	x.slots = make([]int32, n)
	x.shift = 64
	for ; n > 1; n /= 2 {
		x.shift--
	}
	for _, at := range old {
		if at != 0 {
			x.put(x.at(at), at)
		}
	}
}
