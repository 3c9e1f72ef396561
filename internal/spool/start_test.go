package spool

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

var startN = flag.Int("start.n", 100_000, "deferred messages in BenchmarkStart")

// BenchmarkStart measures Open, and telling qmgr of every message, with many
// deferred messages of 4 KB.
//
//	go test ./internal/spool -run '^$' -bench Start -start.n 1000000
func BenchmarkStart(b *testing.B) {
	dir := benchDir(b)
	opt := Options{}
	s := openTest(b, dir, opt)
	fillDeferred(b, s, *startN)
	b.Logf("%+v", s.Stats())
	var open, first, all time.Duration
	for b.Loop() {
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		s = openTest(b, dir, opt)
		open += time.Since(start)
		n := 0
		s.Entries(func(Entry) bool {
			if n++; n == 1 {
				first += time.Since(start)
			}
			return true
		})
		all += time.Since(start)
		if n != *startN {
			b.Fatalf("%d messages, want %d", n, *startN)
		}
	}
	heap := heapAfterGC()
	b.Logf("%+v", s.Recovery())
	b.ReportMetric(open.Seconds()/float64(b.N), "s-open")
	b.ReportMetric(first.Seconds()/float64(b.N), "s-first")
	b.ReportMetric(all.Seconds()/float64(b.N), "s-all")
	b.ReportMetric(float64(heap)/float64(*startN), "B-heap/msg")
	b.ReportMetric(0, "ns/op")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// fillDeferred adds n messages of 4 KB and defers each, as a failed attempt
// does.
func fillDeferred(b *testing.B, s *Spool, n int) {
	body := bytes.Repeat([]byte("0123456789abcdef0123456789abcde\r\n"), 4096/33)
	rcpts := testRecipients(1)
	var batch Batch
	for done := 0; done < n; {
		batch.Reset()
		k := min(200, n-done)
		lo, err := s.Lease(k)
		if err != nil {
			b.Fatal(err)
		}
		ids := make([]mail.QueueID, k)
		for i := range ids {
			ids[i] = mail.MakeQueueID(time.Unix(1700000000, int64(done+i)*1000), lo+uint64(i))
			batch.Add(Message{ID: ids[i], Envelope: testEnvelope(ids[i], len(body)), Recipients: rcpts, NRcpt: 1, Content: body})
		}
		if err := s.Commit(&batch); err != nil {
			b.Fatal(err)
		}
		batch.Reset()
		for i, id := range ids {
			batch.Update(id, Change{Set: SetQueue | SetNextAttempt | SetAttempts, Queue: Deferred, Attempts: 1,
				NextAttempt: time.Unix(1700001000+int64(i), 0),
				Outcomes: []mail.Outcome{{Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Relay: "none", When: time.Unix(1700000100, 0),
					Reason: fmt.Sprintf("connect to mx%d.example.org[192.0.2.1]:25: Connection timed out", i)}}})
		}
		if err := s.Commit(&batch); err != nil {
			b.Fatal(err)
		}
		done += k
	}
}

// BenchmarkIndex measures the index alone, at a size where its memory matters:
// one insertion, and for each message all of the rest.
//
//	go test ./internal/spool -run '^$' -bench Index -benchtime 10000000x
func BenchmarkIndex(b *testing.B) {
	before := heapAfterGC()
	x := newIndex()
	number := func(i int) uint64 { return uint64(1+i/20000)<<32 + uint64(i) } // a segment holds some, and numbers begin with its own
	each := func(name string, f func()) {
		start := time.Now()
		f()
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(b.N), "ns-"+name)
	}
	b.ResetTimer()
	for i := range b.N {
		slot := x.insert(number(i))
		*x.at(slot) = live{number: number(i), created: int64(i), nrcpt: 1, npending: 1}
	}
	b.StopTimer()
	b.ReportMetric(float64(heapAfterGC()-before)/float64(b.N), "B/msg")
	start := time.Now()
	runtime.GC()
	b.ReportMetric(float64(time.Since(start).Microseconds()), "µs-gc")
	each("find", func() {
		r := rand.New(rand.NewPCG(1, 2))
		for range b.N {
			i := r.IntN(b.N)
			if _, l := x.find(number(i)); l == nil || l.created != int64(i) {
				b.Fatal("lost")
			}
		}
	})
	each("next", func() { // in the order of insertion, as a queue manager is told of them
		last := int64(-1)
		for slot := range x.used {
			l := x.at(slot)
			if l.created <= last {
				b.Fatal("out of order")
			}
			last = l.created
		}
	})
	each("remove", func() {
		for i := range b.N {
			slot, _ := x.find(number(i))
			x.remove(slot)
		}
	})
	if x.len() != 0 {
		b.Fatal("something is left")
	}
}

func heapAfterGC() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
