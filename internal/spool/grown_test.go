package spool

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// These are the histories of failures that are no power cut: a disk that says of a
// sync that it is done and has not done it, a file system that the kernel remounts
// read-only, content files that rot, operations that fail now and then; and of the
// whole Spool with its goroutines, in virtual time.

// manySeeds runs usual random histories, or those of crashTime, and says how many. Should these be few, it
// goes on until they have shown enough, or are 200. A nil enough is always so.
func manySeeds(t *testing.T, usual int, enough func() bool, run func(seed uint64) (trace []string, err error)) {
	t.Helper()
	seed := firstSeed(t)
	t.Logf("first seed %d", seed)
	n := 0
	for start := time.Now(); goesOn(start, n, usual) || enough != nil && n < 200 && !enough(); n++ {
		if trace, err := run(seed); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(tailOf(trace, 60), "\n"))
		}
		seed++
	}
	t.Logf("%d histories", n)
}

// bodies is what was ever submitted under each ID.
func (w *world) bodies() map[mail.QueueID][]byte {
	m := map[mail.QueueID][]byte{}
	for _, mm := range w.now {
		m[mm.id] = mm.body
	}
	return m
}

// TestCrashLie: on a disk that lies about syncs nothing that was acknowledged is
// promised. But what is there after a power cut is what was sent, whole, or is
// refused, and the spool starts and takes mail.
func TestCrashLie(t *testing.T) {
	once(t)
	t.Parallel()
	run := func(seed uint64) ([]string, error) {
		w := newWorld(seed, 0)
		w.damage = true
		return w.trace, w.guard(func() { w.lied() })
	}
	if _, err := run(1795468704160051515); err != nil { // whose sweep for room once had no end
		t.Fatal(err)
	}
	manySeeds(t, 60, nil, run)
}

func (w *world) lied() {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	sent := map[mail.QueueID][]byte{}
	w.mem.Lie(func() bool { return w.r.IntN(4) == 0 })
	for range 20 + w.r.IntN(60) {
		alive := w.step()
		for id, b := range w.bodies() {
			sent[id] = b
		}
		if !alive {
			fail("broken: %v", w.e.broken)
		}
	}
	w.mem = w.mem.Cut(vfs.RandomLoss(w.r))
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	rd := NewReader(w.mem, w.opt.Dir)
	defer rd.Close()
	w.now = model{}
	var entries []Entry
	w.e.entries(func(en Entry) bool { entries = append(entries, en); return true })
	for _, en := range entries {
		m, err := tryRead(rd, en)
		if err != nil {
			continue // told to who reads
		}
		if want, ok := sent[en.ID]; ok && !bytes.Equal(m.body, want) {
			fail("message %s: content differs", en.ID)
		}
		w.now[en.ID.Number()] = m
	}
	for _, en := range entries {
		c := &change{}
		c.remove(en.ID)
		if !w.commit(c) {
			fail("broken: %v", w.e.broken)
		}
	}
	w.now = model{}
	w.drain()
}

// TestCrashReadOnly: a file system becomes read-only at any operation, as Linux has
// it after an error. From then on nothing is acknowledged, and when it is writable
// again all that was is there. No process starts on it meanwhile, and each says why.
func TestCrashReadOnly(t *testing.T) {
	once(t)
	t.Parallel()
	manySeeds(t, 60, nil, func(seed uint64) ([]string, error) {
		w := &walk{world: newWorld(seed, 0)}
		return w.trace, w.guard(func() { w.readOnly() })
	})
}

func (w *walk) readOnly() {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	at, on := w.trigger(60), false
	w.hook = func(op vfs.Op) error {
		switch op.Kind {
		case vfs.OpCreate, vfs.OpTemp, vfs.OpLink, vfs.OpRename, vfs.OpRemove, vfs.OpWrite, vfs.OpTruncate, vfs.OpSync, vfs.OpSyncDir:
			if on = on || at(op); on {
				return syscall.EROFS
			}
		}
		return nil
	}
	for i := 0; i < 200 && w.step(); i++ {
	}
	w.mem.Restart()
	if on {
		if err := w.open(); !errors.Is(err, syscall.EROFS) {
			fail("a start on a read-only file system: %v", err)
		}
	}
	w.fall()
	w.hook = nil
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	w.drain()
}

