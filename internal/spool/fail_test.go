package spool

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/testwait"
	"posthaste/internal/vfs"
)

var update = flag.Bool("update", false, "write the golden files")

// TestOperations holds the file operations of the common acts against a
// list: whoever adds one has to mean it.
func TestOperations(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	w := newWorld(3, 0)
	x := &enum{world: w}
	note := func(title string, f func()) {
		fmt.Fprintf(&got, "%s:\n", title)
		f()
	}
	w.hook = func(op vfs.Op) error {
		if op.Kind != vfs.OpRead {
			fmt.Fprintf(&got, "  %s\n", op)
		}
		return nil
	}
	err := w.guard(func() {
		note("first start", x.restart)
		note("spare segment", w.e.housekeep)
		note("accept", func() { x.accept(1, 500) })
		note("accept three at once", func() { x.accept(3, 500) })
		note("defer", func() { x.update(0) })
		note("deliver", func() { x.finish(0) })
		note("accept large", func() { x.accept(1, 5000) })
		note("deliver large", func() { x.finishLarge() })
		note("afterwards", w.e.housekeep)
		note("accept large again", func() { x.accept(1, 4000) })
		note("deliver all", func() {
			for len(x.now) > 0 {
				x.finish(0)
			}
		})
		note("afterwards", w.e.housekeep)
		note("close", func() {
			if err := w.e.markClose(); err != nil {
				fail("%v", err)
			}
			if err := w.e.closeFiles(); err != nil {
				fail("%v", err)
			}
		})
		note("recover", x.restart)
	})
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "operations.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("operations differ from %s (-update writes it):\n%s", golden, got.String())
	}
}

// TestFailEach fails the k-th operation, for all k, once and for ever, in a
// fixed history. Somebody must hear of it, and what was acknowledged must
// be there after a restart and a power cut.
func TestFailEach(t *testing.T) {
	once(t)
	t.Parallel()
	for _, errno := range []error{syscall.EIO, syscall.ENOSPC} {
		for k := 1; ; k++ {
			n, err := failAt(k, errno)
			if err != nil {
				t.Fatalf("operation %d fails with %v: %v", k, errno, err)
			}
			if n < k {
				t.Logf("%v: %d operations", errno, n)
				break
			}
		}
	}
}

func failAt(k int, errno error) (ops int, err error) {
	w := newWorld(5, 0)
	x := &enum{world: w}
	hit := false
	w.hook = func(op vfs.Op) error {
		if op.Kind == vfs.OpRead {
			return nil // damage, which TestRot is about
		}
		if ops++; ops == k {
			hit = true
			w.logf("fails: %s", op)
			return errno
		}
		return nil
	}
	err = w.guard(func() {
		if err := w.open(); err != nil {
			if !hit {
				fail("open: %v", err)
			}
			return // told
		}
		w.damage = true // an unreadable segment is an alarm
		w.settle()
		alive := true
		for i := 0; i < 12 && alive; i++ {
			c := &change{}
			size := 600
			if i%4 == 3 {
				size = 2500
			}
			warned := w.warned
			msg, mm := w.newMessage(size, 2)
			if mm == nil && !hit {
				fail("no file")
			}
			if mm == nil {
				break // told
			}
			c.add(msg, mm)
			alive = w.commit(c)
			if alive && i%2 == 1 {
				x := w.pick()
				c := &change{}
				c.update(x.id, w.randomUpdate(x))
				alive = w.commit(c)
			}
			if alive {
				alive = w.maintain(3)
			}
			w.e.housekeep()
			alive = alive && w.e.broken == nil
			if hit && alive && w.warned == warned && w.now[mm.id.Number()] != nil {
				fail("nobody was told")
			}
			if hit {
				break
			}
		}
		w.hook = nil
		w.mem = w.mem.Cut(vfs.Loss{})
		x.restart()
		w.drain()
	})
	return ops, err
}

