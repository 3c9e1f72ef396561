package ipc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"posthaste/internal/testwait"

	"golang.org/x/sys/unix"
)

// text is a message of one kind and any bytes.
type text struct {
	kind uint16
	body string
}

func (t *text) Kind() uint16           { return t.kind }
func (t *text) Append(b []byte) []byte { return append(b, t.body...) }
func (t *text) Decode(b []byte) error  { t.body = string(b); return nil }

const (
	kindEcho = 1 + iota
	kindFail
	kindHang
	kindPush
	kindHuge
)

// server starts a server on a socket of its own and returns the socket's path
// and a function that stops it.
func server(t *testing.T, handler Handler) (path string, stop func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{Handler: handler}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(ctx, l, 10*time.Second)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return path, stop
}

func echo(c *Conn, r *Request) {
	switch r.Kind {
	case kindEcho:
		r.Reply(&text{kindEcho, string(r.Payload)})
	case kindFail:
		r.Fail("no: %s", r.Payload)
	case kindHuge:
		r.Reply(&text{kindHuge, string(make([]byte, MaxPayload+1))})
	case kindPush:
		c.Push(&text{kindPush, string(r.Payload)})
	}
}

func ask(t *testing.T, c *Client, req *text) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Patience)
	defer cancel()
	var reply text
	err := c.Call(ctx, req, &reply)
	return reply.body, err
}

func TestCall(t *testing.T) {
	t.Parallel()
	path, _ := server(t, echo)
	c := NewClient(Unix(path), nil)
	defer c.Close()
	big := string(bytes.Repeat([]byte("x"), 5<<20))
	for _, body := range []string{"", "hello", big} {
		if got, err := ask(t, c, &text{kindEcho, body}); err != nil || got != body {
			t.Errorf("%d octets: got %d, %v", len(body), len(got), err)
		}
	}
	var remote RemoteError
	if _, err := ask(t, c, &text{kindFail, "why"}); !errors.As(err, &remote) || remote != "no: why" {
		t.Errorf("a refusal arrives as %v", err)
	}
	if _, err := ask(t, c, &text{kindEcho, string(make([]byte, MaxPayload+1))}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if _, err := ask(t, c, &text{kindHuge, ""}); !errors.As(err, &remote) {
		t.Errorf("a reply that is too large arrives as %v", err)
	}
	if got, err := ask(t, c, &text{kindEcho, "still here"}); err != nil || got != "still here" {
		t.Errorf("after a message that was too large: %q, %v", got, err)
	}
}

// alias is a message that keeps the octets that it is decoded from.
type alias struct{ body []byte }

func (*alias) Kind() uint16             { return kindEcho }
func (a *alias) Append(b []byte) []byte { return append(b, a.body...) }
func (a *alias) Decode(b []byte) error  { a.body = b; return nil }

// What a call is answered with stays what it is when the connection goes on;
// what Go is answered with is right while it is looked at, whatever its length.
func TestReplyStays(t *testing.T) {
	t.Parallel()
	path, _ := server(t, echo)
	c := NewClient(Unix(path), nil)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Patience)
	defer cancel()
	words := []string{"first", "other", "third"}
	replies := make([]alias, len(words))
	for i := range words {
		if err := c.Call(ctx, &alias{[]byte(words[i])}, &replies[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range words {
		if string(replies[i].body) != words[i] {
			t.Errorf("answer %d is %q", i, replies[i].body)
		}
	}
	conn, err := c.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wrong := make(chan string, 1)
	for i, n := range []int{0, 1, 60 << 10, 64 << 10, 64<<10 + 1, 300 << 10, 5, 60 << 10} {
		body := bytes.Repeat([]byte{byte('a' + i)}, n)
		conn.Go(&alias{body}, func(payload []byte, err error) {
			if err != nil || !bytes.Equal(payload, body) {
				wrong <- "answer is not what was sent"
				return
			}
			wrong <- ""
		})
		if s := <-wrong; s != "" {
			t.Errorf("%d octets: %s", n, s)
		}
	}
}

// Many callers share a connection, replies come in any order, each caller
// gets its own.
func TestManyCallers(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	path, _ := server(t, func(c *Conn, r *Request) {
		wg.Go(func() { echo(c, r) })
	})
	c := NewClient(Unix(path), nil)
	defer c.Close()
	var callers sync.WaitGroup
	for i := range 50 {
		callers.Go(func() {
			for j := range 100 {
				body := string(binary.AppendUvarint(nil, uint64(i*1000+j)))
				var reply text
				if err := c.Call(t.Context(), &text{kindEcho, body}, &reply); err != nil || reply.body != body {
					t.Errorf("got %q want %q, %v", reply.body, body, err)
					return
				}
			}
		})
	}
	callers.Wait()
	wg.Wait()
}

// A server that drains answers what it has been asked, and its clients find
// its successor on the same socket without an error.
func TestGoAway(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// generation serves on a copy of the socket, as a service does whose
	// socket master keeps. l.File would not do: from its file package net makes a
	// listener in a way that has all copies block for a moment, and an Accept that
	// meets it waits for ever.
	generation := func() (stop func()) {
		var f *os.File
		if err := raw.Control(func(fd uintptr) {
			if dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				f = os.NewFile(uintptr(dup), "copy")
			}
		}); err != nil || f == nil {
			t.Fatal("no copy of the socket", err)
		}
		gl, err := net.FileListener(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		gl.(*net.UnixListener).SetUnlinkOnClose(false)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			(&Server{Handler: echo}).Serve(ctx, gl, 10*time.Second)
		}()
		return func() { cancel(); <-done }
	}
	c := NewClient(Unix(path), nil)
	defer c.Close()
	stop := generation()
	quit := make(chan struct{})
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
				}
				if got, err := ask(t, c, &text{kindEcho, "x"}); err != nil || got != "x" {
					t.Errorf("during the change: %q, %v", got, err)
					return
				}
			}
		})
	}
	for range 10 {
		next := generation()
		stop()
		stop = next
	}
	close(quit)
	callers.Wait()
	stop()
}

