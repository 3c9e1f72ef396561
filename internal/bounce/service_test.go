package bounce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/submit"
)

const doubleBounce = "double-bounce@mx.example.org"

func plansOf(p plan) []string {
	var out []string
	if p.discarded {
		out = append(out, "discarded")
	}
	for _, s := range p.sendings {
		var to []string
		for _, r := range s.reports {
			to = append(to, r.Recipient.Address)
		}
		out = append(out, fmt.Sprintf("<%s> to %s ret=%s vital=%t postmaster=%t: %s", s.sender, s.to, s.ret, s.vital, s.postmaster, strings.Join(to, ",")))
	}
	return out
}

func TestPlan(t *testing.T) {
	t.Parallel()
	recipient := func(addr string, n dsn.Notify) Report {
		return Report{Recipient: mail.Recipient{Address: addr, Notify: n}}
	}
	all := []Report{recipient("a@x", 0), recipient("b@x", dsn.NotifyFailure), recipient("c@x", dsn.NotifyNever),
		recipient("d@x", dsn.NotifySuccess), recipient("e@x", dsn.NotifyDelay|dsn.NotifyFailure)}
	const from = "s@y"
	for _, tt := range []struct {
		name, more, sender string
		kind               proto.NoticeKind
		ret                dsn.Ret
		verp               string
		reports            []Report
		want               []string
	}{
		{"failure", "", from, proto.NoticeFailure, 0, "", all, []string{"<> to s@y ret=FULL vital=true postmaster=false: a@x,b@x,e@x"}},
		{"ret", "", from, proto.NoticeExpired, dsn.RetHeaders, "", all[:1], []string{"<> to s@y ret=HDRS vital=true postmaster=false: a@x"}},
		{"nobody wants it", "", from, proto.NoticeFailure, 0, "", all[2:4], nil},
		{"postmaster copy overrides NOTIFY", "notify_classes = bounce", from, proto.NoticeFailure, 0, "", all[1:3], []string{
			"<> to s@y ret=FULL vital=true postmaster=false: b@x",
			"<double-bounce@mx.example.org> to postmaster ret=HDRS vital=false postmaster=true: b@x,c@x"}},
		{"bounce of a bounce, unwanted", "", "", proto.NoticeFailure, 0, "", all[:1], nil},
		{"bounce of a bounce", "notify_classes = 2bounce\n2bounce_notice_recipient = pm@z", "", proto.NoticeFailure, dsn.RetHeaders, "", all[:1],
			[]string{"<double-bounce@mx.example.org> to pm@z ret=FULL vital=true postmaster=true: a@x"}},
		{"class bounce has double bounces", "notify_classes = bounce", "", proto.NoticeFailure, 0, "", all[:1],
			[]string{"<double-bounce@mx.example.org> to postmaster ret=FULL vital=true postmaster=true: a@x"}},
		{"double bounce", "notify_classes = 2bounce, bounce", "Double-Bounce@mx.example.org", proto.NoticeFailure, 0, "", all, []string{"discarded"}},
		{"double bounce delayed", "notify_classes = delay", doubleBounce, proto.NoticeDelay, 0, "", all, nil},
		{"delay", "", from, proto.NoticeDelay, dsn.RetFull, "", all, []string{"<> to s@y ret=HDRS vital=true postmaster=false: a@x,e@x"}},
		{"delay class", "notify_classes = delay", from, proto.NoticeDelay, 0, "", all[:1], []string{
			"<> to s@y ret=HDRS vital=true postmaster=false: a@x",
			"<double-bounce@mx.example.org> to postmaster ret=HDRS vital=false postmaster=true: a@x"}},
		{"delay of a bounce", "notify_classes = delay", "", proto.NoticeDelay, 0, "", all[:1], nil},
		{"success", "", from, proto.NoticeSuccess, dsn.RetFull, "", all, []string{"<> to s@y ret=HDRS vital=true postmaster=false: d@x"}},
		{"success of a bounce", "", "", proto.NoticeSuccess, 0, "", all, nil},
		{"trace", "", from, proto.NoticeTrace, 0, "", all[1:4], []string{"<> to s@y ret=HDRS vital=true postmaster=false: b@x,c@x,d@x"}},
		{"verp", "", "list@y", proto.NoticeFailure, 0, "+=", []Report{recipient("a@x", 0), recipient("c@x", dsn.NotifyNever), recipient("b@z", 0)}, []string{
			"<> to list+a=x@y ret=FULL vital=true postmaster=false: a@x",
			"<> to list+b=z@y ret=FULL vital=true postmaster=false: b@z"}},
		{"no verp", "disable_verp_bounces = yes", "list@y", proto.NoticeFailure, 0, "+=", all[:2], []string{"<> to list@y ret=FULL vital=true postmaster=false: a@x,b@x"}},
		{"no reports", "notify_classes = bounce", from, proto.NoticeFailure, 0, "", nil, nil},
	} {
		p := newPolicy(testConfig(t, tt.more))
		got := plansOf(p.plan(tt.kind, &mail.Envelope{Sender: tt.sender, Ret: tt.ret, VERP: tt.verp}, tt.reports))
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, got, tt.want)
		}
	}
}

