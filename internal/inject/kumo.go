package inject

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// KumoMTA's request, POST /api/inject/v1, as it is described in its documentation. Fields of it that
// would have no effect here are refused by name, but for those that ask for less than is done anyway:
// deferred_spool and deferred_generation give up that the answer means what it says, and it does.
type (
	// KumoRequest is KumoMTA's request.
	KumoRequest struct {
		EnvelopeSender     string          `json:"envelope_sender" required:"yes"`
		Recipients         []KumoRecipient `json:"recipients" doc:"Each gets a message of its own" required:"yes"`
		Content            any             `json:"content" doc:"The message (RFC 5322) as a text, or an object of the type KumoContent" required:"yes"`
		Substitutions      map[string]any  `json:"substitutions" doc:"Values of variables, for all recipients"`
		TemplateDialect    string          `json:"template_dialect" doc:"Jinja (the default), Handlebars or Static. Only variables are replaced"`
		DeferredSpool      bool            `json:"deferred_spool" doc:"Has no effect: the answer always means that the mail is durable"`
		DeferredGeneration bool            `json:"deferred_generation" doc:"Has no effect: the answer always says what came of each recipient"`
		TraceHeaders       KumoTrace       `json:"trace_headers"`
	}
	// KumoRecipient is one of its recipients.
	KumoRecipient struct {
		Email         string         `json:"email" required:"yes"`
		Name          string         `json:"name"`
		Substitutions map[string]any `json:"substitutions"`
		Metadata      map[string]any `json:"metadata" doc:"Only what trace_headers.include_meta_names names"`
	}
	// KumoContent is a message that is composed.
	KumoContent struct {
		TextBody    string            `json:"text_body"`
		HTMLBody    string            `json:"html_body"`
		AMPHTMLBody string            `json:"amp_html_body"`
		Attachments []KumoAttachment  `json:"attachments"`
		Headers     map[string]string `json:"headers"`
		From        Mailbox           `json:"from"`
		Subject     string            `json:"subject"`
		ReplyTo     Mailbox           `json:"reply_to"`
	}
	// KumoAttachment is a file; with a content_id it is inline.
	KumoAttachment struct {
		Data        string `json:"data" required:"yes"`
		ContentType string `json:"content_type" required:"yes"`
		ContentID   string `json:"content_id"`
		FileName    string `json:"file_name"`
		Base64      bool   `json:"base64" doc:"The data is in base64; else it is a text"`
	}
	// KumoTrace says which fields are added for tracing.
	KumoTrace struct {
		ReceivedHeader     bool     `json:"received_header"`
		SupplementalHeader bool     `json:"supplemental_header" doc:"True without it"`
		HeaderName         string   `json:"header_name" doc:"X-KumoRef without it"`
		IncludeMetaNames   []string `json:"include_meta_names" doc:"Which of a recipient's metadata the field has"`
	}
	// KumoResult is the answer.
	KumoResult struct {
		SuccessCount     int      `json:"success_count"`
		FailCount        int      `json:"fail_count"`
		FailedRecipients []string `json:"failed_recipients"`
		Errors           []string `json:"errors"`
	}
)

// A reference is KumoMTA's supplemental header: base64 of an object that names the recipient.
type reference struct {
	name string
	meta []string // which metadata
}

// decodeKumo reads a KumoMTA request.
func decodeKumo(b []byte, set *limits) (*message, error) {
	s, err := newScanner(b)
	if err != nil {
		return nil, err
	}
	m := &message{individual: true, noReceived: true, reference: &reference{name: "X-KumoRef"}}
	k := &kumoDecoder{decoder: decoder{scanner: s, m: m, set: set}, how: jinja}
	if err = s.object(k.member); err == nil {
		err = s.end()
	}
	if err == nil {
		err = k.finish()
	}
	return m, err
}

type kumoDecoder struct {
	decoder
	how        dialect
	text, html []byte
	amp        []byte
	hasContent bool
	noRef      bool
	fields     []rawField // with Subject and what has a structure
}

func (k *kumoDecoder) member(name string) (err error) {
	m := k.m
	switch name {
	case "envelope_sender":
		return k.envelopeFrom()
	case "recipients":
		return k.recipients()
	case "content":
		k.hasContent = true
		if k.peek() == '"' {
			k.raw, err = k.scanner.text()
			return err
		}
		return k.object(k.content)
	case "substitutions":
		m.values = map[string]string{}
		return k.values(m.values, "")
	case "template_dialect":
		b, err := k.scanner.text()
		if err != nil {
			return err
		}
		how, ok := map[string]dialect{"Jinja": jinja, "Handlebars": handlebars, "Static": static}[string(b)]
		if !ok {
			return refuse("the dialects are Jinja, Handlebars and Static")
		}
		k.how = how
	case "deferred_spool", "deferred_generation":
		_, err = k.boolean()
	case "trace_headers":
		return k.object(k.trace)
	default:
		return unknown()
	}
	return err
}

func (k *kumoDecoder) recipients() error {
	return k.array(func(i int) error {
		if i >= k.set.recipients {
			return tooLarge("there are more than %d recipients (inject_recipient_limit)", k.set.recipients)
		}
		r := recipient{values: map[string]string{}}
		err := k.recipientObject(&r, func(name string) (bool, error) {
			switch name {
			case "substitutions":
				return true, k.values(r.values, "")
			case "metadata":
				r.meta = map[string]string{}
				return true, k.values(r.meta, "")
			}
			return false, nil
		})
		for name, v := range map[string]string{"email": r.said, "name": r.Name} {
			if _, own := r.values[name]; !own && v != "" {
				r.values[name] = v
			}
		}
		k.m.to = append(k.m.to, r)
		return err
	})
}

