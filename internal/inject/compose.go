package inject

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"io"
	"math/bits"
	"mime"
	"mime/quotedprintable"
	"strings"
	"unicode/utf8"

	"posthaste/internal/rfc5322"
)

const (
	// maxLine is the longest line of a message (RFC 5322 section 2.1.1), without its end.
	maxLine = 998
	// foldAt is where header fields are folded.
	foldAt = 76
	// base64Line is the length of a line of base64 (RFC 2045 section 6.8).
	base64Line = 76
)

// appendField appends a header field whose value has no structure, folded at spaces. What is not ASCII
// becomes encoded words (RFC 2047). ok is false if a line cannot be made short enough.
func appendField(b []byte, name string, value []byte, plain bool) (_ []byte, ok bool) {
	if !isASCII(value) {
		if plain {
			return b, false
		}
		return appendWords(append(append(b, name...), ':'), len(name)+1, value), true
	}
	start := len(b)
	b = append(append(b, name...), ':')
	column := len(b) - start
	for word := range bytes.SplitSeq(bytes.TrimRight(value, " \t"), []byte(" ")) {
		if column+1+len(word) > foldAt && len(word) > 0 && column > len(name)+1 {
			b = append(b, "\r\n"...)
			column = 0
		}
		b = append(append(b, ' '), word...)
		if column += 1 + len(word); column > maxLine {
			return b, false
		}
	}
	return append(b, "\r\n"...), true
}

