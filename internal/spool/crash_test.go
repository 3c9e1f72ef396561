package spool

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testseed"
	"posthaste/internal/vfs"
)

var (
	crashTime = flag.Duration("crash.time", 0, "how long each random crash test runs; 0: a number of histories, each its own")
	crashSeed = flag.Uint64("crash.seed", 0, "first seed of the random crash tests; 0: as package testseed says")
)

// walk is a random history with crashes. What it may lose: nothing that was
// acknowledged. What it may show: nothing that was not submitted, whole.
type walk struct {
	*world
	crashes, cutRecoveries, kills, failedSyncs int

	sizes   []int64 // of segments, that a start may have; nil: walkSizes
	largest int64   // segment so far, after the first change: what is left of it takes room
}

// run runs a history of n crashes.
func (w *walk) run(n int) {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	for range n {
		w.life()
		w.crashes++
		w.recoverCut()
	}
	w.hook = nil
	w.drain()
}

// life is one process: it runs until power, or the disk, fails.
func (w *walk) life() {
	at := w.trigger(60)
	failing := w.r.IntN(10) == 0
	injected := false
	w.hook = func(op vfs.Op) error {
		if !at(op) {
			return nil
		}
		if !failing {
			return vfs.ErrCut
		}
		if !injected && (op.Kind == vfs.OpSync || op.Kind == vfs.OpWrite || op.Kind == vfs.OpSyncDir) {
			injected = true
			w.logf("fails: %s", op)
			return syscall.EIO
		}
		return nil
	}
	warned := w.warned
	for steps := 0; w.step(); steps++ {
		if injected && w.warned == warned {
			fail("an injected error was reported by nobody")
		}
		if injected || steps > 200 { // it was no part of the log: this life has been long enough
			break
		}
	}
	if injected {
		w.failedSyncs++
	}
	w.logf("end of life: %d messages, %d segments free, %v", len(w.now), len(w.e.free), w.e.broken)
}

// trigger says, from some operation on, true: the n-th of all, or of a kind,
// since some kinds are rare and the moments around them matter.
func (w *walk) trigger(n int) func(vfs.Op) bool {
	left := 1 + w.r.IntN(n)
	kinds := []vfs.OpKind{vfs.OpSync, vfs.OpSyncDir, vfs.OpCreate, vfs.OpLink, vfs.OpRename, vfs.OpTruncate, vfs.OpRemove, vfs.OpWrite}
	one := w.r.IntN(3) == 0
	kind := kinds[w.r.IntN(len(kinds))]
	if one {
		left = 1 + w.r.IntN(4)
		if kind == vfs.OpSync || kind == vfs.OpWrite {
			left = 1 + w.r.IntN(max(1, n/3))
		}
	}
	return func(op vfs.Op) bool {
		if left > 0 && (!one || op.Kind == kind) {
			left--
		}
		return left == 0
	}
}

// fall is the end of the present process: the power goes, or only the process.
func (w *walk) fall() {
	if w.r.IntN(10) < 7 {
		w.mem = w.mem.Cut(vfs.RandomLoss(w.r))
		w.logf("power cut")
		return
	}
	w.kills++
	w.mem.Restart()
	w.logf("kill")
}

// recoverCut recovers, half of the time with further crashes on the way.
func (w *walk) recoverCut() {
	w.fall()
	for range w.r.IntN(4) {
		if w.r.IntN(2) == 0 {
			break
		}
		at := w.trigger(40)
		w.hook = func(op vfs.Op) error {
			if !at(op) {
				return nil
			}
			return vfs.ErrCut
		}
		w.vary()
		err := w.open()
		if err == nil {
			w.settle() // it was done before the crash came
		} else if !errors.Is(err, vfs.ErrCut) {
			fail("open: %v", err)
		}
		w.cutRecoveries++
		w.fall()
	}
	w.hook = nil
	w.vary()
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
}

