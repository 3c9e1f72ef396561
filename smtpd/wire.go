// The client's end of the connection: bounded reads, gathered writes, and the buffers
// for both. It knows lines and octets, and nothing of SMTP.

package smtpd

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"posthaste/internal/reuse"
)

// The wire owns the socket. It reads command lines and content, each with a
// bound on its length and its time, and gathers replies: they go out in one
// write when there is nothing left to read, so that a pipelined group of
// commands is answered with one packet (RFC 2920 section 3.2).

const (
	// smallBuf is what an idle session keeps for reading: 10,000 of them
	// must be cheap.
	smallBuf = 4 << 10
	// middleBuf is borrowed while content is read. Most mail is smaller: a
	// message comes in with one or two reads, and a hundred sessions at once
	// take little memory.
	middleBuf = 16 << 10
	// bigBuf takes its place when the content turns out to be long.
	bigBuf = 64 << 10
	// maxOut is how much may be gathered before it is written in any case: a
	// client that pipelines without end must not make us keep all answers.
	maxOut = 16 << 10
)

// The buffers of all sessions, each to be taken by one session at a time. Most of
// 10,000 sessions are idle, and hold small ones only.
var (
	smallBufs  reuse.Pool[sessionBufs]
	middleBufs = reuse.Pool[[]byte]{New: func() *[]byte { b := make([]byte, middleBuf); return &b }}
	bigBufs    = reuse.Pool[[]byte]{New: func() *[]byte { b := make([]byte, bigBuf); return &b }}
)

// sessionBufs are what a session reads into and gathers replies in. They go from
// one session to the next; a session has them from its first octet to its end.
type sessionBufs struct {
	in  [smallBuf]byte
	out [512]byte
}

// errLineTooLong is a line beyond its limit, which has been read to its end: the
// session can go on. errDraining ends a wait for a command because the service is
// to end.
var (
	errLineTooLong = errors.New("line too long")
	errDraining    = errors.New("service is shutting down")
)

// A wire is the socket of one session, and what was read from it and is to be
// written to it. Only the session's goroutine uses it. The zero wire with nc and
// timeout set is ready.
type wire struct {
	nc net.Conn // the client's: the socket, or the TLS over it
	// buf[r:w] has been received and not been looked at. buf is one of bufs, own, lent,
	// or a longer one for a longer line.
	buf  []byte
	r, w int
	// bufs are the session's small buffers; nil before something is read or said.
	bufs *sessionBufs
	out  []byte // replies not sent yet
	// lent is what buf is while content is read, from a pool, and own what buf was
	// before. Both are nil at other times.
	lent *[]byte
	own  []byte
	// timeout bounds one read and one write; deadline, when not zero, a whole command.
	timeout  time.Duration
	deadline time.Time
	bareLF   bool  // the line read last ended without CR
	received int64 // octets since the session began
	werr     error // the first write that failed: nothing is written any more
}

// buffered is how much of what the client sent waits to be read.
func (w *wire) buffered() int { return w.w - w.r }

// unread is what the client has sent and nobody has read. It is good until the next
// read.
func (w *wire) unread() []byte { return w.buf[w.r:w.w] }

// position is how much of what the client sent has been read, in octets since the
// session began.
func (w *wire) position() int64 { return w.received - int64(w.buffered()) }

// discard forgets what was received: it came before something that it must not
// follow (STARTTLS).
func (w *wire) discard() { w.r, w.w = 0, 0 }

