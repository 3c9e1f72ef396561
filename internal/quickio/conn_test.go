package quickio

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testwait"

	"pgregory.net/rapid"
)

// pair is a connection and its peer, which is package net's own.
func pair(t testing.TB, network string) (*Conn, net.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	c, ok := New(ours).(*Conn)
	if !ok {
		t.Fatalf("New(%T) has not made a Conn", ours)
	}
	return c, theirs
}

// TestTransfer sends octets in pieces of all sizes, both ways, to a peer that
// reads as it likes: they arrive as they were sent.
func TestTransfer(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				c, peer := pair(t, network)
				sent := rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(rt, "pattern")
				sent = bytes.Repeat(sent, rapid.IntRange(1, 4000).Draw(rt, "times"))
				out := rapid.IntRange(1, 100000).Draw(rt, "write")
				in := rapid.IntRange(1, 50000).Draw(rt, "read")
				var wg sync.WaitGroup
				wg.Go(func() { // the peer gives back what it gets
					b := make([]byte, in)
					io.CopyBuffer(struct{ io.Writer }{peer}, struct{ io.Reader }{peer}, b)
					peer.Close()
				})
				wg.Go(func() {
					for rest := sent; len(rest) > 0; {
						n := min(out, len(rest))
						k := n / 3
						m, err := c.WriteTwo(rest[:k], rest[k:n])
						if err != nil || m != n {
							rt.Errorf("wrote %d of %d: %v", m, n, err)
						}
						rest = rest[n:]
					}
					c.Conn.(interface{ CloseWrite() error }).CloseWrite()
				})
				var got bytes.Buffer
				b := make([]byte, in)
				for {
					n, err := c.Read(b)
					got.Write(b[:n])
					if err == io.EOF {
						break
					}
					if err != nil || n == 0 {
						rt.Fatalf("read %d: %v", n, err)
					}
				}
				wg.Wait()
				if !bytes.Equal(got.Bytes(), sent) {
					rt.Fatalf("sent %d octets, got %d, or others", len(sent), got.Len())
				}
			})
		})
	}
}

// TestErrors has a connection fail in every way: the errors are those of
// package net.
func TestErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(c *Conn, peer net.Conn)
		is      error
		op      func(c *Conn) (int, error)
	}{
		"deadline of a read": {func(c *Conn, _ net.Conn) { c.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded, read},
		"deadline of a write": {func(c *Conn, _ net.Conn) { c.SetWriteDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded,
			func(c *Conn) (int, error) { return c.Write([]byte("x")) }},
		"peer that does not read": {func(c *Conn, _ net.Conn) { c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) }, os.ErrDeadlineExceeded, fill},
		"closed read":             {func(c *Conn, _ net.Conn) { c.Close() }, net.ErrClosed, read},
		"closed write": {func(c *Conn, _ net.Conn) { c.Close() }, net.ErrClosed,
			func(c *Conn) (int, error) { return c.Write([]byte("x")) }},
		"end":           {func(_ *Conn, peer net.Conn) { peer.Close() }, io.EOF, read},
		"reset":         {func(_ *Conn, peer net.Conn) { peer.(*net.TCPConn).SetLinger(0); peer.Close() }, syscall.ECONNRESET, read},
		"peer has gone": {func(_ *Conn, peer net.Conn) { peer.(*net.TCPConn).SetLinger(0); peer.Close() }, nil, fill},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, peer := pair(t, "tcp")
			test.prepare(c, peer)
			_, err := test.op(c)
			var oe *net.OpError
			switch {
			case test.is == nil && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)):
			case test.is == nil || !errors.Is(err, test.is):
				t.Fatalf("error %v, want %v", err, test.is)
			}
			if err != io.EOF && (!errors.As(err, &oe) || oe.Op != "read" && oe.Op != "write" && oe.Op != "writev" || oe.Addr == nil) {
				t.Errorf("error %#v does not say what failed and where", err)
			}
		})
	}
}

func read(c *Conn) (int, error) { return c.Read(make([]byte, 10)) }

