package qmgr

import (
	"flag"
	"runtime"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/spool"
	"posthaste/qmgr/sched"
)

var startN = flag.Int("start.n", 100_000, "deferred messages in BenchmarkStart")

// BenchmarkStart is the queue manager's share in the start of a mail system
// with many deferred messages: the time until the first that is due is ordered
// from an agent, until all are known, and what they take.
//
//	go test ./qmgr -run '^$' -bench Start -start.n 1000000 -benchtime 1x
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		st := newStage(b, "")
		smtp := st.agent("smtp", proto.Inventory{})
		now := time.Now()
		var pushed time.Time
		st.stream = func(c *ipc.Conn) {
			pushed = time.Now()
			batch := new(proto.Entries)
			for i := range *startN {
				at := now.Add(-time.Duration(i) * time.Millisecond)
				e := proto.Entry{Entry: spool.Entry{ID: mail.MakeQueueID(at, uint64(i+1)), Queue: spool.Deferred, Attempts: 3, Size: 4000, NRcpt: 1, NPending: 1,
					Ref: spool.Ref{File: 1, Segno: uint64(i / 10000), Offset: uint32(i), Length: 300}, NextAttempt: now.Add(time.Duration(i%4000)*time.Second + time.Hour)}}
				if i == 0 { // is due, and comes along whole
					env := mail.Envelope{ID: e.ID, Sender: "s@from.test", Arrival: at}
					e.NextAttempt, e.Queue = now, spool.Incoming
					e.Envelope, e.Recipients = env.Append(nil), mail.AppendRecipients(nil, []mail.Recipient{{Address: "r@to.test"}})
				}
				if batch.List = append(batch.List, e); len(batch.List) == 1000 || i == *startN-1 {
					batch.Complete = i == *startN-1
					if c.Send(batch) != nil {
						return
					}
					batch.List = batch.List[:0]
				}
			}
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		st.run()
		o := smtp.next()
		first := time.Since(pushed)
		o.answer("ok")
		for known := false; !known; {
			ch := make(chan bool)
			st.srv.post(func() { ch <- st.srv.told && len(st.srv.messages) == 0 }, sched.Event{})
			known = <-ch
		}
		all := time.Since(pushed)
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(first.Seconds(), "s-first")
		b.ReportMetric(all.Seconds(), "s-all")
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(*startN), "B/msg")
		b.StartTimer()
	}
}
