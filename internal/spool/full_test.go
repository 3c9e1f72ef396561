package spool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// fullWorld is a spool with mail of many ages in many segments, on a disk that
// others fill to the last block. From then on nothing can be made, and what
// becomes of the mail must be recorded all the same.
type fullWorld struct {
	*walk
	eager int // steps of maintenance after a commit are fewer than this
}

func newFullWorld(seed uint64, segSize int64, plant fault) *fullWorld {
	w := &fullWorld{walk: &walk{world: newWorld(seed, plant), sizes: []int64{segSize, 64 << 10, 20 << 10, 256 << 10, 1 << 20}}}
	w.opt.SegmentSize, w.opt.Budget = segSize, 0
	w.eager = 1 + w.r.IntN(4)
	return w
}

// mostMessages bounds those of a history, each step of which copies the model of all.
const mostMessages = 3000

// fill queues about n segments of mail, of which a part is delivered, and then
// fills the disk.
func (w *fullWorld) fill(n int) {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	largest := 1 + w.r.IntN(int(w.e.lim.inline))
	stay := w.r.IntN(100) // per cent
	for w.e.liveSum < int64(n)*w.opt.SegmentSize/2 && w.e.nextSegno < uint64(4*n) && len(w.now) < mostMessages {
		c := &change{}
		for range 1 + w.r.IntN(4) {
			msg, mm := w.newMessage(w.r.IntN(largest), 1+w.r.IntN(3))
			c.add(msg, mm)
		}
		w.must(c)
		for range 4 {
			if m := w.pick(); m != nil && w.r.IntN(100) >= stay {
				c := &change{}
				c.remove(m.id)
				w.must(c)
			}
		}
	}
	w.fillDisk(int64(w.r.IntN(2 * int(w.opt.SegmentSize))))
	if w.r.IntN(2) == 0 { // and then mail fills what there is
		for before := -1; len(w.now) > before && len(w.now) < mostMessages; {
			before = len(w.now)
			for range 20 {
				msg, mm := w.newMessage(w.r.IntN(largest), 1+w.r.IntN(3))
				c := &change{}
				c.add(msg, mm)
				w.must(c)
			}
		}
	}
}

// must records what is not to be refused.
func (w *fullWorld) must(c *change) {
	if !w.commit(c) || !w.maintain(w.r.IntN(w.eager)) {
		fail("%d messages: %v", len(w.now), w.e.broken)
	}
	if w.r.IntN(4) == 0 {
		w.e.housekeep()
	}
}

// step is what a queue manager does on such a day. It is false when the process
// is over.
func (w *fullWorld) step() bool {
	taken := map[mail.QueueID]bool{}
	var list []*change
	for range 1 + w.r.IntN(3) {
		c := &change{}
		m := w.pick()
		switch p := w.r.IntN(100); {
		case p < 10 || m == nil:
			msg, mm := w.newMessage(w.r.IntN(int(w.e.lim.inline)), 1+w.r.IntN(3))
			c.add(msg, mm)
		case taken[m.id]:
			continue
		case p < 12:
			c.remove(m.id)
		case p < 20:
			c.done(m.id, w.r.IntN(m.nrcpt))
		default:
			c.update(m.id, w.randomUpdate(m))
		}
		if m != nil {
			taken[m.id] = true
		}
		list = append(list, c)
	}
	if !w.commit(list...) {
		return false
	}
	if !w.maintain(w.r.IntN(w.eager)) {
		return false
	}
	if w.r.IntN(4) == 0 {
		w.e.housekeep()
	}
	return w.e.broken == nil
}

// lives runs n processes one after the other, of which each dies in the end,
// and so does one or the other of those that recover.
func (w *fullWorld) lives(n, steps int) {
	for range n {
		at := w.trigger(steps)
		w.hook = func(op vfs.Op) error {
			if at(op) {
				return vfs.ErrCut
			}
			return nil
		}
		for i := 0; i < steps && w.step(); i++ {
		}
		if err := w.e.broken; err != nil && !errors.Is(err, vfs.ErrCut) {
			fail("%d messages: %v", len(w.now), err)
		}
		w.logf("end of life: %d messages, %d segments free, kept %d, states %d+%d", len(w.now), len(w.e.free), w.e.kept(), w.e.metaSum, w.e.stateSum)
		w.crashes++
		w.recoverCut()
	}
}

