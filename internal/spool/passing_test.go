package spool

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// flaky is a file system whose reads fail, or give a wrong bit, as long as it is told to.
type flaky struct {
	vfs.FS
	errno atomic.Bool
	lies  atomic.Int32 // how many more reads of message data give a wrong bit
	write atomic.Bool  // writes and syncs of content files fail
}

type flakyFile struct {
	vfs.File
	fs  *flaky
	big bool
}

func (f *flaky) Open(name string) (vfs.File, error)       { return f.wrap(f.FS.Open(name)) }
func (f *flaky) OpenWrite(name string) (vfs.File, error)  { return f.wrap(f.FS.OpenWrite(name)) }
func (f *flaky) OpenShared(name string) (vfs.File, error) { return f.wrap(f.FS.OpenShared(name)) }

func (f *flaky) wrap(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &flakyFile{File: file, fs: f}, nil
}

func (f *flaky) CreateTemp(dir string) (vfs.File, error) {
	file, err := f.FS.CreateTemp(dir)
	if err != nil {
		return nil, err
	}
	return &flakyFile{File: file, fs: f, big: true}, nil
}

func (f *flaky) Link(file vfs.File, name string) error {
	return f.FS.Link(file.(*flakyFile).File, name)
}

func (f *flakyFile) ReadAt(p []byte, off int64) (int, error) {
	if f.fs.errno.Load() {
		return 0, syscall.EIO
	}
	n, err := f.File.ReadAt(p, off)
	if n > 0 && off >= headRoom && f.fs.lies.Add(-1) >= 0 {
		p[n/2] ^= 1
	}
	return n, err
}

func (f *flakyFile) Datasync() error {
	if f.big && f.fs.write.Load() {
		return syscall.EIO
	}
	return f.File.Datasync()
}

// A read that fails says nothing about what is there, and damage counts when it is
// seen twice.
func TestPassingReadError(t *testing.T) {
	t.Parallel()
	p := newPatient(t, 1<<20)
	sick := &flaky{FS: p.mem}
	p.fs = sick
	p.mustStart()
	ids := []mail.QueueID{p.add(500), p.add(20000), p.add(200 << 10)}
	p.deferAll(ids[1])
	rd := NewReader(sick, "q")
	defer rd.Close()
	for _, id := range ids {
		en, _ := p.e.locate(id)
		read := func() error {
			st, err := rd.Read(en.Ref, id)
			if err != nil {
				return err
			}
			if _, err := st.Envelope(); err != nil {
				return err
			}
			c, err := st.Content()
			if err != nil {
				return err
			}
			defer c.Close()
			got, err := io.ReadAll(c)
			if err == nil && !bytes.Equal(got, p.want[id]) {
				t.Errorf("%s: wrong content", id)
			}
			return err
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
		sick.errno.Store(true)
		if err := read(); !errors.Is(err, ErrUnread) || !errors.Is(err, syscall.EIO) || errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", id, err)
		}
		sick.errno.Store(false)
		sick.lies.Store(1)
		if err := read(); err != nil {
			t.Errorf("%s: a wrong bit that passes: %v", id, err)
		}
		sick.lies.Store(1 << 20)
		if err := read(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: a wrong bit that stays: %v", id, err)
		}
		sick.lies.Store(0)
		if err := read(); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// While the log cannot be read, what becomes of mail is recorded all the same, and
// nothing is set aside for it.
func TestUpdateUnread(t *testing.T) {
	t.Parallel()
	p := newPatient(t, 1<<20)
	sick := &flaky{FS: p.mem}
	p.fs = sick
	p.mustStart()
	ids := []mail.QueueID{p.add(500), p.add(20000), p.add(200 << 10)}
	p.stop(false)
	p.mustStart() // the states of all are at the head now
	for range 2 {
		sick.errno.Store(true)
		p.deferAll(ids...)
		sick.errno.Store(false)
		p.intact()
		for _, id := range ids {
			if en, ok := p.e.locate(id); !ok || en.Queue != Deferred || en.Attempts != 1 {
				t.Errorf("%s: %+v", id, en)
			}
		}
	}
	p.stop(false)
	p.mustStart()
	p.intact()
}

// A content file that cannot be written is the one message's affair.
func TestContentFileFails(t *testing.T) {
	t.Parallel()
	p := newPatient(t, 64<<10)
	sick := &flaky{FS: p.mem}
	p.fs = sick
	p.mustStart()
	p.add(300)
	sick.write.Store(true)
	f, err := p.e.newFile()
	if err == nil {
		_, err = f.Write(make([]byte, 100<<10))
	}
	if err != nil {
		t.Fatal(err)
	}
	id := mail.MakeQueueID(time.Unix(1700000000, 0), p.next)
	var b Batch
	b.Add(Message{ID: id, Envelope: testEnvelope(id, 100<<10), Recipients: testRecipients(1), NRcpt: 1, File: f})
	err = p.e.prepare(&b)
	b.settle(err)
	if !errors.Is(err, ErrUnstored) || !errors.Is(err, syscall.EIO) || p.e.isBroken() != nil {
		t.Errorf("%v, broken: %v", err, p.e.isBroken())
	}
	p.next++
	p.add(300)
	sick.write.Store(false)
	p.add(100 << 10)
	p.intact()
	p.stop(false)
	p.mustStart()
	p.intact()
	if p.rep.Alarms > 0 {
		t.Errorf("%+v", p.rep)
	}
}

// When the log is idle one batch promises the last: one each time.
func TestIdlePromise(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem(4096)
		s := openTest(t, "q", Options{FS: mem, SegmentSize: 64 << 10})
		time.Sleep(time.Second)
		add := func() mail.QueueID {
			id := newID(t, s)
			var b Batch
			b.Add(Message{ID: id, Envelope: testEnvelope(id, 3), Recipients: testRecipients(1), NRcpt: 1, Content: []byte("x\r\n")})
			if err := s.Commit(&b); err != nil {
				t.Fatal(err)
			}
			return id
		}
		before := s.Stats().Batches
		for range 5 { // busy
			add()
			time.Sleep(idleDelay / 2)
		}
		if n := s.Stats().Batches - before; n != 5 {
			t.Errorf("%d batches while busy, want 5", n)
		}
		last := add()
		time.Sleep(time.Hour)
		if n := s.Stats().Batches - before; n != 7 {
			t.Errorf("%d batches, want 7: six messages and one promise", n)
		}
		en, _ := s.Locate(last)
		image := mem.Clone()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		// Damage to the last message is an alarm now.
		image.Restart()
		p := newPatient(t, 64<<10)
		p.mem, p.fs = image, image
		p.flip(segName("q", en.Ref.File), int64(en.Ref.Offset)+1)
		p.mustStart()
		if p.rep.Torn != 0 || p.rep.Alarms == 0 || p.named(last) == nil || !strings.Contains(p.rep.Report, string(last)) {
			t.Errorf("%+v", p.rep)
		}
	})
}
