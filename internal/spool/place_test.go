package spool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/vfs"
)

// bigFile is the name of a message's content file in a spool that has them in its own directory.
func bigFile(dir, id string) string { return path.Join(dir, bigDir, id) }

// newPlaceWorld is a world of two file systems: the log's, and that of content files.
func newPlaceWorld(seed uint64, plant fault) *world {
	w := newWorld(seed, plant)
	w.mem.Mount("c")
	w.opt.ContentDir = "c"
	w.opt.InlineLimit = 300 // so that a good part of the mail is large
	return w
}

// TestCrashWalkPlace is TestCrashWalk with content on a file system of its own. Both lose their
// power together, and either fails by itself.
func TestCrashWalkPlace(t *testing.T) {
	once(t)
	t.Parallel()
	manySeeds(t, 12, nil, func(seed uint64) ([]string, error) {
		w := &walk{world: newPlaceWorld(seed, 0)}
		return w.trace, w.guard(func() { w.run(12) })
	})
}

// TestEveryCrashPlace cuts the power before every operation of a start that makes the place, of
// large mail's life, and of the next start.
func TestEveryCrashPlace(t *testing.T) {
	once(t)
	t.Parallel()
	w := newPlaceWorld(7, 0)
	x := &enum{world: w}
	w.hook = func(op vfs.Op) error {
		switch op.Kind {
		case vfs.OpCreate, vfs.OpLink, vfs.OpRename, vfs.OpTruncate, vfs.OpRemove, vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir, vfs.OpMkdir:
			x.points++
			x.last = op.String()
			for _, l := range []vfs.Loss{{}, keepAll, vfs.RandomLoss(x.r)} {
				x.check(w.mem.Cut(l), false)
			}
			x.check(w.mem.Clone(), false)
		}
		return nil
	}
	err := w.guard(func() {
		for range 2 {
			if err := w.open(); err != nil {
				fail("open: %v", err)
			}
			w.settle()
			for _, size := range []int{200, 1500, 5000} {
				w.accept(size)
			}
			w.finish1(w.pick())
			w.accept(6000)
			w.mem.Restart()
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(tailOf(w.trace, 40), "\n"))
	}
	t.Logf("%d moments, %d recoveries", x.points, x.recoveries)
}

// otherPlace starts with another place than the one that has what the queue refers to, which is
// refused, and with the right one again.
func (w *world) otherPlace() {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	for range 1 + w.r.IntN(3) {
		w.accept(3000 + w.r.IntN(3000))
	}
	w.mem.Mount("d")
	for _, dir := range []string{"d", "", "c"} {
		w.mem.Restart()
		w.opt.ContentDir = dir
		switch err := w.open(); {
		case dir == "c" && err != nil:
			fail("the right place: %v", err)
		case dir != "c" && !errors.Is(err, ErrContent):
			fail("content is in c, and a start with %q: %v", dir, err)
		}
	}
	w.settle()
}

func TestOtherPlace(t *testing.T) {
	t.Parallel()
	w := newPlaceWorld(1, 0)
	if err := w.guard(w.otherPlace); err != nil {
		t.Fatal(err)
	}
}

// accept takes one message, which must succeed, and gives it.
func (w *world) accept(size int) *modelMsg {
	msg, mm := w.newMessage(size, 1)
	if mm == nil {
		fail("no file for %d octets: %v", size, w.e.broken)
	}
	c := &change{}
	c.add(msg, mm)
	if !w.commit(c) || w.now[mm.id.Number()] == nil {
		fail("%d octets were refused: %v", size, w.e.broken)
	}
	return mm
}

// finish1 delivers one message, and lets the housekeeper do what follows from that.
func (w *world) finish1(m *modelMsg) {
	c := &change{}
	c.remove(m.id)
	if !w.commit(c) {
		fail("cannot record a disposition: %v", w.e.broken)
	}
	w.e.housekeep()
}

// refused offers one message, which must be refused for that reason, and the log must go on.
func (w *world) refused(size int, want error) {
	f, err := w.e.newFile()
	if err == nil {
		if _, err = f.Write(make([]byte, size)); err == nil {
			_, err = f.finish("4SVLCh0000z7")
		}
		f.Abort()
	}
	if !errors.Is(err, want) {
		fail("%d octets: %v, want %v", size, err, want)
	}
	if err := w.e.isBroken(); err != nil {
		fail("the log is broken: %v", err)
	}
}

// started opens the spool and says what it had to say.
func (w *world) started() error {
	err := w.open()
	if err == nil {
		w.settle()
	}
	return err
}

// endCleanly closes the spool as it is closed.
func (w *world) endCleanly() { endings[0].run(w) }

// What a place may be when the spool is started: each row makes one of a spool with mail in the log and
// in three content files in "c", and says what becomes of the start.
func TestPlaceAtStart(t *testing.T) {
	t.Parallel()
	mem := func(w *world) *vfs.Mem { return w.mem }
	for _, tt := range []struct {
		name string
		do   func(w *world)
		want []string // in the error; nil: it starts
	}{
		{"as it was", func(w *world) {}, nil},
		{"not mounted", func(w *world) { mem(w).Unmount("c") }, []string{"c, where q has it, has no IDENTITY", "Mount its file system", "copy q/IDENTITY", "Nothing has been changed"}},
		{"gone", func(w *world) { w.opt.ContentDir = "x/y"; w.rename("c", "x"); w.recordAs("x/y") }, []string{"x/y, where q has it, is not there", "Mount"}},
		{"another spool's", func(w *world) { w.otherIdentity("c") }, []string{"c is that of another spool", "as q is"}},
		{"another directory", func(w *world) { w.opt.ContentDir = "d" }, []string{"3 messages in the queue have content in c, of which 3 are not in d (", "Move all files in c to d first"}},
		{"the spool's own", func(w *world) { w.opt.ContentDir = "" }, []string{"content in c, of which 3 are not in q/big", "Move all files in c to q/big first"}},
		{"moved", func(w *world) { w.opt.ContentDir = "d"; w.rename("c", "d") }, nil},
		{"moved without IDENTITY", func(w *world) { w.opt.ContentDir = "d"; w.rename("c", "d"); w.remove("d/IDENTITY") }, nil},
		{"moved to the spool's own", func(w *world) { w.opt.ContentDir = ""; w.remove("c/IDENTITY"); w.rename("c", "q/big") }, nil},
		{"one left behind", func(w *world) { w.opt.ContentDir = "d"; w.rename("c", "d"); w.moveOne("d", "c") }, []string{"of which 1 are not in d"}},
		{"to a directory in use", func(w *world) {
			w.opt.ContentDir = "d"
			w.rename("c", "d")
			w.remove("d/IDENTITY")
			w.create("d/important.txt")
		}, []string{"d has something else in it (important.txt)"}},
		{"IDENTITY lost", func(w *world) { w.remove("c/IDENTITY") }, nil},
		{"IDENTITY damaged", func(w *world) { w.spoil("c/IDENTITY", 16); w.spoil("c/IDENTITY", 4096+16) }, nil},
		{"CONTENT lost", func(w *world) { w.remove("q/CONTENT") }, nil},
		{"half of CONTENT damaged", func(w *world) { w.spoil("q/CONTENT", 20) }, nil},
		{"CONTENT damaged", func(w *world) { w.spoil("q/CONTENT", 20); w.spoil("q/CONTENT", 4096+20) }, nil},
		{"CONTENT damaged, and not mounted", func(w *world) {
			w.spoil("q/CONTENT", 20)
			w.spoil("q/CONTENT", 4096+20)
			w.mem.Unmount("c")
		}, []string{"has no IDENTITY", "Mount"}},
		{"what is not ours beside", func(w *world) { w.create("c/important.txt"); w.create("c/lost+found") }, nil},
	} {
		for _, end := range endings[:3] {
			t.Run(tt.name+"/"+end.name, func(t *testing.T) {
				t.Parallel()
				w := newPlaceWorld(3, 0)
				err := w.guard(func() { w.placeAtStart(tt.do, end.run, tt.want) })
				if err != nil {
					t.Fatalf("%v\n%s", err, strings.Join(tailOf(w.trace, 20), "\n"))
				}
			})
		}
	}
}

func (w *world) placeAtStart(do, end func(*world), want []string) {
	if err := w.started(); err != nil {
		fail("first start: %v", err)
	}
	for _, size := range []int{100, 400, 5000, 70000} {
		w.accept(size)
	}
	end(w)
	before := w.mem.Clone()
	do(w)
	predicted := CheckPlace(w.mem, "q", w.opt.ContentDir)
	here := w.changes()
	err := w.open()
	if len(want) == 0 {
		if err != nil || predicted != nil {
			fail("refused: %v; foretold: %v", err, predicted)
		}
		w.settle()
		if list, _ := w.mem.List(w.opt.ContentDir); slices.Contains(list, "important.txt") != (here.foreign) {
			fail("left in the place: %q", list)
		}
		w.accept(3000)
		w.endCleanly()
		if err := w.started(); err != nil {
			fail("the start after it: %v", err)
		}
		w.drain()
		return
	}
	for _, text := range append(want, "Nothing has been changed") {
		if !errors.Is(err, ErrContent) || !strings.Contains(err.Error(), text) {
			fail("%v, want %q in it", err, text)
		}
	}
	if predicted == nil || predicted.Error() != err.Error() {
		fail("foretold: %v, and it was: %v", predicted, err)
	}
	if *here.ops > 0 {
		fail("%d changes in a start that is refused", *here.ops)
	}
	// Nothing was lost by it: as it was it starts.
	w.hook = nil
	w.mem, w.opt.ContentDir = before, "c"
	if err := w.started(); err != nil {
		fail("as it was: %v", err)
	}
	w.drain()
}

type changes struct {
	ops     *int // that change a file
	foreign bool
}

// changes counts what the next start changes.
func (w *world) changes() changes {
	n := 0
	w.hook = func(op vfs.Op) error {
		if slices.Contains([]vfs.OpKind{vfs.OpWrite, vfs.OpCreate, vfs.OpRemove, vfs.OpRename, vfs.OpLink, vfs.OpTruncate}, op.Kind) {
			w.logf("start: %s", op)
			n++
		}
		return nil
	}
	list, _ := w.mem.List(w.opt.ContentDir)
	return changes{&n, slices.Contains(list, "important.txt")}
}

func (w *world) check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func (w *world) remove(name string) {
	w.check(w.mem.Remove(name))
	w.check(w.mem.SyncDir(path.Dir(name)))
}

func (w *world) create(name string) {
	f, err := w.mem.Create(name)
	w.check(err)
	w.check(errors.Join(f.Datasync(), f.Close(), w.mem.SyncDir(path.Dir(name))))
}

func (w *world) spoil(name string, off int64) {
	w.check(w.mem.Damage(name, off, vfs.RandomSector, w.r))
}

// copyTo copies a file, as an operator does with cp.
func (w *world) copyTo(from, to string) {
	f, err := w.mem.Open(from)
	w.check(err)
	size, err := f.Size()
	w.check(err)
	w.check(w.mem.MkdirAll(path.Dir(to)))
	w.check(errors.Join(copyFile(w.mem, f, size, to), f.Close(), w.mem.SyncDir(path.Dir(to))))
}

// rename moves all files of a directory to another, as an operator does with mv.
func (w *world) rename(from, to string) {
	names, err := w.mem.List(from)
	w.check(err)
	for _, n := range names {
		w.copyTo(path.Join(from, n), path.Join(to, n))
		w.remove(path.Join(from, n))
	}
}

// moveOne moves the first content file.
func (w *world) moveOne(from, to string) {
	names, err := w.mem.List(from)
	w.check(err)
	i := slices.IndexFunc(names, isContent)
	w.copyTo(path.Join(from, names[i]), path.Join(to, names[i]))
	w.remove(path.Join(from, names[i]))
}

// otherIdentity makes a directory that of another spool.
func (w *world) otherIdentity(dir string) {
	w.remove(path.Join(dir, identityFile))
	id := identity{uuid: [16]byte{1, 2, 3}}
	f, err := w.mem.Create(path.Join(dir, identityFile))
	w.check(err)
	_, err = f.WriteAt(id.put(), 0)
	w.check(errors.Join(err, f.Datasync(), f.Close(), w.mem.SyncDir(dir)))
}

// recordAs has CONTENT name a directory.
func (w *world) recordAs(dir string) {
	f, err := w.mem.OpenWrite("q/" + placeFile)
	w.check(err)
	_, err = f.WriteAt(putPlace(dir), 0)
	w.check(errors.Join(err, f.Datasync(), f.Close()))
}

// From big/ in the spool to a place and back, and what is said when the files have not come along.
func TestPlaceIsChanged(t *testing.T) {
	t.Parallel()
	for _, end := range endings {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(4) {
				w := newPlaceWorld(seed, 0)
				if err := w.guard(func() { w.changePlaces(end.run) }); err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(tailOf(w.trace, 30), "\n"))
				}
			}
		})
	}
}

