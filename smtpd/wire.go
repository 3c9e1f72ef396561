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

var (
	smallBufs  reuse.Pool[sessionBufs]
	middleBufs = reuse.Pool[[]byte]{New: func() *[]byte { b := make([]byte, middleBuf); return &b }}
	bigBufs    = reuse.Pool[[]byte]{New: func() *[]byte { b := make([]byte, bigBuf); return &b }}
)

// sessionBufs are what a session reads into and gathers replies in. They go
// from one session to the next.
type sessionBufs struct {
	in  [smallBuf]byte
	out [512]byte
}

var (
	errLineTooLong = errors.New("line too long")
	errDraining    = errors.New("service is shutting down")
)

type wire struct {
	nc  net.Conn
	buf []byte // buf[r:w] has been received and not been looked at
	r,
	w int
	bufs     *sessionBufs  // nil before something is read or said
	out      []byte        // replies not sent yet
	lent     *[]byte       // what buf is while content is read, from a pool
	own      []byte        // what buf was before
	timeout  time.Duration // of one read
	deadline time.Time     // of a whole command, when not zero
	bareLF   bool          // the line read last ended without CR
	received int64         // octets since the session began
	werr     error         // the first write that failed: nothing is written any more
}

// buffered is how much of what the client sent waits to be read.
func (w *wire) buffered() int { return w.w - w.r }

// unread is what the client has sent and nobody has read. It is good until the
// next read.
func (w *wire) unread() []byte { return w.buf[w.r:w.w] }

// position is how much of what the client sent has been read.
func (w *wire) position() int64 { return w.received - int64(w.buffered()) }

// discard forgets what was received: it came before something that it must
// not follow.
func (w *wire) discard() { w.r, w.w = 0, 0 }

// fill waits for more input, after sending what has gathered. The buffer
// must have room. idle, when there is one, is asked before the wait.
func (w *wire) fill(idle func() error) error {
	if err := w.flush(); err != nil {
		return err
	}
	t := time.Now().Add(w.timeout)
	if !w.deadline.IsZero() && w.deadline.Before(t) {
		t = w.deadline
	}
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

// line reads a line of at most limit octets and returns it without its end,
// which is LF or CRLF. The bytes are good until the next read. A longer line
// is read to its end and reported as errLineTooLong. idle is fill's.
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

// makeRoom makes sure that something can be read, moving or growing the
// buffer up to want bytes.
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

// kept are the buffers of this session until it ends.
func (w *wire) kept() *sessionBufs {
	if w.bufs == nil {
		w.bufs = smallBufs.Get()
		if w.out == nil {
			w.out = w.bufs.out[:0]
		}
	}
	return w.bufs
}

// scratch is an empty buffer for something short. It is good until the next
// reply.
func (w *wire) scratch() []byte { w.kept(); return w.out[len(w.out):] }

// release gives all buffers back: nothing is read or said any more.
func (w *wire) release() {
	w.shrink()
	if w.bufs != nil {
		smallBufs.Put(w.bufs)
	}
	w.bufs, w.buf, w.out, w.r, w.w = nil, nil, nil, 0, 0
}

// enlarge borrows a buffer for reading content.
func (w *wire) enlarge() {
	if w.lent == nil {
		w.own = w.buf
		w.borrow(&middleBufs)
	}
}

// grow changes the borrowed buffer for a big one, when it is not that yet.
func (w *wire) grow() {
	if w.lent != nil && len(*w.lent) < bigBuf {
		old := w.lent
		w.borrow(&bigBufs)
		giveBack(old)
	}
}

// borrow makes a buffer from the pool the one that is read into.
func (w *wire) borrow(pool *reuse.Pool[[]byte]) {
	w.lent = pool.Get()
	if w.buffered() > len(*w.lent) { // a session's own buffer holds a line, of any limit
		*w.lent = make([]byte, w.buffered()+smallBuf)
	}
	n := copy(*w.lent, w.buf[w.r:w.w])
	w.buf, w.r, w.w = *w.lent, 0, n
}

// shrink gives the borrowed buffer back; what is in it still is kept.
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

// giveBack puts a borrowed buffer where it came from.
func giveBack(b *[]byte) {
	switch len(*b) {
	case middleBuf:
		middleBufs.Put(b)
	case bigBuf:
		bigBufs.Put(b)
	}
}

// flush writes the replies that have gathered.
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

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