// TestCrashPassing: operations of a process, also of one that starts, fail now and
// then, reads among them, and work again after that. What was acknowledged is there.
func TestCrashPassing(t *testing.T) {
	once(t)
	t.Parallel()
	failed := 0
	manySeeds(t, 15, func() bool { return failed > 0 }, func(seed uint64) ([]string, error) {
		w := &walk{world: newWorld(seed, 0)}
		return w.trace, w.guard(func() { failed += w.passing() })
	})
	if failed == 0 {
		t.Error("no start failed: the test shows little")
	}
	t.Logf("%d starts failed", failed)
}

func (w *walk) passing() (failed int) {
	rate, well := 0, 0
	stays, sick := false, ""                          // what fails of one start goes on until its end
	w.opt.sleep = func(time.Duration) { well = 1000 } // a wait is long enough for a disk that fails for a moment
	hook := func(op vfs.Op) error {
		if op.Kind == vfs.OpRead && op.Name == sick {
			return syscall.EIO
		}
		if well--; well < 0 && op.Kind != vfs.OpClose && w.r.IntN(rate) == 0 {
			w.logf("fails: %s", op)
			if stays && op.Kind == vfs.OpRead {
				sick = op.Name
			}
			return syscall.EIO
		}
		return nil
	}
	start := func() {
		rate = 20 + w.r.IntN(400)
		w.hook = hook
		for range w.r.IntN(6) {
			stays = w.r.IntN(2) == 0
			err := w.open()
			stays, sick = false, ""
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.EIO) {
				fail("open: %v", err)
			}
			failed++
			w.fall()
		}
		if w.hook = nil; w.e == nil || w.r.IntN(2) == 0 {
			w.fall()
			w.e = nil
		}
		if w.e == nil {
			if err := w.open(); err != nil {
				fail("open: %v", err)
			}
		}
		w.settle()
	}
	start()
	for range 6 {
		rate = 20 + w.r.IntN(200)
		w.hook = hook
		for i := 0; i < 100 && w.step(); i++ {
		}
		w.hook = nil
		w.fall()
		w.e = nil
		start()
	}
	w.hook = nil
	w.drain()
	return failed
}

// TestRotContent: whatever rots in a content file, its message is refused, and all
// others are as they were.
func TestRotContent(t *testing.T) {
	once(t)
	t.Parallel()
	refused := 0
	manySeeds(t, 100, func() bool { return refused > 0 }, func(seed uint64) ([]string, error) {
		w := newWorld(seed, 0)
		return w.trace, w.guard(func() { refused += w.rotContent() })
	})
	if refused == 0 {
		t.Error("no damage was noticed")
	}
}

func (w *world) rotContent() (refused int) {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	for i := 0; i < 40; i++ {
		if !w.step() {
			fail("broken: %v", w.e.broken)
		}
	}
	for _, m := range w.now {
		if !m.big {
			continue
		}
		name := bigFile("q", string(m.id))
		mem := w.mem.Clone()
		mem.Restart()
		at, kind := w.r.IntN(len(m.body)+4), w.r.IntN(vfs.NumDamages)
		if err := mem.Damage(name, int64(at), kind, w.r); err != nil {
			fail("damage: %v", err)
		}
		rd := NewReader(mem, "q")
		rd.planter = plantOf(w.plant)
		w.e.entries(func(en Entry) bool {
			got, err := tryRead(rd, en)
			switch {
			case en.ID != m.id && err != nil:
				fail("message %s: %v, and the damage is in that of %s", en.ID, err, m.id)
			case en.ID == m.id && err == nil && !bytes.Equal(got.body, m.body):
				fail("message %s: damage of kind %d at %d is not noticed", m.id, kind, at)
			case en.ID == m.id && err == nil:
				fail("message %s: damage of kind %d at %d changes nothing", m.id, kind, at)
			case err != nil:
				refused++
			}
			return true
		})
		rd.Close()
	}
	return refused
}

