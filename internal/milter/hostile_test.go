package milter

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/lockstep"
	"posthaste/internal/mailfilter"
)

// fake is a filter at the level of packets: told answers each command but
// macros with the packets to send back.
type fake struct {
	mu   sync.Mutex
	seen []string // command letters, macros with the stage's
}

func (f *fake) commands() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.seen, " ")
}

func (f *fake) serve(nc net.Conn, told func(kind byte, data []byte) []byte) {
	defer nc.Close()
	r := bufio.NewReader(nc)
	for {
		var head [5]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		data := make([]byte, binary.BigEndian.Uint32(head[:])-1)
		if _, err := io.ReadFull(r, data); err != nil {
			return
		}
		f.mu.Lock()
		if head[4] == cmdMacro {
			f.seen = append(f.seen, "D"+string(data[:1]))
		} else {
			f.seen = append(f.seen, string(head[4:]))
		}
		f.mu.Unlock()
		if head[4] == cmdMacro {
			continue
		}
		if out := told(head[4], data); out != nil {
			if _, err := nc.Write(out); err != nil {
				return
			}
		}
	}
}

func negotiate(version, actions, steps uint32, more ...byte) []byte {
	return appendPacket(nil, cmdOptions, func(b []byte) []byte {
		for _, v := range []uint32{version, actions, steps} {
			b = binary.BigEndian.AppendUint32(b, v)
		}
		return append(b, more...)
	})
}

func reply(kind byte, data string) []byte {
	return appendPacket(nil, kind, func(b []byte) []byte { return append(b, data...) })
}

