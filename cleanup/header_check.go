// Header and body checks: looking pieces of the content up in header_checks(5) tables and
// doing what these say. The actions, their order of precedence and their log lines are
// Postfix's, because people bring their tables along.

package cleanup

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/egress"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
)

// checkClass says what a piece of content is, and so which table it is looked up in.
type checkClass uint8

const (
	headerClass checkClass = iota
	mimeClass
	nestedClass
	bodyClass
	milterClass  // what filters add: milter_header_checks
	contentClass // the message as a whole, for the log only
)

// place is the word for it in log lines, which are Postfix's.
func (c checkClass) place() string {
	switch c {
	case bodyClass:
		return "body"
	case contentClass:
		return "content"
	}
	return "header"
}

// checkField looks one field up and does what the table says. It returns the field to go
// on with; false means that it is dropped.
func (m *Message) checkField(ctx context.Context, class checkClass, f rfc5322.Field) (rfc5322.Field, bool) {
	checks := m.c.checksFor(class)
	if checks.Empty() {
		return f, true
	}
	// Tables see a folded field as lines, as in Postfix.
	text := string(f.Lines())
	value, found, err := checks.Lookup(ctx, text, false)
	if err != nil {
		// The message will be refused for now; nothing is let pass because a table is
		// down.
		m.tableFailed(checks.Title(), err)
		return f, true
	}
	if !found {
		return f, true
	}
	replaced, keep := m.act(class, checks.Title(), text, value)
	if !keep {
		return f, false
	}
	if replaced != text {
		// act has made sure that a replacement is a field.
		if g, ok := rfc5322.ParseField(toLines(replaced)); ok {
			f = g
		}
	}
	return f, true
}

// toLines makes lines with CRLF of text with LF. A line that continues a field gets a
// tab, and a stray CR becomes a space: a table's value must not end the header.
func toLines(text string) []byte {
	lines := strings.Split(text, "\n")
	b := make([]byte, 0, len(text)+2*len(lines)+2)
	for i, line := range lines {
		if i > 0 && (line == "" || line[0] != ' ' && line[0] != '\t') {
			b = append(b, '\t')
		}
		b = append(b, strings.ReplaceAll(line, "\r", " ")...)
		b = append(b, crlf...)
	}
	return b
}

// act does what a table says about text, which is a field or a line of the body. It
// returns the text to go on with, and false if that is to be dropped. An action that
// makes no sense is warned of and passed over, as in Postfix: an error in a table must
// not lose mail.
func (m *Message) act(class checkClass, title, text, value string) (string, bool) {
	verb, arg, _ := strings.Cut(value, " ")
	if i := strings.IndexByte(verb, '\t'); i >= 0 {
		verb, arg = verb[:i], verb[i:]+" "+arg
	}
	arg = strings.TrimSpace(arg)
	switch verb = strings.ToUpper(verb); verb {
	// What a table says of the message as a whole.
	case "REJECT":
		m.actReject(class, text, arg)
	// Both only log, with different words.
	case "WARN":
		m.actLog("warning", class, text, arg)
	case "INFO":
		m.actLog("info", class, text, arg)
	case "FILTER", "POOL", "REDIRECT", "BCC":
		m.actEnvelope(verb, class, title, text, arg)
	// The rest of the content is not looked at, and milters do not see it.
	case "PASS":
		m.actLog("pass", class, text, arg)
		m.stop = true
	case "DISCARD":
		m.actLog("discard", class, text, arg)
		m.flags |= proto.SubmitDiscard
		m.stop = true
	// Once: a second match says nothing new. What is discarded is never held.
	case "HOLD":
		if m.flags&(proto.SubmitHold|proto.SubmitDiscard) == 0 {
			m.actLog("hold", class, text, arg)
			m.flags |= proto.SubmitHold
		}
	case "PREPEND":
		m.actPrepend(class, title, text, arg)
	case "REPLACE":
		switch {
		case arg == "":
			m.tablef("REPLACE action without text in %s map", title)
		// It would end the header, and make body of the fields after it.
		case class != bodyClass && !rfc5322.IsField(arg):
			m.tablef("bad REPLACE header text %q in %s map -- need \"headername: headervalue\"", arg, title)
		default:
			m.actLog("replace", class, text, arg)
			return arg, true
		}
	// Like IGNORE, but logged.
	case "STRIP":
		m.actLog("strip", class, text, arg)
		return "", false
	case "IGNORE":
		return "", false
	// An entry that says so keeps later ones of the table from being asked.
	case "DUNNO", "OK":
	default:
		m.tablef("unknown command in %s map: %s", title, value)
	}
	return text, true
}