// TestCrashPost: what was posted, and told to be durable, is there after a power cut
// at any moment, and what was posted more than the delay before it was told.
func TestCrashPost(t *testing.T) {
	t.Parallel()
	posted, told := 0, 0
	usual := 100
	if raceEnabled {
		usual = 20
	}
	manySeeds(t, usual, func() bool { return 0 < told && told < posted }, func(seed uint64) (trace []string, err error) {
		synctest.Test(t, func(t *testing.T) {
			p, a, e := crashPost(t, rand.New(rand.NewPCG(seed, 3)))
			posted, told, err = posted+p, told+a, e
		})
		return nil, err
	})
	t.Logf("%d posted, %d told to be durable before a cut", posted, told)
	if told == 0 || told == posted {
		t.Error("the cuts came always at the same time: the test shows little")
	}
}

func crashPost(t *testing.T, r *rand.Rand) (posted, told int, err error) {
	mem := vfs.NewMem(512)
	var dead atomic.Bool
	left := atomic.Int64{}
	left.Store(1 << 40)
	opt := Options{Dir: "q", SegmentSize: 64 << 10, FS: &vfs.Faulty{FS: mem, Hook: func(op vfs.Op) error {
		if op.Kind == vfs.OpSync && left.Add(-1) < 0 {
			dead.Store(true)
		}
		if dead.Load() {
			return vfs.ErrCut
		}
		return nil
	}}}
	s, err := Open(opt)
	if err != nil {
		return 0, 0, err
	}
	first, err := s.Lease(40)
	if err != nil {
		return 0, 0, err
	}
	var ids []mail.QueueID
	for i := range uint64(40) {
		id := mail.MakeQueueID(time.Unix(1800000000, 0), first+i)
		var b Batch
		b.Add(Message{ID: id, Envelope: testEnvelope(id, 10), Recipients: testRecipients(1), NRcpt: 1, Content: []byte("0123456789")})
		if err := s.Commit(&b); err != nil {
			return 0, 0, err
		}
		ids = append(ids, id)
	}
	left.Store(int64(r.IntN(12)))
	durable := map[mail.QueueID]bool{}
	begun := map[mail.QueueID]bool{}
	var late []string
	done := make(chan func(), 2*len(ids)) // what the writer's goroutine says, told here
	for _, id := range ids {
		b, start := new(Batch), time.Now()
		b.Done(id, []int{0})
		begun[id] = true
		s.Post(b, func(err error) {
			alive, took := !dead.Load(), time.Since(start)
			done <- func() {
				if err == nil {
					durable[id] = true
				}
				if alive && took > 2*postDelay {
					late = append(late, fmt.Sprintf("%s after %v", id, took))
				}
			}
		})
		time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
		if r.IntN(6) == 0 {
			s.Hurry()
		}
		if s.Err() != nil {
			break
		}
	}
	dead.Store(true)
	if err := s.Close(); err != nil && !errors.Is(err, ErrBroken) {
		return 0, 0, err
	}
	synctest.Wait()
	for len(done) > 0 {
		(<-done)()
	}
	if len(late) > 0 {
		return 0, 0, fmt.Errorf("told too late: %v", late)
	}
	opt.FS = mem.Cut(vfs.RandomLoss(r))
	s, err = Open(opt)
	if err != nil {
		return 0, 0, err
	}
	defer s.Close()
	there := idsOf(s)
	for _, id := range ids {
		switch {
		case there[id] && durable[id]:
			return 0, 0, fmt.Errorf("message %s: its delivery was durable, and it is there", id)
		case !there[id] && !begun[id]:
			return 0, 0, fmt.Errorf("message %s is gone, and nobody has said so", id)
		}
	}
	return len(begun), len(durable), nil
}
