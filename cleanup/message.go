// Package cleanup receives a message and turns it into a durable queue entry.
// It is Postfix's cleanup(8).
//
// The message core, in the files message*.go, header*.go and map*.go, decides
// what is queued. Apart from table lookups and requests to the address service
// it does no I/O. [Core.NewMessage] takes the envelope and maps its addresses.
// [Message.Write] takes the content in pieces of any size and returns what is to
// be stored. [Message.Finish] returns the verdict, the final envelope and the log
// lines. Unchanged content is not copied: the slices that Write returns then
// point into its argument.
//
// The order of the steps is Postfix's. The sender and the recipients are
// rewritten, mapped by canonical_maps, and masqueraded. Recipients are expanded
// by virtual_alias_maps, and duplicates are removed. Header fields are checked,
// then removed, counted and rewritten, and missing ones are added at the end of
// the header. Then the body is checked. Automatic BCC recipients are added last.
//
// # The queue
//
// cleanup alone changes the queue. What keeps it is an engine, which spool_type
// chooses: the log on the local disk, or a PostgreSQL database that several nodes
// share. The server (server.go) knows the engine by its interface alone, in package
// storage. The keeper (keeper.go) opens it, serves it, and opens it again when it
// breaks; meanwhile mail is refused with 451. A node that does not own the queue
// stands by in the same way, and tries twice a second to take it over.
//
// # Security
//
// Content comes from anybody. Memory for a message is bounded: header_size_limit
// octets of a header field, and one line of the body. The number of recipients
// that an address may expand to is bounded as well. Stray CR and LF characters,
// with which one message can be smuggled inside another, are replaced. Bytes
// over 127 and NUL are passed on.
//
// # Standards
//
//	RFC 5322 (Internet Message Format)
//	RFC 5321 section 4.4 (trace fields), section 6.3 (loop detection)
//	RFC 2045, RFC 2046 (MIME, for the checks only)
//	RFC 8689 section 5 (TLS-Required: no)
//	RFC 3461 section 5.2.7 (aliases and notifications)
//
// # Parameters
//
// Addresses: canonical_maps canonical_classes sender_canonical_maps
// sender_canonical_classes recipient_canonical_maps recipient_canonical_classes
// masquerade_domains masquerade_classes masquerade_exceptions
// virtual_alias_maps virtual_alias_expansion_limit
// virtual_alias_recursion_limit virtual_alias_address_length_limit
// propagate_unmatched_extensions recipient_delimiter owner_request_special
// sender_bcc_maps recipient_bcc_maps always_bcc empty_address_recipient
// duplicate_filter_limit enable_original_recipient remote_header_rewrite_domain
// myorigin mydestination inet_interfaces proxy_interfaces.
//
// Header: message_drop_headers always_add_missing_headers header_from_format
// full_name_encoding_charset undisclosed_recipients_header
// header_address_token_limit header_size_limit hopcount_limit
// detect_8bit_encoding_header tls_required_enable myhostname.
//
// Content: header_checks mime_header_checks nested_header_checks body_checks
// body_checks_size_limit line_length_limit message_size_limit
// disable_mime_input_processing force_mime_input_conversion
// mime_nesting_limit mime_boundary_length_limit
// strict_7bit_headers strict_8bitmime strict_8bitmime_body
// strict_mime_encoding_domain info_log_address_format non_empty_end_of_header_action
// message_reject_characters message_strip_characters
// cleanup_replace_stray_cr_lf smtputf8_enable.
//
// After the core: mail_authentication authserv_id dmarc_reject
// mail_authentication_exempt_networks (authenticate.go); non_smtpd_milters
// milter_header_checks milter_macro_defaults milter_macro_daemon_name
// milter_macro_v and what package milter reads (milter.go); dkim_sign_maps
// dkim_sign_networks dkim_sign_headers dkim_oversign_headers
// dkim_signature_lifetime (sign.go).
//
// The queue: spool_type, and those of packages spool and pgspool.
//
// # Diagnostics
//
// Log lines are Postfix's; they are collected in [Result.Log] in order.
//
// "the queue cannot be written any more, and is opened again": a write or a sync
// of the queue's log failed; the line has the reason.
//
// "the queue cannot be opened, mail is refused for now": the disk still fails,
// or is full. Clients get 451 until the queue can be opened, which is tried twice
// a second. The line is logged once a minute.
//
// "standing by, mail is refused": another node owns the queue (spool_type =
// postgresql). Nothing is wrong; the line is logged once, and the next is that this
// node has taken the queue over.
package cleanup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
)

