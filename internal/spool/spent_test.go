package spool

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// A spentTest drives an engine with large messages.
type spentTest struct {
	t      *testing.T
	e      *engine
	fs     vfs.FS
	dir    string
	next   uint64
	warned []string
}

func newSpentTest(t *testing.T, fs vfs.FS, dir string, o Options) *spentTest {
	x := &spentTest{t: t, fs: fs, dir: dir}
	o.FS, o.Dir = fs, dir
	o.Warn = func(format string, args ...any) { x.warned = append(x.warned, format) }
	var err error
	if x.e, _, err = openEngine(&o, 0, randomBytes); err != nil {
		t.Fatal(err)
	}
	x.next, _ = x.e.numbers()
	drive(t, x.e, new(Batch)) // makes spare segments
	return x
}

// offer begins a message of that size, all of one character.
func (x *spentTest) offer(size int, c byte) (f *File, err error) {
	if f, err = x.e.newFile(); err != nil {
		return nil, err
	}
	if _, err = f.Write(bytes.Repeat([]byte{c}, size)); err != nil {
		f.Abort()
	}
	return f, err
}

// add queues a message.
func (x *spentTest) add(size int, c byte) mail.QueueID {
	x.t.Helper()
	f, err := x.offer(size, c)
	if err != nil {
		x.t.Fatal(err)
	}
	id := mail.MakeQueueID(time.Unix(1800000000, 0), x.next)
	x.next++
	var b Batch
	b.Add(Message{ID: id, Envelope: testEnvelope(id, size), Recipients: testRecipients(1), NRcpt: 1, File: f})
	if err := x.e.prepare(&b); err != nil {
		x.t.Fatal(err)
	}
	drive(x.t, x.e, &b)
	b.settle(nil)
	return id
}

func (x *spentTest) done(id mail.QueueID) {
	x.t.Helper()
	var b Batch
	b.Done(id, []int{0})
	drive(x.t, x.e, &b)
}

// open opens the content of a message.
func (x *spentTest) open(id mail.QueueID) *Content {
	x.t.Helper()
	l := x.e.idx.find(id.Number(), new(live))
	c, err := NewReader(x.fs, x.dir).Content(Ref{File: l.refSeg, Segno: x.e.segs[l.refSeg].segno, Offset: l.refOff, Length: l.refLen}, id)
	if err != nil {
		x.t.Fatal(err)
	}
	return c
}

// holds checks what an open content says.
func (x *spentTest) holds(c *Content, size int, char byte) {
	x.t.Helper()
	b, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(b, bytes.Repeat([]byte{char}, size)) {
		x.t.Errorf("content of %d: %d read, %v", size, len(b), err)
	}
	c.Close()
}

// spent is how many files wait; there must be no others but those of messages.
func (x *spentTest) spent() (n int) {
	x.t.Helper()
	names, err := x.fs.List(x.dir + "/" + bigDir)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, spentSuffix) {
			n++
		}
	}
	if len(names) != n+len(x.e.idx.big) || n != len(x.e.spent.files) {
		x.t.Errorf("%d files, %d of them spent, for %d messages; %d are known to be spent", len(names), n, len(x.e.idx.big), len(x.e.spent.files))
	}
	return n
}

func (x *spentTest) want(n int) {
	x.t.Helper()
	if got := x.spent(); got != n {
		x.t.Errorf("%d spent files, want %d", got, n)
	}
}

