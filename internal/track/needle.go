package track

import (
	"bytes"
	"math/bits"
	"strings"

	"posthaste/internal/logread"
)

const (
	// maxNeedles is how many texts are looked for in a block before its lines are parsed. With more of them it is quicker
	// to parse all.
	maxNeedles = 48
	// plain is what a text is made of that stands in a line as it is, whatever the form of the log.
	plain = "abcdefghijklmnopqrstuvwxyz0123456789.@_-"
)

// escape begins what a line in JSON may write in place of any character.
var escape = []byte(`\u`)

// needles are texts, in lower case, one of which a line must have to fulfil the condition with that bit; nil: nobody knows.
func (p *plan) needles(bit uint64) (list [][]byte) {
	at := bits.TrailingZeros64(bit) - 1
	if at < 0 || at >= len(p.matchers) {
		return nil
	}
	m := &p.matchers[at]
	if m.part != nil || m.net.IsValid() {
		return nil
	}
	for i := range m.keys {
		if list = addNeedle(list, string(m.keys[i].value)); list == nil {
			return nil
		}
	}
	return list
}

// needlesOf are texts one of which a line must have to be of one of the messages, or to name one; nil: nobody knows.
func needlesOf(ids, names map[string]bool) (list [][]byte) {
	if len(ids)+len(names) > maxNeedles {
		return nil
	}
	for _, set := range [...]map[string]bool{ids, names} {
		for text := range set {
			if list = addNeedle(list, text); list == nil {
				return nil
			}
		}
	}
	return list
}

// addNeedle adds a text; nil: it may be written in another way.
func addNeedle(list [][]byte, text string) [][]byte {
	text = strings.ToLower(text)
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return !strings.ContainsRune(plain, r) }) {
		return nil
	}
	return append(list, []byte(text))
}

// some calls f for the lines of use that have one of the needles, and perhaps for others; without needles for all.
func (b *block) some(needles [][]byte, file int, p *logread.Reader, e *event, f func(place)) {
	if len(needles) == 0 || bytes.Contains(b.text, escape) {
		b.lines(file, p, e, f)
		return
	}
	low := make([]byte, len(b.text))
	for i, c := range b.text {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		low[i] = c
	}
	// Where each needle is next; len(low): no more.
	next := make([]int, len(needles))
	for i := range next {
		next[i] = find(low, needles[i], 0)
	}
	line := block{off: b.off, line: b.line}
	for at := 0; ; {
		first := len(low)
		for _, n := range next {
			first = min(first, n)
		}
		if first == len(low) {
			return
		}
		begin := bytes.LastIndexByte(b.text[:first], '\n') + 1
		end := len(b.text)
		if n := bytes.IndexByte(b.text[first:], '\n'); n >= 0 {
			end = first + n + 1
		}
		line.line += int64(bytes.Count(b.text[at:begin], []byte("\n")))
		line.off, line.text, at = b.off+int64(begin), b.text[begin:end], begin
		line.lines(file, p, e, f)
		for i, n := range next {
			if n < end {
				next[i] = find(low, needles[i], end)
			}
		}
	}
}

// find is where a needle is in a text, from a place on; the length of the text if it is not.
func find(text, needle []byte, from int) int {
	if n := bytes.Index(text[from:], needle); n >= 0 {
		return from + n
	}
	return len(text)
}
