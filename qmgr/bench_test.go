package qmgr

import (
	"flag"
	"runtime"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
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
		deferred := func(i int) queue.Entry {
			return queue.Entry{ID: mail.MakeQueueID(now.Add(-time.Duration(i)*time.Millisecond), uint64(i+1)), Queue: queue.Deferred, Attempts: 3, Size: 4000,
				NRcpt: 1, NPending: 1, Ref: queue.Ref{File: 1, Segno: uint64(i / 10000), Offset: uint32(i), Length: 300},
				NextAttempt: now.Add(time.Duration(i)*time.Millisecond + time.Hour)}
		}
		st.stream = func(c *ipc.Conn) {
			pushed = time.Now()
			e := proto.Entry{Entry: deferred(0)} // is due, and comes along whole
			env := mail.Envelope{ID: e.ID, Sender: "s@from.test", Arrival: now}
			e.NextAttempt, e.Queue = now, queue.Incoming
			e.Envelope, e.Recipients = env.Append(nil), mail.AppendRecipients(nil, []mail.Recipient{{Address: "r@to.test"}})
			c.Send(&proto.Entries{List: []proto.Entry{e}, Complete: true, Deferred: *startN})
		}
		st.dueStream = func(c *ipc.Conn, r *ipc.Request, q proto.Due) {
			batch := &proto.Entries{Known: true}
			n := min(q.Limit, *startN)
			for i := 1; i <= n; i++ {
				if batch.List = append(batch.List, proto.Entry{Entry: deferred(i)}); len(batch.List) == 1000 || i == n {
					if c.Send(batch) != nil {
						return
					}
					batch.List = batch.List[:0]
				}
			}
			last := deferred(n)
			r.Reply(&proto.DueReply{Last: queue.Mark{Next: last.NextAttempt, Number: uint64(n + 1)}, Whole: n == *startN})
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
			st.srv.post(func() {
				ch <- st.srv.told && len(st.srv.messages) == 0 && st.srv.away.fetch == nil && st.srv.sched.Stats().Deferred > 0
			}, sched.Event{})
			known = <-ch
		}
		all := time.Since(pushed)
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(first.Seconds(), "s-first")
		b.ReportMetric(all.Seconds(), "s-all")
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(*startN), "B/msg")
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
		b.StartTimer()
	}
}