func (w *world) changePlaces(end func(*world)) {
	dirs := []string{"q/big", "c", "d", "q/big", "c"}
	for i, dir := range dirs {
		w.opt.ContentDir = dir
		if dir == "q/big" {
			w.opt.ContentDir = ""
		}
		if i > 0 {
			w.mem.Restart()
			if err := w.open(); !errors.Is(err, ErrContent) || !strings.Contains(err.Error(), "Move all files in "+dirs[i-1]+" to "+dir+" first") {
				fail("from %s to %s without the files: %v", dirs[i-1], dir, err)
			}
			if w.r.IntN(2) == 0 {
				w.check(w.mem.MkdirAll(dir))
			}
			w.mem.Restart()
			w.rename(dirs[i-1], dir)
		}
		w.mem.Restart()
		if err := w.started(); err != nil {
			fail("in %s: %v", dir, err)
		}
		w.accept(5000)
		for range 10 {
			if !w.step() {
				fail("broken: %v", w.e.broken)
			}
		}
		w.accept(4000)
		end(w)
	}
	if err := w.started(); err != nil {
		fail("last start: %v", err)
	}
	w.drain()
}

// Content that was lost with its file system, and of which the operator has said so, concerns its
// messages alone.
func TestPlaceLost(t *testing.T) {
	t.Parallel()
	w := newPlaceWorld(1, 0)
	err := w.guard(func() {
		w.check(w.started())
		small, large := w.accept(100), w.accept(5000)
		w.endCleanly()
		w.mem.Unmount("c")
		w.copyTo("q/"+identityFile, "c/"+identityFile)
		w.damage = true
		w.check(w.open())
		for _, m := range []*modelMsg{small, large} {
			en, ok := w.e.locate(m.id)
			if !ok || (en.Queue == Corrupt) != m.big {
				fail("message %s: there %v, %v", m.id, ok, en.Queue)
			}
		}
		w.endCleanly()
		w.opt.ContentDir = "d" // the place can be changed when that has been dealt with
		if err := w.open(); !errors.Is(err, ErrContent) || !strings.Contains(err.Error(), string(large.id)) {
			fail("%v", err)
		}
		w.mem.Restart()
		w.opt.ContentDir = "c"
		w.check(w.open())
		c := &change{}
		c.remove(large.id)
		w.commit(c)
		w.endCleanly()
		w.opt.ContentDir = "d"
		w.check(w.open())
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(tailOf(w.trace, 20), "\n"))
	}
}

