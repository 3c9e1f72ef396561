package spool

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// patient is a spool with some mail in it, whose files are spoiled while no process has it
// open.
type patient struct {
	t    *testing.T
	mem  *vfs.Mem
	fs   vfs.FS // mem, or what stands before it
	opt  Options
	e    *engine
	rep  RecoveryReport
	want map[mail.QueueID][]byte // acknowledged, and not delivered
	next uint64

	mu    sync.Mutex
	warns []string
	slept time.Duration
}

func newPatient(t *testing.T, segSize int64) *patient {
	p := &patient{t: t, mem: vfs.NewMem(4096), want: map[mail.QueueID][]byte{}}
	p.fs = p.mem
	p.opt = Options{Dir: "q", SegmentSize: segSize, sleep: func(d time.Duration) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.slept += d
	}}
	p.opt.Warn = func(format string, args ...any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.warns = append(p.warns, fmt.Sprintf(format, args...))
	}
	return p
}

// start starts a process on the spool.
func (p *patient) start() error {
	p.t.Helper()
	p.warns, p.slept = nil, 0
	p.opt.FS = p.fs
	e, rep, err := openEngine(&p.opt, 0, randomBytes)
	p.rep = rep
	if err != nil {
		p.mem.Restart()
		return err
	}
	p.e = e
	p.next, _ = e.numbers()
	return nil
}

func (p *patient) mustStart() {
	p.t.Helper()
	if err := p.start(); err != nil {
		p.t.Fatal(err)
	}
}

// add accepts a message of so many octets.
func (p *patient) add(size int) mail.QueueID {
	p.t.Helper()
	id := mail.MakeQueueID(time.Unix(1700000000, int64(p.next%1e6)*1000), p.next)
	p.next++
	body := bytes.Repeat([]byte(string(id)+"\r\n"), size/10+1)[:size]
	m := Message{ID: id, Envelope: testEnvelope(id, size), Recipients: testRecipients(2), NRcpt: 2}
	if int64(size) > p.e.lim.inline {
		f, err := p.e.newFile()
		if err == nil {
			_, err = f.Write(body)
		}
		if err != nil {
			p.t.Fatal(err)
		}
		m.File = f
	} else {
		m.Content = body
	}
	var b Batch
	b.Add(m)
	p.commit(&b)
	p.want[id] = body
	return id
}

func (p *patient) commit(b *Batch) {
	p.t.Helper()
	if err := p.e.prepare(b); err != nil {
		p.t.Fatal(err)
	}
	drive(p.t, p.e, b)
	b.settle(nil)
}

// deliver ends a message.
func (p *patient) deliver(id mail.QueueID) {
	p.t.Helper()
	var b Batch
	b.Done(id, []int{0, 1})
	p.commit(&b)
	delete(p.want, id)
}

// deferAll records that a first attempt has failed.
func (p *patient) deferAll(ids ...mail.QueueID) {
	p.t.Helper()
	for _, id := range ids {
		var b Batch
		b.Update(id, Change{Set: SetQueue | SetAttempts, Queue: Deferred, Attempts: 1})
		p.commit(&b)
	}
}

// stop ends the process: cleanly, or by a kill.
func (p *patient) stop(clean bool) {
	p.t.Helper()
	if clean {
		if err := p.e.markClose(); err != nil {
			p.t.Fatal(err)
		}
		if err := p.e.closeFiles(); err != nil {
			p.t.Fatal(err)
		}
	}
	p.mem.Restart()
}

// segments are the numbers of the files of segments.
func (p *patient) segments() (list []uint32) {
	names, err := p.mem.List("q/seg")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, name := range names {
		if n, ok := segNumber(name); ok {
			list = append(list, n)
		}
	}
	return list
}

