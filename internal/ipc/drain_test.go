package ipc

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/testwait"
)

// What is open at a peer that goes away is brought to its end there; what is
// new goes elsewhere. The peer that goes last is told when it alone is left.
func TestDrain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var last *Conn
	s := &Server{Handler: func(c *Conn, r *Request) {
		if r.Kind == kindPush {
			mu.Lock()
			last = c
			mu.Unlock()
		}
		r.Reply(&text{kindEcho, ""})
	}, Last: func(c *Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		return c == last
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(ctx, l, time.Hour)
	}()
	long, end := NewClient(Unix(path), nil), NewClient(Unix(path), nil)
	defer long.Close()
	defer end.Close()
	if _, err := ask(t, end, &text{kindPush, ""}); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, long, &text{kindEcho, ""}); err != nil {
		t.Fatal(err)
	}
	conn, err := long.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	endConn, err := end.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	over := conn.Keep()
	cancel()
	testwait.Until(t, "the server says that it goes", conn.Away)
	request := func(do func(Message, func([]byte, error))) error {
		said := make(chan error, 1)
		do(&text{kindEcho, ""}, func(_ []byte, err error) { said <- err })
		return <-said
	}
	if err := request(conn.Go); !errors.Is(err, ErrUnsent) {
		t.Errorf("a new request: %v", err)
	}
	for range 3 {
		if err := request(conn.Continue); err != nil {
			t.Errorf("a request of what is open: %v", err)
		}
	}
	if err := request(endConn.Go); err != nil || endConn.Away() {
		t.Errorf("who is to go last: %v", err)
	}
	over()
	over()
	<-conn.Done()
	<-endConn.Done()
	<-done
}

// A peer that asks for more than is answered is disconnected.
func TestTooMuchOpen(t *testing.T) {
	t.Parallel()
	path, _ := server(t, func(*Conn, *Request) {})
	c := NewClient(Unix(path), nil)
	defer c.Close()
	conn, err := c.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		if n > 2*maxOpen {
			t.Fatalf("%d requests are open", n)
		}
		conn.Go(&text{kindHang, ""}, func([]byte, error) {})
		if conn.Away() {
			break
		}
	}
	<-conn.Done()
}

// Who may not wait does not, and who waits for a peer to read does so no longer
// than his context says.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	c := NewConn(ours, nil)
	defer c.Wait()
	defer c.Close()
	body := string(make([]byte, softQueued+1))
	for range 2 { // one is being written, one is in the queue
		c.GoNow(&text{kindHang, body}, func([]byte, error) {})
	}
	ctx, cancel := context.WithCancel(t.Context())
	said := make(chan error, 1)
	go func() { said <- c.Call(ctx, &text{kindHang, body}, nil) }()
	cancel()
	if err := <-said; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	var lost atomic.Bool
	body = string(make([]byte, MaxPayload))
	for range 3 {
		c.GoNow(&text{kindHang, body}, func(_ []byte, err error) { lost.Store(true) })
	}
	<-c.Done()
	if !lost.Load() {
		t.Error("a peer that reads nothing is not disconnected")
	}
}

// A connection that was accepted before the end, and says something only when all others have been closed, is closed too:
// whoever serves would wait for it for ever.
func TestDrainLate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		(&Server{Handler: func(*Conn, *Request) { close(asked) }}).Serve(ctx, l, 0)
	}()
	late, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	// Connections are accepted in order, and this one has a question that is not answered: it ends by being closed.
	early := NewClient(Unix(path), nil)
	defer early.Close()
	conn, err := early.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	go conn.Call(t.Context(), &text{kind: kindEcho}, &text{kind: kindEcho})
	<-asked
	cancel()
	conn.Wait()
	if _, err := late.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-served:
	case <-time.After(testwait.Patience):
		t.Fatal("the server waits for a connection that was too late")
	}
}
