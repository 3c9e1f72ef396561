package notice

import (
	"bytes"
	"fmt"

	"posthaste/internal/reuse"
)

const (
	maxText = 16 << 10 // of a transcript
	maxLine = 512      // octets of a line, which need not fit a screen
	maxPeer = 300

	// shortText is what a session with one message comes to.
	shortText = 1 << 10
)

// texts are the memory of transcripts that have none at present. They have length 0.
var texts = reuse.Pool[[]byte]{New: func() *[]byte { b := make([]byte, 0, shortText); return &b }}

// A Transcript is what was said in a session. Methods of a nil one do
// nothing.
type Transcript struct {
	wanted  Class
	faults  Class
	lines   int
	dropped bool
	text    *[]byte // lines as the notice has them, from texts; nil before the first
}

// In adds what the peer sent: one line, or several with LF between. It does
// not keep text.
func (t *Transcript) In(text []byte) { t.add(" In:  ", text) }

// Out adds what it was sent. It does not keep text.
func (t *Transcript) Out(text []byte) { t.add(" Out: ", text) }

// Fault notes that something went wrong.
func (t *Transcript) Fault(c Class) {
	if t != nil {
		t.faults |= c
	}
}

// Forgive forgets what went wrong, but not what was said: nobody need hear of
// it after all.
func (t *Transcript) Forgive() {
	if t != nil {
		t.faults = 0
	}
}

// Faulty says whether something happened that is asked for.
func (t *Transcript) Faulty() bool { return t != nil && t.faults&t.wanted != 0 }

// Lines is how many lines there are.
func (t *Transcript) Lines() int {
	if t == nil {
		return 0
	}
	return t.lines
}

// Reset forgets what there is: nothing happened that anybody wants to read. It
// gives its memory back, and must be called at the end of a session.
func (t *Transcript) Reset() {
	if t == nil {
		return
	}
	if t.text != nil {
		*t.text = reuse.Truncated(*t.text)
		texts.Put(t.text)
	}
	*t = Transcript{wanted: t.wanted}
}

func (t *Transcript) add(direction string, text []byte) {
	if t == nil {
		return
	}
	if t.text == nil {
		t.text = texts.Get()
	}
	text = bytes.TrimRight(text, "\r\n")
	for more := true; more; {
		var line []byte
		line, text, more = bytes.Cut(text, lf)
		if len(*t.text) > maxText-maxLine-16 {
			t.drop()
		}
		b := append(*t.text, direction...)
		b = appendPrintable(b, bytes.TrimSuffix(line, cr), maxLine)
		*t.text = append(b, '\r', '\n')
		t.lines++
	}
}

var cr, lf = []byte("\r"), []byte("\n")

// drop makes room: of a long session the end tells most.
func (t *Transcript) drop() {
	text := *t.text
	half := len(text) / 2
	if i := bytes.IndexByte(text[half:], '\n'); i >= 0 {
		half += i + 1
	}
	text = text[:copy(text, text[half:])]
	*t.text = text
	t.lines = bytes.Count(text, lf)
	t.dropped = true
}

// Redact is a command line without what must not be read by others: what
// follows the mechanism of AUTH. A line with nothing secret in it is returned
// as it is.
func Redact(line []byte) []byte {
	if begin := bytes.TrimSpace(line); len(begin) < 4 || !bytes.EqualFold(begin[:4], auth) {
		return line
	}
	f := bytes.Fields(line) // servers take any blanks
	if len(f) < 3 || len(f[0]) != len(auth) {
		return line
	}
	return fmt.Appendf(nil, "%s %s %s", f[0], f[1], Secret)
}

var auth = []byte("AUTH")

// Secret stands for a line that must not be read by others.
const Secret = "(secret)"

func printable(s string, limit int) string { return string(appendPrintable(nil, []byte(s), limit)) }

// appendPrintable appends at most limit octets of s, with "?" for all that is
// not printable ASCII: a notice is plain text that any program can show.
func appendPrintable(b, s []byte, limit int) []byte {
	from := len(b)
	b = append(b, s[:min(len(s), limit)]...)
	for i, c := range b[from:] {
		if c < ' ' || c > '~' {
			b[from+i] = '?'
		}
	}
	if len(s) > limit {
		b = append(b, "..."...)
	}
	return b
}