// actEnvelope changes where the message goes, how and from where. A demand that makes no sense is warned of.
func (m *Message) actEnvelope(verb string, class checkClass, title, text, arg string) {
	switch verb {
	case "FILTER":
		switch {
		case arg == "":
			m.tablef("missing FILTER command argument in %s map", title)
		// Postfix demands the colon, so that a next hop is not taken for a transport.
		case !strings.Contains(arg, ":"):
			m.tablef("bad FILTER command %s in %s -- need transport:destination", arg, title)
		default:
			m.env.Filter = arg
			m.actLog("filter", class, text, arg)
		}
	// Which addresses the message is sent from. An unknown pool is found when it is resolved, and
	// defers the message; here only the form can be wrong.
	case "POOL":
		if !egress.ValidName(arg) {
			m.tablef("bad POOL command %.100q in %s -- need the name of an egress pool", arg, title)
			break
		}
		m.env.Pool = arg
		m.actLog("pool", class, text, arg)
	// The only recipient from now on, as the queue manager reads it.
	case "REDIRECT":
		if !strings.Contains(arg, "@") {
			m.tablef("bad REDIRECT target %q in %s map -- need user@domain", arg, title)
			break
		}
		m.env.Redirect = arg
		m.actLog("redirect", class, text, arg)
		m.stop = true
	case "BCC":
		if !strings.Contains(arg, "@") {
			m.tablef("bad BCC address %q in %s map -- need user@domain", arg, title)
			break
		}
		// Added at the end: recipients may still be listed.
		m.contentBCC = append(m.contentBCC, arg)
		m.actLog("bcc", class, text, arg)
	}
}

// actReject refuses the message, with the table's text if that begins with a status of
// class 4 or 5. A 4 asks the client to try later.
func (m *Message) actReject(class checkClass, text, arg string) {
	m.reason = "5.7.1 message content rejected"
	if arg != "" {
		status, rest, ok := dsn.CutStatus(arg)
		switch {
		case !ok:
			m.reason = "5.7.1 " + arg
		case status.Class == 2:
			m.tablef("bad DSN action in %s -- need 4.x.x or 5.x.x", arg)
			m.reason = status.WithClass(4).String() + " " + rest
		default:
			m.reason = arg
		}
	}
	if m.reason[0] == '4' {
		m.stat |= statDefer
	} else {
		m.stat |= statCont
	}
	m.stop = true
	m.actLog("reject", class, text, m.reason)
}

// actPrepend stores a field before the present one, or a line before the present line of
// the body.
func (m *Message) actPrepend(class checkClass, title, text, arg string) {
	switch {
	case arg == "":
		m.tablef("PREPEND action without text in %s map", title)
	case class == bodyClass:
		m.actLog("prepend", class, text, arg)
		m.emit(toLines(arg))
	case !rfc5322.IsField(arg):
		m.tablef("bad PREPEND header text %q in %s map -- need \"headername: headervalue\"", arg, title)
	default:
		m.actLog("prepend", class, text, arg)
		m.emit(toLines(arg))
	}
}

// tablef warns of an entry in a table that makes no sense, which the postmaster must
// mend.
func (m *Message) tablef(format string, args ...any) {
	m.addLine(logLine{Warning: true, Text: fmt.Sprintf(format, args...)})
}

// actLog logs an action with the circumstances of the message. The number of lines for
// each message is bounded (addLine), except for actions that can occur only once, which
// the log must always have.
func (m *Message) actLog(action string, class checkClass, content, text string) {
	// A log line for people; header fields may have a hundred thousand octets.
	if len(content) > 200 {
		content = content[:200]
	}
	c := &m.env.Client
	e := &maillog.ContentCheck{Part: class.place(), Line: printable(content), Reject: maillog.Reject{
		QueueID: m.id, Action: action, Name: c.Name, Addr: c.Addr, Text: text,
		From: m.c.logForm.Of(m.env.Sender), HasFrom: true, HasTo: m.anyRcpt, Proto: c.Proto, Helo: c.Helo}}
	if class == milterClass {
		e.Action = "milter-header-" + action
		if c.Addr == "" {
			e.Name, e.Addr = "localhost", "127.0.0.1" // what filters have been told
		}
	}
	// Header checks may run before the first recipient is known.
	if m.anyRcpt {
		e.To = m.c.logForm.Of(m.lastRcpt)
	}
	switch action {
	case "reject", "discard", "redirect", "pass", "hold": // one of each at most
		m.log = append(m.log, logLine{Event: e})
	default:
		m.addLine(logLine{Event: e})
	}
}

// origin is where the message came from, in the words of Postfix's log.
func (m *Message) origin() string {
	c := &m.env.Client
	if c.Addr == "" {
		return "local"
	}
	return c.Name + "[" + c.Addr + "]"
}

// checkLine looks one line of the body up; line is without its end. It returns what is to
// be stored in its place; false drops it.
func (m *Message) checkLine(ctx context.Context, line []byte) (out []byte, keep bool) {
	checks := m.c.bodyChecks
	text := string(line)
	value, found, err := checks.Lookup(ctx, text, false)
	if err != nil {
		m.tableFailed(checks.Title(), err)
		return line, true
	}
	if !found {
		return line, true
	}
	replaced, keep := m.act(bodyClass, checks.Title(), text, value)
	if !keep {
		return nil, false
	}
	if replaced != text {
		// The caller adds the line end that the line had.
		return bytes.TrimSuffix(toLines(replaced), crlf), true
	}
	return line, true
}
