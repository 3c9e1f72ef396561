package plain

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// A field of the envelope, or of a recipient. An empty text stands for the
// zero value and is not written.
type field[T any] struct {
	name string
	get  func(T) string
	set  func(T, string) error
}

const recipientField = "Recipient"

// rcpt is a recipient of a message.
type rcpt struct {
	m *Message
	i int
}

func (r *rcpt) rcpt() *mail.Recipient { return &r.m.Envelope.Recipients[r.i] }

func text[T any](name string, at func(T) *string) field[T] {
	return field[T]{name, func(t T) string { return *at(t) }, func(t T, s string) error {
		*at(t) = s
		return nil
	}}
}

func flag[T any](name string, at func(T) *bool) field[T] {
	return field[T]{name, func(t T) string {
		if *at(t) {
			return "yes"
		}
		return ""
	}, func(t T, s string) error {
		if *at(t) = s == "yes"; !*at(t) && s != "no" {
			return errors.New("expected yes or no")
		}
		return nil
	}}
}

func number[T any](name string, at func(T) int64, put func(T, int64)) field[T] {
	return field[T]{name, func(t T) string {
		if at(t) == 0 {
			return ""
		}
		return strconv.FormatInt(at(t), 10)
	}, func(t T, s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		put(t, n)
		return err
	}}
}

const timeLayout = "2006-01-02T15:04:05.000000Z"

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeLayout)
}

func parseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Unix() < 0 || t.Year() > 9000 {
		return time.Time{}, fmt.Errorf("expected a time such as %s", timeLayout)
	}
	return time.UnixMicro(t.UnixMicro()), nil // all that a queue keeps
}

func date[T any](name string, at func(T) *time.Time) field[T] {
	return field[T]{name, func(t T) string { return formatTime(*at(t)) }, func(t T, s string) (err error) {
		*at(t), err = parseTime(s)
		return err
	}}
}

// words prints a set of bits by their names, the lowest bit's first, and what
// has no name as a number.
func words[T any, B ~uint8 | ~uint16](name string, at func(T) *B, names ...string) field[T] {
	return field[T]{name, func(t T) string {
		var list []string
		rest := *at(t)
		for i, n := range names {
			if rest&(1<<i) != 0 {
				list = append(list, n)
				rest &^= 1 << i
			}
		}
		if rest != 0 {
			list = append(list, strconv.Itoa(int(rest)))
		}
		return strings.Join(list, ",")
	}, func(t T, s string) error {
		*at(t) = 0
	next:
		for w := range strings.SplitSeq(s, ",") {
			for i, n := range names {
				if n == w {
					*at(t) |= 1 << i
					continue next
				}
			}
			n, err := strconv.ParseUint(w, 10, 8)
			if err != nil {
				return fmt.Errorf("%q is none of %s", w, strings.Join(names, ", "))
			}
			*at(t) |= B(n)
		}
		return nil
	}}
}

func address(addr string) string { return "<" + addr + ">" }

func parseAddress(s string) (string, error) {
	if len(s) < 2 || s[0] != '<' || s[len(s)-1] != '>' {
		return "", errors.New("expected an address in angle brackets")
	}
	return s[1 : len(s)-1], nil
}

