package inject

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"

	"posthaste/internal/apitoken"
	"posthaste/internal/mail"
)

// A Result is what came of a message.
type Result struct {
	Status   int       `json:"status" doc:"200 if something was queued; else as of HTTP"`
	Messages []Queued  `json:"messages" doc:"What is in the queue, durably"`
	Refused  []Refused `json:"refused,omitempty" doc:"Recipients for whom nothing was queued"`
	Detail   string    `json:"detail,omitempty" doc:"Why nothing was queued"`
}

// Queued is a message in the queue.
type Queued struct {
	ID         string   `json:"id" doc:"Queue ID, as in the log"`
	MessageID  string   `json:"message_id" doc:"Message-ID, without angle brackets"`
	Recipients []string `json:"recipients"`
}

// Refused is a recipient for whom nothing was queued.
type Refused struct {
	Recipient string `json:"recipient"`
	Status    int    `json:"status" doc:"422: it cannot be done; 503: it may be tried again"`
	Detail    string `json:"detail"`
}

// A draft is one message that is to be queued.
type draft struct {
	id     mail.QueueID
	rcpts  []*recipient
	values scope
	to     []Address // whom the field To names
	utf8   bool      // it needs SMTPUTF8

	refused   []Refused // recipients who are on the suppression list
	queued    bool
	messageID string // of the content; empty: cleanup makes one of the queue ID
	fault     *fault // why it is not queued
}

// An order is a message as it was asked for, and the drafts that come of it.
type order struct {
	m        *message
	drafts   []*draft
	refused  []Refused
	boundary string
	// stream writes the content of a message that came whole and is not in memory; nil: m has it.
	stream func(w io.Writer) error
}

// plan verifies that a token may send a message, and says what is to be queued for it. What is wrong
// with a recipient is noted for that recipient alone.
func plan(m *message, t *apitoken.Token, utf8OK bool) (*order, error) {
	o, err := planWhole(m, t, utf8OK)
	if err == nil {
		err = o.check(t)
	}
	return o, err
}

// planWhole is plan without a look at the content.
func planWhole(m *message, t *apitoken.Token, utf8OK bool) (*order, error) {
	if !t.Permits(m.sender) {
		return nil, &fault{status: http.StatusForbidden, field: "envelope_from", detail: "the token may not send as <" + m.sender + ">"}
	}
	if m.from != nil && !t.Permits(m.from.Email) {
		return nil, &fault{status: http.StatusForbidden, field: "from", detail: "the token may not send as " + m.from.Email}
	}
	o := &order{m: m, boundary: random()}
	var shared *draft
	seen := map[string]bool{}
	for i, r := range m.all() {
		if r.err == nil && r.UTF8 && !utf8OK {
			r.err = refuse("the address is not ASCII, and such mail is not taken (smtputf8_enable)")
		}
		if r.err != nil {
			o.refuse(r, r.err)
			continue
		}
		if m.individual {
			o.drafts = append(o.drafts, &draft{rcpts: []*recipient{r}, values: scope{r.values, m.values}, to: []Address{r.Address}})
			continue
		}
		if shared == nil {
			shared = &draft{values: scope{m.values}}
			o.drafts = append(o.drafts, shared)
		}
		if i < len(m.to) {
			shared.to = append(shared.to, r.Address)
		}
		if !seen[r.Email] {
			shared.rcpts = append(shared.rcpts, r)
			seen[r.Email] = true
		}
	}
	if m.needsUTF8() && !utf8OK {
		return nil, refuse("a sender's address is not ASCII, and such mail is not taken (smtputf8_enable)")
	}
	for _, d := range o.drafts {
		d.utf8 = m.needsUTF8()
		for _, r := range d.rcpts {
			d.utf8 = d.utf8 || r.UTF8
		}
	}
	return o, nil
}

// needsUTF8 says whether an address that all drafts have needs SMTPUTF8.
func (m *message) needsUTF8() bool {
	utf8 := m.senderUTF8 || m.from != nil && m.from.UTF8
	for i := range m.replyTo {
		utf8 = utf8 || m.replyTo[i].UTF8
	}
	return utf8
}

// check drops the drafts that cannot be written.
func (o *order) check(t *apitoken.Token) error {
	kept := o.drafts[:0]
	for _, d := range o.drafts {
		if err := o.checkDraft(d, t); err != nil {
			if !o.m.individual {
				return err // it is the message's fault
			}
			o.refuse(d.rcpts[0], err)
			continue
		}
		kept = append(kept, d)
	}
	o.drafts = kept
	return nil
}

func (o *order) checkDraft(d *draft, t *apitoken.Token) error {
	m := o.m
	if m.raw != nil {
		return o.checkRaw(d, t)
	}
	for _, f := range m.fields {
		if oneOf(f.name, "Message-ID", "Message-Id", "message-id") {
			if err := f.value.check(d.values, inHeader); err != nil {
				return err
			}
			d.messageID = trimID(string(f.value.text(d.values, inHeader)))
		}
	}
	if _, err := m.header(nil, d.to, d.values); err != nil {
		return err
	}
	return m.checkBody(d.values)
}