// fill waits for more input, after sending what has gathered: a client that waits
// for our reply sends nothing. The buffer must have room. idle, when there is one,
// is called before the wait, and its error ends it.
func (w *wire) fill(idle func() error) error {
	if err := w.flush(); err != nil {
		return err
	}
	t := time.Now().Add(w.timeout)
	if !w.deadline.IsZero() && w.deadline.Before(t) {
		t = w.deadline
	}
	// The deadline is set before idle is asked: idle is where Drain may set one
	// that has passed, and that must not be overwritten.
	w.nc.SetReadDeadline(t)
	if idle != nil {
		if err := idle(); err != nil {
			return err
		}
	}
	n, err := w.nc.Read(w.buf[w.w:])
	w.w += n
	w.received += int64(n)
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// line reads a line of at most limit octets and returns it without its end, which
// is LF or CRLF; bareLF says which. CRs before the LF belong to the end, however
// many. The octets are good until the next read. A longer line is read to its end,
// without being kept, and reported as errLineTooLong. idle is fill's.
func (w *wire) line(limit int, idle func() error) ([]byte, error) {
	skipped := false
	from := w.r
	for {
		if i := bytes.IndexByte(w.buf[from:w.w], '\n'); i >= 0 {
			l := w.buf[w.r : from+i]
			w.r = from + i + 1
			w.bareLF = len(l) == 0 || l[len(l)-1] != '\r'
			for len(l) > 0 && l[len(l)-1] == '\r' {
				l = l[:len(l)-1]
			}
			if skipped || len(l) > limit {
				return nil, errLineTooLong
			}
			return l, nil
		}
		if w.w-w.r > limit+2 {
			skipped = true
			w.r = w.w
		}
		w.makeRoom(limit + 2)
		from = w.w
		if err := w.fill(idle); err != nil {
			return nil, err
		}
	}
}

// makeRoom makes sure that something can be read, by moving what is in the buffer
// to its beginning, or by growing it, to no more than a little over want bytes.
func (w *wire) makeRoom(want int) {
	if w.r > 0 {
		n := copy(w.buf, w.buf[w.r:w.w])
		w.r, w.w = 0, n
	}
	if w.buf == nil {
		w.buf = w.kept().in[:]
	}
	if w.w == len(w.buf) {
		b := make([]byte, min(max(2*len(w.buf), smallBuf), want+smallBuf))
		copy(b, w.buf[:w.w])
		w.buf = b
	}
}

// kept are the small buffers of this session, from the first call until release.
func (w *wire) kept() *sessionBufs {
	if w.bufs == nil {
		w.bufs = smallBufs.Get()
		if w.out == nil {
			w.out = w.bufs.out[:0]
		}
	}
	return w.bufs
}

// scratch is an empty buffer for something short, within out where that has room.
// It is good until the next reply.
func (w *wire) scratch() []byte { w.kept(); return w.out[len(w.out):] }

// release gives all buffers back: nothing is read or said any more.
func (w *wire) release() {
	w.shrink()
	if w.bufs != nil {
		smallBufs.Put(w.bufs)
	}
	w.bufs, w.buf, w.out, w.r, w.w = nil, nil, nil, 0, 0
}

// enlarge borrows a buffer for reading content. shrink gives it back.
func (w *wire) enlarge() {
	if w.lent == nil {
		w.own = w.buf
		w.borrow(&middleBufs)
	}
}

// grow changes the borrowed buffer for a big one, when it is not that yet. What has
// been received moves with it.
func (w *wire) grow() {
	if w.lent != nil && len(*w.lent) < bigBuf {
		old := w.lent
		w.borrow(&bigBufs)
		giveBack(old)
	}
}

// borrow makes a buffer from the pool the one that is read into, and copies what is
// waiting.
func (w *wire) borrow(pool *reuse.Pool[[]byte]) {
	w.lent = pool.Get()
	if w.buffered() > len(*w.lent) { // a session's own buffer holds a line, of any limit
		*w.lent = make([]byte, w.buffered()+smallBuf)
	}
	n := copy(*w.lent, w.buf[w.r:w.w])
	w.buf, w.r, w.w = *w.lent, 0, n
}

// shrink gives the borrowed buffer back; what is in it still is kept, which is what
// a client pipelines behind its message.
func (w *wire) shrink() {
	if w.lent == nil {
		return
	}
	b := w.own
	if n := max(smallBuf, w.buffered()); len(b) < n {
		b = make([]byte, n)
	}
	n := copy(b, w.buf[w.r:w.w])
	w.buf, w.r, w.w = b, 0, n
	giveBack(w.lent)
	w.lent, w.own = nil, nil
}

// giveBack puts a borrowed buffer where it came from. One that was made longer than
// those of the pools is dropped.
func giveBack(b *[]byte) {
	switch len(*b) {
	case middleBuf:
		middleBufs.Put(b)
	case bigBuf:
		bigBufs.Put(b)
	}
}

// flush writes the replies that have gathered. An error is for good. A buffer that
// has grown beyond maxOut, by one long reply, is not kept.
func (w *wire) flush() error {
	if len(w.out) == 0 || w.werr != nil {
		return w.werr
	}
	w.nc.SetWriteDeadline(time.Now().Add(w.timeout))
	_, w.werr = w.nc.Write(w.out)
	if cap(w.out) > maxOut {
		w.out = nil
	}
	w.out = reuse.Truncated(w.out)
	return w.werr
}

// isTimeout says whether a read or a write ran out of time, rather than lost its
// connection.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
