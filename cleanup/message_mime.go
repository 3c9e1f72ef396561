// MIME as far as Postfix's parameters need it: which header a line belongs to
// (nested_header_checks, mime_header_checks), and violations that strict_ parameters
// refuse. The structure itself is package rfc5322's; nothing is decoded here.

package cleanup

import (
	"bytes"
	"context"

	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
)

// mimeState is where in the MIME structure the body is. It is followed only
// if something wants to know.
type mimeState struct {
	on bool
	// Where in the multipart tree we are. begun says that its limits have been set.
	structure rfc5322.Structure
	begun     bool

	inHeader checkClass // mimeClass or nestedClass inside the header of a part, else bodyClass
	offset   int64      // octets since the last header: body_checks_size_limit counts from there
	field    []byte     // the field that is being collected, with its line ends
	// The field is longer than header_size_limit, and the rest of it is dropped.
	tooLong bool // the rest of it is dropped
	// Faults that have been reported, so that each is logged once for a message.
	faults fault
}

// fault is a violation of MIME that some parameter does not forgive.
type fault uint8

const (
	faultNesting fault = 1 << iota
	faultHeader8Bit
	faultBody8Bit
	faultEncoding
	faultEndOfHeader
)

// The texts are Postfix's; clients and log readers know them.
var faultTexts = map[fault]string{
	faultNesting:     "MIME nesting exceeds safety limit",
	faultHeader8Bit:  "improper use of 8-bit data in message header",
	faultBody8Bit:    "improper use of 8-bit data in message body",
	faultEncoding:    "invalid message/* or multipart/* encoding domain",
	faultEndOfHeader: "primary header was terminated with non-empty line",
}

// mimeFault reports a violation, once, and refuses the message for it. The one exception
// is a header without an empty line after it, which is only reported unless
// non_empty_end_of_header_action is "reject".
func (m *Message) mimeFault(f fault, text []byte) {
	s := &m.body.mime
	if s.faults&f != 0 {
		return
	}
	s.faults |= f
	if len(text) > 100 {
		text = text[:100]
	}
	rcpt := "unknown"
	if m.anyRcpt {
		rcpt = m.c.logForm.Of(m.lastRcpt)
	}
	// The form of Postfix's line, which log analysis counts.
	m.infof("reject: mime-error %s: %s from %s; from=<%s> to=<%s>", faultTexts[f],
		printable(string(bytes.TrimRight(text, "\r\n"))), m.origin(), m.c.logForm.Of(m.env.Sender), rcpt)
	if f == faultEndOfHeader && m.c.endOfHeader != "reject" {
		return
	}
	if m.reason == "" {
		m.reason = "5.6.0 " + faultTexts[f]
	}
	m.stat |= statCont
}

// mimeField takes a field of the present header, be it of the message or of a part.
func (m *Message) mimeField(f rfc5322.Field, info fieldInfo) {
	s := &m.body.mime
	if !s.on || info.id != fieldContentType && info.id != fieldContentEncoding {
		return
	}
	if !s.begun {
		s.begun = true
		s.structure.MaxDepth, s.structure.MaxBoundary = m.c.mimeDepth, m.c.boundaryLimit
	}
	s.structure.Field(f)
	if s.structure.TooDeep() {
		m.mimeFault(faultNesting, f.Raw)
	}
}

// mimeHeaderEnd ends a header with an empty line. What follows is a body, or in a
// message/rfc822 part another header.
func (m *Message) mimeHeaderEnd() {
	s := &m.body.mime
	s.inHeader = bodyClass
	if !s.on {
		return
	}
	// RFC 2045 section 6.4 forbids encodings of composite types.
	if m.c.strict.encoding {
		if name := s.structure.EncodingFault(); name != "" {
			m.mimeFault(faultEncoding, []byte(name))
		}
	}
	s.offset = 0
	if s.structure.EndOfHeader() {
		s.inHeader = nestedClass
	}
}

// mimeGarbage ends the primary header with a line that is no field.
func (m *Message) mimeGarbage() { m.body.mime.inHeader = bodyClass }

// mimeLine takes a line of the body; text is raw without its end. It returns true if the
// line is part of a header and has been dealt with.
func (m *Message) mimeLine(ctx context.Context, text, raw []byte, ended bool) bool {
	s := &m.body.mime
	if !s.on {
		return false
	}
	if s.inHeader != bodyClass && m.mimeHeaderLine(ctx, text, raw, ended) {
		return true
	}
	if !m.ok() {
		return true
	}
	// A part that says 8bit may have such octets.
	if m.c.strict.body8Bit && s.structure.SevenBit() && eight(text) {
		m.mimeFault(faultBody8Bit, text)
	}
	if found, header := s.structure.Boundary(text); found {
		s.inHeader = bodyClass
		if header {
			s.inHeader = mimeClass
		}
		// The boundary itself is looked at with the body before it.
	}
	return false
}

// mimeHeaderLine takes a line inside the header of a part. A field is collected until a
// line comes that does not continue it. It returns false for the line that ends the
// header, which goes the way of the body.
func (m *Message) mimeHeaderLine(ctx context.Context, text, raw []byte, ended bool) bool {
	s := &m.body.mime
	if len(s.field) > 0 {
		fold := len(text) > 0 && (text[0] == ' ' || text[0] == '\t')
		// A field that was cut at line_length_limit goes on, whatever its next part
		// begins with.
		if fold || !bytes.HasSuffix(s.field, crlf) {
			if s.tooLong = s.tooLong || len(s.field)+len(raw) > m.c.headerLimit; !s.tooLong {
				s.field = append(s.field, raw...)
			}
			return true
		}
		m.flushField(ctx)
		if !m.ok() {
			return true
		}
	}
	if _, ok := rfc5322.ParseField(raw); ok {
		s.field = append(reuse.Truncated(s.field), raw...)
		return true
	}
	if len(text) == 0 && ended {
		m.mimeHeaderEnd()
	} else {
		s.inHeader = bodyClass
	}
	return false
}

// flushField checks the collected field of a part and stores it. Addresses in it are not
// rewritten: only the message's own header is.
func (m *Message) flushField(ctx context.Context) {
	s := &m.body.mime
	// What is emitted stays in use, and s.field is used again.
	raw := bytes.Clone(s.field)
	s.field, s.tooLong = reuse.Truncated(s.field), false
	if !bytes.HasSuffix(raw, crlf) {
		raw = append(raw, crlf...)
	}
	f, ok := rfc5322.ParseField(raw)
	if !ok {
		m.emit(raw)
		return
	}
	info := lookupField(f.Name())
	m.mimeField(f, info)
	if m.checking() {
		class := s.inHeader
		if info.kind&kindMIME != 0 {
			class = mimeClass
		}
		var keep bool
		if f, keep = m.checkField(ctx, class, f); !keep {
			return
		}
	}
	m.emit(f.Raw)
}

// mimeEnd ends the content, perhaps in the middle of a part's header.
func (m *Message) mimeEnd(ctx context.Context) {
	if m.body.mime.on && len(m.body.mime.field) > 0 {
		m.flushField(ctx)
	}
}