// TestNoLoops follows every notice that a failure can cause, each of which
// fails in its turn, whatever the configuration says. No chain is longer than
// two, and nothing is sent about mail from the double-bounce address.
func TestNoLoops(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		addresses := []string{"", "a@b", doubleBounce, "DOUBLE-BOUNCE@EXAMPLE.ORG", "MAILER-DAEMON@example.org", "postmaster", "x"}
		p := policy{doubleBounce: doubleBounce, onBounce: rapid.Bool().Draw(t, "bounce"), on2Bounce: rapid.Bool().Draw(t, "2bounce"),
			onDelay: rapid.Bool().Draw(t, "delay"), verp: rapid.Bool().Draw(t, "verp"),
			bounceTo:    rapid.SampledFrom(addresses).Draw(t, "bounceTo"),
			twoBounceTo: rapid.SampledFrom(addresses).Draw(t, "2bounceTo"), delayTo: rapid.SampledFrom(addresses).Draw(t, "delayTo")}
		sender := rapid.SampledFrom(addresses).Draw(t, "sender")
		var follow func(sender string, depth int)
		follow = func(sender string, depth int) {
			if depth > 2 {
				t.Fatalf("a chain of %d notices", depth)
			}
			for kind := proto.NoticeFailure; kind <= proto.NoticeExpired; kind++ {
				reports := []Report{{Recipient: mail.Recipient{Address: "r@s", Notify: dsn.Notify(rapid.IntRange(0, 15).Draw(t, "notify"))}}}
				for _, s := range p.plan(kind, &mail.Envelope{Sender: sender, VERP: "+="}, reports).sendings {
					if strings.EqualFold(sender, doubleBounce) {
						t.Fatalf("notice %d about mail from the double-bounce address", kind)
					}
					if s.sender != "" && s.sender != doubleBounce {
						t.Fatalf("notice from %q", s.sender)
					}
					follow(s.sender, depth+1)
				}
			}
		}
		follow(sender, 0)
	})
}

// TestSettlements: together the vital notices settle each recipient that is
// done with once, and none other.
func TestSettlements(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		req := &proto.Notify{Notice: proto.NoticeKind(rapid.IntRange(1, 5).Draw(t, "kind")), ID: "x"}
		var reports []Report
		want := map[int]int{}
		for i := range rapid.IntRange(1, 6).Draw(t, "n") {
			o := mail.Outcome{Rcpt: 2 * i, Action: dsn.Action(rapid.IntRange(1, 7).Draw(t, "action"))}
			req.Outcomes = append(req.Outcomes, o)
			reports = append(reports, Report{Outcome: o, Recipient: mail.Recipient{Address: "a@b", Notify: dsn.Notify(rapid.IntRange(0, 15).Draw(t, "notify"))}})
			if req.Notice != proto.NoticeDelay && settled(req.Notice, o.Action) {
				want[2*i] = 1
			}
		}
		p := policy{doubleBounce: doubleBounce, onBounce: true, onDelay: true, verp: true}
		env := &mail.Envelope{Sender: "s@t", VERP: rapid.SampledFrom([]string{"", "+="}).Draw(t, "verp")}
		list := p.plan(req.Notice, env, reports).sendings
		vital, got := false, map[int]int{}
		for i, s := range settlements(req, list) {
			vital = vital || list[i].vital
			if s == nil {
				continue
			}
			if !list[i].vital || s.ID != "x" || s.Warned != (req.Notice == proto.NoticeDelay) {
				t.Fatalf("%+v by %+v", s, list[i])
			}
			for _, r := range s.Rcpts {
				got[r]++
			}
		}
		if vital && fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("settled %v, want %v", got, want)
		}
	})
}