// listen runs a fake, for any number of connections.
func listen(t *testing.T, told func(kind byte, data []byte) []byte) (mailfilter.Spec, *fake) {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/m")
	if err != nil {
		t.Fatal(err)
	}
	f := new(fake)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { f.serve(nc, told) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return testSpec("unix:" + l.Addr().String()), f
}

// A filter of the latest kind: it answers little, and has soon seen enough.
func TestNoRepliesAndSkip(t *testing.T) {
	t.Parallel()
	spec, f := listen(t, func(kind byte, _ []byte) []byte {
		switch kind {
		case cmdOptions:
			return negotiate(6, 0, stepNRConnect|stepNRHelo|stepNRMail|stepNRRcpt|stepNRData|stepNRHeader|stepNREOH|stepSkip|stepLeadSpace)
		case cmdBody:
			return reply(repSkip, "")
		case cmdEOM:
			return append(reply(repProgress, ""), reply(repContinue, "")...)
		case cmdUnknown:
			return reply(repContinue, "")
		}
		return nil
	})
	s := open(t, spec)
	begin(t, s)
	if v := s.Unknown("FOO bar"); v != (mailfilter.Verdict{}) {
		t.Errorf("unknown command: %+v", v)
	}
	v := s.Message(t.Context(), content("Subject: x\r\n", strings.Repeat("x", 3*chunkSize)), new(envelope))
	if v != (mailfilter.Verdict{}) {
		t.Errorf("verdict %+v", v)
	}
	want := "O DC C DH H DM M DR R DT T DU U DL L DN N DB B DE E"
	if got := f.commands(); got != want {
		t.Errorf("commands %q, want %q", got, want)
	}
}

// Old filters are not told what they do not know.
func TestOldVersion(t *testing.T) {
	t.Parallel()
	spec, f := listen(t, func(kind byte, _ []byte) []byte {
		if kind == cmdOptions {
			return negotiate(2, 0, 0)
		}
		return reply(repContinue, "")
	})
	spec.Protocol = 2
	s := open(t, spec)
	begin(t, s)
	s.Unknown("FOO")
	s.Abort()
	s.Helo("again")
	want := "O DC C DH H DM M DR R A DH H"
	if got := f.commands(); got != want {
		t.Errorf("commands %q, want %q", got, want)
	}
}

// A connection is used again for the next SMTP session, and a stale one is replaced
// without anybody noticing.
func TestReuse(t *testing.T) {
	t.Parallel()
	negotiations := 0
	spec, f := listen(t, func(kind byte, _ []byte) []byte {
		switch kind {
		case cmdOptions:
			if negotiations++; negotiations == 3 {
				return []byte{0, 0, 0, 0} // nonsense, as good as a lost connection
			}
			return negotiate(6, 0, stepNoHelo|stepNoHeaders|stepNoEOH|stepNoBody|stepNoData)
		case cmdQuitNC:
			return nil
		}
		return reply(repContinue, "")
	})
	spec.Reuse = true
	pool := new(Pool)
	defer pool.Close()
	for range 3 {
		s := Open([]mailfilter.Spec{spec}, pool, func(format string, args ...any) { t.Errorf(format, args...) })
		if got := play(t, s); got != "" {
			t.Errorf("refused: %s", got)
		}
		s.Close()
	}
	want := "O DC C DM M DR R DE E K O DC C DM M DR R DE E K O O DC C DM M DR R DE E K"
	if got := f.commands(); !strings.HasPrefix(got+" K", want) {
		t.Errorf("commands %q, want %q", got, want)
	}
}

// Whatever a filter does wrong, it has its default action for a verdict, and
// nothing of what it wanted is done.
func TestMisbehaviour(t *testing.T) {
	t.Parallel()
	ins := "\x00\x00\x00\x01"
	for name, at := range map[string]struct {
		kind byte
		out  []byte
	}{
		"version":          {cmdOptions, negotiate(7, 0, 0)},
		"action":           {cmdOptions, negotiate(6, 0x8000, 0)},
		"macro list":       {cmdOptions, negotiate(6, 0, 0, 0, 0, 0, 1, 'x')},
		"short options":    {cmdOptions, reply(cmdOptions, "123")},
		"empty packet":     {cmdHelo, []byte{0, 0, 0, 0}},
		"huge packet":      {cmdHelo, []byte{0xff, 0xff, 0xff, 0xff, 'c'}},
		"unknown reply":    {cmdHelo, reply('Z', "")},
		"edit at MAIL":     {cmdMail, reply(repAddHeader, "A\x00b\x00")},
		"bad code":         {cmdRcpt, reply(repCode, "250 fine\x00")},
		"mixed codes":      {cmdRcpt, reply(repCode, "550 no\r\n450 yes\x00")},
		"not negotiated":   {cmdEOM, reply(repReplBody, "x")},
		"no name":          {cmdEOM, reply(repInsHeader, ins)},
		"no index":         {cmdEOM, reply(repInsHeader, "\x00")},
		"half an edit":     {cmdEOM, reply(repAddHeader, "X-A\x00b")},
		"then nonsense":    {cmdEOM, append(reply(repAddHeader, "X-A\x00b\x00"), reply('!', "")...)},
		"too many":         {cmdEOM, bytes.Repeat(reply(repAddHeader, "X-A\x00b\x00"), maxEdits+1)},
		"too long":         {cmdEOM, bytes.Repeat(reply(repAddHeader, "X-A\x00"+strings.Repeat("b", 60000)+"\x00"), 80)},
		"endless progress": {cmdMail, bytes.Repeat(reply(repProgress, ""), 1001)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec, _ := listen(t, func(kind byte, _ []byte) []byte {
				if kind == at.kind {
					return at.out
				}
				if kind == cmdOptions {
					return negotiate(6, actAddHeaders, 0)
				}
				return reply(repContinue, "")
			})
			warned := 0
			s := Open([]mailfilter.Spec{spec}, nil, func(string, ...any) { warned++ })
			defer s.Close()
			c, env := content("Subject: x\r\n", "body\r\n"), new(envelope)
			var v mailfilter.Verdict
			if got := playTo(t, s, c, env); got.Action != mailfilter.Reject || got.Reply != replyTempFail {
				t.Errorf("verdict %+v, want to try later", got)
			} else {
				v = got
			}
			if warned != 1 {
				t.Errorf("%d warnings, want 1", warned)
			}
			if c.HeaderChanged || c.BodyChanged || len(env.log) > 0 {
				t.Errorf("changed by a filter that failed (%+v)", v)
			}
			// Later messages of the session get the same.
			if v := s.Mail("<x@example.com>"); v.Reply != replyTempFail {
				t.Errorf("next message: %+v", v)
			}
		})
	}
}

