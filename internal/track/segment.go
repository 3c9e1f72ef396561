package track

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/netip"
	"slices"
	"sort"
	"time"

	"posthaste/internal/logread"
)

const (
	printBits     = 33  // of a fingerprint that are kept
	segmentBits   = 7   // a block's number in its segment
	segmentBlocks = 128 // blocks of a segment, at most
	segmentMagic  = "PHTRACK3"

	// A volume is a segment that was made of many: a lookup opens and reads so many times fewer files.
	volumeBits  = 11
	volumeParts = 1 << (volumeBits - segmentBits)
	volumeMagic = "PHTRACK4"
)

// A span is the place and the time of a block.
type span struct {
	end      uint32 // of its text, from the beginning of the segment
	lines    uint32 // before its end, from the beginning of the segment
	min, max int64  // times of its lines; 0: none has one
}

// A segment is the index of a part of a log. It has the fingerprints of the keys of each block, and a sieve of their text.
//
// In a file there are a header, whose checksum is at its end, the entries, which are in buckets by the first bits of
// the fingerprint, each with a checksum in the header, and the sieve. An entry is the other bits of the fingerprint and the number of the
// block, 32 bits together. The last is the gate.
type segment struct {
	blockBits uint8

	ident  uint64 // of the log
	start  int64  // offset in the text of the log
	line   int64  // number of the first line
	tail   uint64 // hash of the last octets of the text
	zone   uint64 // in which lines were read that have none; 0: there are none
	blocks []span
	bucket []uint32 // where the entries of each begin, and where those of the last one end
	sums   []uint32

	undated bool   // the times of the blocks are not known
	sieve   *sieve // nil: there is none, and every block may have any text

	gateSum uint32 // checksum of the gate in the file
	gate    gate   // empty: it was not read

	entries []uint32 // nil: they are in the file of this name
	name    string
}

// buckets is how many buckets the entries are in.
func buckets(blockBits uint8) int { return 1 << (blockBits + printBits - 32) }

// bucketOf is the bucket of a fingerprint.
func (s *segment) bucketOf(finger uint64) int {
	return int(finger >> (64 - (s.blockBits + printBits - 32)))
}

// parts is how many segments it counts for.
func (s *segment) parts() int {
	if s.blockBits == volumeBits {
		return volumeParts
	}
	return 1
}

func (s *segment) end() int64 { return s.start + int64(s.blocks[len(s.blocks)-1].end) }

// blockAt is where a block's text is, and the number of its first line.
func (s *segment) blockAt(n int) (off, line int64, size int) {
	var before span
	if n > 0 {
		before = s.blocks[n-1]
	}
	return s.start + int64(before.end), s.line + int64(before.lines), int(s.blocks[n].end - before.end)
}

// times are those of the lines of a segment.
func (s *segment) times() (least, most int64) {
	for _, b := range s.blocks {
		if b.min != 0 && (least == 0 || b.min < least) {
			least = b.min
		}
		most = max(most, b.max)
	}
	return least, most
}

// A mason makes segments. It may not be used concurrently.
type mason struct {
	sizes  sizes
	parser *logread.Reader
	event  event
	found  []uint64 // 33 bits of a fingerprint, and the number of the block
	recent [4096]uint64

	filters [segmentBlocks]blockFilter
	folded  []byte // room for the text of a line
	client  []byte // the one whose networks were noted last
	zone    uint64
}

// newMason is a mason for lines that lie before now, and in its time zone, where they do not say otherwise.
func newMason(z sizes, now time.Time) *mason {
	return &mason{sizes: z, parser: logread.NewParser(now), zone: zonePrint(now.Location())}
}

// tailHash is a hash of the last octets of a text.
func (z *sizes) tailHash(text []byte) uint64 {
	return fingerprint(0, text[max(0, len(text)-int(z.tail)):])
}

// tailOf is where the last octets of a segment's text begin.
func (z *sizes) tailOf(s *segment) int64 { return max(s.start, s.end()-z.tail) }

