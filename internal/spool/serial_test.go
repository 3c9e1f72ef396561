package spool

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// BenchmarkSerial says what the writer's goroutine takes of a processor for a relayed message
// of 10 KB: one that sessions commit, and the change that removes it, which comes with those
// of others as the queue manager records them. It is what bounds a spool on any number of
// processors. "µs-serial/msg" is the processor time of its thread while it has something to do,
// what the kernel does for it included; and "µs-rest/msg" all other of the process: that of the
// sessions, who may be many at a time, and of going to sleep and being woken.
// On "memory" writes and syncs cost nothing: it is the writer's own work. On "disk" they are
// those of the file system with TMPDIR, or SPOOL_BENCH_DIR.
//
//	go test ./internal/spool -run '^$' -bench Serial -benchtime 20000x
func BenchmarkSerial(b *testing.B) {
	for _, sessions := range []int{1, 20, 100} {
		b.Run(fmt.Sprintf("memory/sessions=%d", sessions), func(b *testing.B) {
			benchSerial(b, Options{FS: idleDisk{vfs.NewMem(512)}, Dir: "q"}, sessions)
		})
		b.Run(fmt.Sprintf("disk/sessions=%d", sessions), func(b *testing.B) {
			benchSerial(b, Options{Dir: benchDir(b)}, sessions)
		})
	}
}

// threadTime is the processor time that the calling thread has had.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// benchSerial commits b.N messages in as many sessions, and removes them.
func benchSerial(b *testing.B, o Options, sessions int) {
	o.Warn = b.Logf
	s, err := recovered(o)
	if err != nil {
		b.Fatal(err)
	}
	var spent atomic.Int64
	s.start(func() { // as Spool.write, with a clock
		for more := true; more; {
			reqs, last := s.nextRequests()
			runtime.LockOSThread()
			start := threadTime()
			more = s.serve(reqs, last)
			spent.Add(int64(threadTime() - start))
			runtime.UnlockOSThread()
		}
	})
	l := serialLoad{s: s, body: bytes.Repeat([]byte("0123456789abcdef0123456789abcdef\r\n"), benchSize/34), batches: make([]Batch, sessions)}
	l.run(b, 2000) // for the segments that a start makes, and for memory
	before, cpu, serial := s.Stats(), cpuTime(), spent.Load()
	b.ResetTimer()
	l.run(b, b.N)
	b.StopTimer()
	serial = spent.Load() - serial
	rest := (cpuTime() - cpu).Nanoseconds() - serial
	after := s.Stats()
	if err := s.Close(); err != nil {
		b.Error(err)
	}
	n := float64(b.N)
	b.ReportMetric(float64(serial)/1000/n, "µs-serial/msg")
	b.ReportMetric(float64(rest)/1000/n, "µs-rest/msg")
	b.ReportMetric(n/float64(after.Batches-before.Batches), "msg/batch")
	b.ReportMetric(0, "ns/op")
}

// A serialLoad is mail that goes through a spool.
type serialLoad struct {
	s       *Spool
	body    []byte
	batches []Batch // of each session
}

// run has n messages committed by the sessions, each of which waits for the one before, and
// removed.
func (l *serialLoad) run(b *testing.B, n int) {
	var left atomic.Int64
	left.Store(int64(n))
	rcpts := testRecipients(1)
	over := newFinisher(l.s)
	var wg sync.WaitGroup
	for i := range l.batches {
		t := &l.batches[i]
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				number, err := l.s.Lease(1)
				if err != nil {
					b.Error(err)
					return
				}
				id := mail.MakeQueueID(time.UnixMicro(1700000000000000), number)
				t.Reset()
				t.Add(Message{ID: id, Envelope: testEnvelope(id, len(l.body)), Recipients: rcpts, NRcpt: 1, Content: l.body})
				if err := l.s.Commit(t); err != nil {
					b.Error(err)
					return
				}
				over.finish(id)
			}
		})
	}
	wg.Wait()
	over.close()
}

// A finisher removes messages as the queue manager does: those that are done within a moment
// go together, and wait for what else is committed.
type finisher struct {
	s   *Spool
	ids chan mail.QueueID
	wg  sync.WaitGroup
}

func newFinisher(s *Spool) *finisher {
	f := &finisher{s: s, ids: make(chan mail.QueueID, 1000)}
	f.wg.Go(f.run)
	return f
}

func (f *finisher) finish(id mail.QueueID) { f.ids <- id }

// close returns when all that was given to finish is removed.
func (f *finisher) close() {
	close(f.ids)
	f.wg.Wait()
}

func (f *finisher) run() {
	free := make(chan *Batch, 8)
	for range cap(free) {
		free <- new(Batch)
	}
	for id := range f.ids {
		t := <-free
		t.Reset()
		t.Apart()
		t.Finish(id)
		for more := true; more && t.Len() < 64; {
			select {
			case next, ok := <-f.ids:
				if more = ok; ok {
					t.Finish(next)
				}
			case <-time.After(2 * time.Millisecond):
				more = false
			}
		}
		f.s.Post(t, func(error) { free <- t })
	}
	for range cap(free) {
		<-free
	}
}

// An idleDisk is a file system whose segments, once they are there, forget what is written to
// them, at no cost.
type idleDisk struct{ *vfs.Mem }

func (d idleDisk) Create(name string) (vfs.File, error) {
	f, err := d.Mem.Create(name)
	if err != nil {
		return nil, err
	}
	return idleFile{f}, nil
}

type idleFile struct{ vfs.File }

// WriteAt keeps only what a start reads of a segment that nothing was written to.
func (f idleFile) WriteAt(p []byte, off int64) (int, error) { return len(p), nil }
func (f idleFile) WriteAll([][]byte, int64) error           { return nil }
func (f idleFile) Datasync() error                          { return nil }
