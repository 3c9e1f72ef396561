package spool

import (
	"encoding/binary"
	"slices"
)

// imageLoader puts what is in an image into the index.
type imageLoader struct {
	r     *recovery
	m     *image
	same  []bool // by file: it is used as it was then
	count uint64
	last  uint64 // message number
	stale []uint64
	p     packer
}

// noFile is in the entry of a message with a record in a segment that has been used again
// since, in place of that segment: the log says where it is now.
const noFile = ^uint32(0)

func newImageLoader(r *recovery, m *image) *imageLoader {
	x := &imageLoader{r: r, m: m}
	for _, u := range m.uses {
		if s := r.e.segs[u.file]; s != nil && s.segno == u.segno && s.salt == u.salt {
			x.same = append(x.same, make([]bool, max(0, int(u.file)+1-len(x.same)))...)
			x.same[u.file] = true
		}
	}
	return x
}

func (x *imageLoader) isSame(file uint32) bool { return file < uint32(len(x.same)) && x.same[file] }

// leaves takes over a chunk of leaves. It is false when that is not what it should be.
func (x *imageLoader) leaves(b []byte) bool {
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		if k <= 0 || n < packSlack || n > uint64(len(b)-k) || n >= maxUnits*arenaUnit {
			return false
		}
		packed := b[k : k+int(n)]
		if size := int(packed[0]); size == 0 || size > x.r.e.idx.leafLen {
			return false
		}
		var room [leafLen]live
		list := room[:unpack(packed, &room)]
		if list[0].number <= x.last {
			return false
		}
		x.last = list[len(list)-1].number
		x.count += uint64(len(list))
		var ok bool
		if b, ok = x.r.e.idx.loadExtras(b[k+int(n):], list); !ok {
			return false
		}
		x.add(list, packed)
	}
	return true
}

// loadExtras reads what appendExtras wrote, and gives what follows.
func (x *index) loadExtras(b []byte, list []live) (rest []byte, ok bool) {
	ok = true
	uint := func() uint64 {
		v, k := binary.Uvarint(b)
		if k <= 0 {
			b, ok = nil, false
			return 0
		}
		b = b[k:]
		return v
	}
	for n := uint(); n > 0 && ok; n-- {
		i, big, words := uint(), uint(), uint()
		if i >= uint64(len(list)) || words*8 > uint64(len(b)) || words > maxRcpts/64+1 {
			return nil, false
		}
		l := &list[i]
		if l.flags&msgBig != 0 {
			x.big[l.number] = int64(big)
		}
		if words > 0 {
			more := make([]uint64, words)
			for j := range more {
				more[j], b = binary.LittleEndian.Uint64(b), b[8:]
			}
			x.more[l.number] = more
		}
		handed := uint()
		if handed > uint64(len(b)) {
			return nil, false
		}
		var list []handing
		if decodeHandings(b[:handed], func(h handing) { list = append(list, h) }) != nil {
			return nil, false
		}
		x.setHanded(l.number, list)
		b = b[handed:]
	}
	return b, ok
}

// add enters the messages of a leaf.
func (x *imageLoader) add(list []live, packed []byte) {
	e := x.r.e
	changed := false
	for i := range list {
		l := &list[i]
		if ref, con := x.isSame(l.refSeg), l.conLen == 0 || x.isSame(l.conSeg); !ref || !con {
			if !ref {
				l.refSeg = noFile
			}
			if !con {
				l.conSeg = noFile
			}
			x.stale = append(x.stale, l.number)
			changed = true
		}
		e.account(l, 1)
	}
	if changed {
		packed = x.p.pack(list)
	}
	e.idx.appendPacked(list, packed)
}

// appendPacked adds a packed leaf whose numbers are over all others.
func (x *index) appendPacked(list []live, packed []byte) {
	lf := &leaf{n: uint8(len(list)), at: x.mem.put(packed), length: uint32(len(packed))}
	lf.note(list)
	first := list[0].number
	if k := len(x.boughs); k == 0 || len(x.boughs[k-1].leaves) == branchLen {
		x.firsts = append(x.firsts, first)
		x.boughs = append(x.boughs, &branch{})
	}
	b := x.boughs[len(x.boughs)-1]
	b.firsts, b.leaves = append(b.firsts, first), append(b.leaves, lf)
	x.n += len(list)
}

// adopt has the replay go on where the image ends.
func (x *imageLoader) adopt() {
	r, m := x.r, x.m
	r.image, r.stale = m, x.stale
	r.rep.Imaged, r.rep.Clean, r.exact = int(x.count), m.clean, m.exact
	r.e.promised = max(r.e.promised, m.last)
	r.maxBatch, r.maxSeq = max(r.maxBatch, m.last), max(r.maxSeq, m.seq)
	for _, u := range m.uses {
		if s := r.e.segs[u.file]; x.isSame(u.file) {
			s.lastBatch, r.anyUse[s] = u.lastBatch, u.lastBatch
			r.from[s] = u.end
			if u.end == 0 || m.clean { // nobody appends to the log of a process that has ended
				r.from[s] = s.size
			}
		}
	}
}

// settleImage says whether what the image and the log since say may be believed: errImage
// when it may not. Nothing has been written yet.
func (r *recovery) settleImage() error {
	if r.image == nil {
		return nil
	}
	if len(r.lost) > 0 || r.rep.Alarms > 0 {
		return errImage // the start that reads all knows more
	}
	for _, n := range slices.Compact(r.stale) {
		if l := r.e.idx.find(n, &r.e.w.found); l != nil && (l.refSeg == noFile || l.conSeg == noFile) {
			return errImage
		}
	}
	return nil
}

// imaged says whether batch num is in the image that the index was filled from.
func (r *recovery) imaged(num uint64) bool { return r.image != nil && num <= r.image.batch }