func TestLost(t *testing.T) {
	t.Parallel()
	var conns sync.Map
	path, _ := server(t, func(c *Conn, r *Request) {
		conns.Store(c, true)
		if r.Kind == kindHang {
			c.Close() // dies in the middle of it
		} else {
			echo(c, r)
		}
	})
	c := NewClient(Unix(path), nil)
	defer c.Close()
	if _, err := ask(t, c, &text{kindHang, ""}); !errors.Is(err, ErrLost) {
		t.Errorf("a request that was sent and not answered: %v", err)
	}
	if got, err := ask(t, c, &text{kindEcho, "again"}); err != nil || got != "again" {
		t.Errorf("the next call dials again: %q, %v", got, err)
	}
}

func TestPush(t *testing.T) {
	t.Parallel()
	path, _ := server(t, echo)
	got := make(chan string, 1)
	c := NewClient(Unix(path), func(_ *Conn, r *Request) { got <- string(r.Payload) })
	defer c.Close()
	conn, err := c.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Send(&text{kindPush, "news"}); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != "news" {
		t.Errorf("got %q", s)
	}
}

func TestTrigger(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		(&Server{Handler: echo, OnTrigger: func(b []byte) { got <- string(b) }}).Serve(ctx, l, time.Second)
	})
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	nc.Write([]byte("FA"))
	nc.Close()
	if s := <-got; s != "FA" {
		t.Errorf("got %q", s)
	}
	cancel()
	wg.Wait()
}

// A peer that speaks something else, or another version, is told apart.
func TestVersion(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	c := NewConn(a, nil)
	go func() {
		b.Write([]byte{0, 'P', 'H', Version + 1, 0, 0, 0, 0})
		buf := make([]byte, 1024)
		for {
			if _, err := b.Read(buf); err != nil {
				return
			}
		}
	}()
	if err := c.Call(t.Context(), &text{kindEcho, ""}, nil); !errors.Is(err, ErrVersion) && !errors.Is(err, ErrUnsent) {
		t.Errorf("got %v", err)
	}
	c.Wait()
	b.Close()
}

// A peer that does not read is disconnected before it costs more than is
// agreed.
func TestDeafPeer(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer b.Close()
	c := NewConn(a, nil)
	m := &text{kindPush, string(make([]byte, 1<<20))}
	pushed := 0
	for c.Push(m) == nil {
		if pushed++; pushed > maxQueued>>20+2 {
			t.Fatalf("%d MB are kept for a peer that does not read", pushed)
		}
	}
	c.Wait()
}

// FuzzPeer: whatever a peer sends, the connection ends or goes on, without a
// panic and without memory beyond what came.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{0, 'P', 'H', Version, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 9, 0, 0, 0, 'x'})
	f.Fuzz(func(t *testing.T, in []byte) {
		a, b := net.Pipe()
		c := NewConn(a, echo)
		go func() {
			buf := make([]byte, 4096)
			for {
				if _, err := b.Read(buf); err != nil {
					return
				}
			}
		}()
		b.SetWriteDeadline(time.Now().Add(time.Second))
		b.Write(in)
		b.Close()
		c.Wait()
	})
}

func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 20, 100} {
		b.Run(map[int]string{1: "callers=1", 20: "callers=20", 100: "callers=100"}[callers], func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "s")
			l, err := net.Listen("unix", path)
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			wg.Go(func() { (&Server{Handler: echo}).Serve(ctx, l, time.Second) })
			c := NewClient(Unix(path), nil)
			body := &text{kindEcho, string(make([]byte, 200))}
			b.ReportAllocs()
			b.ResetTimer()
			var callersDone sync.WaitGroup
			for i := range callers {
				callersDone.Go(func() {
					for n := i; n < b.N; n += callers {
						var reply text
						if err := c.Call(ctx, body, &reply); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			callersDone.Wait()
			b.StopTimer()
			c.Close()
			cancel()
			wg.Wait()
		})
	}
}

// TestOnConnFirst: whoever is told of connections is told before anything
// that comes over one.
func TestOnConnFirst(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	known := map[*Conn]bool{}
	heard := make(chan bool)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := &Server{
		OnConn: func(c *Conn) {
			for range 100 {
				runtime.Gosched()
			}
			mu.Lock()
			known[c] = true
			mu.Unlock()
		},
		Handler: func(c *Conn, r *Request) {
			mu.Lock()
			was := known[c]
			mu.Unlock()
			heard <- was
		},
	}
	done := make(chan struct{})
	go func() { srv.Serve(ctx, l, time.Second); close(done) }()
	for range 50 {
		nc, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c := NewConn(nc, nil)
		c.Push(rawMessage("hello"))
		if !<-heard {
			t.Error("a message came before its connection")
		}
		c.Close()
	}
	cancel()
	<-done
}