// appendWords appends a text as encoded words (RFC 2047), in lines that are short enough for them; the
// first begins at a column.
func appendWords(b []byte, column int, text []byte) []byte {
	const around = len(" =?utf-8?b?") + len("?=")
	for len(text) > 0 {
		n := max((foldAt-column-around)/4*3, utf8.UTFMax)
		if n = min(n, 45, len(text)); n < len(text) {
			for n > 1 && !utf8.RuneStart(text[n]) {
				n-- // no character is in two words
			}
		}
		b = append(b, " =?utf-8?b?"...)
		b = append(base64.StdEncoding.AppendEncode(b, text[:n]), "?=\r\n"...)
		text, column = text[n:], 0
	}
	return b
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

// header appends the header of the composed message, up to the fields that say what the body is. to
// are those that it names; values are those of variables. An error says what cannot stand in a header.
// Date and Message-ID are cleanup's to add.
func (m *message) header(b []byte, to []Address, values scope) ([]byte, error) {
	if m.from != nil {
		b = appendMailboxes(b, "From", []Address{*m.from})
	}
	if len(to) > 0 {
		b = appendMailboxes(b, "To", to)
	}
	if cc := valid(m.cc); len(cc) > 0 && !m.individual {
		b = appendMailboxes(b, "Cc", cc)
	}
	if len(m.replyTo) > 0 {
		b = appendMailboxes(b, "Reply-To", m.replyTo)
	}
	if m.subject != nil {
		if err := m.subject.check(values, inHeader); err != nil {
			return b, in("subject", err)
		}
		text := m.subject.text(values, inHeader)
		if err := checkSubject(text); err != nil {
			return b, err
		}
		b, _ = appendField(b, "Subject", text, false)
	}
	for _, f := range m.fields {
		if err := f.value.check(values, inHeader); err != nil {
			return b, in("headers", in(shown(f.name), err))
		}
		var ok bool
		if b, ok = appendField(b, f.name, f.value.text(values, inHeader), f.plain); !ok {
			return b, in("headers", in(shown(f.name), refuse("its value is not ASCII, or a word of it is longer than a line")))
		}
	}
	if m.unsub != nil {
		var err error
		if b, err = m.unsub.append(b, values); err != nil {
			return b, in("list_unsubscribe", err)
		}
	}
	return append(b, "MIME-Version: 1.0\r\n"...), nil
}

// valid are the addresses of recipients that have one.
func valid(list []recipient) (all []Address) {
	for i := range list {
		if list[i].err == nil {
			all = append(all, list[i].Address)
		}
	}
	return all
}

// append appends the fields of RFC 2369 and RFC 8058.
func (u *unsubscribe) append(b []byte, values scope) ([]byte, error) {
	if u.ours {
		return append(append(append(append(b, u.field...), ": "...), cmp.Or(u.list, "all")...), "\r\n"...), nil
	}
	var items []string
	if u.url != nil {
		if err := u.url.check(values, inURL); err != nil {
			return b, in("url", err)
		}
		link := u.url.append(nil, values, inURL)
		if !isLink(link) {
			return b, in("url", refuse("with the values of the variables it is too long"))
		}
		items = append(items, "<"+string(link)+">")
	}
	if u.mailto != "" {
		items = append(items, "<"+u.mailto+">")
	}
	b = rfc5322.AppendList(b, "List-Unsubscribe", items)
	if u.oneClick {
		b = append(b, "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"...)
	}
	return b, nil
}

// checkBody says which variable of the body has no value.
func (m *message) checkBody(values scope) error {
	for _, t := range []struct {
		name string
		t    *template
		p    place
	}{{"text", m.text, inText}, {"html", m.html, inHTML}, {"amp_html_body", m.amp, inHTML}} {
		if t.t == nil {
			continue
		}
		if err := t.t.check(values, t.p); err != nil {
			return in(t.name, err)
		}
	}
	return nil
}

// An entity is a part of a message: one with parts, or a leaf.
type entity struct {
	kind  string // of a multipart, alternative ...; empty: a leaf
	parts []entity

	text     *template // of a leaf: a text,
	textKind string    // plain, html, x-amp-html
	file     *file     // or a file
}

// structure is what the body consists of: attachments beside the text, which has alternatives, of
// which HTML has what it refers to with it.
func (m *message) structure() entity {
	var alternatives, inline, attached []entity
	if m.text != nil {
		alternatives = append(alternatives, entity{text: m.text, textKind: "plain"})
	}
	if m.amp != nil {
		alternatives = append(alternatives, entity{text: m.amp, textKind: "x-amp-html"})
	}
	for i := range m.files {
		if f := &m.files[i]; f.inline && m.html != nil {
			inline = append(inline, entity{file: f})
		} else {
			attached = append(attached, entity{file: f})
		}
	}
	if m.html != nil {
		alternatives = append(alternatives, multi("related", append([]entity{{text: m.html, textKind: "html"}}, inline...)))
	}
	if len(alternatives) == 0 {
		return entity{kind: "mixed", parts: attached}
	}
	return multi("mixed", append([]entity{multi("alternative", alternatives)}, attached...))
}

// multi is a multipart, or the only part that it would have.
func multi(kind string, parts []entity) entity {
	if len(parts) == 1 {
		return parts[0]
	}
	return entity{kind: kind, parts: parts}
}

// A composer writes a composed message. The first error of the writer is kept.
type composer struct {
	w        io.Writer
	err      error
	values   scope
	boundary string // no text of anybody: it is made by chance for each request
	scratch  []byte
}

func (c *composer) write(b []byte) {
	if c.err == nil {
		_, c.err = c.w.Write(b)
	}
}

func (c *composer) print(parts ...string) {
	c.scratch = c.scratch[:0]
	for _, p := range parts {
		c.scratch = append(c.scratch, p...)
	}
	c.write(c.scratch)
}

// entity writes a part: the fields that say what it is, an empty line, and its body.
func (c *composer) entity(e *entity, level byte) {
	switch {
	case e.kind != "":
		boundary := string('a'+level) + c.boundary
		c.print("Content-Type: multipart/", e.kind, ";\r\n boundary=\"", boundary, "\"\r\n\r\n")
		for i := range e.parts {
			c.print("--", boundary, "\r\n")
			c.entity(&e.parts[i], level+1)
			c.print("\r\n")
		}
		c.print("--", boundary, "--\r\n")
	case e.file != nil:
		c.attachment(e.file)
	default:
		c.body(e)
	}
}

// body writes a text, in an encoding that keeps it readable where that can be.
func (c *composer) body(e *entity) {
	p := inText
	if e.textKind != "plain" {
		p = inHTML
	}
	text := e.text.text(c.values, p)
	ascii, eight, long := survey(text)
	encoding := "7bit"
	switch {
	case !ascii && eight > len(text)/4:
		encoding = "base64"
	case !ascii || long:
		encoding = "quoted-printable"
	}
	charset := "utf-8"
	if ascii {
		charset = "us-ascii"
	}
	c.print("Content-Type: text/", e.textKind, "; charset=", charset, "\r\nContent-Transfer-Encoding: ", encoding, "\r\n\r\n")
	switch encoding {
	case "7bit":
		c.lines(text)
		if len(text) > 0 && text[len(text)-1] != '\n' {
			c.print("\r\n")
		}
	case "base64":
		var b bytes.Buffer
		inner := composer{w: &b}
		inner.lines(text)
		c.encode(b.Bytes())
	default:
		q := quotedprintable.NewWriter(writerOf(c))
		_, _ = q.Write(text)
		_ = q.Close()
		c.print("\r\n")
	}
}

// writerOf is the composer as a writer that does not fail: its error is kept.
func writerOf(c *composer) io.Writer { return writerFunc(c.write) }

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

// survey says what a text consists of: whether it is ASCII, how many octets are not, and whether a line
// is longer than a message has them. Every text of a batch passes here, so that it takes eight octets at a time, and
// looks for the ends of lines only where a line would be too long without one.
func survey(text []byte) (ascii bool, eight int, long bool) {
	rest := text
	for ; len(rest) >= 8; rest = rest[8:] {
		if x := binary.LittleEndian.Uint64(rest) & highBits; x != 0 {
			eight += bits.OnesCount64(x)
		}
	}
	for _, b := range rest {
		eight += int(b >> 7)
	}
	for rest = text; len(rest) > maxLine && !long; {
		i := maxLine
		for i >= 0 && rest[i] != '\n' && rest[i] != '\r' {
			i--
		}
		rest, long = rest[i+1:], i < 0
	}
	return eight == 0, eight, long
}

// lines writes a text with CRLF for each end of a line, which may be LF, CRLF or CR.
func (c *composer) lines(text []byte) {
	if hasCRLF(text) { // as most programs write it: nothing is to be changed
		c.write(text)
		return
	}
	for len(text) > 0 {
		i := bytes.IndexByte(text, '\n')
		line, rest := text, []byte(nil)
		if i >= 0 {
			line, rest = text[:i], text[i+1:]
			if i > 0 && text[i-1] == '\r' {
				line = text[:i-1]
			}
		}
		for {
			cr := bytes.IndexByte(line, '\r')
			if cr < 0 {
				break
			}
			c.write(line[:cr])
			c.write(crlf)
			line = line[cr+1:]
		}
		if c.write(line); i >= 0 {
			c.write(crlf)
		}
		text = rest
	}
}

var crlf = []byte("\r\n")

// hasCRLF says whether every CR of a text is before an LF, and every LF behind a CR.
func hasCRLF(text []byte) bool {
	n := 0
	for rest := text; ; n++ {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			return bytes.Count(text, crlf[:1]) == n
		}
		if i == 0 || rest[i-1] != '\r' {
			return false
		}
		rest = rest[i+1:]
	}
}

