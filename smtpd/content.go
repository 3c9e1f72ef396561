// The content of a message as it comes from the client: where it ends, and what of it
// is passed on. This knows nothing of sessions, and is fuzzed by itself.

package smtpd

import (
	"bytes"
	"io"
)

// content takes the lines that follow DATA, finds their end, and writes what
// is between as CRLF lines without dot-stuffing. It sees the input in
// pieces of any size; what it writes does not depend on where they are cut.
//
// The end is CRLF "." CRLF and nothing else (RFC 5321 section 4.1.1.4): other
// systems take other things for line ends, and whoever can make two systems
// disagree on where a message ends can put a message of their own between.
// A line that ends in LF alone is taken for a line all the same, and a lone
// dot on such a line, or after one, is dropped, so that nobody behind us takes
// it for the end. Only to a client that sends bare LF as a matter of course
// (lenient: it is trusted, and even its DATA command ended so) is LF "." LF
// the end.
type content struct {
	// w receives the content. It remembers its own errors: reading goes on to the
	// end.
	w io.Writer
	// lenient: LF "." LF ends the message, see above. The session sets it.
	lenient bool
	// whole is for BDAT: dots are dots, and the end is known from elsewhere.
	whole bool
	// limit is the largest size in octets; 0: none. What is beyond it is not written.
	limit int64

	size    int64 // octets of content, CRLF counted as two, whatever was received
	over    bool  // more than limit
	bareLF  bool  // some line ended in LF alone
	cont    bool  // in the middle of a line whose beginning was written
	afterLF bool  // the line before this one ended in LF alone
	begun   bool  // the first line after those of a mailbox has been seen
}

// feed takes input. It returns how much of it was used and whether the end
// has been seen; what is left is an incomplete line, and is to be offered
// again with more behind it.
func (c *content) feed(b []byte) (used int, done bool) {
	// The loop looks at whole lines only. Lines that can go out as they are gather
	// in b[run:line] and are written at once: most mail has no other lines.
	run := 0 // b[run:line] is ready to be written as it is
	line := 0
	for {
		i := bytes.IndexByte(b[line:], '\n')
		if i < 0 {
			break
		}
		end := line + i // of the line, at its LF
		text := end
		crlf := text > line && b[text-1] == '\r'
		if crlf {
			text--
		}
		if !crlf {
			c.bareLF = true
		}
		begun := c.begun
		if !c.begun && !c.cont {
			c.put(b[run:line])
			run = line
			c.guardFirstLine(b[line:text])
		}
		if text > line && b[line] == '.' && !c.cont && !c.whole {
			c.put(b[run:line])
			if text == line+1 {
				if crlf && !c.afterLF || c.lenient {
					return end + 1, true
				}
				// It looks like an end, and must not to anybody.
				c.begun = begun
				c.afterLF = !crlf
				line = end + 1
				run = line
				continue
			}
			run = line + 1 // RFC 5321 section 4.5.2
		}
		// The line must not go out as it is: its end was LF alone, or CRs stand
		// before the CRLF, which some server behind us may take for line ends of
		// their own.
		if !crlf || text > line && b[text-1] == '\r' {
			for text > line && b[text-1] == '\r' {
				text--
			}
			c.put(b[run:max(text, run)])
			c.put(crlfBytes)
			run = end + 1
		}
		c.afterLF, c.cont = !crlf, false
		line = end + 1
	}
	c.put(b[run:line])
	return line, false
}

var crlfBytes = []byte("\r\n")

// overlong takes the beginning of a line that has no end in sight, all of b but the
// CRs at its end, which may be part of the line's. It returns how much of it was
// used. It is called when the reader's buffer is full of one line.
func (c *content) overlong(b []byte) (used int) {
	n := len(b)
	for n > 0 && b[n-1] == '\r' {
		n--
	}
	if n == 0 {
		// Nothing but CRs: they mean nothing, however many; keep one.
		return len(b) - 1
	}
	text := b[:n]
	if !c.begun && !c.cont {
		c.guardFirstLine(text)
	}
	if !c.cont && !c.whole && text[0] == '.' {
		text = text[1:]
	}
	c.put(text)
	c.cont = true
	return n
}

// guardFirstLine sees to it that the first line does not continue what stands
// before it, which is a header field of ours: a line that begins with a blank is
// put behind an empty line, and is body then. The "From " lines of mailboxes, which
// some programs send as if they were part of the header, become a header field, as
// with Postfix. A dot that is taken away, and a stray CR that may become a blank
// later, do not hide either.
func (c *content) guardFirstLine(line []byte) {
	c.begun = true
	line = bytes.TrimRight(line, "\r")
	if !c.whole {
		line = bytes.TrimPrefix(line, []byte("."))
	}
	switch {
	case len(line) == 0:
	case line[0] == ' ', line[0] == '\t', line[0] == '\r':
		c.put(crlfBytes)
	case bytes.HasPrefix(bytes.TrimLeft(line, ">"), []byte("From ")):
		c.put([]byte("X-Mailbox-Line: "))
		c.begun = false
	}
}

// put writes p, and counts it against limit. The piece that exceeds the limit is
// not written at all.
func (c *content) put(p []byte) {
	if len(p) == 0 {
		return
	}
	c.size += int64(len(p))
	if c.limit > 0 && c.size > c.limit {
		c.over = true
	}
	if !c.over {
		c.w.Write(p)
	}
}
