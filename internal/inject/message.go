package inject

import (
	"mime"
	"net/url"
	"strings"
	"time"

	"posthaste/internal/smtpwire"
)

// Limits of one message, besides those of main.cf.
const (
	maxFields     = 100 // header fields of the client's own
	maxFieldName  = 76
	maxFieldValue = 8 << 10
	maxSubject    = 2 << 10
	maxReplyTo    = 20
	maxKey        = 255 // of an idempotency key
)

// A message is what a client asks to be sent: one message to all, or with individual one to each.
type message struct {
	sender     string // envelope sender, in internal form; "" is the null sender
	hasSender  bool   // it was given
	senderUTF8 bool
	from       *Address // nil: none is given, and cleanup writes a From: of the sender
	to, cc     []recipient
	bcc        []recipient
	individual bool
	replyTo    []Address
	subject    *template // nil: there is none
	text, html *template // nil: there is none
	amp        *template // AMP for Email, a third form of the text; nil: there is none
	fields     []field   // of the client's own
	files      []file
	values     map[string]string
	unsub      *unsubscribe
	raw        *template // the whole message, RFC 5322, in place of all that is composed; nil: it is composed
	key        string    // idempotency key; empty: none
	sendAt     time.Time // zero: at once
	campaign   string    // empty: none

	// What KumoMTA's requests have besides.
	noReceived bool       // no Received: field is added
	reference  *reference // nil: no field is added
}

// A recipient is one, as it was asked for.
type recipient struct {
	Address
	said   string // how the client has written the address
	values map[string]string
	meta   map[string]string // of KumoMTA's requests
	err    error             // why there is none
}

// A field is a header field of the client's own.
type field struct {
	name  string
	value *template
	plain bool // no encoded words: identifiers, addresses, dates
}

// A file is an attachment, or with an identifier something that HTML refers to.
type file struct {
	name, kind string
	id         string // Content-ID, without angle brackets
	inline     bool
	data       []byte
	base64     bool // data is in base64, which has been looked at
}

// An unsubscribe is what List-Unsubscribe is made of (RFC 2369, RFC 8058).
type unsubscribe struct {
	url      *template // nil: none
	mailto   string
	oneClick bool
	// ours says that cleanup makes the link, of the list, or empty of all mail of the tenant.
	ours  bool
	list  string
	field string // that asks cleanup for it
}

// all are the recipients, in the order of the request.
func (m *message) all() []*recipient {
	list := make([]*recipient, 0, len(m.to)+len(m.cc)+len(m.bcc))
	for _, part := range [][]recipient{m.to, m.cc, m.bcc} {
		for i := range part {
			list = append(list, &part[i])
		}
	}
	return list
}

// isField says whether a text is the name of a header field (RFC 5322 section 3.6.8).
func isField(name string) bool {
	for i := range len(name) {
		if name[i] <= ' ' || name[i] >= 0x7f || name[i] == ':' {
			return false
		}
	}
	return name != "" && len(name) <= maxFieldName
}

// reserved says why a client may not give a header field itself; "": it may.
func reserved(name string) string {
	switch l := strings.ToLower(name); {
	case oneOf(l, "from", "to", "cc", "bcc", "reply-to", "subject"):
		return "it has a field of the request"
	case oneOf(l, "date", "mime-version", "sender", "received", "return-path", "delivered-to", "x-original-to", "authentication-results", "list-unsubscribe-post"),
		strings.HasPrefix(l, "content-"), strings.HasPrefix(l, "resent-"), strings.HasPrefix(l, "arc-"), strings.HasPrefix(l, "dkim-"):
		return "the mail system writes it"
	}
	return ""
}

// isPlain says whether a field has a structure, in which there are no encoded words.
func isPlain(name string) bool {
	return oneOf(strings.ToLower(name), "message-id", "in-reply-to", "references", "list-id", "list-unsubscribe", "list-help", "list-archive", "list-post", "list-owner", "list-subscribe",
		"precedence", "auto-submitted", "importance", "priority", "x-priority", "feedback-id", "date", "from", "to", "cc", "reply-to", "sender")
}

// addField adds a field of the client's own.
func (m *message) addField(name string, value []byte, d dialect) error {
	if !isField(name) {
		return refuse("it is no name of a header field")
	}
	if len(m.fields) >= maxFields {
		return tooLarge("there are more than %d header fields", maxFields)
	}
	if len(value) > maxFieldValue {
		return tooLarge("a header field has at most %d octets", maxFieldValue)
	}
	if hasLineControl(value) {
		return refuse("a header field has no control characters and no ends of lines")
	}
	t, err := parseTemplate(value, d)
	m.fields = append(m.fields, field{name: name, value: t, plain: isPlain(name)})
	return err
}