// fill writes until it cannot.
func fill(c *Conn) (int, error) {
	for b := make([]byte, 1<<20); ; {
		if n, err := c.Write(b); err != nil {
			return n, err
		}
	}
}

// TestCloseWakes closes a connection that a goroutine waits for.
func TestCloseWakes(t *testing.T) {
	t.Parallel()
	c, _ := pair(t, "unix")
	failed := make(chan error)
	go func() {
		_, err := read(c)
		failed <- err
	}()
	c.Close()
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("read: %v", err)
	}
}

// counted counts what the runtime hears of.
type counted struct {
	*net.TCPConn
	reads, writes atomic.Int32
}

func (c *counted) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return c.TCPConn.Read(p)
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.TCPConn.Write(p)
}

// TestFair has a connection never wait: every sixteenth call is announced.
func TestFair(t *testing.T) {
	t.Parallel()
	c, peer := pair(t, "tcp")
	inner := &counted{TCPConn: c.Conn.(*net.TCPConn)}
	fair := New(inner).(*Conn)
	const calls = 20 * inRow
	for range calls {
		if _, err := fair.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if n := inner.writes.Load(); n != 20 {
		t.Errorf("%d of %d writes were announced, want 20", n, calls)
	}
	if _, err := io.ReadFull(peer, make([]byte, calls)); err != nil {
		t.Fatal(err)
	}
	if _, err := peer.Write(make([]byte, calls)); err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	for range calls {
		if _, err := fair.Read(one); err != nil {
			t.Fatal(err)
		}
	}
	if n := inner.reads.Load(); n < 19 || n > 20 { // the first may have waited
		t.Errorf("%d of %d reads were announced, want 20", n, calls)
	}
}

// TestFairAnswers answers what it has to wait for: nothing is announced.
func TestFairAnswers(t *testing.T) {
	t.Parallel()
	c, peer := pair(t, "tcp")
	inner := &counted{TCPConn: c.Conn.(*net.TCPConn)}
	fair := New(inner).(*Conn)
	one := make([]byte, 1)
	for range 20 * inRow {
		asked := make(chan error)
		waits := make(chan struct{})
		go func() {
			<-waits
			_, err := peer.Write([]byte("x"))
			asked <- err
		}()
		fair.ReadNow(one) // finds nothing, and so would have waited
		close(waits)
		if _, err := fair.Read(one); err != nil {
			t.Fatal(err)
		}
		if _, err := fair.Write(one); err != nil {
			t.Fatal(err)
		}
		if err := <-asked; err != nil {
			t.Fatal(err)
		}
	}
	if r, w := inner.reads.Load(), inner.writes.Load(); r+w != 0 {
		t.Errorf("%d reads and %d writes were announced", r, w)
	}
}

// TestNoSocket leaves alone what is no socket.
func TestNoSocket(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if got := New(a); got != a {
		t.Errorf("New has made a %T of a pipe", got)
	}
}

// What has arrived can be had without waiting, whatever the deadline.
func TestReadNow(t *testing.T) {
	t.Parallel()
	c, far := pair(t, "tcp")

	c.SetReadDeadline(time.Unix(1, 0))
	var b [16]byte
	if n := c.ReadNow(b[:]); n != 0 {
		t.Errorf("%d octets of nothing", n)
	}
	if _, err := far.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	n := 0
	for end := time.Now().Add(testwait.Patience); n == 0 && time.Now().Before(end); {
		n = c.ReadNow(b[:2])
	}
	if n != 2 || string(b[:2]) != "he" {
		t.Errorf("%q", b[:n])
	}
	c.SetReadDeadline(time.Time{})
	if n, err := c.Read(b[:]); n != 3 || err != nil || string(b[:3]) != "llo" {
		t.Errorf("the rest is %q, %v", b[:n], err)
	}
	far.Close()
	if n := c.ReadNow(b[:]); n != 0 {
		t.Errorf("%d octets after the end", n)
	}
	if n, err := c.Read(b[:]); n != 0 || err != io.EOF {
		t.Errorf("%d octets, %v after the end", n, err)
	}
}
