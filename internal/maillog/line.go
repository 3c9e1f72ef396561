package maillog

import (
	"bytes"
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"posthaste/internal/reuse"
)

// A Format is the form of whole lines that a sink wants.
type Format uint8

// The forms of lines.
const (
	Classic Format = iota // Nov 20 17:56:01 mx postfix/smtpd[1357]: text
	JSON                  // {"time":"...","host":"mx",...,"text":"text"}
	Plain                 // postsuper: text, for standard error
	// LocalSyslog is <22>Nov 20 17:56:01 postfix/smtpd[1357]: text, with the mail
	// facility; the sink puts in another one. RFC 3164 section 4.1.
	LocalSyslog
	SyslogHost // the same with the host, as it goes from one machine to another
	RFC5424    // <22>1 2026-11-20T17:56:01.123456Z mx.example.com postfix/smtpd 1357 - - text
)

// microTime is RFC 3339 with microseconds.
const microTime = "2006-01-02T15:04:05.000000Z07:00"

const syslogMail = 2 << 3 // facility "mail", RFC 3164 section 4.1.1

// A stamp before a line that goes to the postlog service is this byte, which
// no line has, and the time in microseconds since 1970 in 16 digits.
const (
	stampMark   = 1
	stampLength = 1 + 16
)

// CutStamp takes the stamp off a line that was sent to the postlog service,
// and returns the time in it. A line that has none has the time 0.
func CutStamp(line []byte) (micros int64, rest []byte) {
	if len(line) < stampLength || line[0] != stampMark {
		return 0, line
	}
	for _, c := range line[1:stampLength] {
		if c < '0' || c > '9' {
			return 0, line
		}
		micros = micros*10 + int64(c-'0')
	}
	return micros, line[stampLength:]
}

// appendLine appends the record as a whole line. Called with mu held.
func (g *gatherer) appendLine(b []byte, now time.Time, l *Logger, r *record) []byte {
	if g.stamped { // in 2001 the microseconds had reached 16 digits
		b = strconv.AppendInt(append(b, stampMark), now.UnixMicro(), 10)
	}
	switch g.format {
	case JSON:
		return g.appendJSON(b, now, l, r)
	case Plain:
		b = append(append(b, l.tag...), ": "...)
	case RFC5424:
		b = g.append5424(appendPriority(b, r.level), now, l)
	case LocalSyslog:
		b = append(g.appendStamp(appendPriority(b, r.level), now, time.Stamp), ' ')
		b = append(b, l.ident...)
	default:
		if g.format == SyslogHost {
			b = appendPriority(b, r.level)
		}
		b = append(g.appendStamp(b, now, time.Stamp), ' ')
		b = append(append(b, g.host...), ' ')
		b = append(b, l.ident...)
	}
	if g.json {
		return g.appendJSON(b, now, l, r)
	}
	return append(append(b, r.text...), '\n')
}

func appendPriority(b []byte, level Level) []byte {
	return append(strconv.AppendInt(append(b, '<'), int64(syslogMail|level.syslog()), 10), '>')
}

// append5424 appends the header of RFC 5424 section 6.2 behind the priority,
// and says that there are no structured data.
func (g *gatherer) append5424(b []byte, now time.Time, l *Logger) []byte {
	b = now.AppendFormat(append(b, "1 "...), microTime)
	b = appendToken(append(b, ' '), g.fullHost, 255)
	b = appendToken(append(b, ' '), l.tag, 48)
	b = strconv.AppendInt(append(b, ' '), int64(os.Getpid()), 10)
	return append(b, " - - "...)
}

// appendToken appends a word of a header: printable ASCII of bounded length.
func appendToken(b []byte, s string, limit int) []byte {
	if s == "" {
		return append(b, '-')
	}
	for _, c := range []byte(s[:min(len(s), limit)]) {
		if c <= ' ' || c >= 0x7f {
			c = '?'
		}
		b = append(b, c)
	}
	return b
}

// appendStamp appends the time of the second, which is printed once.
func (g *gatherer) appendStamp(b []byte, now time.Time, layout string) []byte {
	if sec := now.Unix(); sec != g.stampSec || len(g.stamp) == 0 {
		g.stampSec = sec
		g.stamp = now.AppendFormat(reuse.Truncated(g.stamp), layout)
	}
	return append(b, g.stamp...)
}

func (g *gatherer) appendJSON(b []byte, now time.Time, l *Logger, r *record) []byte {
	b = append(b, `{"time":"`...)
	b = now.AppendFormat(b, microTime)
	b = append(b, '"')
	b = appendString(b, "host", g.host)
	b = appendString(b, "process", l.tag)
	b = appendNumber(b, "pid", int64(os.Getpid()))
	b = appendString(b, "level", r.level.String())
	if len(r.fields) == 0 {
		b = appendString(b, "queue_id", queueIDOf(r))
	} else if len(r.fields) < maxText { // what a stranger has blown up is in the text, cut
		b = append(b, r.fields...)
	}
	b = append(b, `,"text":`...)
	b = appendQuoted(b, r.text)
	return append(b, "}\n"...)
}

