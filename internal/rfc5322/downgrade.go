package rfc5322

import "posthaste/internal/reuse"

// A Downgrader makes a message fit for a way that only takes seven bits (RFC
// 6152 section 3): bodies that say that they are 8bit or binary become
// quoted-printable, RFC 2045 section 6.7. All else stays as it is, what is 8-bit
// without saying so too. It works on pieces of any length.
//
// The zero Downgrader, with the limits of its Structure set, stands at the
// beginning of a message.
type Downgrader struct {
	Structure

	lines   Lines
	inBody  bool
	field   []byte // a field of interest, lines so far
	wide    bool   // the present header has Content-Transfer-Encoding: 8bit or binary, left out
	quoting bool   // the present body is being encoded
}

// Append appends to out what becomes of the next piece of the message. What ends
// in the middle of a line or field comes out later.
func (d *Downgrader) Append(out, piece []byte) []byte {
	var line []byte
	for len(piece) > 0 {
		if line, piece = d.lines.Next(piece); line != nil {
			out = d.convertLine(out, line)
		}
	}
	return out
}

// AppendEnd appends what is left at the end of the message.
func (d *Downgrader) AppendEnd(out []byte) []byte {
	if line := d.lines.Last(); line != nil {
		if d.quoting {
			line = append(line, "\r\n"...)
		}
		out = d.convertLine(out, line)
	}
	if !d.inBody {
		out = d.endHeader(d.endField(out))
	}
	return out
}

func (d *Downgrader) convertLine(out, line []byte) []byte {
	if d.inBody {
		return d.body(out, line)
	}
	if line[0] == ' ' || line[0] == '\t' {
		if len(d.field) > 0 && len(d.field) < maxHeld {
			d.field = append(d.field, line...)
			return out
		}
		return append(out, line...)
	}
	out = d.endField(out)
	f, ok := ParseField(line)
	switch {
	case !ok:
		d.inBody = true
		out = d.endHeader(out)
		if len(trimEOL(line)) > 0 { // a body that begins without an empty line
			return d.body(out, line)
		}
	case EqualName(f.Name(), "Content-Type"), EqualName(f.Name(), "Content-Transfer-Encoding"):
		d.field = append(reuse.Truncated(d.field), line...)
		return out
	}
	return append(out, line...)
}

// endField looks at the field that has been gathered.
func (d *Downgrader) endField(out []byte) []byte {
	if len(d.field) == 0 {
		return out
	}
	out = d.wholeField(out, d.field)
	d.field = reuse.Truncated(d.field)
	return out
}

// wholeField looks at a field, and passes it on unless it says of the body what will not be
// true. It does not keep raw.
func (d *Downgrader) wholeField(out, raw []byte) []byte {
	f, ok := ParseField(raw)
	if !ok {
		return append(out, raw...)
	}
	d.Field(f)
	if EqualName(f.Name(), "Content-Transfer-Encoding") {
		if d.wide = d.encoding.wide; d.wide {
			return out
		}
	}
	return append(out, raw...)
}

// endHeader ends a header: what its fields say of the body is known now. What
// is composed of parts becomes 7bit when they do; but message/global, whose
// header is beyond ASCII, is encoded as a whole (RFC 6532 section 3.7).
func (d *Downgrader) endHeader(out []byte) []byte {
	d.quoting = d.wide && (d.media == mediaOther || d.media == mediaMessage)
	switch {
	case d.quoting:
		out = append(out, "Content-Transfer-Encoding: quoted-printable\r\n"...)
	case d.wide:
		out = append(out, "Content-Transfer-Encoding: 7bit\r\n"...)
	}
	d.wide = false
	if d.EndOfHeader() && !d.quoting {
		d.inBody = false
	}
	return out
}

func (d *Downgrader) body(out, line []byte) []byte {
	text := trimEOL(line)
	if found, header := d.Boundary(text); found {
		d.quoting, d.inBody = false, !header
		return append(out, line...)
	}
	if !d.quoting {
		return append(out, line...)
	}
	out = appendQuoted(out, text)
	if len(text) == len(line) { // the line goes on
		return append(out, "=\r\n"...)
	}
	return append(out, "\r\n"...)
}

// maxQuoted is how long an encoded line gets before it is broken, with room
// for one more octet and the "=" within the 76 of RFC 2045 section 6.7.
const maxQuoted = 72

// appendQuoted appends a line without its end, encoded.
func appendQuoted(b, text []byte) []byte {
	const digits = "0123456789ABCDEF"
	col := 0
	for i, ch := range text {
		if col > maxQuoted {
			b = append(b, "=\r\n"...)
			col = 0
		}
		blank := ch == ' ' || ch == '\t'
		if ch > 126 || ch == '=' || ch < ' ' && !blank || blank && i == len(text)-1 {
			b = append(b, '=', digits[ch>>4], digits[ch&15])
			col += 3
			continue
		}
		b = append(b, ch)
		col++
	}
	return b
}
