//go:build spoolplant

package spool

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// These are the histories for faults outside power cuts: in what a start believes
// about a damaged directory, and in what a reader believes.

func init() {
	more := map[fault]func(fault) string{
		plantOtherSize:  direct[plantOneSize],
		plantNoPatience: passes,
		plantReaderHeader: func(p fault) string {
			return some("headers gone while it runs", func(seed uint64) error { return worldOf(seed, p, (*world).headless) })
		},
		plantUnnamed: func(p fault) string {
			return some("one bit", func(seed uint64) error { return worldOf(seed, p, (*world).oneBit) })
		},
		plantNewIdentity: func(p fault) string {
			return some("without identity", func(seed uint64) error { return worldOf(seed, p, (*world).withoutIdentity) })
		},
		plantReusedUnsynced: func(p fault) string {
			return some("a content file used again", func(seed uint64) error { return worldOf(seed, p, (*world).reused) })
		},
		plantNoReserve: func(p fault) string {
			return some("a full disk", func(seed uint64) error { return someFullDisk(seed, p) })
		},
		plantUnreadDamage: func(p fault) string {
			return some("reads that fail", func(seed uint64) error { return worldOf(seed, p, (*world).readsFail) })
		},
		plantAnyRecord: func(p fault) string {
			return some("another's place", func(seed uint64) error { return worldOf(seed, p, (*world).otherPlaces) })
		},
		plantForgetHanded: func(p fault) string {
			return some("walk", func(seed uint64) error { _, err := runWalk(seed, p, nil); return err })
		},
	}
	for p, f := range more {
		direct[p] = f
	}
}

// TestHistoriesHold: without a fault none of these histories finds one.
func TestHistoriesHold(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 20; seed++ {
		for _, f := range []func(*world){(*world).headless, (*world).oneBit, (*world).withoutIdentity, (*world).reused,
			(*world).readsFail, (*world).otherPlaces} {
			if err := worldOf(seed, 0, f); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		}
		if seed > 13 || seed%4 != 1 { // they take long
			continue
		}
		if err := someFullDisk(seed, 0); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// someFullDisk is a full disk on which mail comes and goes.
func someFullDisk(seed uint64, p fault) error {
	w := newFullWorld(seed, 64<<10, p)
	return w.guard(func() {
		w.fill(3 + w.r.IntN(10))
		for range 2000 {
			if !w.step() {
				fail("%d messages: %v", len(w.now), w.e.broken)
			}
		}
	})
}

func worldOf(seed uint64, p fault, f func(*world)) error {
	w := newWorld(seed, p)
	return w.guard(func() { f(w) })
}

// lived has some mail in a spool that is open.
func (w *world) lived(steps int) {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	for range steps {
		if !w.step() {
			fail("broken: %v", w.e.broken)
		}
	}
}

// withoutIdentity: a spool with mail that does not tell which it is, is not started on.
func (w *world) withoutIdentity() {
	w.lived(40)
	files := sorted(w.e.segs)
	w.mem = w.mem.Cut(keepAll)
	for _, s := range files {
		for off := int64(0); off < headRoom; off += 512 {
			if err := w.mem.Damage(segName("q", s.file), off, vfs.ZeroSector, w.r); err != nil {
				fail("damage: %v", err)
			}
		}
	}
	if err := w.mem.Remove("q/" + identityFile); err != nil {
		fail("damage: %v", err)
	}
	if err := w.open(); !errors.Is(err, ErrNoIdentity) {
		fail("a start without any identity: %v", err)
	}
}

// reused: content in a file that had other content before is there after a power cut.
func (w *world) reused() {
	w.lived(0)
	for range 4 {
		c := &change{}
		msg, mm := w.newMessage(5000+w.r.IntN(3000), 1)
		c.add(msg, mm)
		if !w.commit(c) {
			fail("broken: %v", w.e.broken)
		}
		w.mem = w.mem.Cut(vfs.Loss{})
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		w.settle()
		for range 2 {
			c = &change{}
			msg, mm = w.newMessage(5000, 1)
			c.add(msg, mm)
			d := &change{}
			d.remove(mm.id)
			if !w.commit(c) || !w.commit(d) {
				fail("broken: %v", w.e.broken)
			}
			w.e.housekeep()
		}
	}
}

// readsFail: what cannot be read is not said to be damaged.
func (w *world) readsFail() {
	w.lived(30)
	rd := NewReader(&vfs.Faulty{FS: w.mem, Hook: func(op vfs.Op) error {
		if op.Kind == vfs.OpRead && strings.HasSuffix(op.Name, ".seg") {
			return syscall.EIO
		}
		return nil
	}}, "q")
	defer rd.Close()
	rd.planter = plantOf(w.plant)
	w.e.entries(func(en Entry) bool {
		if _, err := tryRead(rd, en); errors.Is(err, ErrCorrupt) || !errors.Is(err, syscall.EIO) {
			fail("message %s: %v", en.ID, err)
		}
		return true
	})
}

// otherPlaces: a record is taken for a message's only by its number, too.
func (w *world) otherPlaces() {
	w.lived(30)
	rd := NewReader(w.mem, "q")
	defer rd.Close()
	rd.planter = plantOf(w.plant)
	w.e.entries(func(en Entry) bool {
		when, number, err := en.ID.Parse()
		if err != nil {
			fail("%v", err)
		}
		if _, err := rd.Read(en.Ref, mail.MakeQueueID(when, number+1)); !errors.Is(err, ErrCorrupt) {
			fail("the record of message %s is taken for the next one's: %v", en.ID, err)
		}
		return true
	})
}

// headless: a reader needs no header of a segment.
func (w *world) headless() {
	w.lived(30)
	for _, s := range sorted(w.e.segs) {
		for off := int64(0); off < headRoom; off += 512 {
			if err := w.mem.Damage(segName("q", s.file), off, vfs.ZeroSector, w.r); err != nil {
				fail("damage: %v", err)
			}
		}
	}
	w.read()
}

// oneBit: of a message with one wrong bit in its only record, in front of the content, the
// report says by queue ID that it is lost.
func (w *world) oneBit() {
	w.lived(30)
	end := w.e.promise
	if w.e.head.off+2*blockSize > w.e.head.size { // without room for a promise
		end = w.e.markClose
	}
	if err := end(); err != nil {
		fail("end: %v", err)
	}
	var all []Entry
	w.e.entries(func(en Entry) bool { all = append(all, en); return true })
	for _, en := range all {
		y := *w
		y.damage, y.trace, y.bases = true, nil, map[uint64]bool{}
		y.mem = w.mem.Cut(keepAll)
		if err := y.mem.Damage(segName("q", en.Ref.File), int64(en.Ref.Offset)+headerLen+1, vfs.FlipBit, w.r); err != nil {
			fail("damage: %v", err)
		}
		if err := y.open(); err != nil {
			fail("open: %v", err)
		}
		if _, there := y.e.locate(en.ID); there {
			continue
		}
		if !slices.ContainsFunc(y.rep.Findings, func(f Finding) bool { return f.Lost && f.ID == string(en.ID) }) {
			fail("message %s is lost, and not named: %+v", en.ID, y.rep.Findings)
		}
	}
}
