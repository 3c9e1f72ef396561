// The primary header: which fields are known, what is taken from them, and how addresses
// in them are rewritten. Checks by tables are in header_check.go, missing fields in
// header_missing.go.

package cleanup

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
)

// fieldID names the header fields that something is done with. There are fewer than 32,
// so that those seen fit into a word (headerState.seen).
type fieldID uint8

const (
	fieldOther fieldID = iota
	fieldApparentlyTo
	fieldBcc
	fieldCc
	fieldContentEncoding
	fieldContentType
	fieldContentOther // of MIME, but not looked into
	fieldDate
	fieldDispositionTo
	fieldErrorsTo
	fieldFrom
	fieldMailFollowupTo
	fieldMessageID
	fieldReceived
	fieldReplyTo
	fieldResentBcc
	fieldResentCc
	fieldResentDate
	fieldResentFrom
	fieldResentMessageID
	fieldResentReplyTo
	fieldResentSender
	fieldResentTo
	fieldReturnPath
	fieldReturnReceiptTo
	fieldSender
	fieldTo
	fieldTLSRequired
	fieldRequireTLS
)

// fieldKind is what a field is about.
type fieldKind uint8

const (
	// The classes of sender_canonical_maps and so on depend on these two. Which field is
	// which is as in Postfix; Resent-Reply-To is a recipient there, too.
	kindSender    fieldKind = 1 << iota // addresses that are rewritten like senders
	kindRecipient                       // addresses that are rewritten like recipients
	kindResent                          // of a block of Resent- fields
	kindMIME                            // goes to mime_header_checks wherever it stands
)

// fieldInfo is a known field; the zero value is any other.
type fieldInfo struct {
	name string
	id   fieldID
	kind fieldKind
}

// fieldsByLength finds known fields by the length of their name, then by
// comparison: few names share one.
var fieldsByLength = func() (t [32][]fieldInfo) {
	for _, f := range []fieldInfo{
		{"Apparently-To", fieldApparentlyTo, kindRecipient},
		{"Bcc", fieldBcc, kindRecipient},
		{"Cc", fieldCc, kindRecipient},
		{"Content-Description", fieldContentOther, kindMIME},
		{"Content-Disposition", fieldContentOther, kindMIME},
		{"Content-ID", fieldContentOther, kindMIME},
		{"Content-Transfer-Encoding", fieldContentEncoding, kindMIME},
		{"Content-Type", fieldContentType, kindMIME},
		{"Date", fieldDate, 0},
		{"Disposition-Notification-To", fieldDispositionTo, kindSender},
		{"Errors-To", fieldErrorsTo, kindSender},
		{"From", fieldFrom, kindSender},
		{"Mail-Followup-To", fieldMailFollowupTo, kindSender},
		{"Message-Id", fieldMessageID, 0},
		{"MIME-Version", fieldContentOther, kindMIME},
		{"Received", fieldReceived, 0},
		{mail.RequireTLSField, fieldRequireTLS, 0},
		{"Reply-To", fieldReplyTo, kindSender},
		{"Resent-Bcc", fieldResentBcc, kindRecipient | kindResent},
		{"Resent-Cc", fieldResentCc, kindRecipient | kindResent},
		{"Resent-Date", fieldResentDate, kindResent},
		{"Resent-From", fieldResentFrom, kindSender | kindResent},
		{"Resent-Message-Id", fieldResentMessageID, kindResent},
		{"Resent-Reply-To", fieldResentReplyTo, kindRecipient | kindResent},
		{"Resent-Sender", fieldResentSender, kindSender | kindResent},
		{"Resent-To", fieldResentTo, kindRecipient | kindResent},
		{"Return-Path", fieldReturnPath, kindSender},
		{"Return-Receipt-To", fieldReturnReceiptTo, kindSender},
		{"Sender", fieldSender, kindSender},
		{"To", fieldTo, kindRecipient},
		{"TLS-Required", fieldTLSRequired, 0},
	} {
		t[len(f.name)] = append(t[len(f.name)], f)
	}
	return t
}()

// lookupField finds a field by its name, in any letter case.
func lookupField(name []byte) fieldInfo {
	if len(name) < len(fieldsByLength) {
		for _, f := range fieldsByLength[len(name)] {
			if rfc5322.EqualName(name, f.name) {
				return f
			}
		}
	}
	return fieldInfo{}
}

