package track

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// maxWorkers bounds how many processors make the index.
	maxWorkers = 4
	// packedRatio is what a compressed log is taken to grow to until it was read, for the figures of progress.
	packedRatio = 10
)

// errTooLarge says that the index does not fit into the memory of a search, and cannot be kept.
var errTooLarge = errors.New("the index is not complete, and cannot be written")

// cover sees to it that all of a log has segments.
func (x *run) cover(ctx context.Context, s *source) error {
	if s.indexed {
		return nil
	}
	if s.packed {
		return x.coverPacked(ctx, s)
	}
	x.load(s)
	off, line := s.covered()
	if rest := s.size - off; rest >= x.sizes.rest && s.ident != 0 {
		if n := len(s.segments); n > 0 && !s.segments[n-1].full(x.sizes) {
			s.segments = s.segments[:n-1]
			off, line = s.covered()
		}
		c := newCutter(io.NewSectionReader(s.f, off, s.size-off), x.sizes.block, off, line)
		if err := x.build(ctx, s, c, true); err != nil {
			return err
		}
	}
	if off, line = s.covered(); off < s.size { // what is not stored
		c := newCutter(io.NewSectionReader(s.f, off, s.size-off), x.sizes.block, off, line)
		if err := x.build(ctx, s, c, false); err != nil {
			return err
		}
	}
	x.merge(s)
	s.indexed = true
	return nil
}

// full says whether a segment stays as it is when the log grows.
func (s *segment) full(z sizes) bool {
	return s.blockBits == volumeBits || len(s.blocks) == segmentBlocks || s.blocks[len(s.blocks)-1].end >= uint32(z.segment)
}

// parts is how many segments its segments count for.
func (s *source) parts() (n int) {
	for _, seg := range s.segments {
		n += seg.parts()
	}
	return n
}

// covered is where the segments of a log end, and the number of the line there.
func (s *source) covered() (off, line int64) {
	if len(s.segments) == 0 {
		return 0, 1
	}
	last := s.segments[len(s.segments)-1]
	return last.end(), last.line + int64(last.blocks[len(last.blocks)-1].lines)
}

// load takes the segments that there are.
func (x *run) load(s *source) {
	if s.ident == 0 || s.loaded {
		return
	}
	s.loaded = true
	buf := make([]byte, x.sizes.tail)
	for {
		at, _ := s.covered()
		seg := x.store.get(s.ident, s.parts())
		if seg == nil || seg.start != at || !s.sameTail(seg, &x.sizes, buf) || !x.timely(s, seg) {
			if x.store.discard(seg) {
				continue // there may be segments, which are of the text as it is now
			}
			return
		}
		s.segments = append(s.segments, seg)
		if !seg.full(x.sizes) {
			return
		}
	}
}

// coverPacked reads a compressed log from its beginning to its end. Segments that were made before it was compressed are
// used again.
func (x *run) coverPacked(ctx context.Context, s *source) error {
	r, err := s.reader()
	if err != nil {
		return err
	}
	defer func() { r.Close() }()
	stands, err := x.verify(ctx, s, r)
	if err != nil {
		return err
	}
	off, line := s.covered()
	if stands > off { // what is there is of another text: from its end on once more
		again, err := s.reader()
		if err != nil {
			return err
		}
		r.Close()
		r, stands = again, 0
	}
	if err := pass(ctx, r, off-stands); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	// What follows has no segment yet, or one that is not full.
	if err := x.build(ctx, s, newCutter(r, x.sizes.block, off, line), s.ident != 0); err != nil {
		return err
	}
	x.merge(s)
	s.indexed = true
	if n := len(s.segments); s.ident != 0 && n > 0 && !slices.ContainsFunc(s.segments, func(g *segment) bool { return g.entries != nil }) {
		size, _ := s.covered()
		_, last := s.segments[n-1].times()
		x.store.putDigest(s.raw, digest{s.ident, s.begin, size, s.parts(), tailsOf(s.segments)}, last)
	}
	return nil
}

