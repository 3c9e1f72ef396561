package spool

import (
	"encoding/binary"
	"math/bits"
)

// A leaf of the index has the entries of up to leafLen messages whose numbers
// follow each other. Loose, it has them as they are used. Packed, as most are when much
// is queued, an entry takes some 16 bytes: a leaf is written by columns, each with as many
// bits as it takes to tell its values apart.
type leaf struct {
	ents []live // loose: sorted by number, those with queueGone having left; nil: packed
	pos  int32  // loose: place in index.loose
	used bool   // loose: since tidy passed by
	n    uint8  // entries, without those that have left

	at     uint32 // packed: place in the arena
	length uint32 // packed: bytes there

	// Packed: a bit for each file that the newest records, and the MSG records, are in,
	// by fileBit.
	states, contents uint64
}

const (
	leafLen   = 64
	queueGone = 0xff // in live.queue, of an entry that is not there any more
)

func fileBit(file uint32) uint64 { return 1 << (file % 64) }

// note sets states and contents for these entries.
func (lf *leaf) note(list []live) {
	lf.states, lf.contents = 0, 0
	for i := range list {
		lf.states |= fileBit(list[i].refSeg)
		lf.contents |= fileBit(list[i].conSeg)
	}
}

// column is one number of each entry of a leaf. Where that helps it is told by what it
// is more than the one before.
type column int

const (
	colNumber column = iota
	colCreated
	colNext   // seconds, from the least in the leaf on, and 1; 0: never set
	colMicros // of next
	colSize
	colDone
	colRefSeg
	colRefOff // in eights
	colRefMeta
	colRefRest // what the newest record has over its header and metadata
	colConSeg
	colConLen // against the size
	colConOff // in eights, against where the record before it ends
	colOdd    // what the offsets have over eights, which is nothing
	colRcpts
	colFinished // recipients done
	colAttempts
	colQueue
	colFlags
	colTrace
	numColumns
)

// packer packs leaves.
type packer struct {
	cols [numColumns][leafLen]uint64
	buf  []byte
}

func zigzag(v int64) uint64   { return uint64(v)<<1 ^ uint64(v>>63) }
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

const second = 1_000_000 // µs

// leastNext is the time of the earliest attempt, in seconds.
func leastNext(list []live) (least int64) {
	first := true
	for i := range list {
		if s := floorSecond(list[i].next); list[i].next != 0 && (first || s < least) {
			least, first = s, false
		}
	}
	return least
}

func floorSecond(us int64) int64 {
	s := us / second
	if us%second < 0 {
		s--
	}
	return s
}

// pack writes list, up to leafLen entries. The result is good until the next call.
func (p *packer) pack(list []live) []byte {
	least := leastNext(list)
	p.split(list, least)
	p.buf = append(p.buf[:0], byte(len(list)))
	p.buf = binary.AppendVarint(p.buf, least)
	for c := range p.cols {
		p.column(p.cols[c][:len(list)])
	}
	return append(p.buf, make([]byte, packSlack)...)
}

// packSlack follows the last column, since eight bytes are read at once.
const packSlack = 8

// split makes columns of entries.
func (p *packer) split(list []live, least int64) {
	var end uint64 // of the MSG record before
	for i := range list {
		l := &list[i]
		c := &p.cols
		c[colNumber][i], c[colCreated][i] = l.number, uint64(l.created)
		c[colNext][i], c[colMicros][i] = 0, 0
		if l.next != 0 {
			s := floorSecond(l.next)
			c[colNext][i], c[colMicros][i] = uint64(s-least)+1, uint64(l.next-s*second)
		}
		c[colSize][i], c[colDone][i] = uint64(l.size), l.done
		c[colRefSeg][i], c[colRefOff][i] = uint64(l.refSeg), uint64(l.refOff>>3)
		c[colRefMeta][i], c[colRefRest][i] = uint64(l.refMeta), uint64(l.refLen-headerLen-l.refMeta)
		c[colConSeg][i], c[colConLen][i] = uint64(l.conSeg), zigzag(int64(l.conLen)-l.size)
		c[colConOff][i] = uint64(l.conOff>>3) - end
		end += (uint64(l.conLen) + recAlign - 1) >> 3
		c[colOdd][i] = uint64(l.refOff&7 | l.conOff&7<<3)
		c[colRcpts][i], c[colFinished][i] = uint64(l.nrcpt), uint64(l.nrcpt-l.npending)
		c[colAttempts][i], c[colQueue][i] = uint64(l.attempts), uint64(l.queue)
		c[colFlags][i], c[colTrace][i] = uint64(l.flags), uint64(l.trace)
	}
}

// A column begins with a byte: how many bits each value has, and columnDelta; and with
// the value that is added to each, or that the first is, when that byte is not 0.
const (
	columnDelta = 0x80 // values are differences to the one before, zigzag
	columnBase  = 0x7f // no bits, but a value that all have
)

