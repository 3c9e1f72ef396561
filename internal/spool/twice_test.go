package spool

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/vfs"
)

// This is the crash loop for starts: a process is killed between the write
// and the sync of its last batch, so that what it wrote is seen and not
// durable; the next starts, and the power fails in that; a third starts,
// and writes, over what both have left. All of it is tried, with every run
// of sectors from the beginning or to the end lost.

// twiceTails are the last batches of the process that is killed.
var twiceTails = []struct {
	name string
	run  func(x *enum) bool
}{
	{"accept", func(x *enum) bool {
		var list []*change
		for range 3 {
			c := &change{}
			msg, mm := x.newMessage(1100, 1)
			c.add(msg, mm)
			list = append(list, c)
		}
		return x.commit(list...)
	}},
	{"deliver", func(x *enum) bool {
		c := &change{}
		if m := x.pick(); m != nil {
			c.done(m.id, 0, 1)
		}
		return x.commit(c)
	}},
	{"defer", func(x *enum) bool {
		c := &change{}
		if m := x.pick(); m != nil {
			c.update(m.id, x.randomUpdate(m))
		}
		return x.commit(c)
	}},
}

// twice is one such story.
type twice struct {
	enum
	starts int // quiet restarts before
	old    int // messages from before those
	step   int
}

// run plays the story up to the kill, and then all that may follow.
func (x *twice) run(tail func(*enum) bool) {
	x.restart()
	for range x.old {
		x.accept(1, 1500)
	}
	for range x.starts {
		x.mem.Restart()
		x.restart()
	}
	x.hook = func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			return vfs.ErrCut
		}
		return nil
	}
	if tail(&x.enum) {
		return // there was nothing to do
	}
	x.mem.Restart()
	for cut := 1; ; cut++ {
		y := x.child(x.mem.Clone())
		if y.startUntil(cut) {
			return
		}
		x.points++
		x.last = fmt.Sprintf("operation %d of the start", cut)
		d, _ := y.mem.Dirty()
		for k := 0; k <= d; k += x.step {
			x.follow(y, keepIf(func(i int) bool { return i >= k }))
			x.follow(y, keepIf(func(i int) bool { return i < k }))
		}
	}
}

// startUntil starts a process whose machine fails at the n-th operation that
// changes something. It is true when it has started before.
func (w *world) startUntil(n int) bool {
	w.hook = func(op vfs.Op) error {
		switch op.Kind {
		case vfs.OpCreate, vfs.OpRemove, vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir:
			n--
		}
		if n <= 0 {
			return vfs.ErrCut
		}
		return nil
	}
	defer func() { w.hook = nil }()
	err := w.open()
	if err != nil && !errors.Is(err, vfs.ErrCut) {
		fail("open: %v", err)
	}
	return err == nil
}

// follow is what comes after a power cut: a start, two messages, a kill, and
// one more start.
func (x *twice) follow(y *world, l vfs.Loss) {
	z := x.child(y.mem.Cut(l))
	z.bases = map[uint64]bool{}
	z.cands = y.cands
	x.images++
	for range 2 {
		x.recoveries++
		if err := z.open(); err != nil {
			fail("cut before %s: open: %v", x.last, err)
		}
		z.settle()
		for range 2 {
			msg, mm := z.newMessage(100, 1)
			c := &change{}
			c.add(msg, mm)
			z.commit(c)
		}
		z.mem.Restart()
	}
}

func keepIf(f func(i int) bool) vfs.Loss {
	return vfs.Loss{Sector: func(i, _, versions int) int {
		if f(i) {
			return versions
		}
		return 0
	}}
}

// runTwice tells all the stories, with every step-th run of sectors.
func runTwice(seed uint64, step int, plant fault) (*twice, error) {
	total := &twice{}
	for _, starts := range []int{1, 2, 3, 0} { // the telling ones first
		for _, old := range []int{1, 2, 0} {
			for _, tail := range twiceTails {
				x := &twice{enum: enum{world: newWorld(seed, plant)}, starts: starts, old: old, step: step}
				x.opt.SegmentSize, x.opt.Budget = 32<<10, 20*32<<10
				err := x.guard(func() { x.run(tail.run) })
				total.points, total.images, total.recoveries = total.points+x.points, total.images+x.images, total.recoveries+x.recoveries
				if err != nil {
					total.world = x.world
					return total, fmt.Errorf("%s, %d starts, %d messages: %w", tail.name, starts, old, err)
				}
			}
		}
	}
	return total, nil
}

func TestCrashTwice(t *testing.T) {
	once(t)
	t.Parallel()
	step := 3 // all of it takes a while: make crash does that
	if *crashTime >= 10*time.Second {
		step = 1
	}
	for seed := range uint64(2) {
		x, err := runTwice(seed, step, 0)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(tailOf(x.trace, 40), "\n"))
		}
		t.Logf("every run of sectors in %d: %d points, %d images, %d recoveries", step, x.points, x.images, x.recoveries)
	}
}
