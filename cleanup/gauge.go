// The gauge: what the envelope says about the content. It is taken from the octets that
// are stored, after everything that may change them, because agents choose BODY=8BITMIME
// and SMTPUTF8 by it, and a filter may have added the first octet over 127.

package cleanup

import (
	"bytes"

	"posthaste/internal/mail"
)

// longLine is how long a line may be without its end (RFC 5321 section 4.5.3.1.6: 1000
// octets with it).
const longLine = 998

// gauged are the properties of content that a gauge finds, with the mark that
// it has.
const gauged = mail.Body8Bit | mail.BodyUTF8Hdr | mail.BodyDots | mail.BodyLong | mail.BodyGauged

// A gauge finds out of the octets that are stored what the envelope says of
// them. Whatever is stored goes through [Message.pass], and so through the
// message's gauge: header and body, received, rewritten, made here, or edited
// by filters. The zero gauge stands at the beginning of a message.
type gauge struct {
	size    int64
	lineLen int // of the line that the last piece ended in, without its end
	flags   mail.Body
	inBody  bool // the empty line that ends the header has been seen
}

// add takes the next piece. It is false, and nothing is changed, if a CR or LF
// of the piece is not part of a line end: a line end must not be cut in two.
func (g *gauge) add(p []byte) (clean bool) {
	next := *g
	// When there are as many CRs as lines, and one before each LF, none is stray:
	// counting them all at once is less work than to look for them in each line.
	crs := bytes.Count(p, crlf[:1])
	body := p // what of the piece is not header
	for rest := p; len(rest) > 0; {
		// SMTP must double such a dot (RFC 5321 section 4.5.2); agents skip the search if
		// there is none.
		if next.lineLen == 0 && rest[0] == '.' {
			next.flags |= mail.BodyDots
		}
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			next.lineLen += len(rest)
			if next.lineLen > longLine {
				next.flags |= mail.BodyLong
			}
			if !next.inBody {
				body = nil
			}
			break
		}
		// A bare LF, or a CR that was in the piece before.
		if i == 0 || rest[i-1] != '\r' {
			return false
		}
		crs--
		next.lineLen += i - 1
		if next.lineLen > longLine {
			next.flags |= mail.BodyLong
		}
		rest = rest[i+1:]
		if !next.inBody {
			next.inBody, body = next.lineLen == 0, rest
		}
		next.lineLen = 0
	}
	// Some CR was not before an LF.
	if crs != 0 {
		return false
	}
	// Octets over 127 in the header need SMTPUTF8 (RFC 6532), in the body only 8BITMIME
	// (RFC 6152).
	if head := p[:len(p)-len(body)]; eight(head) {
		next.flags |= mail.Body8Bit | mail.BodyUTF8Hdr
	}
	if next.flags&mail.Body8Bit == 0 && eight(body) {
		next.flags |= mail.Body8Bit
	}
	// Only a piece that was clean counts: the caller mends it and adds it again.
	next.size += int64(len(p))
	*g = next
	return true
}

// describe puts what was found into an envelope. BodyGauged tells agents that they may
// rely on it.
func (g *gauge) describe(env *mail.Envelope) {
	env.Size = g.size
	env.Body = env.Body&^gauged | g.flags | mail.BodyGauged
}
