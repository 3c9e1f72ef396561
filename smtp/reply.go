// The wire of a session: commands that gather and go out in one write, and replies, each
// bounded in time, lines and octets. It knows the form of replies, and not what
// they answer.

package smtp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"posthaste/internal/dsn"
	"posthaste/internal/notice"
	"posthaste/internal/quickio"
	"posthaste/internal/reuse"
)

// Bounds of one reply. What is over the line limit is cut off the line; a
// reply over the others ends the session.
const (
	maxReplyLines = 500
	maxReplyBytes = 64 << 10
	maxReplyText  = 4 << 10 // octets kept for logs and notices
)

// reply is one reply of a server. Its text is that of the session's buffer and
// is good until the next reply is read.
type reply struct {
	code   int // 100 to 999; 0 when there was none
	status dsn.Status
	raw    []byte // lines with their codes, joined by LF
}

// ok says whether the code is 2xx.
func (r *reply) ok() bool { return r.code/100 == 2 }

// text is the whole reply as one printable line, of bounded length.
func (r *reply) text() string {
	b := r.raw
	cut := len(b) > maxReplyText
	if cut {
		b = b[:maxReplyText]
	}
	return printable(b)
}

// printable turns line ends into blanks and whatever else a terminal or a log
// must not see into question marks. Bytes over 127 stay if they are UTF-8.
func printable(b []byte) string {
	clean := true
	for _, c := range b {
		if c < ' ' || c >= 0x7f {
			clean = false
			break
		}
	}
	if clean {
		return string(b)
	}
	var out strings.Builder
	out.Grow(len(b))
	for len(b) > 0 {
		c, n := utf8.DecodeRune(b)
		switch {
		case c == '\n':
			out.WriteByte(' ')
		case c < ' ' || c == 0x7f || (c == utf8.RuneError && n == 1) || (c >= 0x80 && c < 0xa0):
			out.WriteByte('?')
		default:
			out.Write(b[:n])
		}
		b = b[n:]
	}
	return out.String()
}

// errReplyLimit is the error for a reply without end. A server must not be able to
// hold a delivery for ever.
var errReplyLimit = errors.New("reply is too long")

// wire is the two directions of a connection, bounded in time and size. It belongs
// to one goroutine. Only stopping and the deadlines of conn are set by others, to
// end a wait.
type wire struct {
	conn net.Conn // the TLS connection once there is one
	in   []byte   // buffer; in[r:w] has been read from conn and not used
	r, w int
	out  []byte // commands that have not been sent
	raw  []byte // lines of the present reply
	line int    // limit of a reply line
	cut  int    // octets of the present reply that were over it, and have been passed over

	// timed says that the next reply's deadline has been set: by ask.
	timed bool

	// stopping says that the service must stop now. It is looked at whenever a
	// deadline has been set, since that may have undone the one by which the
	// connection was cut off.
	stopping atomic.Bool

	garbage func(line []byte) // is told of lines that are no part of a reply
	// filter is smtp_reply_filter: what it returns is taken for the line; nil: none.
	filter func(line []byte) []byte
	trace  func(arrow string, text []byte) // debug_peer_list; not told of content, nor of secrets

	notes  *notice.Transcript // for postmaster; nil: nobody wants any
	secret bool               // what is sent is part of a login
}

// inSize is the size of the buffer for replies, in octets, and so the longest line that
// line_length_limit can have kept.
const inSize = 4096

// newWire makes a wire of a connection whose reply lines are kept up to lineLimit
// octets.
func newWire(conn net.Conn, lineLimit int) *wire {
	return &wire{conn: quickio.New(conn), in: make([]byte, inSize), line: min(lineLimit, inSize), out: make([]byte, 0, 1024)}
}

// until turns a limit into a deadline for conn; no limit is no deadline.
func until(limit time.Duration) time.Time {
	if limit <= 0 {
		return time.Time{}
	}
	return time.Now().Add(limit)
}

// flush sends the gathered commands, within limit. With PIPELINING all of them go
// out in one packet.
func (w *wire) flush(limit time.Duration) error {
	if len(w.out) == 0 {
		return nil
	}
	if err := w.writeBy(until(limit)); err != nil {
		return err
	}
	w.recordSent()
	_, err := w.conn.Write(w.out)
	w.out = reuse.Truncated(w.out)
	return err
}

// ask does what flush does and reads the start of the answer, over a connection
// that nobody has looked at for a while. Its errors are those of either, and
// quickio.ErrUnasked when the server has ended it meanwhile or has said something:
// nothing has been sent then.
func (w *wire) ask(conn *quickio.Conn, limit time.Duration) error {
	if err := w.unlessStopping(conn.SetDeadline(until(limit))); err != nil {
		return err
	}
	w.recordSent()
	n, err := conn.Ask(w.out, w.in)
	w.out, w.r, w.w = reuse.Truncated(w.out), 0, n
	w.timed = err == nil
	return err
}

// recordSent has the trace and the transcript know of the gathered commands,
// without what is secret.
func (w *wire) recordSent() {
	if w.trace != nil {
		w.trace(">", w.out)
	}
	switch {
	case w.notes == nil:
	case w.secret:
		w.notes.Out([]byte(notice.Secret))
	default:
		for line := range bytes.Lines(w.out) {
			w.notes.Out(notice.Redact(line))
		}
	}
}

// writeBy sets the time by which the next write must be done. Once the service must
// stop, the error is that of a deadline.
func (w *wire) writeBy(at time.Time) error {
	return w.unlessStopping(w.conn.SetWriteDeadline(at))
}

