package posttlsfinger

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/testcert"
	"posthaste/internal/testpeers"
	"posthaste/internal/testwait"
)

// A peer is an SMTP server with TLS that takes one session after another.
type peer struct {
	port string
	cert string // its file
	leaf *x509.Certificate
	conf *tls.Config
}

// newPeer starts a server. Its greeting is the first line that it says; plain has it offer no TLS.
func newPeer(t *testing.T, greeting string, plain bool) *peer {
	t.Helper()
	pair := testcert.Make(t, x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"mx.test"}, IsCA: true, BasicConstraintsValid: true,
		Subject: pkix.Name{CommonName: "mx.test", Organization: []string{"Test"}, Country: []string{"DE"}}}, nil)
	p := &peer{leaf: pair.Cert, cert: filepath.Join(t.TempDir(), "cert.pem"), conf: &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}, Certificates: []tls.Certificate{pair.TLS()}}}
	if err := os.WriteFile(p.cert, pair.CertPEM(), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, p.port, _ = net.SplitHostPort(l.Addr().String())
	var sessions sync.WaitGroup
	sessions.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			sessions.Go(func() { p.serve(conn, greeting, plain) })
		}
	})
	t.Cleanup(func() { l.Close(); sessions.Wait() })
	return p
}

func (p *peer) serve(conn net.Conn, greeting string, plain bool) {
	defer func() { conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(testwait.Patience))
	br := bufio.NewReader(conn)
	fmt.Fprintf(conn, "%s\r\n", greeting)
	starttls := "250-STARTTLS\r\n"
	if plain {
		starttls = ""
	}
	for {
		line, err := br.ReadString('\n')
		switch {
		case err != nil:
			return
		case strings.HasPrefix(line, "EHLO "), strings.HasPrefix(line, "LHLO "):
			fmt.Fprintf(conn, "250-mx.test\r\n%s250 8BITMIME\r\n", starttls)
		case line == "STARTTLS\r\n":
			fmt.Fprint(conn, "220 2.0.0 go ahead\r\n")
			over := tls.Server(conn, p.conf)
			conn, br, starttls = over, bufio.NewReader(over), ""
		case line == "QUIT\r\n":
			fmt.Fprint(conn, "221 2.0.0 bye\r\n")
			return
		default:
			fmt.Fprint(conn, "502 5.5.1 no\r\n")
		}
	}
}

// system is a configuration directory, as the environment says it.
func system(t *testing.T, more string) string {
	t.Helper()
	dir := t.TempDir()
	text := "compatibility_level = 3.6\nmyhostname = me.test\nsmtp_tls_fingerprint_digest = sha256\nqueue_directory = " + dir + "\n" + more
	for name, text := range map[string]string{"main.cf": text, "master.cf": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if status := Run(args, &out, &errs); status != 0 {
		t.Fatalf("%q: status %d: %s", args, status, errs.String())
	}
	return out.String()
}

// What is printed is what the original prints.
func TestAsOriginal(t *testing.T) {
	original := testpeers.Postfix(t, "posttls-finger")
	dir := system(t, "")
	t.Setenv("MAIL_CONFIG", dir)
	p, plain, busy := newPeer(t, "220 mx.test ESMTP", false), newPeer(t, "220 mx.test ESMTP", true), newPeer(t, "220-mx.test\r\n220 here", false)
	at := func(p *peer) string { return "[127.0.0.1]:" + p.port }
	for _, args := range []string{
		"-l secure " + at(p), "-l may " + at(p), "-c -l none " + at(p), "-l none " + at(p),
		"-c -l verify -F " + p.cert + " " + at(p) + " mx.test", "-c -l verify -F " + p.cert + " " + at(p) + " other.test",
		"-c -l secure -F " + p.cert + " " + at(p) + " .test mx.test", "-cC -L none " + at(p), "-c -L summary,peercert " + at(p),
		"-c -L 0 " + at(p), "-c -L 1 " + at(p), "-c -d sha1 " + at(p), "-l dane " + at(p), "-c -p TLSv1.2 " + at(p), "-c -p !TLSv1.3 -g high " + at(p),
		"-c -l may -L summary,untrusted " + at(p), "-S inet:" + at(p), "-l encrypt " + at(busy), "-l none " + at(plain),
		"-T 5 -t 5 -a ipv4 " + at(p), "[127.0.0.1]:1", "-o myhostname=other.test -l may " + at(p),
	} {
		cmd := exec.Command(original, strings.Fields(args)...)
		want, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		if got := printed(t, strings.Fields(args)...); got != string(want) {
			t.Errorf("%s: got\n%s\nthe original says\n%s", args, got, want)
		}
	}
}

func TestMatches(t *testing.T) {
	t.Setenv("MAIL_CONFIG", system(t, ""))
	p := newPeer(t, "220 mx.test", false)
	dest := "[127.0.0.1]:" + p.port
	plain := newPeer(t, "220 mx.test", true)
	sum := sha256.Sum256(p.leaf.Raw)
	good := colons(sum[:])
	for _, c := range []struct {
		args string
		want string
	}{
		{"-c -l fingerprint " + dest + " 00:11 " + good, "Verified TLS connection"},
		{"-c -l fingerprint " + dest + " 00:11", "Untrusted TLS connection"},
		{"-c -l secure -A " + p.cert + " " + dest + " .test", "matched peername: mx.test"},
		{"-c -l may [127.0.0.1]:" + plain.port, "did not offer STARTTLS"}, // where the original says nothing
		{"-c -w " + dest, "SSL_connect error to 127.0.0.1"},
		{"-c -l secure " + dest, "certificate verification failed"},
		{"-c -v -l may " + dest, "Untrusted TLS connection"},
		{"-c -r 1 -m 2 " + dest, "Found a previously used server.  Done reconnecting."},
		{"-c unknown.invalid:1", "Failed to establish session to unknown.invalid:1: "},
	} {
		if got := printed(t, strings.Fields(c.args)...); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q is not in\n%s", c.args, c.want, got)
		}
	}
}

