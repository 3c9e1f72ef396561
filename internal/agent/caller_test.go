package agent

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/testwait"
)

// A called is what a queue manager is told by an agent that calls.
type called struct {
	conn *ipc.Conn
	inv  proto.Inventory
	r    *ipc.Request
}

// An agent calls the queue manager when the one that ordered its deliveries is
// gone, or has said that it leaves, again when that one goes, and ends when all has
// been taken.
func TestCallQueue(t *testing.T) {
	t.Parallel()
	for _, detaches := range []bool{false, true} {
		t.Run(fmt.Sprint(detaches), func(t *testing.T) {
			t.Parallel()
			callQueue(t, detaches)
		})
	}
}

func callQueue(t *testing.T, detaches bool) {
	dir := t.TempDir()
	calls := make(chan called, 10)
	queue, err := net.Listen("unix", filepath.Join(dir, "qmgr"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	srv := &ipc.Server{Handler: func(c *ipc.Conn, r *ipc.Request) {
		k := called{conn: c, r: r}
		if err := r.Decode(&k.inv); err != nil {
			t.Error(err)
		}
		calls <- k
	}}
	wg.Go(func() { srv.Serve(ctx, queue, 0) })
	begun, goOn := make(chan bool, 2), make(chan bool)
	s := NewServer(Options{Log: maillog.New("postfix/smtp", new(logLines)), Queue: ipc.Unix(filepath.Join(dir, "qmgr")),
		Deliverer: deliverer(func(_ context.Context, r *Request) {
			begun <- true
			<-goOn
			r.Sent(0, dsn.S(2, 0, 0), "250 ok", Detail{})
		})})
	l, err := net.Listen("unix", filepath.Join(dir, "smtp"))
	if err != nil {
		t.Fatal(err)
	}
	s.start(ctx)
	wg.Go(func() { s.srv.Serve(ctx, l, 0) })
	delivered, ended := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		s.callQueue(ctx, delivered)
		close(ended)
	})
	defer func() {
		cancel()
		wg.Wait()
	}()
	m := dial(t, dir, "smtp")
	m.attach()
	answers := []<-chan answer{m.order(1, "a@to.test"), m.order(2, "b@to.test")}
	await(t, "a delivery", begun)
	await(t, "a delivery", begun)
	if detaches {
		if err := m.conn.Call(t.Context(), &proto.Detach{}, nil); err != nil {
			t.Fatal(err)
		}
		defer func() { // nothing comes behind the answer
			for _, ch := range answers {
				select {
				case a := <-ch:
					if a.err == nil {
						t.Errorf("told after it had left: %+v", a.reply)
					}
				default:
				}
			}
		}()
	} else {
		m.conn.Close()
	}

	first := await(t, "a call", calls)
	if len(first.inv.Running) != 2 || !slices.Equal(first.inv.Running[0].Index, []int{10}) || len(first.inv.Finished) != 0 {
		t.Errorf("told: %+v", first.inv)
	}
	first.r.Reply(&proto.RecordReply{})
	// Whom it has told may go before anything ends: then the next one is told what goes on.
	testwait.Until(t, "the queue manager is known", func() bool { return !s.homeless() })
	first.conn.Close()
	first = await(t, "a call to the next queue manager", calls)
	if len(first.inv.Running) != 2 || len(first.inv.Finished) != 0 {
		t.Errorf("told: %+v", first.inv)
	}
	first.r.Reply(&proto.RecordReply{})
	testwait.Until(t, "the queue manager is known", func() bool { return !s.homeless() })
	goOn <- true
	second := await(t, "a call about the end", calls)
	if len(second.inv.Running) != 0 || len(second.inv.Finished) != 1 {
		t.Errorf("told: %+v", second.inv)
	}
	second.conn.Close() // not answered: it is told again, with what goes on
	third := await(t, "a call to another queue manager", calls)
	if len(third.inv.Running) != 1 || len(third.inv.Finished) != 1 || third.inv.Finished[0].ID != second.inv.Finished[0].ID {
		t.Errorf("told: %+v", third.inv)
	}
	third.r.Reply(&proto.RecordReply{})
	goOn <- true
	s.wg.Wait()
	close(delivered)
	last := await(t, "the last call", calls)
	if len(last.inv.Running) != 0 || len(last.inv.Finished) != 1 || last.inv.Finished[0].ID == second.inv.Finished[0].ID {
		t.Errorf("told: %+v", last.inv)
	}
	// Queue managers die before they answer, one after the other: nothing but time has it told again.
	for range 3 {
		id := last.inv.Finished[0].ID
		last.conn.Close()
		last = await(t, "a call to the next queue manager", calls)
		if len(last.inv.Running) != 0 || len(last.inv.Finished) != 1 || last.inv.Finished[0].ID != id {
			t.Errorf("told: %+v", last.inv)
		}
	}
	select {
	case <-ended:
		t.Error("the agent ends before it has been heard")
	default:
	}
	last.r.Reply(&proto.RecordReply{})
	await(t, "the end", ended)
}

// A queue manager that does not answer is called again after a rest, also by an agent that has nothing else to do any more.
func TestCallRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*callRetry+callRetry/2)
		defer cancel()
		calls := 0
		s := NewServer(Options{Queue: ipc.Func("qmgr", func(context.Context) (net.Conn, error) {
			if calls++; calls > 100 {
				cancel() // or time would stand still for ever
			}
			near, far := net.Pipe()
			go func() {
				far.Read(make([]byte, 1))
				far.Close()
			}()
			return near, nil
		})})
		defer s.close()
		now := time.Now()
		s.recent.add(now, nil, &proto.Finished{ID: mail.MakeQueueID(now, 1), Reply: proto.DeliverReply{Outcomes: []mail.Outcome{{Action: dsn.Delivered}}}})
		done := make(chan struct{})
		close(done)
		s.callQueue(ctx, done)
		if calls < 2 || calls > 11 || !s.homeless() {
			t.Errorf("%d calls in %v", calls, 10*callRetry)
		}
	})
}