// playTo plays a session to the first objection.
func playTo(t *testing.T, s *Session, c *Content, env Envelope) mailfilter.Verdict {
	t.Helper()
	steps := []func() mailfilter.Verdict{
		func() mailfilter.Verdict { return s.Connect(t.Context(), "c", addrLocal, 1) },
		func() mailfilter.Verdict { return s.Helo("c") },
		func() mailfilter.Verdict { return s.Mail("<a@b>") },
		func() mailfilter.Verdict { return s.Rcpt("<a@b>") },
		s.Data,
		func() mailfilter.Verdict { return s.Message(t.Context(), c, env) },
	}
	for _, do := range steps {
		if v := do(); v.Action != mailfilter.Continue {
			return v
		}
	}
	return mailfilter.Verdict{}
}

// A field that a filter adds stays one field, whatever is in it.
func TestOneFieldStaysOne(t *testing.T) {
	t.Parallel()
	f := &filter{}
	for _, value := range []string{"a\r\nB: c", "a\n\nbody", "a\rB: c", "\nB: c", "a\n \n\t\nb", "a\r\n\r\n", ""} {
		fd, err := f.fieldOf("X-A", value)
		if err != nil {
			t.Fatal(err)
		}
		text := string(fd.Raw)
		lines := strings.Split(strings.TrimSuffix(text, "\r\n"), "\r\n")
		if strings.Count(text, "\n") != len(lines) || strings.Count(text, "\r") != len(lines) {
			t.Errorf("%q: stray line end in %q", value, text)
		}
		for _, l := range lines[1:] {
			if l == "" || l[0] != ' ' && l[0] != '\t' || strings.TrimSpace(l) == "" {
				t.Errorf("%q: line %q does not continue the field", value, l)
			}
		}
	}
	for _, name := range []string{"", "a b", "a:b", "a\r\nb", "\x7f"} {
		if _, err := f.fieldOf(name, "x"); err == nil {
			t.Errorf("the name %q was taken", name)
		}
	}
}

// Waiting for a filter ends, also when it says that it is busy.
func TestProgressEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		us, them := net.Pipe()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { io.Copy(io.Discard, them) })
		wg.Go(func() {
			defer them.Close()
			for {
				if _, err := them.Write(reply(repProgress, "")); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		f := &filter{spec: testSpec("unix:x"), nc: lockstep.New(us), warn: func(string, ...any) {}}
		f.spec.Content = 300 * time.Second
		start := time.Now()
		_, v := f.endOfMessage(t.Context(), nil, new(Content))
		if took := time.Since(start); took < 9*time.Minute || took > 11*time.Minute || v.Reply != replyTempFail {
			t.Errorf("verdict %+v after %s, want to try later after ten minutes", v, took)
		}
	})
}

// A filter may take as long for a header field or a piece of the body as for the
// end of the message, which is longer than for a command.
func TestContentTimeout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		e    event
		slow bool // takes longer than a command may
	}{
		{event{name: "HEADER", kind: cmdHeader, stage: mailfilter.StageEOH}, true},
		{event{name: "EOH", kind: cmdEOH, stage: mailfilter.StageEOH}, true},
		{event{name: "BODY", kind: cmdBody, stage: mailfilter.StageEOM}, true},
		{event{name: "RCPT", kind: cmdRcpt, stage: mailfilter.StageRcpt}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			us, them := net.Pipe()
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() { io.Copy(io.Discard, them) })
			wg.Go(func() {
				defer them.Close()
				time.Sleep(time.Minute)
				_, _ = them.Write(reply(repContinue, ""))
			})
			f := &filter{spec: testSpec("unix:x"), nc: lockstep.New(us), warn: func(string, ...any) {}}
			f.spec.Command, f.spec.Content = 30*time.Second, 300*time.Second
			v := f.send(&c.e, nil)
			if passes := v == (mailfilter.Verdict{}); passes != c.slow {
				t.Errorf("%s after a minute: %+v", c.e.name, v)
			}
			us.Close()
		})
	}
}

