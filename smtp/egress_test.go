package smtp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/egress"
	"posthaste/internal/mail"
	"posthaste/internal/testcert"
	"posthaste/internal/testwait"
)

// A callee is an SMTP server that takes all mail and says who has called.
type callee struct {
	l     net.Listener
	wg    sync.WaitGroup
	tls   *tls.Config // nil: no STARTTLS
	calls chan call
}

// A call is one session, as it was when it ended.
type call struct {
	from, helo, cert string
	messages         int
}

func newCallee(t *testing.T, conf *tls.Config) *callee {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &callee{l: l, tls: conf, calls: make(chan call, 20)}
	c.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.wg.Go(func() { c.calls <- c.serve(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); c.wg.Wait() })
	return c
}

func (c *callee) nexthop() mail.Nexthop { return mail.Nexthop("[127.0.0.1]:" + port(c.l)) }

func (c *callee) serve(conn net.Conn) (is call) {
	defer conn.Close()
	is.from = conn.RemoteAddr().(*net.TCPAddr).IP.String()
	_ = conn.SetDeadline(time.Now().Add(testwait.Patience))
	r := bufio.NewReader(conn)
	fmt.Fprint(conn, "220 x ESMTP\r\n")
	for {
		line, err := r.ReadString('\n')
		verb, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case err != nil:
			return is
		case verb == "EHLO":
			is.helo = arg
			if c.tls != nil && is.cert == "" {
				fmt.Fprint(conn, "250-x\r\n250 STARTTLS\r\n")
			} else {
				fmt.Fprint(conn, "250 x\r\n")
			}
		case verb == "STARTTLS":
			fmt.Fprint(conn, "220 go\r\n")
			up := tls.Server(conn, c.tls)
			if up.Handshake() != nil {
				return is
			}
			is.cert = "none"
			if certs := up.ConnectionState().PeerCertificates; len(certs) > 0 {
				is.cert = certs[0].DNSNames[0]
			}
			conn, r = up, bufio.NewReader(up)
		case verb == "DATA":
			fmt.Fprint(conn, "354 go\r\n")
			for line != ".\r\n" {
				if line, err = r.ReadString('\n'); err != nil {
					return is
				}
			}
			is.messages++
			fmt.Fprint(conn, "250 2.0.0 done\r\n")
		case verb == "QUIT":
			fmt.Fprint(conn, "221 bye\r\n")
			return is
		default:
			fmt.Fprint(conn, "250 2.0.0 ok\r\n")
		}
	}
}

// sendFrom delivers one message from a source, and returns what came of it.
func sendFrom(a *Agent, next mail.Nexthop, name, spec string, keep bool) mail.Outcome {
	r := agent.NewTestRequest(envelope(10), next, []byte("A: b\r\n\r\n"), a.log)
	r.CacheLoad, r.CacheKeep = true, keep
	r.Source, r.SourceSpec = name, spec
	a.Deliver(context.Background(), r)
	return r.Outcomes()[0]
}

func (c *callee) next(t *testing.T) call {
	t.Helper()
	select {
	case is := <-c.calls:
		return is
	case <-time.After(testwait.Patience):
		t.Fatal("nobody has called")
		return call{}
	}
}

// Connections come from the source's address, under its name, and the log has the source.
func TestSourceAddress(t *testing.T) {
	t.Parallel()
	log := new(lines)
	a, done := keptAgent(t, "smtp_bind_address = 127.0.0.9\n", log)
	c := newCallee(t, nil)
	for _, test := range []struct{ name, spec, from, helo string }{
		{"m1", "address=127.0.0.2, helo=m1.test", "127.0.0.2", "m1.test"},
		{"m2", "address=127.0.0.3, address6=::1", "127.0.0.3", "me.test"},
		{"", "", "127.0.0.9", "me.test"},
	} {
		if o := sendFrom(a, c.nexthop(), test.name, test.spec, false); o.Status.String() != "2.0.0" {
			t.Fatalf("%s: %s %s", test.name, o.Status, o.Reason)
		}
		if is := c.next(t); is.from != test.from || is.helo != test.helo {
			t.Errorf("%s: called from %s by %s", test.name, is.from, is.helo)
		}
	}
	done()
	text := log.String()
	if strings.Count(text, ", source=m1, dsn=2.0.0, status=sent") != 1 || strings.Count(text, "source=") != 2 {
		t.Errorf("%s", text)
	}
}

