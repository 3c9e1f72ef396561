package spool

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/mail"
)

// This is damage by whole blocks of 4 KB and by whole files, as disks and operators
// make it. What was acknowledged is there afterwards, as it was, or a finding of the
// recovery names it by its queue ID. The exception is a whole file: the report says only
// that something is gone of which all records were in it, and of the end of the last
// segment nobody may know.

// block is a history that ends, and then a disk that has lost a block or a file.
type block struct {
	*world
	lost, named, unnamed int
}

func (w *block) run() {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	for range 10 + w.r.IntN(60) {
		if !w.step() {
			fail("broken: %v", w.e.broken)
		}
	}
	if w.r.IntN(2) == 0 || w.e.head.off+2*blockSize > w.e.head.size { // without room for a promise
		if err := w.e.markClose(); err != nil {
			fail("close: %v", err)
		}
	} else if err := w.e.promise(); err != nil {
		fail("promise: %v", err)
	}
	for range 8 {
		w.spoil()
	}
}

// hole is what is gone of a segment: from lo to hi.
type hole struct {
	file   uint32
	lo, hi int64
	some   bool // blocks, and not a file or the end of one
}

// spoil takes a block, or a file, from a copy of the disk, and looks what is left.
func (w *block) spoil() {
	y := *w.world
	y.damage, y.trace, y.hook = true, nil, nil
	y.bases = maps.Clone(w.bases)
	y.mem = w.mem.Cut(keepAll)
	gone, what := w.destroy(&y)
	err := y.open()
	if err != nil {
		fail("%s: open: %v", what, err)
	}
	w.judge(&y, gone, what)
	y.mem = y.mem.Cut(keepAll)
	if err := y.open(); err != nil { // the start has left nothing that the next one stumbles over
		fail("%s: second open: %v", what, err)
	}
}

// destroy damages the disk of y.
func (w *block) destroy(y *world) (hole, string) {
	files := slices.Sorted(maps.Keys(w.e.segs))
	file := files[w.r.IntN(len(files))]
	size := w.e.segs[file].size
	name := segName("q", file)
	write := func(off int64, p []byte) {
		f, err := y.mem.OpenWrite(name)
		if err == nil {
			_, err = f.WriteAt(p, off)
		}
		if err == nil {
			err = f.Datasync()
		}
		if err != nil {
			fail("damage: %v", err)
		}
		f.Close()
	}
	switch w.r.IntN(8) {
	case 0:
		if err := y.mem.Remove(name); err != nil {
			fail("damage: %v", err)
		}
		return hole{file, 0, size, false}, fmt.Sprintf("file %d is gone", file)
	case 1:
		write(0, make([]byte, size))
		return hole{file, 0, size, false}, fmt.Sprintf("file %d is zeros", file)
	case 2:
		to := w.r.Int64N(size)
		f, err := y.mem.OpenWrite(name)
		if err == nil {
			err = f.Truncate(to)
		}
		if err != nil {
			fail("damage: %v", err)
		}
		f.Close()
		return hole{file, to, size, false}, fmt.Sprintf("file %d is cut at %d", file, to)
	}
	if w.r.IntN(5) == 0 {
		write(0, make([]byte, headRoom))
		return hole{file, 0, headRoom, true}, fmt.Sprintf("both headers of file %d are zeros", file)
	}
	off := w.r.Int64N(size/blockSize) * blockSize
	p := make([]byte, blockSize)
	kind := "zeros"
	if w.r.IntN(2) == 0 {
		kind = "garbage"
		for i := range p {
			p[i] = byte(w.r.Uint32())
		}
	}
	write(off, p)
	return hole{file, off, off + blockSize, true}, fmt.Sprintf("block at %d of file %d is %s", off, file, kind)
}

// judge looks for each message that was acknowledged.
func (w *block) judge(y *world, gone hole, what string) {
	rd := NewReader(y.mem, "q")
	defer rd.Close()
	rd.planter = plantOf(w.plant)
	named := func(id mail.QueueID) *Finding {
		for i, f := range y.rep.Findings {
			if f.ID == string(id) || strings.HasPrefix(f.ID, "...") && strings.HasSuffix(string(id), f.ID[3:]) {
				return &y.rep.Findings[i]
			}
		}
		return nil
	}
	// Of batches whose segment is gone with all that came after them nothing is left
	// that knows of them.
	silent := y.rep.Alarms == 0 && (gone.some || gone.file != w.e.head.file)
	places := (&rot{world: w.world}).places()
	seen := map[uint64]bool{}
	y.e.entries(func(en Entry) bool {
		n := en.ID.Number()
		seen[n] = true
		f, want := named(en.ID), w.now[n]
		if want == nil {
			if f == nil && silent {
				fail("%s: message %s came back in silence", what, en.ID)
			}
			return true
		}
		got, err := tryRead(rd, en)
		if err == nil && string(got.body) != string(want.body) {
			fail("%s: message %s: content differs", what, en.ID)
		}
		if f == nil && err != nil && (!errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), string(en.ID))) {
			fail("%s: message %s: a reader is not told that it is damaged: %v", what, en.ID, err)
		}
		if f == nil && silent && err == nil && diffMail(want, got) != "" {
			fail("%s: message %s is not as it was, in silence: %s", what, en.ID, diffMail(want, got))
		}
		if f != nil && f.Lost {
			fail("%s: message %s is there, and is said to be lost", what, en.ID)
		}
		return true
	})
	for n, m := range w.now {
		if seen[n] {
			continue
		}
		w.lost++
		if !inside(places[n], gone) && (gone.some || gone.file != w.e.head.file) { // a batch that is cut at the end of all is torn
			fail("%s: message %s is lost, and had a record elsewhere", what, m.id)
		}
		if f := named(m.id); f != nil && f.Lost {
			w.named++
			continue
		}
		w.unnamed++
		if silent {
			fail("%s: message %s is lost in silence", what, m.id)
		}
		if gone.some {
			fail("%s: message %s is lost, and no finding names it", what, m.id)
		}
	}
}

// inside says whether what is needed of a message touches what is gone.
func inside(list []place, gone hole) bool {
	for _, p := range list {
		if p.file == gone.file && p.lo < gone.hi && gone.lo < p.hi {
			return true
		}
	}
	return false
}

func TestBlockDamage(t *testing.T) {
	once(t)
	t.Parallel()
	var total block
	manySeeds(t, 40, func() bool { return total.named > 0 }, func(seed uint64) ([]string, error) {
		w := &block{world: newWorld(seed, 0)}
		err := w.guard(w.run)
		total.lost, total.named, total.unnamed = total.lost+w.lost, total.named+w.named, total.unnamed+w.unnamed
		return w.trace, err
	})
	t.Logf("%d messages lost, %d of them named", total.lost, total.named)
	if total.named == 0 {
		t.Error("no message was named: the test shows little")
	}
}