// What filters do that the protocol does not foresee, and Postfix lets them do.
func TestSloppyFilters(t *testing.T) {
	t.Parallel()
	spec, told := listen(t, func(kind byte, data []byte) []byte {
		switch kind {
		case cmdOptions:
			return negotiate(2, actChgHeaders, stepNRHeader|0x40000000) // not offered, and not known
		case cmdHelo:
			return reply(repDiscard, "")
		case cmdRcpt:
			if bytes.Contains(data, []byte("no@")) {
				return reply(repCode, "550 100%% %no") // without its NUL
			}
			return reply(repSkip, "")
		case cmdEOM:
			return append(reply(repChgHeader, "\x00\x00\x00\x00Subject\x00first\x00"), reply(repContinue, "")...)
		case cmdHeader:
			if !bytes.Equal(data, []byte("Subject\x00hidden\x00")) {
				t.Errorf("the field as the filter got it: %q", data)
			}
			return nil
		}
		return reply(repContinue, "")
	})
	spec.Protocol = 2
	var warnings []string
	s := Open([]mailfilter.Spec{spec}, nil, func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) })
	defer s.Close()
	ok := func(what string, v mailfilter.Verdict) {
		t.Helper()
		if v.Action != mailfilter.Continue {
			t.Errorf("%s: %+v", what, v)
		}
	}
	ok("CONNECT", s.Connect(t.Context(), "x", netip.MustParseAddr("192.0.2.1"), 25))
	ok("HELO", s.Helo("x"))
	ok("MAIL", s.Mail("<a@example.com>"))
	if v := s.Rcpt("<no@example.com>"); v.Action != mailfilter.Reject || v.Reply.String() != "550 5.7.1 100% no" {
		t.Errorf("RCPT: %+v %v", v, v.Reply)
	}
	ok("RCPT", s.Rcpt("<b@example.com>"))
	ok("RCPT that is skipped", s.Rcpt("<no@example.com>"))
	c := content("Subject: hid\x00den\r\n", "body\r\n")
	ok("message", s.Message(t.Context(), c, new(envelope)))
	if string(c.Fields[len(c.Fields)-1].Raw) != "Subject: first\r\n" {
		t.Errorf("header %q", c.text())
	}
	ok("MAIL", s.Mail("<a@example.com>"))
	if v := s.Rcpt("<no@example.com>"); v.Action != mailfilter.Reject {
		t.Errorf("RCPT of the next message: %+v", v)
	}
	if len(warnings) != 1 {
		t.Errorf("warnings %q", warnings)
	}
	if got := strings.Count(told.commands(), " R"); got != 3 {
		t.Errorf("told of %d recipients: %s", got, told.commands())
	}
}

