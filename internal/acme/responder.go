package acme

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

const (
	// clientTime bounds a connection to the service's port.
	clientTime = 10 * time.Second
	// maxRequest bounds what is read of a request, in octets.
	maxRequest = 8 << 10
	// wellKnown is where the answers are (RFC 8555 section 8.3).
	wellKnown = "/.well-known/acme-challenge/"
)

// A responder answers the challenges that come to a port. It may be used concurrently.
type responder struct {
	mu    sync.Mutex
	texts map[string]string           // by token
	certs map[string]*tls.Certificate // by name, in lower case
}

func newResponder() *responder {
	return &responder{texts: make(map[string]string), certs: make(map[string]*tls.Certificate)}
}

// settle has nothing to wait for: what present has prepared is served.
func (r *responder) settle(context.Context, []acme.Challenge) error { return nil }

// present has a challenge answered from now on.
func (r *responder) present(_ context.Context, c acme.Challenge) (func(context.Context), error) {
	name := strings.ToLower(c.Identifier.Value)
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Type == http01 {
		r.texts[c.Token] = c.KeyAuthorization
	} else {
		cert, err := acmez.TLSALPN01ChallengeCert(c)
		if err != nil {
			return nil, err
		}
		r.certs[name] = cert
	}
	return func(context.Context) {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.texts, c.Token)
		delete(r.certs, name)
	}, nil
}

// http answers one request of http-01, and closes. What is not a request, as a wake-up by master,
// is not answered.
func (r *responder) http(_ context.Context, conn net.Conn) {
	conn.SetDeadline(time.Now().Add(clientTime))
	req, err := http.ReadRequest(bufio.NewReader(io.LimitReader(conn, maxRequest)))
	if err != nil {
		return
	}
	status, text := http.StatusNotFound, "this server has nothing but the answers to challenges of ACME\n"
	if token, ok := strings.CutPrefix(req.URL.Path, wellKnown); ok {
		r.mu.Lock()
		answer, known := r.texts[token]
		r.mu.Unlock()
		if known && req.Method == http.MethodGet {
			status, text = http.StatusOK, answer
		}
	}
	fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, http.StatusText(status), len(text), text)
}

// alpn answers one handshake of tls-alpn-01 (RFC 8737), and closes. Others fail.
func (r *responder) alpn(ctx context.Context, conn net.Conn) {
	conn.SetDeadline(time.Now().Add(clientTime))
	server := tls.Server(conn, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{acmez.ACMETLS1Protocol},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if cert, ok := r.certs[strings.ToLower(hello.ServerName)]; ok {
				return cert, nil
			}
			return nil, fmt.Errorf("no challenge for %q", hello.ServerName)
		}})
	if server.HandshakeContext(ctx) == nil {
		server.Close()
	}
}
