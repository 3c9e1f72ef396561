package inject

import (
	"bytes"
	"net/url"
	"strings"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/suppress/suppressclient"
)

// The requests as they are described (OpenAPI). They are read by the functions below, since texts are
// to stay where they are; a test holds both together.
type (
	// MessageRequest is a message, as POST /v1/messages takes it.
	MessageRequest struct {
		From            Mailbox            `json:"from" doc:"The author, for the field From. An address, \"Name <address>\", or an object" required:"yes"`
		EnvelopeFrom    string             `json:"envelope_from" doc:"The sender in the envelope, which gets bounces: without it the address of from; empty for the null sender"`
		To              []To               `json:"to" doc:"Recipients" required:"yes"`
		CC              []Mailbox          `json:"cc" doc:"Recipients of a copy"`
		BCC             []Mailbox          `json:"bcc" doc:"Recipients whom the message does not name"`
		ReplyTo         []Mailbox          `json:"reply_to" doc:"Where replies go"`
		Subject         string             `json:"subject"`
		Text            string             `json:"text" doc:"The body as plain text"`
		HTML            string             `json:"html" doc:"The body as HTML; with text, both are alternatives"`
		Attachments     []Attachment       `json:"attachments"`
		Inline          []Attachment       `json:"inline" doc:"What the HTML refers to by cid: and its content_id"`
		Headers         map[string]string  `json:"headers" doc:"Further header fields"`
		Variables       map[string]any     `json:"variables" doc:"Values for {{name}} in subject, text, html, headers and list_unsubscribe.url. In html they are escaped, but for {{{name}}}"`
		Individual      bool               `json:"individual" doc:"Each recipient of to gets a message of its own, which names nobody else. Variables of recipients have the same effect"`
		ListUnsubscribe UnsubscribeRequest `json:"list_unsubscribe" doc:"Adds List-Unsubscribe, and for one click List-Unsubscribe-Post (RFC 8058)"`
		Raw             string             `json:"raw" doc:"The whole message (RFC 5322), in place of subject, text, html, attachments, inline, headers, reply_to, variables and list_unsubscribe"`
		SendAt          time.Time          `json:"send_at" doc:"When the message is tried first: RFC 3339, or seconds since 1970"`
		Campaign        string             `json:"campaign" doc:"The mailing that the message is part of, of the token's tenant: up to 64 letters, digits and . _ -"`
		IdempotencyKey  string             `json:"idempotency_key" doc:"As the field Idempotency-Key, for each message of a batch"`
	}
	// Mailbox is an address with or without a name.
	Mailbox struct {
		Email string `json:"email" required:"yes"`
		Name  string `json:"name"`
	}
	// To is a recipient.
	To struct {
		Email     string         `json:"email" required:"yes"`
		Name      string         `json:"name"`
		Variables map[string]any `json:"variables" doc:"Of this recipient alone; they hide those of the message"`
	}
	// Attachment is a file.
	Attachment struct {
		Filename    string `json:"filename"`
		ContentType string `json:"content_type" doc:"Without it application/octet-stream"`
		ContentID   string `json:"content_id" doc:"Of what is inline"`
		Content     string `json:"content" doc:"In base64" required:"yes"`
	}
	// UnsubscribeRequest is where a reader unsubscribes.
	UnsubscribeRequest struct {
		URL      string `json:"url" doc:"https; it may have variables. Without url and mailto, and with one_click or list, the message gets a link of this system (unsubscribe_url)"`
		List     string `json:"list" doc:"The list of the token's tenant that the link of this system is for; without it all mail of the tenant"`
		Mailto   string `json:"mailto" doc:"An address"`
		OneClick bool   `json:"one_click" doc:"Without it true where there is a url of https"`
	}
)

// unknown refuses a member that nobody reads.
func unknown() error { return malformed("there is no such field") }

// decode reads a message of POST /v1/messages. The message holds parts of b, which is its own.
func decode(b []byte, set *limits) (*message, error) {
	s, err := newScanner(b)
	if err != nil {
		return nil, err
	}
	m := new(message)
	d := &decoder{scanner: s, m: m, set: set}
	if err = s.object(d.member); err == nil {
		err = s.end()
	}
	if err == nil {
		err = d.finish()
	}
	return m, err
}

// A decoder reads one message. Texts with variables are kept until it is known that there are any.
type decoder struct {
	*scanner
	m   *message
	set *limits

	subject, text, html, raw, unsub []byte // nil: there is none
	fields                          []rawField
	variables                       bool // there are some
	oneClick                        *bool
	hasUnsub                        bool
	composed                        string // a member that raw stands in place of
}

type rawField struct {
	name  string
	value []byte
}

