// The content as it streams through: where the header ends, what a line is, and what is
// done with stray CR and LF. Pieces come as the client sent them and end anywhere; fields
// and lines are only processed when they are whole. Whatever is stored has CRLF line ends
// and no other CR or LF, so that no later reader can see a line, or the end of the
// message, where cleanup saw none (SMTP smuggling).

package cleanup

import (
	"bytes"
	"context"

	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
)

// bodyState is how far the content has been processed.
type bodyState struct {
	started bool // the header is behind us
	lines   bool // line by line, because something looks at them

	// hold is the beginning of a field, or in lines of a line, whose end has
	// not come yet. cut, when set, is what is kept of a field that is longer
	// than header_size_limit; hold then has its last bytes, to find the end.
	hold []byte
	cut  []byte
	// searched is how much of hold is known not to hold the end.
	searched int
	// The last piece ended in a CR. Whether that is part of a line end depends on what
	// comes.
	cr bool

	mime mimeState
}

// init decides whether the body must be looked at line by line. When nothing asks for
// that, it passes through as it comes.
func (b *bodyState) init(c *Core, flags proto.SubmitFlags) {
	if flags&proto.SubmitFilter == 0 {
		return
	}
	b.mime.on = c.mime && (!c.mimeChecks.Empty() || !c.nestedChecks.Empty() || !c.bodyChecks.Empty() || c.strict.body8Bit || c.strict.encoding)
	b.lines = b.mime.on || !c.bodyChecks.Empty() || c.reject != nil || c.strip != nil || c.strict.body8Bit
}

// write takes a piece of the content. It may process less, or more with what was held
// back.
func (m *Message) write(ctx context.Context, p []byte) {
	b := &m.body
	if len(p) == 0 || !m.ok() {
		return
	}
	// A CR at the end of the last piece belongs to this one.
	if b.cr {
		b.cr = false
		p = append([]byte{'\r'}, p...)
	}
	if p[len(p)-1] == '\r' {
		b.cr = true
		if p = p[:len(p)-1]; len(p) == 0 {
			return
		}
	}
	// What is held comes first. Appending to it copies only the new piece, unless its
	// memory is full.
	own := len(b.hold) > 0
	if own {
		p = append(b.hold, p...)
		b.hold = nil
	}
	m.keep(m.process(ctx, p, false), own)
}

// keep holds what was not processed until more comes. own says that rest lies at the end
// of memory of ours, and need not be copied: what was stored of that memory is before it,
// and more will be appended behind it.
func (m *Message) keep(rest []byte, own bool) {
	b := &m.body
	if len(rest) == 0 {
		return
	}
	// A field beyond header_size_limit: its beginning is kept, and of the rest only as
	// much as shows the end. So an endless field takes no memory.
	if !b.started && b.cut == nil && len(rest) > m.c.headerLimit+2 {
		b.cut = bytes.Clone(rest[:m.c.headerLimit])
	}
	if b.cut != nil && len(rest) > 2 {
		rest, own = rest[len(rest)-2:], false
		b.searched = 0
	}
	if own {
		b.hold = rest
		return
	}
	b.hold = append(make([]byte, 0, len(rest)+256), rest...)
}

// process takes what it can from buf and returns the rest: the beginning of something
// whose end has not come. last says that nothing more comes.
func (m *Message) process(ctx context.Context, buf []byte, last bool) []byte {
	if !m.body.started {
		buf = m.processHeader(ctx, buf, last)
	}
	if !m.body.started {
		return buf
	}
	if m.body.lines {
		return m.processLines(ctx, buf, last)
	}
	m.emit(buf)
	return nil
}

// processHeader takes whole fields from buf, and the end of the header, which is an empty
// line or a line that is no field.
func (m *Message) processHeader(ctx context.Context, buf []byte, last bool) []byte {
	b := &m.body
	if len(buf) > 0 {
		m.prependFields(ctx)
	}
	// After an error the rest is not looked at; the client is told at the end.
	for len(buf) > 0 && m.ok() {
		// Missing fields are added before the empty line is stored.
		if b.cut == nil && bytes.HasPrefix(buf, crlf) {
			m.endHeader(ctx, nil)
			b.started = true
			m.mimeHeaderEnd()
			m.emit(buf[:2])
			return buf[2:]
		}
		n, stray, whole := fieldEnd(buf, b.searched, last)
		if !whole && b.cut == nil && len(buf) > m.c.headerLimit+2 {
			// Enough is there to tell, and to decide what is kept of it.
			if _, ok := rfc5322.ParseField(m.tidy(buf, true)); !ok {
				m.garbage(ctx, buf)
				return buf
			}
		}
		if !whole {
			// A CRLF may be cut in two here.
			b.searched = max(0, len(buf)-2)
			return buf
		}
		b.searched = 0
		raw := buf[:n]
		// Only the beginning of the field was kept. It is stored as if it ended there.
		if b.cut != nil {
			raw, stray = b.cut, true
			b.cut = nil
		}
		f, ok := rfc5322.ParseField(m.tidy(raw, stray))
		if !ok {
			m.garbage(ctx, buf)
			return buf
		}
		buf = buf[n:]
		m.field(ctx, f)
	}
	return buf
}

