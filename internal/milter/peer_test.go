package milter

import (
	"fmt"
	"net"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	server "github.com/emersion/go-milter"

	"posthaste/internal/mailfilter"
)

// recorder is a filter made with another project's library. It writes down
// what it is told, and answers as it is set up to.
type recorder struct {
	server.NoOpMilter
	mu     *sync.Mutex
	events *[]string
	answer func(event string) server.Response
	atEnd  func(m *server.Modifier) server.Response
}

func (r *recorder) note(format string, args ...any) (server.Response, error) {
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	*r.events = append(*r.events, text)
	r.mu.Unlock()
	if r.answer != nil {
		if resp := r.answer(text); resp != nil {
			return resp, nil
		}
	}
	return server.RespContinue, nil
}

func (r *recorder) Connect(host, family string, port uint16, addr net.IP, m *server.Modifier) (server.Response, error) {
	return r.note("connect %s %s %d %s j=%s", host, family, port, addr, m.Macros["j"])
}
func (r *recorder) Helo(name string, _ *server.Modifier) (server.Response, error) {
	return r.note("helo %s", name)
}
func (r *recorder) MailFrom(from string, m *server.Modifier) (server.Response, error) {
	return r.note("mail %s auth=%s", from, m.Macros["{auth_authen}"])
}
func (r *recorder) RcptTo(to string, m *server.Modifier) (server.Response, error) {
	return r.note("rcpt %s i=%s", to, m.Macros["i"])
}
func (r *recorder) Header(name, value string, _ *server.Modifier) (server.Response, error) {
	return r.note("header %s=%q", name, value)
}
func (r *recorder) Headers(textproto.MIMEHeader, *server.Modifier) (server.Response, error) {
	return r.note("eoh")
}
func (r *recorder) BodyChunk(chunk []byte, _ *server.Modifier) (server.Response, error) {
	return r.note("body %d", len(chunk))
}
func (r *recorder) Body(m *server.Modifier) (server.Response, error) {
	resp, err := r.note("eom")
	if r.atEnd != nil {
		return r.atEnd(m), nil
	}
	return resp, err
}
func (r *recorder) Abort(*server.Modifier) error { _, err := r.note("abort"); return err }

// serve runs a filter and returns how to reach it, and what it was told.
func serve(t *testing.T, s *server.Server, r *recorder) (mailfilter.Spec, func() []string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.mu, r.events = new(sync.Mutex), new([]string)
	s.NewMilter = func() server.Milter { return r }
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(l) })
	t.Cleanup(func() { l.Close(); wg.Wait() })
	spec := testSpec("inet:" + l.Addr().String())
	return spec, func() []string {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Clone(*r.events)
	}
}

func testSpec(endpoint string) mailfilter.Spec {
	return mailfilter.Spec{Endpoint: endpoint, Protocol: 6, Connect: 10 * time.Second, Command: 10 * time.Second, Content: 10 * time.Second,
		Default: "tempfail", Macros: [mailfilter.Stages]string{mailfilter.StageConnect: "j {daemon_name}", mailfilter.StageMail: "i {auth_authen}", mailfilter.StageRcpt: "i"}}
}

// envelope records what filters want of the envelope.
type envelope struct{ log []string }

func (e *envelope) ChangeSender(a, args string) { e.log = append(e.log, "from "+a+" "+args) }
func (e *envelope) AddRecipient(a, args string) { e.log = append(e.log, "add "+a+" "+args) }
func (e *envelope) DeleteRecipient(a string)    { e.log = append(e.log, "del "+a) }
func (e *envelope) CheckField(raw []byte) []byte {
	if strings.HasPrefix(string(raw), "X-Drop") {
		return nil
	}
	return raw
}

func content(header, body string) *Content {
	c := &Content{Body: strings.NewReader(body), BodySize: int64(len(body))}
	for line := range strings.SplitAfterSeq(header, "\r\n") {
		switch {
		case line == "":
		case line[0] == ' ' || line[0] == '\t':
			last := &c.Fields[len(c.Fields)-1]
			last.Raw = append(last.Raw, line...)
		default:
			name, _, _ := strings.Cut(line, ":")
			c.Fields = append(c.Fields, Field{Name: name, Raw: []byte(line)})
		}
	}
	return c
}

func (c *Content) text() string {
	var b strings.Builder
	for _, f := range c.Fields {
		b.Write(f.Raw)
	}
	b.WriteString("\r\n")
	body := make([]byte, c.BodySize)
	c.Body.ReadAt(body, 0)
	b.Write(body)
	return b.String()
}

