package webserver

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// Conns has an [http.Server] serve connections that a service accepts by Env.ServeConns, so that they
// count against the process limit of master.cf, and a service that nobody calls ends. Handle may be called
// concurrently.
type Conns struct {
	server *http.Server
	secure *tls.Config // nil: clear text
	in     *handed
	served chan error // what Serve has returned
}

// Bounds of a request to a public web service.
const (
	// publicTime bounds each of: reading a request, answering it, waiting for the next one.
	publicTime = 15 * time.Second
	// publicHeader bounds a request's line and header, in octets; net/http adds 4096.
	publicHeader = 8 << 10
	// publicClose is how long answers under way may hold up the end of a service.
	publicClose = 2 * time.Second
)

// NewConns serves whoever is on the network: a request has 15 seconds and so has its answer, and its
// header has at most 12 KB. What clients do wrong is not logged. secure is nil for clear text. Call Close.
func NewConns(handler http.Handler, secure *tls.Config) *Conns {
	c := &Conns{in: &handed{conns: make(chan net.Conn), closed: make(chan struct{})}, secure: secure, served: make(chan error, 1)}
	c.server = &http.Server{Handler: handler, ReadHeaderTimeout: publicTime, ReadTimeout: publicTime, WriteTimeout: publicTime, IdleTimeout: publicTime,
		MaxHeaderBytes: publicHeader, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { c.served <- c.server.Serve(c.in) }()
	return c
}

// Handle serves a connection, and returns when it has been closed. When ctx ends, the answers that
// are under way are finished, and all connections closed.
func (c *Conns) Handle(ctx context.Context, conn net.Conn) {
	t := &tracked{Conn: conn, gone: make(chan struct{})}
	var served net.Conn = t
	if c.secure != nil {
		served = tls.Server(t, c.secure)
	}
	select {
	case c.in.conns <- served:
	case <-c.in.closed:
		conn.Close()
		return
	}
	select {
	case <-t.gone:
	case <-ctx.Done():
		c.shut()
		<-t.gone
	}
}

// Close ends the server: idle connections at once, others when their answer is complete, or after two
// seconds. The error is that of the server.
func (c *Conns) Close() error {
	c.shut()
	if err := <-c.served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (c *Conns) shut() {
	closing, cancel := context.WithTimeout(context.Background(), publicClose)
	defer cancel()
	if c.server.Shutdown(closing) != nil {
		c.server.Close()
	}
}

// handed is the listener of the server: it has what is handed to it.
type handed struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *handed) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h *handed) Addr() net.Addr { return new(net.TCPAddr) }

// tracked is a connection that says when it has been closed.
type tracked struct {
	net.Conn
	once sync.Once
	gone chan struct{}
}

func (t *tracked) Close() error {
	t.once.Do(func() { close(t.gone) })
	return t.Conn.Close()
}
