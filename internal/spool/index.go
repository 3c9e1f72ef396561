package spool

import "slices"

// index holds the live messages, by number. Its contract is a map's from a message's number to
// its entry (live), and what is beside an entry, in little memory:
//
//   - find, has, page and each read. Any number of goroutines may call them at a time,
//     while nobody changes the index.
//   - insert, edit, remove and tidy change it. One goroutine calls them, while nobody reads.
//   - A pointer that edit or insert gave is good until the next call of one of these
//     four, and one that find gave until then or until its room is used again.
//   - All but each and page take time that grows with the logarithm of the number of messages, and so
//     does all that tidy does for each of the others since it was called last. No call rewrites
//     the index: what it packs and moves is a few leaves and a region of the arena.
//   - Memory is 8 to 22 octets for a message, and 13 MB for those that something
//     happened to of late (looseLeaves). What has left is given back to the system.
//
// It is a tree: entries sorted by number in leaves of up to 64 (leaf), those in branches (branch),
// and those in one row. A leaf that an entry was changed in is loose, with its entries as
// they are. When there are many such, tidy packs the ones that were not used for longest,
// each into a piece of the arena.
type index struct {
	firsts []uint64 // the lowest number that each branch is for
	boughs []*branch
	n      int // messages

	leafLen int     // most entries of a leaf
	most    int     // so many leaves may be loose after tidy
	loose   []*leaf // in no order
	hand    int     // where tidy goes on among them
	spare   [][]live
	mem     *arena
	packer  packer

	more   map[uint64][]uint64  // done bits from recipient 64 on
	big    map[uint64]int64     // length of content files
	handed map[uint64][]handing // what agents have in hand
}

func newIndex() index {
	return index{leafLen: leafLen, most: looseLeaves, mem: newArena(arenaRegion),
		more: map[uint64][]uint64{}, big: map[uint64]int64{}, handed: map[uint64][]handing{}}
}

// len is the number of messages.
func (x *index) len() int { return x.n }

// find gives a message's entry, or nil. It is for reading only, and may be in room.
func (x *index) find(number uint64, room *live) *live {
	if x.n == 0 {
		return nil
	}
	_, lf := x.seek(number)
	if lf.ents != nil {
		if i, ok := locate(lf.ents, number); ok && lf.ents[i].queue != queueGone {
			return &lf.ents[i]
		}
		return nil
	}
	var list [leafLen]live
	n := x.unpack(lf, &list)
	if i, ok := locate(list[:n], number); ok {
		*room = list[i]
		return room
	}
	return nil
}

// has says whether there is such a message.
func (x *index) has(number uint64) bool {
	var room live
	return x.find(number, &room) != nil
}

// edit gives a message's entry for changing it, or nil. Its number stays.
func (x *index) edit(number uint64) *live {
	if x.n == 0 {
		return nil
	}
	_, lf := x.seek(number)
	x.loosen(lf)
	if i, ok := locate(lf.ents, number); ok && lf.ents[i].queue != queueGone {
		return &lf.ents[i]
	}
	return nil
}

// insert makes an entry for a message that is not there. What is in it is for
// the caller to fill in, but for the number.
func (x *index) insert(number uint64) *live {
	x.n++
	if len(x.boughs) == 0 {
		x.firsts = append(x.firsts, number)
		x.boughs = append(x.boughs, &branch{})
		return x.newLeaf(leafPlace{}, []live{{number: number}})
	}
	p, lf := x.seek(number)
	x.loosen(lf)
	i, there := locate(lf.ents, number)
	if there { // it has been there
		lf.n++
		lf.ents[i] = live{number: number}
		return &lf.ents[i]
	}
	if len(lf.ents) == x.leafLen && int(lf.n) < x.leafLen {
		lf.ents = dropGone(lf.ents)
		i, _ = locate(lf.ents, number)
	}
	if len(lf.ents) == x.leafLen {
		return x.insertSplit(p, lf, i, number)
	}
	if first := &x.boughs[p.b].firsts[p.i]; number < *first { // of all
		*first = number
		x.firsts[p.b] = min(x.firsts[p.b], number)
	}
	lf.ents = lf.ents[:len(lf.ents)+1]
	copy(lf.ents[i+1:], lf.ents[i:])
	lf.ents[i] = live{number: number}
	lf.n++
	return &lf.ents[i]
}