// headerState is what is known of the header so far.
type headerState struct {
	// Rewriting context of the addresses, "local" or "remote"; "": they are left as they
	// are.
	context string
	// message_drop_headers
	drop []string

	// What fields say of whose mail it is, and whether the client may say so: asked for once.
	tenant, campaign string
	trusted, asked   bool
	chosen           bool // chooseTenant has decided

	// unsubscribe_header: the list that is to have a link, or unsubscribeAll; "": none was asked for. unsubscribes
	// says that the message has a link already.
	unsubscribe  string
	unsubscribes bool
	// The link that the message was given, and whom it is for; "": it has none. See unlink.
	link, linked string

	// Set of fieldIDs, a bit for each.
	seen uint32
	// Received fields so far. Too many mean that the message goes round in a loop (RFC
	// 5321 section 6.3).
	hops   int
	resent bool // a Resent- field was seen
	// The first Message-ID with its brackets; "": there is none yet. It is recorded in
	// the envelope, for log lines of later services.
	messageID string
	// An octet over 127 has been reported: once is enough.
	fault8Bit bool

	// The header has Require-TLS-ESMTP: yes, and need not get one.
	requireTLS bool

	// Storage for rewriteField.
	addrs []rfc5322.Address
}

// has says whether one of these fields was seen.
func (h *headerState) has(ids ...fieldID) bool {
	for _, id := range ids {
		if h.seen&(1<<id) != 0 {
			return true
		}
	}
	return false
}

// field takes one field of the primary header. f.Raw is whole and ends in CRLF. The order
// is Postfix's: a field is checked before anything else is done with it, so that REPLACE
// can give it another name, and is rewritten last.
func (m *Message) field(ctx context.Context, f rfc5322.Field) {
	if !m.ok() {
		return
	}
	h := &m.header
	info := lookupField(f.Name())
	if info.id == fieldReceived {
		h.hops++
	}
	if m.c.strict.header8Bit && m.flags&proto.SubmitFilter != 0 && !h.fault8Bit && eight(f.Raw) {
		h.fault8Bit = true
		m.mimeFault(faultHeader8Bit, f.Raw)
	}
	// MIME is followed by the field as it came; a table may change it afterwards, as in
	// Postfix.
	m.mimeField(f, info)
	if m.checking() {
		class := headerClass
		if info.kind&kindMIME != 0 {
			class = mimeClass
		}
		var keep bool
		if f, keep = m.checkField(ctx, class, f); !keep || !m.ok() {
			return
		}
		// The table may have replaced it.
		info = lookupField(f.Name())
	}
	// Most fields, and so decided first.
	if info.id == fieldOther {
		if !m.tenantField(ctx, f) && !m.unsubscribeField(ctx, f) && !m.dropped(f.Name()) {
			m.emitField(f)
		}
		return
	}
	// A field that is dropped afterwards counts as seen: it is not added again as
	// missing.
	h.seen |= 1 << info.id
	m.learn(f, info)
	if !m.ok() {
		return
	}
	h.resent = h.resent || info.kind&kindResent != 0
	if m.dropped(f.Name()) {
		return
	}
	switch {
	case h.context == "":
		m.emitField(f)
	case info.kind&kindSender != 0:
		// The class decides which canonical maps and masquerading apply.
		m.rewriteField(ctx, f, classHeaderSender)
	case info.kind&kindRecipient != 0:
		m.rewriteField(ctx, f, classHeaderRecipient)
	default:
		m.emitField(f)
	}
}

// learn takes from a known field what other parts of the system need to know.
func (m *Message) learn(f rfc5322.Field, info fieldInfo) {
	h := &m.header
	switch info.id {
	case fieldMessageID:
		value := string(f.Value())
		m.logMessageID(printable(value), false)
		// What is not in brackets is logged, but is no identifier to be relied on.
		if end := strings.IndexByte(value, '>'); h.messageID == "" && end > 0 && value[0] == '<' {
			h.messageID = printable(value[:end+1])
		}
	case fieldResentMessageID:
		m.logMessageID(printable(string(f.Value())), true)
	case fieldReceived:
		if h.hops >= m.c.hopLimit {
			m.warnf("message rejected: hopcount exceeded")
			m.stat |= statHops
		}
	// detect_8bit_encoding_header: the field is believed before the content is seen.
	case fieldContentEncoding:
		value := string(f.Value())
		if m.c.detect8Bit && (strings.EqualFold(value, "8bit") || strings.EqualFold(value, "binary")) {
			m.says8Bit = true
		}
	// RFC 8689 section 5: "no" lets mail go without the TLS that policies want. No other
	// value is defined.
	case fieldTLSRequired:
		if !m.c.tlsRequired {
			return
		}
		if strings.EqualFold(string(f.Value()), "no") {
			m.env.TLSOptional = true
		} else {
			m.addLine(logLine{Warning: true, Text: m.id + ": ignoring malformed header: '" + fmt.Sprintf("%.100s", printable(string(f.Lines()))) + "'"})
		}
	// Our own field, by which a content filter brings REQUIRETLS back.
	case fieldRequireTLS:
		if m.c.requireTLSField && strings.EqualFold(string(f.Value()), "yes") {
			m.env.RequireTLS, h.requireTLS = true, true
		}
	}
}