// A logLine is one line for the log, queue ID included: an event, or a text.
type logLine struct {
	Warning bool
	Text    string
	Event   maillog.Event
}

// String is the text of either.
func (l logLine) String() string {
	if l.Event != nil {
		return string(l.Event.Append(nil))
	}
	return l.Text
}

// A refusal is why a message is not queued, as the client is to be told.
type refusal struct {
	Code   int // SMTP reply code
	Status dsn.Status
	Text   string // without code and status
	Cause  string // of an internal failure, for the log; else empty
}

// Error makes a refusal an error.
func (r *refusal) Error() string { return fmt.Sprintf("%d %s %s", r.Code, r.Status, r.Text) }

// A noticed is a recipient to whom something happened, and who is not in the final
// envelope: the sender of the message asked to be told, or it was a probe.
type noticed struct {
	Recipient mail.Recipient
	Outcome   mail.Outcome // Rcpt is -1
}

// A Result is what became of a message.
type Result struct {
	// Envelope is to be queued, unless Refused or Discard.
	Envelope mail.Envelope
	// MessageID is the value of the Message-ID: field with its angle
	// brackets, made or found.
	MessageID string

	Hold    bool
	Discard bool // report success and forget the message

	// Refused is why the message must not be queued. With Bounce it is to be
	// returned to its sender instead of being refused: with its header only
	// if HeadersOnly.
	Refused     *refusal
	Bounce      bool
	HeadersOnly bool

	// Stop says that milters are not to see the message: an action of the
	// header or body checks has decided.
	Stop bool

	Notices []noticed
	Log     []logLine
}

// status is the set of things that are wrong with a message.
type status uint8

const (
	statDefer status = 1 << iota // a table's action or limit: try later
	statRcpt                     // no recipient
	statHops                     // too many hops
	statSize                     // too large
	statCont                     // content refused
	statWrite                    // a table or service could not be asked
)

// statusTexts is in order of precedence.
var statusTexts = [...]struct {
	bit    status
	code   int
	status dsn.Status
	text   string
}{
	{statDefer, 451, dsn.S(4, 7, 1), "service unavailable"},
	{statRcpt, 550, dsn.S(5, 1, 0), "no recipients specified"},
	{statHops, 554, dsn.S(5, 4, 0), "too many hops"},
	{statSize, 552, dsn.S(5, 3, 4), "message file too big"},
	{statCont, 550, dsn.S(5, 7, 1), "message content rejected"},
	{statWrite, 451, dsn.S(4, 3, 0), "queue file write error"},
}

// refusal turns what is wrong into a reply. reason, if there is one, is "5.7.1
// text" from a table.
func (s status) refusal(reason string) *refusal {
	for _, t := range statusTexts {
		if s&t.bit == 0 {
			continue
		}
		r := &refusal{Code: t.code, Status: t.status, Text: "Error: " + t.text}
		if reason != "" && t.bit&(statDefer|statCont|statHops) != 0 {
			if st, text, ok := dsn.CutStatus(reason); ok {
				r.Status, r.Text = st, text
			}
		}
		return r
	}
	return nil
}

// A Message is one message on its way through. It is used by one goroutine. The
// zero Message is ready for begin.
type Message struct {
	// c and flags do not change. All else belongs to the one goroutine that writes the
	// message.
	c     *Core
	flags proto.SubmitFlags
	env   mail.Envelope
	id    string

	fullName string
	prepend  []string // fields that have still to be put on top

	// What has gone wrong so far, all of it. It never gets better: what comes after an error
	// is read and dropped.
	stat   status
	reason string // of a rejection by a table, with its status code
	cause  string // of statWrite or statDefer, the first one; "" if there is none
	stop   bool   // no more checks

	// By enable_original_recipient and duplicate_filter_limit: a recipient twice gets one
	// copy.
	dups     duplicates
	anyRcpt  bool
	lastRcpt string // the last recipient given, for log lines
	// BCC actions of header and body checks. They become recipients at the end, since the
	// envelope may not be complete before.
	contentBCC []string
	noBCC      []string // who is no automatic BCC recipient
	notices    []noticed
	log        []logLine
	// Bounded, so that content cannot fill the log.
	lines int // of them, or left out, that come of the content

	down   *rfc5322.Downgrader // comes before all else; nil unless force_mime_input_conversion
	header headerState
	body   bodyState

	out   [][]byte // what the present call gives back
	gauge gauge    // of all that has been given back
	// parts looks at the headers in the content; nil if what it finds would not matter.
	parts *partWatch
	// says8Bit is that somebody says of the content that it has octets over 127:
	// who submits it, or a field of it (detect_8bit_encoding_header).
	says8Bit bool
}

