// Fields that are added when a message has none: Message-ID, Date, From and To, and what
// REQUIRETLS, unsubscribing and MIME call for. As in Postfix, mail from others gets them only with
// always_add_missing_headers; adding to it would break the signatures of its senders.

package cleanup

import (
	"context"
	"mime"
	"strings"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
)

// endHeader adds what is missing from the primary header, below what is there. garbage is
// the line that ended the header, if that was not an empty one. In a message that was
// resent, the Resent- fields are the ones that must be there (RFC 5322 section 3.6.6).
func (m *Message) endHeader(ctx context.Context, garbage []byte) {
	if !m.ok() {
		return
	}
	h := &m.header
	add := h.context != "" || m.c.alwaysAdd
	prefix, idField, dateField, fromField := "", fieldMessageID, fieldDate, fieldFrom
	if h.resent {
		prefix, idField, dateField, fromField = "Resent-", fieldResentMessageID, fieldResentDate, fieldResentFrom
	}
	var b []byte
	if add && !h.has(idField) {
		// The queue ID is never given twice, so the
		// Message-ID is unique.
		id := "<" + m.id + "@" + m.c.hostname + ">"
		b = append(append(append(b, prefix...), "Message-Id: "...), id...)
		b = append(b, crlf...)
		m.logMessageID(id, h.resent)
		h.seen |= 1 << idField
		if !h.resent && h.messageID == "" {
			h.messageID = id
		}
	}
	// Log analysis expects a message-id= line for every message.
	if !h.has(fieldMessageID) {
		m.logMessageID("<>", false)
	}
	if add && !h.has(dateField) {
		b = append(append(b, prefix...), "Date: "...)
		b = rfc5322.AppendDate(b, m.env.Arrival)
		b = append(b, crlf...)
	}
	if add && !h.has(fromField) {
		b = m.appendFrom(append(b, prefix...))
	}
	// RFC 822 wanted a destination field; undisclosed_recipients_header stands for
	// recipients that are not named.
	if add && m.c.undisclosed != "" && !h.has(fieldTo, fieldCc, fieldResentTo, fieldResentCc) {
		// A parameter that is no field would end the header.
		if rfc5322.IsField(m.c.undisclosed) {
			b = append(append(b, m.c.undisclosed...), crlf...)
		} else {
			m.warnf("bad undisclosed_recipients_header header text %q -- need \"headername: headervalue\"", m.c.undisclosed)
		}
	}
	if m.env.RequireTLS && m.c.requireTLSField && !h.requireTLS {
		// A content filter that does not know REQUIRETLS brings it back in this.
		b = append(b, mail.RequireTLSField+": yes\r\n"...)
	}
	if h.unsubscribe != "" {
		b = m.appendUnsubscribe(ctx, b)
	}
	if garbage != nil && m.flags&proto.SubmitFilter != 0 {
		switch m.c.endOfHeader {
		case "add_headers", "add_header":
			b = append(b, "MIME-Error: message header was not terminated by empty line\r\n"...)
			m.mimeFault(faultEndOfHeader, garbage)
		case "reject":
			m.mimeFault(faultEndOfHeader, garbage)
		}
	}
	if len(b) > 0 {
		m.emit(b)
	}
}

// appendFrom appends a From field for the envelope sender, in the form that
// header_from_format names.
func (m *Message) appendFrom(b []byte) []byte {
	sender := m.env.Sender
	if sender == "" {
		// Postfix names the null sender like this in From.
		sender = mailerDaemon
	}
	b = append(b, "From: "...)
	name := m.cleanFullName()
	switch {
	case m.env.Sender == "" || name == "":
		b = rfc5322.AppendQuoted(b, sender)
	case m.c.fromObsolete:
		b = rfc5322.AppendQuoted(b, sender)
		b = append(b, ' ')
		b = m.appendName(b, name)
	default:
		b = m.appendName(b, name)
		b = append(b, " <"...)
		b = rfc5322.AppendQuoted(b, sender)
		b = append(b, '>')
	}
	return append(b, crlf...)
}

// cleanFullName is the sender's full name with spaces for control characters. A local
// user chose it, and a line end in it would begin a field of that user's own.
func (m *Message) cleanFullName() string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 127 {
			return ' '
		}
		return r
	}, m.fullName))
}

// appendName appends a full name as a phrase, or in the obsolete format as a comment.
// What is not ASCII becomes encoded words (RFC 2047), folded between them.
func (m *Message) appendName(b []byte, name string) []byte {
	encoded := !ascii(name)
	if encoded {
		name = mime.QEncoding.Encode(m.c.fullNameCharset, name)
		// RFC 2047 section 2: a line with an encoded word has at most 76 characters.
		name = strings.ReplaceAll(name, "?= =?", "?=\r\n\t=?")
	}
	switch {
	case m.c.fromObsolete && encoded:
		b = append(b, '(')
		b = append(b, name...)
		return append(b, ')')
	case m.c.fromObsolete:
		return rfc5322.AppendComment(b, name)
	case encoded:
		return append(b, name...)
	}
	return rfc5322.AppendPhrase(b, name)
}