// queueIDOf is the queue ID at the beginning of a line that is no event: of
// letters and digits, some of them digits, and at least as long as the short
// ones of Postfix.
func queueIDOf(r *record) string {
	text := r.text
	if r.level != LevelInfo {
		text = text[len(levelNames[r.level])+2:]
	}
	id, _, ok := bytes.Cut(text[:min(len(text), 64)], []byte(": "))
	if !ok || len(id) < 6 || !bytes.ContainsAny(id, "0123456789") {
		return ""
	}
	for _, c := range id {
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return ""
		}
	}
	return string(id)
}

// AppendClean appends line as it may stand in a log: without control
// characters, and in UTF-8. It does not bound it.
func AppendClean(b, line []byte) []byte {
	start := len(b)
	b = append(b, line...)
	clean(b[start:])
	return b
}

// bound cuts what is too long for one line.
func bound(b []byte) []byte {
	if len(b) <= maxText {
		return b
	}
	n := maxText
	for n > maxText-utf8.UTFMax && !utf8.RuneStart(b[n]) {
		n--
	}
	return append(b[:n], "..."...)
}

// printable is the length of a beginning of b that is printable ASCII.
func printable(b []byte) int {
	const ones = 0x0101010101010101
	i := 0
	for ; i+8 <= len(b); i += 8 {
		// A byte is bad when it is under 0x20, or over 0x7e: then it borrows or
		// carries into its high bit, or has it set. A borrow or carry between bytes
		// only ever comes from one that is bad itself.
		x := binary.LittleEndian.Uint64(b[i:])
		if (x|(x-0x20*ones)|(x+ones))&(0x80*ones) != 0 {
			break
		}
	}
	return i
}

// clean replaces what must not reach a log, in place.
func clean(b []byte) {
	for i := printable(b); i < len(b); {
		c := b[i]
		switch {
		case c >= ' ' && c < 0x7f:
			i++
		case c < utf8.RuneSelf:
			b[i] = '?'
			i++
		default:
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n == 1 {
				b[i] = '?'
			} else if r < 0xa0 || r == 0x2028 || r == 0x2029 {
				// C1 controls and line separators; one "?" for each byte keeps
				// this in place.
				copy(b[i:i+n], "???")
			}
			i += n
		}
	}
}

// lastLine is the length of b up to and with its last line end. A line is
// never longer than a batch: maxText sees to that.
func lastLine(b []byte) int {
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		return i + 1
	}
	return len(b)
}

// hostName is the system's host name.
func hostName() string {
	name := os.Getenv("POSTLOG_HOSTNAME")
	if name == "" {
		name, _ = os.Hostname()
	}
	if name == "" || name[0] == '.' {
		return "localhost"
	}
	return name
}

// stackFrames makes lines of a stack: the function and where it stands, on
// one line each, without the frames that lead from the panic to here.
func stackFrames(stack []byte) []string {
	lines := strings.Split(strings.TrimSpace(string(stack)), "\n")
	var frames []string
	for i := 1; i+1 < len(lines) && len(frames) < 40; i += 2 {
		where, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
		frames = append(frames, "at "+lines[i]+" "+where)
	}
	for i, f := range frames {
		if strings.HasPrefix(f, "at panic(") {
			return frames[i+1:]
		}
	}
	return frames
}

// appendString appends a member of a JSON object, with a comma before it.
// An empty value is left out.
func appendString(b []byte, key, value string) []byte {
	if value == "" {
		return b
	}
	return appendAlways(b, key, value)
}

// appendAlways is appendString for values that say something when empty,
// such as the null sender.
func appendAlways(b []byte, key, value string) []byte {
	b = append(append(append(b, `,"`...), key...), `":`...)
	return appendQuoted(b, value)
}

func appendNumber(b []byte, key string, n int64) []byte {
	b = append(append(append(b, `,"`...), key...), `":`...)
	return strconv.AppendInt(b, n, 10)
}

// appendQuoted appends a JSON string, RFC 8259 section 7. Control characters
// and what is not UTF-8 become "?", as in text lines.
func appendQuoted[T string | []byte](b []byte, s T) []byte {
	b = append(b, '"')
	start := len(b)
	if len(s) > maxText {
		s = s[:maxText]
	}
	b = append(b, s...)
	body := b[start:]
	clean(body)
	if bytes.IndexByte(body, '"') < 0 && bytes.IndexByte(body, '\\') < 0 {
		return append(b, '"')
	}
	plain := string(body)
	b = b[:start]
	for i := 0; i < len(plain); i++ {
		if c := plain[i]; c == '"' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, plain[i])
	}
	return append(b, '"')
}