func (d *decoder) member(name string) (err error) {
	m := d.m
	switch name {
	case "reply_to", "subject", "text", "html", "attachments", "inline", "headers", "variables", "list_unsubscribe":
		d.composed = name
	}
	switch name {
	case "from":
		a, err := d.address()
		m.from = &a
		return err
	case "envelope_from":
		return d.envelopeFrom()
	case "to":
		m.to, err = d.recipients(true)
	case "cc":
		m.cc, err = d.recipients(false)
	case "bcc":
		m.bcc, err = d.recipients(false)
	case "reply_to":
		return d.replyTo()
	case "subject":
		d.subject, err = d.scanner.text()
	case "text":
		d.text, err = d.scanner.text()
	case "html":
		d.html, err = d.scanner.text()
	case "raw":
		d.raw, err = d.scanner.text()
	case "attachments":
		return d.attachments(false)
	case "inline":
		return d.attachments(true)
	case "headers":
		return d.headers()
	case "variables":
		d.variables = true
		m.values = map[string]string{}
		return d.values(m.values, "")
	case "individual":
		var b bool
		b, err = d.boolean()
		m.individual = m.individual || b
	case "list_unsubscribe":
		return d.unsubscribe()
	case "send_at":
		m.sendAt, err = d.time()
	case "campaign":
		m.campaign, err = d.group()
	case "idempotency_key":
		var b []byte
		if b, err = d.scanner.text(); err == nil {
			m.key = string(b)
			err = checkKey(m.key)
		}
	default:
		return unknown()
	}
	return err
}

// group reads the name of a campaign.
func (d *decoder) group() (string, error) {
	b, err := d.scanner.text()
	if err == nil && !mail.GroupName(string(b)) {
		err = refuse("%.100q is no campaign: it has 1 to %d letters, digits and . _ -", b, mail.MaxGroupName)
	}
	return string(b), err
}

// address reads a mailbox: a text or an object.
func (d *decoder) address() (a Address, err error) {
	if d.peek() != '{' {
		b, err := d.scanner.text()
		if err != nil {
			return a, err
		}
		return parseAddress(string(b))
	}
	has := false
	err = d.object(func(name string) error {
		b, err := d.scanner.text()
		if err != nil {
			return err
		}
		switch name {
		case "email":
			has = true
			a.Email, a.UTF8, err = mailbox(string(b))
		case "name":
			a.Name = string(b)
		default:
			return unknown()
		}
		return err
	})
	if err == nil && !has {
		err = in("email", refuse("it is missing"))
	}
	return a, errorOr(err, a.checkName())
}

// recipients reads a list of them. What is wrong with one recipient is no reason to refuse the others.
func (d *decoder) recipients(values bool) (list []recipient, err error) {
	err = d.array(func(i int) error {
		if i >= d.set.recipients {
			return tooLarge("there are more than %d recipients (inject_recipient_limit)", d.set.recipients)
		}
		r, err := d.recipient(values)
		list = append(list, r)
		return err
	})
	return list, err
}

func (d *decoder) recipient(values bool) (r recipient, err error) {
	if d.peek() != '{' {
		b, err := d.scanner.text()
		if err == nil {
			r.said = string(b)
			r.Address, r.err = parseAddress(r.said)
		}
		return r, err
	}
	err = d.recipientObject(&r, func(name string) (bool, error) {
		if name != "variables" || !values {
			return false, nil
		}
		d.variables, d.m.individual = true, true
		r.values = map[string]string{}
		return true, d.values(r.values, "")
	})
	return r, err
}

// recipientObject reads the object of a recipient: the address and the name, and what more reads, which says
// whether a member is its. What is wrong with the address is the recipient's error.
func (d *decoder) recipientObject(r *recipient, more func(name string) (bool, error)) error {
	has := false
	err := d.object(func(name string) error {
		if mine, err := more(name); mine {
			return err
		}
		b, err := d.scanner.text()
		if err != nil {
			return err
		}
		switch name {
		case "email":
			has, r.said = true, string(b)
			r.Email, r.UTF8, r.err = mailbox(r.said)
		case "name":
			r.Name = string(b)
		default:
			return unknown()
		}
		return nil
	})
	if err == nil && !has {
		err = in("email", refuse("it is missing"))
	}
	r.err = errorOr(r.err, r.checkName())
	return err
}

func (d *decoder) envelopeFrom() error {
	b, err := d.scanner.text()
	if err != nil {
		return err
	}
	d.m.hasSender = true
	if len(b) > 0 {
		d.m.sender, d.m.senderUTF8, err = mailbox(string(b))
	}
	return err
}

