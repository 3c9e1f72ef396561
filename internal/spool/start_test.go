package spool

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

var (
	startN    = flag.Int("start.n", 100_000, "deferred messages in BenchmarkStart")
	startSize = flag.Int("start.size", 4096, "octets of content of each")
	startDir  = flag.String("start.dir", "", "where BenchmarkStart has its spool, which it leaves there for the next time; empty: a directory that is removed")
)

// BenchmarkStart measures Open, and telling qmgr of every message, with many
// deferred messages. Times are of the clock (s-) and of the processor (cpu-). B-kept/msg is the index; rss-MB the most
// that the process ever had, which says something when the spool was there already.
//
//	go test ./internal/spool -run '^$' -bench Start -start.n 1000000 -start.size 600 -start.dir /var/tmp/million
func BenchmarkStart(b *testing.B) {
	dir := *startDir
	if dir == "" {
		dir = benchDir(b)
	}
	opt := Options{}
	before := heapAfterGC()
	s := openTest(b, dir, opt)
	if s.Stats().Messages == 0 {
		fillDeferred(b, s, *startN)
	}
	want := s.Stats().Messages
	b.Logf("%+v", s.Stats())
	var open, cpu, all time.Duration
	for b.Loop() {
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		s = nil
		runtime.GC()
		used := cpuTime()
		start := time.Now()
		s = openTest(b, dir, opt)
		open += time.Since(start)
		cpu += cpuTime() - used
		n := 0
		s.Entries(func(Entry) bool { n++; return true })
		all += time.Since(start)
		if n != want {
			b.Fatalf("%d messages, want %d", n, want)
		}
	}
	kept := int64(heapAfterGC()-before) + s.e.idx.mem.bytes()
	b.Logf("%+v", s.Recovery())
	b.ReportMetric(open.Seconds()/float64(b.N), "s-open")
	b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-open")
	b.ReportMetric(all.Seconds()/float64(b.N), "s-all")
	b.ReportMetric(float64(kept)/float64(want), "B-kept/msg")
	b.ReportMetric(peakMemory(b), "rss-MB")
	b.ReportMetric(0, "ns/op")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// peakMemory is the most memory that this process ever had, in MB.
func peakMemory(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kb float64
			fmt.Sscan(text, &kb)
			return kb / 1000
		}
	}
	return 0
}

// fillDeferred adds n messages and defers each, as a failed attempt does.
func fillDeferred(b *testing.B, s *Spool, n int) {
	body := bytes.Repeat([]byte("0123456789abcdef0123456789abcde\r\n"), *startSize/33)
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

// BenchmarkIndex measures the index alone, at a size where its memory matters: one
// insertion, and for each message all of the rest. Messages are as after a few attempts: their
// states are anywhere in the log, and their next attempts at any microsecond of an hour.
//
//	go test ./internal/spool -run '^$' -bench Index -benchtime 10000000x
func BenchmarkIndex(b *testing.B) {
	before := heapAfterGC()
	x := newIndex()
	r := rand.New(rand.NewPCG(1, 2))
	number, entry := attemptedNumber, func(i int) live { return attempted(r, i) }
	each := func(name string, f func()) {
		start := cpuTime() // so that other work does not count
		f()
		b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/float64(b.N), "ns-"+name)
	}
	each("insert", func() {
		for i := range b.N {
			*x.insert(number(i)) = entry(i)
			x.tidy()
		}
	})
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(int64(heapAfterGC()-before)+x.mem.bytes())/float64(b.N), "B/msg")
	start := time.Now()
	runtime.GC()
	b.ReportMetric(float64(time.Since(start).Microseconds()), "µs-gc")
	each("find", func() {
		var room live
		for range b.N {
			i := r.IntN(b.N)
			if l := x.find(number(i), &room); l == nil || l.number != number(i) {
				b.Fatal("lost")
			}
		}
	})
	each("next", func() { // as a queue manager is told of them
		n := 0
		x.each(func(*live) { n++ })
		if n != b.N {
			b.Fatalf("%d messages, want %d", n, b.N)
		}
	})
	each("change", func() {
		for range b.N {
			i := r.IntN(b.N)
			*x.edit(number(i)) = entry(i)
			x.tidy()
		}
	})
	b.ReportMetric(float64(int64(heapAfterGC()-before)+x.mem.bytes())/float64(b.N), "B-changed/msg")
	each("remove", func() {
		for i := range b.N {
			x.remove(number(i))
			x.tidy()
		}
	})
	if x.len() != 0 {
		b.Fatal("something is left")
	}
}

// attempted is the i-th of many messages that have been tried a few times.
func attempted(r *rand.Rand, i int) live {
	size := int64(1000 + r.IntN(6000))
	return live{number: attemptedNumber(i), created: 1700000000_000000 + int64(i)*10_000 + r.Int64N(10_000), next: 1800000000_000000 + r.Int64N(3600_000_000),
		size: size, refSeg: uint32(r.IntN(100)), refOff: uint32(r.IntN(64<<20)) &^ 7, refLen: headerLen + 300, refMeta: uint32(280 + r.IntN(40)),
		conSeg: uint32(i / 15000), conOff: uint32(i%15000) * 4400 &^ 7, conLen: uint32(size) + 350 + uint32(r.IntN(60)), nrcpt: 1, npending: 1,
		attempts: uint32(1 + r.IntN(4)), queue: uint8(Deferred)}
}

// attemptedNumber is its number: a segment holds some, and numbers begin with its own.
func attemptedNumber(i int) uint64 { return uint64(1+i/15000)<<32 + uint64(i) }

// A message that waits costs the index so many octets, and those that something happens to no more
// in the end.
func TestIndexMemory(t *testing.T) {
	once(t)
	t.Parallel()
	const n, most = 300_000, 22
	x := newIndex()
	x.most = 8
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		*x.insert(attemptedNumber(i)) = attempted(r, i)
		x.tidy()
	}
	check := func(when string) {
		per := float64(x.mem.taken) / float64(x.len())
		t.Logf("%s: %.1f octets a message", when, per)
		if per > most {
			t.Errorf("%s: %.1f octets a message, want %d at most", when, per, most)
		}
	}
	check("at first")
	for range n / 20 {
		i := r.IntN(n)
		*x.edit(attemptedNumber(i)) = attempted(r, i)
		x.tidy()
	}
	check("after changes")
	before := x.mem.bytes()
	for i := range n - n/10 {
		x.remove(attemptedNumber(i))
		x.tidy()
	}
	if size := x.mem.bytes(); size > before/2 {
		t.Errorf("%d octets were taken of the system, and %d are for a tenth of the messages", before, size)
	}
}

// BenchmarkIndexRelay is what a message costs the index that is delivered at once, with a
// thousand others on their way.
func BenchmarkIndexRelay(b *testing.B) {
	x := newIndex()
	var room live
	number := func(i int) uint64 { return 5<<32 + uint64(i) }
	for i := range b.N {
		if x.find(number(i), &room) != nil {
			b.Fatal("it is there already")
		}
		*x.insert(number(i)) = live{number: number(i), created: int64(i), nrcpt: 1, npending: 1}
		if i < 1000 {
			continue
		}
		for range 3 { // checked, staged, and answered
			if x.find(number(i-1000), &room) == nil {
				b.Fatal("it is gone")
			}
		}
		x.edit(number(i - 1000))
		x.remove(number(i - 1000))
		x.tidy()
	}
}

func heapAfterGC() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