// cleanup is a stand-in for the cleanup service: it keeps what is submitted.
type cleanup struct {
	mu   sync.Mutex
	next uint64
	got  []proto.Submit
	fail func(*proto.Submit) bool
}

func (c *cleanup) handle(_ *ipc.Conn, r *ipc.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.Kind {
	case proto.KindLease:
		r.Reply(&proto.LeaseReply{First: c.next + 1, N: 1000})
		c.next += 1000
	case proto.KindSubmit:
		var m proto.Submit
		if err := r.Decode(&m); err != nil {
			r.Fail("%v", err)
			return
		}
		m.Content = bytes.Clone(m.Content)
		if c.fail != nil && c.fail(&m) {
			r.Reply(&proto.SubmitReply{Code: 452, Status: dsn.S(4, 3, 1), Text: "full"})
			return
		}
		c.got = append(c.got, m)
		r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0)})
	}
}

func (c *cleanup) client(t *testing.T) *submit.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cleanup")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	server := &ipc.Server{Handler: c.handle}
	go func() { defer close(done); server.Serve(ctx, l, time.Second) }()
	ic := ipc.NewClient(ipc.Unix(path), nil)
	sc := submit.New(ic)
	t.Cleanup(func() { sc.Close(); ic.Close(); cancel(); <-done })
	return sc
}

type fakeStore struct {
	env     mail.Envelope
	content string
	err     error
	settled func() []proto.Settle // what cleanup has recorded; nil: nothing
	opened  atomic.Int32
}

func (s *fakeStore) Open(context.Context, mail.QueueID) (StoredMessage, error) {
	s.opened.Add(1)
	return s, s.err
}
func (s *fakeStore) Pending(rcpt int) bool {
	return s.settled == nil || !slices.ContainsFunc(s.settled(), func(st proto.Settle) bool { return slices.Contains(st.Rcpts, rcpt) })
}
func (s *fakeStore) Warned() bool {
	return s.settled != nil && slices.ContainsFunc(s.settled(), func(st proto.Settle) bool { return st.Warned })
}
func (s *fakeStore) Envelope() (mail.Envelope, error) { return s.env, nil }
func (s *fakeStore) NRcpt() int                       { return len(s.env.Recipients) }
func (s *fakeStore) Outcomes() (list []mail.Outcome, err error) {
	if s.settled != nil {
		for _, st := range s.settled() {
			list = append(list, st.Outcomes...)
		}
	}
	return list, nil
}
func (s *fakeStore) Recipients(from, to int) ([]mail.Recipient, error) {
	return s.env.Recipients[from:min(to, len(s.env.Recipients))], nil
}
func (s *fakeStore) Content() (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(s.content)), nil
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func newTestService(t *testing.T, more string, store Store, c *cleanup) (*Service, func() string) {
	t.Helper()
	var buf logBuffer
	log := maillog.New("postfix/bounce", maillog.NewWriter(&buf, maillog.Format(0)))
	t.Cleanup(func() { log.Close() })
	s := newService(testConfig(t, more), store, c.client(t), log)
	return s, func() string {
		log.Flush()
		buf.mu.Lock()
		defer buf.mu.Unlock()
		return buf.b.String()
	}
}

func failureRequest(env mail.Envelope) *proto.Notify {
	return &proto.Notify{Notice: proto.NoticeFailure, ID: env.ID, Outcomes: []mail.Outcome{
		{Rcpt: 300, Action: dsn.Failed, Status: dsn.S(5, 1, 1), Reason: "unknown user"},
		{Rcpt: 1, Action: dsn.Failed, Status: dsn.S(5, 2, 2), Reason: "full"}}}
}

func manyRecipients() mail.Envelope {
	env := testEnvelope()
	for i := range 400 {
		env.Recipients = append(env.Recipients, mail.Recipient{Address: fmt.Sprintf("r%d@x.test", i)})
	}
	return env
}

