package inject

import (
	"bytes"
	"io"

	"posthaste/internal/rfc5322"
)

// maxRawHeader bounds the header of a message that comes whole: that much is in memory, to be looked at.
const maxRawHeader = 256 << 10

// A head is what is looked at in the header of a message that comes whole.
type head struct {
	senders   []string // addresses of From, Sender, Resent-From and Resent-Sender
	messageID string   // without angle brackets; empty: none
	hasFrom   bool
}

// cutHeader says where the header ends in b, whose lines end in LF or CRLF: behind the empty line. It
// is 0 if that is not there yet; last says that nothing more comes.
func cutHeader(b []byte, last bool) int {
	for i := 0; i < len(b); {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			break
		}
		if line := bytes.TrimSuffix(b[i:i+n], []byte("\r")); len(line) == 0 {
			return i + n + 1
		}
		i += n + 1
	}
	if last {
		return len(b)
	}
	return 0
}

// readHead looks at a header. Its lines end in CRLF.
func readHead(b []byte) (h head, err error) {
	if bytes.IndexByte(b, 0) >= 0 {
		return h, refuse("the header has a NUL")
	}
	if bytes.Count(b, []byte("\r")) != bytes.Count(b, crlf) || bytes.Count(b, []byte("\n")) != bytes.Count(b, crlf) {
		return h, refuse("the header has a CR that is no end of a line")
	}
	number := 0
	for len(b) > 0 && !bytes.HasPrefix(b, crlf) {
		f, rest, ok := rfc5322.NextField(b)
		if number++; !ok {
			return h, refuse("the header has a line, behind field %d, that is no header field", number-1)
		}
		b = rest
		switch name := f.Name(); {
		case rfc5322.EqualName(name, "From"):
			if h.hasFrom {
				return h, refuse("the header has two fields From")
			}
			h.hasFrom = true
			h.senders = append(h.senders, fieldAddresses(f.Value())...)
		case rfc5322.EqualName(name, "Sender"), rfc5322.EqualName(name, "Resent-From"), rfc5322.EqualName(name, "Resent-Sender"):
			h.senders = append(h.senders, fieldAddresses(f.Value())...)
		case rfc5322.EqualName(name, "Message-ID"):
			id := bytes.TrimSuffix(bytes.TrimPrefix(f.Value(), []byte("<")), []byte(">"))
			if len(id) <= maxLine && !hasLineControl(id) && isASCII(id) {
				h.messageID = string(id)
			}
		}
	}
	switch {
	case number == 0:
		return h, refuse("the message has no header")
	case !h.hasFrom || len(h.senders) == 0:
		return h, refuse("the header has no From with an address")
	}
	return h, nil
}

// A liner gives lines that end in LF or CRLF the end CRLF. A CR elsewhere stays: cleanup knows what to
// do with it.
type liner struct {
	w  io.Writer
	cr bool // the last octet was a CR
	// midline says that what was written last is the beginning of a line.
	midline bool
}

// Write implements io.Writer.
func (l *liner) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			l.cr, l.midline = p[len(p)-1] == '\r', true
			_, err := l.w.Write(p)
			return n, err
		}
		ended := i > 0 && p[i-1] == '\r' || i == 0 && l.cr
		if ended {
			i++
			// Whole lines that are right already go on as one.
			for {
				j := bytes.IndexByte(p[i:], '\n')
				if j < 1 || p[i+j-1] != '\r' {
					break
				}
				i += j + 1
			}
		}
		if _, err := l.w.Write(p[:i]); err != nil {
			return n, err
		}
		if !ended {
			if _, err := l.w.Write(crlf); err != nil {
				return n, err
			}
			i++
		}
		p = p[i:]
		l.cr, l.midline = false, false
	}
	return n, nil
}

// end ends the last line.
func (l *liner) end() error {
	if !l.midline {
		return nil
	}
	end := crlf
	if l.cr {
		end = crlf[1:]
	}
	_, err := l.w.Write(end)
	return err
}