// NewMessage begins a message of what a submitter tells of it besides its content: Envelope, with the ID that the
// message is to have, Flags, BCC, Prepend, FullName, NoBCC. The envelope's addresses are mapped. What goes
// wrong comes to light in Finish, so that the client can be answered at the
// end of its data as the protocol wants. s must not change until Finish.
func (c *Core) NewMessage(ctx context.Context, s *proto.Submit) *Message {
	m := new(Message)
	m.begin(ctx, c, s)
	return m
}

// begin is NewMessage in memory that is there already.
func (m *Message) begin(ctx context.Context, c *Core, s *proto.Submit) {
	rcpts := slices.Grow(m.env.Recipients, len(s.Envelope.Recipients)+1)
	m.c, m.flags, m.env, m.id = c, s.Flags, s.Envelope, string(s.Envelope.ID)
	m.fullName, m.prepend, m.noBCC = s.FullName, s.Prepend, s.NoBCC
	m.env.Recipients = rcpts
	m.says8Bit = s.Envelope.Body&mail.Body8Bit != 0
	m.dups.limit = c.duplicateLimit
	m.header.context = c.headerContext(s.Envelope.RewriteContext)
	m.header.drop = c.dropHeaders
	m.body.init(c, m.flags)
	m.watchParts()
	if c.downgrade {
		m.down = &rfc5322.Downgrader{Structure: rfc5322.Structure{MaxDepth: c.mimeDepth, MaxBoundary: c.boundaryLimit}}
	}
	m.envelopeSender(ctx)
	for i := range s.Envelope.Recipients {
		m.envelopeRecipient(ctx, s.Envelope.Recipients[i])
	}
	for _, addr := range s.BCC {
		m.envelopeRecipient(ctx, mail.Recipient{Address: addr, Notify: dsn.NotifyNever})
	}
}

// reset makes m zero again but for memory that the next message may use. That
// of a Result is part of it.
func (m *Message) reset() {
	m.dups.reset()
	*m = Message{env: mail.Envelope{Recipients: reuse.Emptied(m.env.Recipients)}, dups: m.dups, log: reuse.Emptied(m.log),
		header: headerState{addrs: reuse.Emptied(m.header.addrs)}}
}

// Write takes the next piece of the content and appends to out the pieces to be
// stored. They point into p or into memory of their own: p must not change as
// long as they are in use. A message that is already known to be refused or
// discarded gives nothing back, unless it will go back to its sender; to go on
// writing is not wrong.
func (m *Message) Write(ctx context.Context, p []byte, out [][]byte) [][]byte {
	m.out = out
	if m.down != nil {
		p = m.down.Append(make([]byte, 0, len(p)), p)
	}
	m.write(ctx, p)
	out, m.out = m.out, nil
	return out
}

// Finish ends the content, appends its last pieces to out and gives the
// verdict. The Message is then done with.
func (m *Message) Finish(ctx context.Context, out [][]byte) ([][]byte, Result) {
	m.out = out
	if m.down != nil {
		m.write(ctx, m.down.AppendEnd(nil))
	}
	m.finishContent(ctx)
	m.extraRecipients(ctx)
	m.chooseTenant(ctx)
	out, m.out = m.out, nil

	m.describe()
	if !m.anyRcpt {
		m.stat |= statRcpt
	}
	m.env.MessageID = m.header.messageID[:min(len(m.header.messageID), mail.MaxMessageID)]
	r := Result{MessageID: m.header.messageID, Log: m.log}
	m.setVerdict(&r)
	return out, r
}

