package quickio

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// inRow is one more than how many calls in a row may do without the scheduler when none had
// to wait. With buffers of 64 KB that is a megabyte.
const inRow = 16

// A Conn is a connection over a socket, or two pipes. It does what the net.Conn inside it
// does, with the same errors; its methods may be called at the same time.
type Conn struct {
	net.Conn
	raw    syscall.RawConn // to read from
	out    syscall.RawConn // to write to: the same, if it is a socket
	reader half
	writer half
	asking asking
	// row is how many calls there have been since the last one, in either direction,
	// that waited or was announced.
	row atomic.Int32
}

// New returns nc as a *Conn, or as it is when there is no socket below it.
func New(nc net.Conn) net.Conn {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nc
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nc
	}
	return newConn(nc, raw, raw)
}

func newConn(nc net.Conn, in, out syscall.RawConn) *Conn {
	c := &Conn{Conn: nc, raw: in, out: out}
	c.reader.row, c.writer.row = &c.row, &c.row
	c.reader.try, c.writer.try = c.reader.read, c.writer.write
	return c
}

// SyscallConn gives access to the socket.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// Read reads up to len(p) octets, at least one.
func (c *Conn) Read(p []byte) (int, error) {
	h := &c.reader
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.announce() || len(p) == 0 {
		return c.Conn.Read(p)
	}
	h.start(p, nil)
	err := c.raw.Read(h.try)
	h.first = nil
	if err == nil && h.errno == 0 && h.n == 0 {
		return 0, io.EOF
	}
	return h.n, c.opError("read", err, h.errno)
}

// ReadNow reads up to len(p) octets that have arrived already. It returns 0 when
// there are none; it does not wait, and what went wrong the next Read says.
func (c *Conn) ReadNow(p []byte) int {
	h := &c.reader
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(p) == 0 {
		return 0
	}
	h.start(p, nil)
	if h.once == nil {
		h.once = func(fd uintptr) { h.read(fd) }
	}
	c.raw.Control(h.once)
	h.first = nil
	return h.n
}

// Write writes all of p.
func (c *Conn) Write(p []byte) (int, error) { return c.WriteTwo(p, nil) }

// WriteTwo writes all of p and then all of q, together if there is room.
func (c *Conn) WriteTwo(p, q []byte) (int, error) {
	h := &c.writer
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.announce() || len(p)+len(q) == 0 {
		if len(q) == 0 {
			return c.Conn.Write(p)
		}
		n, err := (&net.Buffers{p, q}).WriteTo(c.Conn)
		return int(n), err
	}
	h.start(p, q)
	err := c.out.Write(h.try)
	h.first, h.second = nil, nil
	return h.n, c.opError("write", err, h.errno)
}

// opError is the error of an operation as package net words it. err is that
// of waiting.
func (c *Conn) opError(op string, err error, errno syscall.Errno) error {
	if err == nil && errno == 0 {
		return nil
	}
	if errno != 0 {
		err = &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(),
			Err: os.NewSyscallError(op, errno)}
	}
	if oe, ok := errors.AsType[*net.OpError](err); ok {
		oe.Op = op // not raw-read
	}
	return err
}

// A half is one direction of a connection, and the call under way in it.
type half struct {
	mu            sync.Mutex
	try           func(fd uintptr) (done bool) // read or write, made once
	once          func(fd uintptr)             // read, made when it is first wanted
	first, second []byte
	n             int // octets so far
	errno         syscall.Errno
	row           *atomic.Int32
}

// announce says whether the next call is to be one that the runtime knows of.
func (h *half) announce() bool {
	if h.row.Add(1) < inRow {
		return false
	}
	h.row.Store(0)
	return true
}

func (h *half) start(p, q []byte) {
	h.first, h.second, h.n, h.errno = p, q, 0, 0
}

// waits says whether errno means that the call is to be made again when the
// socket is ready. It keeps what else went wrong.
func (h *half) waits(errno syscall.Errno) bool {
	if errno == syscall.EAGAIN {
		h.row.Store(0)
		return true
	}
	h.errno = errno
	return false
}

// read reads into first, once.
func (h *half) read(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&h.first[0])), uintptr(len(h.first)))
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			return !h.waits(errno)
		}
		h.n = int(n)
		haveRead(fd, h.first[:n])
		return true
	}
}

// write writes first and second, until there is no room.
func (h *half) write(fd uintptr) bool {
	willWrite()
	for len(h.first)+len(h.second) > 0 {
		n, errno := h.send(fd)
		switch {
		case errno == syscall.EINTR:
		case errno != 0:
			return !h.waits(errno)
		default:
			h.n += n
			k := min(n, len(h.first))
			h.first, h.second = h.first[k:], h.second[n-k:]
		}
	}
	return true
}

// send writes what it can with one system call. The runtime keeps SIGPIPE from
// ending the process, as it does for package net.
func (h *half) send(fd uintptr) (int, syscall.Errno) {
	var vec [2]syscall.Iovec
	n := 0
	for _, b := range [...][]byte{h.first, h.second} {
		if len(b) > 0 {
			vec[n].Base = &b[0]
			vec[n].SetLen(len(b))
			n++
		}
	}
	if n == 1 {
		r, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(vec[0].Base)), uintptr(vec[0].Len))
		return int(r), errno
	}
	r, _, errno := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&vec[0])), uintptr(n))
	return int(r), errno
}
