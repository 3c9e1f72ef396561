// Package notice tells postmaster of sessions that went wrong: it keeps the
// transcript of an SMTP session, server's or client's, and mails it when
// something happened that notify_classes asks for.
//
//	t := mailer.Transcript()       // nil when no class is asked for: costs nothing
//	t.In([]byte("EHLO client"))    // what the peer said,
//	t.Out([]byte("250 server"))    // and what we did
//	t.Fault(notice.Policy)         // something happened
//	mailer.Post(ctx, t, notice.Session{Side: "server", Peer: "name[addr]"})
//
// A Transcript belongs to one session and is used by one goroutine. Whether
// it is posted depends on its faults alone.
//
// A notice is from the double-bounce address, so that nothing comes of one
// that cannot be delivered, and goes to error_notice_recipient. With the
// class bounce, transcripts with mail that was refused for reasons of its own
// go to bounce_notice_recipient instead, as Postfix has it.
//
// # Security
//
// All that is in a transcript comes from strangers: control characters are
// replaced, lines are cut, and a transcript is at most 16 KiB, of which the
// older half is dropped when it is full. Content of messages is never part of
// it, and neither is what follows the mechanism of AUTH: whoever keeps a
// transcript gives it [Redact]ed.
//
// # Parameters
//
// notify_classes, error_notice_recipient, bounce_notice_recipient,
// double_bounce_sender, header_from_format, internal_mail_filter_classes,
// mail_name, myhostname, myorigin.
//
// # Diagnostics
//
// A notice that cannot be submitted is a warning; nothing else depends on it.
package notice

import (
	"context"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/submit"
)

// Class is what went wrong, a set of bits.
type Class uint8

const (
	Bounce   Class = 1 << iota // a message was refused for what it is: size, hops
	Policy                     // a request was refused by a restriction
	Protocol                   // a peer broke the protocol
	Resource                   // no room, no memory, too many
	Software                   // something of ours does not work
	Data                       // a table that matters could not be read
)

var classes = map[string]Class{"bounce": Bounce, "policy": Policy, "protocol": Protocol, "resource": Resource,
	"software": Software, "data": Data}

// postTimeout bounds the submission of a notice, for which a session's
// goroutine waits.
const postTimeout = time.Minute

// A Mailer posts transcripts. It may be used concurrently; a nil one keeps no
// transcripts and posts nothing.
type Mailer struct {
	submit   *submit.Client
	log      *maillog.Logger
	wanted   Class
	sender   string
	errorTo  string
	bounceTo string
	mailName string
	hostname string
	flags    proto.SubmitFlags
	// obsoleteFrom has names in comments, after the addresses.
	obsoleteFrom bool
}

// New returns a Mailer with the settings of cfg that submits through s.
func New(cfg *config.Config, s *submit.Client, log *maillog.Logger) *Mailer {
	m := &Mailer{submit: s, log: log, sender: Sender(cfg), errorTo: cfg.String("error_notice_recipient"),
		bounceTo: cfg.String("bounce_notice_recipient"), mailName: cfg.String("mail_name"),
		hostname: cfg.String("myhostname"), flags: Flags(cfg, "notify"), obsoleteFrom: cfg.String("header_from_format") == "obsolete"}
	for _, word := range cfg.List("notify_classes") {
		m.wanted |= classes[strings.ToLower(word)]
	}
	return m
}

// Sender is the address that notices to postmaster come from, in full.
func Sender(cfg *config.Config) string {
	sender := cfg.String("double_bounce_sender")
	if !strings.Contains(sender, "@") {
		sender += "@" + cfg.String("myhostname")
	}
	return sender
}

// Flags say what cleanup is to do with mail that the system itself makes.
// class is bounce or notify: internal_mail_filter_classes may ask for content
// checks of either, smtputf8_autodetect_classes for finding out whether it needs SMTPUTF8.
func Flags(cfg *config.Config, class string) proto.SubmitFlags {
	flags := proto.SubmitMap | proto.SubmitNoReceive | proto.AutoUTF8(cfg.List("smtputf8_autodetect_classes"), class)
	for _, word := range cfg.List("internal_mail_filter_classes") {
		if word == class {
			flags |= proto.SubmitFilter | proto.SubmitMilter
		}
	}
	return flags
}

// Transcript begins one, or returns nil when nobody wants any: all methods of
// a nil Transcript do nothing.
func (m *Mailer) Transcript() *Transcript {
	if m == nil || m.wanted == 0 {
		return nil
	}
	return &Transcript{wanted: m.wanted}
}

// A Session is what a notice says of the session besides the transcript.
type Session struct {
	Side   string // server or client: ours
	Peer   string // name[address]
	Reason string // why the session was aborted; empty when it was not
	// Unexpected is what was not expected of the peer: a sentence before the
	// transcript, empty when there is nothing to say.
	Unexpected string
}