// TestBroken: after a failed sync everybody is told, and nothing is written.
func TestBroken(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	mem := vfs.NewMem(512)
	fs := &vfs.Faulty{FS: mem, Hook: func(op vfs.Op) error {
		if broken.Load() && op.Kind == vfs.OpSync {
			return syscall.EIO
		}
		return nil
	}}
	s := openTest(t, "q", Options{FS: fs, SegmentSize: 64 << 10})
	for s.Stats().Free < minFloor { // its failure to make one would be another story
		time.Sleep(time.Millisecond)
	}
	broken.Store(true)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			id := newID(t, s)
			var b Batch
			b.Add(Message{ID: id, Envelope: testEnvelope(id, 3), Recipients: testRecipients(1), NRcpt: 1, Content: []byte("x\r\n")})
			if err := s.Commit(&b); !errors.Is(err, ErrBroken) || !errors.Is(err, syscall.EIO) {
				t.Errorf("commit: %v", err)
			}
		})
	}
	wg.Wait()
	<-s.Broken()
	told := make(chan error, 1)
	s.Post(new(Batch), func(err error) { told <- err })
	if err := <-told; !errors.Is(err, ErrBroken) {
		t.Errorf("post: %v", err)
	}
	broken.Store(false)
	if err := s.Commit(new(Batch)); !errors.Is(err, ErrBroken) {
		t.Errorf("a second sync was believed: %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrBroken) {
		t.Errorf("close: %v", err)
	}
	s = openTest(t, "q", Options{FS: mem, SegmentSize: 64 << 10})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestLocked: two processes cannot have one spool.
func TestLocked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openTest(t, dir, Options{SegmentSize: 64 << 10})
	_, err := Open(Options{Dir: dir, SegmentSize: 64 << 10})
	var held *vfs.LockedError
	if !errors.As(err, &held) || held.PID != os.Getpid() {
		t.Errorf("second open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second close: %v", err)
	}
	if err := s.Commit(new(Batch)); !errors.Is(err, ErrClosed) {
		t.Errorf("commit after close: %v", err)
	}
}

// TestPostDelay: what is posted alone is durable after 50 ms, or as long as
// the options say, and what is posted before a commit goes with it.
func TestPostDelay(t *testing.T) {
	t.Parallel()
	t.Run("usual", func(t *testing.T) { testPostDelay(t, 0, 50*time.Millisecond) })
	t.Run("set", func(t *testing.T) { testPostDelay(t, 2*time.Second, 2*time.Second) })
}

func testPostDelay(t *testing.T, option, want time.Duration) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, "q", Options{FS: vfs.NewMem(512), SegmentSize: 64 << 10, PostDelay: option})
		synctest.Wait()
		start := time.Now()
		done := make(chan time.Duration, 1)
		s.Post(new(Batch), func(err error) {
			if err != nil {
				t.Error(err)
			}
			done <- time.Since(start)
		})
		if d := <-done; d != want {
			t.Errorf("alone: after %v", d)
		}
		start = time.Now()
		s.Post(new(Batch), func(error) { done <- time.Since(start) })
		time.Sleep(10 * time.Millisecond)
		if err := s.Commit(new(Batch)); err != nil {
			t.Error(err)
		}
		if d := <-done; d != 10*time.Millisecond {
			t.Errorf("in company: after %v", d)
		}
		s.Hurry() // there is nothing
		start = time.Now()
		s.Post(new(Batch), func(error) { done <- time.Since(start) })
		time.Sleep(10 * time.Millisecond)
		s.Hurry()
		if d := <-done; d != 10*time.Millisecond {
			t.Errorf("in a hurry: after %v", d)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestFull fills a small budget, and a small disk: mail is refused,
// deliveries go on, and when there is room mail is taken again.
func TestFull(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(4096)
	mem.SetLimit(1 << 20)
	t.Run("budget", func(t *testing.T) {
		fill(t, "q", Options{FS: vfs.NewMem(512), SegmentSize: 64 << 10, Budget: 20 * 64 << 10})
	})
	t.Run("disk", func(t *testing.T) { fill(t, "q", Options{FS: mem, SegmentSize: 64 << 10}) })
	t.Run("minfree", func(t *testing.T) {
		mem := vfs.NewMem(4096)
		mem.SetLimit(2 << 20)
		fill(t, "q", Options{FS: mem, SegmentSize: 64 << 10, MinFree: 1 << 20})
	})
	t.Run("tmpfs", func(t *testing.T) {
		dir := t.TempDir()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
			t.Skipf("SKIPPED, NOT PROVED HERE: no small file system to be had: %v", err)
		}
		defer syscall.Unmount(dir, 0)
		fill(t, dir+"/q", Options{SegmentSize: 64 << 10})
	})
}

