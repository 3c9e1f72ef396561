package smtpd

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A handshake that fails is logged in the words of the trade.
func TestHandshakeProblem(t *testing.T) {
	t.Parallel()
	for want, client := range map[string]func(c net.Conn){
		"lost connection": func(c net.Conn) { c.Close() },
		"Connection reset by peer": func(c net.Conn) {
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		},
		"tls: first record does not look like a TLS handshake": func(c net.Conn) {
			_, _ = c.Write([]byte("MAIL FROM:<a@b.test>\r\n"))
		},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		client(c)
		err = tls.Server(s, new(tls.Config)).Handshake()
		if err == nil {
			t.Fatal("no error")
		}
		if got := handshakeProblem(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c, s := net.Pipe()
		defer c.Close()
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := tls.Server(s, new(tls.Config)).HandshakeContext(ctx)
		if got := handshakeProblem(err); got != "Connection timed out" {
			t.Errorf("after a minute of silence: %q (%v)", got, err)
		}
	})
}
