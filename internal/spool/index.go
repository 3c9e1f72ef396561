package spool

import (
	"math/bits"
	"runtime"
	"slices"
	"time"

	"posthaste/internal/mail"
)

// live is what is known of one live message.
type live struct {
	number  uint64
	created int64 // µs
	next    int64 // µs, 0: never set
	size    int64
	done    uint64 // recipients 0..63; more are in index.more

	refSeg, refOff, refLen uint32 // newest MSG or STATE record
	refMeta                uint32 // length of its metadata
	conSeg, conOff, conLen uint32 // MSG record

	nrcpt, npending, attempts uint32

	queue, flags, trace uint8
}

// index holds the live messages, by number. It is a tree of two levels over leaves; see
// leaf for how an entry of 88 bytes takes a fifth of that. One goroutine at a time
// changes it, while nobody reads.
//
// A pointer to an entry is good until the next insert, edit, remove or tidy.
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

// branch is a row of leaves that follow each other.
type branch struct {
	firsts []uint64 // the lowest number that each leaf is for
	leaves []*leaf
}

const (
	// branchLen is the most leaves of a branch.
	branchLen = 512
	// looseLeaves is how many leaves with entries of late stay as they are: 12 MB.
	looseLeaves = 2048
	// maxSpare bounds the memory of loose leaves that is kept for others.
	maxSpare = 64
)

func newIndex() index {
	return index{leafLen: leafLen, most: looseLeaves, mem: newArena(), more: map[uint64][]uint64{}, big: map[uint64]int64{}, handed: map[uint64][]handing{}}
}

// len is the number of messages.
func (x *index) len() int { return x.n }

// below is the place of the last of firsts that is not over number, or 0.
func below(firsts []uint64, number uint64) int {
	lo, hi := 0, len(firsts)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); firsts[mid] <= number {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return max(lo-1, 0)
}

// leafPlace is where a leaf is.
type leafPlace struct{ b, i int }

