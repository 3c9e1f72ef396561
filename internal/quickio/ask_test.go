package quickio

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testwait"

	"golang.org/x/sys/unix"
)

// await waits until c's peer has said something or has ended the connection,
// awaitEnd until it has ended it.
func await(t *testing.T, c *Conn)    { awaitEvent(t, c, unix.POLLIN|unix.POLLRDHUP) }
func awaitEnd(t *testing.T, c *Conn) { awaitEvent(t, c, unix.POLLRDHUP) }

func awaitEvent(t *testing.T, c *Conn, events int16) {
	t.Helper()
	err := c.raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 40000)
		if n != 1 || err != nil {
			t.Errorf("nothing comes: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func reset(c net.Conn) {
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// A question is asked only of a peer that has been waiting for it.
func TestAsk(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(c *Conn, peer net.Conn)
		comes   bool  // what the peer does arrives before the question
		is      error // nil: the question is answered
		sent    bool  // the peer has got the question
	}{
		"answer":                 {func(*Conn, net.Conn) {}, false, nil, true},
		"end":                    {func(_ *Conn, peer net.Conn) { peer.(*net.TCPConn).CloseWrite() }, true, ErrUnasked, false},
		"words":                  {func(_ *Conn, peer net.Conn) { peer.Write([]byte("421")) }, true, ErrUnasked, false},
		"words and end":          {func(_ *Conn, peer net.Conn) { peer.Write([]byte("421")); peer.(*net.TCPConn).CloseWrite() }, true, ErrUnasked, false},
		"reset":                  {func(_ *Conn, peer net.Conn) { reset(peer) }, true, ErrUnasked, false},
		"deadline before":        {func(c *Conn, _ net.Conn) { c.SetDeadline(time.Unix(1, 0)) }, false, os.ErrDeadlineExceeded, false},
		"deadline of the answer": {func(*Conn, net.Conn) {}, false, os.ErrDeadlineExceeded, true},
		"closed":                 {func(c *Conn, _ net.Conn) { c.Close() }, false, net.ErrClosed, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, peer := pair(t, "tcp")
			test.prepare(c, peer)
			if test.comes {
				await(t, c)
			}
			var got bytes.Buffer
			var wg sync.WaitGroup
			wg.Go(func() {
				b := make([]byte, 100)
				for {
					n, err := peer.Read(b)
					if err != nil {
						return
					}
					got.Write(b[:n])
					switch test.is {
					case nil:
						peer.Write([]byte("250"))
					case os.ErrDeadlineExceeded: // the time is over when the question is there, not on the way
						c.SetDeadline(time.Unix(1, 0))
					}
				}
			})
			var answer [10]byte
			n, err := c.Ask([]byte("MAIL"), answer[:])
			if !errors.Is(err, test.is) || test.is == nil && string(answer[:n]) != "250" || test.is != nil && n != 0 {
				t.Errorf("%q, %v", answer[:n], err)
			}
			if oe, ok := errors.AsType[*net.OpError](err); ok && oe.Op != "read" {
				t.Errorf("operation %s", oe.Op)
			}
			c.Close()
			wg.Wait()
			if got := got.String(); got != map[bool]string{true: "MAIL"}[test.sent] {
				t.Errorf("the peer has got %q", got)
			}
		})
	}
}

// A peer that ends the connection, or breaks it, when it is asked.
func TestAskNoAnswer(t *testing.T) {
	t.Parallel()
	for want, end := range map[error]func(net.Conn){
		io.EOF:             func(c net.Conn) { c.Close() },
		syscall.ECONNRESET: reset,
	} {
		c, peer := pair(t, "tcp")
		var wg sync.WaitGroup
		wg.Go(func() {
			io.ReadFull(peer, make([]byte, 4))
			end(peer)
		})
		if n, err := c.Ask([]byte("MAIL"), make([]byte, 10)); n != 0 || !errors.Is(err, want) {
			t.Errorf("%d, %v, want %v", n, err, want)
		}
		wg.Wait()
	}
}

// No answer is missed, at whatever moment it comes.
func TestAskOften(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "unix"} {
		c, peer := pair(t, network)
		c.SetDeadline(time.Now().Add(testwait.Patience))
		var wg sync.WaitGroup
		wg.Go(func() { io.Copy(struct{ io.Writer }{peer}, struct{ io.Reader }{peer}) })
		for i := range 5000 {
			question := []byte{byte(i), byte(i >> 8)}
			answer := make([]byte, 2)
			n, err := c.Ask(question, answer)
			if err == nil && n == 1 {
				_, err = io.ReadFull(c, answer[1:])
			}
			if err != nil || !bytes.Equal(answer, question) {
				t.Fatalf("%s, question %d: %v, %v", network, i, answer, err)
			}
		}
		c.Close()
		wg.Wait()
	}
}

// A question for which there is no room at first.
func TestAskLong(t *testing.T) {
	t.Parallel()
	c, peer := pair(t, "unix")
	question := bytes.Repeat([]byte("question"), 1<<18)
	c.SetWriteDeadline(time.Unix(1, 0)) // what there is room for is written all the same
	n, err := c.Ask(question, make([]byte, 10))
	if oe, ok := errors.AsType[*net.OpError](err); n != 0 || !ok || oe.Op != "write" || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("of a peer that does not read: %d, %v", n, err)
	}

	c, peer = pair(t, "unix")
	var wg sync.WaitGroup
	wg.Go(func() {
		got := make([]byte, len(question))
		if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, question) {
			t.Errorf("the question has not come as it was: %v", err)
		}
		peer.Write([]byte("250"))
	})
	c.SetDeadline(time.Now().Add(testwait.Patience))
	answer := make([]byte, 10)
	if n, err := c.Ask(question, answer); err != nil || string(answer[:n]) != "250" {
		t.Errorf("%q, %v", answer[:n], err)
	}
	wg.Wait()
}

func TestEnded(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "unix"} {
		for name, test := range map[string]struct {
			do   func(c *Conn, peer net.Conn)
			want bool
		}{
			"open":          {func(*Conn, net.Conn) {}, false},
			"words":         {func(c *Conn, peer net.Conn) { peer.Write([]byte("x")); await(t, c) }, false},
			"end":           {func(c *Conn, peer net.Conn) { peer.(interface{ CloseWrite() error }).CloseWrite(); await(t, c) }, true},
			"words and end": {func(c *Conn, peer net.Conn) { peer.Write([]byte("x")); peer.Close(); awaitEnd(t, c) }, true},
			"closed":        {func(c *Conn, _ net.Conn) { c.Close() }, true},
		} {
			c, peer := pair(t, network)
			test.do(c, peer)
			if got := c.Ended(); got != test.want {
				t.Errorf("%s, %s: %v", network, name, got)
			}
		}
	}
	c, peer := pair(t, "tcp")
	reset(peer)
	await(t, c)
	if !c.Ended() {
		t.Error("a reset connection has not ended")
	}
}
