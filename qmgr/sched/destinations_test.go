package sched

import (
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"posthaste/internal/dsn"
)

var destsN = flag.Int("dests.n", 50_000, "destinations in BenchmarkDestinations")

// BenchmarkDestinations is mail for as many destinations as there are messages: what a message with its destination takes
// of memory and of a processor, from its arrival to its end, with so many active at most. With "refused" no destination
// answers, so that each is dead and its message deferred, and all is tried again when it is due.
//
//	go test ./qmgr/sched -run '^$' -bench Destinations -benchtime 1x -dests.n 1000000
func BenchmarkDestinations(b *testing.B) {
	n := *destsN
	for _, c := range []struct {
		active  int
		refused bool
	}{{20_000, false}, {20_000, true}, {n, false}} {
		b.Run(fmt.Sprintf("dests=%d/active=%d/refused=%t", n, c.active, c.refused), func(b *testing.B) {
			for b.Loop() {
				benchDestinations(b, n, c.active, c.refused)
			}
		})
	}
}

// benchDestinations has n messages for n destinations come, and go.
func benchDestinations(b *testing.B, n, active int, refused bool) {
	cfg := benchConfig(100, 20)
	cfg.ActiveLimit = active
	cfg.RecipientLimit, cfg.DefaultTransports.RecipientLimit = active, active
	l := newSteady(cfg, 0, n, func(MsgID) int { return 1 })
	before, start := liveHeap(), processorTime()
	for range n {
		l.arrive()
	}
	spent := processorTime() - start
	b.ReportMetric(float64(liveHeap()-before)/float64(n), "heap-B/message")
	result := Result{}
	if refused {
		result = Result{Deferred: []int{0}, SiteFailed: true, Status: dsn.S(4, 4, 1), Reason: "Connection refused"}
	}
	start = processorTime()
	if done := l.drain(result); done != n {
		b.Fatalf("%d deliveries for %d messages", done, n)
	}
	b.ReportMetric(float64(spent+processorTime()-start)/float64(n), "cpu-ns/message")
	b.ReportMetric(float64(liveHeap()-before)/float64(n), "heap-B/message-after")
	if !refused {
		return
	}
	start = processorTime()
	done := 0
	for done < n {
		l.now = l.s.Wake()
		l.step(Event{Kind: EventTick})
		done += l.drain(Result{})
	}
	b.ReportMetric(float64(processorTime()-start)/float64(n), "cpu-ns/retry")
	if st := l.s.Stats(); st.Active+st.Deferred+st.Incoming != 0 {
		b.Fatalf("left: %+v", st)
	}
}

// drain ends all deliveries with the same result, and those that follow, while there are any. No mail comes for what goes.
func (l *steady) drain(r Result) (done int) {
	for ; l.n > 0; done++ {
		id := l.busy[l.head]
		l.head = (l.head + 1) % len(l.busy)
		l.n--
		l.now = l.now.Add(time.Microsecond)
		l.step(Event{Kind: EventDone, Entry: id, Result: r})
	}
	l.turn = 0
	return done
}

// liveHeap is how much memory is in use.
func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
