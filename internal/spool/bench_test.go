package spool

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/mail"
)

// BenchmarkLife is the whole life of a 10 KB message: accepted durably,
// marked delivered, its space used again; with a file per message beside it
// (create, write, sync, rename, and unlink when delivered), as mail servers
// have it. "synced" waits for the delivered record, "lazy" lets it ride
// with the next commit.
//
//	go test ./internal/spool -run '^$' -bench Life -benchtime 3s
func BenchmarkLife(b *testing.B) {
	for _, writers := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("log/lazy/writers=%d", writers), func(b *testing.B) { benchLog(b, writers, true) })
		b.Run(fmt.Sprintf("log/synced/writers=%d", writers), func(b *testing.B) { benchLog(b, writers, false) })
		b.Run(fmt.Sprintf("file/writers=%d", writers), func(b *testing.B) { benchFiles(b, writers) })
	}
}

const benchSize = 10 << 10

// benchDir is on the disk, which t.TempDir may not be.
func benchDir(b *testing.B) string {
	root := os.Getenv("SPOOL_BENCH_DIR")
	if root == "" {
		return b.TempDir()
	}
	dir, err := os.MkdirTemp(root, "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// spread runs f b.N times over the writers.
func spread(b *testing.B, writers int, f func(worker int)) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	cpu, start := cpuTime(), time.Now()
	for w := range writers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				f(w)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	n := float64(b.N)
	b.ReportMetric(n/time.Since(start).Seconds(), "msg/s")
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/n, "µs-cpu/msg")
	b.ReportMetric(0, "ns/op")
}

func benchLog(b *testing.B, writers int, lazy bool) {
	s := openTest(b, benchDir(b), Options{})
	defer s.Close()
	body := bytes.Repeat([]byte("0123456789abcdef0123456789abcdef\r\n"), benchSize/34)
	rcpts := testRecipients(1)
	type state struct {
		add, done Batch
		free      chan *Batch
	}
	ws := make([]state, writers)
	for i := range ws {
		ws[i].free = make(chan *Batch, 64)
		for range 64 {
			ws[i].free <- new(Batch)
		}
	}
	before := s.Stats()
	spread(b, writers, func(w int) {
		st := &ws[w]
		n, err := s.Lease(1)
		if err != nil {
			b.Error(err)
			return
		}
		id := mail.MakeQueueID(time.UnixMicro(1700000000000000), n)
		st.add.Reset()
		st.add.Add(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: rcpts, NRcpt: 1, Content: body})
		if err := s.Commit(&st.add); err != nil {
			b.Error(err)
			return
		}
		if !lazy {
			st.done.Reset()
			st.done.Done(id, []int{0})
			if err := s.Commit(&st.done); err != nil {
				b.Error(err)
			}
			return
		}
		d := <-st.free
		d.Reset()
		d.Done(id, []int{0})
		s.Post(d, func(error) { st.free <- d })
	})
	var last Batch
	if err := s.Commit(&last); err != nil {
		b.Error(err)
	}
	after := s.Stats()
	n := float64(b.N)
	b.ReportMetric(float64(after.Batches-before.Batches)/n, "syncs/msg")
	b.ReportMetric(float64(after.Written-before.Written)/n, "B/msg")
	b.ReportMetric(float64(after.Segments), "segments")
}

func benchFiles(b *testing.B, writers int) {
	dir := benchDir(b)
	body := bytes.Repeat([]byte("0123456789abcdef0123456789abcdef\r\n"), benchSize/34)
	for _, d := range []string{"incoming", "active"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			b.Fatal(err)
		}
	}
	var next atomic.Int64
	spread(b, writers, func(int) {
		name := fmt.Sprint(next.Add(1))
		in, act := filepath.Join(dir, "incoming", name), filepath.Join(dir, "active", name)
		f, err := os.OpenFile(in, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.Write(body)
		}
		if err == nil {
			err = f.Sync()
		}
		if err == nil {
			err = f.Close()
		}
		if err == nil {
			err = os.Rename(in, act)
		}
		if err == nil {
			err = os.Remove(act)
		}
		if err != nil {
			b.Error(err)
		}
	})
}

// BenchmarkLarge accepts messages of 300 KB durably, which have files of their own.
// "new" leaves them in the queue, so that each file is a new one, whose name takes
// one sync more; "again" has each delivered, so that its file is used for the next.
func BenchmarkLarge(b *testing.B) {
	for _, writers := range []int{1, 10} {
		b.Run(fmt.Sprintf("new/writers=%d", writers), func(b *testing.B) { benchLarge(b, writers, false) })
		b.Run(fmt.Sprintf("again/writers=%d", writers), func(b *testing.B) { benchLarge(b, writers, true) })
	}
}

func benchLarge(b *testing.B, writers int, deliver bool) {
	s := openTest(b, benchDir(b), Options{})
	defer s.Close()
	body := bytes.Repeat([]byte("0123456789abcdef0123456789abcdef\r\n"), 300_000/34)
	rcpts := testRecipients(1)
	spread(b, writers, func(int) {
		n, err := s.Lease(1)
		if err != nil {
			b.Error(err)
			return
		}
		f, err := s.NewFile()
		if err == nil {
			_, err = f.Write(body)
		}
		if err != nil {
			b.Error(err)
			return
		}
		id := mail.MakeQueueID(time.UnixMicro(1700000000000000), n)
		var batch Batch
		batch.Add(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: rcpts, NRcpt: 1, File: f})
		if err := s.Commit(&batch); err != nil {
			b.Error(err)
			return
		}
		if deliver {
			done := new(Batch)
			done.Done(id, []int{0})
			s.Post(done, nil)
		}
	})
}
