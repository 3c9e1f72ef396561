package qmgr

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/rewriteclient"
	"posthaste/internal/table"
)

// BenchmarkSerial is what a relayed message takes of the loop, which is one goroutine: the processor time of its
// thread from the beginning of each turn to its end. All else that the queue manager does, and its peers, which this
// process plays, run beside it and do not count. So the figure says how many messages a second there can be at most,
// on however many processors.
//
//	go test ./qmgr -run '^$' -bench Serial -benchtime 50000x -count 5
func BenchmarkSerial(b *testing.B) {
	for _, load := range []struct {
		name             string
		sessions, domain int
	}{{"relay", 20, 1}, {"relay100", 100, 1}, {"domains", 20, 300}, {"domains100", 100, 300}} {
		b.Run(load.name, func(b *testing.B) {
			r := newRelay(b, load.sessions, load.domain)
			r.run(1000) // warms up
			b.ResetTimer()
			turns, serial := r.run(b.N)
			b.StopTimer()
			b.ReportMetric(float64(serial)/float64(time.Microsecond)/float64(b.N), "serial-µs/msg")
			b.ReportMetric(float64(turns)/float64(b.N), "turns/msg")
			r.close()
		})
	}
}

// A relay is a queue manager among peers that do nothing but what they must: cleanup tells of new messages, with so
// many in the queue at once, and an agent delivers each as soon as it is told to.
type relay struct {
	b        testing.TB
	srv      *Server
	stage    *stage
	ctx      context.Context
	stop     func()
	end      func(func())
	cleanup  *ipc.Conn
	attached chan struct{}
	sessions int
	domains  int
	left     atomic.Int64 // messages that are not in the queue yet
	open     atomic.Int64 // messages that have not left it
	number   atomic.Uint64
	overhead time.Duration // of looking at the thread's clock twice
}

// newRelay starts all of them but the loop, which run is.
func newRelay(b testing.TB, sessions, domains int) *relay {
	cfg, err := config.LoadString("relayhost = [127.0.0.1]\nsmtp_destination_concurrency_limit = 100\n")
	if err != nil {
		b.Fatal(err)
	}
	settings, err := Load(cfg, nil, table.Options{}, b.Logf)
	if err != nil {
		b.Fatal(err)
	}
	st := &stage{t: b, dir: b.TempDir()}
	r := &relay{b: b, stage: st, sessions: sessions, domains: domains, attached: make(chan struct{})}
	st.serve("cleanup", r.asCleanup)
	st.serve("smtp", r.asAgent)
	st.serve("rewrite", r.asResolver)
	resolver := rewriteclient.New(ipc.Unix(st.path("rewrite")))
	b.Cleanup(resolver.Close)
	r.srv = New(Options{Settings: settings, Resolver: resolver, Cleanup: ipc.Unix(st.path("cleanup")), Bounce: ipc.Unix(st.path("bounce")),
		Verify: ipc.Unix(st.path("verify")), Log: maillog.New("postfix/qmgr", maillog.NewWriter(io.Discard, maillog.Classic)),
		Agent: func(t mail.Transport) ipc.Address { return ipc.Unix(st.path(string(t))) }})
	var stopWork func()
	r.ctx, stopWork = context.WithCancel(context.Background())
	r.stop = stopWork
	r.end = r.srv.start(r.ctx, r.ctx)
	<-r.attached
	return r
}

func (r *relay) asCleanup(c *ipc.Conn, q *ipc.Request) {
	switch q.Kind {
	case proto.KindAttach:
		c.Push(&proto.Entries{Complete: true})
		q.Reply(&proto.RecordReply{})
		r.cleanup = c
		close(r.attached)
	case proto.KindRecord:
		var rec proto.Record
		if err := q.Decode(&rec); err != nil {
			r.b.Error(err)
		}
		q.Reply(&proto.RecordReply{})
		for i := range rec.Ops {
			if rec.Ops[i].Remove {
				r.open.Add(-1)
			}
		}
	case proto.KindHands:
		q.Reply(&proto.HandsReply{})
	default:
		q.Fail("unexpected request %d", q.Kind)
	}
}

func (r *relay) asAgent(c *ipc.Conn, q *ipc.Request) {
	switch q.Kind {
	case proto.KindAttach:
		c.Push(&proto.Inventory{})
	case proto.KindDeliver:
		var d proto.Deliver
		if err := q.Decode(&d); err != nil {
			r.b.Error(err)
			return
		}
		q.Reply(&proto.DeliverReply{Opened: false, Outcomes: []mail.Outcome{{Rcpt: d.Index[0], Action: dsn.Delivered, Status: dsn.S(2, 0, 0),
			Relay: "127.0.0.1[127.0.0.1]:25", Reason: "250 2.0.0 Ok: queued", When: time.Now()}}})
		r.next()
	}
}

func (r *relay) asResolver(_ *ipc.Conn, q *ipc.Request) {
	var ask proto.Resolve
	if err := q.Decode(&ask); err != nil {
		r.b.Error(err)
		return
	}
	q.Reply(&proto.ResolveReply{Transport: "smtp", Nexthop: nexthopFor(r.domains, ask.Address), Recipient: ask.Address, Flags: proto.ResolveDefault, Fixed: true})
}

// nexthopFor is where mail for an address goes: all to the relay host, or, with several domains, each to its own host.
func nexthopFor(domains int, addr string) string {
	if domains == 1 {
		return "[127.0.0.1]"
	}
	return domainOf(addr)
}

// next has cleanup tell of another message, if there is one left.
func (r *relay) next() {
	if r.left.Add(-1) < 0 {
		return
	}
	n := r.number.Add(1)
	env := mail.Envelope{Arrival: time.Now(), Sender: "sender@from.test", Size: 10240, MessageID: fmt.Sprintf("<%d@from.test>", n),
		RewriteContext: "local", Client: mail.Client{Name: "client.from.test", Addr: "192.0.2.1", Port: "12345", Helo: "client.from.test", Proto: "ESMTP"}}
	env.ID = mail.MakeQueueID(env.Arrival, n)
	env.Recipients = []mail.Recipient{{Address: fmt.Sprintf("rcpt@d%d.test", n%uint64(r.domains))}}
	r.cleanup.Push(&proto.Entries{List: []proto.Entry{{Entry: queue.Entry{ID: env.ID, Ref: queue.Ref{Segno: 1, Length: 10500}, Size: 10240, NRcpt: 1, NPending: 1},
		Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, env.Recipients)}}})
}

// run is the loop, until n messages more have come and have left the queue. It says how many turns that took, and what
// they took of a processor.
func (r *relay) run(n int) (turns int, serial time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if r.overhead == 0 {
		t := threadTime(r.b)
		for range 1000 {
			threadTime(r.b)
		}
		r.overhead = (threadTime(r.b) - t) / 1000
	}
	r.open.Store(int64(n))
	r.left.Store(int64(n))
	for range r.sessions {
		r.next()
	}
	s, timer := r.srv, time.NewTimer(time.Hour)
	defer timer.Stop()
	for r.open.Load() > 0 {
		begin := threadTime(r.b)
		s.now = time.Now()
		s.turn(false)
		wait := time.Hour
		if at := s.wake(); !at.IsZero() {
			wait = max(at.Sub(s.now), 0)
		}
		serial += threadTime(r.b) - begin - r.overhead
		turns++
		timer.Reset(wait)
		select {
		case <-s.bell:
		case <-timer.C:
		}
	}
	return turns, serial
}

func (r *relay) close() { r.end(r.stop) }

// threadTime is the processor time of the calling thread.
func threadTime(b testing.TB) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}