func TestServiceNotify(t *testing.T) {
	t.Parallel()
	env, c := manyRecipients(), &cleanup{}
	s, logged := newTestService(t, "notify_classes = bounce", &fakeStore{env: env, content: testMessage}, c)
	reply, err := s.Notify(t.Context(), failureRequest(env))
	if err != nil || !reply.Settled || len(c.got) != 2 {
		t.Fatalf("%+v %v, %d messages", reply, err, len(c.got))
	}
	n := c.got[0]
	if n.Envelope.Sender != "" || n.Envelope.Recipients[0].Address != "ann@client.test" || n.Envelope.ID != reply.Notice ||
		n.Flags&proto.SubmitNoReceive == 0 || n.Flags&proto.SubmitFilter != 0 {
		t.Errorf("%+v flags %b", n.Envelope, n.Flags)
	}
	if n.Settles == nil || n.Settles.ID != env.ID || !slices.Equal(n.Settles.Rcpts, []int{300, 1}) || c.got[1].Settles != nil {
		t.Errorf("settles %+v, %+v", n.Settles, c.got[1].Settles)
	}
	p := parse(t, n.Content)
	if p.Status[1]["Final-Recipient"] != "rfc822; r300@x.test" || p.Status[2]["Final-Recipient"] != "rfc822; r1@x.test" {
		t.Errorf("%q", p.Status)
	}
	if got := parse(t, c.got[1].Content); got.Header["Auto-Submitted"] != "auto-generated" || got.Types[2] != "text/rfc822-headers" ||
		got.Header["Subject"] != "Postmaster Copy: Undelivered Mail" {
		t.Errorf("copy for postmaster: %q %q", got.Header, got.Types)
	}
	for _, want := range []string{
		fmt.Sprintf(": %s: sender non-delivery notification: %s\n", env.ID, reply.Notice),
		fmt.Sprintf(": %s: postmaster non-delivery notification: %s\n", env.ID, c.got[1].Envelope.ID),
	} {
		if !strings.Contains(logged(), want) {
			t.Errorf("log %q lacks %q", logged(), want)
		}
	}
}

