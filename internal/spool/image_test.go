package spool

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// imageBeside writes an image while there is other work.
func (w *world) imageBeside() {
	alive := true
	if err := w.e.writeImage(func() bool {
		for range w.r.IntN(3) {
			c := w.randomChange(map[mail.QueueID]bool{})
			alive = alive && (c.b.Len() == 0 || w.commit(c)) && w.maintain(w.r.IntN(3))
		}
		return !alive
	}); err != nil && !errors.Is(err, errClosing) {
		w.warn("%v", err)
	}
}

// fill makes some mail of every kind.
func (w *world) fill(n int) {
	for range n {
		c := &change{}
		msg, mm := w.newMessage([]int{100, 900, 3000}[w.r.IntN(3)], []int{1, 2, 69}[w.r.IntN(3)])
		if mm == nil {
			fail("no content file")
		}
		c.add(msg, mm)
		if !w.commit(c) {
			fail("broken: %v", w.e.broken)
		}
		if mm.nrcpt > 1 {
			c := &change{}
			c.done(mm.id, 0, mm.nrcpt-1)
			w.commit(c)
		}
		if m := w.pick(); m != nil && w.r.IntN(2) == 0 {
			c := &change{}
			c.update(m.id, w.randomUpdate(m))
			w.commit(c)
		}
		w.maintain(10)
		w.e.housekeep()
	}
}

// start opens the spool with all that there is, and checks it.
func (w *world) start() {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
}

// imageWorld has a spool with some mail and an image of its index, written while other
// things were done.
func (w *world) imageWorld() {
	w.opt.image, w.opt.Budget = 1, 0
	w.start()
	w.fill(20)
	w.imageBeside()
}