// insertSplit is insert where the leaf at p is full, and number would be the i-th in it: behind all
// of it a leaf begins, as with new mail, and otherwise half of it goes into a new one.
func (x *index) insertSplit(p leafPlace, lf *leaf, i int, number uint64) *live {
	p.i++
	if i == len(lf.ents) {
		return x.newLeaf(p, []live{{number: number}})
	}
	half := len(lf.ents) / 2
	x.newLeaf(p, lf.ents[half:])
	lf.ents = lf.ents[:half]
	lf.n = uint8(half)
	x.n--
	return x.insert(number)
}

// remove takes a message out that is there, and what is beside its entry.
func (x *index) remove(number uint64) {
	p, lf := x.seek(number)
	x.loosen(lf)
	i, _ := locate(lf.ents, number)
	l := &lf.ents[i]
	if l.nrcpt > 64 {
		delete(x.more, number)
	}
	if l.flags&msgBig != 0 {
		delete(x.big, number)
	}
	x.setHanded(number, nil)
	*l = live{number: number, queue: queueGone}
	lf.n--
	x.n--
	if lf.n == 0 {
		x.dropLeaf(p, lf)
	}
}

// A filter says which messages page is to give: those whose newest record, or whose MSG record, is in a
// segment's file. The zero value is all.
type filter struct {
	bit      uint64 // fileBit
	file     uint32
	contents bool
}

func inStates(file uint32) filter   { return filter{bit: fileBit(file), file: file} }
func inContents(file uint32) filter { return filter{bit: fileBit(file), file: file, contents: true} }

func (f *filter) wants(l *live) bool {
	switch {
	case f.bit == 0:
		return true
	case f.contents:
		return l.conSeg == f.file && l.conLen > 0
	}
	return l.refSeg == f.file
}

// page gives entries of one leaf from number on that the filter wants, in order, in room, and
// the number to go on from. It is false when there are no more, and then gives none. Leaves that have
// none are passed over at some nanoseconds each, or some hundred when they have records in a file 64 or a multiple
// of it away.
func (x *index) page(from uint64, want filter, room *[leafLen]live) (list []live, next uint64, more bool) {
	if x.n == 0 {
		return nil, from, false
	}
	for p, lf := x.seek(from); ; {
		if list = x.pick(lf, from, &want, room); len(list) > 0 {
			return list, list[len(list)-1].number + 1, true
		}
		if p.i++; p.i == len(x.boughs[p.b].leaves) {
			p.b, p.i = p.b+1, 0
		}
		if p.b == len(x.boughs) {
			return nil, from, false
		}
		lf = x.boughs[p.b].leaves[p.i]
	}
}

// each calls f for each message in order of number. The index must not be changed
// meanwhile.
func (x *index) each(f func(*live)) {
	var room [leafLen]live
	for from, more := uint64(0), true; more; {
		var list []live
		list, from, more = x.page(from, filter{}, &room)
		for i := range list {
			f(&list[i])
		}
	}
}

// tidy packs leaves until few enough are loose, those first that have not been used for a
// while, and moves pieces together in the arena. It is called after each batch.
func (x *index) tidy() {
	for len(x.loose) > x.most {
		if x.hand >= len(x.loose) {
			x.hand = 0
		}
		lf := x.loose[x.hand]
		if lf.used {
			lf.used = false
			x.hand++
			continue
		}
		x.pack(lf)
		x.clean()
	}
	x.clean()
}

// clean empties one region of the arena when too much of the arena is not used. That wins more than
// a packed leaf takes, so that it keeps up.
func (x *index) clean() {
	if x.mem.wasteful() {
		x.mem.clean(x.pieceOf)
	}
}

// pieceOf is where the packed leaf that has number as its first keeps the place of its piece;
// nil when that is not at.
func (x *index) pieceOf(number uint64, at uint32) *uint32 {
	if x.n == 0 {
		return nil
	}
	if _, lf := x.seek(number); lf.ents == nil && lf.at == at {
		return &lf.at
	}
	return nil
}

// dropGone leaves out what is not there any more.
func dropGone(ents []live) []live {
	return slices.DeleteFunc(ents, func(l live) bool { return l.queue == queueGone })
}