func (w *fullWorld) summary() string {
	s := w.e.snapshot()
	return fmt.Sprintf("%d messages, %d of %d segments free, %d live octets, %d of states, kept %d", s.Messages, s.Free, s.Segments, s.LiveBytes, w.e.stateSum, w.e.kept())
}

// manyHistories runs usual random ones, or those of crashTime, and says how many.
func manyHistories(t *testing.T, usual int, segSize int64, run func(w *fullWorld)) (n int) {
	seed := firstSeed(t)
	t.Logf("first seed %d", seed)
	for start := time.Now(); goesOn(start, n, usual); seed++ {
		w := newFullWorld(seed, segSize, 0)
		if err := w.guard(func() { run(w); w.drain() }); err != nil {
			t.Fatalf("seed %d: %v\n%s\n%s", seed, err, w.summary(), strings.Join(tailOf(w.trace, 70), "\n"))
		}
		n++
	}
	return n
}

func eachSize(t *testing.T, test func(t *testing.T, segSize int64)) {
	once(t)
	t.Parallel()
	for _, segSize := range []int64{64 << 10, 256 << 10, 1 << 20} {
		t.Run(fmt.Sprint(segSize), func(t *testing.T) {
			t.Parallel()
			test(t, segSize)
		})
	}
}

// TestFullDisk: on a full disk everything is recorded for ever, and there is room
// again when the mail is gone.
func TestFullDisk(t *testing.T) {
	eachSize(t, func(t *testing.T, segSize int64) {
		manyHistories(t, 2, segSize, func(w *fullWorld) {
			w.fill(3 + w.r.IntN(20))
			before, written := w.e.nextSegno, w.e.stats.Written
			for steps := 0; w.e.nextSegno < before+4+uint64(2<<20/segSize); steps++ {
				if !w.step() || steps > 50_000 {
					fail("step %d: %d messages: %v", steps, len(w.now), w.e.broken)
				}
			}
			t.Logf("%s; %d segments written for %d", w.summary(), (w.e.stats.Written-written)/uint64(segSize), w.e.nextSegno-before)
			w.mem.Restart()
			if err := w.open(); err != nil {
				fail("open: %v", err)
			}
			w.settle()
		})
	})
}

// TestCrashFullDisk: no crash takes what the next start needs.
func TestCrashFullDisk(t *testing.T) {
	eachSize(t, func(t *testing.T, segSize int64) {
		n := manyHistories(t, 2, segSize, func(w *fullWorld) {
			w.fill(3 + w.r.IntN(10))
			w.lives(20, 200)
			w.hook = nil
		})
		t.Logf("%d histories", n)
	})
}

// TestStartsOnFullDisk: however many starts die, the next finds a segment to
// write to, unless more than two in a row die as soon as they have begun one.
func TestStartsOnFullDisk(t *testing.T) {
	once(t)
	t.Parallel()
	n := manyHistories(t, 8, 64<<10, func(w *fullWorld) {
		w.fill(3 + w.r.IntN(10))
		for range w.r.IntN(100) {
			if !w.step() {
				fail("%d messages: %v", len(w.now), w.e.broken)
			}
		}
		w.fall()
		for i := range 30 {
			at := w.trigger(20)
			w.hook = func(op vfs.Op) error {
				if i%3 < 2 && at(op) {
					return vfs.ErrCut
				}
				return nil
			}
			if err := w.open(); err != nil && !errors.Is(err, vfs.ErrCut) {
				fail("open: %v", err)
			}
			w.fall()
		}
		w.hook = nil
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		w.settle()
	})
	t.Logf("%d histories", n)
}

// TestStartsManyStates: starts on a full disk die after some number of syncs, one
// after the other, and the states of all mail are more than one batch takes. Each
// must bring the recovery point on, or the log runs out of segments.
func TestStartsManyStates(t *testing.T) {
	once(t)
	t.Parallel()
	for syncs := 2; syncs <= 6; syncs++ {
		t.Run(fmt.Sprint(syncs), func(t *testing.T) {
			t.Parallel()
			w := newFullWorld(3, 64<<10, 0)
			if err := w.guard(func() { startsManyStates(w, syncs) }); err != nil {
				t.Fatalf("%v\n%s\n%s", err, w.summary(), strings.Join(tailOf(w.trace, 40), "\n"))
			}
		})
	}
}

