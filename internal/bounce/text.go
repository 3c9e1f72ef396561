package bounce

import (
	"strings"
	"unicode/utf8"

	"posthaste/internal/rfc5322"
)

const (
	wrapColumn = 78  // RFC 5322 section 2.1.1: lines should not be longer
	hardColumn = 900 // and must not be longer than 998
	indent     = "    "
)

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func isPrintableASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// clean makes text from strangers fit for one line: white space becomes
// spaces, control characters and what is not UTF-8 become "?", and so does
// everything over 127 unless utf8ok.
func clean(s string, utf8ok bool) string {
	if isPrintableASCII(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			b.WriteByte(' ')
		case r < ' ' || r == 0x7f, r == utf8.RuneError && n == 1, r >= 0x80 && r < 0xa0:
			b.WriteByte('?')
		case r >= utf8.RuneSelf && !utf8ok:
			b.WriteByte('?')
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// external is an address as it is shown: quoted, on one line.
func external(addr string, utf8ok bool) string { return clean(rfc5322.Quote(addr), utf8ok) }

// appendWrapped appends text as lines that end in CRLF, broken at spaces
// after at most wrapColumn characters, all but the first indented. Words
// longer than that stay whole unless no line could hold them.
func appendWrapped(b []byte, text string) []byte {
	column := wrapColumn
	for first := true; ; first = false {
		if !first {
			b = append(b, indent...)
			column = wrapColumn - len(indent)
		}
		line, rest := breakLine(text, column)
		b = append(b, line...)
		b = append(b, "\r\n"...)
		if rest == "" {
			return b
		}
		text = rest
	}
}

// breakLine cuts a line of at most column bytes off text, at a space. The
// white space at the cut is dropped. No line is empty.
func breakLine(text string, column int) (line, rest string) {
	text = strings.TrimRight(text, " ")
	if len(text) <= column {
		return text, ""
	}
	if i := strings.LastIndexByte(text[:column+1], ' '); i > 0 && strings.TrimLeft(text[:i], " ") != "" {
		return strings.TrimRight(text[:i], " "), strings.TrimLeft(text[i:], " ")
	}
	i := strings.IndexByte(strings.TrimLeft(text, " "), ' ')
	if i >= 0 {
		i += len(text) - len(strings.TrimLeft(text, " "))
	} else {
		i = len(text)
	}
	if i > hardColumn {
		for i = hardColumn; i > 1 && !utf8.RuneStart(text[i]); i-- {
		}
		return text[:i], text[i:]
	}
	return text[:i], strings.TrimLeft(text[i:], " ")
}
