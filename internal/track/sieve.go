package track

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"net/netip"
	"slices"
)

const (
	filterWords = 512 // of a filter: 4 KiB for each block of 128 KiB
	filterRows  = 64  // bits of a word
)

// A token is the hash of something that a block has, or has not: three octets of text, or a network of a client.
type token uint64

// word is where in a filter a token is noted, and its two bits there.
func (t token) word() (n int, mask uint64) {
	return int(t >> 55), 1<<(t>>49&63) | 1<<(t>>43&63)
}

// newToken mixes 64 bits, so that the first 21 depend on all (the finalizer of MurmurHash3).
func newToken(v uint64) token {
	v ^= v >> 33
	v *= 0xff51afd7ed558ccd
	v ^= v >> 33
	v *= 0xc4ceb9fe1a85ec53
	return token(v ^ v>>33)
}

// A blockFilter says what one block has: a Bloom filter (Bloom 1970) of which all bits of a token are in one word (Putze, Sanders, Singler
// 2007, section 3). It never says of a token that was added that it is not there.
type blockFilter [filterWords]uint64

func (f *blockFilter) add(t token) {
	n, mask := t.word()
	f[n] |= mask
}

// addText adds the trigrams of a text, which is in lower case. All text of a log comes here, so there is no function to be called for each.
func (f *blockFilter) addText(text []byte) {
	v := uint64(0)
	for i, c := range text {
		if v = (v<<8 | uint64(c)) & 0xffffff; i >= 2 {
			f.add(newToken(v))
		}
	}
}

// Networks that are noted of a client: those of these lengths, in bits. One that is looked for is looked for by the longest of these that
// are not longer, so shorter ones than the first are not in the filter at all.
var netSizes = [2][3]int{{8, 16, 24}, {32, 48, 64}}

// networks calls f for the tokens of the networks of at most so many bits that an address is in. There are three for each: with
// two bits of a filter that is half full, every fourth block would seem to have any network.
func networks(a netip.Addr, most int, f func(token)) {
	b, sizes := a.As16(), netSizes[0]
	from := 12
	if a.Is6() {
		from, sizes = 0, netSizes[1]
	}
	for _, size := range sizes {
		if size > most {
			return
		}
		h := fingerprint('n', b[from:from+size/8])
		for i := range uint64(3) {
			f(newToken(h + i))
		}
	}
}

// textTokens are what a block has that has a text, which is in lower case. None: the text is too short for that.
func textTokens(text []byte) (list []token) {
	for i := range max(0, len(text)-2) {
		list = append(list, newToken(uint64(text[i])<<16|uint64(text[i+1])<<8|uint64(text[i+2])))
	}
	return inOrder(list)
}

// netTokens are what a block has that has a client of a network.
func netTokens(p netip.Prefix) (list []token) {
	networks(p.Addr(), p.Bits(), func(t token) { list = append(list, t) })
	return inOrder(list)
}

// inOrder puts tokens into the order of their words in a filter, each once.
func inOrder(list []token) []token {
	slices.Sort(list)
	return slices.Compact(list)
}

// A sieve has the filters of the blocks of a segment, turned on their side: for each bit a row, which has that bit of each block. So
// a question reads the rows that it is about and no others (bit-sliced signature files, Faloutsos and Christodoulakis 1984). The rows of
// a word of the filters are together, and have one checksum, which is in the header of the segment's file.
type sieve struct {
	width int // octets of a row: one for eight blocks
	sums  []uint32
	rows  []byte // nil: they are in the file, behind the entries
}

// newSieve makes the sieve of blocks of which the filters are given.
func newSieve(filters []blockFilter) *sieve {
	v := emptySieve(len(filters))
	v.rows = make([]byte, v.size())
	for n := range filters {
		for w, word := range filters[n] {
			for ; word != 0; word &= word - 1 {
				v.rows[(w*filterRows+bits.TrailingZeros64(word))*v.width+n/8] |= 1 << (n % 8)
			}
		}
	}
	v.sum()
	return v
}

