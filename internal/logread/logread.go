// Package logread reads the mail log: what package maillog has written, by whatever way it went.
//
// # Forms
//
// A line is in one of these forms, which may be mixed:
//
//	Nov 20 17:56:01 mx postfix/smtpd[1357]: 076AF9D46E1: client=unknown[127.0.0.1]
//	2026-11-20T17:56:01.123456+01:00 mx postfix/smtpd[1357]: 076AF9D46E1: client=unknown[127.0.0.1]
//	{"time":"2026-11-20T17:56:01.123456+01:00","process":"postfix/smtpd","pid":1357, ... "text":"076AF9D46E1: ..."}
//
// The second one is what log services write with precise times. A JSON object may also stand
// behind the beginning of a line of one of the other forms. Lines of other programs are passed over, and so is
// what is longer than 1 MiB. The first form has no year: it is the last one in which
// the line does not lie more than a day in the future. It has no time zone either: whoever reads it says which.
//
// Files that gzip, bzip2, xz, zstd or lz4 has compressed are read as they are ([Open]). For the last three of these
// their programs are executed.
//
// # Security
//
// What stands in the text of a line comes from strangers. [Line.Address] knows how
// addresses are quoted, so that no address can look like what follows one. (With
// info_log_address_format = internal that cannot be told.) Who trusts a line should look at
// its program first.
package logread

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"posthaste/internal/reuse"
)

// maxLine bounds a line of a log, in octets.
const maxLine = 1 << 20

// A Line is one line of the log. Its slices are good until the next call of Next.
type Line struct {
	Raw      []byte // all of it, without the line end
	Time     int64  // microseconds since 1970; 0: it has none that can be read
	Guessed  bool   // the line has neither the year nor the time zone of Time: these are the Reader's
	Host     []byte // the machine; empty: the line does not say
	Tag      []byte // postfix/submission/smtpd
	Instance []byte // postfix, or another syslog_name: the tag up to its first slash
	Program  []byte // smtpd: the tag behind its last slash
	Process  []byte // number of the process
	Level    []byte // warning, error, fatal, panic; empty: what usually happens
	ID       []byte // queue ID; empty: the line is about no message, or about one that has none yet (NOQUEUE)
	Text     []byte // what follows
}

// A Reader reads lines. It may not be used concurrently.
type Reader struct {
	br   *bufio.Reader
	long []byte // a line that does not fit into br
	text []byte // the text of a JSON object
	line Line
	now  time.Time

	stamp string // the last one that was parsed, up to its seconds
	at    int64
}

// NewReader reads from r. now is the time that lines without a year lie before; they are of its time zone.
func NewReader(r io.Reader, now time.Time) *Reader {
	return &Reader{br: bufio.NewReaderSize(r, 256<<10), now: now}
}

// NewParser is a Reader for lines that the caller has read: it has only Parse.
func NewParser(now time.Time) *Reader { return &Reader{now: now} }

// Parse takes a line apart, which has no line end. It says whether it is one of a service or a tool of a mail
// system. What it returns is good until the next call, and as long as b is.
func (r *Reader) Parse(b []byte) (*Line, bool) {
	r.line = Line{Raw: b}
	return &r.line, len(b) <= maxLine && r.parse(b)
}

// Next returns the next line of a service or a tool of a mail system. At the end it returns io.EOF.
func (r *Reader) Next() (*Line, error) {
	for {
		b, err := r.read()
		if err != nil {
			return nil, err
		}
		r.line = Line{Raw: b}
		if r.parse(b) {
			return &r.line, nil
		}
	}
}