func TestServiceFailures(t *testing.T) {
	t.Parallel()
	env := manyRecipients()
	t.Run("cleanup refuses the notice", func(t *testing.T) {
		c := &cleanup{fail: func(*proto.Submit) bool { return true }}
		s, _ := newTestService(t, "notify_classes = bounce", &fakeStore{env: env, content: testMessage}, c)
		if _, err := s.Notify(t.Context(), failureRequest(env)); err == nil || !strings.Contains(err.Error(), "452 4.3.1 full") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("the copy for postmaster is a courtesy", func(t *testing.T) {
		c := &cleanup{fail: func(m *proto.Submit) bool { return m.Envelope.Sender != "" }}
		s, logged := newTestService(t, "notify_classes = bounce", &fakeStore{env: env, content: testMessage}, c)
		if reply, err := s.Notify(t.Context(), failureRequest(env)); err != nil || !reply.Settled {
			t.Errorf("%+v, %v", reply, err)
		}
		if !strings.Contains(logged(), "copy for postmaster not sent") {
			t.Errorf("log %q", logged())
		}
	})
	t.Run("gone", func(t *testing.T) {
		c := &cleanup{}
		s, _ := newTestService(t, "", &fakeStore{err: fmt.Errorf("x: %w", queueread.ErrGone)}, c)
		if reply, err := s.Notify(t.Context(), failureRequest(env)); err != nil || reply.Notice != "" || len(c.got) != 0 {
			t.Errorf("%+v, %v", reply, err)
		}
	})
	t.Run("no such recipient", func(t *testing.T) {
		s, _ := newTestService(t, "", &fakeStore{env: env}, &cleanup{})
		req := failureRequest(env)
		req.Outcomes[0].Rcpt = 400
		if _, err := s.Notify(t.Context(), req); err == nil {
			t.Error("no error")
		}
	})
	// The sender hears of it, with as much of the message as is sound.
	for name, store := range map[string]damaged{"damaged content": {fakeStore: &fakeStore{env: env}},
		"no content": {&fakeStore{env: env}, fmt.Errorf("message %s: %w", env.ID, queue.ErrCorrupt)}} {
		t.Run(name, func(t *testing.T) {
			c := &cleanup{}
			s, logged := newTestService(t, "", store, c)
			reply, err := s.Notify(t.Context(), failureRequest(env))
			if err != nil || !reply.Settled || len(c.got) != 1 {
				t.Fatalf("%+v, error %v, %d messages", reply, err, len(c.got))
			}
			text := string(c.got[0].Content)
			if !strings.Contains(text, "Final-Recipient: rfc822; ") || strings.Contains(text, "\r\nA: 1\r\n") != (store.err == nil) {
				t.Errorf("notice:\n%s", text)
			}
			if strings.Contains(logged(), "the notice goes without the message: message "+string(env.ID)) != (store.err != nil) {
				t.Errorf("log %q", logged())
			}
		})
	}
	t.Run("content that cannot be read now", func(t *testing.T) {
		c := &cleanup{}
		s, _ := newTestService(t, "", damaged{&fakeStore{env: env}, io.ErrUnexpectedEOF}, c)
		if _, err := s.Notify(t.Context(), failureRequest(env)); !errors.Is(err, io.ErrUnexpectedEOF) || len(c.got) != 0 {
			t.Errorf("error %v, %d messages", err, len(c.got))
		}
	})
	t.Run("double bounce", func(t *testing.T) {
		env := env
		env.Sender = doubleBounce
		s, logged := newTestService(t, "notify_classes = 2bounce", &fakeStore{env: env}, &cleanup{})
		if reply, err := s.Notify(t.Context(), failureRequest(env)); err != nil || reply.Settled {
			t.Errorf("%+v, %v", reply, err)
		}
		if !strings.Contains(logged(), "warning: "+string(env.ID)+": undeliverable postmaster notification discarded") {
			t.Errorf("log %q", logged())
		}
	})
}

// settles are what the messages that it has taken settle.
func (c *cleanup) settles() (list []proto.Settle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.got {
		if s := c.got[i].Settles; s != nil {
			list = append(list, *s)
		}
	}
	return list
}

// TestToldOnce: a request that is made again, because its answer was lost or a
// notice failed, tells what has not been told.
func TestToldOnce(t *testing.T) {
	t.Parallel()
	outcome := func(rcpt int, action dsn.Action) mail.Outcome {
		return mail.Outcome{Rcpt: rcpt, Action: action, Status: dsn.S(5, 0, 0), Reason: "x"}
	}
	failed := []mail.Outcome{outcome(1, dsn.Failed), outcome(2, dsn.Failed), outcome(3, dsn.Failed)}
	owned := slices.Clone(failed)
	owned[0].Owner, owned[1].Owner = "one@owner.test", "two@owner.test"
	for _, tt := range []struct {
		name     string
		verp     string
		req      proto.Notify
		failAt   int      // this submission fails, once
		to       []string // who has been told, in the end
		answered bool     // the first request succeeds
	}{
		{"failure", "", proto.Notify{Notice: proto.NoticeFailure, Outcomes: failed}, 0, []string{"ann@client.test"}, true},
		{"expired", "", proto.Notify{Notice: proto.NoticeExpired, Outcomes: failed[:1]}, 0, []string{"ann@client.test"}, true},
		{"delay", "", proto.Notify{Notice: proto.NoticeDelay, Outcomes: []mail.Outcome{outcome(1, dsn.Deferred)}}, 0, []string{"ann@client.test"}, true},
		{"delay of more", "", proto.Notify{Notice: proto.NoticeDelay, Continued: true, Outcomes: []mail.Outcome{outcome(1, dsn.Deferred)}}, 0,
			[]string{"ann@client.test", "ann@client.test"}, true},
		{"success", "", proto.Notify{Notice: proto.NoticeSuccess, Outcomes: []mail.Outcome{outcome(0, dsn.Delivered)}}, 0, []string{"ann@client.test"}, true},
		{"verp", "+=", proto.Notify{Notice: proto.NoticeFailure, Outcomes: failed}, 3,
			[]string{"ann+r1=x.test@client.test", "ann+r2=x.test@client.test", "ann+r3=x.test@client.test"}, false},
		{"owners", "", proto.Notify{Notice: proto.NoticeFailure, Outcomes: owned}, 2, []string{"one@owner.test", "two@owner.test", "ann@client.test"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env, c := manyRecipients(), &cleanup{}
			env.Recipients, env.VERP = slices.Clone(env.Recipients), tt.verp
			env.Recipients[0].Notify = dsn.NotifySuccess
			n := 0
			c.fail = func(*proto.Submit) bool { n++; return n == tt.failAt }
			s, _ := newTestService(t, "", &fakeStore{env: env, content: testMessage, settled: c.settles}, c)
			tt.req.ID = env.ID
			if _, err := s.Notify(t.Context(), &tt.req); (err == nil) != tt.answered {
				t.Errorf("the first request: %v", err)
			}
			for range 2 {
				if _, err := s.Notify(t.Context(), &tt.req); err != nil {
					t.Errorf("made again: %v", err)
				}
				if tt.req.Continued {
					break // of that nobody can tell
				}
			}
			var to []string
			for i := range c.got {
				to = append(to, c.got[i].Envelope.Recipients[0].Address)
			}
			if !slices.Equal(to, tt.to) {
				t.Errorf("told %q, not %q", to, tt.to)
			}
		})
	}
}

// A notice of a message waits for another one of the same message that is being made, as when a queue manager has died
// and its successor asks for what it had asked for: what has been told is read when that is recorded.
func TestOneNoticeAtATime(t *testing.T) {
	t.Parallel()
	env, c := manyRecipients(), &cleanup{}
	store := &fakeStore{env: env, content: testMessage, settled: c.settles}
	s, _ := newTestService(t, "", store, c)
	free, err := s.alone(t.Context(), env.ID)
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := s.Notify(ended, failureRequest(env)); err == nil || store.opened.Load() != 0 {
		t.Errorf("while another notice is made: %v, the message was opened %d times", err, store.opened.Load())
	}
	other := failureRequest(env)
	other.ID += "x"
	if _, err := s.Notify(t.Context(), other); err != nil {
		t.Errorf("of another message: %v", err)
	}
	free()
	if _, err := s.Notify(t.Context(), failureRequest(env)); err != nil || len(s.busy) != 0 {
		t.Errorf("afterwards: %v, and %d are busy", err, len(s.busy))
	}
}

// TestSlots: who waits for the notices of others waits no longer than a notice
// may take.
func TestSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := maillog.New("bounce", maillog.NewWriter(new(logBuffer), maillog.Format(0)))
		defer log.Close()
		s := newService(testConfig(t, ""), slow{}, nil, log)
		a, b := net.Pipe()
		server, client := ipc.NewConn(a, s.Handle), ipc.NewConn(b, nil)
		defer func() { client.Close(); server.Close(); client.Wait(); server.Wait(); s.Wait() }()
		began := time.Now()
		var wg sync.WaitGroup
		for range 2 * maxNotices {
			wg.Go(func() {
				if err := client.Call(t.Context(), &proto.Notify{Notice: proto.NoticeFailure, ID: "x"}, new(proto.NotifyReply)); err == nil {
					t.Error("no error")
				}
			})
		}
		wg.Wait()
		if d := time.Since(began); d != proto.NotifyTimeout {
			t.Errorf("answered after %v", d)
		}
	})
}