// addFile adds an attachment, after it has looked at it.
func (m *message) addFile(f file, limit int) error {
	if len(m.files) >= limit {
		return tooLarge("there are more than %d attachments (inject_attachment_limit)", limit)
	}
	if f.kind == "" {
		f.kind = "application/octet-stream"
	}
	kind, params, err := mime.ParseMediaType(f.kind)
	if err != nil || !strings.Contains(kind, "/") || hasLineControl(f.kind) || !smtpwire.IsASCII(f.kind) || len(f.kind) > 200 {
		return in("content_type", refuse("it is no media type"))
	}
	if strings.HasPrefix(kind, "multipart/") || kind == "message/rfc822" || kind == "message/partial" || kind == "message/external-body" {
		return in("content_type", refuse("an attachment of the type %s is not composed here", kind))
	}
	if f.kind = mime.FormatMediaType(kind, params); f.kind == "" {
		return in("content_type", refuse("it is no media type"))
	}
	if hasLineControl(f.name) || strings.ContainsAny(f.name, "/\\") || len(f.name) > 200 {
		return in("filename", refuse("it has a slash or a control character, or more than 200 octets"))
	}
	if f.id != "" {
		if len(f.id) > 200 || strings.ContainsFunc(f.id, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '<' || r == '>' }) {
			return in("content_id", refuse("it is no identifier: it has visible ASCII without angle brackets, 200 octets at most"))
		}
	}
	if f.base64 {
		if err := checkBase64(f.data); err != nil {
			return err
		}
	}
	m.files = append(m.files, f)
	return nil
}

// check verifies what concerns several fields.
func (m *message) check(now time.Time, set *limits) error {
	all := len(m.to) + len(m.cc) + len(m.bcc)
	switch {
	case all == 0:
		return in("to", refuse("there is no recipient"))
	case all > set.recipients:
		return tooLarge("there are %d recipients; %d are the most (inject_recipient_limit)", all, set.recipients)
	case m.from == nil && !m.hasSender:
		return in("from", refuse("there is no sender"))
	case m.individual && len(m.cc)+len(m.bcc) > 0:
		return refuse("each recipient of to gets a message of its own, and there can be no cc and no bcc then")
	case m.raw == nil && m.text == nil && m.html == nil && len(m.files) == 0:
		return refuse("there is no content: text, html, an attachment, or raw")
	}
	if u := m.unsub; u != nil && u.ours {
		if set.unsubscribe == "" {
			return in("list_unsubscribe", refuse("there are no links of this system (unsubscribe_url)"))
		}
		if all > 1 && !m.individual {
			return in("list_unsubscribe", refuse("a link is for one recipient: with individual each gets a message and a link"))
		}
		u.field = set.unsubscribe
	}
	if !m.hasSender {
		m.sender, m.senderUTF8 = m.from.Email, m.from.UTF8
	}
	if !m.sendAt.IsZero() {
		if set.schedule == 0 {
			return in("send_at", refuse("mail is not taken for later (inject_schedule_limit = 0)"))
		}
		if m.sendAt.After(now.Add(set.schedule)) {
			return in("send_at", refuse("it is more than %v ahead (inject_schedule_limit)", set.schedule))
		}
	}
	return nil
}

// checkKey says what is wrong with an idempotency key.
func checkKey(key string) error {
	if key == "" || len(key) > maxKey || !smtpwire.IsASCII(key) || hasLineControl(key) {
		return refuse("an idempotency key has 1 to %d visible ASCII characters", maxKey)
	}
	return nil
}

// check verifies where the unsubscribe goes.
func (u *unsubscribe) check() error {
	if u.ours {
		if !u.oneClick {
			return in("one_click", refuse("a link of this system is for one click"))
		}
		return nil
	}
	if u.list != "" {
		return in("list", refuse("it is for a link of this system, without url and mailto"))
	}
	if u.url == nil && u.mailto == "" {
		return refuse("it has neither url nor mailto")
	}
	if u.oneClick && u.url == nil {
		return in("url", refuse("one-click needs one (RFC 8058)"))
	}
	if u.url == nil {
		return nil
	}
	sample := u.url.append(nil, scopeOf(u.url), inURL)
	p, err := url.Parse(string(sample))
	if err != nil || p.Host == "" || p.Scheme != "https" && p.Scheme != "http" || !isLink(sample) {
		return in("url", refuse("it is no URL of http or https"))
	}
	if u.oneClick && p.Scheme != "https" {
		return in("url", refuse("one-click needs https (RFC 8058)"))
	}
	return nil
}

// scopeOf gives each variable of a template a value, to see what the whole looks like.
func scopeOf(t *template) scope {
	m := map[string]string{}
	for _, p := range t.parts {
		if p.name != "" {
			m[p.name] = "x"
		}
	}
	return scope{m}
}

// isLink says whether a text can stand in angle brackets.
func isLink(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c >= 0x7f || c == '<' || c == '>' || c == '"' {
			return false
		}
	}
	return len(b) <= 900
}
