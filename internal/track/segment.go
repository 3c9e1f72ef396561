package track

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sort"
	"time"

	"posthaste/internal/logread"
)

const (
	segmentBlocks = 128 // blocks of a segment, at most
	bucketCount   = 256
	blockBits     = 7 // a block's number in its segment
	tailSize      = 4 << 10
	segmentMagic  = "PHTRACK1"
)

// A span is the place and the time of a block.
type span struct {
	end      uint32 // of its text, from the beginning of the segment
	lines    uint32 // before its end, from the beginning of the segment
	min, max int64  // times of its lines; 0: none has one
}

// A segment is the index of a part of a log. It has the fingerprints of the keys of each block.
//
// In a file there are a header, whose checksum is at its end, and the entries, which are in buckets by the first octet of
// the fingerprint, each with a checksum in the header. An entry is the next 25 bits of the fingerprint and the number of the
// block.
type segment struct {
	ident  uint64 // of the log
	start  int64  // offset in the text of the log
	line   int64  // number of the first line
	tail   uint64 // hash of the last octets of the text
	blocks []span
	bucket [bucketCount + 1]uint32 // where the entries of each begin
	sums   [bucketCount]uint32

	entries []uint32 // nil: they are in the file of this name
	name    string
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

// A bitset has the blocks of a segment.
type bitset [2]uint64

func (b *bitset) set(n int)      { b[n>>6] |= 1 << (n & 63) }
func (b *bitset) has(n int) bool { return b[n>>6]>>(n&63)&1 != 0 }
func (b *bitset) empty() bool    { return b[0]|b[1] == 0 }

// A mason makes segments. It may not be used concurrently.
type mason struct {
	parser *logread.Reader
	event  event
	found  []uint64 // 33 bits of a fingerprint, and the number of the block
	recent [4096]uint64
}

func newMason(now time.Time) *mason { return &mason{parser: logread.NewParser(now)} }

// tailHash is a hash of the last octets of a text.
func tailHash(text []byte) uint64 { return fingerprint(0, text[max(0, len(text)-tailSize):]) }

// build makes the index of a text that begins at an offset of a log. sizes are those of its blocks.
func (m *mason) build(ident uint64, start, line int64, text []byte, sizes []int) *segment {
	s := &segment{ident: ident, start: start, line: line, tail: tailHash(text)}
	m.found = m.found[:0]
	clear(m.recent[:])
	end, lines := 0, 0
	for n, size := range sizes {
		b := block{off: int64(end), text: text[end : end+size]}
		sp := span{}
		b.lines(0, m.parser, &m.event, func(place) {
			if at := m.event.line.Time; at != 0 {
				if sp.max = max(sp.max, at); sp.min == 0 || at < sp.min {
					sp.min = at
				}
			}
			m.event.keys(func(c class, k []byte) { m.add(fingerprint(c, k), n) })
		})
		end, lines = end+size, lines+bytes.Count(b.text, []byte("\n"))
		sp.end, sp.lines = uint32(end), uint32(lines)
		s.blocks = append(s.blocks, sp)
	}
	slices.Sort(m.found)
	m.found = slices.Compact(m.found)
	s.entries = make([]uint32, len(m.found))
	at := 0
	for b := range bucketCount {
		s.bucket[b] = uint32(at)
		for ; at < len(m.found) && m.found[at]>>32 == uint64(b); at++ {
			s.entries[at] = uint32(m.found[at])
		}
		s.sums[b] = crc32.ChecksumIEEE(encodeEntries(nil, s.entries[s.bucket[b]:at]))
	}
	s.bucket[bucketCount] = uint32(at)
	return s
}

// add notes a fingerprint of a block.
func (m *mason) add(h uint64, n int) {
	v := h>>(64-33)<<blockBits | uint64(n)
	if r := &m.recent[v>>blockBits&uint64(len(m.recent)-1)]; *r != v+1 {
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
	for _, v := range []uint64{s.ident, uint64(s.start), uint64(s.line), s.tail, uint64(len(s.blocks))} {
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
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return encodeEntries(b, s.entries)
}

const (
	fixedHeader = len(segmentMagic) + 5*8
	spanSize    = 4 + 4 + 8 + 8
)

// headerSize is the length of a header with so many blocks, with its checksum.
func headerSize(blocks int) int { return fixedHeader + blocks*spanSize + bucketCount*8 + 4 }

// maxHeader bounds a header.
var maxHeader = headerSize(segmentBlocks)

var errDamaged = errors.New("it is damaged")

// decode reads the header of a segment's file, which b begins with.
func decodeSegment(b []byte) (*segment, error) {
	if len(b) < fixedHeader || string(b[:len(segmentMagic)]) != segmentMagic {
		return nil, errDamaged
	}
	word := func(n int) uint64 { return binary.LittleEndian.Uint64(b[len(segmentMagic)+8*n:]) }
	count := word(4)
	if count == 0 || count > segmentBlocks || len(b) < headerSize(int(count)) {
		return nil, errDamaged
	}
	size := headerSize(int(count))
	if crc32.ChecksumIEEE(b[:size-4]) != binary.LittleEndian.Uint32(b[size-4:]) {
		return nil, errDamaged
	}
	s := &segment{ident: word(0), start: int64(word(1)), line: int64(word(2)), tail: word(3), blocks: make([]span, count)}
	p := b[fixedHeader:]
	last := uint32(0)
	for i := range s.blocks {
		s.blocks[i] = span{binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:]), int64(binary.LittleEndian.Uint64(p[8:])), int64(binary.LittleEndian.Uint64(p[16:]))}
		if s.blocks[i].end <= last || s.start < 0 {
			return nil, errDamaged
		}
		last = s.blocks[i].end
		p = p[spanSize:]
	}
	for i := range s.sums {
		s.bucket[i+1], s.sums[i] = binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:])
		if s.bucket[i+1] < s.bucket[i] || s.bucket[i+1] > 1<<28 {
			return nil, errDamaged
		}
		p = p[8:]
	}
	return s, nil
}

