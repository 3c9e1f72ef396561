package cleanup

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/submit"
	"posthaste/internal/vfs"
)

// pipes is a listener within the process, for tests in which time is not real.
type pipes struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestSilentDisk brings mail to a cleanup whose disk has stopped to answer. The message
// that the disk was given waits, since it may be there; those behind it and all that come
// later are refused, at once and before filters and tables are asked; and mail is taken
// as soon as the disk answers.
func TestSilentDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSilentDisk)
}

func testSilentDisk(t *testing.T) {
	k := newKept(t)
	var silent chan struct{} // not nil: what syncs wait for
	var mu sync.Mutex
	faulty := &vfs.Faulty{FS: vfs.NewMem(512), Hook: func(op vfs.Op) error {
		mu.Lock()
		c := silent
		mu.Unlock()
		if c != nil && op.Kind == vfs.OpSync {
			<-c
		}
		return nil
	}}
	k.open = func() (engine, error) {
		return openLog(spool.Options{FS: faulty, Dir: "spool", SegmentSize: 64 << 10, Warn: k.log.l.Warning}, nil)
	}
	l := newPipes()
	k.lend = func(ctx context.Context, s *ipc.Server, drain time.Duration) error {
		s.Public = nil // a pipe does not tell whose it is
		return s.Serve(ctx, l, drain)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.run(ctx) }()
	conn := ipc.NewClient(ipc.Func("cleanup", l.dial), nil)
	c := submit.New(conn)
	send := func(limit time.Duration, octets int) (reply proto.SubmitReply, took time.Duration, err error) {
		id, err := c.NewID(t.Context(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		m := c.Open(&mail.Envelope{ID: id, Arrival: time.Now(), Sender: "a@from.test", Recipients: []mail.Recipient{{Address: "b@to.test"}}}, submit.Options{Limit: limit})
		began := time.Now()
		m.Write([]byte("Subject: x\r\n\r\n" + strings.Repeat("x\r\n", octets/3)))
		reply, err = m.Commit(t.Context())
		return reply, time.Since(began), err
	}
	if reply, _, err := send(0, 3); err != nil || reply.Code != 250 || c.Silent() {
		t.Fatalf("while all is well: %+v, %v", reply, err)
	}
	mu.Lock()
	silent = make(chan struct{})
	mu.Unlock()
	var waiting sync.WaitGroup
	const limit = 9 * time.Minute
	waiting.Go(func() {
		if reply, took, err := send(limit, 3); reply.Code != 451 || took != limit || !errors.Is(err, submit.ErrInDoubt) {
			t.Errorf("what the disk was given: %+v after %v, %v", reply, took, err)
		}
	})
	time.Sleep(5 * time.Second)
	waiting.Go(func() {
		if reply, took, err := send(limit, 3); reply.Code != 451 || took > 10*time.Second || err != nil || !reply.Silent {
			t.Errorf("what came next: %+v after %v, %v", reply, took, err)
		}
	})
	for range 10 {
		time.Sleep(30 * time.Second)
		for _, octets := range []int{3, 300_000} { // in one piece, and in parts
			if reply, took, err := send(limit, octets); reply.Code != 451 || reply.Text != writeError.Text || took > 0 || err != nil || !c.Silent() {
				t.Errorf("later, %d octets: %+v after %v, %v", octets, reply, took, err)
			}
		}
		time.Sleep(time.Second)
		if c.Silent() {
			t.Error("nobody is to ask again")
		}
	}
	time.Sleep(limit)
	mu.Lock()
	close(silent)
	silent = nil
	mu.Unlock()
	waiting.Wait()
	synctest.Wait()
	if reply, took, err := send(0, 3); err != nil || reply.Code != 250 || took > 0 {
		t.Errorf("when the disk has answered: %+v after %v, %v", reply, took, err)
	}
	if n := k.messages(); n != 3 { // the first, the one in doubt, and the last
		t.Errorf("%d messages are queued, want 3", n)
	}
	time.Sleep(2 * time.Second) // by then that is said
	c.Close()
	conn.Close()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := k.log.String(); !strings.Contains(got, "message not queued: spool: the disk does not answer: for 10s and more") ||
		!strings.Contains(got, "warning: spool: the disk has not answered for 1") || !strings.Contains(got, "warning: spool: the disk answers again, after 1") {
		t.Errorf("log: %s", got)
	}
}

// TestServiceIsBack counts how often a spool that cannot be opened is tried: the first
// message that comes reopenPause after the disk works is taken.
func TestServiceIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newKept(t)
		k.lend = func(ctx context.Context, s *ipc.Server, drain time.Duration) error { <-ctx.Done(); return nil }
		k.failing.Store(true)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.run(ctx) }()
		for _, outage := range []time.Duration{4 * time.Second, 5 * time.Minute} {
			time.Sleep(outage)
			tries := k.opened.Load()
			time.Sleep(5 * time.Second)
			if n := k.opened.Load() - tries; n < 9 || n > 11 {
				t.Errorf("after %v: tried %d times in 5 s", outage, n)
			}
			if k.engine.Load() != nil {
				t.Fatal("there is a spool on a disk that fails")
			}
			k.failing.Store(false)
			time.Sleep(reopenPause)
			synctest.Wait()
			en := k.engine.Load()
			if en == nil {
				t.Fatalf("%v after the disk works there is no spool", reopenPause)
			}
			k.failing.Store(true)
			n, err := (*en).Lease(1)
			if err != nil {
				t.Fatal(err)
			}
			b := (*en).NewBatch()
			id := mail.MakeQueueID(time.Now(), n)
			stored := (&mail.Envelope{ID: id, Sender: "a@from.test"}).Append(nil)
			b.Add(addition{ID: id, Envelope: stored, Recipients: mail.AppendRecipients(nil, []mail.Recipient{{Address: "b@to.test"}}), NRcpt: 1, Content: []byte("x\r\n")})
			if err := (*en).Commit(b); !errors.Is(err, queue.ErrBroken) {
				t.Errorf("on a disk that fails: %v", err)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
