package mailauth

import (
	"bufio"
	"crypto/sha256"
	"hash"
	"io"
)

// bodyHash is the SHA-256 of a body by RFC 6376 section 3.4.3 or 3.4.4: without the empty lines at its
// end, and, if it is relaxed, without white space at the ends of lines, and with one space for any other.
func bodyHash(body io.Reader, relaxed bool) ([]byte, error) {
	b := canonicalBody{h: sha256.New(), relaxed: relaxed}
	b.out = bufio.NewWriterSize(b.h, 8<<10)
	chunk := make([]byte, 16<<10)
	for {
		n, err := body.Read(chunk)
		b.write(chunk[:n])
		if err == io.EOF {
			return b.sum(), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// A canonicalBody is a body that is being hashed. What is not known yet to be a part of it waits.
type canonicalBody struct {
	h       hash.Hash
	out     *bufio.Writer // to h, which has no errors
	relaxed bool

	lines int  // line ends that wait
	space bool // white space that waits
	cr    bool // a CR, of which it is not known whether an LF follows
	some  bool // something was written
}

// plain says that a character is written as it is. A space is, between two such.
func (b *canonicalBody) plain(c byte) bool {
	return c != '\r' && c != '\n' && (!b.relaxed || c != ' ' && c != '\t')
}

// write takes in the next octets.
func (b *canonicalBody) write(p []byte) {
	for i := 0; i < len(p); {
		c := p[i]
		if b.cr && c != '\n' {
			b.put([]byte("\r"))
		}
		b.cr = false
		switch {
		case c == '\r':
			b.cr = true
			i++
		case c == '\n':
			b.lines, b.space = b.lines+1, false
			i++
		case b.plain(c):
			end := i + 1
			for end < len(p) && (b.plain(p[end]) || p[end] == ' ' && end+1 < len(p) && b.plain(p[end+1])) {
				end++
			}
			b.put(p[i:end])
			i = end
		default:
			b.space = true
			i++
		}
	}
}

// put writes octets, after what waits before them.
func (b *canonicalBody) put(p []byte) {
	for ; b.lines > 0; b.lines-- {
		b.out.WriteString("\r\n")
	}
	if b.space {
		b.out.WriteByte(' ')
	}
	b.out.Write(p)
	b.some, b.space = true, false
}

// sum ends the body.
func (b *canonicalBody) sum() []byte {
	if b.cr {
		b.put([]byte("\r"))
	}
	if b.some || !b.relaxed { // an empty body is a line end, or, relaxed, nothing
		b.out.WriteString("\r\n")
	}
	b.out.Flush()
	return b.h.Sum(nil)
}
