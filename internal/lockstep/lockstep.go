// Package lockstep keeps a client and a server in step on a connection on which
// questions and answers alternate and do not say what belongs to what.
//
// An answer that comes before its question, a second one, or one that comes after
// the client has given up would be taken for the answer to the next question, and
// every answer after it for that to the question after its own: an access
// decision for one client becomes another's. So nothing may be unread when a question is
// sent, nothing when the answer has been read, and a connection on which something went
// wrong is closed.
//
// A server can also answer without end. What is read for an answer is
// bounded here and in [ReadLine].
package lockstep

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrUnasked says that the server sent a reply to no command.
var ErrUnasked = errors.New("out of step: the server sent a reply to no command")

// ErrLong is the error of an answer over its bound.
var ErrLong = errors.New("the answer is too long")

// A Conn is one connection of a client. It is used by one goroutine at a time.
type Conn struct {
	net.Conn
	r   *bufio.Reader
	raw syscall.RawConn // nil for what is no socket: only what has been read is known
}

// bufferSize is what is read ahead, at most.
const bufferSize = 4096

// New makes a Conn of a connection.
func New(nc net.Conn) *Conn {
	c := &Conn{Conn: nc, r: bufio.NewReaderSize(nc, bufferSize)}
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
		}
	}
	return c
}

// Reader reads what the server says.
func (c *Conn) Reader() *bufio.Reader { return c.r }

// Before is to be called before a question is sent. ErrUnasked says that there is
// something to read already; io.EOF that the server has ended the connection.
func (c *Conn) Before() error {
	if c.r.Buffered() > 0 {
		return ErrUnasked
	}
	return c.peek()
}

// After is to be called when an answer has been read. ErrUnasked says that more than an
// answer has come: then whose answer has been read nobody knows. keep says that
// the connection is good for another question. Empty lines after an answer are
// let pass, since some servers send them, but the connection is not kept.
func (c *Conn) After() (keep bool, err error) {
	more := c.r.Buffered()
	ahead, _ := c.r.Peek(more) // which are there
	for _, b := range ahead {
		if b != '\r' && b != '\n' {
			return false, ErrUnasked
		}
	}
	if err := c.peek(); errors.Is(err, ErrUnasked) && more == 0 {
		if b, err := c.r.ReadByte(); err != nil || b != '\r' && b != '\n' {
			return false, ErrUnasked
		}
		return false, nil
	} else if err != nil || more > 0 {
		return false, nil
	}
	return true, nil
}

// peek looks at what the socket has, without waiting.
func (c *Conn) peek() error {
	if c.raw == nil {
		return nil
	}
	var n int
	var err error
	if cerr := c.raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	}); cerr != nil {
		return cerr
	}
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return nil
	case err != nil:
		return err
	case n == 0:
		return io.EOF
	}
	return ErrUnasked
}

// ReadLine reads a line of at most limit octets, with its end, and returns it without. It is
// good until r is read again when it fits r's buffer. It reads no more than limit
// octets and r's buffer.
func ReadLine(r *bufio.Reader, limit int) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) && len(line) <= limit {
		whole := append([]byte(nil), line...)
		for errors.Is(err, bufio.ErrBufferFull) && len(whole) <= limit {
			line, err = r.ReadSlice('\n')
			whole = append(whole, line...)
		}
		line = whole
	}
	switch {
	case len(line) > limit || errors.Is(err, bufio.ErrBufferFull):
		return nil, fmt.Errorf("%w: a line of more than %d octets", ErrLong, limit)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	}
	line = line[:len(line)-1]
	for len(line) > 0 && line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	return line, nil
}

// Bound bounds how much is read of a connection between one write and the next, for
// protocols that libraries speak.
func Bound(nc net.Conn, limit int64) net.Conn { return &bounded{Conn: nc, limit: limit} }

type bounded struct {
	net.Conn
	limit int64
	read  atomic.Int64 // octets since the last write: libraries read and write on goroutines of their own
}

func (b *bounded) Write(p []byte) (int, error) {
	b.read.Store(0)
	return b.Conn.Write(p)
}

func (b *bounded) Read(p []byte) (int, error) {
	left := b.limit - b.read.Load()
	if left <= 0 {
		return 0, fmt.Errorf("%w: over %d octets", ErrLong, b.limit)
	}
	n, err := b.Conn.Read(p[:min(int64(len(p)), left)])
	b.read.Add(int64(n))
	return n, err
}

// SyscallConn is there for libraries that look whether a connection that they have kept
// is still one.
func (b *bounded) SyscallConn() (syscall.RawConn, error) {
	if sc, ok := b.Conn.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