func startsManyStates(w *fullWorld, syncs int) {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	for range 600 {
		msg, mm := w.newMessage(w.r.IntN(4000), 2)
		c := &change{}
		c.add(msg, mm)
		w.must(c)
		if m := w.pick(); w.r.IntN(3) == 0 {
			c := &change{}
			c.remove(m.id)
			w.must(c)
		}
	}
	if w.e.metaSum < 2*w.e.lim.unit {
		fail("%d octets of states, which is little more than one batch takes", w.e.metaSum)
	}
	w.fillDisk(0)
	w.fall()
	for range 30 {
		left := syncs
		w.hook = func(op vfs.Op) error {
			if op.Kind == vfs.OpSync {
				left--
			}
			if left < 0 {
				return vfs.ErrCut
			}
			return nil
		}
		if err := w.open(); err != nil && !errors.Is(err, vfs.ErrCut) {
			fail("open: %v", err)
		}
		w.fall()
	}
	w.hook = nil
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	w.drain()
}

// TestLoweredBudget: what is kept free on a full disk goes by the mail that there is,
// also when that is more than a budget allows that was lowered under it.
func TestLoweredBudget(t *testing.T) {
	once(t)
	t.Parallel()
	w := newFullWorld(3, 64<<10, 0)
	if err := w.guard(func() {
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		w.settle()
		for range 1500 {
			msg, mm := w.newMessage(w.r.IntN(2000), 2)
			c := &change{}
			c.add(msg, mm)
			w.must(c)
		}
		w.opt.Budget = 20 * w.opt.SegmentSize
		w.mem.Restart()
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		w.settle()
		if n, want := w.e.kept(), forStarts+forWork+w.e.forStates(); n < want || w.e.spares() < want || want <= w.e.lim.reserve {
			fail("%d segments kept, %d spares, want %d; the budget reserves %d", n, w.e.spares(), want, w.e.lim.reserve)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestShortOfSegments: a process that finds fewer free segments than are kept, since
// those before it died while they won some back, wins them back itself.
func TestShortOfSegments(t *testing.T) {
	once(t)
	t.Parallel()
	for left := 2; left <= 3; left++ {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(8) {
				w := newFullWorld(seed, 64<<10, 0)
				w.eager = 1
				if err := w.guard(func() { shortOfSegments(w, left) }); err != nil {
					t.Fatalf("seed %d: %v\n%s\n%s", seed, err, w.summary(), strings.Join(tailOf(w.trace, 40), "\n"))
				}
			}
		})
	}
}

func shortOfSegments(w *fullWorld, left int) {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	update := func() {
		m := w.pick()
		c := &change{}
		c.update(m.id, Change{Set: SetAttempts, Attempts: m.attempts + 1})
		w.must(c)
		if len(w.cands) != 1 || w.now[m.id.Number()].attempts == m.attempts {
			fail("message %s: its state was not recorded; %d segments free", m.id, len(w.e.free))
		}
	}
	for range 300 {
		msg, mm := w.newMessage(w.r.IntN(4000), 2)
		c := &change{}
		c.add(msg, mm)
		w.must(c)
		if m := w.pick(); w.r.IntN(6) == 0 {
			c := &change{}
			c.remove(m.id)
			w.must(c)
		}
	}
	w.fillDisk(0)
	for w.e.head.off+3*blockSize <= w.e.head.size { // until the next batch but one begins a segment
		update()
	}
	for len(w.e.free) > left {
		s := w.e.pickFree()
		delete(w.e.segs, s.file)
		s.f.Close()
	}
	for i := 0; i < 500; i++ {
		update()
	}
	if !w.e.ready(forStarts + 1) {
		fail("%d segments free after many updates", len(w.e.free))
	}
}

// TestNoRoom: what cannot be recorded, since all that is left is alive, waits
// until there is room, and new mail is refused meanwhile.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"room", "close"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { noRoom(t, end == "close") })
		})
	}
}