// prependFields stores, once, the fields that access tables asked for, above everything
// else.
func (m *Message) prependFields(ctx context.Context) {
	list := m.prepend
	m.prepend = nil
	for _, line := range list {
		if f, ok := rfc5322.ParseField(toLines(line)); ok {
			m.field(ctx, f)
		}
	}
}

// garbage ends a header with a line that is not a field. An empty line is put before it,
// so that everybody after us sees the header end in the same place.
func (m *Message) garbage(ctx context.Context, buf []byte) {
	// Only for the log; all of buf is body from here on.
	line, _, _ := bytes.Cut(buf, crlf)
	m.endHeader(ctx, line)
	m.emit(crlf)
	m.body.started, m.body.searched = true, 0
	m.mimeGarbage()
}

// fieldEnd finds the end of the field that buf begins with: a CRLF that is not followed
// by white space. whole is false if more input is needed to tell. stray says that some CR
// or LF is not part of a line end. The search begins at from, where it ended the last
// time: without that, a long field in small pieces would cost the square of its length.
func fieldEnd(buf []byte, from int, last bool) (n int, stray, whole bool) {
	n = from
	for {
		i := bytes.IndexByte(buf[n:], '\n')
		if i < 0 {
			if !last {
				return 0, false, false
			}
			return len(buf), true, true
		}
		n += i + 1
		if n < 2 || buf[n-2] != '\r' {
			continue // a bare LF ends nothing
		}
		if n == len(buf) {
			if !last {
				return 0, false, false
			}
			break
		}
		// White space continues the field (RFC 5322 section 2.2.3).
		if buf[n] != ' ' && buf[n] != '\t' {
			break
		}
	}
	return n, hasStray(buf[:n]), true
}

// hasStray says whether b has a CR or LF outside of a CRLF.
func hasStray(b []byte) bool {
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return bytes.IndexByte(b, '\r') >= 0
		}
		if i == 0 || b[i-1] != '\r' || bytes.IndexByte(b[:i-1], '\r') >= 0 {
			return true
		}
		b = b[i+1:]
	}
}

// tidy returns a field without stray CR and LF, cut at header_size_limit, ending in CRLF,
// and without unwanted characters. Nearly always that is raw itself.
func (m *Message) tidy(raw []byte, stray bool) []byte {
	if len(raw) > m.c.headerLimit+2 {
		raw, stray = raw[:m.c.headerLimit], true
	}
	if stray {
		// Inside a field a line end would start something new, whatever
		// cleanup_replace_stray_cr_lf says: it becomes a space.
		raw = append(replaceStray(bytes.TrimRight(raw, "\r\n")), crlf...)
	}
	return m.filterBytes(raw)
}

// replaceStray returns a copy of b with spaces for CR and LF outside of a CRLF.
func replaceStray(b []byte) []byte {
	out := bytes.Clone(b)
	for i, c := range b {
		switch {
		case c == '\r' && (i+1 == len(b) || b[i+1] != '\n'):
			out[i] = ' '
		case c == '\n' && (i == 0 || b[i-1] != '\r'):
			out[i] = ' '
		}
	}
	return out
}

// splitStray returns a copy of b with CRLF for each of them.
func splitStray(b []byte) []byte {
	out := make([]byte, 0, len(b)+16)
	for i, c := range b {
		switch {
		case c == '\r' && (i+1 == len(b) || b[i+1] != '\n'), c == '\n' && (i == 0 || b[i-1] != '\r'):
			out = append(out, crlf...)
		default:
			out = append(out, c)
		}
	}
	return out
}

