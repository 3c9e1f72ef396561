package spool

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// A silentDisk leaves syncs without an answer from when it is told to until it is let go,
// and then gives all the same answer.
type silentDisk struct {
	*vfs.Faulty
	mu     sync.Mutex
	silent *silence // the present one; nil: there is none
}

// A silence ends with the same answer for all who wait.
type silence struct {
	over   chan struct{}
	answer error // set before over is closed
}

func newSilentDisk() *silentDisk {
	d := new(silentDisk)
	d.Faulty = &vfs.Faulty{FS: vfs.NewMem(4096), Hook: func(op vfs.Op) error {
		if op.Kind != vfs.OpSync {
			return nil
		}
		d.mu.Lock()
		now := d.silent
		d.mu.Unlock()
		if now == nil {
			return nil
		}
		<-now.over
		return now.answer
	}}
	return d
}

func (d *silentDisk) fallSilent() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent = &silence{over: make(chan struct{})}
}

func (d *silentDisk) speak(answer error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent.answer = answer
	close(d.silent.over)
	d.silent = nil
}

// silentSpool is a spool on a silentDisk.
type silentSpool struct {
	*Spool
	disk *silentDisk
	log  strings.Builder
	mu   sync.Mutex
}

func newSilentSpool(t *testing.T) *silentSpool {
	t.Helper()
	s := &silentSpool{disk: newSilentDisk()}
	s.open(t)
	synctest.Wait()
	return s
}

