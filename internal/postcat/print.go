package postcat

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/spooltool/plain"
)

// A printer prints the records of one message.
type printer struct {
	w     *bufio.Writer
	name  string
	flags map[byte]bool
	skip  int64
}

// prefix prints what the options want before a record. at < 0 is for what has
// no place in the content.
func (p *printer) prefix(typ byte, at int64) {
	if p.flags['f'] {
		fmt.Fprintf(p.w, "%s: ", p.name)
	}
	if p.flags['o'] {
		if at >= 0 {
			fmt.Fprintf(p.w, "%9d ", at)
		} else {
			fmt.Fprintf(p.w, "%9s ", "-")
		}
	}
	if p.flags['d'] {
		fmt.Fprintf(p.w, "%3d ", typ)
	}
}

// record prints one record of the envelope.
func (p *printer) record(typ byte, label, value string) {
	p.prefix(typ, -1)
	p.w.WriteString(label)
	p.w.WriteString(": ")
	p.w.Write(maillog.AppendClean(nil, []byte(value)))
	p.w.WriteByte('\n')
}

// text prints a record if there is something in it.
func (p *printer) text(typ byte, label, value string) {
	if value != "" {
		p.record(typ, label, value)
	}
}

// attribute prints a named attribute if it has a value.
func (p *printer) attribute(name, value string) {
	if value != "" {
		p.record('A', "named_attribute", name+"="+value)
	}
}

func (p *printer) number(name string, n int) {
	if n != 0 {
		p.attribute(name, strconv.Itoa(n))
	}
}

const dateLayout = "Mon Jan _2 15:04:05 2006"

// envelope prints it as a Postfix queue file would have it. place is where
// the message lies in its segment.
func (p *printer) envelope(m *plain.Message, place int64) {
	e := &m.Envelope
	options := 0
	if e.Body&mail.BodySMTPUTF8 != 0 {
		options |= 1
	}
	if e.Body&mail.BodyUTF8Hdr != 0 {
		options |= 2
	}
	p.record('C', "message_size", fmt.Sprintf("%15d %15d %15d %15d %15d %15d", e.Size, place, len(e.Recipients), 0, e.Size, options))
	p.text('T', "message_arrival_time", date(e.Arrival))
	if e.ID != "" {
		p.record('A', "create_time", date(e.Created()))
	}
	ident := e.LogIdent
	if ident == "" {
		ident = string(e.ID)
	}
	p.attribute("log_ident", ident)
	p.attribute("rewrite_context", e.RewriteContext)
	p.attribute("envelope_id", e.EnvID)
	p.number("ret_flags", map[dsn.Ret]int{dsn.RetFull: 1, dsn.RetHeaders: 2}[e.Ret])
	p.number("trace_flags", traceFlags(e.Trace))
	p.record('S', "sender", e.Sender)
	p.text('L', "content_filter", e.Filter)
	p.text('>', "redirect_to", e.Redirect)
	p.text('V', "verp_delimiters", e.VERP)
	p.attribute("encoding", encoding(e.Body))
	p.attribute("client_name", e.Client.Name)
	p.attribute("reverse_client_name", e.Reverse)
	p.attribute("client_address", e.Client.Addr)
	p.attribute("client_port", e.Client.Port)
	p.attribute("helo_name", e.Client.Helo)
	p.attribute("protocol_name", e.Client.Proto)
	p.attribute("sasl_method", e.SASL.Method)
	p.attribute("sasl_username", e.SASL.Username)
	p.attribute("sasl_sender", e.SASL.Sender)
	p.attribute("tenant", e.Tenant)
	p.attribute("campaign", e.Campaign)
	for i := range e.Recipients {
		p.recipient(m, i)
	}
	if p.flags['v'] {
		p.state(m)
	}
}

func (p *printer) recipient(m *plain.Message, i int) {
	r := &m.Envelope.Recipients[i]
	p.number("notify_flags", notifyFlags(r.Notify))
	p.attribute("dsn_orig_rcpt", r.ORCPT)
	p.record('O', "original_recipient", r.Orig())
	if m.Done[i] {
		p.record('D', "done_recipient", r.Address)
		return
	}
	p.record('R', "recipient", r.Address)
	if o, ok := m.Outcomes[i]; ok && p.flags['v'] {
		p.attribute("last_outcome", fmt.Sprintf("%s %s %s (%s)", date(o.When), o.Action, o.Status, o.Why()))
	}
}

// state prints what Postfix keeps outside of the queue file.
func (p *printer) state(m *plain.Message) {
	p.attribute("queue_name", m.Queue)
	p.number("delivery_attempts", m.Attempts)
	if m.Queue == "deferred" {
		p.attribute("next_attempt", date(m.Next))
	}
	if m.Warned {
		p.attribute("delay_warning", "sent")
	}
	if m.Expire {
		p.attribute("forced_expire", "yes")
	}
}

func date(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(dateLayout)
}

func encoding(b mail.Body) string {
	if b&mail.Body8Bit != 0 {
		return "8bit"
	}
	return "7bit"
}

// notifyFlags are the bits that Postfix has for a NOTIFY parameter.
func notifyFlags(n dsn.Notify) (bits int) {
	for i, flag := range [...]dsn.Notify{dsn.NotifyNever, dsn.NotifySuccess, dsn.NotifyFailure, dsn.NotifyDelay} {
		if n&flag != 0 {
			bits |= 1 << i
		}
	}
	return bits
}

func traceFlags(t mail.Trace) (bits int) {
	for i, flag := range [...]mail.Trace{8: mail.TraceProbe, 9: mail.TraceReport, 10: mail.TraceRecord} {
		if flag != 0 && t&flag != 0 {
			bits |= 1 << i
		}
	}
	return bits
}

// content prints the header, and the body with the empty line before it.
func (p *printer) content(r io.Reader) error {
	in := bufio.NewReaderSize(plain.LF(r), 64<<10)
	body, begin := false, true
	for at := int64(0); ; {
		line, err := in.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull && err != io.EOF {
			return err
		}
		if begin && len(line) == 1 && line[0] == '\n' {
			body = true
		}
		show := p.flags['h']
		if body {
			show = p.flags['b']
		}
		if show && at >= p.skip && len(line) > 0 {
			if begin {
				p.prefix('N', at)
			}
			if _, werr := p.w.Write(line); werr != nil {
				return nil // said elsewhere
			}
		}
		at += int64(len(line))
		begin = err == nil
		if err == io.EOF {
			return nil
		}
	}
}
