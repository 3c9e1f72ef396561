package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

// itself is a deliverer that calls Hand itself.
type itself struct{ deliverer }

func (itself) Hands() {}

// With exact orders nothing is delivered before it is recorded, and nothing at all if it cannot
// be; an agent that asks itself is left to, and probes deliver nothing.
func TestHand(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		exact     bool
		own       bool
		trace     mail.Trace
		err       error
		refused   bool
		asked     []int // indexes that cleanup is asked for; nil: it is not
		delivered bool
	}{
		{"not exact", false, false, 0, nil, false, nil, true},
		{"recorded", true, false, 0, nil, false, []int{4, 7}, true},
		{"cleanup fails", true, false, 0, errors.New("broken"), false, []int{4, 7}, false},
		{"refused", true, false, 0, nil, true, []int{4, 7}, false},
		{"asks itself", true, true, 0, nil, false, []int{7}, true},
		{"asks itself, in vain", true, true, 0, errors.New("broken"), false, []int{7}, false},
		{"probe", true, false, mail.TraceProbe, nil, false, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var mu sync.Mutex
			var asked []int
			id := mail.MakeQueueID(time.Unix(1800000000, 0), 1)
			delivered := false
			deliver := func(_ context.Context, r *Request) {
				if tt.own {
					wait := r.Hand([]int{1}, "mx[192.0.2.1]:25")
					err := wait()
					if again := wait(); (again == nil) != (err == nil) { // as who gives a delivery up asks
						t.Errorf("%v, and then %v", err, again)
					}
					if err != nil {
						return
					}
				}
				mu.Lock()
				defer mu.Unlock()
				if tt.asked != nil && asked == nil {
					t.Error("delivered before it was recorded")
				}
				delivered = true
				for i := range r.Envelope.Recipients {
					r.Sent(i, dsn.S(2, 0, 0), "ok", Detail{})
				}
			}
			var d Deliverer = deliverer(deliver)
			if tt.own {
				d = itself{deliverer(deliver)}
			}
			log := serve(t, dir, "a", Options{Deliverer: d, Hand: func(_ context.Context, m *proto.Hand, reply *proto.RecordReply) error {
				mu.Lock()
				defer mu.Unlock()
				asked = m.Index
				relay := "to.test"
				if tt.own {
					relay = "mx[192.0.2.1]:25"
				}
				if m.ID != id || m.Relay != relay {
					t.Errorf("recorded: %+v", m)
				}
				if tt.refused {
					reply.Refused = []proto.Refusal{{ID: m.ID, Reason: "too many"}}
				}
				return tt.err
			}})
			m := dial(t, dir, "a")
			m.attach()
			env := mail.Envelope{ID: id, Sender: "s@from.test", Arrival: time.Now(), Trace: tt.trace,
				Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}}
			var reply proto.DeliverReply
			if err := m.conn.Call(t.Context(), &proto.Deliver{Nexthop: "to.test", Envelope: env, Index: []int{4, 7}, Exact: tt.exact}, &reply); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(asked, tt.asked) || delivered != tt.delivered {
				t.Errorf("asked %v, delivered %v", asked, delivered)
			}
			for _, o := range reply.Outcomes {
				if (o.Action == dsn.Deferred) == tt.delivered {
					t.Errorf("%+v", o)
				}
			}
			if !tt.delivered && !tt.own && !strings.Contains(reply.Outcomes[0].Reason, "cannot be recorded in the queue") {
				t.Errorf("%+v\n%v", reply.Outcomes, log)
			}
		})
	}
}

// Who asks for nothing to be recorded, or not exactly, goes on at once, and cleanup is not asked. Where it cannot be, nothing is delivered. What was
// asked ends with the delivery's time.
func TestHandNothing(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	var order context.Context
	o := Options{Log: maillog.New("postfix/a", new(logLines)), Hand: func(ctx context.Context, _ *proto.Hand, _ *proto.RecordReply) error {
		asked.Add(1)
		order = ctx
		return nil
	}}
	for _, c := range []struct {
		exact, cleanup bool
		trace          mail.Trace
		rcpts          []int
		asked          int32
		err            bool
	}{{true, true, 0, nil, 0, false}, {false, true, 0, []int{0}, 0, false}, {true, true, mail.TraceProbe, []int{0}, 0, false}, {true, true, 0, []int{0}, 1, false}, {true, false, 0, []int{0}, 0, true}, {true, false, 0, nil, 0, false}} {
		asked.Store(0)
		now := o
		if !c.cleanup {
			now.Hand = nil
		}
		s := NewServer(now)
		run := newRunning(nil)
		run.order.Exact, run.order.Envelope.Trace, run.order.Index = c.exact, c.trace, []int{7}
		run.order.Envelope.Recipients = []mail.Recipient{{Address: "a@to.test"}}
		s.begin(t.Context(), run)
		run.req.begin(s.env, &run.order, run)
		err := run.req.Hand(c.rcpts, "x")()
		if asked.Load() != c.asked || (err != nil) != c.err || err != nil && !errors.Is(err, errHand) {
			t.Errorf("%+v: asked %d times, %v", c, asked.Load(), err)
		}
		s.end(run)
		s.wg.Wait()
	}
	if order.Err() == nil {
		t.Error("a question that was answered goes on")
	}
}