const testHeader = "Received: by us\r\nReceived: by them\r\nSubject: a\r\n\tfolded one\r\nX-Old: 1\r\nX-Old: 2\r\n"

// begin plays a session up to DATA, and expects no objection.
func begin(t *testing.T, s *Session) {
	t.Helper()
	steps := []func() mailfilter.Verdict{
		func() mailfilter.Verdict {
			return s.Connect(t.Context(), "client.example", netip.MustParseAddr("192.0.2.1"), 4711)
		},
		func() mailfilter.Verdict { return s.Helo("client.example") },
		func() mailfilter.Verdict { return s.Mail("<sender@example.com>", "SIZE=10") },
		func() mailfilter.Verdict { return s.Rcpt("<rcpt@example.org>") },
		func() mailfilter.Verdict { return s.Data() },
	}
	for i, step := range steps {
		if v := step(); v != (mailfilter.Verdict{}) {
			t.Fatalf("step %d: %+v", i, v)
		}
	}
}

func open(t *testing.T, specs ...mailfilter.Spec) *Session {
	t.Helper()
	s := Open(specs, nil, func(format string, args ...any) { t.Errorf("warning: "+format, args...) })
	s.SetMacros([]string{"j", "mx.test", "i", "QID1", "{auth_authen}", "joe"})
	t.Cleanup(s.Close)
	return s
}

