package track

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"posthaste/internal/logread"
)

// headSize is how much of a log's text tells it from others.
const headSize = 1 << 10

// A source is one log. It stays open under whatever name it is given meanwhile.
type source struct {
	number int // in the order of the logs
	name   string
	f      *os.File
	size   int64
	now    time.Time // lines without a year lie before it, and are of its time zone
	packed bool
	ident  uint64 // of the text; 0: it is too short to be told from others
	raw    uint64 // of a compressed file
	begin  int64  // time of the first line; 0: none has one

	segments []*segment
	loaded   bool // the segments that the store has are there
	indexed  bool // the segments are all of it
	unpacked io.ReadCloser
	at       int64 // where unpacked stands
}

// openSources opens logs, and puts them in the order in which they were written.
func (x *run) openSources(names []string) error {
	for _, name := range names {
		s, err := x.openSource(name)
		if err != nil {
			return err
		}
		x.sources = append(x.sources, s)
	}
	slices.SortStableFunc(x.sources, func(a, b *source) int {
		return cmp.Compare(uint64(a.begin)-1, uint64(b.begin)-1) // those without a time last
	})
	for i, s := range x.sources {
		s.number = i
	}
	return nil
}

func (x *run) openSource(name string) (*source, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	s := &source{name: name, f: f}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err == nil {
		s.size, s.now = info.Size(), info.ModTime().In(x.now.Location())
		if s.now.After(x.now) {
			s.now = x.now
		}
		err = x.examine(s)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// examine finds out what log it is, and when it begins.
func (x *run) examine(s *source) error {
	head := make([]byte, headSize)
	n, err := s.f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return err
	}
	if s.packed = logread.Packed(head[:min(n, 6)]); s.packed {
		end := make([]byte, headSize)
		m, err := s.f.ReadAt(end, max(0, s.size-headSize))
		if err != nil && err != io.EOF {
			return err
		}
		s.raw = fingerprint(0, fmt.Appendf(append(head[:n:n], end[:m]...), "%d", s.size))
		if d, ok := x.store.getDigest(s.raw); ok && x.useDigest(s, d) {
			if !slices.ContainsFunc(s.segments, func(g *segment) bool { return g.undated }) {
				s.begin = d.begin
				return nil
			}
			s.begin, err = s.first()
			return err
		}
		if n, err = x.unpackHead(s, head); err != nil {
			return err
		}
	}
	if n == headSize {
		s.ident = fingerprint(0, head)
	}
	s.begin, err = s.first()
	return err
}

// useDigest takes the segments of a compressed log, if all are there.
func (x *run) useDigest(s *source, d digest) bool {
	at := int64(0)
	for s.parts() < d.segments {
		seg := x.store.get(d.ident, s.parts())
		if seg == nil || seg.start != at || !x.timely(s, seg) {
			s.segments = nil
			return false
		}
		s.segments, at = append(s.segments, seg), seg.end()
	}
	if at != d.size || tailsOf(s.segments) != d.tails {
		s.segments = nil
		return false
	}
	s.ident, s.indexed = d.ident, true
	return true
}

// unpackHead reads the beginning of a compressed log's text.
func (x *run) unpackHead(s *source, head []byte) (int, error) {
	r, err := s.reader()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	n, err := io.ReadFull(r, head)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return n, err
}

// reader reads the text from its beginning.
func (s *source) reader() (io.ReadCloser, error) {
	return logread.Unpack(io.NewSectionReader(s.f, 0, s.size), s.name)
}

// first is the time of the first line that has one.
func (s *source) first() (int64, error) {
	r, err := s.reader()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	lines := logread.NewReader(r, s.now)
	for {
		l, err := lines.Next()
		if err == io.EOF {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", s.name, err)
		}
		if l.Time != 0 {
			return l.Time, nil
		}
	}
}

// read reads a block into buf. Blocks of a compressed log are best read in their order: it is unpacked up to them.
func (s *source) read(off int64, size int, buf []byte) (text []byte, err error) {
	text = slices.Grow(buf[:0], size)[:size]
	if !s.packed {
		n, err := s.f.ReadAt(text, off)
		if err != nil && (err != io.EOF || n < size) {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		return text, nil
	}
	if s.unpacked == nil || s.at > off {
		s.rest()
		if s.unpacked, err = s.reader(); err != nil {
			return nil, err
		}
		s.at = 0
	}
	n, err := io.CopyN(io.Discard, s.unpacked, off-s.at)
	if s.at += n; err == nil {
		n, err := io.ReadFull(s.unpacked, text)
		if s.at += int64(n); err == nil {
			return text, nil
		}
	}
	s.rest()
	return nil, errors.Join(fmt.Errorf("%s ends at octet %d, which it did not before", s.name, s.at), err)
}

// rest ends unpacking.
func (s *source) rest() {
	if s.unpacked != nil {
		s.unpacked.Close()
		s.unpacked = nil
	}
}

func (s *source) close() {
	s.rest()
	if s.f != nil {
		s.f.Close()
	}
}

// sameTail says whether a segment is of this text, which is not compressed, by its last octets.
func (s *source) sameTail(seg *segment, z *sizes, buf []byte) bool {
	off := z.tailOf(seg)
	if seg.end() > s.size {
		return false
	}
	text, err := s.read(off, int(seg.end()-off), buf)
	return err == nil && z.tailHash(text) == seg.tail
}
