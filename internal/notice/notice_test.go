package notice

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/submit"
)

// cleanup keeps what is submitted.
type cleanup struct {
	mu     sync.Mutex
	got    []proto.Submit
	refuse bool
}

func (c *cleanup) handle(_ *ipc.Conn, r *ipc.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.Kind {
	case proto.KindLease:
		r.Reply(&proto.LeaseReply{First: 1, N: 1000})
	case proto.KindSubmit:
		var m proto.Submit
		if err := r.Decode(&m); err != nil {
			r.Fail("%v", err)
			return
		}
		m.Content = bytes.Clone(m.Content)
		if c.refuse {
			r.Reply(&proto.SubmitReply{Code: 452, Status: dsn.S(4, 3, 1), Text: "full"})
			return
		}
		c.got = append(c.got, m)
		r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0)})
	}
}

func newMailer(t *testing.T, c *cleanup, more string) (*Mailer, func() string) {
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
	cfg, err := config.LoadString("myhostname = mx.example.org\nmydomain = example.org\nmail_name = Post\n" + more)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	log := maillog.New("postfix/smtpd", maillog.NewWriter(&buf, maillog.Format(0)))
	return New(cfg, sc, log), func() string {
		log.Close()
		return buf.String()
	}
}

func TestPost(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, main string
		faults     Class
		to         string // empty: no notice
	}{
		{"default classes", "", Resource, "postmaster"},
		{"not asked for", "", Policy | Protocol, ""},
		{"policy", "notify_classes = Policy\nerror_notice_recipient = pm@z", Policy | Protocol, "pm@z"},
		{"nothing happened", "notify_classes = policy, protocol, data, bounce", 0, ""},
		{"bounce", "notify_classes = bounce\nbounce_notice_recipient = b@z", Bounce, "b@z"},
		{"bounce and more", "notify_classes = bounce, data\nbounce_notice_recipient = b@z", Bounce | Data, "postmaster"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := &cleanup{}
			m, _ := newMailer(t, c, tt.main)
			tr := m.Transcript()
			tr.In([]byte("EHLO \x1b[2Jclient"))
			tr.Out([]byte("250-mx.example.org\n250 SIZE\r\n"))
			tr.Fault(tt.faults)
			if tr.Faulty() != (tt.to != "") {
				t.Errorf("faulty: %t", tr.Faulty())
			}
			m.Post(t.Context(), tr, Session{Side: "server", Peer: "a.example[192.0.2.1]", Reason: "too many errors"})
			if tr.Lines() != 0 || tr.Faulty() {
				t.Error("the transcript has not begun anew")
			}
			if tt.to == "" {
				if len(c.got) > 0 {
					t.Fatalf("a notice was sent: %s", c.got[0].Content)
				}
				return
			}
			if len(c.got) != 1 {
				t.Fatalf("%d notices", len(c.got))
			}
			n := c.got[0]
			if n.Envelope.Sender != "double-bounce@mx.example.org" || len(n.Envelope.Recipients) != 1 || n.Envelope.Recipients[0].Address != tt.to {
				t.Errorf("from %s to %v", n.Envelope.Sender, n.Envelope.Recipients)
			}
			text := string(n.Content)
			head, body, _ := strings.Cut(text, "\r\n\r\n")
			for _, want := range []string{"From: Mail Delivery System <MAILER-DAEMON@mx.example.org>", "To: Postmaster <" + tt.to + ">",
				"Subject: Post SMTP server: errors from a.example[192.0.2.1]", "Auto-Submitted: auto-generated"} {
				if !strings.Contains(head+"\r\n", want+"\r\n") {
					t.Errorf("no %q in\n%s", want, head)
				}
			}
			const want = "Transcript of session follows.\r\n\r\n In:  EHLO ?[2Jclient\r\n Out: 250-mx.example.org\r\n Out: 250 SIZE\r\n\r\n" +
				"Session aborted, reason: too many errors\r\n\r\nFor other details, see the local mail logfile\r\n"
			if body != want {
				t.Errorf("got\n%q, want\n%q", body, want)
			}
		})
	}
}