var messageFields = []field[*Message]{
	{"Queue-ID", func(m *Message) string { return string(m.Envelope.ID) }, func(m *Message, s string) error {
		if m.Envelope.ID = mail.QueueID(s); !m.Envelope.ID.Valid() {
			return errors.New("not a queue ID")
		}
		return nil
	}},
	text("Queue", func(m *Message) *string { return &m.Queue }),
	date("Arrival", func(m *Message) *time.Time { return &m.Envelope.Arrival }),
	{"Sender", func(m *Message) string { return address(m.Envelope.Sender) }, func(m *Message, s string) (err error) {
		m.Envelope.Sender, err = parseAddress(s)
		return err
	}},
	number("Size", func(m *Message) int64 { return m.Envelope.Size }, func(m *Message, n int64) { m.Envelope.Size = n }),
	words("Body", func(m *Message) *mail.Body { return &m.Envelope.Body }, "8bit", "utf8-headers", "dots", "long-lines", "smtputf8", "utf8-addresses", "gauged"),
	text("Envelope-ID", func(m *Message) *string { return &m.Envelope.EnvID }),
	text("Logged-Message-ID", func(m *Message) *string { return &m.Envelope.MessageID }),
	{"Return", func(m *Message) string { return m.Envelope.Ret.String() }, func(m *Message, s string) (err error) {
		m.Envelope.Ret, err = dsn.ParseRet(s)
		return err
	}},
	text("Client-Name", func(m *Message) *string { return &m.Envelope.Client.Name }),
	text("Client-Address", func(m *Message) *string { return &m.Envelope.Client.Addr }),
	text("Client-Port", func(m *Message) *string { return &m.Envelope.Client.Port }),
	text("Client-Helo", func(m *Message) *string { return &m.Envelope.Client.Helo }),
	text("Client-Protocol", func(m *Message) *string { return &m.Envelope.Client.Proto }),
	text("Client-Reverse-Name", func(m *Message) *string { return &m.Envelope.Reverse }),
	text("SASL-Method", func(m *Message) *string { return &m.Envelope.SASL.Method }),
	text("SASL-Username", func(m *Message) *string { return &m.Envelope.SASL.Username }),
	text("SASL-Sender", func(m *Message) *string { return &m.Envelope.SASL.Sender }),
	words("Trace", func(m *Message) *mail.Trace { return &m.Envelope.Trace }, "probe", "report", "record"),
	text("Rewrite-Context", func(m *Message) *string { return &m.Envelope.RewriteContext }),
	text("Log-Ident", func(m *Message) *string { return &m.Envelope.LogIdent }),
	text("Filter", func(m *Message) *string { return &m.Envelope.Filter }),
	text("Redirect", func(m *Message) *string { return &m.Envelope.Redirect }),
	text("VERP", func(m *Message) *string { return &m.Envelope.VERP }),
	text("Tenant", func(m *Message) *string { return &m.Envelope.Tenant }),
	text("Campaign", func(m *Message) *string { return &m.Envelope.Campaign }),
	text("Pool", func(m *Message) *string { return &m.Envelope.Pool }),
	text("List", func(m *Message) *string { return &m.Envelope.List }),
	flag("Require-TLS", func(m *Message) *bool { return &m.Envelope.RequireTLS }),
	flag("TLS-Optional", func(m *Message) *bool { return &m.Envelope.TLSOptional }),
	flag("Forwarded", func(m *Message) *bool { return &m.Envelope.Forwarded }),
	date("Send-At", func(m *Message) *time.Time { return &m.Envelope.SendAt }),
	date("Next-Attempt", func(m *Message) *time.Time { return &m.Next }),
	number("Attempts", func(m *Message) int64 { return int64(m.Attempts) }, func(m *Message, n int64) { m.Attempts = int(n) }),
	flag("Warned", func(m *Message) *bool { return &m.Warned }),
	flag("Expire", func(m *Message) *bool { return &m.Expire }),
}

var rcptFields = []field[*rcpt]{
	{"State", func(r *rcpt) string {
		if r.m.Done[r.i] {
			return "done"
		}
		return ""
	}, func(r *rcpt, s string) error {
		switch s {
		case "done":
			r.m.Done[r.i] = true
		case "pending":
			delete(r.m.Done, r.i)
		default:
			return errors.New("expected done or pending")
		}
		return nil
	}},
	{"Original", func(r *rcpt) string {
		if r.rcpt().Original == "" {
			return ""
		}
		return address(r.rcpt().Original)
	}, func(r *rcpt, s string) (err error) {
		r.rcpt().Original, err = parseAddress(s)
		return err
	}},
	text("ORCPT", func(r *rcpt) *string { return &r.rcpt().ORCPT }),
	{"Notify", func(r *rcpt) string { return r.rcpt().Notify.String() }, func(r *rcpt, s string) (err error) {
		r.rcpt().Notify, err = dsn.ParseNotify(s)
		return err
	}},
	{"Outcome", func(r *rcpt) string {
		o, ok := r.m.Outcomes[r.i]
		if !ok {
			return ""
		}
		return strings.TrimRight(fmt.Sprintf("%s %s %s", o.Action, o.Status, formatTime(o.When)), " ")
	}, setOutcome},
	outcomeText("Reason", func(o *mail.Outcome) *string { return &o.Reason }),
	outcomeText("Relay", func(o *mail.Outcome) *string { return &o.Relay }),
	outcomeText("Remote-MTA", func(o *mail.Outcome) *string { return &o.MTA }),
	outcomeText("Diagnostic-Type", func(o *mail.Outcome) *string { return &o.DiagType }),
	outcomeText("Diagnostic", func(o *mail.Outcome) *string { return &o.DiagText }),
	outcomeText("Owner", func(o *mail.Outcome) *string { return &o.Owner }),
	outcomeField(flag("Passed", func(o *mail.Outcome) *bool { return &o.Passed })),
}

