package smtpd

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/quickio"
	"posthaste/internal/testwait"
)

// gathered is a connection whose writes wait for flush.
type gathered struct {
	net.Conn
	wait bytes.Buffer
	on   bool
}

func (g *gathered) Write(p []byte) (int, error) {
	if !g.on {
		return g.Conn.Write(p)
	}
	return g.wait.Write(p)
}

// flush sends n of the octets that wait, or all of them, in one packet, and
// returns when they have arrived at to.
func (g *gathered) flush(t *testing.T, n int, to *net.TCPConn) {
	t.Helper()
	if n == 0 {
		n = g.wait.Len()
	}
	g.Conn.SetWriteDeadline(time.Now().Add(testwait.Patience)) // the end of TLS leaves none
	if _, err := g.Conn.Write(g.wait.Next(n)); err != nil {
		t.Fatal(err)
	}
	raw, err := to.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return err == nil && n > 0
	}); err != nil {
		t.Fatal(err)
	}
}

// Under TLS, too, it is known whether a client has sent more than it was asked
// for: in the record that was read, in one that came with it, or in one that
// nobody has read yet. A part of a record is nothing yet, and does no harm.
func TestMoreUnderTLS(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for _, c := range []net.Conn{in, out} {
		c.SetDeadline(time.Now().Add(testwait.Patience))
	}
	key, chain := keyPair(t, "x", false)
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	under := &transport{Conn: quickio.New(in)}
	server := tls.Server(under, &tls.Config{Certificates: []tls.Certificate{cert}})
	g := &gathered{Conn: out}
	client := tls.Client(g, &tls.Config{InsecureSkipVerify: true})
	done := make(chan error, 1)
	go func() { done <- client.Handshake() }()
	if err := server.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	g.on = true
	s := &session{wire: wire{nc: server, timeout: time.Minute}, tls: &tlsState{under: under}}
	send := func(records ...string) {
		for _, r := range records {
			if _, err := client.Write([]byte(r)); err != nil {
				t.Fatal(err)
			}
		}
	}
	line := func(want string) {
		t.Helper()
		if got, err := s.wire.line(1000, nil); err != nil || string(got) != want {
			t.Fatalf("line %q (%v), want %q", got, err, want)
		}
	}
	more := func(where string, want string) {
		t.Helper()
		if got := s.sentAhead(); got != (want != "") || string(s.wire.buf[s.wire.r:s.wire.w]) != want {
			t.Errorf("%s: %t, %q", where, got, s.wire.buf[s.wire.r:s.wire.w])
		}
	}
	tcp := in.(*net.TCPConn)
	more("nothing", "")
	send("DATA\r\nx\r\n")
	g.flush(t, 0, tcp)
	line("DATA")
	more("the same record", "x\r\n")
	line("x")
	more("nothing again", "")
	send("DATA\r\n", "x\r\n")
	g.flush(t, 0, tcp)
	line("DATA")
	more("another record", "x\r\n")
	line("x")
	send("x\r\n")
	g.flush(t, 0, tcp)
	more("not read yet", "x\r\n")
	line("x")
	send("QUIT\r\n")
	g.flush(t, 7, tcp)
	more("a part of a record", "")
	g.flush(t, 0, tcp)
	line("QUIT")
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	g.flush(t, 0, tcp)
	more("the end", "")
	if got, err := s.wire.line(1000, nil); err != io.EOF {
		t.Errorf("after the end: %q, %v", got, err)
	}
}

func TestWithoutPasswords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		data string
		auth bool // comes behind AUTH
		want string
	}{
		{"MAIL FROM:<a@b.test>\r\nRCPT", false, "MAIL FROM:<a@b.test>\r\nRCPT"},
		{"am9l\r\nc2VjcmV0\r\nMAIL FROM:<a@b.test>\r\nx\r\n", true, "(secret)\r\n(secret)\r\nMAIL FROM:<a@b.test>\r\nx\r\n"},
		{"AUTH PLAIN AGpvZQBzZWNyZXQ=\r\nQUIT\r\n", false, "AUTH PLAIN (secret)\r\nQUIT\r\n"},
		{"auth login\nam9l\nc2VjcmV0", false, "auth login\n(secret)\n(secret)"},
		{"AUTH\tPLAIN AGpvZQBzZWNyZXQ=", false, "AUTH PLAIN (secret)"},
		{"Subject: x\r\n\r\n.\r\n", false, "Subject: x\r\n\r\n.\r\n"},
	} {
		if got := withoutPasswords(tt.data, tt.auth); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.data, got, tt.want)
		}
	}
}