// Post mails t to postmaster if something happened that is asked for, and
// begins it anew. A notice that cannot be submitted is logged. ctx is the
// bound on time, with a minute of our own.
func (m *Mailer) Post(ctx context.Context, t *Transcript, s Session) {
	if t == nil {
		return
	}
	defer t.Reset()
	faults := t.faults & m.wanted
	if faults == 0 || t.text == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	if err := m.post(ctx, faults, *t.text, t.dropped, s); err != nil {
		m.log.Warning("notice to postmaster about %s not sent: %v", s.Peer, err)
	}
}

// Tell mails text, of lines that end in LF, to error_notice_recipient if class is one
// of those asked for. A notice that cannot be submitted is logged. ctx is the bound on
// time, with a minute of our own.
func (m *Mailer) Tell(ctx context.Context, class Class, subject, text string) {
	if m == nil || m.wanted&class == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	err := m.send(ctx, m.errorTo, func(id mail.QueueID, now time.Time) []byte {
		return m.letter(m.errorTo, id, now, subject, text)
	})
	if err != nil {
		m.log.Warning("notice to postmaster (%s) not sent: %v", subject, err)
	}
}

func (m *Mailer) post(ctx context.Context, faults Class, text []byte, dropped bool, s Session) error {
	to := m.errorTo
	if faults == Bounce {
		to = m.bounceTo
	}
	return m.send(ctx, to, func(id mail.QueueID, now time.Time) []byte {
		return m.compose(to, id, now, text, dropped, s)
	})
}

// send submits one notice.
func (m *Mailer) send(ctx context.Context, to string, content func(mail.QueueID, time.Time) []byte) error {
	now := time.Now()
	id, err := m.submit.NewID(ctx, now)
	if err != nil {
		return err
	}
	msg := m.submit.Open(&mail.Envelope{ID: id, Arrival: now, Sender: m.sender, RewriteContext: "local",
		Recipients: []mail.Recipient{{Address: to}}}, submit.Options{Flags: m.flags})
	if _, err = msg.Write(content(id, now)); err != nil {
		msg.Abort()
		return err
	}
	reply, err := msg.Commit(ctx)
	if err == nil && reply.Code != 250 {
		err = fmt.Errorf("cleanup refused it: %s", reply.Reason())
	}
	return err
}

// letter writes a notice that is not about a session. It is pure.
func (m *Mailer) letter(to string, id mail.QueueID, now time.Time, subject, text string) []byte {
	var b strings.Builder
	m.header(&b, to, id, now, m.mailName+" "+subject)
	for l := range strings.Lines(text) {
		b.WriteString(printable(strings.TrimSuffix(l, "\n"), maxLine) + "\r\n")
	}
	return []byte(b.String())
}

// header writes what all notices begin with.
func (m *Mailer) header(b *strings.Builder, to string, id mail.QueueID, now time.Time, subject string) {
	line := func(format string, args ...any) {
		fmt.Fprintf(b, format, args...)
		b.WriteString("\r\n")
	}
	line("Received: by %s (%s)", m.hostname, m.mailName)
	line("\tid %s; %s", id, rfc5322.Date(now))
	line("Date: %s", rfc5322.Date(now))
	from, about := "MAILER-DAEMON@"+m.hostname, rfc5322.Quote(to)
	if m.obsoleteFrom {
		line("From: %s (Mail Delivery System)", from)
		line("To: %s (Postmaster)", about)
	} else {
		line("From: Mail Delivery System <%s>", from)
		line("To: Postmaster <%s>", about)
	}
	line("Subject: %s", subject)
	line("Auto-Submitted: auto-generated") // RFC 3834 section 5
	line("")
}

// compose writes the notice about a session. It is pure.
func (m *Mailer) compose(to string, id mail.QueueID, now time.Time, text []byte, dropped bool, s Session) []byte {
	var b strings.Builder
	line := func(format string, args ...any) {
		fmt.Fprintf(&b, format, args...)
		b.WriteString("\r\n")
	}
	m.header(&b, to, id, now, fmt.Sprintf("%s SMTP %s: errors from %s", m.mailName, s.Side, printable(s.Peer, maxPeer)))
	if s.Unexpected != "" {
		line("%s", printable(s.Unexpected, maxLine))
		line("")
	}
	line("Transcript of session follows.")
	line("")
	if dropped {
		line(" (earlier lines are left out)")
	}
	b.Write(text)
	line("")
	if s.Reason != "" {
		line("Session aborted, reason: %s", printable(s.Reason, maxLine))
	}
	if s.Reason != "" || s.Side == "server" {
		line("")
	}
	line("For other details, see the local mail logfile")
	return []byte(b.String())
}