// seek finds the leaf that number is in, or would be. The index must not be empty.
func (x *index) seek(number uint64) (leafPlace, *leaf) {
	b := below(x.firsts, number)
	i := below(x.boughs[b].firsts, number)
	return leafPlace{b, i}, x.boughs[b].leaves[i]
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

// find gives a message's entry, or nil. It is for reading only, and may be in room. It
// may be called while others read.
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
	if !there && len(lf.ents) == x.leafLen && int(lf.n) < x.leafLen {
		lf.ents = dropGone(lf.ents)
		i, _ = locate(lf.ents, number)
	}
	if there { // it has been there
		lf.n++
		lf.ents[i] = live{number: number}
		return &lf.ents[i]
	}
	if len(lf.ents) == x.leafLen {
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

// dropGone leaves out what is not there any more.
func dropGone(ents []live) []live {
	n := 0
	for i := range ents {
		if ents[i].queue != queueGone {
			ents[n] = ents[i]
			n++
		}
	}
	return ents[:n]
}

// newLeaf makes a loose leaf at p with these entries, all of which are there, and gives the first of them.
func (x *index) newLeaf(p leafPlace, ents []live) *live {
	lf := &leaf{ents: append(x.room(), ents...), n: uint8(len(ents))}
	x.addLoose(lf)
	b := x.boughs[p.b]
	if len(b.leaves) == branchLen {
		keep := branchLen / 2
		if p.i == branchLen { // the rest gets no more
			keep = branchLen
		}
		right := &branch{firsts: append([]uint64(nil), b.firsts[keep:]...), leaves: append([]*leaf(nil), b.leaves[keep:]...)}
		clear(b.leaves[keep:])
		b.firsts, b.leaves = b.firsts[:keep], b.leaves[:keep]
		first := ents[0].number
		if len(right.firsts) > 0 {
			first = right.firsts[0]
		}
		x.firsts = slices.Insert(x.firsts, p.b+1, first)
		x.boughs = slices.Insert(x.boughs, p.b+1, right)
		if p.i > keep || keep == branchLen {
			b, p.i = right, p.i-keep
		}
	}
	b.firsts = slices.Insert(b.firsts, p.i, ents[0].number)
	b.leaves = slices.Insert(b.leaves, p.i, lf)
	return &lf.ents[0]
}

// remove takes a message out that is there.
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

// dropLeaf takes out a loose leaf that nothing is in.
func (x *index) dropLeaf(p leafPlace, lf *leaf) {
	x.dropLoose(lf)
	b := x.boughs[p.b]
	b.firsts = slices.Delete(b.firsts, p.i, p.i+1)
	b.leaves = slices.Delete(b.leaves, p.i, p.i+1)
	if len(b.leaves) == 0 {
		x.firsts = slices.Delete(x.firsts, p.b, p.b+1)
		x.boughs = slices.Delete(x.boughs, p.b, p.b+1)
	}
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

func (x *index) unpack(lf *leaf, list *[leafLen]live) int {
	n := unpack(x.mem.piece(lf.at, int(lf.length)), list)
	runtime.KeepAlive(x.mem)
	return n
}

// loosen unpacks a leaf.
func (x *index) loosen(lf *leaf) {
	lf.used = true
	if lf.ents != nil {
		return
	}
	var list [leafLen]live
	n := x.unpack(lf, &list)
	x.mem.give(lf.at, int(lf.length))
	lf.ents = append(x.room(), list[:n]...)
	x.addLoose(lf)
}

// tidy packs leaves until few enough are loose: those that have not been used for a
// while.
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
	}
	if x.mem.size() >= 4*arenaRegion && x.mem.taken < x.mem.size()/2 {
		x.compact()
	}
}

// pack packs a leaf, with those after it of its branch that have room in it.
func (x *index) pack(lf *leaf) {
	lf.ents = dropGone(lf.ents)
	p, _ := x.seek(lf.ents[0].number)
	b := x.boughs[p.b]
	for p.i+1 < len(b.leaves) && int(lf.n)+int(b.leaves[p.i+1].n) <= x.leafLen {
		next := b.leaves[p.i+1]
		if next.ents != nil {
			lf.ents = append(lf.ents, dropGone(next.ents)...)
			x.dropLoose(next)
		} else {
			var list [leafLen]live
			n := x.unpack(next, &list)
			x.mem.give(next.at, int(next.length))
			lf.ents = append(lf.ents, list[:n]...)
		}
		lf.n += next.n
		b.firsts = slices.Delete(b.firsts, p.i+1, p.i+2)
		b.leaves = slices.Delete(b.leaves, p.i+1, p.i+2)
	}
	lf.note(lf.ents)
	packed := x.packer.pack(lf.ents)
	lf.at, lf.length = x.mem.put(packed), uint32(len(packed))
	x.dropLoose(lf)
}

// compact gives memory back to the system when most of it is not taken any more.
func (x *index) compact() {
	old := x.mem
	x.mem = newArena()
	for _, b := range x.boughs {
		for _, lf := range b.leaves {
			if lf.ents == nil {
				lf.at = x.mem.put(old.piece(lf.at, int(lf.length)))
			}
		}
	}
	old.maps.drop()
}

// page gives the entries of one leaf from number on, in order, in room, and the number to go
// on from. Leaves are passed over which can have neither a newest record in files of states nor a MSG record in
// those of contents, sets of fileBit, unless both are empty. It is false when there are no more. It may be called while others read.
func (x *index) page(from uint64, states, contents uint64, room *[leafLen]live) (list []live, next uint64, more bool) {
	if x.n == 0 {
		return nil, from, false
	}
	p, lf := x.seek(from)
	for {
		if lf.ents != nil || states == 0 && contents == 0 || lf.states&states != 0 || lf.contents&contents != 0 {
			n := x.read(lf, room)
			i, _ := locate(room[:n], from)
			if list = room[i:n]; len(list) > 0 {
				return list, list[len(list)-1].number + 1, true
			}
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

// each calls f for each message in order of number. The index must not be changed
// meanwhile.
func (x *index) each(f func(*live)) {
	var room [leafLen]live
	for from, more := uint64(0), true; more; {
		var list []live
		list, from, more = x.page(from, 0, 0, &room)
		for i := range list {
			f(&list[i])
		}
	}
}

// isDone says whether recipient i of l is done. more is its bits from 64 on.
func isDone(l *live, more []uint64, i uint64) bool {
	if i < 64 {
		return l.done>>i&1 != 0
	}
	w := i/64 - 1
	return w < uint64(len(more)) && more[w]>>(i%64)&1 != 0
}

// setDone marks recipient i and returns more, grown to nrcpt's size if need be.
func setDone(l *live, more []uint64, i uint64) []uint64 {
	if isDone(l, more, i) {
		return more
	}
	l.npending--
	if i < 64 {
		l.done |= 1 << i
		return more
	}
	if more == nil {
		more = make([]uint64, (l.nrcpt+63)/64-1)
	}
	more[i/64-1] |= 1 << (i % 64)
	return more
}

// doneBitmap is the done bits as stored; nil when there is none.
func doneBitmap(l *live, more []uint64) []byte {
	if l.npending == l.nrcpt {
		return nil
	}
	b := make([]byte, (l.nrcpt+7)/8)
	put := func(w int, v uint64) {
		for i := 0; i < 8 && w*8+i < len(b); i++ {
			b[w*8+i] = byte(v >> (8 * i))
		}
	}
	put(0, l.done)
	for w, v := range more {
		put(w+1, v)
	}
	return b
}

// loadDone sets the done bits of l from their stored form; what is past the
// last recipient is dropped.
func loadDone(l *live, b []byte) (more []uint64) {
	l.done, l.npending = 0, l.nrcpt
	for i, v := range b {
		for ; v != 0; v &= v - 1 {
			if r := uint64(i*8 + bits.TrailingZeros8(v)); r < uint64(l.nrcpt) {
				more = setDone(l, more, r)
			}
		}
	}
	return more
}

func (l *live) id() mail.QueueID { return mail.MakeQueueID(time.UnixMicro(l.created), l.number) }
