package qmgr

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/table"
	"posthaste/qmgr/sched"
)

// What is queued again goes where today's configuration has it go, not where
// the tables of the day on which it came had it go. What the message is stays: who sent
// it, how, and what for.
func TestRequeueToday(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		main, filter string
		flags        proto.SubmitFlags
	}{
		{"", "", proto.SubmitMap | proto.SubmitFilter | proto.SubmitBCC},
		{"content_filter = scan:[new.test]\n", "scan:[new.test]", proto.SubmitMap | proto.SubmitFilter | proto.SubmitBCC},
		{"receive_override_options = no_address_mappings, no_header_body_checks\n", "", 0},
	} {
		st := newStage(t, x.main)
		was := mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Filter: "smtp:[old.test]", Redirect: "r@old.test", VERP: "+=",
			EnvID: "e", Ret: dsn.RetHeaders, RewriteContext: "remote", Client: mail.Client{Name: "c.test", Addr: "192.0.2.1"}, RequireTLS: true,
			Tenant: "acme", Campaign: "spring", Pool: "bulk",
			Recipients: []mail.Recipient{{Address: "a@to.test", Original: "o@to.test"}, {Address: "bcc@to.test", Notify: dsn.NotifyNever}}}
		id := st.fill(faketest.Mail{Content: "x\r\n", Queue: queue.Hold, Envelope: was})[0]
		st.run()
		st.command(proto.Command{Verb: proto.VerbRequeue, ID: id})
		st.waitOp(id, "requeued", removed)
		st.mu.Lock()
		if len(st.taken) != 1 {
			t.Fatalf("through cleanup: %+v", st.taken)
		}
		q := st.taken[0]
		st.mu.Unlock()
		env := q.Envelope
		if env.Filter != x.filter || env.Redirect != "" {
			t.Errorf("%q: filter %q, redirected to %q", x.main, env.Filter, env.Redirect)
		}
		if want := x.flags | proto.SubmitBounce | proto.SubmitRequeued; q.Flags != want {
			t.Errorf("%q: flags %b, want %b", x.main, q.Flags, want)
		}
		if env.Sender != was.Sender || env.VERP != was.VERP || env.EnvID != was.EnvID || env.Ret != was.Ret || env.RewriteContext != was.RewriteContext ||
			env.Client != was.Client || !env.RequireTLS || env.Tenant != was.Tenant || env.Campaign != was.Campaign || env.Pool != was.Pool {
			t.Errorf("the envelope was %+v, and is %+v", was, env)
		}
		if len(env.Recipients) != 2 || env.Recipients[0].Address != "o@to.test" || !slices.Equal(q.NoBCC, []string{"a@to.test", "bcc@to.test"}) {
			t.Errorf("recipients %+v, no BCC for %q", env.Recipients, q.NoBCC)
		}
	}
}

// Mail that local has forwarded goes to those it was forwarded to, and not back to the alias: local
// would find its own Delivered-To: there, and return it.
func TestRequeueForwarded(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	was := mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Forwarded: true,
		Recipients: []mail.Recipient{{Address: "a@to.test", Original: "list@here.test"}}}
	id := st.fill(faketest.Mail{Content: "x\r\n", Queue: queue.Hold, Envelope: was})[0]
	st.run()
	st.command(proto.Command{Verb: proto.VerbRequeue, ID: id})
	st.waitOp(id, "requeued", removed)
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.taken) != 1 || !slices.Equal(st.taken[0].Envelope.Recipients, was.Recipients) || !st.taken[0].Envelope.Forwarded {
		t.Errorf("through cleanup: %+v", st.taken)
	}
}