// overwrite puts b into a file.
func (p *patient) overwrite(name string, off int64, b []byte) {
	p.t.Helper()
	f, err := p.mem.OpenWrite(name)
	if err == nil {
		_, err = f.WriteAt(b, off)
	}
	if err == nil {
		err = errors.Join(f.Datasync(), f.Close())
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *patient) zero(name string, off, n int64) { p.overwrite(name, off, make([]byte, n)) }

func (p *patient) flip(name string, off int64) {
	p.t.Helper()
	if err := p.mem.Damage(name, off, vfs.FlipBit, rand.New(rand.NewPCG(1, 1))); err != nil {
		p.t.Fatal(err)
	}
}

// contents are all files there are.
func (p *patient) contents() map[string]string {
	all := map[string]string{}
	for _, dir := range []string{"q", "q/seg", "q/big", "q/damaged"} {
		names, err := p.mem.List(dir)
		if err != nil {
			continue
		}
		for _, name := range names {
			if f, err := p.mem.Open(dir + "/" + name); err == nil && name != lockFile {
				size, _ := f.Size()
				b := make([]byte, size)
				f.ReadAt(b, 0)
				f.Close()
				all[dir+"/"+name] = string(b)
			}
		}
	}
	return all
}

// told says whether a warning names all of these.
func (p *patient) told(words ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.warns, func(s string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(s, w) })
	})
}

// intact checks that what was acknowledged is there, save these, and can be read.
func (p *patient) intact(but ...mail.QueueID) {
	p.t.Helper()
	rd := NewReader(p.fs, "q")
	defer rd.Close()
	have := map[mail.QueueID]bool{}
	p.e.entries(func(en Entry) bool {
		have[en.ID] = true
		if p.want[en.ID] == nil {
			p.t.Errorf("message %s should not be there", en.ID)
			return true
		}
		if slices.Contains(but, en.ID) {
			return true
		}
		if got, err := readAlone(rd, en); err != nil || !bytes.Equal(got, p.want[en.ID]) || en.Queue == Corrupt {
			p.t.Errorf("message %s in %v: %v", en.ID, en.Queue, err)
		}
		return true
	})
	for id := range p.want {
		if !have[id] && !slices.Contains(but, id) {
			p.t.Errorf("message %s is gone", id)
		}
	}
}

// unchanged fails if a process did anything to the files.
func (p *patient) unchanged(before map[string]string) {
	p.t.Helper()
	after := p.contents()
	if len(after) != len(before) {
		p.t.Errorf("%d files, %d before", len(after), len(before))
	}
	for name, was := range before {
		if after[name] != was {
			p.t.Errorf("%s was changed", name)
		}
	}
}

// filled is a patient with mail in several segments, of which some was delivered.
func filled(t *testing.T) *patient {
	p := newPatient(t, 64<<10)
	p.mustStart()
	for i := range 40 {
		id := p.add(2000 + 100*i)
		if i%4 == 0 {
			p.deliver(id)
		}
	}
	p.add(100 << 10)
	return p
}