// partField begins a part of the outcome; partFields are its fields, indented
// once more.
const partField = "Part"

var partFields = []field[*mail.Part]{
	{"Outcome", func(p *mail.Part) string { return p.Action.String() + " " + p.Status.String() }, func(p *mail.Part, s string) (err error) {
		p.Action, p.Status, _, err = parseOutcome(s)
		return err
	}},
	text("Reason", func(p *mail.Part) *string { return &p.Reason }),
	text("Relay", func(p *mail.Part) *string { return &p.Relay }),
	text("Remote-MTA", func(p *mail.Part) *string { return &p.MTA }),
	text("Diagnostic-Type", func(p *mail.Part) *string { return &p.DiagType }),
	text("Diagnostic", func(p *mail.Part) *string { return &p.DiagText }),
	text("Owner", func(p *mail.Part) *string { return &p.Owner }),
	number("More", func(p *mail.Part) int64 { return int64(p.More) }, func(p *mail.Part, n int64) { p.More = int(n) }),
	flag("Told", func(p *mail.Part) *bool { return &p.Told }),
}

// addPart begins a part of a recipient's outcome.
func addPart(r *rcpt, s string) error {
	addr, err := parseAddress(s)
	return r.change(func(o *mail.Outcome) error {
		o.Parts = append(o.Parts, mail.Part{Address: addr})
		return err
	})
}

// setPart sets a field of the last part.
func setPart(r *rcpt, name, value string) error {
	return r.change(func(o *mail.Outcome) error {
		if len(o.Parts) == 0 {
			return fmt.Errorf("%s: no %s before it", name, partField)
		}
		return setField(partFields, &o.Parts[len(o.Parts)-1], name, value)
	})
}

func setOutcome(r *rcpt, s string) error {
	o := mail.Outcome{Rcpt: r.i}
	var err error
	if o.Action, o.Status, o.When, err = parseOutcome(s); err != nil {
		return err
	}
	r.m.Outcomes[r.i] = o
	return nil
}

// parseOutcome reads an action, a status and, unless it is left out, a time.
func parseOutcome(s string) (action dsn.Action, status dsn.Status, when time.Time, err error) {
	w := strings.Fields(s)
	if len(w) < 2 {
		return 0, status, when, errors.New("expected an action, a status and a time")
	}
	for a := dsn.Delivered; a.String() != ""; a++ {
		if a.String() == w[0] {
			action = a
		}
	}
	if action == 0 {
		return 0, status, when, fmt.Errorf("unknown action %q", w[0])
	}
	if status, err = dsn.ParseStatus(w[1]); err == nil && len(w) > 2 {
		when, err = parseTime(w[2])
	}
	return action, status, when, err
}

// change changes the recipient's outcome, which must have been begun.
func (r *rcpt) change(f func(*mail.Outcome) error) error {
	o, ok := r.m.Outcomes[r.i]
	if !ok {
		return errors.New("no Outcome before it")
	}
	err := f(&o)
	r.m.Outcomes[r.i] = o
	return err
}

// outcomeField is a field of an outcome.
func outcomeField(f field[*mail.Outcome]) field[*rcpt] {
	return field[*rcpt]{f.name, func(r *rcpt) string {
		o := r.m.Outcomes[r.i]
		return f.get(&o)
	}, func(r *rcpt, s string) error {
		return r.change(func(o *mail.Outcome) error { return f.set(o, s) })
	}}
}

func outcomeText(name string, at func(*mail.Outcome) *string) field[*rcpt] {
	return outcomeField(text(name, at))
}
