package lockstep

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// ErrClosed is returned for what is asked of a Pool that was closed.
var ErrClosed = errors.New("the table or connection is closed")

// maxIdle is how many connections that are not used a Pool keeps.
const maxIdle = 4

// A Pool keeps connections to one server. A connection serves one question at a
// time; an idle one is used again. Its methods may be called concurrently, and it is
// not copied after it is used.
type Pool struct {
	Network, Addr string // as for net.Dial

	// Dial opens connections; nil means net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu     sync.Mutex
	idle   []*Conn
	closed bool
}

// A DialError says that the server took no connection: the question was not sent.
type DialError struct{ error }

// Unwrap is why.
func (e *DialError) Unwrap() error { return e.error }

// take returns an idle connection, or a new one. old says which it is. An idle one on
// which something has come, or which has ended, is not used again.
func (p *Pool) take(ctx context.Context) (c *Conn, old bool, err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, false, ErrClosed
	}
	for n := len(p.idle); n > 0; n-- {
		c = p.idle[n-1]
		p.idle = p.idle[:n-1]
		if c.Before() == nil {
			p.mu.Unlock()
			return c, true, nil
		}
		_ = c.Close() // nothing is lost with it
	}
	p.mu.Unlock()
	dial := p.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(ctx, p.Network, p.Addr)
	if err != nil {
		return nil, false, &DialError{err}
	}
	return New(conn), false, nil
}

// give keeps a connection for later, or closes it.
func (p *Pool) give(c *Conn) {
	p.mu.Lock()
	if !p.closed && len(p.idle) < maxIdle {
		p.idle = append(p.idle, c)
		c = nil
	}
	p.mu.Unlock()
	if c != nil {
		_ = c.Close() // nothing was in flight on it
	}
}

// Ask sends a request and has read take the reply, of which it has to bound the
// length. A kept connection that turns out to be dead is replaced once, so that a server's
// restart does not show: a request may reach the server twice. The end of ctx ends it.
func (p *Pool) Ask(ctx context.Context, request []byte, read func(*bufio.Reader) error) error {
	for {
		c, old, err := p.take(ctx)
		if err != nil {
			return err
		}
		keep, err := exchange(ctx, c, request, read)
		if err == nil && keep {
			p.give(c)
			return nil
		}
		_ = c.Close() // err says more
		if err == nil {
			return nil
		}
		if !old || ctx.Err() != nil {
			return err
		}
	}
}

// exchange sends a request and has read take the reply. keep says that the connection is
// good for another.
func exchange(ctx context.Context, c *Conn, request []byte, read func(*bufio.Reader) error) (keep bool, err error) {
	if err := c.Before(); err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() {
		_ = c.SetDeadline(time.Unix(1, 0)) // wakes the read or write that is waiting
	})
	_, err = c.Write(request)
	if err == nil {
		err = read(c.Reader())
	}
	if err == nil {
		keep, err = c.After()
	}
	if !stop() && err == nil {
		// The deadline has been put into the past: the connection is of no more
		// use.
		return false, context.Cause(ctx)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return keep, err
}

// Close closes the connections that are idle; those in use are closed when they
// become so.
func (p *Pool) Close() error {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	var errs []error
	for _, c := range idle {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