// unlessStopping is err, that of setting a deadline, or says that the service must
// stop now.
func (w *wire) unlessStopping(err error) error {
	if err == nil && w.stopping.Load() {
		return os.ErrDeadlineExceeded
	}
	return err
}

// readLine returns the next line without its end, at most w.line octets of it; the
// rest is skipped. It is good until the next read. deadline is set on the
// connection before the first read that waits.
func (w *wire) readLine(deadline *deadline) ([]byte, error) {
	for from := w.r; ; {
		if i := bytes.IndexByte(w.in[from:w.w], '\n'); i >= 0 {
			line := w.in[w.r : from+i]
			w.r = from + i + 1
			return clip(line, w.line), nil
		}
		// The line is as long as it may be and has no end yet.
		if w.w-w.r >= w.line {
			return w.longLine(deadline)
		}
		if w.r > 0 {
			w.w = copy(w.in, w.in[w.r:w.w])
			w.r = 0
		}
		from = w.w
		if err := w.fill(deadline); err != nil {
			return nil, err
		}
	}
}

// clip takes trailing CRs off a line and bounds its length, in octets. It does not
// copy.
func clip(line []byte, limit int) []byte {
	for len(line) > 0 && line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	return line[:min(len(line), limit)]
}

// longLine keeps the start of a line that exceeds the limit and skips the rest, up
// to maxReplyBytes. The start is copied: the buffer is used again for the rest.
func (w *wire) longLine(deadline *deadline) ([]byte, error) {
	line := append([]byte(nil), w.in[w.r:w.r+w.line]...)
	for w.r += w.line; ; {
		if i := bytes.IndexByte(w.in[w.r:w.w], '\n'); i >= 0 {
			w.r += i + 1
			if w.cut += i; w.cut > maxReplyBytes {
				return nil, errReplyLimit
			}
			return line, nil
		}
		if w.cut += w.w - w.r; w.cut > maxReplyBytes {
			return nil, errReplyLimit
		}
		w.r, w.w = 0, 0
		if err := w.fill(deadline); err != nil {
			return nil, err
		}
	}
}

// deadline is the limit of a whole reply, set when first needed: a reply that
// has been read already costs nothing.
type deadline struct {
	limit time.Duration // from the first read that waits; not above 0: none
	set   bool
}

// fill reads more into the buffer, which has room. It waits for one octet at least.
func (w *wire) fill(d *deadline) error {
	if !d.set {
		if err := w.unlessStopping(w.conn.SetReadDeadline(until(d.limit))); err != nil {
			return err
		}
		d.set = true
	}
	n, err := w.conn.Read(w.in[w.w:])
	w.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// readReply reads one reply within limit. each, if not nil, is given the text
// of each line after the code. Lines that are no part of a reply do not end
// it; they are in its text, for people to see.
func (w *wire) readReply(limit time.Duration, each func(line []byte)) (reply, error) {
	var r reply
	w.raw, w.cut = reuse.Truncated(w.raw), 0
	d := deadline{limit: limit, set: w.timed}
	w.timed = false
	for n, size := 0, 0; ; n++ {
		line, err := w.readLine(&d)
		if err != nil {
			return r, err
		}
		if size += len(line); n >= maxReplyLines || size+w.cut > maxReplyBytes {
			return r, fmt.Errorf("%w: over %d lines or %d octets", errReplyLimit, maxReplyLines, maxReplyBytes)
		}
		if w.trace != nil {
			w.trace("<", line)
		}
		if w.filter != nil {
			line = clip(w.filter(line), w.line)
		}
		if len(w.raw) > 0 {
			w.raw = append(w.raw, '\n')
		}
		w.raw = append(w.raw, line...)
		code, ok := replyCode(line)
		if !ok {
			// Some servers break a long text into lines without codes: it is waited for one that
			// has a code.
			if w.garbage != nil {
				w.garbage(line)
			}
			continue
		}
		rest := line[min(4, len(line)):]
		if each != nil {
			each(rest)
		}
		// The code of the last line counts, should they differ (RFC 5321 section 4.2.1).
		if len(line) > 3 && line[3] == '-' {
			continue
		}
		if w.notes != nil {
			w.notes.In(w.raw)
		}
		r.code, r.raw = code, w.raw
		r.status = replyStatus(code, rest)
		return r, nil
	}
}

// replyCode reads the three digits that start a line of a reply and are
// followed by a blank, a hyphen or nothing. RFC 5321 section 4.2 wants text
// after a final code, but there are servers without.
func replyCode(line []byte) (int, bool) {
	if len(line) < 3 || (len(line) > 3 && line[3] != ' ' && line[3] != '-') {
		return 0, false
	}
	code := 0
	for _, c := range line[:3] {
		if c < '0' || c > '9' {
			return 0, false
		}
		code = code*10 + int(c-'0')
	}
	return code, true
}

// replyStatus is the enhanced code of a reply if it agrees with the code, else
// one that says no more than the code.
func replyStatus(code int, text []byte) dsn.Status {
	class := uint8(code / 100)
	text = text[:min(len(text), 16)] // longer than any code
	if s, _, ok := dsn.CutStatus(string(bytes.TrimLeft(text, " "))); ok && s.Class == class {
		return s
	}
	if class == 2 || class == 4 || class == 5 {
		return dsn.S(class, 0, 0)
	}
	return dsn.Status{}
}