func (k *kumoDecoder) content(name string) (err error) {
	m := k.m
	switch name {
	case "text_body":
		k.text, err = k.scanner.text()
	case "html_body":
		k.html, err = k.scanner.text()
	case "amp_html_body":
		k.amp, err = k.scanner.text()
	case "attachments":
		return k.array(func(int) error { return k.attachment() })
	case "headers":
		return k.object(func(name string) error {
			b, err := k.scanner.text()
			k.fields = append(k.fields, rawField{name, b})
			return err
		})
	case "from":
		a, err := k.address()
		m.from = &a
		return err
	case "subject":
		k.subject, err = k.scanner.text()
	case "reply_to":
		a, err := k.address()
		m.replyTo = []Address{a}
		return err
	default:
		return unknown()
	}
	return err
}

func (k *kumoDecoder) attachment() error {
	var f file
	has := false
	err := k.object(func(name string) error {
		if name == "base64" {
			var err error
			f.base64, err = k.boolean()
			return err
		}
		b, err := k.scanner.text()
		if err != nil {
			return err
		}
		switch name {
		case "data":
			has, f.data = true, b
		case "content_type":
			f.kind = string(b)
		case "content_id":
			f.id, f.inline = string(b), true
		case "file_name":
			f.name = string(b)
		default:
			return unknown()
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !has:
		return in("data", refuse("it is missing"))
	case f.kind == "":
		return in("content_type", refuse("it is missing"))
	}
	return k.m.addFile(f, k.set.attachments)
}

func (k *kumoDecoder) trace(name string) (err error) {
	m := k.m
	var yes bool
	switch name {
	case "received_header":
		yes, err = k.boolean()
		m.noReceived = !yes
	case "supplemental_header":
		yes, err = k.boolean()
		k.noRef = !yes
	case "header_name":
		b, err := k.scanner.text()
		if err != nil {
			return err
		}
		if m.reference.name = string(b); !isField(m.reference.name) || reserved(m.reference.name) != "" {
			return refuse("it cannot be the name of this header field")
		}
	case "include_meta_names":
		return k.array(func(i int) error {
			b, err := k.scanner.text()
			if i >= maxFields {
				return tooLarge("there are more than %d", maxFields)
			}
			m.reference.meta = append(m.reference.meta, string(b))
			return err
		})
	default:
		return unknown()
	}
	return err
}

// finish makes templates of the texts, and verifies the whole.
func (k *kumoDecoder) finish() (err error) {
	m := k.m
	switch {
	case !k.hasContent:
		return in("content", refuse("it is missing"))
	case !m.hasSender:
		return in("envelope_sender", refuse("it is missing"))
	}
	for i := range m.to {
		for name := range m.to[i].meta {
			if !oneOf(name, m.reference.meta...) || k.noRef {
				return in("recipients", at(i, in("metadata", in(shown(name), refuse("nothing here reads it, unless trace_headers.include_meta_names has its name")))))
			}
		}
	}
	if k.noRef {
		m.reference = nil
	}
	if k.raw != nil {
		m.raw, err = parseTemplate(k.raw, k.how)
		return in("content", err)
	}
	return in("content", k.builder())
}

// builder takes over what a message is composed of.
func (k *kumoDecoder) builder() (err error) {
	m := k.m
	if k.text == nil && k.html == nil {
		return refuse("there is neither text_body nor html_body")
	}
	for _, t := range []struct {
		name string
		text []byte
		to   **template
	}{{"text_body", k.text, &m.text}, {"html_body", k.html, &m.html}, {"amp_html_body", k.amp, &m.amp}, {"subject", k.subject, &m.subject}} {
		if t.text == nil {
			continue
		}
		if *t.to, err = parseTemplate(t.text, k.how); err != nil {
			return in(t.name, err)
		}
	}
	if err := checkSubject(k.subject); err != nil {
		return err
	}
	for _, f := range k.fields {
		if err := k.header(f); err != nil {
			return in("headers", in(shown(f.name), err))
		}
	}
	return nil
}

// header takes a field of KumoMTA's headers, which may also be those that have a place of their own.
func (k *kumoDecoder) header(f rawField) (err error) {
	m := k.m
	switch strings.ToLower(f.name) {
	case "subject":
		if m.subject != nil {
			return refuse("subject is there as well")
		}
		if err := checkSubject(f.value); err != nil {
			return err
		}
		m.subject, err = parseTemplate(f.value, k.how)
		return err
	case "from", "reply-to":
		a, err := parseAddress(string(f.value))
		if strings.EqualFold(f.name, "from") && m.from == nil {
			m.from = &a
			return err
		}
		if strings.EqualFold(f.name, "reply-to") && m.replyTo == nil {
			m.replyTo = []Address{a}
			return err
		}
		return refuse("a field of the request says the same")
	}
	if why := reserved(f.name); why != "" {
		return refuse("%s", why)
	}
	return m.addField(f.name, f.value, k.how)
}

// append appends the field, in which KumoMTA finds the recipient when a message comes back.
func (r *reference) append(b []byte, to *recipient) []byte {
	members := map[string]string{"_@_": `\_/`, "recipient": to.Email}
	for _, name := range r.meta {
		if v, ok := to.meta[name]; ok {
			members[name] = v
		}
	}
	text, err := json.Marshal(members)
	if err != nil {
		panic(err) // it has texts
	}
	b = append(append(b, r.name...), ':')
	for code := base64.StdEncoding.EncodeToString(text); code != ""; {
		n := min(60, len(code))
		b = append(append(append(b, ' '), code[:n]...), "\r\n"...)
		code = code[n:]
	}
	return b
}