// checkRaw looks at the header of a message that comes whole, with the values of its variables.
func (o *order) checkRaw(d *draft, t *apitoken.Token) error {
	raw := o.m.raw
	if err := raw.check(d.values, inText); err != nil {
		return err
	}
	if err := raw.checkHeader(d.values); err != nil {
		return err
	}
	text := raw.text(d.values, inText)
	n := cutHeader(text, true)
	if n > maxRawHeader {
		return tooLarge("the header has more than %d octets", maxRawHeader)
	}
	var b sliceWriter
	l := liner{w: &b}
	_, _ = l.Write(text[:n])
	_ = l.end()
	h, err := readHead(b)
	if err != nil {
		return err
	}
	d.messageID = h.messageID
	return permitHead(&h, t)
}

// permitHead verifies that a token may send what a header has as its authors.
func permitHead(h *head, t *apitoken.Token) error {
	for _, a := range h.senders {
		if !t.Permits(a) {
			return &fault{status: http.StatusForbidden, detail: "the token may not send as " + strconv.QuoteToASCII(a) + ", which the header has"}
		}
	}
	return nil
}

// checkHeader refuses values that would end a line of the header.
func (t *template) checkHeader(values scope) error {
	if t.fixed {
		return nil
	}
	empty := true // the present line, up to here
	for i := range t.parts {
		p := &t.parts[i]
		for _, c := range p.text {
			if c == '\n' && empty {
				return nil // the header ends here
			}
			empty = c == '\n' || empty && c == '\r'
		}
		if p.name == "" {
			continue
		}
		v, _ := values.value(p.name)
		if hasLineControl(v) {
			return refuse("the value of the variable %q has a control character, which cannot stand in a header", p.name)
		}
		empty = empty && v == ""
	}
	return nil
}

// A sliceWriter is octets that grow.
type sliceWriter []byte

func (w *sliceWriter) Write(p []byte) (int, error) { *w = append(*w, p...); return len(p), nil }

// trimID takes white space and angle brackets off a Message-ID.
func trimID(s string) string {
	for len(s) > 0 && (s[0] == ' ' || s[0] == '<') {
		s = s[1:]
	}
	for len(s) > 0 && (s[len(s)-1] == ' ' || s[len(s)-1] == '>') {
		s = s[:len(s)-1]
	}
	return s
}

// random is a text that nobody knows before.
func random() string {
	var b [15]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func (o *order) refuse(r *recipient, err error) {
	f := asFault(err)
	o.refused = append(o.refused, Refused{Recipient: r.said, Status: f.status, Detail: f.Error()})
}

// write writes a draft's content, behind its Received: field.
func (o *order) write(w io.Writer, d *draft) error {
	if o.m.raw != nil {
		var fields []byte
		if o.m.reference != nil {
			fields = o.m.reference.append(nil, d.rcpts[0])
		}
		if _, err := w.Write(fields); err != nil {
			return err
		}
		l := &liner{w: w}
		if o.stream != nil {
			if err := o.stream(l); err != nil {
				return err
			}
		} else if _, err := l.Write(o.m.raw.text(d.values, inText)); err != nil {
			return err
		}
		return l.end()
	}
	c := composer{w: w, values: d.values, boundary: o.boundary}
	b, err := o.m.header(make([]byte, 0, 1024), d.to, d.values)
	if err != nil {
		return err // check has seen it before
	}
	if o.m.reference != nil {
		b = o.m.reference.append(b, d.rcpts[0])
	}
	c.write(b)
	e := o.m.structure()
	c.entity(&e, 0)
	return c.err
}

// result says what came of it.
func (o *order) result(hostname string) *Result {
	r := &Result{Messages: []Queued{}, Refused: o.refused}
	status := 0
	for _, d := range o.drafts {
		r.Refused = append(r.Refused, d.refused...)
		if d.queued {
			q := Queued{ID: string(d.id), MessageID: d.messageID}
			if q.MessageID == "" {
				q.MessageID = string(d.id) + "@" + hostname
			}
			for _, rcpt := range d.rcpts {
				q.Recipients = append(q.Recipients, rcpt.said)
			}
			r.Messages = append(r.Messages, q)
			continue
		}
		for _, rcpt := range d.rcpts {
			r.Refused = append(r.Refused, Refused{Recipient: rcpt.said, Status: d.fault.status, Detail: d.fault.Error()})
		}
	}
	for _, x := range r.Refused {
		if status == 0 || x.Status == http.StatusServiceUnavailable {
			status, r.Detail = x.Status, x.Detail
		}
	}
	if len(r.Messages) > 0 {
		status, r.Detail = http.StatusOK, ""
	}
	r.Status = status
	return r
}

// recipients is how many the drafts have.
func (o *order) recipients() (n int) {
	for _, d := range o.drafts {
		n += len(d.rcpts)
	}
	return n
}
