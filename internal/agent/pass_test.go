package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/event/eventtest"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/service"
	"posthaste/internal/testwait"
)

// passing begins a delivery of an order whose agent reaches other transports by agent.
func passing(t *testing.T, log *maillog.Logger, agent ipc.Address) (s *Server, r *Request) {
	t.Helper()
	s = NewServer(Options{Log: log, Agent: func(mail.Transport) ipc.Address { return agent }})
	run := newRunning(nil)
	run.order = *fullOrder()
	s.begin(t.Context(), run)
	t.Cleanup(func() { s.end(run) })
	run.req.begin(s.env, &run.order, run)
	return s, &run.req
}

// What is passed on is the order for one address, without the advice about sessions, which is about the destination that it does not go to. All of a
// transport's orders go over one connection, which ends with the process. A transport that does not say of this recipient alone
// what has come leaves it to be tried again.
func TestPassedOrder(t *testing.T) {
	t.Parallel()
	for said, want := range map[int]dsn.Action{0: dsn.Deferred, 1: dsn.Relayed, 2: dsn.Deferred} {
		var wg sync.WaitGroup
		dials := 0
		orders := make(chan proto.Deliver, 2)
		s, r := passing(t, maillog.New("postfix/local", new(logLines)), ipc.Func("lmtp", func(context.Context) (net.Conn, error) {
			dials++
			near, far := net.Pipe()
			wg.Go(ipc.NewConn(far, func(_ *ipc.Conn, r *ipc.Request) {
				var d proto.Deliver
				if err := r.Decode(&d); err != nil {
					t.Error(err)
				}
				orders <- d
				reply := new(proto.DeliverReply)
				for range said {
					reply.Outcomes = append(reply.Outcomes, mail.Outcome{Rcpt: 7, Action: dsn.Relayed, Status: dsn.S(2, 0, 0)})
				}
				r.Reply(reply)
			}).Wait)
			return near, nil
		}))
		for range 2 {
			o := r.PassTo(0, mail.Recipient{Address: "else@to.test"}, "lmtp", "hop")
			if o.Action != want || want == dsn.Deferred && o.Reason != "the delivery agent did not account for this recipient" {
				t.Errorf("%d outcomes: %+v", said, o)
			}
			d := <-orders
			if !d.Passed || d.CacheLoad || d.CacheKeep || d.Session != 0 || d.Nexthop != "hop" || len(d.Index) != 1 || d.Index[0] != 7 || len(d.Envelope.Recipients) != 1 ||
				d.Envelope.Recipients[0].Address != "else@to.test" || d.Envelope.ID != r.Envelope.ID || d.Ref != r.order.Ref {
				t.Errorf("ordered: %+v", d)
			}
		}
		if dials != 1 {
			t.Errorf("%d connections are made", dials)
		}
		s.close()
		wg.Wait() // the connection has ended
	}
}

// A transport that cannot be reached is waited for a moment only, and the log says which one it is.
func TestPassUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lines := new(logLines)
		log := maillog.New("postfix/local", lines)
		_, r := passing(t, log, ipc.Func("lmtp", func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		begun := time.Now()
		o := r.PassTo(0, mail.Recipient{Address: "else@to.test"}, "lmtp", "hop")
		if o.Action != dsn.Deferred || o.Reason != "mail transport unavailable" || time.Since(begun) != passPatience {
			t.Errorf("%+v after %v", o, time.Since(begun))
		}
		log.Close()
		if got := lines.String(); !strings.Contains(got, "warning: transport lmtp: ") {
			t.Errorf("the log: %s", got)
		}
	})
}

// A message that has left the queue is told from one that cannot be read: nothing is wrong with the disk.
func TestContentGone(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{fmt.Errorf("Q: %w", queueread.ErrGone): "Q: " + queueread.ErrGone.Error(), errors.New("no"): "message content cannot be read from the queue\nno"} {
		s := NewServer(Options{Content: func(context.Context, queue.Ref, mail.QueueID) (queueread.Content, error) { return nil, err }})
		run := newRunning(nil)
		s.begin(t.Context(), run)
		run.req.begin(s.env, &run.order, run)
		if _, got := run.req.Content(); got == nil || got.Error() != want || !errors.Is(got, err) {
			t.Errorf("%v, want %s", got, want)
		}
		s.end(run)
	}
}

