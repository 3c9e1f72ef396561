package spool

import "runtime"

// A leaf of the index has the entries of up to leafLen messages whose numbers
// follow each other. Loose, it has them as they are used, 96 bytes each, and those that have left among
// them until it is packed. Packed, as most are when much is queued, it has them in a piece of the arena
// (packer), at 8 to 20 bytes each.
type leaf struct {
	ents []live // loose: sorted by number, those with queueGone having left; nil: packed
	pos  int32  // loose: place in index.loose
	used bool   // loose: since tidy passed by
	n    uint8  // entries, without those that have left; 1 at least

	at uint32 // packed: place in the arena

	// Packed: a bit for each file that the newest records, and the MSG records, are in,
	// by fileBit.
	states, contents uint64
}

const (
	leafLen   = 64
	queueGone = 0xff // in live.queue, of an entry that is not there any more

	// looseLeaves is how many leaves may be loose: 12 MB. With fewer messages than are in them
	// nothing is ever packed.
	looseLeaves = 2048
	// maxSpare bounds how many loose leaves' memory is kept for others.
	maxSpare = 64
)

func fileBit(file uint32) uint64 { return 1 << (file % 64) }

// summarize sets states and contents for these entries.
func (lf *leaf) summarize(list []live) {
	lf.states, lf.contents = 0, 0
	for i := range list {
		lf.states |= fileBit(list[i].refSeg)
		lf.contents |= fileBit(list[i].conSeg)
	}
}

// locate finds the place of number among entries, or where it would be.
func locate(ents []live, number uint64) (int, bool) {
	lo, hi := 0, len(ents)
	if hi > 0 && ents[hi-1].number < number { // as new ones mostly are
		return hi, false
	}
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); ents[mid].number < number {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(ents) && ents[lo].number == number
}

// room is memory for a loose leaf.
func (x *index) room() []live {
	if n := len(x.spare); n > 0 {
		ents := x.spare[n-1]
		x.spare = x.spare[:n-1]
		return ents
	}
	return make([]live, 0, x.leafLen)
}

func (x *index) addLoose(lf *leaf) {
	lf.pos, lf.used = int32(len(x.loose)), true
	x.loose = append(x.loose, lf)
}

// dropLoose ends that a leaf is loose.
func (x *index) dropLoose(lf *leaf) {
	last := x.loose[len(x.loose)-1]
	x.loose[lf.pos], last.pos = last, lf.pos
	x.loose[len(x.loose)-1] = nil
	x.loose = x.loose[:len(x.loose)-1]
	if len(x.spare) < maxSpare {
		x.spare = append(x.spare, lf.ents[:0])
	}
	lf.ents = nil
}

// loosen unpacks a leaf for good.
func (x *index) loosen(lf *leaf) {
	lf.used = true
	if lf.ents != nil {
		return
	}
	var list [leafLen]live
	n := x.unpack(lf, &list)
	x.mem.give(lf.at)
	lf.ents = append(x.room(), list[:n]...)
	x.addLoose(lf)
}

// pack packs a leaf, with those after it in its branch that have room in it.
func (x *index) pack(lf *leaf) {
	lf.ents = dropGone(lf.ents)
	p, _ := x.seek(lf.ents[0].number)
	b := x.boughs[p.b]
	for p.i+1 < len(b.leaves) && int(lf.n)+int(b.leaves[p.i+1].n) <= x.leafLen {
		next := b.leaves[p.i+1]
		x.loosen(next)
		lf.ents = append(lf.ents, dropGone(next.ents)...)
		x.dropLoose(next)
		lf.n += next.n
		x.cut(leafPlace{p.b, p.i + 1})
	}
	lf.summarize(lf.ents)
	lf.at = x.mem.put(lf.ents[0].number, x.packer.pack(lf.ents))
	x.dropLoose(lf)
}

func (x *index) unpack(lf *leaf, list *[leafLen]live) int {
	n := unpack(x.mem.piece(lf.at), list)
	runtime.KeepAlive(x.mem)
	return n
}

// mayHave says of a packed leaf whether it can have what the filter wants.
func (x *index) mayHave(lf *leaf, want *filter) bool {
	set := lf.states
	if want.contents {
		set = lf.contents
	}
	if set&want.bit == 0 {
		return false
	}
	names := namesFile(x.mem.piece(lf.at), want.file, want.contents)
	runtime.KeepAlive(x.mem)
	return names
}

// read copies a leaf's entries to room, and gives how many those are.
func (x *index) read(lf *leaf, room *[leafLen]live) int {
	if lf.ents == nil {
		return x.unpack(lf, room)
	}
	n := 0
	for i := range lf.ents {
		if lf.ents[i].queue != queueGone {
			room[n] = lf.ents[i]
			n++
		}
	}
	return n
}

// pick gives the entries of a leaf from number on that are wanted, in room.
func (x *index) pick(lf *leaf, from uint64, want *filter, room *[leafLen]live) []live {
	if lf.ents == nil && want.bit != 0 && !x.mayHave(lf, want) {
		return nil
	}
	n := x.read(lf, room)
	i, _ := locate(room[:n], from)
	if want.bit == 0 {
		return room[i:n]
	}
	list := room[:0]
	for ; i < n; i++ {
		if want.wants(&room[i]) {
			list = append(list, room[i])
		}
	}
	return list
}
