package rfc5322

import "bytes"

// A Field is one header field as it stands in a message.
type Field struct {
	// Raw is the whole of it, folded lines and last line end included.
	Raw []byte

	name  int // length of the name
	colon int // index of the colon
}

// Name is the field's name in the letter case it came in.
func (f Field) Name() []byte { return f.Raw[:f.name] }

// AfterName is what follows the name, from the colon to the last line end.
func (f Field) AfterName() []byte { return f.Raw[f.colon:] }

// Body is what follows the colon, as it stands, without the last line end:
// with leading white space, and CRLF where the field was folded.
func (f Field) Body() []byte { return trimEOL(f.Raw[f.colon+1:]) }

// Value is Body without white space around it.
func (f Field) Value() []byte { return bytes.Trim(f.Body(), " \t\r\n") }

// Lines is Raw without the last line end, with each CRLF inside it as a single
// LF, and without white space before the colon: the form in which
// header_checks see a field. Fields that are not folded are not copied.
func (f Field) Lines() []byte {
	b := trimEOL(f.Raw)
	if f.name < f.colon {
		b = append(bytes.Clone(b[:f.name]), b[f.colon:]...)
	}
	if bytes.IndexByte(b, '\n') < 0 {
		return b
	}
	return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
}

// ParseField takes one field apart, given the whole of it; its line ends may
// be CRLF or LF. ok is false if raw is not a field: no colon, or a name with
// characters other than those of RFC 5322 section 3.6.8. White space between
// name and colon, an obsolete form, is allowed.
func ParseField(raw []byte) (f Field, ok bool) {
	i := 0
	for i < len(raw) && class[raw[i]]&ftext != 0 {
		i++
	}
	if i == 0 || i == len(raw) {
		return Field{}, false
	}
	f = Field{Raw: raw, name: i}
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\t') {
		i++
	}
	if i == len(raw) || raw[i] != ':' {
		return Field{}, false
	}
	f.colon = i
	return f, true
}

// IsField says whether text begins like a header field: "Name:".
func IsField(text string) bool {
	i := 0
	for i < len(text) && class[text[i]]&ftext != 0 {
		i++
	}
	if i == 0 {
		return false
	}
	for i < len(text) && (text[i] == ' ' || text[i] == '\t') {
		i++
	}
	return i < len(text) && text[i] == ':'
}

// NextField takes the field at the start of msg: the line there, and the lines
// that continue it (RFC 5322 section 2.2.3). rest is what follows. ok is false
// if no field starts there: at the empty line that ends the header, at a
// line that is not a field, at the end.
func NextField(msg []byte) (f Field, rest []byte, ok bool) {
	n := fieldLen(msg)
	if f, ok = ParseField(msg[:n]); !ok {
		return Field{}, msg, false
	}
	return f, msg[n:], true
}

// fieldLen is the length of the first line of b with the lines that continue it.
func fieldLen(b []byte) int {
	for n := 0; ; {
		i := bytes.IndexByte(b[n:], '\n')
		if i < 0 {
			return len(b)
		}
		n += i + 1
		if n == len(b) || (b[n] != ' ' && b[n] != '\t') {
			return n
		}
	}
}

// EqualName compares field names, which have no letter case.
func EqualName(a []byte, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		if x != y && (x|0x20 != y|0x20 || x|0x20 < 'a' || x|0x20 > 'z') {
			return false
		}
	}
	return true
}

func trimEOL(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\n' {
		b = b[:n-1]
		if n > 1 && b[n-2] == '\r' {
			b = b[:n-2]
		}
	}
	return b
}

// foldAt is the length that a line of a list must stay below for another item
// to be put on it. The tab that starts a continuation line does not count.
const foldAt = 70

// AppendList appends a field whose value is a list of items: as many to a line
// as fit, in order, with a comma after all but the last; lines after the
// first begin with a tab. Items must not contain line ends. The field ends
// in CRLF.
func AppendList(b []byte, name string, items []string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	line := len(name) + 2
	for i, item := range items {
		n := len(item)
		if i < len(items)-1 {
			n++
		}
		switch {
		case i == 0:
		case line+1+n < foldAt:
			b = append(b, ' ')
			line++
		default:
			b = append(b, "\r\n\t"...)
			line = 0
		}
		b = append(b, item...)
		if i < len(items)-1 {
			b = append(b, ',')
		}
		line += n
	}
	return append(b, "\r\n"...)
}