func fill(t *testing.T, dir string, o Options) {
	s := openTest(t, dir, o)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	body := bytes.Repeat([]byte("y"), 5000)
	var ids []mail.QueueID
	add := func() error {
		id := newID(t, s)
		var b Batch
		b.Add(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(1), NRcpt: 1, Content: body})
		err := s.Commit(&b)
		if err == nil {
			ids = append(ids, id)
		}
		return err
	}
	for round := range 3 {
		var err error
		for refused := 0; refused < 50; refused++ { // while what is dead is won back, it may be refused
			if err = add(); err == nil {
				refused = 0
			} else if !errors.Is(err, ErrFull) {
				break
			}
			if len(ids) > 2000 {
				t.Fatal("never full")
			}
		}
		if !errors.Is(err, ErrFull) {
			t.Fatalf("round %d: %v", round, err)
		}
		t.Logf("round %d: %d messages: %v", round, len(ids), err)
		if len(ids) < 20 {
			t.Fatalf("full with %d messages", len(ids))
		}
		f, err := s.NewFile()
		if err == nil {
			for err == nil && f.Size() < 64<<20 {
				_, err = f.Write(make([]byte, 64<<10))
			}
			f.Abort()
		}
		if !errors.Is(err, ErrFull) {
			t.Errorf("a large message: %v", err)
		}
		for _, id := range ids {
			var b Batch
			b.Done(id, []int{0})
			if err := s.Commit(&b); err != nil {
				t.Fatalf("deliveries must go on: %v", err)
			}
		}
		ids = ids[:0]
		testwait.For(t, func() string { // the housekeeper looks for room once a second
			if err := add(); err != nil {
				return fmt.Sprintf("round %d: still full: %v", round, err)
			}
			return ""
		})
	}
}

// TestKill kills a process with SIGKILL under load, again and again, and
// looks for everything that it said was durable.
func TestKill(t *testing.T) {
	once(t)
	if os.Getenv("SPOOL_TEST_CHILD") != "" {
		killChild(os.Getenv("SPOOL_TEST_CHILD"))
		return
	}
	t.Parallel()
	dir := t.TempDir()
	known := map[mail.QueueID]bool{} // acknowledged, and not given up
	doubt := map[mail.QueueID]bool{} // asked to be removed
	for round := range 5 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
		cmd.Env = append(os.Environ(), "SPOOL_TEST_CHILD="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(out)
		for lines := 0; ; lines++ {
			line, err := in.ReadString('\n')
			if err != nil {
				break
			}
			if lines == 300+round*500 {
				cmd.Process.Kill()
			}
			word, id, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch word {
			case "added":
				known[mail.QueueID(id)] = true
			case "removing":
				delete(known, mail.QueueID(id))
				doubt[mail.QueueID(id)] = true
			case "removed":
				delete(doubt, mail.QueueID(id))
			}
		}
		cmd.Wait() // killed
		rep, err := Check(nil, dir)
		if err != nil || rep.Problems != nil {
			t.Fatalf("round %d: %+v, %v", round, rep, err)
		}
		s := openTest(t, dir, Options{SegmentSize: 256 << 10})
		if rep := s.Recovery(); rep.Alarms > 0 {
			t.Errorf("round %d: %+v", round, rep)
		}
		found := map[mail.QueueID]bool{}
		s.Entries(func(e Entry) bool { found[e.ID] = true; return true })
		for id := range known {
			if !found[id] {
				t.Errorf("round %d: message %s was acknowledged and is gone", round, id)
			}
		}
		t.Logf("round %d: %d known, %d found, %d in doubt", round, len(known), len(found), len(doubt))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killChild works on a spool until it is killed, and says what it knows.
func killChild(dir string) {
	s, err := Open(Options{Dir: dir, SegmentSize: 256 << 10})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var mu sync.Mutex
	say := func(word string, id mail.QueueID) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(word, string(id))
	}
	body := bytes.Repeat([]byte("z"), 3000)
	large := os.Getenv("SPOOL_TEST_LARGE") != ""
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				n, err := s.Lease(1)
				if err != nil {
					return
				}
				id := mail.MakeQueueID(time.Now(), n)
				var b Batch
				m := Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(1), NRcpt: 1, Content: body}
				if large && i%4 == 1 {
					m.Content = nil
					if m.File, err = s.NewFile(); err != nil {
						return
					}
					if _, err = m.File.Write(bytes.Repeat([]byte("z"), 150_000)); err != nil {
						m.File.Abort()
						return
					}
				}
				b.Add(m)
				if s.Commit(&b) != nil {
					return
				}
				say("added", id)
				if (i+w)%8 == 0 || large && i%3 == 0 {
					continue
				}
				say("removing", id)
				b.Reset()
				b.Done(id, []int{0})
				if s.Commit(&b) != nil {
					return
				}
				say("removed", id)
			}
		})
	}
	wg.Wait()
}