// read returns the next line that is not too long.
func (r *Reader) read() ([]byte, error) {
	for {
		b, err := r.br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			b, err = r.rest(b)
		}
		if len(b) > 0 && len(b) <= maxLine {
			return bytes.TrimSuffix(b, []byte("\n")), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// rest reads the rest of a line that is longer than the buffer.
func (r *Reader) rest(b []byte) (line []byte, err error) {
	r.long = append(reuse.Truncated(r.long), b...)
	for {
		b, err = r.br.ReadSlice('\n')
		if len(r.long) <= maxLine {
			r.long = append(r.long, b...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return r.long, err
		}
	}
}

// parse takes a line apart. It says whether it is one of a mail system.
func (r *Reader) parse(b []byte) bool {
	l := &r.line
	if len(b) > 0 && b[0] == '{' {
		return r.object(b)
	}
	end := bytes.Index(b, []byte("]: "))
	if end < 0 {
		return false
	}
	open := bytes.LastIndexByte(b[:end], '[')
	begin := bytes.LastIndexByte(b[:max(open, 0)], ' ') + 1
	if open < 0 || !l.tag(b[begin:open]) || !digits(b[open+1:end]) {
		return false
	}
	l.Process = b[open+1 : end]
	if begin > 0 {
		// What has a colon in it is the time: there is no host.
		if h := b[bytes.LastIndexByte(b[:begin-1], ' ')+1 : begin-1]; bytes.IndexByte(h, ':') < 0 {
			l.Host = h
		}
	}
	text := b[end+3:]
	if bytes.HasPrefix(text, []byte(`{"time":"`)) {
		return r.object(text)
	}
	l.Time = r.time(b)
	l.cut(text)
	return true
}

// tag takes instance and program out of a tag: postfix/smtpd, postfix/submission/smtpd.
func (l *Line) tag(b []byte) bool {
	first, last := bytes.IndexByte(b, '/'), bytes.LastIndexByte(b, '/')
	if first < 0 {
		return false
	}
	l.Tag, l.Instance, l.Program = b, b[:first], b[last+1:]
	return len(l.Instance) > 0 && len(l.Program) > 0
}

var levels = [...]string{"warning: ", "error: ", "fatal: ", "panic: "}

// cut takes the level and the queue ID off a text.
func (l *Line) cut(text []byte) {
	for _, v := range levels {
		if len(text) > len(v) && text[0] == v[0] && string(text[:len(v)]) == v {
			l.Level, text = text[:len(v)-2], text[len(v):]
			break
		}
	}
	l.Text = text
	n, figures := 0, false
	for n < len(text) && (isDigit(text[n]) || isLetter(text[n])) {
		figures = figures || isDigit(text[n])
		n++
	}
	if n < 6 || n+1 >= len(text) || text[n] != ':' || text[n+1] != ' ' {
		return
	}
	if figures {
		l.ID, l.Text = text[:n], text[n+2:]
	} else if string(text[:n]) == "NOQUEUE" {
		l.Text = text[n+2:]
	}
}

func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
func isLetter(c byte) bool { c |= 0x20; return c >= 'a' && c <= 'z' }

func digits(b []byte) bool {
	for _, c := range b {
		if !isDigit(c) {
			return false
		}
	}
	return len(b) > 0
}

// object takes a JSON object apart, of which only what the other forms have is wanted: that
// is in the text.
func (r *Reader) object(b []byte) bool {
	l := &r.line
	tagged, found := false, false
	for p := b[1:]; len(p) > 0 && p[0] == '"'; {
		key, rest, ok := jsonString(p, nil)
		if !ok || len(rest) == 0 || rest[0] != ':' {
			return false
		}
		value := rest[1:]
		switch string(key) {
		case "time", "process", "text":
			var dst []byte
			if key[1] == 'e' { // text may have escapes
				dst = r.text[:0]
			}
			var v []byte
			if v, rest, ok = jsonString(value, dst); !ok {
				return false
			}
			switch key[0] {
			case 'p':
				tagged = l.tag(v)
			case 't':
				if key[1] == 'i' {
					l.Time = r.time(v)
					break
				}
				if dst != nil && cap(v) > cap(r.text) {
					r.text = v[:0]
				}
				found = true
				l.cut(v)
			}
		default:
			if rest, ok = jsonSkip(value); !ok {
				return false
			}
			switch string(key) {
			case "pid":
				l.Process = value[:len(value)-len(rest)]
			case "host":
				l.Host = bytes.Trim(value[:len(value)-len(rest)], `"`)
			}
		}
		if len(rest) == 0 || rest[0] != ',' {
			break
		}
		p = rest[1:]
	}
	return tagged && found
}

// jsonString reads the string that b begins with. One with escapes is put into dst.
func jsonString(b, dst []byte) (s, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, false
	}
	b = b[1:]
	end := bytes.IndexByte(b, '"')
	if end < 0 {
		return nil, nil, false
	}
	if bytes.IndexByte(b[:end], '\\') < 0 {
		return b[:end], b[end+1:], true
	}
	dst = dst[:0]
	for i := 0; i < len(b); i++ {
		switch c := b[i]; c {
		case '"':
			return dst, b[i+1:], true
		case '\\':
			if i++; i == len(b) {
				return nil, nil, false
			}
			if b[i] == 'u' && i+4 < len(b) {
				r, n := jsonRune(b[i-1:])
				dst = utf8.AppendRune(dst, r)
				i += n - 2
			} else if b[i] == '"' || b[i] == '\\' || b[i] == '/' {
				dst = append(dst, b[i])
			} else {
				dst = append(dst, '?') // a control character
			}
		default:
			dst = append(dst, c)
		}
	}
	return nil, nil, false
}

// jsonRune is the character that b begins with, \uXXXX or a surrogate pair of two such (RFC 8259
// section 7), and its length. b has at least six octets.
func jsonRune(b []byte) (r rune, n int) {
	v, _ := strconv.ParseUint(string(b[2:6]), 16, 32)
	if r = rune(v); utf16.IsSurrogate(r) && len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		low, _ := strconv.ParseUint(string(b[8:12]), 16, 32)
		if pair := utf16.DecodeRune(r, rune(low)); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return r, 6
}

// jsonSkip passes over the value that b begins with.
func jsonSkip(b []byte) (rest []byte, ok bool) {
	if len(b) > 0 && b[0] == '"' {
		_, rest, ok = jsonString(b, nil)
		return rest, ok
	}
	for depth, i := 0, 0; i < len(b); i++ {
		switch b[i] {
		case '[', '{':
			depth++
		case ']', '}':
			if depth == 0 {
				return b[i:], true
			}
			depth--
		case ',':
			if depth == 0 {
				return b[i:], true
			}
		case '"':
			_, after, ok := jsonString(b[i:], nil)
			if !ok {
				return nil, false
			}
			i = len(b) - len(after) - 1
		}
	}
	return nil, false
}

// time is the time that b begins with.
func (r *Reader) time(b []byte) int64 {
	const classic, precise = len("Nov 20 17:56:01"), len("2026-11-20T17:56:01")
	switch {
	case len(b) > precise && isDigit(b[0]) && b[10] == 'T':
		return r.precise(b)
	case len(b) > classic && b[3] == ' ' && b[6] == ' ' && b[9] == ':':
		r.line.Guessed = true
		if string(b[:classic]) == r.stamp {
			return r.at
		}
		t, err := time.ParseInLocation(time.Stamp, string(b[:classic]), r.now.Location())
		if err != nil {
			return 0
		}
		for year := r.now.Year() + 1; ; year-- {
			at := time.Date(year, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, r.now.Location())
			if at.Day() == t.Day() && !at.After(r.now.Add(24*time.Hour)) || year < r.now.Year()-8 {
				r.stamp, r.at = string(b[:classic]), at.UnixMicro()
				return r.at
			}
		}
	}
	return 0
}

// precise is time for RFC 3339, and for ISO 8601 without the colon in the zone.
func (r *Reader) precise(b []byte) int64 {
	const seconds = len("2026-11-20T17:56:01")
	if end := bytes.IndexByte(b, ' '); end >= 0 {
		b = b[:end]
	}
	micros, p := int64(0), b[seconds:]
	if len(p) > 0 && p[0] == '.' {
		p = p[1:]
		for unit := int64(100000); len(p) > 0 && isDigit(p[0]); p = p[1:] {
			micros += unit * int64(p[0]-'0')
			unit /= 10
		}
	}
	// What is kept is the second and the zone.
	if n := len(r.stamp); n == seconds+len(p) && r.stamp[:seconds] == string(b[:seconds]) && r.stamp[seconds:] == string(p) {
		return r.at + micros
	}
	stamp := string(b[:seconds]) + string(p)
	t, err := time.Parse(time.RFC3339, stamp)
	if err != nil {
		if t, err = time.Parse("2006-01-02T15:04:05Z0700", stamp); err != nil {
			return 0
		}
	}
	r.stamp, r.at = stamp, t.UnixMicro()
	return r.at + micros
}