// A full file system for content refuses large mail, and no other; a full one for the log does not keep
// what has come from being delivered.
func TestPlaceFull(t *testing.T) {
	t.Parallel()
	for _, minFree := range []int64{0, 1 << 20} {
		t.Run(fmt.Sprintf("queue_minfree %d", minFree), func(t *testing.T) {
			t.Parallel()
			w := newPlaceWorld(2, 0)
			w.opt.Budget, w.opt.MinFree = 0, minFree
			err := w.guard(func() {
				w.check(w.started())
				first := w.accept(200 << 10)
				room := int64(40 << 10)
				if minFree > 0 {
					room = minFree - 1
				}
				w.mem.SetMountLimit("c", 1<<40)
				free, err := w.mem.Free("c")
				w.check(err)
				w.mem.SetMountLimit("c", 1<<40-free+room)
				w.refused(200<<10, ErrFull)
				for range 5 {
					w.accept(200)
				}
				w.finish1(first)
				w.accept(150 << 10) // where the first one was
				w.mem.SetMountLimit("c", 0)
				w.accept(200 << 10)
				w.mem = w.mem.Cut(vfs.RandomLoss(w.r))
				w.check(w.started())
				w.drain()
			})
			if err != nil {
				t.Fatalf("%v\n%s", err, strings.Join(tailOf(w.trace, 20), "\n"))
			}
		})
	}
}

