package track

import (
	"encoding/binary"
	"hash/crc32"
	"io"
)

// merge makes volumes of the segments of a log that are in files, wherever there are enough of them, one behind the other.
func (x *run) merge(s *source) {
	if x.store == nil || x.store.lock == nil {
		return
	}
	list := s.segments[:0:0]
	for at, number := 0, 0; at < len(s.segments); {
		n := 1
		if number%volumeParts == 0 && at+volumeParts <= len(s.segments) {
			if v := x.volume(s.segments[at:at+volumeParts], number); v != nil {
				list, n = append(list, v), volumeParts
			}
		}
		if n == 1 {
			list = append(list, s.segments[at])
		}
		for range n {
			number += s.segments[at].parts()
			at++
		}
	}
	s.segments = list
}

// volume makes a volume of segments, of which the first one has this number, in their place. nil: they stay.
func (x *run) volume(parts []*segment, number int) *segment {
	first, last := parts[0], parts[len(parts)-1]
	v := &segment{blockBits: volumeBits, ident: first.ident, start: first.start, line: first.line, tail: last.tail}
	runs := make([][]uint64, 0, len(parts))
	var sieves []*sieve
	var counts []int
	for _, p := range parts {
		if p.blockBits != segmentBits || p.entries != nil || !p.full(x.sizes) {
			return nil
		}
		found, rows, err := x.contentOf(p, len(v.blocks))
		if err != nil {
			x.store.drop(p.name, err)
			return nil
		}
		runs, sieves, counts = append(runs, found), append(sieves, rows), append(counts, len(p.blocks))
		if p.zone != 0 {
			v.zone = p.zone
		}
		off, lines := uint32(p.start-v.start), uint32(p.line-v.line)
		for _, b := range p.blocks {
			b.end, b.lines = b.end+off, b.lines+lines
			v.blocks = append(v.blocks, b)
		}
	}
	v.fill(mergeRuns(runs))
	v.sieve = joinSieves(sieves, counts)
	if !x.store.putVolume(v, number, parts) {
		return nil
	}
	return v
}

// contentOf are the sieve of a segment's file, and its entries as those of a volume in which its blocks begin with the given one.
func (x *run) contentOf(s *segment, firstBlock int) ([]uint64, *sieve, error) {
	f, err := x.store.file(s.name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	entries, err := s.readEntries(f, firstBlock)
	if err != nil {
		return nil, nil, err
	}
	v, err := s.sieve.load(f, s.sieveAt())
	return entries, v, err
}

func (s *segment) readEntries(f io.ReaderAt, firstBlock int) ([]uint64, error) {
	raw := make([]byte, 4*int(s.bucket[len(s.sums)]))
	if _, err := io.ReadFull(io.NewSectionReader(f, int64(s.headerSize()), int64(len(raw))), raw); err != nil {
		return nil, errDamaged
	}
	found := make([]uint64, 0, len(raw)/4)
	for b, sum := range s.sums {
		part := raw[4*s.bucket[b] : 4*s.bucket[b+1]]
		if crc32.ChecksumIEEE(part) != sum {
			return nil, errDamaged
		}
		for ; len(part) > 0; part = part[4:] {
			e := uint64(b)<<32 | uint64(binary.LittleEndian.Uint32(part))
			block := e & (segmentBlocks - 1)
			if int(block) >= len(s.blocks) {
				return nil, errDamaged
			}
			found = append(found, e>>segmentBits<<volumeBits|(uint64(firstBlock)+block))
		}
	}
	return found, nil
}

// mergeRuns puts what is in order in each run in order.
func mergeRuns(runs [][]uint64) []uint64 {
	if len(runs) == 1 {
		return runs[0]
	}
	a, b := mergeRuns(runs[:len(runs)/2]), mergeRuns(runs[len(runs)/2:])
	all := make([]uint64, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0] <= b[0] {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}

// putVolume keeps a volume in the place of its parts. It says whether it was kept; its entries are then in the file only.
func (s *store) putVolume(v *segment, number int, parts []*segment) bool {
	names := map[string]bool{}
	for _, p := range parts {
		names[p.name] = true
	}
	s.mu.Lock()
	old := s.forget(names)
	s.mu.Unlock()
	name := volumeName(v.ident, number)
	_, last := v.times()
	kept := s.write(name, v.encode(), last)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !kept {
		for _, f := range old {
			s.insert(f)
		}
		return false
	}
	v.name, v.entries, v.sieve.rows, v.gate = name, nil, nil, nil
	for name := range names {
		s.dir.Remove(name) // if it stays, it is removed as the oldest some time
	}
	return true
}