func TestSpecs(t *testing.T) {
	t.Parallel()
	cfg := loadConfig(t, "milter_default_action = accept\nsmtpd_milters = inet:localhost:8891, { unix:/run/x, connect_timeout=10s default_action=reject, protocol=4, connection_reuse=yes }\n")
	specs, err := Read(cfg, "smtpd_milters")
	if err != nil || len(specs) != 2 {
		t.Fatal(specs, err)
	}
	if s := specs[0]; s.Default != "accept" || s.Connect != 30*time.Second || s.Content != 300*time.Second || s.Protocol != 6 || s.Reuse {
		t.Errorf("first: %+v", s)
	}
	if s := specs[1]; s.Endpoint != "unix:/run/x" || s.Default != "reject" || s.Connect != 10*time.Second || s.Protocol != 4 || !s.Reuse {
		t.Errorf("second: %+v", s)
	}
	var back mailfilter.Spec
	if err := back.Decode(specs[1].Append(nil)); err != nil || back != specs[1] {
		t.Errorf("packed and read again: %+v, %v", back, err)
	}
	for _, bad := range []string{"tcp:x:1", "inet:8891", "unix:", "inet:a:1, x=y", "inet:a:1, protocol=5", "inet:a:1, protocol=four", "inet:a:1, default_action=drop", "inet:a:1, command_timeout=0"} {
		if _, err := Parse(cfg, "smtpd_milters", []string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	for value, want := range map[string]string{"2": "2 false", "6, no_header_reply": "6 true", "no_header_reply 3": "3 true",
		"5": "", "2 3": "", "no_header_reply": "", "6 x": ""} {
		specs, err := Read(loadConfig(t, "milter_protocol = "+value+"\nsmtpd_milters = inet:a:1\n"), "smtpd_milters")
		got := ""
		if err == nil {
			got = fmt.Sprint(specs[0].Protocol, specs[0].NoHeaderReply)
		}
		if got != want {
			t.Errorf("milter_protocol = %s: %q, %v; want %q", value, got, err, want)
		}
	}
	got, err := ParseMacros([]string{"{auth}=x y", "j=mx", "client_ptr = unknown"})
	if want := []string{"{auth}", "x y", "j", "mx", "{client_ptr}", "unknown"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("macros %q, %v; want %q", got, err, want)
	}
}

func FuzzReplies(f *testing.F) {
	f.Add(append(negotiate(6, 0x1ff, 0), reply(repContinue, "")...), "X: y\r\n", "body\r\n")
	f.Add(append(append(negotiate(6, 0x1ff, 0xfffff, 0, 0, 0, 1, 'j', 0), reply(repChgHeader, "\x00\x00\x00\x01X\x00\x00")...), reply('c', "")...), "X: y\r\n", "")
	f.Add(append(negotiate(6, 0x1ff, 0), bytes.Repeat(append(reply(repInsHeader, "\x00\x00\x00\x00Received\x00a\r\nb\x00"), reply('c', "")...), 9)...), "Received: y\r\n", "b")
	f.Fuzz(func(t *testing.T, replies []byte, header, body string) {
		us, them := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { io.Copy(io.Discard, them) })
		wg.Go(func() { them.Write(replies); them.Close() })
		fl := &filter{spec: testSpec("unix:x"), nc: lockstep.New(us), warn: func(string, ...any) {}}
		s := &Session{filters: []*filter{fl}}
		offer := options{version: 6, actions: offered[6].actions, steps: offered[6].steps}
		if p, err := fl.answer(time.Second); err == nil {
			if fl.opts, err = parseOptions(p, offer); err == nil {
				c := &Content{Fields: []Field{{"Received", []byte("Received: us\r\n")}, {"X", []byte("X: " + strings.Trim(header, "\r\n") + "\r\n")}},
					Body: strings.NewReader(body), BodySize: int64(len(body)), BodyLimit: 1 << 20}
				s.Mail("<a@b>")
				s.Rcpt("<a@b>")
				s.Message(t.Context(), c, new(envelope))
				for _, fd := range c.Fields {
					if !bytes.HasSuffix(fd.Raw, crlf) || !bytes.HasPrefix(fd.Raw, []byte(fd.Name)) {
						t.Errorf("field %q", fd.Raw)
					}
				}
				c.Close()
			}
		}
		us.Close()
		wg.Wait()
	})
}

// A filter that says nothing on a connection that is used again is found out
// once, and gets a new connection each time from then on.
func TestReuseUnable(t *testing.T) {
	t.Parallel()
	var said atomic.Bool
	spec, f := listen(t, func(kind byte, _ []byte) []byte {
		switch kind {
		case cmdOptions:
			if said.CompareAndSwap(true, false) {
				return nil
			}
			return negotiate(6, 0, stepNoHelo|stepNoHeaders|stepNoEOH|stepNoBody|stepNoData)
		case cmdQuitNC:
			said.Store(true)
			return nil
		}
		return reply(repContinue, "")
	})
	spec.Reuse = true
	pool := new(Pool)
	defer pool.Close()
	warned := 0
	for range 3 {
		s := Open([]mailfilter.Spec{spec}, pool, func(string, ...any) { warned++ })
		if got := play(t, s); got != "" {
			t.Errorf("refused: %s", got)
		}
		s.Close()
	}
	want := "O DC C DM M DR R DE E K O O DC C DM M DR R DE E"
	if got := f.commands(); !strings.HasPrefix(got, want) || warned != 1 {
		t.Errorf("commands %q, want %q; %d warnings, want 1", got, want, warned)
	}
}