// heads zeroes both copies of the header of a segment.
func (p *patient) behead(files ...uint32) {
	for _, n := range files {
		p.zero(segName("q", n), 0, headRoom)
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	const file = "q/IDENTITY"
	for _, tt := range []struct {
		name  string
		spoil func(p *patient)
		warn  string // "": none
		err   error
	}{
		{"sound", func(p *patient) {}, "", nil},
		{"one block", func(p *patient) { p.zero(file, 0, blockSize) }, "one of its two records", nil},
		{"the other block", func(p *patient) { p.zero(file, blockSize, blockSize) }, "one of its two records", nil},
		{"one bit", func(p *patient) { p.flip(file, 20) }, "one of its two records", nil},
		{"all of it", func(p *patient) { p.zero(file, 0, identityLen) }, "damaged; the segments say", nil},
		{"removed", func(p *patient) {
			if err := p.mem.Remove(file); err != nil {
				p.t.Fatal(err)
			}
		}, "gone; the segments say", nil},
		{"one block of each header", func(p *patient) {
			for _, n := range p.segments() {
				p.zero(segName("q", n), int64(n%2)*blockSize, blockSize)
			}
		}, "", nil},
		{"one header", func(p *patient) { p.behead(1) }, "header is damaged", nil},
		{"all headers", func(p *patient) { p.behead(p.segments()...) }, "header is damaged", nil},
		{"all headers, and one block", func(p *patient) {
			p.behead(p.segments()...)
			p.zero(file, 0, blockSize)
		}, "header is damaged", nil},
		{"all", func(p *patient) {
			p.behead(p.segments()...)
			p.zero(file, 0, identityLen)
		}, "", ErrNoIdentity},
		{"all, and it removed", func(p *patient) {
			p.behead(p.segments()...)
			if err := p.mem.Remove(file); err != nil {
				p.t.Fatal(err)
			}
		}, "", ErrNoIdentity},
	} {
		for _, clean := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/clean=%v", tt.name, clean), func(t *testing.T) {
				t.Parallel()
				p := filled(t)
				p.stop(clean)
				tt.spoil(p)
				before := p.contents()
				err := p.start()
				if tt.err != nil {
					if !errors.Is(err, tt.err) || !strings.Contains(err.Error(), "salvage") {
						t.Errorf("%v", err)
					}
					p.unchanged(before)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if tt.warn == "" && len(p.warns) > 0 || tt.warn != "" && !p.told(tt.warn) {
					t.Errorf("warned: %q", p.warns)
				}
				if p.rep.Alarms > 0 {
					t.Errorf("%+v", p.rep)
				}
				p.intact()
				// What could be mended is.
				p.stop(true)
				p.mustStart()
				if len(p.warns) > 0 {
					t.Errorf("after it was mended: %q", p.warns)
				}
				p.intact()
				if n, err := new(identity).read([]byte(p.contents()[file])); n != 2 || err != nil {
					t.Errorf("%d sound records in it, %v", n, err)
				}
			})
		}
	}
}