// The budget is the log's: content elsewhere is none of it.
func TestPlaceBudget(t *testing.T) {
	once(t)
	t.Parallel()
	w := newPlaceWorld(3, 0)
	err := w.guard(func() {
		w.check(w.started())
		for range 8 {
			w.accept(200 << 10) // four times as much as all segments
		}
		for range 20 {
			w.accept(250)
		}
		w.drain()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A failure of the place for content, of whatever operation, is that of large messages. Others are
// taken, and large ones too when it works again.
func TestPlaceFails(t *testing.T) {
	t.Parallel()
	for _, kind := range []vfs.OpKind{vfs.OpTemp, vfs.OpWrite, vfs.OpSync, vfs.OpLink, vfs.OpSyncDir} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			w := newPlaceWorld(4, 0)
			err := w.guard(func() { w.placeFails(kind) })
			if err != nil {
				t.Fatalf("%v\n%s", err, strings.Join(tailOf(w.trace, 20), "\n"))
			}
		})
	}
}

func (w *world) placeFails(kind vfs.OpKind) {
	w.check(w.started())
	now := time.Unix(1700000000, 0)
	w.e.now = func() time.Time { return now }
	w.accept(5000)
	under, err := w.e.newFile() // of a message that comes in meanwhile
	w.check(err)
	w.hook = func(op vfs.Op) error {
		if op.Kind == kind && (op.Name == "c" || path.Dir(op.Name) == "c") {
			return syscall.EIO
		}
		return nil
	}
	w.refused(5000, ErrUnstored)
	for range 5 {
		w.accept(200)
	}
	w.hook = nil
	if kind == vfs.OpSyncDir {
		w.refused(5000, ErrUnstored) // not before it was looked at
		now = now.Add(contentPause)
		w.accept(5000)
		if _, err := under.finish("4SVLCh0000z9"); !errors.Is(err, ErrUnstored) {
			fail("a message whose name may be gone was accepted: %v", err)
		}
	}
	under.Abort()
	w.accept(5000)
	w.mem = w.mem.Cut(vfs.Loss{})
	w.check(w.started())
	w.drain()
}