// With DNSSEC the TLSA records decide, by the MX host's name; a bad one is no secret.
func TestDANE(t *testing.T) {
	p := newPeer(t, "220 mx.test", false)
	sum := sha256.Sum256(p.leaf.RawSubjectPublicKeyInfo)
	for _, c := range []struct{ digest, secure, want, words string }{
		{fmt.Sprintf("%x", sum), "!secure test.\n", "matched DANE TLSA record", "Verified TLS"},
		{strings.Repeat("00", 32), "!secure test.\n", "certificate verification failed", "Untrusted TLS"},
		{fmt.Sprintf("%x", sum), "", "certificate verification failed", "Untrusted TLS"},
	} {
		zone := fakezone.Must("dom.test. 60 IN MX 10 mx.test.\nmx.test. 60 IN A 127.0.0.1\n" +
			"_" + p.port + "._tcp.mx.test. 60 IN TLSA 3 1 1 " + c.digest + "\n" + c.secure)
		t.Setenv("MAIL_CONFIG", system(t, "resolver_address = "+startDNS(t, zone)+"\nresolver_trust_ad = yes\n"))
		got := printed(t, "-c", "dom.test:"+p.port)
		if !strings.Contains(got, c.want) || !strings.Contains(got, c.words) || (c.secure != "") != strings.Contains(got, "using DANE RR: _"+p.port+"._tcp.mx.test IN TLSA 3 1 1 ") {
			t.Errorf("%q: \n%s", c, got)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Setenv("MAIL_CONFIG", system(t, ""))
	for _, c := range []struct{ args, says string }{
		{"", "usage: posttls-finger "}, {"-x", "usage: "}, {"-l foo x", `invalid TLS level "foo"`}, {"-l half-dane x", "invalid TLS level"},
		{"-a ipv5 x", "-a ipv5: "}, {"-t 0 x", "-t 0: "}, {"-L ssl-debug x", "-L ssl-debug: "}, {"-d sha3 x", "sha3"}, {"-g great x", "great"},
		{"-p SSLv9 x", "SSLv9"}, {"-X x", "tlsproxy"}, {"-H a -k b x", "-H: not together"}, {"-k /nonexistent x", "no such file"},
		{"-F /nonexistent x", "no such file"}, {"unix:/x", "a socket needs -S"}, {"[x]y", "expected host"}, {"x:nonsense", "unknown service: nonsense/tcp"},
		{"-M secure x", "-M secure: "}, {"-o x", "x"}, {"-h files x", "-h files: "},
	} {
		var out, errs bytes.Buffer
		if status := Run(strings.Fields(c.args), &out, &errs); status != 1 || !strings.Contains(errs.String(), c.says) || out.Len() > 0 {
			t.Errorf("%s: status %d, %q, %q", c.args, status, errs.String(), out.String())
		}
	}
}

// A server that says too much, or nonsense, is left.
func TestHostileServer(t *testing.T) {
	t.Setenv("MAIL_CONFIG", system(t, ""))
	for greeting, want := range map[string]string{
		strings.Repeat("x", 9000):               "a line of more than 4096 octets",
		strings.Repeat("220-x\r\n", 500) + "22": "more than 200 lines",
		"hello":                                 "does not say a reply code",
		"220 \x1b[2Jmx":                         "< 220 ?[2Jmx",
		"554 go away":                           "greets with: 554 go away",
	} {
		p := newPeer(t, greeting, false)
		if got := printed(t, "-l", "none", "[127.0.0.1]:"+p.port); !strings.Contains(got, want) {
			t.Errorf("%.40q: %q is not in\n%.300s", greeting, want, got)
		}
	}
}

// startDNS serves a zone and returns the address of the server.
func startDNS(t *testing.T, zone *fakezone.Zone) string {
	t.Helper()
	server, err := zone.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server.Addr
}