func emptySieve(blocks int) *sieve {
	return &sieve{width: (blocks + 7) / 8, sums: make([]uint32, filterWords)}
}

// size is how many octets the rows have, and group how many of them those of one word.
func (v *sieve) size() int  { return filterWords * v.group() }
func (v *sieve) group() int { return filterRows * v.width }

func (v *sieve) sum() {
	for w := range v.sums {
		v.sums[w] = crc32.ChecksumIEEE(v.rows[w*v.group() : (w+1)*v.group()])
	}
}

// joinSieves is the sieve of the blocks of several segments, of which counts says how many each has. All have their rows.
func joinSieves(parts []*sieve, counts []int) *sieve {
	total := 0
	for _, n := range counts {
		total += n
	}
	v := emptySieve(total)
	v.rows = make([]byte, v.size())
	for r := range filterWords * filterRows {
		row := v.rows[r*v.width : (r+1)*v.width]
		at := 0
		for i, p := range parts {
			from := p.rows[r*p.width : (r+1)*p.width]
			if at%8 == 0 {
				copy(row[at/8:], from)
			} else {
				shiftInto(row[at/8:], from, at%8)
			}
			at += counts[i]
		}
	}
	v.sum()
	return v
}

// shiftInto adds the bits of one row to another, from a bit of its first octet on. What lies behind the end is not set.
func shiftInto(row, from []byte, bit int) {
	for i, b := range from {
		row[i] |= b << bit
		if high := b >> (8 - bit); high != 0 {
			row[i+1] |= high
		}
	}
}

// pick says which of so many blocks may have all of some tokens, of which there is at least one. file is the file of the segment, in which the
// rows begin at an offset, unless they are here; buf is room for what is read of it.
func (v *sieve) pick(blocks int, tokens []token, file io.ReaderAt, off int64, buf *[]byte) (list []int32, err error) {
	left, last := make([]byte, v.width), -1
	var group []byte
	for i := range left {
		left[i] = 0xff
	}
	for _, t := range tokens {
		w, mask := t.word()
		if w != last {
			if group, err = v.read(w, file, off, buf); err != nil {
				return nil, err
			}
			last = w
		}
		for ; mask != 0; mask &= mask - 1 {
			r := bits.TrailingZeros64(mask)
			intersect(left, group[r*v.width:(r+1)*v.width])
		}
		if !slices.ContainsFunc(left, func(b byte) bool { return b != 0 }) {
			return nil, nil
		}
	}
	for n := range blocks {
		if left[n/8]>>(n%8)&1 != 0 {
			list = append(list, int32(n))
		}
	}
	return list, nil
}

func intersect(left, row []byte) {
	for ; len(left) >= 8; left, row = left[8:], row[8:] {
		binary.NativeEndian.PutUint64(left, binary.NativeEndian.Uint64(left)&binary.NativeEndian.Uint64(row))
	}
	for i := range left {
		left[i] &= row[i]
	}
}

// read returns the rows of a word.
func (v *sieve) read(w int, file io.ReaderAt, off int64, buf *[]byte) ([]byte, error) {
	size := v.group()
	if v.rows != nil {
		return v.rows[w*size : (w+1)*size], nil
	}
	*buf = slices.Grow((*buf)[:0], size)[:size]
	if _, err := file.ReadAt(*buf, off+int64(w)*int64(size)); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if crc32.ChecksumIEEE(*buf) != v.sums[w] {
		return nil, errDamaged
	}
	return *buf, nil
}

// load returns a sieve with its rows, which are read from the file if they are there.
func (v *sieve) load(file io.ReaderAt, off int64) (*sieve, error) {
	if v.rows != nil {
		return v, nil
	}
	rows := make([]byte, v.size())
	if _, err := file.ReadAt(rows, off); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	all := &sieve{width: v.width, sums: slices.Clone(v.sums), rows: rows}
	if all.sum(); slices.CompareFunc(all.sums, v.sums, cmp.Compare[uint32]) != 0 {
		return nil, errDamaged
	}
	return all, nil
}