// processLines takes whole lines from buf. A line that is longer than line_length_limit
// is processed in parts of that length, as if each were a line: memory and patterns see
// no longer ones.
func (m *Message) processLines(ctx context.Context, buf []byte, last bool) []byte {
	b := &m.body
	for len(buf) > 0 && m.ok() {
		i := b.searched
		end := -1
		for {
			j := bytes.IndexByte(buf[i:], '\n')
			if j < 0 {
				break
			}
			if i += j; i > 0 && buf[i-1] == '\r' {
				end = i + 1
				break
			}
			i++
		}
		limit := m.c.lineLimit
		switch {
		case end < 0 && !last && len(buf) < limit+2:
			b.searched = max(0, len(buf)-1)
			return buf
		// The last line, which has no end.
		case end < 0 && len(buf) < limit+2:
			end = len(buf)
		case end < 0 || end > limit+2:
			end = limit
			if buf[end-1] == '\r' { // may be half of a line end
				end--
			}
		}
		b.searched = 0
		m.line(ctx, buf[:end])
		buf = buf[end:]
	}
	return buf
}

// line takes one line of the body with its end, or a part of a long line.
func (m *Message) line(ctx context.Context, raw []byte) {
	text := bytes.TrimSuffix(raw, crlf)
	end := raw[len(text):] // CRLF, or nothing after a part of a line
	if hasStray(text) {
		if !m.c.replaceStray {
			m.splitLine(ctx, raw)
			return
		}
		text = replaceStray(text)
		// text may point into the caller's piece, which must not be written to.
		raw = join(text, end)
	}
	if n := m.filterBytes(text); len(n) != len(text) {
		text, raw = n, join(n, end)
	}
	if !m.ok() || m.mimeLine(ctx, text, raw, len(end) > 0) {
		return
	}
	// body_checks_size_limit counts from the last header of a part, as in Postfix.
	if m.checking() && !m.c.bodyChecks.Empty() && (m.c.bodyCheckSize == 0 || m.body.mime.offset < m.c.bodyCheckSize) {
		m.body.mime.offset += int64(len(text)) + 1
		out, keep := m.checkLine(ctx, text)
		if !keep || !m.ok() {
			return
		}
		if len(out) != len(text) || len(out) > 0 && &out[0] != &text[0] {
			raw = join(out, end)
		}
	} else {
		m.body.mime.offset += int64(len(text)) + 1
	}
	m.emit(raw)
}

// join puts text and its end into memory of their own.
func join(text, end []byte) []byte {
	return append(append(make([]byte, 0, len(text)+len(end)), text...), end...)
}

// splitLine takes a line with stray CR or LF as several lines
// (cleanup_replace_stray_cr_lf = no).
func (m *Message) splitLine(ctx context.Context, raw []byte) {
	// The lines have no stray octets now, so line does not come back here.
	for rest := splitStray(raw); len(rest) > 0; {
		n := bytes.Index(rest, crlf)
		if n < 0 {
			m.line(ctx, rest)
			return
		}
		m.line(ctx, rest[:n+2])
		rest = rest[n+2:]
	}
}

// filterBytes applies message_reject_characters and message_strip_characters. It returns
// p itself when nothing is to be changed. CR and LF are left to the rules about line
// ends.
func (m *Message) filterBytes(p []byte) []byte {
	if m.flags&proto.SubmitFilter == 0 {
		return p
	}
	if set := m.c.reject; set != nil && m.checking() {
		for _, c := range p {
			if set[c] && c != '\r' && c != '\n' {
				m.reason = "5.7.1 disallowed character"
				m.stat |= statCont
				m.stop = true
				m.actLog("reject", contentClass, string(bytes.TrimRight(p, "\r\n")), m.reason)
				return p
			}
		}
	}
	if set := m.c.strip; set != nil {
		// Only when such a character is found is anything copied.
		for i, c := range p {
			if set[c] && c != '\r' && c != '\n' {
				out := bytes.Clone(p[:i])
				for _, c := range p[i:] {
					if !set[c] || c == '\r' || c == '\n' {
						out = append(out, c)
					}
				}
				return out
			}
		}
	}
	return p
}

// finishContent processes what is left and makes the last line end in CRLF. A message
// without a body, or without anything, still gets the fields it must have.
func (m *Message) finishContent(ctx context.Context) {
	b := &m.body
	rest := b.hold
	b.hold = nil
	if b.cr {
		b.cr = false
		rest = append(rest, '\r')
	}
	m.process(ctx, rest, true) // takes everything
	if !b.started {
		m.prependFields(ctx)
		m.endHeader(ctx, nil)
		b.started = true
	}
	m.mimeEnd(ctx)
	if m.gauge.lineLen > 0 {
		m.emit(crlf)
	}
}
