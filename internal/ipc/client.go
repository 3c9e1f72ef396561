package ipc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// A Client speaks to one service by the path of its socket. It dials when
// there is something to say, again when the connection is lost or the peer
// has gone away, and keeps one connection. All methods may be called
// concurrently.
type Client struct {
	at      Address
	handler Handler
	onDial  func(*Conn)

	mu      sync.Mutex
	conn    *Conn
	dialing chan struct{} // closed when the dial under way ends
	closed  bool
	old     sync.WaitGroup // connections that end by themselves
}

// NewClient makes a client of the service that is reached at that address. handler
// serves what the service asks of us, and may be nil.
func NewClient(at Address, handler Handler) *Client { return &Client{at: at, handler: handler} }

// OnDial has f called with each new connection before anything is read from it, and before any
// request goes over it. It is for sessions that begin by saying something, which f must not wait
// for, and must be set before first use.
func (cl *Client) OnDial(f func(*Conn)) { cl.onDial = f }

// Path names the service's address, for people.
func (cl *Client) Path() string { return cl.at.String() }

// Conn returns the present connection, dialling when there is none that takes
// requests. While the service cannot be reached it tries again until ctx
// ends: a service that restarts is away for a moment. The error then says
// which socket and why.
func (cl *Client) Conn(ctx context.Context) (*Conn, error) {
	delay := 5 * time.Millisecond
	for {
		c, err := cl.connOnce(ctx)
		if err == nil || errors.Is(err, net.ErrClosed) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to service %s: %w", cl.at, err)
		case <-time.After(delay):
			delay = min(2*delay, time.Second)
		}
	}
}

func (cl *Client) connOnce(ctx context.Context) (*Conn, error) {
	cl.mu.Lock()
	for cl.dialing != nil {
		ch := cl.dialing
		cl.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		cl.mu.Lock()
	}
	if cl.closed {
		cl.mu.Unlock()
		return nil, net.ErrClosed
	}
	if cl.conn != nil && !cl.conn.Away() {
		c := cl.conn
		cl.mu.Unlock()
		return c, nil
	}
	cl.retire()
	ch := make(chan struct{})
	cl.dialing = ch
	cl.mu.Unlock()

	nc, err := cl.at.Dial(ctx)
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.dialing = nil
	close(ch)
	if err != nil {
		return nil, err
	}
	if cl.closed {
		nc.Close()
		return nil, net.ErrClosed
	}
	c := newClientConn(nc, cl.handler)
	if cl.onDial != nil {
		cl.onDial(c)
	}
	c.start()
	cl.conn = c
	return c, nil
}

// retire lets go of a connection that takes no more requests; it closes
// itself when the last reply has come. Called with mu held.
func (cl *Client) retire() {
	c := cl.conn
	cl.conn = nil
	if c == nil {
		return
	}
	cl.old.Add(1)
	go func() {
		defer cl.old.Done()
		c.Wait()
	}()
}

// Call sends req and waits for the reply. Requests that were not sent are
// sent again over a new connection; ErrLost is the caller's to judge.
func (cl *Client) Call(ctx context.Context, req, reply Message) error {
	for {
		c, err := cl.Conn(ctx)
		if err != nil {
			return err
		}
		err = c.Call(ctx, req, reply)
		if !errors.Is(err, ErrUnsent) {
			return cl.named(err)
		}
	}
}

// named adds whose fault it is that a connection was lost, where that is known.
func (cl *Client) named(err error) error {
	if err != ErrLost && errors.Is(err, ErrLost) {
		return fmt.Errorf("service %s: %w", cl.at, err)
	}
	return err
}

// CallWithin is Call with a limit on the time, as Conn has it.
func (cl *Client) CallWithin(ctx context.Context, limit time.Duration, req, reply Message) error {
	if limit <= 0 {
		return cl.Call(ctx, req, reply)
	}
	end := time.Now().Add(limit)
	if c := cl.present(); c != nil {
		if err := c.CallWithin(ctx, limit, req, reply); !errors.Is(err, ErrUnsent) {
			return cl.named(err)
		}
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	return cl.Call(ctx, req, reply)
}

// present is the connection that there is, or nil.
func (cl *Client) present() *Conn {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.conn
}

// CallAgain is Call for requests that may be carried out twice without harm:
// it asks again when the connection was lost, until ctx ends.
func (cl *Client) CallAgain(ctx context.Context, req, reply Message) error {
	for {
		err := cl.Call(ctx, req, reply)
		if !errors.Is(err, ErrLost) || ctx.Err() != nil {
			return err
		}
	}
}

// Close closes the connection and waits for everything to end. Calls under
// way get ErrLost.
func (cl *Client) Close() {
	cl.mu.Lock()
	cl.closed = true
	c := cl.conn
	cl.conn = nil
	cl.mu.Unlock()
	if c != nil {
		c.Close()
		c.Wait()
	}
	cl.old.Wait()
}