// verify takes the segments that there are of a compressed log, as far as its text is what they say. It returns up to
// where r, which stands at the beginning, was read.
func (x *run) verify(ctx context.Context, s *source, r io.Reader) (stands int64, err error) {
	buf := make([]byte, x.sizes.tail)
	for s.ident != 0 {
		seg := x.store.get(s.ident, s.parts())
		if seg == nil || seg.start != stands || !seg.full(x.sizes) {
			break
		}
		from := x.sizes.tailOf(seg)
		err := pass(ctx, r, from-stands)
		if err == nil {
			_, err = io.ReadFull(r, buf[:seg.end()-from])
		}
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return 0, fmt.Errorf("%s: %w", s.name, err)
		}
		if err != nil || x.sizes.tailHash(buf[:seg.end()-from]) != seg.tail || !x.timely(s, seg) {
			x.store.discard(seg)
			return seg.end(), nil
		}
		s.segments = append(s.segments, seg)
		x.advance(seg.end() - stands)
		stands = seg.end()
	}
	return stands, nil
}

// pass reads over so many octets.
func pass(ctx context.Context, r io.Reader, n int64) error {
	const often = 16 << 20
	for n > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := io.CopyN(io.Discard, r, min(n, often))
		if n -= m; err != nil {
			return err
		}
	}
	return nil
}

// A job is the text of one segment.
type job struct {
	number int
	start  int64
	line   int64
	text   []byte
	sizes  []int
}

// gather takes the blocks of a segment.
func (j *job) gather(c *cutter, size int, whole bool) error {
	j.text, j.sizes = j.text[:0], j.sizes[:0]
	for len(j.sizes) < segmentBlocks && len(j.text) < size {
		b, err := c.next(whole)
		if err != nil {
			return err
		}
		if len(j.sizes) == 0 {
			j.start, j.line = b.off, b.line
		}
		j.text, j.sizes = append(j.text, b.text...), append(j.sizes, len(b.text))
	}
	return nil
}

// build makes the segments of what a cutter reads, on several processors, and has them stored if keep is true. A last line
// without its end is left out then, unless the log is compressed.
func (x *run) build(ctx context.Context, s *source, c *cutter, keep bool) error {
	workers := min(runtime.GOMAXPROCS(0), maxWorkers)
	if s.size < int64(x.sizes.segment) && !s.packed {
		workers = 1
	}
	jobs, free := make(chan *job), make(chan *job, workers+1)
	for range workers + 1 {
		free <- new(job)
	}
	b := &builder{run: x, source: s, first: s.parts(), keep: keep}
	var done sync.WaitGroup
	for range workers {
		done.Go(func() {
			m := newMason(x.sizes, s.now)
			for j := range jobs {
				b.make(m, j)
				free <- j
			}
		})
	}
	var err error
	for n := b.first; err == nil; n++ {
		j := <-free
		if err = ctx.Err(); err == nil {
			err = b.failure()
		}
		if err == nil {
			err = j.gather(c, x.sizes.segment, keep && !s.packed)
		}
		if err != nil && err != io.EOF {
			err = fmt.Errorf("%s: %w", s.name, err)
		}
		if len(j.sizes) > 0 && (err == nil || err == io.EOF) {
			j.number = n
			jobs <- j
		}
	}
	close(jobs)
	done.Wait()
	if err != io.EOF {
		return err
	}
	if err := b.failure(); err != nil {
		return err
	}
	s.segments = append(s.segments, b.made...)
	return nil
}

// A builder gathers the segments of a log. Its methods may be called concurrently.
type builder struct {
	*run
	source *source
	first  int // number of the first segment that is made
	keep   bool

	mu   sync.Mutex
	made []*segment
	err  error
}

func (b *builder) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// make makes the segment of a job.
func (b *builder) make(m *mason, j *job) {
	seg := m.build(b.source.ident, j.start, j.line, j.text, j.sizes)
	if !b.keep || !b.store.put(seg, j.number) {
		seg.sieve, seg.gate = nil, nil // half of what a segment takes; what is not kept is little, or read once more for a text
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.made) <= j.number-b.first {
		b.made = append(b.made, make([]*segment, j.number-b.first+1-len(b.made))...)
	}
	b.made[j.number-b.first] = seg
	if b.inMemory += len(seg.entries); b.inMemory > b.sizes.memory {
		b.err = errTooLarge
	}
	b.advance(int64(len(j.text)))
}

// missing is about how much text has no segments yet, in octets.
func (x *run) missing() (n int64) {
	for _, s := range x.sources {
		switch {
		case s.indexed:
		case s.packed:
			n += s.size * packedRatio
		default:
			x.load(s)
			off, _ := s.covered()
			n += s.size - off
		}
	}
	return n
}

// advance counts what was indexed. The caller holds the lock of the builder: there is one at a time.
func (x *run) advance(n int64) {
	x.done += n
	if x.Progress != nil {
		x.Progress(x.done, max(x.total, x.done), time.Now())
	}
}
