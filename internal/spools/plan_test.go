package spools_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// A site is a queue directory with others beside it.
type site struct {
	t   *testing.T
	dir string
}

func newSite(t *testing.T) *site {
	s := &site{t, t.TempDir()}
	for _, d := range []string{"queue/spool", "d1", "d2", "d3"} {
		if err := os.MkdirAll(s.path(d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// plan is what Find and Reach say with main.cf's text, in which {dir} is the site's directory.
func (s *site) plan(text string) (*spools.Plan, error) {
	s.t.Helper()
	return s.planOn(nil, text)
}

// planOn is plan, with the file system of the spool in queue_directory.
func (s *site) planOn(own vfs.FS, text string) (*spools.Plan, error) {
	s.t.Helper()
	cfg, err := config.LoadString(strings.ReplaceAll("queue_directory = {dir}/queue\ndata_directory = {dir}/data\n"+text, "{dir}", s.dir))
	if err != nil {
		s.t.Fatal(err)
	}
	p, err := spools.Find(own, s.path("queue/spool"), cfg)
	if err == nil {
		s.t.Cleanup(func() { p.Close() })
		err = p.Reach()
	}
	return p, err
}

// open opens the queue, which must be possible.
func (s *site) open(text string) (*spools.Plan, *spools.Set) {
	s.t.Helper()
	p, err := s.plan(text)
	if err != nil {
		s.t.Fatal(err)
	}
	set, err := p.Set(s.options())
	if err != nil {
		s.t.Fatal(err)
	}
	return p, set
}

func (s *site) options() spool.Options {
	return spool.Options{Dir: s.path("queue/spool"), SegmentSize: 1 << 20, Warn: s.t.Logf}
}

func (s *site) reader(p *spools.Plan) storage.Reader {
	return p.Readers(queueread.Log(spool.NewReader(nil, s.path("queue/spool"))), queueread.Log)
}

// fill adds n messages, every fourth in a file.
func (s *site) fill(en storage.Engine, n int) (list []mail.QueueID) {
	s.t.Helper()
	for i := range n {
		length := 10
		if i%4 == 3 {
			length = 200 << 10
		}
		m, err := small(s.t, en, strings.Repeat("x", length))
		if err != nil {
			s.t.Fatal(err)
		}
		b := en.NewBatch()
		b.Add(m)
		if err := en.Commit(b); err != nil {
			s.t.Fatal(err)
		}
		list = append(list, m.ID)
	}
	return list
}

// No start goes on without a spool that may have mail, whatever has become of it; each refusal says what can be done.
func TestMissing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const both = "spool_directories = spool, {dir}/d1, {dir}/d2\n"
	_, set := s.open(both)
	s.fill(set, 9)
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(s.path(from), s.path(to)); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(text, why string) {
		t.Helper()
		p, err := s.plan(text)
		if err == nil {
			var en storage.Engine
			if en, err = p.Engine(s.options()); err == nil {
				en.Close()
			}
		}
		if !errors.Is(err, spools.ErrMissing) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "spool_directories_absent = "+s.dir) {
			t.Errorf("%s: %v", text, err)
		}
	}
	refused("", "is not named any more")
	refused("spool_directories = {dir}/d1\n", s.path("d2")+" is not named any more")
	move("d2", "away")
	refused(both, s.path("d2")+" is not there")
	if err := os.Mkdir(s.path("d2"), 0o700); err != nil {
		t.Fatal(err)
	}
	refused(both, s.path("d2")+" is empty")
	os.Remove(s.path("d2"))
	move("d1", "d2")
	if err := os.Mkdir(s.path("d1"), 0o700); err != nil {
		t.Fatal(err)
	}
	refused(both, s.path("d1")+" is empty")
	refused(both+"spool_directories_absent = {dir}/d1\n", s.path("d2")+" has the spool of another queue")
	// IDENTITY does not tell, and the segments do.
	if err := os.Remove(s.path("d2/IDENTITY")); err != nil {
		t.Fatal(err)
	}
	refused(both+"spool_directories_absent = {dir}/d1\n", s.path("d2")+" has the spool of another queue")
	os.Remove(s.path("d1"))
	move("d2", "d1")
	move("away", "d2")
	_, set = s.open(both)
	if n := count(set); n != 9 {
		t.Errorf("%d messages, want 9", n)
	}
	set.Close()
	// Without one of them, when somebody says so.
	move("d2", "away")
	p, set := s.open(both + "spool_directories_absent = {dir}/d2\n")
	if n := count(set); n != 6 {
		t.Errorf("%d messages, want 6", n)
	}
	set.Close()
	if away := p.Away(); len(away) != 1 || away[0] != s.path("d2") {
		t.Errorf("mail is away in %v", away)
	}
	if done, err := p.Forget(s.path("d1")); done || err != nil {
		t.Errorf("one that is there was forgotten: %v, %v", done, err)
	}
	if done, err := p.Forget(s.path("d2")); !done || err != nil || len(p.Away()) != 0 {
		t.Errorf("%v, %v; mail is away in %v", done, err, p.Away())
	}
	_, set = s.open("spool_directories = spool, {dir}/d1, {dir}/d3\n")
	if n := count(set); n != 6 {
		t.Errorf("%d messages, want 6", n)
	}
	set.Close()
	// It does not come back as a new one with its mail.
	move("away", "d2")
	p, err := s.plan("spool_directories = spool, {dir}/d1, {dir}/d3, {dir}/d2\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Set(s.options()); err == nil || !strings.Contains(err.Error(), "has 3 messages, and has not been part of this queue") {
		t.Errorf("a spool with mail of its own: %v", err)
	}
}

func count(en storage.Engine) (n int) {
	for range en.Entries {
		n++
	}
	return n
}

// The record survives a torn write of either slot, and is not taken for empty when both are damaged.
func TestRecordTorn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const one, both = "spool_directories = {dir}/d1\n", "spool_directories = {dir}/d1, {dir}/d2\n"
	_, set := s.open(one)
	set.Close()
	_, set = s.open(both) // is now in a slot that the one before is not in
	set.Close()
	name := s.path("queue/spool/MEMBERS")
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const slot = 256 << 10
	found := map[bool]int{}
	for _, at := range []int{0, slot} {
		torn := append([]byte{}, whole...)
		torn[at+40] ^= 1
		if err := os.WriteFile(name, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := s.plan(one)
		found[errors.Is(err, spools.ErrMissing)]++ // the newest one knows of d2
	}
	if found[true] != 1 || found[false] != 1 {
		t.Errorf("the newest sound slot is not what counts: %v", found)
	}
	whole[40] ^= 1
	whole[slot+40] ^= 1
	if err := os.WriteFile(name, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.plan(both); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("both are damaged: %v", err)
	}
	// The first write of all, torn: there is nothing yet.
	if err := os.WriteFile(name, whole[:100], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.plan(""); err != nil {
		t.Errorf("nothing was in it: %v", err)
	}
}

// Mail that is moved out of a spool is elsewhere as it was, also when that was interrupted at any write or sync: then it is in
// one of them, once.
func TestDrain(t *testing.T) {
	t.Parallel()
	const text, number, messages = "spool_directories = {dir}/d1, {dir}/d2\n", 1, 24
	s := newSite(t)
	_, set := s.open(text)
	ids := s.fill(set, messages)
	b := set.NewBatch()
	b.Apart()
	for _, id := range ids {
		b.Update(id, queue.Change{Set: queue.SetQueue | queue.SetAttempts | queue.SetWarned, Queue: queue.Hold, Attempts: 3, Warned: true})
		b.Done(id, []int{1})
		b.Handed(id, []int{0}, "mx")
	}
	if err := errors.Join(set.Commit(b), set.Close()); err != nil {
		t.Fatal(err)
	}
	for k, moved := int64(1), false; !moved; k++ {
		p, err := s.plan(text)
		if err != nil {
			t.Fatal(err)
		}
		var left atomic.Int64
		left.Store(1 << 40)
		cutting(p, &left)
		if set, err = p.Set(s.options()); err != nil {
			t.Fatal(err)
		}
		if n := count(set); n != messages {
			t.Fatalf("before try %d there are %d messages, want %d", k, n, messages)
		}
		rd := s.reader(p)
		if err := p.Begin(number); err != nil {
			t.Fatal(err)
		}
		left.Store(k)
		_, unread, err := set.Drain(number, rd)
		left.Store(1 << 40)
		moved = err == nil && unread == 0
		err = set.Close() // it may be broken
		rd.Close()
		if moved {
			if err := errors.Join(err, p.End(number)); err != nil {
				t.Fatal(err)
			}
		}
	}
	p, set := s.open("spool_directories = {dir}/d2\n")
	defer set.Close()
	rd := s.reader(p)
	defer rd.Close()
	for _, id := range ids {
		e, ok := set.Locate(id)
		if !ok || e.Queue != queue.Hold || e.Attempts != 3 || !e.Warned || e.NPending != 1 || len(set.InHand(id, []int{0})) != 1 {
			t.Fatalf("%s: %v %+v", id, ok, e)
		}
		c, err := rd.Content(e.Ref, id)
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		if _, err := c.WriteTo(&got); err != nil || strings.Trim(got.String(), "x") != "" || int64(got.Len()) != e.Size {
			t.Errorf("%s: %d octets of %d, %v", id, got.Len(), e.Size, err)
		}
		c.Close()
	}
	if n := count(set); n != messages {
		t.Errorf("%d messages, want %d", n, messages)
	}
}

// Pages have all messages once, however unequal the spools are.
func TestPagesUnequal(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem(512)
	want := map[mail.QueueID]bool{}
	for _, c := range []struct{ spools, messages int }{{1, 1300}, {2, 600}, {1, 0}} {
		n := max(c.spools, 1)
		if c.messages == 0 {
			n = 2
		}
		en, err := spools.Open(spools.Options{Parts: logs(disk, "q", n, false)})
		if err != nil {
			t.Fatal(err)
		}
		b := en.NewBatch()
		for i := range c.messages {
			m, err := small(t, en, "x")
			if err != nil {
				t.Fatal(err)
			}
			want[m.ID] = true
			b.Add(m)
			if i%10 == 9 {
				if err := en.Commit(b); err != nil {
					t.Fatal(err)
				}
				b = en.NewBatch()
			}
		}
		got := map[mail.QueueID]bool{}
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			var list []queue.Placed
			list, cursor = en.Page(cursor, nil)
			for _, e := range list {
				if got[e.ID] {
					t.Errorf("%s twice", e.ID)
				}
				got[e.ID] = true
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d messages in pages, want %d", len(got), len(want))
		}
		if err := en.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// cutting has all places of p fail when left writes and syncs have been made, together.
func cutting(p *spools.Plan, left *atomic.Int64) {
	for i := range p.Places {
		pl := &p.Places[i]
		if pl.FS == nil {
			continue
		}
		pl.FS = &vfs.Faulty{FS: pl.FS, Hook: func(op vfs.Op) error {
			if (op.Kind == vfs.OpWrite || op.Kind == vfs.OpSync) && left.Add(-1) <= 0 {
				return fmt.Errorf("cut: %w", syscall.EIO)
			}
			return nil
		}}
	}
}

// A record that could not be written is written again by the same process, to the same slot and with each directory once.
func TestRecordFails(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const one, both = "spool_directories = spool, {dir}/d1\n", "spool_directories = spool, {dir}/d1, {dir}/d2\n"
	_, set := s.open(one)
	set.Close()
	name := s.path("queue/spool/MEMBERS")
	before, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var ill atomic.Bool
	p, err := s.planOn(&vfs.Faulty{FS: vfs.OS{}, Hook: func(op vfs.Op) error {
		if ill.Load() && op.Kind == vfs.OpSync && op.Name == name {
			return fmt.Errorf("it fails: %w", syscall.EIO)
		}
		return nil
	}}, both)
	if err != nil {
		t.Fatal(err)
	}
	ill.Store(true)
	for range 3 {
		if _, err := p.Set(s.options()); !errors.Is(err, syscall.EIO) {
			t.Fatalf("opened without a durable record: %v", err)
		}
	}
	after, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const slot = 256 << 10
	// What is in the middle of being written may be torn: the other slot must stay what it was.
	if string(before[:slot]) != string(after[:slot]) && string(before[slot:]) != string(after[slot:]) {
		t.Error("both slots have been written over, and neither is durable")
	}
	ill.Store(false)
	if set, err = p.Set(s.options()); err != nil {
		t.Fatal(err)
	}
	set.Close()
	ill.Store(true)
	for range 2 { // it is not taken for written the second time
		if err := p.End(2); !errors.Is(err, syscall.EIO) {
			t.Errorf("the end of a move: %v", err)
		}
	}
	ill.Store(false)
	if err := p.End(2); err != nil {
		t.Fatal(err)
	}
	_, set = s.open(one) // d2 does not belong to the queue any more
	set.Close()
}

// A reader that is closed leaves the directories open for the queue that goes by the same.
func TestReaderClosed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p, set := s.open("spool_directories = {dir}/d1, {dir}/d2\n")
	defer set.Close()
	if err := s.reader(p).Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range s.fill(set, 8) { // a quarter of them are files of their own, for which the directory is needed
		if _, ok := set.Locate(id); !ok {
			t.Errorf("%s is not queued", id)
		}
	}
	if err := s.reader(p).Close(); err != nil {
		t.Error(err)
	}
}

// What an interrupted move has left in two spools is looked for until both are there: a start without one of them does not
// forget it.
func TestMovingAbsent(t *testing.T) {
	t.Parallel()
	const text, number, messages = "spool_directories = {dir}/d1, {dir}/d2, {dir}/d3\n", 1, 24
	for _, absent := range []string{"d1", "d2"} {
		s := newSite(t)
		_, set := s.open(text)
		s.fill(set, messages)
		if err := set.Close(); err != nil {
			t.Fatal(err)
		}
		// All is durable where it goes to, and nothing can be removed where it was.
		p, err := s.plan(text)
		if err != nil {
			t.Fatal(err)
		}
		var ill atomic.Bool
		pl := &p.Places[1]
		pl.FS = &vfs.Faulty{FS: pl.FS, Hook: func(op vfs.Op) error {
			if ill.Load() && (op.Kind == vfs.OpWrite || op.Kind == vfs.OpSync) {
				return syscall.EIO
			}
			return nil
		}}
		if set, err = p.Set(s.options()); err != nil {
			t.Fatal(err)
		}
		rd := s.reader(p)
		if err := p.Begin(number); err != nil {
			t.Fatal(err)
		}
		ill.Store(true)
		if _, _, err := set.Drain(number, rd); err == nil {
			t.Fatal("the disk that fails has been emptied")
		}
		set.Close() // it is broken
		rd.Close()
		_, set = s.open(text + "spool_directories_absent = {dir}/" + absent + "\n")
		if err := set.Close(); err != nil {
			t.Fatal(err)
		}
		_, set = s.open(text)
		if n := count(set); n != messages {
			t.Errorf("%s was absent: %d messages, want %d", absent, n, messages)
		}
		if err := set.Close(); err != nil {
			t.Fatal(err)
		}
		if p, _ = s.plan(text); len(p.Moving()) != 0 {
			t.Errorf("%s was absent: a move goes on for ever", absent)
		}
	}
}
