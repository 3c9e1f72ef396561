package smtpwire

import (
	"errors"
	"strconv"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/reuse"
)

// A Reply is what a server says to a command, RFC 5321 section 4.2.
type Reply struct {
	Code   int        // 200 to 599
	Status dsn.Status // zero: none is sent (RFC 2034 section 4 names the replies without)
	Text   string     // lines separated by "\n", without code and status
}

// R makes a Reply; it is meant for constants in code.
func R(code int, status dsn.Status, text string) *Reply { return &Reply{code, status, text} }

// maxReplyText bounds the text of one line: RFC 5321 section 4.5.3.1.5 gives
// a reply line 512 octets, code and CRLF included.
const maxReplyText = 510

// Append appends the reply as it goes over the wire. The status stands on
// every line. Characters that would end a line or confuse a terminal become
// "?"; lines that are too long for RFC 5321 section 4.5.3.1.5 are cut.
func (r *Reply) Append(b []byte) []byte {
	for text := r.Text; ; {
		line, rest, more := strings.Cut(text, "\n")
		start := len(b)
		b = strconv.AppendInt(b, int64(r.Code), 10)
		if more {
			b = append(b, '-')
		} else {
			b = append(b, ' ')
		}
		if !r.Status.IsZero() {
			b = append(r.Status.Append(b), ' ')
		}
		b = appendPrintable(b, line)
		if len(b)-start > maxReplyText {
			b = b[:start+maxReplyText]
		}
		b = append(b, '\r', '\n')
		if !more {
			return b
		}
		text = rest
	}
}

// String is the reply on one line, as logs have it.
func (r *Reply) String() string {
	b := strconv.AppendInt(make([]byte, 0, 80), int64(r.Code), 10)
	b = append(b, ' ')
	if !r.Status.IsZero() {
		b = append(r.Status.Append(b), ' ')
	}
	line, rest, more := strings.Cut(r.Text, "\n")
	b = appendPrintable(b, line)
	for more {
		line, rest, more = strings.Cut(rest, "\n")
		b = appendPrintable(append(b, ' '), line)
	}
	return string(b)
}

func appendPrintable(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' && c != '\t' || c == 127 {
			b = append(b, '?')
		} else {
			b = append(b, c)
		}
	}
	return b
}

// Printable returns s with control characters replaced by "?".
func Printable(s string) string {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == 127 {
			return string(appendPrintable(make([]byte, 0, len(s)), s))
		}
	}
	return s
}

// ParseReply reads a reply from the text of a table or a policy server:
// a code, perhaps an enhanced status, and text. ok is false when text does
// not start with a reply code of class 2, 4 or 5.
func ParseReply(text string) (r Reply, ok bool) {
	if len(text) < 3 || len(text) > 3 && text[3] != ' ' && text[3] != '\t' {
		return Reply{}, false
	}
	code, err := strconv.Atoi(text[:3])
	if err != nil || text[0] != '2' && text[0] != '4' && text[0] != '5' {
		return Reply{}, false
	}
	r.Code = code
	r.Text = strings.TrimLeft(text[3:], " \t")
	if st, rest, ok := dsn.CutStatus(r.Text); ok {
		r.Status, r.Text = st, rest
	}
	return r, true
}

// Limits on a reply from a server, whoever it is.
const (
	MaxReplyLines = 200
	MaxReplySize  = 64 << 10
)

var (
	errReplyLine  = errors.New("malformed reply line")
	errReplyCode  = errors.New("lines of one reply have different codes")
	errReplyLarge = errors.New("reply is too long")
)

// A Parser puts a reply together from its lines. The zero Parser is ready
// for the first line.
type Parser struct {
	reply Reply
	lines int
	text  []byte
}

// Line adds one line, without its line end. done says that it was the last
// one: Reply then has the whole. A code without text is taken (RFC 5321
// section 4.2: the text is optional for the receiver). After an error the
// connection is of no use.
func (p *Parser) Line(line string) (done bool, err error) {
	if len(line) < 3 || len(line) > 3 && line[3] != ' ' && line[3] != '-' {
		return false, errReplyLine
	}
	code := 0
	for i := range 3 {
		if line[i] < '0' || line[i] > '9' {
			return false, errReplyLine
		}
		code = code*10 + int(line[i]-'0')
	}
	if code < 200 || code > 599 {
		return false, errReplyLine
	}
	if p.lines > 0 && code != p.reply.Code {
		return false, errReplyCode
	}
	p.reply.Code = code
	text := ""
	if len(line) > 4 {
		text = line[4:]
	}
	if p.lines++; p.lines > MaxReplyLines || len(p.text)+len(text) > MaxReplySize {
		return false, errReplyLarge
	}
	if p.lines > 1 {
		p.text = append(p.text, '\n')
	}
	p.text = append(p.text, text...)
	return len(line) == 3 || line[3] == ' ', nil
}

// Reply returns what the lines came to and makes p ready for the next reply.
// The status is that of the first line, and is taken out of all lines that
// have it; one whose class does not fit the code is no status.
func (p *Parser) Reply() Reply {
	r := p.reply
	text := string(p.text)
	*p = Parser{text: reuse.Truncated(p.text)}
	st, _, ok := dsn.CutStatus(text)
	if !ok || int(st.Class) != r.Code/100 {
		r.Text = text
		return r
	}
	r.Status = st
	first, tail, more := strings.Cut(text, "\n")
	_, rest, _ := dsn.CutStatus(first)
	var b strings.Builder
	b.WriteString(rest)
	for more {
		first, tail, more = strings.Cut(tail, "\n")
		if s, cut, ok := dsn.CutStatus(first); ok && s == st {
			first = cut
		}
		b.WriteByte('\n')
		b.WriteString(first)
	}
	r.Text = b.String()
	return r
}
