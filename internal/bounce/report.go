package bounce

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
)

// status appends the part for programs, RFC 3464 section 2.
func (l *letter) status(b []byte) []byte {
	b = l.part(b, "Delivery report", "message/"+l.reportType(), l.global)
	env := &l.Original
	b = appendField(b, "Reporting-MTA", "dns; "+l.c.hostname)
	if env.EnvID != "" {
		b = appendField(b, "Original-Envelope-Id", clean(env.EnvID, false))
	}
	b = appendField(b, "X-"+l.c.mailName+"-Queue-ID", string(env.ID))
	b = appendField(b, "X-"+l.c.mailName+"-Sender", l.typedAddress(env.Sender))
	if !env.Arrival.IsZero() {
		b = appendField(b, "Arrival-Date", rfc5322.Date(env.Arrival))
	}
	for i := range l.Reports {
		b = append(b, "\r\n"...)
		b = l.recipient(b, &l.Reports[i])
	}
	return b
}

// recipient appends the fields of one recipient, RFC 3464 section 2.3.
func (l *letter) recipient(b []byte, r *Report) []byte {
	o := &r.Outcome
	b = appendField(b, "Final-Recipient", l.typedAddress(r.Recipient.Address))
	switch {
	case r.Recipient.ORCPT != "":
		b = appendField(b, "Original-Recipient", l.originalRecipient(r.Recipient.ORCPT))
	case r.Recipient.Original != "":
		b = appendField(b, "Original-Recipient", l.typedAddress(r.Recipient.Original))
	}
	action := o.Action
	switch l.Kind {
	case proto.NoticeFailure, proto.NoticeExpired:
		action = dsn.Failed // the status code of what kept it waiting may be a 4.x.x
	case proto.NoticeDelay:
		action = dsn.Deferred
	}
	b = appendField(b, "Action", action.String())
	b = appendField(b, "Status", o.Status.String())
	if o.MTA != "" {
		b = appendField(b, "Remote-MTA", "dns; "+clean(o.MTA, l.global))
	}
	diagnostic := "X-" + l.c.mailName + "; " + clean(l.reason(r), l.global)
	if o.DiagType != "" && o.DiagText != "" {
		diagnostic = clean(o.DiagType, false) + "; " + clean(o.DiagText, l.global)
	}
	b = appendField(b, "Diagnostic-Code", diagnostic)
	if l.Kind == proto.NoticeDelay {
		b = appendField(b, "Will-Retry-Until", rfc5322.Date(l.Original.Created().Add(l.c.lifetime).In(l.Original.Arrival.Location())))
	}
	return b
}

// appendField appends a field of the delivery status, folded.
func appendField(b []byte, name, value string) []byte {
	return appendWrapped(b, name+": "+value)
}

// typedAddress is an address with its type. Other than ASCII characters make
// it one of type utf-8, which in a report that must be ASCII is encoded
// (RFC 6533 section 3).
func (l *letter) typedAddress(addr string) string {
	if isASCII(addr) {
		return "rfc822; " + external(addr, false)
	}
	if l.global {
		return "utf-8; " + external(addr, true)
	}
	return "utf-8; " + xtextUTF8(external(addr, true))
}

// originalRecipient is what the ORCPT parameter said, type;address.
func (l *letter) originalRecipient(orcpt string) string {
	kind, addr, _ := strings.Cut(orcpt, ";")
	switch {
	case l.global && strings.EqualFold(kind, "utf-8"):
		return clean(kind+";"+fromXtextUTF8(addr), true)
	case isASCII(orcpt) || l.global:
		return clean(orcpt, l.global)
	}
	return clean(kind, false) + ";" + xtextUTF8(clean(addr, true))
}

// xtextUTF8 is the form utf-8-addr-xtext of RFC 6533 section 3.
func xtextUTF8(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r > ' ' && r <= '~' && r != '\\' && r != '+' && r != '=' {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\x{%X}`, r)
		}
	}
	return b.String()
}

// fromXtextUTF8 is the way back. What is malformed stays as it is.
func fromXtextUTF8(s string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, `\x{`)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		digits, rest, closed := strings.Cut(after, "}")
		n, err := strconv.ParseUint(digits, 16, 21)
		if !closed || err != nil || !utf8.ValidRune(rune(n)) {
			b.WriteString(`\x{`)
			s = after
			continue
		}
		b.WriteRune(rune(n))
		s = rest
	}
}

// originalHead appends the header of the part that returns the message.
func (l *letter) originalHead(b []byte) []byte {
	description, contentType := "Message", "message/rfc822"
	international := l.Original.Body&mail.BodyUTF8Hdr != 0
	switch {
	case l.full && international:
		contentType = "message/global" // RFC 6533 section 4
	case !l.full && international:
		contentType = "message/global-headers"
	case !l.full:
		contentType = "text/rfc822-headers"
	}
	if !l.full {
		description = "Message Headers"
	}
	switch l.Kind {
	case proto.NoticeFailure, proto.NoticeExpired, proto.NoticeDelay:
		description = "Undelivered " + description
	}
	b = l.part(b, description, contentType, l.orig8)
	sender := external(l.Original.Sender, international || l.global)
	if len(sender) > hardColumn {
		return b // as of To
	}
	b = append(b, "Return-Path: <"...)
	b = append(b, sender...)
	return append(b, ">\r\n"...)
}

// copyOriginal writes the message, or its header: the lines before the first
// empty one, as far as the size limit goes, to the end of a field.
func (l *letter) copyOriginal(w io.Writer, content *bufio.Reader) error {
	if l.full {
		// The size was judged by the envelope's word, which counts line ends
		// once; the bound here is only for a spool that is wrong about it.
		_, err := io.Copy(w, io.LimitReader(content, 2*l.c.sizeLimit+1))
		return err
	}
	var sent int64
	start := true // of a line
	for {
		line, err := content.ReadSlice('\n')
		if start && len(line) <= 2 && strings.TrimRight(string(line), "\r\n") == "" {
			return ignoreEOF(err)
		}
		over := sent+int64(len(line)) > l.c.sizeLimit
		if start && over && sent > 0 && (len(line) == 0 || line[0] != ' ' && line[0] != '\t') {
			return nil
		}
		if over && sent > 2*l.c.sizeLimit { // a field without end
			return l.endLine(w, start)
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
		sent += int64(len(line))
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return ignoreEOF(err)
		}
		start = err == nil
	}
}

func (l *letter) endLine(w io.Writer, start bool) error {
	if start {
		return nil
	}
	_, err := io.WriteString(w, "\r\n")
	return err
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