// Cleanup has handTime to record a delivery, and no longer than the delivery itself goes on: then the delivery is not made.
func TestHandEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ stop, want time.Duration }{{0, handTime}, {time.Second, time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			log := maillog.New("postfix/a", new(logLines))
			s := NewServer(Options{Log: log, Hand: func(ctx context.Context, _ *proto.Hand, _ *proto.RecordReply) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Hour):
					return nil
				}
			}})
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if c.stop > 0 {
				defer time.AfterFunc(c.stop, stop).Stop()
			}
			run := newRunning(nil)
			run.order.Exact, run.order.Index, run.order.Envelope.Recipients = true, []int{0}, []mail.Recipient{{Address: "a@to.test"}}
			s.begin(ctx, run)
			run.req.begin(s.env, &run.order, run)
			if err := run.req.Hand([]int{0}, "x")(); !errors.Is(err, errHand) || time.Since(begun) != c.want {
				t.Errorf("%v after %v, want an error after %v", err, time.Since(begun), c.want)
			}
			s.wg.Wait()
			s.end(run)
			s.close()
			log.Close()
		})
	}
}

// An order of a local agent's for another transport is as exact as its own.
func TestHandPassed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var asked []int
	serve(t, dir, "b", Options{Deliverer: deliverer(func(_ context.Context, r *Request) { r.Sent(0, dsn.S(2, 0, 0), "ok", Detail{}) }),
		Hand: func(_ context.Context, m *proto.Hand, _ *proto.RecordReply) error {
			asked = append(asked, m.Index...)
			return nil
		}})
	serve(t, dir, "a", Options{Deliverer: itself{deliverer(func(_ context.Context, r *Request) { r.Pass(0, "b", "next") })}})
	m := dial(t, dir, "a")
	m.attach()
	env := mail.Envelope{ID: mail.MakeQueueID(time.Unix(1800000000, 0), 1), Arrival: time.Now(), Recipients: []mail.Recipient{{Address: "a@to.test"}}}
	var reply proto.DeliverReply
	if err := m.conn.Call(t.Context(), &proto.Deliver{Envelope: env, Index: []int{5}, Exact: true}, &reply); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(asked, []int{5}) || reply.Outcomes[0].Action != dsn.Delivered {
		t.Errorf("%v, %+v", asked, reply.Outcomes)
	}
}

// Deliveries that cannot be recorded for one reason, as at a handover, have two lines in the log: for the first, and with how many more there
// were, as soon as one is recorded, or fails for another reason, or the process ends.
func TestUnhandedCounted(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := maillog.New("postfix/smtp", maillog.NewWriter(&out, maillog.Classic))
	var u unhanded
	for range 2 { // of those that are recorded there is nothing to say
		u.note(log, "k", nil)
	}
	handover, cut := errors.New("3 of 8 shards have been handed over"), errors.New("the connection is lost")
	for i := range 100 {
		u.note(log, mail.QueueID(fmt.Sprint("m", i)), handover)
	}
	u.note(log, "n1", cut)
	u.note(log, "n2", nil)
	u.note(log, "n3", handover)
	u.note(log, "n4", handover)
	u.end(log)
	for i := range 3 { // the reason names the message
		id := mail.QueueID(fmt.Sprint("o", i))
		u.note(log, id, fmt.Errorf("message %q is not in the queue", string(id)))
	}
	u.end(log)
	u.end(log)
	var got []string
	for line := range strings.Lines(out.String()) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), "warning: ")
		got = append(got, text)
	}
	want := []string{
		"m0: the delivery cannot be recorded in the queue: 3 of 8 shards have been handed over",
		"99 more deliveries cannot be recorded in the queue: 3 of 8 shards have been handed over",
		"n1: the delivery cannot be recorded in the queue: the connection is lost",
		"n3: the delivery cannot be recorded in the queue: 3 of 8 shards have been handed over",
		"1 more deliveries cannot be recorded in the queue: 3 of 8 shards have been handed over",
		"o0: the delivery cannot be recorded in the queue: message \"o0\" is not in the queue",
		"2 more deliveries cannot be recorded in the queue: the message is not in the queue",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