// column writes the values of one.
func (p *packer) column(v []uint64) {
	least, most, delta := v[0], v[0], uint64(0)
	for i := 1; i < len(v); i++ {
		least, most = min(least, v[i]), max(most, v[i])
		delta |= zigzag(int64(v[i] - v[i-1]))
	}
	width := bits.Len64(most - least)
	switch {
	case width == 0 && least == 0:
		p.buf = append(p.buf, 0)
		return
	case width == 0:
		p.buf = binary.AppendUvarint(append(p.buf, columnBase), least)
		return
	}
	if d := bits.Len64(delta); d < width {
		p.buf = binary.AppendUvarint(append(p.buf, columnDelta|byte(d)), v[0])
		p.bits(d, len(v), func(i int) uint64 {
			if i == 0 {
				return 0
			}
			return zigzag(int64(v[i] - v[i-1]))
		})
		return
	}
	p.buf = binary.AppendUvarint(append(p.buf, byte(width)), least)
	p.bits(width, len(v), func(i int) uint64 { return v[i] - least })
}

// bits writes n values of width bits each.
func (p *packer) bits(width, n int, value func(int) uint64) {
	var word uint64
	have := 0
	for i := range n {
		v := value(i)
		word |= v << have
		if have+width >= 64 {
			p.buf = binary.LittleEndian.AppendUint64(p.buf, word)
			word = v >> (64 - have) // nothing when have is 0
			have += width - 64
			continue
		}
		have += width
	}
	for ; have > 0; have -= 8 {
		p.buf = append(p.buf, byte(word))
		word >>= 8
	}
}

// unpack reads what pack wrote into list, of leafLen, and gives how many entries there
// are.
func unpack(b []byte, list *[leafLen]live) int {
	n := int(b[0])
	least, k := binary.Varint(b[1:])
	u := unpacker{b: b[1+k:], n: n}
	var v [leafLen]uint64
	clear(list[:n])
	for c := range numColumns {
		some := u.column(&v)
		switch c {
		case colRefRest, colConLen, colConOff, colFinished:
			some = true // they stand for something else
		}
		if some {
			joinColumn(c, list[:n], v[:n], least)
		}
	}
	return n
}

// joinColumn puts the values of column c into the entries, which have those of the columns
// before.
func joinColumn(c column, list []live, v []uint64, least int64) {
	var end uint64 // of the MSG record before
	for i := range list {
		l, v := &list[i], v[i]
		switch c {
		case colNumber:
			l.number = v
		case colCreated:
			l.created = int64(v)
		case colNext:
			if v != 0 {
				l.next = (least + int64(v-1)) * second
			}
		case colMicros:
			l.next += int64(v)
		case colSize:
			l.size = int64(v)
		case colDone:
			l.done = v
		case colRefSeg:
			l.refSeg = uint32(v)
		case colRefOff:
			l.refOff = uint32(v) << 3
		case colRefMeta:
			l.refMeta = uint32(v)
		case colRefRest:
			l.refLen = headerLen + l.refMeta + uint32(v)
		case colConSeg:
			l.conSeg = uint32(v)
		case colConLen:
			l.conLen = uint32(unzigzag(v) + l.size)
		case colConOff:
			l.conOff = uint32(v+end) << 3
			end += (uint64(l.conLen) + recAlign - 1) >> 3
		case colOdd:
			l.refOff, l.conOff = l.refOff|uint32(v&7), l.conOff|uint32(v>>3)
		case colRcpts:
			l.nrcpt = uint32(v)
		case colFinished:
			l.npending = l.nrcpt - uint32(v)
		case colAttempts:
			l.attempts = uint32(v)
		case colQueue:
			l.queue = uint8(v)
		case colFlags:
			l.flags = uint8(v)
		case colTrace:
			l.trace = uint8(v)
		}
	}
}

// unpacker reads columns of n values.
type unpacker struct {
	b []byte
	n int
}

// column reads the values of the next one, and says whether there is one that is not 0.
func (u *unpacker) column(v *[leafLen]uint64) bool {
	kind := u.b[0]
	if kind == 0 {
		clear(v[:u.n])
		u.b = u.b[1:]
		return false
	}
	base, k := binary.Uvarint(u.b[1:])
	u.b = u.b[1+k:]
	if kind == columnBase {
		for i := range u.n {
			v[i] = base
		}
		return true
	}
	u.bits(v, int(kind&^columnDelta))
	if kind&columnDelta == 0 {
		for i := range u.n {
			v[i] += base
		}
		return true
	}
	for i := range u.n {
		base += uint64(unzigzag(v[i]))
		v[i] = base
	}
	return true
}

// bits reads n values of width bits each, of 64 at most.
func (u *unpacker) bits(v *[leafLen]uint64, width int) {
	mask := ^uint64(0) >> (64 - width)
	at := 0
	for i := range u.n {
		b := u.b[at>>3:]
		shift := at & 7
		x := binary.LittleEndian.Uint64(b) >> shift
		if shift+width > 64 {
			x |= uint64(b[8]) << (64 - shift)
		}
		v[i] = x & mask
		at += width
	}
	u.b = u.b[(at+7)>>3:]
}