// vary changes, now and then, what an operator may change between two starts.
func (w *walk) vary() {
	if w.r.IntN(4) > 0 {
		return
	}
	w.largest = max(w.largest, w.opt.SegmentSize)
	if w.r.IntN(3) == 0 {
		sizes := w.sizes
		if sizes == nil {
			sizes = walkSizes
		}
		w.opt.SegmentSize = sizes[w.r.IntN(len(sizes))]
		w.largest = max(w.largest, w.opt.SegmentSize)
	}
	w.opt.InlineLimit = []int64{0, 300, 1000, 2048}[w.r.IntN(4)]
	w.opt.Budget = []int64{0, 20, 24, 40}[w.r.IntN(4)] * w.largest
	w.opt.ExactDoubt = w.r.IntN(2) == 0
	w.logf("segments of %d, inline limit %d, budget %d, exact %v", w.opt.SegmentSize, w.opt.InlineLimit, w.opt.Budget, w.opt.ExactDoubt)
}

// walkSizes are the sizes of segments in a walk, besides the one that it begins with.
var walkSizes = []int64{16 << 10, 20 << 10, 40 << 10, 128 << 10}

// runWalk runs the history of one seed.
func runWalk(seed uint64, plant fault, total *walk) (trace []string, err error) {
	w := &walk{world: newWorld(seed, plant)}
	err = w.guard(func() { w.run(12) })
	if total != nil {
		total.crashes += w.crashes
		total.cutRecoveries += w.cutRecoveries
		total.kills += w.kills
		total.failedSyncs += w.failedSyncs
	}
	return w.trace, err
}

// once leaves a long test to the run without the race detector, which "make test" makes as well:
// what it does is one goroutine's, or another process's, and the detector would find nothing.
func once(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("run without the race detector")
	}
}

// goesOn says whether one more random history is run, after n that began at start: for as long as -crash.time says, and
// else usual ones, so that a slow machine finds what a fast one does, and works no longer than that takes.
func goesOn(start time.Time, n, usual int) bool {
	if *crashTime > 0 {
		return time.Since(start) < *crashTime
	}
	return n < usual
}

func firstSeed(t *testing.T) uint64 {
	t.Helper()
	if *crashSeed != 0 {
		return *crashSeed
	}
	return testseed.First(t)
}

func TestCrashWalk(t *testing.T) {
	once(t)
	t.Parallel()
	start := time.Now()
	seed := firstSeed(t)
	t.Logf("first seed %d", seed)
	var total walk
	for n := 0; goesOn(start, n, 10); n++ {
		if trace, err := runWalk(seed, 0, &total); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(tailOf(trace, 70), "\n"))
		}
		seed++
	}
	t.Logf("%d crashes (%d kills, %d failed writes or syncs), %d recoveries cut, %.0f crashes per minute", total.crashes, total.kills,
		total.failedSyncs, total.cutRecoveries, float64(total.crashes)/time.Since(start).Minutes())
}

func tailOf(s []string, n int) []string { return s[max(0, len(s)-n):] }

// enum tries, before every operation that changes something, what a power cut
// may leave.
type enum struct {
	*world
	points, images, recoveries int
	deep                       bool // cut recovery itself, too
	thorough                   bool // after each recovery fill the disk and use what segments there are
	last                       string
	deadline                   time.Time
	most                       int // images, 0: no bound
}

func (x *enum) attach() {
	x.hook = func(op vfs.Op) error {
		switch op.Kind {
		case vfs.OpCreate, vfs.OpLink, vfs.OpRename, vfs.OpTruncate, vfs.OpRemove, vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir:
			x.point(op)
		}
		return nil
	}
}

func (x *enum) point(op vfs.Op) {
	if x.enough() {
		return
	}
	x.points++
	x.last = op.String()
	list := losses(x.mem, x.r)
	if x.deep || x.thorough {
		list = []vfs.Loss{{}, keepAll, vfs.RandomLoss(x.r)}
	}
	for _, l := range list {
		if x.enough() {
			return
		}
		x.images++
		x.check(x.mem.Cut(l), x.deep)
	}
	x.images++
	x.check(x.mem.Clone(), x.deep) // the process is killed, and the power stays
}

func (x *enum) enough() bool {
	return x.most > 0 && x.images >= x.most || !x.deadline.IsZero() && time.Now().After(x.deadline)
}

