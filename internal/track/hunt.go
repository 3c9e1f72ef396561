package track

import (
	"cmp"
	"errors"
	"io"
	"os"
	"slices"
)

// A hit is a block of a segment that may have a wish, by its number; allLines: any of its lines may be wanted.
type hit struct{ block, wish int32 }

const allLines = -1

// A spot is a segment with hits in it, in the order of the blocks.
type spot struct {
	source *source
	seg    *segment
	hits   []hit
}

// A hunt is what blocks are gone through for: wishes, in the order of their fingerprints, and the blocks that may have them.
type hunt struct {
	wishes []wish
	fold   bool // their texts are in lower case
	spots  []spot
}

// A task is a block of a hunt, with the hits in it.
type task struct {
	source *source
	seg    *segment
	hits   []hit
}

// end is the position where the block ends.
func (t *task) end() int64 {
	off, _, size := t.seg.blockAt(int(t.hits[0].block))
	return position(t.source.number, off+int64(size))
}

// tasks are the blocks of a hunt, in order.
func (h *hunt) tasks() (list []task) {
	for _, p := range h.spots {
		for hits := p.hits; len(hits) > 0; {
			n := 1
			for n < len(hits) && hits[n].block == hits[0].block {
				n++
			}
			list = append(list, task{p.source, p.seg, hits[:n:n]})
			hits = hits[n:]
		}
	}
	return list
}

// blocks is how many blocks a hunt has.
func (h *hunt) blocks() (n int) {
	for _, p := range h.spots {
		for i := range p.hits {
			if i == 0 || p.hits[i].block != p.hits[i-1].block {
				n++
			}
		}
	}
	return n
}

// lookup finds the blocks that may have one of the wishes. span: of the time that is asked for only.
func (x *run) lookup(h *hunt, span bool) {
	slices.SortFunc(h.wishes, func(a, b wish) int { return cmp.Compare(a.print, b.print) })
	x.keys.Add(int64(len(h.wishes)))
	x.ask(h, span, func(seg *segment, f io.ReaderAt, buf *[]byte) (_ []hit, err error) {
		if x.gated(seg) {
			if seg.gate, err = seg.readGate(f); err != nil {
				return nil, err
			}
		}
		return seg.lookup(h.wishes, f, buf)
	})
}

// sift finds the blocks that may have all tokens of a matcher, in the time that is asked for.
func (x *run) sift(h *hunt, m *matcher) {
	every := h.every(m)
	x.ask(h, true, func(seg *segment, f io.ReaderAt, buf *[]byte) (hits []hit, err error) {
		if seg.sieve == nil {
			return seg.all(every), nil
		}
		blocks, err := seg.sieve.pick(len(seg.blocks), m.tokens, f, seg.sieveAt(), buf)
		for _, n := range blocks {
			hits = append(hits, hit{n, every.wish})
		}
		return hits, err
	})
}

// every is a hit in a block for a matcher that has no keys: of a text only the lines that have it are taken apart.
func (h *hunt) every(m *matcher) hit {
	if m.rough == "" {
		return hit{wish: allLines}
	}
	h.wishes, h.fold = []wish{{text: m.rough}}, true
	return hit{wish: 0}
}

// ask asks all segments, on several processors, which hits they have. One whose file cannot be read any more may have everything in
// every block. f may be called concurrently.
func (x *run) ask(h *hunt, span bool, f func(seg *segment, file io.ReaderAt, buf *[]byte) ([]hit, error)) {
	var list []spot
	for _, s := range x.sources {
		for _, seg := range s.segments {
			if !span || x.plan.meets(seg) {
				list = append(list, spot{source: s, seg: seg})
			}
		}
	}
	x.parallel(len(list), func(r *reader, n int) {
		seg := list[n].seg
		hits, err := x.askOne(seg, &r.bucket, f)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				x.store.drop(seg.name, err)
			}
			hits = seg.all(hit{wish: allLines})
		}
		list[n].hits = hits
	})
	for _, p := range list {
		h.add(x, p.source, p.seg, p.hits, span)
	}
}

func (x *run) askOne(seg *segment, buf *[]byte, f func(*segment, io.ReaderAt, *[]byte) ([]hit, error)) ([]hit, error) {
	if seg.entries != nil {
		return f(seg, nil, nil)
	}
	file, err := x.store.file(seg.name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return f(seg, file, buf)
}

// add adds the hits of a segment.
func (h *hunt) add(x *run, s *source, seg *segment, hits []hit, span bool) {
	if span && x.plan.timed {
		hits = slices.DeleteFunc(hits, func(t hit) bool { return !x.plan.reaches(seg, &seg.blocks[t.block]) })
	}
	if len(hits) > 0 {
		slices.SortFunc(hits, func(a, b hit) int { return cmp.Or(cmp.Compare(a.block, b.block), cmp.Compare(a.wish, b.wish)) })
		h.spots = append(h.spots, spot{s, seg, hits})
	}
}

// all are hits in all blocks of a segment, each like this one.
func (s *segment) all(h hit) (hits []hit) {
	for n := range s.blocks {
		h.block = int32(n)
		hits = append(hits, h)
	}
	return hits
}

// fewBlocks is how many blocks are gone through sooner than the sieves are asked for a condition that may have fewer.
const fewBlocks = 64

// driver chooses the condition that occurs in the fewest blocks, and returns its bit and these.
func (x *run) driver() (bit uint64, best *hunt) {
	least := 0
	try := func(i int, h *hunt) {
		if n := h.blocks(); best == nil || n < least {
			least, bit, best = n, 2<<i, h
		}
	}
	for i := range x.plan.matchers {
		if m := &x.plan.matchers[i]; m.wishes != nil {
			h := &hunt{wishes: slices.Clone(m.wishes), fold: m.fold}
			x.lookup(h, true)
			try(i, h)
		}
	}
	for i := range x.plan.matchers {
		if m := &x.plan.matchers[i]; m.tokens != nil && (best == nil || least > fewBlocks) {
			h := new(hunt)
			x.sift(h, m)
			try(i, h)
		}
	}
	if best != nil {
		return bit, best
	}
	return x.passage()
}

// passage is for what the index does not know, which is a text of less than three octets, a very large network or a time alone: all that lies in
// the time is gone through.
func (x *run) passage() (bit uint64, h *hunt) {
	bit, h = 1, new(hunt)
	every := hit{wish: allLines}
	for i := range x.plan.matchers {
		bit = 2 << i
		if every = h.every(&x.plan.matchers[i]); every.wish != allLines {
			break
		}
	}
	for _, s := range x.sources {
		for _, seg := range s.segments {
			h.add(x, s, seg, seg.all(every), true)
		}
	}
	return bit, h
}