func TestPostRefused(t *testing.T) {
	t.Parallel()
	c := &cleanup{refuse: true}
	m, logged := newMailer(t, c, "")
	tr := m.Transcript()
	tr.In([]byte("MAIL"))
	tr.Fault(Software)
	m.Post(t.Context(), tr, Session{Side: "client", Peer: "b.example[192.0.2.2]"})
	if got := logged(); !strings.Contains(got, "warning: notice to postmaster about b.example[192.0.2.2] not sent: cleanup refused it: 452 4.3.1 full") {
		t.Errorf("logged %q", got)
	}
}

// Nobody asks for transcripts: there are none, and nothing minds.
func TestNil(t *testing.T) {
	t.Parallel()
	m, _ := newMailer(t, &cleanup{}, "notify_classes = 2bounce, delay")
	for _, m := range []*Mailer{nil, m} {
		tr := m.Transcript()
		if tr != nil {
			t.Fatal("there is a transcript")
		}
		tr.In([]byte("x"))
		tr.Out([]byte("x"))
		tr.Fault(Policy)
		tr.Reset()
		m.Post(t.Context(), tr, Session{})
		if tr.Lines() != 0 || tr.Faulty() {
			t.Error("a transcript that is not there has lines")
		}
	}
}

// A transcript is bounded, and keeps the end.
func TestTranscriptBounded(t *testing.T) {
	t.Parallel()
	tr := &Transcript{wanted: Policy}
	for range 1000 {
		tr.In([]byte(strings.Repeat("x", 2000)))
		tr.Out([]byte("250 ok"))
	}
	tr.In([]byte("QUIT"))
	text := *tr.text
	if len(text) > maxText || !tr.dropped || !bytes.HasSuffix(text, []byte(" Out: 250 ok\r\n In:  QUIT\r\n")) {
		t.Errorf("%d octets, dropped %t", len(text), tr.dropped)
	}
	if n := bytes.Count(text, []byte{'\n'}); n != tr.Lines() {
		t.Errorf("%d lines, %d said", n, tr.Lines())
	}
	for line := range strings.Lines(string(text)) {
		if len(line) > 998 || line[0] != ' ' {
			t.Fatalf("line %q", line)
		}
	}
}

// What is forgotten is forgotten, also by who gets the memory next.
func TestTranscriptMemory(t *testing.T) {
	t.Parallel()
	for i := range 100 {
		tr := &Transcript{wanted: Policy}
		tr.In(fmt.Appendf(nil, "QUIT %d", i))
		if got, want := string(*tr.text), fmt.Sprintf(" In:  QUIT %d\r\n", i); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		tr.Fault(Policy)
		tr.Reset()
		if tr.text != nil || tr.Lines() != 0 || tr.Faulty() {
			t.Fatal("something is left")
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"AUTH PLAIN AGpvZQBzZWNyZXQ=": "AUTH PLAIN (secret)", "auth  login am9l": "auth login (secret)",
		"AUTH PLAIN": "AUTH PLAIN", " auth\tplain\tAGpvZQBzZWNyZXQ=": "auth plain (secret)", "MAIL FROM:<a@b> AUTH=<>": "MAIL FROM:<a@b> AUTH=<>", "AUTH": "AUTH",
		"AUTHX PLAIN AGpvZQBzZWNyZXQ=": "AUTHX PLAIN AGpvZQBzZWNyZXQ=", "": "",
	} {
		if got := string(Redact([]byte(line))); got != want {
			t.Errorf("Redact(%q) = %q, want %q", line, got, want)
		}
	}
}

func TestTell(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		main string
		want bool
	}{{"", true}, {"notify_classes = data", false}, {"notify_classes =", false}} {
		c := &cleanup{}
		m, _ := newMailer(t, c, tt.main)
		m.Tell(t.Context(), Software, "queue: damage", "line one\n\nline\x1btwo\n")
		if len(c.got) > 1 || (len(c.got) == 1) != tt.want {
			t.Fatalf("%q: %d notices", tt.main, len(c.got))
		}
		if !tt.want {
			continue
		}
		head, body, _ := strings.Cut(string(c.got[0].Content), "\r\n\r\n")
		if !strings.Contains(head, "Subject: Post queue: damage\r\n") || body != "line one\r\n\r\nline?two\r\n" ||
			c.got[0].Envelope.Recipients[0].Address != "postmaster" {
			t.Errorf("%q\n%q", head, body)
		}
	}
}
