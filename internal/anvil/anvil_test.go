package anvil

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"posthaste/internal/maillog"
	"posthaste/internal/ownsocket"
	"posthaste/internal/testpostfix"
	"posthaste/internal/testwait"
)

// A clock is the time of a test.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) get() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestTable(t *testing.T) {
	t.Parallel()
	c := &clock{now: time.Unix(1000, 0)}
	table := NewTable(Options[string]{Unit: time.Minute, Now: c.get, Room: 3})
	table.Add("a", Connections)
	if n := table.Add("a", Connect); n != 1 {
		t.Errorf("count %d", n)
	}
	if n := table.Add("a", Connect); n != 2 {
		t.Errorf("count %d", n)
	}
	table.Add("b", Message)
	c.pass(time.Minute)
	if got, want := table.Lookup("a"), (Counts{Connections: 1}); got != want { // a new interval; the connection is still there
		t.Errorf("after an interval: %v", got)
	}
	if n := table.Add("a", Connect); n != 1 {
		t.Errorf("count %d after an interval", n)
	}
	table.Drop("a")
	table.Drop("a") // none is left
	if got, want := table.Lookup("a"), (Counts{Connect: 1}); got != want {
		t.Errorf("after a disconnect: %v", got)
	}
	c.pass(10 * time.Minute)
	table.Add("c", Connect)
	if len(table.clients) != 1 {
		t.Errorf("%d clients are kept", len(table.clients))
	}
	table.Add("d", Connect)
	table.Add("e", Connect)
	if n := table.Add("f", Connect); n != 0 || table.Has("f") {
		t.Errorf("there was room for another: %d", n)
	}
	if n := table.Add("e", Connect); n != 2 {
		t.Errorf("one who is there has no room: %d", n)
	}
}

// A script is the connection of a client that says all that it has to say, and goes away.
type script struct {
	in    io.Reader
	heard bytes.Buffer
}

func (s *script) Read(b []byte) (int, error)       { return s.in.Read(b) }
func (s *script) Write(b []byte) (int, error)      { return s.heard.Write(b) }
func (s *script) Close() error                     { return nil }
func (s *script) LocalAddr() net.Addr              { return nil }
func (s *script) RemoteAddr() net.Addr             { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// play has a client say text, an octet at a time, and returns what it hears.
func play(t *testing.T, s *server, text string) string {
	t.Helper()
	client := &script{in: iotest.OneByteReader(strings.NewReader(text))}
	s.serve(t.Context(), client)
	return client.heard.String()
}

func attrs(list ...string) string { return strings.Join(list, "\n") + "\n\n" }

// The octets were written down from the source of Postfix 3.7's anvil(8).
func TestProtocol(t *testing.T) {
	t.Parallel()
	var log syncBuffer
	s := newServer(maillog.New("postfix/anvil", maillog.NewWriter(&log, maillog.Plain)), time.Minute, time.Hour, (&clock{now: time.Unix(1000, 0)}).get)
	request := func(what, ident string) string { return attrs("request="+what, "ident="+ident) }
	const a = "smtp:192.0.2.1"
	hello := attrs("protocol=anvil_protocol")
	for _, c := range []struct{ name, say, want string }{
		{"lookup of nobody", request("lookup", a), attrs("status=0", "count=0", "rate=0", "mail=0", "rcpt=0", "newtls=0", "auth=0")},
		{"connect, twice", request("connect", a) + request("connect", a), attrs("status=0", "count=1", "rate=1") + attrs("status=0", "count=1", "rate=2")},
		{"the visitor's connection went with it", request("connect", a) + request("disconnect", a) + request("lookup", a),
			attrs("status=0", "count=1", "rate=3") + attrs("status=0") + attrs("status=0", "count=0", "rate=3", "mail=0", "rcpt=0", "newtls=0", "auth=0")},
		{"each event", request("message", a) + request("recipient", a) + request("recipient", a) + request("newtls", a) + request("newtls_status", a) + request("auth", a) + request("tlstr", a) + request("lookup", a),
			attrs("status=0", "rate=1") + attrs("status=0", "rate=1") + attrs("status=0", "rate=2") + attrs("status=0", "rate=1") + attrs("status=0", "rate=1") + attrs("status=0", "rate=1") + attrs("status=0", "rate=1") +
				attrs("status=0", "count=0", "rate=3", "mail=1", "rcpt=2", "newtls=1", "auth=1")},
		{"a message of a client that nobody told of", request("message", "smtp:192.0.2.2") + request("lookup", "smtp:192.0.2.2"),
			attrs("status=0", "rate=1") + attrs("status=0", "count=1", "rate=1", "mail=1", "rcpt=0", "newtls=0", "auth=0")},
		{"another's connection is not taken back", request("disconnect", a), attrs("status=0")},
		{"unknown", request("dance", a), attrs("status=-1")},
		{"too long", request("lookup", strings.Repeat("x", 600)), attrs("status=-1")},
		{"no ident", attrs("request=lookup") + request("lookup", a), ""},
		{"one more attribute", attrs("request=lookup", "ident="+a, "x=y"), ""},
		{"twice", attrs("request=lookup", "request=lookup"), ""},
		{"no attribute", "GET / HTTP/1.0\n", ""},
		{"a long line", strings.Repeat("x", maxLine+1), ""},
	} {
		if got, want := play(t, s, c.say), hello+c.want; got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, want)
		}
	}
	s.log.Flush()
	for _, want := range []string{`unrecognized request: "dance", ignored`, "expected the attributes request and ident", "malformed attribute", "buffer full"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("not in the log: %s\n%s", want, log.String())
		}
	}
	s.counts.Finish()
	s.log.Flush()
	if want := "statistics: max recipient rate 2/60s for (smtp:192.0.2.1) at "; !strings.Contains(log.String(), want) {
		t.Errorf("not in the log: %s\n%s", want, log.String())
	}
}

