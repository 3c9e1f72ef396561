package smtpd

import (
	"context"
	"crypto/tls"
	"fmt"
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

// Received:, log, policy servers and filters are told of a cipher under the name that Postfix has for it.
func TestCipherNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, suite uint16
		want           string
	}{
		{tls.VersionTLS13, tls.TLS_AES_256_GCM_SHA384, "TLSv1.3 TLS_AES_256_GCM_SHA384 256"},
		{tls.VersionTLS13, tls.TLS_CHACHA20_POLY1305_SHA256, "TLSv1.3 TLS_CHACHA20_POLY1305_SHA256 256"},
		{tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "TLSv1.2 ECDHE-RSA-AES128-GCM-SHA256 128"},
		{tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, "TLSv1.2 ECDHE-ECDSA-CHACHA20-POLY1305 256"},
		{tls.VersionTLS12, tls.TLS_RSA_WITH_AES_256_CBC_SHA, "TLSv1.2 AES256-SHA 256"},
		{tls.VersionTLS10, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, "TLSv1 ECDHE-RSA-AES128-SHA 128"},
	} {
		a := new(tlsSettings).describe(tls.ConnectionState{Version: c.version, CipherSuite: c.suite})
		if got := fmt.Sprintln(a.Protocol, a.Cipher, a.Bits); got != c.want+"\n" {
			t.Errorf("got %swant %s", got, c.want)
		}
	}
}