// The settings are those of pickup, with the options of its entry.
func TestRequeueSettings(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("content_filter = scan:\n")
	if err != nil {
		t.Fatal(err)
	}
	services := []config.Service{{Name: "smtp", Command: "smtpd", Args: []string{"-o", "content_filter=no:"}},
		{Name: "pickup", Command: "pickup", Args: []string{"-o", "content_filter=local:", "-o", "receive_override_options=no_address_mappings"}}}
	s, err := Load(cfg, services, table.Options{}, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if want := proto.SubmitFilter | proto.SubmitBounce | proto.SubmitRequeued; s.RequeueFilter != "local:" || s.RequeueFlags != want {
		t.Errorf("filter %q, flags %b, want %b", s.RequeueFilter, s.RequeueFlags, want)
	}
	many := make([]mail.Recipient, 10)
	for i := range many {
		many[i].Address = strings.Repeat("x", proto.ListSize/10)
	}
	if known(many) != nil || len(known(many[:9])) != 9 {
		t.Error("the bound on what a request lists does not hold")
	}
}

// A message that went through cleanup has left under its old ID. One that did not is what it was: on hold, or to be tried at once, with all that is known of it. One
// that cleanup does not have any more has gone through, though nobody has said so.
func TestRequeued(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err         error
		found, held bool
		removed     bool
		queue       queue.Name
		line        string
	}{
		"queued again":      {removed: true, found: true, line: "requeued as NEW"},
		"without an answer": {err: errors.New("lost"), line: "requeued"},
		"not queued":        {err: errors.New("no"), found: true, queue: queue.Deferred, line: "not requeued: no"},
		"not, and on hold":  {err: errors.New("no"), found: true, held: true, queue: queue.Hold, line: "not requeued: no"},
	} {
		s, lines := still(t)
		s.ctx = t.Context()
		// What is to be tried at once is read at once, and must not have been before it is looked at.
		s.opt.Open = func(ctx context.Context, _ queue.Ref, _ mail.QueueID) (queueread.Stored, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		m := s.aMessage(3)
		m.active, m.ref, m.null = nil, queue.Ref{Segno: 3, Length: 9}, true
		m.setDone(1)
		old := &proto.LocateReply{Found: c.found, Entry: queue.Entry{NPending: 2, Attempts: 4, Size: 77}}
		s.requeued(m.num, "NEW", old, c.held, c.err)
		removals, moved := 0, 0
		for _, op := range s.log.ops {
			switch {
			case op.ID == m.id && op.Remove:
				removals++
			case op.ID == m.id && op.Set&queue.SetQueue != 0 && op.Queue == c.queue && op.NextAttempt.Equal(s.now):
				moved++
			}
		}
		if (removals == 1) != c.removed || (moved == 1) != (c.queue != 0) || s.messages[m.num] != nil {
			t.Errorf("%s: recorded %+v", name, s.log.ops)
		}
		// What there is of it is told the scheduler as if it had just come.
		s.turn(false)
		info, ok := s.sched.Lookup(m.num)
		if ok != (c.queue != 0) || ok && (info.Attempts != 4 || info.Pending != 2 || info.Size != 77 || (info.Queue == sched.QueueHold) != c.held) {
			t.Errorf("%s: %v, %+v", name, ok, info)
		}
		if got := lines(); len(got) != 1 || !strings.HasSuffix(got[0], string(m.id)+": "+c.line) {
			t.Errorf("%s: the log: %q", name, got)
		}
		if s.requeued(99, "NEW", old, c.held, c.err); len(lines()) != 1 {
			t.Errorf("%s: a message that has left is named", name)
		}
	}
}

// A message that cannot be read, or that cleanup does not take, goes through in no part, and whoever has asked hears why.
func TestResubmitFails(t *testing.T) {
	t.Parallel()
	no := errors.New("no")
	for name, c := range map[string]struct {
		open, envelope, rcpts, outcomes, content, read error
		done                                           bool
		want                                           string
	}{
		"gone": {open: no, want: "no"}, "no envelope": {envelope: no, want: "no"}, "no recipients": {rcpts: no, want: "no"}, "no outcomes": {outcomes: no, want: "no"}, "no content": {content: no, want: "no"},
		"all have it": {done: true, want: "all recipients have it; that is to be told to the sender"}, "cut off": {read: no, want: "no"}, "refused": {want: "451 4.3.0 not now"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "")
			st.refuse = true
			st.run()
			st.waitAttached(1)
			m := &storedMessage{env: mail.Envelope{Sender: "s@from.test"}, rcpts: []mail.Recipient{{Address: "a@to.test"}}, fails: [5]error{c.envelope, c.rcpts, c.outcomes, c.content, c.read}}
			if c.done {
				m.outcomes = []mail.Outcome{{Rcpt: 0, Action: dsn.Delivered}}
			}
			s, _ := still(t) // another one, which reads what the test has
			s.opt.Submit = st.srv.opt.Submit
			s.opt.Open = func(context.Context, queue.Ref, mail.QueueID) (queueread.Stored, error) { return m, c.open }
			id, err := s.resubmit(t.Context(), queue.Ref{}, "4k9XSc0000zzz", nil)
			if id != "" || err == nil || err.Error() != c.want {
				t.Errorf("%q, %v, want %s", id, err, c.want)
			}
			st.mu.Lock()
			defer st.mu.Unlock()
			if (len(st.taken) > 0) != (name == "refused") {
				t.Errorf("through cleanup: %+v", st.taken)
			}
			if m.open != 0 {
				t.Error("the content is not closed")
			}
		})
	}
}
