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

// Bounds of a request to a service that everybody may call.
const (
	// publicTime bounds each of: reading a request, answering it, waiting for the next one.
	publicTime = 15 * time.Second
	// publicHeader bounds a request's line and header, in octets; net/http adds 4096.
	publicHeader = 8 << 10
)

// Public is a server for whoever is on the network: a request has 15 seconds and so has its answer, and
// its header has at most 12 KB. What clients do wrong is not logged.
func Public(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ReadHeaderTimeout: publicTime, ReadTimeout: publicTime, WriteTimeout: publicTime, IdleTimeout: publicTime,
		MaxHeaderBytes: publicHeader, ErrorLog: log.New(io.Discard, "", 0)}
}

// Serve has web serve l until ctx ends. Idle connections end with it, and others when their answer is
// complete, or after grace. It returns when all have ended. The error is that of l.
func Serve(ctx context.Context, web *http.Server, l net.Listener, grace time.Duration) error {
	closed := make(chan struct{})
	stopped := context.AfterFunc(ctx, func() {
		defer close(closed)
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if web.Shutdown(closing) != nil {
			web.Close()
		}
	})
	err := web.Serve(l)
	if !stopped() {
		<-closed
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// ServeConns is Serve for the connections that accept passes to its second argument, as Env.ServeConns of a
// service does: so they count against the process limit of master.cf, and a service that nobody calls ends.
// secure is nil for clear text. The error is accept's.
func ServeConns(ctx context.Context, web *http.Server, secure *tls.Config, grace time.Duration, accept func(context.Context, func(context.Context, net.Conn)) error) error {
	in := &handed{conns: make(chan net.Conn), closed: make(chan struct{})}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- Serve(serving, web, in, grace) }()
	err := accept(ctx, func(_ context.Context, conn net.Conn) {
		t := &tracked{Conn: conn, gone: make(chan struct{})}
		given := net.Conn(t)
		if secure != nil {
			given = tls.Server(t, secure)
		}
		select {
		case in.conns <- given:
			<-t.gone
		case <-in.closed:
			conn.Close()
		}
	})
	stop()
	return errors.Join(err, <-served)
}

// handed is a listener that has what is handed to it.
type handed struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{} // by Close
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

// Addr is nobody's: who accepts the connections knows it.
func (h *handed) Addr() net.Addr { return new(net.TCPAddr) }

// tracked is a connection that says when it has been closed.
type tracked struct {
	net.Conn
	once sync.Once
	gone chan struct{}
}

func (t *tracked) Close() error {
	err := t.Conn.Close()
	t.once.Do(func() { close(t.gone) })
	return err
}