// check recovers an image, compares, writes one message more, cuts again, and
// compares again.
func (x *enum) check(mem *vfs.Mem, deep bool) {
	y := x.child(mem)
	if deep {
		y.hook = func(op vfs.Op) error {
			switch op.Kind {
			case vfs.OpCreate, vfs.OpRename, vfs.OpTruncate, vfs.OpRemove, vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir:
				list := []vfs.Loss{{}, keepAll, vfs.RandomLoss(x.r)}
				if d, _ := y.mem.Dirty(); d > 0 {
					list = append(list, keepOne(x.r.IntN(d)), keepOne(x.r.IntN(d)), keepOne(d-1))
				}
				for _, l := range list {
					x.images++
					x.check(y.mem.Cut(l), false)
				}
			}
			return nil
		}
	}
	x.recoveries++
	if err := y.open(); err != nil {
		fail("cut before %s: open: %v", x.last, err)
	}
	y.hook = nil
	y.settle()
	if x.thorough {
		y.useLast()
	} else {
		msg, mm := y.newMessage(300, 1)
		c := &change{}
		c.add(msg, mm)
		y.commit(c)
	}
	y.mem = y.mem.Cut(vfs.Loss{})
	x.recoveries++
	if err := y.open(); err != nil {
		fail("cut before %s and again: open: %v", x.last, err)
	}
	y.settle()
}

// useLast brings it about, on a full disk, that a start takes the one segment
// that is left, and records something in it.
func (w *world) useLast() {
	if len(w.now) == 0 {
		return // before there is mail there may be no free segment, and no start on a full disk
	}
	w.fillDisk(0)
	update := func() {
		m := w.pick()
		c := &change{}
		c.update(m.id, Change{Set: SetAttempts, Attempts: m.attempts + 1})
		if !w.commit(c) {
			fail("broken: %v", w.e.broken)
		}
	}
	for i := 0; i < 20 && len(w.e.free) != 1; i++ {
		update()
	}
	w.mem.Restart()
	if err := w.open(); err != nil {
		fail("on a full disk: open: %v", err)
	}
	w.settle()
	update()
}

func (x *enum) child(mem *vfs.Mem) *world {
	y := *x.world
	y.mem = mem
	y.trace = nil
	y.hook = nil
	y.r = rand.New(rand.NewPCG(x.r.Uint64(), 7))
	y.hop = maps.Clone(x.hop)
	y.bases = map[uint64]bool{}
	for b := range x.bases {
		y.bases[b] = true
	}
	return &y
}

// keepOne keeps one of the sectors.
func keepOne(k int) vfs.Loss {
	return vfs.Loss{Sector: func(i, _, versions int) int {
		if i == k {
			return versions
		}
		return 0
	}}
}

var keepAll = vfs.Loss{
	Sector: func(_, _, versions int) int { return versions },
	Names:  func(_, _, ops int) int { return ops },
	Size:   func(int, int) bool { return true },
	Count:  func() bool { return true },
}

// losses enumerates what a cut may leave: all subsets of up to 8 dirty
// sectors, and of more those that are likely to be telling, times the
// prefixes of the names' changes.
func losses(m *vfs.Mem, r *rand.Rand) []vfs.Loss {
	d, names := m.Dirty()
	var picks []func(i int) bool
	if d <= 8 {
		for mask := range 1 << d {
			picks = append(picks, func(i int) bool { return mask>>i&1 != 0 })
		}
	} else {
		picks = append(picks, func(int) bool { return false }, func(int) bool { return true })
		for range 12 {
			k := r.IntN(d)
			picks = append(picks, func(i int) bool { return i < k }, func(i int) bool { return i >= k },
				func(i int) bool { return i != k }, func(i int) bool { return i == k })
			a, b := r.Uint64(), r.Uint64()
			picks = append(picks, func(i int) bool { return (a^b*uint64(i+1))>>(i%60)&1 != 0 })
		}
		picks = append(picks, func(i int) bool { return i == 0 }, func(i int) bool { return i != 0 })
	}
	var out []vfs.Loss
	for k := 0; k <= min(names, 2); k++ {
		for j, p := range picks {
			out = append(out, vfs.Loss{
				Sector: func(i, _, versions int) int {
					if p(i) {
						return versions
					}
					return 0
				},
				Names: func(_, _, ops int) int { return min(k, ops) },
				Size:  func(int, int) bool { return j%2 == 0 },
				Count: func() bool { return j%3 != 0 },
			})
		}
	}
	garbage := vfs.RandomLoss(r)
	garbage.Sector = func(i, n, versions int) int {
		if i == n-1 {
			return -1
		}
		return versions
	}
	return append(out, garbage)
}