// A source that cannot be used is not replaced by another address. That it cannot is no failure of
// the network: the queue manager tries another source.
func TestSourceUnusable(t *testing.T) {
	t.Parallel()
	log := new(lines)
	a, done := keptAgent(t, "", log)
	defer done()
	c := newCallee(t, nil)
	for _, test := range []struct{ spec, want string }{
		{"address=192.0.2.77", "server configuration error: no connection can be made from egress source m1"},
		{"address6=::1", "127.0.0.1 has IPv4 addresses only, and egress source m1 has none"},
		{"address=127.0.0.2, tls_cert=/nowhere.pem", "server configuration error: the certificate of egress source m1 cannot be read"},
		{"address=", "egress source m1: \"address=\": expected name=value"},
		{"proxy=socks5:127.0.0.1:1", "connect to 127.0.0.1[127.0.0.1]:"},
		{"address=127.0.0.2 proxy=haproxy:127.0.0.1:1", "connect to 127.0.0.1[127.0.0.1]:"},
	} {
		o := sendFrom(a, c.nexthop(), "m1", test.spec, false)
		if o.Status.Class != 4 || o.Status.Subject == 4 || !strings.Contains(o.Reason, test.want) {
			t.Errorf("%s: %s %s", test.spec, o.Status, o.Reason)
		}
	}
	if len(c.calls) > 0 {
		t.Errorf("it was called: %+v", c.next(t))
	}
}

// A session that was made from one source is not used for another, nor for mail without.
func TestSourceSessions(t *testing.T) {
	t.Parallel()
	log := new(lines)
	a, done := keptAgent(t, "smtp_connection_cache_time_limit = 100s\nconnection_cache_ttl_limit = 100s\n", log)
	c := newCallee(t, nil)
	for _, spec := range []string{"address=127.0.0.2", "address=127.0.0.3", "", "address=127.0.0.2", "address=127.0.0.3", ""} {
		name := "m1"
		if spec == "" {
			name = ""
		}
		if o := sendFrom(a, c.nexthop(), name, spec, true); o.Status.String() != "2.0.0" {
			t.Fatalf("%s: %s %s", spec, o.Status, o.Reason)
		}
	}
	done()
	seen := map[string]int{}
	for range 3 {
		is := c.next(t)
		seen[is.from] = is.messages
	}
	if seen["127.0.0.2"] != 2 || seen["127.0.0.3"] != 2 || seen["127.0.0.1"] != 2 {
		t.Errorf("messages by address: %v", seen)
	}
}

// Servers that ask for a certificate are shown the source's, and again after it has been renewed.
func TestSourceCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "m1.pem")
	renewed := time.Now().Add(-time.Hour)
	write := func(name string) {
		pair := testcert.RSA(t, x509.Certificate{DNSNames: []string{name}}, nil).TLS()
		key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		text := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})...)
		renewed = renewed.Add(time.Minute)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, renewed, renewed); err != nil {
			t.Fatal(err)
		}
	}
	server := testcert.RSA(t, x509.Certificate{DNSNames: []string{"server.test"}}, nil).TLS()
	c := newCallee(t, &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequestClientCert})
	log := new(lines)
	a, done := keptAgent(t, "smtp_tls_security_level = encrypt\n", log)
	defer done()
	for _, test := range []struct{ cert, spec, want string }{
		{"m1.test", "address=127.0.0.2, tls_cert=" + file, "m1.test"},
		{"", "address=127.0.0.2, tls_cert=" + file + ", tls_key=" + file, "m1.test"},
		{"", "address=127.0.0.2", "none"},
		{"new.test", "address=127.0.0.2, tls_cert=" + file, "new.test"},
	} {
		if test.cert != "" {
			write(test.cert)
		}
		if o := sendFrom(a, c.nexthop(), "m1", test.spec, false); o.Status.String() != "2.0.0" {
			t.Fatalf("%s: %s %s\n%s", test.spec, o.Status, o.Reason, log)
		}
		if is := c.next(t); is.cert != test.want {
			t.Errorf("%s: shown %s, want %s", test.spec, is.cert, test.want)
		}
	}
}