// What nobody has heard is taken in parts that go into a request, and is not
// lost when it could not be told.
func TestTake(t *testing.T) {
	t.Parallel()
	var list told
	now := time.Unix(1700000000, 0)
	long := make([]byte, toldSize)
	for i := range long {
		long[i] = 'x'
	}
	const n = 3 * maxTaken / toldSize
	for i := range n {
		list.add(now, nil, &proto.Finished{ID: mail.MakeQueueID(now, uint64(i+1)), Reply: proto.DeliverReply{
			Outcomes: []mail.Outcome{{Rcpt: i, Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: string(long)}}}})
	}
	taken := list.take()
	list.giveBack(taken)
	if list.n != n {
		t.Errorf("%d are left of %d", list.n, n)
	}
	var got []int
	for list.untold() {
		size := 0
		for _, p := range list.take() {
			size += len(p.packed)
			for _, f := range p.list() {
				got = append(got, f.Reply.Outcomes[0].Rcpt)
			}
		}
		if size > ipc.MaxPayload {
			t.Errorf("%d octets at a time", size)
		}
	}
	if len(got) != n || !slices.IsSorted(got) || list.n != 0 {
		t.Errorf("told %d of %d, %d are left", len(got), n, list.n)
	}
}

// A queue manager that is called hears of what nobody else knows, and of nothing that another one has heard; what it has heard is told once. If it
// does not answer, nothing has been told.
func TestTellQueue(t *testing.T) {
	t.Parallel()
	calls := make(chan *ipc.Request, 1)
	var wg sync.WaitGroup
	client := ipc.NewClient(ipc.Func("qmgr", func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		wg.Go(ipc.NewConn(far, func(_ *ipc.Conn, r *ipc.Request) { calls <- r }).Wait)
		return near, nil
	}), nil)
	defer wg.Wait()
	defer client.Close()
	s := NewServer(Options{Log: maillog.New("postfix/smtp", new(logLines))})
	near, far := net.Pipe()
	defer far.Close()
	other := ipc.NewConn(near, nil)
	defer other.Close()
	known, lost := newRunning(other), newRunning(nil)
	known.order.Envelope.ID, lost.order.Envelope.ID = "known", "lost"
	lost.order.Index, lost.order.Active = []int{3}, time.Unix(1e9, 0)
	s.running[known], s.running[lost] = struct{}{}, struct{}{}
	now := time.Now()
	s.recent.add(now, other, finished(1))
	s.recent.add(now, nil, finished(2))
	for _, answered := range []bool{false, true} {
		type outcome struct {
			conn *ipc.Conn
			err  error
		}
		done := make(chan outcome, 1)
		go func() {
			conn, err := s.tellQueue(t.Context(), client)
			done <- outcome{conn, err}
		}()
		r := await(t, "a call", calls)
		var inv proto.Inventory
		if err := r.Decode(&inv); err != nil {
			t.Fatal(err)
		}
		if len(inv.Running) != 1 || inv.Running[0].ID != "lost" || !slices.Equal(inv.Running[0].Index, []int{3}) || !inv.Running[0].Active.Equal(time.Unix(1e9, 0)) || !slices.Equal(ids(inv.Finished), ids([]proto.Finished{*finished(2)})) {
			t.Errorf("told: %+v", inv)
		}
		if !answered {
			r.Fail("not now")
		} else {
			r.Reply(&proto.RecordReply{})
		}
		got := await(t, "the end", done)
		if (got.err == nil) != answered || (got.conn != nil) != answered || s.homeless() == answered {
			t.Errorf("answered: %v; %+v", answered, got)
		}
		if known.conn != other || known.called || lost.conn != got.conn || lost.called != answered || s.recent.n != map[bool]int{false: 2, true: 1}[answered] {
			t.Errorf("answered: %v; %+v, %+v, %d are kept", answered, known, lost, s.recent.n)
		}
	}
	// Another one may attach before it has answered, and has heard all then.
	late := newRunning(nil)
	s.running[late] = struct{}{}
	done := make(chan error, 1)
	go func() {
		_, err := s.tellQueue(t.Context(), client)
		done <- err
	}()
	r := await(t, "a call", calls)
	s.mu.Lock()
	late.conn = other
	s.mu.Unlock()
	r.Reply(&proto.RecordReply{})
	if err := await(t, "the end", done); err != nil || late.conn != other || late.called {
		t.Errorf("%v: %+v", err, late)
	}
}

// What a delivery comes to at the very end of the process is told, too: who calls has not looked since, and does not end before.
func TestCallsAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		var wg sync.WaitGroup
		s := NewServer(Options{Queue: ipc.Func("qmgr", func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			wg.Go(ipc.NewConn(far, func(_ *ipc.Conn, r *ipc.Request) {
				calls.Add(1)
				r.Reply(&proto.RecordReply{})
			}).Wait)
			return near, nil
		})})
		done := make(chan struct{})
		wg.Go(func() { s.callQueue(t.Context(), done) })
		synctest.Wait()
		s.mu.Lock()
		s.recent.add(time.Now(), nil, finished(1))
		s.mu.Unlock()
		close(done)
		wg.Wait()
		s.close()
		if calls.Load() != 1 || s.homeless() {
			t.Errorf("the queue manager is called %d times", calls.Load())
		}
	})
}