// build makes the index of a text that begins at an offset of a log. sizes are those of its blocks.
func (m *mason) build(ident uint64, start, line int64, text []byte, sizes []int) *segment {
	s := &segment{ident: ident, start: start, line: line, tail: m.sizes.tailHash(text)}
	m.found = m.found[:0]
	clear(m.recent[:])
	clear(m.filters[:len(sizes)])
	end, lines := 0, 0
	for n, size := range sizes {
		b := block{off: int64(end), text: text[end : end+size]}
		sp := span{}
		m.client = m.client[:0]
		b.lines(everyLine, 0, m.parser, &m.event, func(place) {
			if at := m.event.line.Time; at != 0 {
				if sp.max = max(sp.max, at); sp.min == 0 || at < sp.min {
					sp.min = at
				}
			}
			if m.event.line.Guessed {
				s.zone = m.zone
			}
			m.event.keys(func(c class, k []byte) { m.add(fingerprint(c, k), n) })
			m.sift(&m.filters[n])
		})
		end, lines = end+size, lines+bytes.Count(b.text, []byte("\n"))
		sp.end, sp.lines = uint32(end), uint32(lines)
		s.blocks = append(s.blocks, sp)
	}
	slices.Sort(m.found)
	m.found = slices.Compact(m.found)
	s.blockBits = segmentBits
	s.fill(m.found)
	s.sieve = newSieve(m.filters[:len(sizes)])
	return s
}

// sift notes the text of a line, and the networks of its clients.
func (m *mason) sift(f *blockFilter) {
	m.folded = lower(m.folded, m.event.line.Text)
	f.addText(m.folded)
	for _, addr := range [...][]byte{m.event.client.Addr, m.event.orig.Addr} {
		if len(addr) == 0 || bytes.Equal(addr, m.client) {
			continue
		}
		m.client = append(m.client[:0], addr...)
		if a, err := netip.ParseAddr(string(addr)); err == nil {
			networks(a.Unmap(), 128, f.add)
		}
	}
}

// fill gives a segment its entries and its gate: of fingerprints, with the number of the block behind each, in order.
func (s *segment) fill(found []uint64) {
	count := buckets(s.blockBits)
	s.entries, s.bucket, s.sums = make([]uint32, len(found)), make([]uint32, count+1), make([]uint32, count)
	var raw []byte
	at := 0
	for b := range count {
		for s.bucket[b] = uint32(at); at < len(found) && found[at]>>32 == uint64(b); at++ {
			s.entries[at] = uint32(found[at])
		}
		raw = encodeEntries(raw[:0], s.entries[s.bucket[b]:at])
		s.sums[b] = crc32.ChecksumIEEE(raw)
	}
	s.bucket[count] = uint32(at)
	s.gate = make(gate, gateWords(len(found)))
	for i, f := range found {
		if finger := f >> s.blockBits; i == 0 || finger != found[i-1]>>s.blockBits {
			s.gate.add(finger)
		}
	}
	s.gateSum = crc32.ChecksumIEEE(s.gate.encode())
}

// add notes a fingerprint of a block.
func (m *mason) add(h uint64, n int) {
	v := h>>(64-printBits)<<segmentBits | uint64(n)
	if r := &m.recent[v>>segmentBits&uint64(len(m.recent)-1)]; *r != v+1 {
		*r = v + 1
		m.found = append(m.found, v)
	}
}

func encodeEntries(b []byte, entries []uint32) []byte {
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint32(b, e)
	}
	return b
}

// encode is the file of a segment.
func (s *segment) encode() []byte {
	b := []byte(segmentMagic)
	if s.blockBits == volumeBits {
		b = []byte(volumeMagic)
	}
	for _, v := range []uint64{s.ident, uint64(s.start), uint64(s.line), s.tail, s.zone, uint64(len(s.blocks))} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, sp := range s.blocks {
		b = binary.LittleEndian.AppendUint32(b, sp.end)
		b = binary.LittleEndian.AppendUint32(b, sp.lines)
		b = binary.LittleEndian.AppendUint64(b, uint64(sp.min))
		b = binary.LittleEndian.AppendUint64(b, uint64(sp.max))
	}
	for i := range s.sums {
		b = binary.LittleEndian.AppendUint32(b, s.bucket[i+1])
		b = binary.LittleEndian.AppendUint32(b, s.sums[i])
	}
	b = encodeEntries(b, s.sieve.sums)
	b = binary.LittleEndian.AppendUint32(b, s.gateSum)
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(encodeEntries(b, s.entries), s.sieve.rows...)
	return append(b, s.gate.encode()...)
}

const (
	fixedHeader = len(segmentMagic) + 6*8
	spanSize    = 4 + 4 + 8 + 8
)

// headerSize is the length of a header with so many blocks, with its checksum.
func headerSize(blockBits uint8, blocks int) int {
	return fixedHeader + blocks*spanSize + buckets(blockBits)*8 + filterWords*4 + 4 + 4
}

func (s *segment) headerSize() int { return headerSize(s.blockBits, len(s.blocks)) }

// size is how many entries there are.
func (s *segment) size() int { return int(s.bucket[len(s.sums)]) }