// relay copies between two connections until one ends.
func relay(a, b net.Conn) {
	var wg sync.WaitGroup
	for _, p := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			_, _ = io.Copy(p[0], p[1])
			a.Close()
			b.Close()
		})
	}
	wg.Wait()
}

// startProxy runs a proxy for one connection.
func startProxy(t *testing.T, serve func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(testwait.Patience))
		serve(c)
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// The proxy is told what to connect from and to, octet by octet, and connects.
func TestSourceHAProxy(t *testing.T) {
	t.Parallel()
	c := newCallee(t, nil)
	to := c.l.Addr().(*net.TCPAddr)
	heads := make(chan [28]byte, 1)
	at := startProxy(t, func(p net.Conn) {
		var head [28]byte
		if _, err := io.ReadFull(p, head[:]); err != nil {
			t.Error(err)
			return
		}
		heads <- head
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IP(head[16:20])}}
		up, err := d.Dial("tcp", net.JoinHostPort(net.IP(head[20:24]).String(), fmt.Sprint(binary.BigEndian.Uint16(head[26:]))))
		if err != nil {
			t.Error(err)
			return
		}
		relay(p, up)
	})
	log := new(lines)
	a, done := keptAgent(t, "", log)
	defer done()
	if o := sendFrom(a, c.nexthop(), "m1", "address=127.0.0.7, helo=m1.test, proxy=haproxy:"+at, false); o.Status.String() != "2.0.0" {
		t.Fatalf("%s %s", o.Status, o.Reason)
	}
	if is := c.next(t); is.from != "127.0.0.7" || is.helo != "m1.test" {
		t.Errorf("%+v", is)
	}
	want := append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x7f\x00\x00\x07\x7f\x00\x00\x01\x00\x00"), byte(to.Port>>8), byte(to.Port))
	if head := <-heads; !bytes.Equal(head[:], want) {
		t.Errorf("the proxy was sent %q, want %q", head[:], want)
	}
}

// The header for a server with an IPv6 address has both addresses whole, and says so.
func TestHAProxyHeader(t *testing.T) {
	t.Parallel()
	d := &delivery{set: new(settings)}
	for _, test := range []struct{ from, to, port, want string }{
		{"192.0.2.7", "198.51.100.1", "25", "\x21\x11\x00\x0c\xc0\x00\x02\x07\xc6\x33\x64\x01\x00\x00\x00\x19"},
		{"2001:db8::7", "2001:db8:1::2", "2525", "\x21\x21\x00\x24\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07" +
			"\x20\x01\x0d\xb8\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x09\xdd"},
	} {
		proxy := new(heard)
		if err := d.introduceTo(proxy, netip.MustParseAddr(test.from), &target{ip: netip.MustParseAddr(test.to), port: test.port}); err != nil {
			t.Error(err)
		}
		if want := "\r\n\r\n\x00\r\nQUIT\n" + test.want; string(proxy.b) != want {
			t.Errorf("%s to %s: %q, want %q", test.from, test.to, proxy.b, want)
		}
	}
}

// Only servers of a family that the source has an address of are tried, and sockets of this host. Without one of them the mail
// waits, and the reason says what is missing.
func TestSourceFamilies(t *testing.T) {
	t.Parallel()
	list := func(texts ...string) (list []target) {
		for _, text := range texts {
			if strings.HasPrefix(text, "/") {
				list = append(list, target{path: text})
			} else {
				list = append(list, target{ip: netip.MustParseAddr(text)})
			}
		}
		return list
	}
	for _, test := range []struct {
		spec string
		list []target
		want string
	}{
		{"address=192.0.2.7", list("2001:db8::1", "192.0.2.1", "/socket", "2001:db8::2"), "192.0.2.1 /socket "},
		{"address6=2001:db8::7", list("2001:db8::1", "192.0.2.1"), "2001:db8::1 "},
		{"address=192.0.2.7, address6=2001:db8::7", list("2001:db8::1", "192.0.2.1"), "2001:db8::1 192.0.2.1 "},
		{"address=192.0.2.7", list("2001:db8::1"), "4.3.5 x.test has IPv6 addresses only, and egress source m1 has none"},
		{"address6=2001:db8::7", list("192.0.2.1"), "4.3.5 x.test has IPv4 addresses only, and egress source m1 has none"},
		{"", list("2001:db8::1", "192.0.2.1"), "2001:db8::1 192.0.2.1 "},
	} {
		d := &delivery{hop: &nexthop{host: "x.test"}}
		if test.spec != "" {
			r := agent.NewTestRequest(envelope(10), "x.test", []byte("A: b\r\n\r\n"), nil)
			r.Source, r.SourceSpec = "m1", test.spec
			var err error
			if d.source, err = new(usedSources).of(r); err != nil {
				t.Fatal(test.spec, err)
			}
		}
		left, f := d.reachable(test.list)
		got := ""
		for i := range left {
			got += left[i].address() + " "
		}
		if f != nil {
			got += f.Error()
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.spec, got, test.want)
		}
	}
}

