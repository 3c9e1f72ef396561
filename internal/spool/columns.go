package spool

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// column is one number of each entry of a leaf. Where that helps it is told by what it
// is more than the one before.
type column int

const (
	colRefSeg column = iota // this and the next come first, for mayHave
	colConSeg
	colNumber
	colCreated
	colNext   // seconds, from the least in the leaf on, and 1; 0: never set
	colMicros // of next
	colSize
	colDone
	colRefOff // in eights
	colRefMeta
	colRefRest // what the newest record has over its header and metadata
	colConLen  // against the size
	colConOff  // in eights, against where the record before it ends
	colOdd     // what the offsets have over eights, which is nothing
	colRcpts
	colFinished // recipients done
	colAttempts
	colQueue
	colFlags
	colTrace
	colTenant
	numColumns
)

// packer packs leaves.
type packer struct {
	cols [numColumns][leafLen]uint64
	v    [leafLen]uint64
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
		c[colTenant][i] = uint64(l.tenant)
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
	first, differ := v[0], uint64(0)
	for _, x := range v {
		differ |= x ^ first
	}
	switch { // most are one of these
	case differ == 0 && first == 0:
		p.buf = append(p.buf, 0)
		return
	case differ == 0:
		p.buf = binary.AppendUvarint(append(p.buf, columnBase), first)
		return
	}
	least, most, delta, last := first, first, uint64(0), first
	for _, x := range v {
		least, most = min(least, x), max(most, x)
		delta |= zigzag(int64(x - last))
		last = x
	}
	width := bits.Len64(most - least)
	if d := bits.Len64(delta); d < width {
		p.buf = binary.AppendUvarint(append(p.buf, columnDelta|byte(d)), first)
		last = first
		for i, x := range v {
			p.v[i] = zigzag(int64(x - last))
			last = x
		}
		p.bits(d, p.v[:len(v)])
		return
	}
	p.buf = binary.AppendUvarint(append(p.buf, byte(width)), least)
	for i, x := range v {
		p.v[i] = x - least
	}
	p.bits(width, p.v[:len(v)])
}

// bits writes values of width bits each.
func (p *packer) bits(width int, list []uint64) {
	var word uint64
	have := 0
	for _, v := range list {
		word |= v << have
		if have += width; have >= 64 {
			p.buf = binary.LittleEndian.AppendUint64(p.buf, word)
			have -= 64
			word = v >> (width - have) // nothing when have is 0
		}
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
	var cols [numColumns][leafLen]uint64
	for c := range cols {
		u.column(&cols[c])
	}
	join(&cols, list[:n], least)
	return n
}

// join is the reverse of packer.split.
func join(c *[numColumns][leafLen]uint64, list []live, least int64) {
	var end uint64 // of the MSG record before
	for i := range list {
		l := &list[i]
		i &= leafLen - 1
		odd := c[colOdd][i]
		*l = live{number: c[colNumber][i], created: int64(c[colCreated][i]), next: int64(c[colMicros][i]),
			size: int64(c[colSize][i]), done: c[colDone][i],
			refSeg: uint32(c[colRefSeg][i]), refOff: uint32(c[colRefOff][i])<<3 | uint32(odd&7), refMeta: uint32(c[colRefMeta][i]),
			conSeg: uint32(c[colConSeg][i]), conOff: uint32(c[colConOff][i]+end)<<3 | uint32(odd>>3),
			nrcpt: uint32(c[colRcpts][i]), attempts: uint32(c[colAttempts][i]),
			queue: uint8(c[colQueue][i]), flags: uint8(c[colFlags][i]), trace: uint8(c[colTrace][i]), tenant: uint32(c[colTenant][i])}
		if s := c[colNext][i]; s != 0 {
			l.next += (least + int64(s-1)) * second
		}
		l.refLen = headerLen + l.refMeta + uint32(c[colRefRest][i])
		l.conLen = uint32(unzigzag(c[colConLen][i]) + l.size)
		l.npending = l.nrcpt - uint32(c[colFinished][i])
		end += (uint64(l.conLen) + recAlign - 1) >> 3
	}
}

// namesFile says whether some entry of what pack wrote has its newest record, or with contents its
// MSG record, in a file.
func namesFile(b []byte, file uint32, contents bool) bool {
	n := int(b[0])
	_, k := binary.Varint(b[1:])
	u := unpacker{b: b[1+k:], n: n}
	var v [leafLen]uint64
	u.column(&v)
	if contents {
		u.column(&v)
	}
	return slices.Contains(v[:n], uint64(file))
}

// unpacker reads columns of n values.
type unpacker struct {
	b []byte
	n int
}

// column reads the values of the next one.
func (u *unpacker) column(to *[leafLen]uint64) {
	v := to[:u.n]
	kind := u.b[0]
	if kind == 0 {
		clear(v)
		u.b = u.b[1:]
		return
	}
	base, k := binary.Uvarint(u.b[1:])
	u.b = u.b[1+k:]
	switch {
	case kind == columnBase:
		for i := range v {
			v[i] = base
		}
	case kind&columnDelta == 0:
		u.bits(v, int(kind))
		for i := range v {
			v[i] += base
		}
	default:
		u.bits(v, int(kind&^columnDelta))
		for i := range v {
			base += uint64(unzigzag(v[i]))
			v[i] = base
		}
	}
}

// bits reads values of width bits each, of 64 at most.
func (u *unpacker) bits(v []uint64, width int) {
	mask := ^uint64(0) >> (64 - width)
	at := 0
	for i := range v {
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
