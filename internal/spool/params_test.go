package spool

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"posthaste/internal/vfs"
)

// endings are the ways in which a process of these tests ends.
var endings = []struct {
	name string
	run  func(w *world)
}{
	{"closed", func(w *world) {
		if err := w.e.markClose(); err != nil {
			fail("close: %v", err)
		}
		if err := w.e.closeFiles(); err != nil {
			fail("close: %v", err)
		}
	}},
	{"killed", func(w *world) { w.mem.Restart() }},
	{"power cut", func(w *world) { w.mem = w.mem.Cut(vfs.RandomLoss(w.r)) }},
	{"killed in a batch", func(w *world) {
		// A tail of several messages: written, and not synced.
		w.hook = func(op vfs.Op) error {
			if op.Kind == vfs.OpSync && strings.HasSuffix(op.Name, ".seg") {
				return vfs.ErrCut
			}
			return nil
		}
		var list []*change
		for range 4 {
			c := &change{}
			msg, mm := w.newMessage(int(w.e.lim.inline), 2)
			if mm == nil {
				continue
			}
			c.add(msg, mm)
			list = append(list, c)
		}
		w.commit(list...)
		w.hook = nil
		w.mem.Restart()
	}},
}

// sizes are segment sizes to change between, and inlines the inline limits.
var (
	paramSizes   = []int64{16 << 10, 64 << 10, 256 << 10, 1 << 20}
	paramInlines = []int64{0, 1 << 10, 32 << 10}
)

// TestParameterChange: whatever the options of one process were, the next finds
// all that was acknowledged, with others.
func TestParameterChange(t *testing.T) {
	once(t)
	t.Parallel()
	for _, from := range paramSizes {
		for _, to := range paramSizes {
			for _, end := range endings {
				t.Run(fmt.Sprintf("%dk to %dk/%s", from>>10, to>>10, end.name), func(t *testing.T) {
					t.Parallel()
					for seed := range uint64(2) {
						w := newWorld(seed, 0)
						if err := w.guard(func() { w.changeParameters(from, to, end.run) }); err != nil {
							t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(tailOf(w.trace, 30), "\n"))
						}
					}
				})
			}
		}
	}
}

// changeParameters lives with segments of one size, then of the other, then of the first.
func (w *world) changeParameters(from, to int64, end func(*world)) {
	for i, size := range []int64{from, to, from} {
		w.opt.SegmentSize = size
		w.opt.InlineLimit = paramInlines[w.r.IntN(len(paramInlines))]
		w.opt.Budget = 0
		if w.r.IntN(2) == 0 {
			w.opt.Budget = 20 * max(from, to)
		}
		if err := w.open(); err != nil {
			fail("start %d: %v", i, err)
		}
		w.settle()
		for range 10 + w.r.IntN(40) {
			if !w.step() {
				fail("broken: %v", w.e.broken)
			}
			if w.r.IntN(4) == 0 {
				w.bulk(w.r)
			}
		}
		end(w)
	}
	if err := w.open(); err != nil {
		fail("last start: %v", err)
	}
	w.settle()
	w.drain()
	for range 20 {
		w.maintain(50)
		w.e.housekeep()
	}
	for _, s := range w.e.free {
		if s.size != w.e.lim.segSize {
			fail("a segment of %d bytes is among the free ones", s.size)
		}
	}
	if len(w.e.odd) > 0 {
		fail("%d free segments of another size are left, with room on the disk", len(w.e.odd))
	}
}

// bulk accepts several messages as long as they may be, in one batch.
func (w *world) bulk(r *rand.Rand) {
	var list []*change
	for range 1 + r.IntN(4) {
		c := &change{}
		msg, mm := w.newMessage(int(w.e.lim.inline), 1+r.IntN(3))
		if mm == nil {
			continue
		}
		c.add(msg, mm)
		list = append(list, c)
	}
	if !w.commit(list...) {
		fail("broken: %v", w.e.broken)
	}
}
