package spool

import (
	"strings"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// These are histories made for what recovery must not believe: a recovery point with damage after
// it, a recovery point in the tail, and a place beyond the end of a segment.

// checkpointed accepts so much small mail, and writes the state of all of it again behind a
// recovery point, at the start of a segment. It is false when the power went meanwhile.
func (w *world) checkpointed(n int) bool {
	for range n {
		w.accept(100)
	}
	e := w.e
	e.begin()
	e.w.force, e.w.upkeep, e.w.leave = true, true, 1
	e.idx.each(func(l *live) { e.putState(e.stage(l.number, l.created), nil) })
	e.moved = point{batch: e.batch, segno: e.nextSegno + 1}
	e.turn = true
	err := e.flush(false)
	e.turn = false
	return err == nil
}

// queues is in which queue each message is.
func (w *world) queues() map[mail.QueueID]Queue {
	m := map[mail.QueueID]Queue{}
	w.e.entries(func(en Entry) bool { m[en.ID] = en.Queue; return true })
	return m
}

// all fails unless every message that was acknowledged is in that queue.
func (w *world) all(want Queue) {
	got := w.queues()
	for _, m := range w.now {
		if q, ok := got[m.id]; !ok || q != want {
			fail("message %s: there %v, in %v; want %v", m.id, ok, q, want)
		}
	}
}

// passWorld has segments that hold the states of all its mail in one batch.
func passWorld() *world {
	w := newWorld(2, 0)
	w.mem = vfs.NewMem(512)
	w.opt.SegmentSize, w.opt.Budget = 64<<10, 0
	return w
}

// A block is gone of the batch that a recovery point begins with. The messages whose last state was
// in it are what their older records say: the point does not make an end of them, and they are not
// taken for mail that may have left the queue.
func TestPassOverDamage(t *testing.T) {
	t.Parallel()
	w := passWorld()
	err := w.guard(func() {
		w.check(w.started())
		if !w.checkpointed(60) {
			fail("no checkpoint: %v", w.e.broken)
		}
		s := w.e.head
		w.accept(100) // and that it was durable
		w.mem = w.mem.Cut(vfs.Loss{})
		for off := int64(headRoom + blockSize); off < headRoom+2*blockSize; off += 512 {
			w.check(w.mem.Damage(segName("q", s.file), off, vfs.ZeroSector, w.r))
		}
		w.damage = true
		w.check(w.open())
		if w.rep.Alarms == 0 {
			fail("the block was not missed")
		}
		w.all(Incoming)
		for _, f := range w.rep.Findings {
			if f.Lost || strings.Contains(f.Text, "hold") {
				fail("message %s: %s", f.ID, f.Text)
			}
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(tailOf(w.trace, 30), "\n"))
	}
}

// A recovery point in the tail is worth nothing before BOOT is durable. The process dies between the
// write and the sync of the batch that has it; the next one reads it from memory; and then the
// power goes in the write of BOOT, which leaves any one sector. The header of BOOT's segment may be
// that sector, and the batch with the point is gone.
func TestPassInTail(t *testing.T) {
	t.Parallel()
	w := passWorld()
	images := 0
	err := w.guard(func() {
		w.check(w.started())
		for range 30 {
			w.accept(100)
		}
		cut := false
		w.hook = func(op vfs.Op) error {
			if op.Kind == vfs.OpSync {
				cut = true
			}
			if cut {
				return vfs.ErrCut
			}
			return nil
		}
		if w.checkpointed(0) || !cut {
			fail("the checkpoint was durable")
		}
		w.mem.Restart()
		cut = false
		if err := w.open(); err == nil || !cut {
			fail("the start ended without a sync: %v", err)
		}
		dirty, _ := w.mem.Dirty()
		for k := range dirty {
			images++
			y := *w
			y.hook, y.trace, y.bases = nil, nil, map[uint64]bool{}
			y.mem = w.mem.Cut(keepOne(k))
			y.check(y.open())
			y.all(Incoming)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(tailOf(w.trace, 30), "\n"))
	}
	t.Logf("%d images", images)
	if images < 40 {
		t.Errorf("only %d sectors were in doubt", images)
	}
}

// A state says where its message is, and the file ends before that. The message is known to have lost
// its content from the start on, by name, and nothing beyond the end is counted as alive.
func TestPlaceBeyondEnd(t *testing.T) {
	t.Parallel()
	w := passWorld()
	err := w.guard(func() {
		w.check(w.started())
		var ids []mail.QueueID
		for range 3 {
			ids = append(ids, w.accept(1500).id)
		}
		old := w.e.head
		if !w.checkpointed(0) {
			fail("no checkpoint: %v", w.e.broken)
		}
		later := w.accept(100)
		w.endCleanly()
		l := w.e.idx.find(ids[1].Number(), new(live))
		f, err := w.mem.OpenWrite(segName("q", old.file))
		w.check(err)
		w.check(f.Truncate(int64(l.conOff) + 100)) // in the middle of the second
		w.check(f.Datasync())
		w.damage = true
		w.check(w.open())
		got := w.queues()
		for i, id := range append(ids, later.id) {
			want := Incoming
			if i == 1 || i == 2 {
				want = Corrupt
			}
			if got[id] != want {
				fail("message %d is in %v, want %v", i, got[id], want)
			}
		}
		if len(w.rep.Findings) != 2 {
			fail("findings: %v", w.rep.Findings)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(tailOf(w.trace, 30), "\n"))
	}
}