// replyTo reads one mailbox, or a list.
func (d *decoder) replyTo() error {
	if d.peek() != '[' {
		a, err := d.address()
		d.m.replyTo = []Address{a}
		return err
	}
	return d.array(func(i int) error {
		if i == maxReplyTo {
			return tooLarge("there are more than %d", maxReplyTo)
		}
		a, err := d.address()
		d.m.replyTo = append(d.m.replyTo, a)
		return err
	})
}

func (d *decoder) attachments(inline bool) error {
	return d.array(func(int) error {
		f := file{inline: inline, base64: true}
		has := false
		err := d.object(func(name string) error {
			b, err := d.scanner.text()
			if err != nil {
				return err
			}
			switch name {
			case "filename":
				f.name = string(b)
			case "content_type":
				f.kind = string(b)
			case "content_id":
				f.id = string(b)
			case "content":
				has, f.data = true, b
			default:
				return unknown()
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case !has:
			return in("content", refuse("it is missing"))
		case inline && f.id == "":
			return in("content_id", refuse("it is missing: the HTML could not refer to it"))
		}
		return d.m.addFile(f, d.set.attachments)
	})
}

func (d *decoder) headers() error {
	return d.object(func(name string) error {
		b, err := d.scanner.text()
		if err != nil {
			return err
		}
		if why := reserved(name); why != "" {
			return refuse("%s", why)
		}
		d.fields = append(d.fields, rawField{name, b})
		return nil
	})
}

func (d *decoder) unsubscribe() error {
	d.hasUnsub = true
	u := new(unsubscribe)
	d.m.unsub = u
	return d.object(func(name string) error {
		if name == "one_click" {
			b, err := d.boolean()
			d.oneClick = &b
			return err
		}
		b, err := d.scanner.text()
		if err != nil {
			return err
		}
		switch name {
		case "url":
			d.unsub = b
		case "list":
			if u.list = string(b); !suppressclient.ValidList(u.list) {
				return refuse("it is no name of a list: up to 64 letters, digits and . _ -")
			}
		case "mailto":
			var a string
			a, _, err = mailbox(string(b))
			u.mailto = "mailto:" + url.PathEscape(a)
		default:
			return unknown()
		}
		return err
	})
}

// time reads a time: RFC 3339, or seconds since 1970.
func (d *decoder) time() (time.Time, error) {
	if d.peek() != '"' {
		b, err := d.number()
		if err != nil {
			return time.Time{}, err
		}
		return parseTime(string(b))
	}
	b, err := d.scanner.text()
	if err != nil {
		return time.Time{}, err
	}
	return parseTime(string(b))
}

// finish makes templates of the texts, and verifies the whole.
func (d *decoder) finish() (err error) {
	m, how := d.m, static
	if d.variables {
		how = plain
	}
	if d.raw != nil {
		if d.composed != "" {
			return in(d.composed, refuse("raw stands in its place"))
		}
		m.raw = &template{parts: []piece{{text: d.raw}}, fixed: true}
		return nil
	}
	for _, t := range []struct {
		name string
		text []byte
		to   **template
	}{{"subject", d.subject, &m.subject}, {"text", d.text, &m.text}, {"html", d.html, &m.html}} {
		if t.text == nil {
			continue
		}
		if *t.to, err = parseTemplate(t.text, how); err != nil {
			return in(t.name, err)
		}
	}
	if err := checkSubject(d.subject); err != nil {
		return err
	}
	for _, f := range d.fields {
		if m.unsub != nil && strings.EqualFold(f.name, "List-Unsubscribe") {
			return in("headers", in(shown(f.name), refuse("list_unsubscribe writes it")))
		}
		if err := m.addField(f.name, f.value, how); err != nil {
			return in("headers", in(shown(f.name), err))
		}
	}
	if !d.hasUnsub {
		return nil
	}
	if d.unsub != nil {
		if m.unsub.url, err = parseTemplate(d.unsub, how); err != nil {
			return in("list_unsubscribe", in("url", err))
		}
	}
	m.unsub.ours = d.unsub == nil && m.unsub.mailto == "" && (m.unsub.list != "" || d.oneClick != nil && *d.oneClick)
	m.unsub.oneClick = m.unsub.ours || bytes.HasPrefix(d.unsub, []byte("https:"))
	if d.oneClick != nil {
		m.unsub.oneClick = *d.oneClick
	}
	return in("list_unsubscribe", m.unsub.check())
}

func checkSubject(b []byte) error {
	if len(b) > maxSubject {
		return in("subject", tooLarge("it has at most %d octets", maxSubject))
	}
	if hasLineControl(b) {
		return in("subject", refuse("it has no control characters and no ends of lines"))
	}
	return nil
}
