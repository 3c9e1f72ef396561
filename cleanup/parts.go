// A watch for octets beyond ASCII in the headers of MIME parts. It is apart from
// message_mime.go, which follows the structure for checks: this one sees what is stored
// in the end, after filters.

package cleanup

import (
	"bytes"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
)

// maxPartLine is how much of a line of the body is kept to see whether it is a boundary.
// A boundary has at most mime_boundary_length_limit octets.
const maxPartLine = 4096

// A partWatch looks for octets beyond ASCII in the headers of MIME parts and of attached
// messages. With them a message needs SMTPUTF8 (RFC 6532 section 3.2), as with those of
// its own header. It changes nothing. It has to see every line, so a message has one only
// if the answer matters: if it says SMTPUTF8, or if that is to be found out. It belongs
// to its message.
type partWatch struct {
	structure rfc5322.Structure
	limit     int // header_size_limit: so much of a field counts

	line  []byte // the beginning of the present line, as far as it is kept
	field []byte // the field of a header that is being collected, with its line ends
	// The header is the message's own, which the gauge looks at. Each message begins in
	// it.
	primary  bool
	inHeader bool
	done     bool // nothing more can be found
	found    bool // there is a field that is not ASCII
}

// newPartWatch is a watch at the beginning of a message.
func newPartWatch(c *Core) *partWatch {
	return &partWatch{structure: rfc5322.Structure{MaxDepth: c.mimeDepth, MaxBoundary: c.boundaryLimit}, limit: c.headerLimit,
		primary: true, inHeader: true}
}

// add takes the next octets that are stored. CR and LF in them are line ends; a line may
// come in pieces.
func (w *partWatch) add(p []byte) {
	for len(p) > 0 && !w.done {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			w.keep(p)
			return
		}
		line := p[:i+1]
		if len(w.line) > 0 {
			w.keep(line)
			line = w.line
		}
		w.whole(line)
		w.line, p = reuse.Truncated(w.line), p[i+1:]
	}
}

// keep keeps a part of a line. What is beyond the limit cannot matter: no boundary is as
// long, and of a longer field only that much counts.
func (w *partWatch) keep(p []byte) {
	limit := maxPartLine
	if w.inHeader {
		limit = w.limit
	}
	// The rest of a long line only has to be passed over.
	if room := limit - len(w.line); room > 0 {
		w.line = append(w.line, p[:min(len(p), room)]...)
	}
}

// whole takes a line with its end, or the beginning of a long line.
func (w *partWatch) whole(line []byte) {
	text := bytes.TrimRight(line, "\r\n")
	if w.inHeader {
		if len(w.field) > 0 && len(text) > 0 && (text[0] == ' ' || text[0] == '\t') {
			if len(w.field)+len(line) <= w.limit {
				w.field = append(w.field, line...)
			}
			return
		}
		w.endField()
		if _, ok := rfc5322.ParseField(line); ok {
			w.field = append(reuse.Truncated(w.field), line...)
			return
		}
		// A line that is no field ends the header as an empty one would, and belongs to
		// the body.
		w.endHeader(len(text) == 0)
	}
	if found, header := w.structure.Boundary(text); found {
		w.inHeader = header
	}
}

// endField ends a field, if one is being collected.
func (w *partWatch) endField() {
	if f, ok := rfc5322.ParseField(w.field); ok {
		if !w.primary && eight(f.Raw) {
			w.found, w.done = true, true
		}
		w.structure.Field(f) // which keeps nothing of it
	}
	w.field = reuse.Truncated(w.field)
}

// endHeader ends a header, properly with an empty line or without one. After the header
// of a message that is no multipart, nothing can be found any more.
func (w *partWatch) endHeader(properly bool) {
	w.inHeader = properly && w.structure.EndOfHeader()
	// From here on nothing needs to be looked at, which is the case of most mail.
	if w.primary && !w.inHeader && !w.structure.Multipart() {
		w.done = true
	}
	w.primary = false
}

// end ends the content, which may end in a header.
func (w *partWatch) end() {
	if w.inHeader && !w.done {
		if len(w.line) > 0 {
			w.whole(w.line)
		}
		w.endField()
	}
}

// watchParts begins to look for header fields of parts, if it matters.
func (m *Message) watchParts() {
	if m.c.utf8 && m.c.mime && (m.flags&proto.SubmitAutoUTF8 != 0 || m.env.Body&mail.BodySMTPUTF8 != 0) {
		m.parts = newPartWatch(m.c)
	}
}