// A tellingSuppressor notes whether what it is told it has time for.
type tellingSuppressor struct {
	fakeSuppressor
	late error
}

func (s *tellingSuppressor) Tell(ctx context.Context, q *proto.SuppressTell) (proto.SuppressTold, error) {
	s.late = ctx.Err()
	return s.fakeSuppressor.Tell(ctx, q)
}

// What a delivery has come to that ends with the process is told all the same, before it is reported: the suppression list of a failure, and the
// journal of all.
func TestToldAtAStop(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	suppressor := new(tellingSuppressor)
	journal, events := eventtest.New(t, "smtp", nil)
	journal.Shut()
	log := maillog.New("postfix/smtp", new(logLines))
	log.Observe(events.Observe)
	s := NewServer(Options{Log: log, Suppress: suppressor, Events: events, Deliverer: deliverer(func(_ context.Context, r *Request) {
		stop()
		r.Bounce(0, dsn.S(5, 1, 1), "no", Detail{})
	})})
	run := newRunning(nil)
	run.order = *fullOrder()
	run.order.Envelope.List = "news"
	done := make(chan *proto.DeliverReply, 1)
	go func() { done <- s.deliver(ctx, run) }()
	testwait.Until(t, "the event is told", func() bool { return len(journal.Told()) == 1 })
	select {
	case <-done:
		t.Error("it is reported before the journal has the event")
	case <-time.After(50 * time.Millisecond): // it is not there; a fault is seen mostly
	}
	journal.Open()
	if r := await(t, "the report", done); r.Stopped || len(suppressor.told) != 1 || suppressor.late != nil {
		t.Errorf("%+v; the list is told %d times, in the end %v", r, len(suppressor.told), suppressor.late)
	}
	s.close()
}

// With confirm_delay_cleared a report may be made of any delivery: what is kept of it for the next queue manager is all that is known.
func TestKeptForReports(t *testing.T) {
	t.Parallel()
	for _, reports := range []bool{false, true} {
		s := NewServer(Options{Reports: reports})
		run := newRunning(nil)
		run.order = *fullOrder()
		s.report(run, nil, nil, &proto.DeliverReply{Outcomes: []mail.Outcome{{Rcpt: 7, Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: "250 ok"}}})
		kept := s.recent.take()
		if len(kept) != 1 {
			t.Fatalf("%d parts are kept", len(kept))
		}
		if o := kept[0].list()[0].Reply.Outcomes[0]; (o.Reason == "250 ok") != reports || o.Rcpt != 7 {
			t.Errorf("reports %v: %+v", reports, o)
		}
	}
}

// A word about sessions that cannot be read closes none.
func TestDismissUnread(t *testing.T) {
	t.Parallel()
	keeper := sessionKeeper{nil, make(chan uint64, 2)}
	s := NewServer(Options{Deliverer: keeper})
	s.dismiss(&ipc.Request{Kind: proto.KindDismiss, Payload: []byte{0xff, 0xff}})
	s.wg.Wait()
	if len(keeper.dismissed) != 0 {
		t.Errorf("session %d is closed", <-keeper.dismissed)
	}
	s.dismiss(&ipc.Request{Kind: proto.KindDismiss, Payload: (&proto.Dismiss{Session: 7}).Append(nil)})
	s.wg.Wait()
	if len(keeper.dismissed) != 1 || <-keeper.dismissed != 7 {
		t.Error("session 7 is not closed")
	}
}

// Failures have their classes by the rules that main.cf names. If these cannot be read, the log says so, and mail goes without.
func TestOpenClasses(t *testing.T) {
	t.Parallel()
	for files, want := range map[string]bool{"": false, "builtin": true, "/nonexistent/classes": false} {
		cfg, err := config.LoadString("bounce_class_files = " + files + "\n")
		if err != nil {
			t.Fatal(err)
		}
		lines := new(logLines)
		log := maillog.New("postfix/smtp", lines)
		rules := openClasses(&service.Env{Config: cfg, Log: log})
		log.Close()
		warned := strings.Contains(lines.String(), "warning: bounce_class_files: ")
		if (rules != nil) != want || warned != strings.HasPrefix(files, "/") {
			t.Errorf("%q: rules %v, the log: %s", files, rules != nil, lines)
		}
	}
}