func (s *silentSpool) open(t *testing.T) {
	t.Helper()
	var err error
	s.Spool, err = Open(Options{FS: s.disk, Dir: "q", SegmentSize: 256 << 10, Warn: func(format string, args ...any) {
		s.mu.Lock()
		defer s.mu.Unlock()
		fmt.Fprintf(&s.log, format+"\n", args...)
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *silentSpool) warnings() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// A committed is a message on its way: what Commit said, and when, once it has.
type committed struct {
	id   mail.QueueID
	took time.Duration
	err  error
	done chan struct{}
}

// commit brings a message, of large octets in a file of its own if that is not 0.
func (s *silentSpool) commit(t *testing.T, large int) *committed {
	t.Helper()
	n, err := s.Lease(1)
	if err != nil {
		t.Fatal(err)
	}
	c := &committed{id: mail.MakeQueueID(time.Now(), n), done: make(chan struct{})}
	m := Message{ID: c.id, Envelope: testEnvelope(c.id, 5), Recipients: testRecipients(1), NRcpt: 1, Content: []byte("x\r\n")}
	began := time.Now()
	go func() {
		defer close(c.done)
		if large > 0 {
			m.Content = nil
			if m.File, c.err = s.NewFile(); c.err == nil {
				m.File.Write(make([]byte, large))
			}
		}
		if c.err == nil {
			var b Batch
			b.Add(m)
			c.err = s.Commit(&b)
		}
		c.took = time.Since(began)
	}()
	return c
}

// waits says whether there is no answer yet.
func (c *committed) waits() bool {
	synctest.Wait()
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// TestSilentDisk has a sync neither succeed nor fail. New mail waits for silentTime at most,
// and not at all later; what the disk was given waits for its answer, and what
// becomes of mail waits with it. Nothing that was refused appears.
func TestSilentDisk(t *testing.T) {
	t.Parallel()
	for _, answer := range []error{nil, syscall.EIO} {
		t.Run(fmt.Sprint(answer), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testSilentDisk(t, answer) })
		})
	}
}

func testSilentDisk(t *testing.T, answer error) {
	s := newSilentSpool(t)
	first := s.commit(t, 0)
	if first.waits() || first.err != nil {
		t.Fatalf("while all is well: %v", first.err)
	}
	s.disk.fallSilent()
	given := s.commit(t, 0)
	time.Sleep(time.Second)
	behind := s.commit(t, 0)
	recorded := make(chan error, 1)
	done := new(Batch)
	done.Done(first.id, []int{0})
	s.Post(done, func(err error) { recorded <- err })
	time.Sleep(silentTime - 2*time.Second)
	if !behind.waits() || s.Silent() != nil {
		t.Fatalf("refused after %v: %v", behind.took, behind.err)
	}
	time.Sleep(2*time.Second + watchPeriod)
	if behind.waits() || !errors.Is(behind.err, ErrSilent) || behind.took > silentTime+watchPeriod {
		t.Errorf("new mail behind a sync without an answer: after %v %v", behind.took, behind.err)
	}
	for range 3 {
		time.Sleep(time.Hour)
		for _, large := range []int{0, 100 << 10} {
			if late := s.commit(t, large); late.waits() || !errors.Is(late.err, ErrSilent) || late.took > 0 {
				t.Fatalf("new mail later, %d octets: after %v %v", large, late.took, late.err)
			}
		}
	}
	if !given.waits() || len(recorded) > 0 || !errors.Is(s.Silent(), ErrSilent) {
		t.Error("what the disk was given has an answer, or what became of mail, and there is none")
	}
	s.disk.speak(answer)
	synctest.Wait()
	want := []mail.QueueID{given.id}
	if answer == nil {
		if given.waits() || given.err != nil || <-recorded != nil || s.Silent() != nil {
			t.Errorf("when the disk has answered: %v, %v", given.err, s.Silent())
		}
		after := s.commit(t, 0)
		if after.waits() || after.err != nil {
			t.Errorf("new mail when the disk has answered: %v", after.err)
		}
		want = append(want, after.id)
		time.Sleep(time.Minute)
		if s.e.disk.awake.Load() {
			t.Error("somebody is looked after, and nobody waits")
		}
	} else if given.waits() || !errors.Is(given.err, ErrBroken) || !errors.Is(<-recorded, ErrBroken) {
		t.Errorf("when the disk has failed: %v", given.err)
	}
	if err := s.Close(); err != nil && answer == nil {
		t.Error(err)
	}
	got := s.warnings()
	if strings.Count(got, "spool: the disk has not answered for 1") != 1 || answer == nil && strings.Count(got, "spool: the disk answers again, after 3h0m1") != 1 {
		t.Errorf("the operator was told: %s", got)
	}
	s.open(t)
	ids := idsOf(s.Spool)
	for _, id := range want {
		if !ids[id] && answer == nil {
			t.Errorf("%s is not there", id)
		}
		delete(ids, id)
	}
	delete(ids, first.id) // it is gone, unless that could not be recorded
	if len(ids) > 0 {
		t.Errorf("refused, and there: %v", ids)
	}
	s.Close()
}

// TestSlowDisk has each sync take a long time, as on a disk that is overloaded: nobody
// is refused.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSilentSpool(t)
		for range 20 {
			s.disk.fallSilent()
			var all []*committed
			for range 3 {
				all = append(all, s.commit(t, 0))
			}
			time.Sleep(silentTime / 2)
			s.disk.speak(nil)
			s.disk.fallSilent() // for those that came second
			time.Sleep(silentTime / 2)
			s.disk.speak(nil)
			for _, c := range all {
				if c.waits() || c.err != nil {
					t.Errorf("after %v: %v", c.took, c.err)
				}
			}
		}
		if s.warnings() != "" {
			t.Errorf("the operator was told: %s", s.warnings())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestSilentForLarge has the sync of a content file wait: small mail is refused as well, for
// its own would not be answered, either.
func TestSilentForLarge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSilentSpool(t)
		s.disk.fallSilent()
		large := s.commit(t, 100<<10)
		time.Sleep(silentTime + watchPeriod)
		small := s.commit(t, 0)
		if !large.waits() || small.waits() || !errors.Is(small.err, ErrSilent) {
			t.Errorf("large %v, small after %v %v", large.err, small.took, small.err)
		}
		s.disk.speak(nil)
		time.Sleep(watchPeriod)
		small = s.commit(t, 0)
		if large.waits() || large.err != nil || small.waits() || small.err != nil {
			t.Errorf("when the disk has answered: large %v, small %v", large.err, small.err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
