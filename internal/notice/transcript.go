package notice

import (
	"bytes"
	"strings"
)

const (
	maxText = 16 << 10 // of a transcript
	maxLine = 512      // octets of a line, which need not fit a screen
	maxPeer = 300
)

// A Transcript is what was said in a session. Methods of a nil one do
// nothing.
type Transcript struct {
	wanted  Class
	faults  Class
	lines   int
	dropped bool
	text    []byte // lines as the notice has them
}

// In adds what the peer sent: one line, or several with LF between.
func (t *Transcript) In(text string) { t.add(" In:  ", text) }

// Out adds what it was sent.
func (t *Transcript) Out(text string) { t.add(" Out: ", text) }

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

// Reset forgets what there is: nothing happened that anybody wants to read.
func (t *Transcript) Reset() {
	if t != nil {
		t.faults, t.lines, t.dropped, t.text = 0, 0, false, t.text[:0]
	}
}

func (t *Transcript) add(direction, text string) {
	if t == nil {
		return
	}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\r\n"), "\n") {
		if len(t.text) > maxText-maxLine-16 {
			t.drop()
		}
		t.text = append(t.text, direction...)
		t.text = appendPrintable(t.text, strings.TrimSuffix(line, "\r"), maxLine)
		t.text = append(t.text, '\r', '\n')
		t.lines++
	}
}

// drop makes room: of a long session the end tells most.
func (t *Transcript) drop() {
	half := len(t.text) / 2
	if i := bytes.IndexByte(t.text[half:], '\n'); i >= 0 {
		half += i + 1
	}
	n := copy(t.text, t.text[half:])
	t.text = t.text[:n]
	t.lines = bytes.Count(t.text, []byte{'\n'})
	t.dropped = true
}

// Redact is a command line without what must not be read by others: what
// follows the mechanism of AUTH.
func Redact(line string) string {
	f := strings.Fields(line) // servers take any blanks
	if len(f) < 3 || !strings.EqualFold(f[0], "AUTH") {
		return line
	}
	return f[0] + " " + f[1] + " " + Secret
}

// Secret stands for a line that must not be read by others.
const Secret = "(secret)"

func printable(s string, limit int) string { return string(appendPrintable(nil, s, limit)) }

// appendPrintable appends at most limit octets of s, with "?" for all that is
// not printable ASCII: a notice is plain text that any program can show.
func appendPrintable(b []byte, s string, limit int) []byte {
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
