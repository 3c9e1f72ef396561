package track

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

const (
	// gateShare is how many entries a segment has for each word of its gate: some six bits are for each key, as most are in more than one
	// block. Every tenth key that is not there gets through.
	gateShare = 20
	// gateAfter is after how many keys the gates are read: that costs as much as looking for about as many.
	gateAfter = 128
	// gateMemory bounds the gates of a search, in octets: those of about 16 GB of log.
	gateMemory = 64 << 20
)

// A gate says of the keys that a segment has not that they are not there: a Bloom filter of their fingerprints, of which both bits of a key are in one
// word. A search for all messages of a domain looks for thousands of queue IDs in each segment, which are in one or two of them;
// without the gates it reads a bucket of each for each.
type gate []uint64

// gateWords is how many words the gate of a segment has that has so many entries.
func gateWords(entries int) int { return entries/gateShare + 1 }

// of is the word of a key, by the bits of its fingerprint that are kept, and its bits there.
func (g gate) of(finger uint64) (n int, mask uint64) {
	t := newToken(finger)
	return int(uint64(t>>32) * uint64(len(g)) >> 32), 1<<(t&63) | 1<<(t>>6&63)
}

func (g gate) add(finger uint64) {
	n, mask := g.of(finger)
	g[n] |= mask
}

// passes says whether a key may be there. The empty gate lets all pass.
func (g gate) passes(finger uint64) bool {
	if len(g) == 0 {
		return true
	}
	n, mask := g.of(finger)
	return g[n]&mask == mask
}

func (g gate) encode() []byte {
	b := make([]byte, 0, 8*len(g))
	for _, w := range g {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// readGate reads the gate of a segment from its file.
func (s *segment) readGate(file io.ReaderAt) (gate, error) {
	b := make([]byte, 8*gateWords(s.size()))
	if _, err := file.ReadAt(b, s.gateAt()); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if crc32.ChecksumIEEE(b) != s.gateSum {
		return nil, errDamaged
	}
	g := make(gate, len(b)/8)
	for i := range g {
		g[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return g, nil
}

// gated says whether the gate of a segment should be read before so many keys are looked for in it. The caller is the only one that asks
// about this segment.
func (x *run) gated(s *segment) bool {
	if s.gate != nil || s.entries != nil || x.keys.Load() < gateAfter {
		return false
	}
	size := int64(8 * gateWords(s.size()))
	if x.gates.Add(size) > gateMemory {
		x.gates.Add(-size)
		return false
	}
	return true
}