// histories are the small stories that are tried in full.
var histories = []struct {
	name string
	run  func(x *enum)
}{
	{"accept", func(x *enum) { x.accept(1, 500) }},
	{"accept many", func(x *enum) { x.accept(4, 900) }},
	{"large", func(x *enum) { x.accept(1, 3000); x.finish(0) }},
	{"large again", func(x *enum) { // longer, new, and shorter
		x.accept(1, 3000)
		x.finish(0)
		x.tidy()
		x.accept(1, 5000)
		x.accept(1, 3000)
		for range 2 {
			x.finish(0)
		}
		x.tidy()
		x.accept(1, 2500)
		x.partly(0)
	}},
	{"defer", func(x *enum) { x.accept(2, 400); x.update(0); x.update(0); x.update(1) }},
	{"deliver", func(x *enum) { x.accept(2, 400); x.finish(0); x.partly(0); x.finish(0) }},
	{"in hand", func(x *enum) {
		x.accept(2, 400)
		x.change(func(c *change, m *modelMsg) { c.handed(m.id, 0, 1) })
		x.change(func(c *change, m *modelMsg) { c.handed(m.id, 1) })
		x.partly(0)
		x.update(0)
		x.change(func(c *change, m *modelMsg) { c.handed(m.id, 0) })
		x.finish(0)
	}},
	{"hold, release, remove", func(x *enum) {
		x.accept(1, 100)
		x.change(func(c *change, m *modelMsg) { c.update(m.id, Change{Set: SetQueue, Queue: Hold}) })
		x.change(func(c *change, m *modelMsg) { c.update(m.id, Change{Set: SetQueue, Queue: Deferred}) })
		x.change(func(c *change, m *modelMsg) { c.remove(m.id) })
	}},
	{"requeue", func(x *enum) {
		x.accept(1, 100)
		x.change(func(c *change, m *modelMsg) {
			msg, mm := x.newMessage(100, 1)
			c.add(msg, mm)
			c.remove(m.id)
		})
	}},
	{"recycle", func(x *enum) {
		for range 14 {
			x.accept(3, 1500)
			x.update(0)
			for len(x.now) > 2 {
				x.finish(0)
			}
			x.tidy()
		}
	}},
	{"restart", func(x *enum) {
		for range 3 {
			x.accept(2, 700)
			x.partly(0)
			x.mem.Restart()
			x.restart()
		}
	}},
	{"aligned", func(x *enum) { // a record in the middle of a batch starts a block
		for range 3 {
			x.must(x.commit(x.spanning(2048), x.spanning(2048), x.spanning(2048)))
			for len(x.now) > 0 {
				x.finish(0)
			}
		}
	}},
	{"old content", func(x *enum) { // what was there before the last start goes
		x.accept(1, 1500)
		x.accept(1, 1500)
		x.mem.Restart()
		x.restart()
		x.finish(0)
		x.finish(0)
		x.accept(1, 1500)
	}},
	{"last word", func(x *enum) { // the batch that says that a segment's content is over wants a new segment
		x.hook = nil // how it comes to that is tried by the others
		x.accept(1, 1500)
		old := x.pick()
		x.accept(1, 100) // proves that the one before was durable, so that it is not written again
		x.mem.Restart()
		x.restart()
		for x.e.head.off < x.e.head.size {
			x.change(func(c *change, m *modelMsg) { c.update(m.id, Change{Set: SetAttempts, Attempts: m.attempts + 1}) })
		}
		x.attach()
		c := &change{}
		c.remove(old.id)
		x.must(x.commit(c))
	}},
	{"dispositions", func(x *enum) { // nothing but what is recorded when mail is refused: no segment is made
		x.accept(1, 400)
	}},
	{"close", func(x *enum) {
		x.accept(2, 700)
		if err := x.e.markClose(); err != nil {
			fail("close: %v", err)
		}
		x.mem.Restart()
		x.restart()
		x.accept(1, 200)
	}},
}