func noRoom(t *testing.T, ends bool) {
	mem := vfs.NewMem(4096)
	var told []string
	opt := Options{FS: mem, Dir: "q", SegmentSize: 64 << 10, Warn: func(f string, a ...any) { told = append(told, fmt.Sprintf(f, a...)) }}
	s, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	mem.SetLimit(20 * opt.SegmentSize)
	var ids []mail.QueueID
	for {
		id, err := addOne(s)
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	// Reasons that are longer than anybody could have foreseen.
	done := make(map[mail.QueueID]error)
	for _, id := range ids {
		var b Batch
		b.Update(id, Change{Outcomes: []mail.Outcome{{Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: strings.Repeat("again", 400)}}})
		s.Post(&b, func(err error) { done[id] = err })
	}
	time.Sleep(time.Minute)
	synctest.Wait() // all that was answered has been heard
	if err := s.Err(); err != nil || len(done) == 0 || len(done) == len(ids) {
		t.Fatalf("%d of %d recorded, %v", len(done), len(ids), err)
	}
	heard := func(what string) bool {
		return slices.ContainsFunc(told, func(s string) bool { return strings.Contains(s, what) })
	}
	if !heard("cannot be recorded until the file system has room") {
		t.Errorf("told: %q", told)
	}
	if _, err := addOne(s); !errors.Is(err, ErrFull) {
		t.Errorf("new mail: %v", err)
	}
	for id, err := range done {
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if !ends {
		mem.SetLimit(0)
		time.Sleep(time.Minute)
		if _, err := addOne(s); err != nil {
			t.Errorf("with room again: %v", err)
		}
		if !heard("room again") {
			t.Errorf("told: %q", told)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(done) != len(ids) {
		t.Errorf("%d of %d told", len(done), len(ids))
	}
	recorded := 0
	for _, err := range done {
		switch {
		case err == nil:
			recorded++
		case !ends || !errors.Is(err, ErrFull):
			t.Errorf("%v", err)
		}
	}
	s = openTest(t, "q", opt) // there is a segment for that
	deferred := 0
	s.Entries(func(e Entry) bool {
		st, err := NewReader(mem, "q").Read(e.Ref, e.ID)
		if err != nil {
			t.Error(err)
			return false
		}
		if list, err := st.Outcomes(); err == nil && len(list) == 1 {
			deferred++
		}
		return true
	})
	if deferred != recorded || s.Stats().Messages < len(ids) {
		t.Errorf("%d recorded, %d found, %d messages", recorded, deferred, s.Stats().Messages)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Another size of segments on a full disk: the start goes on with the size that there is, all is
// recorded, and a start that finds room has the new size.
func TestSizeOnFullDisk(t *testing.T) {
	once(t)
	t.Parallel()
	sizes := paramSizes[:3]
	for _, from := range sizes {
		for _, to := range sizes {
			t.Run(fmt.Sprintf("%dk to %dk", from>>10, to>>10), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(3) {
					w := newFullWorld(seed, from, 0)
					if err := w.guard(func() { w.sizeOnFullDisk(to) }); err != nil {
						t.Fatalf("seed %d: %v\n%s\n%s", seed, err, w.summary(), strings.Join(tailOf(w.trace, 20), "\n"))
					}
				}
			})
		}
	}
}

func (w *fullWorld) sizeOnFullDisk(to int64) {
	from := w.opt.SegmentSize
	w.fill(6)
	for i := range 6 {
		w.fillDisk(w.r.Int64N(min(from, to)))
		w.mem.Restart()
		w.opt.SegmentSize = []int64{to, from}[i%2]
		if err := w.open(); err != nil {
			fail("start %d: %v", i, err)
		}
		w.settle()
		for range min(len(w.now), 1) * 60 {
			m := w.pick()
			c := &change{}
			c.update(m.id, Change{Set: SetAttempts, Attempts: m.attempts + 1})
			w.must(c)
			if len(w.cands) != 1 {
				fail("the state of %s was not recorded", m.id)
			}
		}
	}
	w.mem.SetLimit(0)
	w.opt.SegmentSize = to
	w.mem.Restart()
	if err := w.open(); err != nil {
		fail("with room: %v", err)
	}
	w.settle()
	if w.e.lim.segSize != to {
		fail("with room segments have %d octets, want %d", w.e.lim.segSize, to)
	}
	w.drain()
}