// A reader that is not told where content is goes by what the spool says, and takes content for
// neither gone nor damaged when its file system is not there.
func TestReaderOfPlace(t *testing.T) {
	t.Parallel()
	w := newPlaceWorld(5, 0)
	err := w.guard(func() {
		w.check(w.started())
		large := w.accept(5000)
		en, _ := w.e.locate(large.id)
		for _, told := range []bool{false, true} {
			rd := func() *Reader {
				rd := NewReader(w.mem, "q")
				if told {
					rd.UseContent(nil, "c")
				}
				return rd
			}
			mounted := rd()
			b, err := readAlone(mounted, en)
			w.check(err)
			if len(b) != 5000 {
				fail("%d octets", len(b))
			}
			w.check(mounted.CheckContent())
			w.mem.Unmount("c")
			for _, r := range []*Reader{mounted, rd()} {
				if _, err := readAlone(r, en); !errors.Is(err, ErrUnread) {
					fail("told %v, not mounted: %v, want ErrUnread", told, err)
				}
			}
			if err := rd().CheckContent(); (err != nil) != told {
				fail("told %v: %v", told, err)
			}
			w.mem.Mount("c")
			w.remove("c/" + string(large.id))
			if _, err := readAlone(mounted, en); !errors.Is(err, ErrStale) {
				fail("the file is gone: %v, want ErrStale", err)
			}
			w.copyBack(large)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// copyBack makes the content file of a message again.
func (w *world) copyBack(m *modelMsg) {
	f, err := w.e.newFile()
	w.check(err)
	_, err = f.Write(m.body)
	w.check(err)
	_, err = f.finish(string(m.id))
	w.check(err)
}

// The tools find the content, and say so when it is not there.
func TestToolsAndPlace(t *testing.T) {
	t.Parallel()
	w := newPlaceWorld(6, 0)
	err := w.guard(func() {
		w.check(w.started())
		w.accept(100)
		w.accept(5000)
		w.endCleanly()
		rep, err := Check(w.mem, "q")
		if err != nil || len(rep.Problems) > 0 || rep.Messages != 2 {
			fail("%+v, %v", rep, err)
		}
		w.mem.Unmount("c")
		rep, err = Check(w.mem, "q")
		if err != nil || len(rep.Problems) != 2 || !strings.Contains(rep.Problems[0], "a file system is not mounted there") {
			fail("not mounted: %q, %v", rep.Problems, err)
		}
		w.mem.Mount("c")
		w.spoil("q/CONTENT", 20)
		w.spoil("q/CONTENT", 4096+20)
		rep, err = Check(w.mem, "q")
		if err != nil || len(rep.Problems) != 2 || !strings.Contains(rep.Problems[0], "CONTENT is damaged") {
			fail("CONTENT damaged: %q, %v", rep.Problems, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What CONTENT says is what was written, and nothing that is not sound is believed.
func TestPlaceRecord(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	for _, dir := range []string{"/srv/content", "/" + strings.Repeat("x", maxContentPath-1)} {
		for _, tt := range []struct {
			spoil []int64
			want  recordedPlace
		}{
			{nil, recordedPlace{true, dir, 2}},
			{[]int64{100}, recordedPlace{true, dir, 1}},
			{[]int64{4096 + 100}, recordedPlace{true, dir, 1}},
			{[]int64{100, 4096 + 100}, recordedPlace{true, "", 0}},
		} {
			m := vfs.NewMem(512)
			f, err := m.Create(placeFile)
			if err == nil {
				_, err = f.WriteAt(putPlace(dir), 0)
			}
			for _, at := range tt.spoil {
				err = errors.Join(err, m.Damage(placeFile, at, vfs.FlipBit, r))
			}
			got, rerr := readPlace(m, ".", asItIs)
			if err != nil || rerr != nil || got != tt.want {
				t.Errorf("%.20s, damaged at %d: %v, want %v (%v, %v)", dir, tt.spoil, got, tt.want, err, rerr)
			}
		}
	}
}