func (x *enum) must(ok bool) {
	if !ok {
		fail("broken: %v", x.e.broken)
	}
}

func (x *enum) tidy() {
	x.must(x.maintain(10))
	x.e.housekeep()
}

func (x *enum) restart() {
	if err := x.open(); err != nil {
		fail("open: %v", err)
	}
	x.settle()
}

func (x *enum) accept(n, size int) {
	var list []*change
	for range n {
		c := &change{}
		msg, mm := x.newMessage(size, 2)
		c.add(msg, mm)
		list = append(list, c)
	}
	x.must(x.commit(list...))
}

// spanning adds a message whose record takes exactly so many bytes.
func (x *enum) spanning(span int64) *change {
	for size := int(span) - headerLen - 400; ; size++ {
		c := &change{}
		msg, mm := x.newMessage(size, 2)
		c.add(msg, mm)
		o := &c.b.ops[0]
		if alignUp(headerLen+int64(o.hi-o.lo+len(o.body)), recAlign) == span {
			return c
		}
	}
}

func (x *enum) change(f func(*change, *modelMsg)) {
	m := x.pick()
	if m == nil {
		return
	}
	c := &change{}
	f(c, m)
	x.must(x.commit(c))
}

func (x *enum) update(int) {
	x.change(func(c *change, m *modelMsg) { c.update(m.id, x.randomUpdate(m)) })
}

func (x *enum) finish(int) {
	x.change(func(c *change, m *modelMsg) { c.done(m.id, 0, 1) })
}

// finishLarge finishes the messages with a content file.
func (x *enum) finishLarge() {
	for _, m := range x.now {
		if m.big {
			c := &change{}
			c.done(m.id, 0, 1)
			x.must(x.commit(c))
		}
	}
}

func (x *enum) partly(int) {
	x.change(func(c *change, m *modelMsg) { c.done(m.id, 1) })
}

// runEnum tries one history in full, or until the deadline, or so many images.
func runEnum(i int, seed uint64, plant fault, deep bool, deadline time.Time, most int) (*enum, error) {
	x := &enum{world: newWorld(seed, plant), deep: deep, deadline: deadline, most: most}
	if histories[i].name == "aligned" {
		x.opt.SegmentSize, x.opt.Budget = 64<<10, 20*64<<10 // batches of several blocks
	}
	err := x.guard(func() {
		if name := histories[i].name; name == "accept" || name == "dispositions" { // the others start where these have been
			x.thorough = name == "dispositions"
			x.attach()
		}
		x.restart()
		x.attach()
		histories[i].run(x)
		x.point(vfs.Op{})
		x.hook = nil
		x.drain()
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", histories[i].name, err)
	}
	return x, err
}

func TestCrashEvery(t *testing.T) {
	for _, deep := range []bool{false, true} {
		for i, h := range histories {
			t.Run(fmt.Sprintf("%s/deep=%v", h.name, deep), func(t *testing.T) {
				t.Parallel()
				stop := time.Now().Add(*crashTime / 6)
				var total enum
				seed := uint64(0)
				for seed < 2 || *crashTime > 10*time.Second && time.Now().Before(stop) {
					seed++
					x, err := runEnum(i, seed, 0, deep, stop, 0)
					if err != nil {
						t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(tailOf(x.trace, 40), "\n"))
					}
					total.points, total.images, total.recoveries = total.points+x.points, total.images+x.images, total.recoveries+x.recoveries
				}
				t.Logf("%d seeds: %d points, %d images, %d recoveries", seed, total.points, total.images, total.recoveries)
			})
		}
	}
}