// dropped says whether fields of this name are removed (message_drop_headers).
func (m *Message) dropped(name []byte) bool {
	// A handful of names at most; a map would not be faster.
	for _, d := range m.header.drop {
		if rfc5322.EqualName(name, d) {
			return true
		}
	}
	return false
}

// emitField stores f. White space between name and colon is left out: RFC 5322 section
// 4.5 lets others reject it, or take the name for another.
func (m *Message) emitField(f rfc5322.Field) {
	name, rest := f.Name(), f.AfterName()
	// Nothing between name and colon, as nearly always: the field is stored as it came.
	if len(name)+len(rest) == len(f.Raw) {
		m.emit(f.Raw)
		return
	}
	m.emit(name)
	m.emit(rest)
}

// rewriteField puts the addresses of a field into standard form and maps them. The field
// is written anew only if an address changed, so that signatures by others stay valid
// where they can.
func (m *Message) rewriteField(ctx context.Context, f rfc5322.Field, class classes) {
	text := string(f.Body())
	m.header.addrs = rfc5322.AppendAddresses(reuse.Truncated(m.header.addrs), text, m.c.tokenLimit)
	changed := false
	for i := range m.header.addrs {
		a := &m.header.addrs[i]
		if a.Addr == "" {
			continue
		}
		addr := m.standard(ctx, a)
		// Without it (receive_override_options = no_address_mappings) addresses only get
		// their standard form.
		if m.flags&proto.SubmitMap != 0 {
			addr = m.canonical(ctx, addr, class)
		}
		if addr != a.Addr {
			a.Addr, a.Changed, changed = addr, true, true
		}
	}
	if !m.ok() {
		return
	}
	if !changed {
		m.emitField(f)
		return
	}
	// Comments and phrases stay; only addresses that changed are written anew.
	m.emit(rfc5322.AppendRewritten(make([]byte, 0, len(f.Raw)+64), string(f.Name()), text, m.header.addrs))
}

// standard puts an address of the header into standard form. Where quotes hide characters
// in the local part that would route it (a.Hidden), the rewriter sees a plain word in
// their place: "user@elsewhere"@here must not become user@elsewhere.
func (m *Message) standard(ctx context.Context, a *rfc5322.Address) string {
	if a.Hidden == 0 {
		return m.rewrite(ctx, m.header.context, a.Addr)
	}
	const word = "x"
	out := m.rewrite(ctx, m.header.context, word+a.Addr[a.Hidden:])
	return a.Addr[:a.Hidden] + strings.TrimPrefix(out, word)
}

// eight says whether some octet of b is over 127. Every octet of every message passes
// through it, so it looks at 32 at a time.
func eight(b []byte) bool {
	const high = 0x8080808080808080
	for len(b) >= 32 {
		// One test for the high bits of 32 octets.
		x := binary.LittleEndian.Uint64(b) | binary.LittleEndian.Uint64(b[8:]) |
			binary.LittleEndian.Uint64(b[16:]) | binary.LittleEndian.Uint64(b[24:])
		if x&high != 0 {
			return true
		}
		b = b[32:]
	}
	for _, c := range b {
		if c > 127 {
			return true
		}
	}
	return false
}

// checking says whether header and body checks still apply: PASS, REJECT and the like end
// them.
func (m *Message) checking() bool { return m.flags&proto.SubmitFilter != 0 && !m.stop }

// checksFor is the table for a class of fields; it may be empty.
func (c *Core) checksFor(class checkClass) *table.Maps {
	switch class {
	case headerClass:
		return c.headerChecks
	case mimeClass:
		return c.mimeChecks
	case nestedClass:
		return c.nestedChecks
	}
	return c.bodyChecks
}
