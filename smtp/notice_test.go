package smtp

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/submit"
)

// fakeCleanup keeps what is submitted.
type fakeCleanup struct {
	mu  sync.Mutex
	got []proto.Submit
}

func (c *fakeCleanup) handle(_ *ipc.Conn, r *ipc.Request) {
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
		c.got = append(c.got, m)
		r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0)})
	}
}

// messages is what has been submitted.
func (c *fakeCleanup) messages() []proto.Submit {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got
}

// client serves c and returns what submits to it.
func (c *fakeCleanup) client(t *testing.T) *submit.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cleanup")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	server := &ipc.Server{Handler: c.handle}
	go func() { defer close(done); server.Serve(ctx, l, time.Second) }()
	conn := ipc.NewClient(ipc.Unix(path), nil)
	client := submit.New(conn)
	t.Cleanup(func() { client.Close(); conn.Close(); cancel(); <-done })
	return client
}

// TestNotices delivers over a session that goes wrong and looks at what
// postmaster is told.
func TestNotices(t *testing.T) {
	t.Parallel()
	polite := strings.Split("220 x ESMTP|250-x\r\n250-PIPELINING\r\n250 AUTH PLAIN|235 ok|250 ok|250 ok|354 go|250 ok", "|")
	for name, tt := range map[string]struct {
		classes, sender string
		say             map[int]string // in place of a polite reply
		want            []string       // parts of the notice; none: no notice
	}{
		"nothing wrong": {"protocol, data", "a@b.test", nil, nil},
		"refused":       {"protocol, data", "a@b.test", map[int]string{4: "550 5.1.1 no"}, nil},
		"not understood": {"protocol", "a@b.test", map[int]string{3: "502 5.5.1 what?"}, []string{"Subject: Post SMTP client: errors from 127.0.0.1[127.0.0.1]:",
			"\r\n In:  220 x ESMTP\r\n Out: EHLO me.test\r\n In:  250-x\r\n In:  250-PIPELINING\r\n In:  250 AUTH PLAIN\r\n Out: AUTH PLAIN (secret)\r\n In:  235 ok\r\n" +
				" Out: MAIL FROM:<a@b.test>\r\n Out: RCPT TO:<to@dest.test>\r\n Out: DATA\r\n In:  502 5.5.1 what?\r\n"}},
		// A password is no part of it, nor a user, in whatever line they are sent.
		"questions": {"protocol", "a@b.test", map[int]string{1: "250-x\r\n250-PIPELINING\r\n250 AUTH LOGIN", 2: "334 VXNlcm5hbWU6\r\n334 UGFzc3dvcmQ6\r\n235 ok", 3: "502 5.5.1 what?"},
			[]string{"\r\n In:  250 AUTH LOGIN\r\n Out: AUTH LOGIN\r\n In:  334 VXNlcm5hbWU6\r\n Out: (secret)\r\n In:  334 UGFzc3dvcmQ6\r\n Out: (secret)\r\n In:  235 ok\r\n Out: MAIL FROM:<a@b.test>\r\n"}},
		"gone": {"protocol", "a@b.test", map[int]string{4: "hello", 5: ""},
			[]string{" In:  250 ok\r\n", "\r\n\r\nSession aborted, reason: lost connection with 127.0.0.1[127.0.0.1] while sending RCPT TO\r\n"}},
		"after the dot": {"resource, protocol", "a@b.test", map[int]string{6: "777 really"}, []string{" In:  354 go\r\n Out: .\r\n In:  777 really\r\n"}},
		"the greeting":  {"protocol", "a@b.test", map[int]string{0: "504 no"}, []string{"\r\n\r\n In:  504 no\r\n"}},
		"garbage":       {"protocol", "a@b.test", map[int]string{4: "hello\r\n250 ok"}, []string{" In:  hello\r\n In:  250 ok\r\n"}},
		"not asked for": {"resource, software", "a@b.test", map[int]string{3: "502 5.5.1 what?"}, nil},
		"bounce":        {"protocol", "", map[int]string{3: "502 5.5.1 what?"}, nil},
		"a notice":      {"protocol", "double-bounce@me.test", map[int]string{3: "502 5.5.1 what?"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() { talk(l, polite, tt.say) })
			cfg, err := config.LoadString("mail_name = Post\nmyhostname = me.test\nmyorigin = me.test\nnotify_classes = " + tt.classes +
				"\nsmtp_sasl_auth_enable = yes\nsmtp_sasl_security_options =\nsmtp_sasl_password_maps = static:u:p\n")
			if err != nil {
				t.Fatal(err)
			}
			log := maillog.New("smtp", new(lines))
			c := new(fakeCleanup)
			a, err := newAgent(deps{Config: cfg, Log: log, Submit: c.client(t)})
			if err != nil {
				t.Fatal(err)
			}
			env := envelope(10)
			env.Sender, env.Recipients = tt.sender, []mail.Recipient{{Address: "to@dest.test"}}
			a.Deliver(t.Context(), agent.NewTestRequest(env, mail.Nexthop("[127.0.0.1]:"+port(l)), []byte("A: b\r\n\r\n"), nil))
			a.Close()
			got := c.messages()
			if tt.want == nil {
				if len(got) > 0 {
					t.Fatalf("a notice was sent: %s", got[0].Content)
				}
				return
			}
			if len(got) != 1 {
				t.Fatalf("%d notices", len(got))
			}
			for _, part := range tt.want {
				if !bytes.Contains(got[0].Content, []byte(part)) {
					t.Errorf("notice:\n%s\nwant in it:\n%s", got[0].Content, part)
				}
			}
		})
	}
}

// talk serves one connection: a reply to each flight's command, in order. After an empty one no more is said.
func talk(l net.Listener, polite []string, say map[int]string) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	for i, text := range polite {
		if other, ok := say[i]; ok {
			text = other
		}
		if text == "" {
			_ = conn.(*net.TCPConn).CloseWrite()
			break
		}
		if _, err := conn.Write([]byte(text + "\r\n")); err != nil {
			return
		}
	}
	buf := make([]byte, 1024)
	for {
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}