// What cannot be a certificate is not waited for, and is not kept.
func TestSourceCertificateUnread(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.pem")
	if err := os.WriteFile(garbage, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := new(sourceCerts)
	for _, test := range []struct{ cert, key, want string }{
		{dir, "", dir + ": no regular file"},
		{garbage, dir, dir + ": no regular file"},
		{garbage, filepath.Join(dir, "none"), "no such file"},
		{garbage, "", garbage},
		{garbage, "", garbage},
	} {
		cert, err := c.of(&usedSource{Source: egress.Source{CertFile: test.cert, KeyFile: test.key}})
		if cert != nil || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s, %s: %v, %v", test.cert, test.key, cert, err)
		}
	}
	if len(c.known) > 0 {
		t.Errorf("%d are kept", len(c.known))
	}
}

// TestProxyRefusesHeader: a proxy that does not take the header that goes before all else is no server, and the
// connection to it is closed.
func TestProxyRefusesHeader(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	_ = ours.SetDeadline(time.Now().Add(-time.Second))
	conn := &closes{Conn: deaf{ours}}
	defer theirs.Close()
	log := new(lines)
	a, done := keptAgent(t, "", log)
	defer done()
	a.dial = func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	o := sendFrom(a, "[127.0.0.1]:1025", "m1", "address=127.0.0.7, helo=m1.test, proxy=haproxy:127.0.0.9:1", false)
	if o.Status.String() != "4.3.0" || !conn.closed {
		t.Errorf("%s %s, closed: %v", o.Status, o.Reason, conn.closed)
	}
}

// closes notes that a connection was closed.
type closes struct {
	net.Conn
	closed bool
}

func (c *closes) Close() error {
	c.closed = true
	return c.Conn.Close()
}

// deaf takes nothing.
type deaf struct{ net.Conn }

func (deaf) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A SOCKS5 proxy (RFC 1928) is asked for the server's address.
func TestSourceSOCKS5(t *testing.T) {
	t.Parallel()
	c := newCallee(t, nil)
	at := startProxy(t, func(p net.Conn) {
		var b [10]byte
		// Version 5, one method, none of authentication.
		if _, err := io.ReadFull(p, b[:3]); err != nil || b[0] != 5 || b[1] != 1 || b[2] != 0 {
			t.Errorf("% x, %v", b[:3], err)
			return
		}
		_, _ = p.Write([]byte{5, 0})
		// CONNECT to an IPv4 address.
		if _, err := io.ReadFull(p, b[:]); err != nil || !bytes.Equal(b[:4], []byte{5, 1, 0, 1}) {
			t.Errorf("% x, %v", b, err)
			return
		}
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 8)}}
		up, err := d.Dial("tcp", net.JoinHostPort(net.IP(b[4:8]).String(), fmt.Sprint(binary.BigEndian.Uint16(b[8:]))))
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = p.Write([]byte{5, 0, 0, 1, 127, 0, 0, 8, 0, 1})
		relay(p, up)
	})
	log := new(lines)
	a, done := keptAgent(t, "", log)
	defer done()
	if o := sendFrom(a, c.nexthop(), "m1", "proxy=socks5:"+at, false); o.Status.String() != "2.0.0" {
		t.Fatalf("%s %s", o.Status, o.Reason)
	}
	if is := c.next(t); is.from != "127.0.0.8" {
		t.Errorf("%+v", is)
	}
}

// String is what has been logged so far.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