// slow never opens anything.
type slow struct{}

func (slow) Open(ctx context.Context, _ mail.QueueID) (StoredMessage, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

type damaged struct {
	*fakeStore
	err error // of opening the content; nil: it comes while it is read
}

func (d damaged) Open(context.Context, mail.QueueID) (StoredMessage, error) { return d, nil }
func (d damaged) Content() (io.ReadCloser, error) {
	if d.err != nil {
		return nil, d.err
	}
	return io.NopCloser(io.MultiReader(strings.NewReader("A: 1\r\n"), errReader{})), nil
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, queue.ErrCorrupt }

func TestHandle(t *testing.T) {
	t.Parallel()
	env, c := manyRecipients(), &cleanup{}
	s, _ := newTestService(t, "", &fakeStore{env: env, content: testMessage}, c)
	a, b := net.Pipe()
	server := ipc.NewConn(a, s.Handle)
	client := ipc.NewConn(b, nil)
	defer func() { client.Close(); server.Close(); client.Wait(); server.Wait(); s.Wait() }()
	var reply proto.NotifyReply
	if err := client.Call(t.Context(), failureRequest(env), &reply); err != nil || !reply.Settled || reply.Notice == "" {
		t.Fatalf("%+v, %v", reply, err)
	}
	var remote ipc.RemoteError
	if err := client.Call(t.Context(), &proto.Lease{N: 1}, &reply); !errors.As(err, &remote) {
		t.Errorf("a request that is not for bounce: %v", err)
	}
}

// What must go over TLS only is not sent back over who knows what.
func TestPlanRequireTLS(t *testing.T) {
	t.Parallel()
	reports := []Report{{Recipient: mail.Recipient{Address: "a@x"}}}
	for main, want := range map[string]dsn.Ret{"": dsn.RetHeaders, "requiretls_redact_dsn = no": dsn.RetFull} {
		p := newPolicy(testConfig(t, main))
		got := p.plan(proto.NoticeFailure, &mail.Envelope{Sender: "s@y", Ret: dsn.RetFull, RequireTLS: true}, reports)
		if len(got.sendings) != 1 || got.sendings[0].ret != want {
			t.Errorf("%q: %v", main, plansOf(got))
		}
	}
}