// TestSpentFiles: a large message is written where one was that is gone, be that
// longer or shorter, but not while somebody reads there.
func TestSpentFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	x := newSpentTest(t, vfs.OS{}, dir, Options{SegmentSize: 1 << 20})
	file := func(id mail.QueueID) os.FileInfo {
		t.Helper()
		st, err := os.Stat(bigFile(dir, string(id)))
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	id := x.add(300_000, 'a')
	first := file(id)
	for i, size := range []int{500_000, 200_000, 200_001, 140_000} {
		x.done(id)
		x.want(1)
		id = x.add(size, byte('b'+i))
		x.want(0)
		st := file(id)
		if !os.SameFile(first, st) {
			t.Errorf("a message of %d has a new file", size)
		}
		if chunks := (size + bigChunk - 1) / bigChunk; st.Size() != int64(size+4*chunks) {
			t.Errorf("a message of %d has a file of %d", size, st.Size())
		}
		x.holds(x.open(id), size, byte('b'+i))
	}
	reading := x.open(id)
	x.done(id)
	x.want(1)
	other := x.add(150_000, 'z')
	if os.SameFile(first, file(other)) {
		t.Error("a file is written to that somebody reads")
	}
	x.want(0)
	x.holds(reading, 140_000, 'e')

	f, err := x.offer(400_000, 'y') // given up
	if err != nil {
		t.Fatal(err)
	}
	f.Abort()
	x.done(other)
	if f, err = x.offer(400_000, 'y'); err != nil {
		t.Fatal(err)
	}
	f.Abort()
	x.want(0)
	if x.e.bigSum != 0 {
		t.Errorf("%d bytes are counted, of nothing", x.e.bigSum)
	}
	if err := errors.Join(x.e.markClose(), x.e.closeFiles()); err != nil || len(x.warned) > 0 {
		t.Errorf("%v, %q", err, x.warned)
	}
}

// TestSpentBound: no more of them are kept than a segment has bytes, and none
// over the end of the process, whatever end that is.
func TestSpentBound(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(4096)
	opt := Options{SegmentSize: 64 << 10}
	x := newSpentTest(t, mem, "q", opt)
	var ids []mail.QueueID
	for range 5 {
		ids = append(ids, x.add(20_000, 'a'))
	}
	for _, id := range ids {
		x.done(id)
	}
	x.want(3)
	if st := x.e.snapshot(); st.BigBytes != 0 || st.DiskBytes != int64(st.Segments)*st.SegmentSize+60_000 {
		t.Errorf("%+v", st)
	}
	mem.Restart()
	y := newSpentTest(t, mem, "q", opt)
	y.want(0)
	y.done(y.add(20_000, 'b'))
	y.want(1)
	if err := errors.Join(y.e.markClose(), y.e.closeFiles()); err != nil {
		t.Error(err)
	}
	y.want(0)
}

// TestSpentGiveWay: mail is not refused for lack of room that only spent files take.
func TestSpentGiveWay(t *testing.T) {
	t.Parallel()
	for _, minFree := range []bool{false, true} {
		mem := vfs.NewMem(4096)
		x := newSpentTest(t, mem, "q", Options{SegmentSize: 64 << 10})
		ids := []mail.QueueID{x.add(30_000, 'a'), x.add(20_000, 'b')}
		for _, id := range ids {
			x.done(id)
		}
		x.want(2)
		mem.SetLimit(1 << 40)
		free, _ := mem.Free("")
		mem.SetLimit(1<<40 - free + 10_000)
		size := 35_000 // more than is free with either, less than with both
		if minFree {
			size = 15_000
			x.e.lim.minFree = 20_000
			for _, s := range x.e.free {
				x.e.lim.minFree += s.size
			}
		}
		x.holds(x.open(x.add(size, 'c')), size, 'c')
		x.want(0)
	}
}

// TestNoRename: on a file system that cannot rename as it should files are
// removed, and that is told once.
func TestNoRename(t *testing.T) {
	t.Parallel()
	fs := &vfs.Faulty{FS: vfs.NewMem(4096), Hook: func(op vfs.Op) error {
		if op.Kind == vfs.OpRename {
			return syscall.EINVAL
		}
		return nil
	}}
	x := newSpentTest(t, fs, "q", Options{SegmentSize: 64 << 10})
	for range 3 {
		x.done(x.add(20_000, 'a'))
		x.want(0)
	}
	if len(x.warned) != 1 {
		t.Errorf("warnings: %q", x.warned)
	}
}
