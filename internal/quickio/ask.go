package quickio

import (
	"errors"
	"io"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnasked is the error of an Ask before which the peer has ended the connection,
// or has said something.
var ErrUnasked = errors.New("the peer has ended the connection, or has spoken unasked")

// An asking is an Ask under way.
type asking struct {
	try   func(fd uintptr) (done bool) // made when it is first wanted
	state askState
}

type askState uint8

const (
	notAsked  askState = iota
	unasked            // there was something before the question
	asked              // the question has been written, or it has failed
	halfAsked          // there was no room for all of the question
)

// Ask writes all of question and reads up to len(answer) octets, at least one.
// Nothing is written, and the error is ErrUnasked, when the connection has ended or
// broken, or there is something to read, already: what was there is lost then. Other writers and
// readers wait for the end.
//
// It is for sockets. It takes the system calls of a Write and a Read, no more: a Read behind a
// Write looks for the answer at once, mostly in vain, and waits for it. Here
// that look comes before the Write.
func (c *Conn) Ask(question, answer []byte) (int, error) {
	r, w := &c.reader, &c.writer
	r.mu.Lock()
	defer r.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.asking.try == nil {
		c.asking.try = c.ask
	}
	c.asking.state = notAsked
	r.start(answer, nil)
	w.start(question, nil)
	defer func() { r.first, w.first = nil, nil }()
	err := c.raw.Read(c.asking.try)
	switch c.asking.state {
	case unasked:
		return 0, ErrUnasked
	case halfAsked:
		if err := c.raw.Write(w.try); err != nil {
			return 0, c.opError("write", err, 0)
		}
		if w.errno == 0 {
			err = c.raw.Read(r.try)
		}
	}
	if w.errno != 0 {
		return 0, c.opError("write", nil, w.errno)
	}
	if err == nil && r.errno == 0 && r.n == 0 {
		return 0, io.EOF
	}
	return r.n, c.opError("read", err, r.errno)
}

// ask is called with the poller ready to tell of what comes from now on, so
// that an answer between the write and the waiting is not missed; and again when
// something has come.
func (c *Conn) ask(fd uintptr) bool {
	a, r, w := &c.asking, &c.reader, &c.writer
	if a.state != notAsked {
		return r.read(fd)
	}
	if r.read(fd) {
		a.state = unasked
		return true
	}
	if !w.write(fd) {
		a.state = halfAsked
		return true
	}
	a.state = asked
	return w.errno != 0
}

// Ended says whether the peer has ended the connection, or it is broken, whatever has
// arrived before and not been read. It does not wait.
func (c *Conn) Ended() bool {
	ended := true
	_ = c.raw.Control(func(fd uintptr) { // which fails when we have closed it
		poll := unix.PollFd{Fd: int32(fd), Events: unix.POLLRDHUP}
		var now unix.Timespec
		n, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		ended = errno == 0 && n > 0
	})
	return ended
}