// A process is killed before IDENTITY is durable, the next finds it in memory, and the power
// fails at any operation of that one's start: the spool, which is new, starts all the same.
func TestIdentityInMemory(t *testing.T) {
	t.Parallel()
	for _, kind := range []vfs.OpKind{vfs.OpSync, vfs.OpSyncDir} {
		for n := 1; ; n++ {
			w := newWorld(1, 0)
			started := false
			err := w.guard(func() {
				w.hook = func(op vfs.Op) error {
					if op.Kind == kind && (op.Name == "q/"+identityFile || op.Name == "q") {
						return vfs.ErrCut
					}
					return nil
				}
				if err := w.open(); !errors.Is(err, vfs.ErrCut) {
					fail("the first start: %v", err)
				}
				w.mem.Restart()
				started = w.startUntil(n)
				for _, l := range []vfs.Loss{{}, keepAll} {
					y := *w
					y.trace, y.bases = nil, map[uint64]bool{}
					y.mem = w.mem.Cut(l)
					if err := y.open(); err != nil {
						fail("power cut at operation %d of the second start: %v", n, err)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if started {
				break
			}
		}
	}
}

// Readers in other processes go by IDENTITY as well.
func TestReaderWithoutHeaders(t *testing.T) {
	t.Parallel()
	p := filled(t)
	p.behead(p.segments()...)
	p.intact()
	p.zero("q/IDENTITY", 0, identityLen)
	rd := NewReader(p.mem, "q")
	defer rd.Close()
	p.e.entries(func(en Entry) bool {
		if _, err := rd.Read(en.Ref, en.ID); !errors.Is(err, ErrCorrupt) {
			t.Errorf("without any identity: %v", err)
		}
		return true
	})
}

// Segments of two spools are not one.
func TestIdentityDisagrees(t *testing.T) {
	t.Parallel()
	p, other := filled(t), filled(t)
	p.stop(true)
	other.stop(true)
	stray := other.contents()["q/seg/00000001.seg"]
	p.overwrite("q/seg/00000001.seg", 0, []byte(stray))
	before := p.contents()
	if err := p.start(); err == nil || !strings.Contains(err.Error(), "another spool") {
		t.Errorf("%v", err)
	}
	p.unchanged(before)
}

// sick has reads of some files fail: the first few times, or for ever.
type sick struct {
	vfs.FS
	mu    sync.Mutex
	bad   func(name string, off int64, n int) bool
	times int // left
	wrote bool
}

func (s *sick) hook(op vfs.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch op.Kind {
	case vfs.OpWrite, vfs.OpRemove, vfs.OpRename, vfs.OpTruncate, vfs.OpCreate, vfs.OpLink:
		s.wrote = true
	case vfs.OpRead:
		if s.times > 0 && s.bad(op.Name, op.Off, op.Len) {
			s.times--
			return syscall.EIO
		}
	}
	return nil
}

func covers(at int64) func(off int64, n int) bool {
	return func(off int64, n int) bool { return off <= at && at < off+int64(n) }
}

// TestUnreadable: what cannot be read at a start is not taken for empty: it is tried
// again, and then the start is refused, and nothing changed, until it can be read.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	isSeg := func(name string) bool { return strings.HasSuffix(name, ".seg") }
	for _, tt := range []struct {
		name string
		bad  func(name string, off int64, n int) bool
		at   string // where the error says it is
	}{
		{"header of one", func(name string, off int64, n int) bool {
			return strings.HasSuffix(name, "00000001.seg") && off < headRoom
		}, "q/seg/00000001.seg at 0:"},
		{"second header of one", func(name string, off int64, n int) bool {
			return strings.HasSuffix(name, "00000001.seg") && covers(blockSize)(off, n)
		}, "q/seg/00000001.seg at 4096:"},
		{"data", func(name string, off int64, n int) bool {
			return strings.HasSuffix(name, "00000001.seg") && covers(20<<10)(off, n)
		}, "q/seg/00000001.seg at 20480:"},
		{"all segments", func(name string, off int64, n int) bool { return isSeg(name) }, "q/seg/00000000.seg at 0:"},
	} {
		for _, clean := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/clean=%v", tt.name, clean), func(t *testing.T) {
				t.Parallel()
				p := filled(t)
				p.stop(clean)
				before := p.contents()
				s := &sick{bad: tt.bad, times: 1 << 30}
				p.fs = &vfs.Faulty{FS: p.mem, Hook: s.hook}
				err := p.start()
				var unreadable *UnreadableError
				if !errors.As(err, &unreadable) || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), tt.at) {
					t.Fatalf("%v", err)
				}
				if s.wrote || p.slept != 2600*time.Millisecond {
					t.Errorf("wrote: %v, slept %v", s.wrote, p.slept)
				}
				p.unchanged(before)
				s.times = len(pauses) // it passes while the start waits
				p.mustStart()
				p.intact()
				if p.rep.Alarms > 0 || len(p.warns) > 0 {
					t.Errorf("%+v %q", p.rep, p.warns)
				}
			})
		}
	}
}

// A bad block in IDENTITY does no harm: the other, and the segments, say the same.
func TestUnreadableIdentity(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		p := filled(t)
		p.stop(true)
		s := &sick{times: 1 << 30, bad: func(name string, off int64, n int) bool {
			return strings.HasSuffix(name, identityFile) && (both || covers(0)(off, n))
		}}
		p.fs = &vfs.Faulty{FS: p.mem, Hook: s.hook}
		p.mustStart()
		p.intact()
		p.stop(true)
		p.behead(p.segments()...)
		err := p.start()
		if both && !errors.Is(err, syscall.EIO) || !both && err != nil {
			t.Errorf("without headers, both copies bad %v: %v", both, err)
		}
	}
}

// A file that has been cut short is damage, and not the end of what was written.
func TestShortSegment(t *testing.T) {
	t.Parallel()
	p := filled(t)
	p.stop(true)
	f, err := p.mem.OpenWrite("q/seg/00000001.seg")
	if err == nil {
		err = errors.Join(f.Truncate(24<<10), f.Datasync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	p.mustStart()
	if p.rep.Alarms == 0 || !p.told("00000001.seg", "40960 octets shorter") {
		t.Errorf("%+v %q", p.rep, p.warns)
	}
}