// attachment writes a file.
func (c *composer) attachment(f *file) {
	disposition, params := "attachment", map[string]string{}
	if f.inline {
		disposition = "inline"
	}
	kind := f.kind
	if f.name != "" {
		params["filename"] = f.name
	}
	c.print("Content-Type: ", kind, "\r\nContent-Transfer-Encoding: base64\r\nContent-Disposition: ", strings.ReplaceAll(mime.FormatMediaType(disposition, params), "; ", ";\r\n "), "\r\n")
	if f.id != "" {
		c.print("Content-ID: <", f.id, ">\r\n")
	}
	c.write(crlf)
	if f.base64 {
		c.rewrap(f.data)
		return
	}
	c.encode(f.data)
}

// encode writes octets as base64.
func (c *composer) encode(data []byte) {
	const line = base64Line / 4 * 3
	out := make([]byte, 0, min(len(data)/line+1, 512)*(base64Line+2))
	for len(data) > 0 {
		n := min(line, len(data))
		out = append(base64.StdEncoding.AppendEncode(out, data[:n]), "\r\n"...)
		data = data[n:]
		if len(out)+base64Line+2 > cap(out) {
			c.write(out)
			out = out[:0]
		}
	}
	c.write(out)
}

// rewrap writes what is base64 already in lines of the right length. checkBase64 has looked at it.
func (c *composer) rewrap(data []byte) {
	out := make([]byte, 0, min(len(data)/base64Line+1, 512)*(base64Line+2)+base64Line)
	column, lines := 0, bytes.IndexByte(data, '\n') >= 0
	for len(data) > 0 {
		if data[0] == '\r' || data[0] == '\n' {
			data = data[1:]
			continue
		}
		n := min(base64Line-column, len(data))
		if lines {
			for _, c := range crlf {
				if end := bytes.IndexByte(data[:n], c); end >= 0 {
					n = end
				}
			}
		}
		out = append(out, data[:n]...)
		data = data[n:]
		if column += n; column == base64Line {
			out, column = append(out, "\r\n"...), 0
		}
		if len(out)+base64Line+2 > cap(out) {
			c.write(out)
			out = out[:0]
		}
	}
	if column > 0 {
		out = append(out, "\r\n"...)
	}
	c.write(out)
}

// isBase64 says of each octet whether it is of the alphabet.
var isBase64 = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") {
		t[c] = true
	}
	return t
}()

// checkBase64 says what is wrong with base64 (RFC 4648 section 4). Lines may be ended by LF or CRLF.
func checkBase64(data []byte) error {
	n := 0
	for i, c := range data {
		switch {
		case isBase64[c]:
			n++
		case c == '\n', c == '\r' && i+1 < len(data) && data[i+1] == '\n':
		case c == '=':
			pad := bytes.TrimRight(data[i:], "\r\n")
			if n%4 < 2 || len(pad) != 4-n%4 || pad[len(pad)-1] != '=' {
				return in("content", refuse("it is not base64: the padding at octet %d", i))
			}
			return nil
		default:
			return in("content", refuse("it is not base64, at octet %d", i))
		}
	}
	if n%4 != 0 {
		return in("content", refuse("it is not base64: its end is missing"))
	}
	return nil
}
