package hostile

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// WebHost is the name that the certificate of Web's servers is for.
const WebHost = "mta-sts.a.test"

// A WebClient makes one HTTPS request of WebHost, over what dial connects to and trusting
// roots.
type WebClient struct {
	Fetch func(t *testing.T, dial func(context.Context, string, string) (net.Conn, error), roots *x509.CertPool) error
	// Reads says that the client wants the body, too. Else a reply is good when its header is.
	Reads bool
	Most  int64         // octets of the reply that it takes
	Time  time.Duration // for which it waits
	Says  string        // what its errors say: the name of the host, in some form
}

// goodbye is how long crypto/tls tries to say that it closes a connection.
const goodbye = 5 * time.Second

// ok begins a good reply.
const ok = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"

// webCases are replies: w ends with an error when the client has gone.
var webCases = []struct {
	name string
	good bool // as far as its header goes
	say  func(w io.Writer)
}{
	{"a body without end", true, func(w io.Writer) { always(w, ok+"\r\n", "x: y\n", 0) }},
	{"a body drop by drop", true, func(w io.Writer) { always(w, ok+"\r\n", "x", time.Second) }},
	{"a huge length", true, func(w io.Writer) { always(w, ok+"Content-Length: 1000000000000\r\n\r\n", "x: y\n", 0) }},
	{"a length that nothing comes of", true, func(w io.Writer) { always(w, ok+"Content-Length: 100\r\n\r\n", "", 0) }},
	{"a body that is cut off", true, func(w io.Writer) { io.WriteString(w, ok+"Content-Length: 100\r\n\r\nversion: STSv1\n") }},
	{"a chunk's length without end", true, func(w io.Writer) { always(w, ok+"Transfer-Encoding: chunked\r\n\r\n", "1", 0) }},
	{"chunks of one octet with long extensions", true, func(w io.Writer) {
		always(w, ok+"Transfer-Encoding: chunked\r\n\r\n", "1;"+strings.Repeat("x", 2000)+"\r\ny\r\n", 0)
	}},
	{"a trailer without end", true, func(w io.Writer) { always(w, ok+"Transfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n", 0) }},
	{"compressed text without end", true, func(w io.Writer) {
		io.WriteString(w, ok+"Content-Encoding: gzip\r\n\r\n")
		always(gzip.NewWriter(w), "", strings.Repeat("x: y\n", 100000), 0)
	}},
	{"compressed nothing without end", true, func(w io.Writer) {
		always(w, ok+"Content-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", "\x00\x00\x00\xff\xff", 0)
	}},
	{"a header line without end", false, func(w io.Writer) { always(w, "HTTP/1.1 200 OK\r\nX: ", "x", 0) }},
	{"a header without end", false, func(w io.Writer) { always(w, "HTTP/1.1 200 OK\r\n", "X: y\r\n", 0) }},
	{"a header drop by drop", false, func(w io.Writer) { always(w, "HTTP/1.1 200 OK\r\nX: ", "x", time.Second) }},
	{"a status line without end", false, func(w io.Writer) { always(w, "HTTP/1.1 200 ", "x", 0) }},
	{"early hints without end", false, func(w io.Writer) { always(w, "", "HTTP/1.1 103 Early Hints\r\n\r\n", 0) }},
	{"a redirection to itself", false, func(w io.Writer) {
		io.WriteString(w, "HTTP/1.1 302 Found\r\nLocation: https://"+WebHost+"/\r\nContent-Length: 0\r\n\r\n")
	}},
	{"another protocol", false, func(w io.Writer) { always(w, "", "220 smtp.test ESMTP\r\n", 0) }},
	{"nothing", false, func(w io.Writer) { always(w, "", "", 0) }},
	{"the end", false, func(io.Writer) {}},
}

// always writes begin, and then what follows again and again, with a pause before each. Nothing is
// one long pause.
func always(w io.Writer, begin, again string, pause time.Duration) {
	if again == "" {
		_, _ = io.WriteString(w, begin)
		time.Sleep(time.Hour)
		return
	}
	again = strings.Repeat(again, max(1, 4096/max(1, len(again))))
	if pause > 0 {
		again = again[:1]
	}
	_, err := io.WriteString(w, begin)
	for err == nil {
		time.Sleep(pause)
		_, err = io.WriteString(w, again)
	}
}

// Web tests a client of HTTPS servers, in virtual time.
func Web(t *testing.T, c WebClient) {
	for _, tt := range webCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { c.run(t, tt.good && !c.Reads, tt.say) })
		})
	}
	t.Run("no handshake", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { c.run(t, false, nil) })
	})
}

// run makes one request, which say answers; nil: the TLS handshake has no answer.
func (c WebClient) run(t *testing.T, good bool, say func(io.Writer)) {
	cert, roots := webCertificate(t)
	ours, theirs := net.Pipe()
	n := &counting{Conn: theirs, most: c.Most}
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer theirs.Close()
		if say == nil {
			io.Copy(io.Discard, theirs)
			return
		}
		s := tls.Server(n, &tls.Config{Certificates: []tls.Certificate{cert}})
		r, err := http.ReadRequest(bufio.NewReader(s))
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
		}
		if err == nil {
			n.written.Store(0)
			say(s)
		}
	}()
	start, dialled := time.Now(), 0
	dial := func(context.Context, string, string) (net.Conn, error) {
		if dialled++; dialled > 1 {
			return nil, io.ErrUnexpectedEOF // it has come again
		}
		return ours, nil
	}
	err := c.Fetch(t, dial, roots)
	if took := time.Since(start); took > c.Time+goodbye {
		t.Errorf("it took %v", took)
	}
	ours.Close()
	<-served
	if n.written.Load() > c.Most {
		t.Errorf("the client has taken %d octets", n.written.Load())
	}
	if dialled != 1 {
		t.Errorf("%d connections were made", dialled)
	}
	switch {
	case good && err != nil:
		t.Error(err)
	case !good && (err == nil || !strings.Contains(err.Error(), c.Says)):
		t.Errorf("error %v", err)
	}
}

// counting counts what the peer has taken. There is an end to it: time stands still as long as
// something goes over.
type counting struct {
	net.Conn
	most    int64
	written atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	if c.written.Load() > c.most {
		return 0, io.ErrShortWrite
	}
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}

// webCertificate is one for WebHost.
func webCertificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{WebHost}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}