func TestEventsAndEdits(t *testing.T) {
	t.Parallel()
	r := &recorder{atEnd: func(m *server.Modifier) server.Response {
		m.AddHeader("X-New", "two\r\n lines\r\nInjected: no")
		m.AddHeader("X-Drop", "dropped by milter_header_checks")
		m.InsertHeader(0, "X-First", "1")
		m.ChangeHeader(2, "X-Old", "changed")
		m.ChangeHeader(1, "X-Old", "")
		m.ChangeHeader(1, "Received", "by those")
		m.AddRecipient("new@example.org")
		m.DeleteRecipient("rcpt@example.org")
		m.ChangeFrom("<other@example.com>")
		m.ReplaceBody([]byte("new\r\nbody"))
		m.Quarantine("because")
		return server.RespAccept
	}}
	spec, events := serve(t, &server.Server{Actions: server.OptAddHeader | server.OptChangeHeader | server.OptAddRcpt | server.OptRemoveRcpt |
		server.OptChangeFrom | server.OptChangeBody | server.OptQuarantine}, r)
	s := open(t, spec)
	begin(t, s)
	c, env := content(testHeader, strings.Repeat("x", 70000)+"\r\n"), new(envelope)
	v := s.Message(t.Context(), c, env)
	if v != (mailfilter.Verdict{Hold: true}) {
		t.Errorf("verdict %+v, want to continue, held", v)
	}
	want := []string{"connect client.example tcp4 4711 192.0.2.1 j=mx.test", "helo client.example", "mail sender@example.com auth=joe",
		"rcpt rcpt@example.org i=QID1", `header Received="by them"`, `header Subject="a\n\tfolded one"`, `header X-Old="1"`, `header X-Old="2"`,
		"eoh", "body 65535", "body 4467", "eom"}
	if got := events(); !slices.Equal(got, want) {
		t.Errorf("the filter was told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	wantText := "X-First: 1\r\nReceived: by us\r\nReceived: by those\r\nSubject: a\r\n\tfolded one\r\nX-Old: changed\r\n" +
		"X-New: two\r\n lines\r\n\tInjected: no\r\n\r\nnew\r\nbody\r\n"
	if got := c.text(); got != wantText {
		t.Errorf("the message is now\n%s\nwant\n%s", got, wantText)
	}
	wantEnv := []string{"add <new@example.org> ", "del <rcpt@example.org>", "from <other@example.com> "}
	if !slices.Equal(env.log, wantEnv) {
		t.Errorf("envelope changes %q, want %q", env.log, wantEnv)
	}
	// The session goes on.
	if v := s.Mail("<second@example.com>"); v != (mailfilter.Verdict{}) {
		t.Errorf("second message: %+v", v)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	reply := func(code uint16, text string) server.Response {
		return server.NewResponseStr(byte('y'), fmt.Sprintf("%d %s", code, text))
	}
	for name, tt := range map[string]struct {
		at   string
		resp server.Response
		want string // Event: code status text
	}{
		"connect":  {"connect", server.RespReject, "CONNECT: 550 5.7.1 Command rejected"},
		"helo":     {"helo", server.RespTempFail, "HELO: 451 4.7.1 Service unavailable - try again later"},
		"mail":     {"mail", reply(554, "5.7.9 no such\r\n554 5.7.9 sender 100%%"), "MAIL: 554 5.7.9 no such sender 100%"},
		"rcpt":     {"rcpt", reply(450, "later"), "RCPT: 450 4.7.1 later"},
		"close":    {"rcpt", reply(421, "4.3.0 go"), "RCPT: shutdown 421 4.3.0 go"},
		"header":   {"header Subject", server.RespReject, "MESSAGE: 550 5.7.1 Command rejected"},
		"body":     {"body", server.RespTempFail, "MESSAGE: 451 4.7.1 Service unavailable - try again later"},
		"eom":      {"eom", reply(550, "5.6.0 virus"), "MESSAGE: 550 5.6.0 virus"},
		"discard":  {"mail", server.RespDiscard, "MAIL: discard"},
		"accepted": {"mail", server.RespAccept, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec, _ := serve(t, &server.Server{}, &recorder{answer: func(e string) server.Response {
				if strings.HasPrefix(e, tt.at) {
					return tt.resp
				}
				return nil
			}})
			second, told := serve(t, &server.Server{}, &recorder{})
			got := play(t, open(t, spec, second))
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			// Whoever comes after is not told of what was refused before.
			if reached := slices.Contains(told(), "eom"); reached != (tt.want == "") {
				t.Errorf("the second filter was told %q", told())
			}
		})
	}
}

// play plays a session and returns the first objection.
func play(t *testing.T, s *Session) string {
	t.Helper()
	steps := []struct {
		name string
		do   func() mailfilter.Verdict
	}{
		{"CONNECT", func() mailfilter.Verdict {
			return s.Connect(t.Context(), "client.example", netip.MustParseAddr("2001:db8::1"), 25)
		}},
		{"HELO", func() mailfilter.Verdict { return s.Helo("c") }},
		{"MAIL", func() mailfilter.Verdict { return s.Mail("<s@example.com>") }},
		{"RCPT", func() mailfilter.Verdict { return s.Rcpt("<r@example.org>") }},
		{"DATA", s.Data},
		{"MESSAGE", func() mailfilter.Verdict {
			return s.Message(t.Context(), content(testHeader, "body\r\n"), new(envelope))
		}},
	}
	for _, st := range steps {
		v := st.do()
		switch v.Action {
		case mailfilter.Continue:
			if v.Hold {
				return st.name + ": hold"
			}
		case mailfilter.Discard:
			return st.name + ": discard"
		case mailfilter.Shutdown:
			return st.name + ": shutdown " + v.Reply.String()
		default:
			return st.name + ": " + v.Reply.String()
		}
	}
	return ""
}

// A filter may say what it does not want, and which macros it does.
func TestNegotiated(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	spec, events := serve(t, &server.Server{
		Actions:  server.OptSetSymList,
		Protocol: server.OptNoConnect | server.OptNoHelo | server.OptNoBody | server.OptNoHeaders | server.OptNoEOH,
		SymList:  map[server.Stage][]string{server.StageRcptTo: {"j", "i"}, server.StageMailFrom: {"none"}},
	}, r)
	s := open(t, spec)
	begin(t, s)
	if v := s.Message(t.Context(), content(testHeader, "b\r\n"), new(envelope)); v != (mailfilter.Verdict{}) {
		t.Errorf("verdict %+v", v)
	}
	want := []string{"mail sender@example.com auth=", "rcpt rcpt@example.org i=QID1", "eom"}
	if got := events(); !slices.Equal(got, want) {
		t.Errorf("the filter was told %q, want %q", got, want)
	}
}

// What becomes of a filter that is not there is the administrator's choice.
func TestDefaultAction(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]string{
		"accept": "", "reject": "CONNECT: 550 5.5.0 Service unavailable", "tempfail": "CONNECT: 451 4.7.1 Service unavailable - try again later",
		"quarantine": "CONNECT: hold", "shutdown": "CONNECT: shutdown 421 4.7.0 Server closing connection",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		spec := testSpec("inet:" + l.Addr().String())
		l.Close()
		spec.Default = action
		warned := 0
		s := Open([]mailfilter.Spec{spec}, nil, func(string, ...any) { warned++ })
		if got := play(t, s); got != want {
			t.Errorf("%s: got %q, want %q", action, got, want)
		}
		if warned != 1 {
			t.Errorf("%s: %d warnings, want one", action, warned)
		}
		s.Close()
	}
}
