package bounce

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
)

// A Report is what a notice says of one recipient, or of one destination that
// it was expanded to.
type Report struct {
	Recipient mail.Recipient
	Outcome   mail.Outcome // of that one alone: it has no parts
	part      int          // 1 is the first of the recipient's parts; 0: it is about the recipient
}

// A Notice is all that goes into one notification.
type Notice struct {
	Kind       proto.NoticeKind
	Postmaster bool // a copy for postmaster: no text but the diagnostics

	ID   mail.QueueID // of the notice, for its Received: line
	Time time.Time    // when it is written
	To   string       // whom it is sent to

	Original mail.Envelope // of the message that it is about; Recipients are not looked at
	Reports  []Report
	Return   dsn.Ret   // RetHeaders: only the header is returned; else all of it, if it is small enough
	Content  io.Reader // of the message, from the first octet, CRLF lines
}

// A Composer writes notices. It does not change after NewComposer and may be
// used concurrently.
type Composer struct {
	hostname  string
	mailName  string // in X-NAME-Queue-ID
	sizeLimit int64
	lifetime  time.Duration
	threaded  bool
	stdFrom   bool
	templates [numTemplates]template
}

// NewComposer returns a Composer with the settings and templates of cfg.
// A template file that cannot be used is told through warn, and the
// built-in templates take its place.
func NewComposer(cfg *config.Config, warn func(format string, args ...any)) *Composer {
	templates, err := loadTemplates(cfg, cfg.String("bounce_template_file"))
	if err != nil {
		warn("%v; using built-in templates", err)
	}
	return &Composer{
		hostname:  cfg.String("myhostname"),
		mailName:  strings.ReplaceAll(cfg.String("mail_name"), " ", "-"),
		sizeLimit: cfg.Bytes("bounce_size_limit"),
		lifetime:  cfg.Duration("maximal_queue_lifetime"),
		threaded:  cfg.Bool("enable_threaded_bounces"),
		stdFrom:   cfg.String("header_from_format") == "standard",
		templates: templates,
	}
}

func (c *Composer) template(kind proto.NoticeKind) *template {
	switch kind {
	case proto.NoticeDelay:
		return &c.templates[delayTemplate]
	case proto.NoticeSuccess:
		return &c.templates[successTemplate]
	case proto.NoticeTrace:
		return &c.templates[verifyTemplate]
	default:
		return &c.templates[failureTemplate]
	}
}

// Compose writes n to w: header and body in CRLF lines, in several writes.
// The error is that of w or of n.Content.
func (c *Composer) Compose(w io.Writer, n *Notice) error {
	content := bufio.NewReaderSize(n.Content, 16<<10)
	head, _ := content.Peek(content.Size()) // an error comes again when it is read
	l := &letter{
		Notice: n, c: c, t: c.template(n.Kind),
		boundary: fmt.Sprintf("%s.%d/%s", n.Original.ID, n.Time.Unix(), c.hostname),
		full:     n.Return != dsn.RetHeaders && n.Original.Size <= c.sizeLimit,
	}
	l.measure()
	b := make([]byte, 0, 4096)
	b = l.header(b, head)
	b = l.text(b)
	b = l.status(b)
	b = l.originalHead(b)
	if _, err := w.Write(b); err != nil {
		return err
	}
	if err := l.copyOriginal(w, content); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\r\n--%s--\r\n", l.boundary)
	return err
}

// A letter is a notice being written.
type letter struct {
	*Notice
	c        *Composer
	t        *template
	boundary string
	full     bool   // the whole message is returned
	charset  string // of the text part
	text8    bool   // the text part has bytes over 127
	textUTF8 bool   // and may have UTF-8 of strangers
	global   bool   // the delivery status is message/global-delivery-status (RFC 6533)
	orig8    bool   // what is returned has bytes over 127
}

// measure finds out which parts have other than ASCII characters.
func (l *letter) measure() {
	body := l.Original.Body
	l.orig8 = body&mail.BodyUTF8Hdr != 0 || l.full && body&mail.Body8Bit != 0
	l.charset = l.t.charset
	ascii := strings.EqualFold(l.charset, "us-ascii")
	l.textUTF8 = ascii || strings.EqualFold(l.charset, "utf-8")
	foreign := !isASCII(l.Original.Sender) || !isASCII(l.To)
	addresses := foreign
	for i := range l.Reports {
		r := &l.Reports[i]
		a := !isASCII(r.Recipient.Address) || !isASCII(r.Recipient.Original) || !isASCII(r.Recipient.ORCPT)
		addresses = addresses || a
		foreign = foreign || a || !isASCII(r.Outcome.Reason)
	}
	l.global = addresses && body&mail.BodySMTPUTF8 != 0
	if foreign && ascii {
		l.charset = "utf-8"
	}
	l.text8 = foreign && l.textUTF8 || !l.Postmaster && !isASCII(l.t.text)
}

