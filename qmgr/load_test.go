package qmgr

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/vfs"
	"posthaste/qmgr/sched"
)

// A message that cannot be read now is not damaged.
func TestFetchVerdict(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err     error
		corrupt bool
	}{
		"damaged":          {fmt.Errorf("x: %w", queue.ErrCorrupt), true},
		"read error":       {fmt.Errorf("x: %w: %w", queue.ErrUnread, syscall.EIO), false},
		"moved":            {queue.ErrStale, false},
		"no descriptors":   {syscall.EMFILE, false},
		"cleanup is away":  {errors.New("no cleanup"), false},
		"all is as it was": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st, _ := longEnvelope(t)
			s := &Server{ctx: t.Context(), opt: Options{Open: func(context.Context, queue.Ref, mail.QueueID) (queueread.Stored, error) {
				return st, tt.err
			}}}
			l := &loading{limit: 10, nrcpt: 1}
			s.fetch(l)
			if l.corrupt != tt.corrupt || !errors.Is(l.err, tt.err) {
				t.Errorf("corrupt %v, %v", l.corrupt, l.err)
			}
		})
	}
	t.Run("envelope elsewhere", func(t *testing.T) {
		t.Parallel()
		st, fail := longEnvelope(t)
		s := &Server{ctx: t.Context(), opt: Options{Open: func(context.Context, queue.Ref, mail.QueueID) (queueread.Stored, error) {
			fail.Store(true)
			return st, nil
		}}}
		l := &loading{limit: 10, nrcpt: 1}
		s.fetch(l)
		if l.corrupt || !errors.Is(l.err, syscall.EIO) {
			t.Errorf("corrupt %v, %v", l.corrupt, l.err)
		}
	})
}

// longEnvelope is a deferred message whose envelope is too long for its state: it is read
// from where the message is. While the flag is set no read succeeds.
func longEnvelope(t *testing.T) (queueread.Stored, *atomic.Bool) {
	dir := filepath.Join(t.TempDir(), "spool")
	sp, err := spool.Open(spool.Options{Dir: dir, SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	n, err := sp.Lease(1)
	if err != nil {
		t.Fatal(err)
	}
	id := mail.MakeQueueID(time.Unix(1700000000, 0), n)
	env := mail.Envelope{ID: id, Sender: "sender@example.com", Arrival: time.Unix(1700000000, 0)}
	rcpts := mail.AppendRecipients(nil, []mail.Recipient{{Address: strings.Repeat("x", 8000) + "@example.org"}})
	var b spool.Batch
	b.Add(spool.Message{ID: id, Envelope: env.Append(nil), Recipients: rcpts, NRcpt: 1, Content: []byte("x\r\n")})
	err = sp.Commit(&b)
	if err == nil {
		b.Reset()
		b.Update(id, queue.Change{Set: queue.SetQueue, Queue: queue.Deferred})
		err = sp.Commit(&b)
	}
	if err != nil {
		t.Fatal(err)
	}
	en, _ := sp.Locate(id)
	fail := new(atomic.Bool)
	rd := queueread.Log(spool.NewReader(&vfs.Faulty{FS: vfs.OS{}, Hook: func(op vfs.Op) error {
		if op.Kind == vfs.OpRead && fail.Load() {
			return syscall.EIO
		}
		return nil
	}}, dir))
	t.Cleanup(func() {
		rd.Close()
		if err := sp.Close(); err != nil {
			t.Error(err)
		}
	})
	st, err := rd.Read(en.Ref, id)
	if err != nil {
		t.Fatal(err)
	}
	return st, fail
}

// What is no address, and what stands for none, goes to the error transport with the reason.
func TestNoAddress(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.routes["odd.test"], st.routes["null.test"] = "broken:", "nobody:"
	agent := st.agent("error", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	for to, want := range map[string]mail.Nexthop{"a@odd.test": "5.1.3 bad address syntax", "b@null.test": "5.1.3 null recipient address"} {
		st.arrive("s@from.test", to)
		o := agent.next()
		if o.Nexthop != want || o.Envelope.Recipients[0].Address != to {
			t.Errorf("%s: %s for %+v", to, o.Nexthop, o.Envelope.Recipients)
		}
		o.answer("ok")
	}
}

// TestWaited tells what has waited for a limit, or by somebody's choice, from what was tried, whatever a server says.
func TestWaited(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		o    mail.Outcome
		want bool
	}{
		{mail.Outcome{Relay: "none", Status: sched.StatusBeyond, Reason: "waiting for the limit of domain a.test"}, true},
		{mail.Outcome{Relay: "none", Status: statusPaused, Reason: "a.test is suspended"}, true},
		{mail.Outcome{Relay: "none", Status: dsn.S(4, 4, 1), Reason: "connect to a.test: Connection refused"}, false},
		{mail.Outcome{Relay: "mx.a.test[192.0.2.1]:25", DiagType: "smtp", Status: sched.StatusBeyond, Reason: "waiting for the limit of domain a.test"}, false},
		{mail.Outcome{Relay: "none", DiagType: "smtp", Status: statusPaused, Reason: "host a.test said: 421 4.3.2 closing"}, false},
	} {
		if got := waited(&c.o); got != c.want {
			t.Errorf("%d: %v", i, got)
		}
	}
}