// A start goes by the image and what was written since, and has what a start without an image
// has; a clean end leaves nothing to be read but the image.
func TestImageStart(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		w := newWorld(seed, 0)
		if err := w.guard(func() {
			w.imageWorld()
			w.fill(3)
			w.mem.Restart()
			w.start()
			if w.rep.Imaged == 0 || w.rep.Clean {
				fail("after a kill: %+v", w.rep)
			}
			w.fill(3)
			n := len(w.now)
			if err := w.e.markClose(); err != nil {
				fail("close: %v", err)
			}
			w.mem.Restart()
			w.start()
			if w.rep.Imaged != n || w.rep.Records != 0 || w.rep.Bytes != 0 || !w.rep.Clean {
				fail("after a clean end with %d messages: %+v", n, w.rep)
			}
			if names, _ := w.mem.List("q/" + imageDir); len(names) != 1 {
				fail("there are %d images", len(names))
			}
			w.drain()
		}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// Whatever happens to an image, a start has all mail, and nothing else to say.
func TestImageDamage(t *testing.T) {
	t.Parallel()
	w := newWorld(1, 0)
	if err := w.guard(func() {
		w.imageWorld()
		w.fill(2)
		w.mem.Restart()
		names, err := w.mem.List("q/" + imageDir)
		if err != nil || len(names) != 1 {
			fail("images: %q, %v", names, err)
		}
		name := path.Join("q", imageDir, names[0])
		f, err := w.mem.OpenWrite(name)
		if err != nil {
			fail("%v", err)
		}
		size, _ := f.Size()
		f.Close()
		used := 0
		try := func(what string, spoil func(*vfs.Mem) error) {
			y := (&enum{world: w}).child(w.mem.Clone())
			if err := spoil(y.mem); err != nil {
				fail("%s: %v", what, err)
			}
			if err := y.open(); err != nil {
				fail("%s: %v", what, err)
			}
			y.settle()
			if y.rep.Imaged > 0 {
				used++
			}
		}
		tries := 0
		for at := int64(0); at < size; at += 1 + int64(w.r.IntN(24)) {
			if at >= segHdrBytes && at < imageHeader {
				at = imageHeader // there is nothing between
			}
			tries++
			try(fmt.Sprintf("a bit of octet %d", at), func(m *vfs.Mem) error { return m.Damage(name, at, vfs.FlipBit, w.r) })
		}
		for n := int64(0); n < size; n += 301 {
			tries++
			try(fmt.Sprintf("cut to %d", n), func(m *vfs.Mem) error {
				f, err := m.OpenWrite(name)
				if err != nil {
					return err
				}
				return errors.Join(f.Truncate(n), f.Close())
			})
		}
		if used > 0 {
			fail("of %d damaged images %d were used", tries, used)
		}
		try("nothing", func(*vfs.Mem) error { return nil })
		if used != 1 {
			fail("an image without damage is not used")
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// copyImages puts the images of from in the place of those of to.
func copyImages(from, to *vfs.Mem) {
	dir := "q/" + imageDir
	old, _ := to.List(dir)
	for _, n := range old {
		if err := to.Remove(path.Join(dir, n)); err != nil {
			fail("%v", err)
		}
	}
	names, err := from.List(dir)
	if err != nil || len(names) == 0 {
		fail("no image: %v", err)
	}
	if err := to.MkdirAll(dir); err != nil {
		fail("%v", err)
	}
	for _, n := range names {
		f, err := from.Open(path.Join(dir, n))
		if err != nil {
			fail("%v", err)
		}
		size, _ := f.Size()
		if err := copyFile(to, f, size, path.Join(dir, n)); err != nil {
			fail("%v", err)
		}
		f.Close()
	}
	if err := to.SyncDir(dir); err != nil {
		fail("%v", err)
	}
}

// imageForeign has an image beside a log that it is not of: one that ends before it, as when an
// operator brings back segments and not the rest, and one that went another way since.
func (w *world) imageForeign() {
	w.imageWorld()
	before, now := w.mem.Clone(), w.now
	y := (&enum{world: w}).child(before)
	c := &change{}
	c.remove(w.pick().id)
	w.commit(c)
	w.e.housekeep()
	copyImages(w.mem, before)
	y.now, y.cands = now, []model{now}
	y.start()
	if y.rep.Imaged > 0 {
		fail("the image of a later log is used")
	}
	y.fill(8)
	w.fill(4)
	w.imageBeside()
	copyImages(w.mem, y.mem)
	y.mem.Restart()
	y.start()
	if y.rep.Imaged > 0 {
		fail("the image of a log that went another way is used")
	}
}

func TestImageForeign(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		w := newWorld(seed, 0)
		if err := w.guard(w.imageForeign); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// An image that the log has left behind is not used, and one of which all is there since is.
func TestImageOld(t *testing.T) {
	t.Parallel()
	w := newWorld(1, 0)
	w.opt.SegmentSize = 64 << 10
	if err := w.guard(func() {
		w.imageWorld()
		old := w.mem.Clone()
		w.e.images.every = -1
		w.fill(1)
		used, passed := false, false
		for !passed {
			w.fill(3)
			y := (&enum{world: w}).child(w.mem.Clone())
			copyImages(old, y.mem)
			y.opt.image = 1
			from := w.e.from.batch
			y.start()
			switch {
			case y.rep.Imaged > 0:
				used = true
			case from > 0:
				passed = true
			}
			for len(w.now) > 20 {
				c := &change{}
				c.remove(w.pick().id)
				w.commit(c)
			}
		}
		if !used {
			fail("an image of before is not used")
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// imageDamagedLog damages the log behind an image: the start finds what it finds without one.
// It says how many such starts found something.
func (w *world) imageDamagedLog() (found int) {
	w.imageWorld()
	w.e.images.every = -1
	from, file := w.e.head.off, w.e.head.file
	w.fill(4)
	w.mem.Restart()
	s := w.e.segs[file]
	for at := from; at < min(s.size, from+6*blockSize); at += 512 + int64(w.r.IntN(512)) {
		mem := w.mem.Clone()
		if err := mem.Damage(segName("q", file), at, vfs.FlipBit, w.r); err != nil {
			fail("%v", err)
		}
		var got [2]map[mail.QueueID]Queue
		var reps [2]RecoveryReport
		for i := range got {
			y := (&enum{world: w}).child(mem.Clone())
			y.opt.image = int64(1 - 2*i)
			y.damage = true
			if err := y.open(); err != nil {
				fail("open: %v", err)
			}
			got[i], reps[i] = map[mail.QueueID]Queue{}, y.rep
			y.e.entries(func(en Entry) bool { got[i][en.ID] = en.Queue; return true })
		}
		if !maps.Equal(got[0], got[1]) || !slices.Equal(reps[0].Findings, reps[1].Findings) || reps[0].Alarms != reps[1].Alarms {
			fail("damage at %d: with an image %+v, %v; without %+v, %v", at, reps[0], got[0], reps[1], got[1])
		}
		if reps[0].Alarms > 0 {
			found++
		}
	}
	return found
}

func TestImageDamagedLog(t *testing.T) {
	t.Parallel()
	found := 0
	for seed := range uint64(10) {
		w := newWorld(seed, 0)
		if err := w.guard(func() { found += w.imageDamagedLog() }); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	if found < 3 {
		t.Errorf("%d starts found damage: the test shows little", found)
	}
}

// Images are written while others commit, and where the spool works; and where images cannot
// be written nothing else suffers.
func TestImageWriters(t *testing.T) {
	t.Parallel()
	for _, broken := range []bool{false, true} {
		mem := vfs.NewMem(4096)
		var told sync.Map
		fsys := &vfs.Faulty{FS: mem, Hook: func(op vfs.Op) error {
			if broken && op.Kind == vfs.OpCreate && path.Base(path.Dir(op.Name)) == imageDir {
				return errors.New("no")
			}
			return nil
		}}
		opt := Options{FS: fsys, Dir: "q", SegmentSize: 256 << 10, image: 64 << 10, leaf: 8, leaves: 4,
			Warn: func(format string, args ...any) { told.Store(fmt.Sprintf(format, args...), true) }}
		s, err := Open(opt)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 150 {
					n, err := s.Lease(1)
					if err != nil {
						t.Error(err)
						return
					}
					id := mail.MakeQueueID(time.Unix(1700000000, 0), n)
					var b Batch
					b.Add(Message{ID: id, Envelope: testEnvelope(id, 500), Recipients: testRecipients(2), NRcpt: 2, Content: bytes.Repeat([]byte("x"), 500)})
					if err := s.Commit(&b); err != nil {
						t.Error(err)
					}
					b.Reset()
					b.Done(id, []int{int(n) % 2})
					s.Post(&b, nil)
					if err := s.Commit(new(Batch)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		warned := 0
		told.Range(func(text, _ any) bool { warned++; t.Log(text); return true })
		s, err = Open(opt)
		if err != nil {
			t.Fatal(err)
		}
		rep := s.Recovery()
		if n := s.Stats().Messages; n != 600 || broken && (rep.Imaged != 0 || warned == 0) || !broken && (rep.Imaged != 600 || warned != 0) {
			t.Errorf("images fail: %v: %d messages, %d of them by an image; %d warnings", broken, n, rep.Imaged, warned)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