// header appends the notice's own header. head is the beginning of the
// message that it is about.
func (l *letter) header(b, head []byte) []byte {
	line := func(name, value string) {
		b = append(append(append(b, name...), ": "...), value...)
		b = append(b, "\r\n"...)
	}
	line("Received", fmt.Sprintf("by %s (%s)\r\n\tid %s; %s", l.c.hostname, l.c.mailName, l.ID, rfc5322.Date(l.Time)))
	line("Date", rfc5322.Date(l.Time))
	line("From", fromHeader(l.t.from, l.c.stdFrom && !l.t.ownFrom))
	if l.Postmaster {
		line("Subject", l.t.postmaster)
	} else {
		line("Subject", l.t.subject)
	}
	to := external(l.To, true)
	if len(to) > hardColumn { // an address cannot be folded; the delivery status has it, in pieces
		to = "undisclosed-recipients:;"
	}
	line("To", to)
	if id := messageID(head); l.c.threaded && id != "" {
		line("References", id)
		line("In-Reply-To", id)
	}
	if l.Postmaster {
		line("Auto-Submitted", "auto-generated")
	} else {
		line("Auto-Submitted", "auto-replied")
	}
	line("MIME-Version", "1.0")
	line("Content-Type", "multipart/report; report-type="+l.reportType()+";\r\n\tboundary=\""+l.boundary+"\"")
	if l.text8 || l.orig8 || l.global {
		line("Content-Transfer-Encoding", "8bit")
	}
	return append(b, "\r\nThis is a MIME-encapsulated message.\r\n"...)
}

func (l *letter) reportType() string {
	if l.global {
		return "global-delivery-status" // RFC 6533 section 3
	}
	return "delivery-status"
}

// part appends a boundary and the header of a part.
func (l *letter) part(b []byte, description, contentType string, eightBit bool) []byte {
	b = append(b, "\r\n--"...)
	b = append(b, l.boundary...)
	b = append(b, "\r\nContent-Description: "...)
	b = append(b, description...)
	b = append(b, "\r\nContent-Type: "...)
	b = append(b, contentType...)
	if eightBit {
		b = append(b, "\r\nContent-Transfer-Encoding: 8bit"...)
	}
	return append(b, "\r\n\r\n"...)
}

// text appends the part for people.
func (l *letter) text(b []byte) []byte {
	b = l.part(b, "Notification", "text/plain; charset="+l.charset, l.text8)
	if !l.Postmaster {
		b = append(b, strings.ReplaceAll(l.t.text, "\n", "\r\n")...)
	}
	for i := range l.Reports {
		r := &l.Reports[i]
		b = append(b, "\r\n"...)
		to := external(r.Recipient.Address, l.textUTF8)
		text := "<" + to + ">"
		if orig := external(r.Recipient.Orig(), l.textUTF8); !strings.EqualFold(orig, to) {
			text += " (expanded from <" + orig + ">)"
		}
		b = appendWrapped(b, text+": "+clean(l.reason(r), l.textUTF8))
	}
	return b
}

// reason is the outcome in words. A report on what was done says by whom.
func (l *letter) reason(r *Report) string {
	o := &r.Outcome
	text := cmp.Or(o.Reason, "(description unavailable)")
	if (l.Kind == proto.NoticeSuccess || l.Kind == proto.NoticeTrace) && o.Relay != "" && o.Relay != "none" {
		return "delivery via " + o.Relay + ": " + text
	}
	return text
}

// messageID is the value of the Message-Id: field in the header at the start
// of a message, empty when there is none fit to be repeated.
func messageID(head []byte) string {
	for {
		f, rest, ok := rfc5322.NextField(head)
		if !ok {
			return ""
		}
		if rfc5322.EqualName(f.Name(), "Message-Id") {
			id := string(bytes.TrimSpace(f.Value()))
			if len(id) > hardColumn || !isPrintableASCII(id) || strings.IndexByte(id, ' ') >= 0 ||
				!strings.HasPrefix(id, "<") || !strings.HasSuffix(id, ">") {
				return ""
			}
			return id
		}
		head = rest
	}
}