// sieveAt is where the rows of the sieve begin in the file, gateAt where the gate does, and fileSize the length of the file.
func (s *segment) sieveAt() int64  { return int64(s.headerSize()) + 4*int64(s.size()) }
func (s *segment) gateAt() int64   { return s.sieveAt() + int64(s.sieve.size()) }
func (s *segment) fileSize() int64 { return s.gateAt() + int64(8*gateWords(s.size())) }

var errDamaged = errors.New("it is damaged")

// decode reads the header of a segment's file, which b begins with.
func decodeSegment(b []byte) (*segment, error) {
	if len(b) < fixedHeader {
		return nil, errDamaged
	}
	bits := uint8(segmentBits)
	switch string(b[:len(segmentMagic)]) {
	case segmentMagic:
	case volumeMagic:
		bits = volumeBits
	default:
		return nil, errDamaged
	}
	word := func(n int) uint64 { return binary.LittleEndian.Uint64(b[len(segmentMagic)+8*n:]) }
	count := word(5)
	if count == 0 || count > 1<<bits || len(b) < headerSize(bits, int(count)) {
		return nil, errDamaged
	}
	size := headerSize(bits, int(count))
	if crc32.ChecksumIEEE(b[:size-4]) != binary.LittleEndian.Uint32(b[size-4:]) {
		return nil, errDamaged
	}
	s := &segment{blockBits: bits, ident: word(0), start: int64(word(1)), line: int64(word(2)), tail: word(3), zone: word(4), blocks: make([]span, count), sieve: emptySieve(int(count))}
	s.bucket, s.sums = make([]uint32, buckets(bits)+1), make([]uint32, buckets(bits))
	p := b[fixedHeader:]
	last := uint32(0)
	for i := range s.blocks {
		s.blocks[i] = span{binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:]), int64(binary.LittleEndian.Uint64(p[8:])), int64(binary.LittleEndian.Uint64(p[16:]))}
		// A block is read as a whole. The index may be another user's, whose word is no measure of memory.
		if s.blocks[i].end <= last || s.blocks[i].end-last > maxBlock || s.start < 0 {
			return nil, errDamaged
		}
		last = s.blocks[i].end
		p = p[spanSize:]
	}
	for i := range s.sums {
		s.bucket[i+1], s.sums[i] = binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:])
		if s.bucket[i+1] < s.bucket[i] || s.bucket[i+1] > 1<<(17+bits) { // a line of many keys has some octets for each
			return nil, errDamaged
		}
		p = p[8:]
	}
	for i := range s.sieve.sums {
		s.sieve.sums[i] = binary.LittleEndian.Uint32(p[4*i:])
	}
	s.gateSum = binary.LittleEndian.Uint32(p[4*filterWords:])
	return s, nil
}

// lookup says which blocks may have one of the wishes, which are in the order of their fingerprints. file is the segment's
// file, if it has one, and buf is room for what is read of it.
func (s *segment) lookup(wishes []wish, file io.ReaderAt, buf *[]byte) (hits []hit, err error) {
	for at := 0; at < len(wishes); {
		if !s.gate.passes(wishes[at].print >> (64 - printBits)) {
			at++
			continue
		}
		b := s.bucketOf(wishes[at].print)
		// Of a bucket in a file only what is compared is decoded: a search for many messages reads most of the index.
		size := int(s.bucket[b+1] - s.bucket[b])
		entry := func(i int) uint32 { return s.entries[int(s.bucket[b])+i] }
		if s.entries == nil {
			raw, err := s.read(b, file, buf)
			if err != nil {
				return nil, err
			}
			entry = func(i int) uint32 { return binary.LittleEndian.Uint32(raw[4*i:]) }
		}
		for ; at < len(wishes) && s.bucketOf(wishes[at].print) == b; at++ {
			want := uint32(wishes[at].print >> (64 - printBits) << s.blockBits)
			for i := sort.Search(size, func(i int) bool { return entry(i) >= want }); i < size && entry(i)>>s.blockBits == want>>s.blockBits; i++ {
				if n := entry(i) & (1<<s.blockBits - 1); int(n) < len(s.blocks) {
					hits = append(hits, hit{int32(n), int32(at)})
				}
			}
		}
	}
	return hits, nil
}

// read reads a bucket into buf, which it lets grow.
func (s *segment) read(b int, file io.ReaderAt, buf *[]byte) ([]byte, error) {
	size := 4 * int(s.bucket[b+1]-s.bucket[b])
	*buf = slices.Grow((*buf)[:0], size)[:size]
	if _, err := file.ReadAt(*buf, int64(s.headerSize())+4*int64(s.bucket[b])); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if crc32.ChecksumIEEE(*buf) != s.sums[b] {
		return nil, errDamaged
	}
	return *buf, nil
}
