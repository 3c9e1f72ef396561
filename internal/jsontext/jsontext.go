// Package jsontext writes JSON as Postfix's commands do, an object on a line: the spacing and the
// escapes are theirs, so that what reads their output reads ours.
package jsontext

import (
	"fmt"
	"strings"
)

// Quote is a JSON string. Octets that are not UTF-8 become U+FFFD, which Postfix leaves as they are:
// then it is no JSON.
func Quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Object is an object of names with their values, which follow each other in the list.
func Object(pairs ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(Quote(pairs[i]) + ": " + Quote(pairs[i+1]))
	}
	return b.String() + "}"
}