// lookup says which blocks may have one of the keys whose fingerprints are given, in order. file is the segment's
// file, if it has one, and buf is room for what is read of it.
func (s *segment) lookup(prints []uint64, file io.ReaderAt, buf *[]byte) (found bitset, err error) {
	for len(prints) > 0 {
		b := int(prints[0] >> 56)
		n := 1
		for n < len(prints) && int(prints[n]>>56) == b {
			n++
		}
		// Of a bucket in a file only what is compared is decoded: a search for many messages reads most of the index.
		size := int(s.bucket[b+1] - s.bucket[b])
		entry := func(i int) uint32 { return s.entries[int(s.bucket[b])+i] }
		if s.entries == nil {
			raw, err := s.read(b, file, buf)
			if err != nil {
				return found, err
			}
			entry = func(i int) uint32 { return binary.LittleEndian.Uint32(raw[4*i:]) }
		}
		for _, h := range prints[:n] {
			want := uint32(h >> (64 - 33) << blockBits)
			for at := sort.Search(size, func(i int) bool { return entry(i) >= want }); at < size && entry(at)>>blockBits == want>>blockBits; at++ {
				found.set(int(entry(at) & (1<<blockBits - 1)))
			}
		}
		prints = prints[n:]
	}
	return found, nil
}

// read reads a bucket into buf, which it lets grow.
func (s *segment) read(b int, file io.ReaderAt, buf *[]byte) ([]byte, error) {
	size := 4 * int(s.bucket[b+1]-s.bucket[b])
	*buf = slices.Grow((*buf)[:0], size)[:size]
	if _, err := file.ReadAt(*buf, int64(headerSize(len(s.blocks)))+4*int64(s.bucket[b])); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if crc32.ChecksumIEEE(*buf) != s.sums[b] {
		return nil, errDamaged
	}
	return *buf, nil
}