// setVerdict puts the verdict, as it stands now, into r.
func (m *Message) setVerdict(r *Result) {
	r.Envelope, r.Notices = m.env, m.notices
	r.Hold, r.Discard, r.Stop = m.flags&proto.SubmitHold != 0, m.flags&proto.SubmitDiscard != 0, m.stop
	r.Refused, r.Bounce, r.HeadersOnly = nil, false, false
	if !r.Discard && m.stat != 0 {
		r.Refused = m.stat.refusal(m.reason)
		r.Refused.Cause = m.cause
		r.Bounce = m.flags&proto.SubmitBounce != 0 && m.stat&(statDefer|statWrite) == 0 && m.anyRcpt
		r.HeadersOnly = m.stat&(statCont|statSize) != 0
	}
}

// ok says whether the content still matters. What goes back to its sender does
// although it is refused, but for what cannot be had whole.
func (m *Message) ok() bool {
	stops := ^status(0)
	if m.flags&proto.SubmitBounce != 0 {
		stops = statDefer | statWrite | statSize
	}
	return m.stat&stops == 0 && m.flags&proto.SubmitDiscard == 0
}

func (m *Message) infof(format string, args ...any) {
	m.log = append(m.log, logLine{Text: m.id + ": " + fmt.Sprintf(format, args...)})
}

// Bounds on what one message may have logged: a stranger writes as many fields
// as there is room for, of any length.
const (
	maxContentLines = 1000
	maxLoggedID     = 1000
)

// addLine has a line logged that content gives rise to.
func (m *Message) addLine(l logLine) {
	m.lines++
	switch {
	case m.lines <= maxContentLines:
		m.log = append(m.log, l)
	case m.lines == maxContentLines+1:
		m.infof("what more there is to say of the content is not logged")
	}
}

// logMessageID has a message ID logged.
func (m *Message) logMessageID(value string, resent bool) {
	if len(value) > maxLoggedID {
		value = value[:maxLoggedID]
	}
	m.addLine(logLine{Event: &maillog.MessageID{ID: m.id, Resent: resent, Value: value}})
}

func (m *Message) warnf(format string, args ...any) {
	m.log = append(m.log, logLine{Warning: true, Text: m.id + ": " + fmt.Sprintf(format, args...)})
}

// tableFailed records that a table could not be asked.
func (m *Message) tableFailed(title string, err error) {
	m.warnf("%s map lookup problem -- message not accepted, try again later: %v", title, err)
	m.failed(statWrite, fmt.Sprintf("%s lookup: %v", title, err))
}

// failed notes that the message cannot be taken for a failure of ours.
func (m *Message) failed(bit status, cause string) {
	m.stat |= bit
	if m.cause == "" {
		m.cause = cause
	}
}

// describe puts into the envelope what the content turned out to be.
func (m *Message) describe() {
	m.gauge.describe(&m.env)
	if m.parts != nil {
		if m.parts.end(); m.parts.found {
			m.env.Body |= mail.BodyUTF8Hdr
		}
	}
	if m.says8Bit {
		m.env.Body |= mail.Body8Bit
	}
	if m.env.Body&mail.BodyUTF8Hdr != 0 && m.flags&proto.SubmitAutoUTF8 != 0 && m.c.utf8 {
		m.env.Body |= mail.BodySMTPUTF8
	}
}

// emit gives b back to the caller: a piece of the body, or of the header, where
// a field ends in CRLF. What exceeds message_size_limit is not given back.
func (m *Message) emit(b []byte) {
	if len(b) == 0 || !m.ok() {
		return
	}
	if limit := m.c.sizeLimit; limit > 0 && m.gauge.size+int64(len(b)) > limit {
		m.warnf("message size exceeds size limit %d", limit)
		m.stat |= statSize
		return
	}
	m.pass(b)
}

// pass gives b back to the caller, as part of the piece before if it lies right
// behind it in memory. All that is stored of a message goes this way: here it is
// gauged, and here CR and LF that are not part of a line end find their end.
func (m *Message) pass(b []byte) {
	if !m.gauge.add(b) {
		if m.c.replaceStray || !m.gauge.inBody {
			b = replaceStray(b)
		} else {
			b = splitStray(b)
		}
		m.gauge.add(b)
	}
	if m.parts != nil {
		m.parts.add(b)
	}
	if n := len(m.out); n > 0 {
		last := m.out[n-1]
		if end := len(last) + len(b); cap(last) >= end && &last[:end][len(last)] == &b[0] {
			m.out[n-1] = last[:end]
			return
		}
	}
	m.out = append(m.out, b)
}

var crlf = []byte("\r\n")

// printable replaces control characters and what is not UTF-8, for the log.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 127 || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
}