// What was told to the service and what processes of smtpd count is one sum.
func TestDoors(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("private", 0o700); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	s := newServer(maillog.New("postfix/anvil", maillog.NewWriter(&log, maillog.Plain)), time.Minute, time.Hour, (&clock{now: time.Unix(1000, 0)}).get)
	open := func(name string, n int) *Door {
		door, err := NewDoor(ownsocket.Listen, name, func(client string) (Counts, bool) {
			return Counts{Connections: n, Connect: 2 * n, Message: 3 * n, Recipient: 4 * n, NewTLS: 5 * n, Auth: 6 * n}, client == "2001:db8::1"
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(door.Close)
		return door
	}
	open("[::1]:25", 10)
	open("smtp", 100)
	// One that has died is passed over.
	l, err := net.Listen("unix", filepath.Join(Dir, "smtp."+strconv.Itoa(os.Getppid())))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for _, c := range []struct{ say, want string }{
		{attrs("request=lookup", "ident=[::1]:25:2001:db8::1"), attrs("status=0", "count=10", "rate=20", "mail=30", "rcpt=40", "newtls=50", "auth=60")},
		{attrs("request=connect", "ident=smtp:2001:db8::1"), attrs("status=0", "count=101", "rate=201")},
		{attrs("request=newtls_status", "ident=smtp:2001:db8::1"), attrs("status=0", "rate=500")},
		{attrs("request=lookup", "ident=smtps:2001:db8::1"), attrs("status=0", "count=0", "rate=0", "mail=0", "rcpt=0", "newtls=0", "auth=0")},
	} {
		if got, want := play(t, s, c.say), attrs("protocol=anvil_protocol")+c.want; got != want {
			t.Errorf("%q: got\n%s\nwant\n%s", c.say, got, want)
		}
	}
	if s.log.Flush(); log.String() != "" {
		t.Errorf("it complains:\n%s", log.String())
	}
}

// Postfix's own smtpd asks this service, and refuses by what it is told.
func TestPostfixAsks(t *testing.T) {
	t.Parallel()
	p := testpostfix.New(t)
	p.Configure("smtpd_client_connection_rate_limit = 1\nsmtpd_client_event_limit_exceptions =\n"+
		"smtpd_client_message_rate_limit = 2\nsmtpd_client_recipient_rate_limit = 1\nmynetworks = 127.0.0.0/8\nmydestination =\n",
		"127.0.0.1:{port} inet n - n - 1 smtpd\nrewrite unix - - n - - trivial-rewrite\nproxymap unix - - n - - proxymap\ncleanup unix n - n - 0 cleanup\npostlog unix-dgram n - n - 1 postlogd\n")
	path := p.Path("spool/private/anvil")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // the directory is Postfix's own
		t.Fatal(err)
	}
	s := newServer(maillog.New("postfix/anvil", maillog.NewWriter(io.Discard, maillog.Plain)), time.Hour, time.Hour, time.Now)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { stop(); l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.serve(ctx, conn) })
		}
	})
	p.Start()
	talk := func(commands ...string) (replies []string) {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.Port))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testwait.Patience))
		in := bufio.NewReader(conn)
		for _, command := range append([]string{""}, commands...) {
			if command != "" {
				fmt.Fprintf(conn, "%s\r\n", command)
			}
			line, err := in.ReadString('\n')
			if err != nil {
				t.Fatalf("%v after %q\n%s", err, replies, p.Log())
			}
			replies = append(replies, strings.TrimSpace(line))
		}
		return replies
	}
	got := talk("HELO client.test", "MAIL FROM:<a@from.test>", "RCPT TO:<b@to.test>", "RCPT TO:<c@to.test>", "RSET", "MAIL FROM:<a@from.test>", "RSET", "MAIL FROM:<a@from.test>", "QUIT")
	for i, want := range []string{"220 ", "250 ", "250 ", "250 ", "450 4.7.1 Error: too many recipients from 127.0.0.1", "250 ", "250 ", "250 ", "450 4.7.1 Error: too much mail from 127.0.0.1", "221 "} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("reply %d is %q, want %q", i, got[i], want)
		}
	}
	if got := talk()[0]; !strings.HasPrefix(got, "421 ") || !strings.HasSuffix(got, "Error: too many connections from 127.0.0.1") {
		t.Errorf("the second connection: %q", got)
	}
	ident := fmt.Sprintf("127.0.0.1:%d:127.0.0.1", p.Port)
	if c := s.counts.Lookup(ident); c[Connect] != 2 || c[Message] != 3 || c[Recipient] != 2 {
		t.Errorf("counted: %v", c)
	}
}
