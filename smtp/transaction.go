// One mail transaction: MAIL, RCPT and DATA, in as few flights as the server allows,
// and what its replies mean for each recipient. The content is sent by body.go.

package smtp

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/quickio"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/internal/tlspolicy"
)

// maxUnanswered is how many octets of commands may be under way without having
// been answered: what any server's receive buffer holds, so that it and we
// never wait for each other (RFC 2920 section 3.1).
const maxUnanswered = 4096

// command is one command under way.
type command struct {
	verb  verb
	index int // of the recipient, for RCPT
}

// verb is a command of a transaction, in the order in which they are sent.
type verb uint8

const (
	verbRset      verb = iota // where the session is dirty
	verbXforward              // the first of two XFORWARD commands, which may be too long for one
	verbXforward2             // the second
	verbMail
	verbRcpt // for each recipient
	verbData
	verbEnd // nothing more before the message
)

// transaction is the state of one mail transaction over one session.
// It belongs to the goroutine of its delivery.
type transaction struct {
	d *delivery
	s *session
	// rcpts are the recipients that it is for: indices into the envelope's. Each of them has exactly
	// one outcome when the transaction ends, unless it is to be tried at another server. Its memory
	// is d.lists.
	rcpts   []int
	next    int  // index into rcpts: the next that RCPT is to be sent for
	mailed  bool // MAIL was accepted
	refused bool // MAIL was refused: nothing else counts, also where RCPT and DATA were sent with it
	// accepted are those of rcpts that RCPT was accepted for. In LMTP the replies to the content come
	// in this order (RFC 2033 section 4.2). Empty until the first reply to RCPT.
	accepted []int
	data     bool // DATA was answered with 354
	// answered: at least one reply was read. Without one, a broken connection may be a kept session
	// that the server had ended: the message is then sent over a new one.
	answered bool
	utf8     bool   // MAIL says SMTPUTF8
	sender   string // as smtp_generic_maps has it; empty: the null sender
	// mapped are recipients' addresses by index; nil without smtp_generic_maps.
	mapped map[int]string
}

// errStale is what becomes of a kept session that turns out to be dead before
// it took part in anything: another one is used in its place, without a word.
var errStale = &failure{text: "kept session is dead"}

// errRetryPlain is what becomes of a TLS session that broke before it was of
// use, where TLS is a wish: the same server is tried without.
var errRetryPlain = &failure{text: "TLS session broke"}

// transact sends the message to these recipients, and records the outcome of each;
// where the session breaks, that of all recipients who are left. It returns
// errStale, or nil: what is wrong with the session has then been said, and s.bad is
// set if it cannot be used again.
func (d *delivery) transact(ctx context.Context, s *session, left []int) *failure {
	// One piece of memory for both lists: rcpts takes the first half, accepted the
	// second, and neither can grow into the other.
	d.lists = slices.Grow(reuse.Truncated(d.lists), 2*len(left))
	room := d.lists[:2*len(left)]
	t := &transaction{d: d, s: s, rcpts: append(room[:0:len(left)], left...), accepted: room[len(left):len(left)]}
	s.pending = reuse.Truncated(s.pending)
	if err := d.content(); err != nil {
		d.record(&failure{kind: messageFailed, status: dsn.S(4, 3, 0), text: err.Error(), detail: s.detail()}, t.rcpts)
		return nil
	}
	if !t.prepare() {
		return nil
	}
	if f := t.checkFlags(); f != nil {
		f.detail = s.detail()
		d.record(f, t.rcpts)
		return nil
	}
	if f := t.envelope(); f != nil {
		// Nothing has been sent that counts: the caller takes another session.
		if f == errStale {
			return f
		}
		s.bad = true
		if f.kind == streamFailed && s.tls != nil && s.tls.policy.Level == tlspolicy.May && d.mayRetryPlain {
			return errRetryPlain
		}
		d.fail(f, d.left())
		return nil
	}
	switch {
	case !t.data:
		// Refused at some point. The server may still have our sender in mind: RSET comes before
		// whatever is next.
		s.dirty = true
	case len(t.accepted) == 0:
		t.empty()
	case d.env.Trace.DontDeliver():
		// Getting this far was the question; there is no way back out of
		// DATA but to hang up.
		s.bad = true
	default:
		t.message(ctx)
	}
	if !s.bad {
		d.completed = true
	}
	return nil
}

// prepare checks what can be known before the first command, and gives each
// recipient for whom it is hopeless its outcome. It returns false when that leaves
// nothing to do.
func (t *transaction) prepare() bool {
	d, s := t.d, t.s
	fail := func(k kind, status dsn.Status, text string) bool {
		d.fail(&failure{kind: k, status: status, text: text, detail: s.detail()}, t.rcpts)
		return false
	}
	if !validPath(d.env.Sender) {
		return fail(messageFailed, dsn.S(5, 1, 7), "bad sender address syntax")
	}
	// The server has said what it does not take (RFC 1870): to send it anyway would
	// waste both sides' time. Another server of the destination may have another
	// limit.
	if size := d.body.Len(); s.size > 0 && size > s.size {
		return fail(messageFailed, dsn.S(5, 3, 4), "message size "+strconv.FormatInt(size, 10)+
			" exceeds size limit "+strconv.FormatInt(s.size, 10)+" of server "+s.namaddr)
	}
	// Only a message that has UTF-8 in its header or addresses needs the extension;
	// one that was merely submitted with SMTPUTF8 can go without.
	if d.env.Body&mail.BodySMTPUTF8 != 0 {
		needed := d.env.Body&(mail.BodyUTF8Hdr|mail.BodyUTF8Addr) != 0
		if needed && s.offers&offersUTF8 == 0 {
			status := dsn.S(5, 6, 7)
			if !d.final {
				status.Class = 4 // another server may offer it
			}
			return fail(notCapable, status, "SMTPUTF8 is required, but was not offered by host "+s.namaddr)
		}
		t.utf8 = s.offers&offersUTF8 != 0
	}
	keep := t.rcpts[:0]
	for _, i := range t.rcpts {
		if validPath(d.env.Recipients[i].Address) {
			keep = append(keep, i)
			continue
		}
		d.record(&failure{kind: recipientFailed, status: dsn.S(5, 1, 3), text: "bad recipient address syntax", detail: s.detail()}, []int{i})
	}
	t.rcpts = keep
	if err := t.mapAddresses(); err != nil {
		d.log.LogWarning(maillog.SMTPProblem{ID: d.id, Reason: err.Error()})
		d.record(&failure{kind: messageFailed, status: dsn.S(4, 3, 0), text: "address mapping failed", detail: s.detail()}, t.rcpts)
		return false
	}
	return len(keep) > 0
}

// mapAddresses applies smtp_generic_maps to the envelope: internal addresses become
// ones that the world can reply to. An error is of the table, and defers all
// recipients.
func (t *transaction) mapAddresses() (err error) {
	rules, env := t.d.a.rules, t.d.env
	t.sender = env.Sender
	if rules.generic.Empty() {
		return nil
	}
	ctx := context.Background()
	if t.sender, err = rules.mapAddress(ctx, env.Sender); err != nil {
		return err
	}
	t.mapped = make(map[int]string)
	for _, i := range t.rcpts {
		from := env.Recipients[i].Address
		to, err := rules.mapAddress(ctx, from)
		if err != nil {
			return err
		}
		// A recipient that became the null address could not be addressed at all.
		if to == "" && from != "" {
			return fmt.Errorf("%s: %s maps to the null address", rules.generic.Title(), rfc5322.Quote(from))
		}
		t.mapped[i] = to
	}
	return nil
}

// validPath says whether an address can be put between < and >: quoting takes care
// of the local part's printable characters, nothing takes care of others. A control
// character here would be a command of its own on the wire.
func validPath(addr string) bool {
	at := strings.LastIndexByte(addr, '@')
	for i := 0; i < len(addr); i++ {
		c := addr[i]
		if c < ' ' || c == 0x7f || (i > at && at >= 0 && (c == ' ' || c == '<' || c == '>')) {
			return false
		}
	}
	return true
}

// envelope sends MAIL, RCPT and DATA, in as few flights as the server allows,
// and takes in the replies.
func (t *transaction) envelope() *failure {
	v := verbXforward
	// RSET first, or the server would answer MAIL with "nested MAIL command".
	if t.s.dirty {
		v = verbRset
	}
	for v != verbEnd {
		v = t.gather(v)
		if f := t.exchange(); f != nil {
			return f
		}
		// The replies to RCPT and DATA have been read, and do not count.
		if t.refused {
			return nil
		}
	}
	return nil
}

// gather appends commands from v on, one or as many as may be under way, and
// returns where to go on. They are recorded in pending, in the order in which their
// replies will come.
func (t *transaction) gather(v verb) verb {
	for v != verbEnd {
		if v == verbData && len(t.s.pending) == 0 && len(t.accepted) == 0 {
			return verbEnd // all replies are in, and there is nobody to send to
		}
		// A probe is answered by the replies to RCPT.
		if v == verbData && t.d.env.Trace.DontDeliver() && !t.d.set.verifyAtData {
			return verbEnd
		}
		if v == verbXforward && !t.xforwards(xforwardFirst) || v == verbXforward2 && !t.xforwards(xforwardSecond) {
			v++
			continue
		}
		c := command{verb: v}
		switch v {
		case verbRset:
			t.s.out = append(t.s.out, "RSET\r\n"...)
			v = verbXforward
		case verbXforward:
			t.appendXforward(xforwardFirst)
			v = verbXforward2
		case verbXforward2:
			t.appendXforward(xforwardSecond)
			v = verbMail
		case verbMail:
			t.s.mails++
			t.appendMail()
			v = verbRcpt
		case verbRcpt:
			c.index = t.rcpts[t.next]
			t.appendRcpt(c.index)
			if t.next++; t.next == len(t.rcpts) {
				v = verbData
			}
		case verbData:
			t.s.out = append(t.s.out, "DATA\r\n"...)
			v = verbEnd
		}
		t.s.pending = append(t.s.pending, c)
		// 512 octets are the longest command without extensions (RFC 5321 section 4.5.3.1.4).
		if t.s.offers&offersPipelining == 0 || len(t.s.out) > maxUnanswered-512 {
			break
		}
	}
	return v
}

// exchange sends what has been gathered and reads a reply to each command. It
// returns errStale for a kept session that was dead, or the failure of a connection
// that broke.
func (t *transaction) exchange() *failure {
	d, s := t.d, t.s
	if len(t.s.pending) == 0 {
		return nil
	}
	// A kept session that has died must not cost the message an attempt: it is found out before
	// the first command counts.
	if s.uses > 1 && !t.answered {
		if limit, _ := t.limit(s.pending[0].verb); !s.awake(limit) {
			return errStale
		}
	}
	// A write fails, for example, when the server has closed the connection: its
	// 421 may still be there to read.
	if err := s.flush(d.set.time.mail); err != nil {
		// What broke the connection may have said why: read on.
		s.bad = true
	}
	for _, c := range t.s.pending {
		limit, stage := t.limit(c.verb)
		r, err := s.readReply(limit, nil)
		if err != nil {
			if !t.answered && s.uses > 1 {
				return errStale
			}
			return s.broken(stage, err)
		}
		// The server has had enough of this session, which says nothing of the message.
		if !t.answered && s.uses > 1 && (r.code == 421 || (c.verb == verbRset && !r.ok())) {
			return errStale
		}
		t.answered = true
		t.handleReply(c, &r)
	}
	t.s.pending = reuse.Truncated(t.s.pending)
	return nil
}

// awake says whether a kept session still lives, which it may find out by sending what
// has been gathered and having the answer come within limit. Over one in the clear
// the server must have said nothing since; TLS has words of its own.
func (s *session) awake(limit time.Duration) bool {
	switch c := s.conn.(type) {
	case *quickio.Conn:
		return s.ask(c, limit) == nil
	case *tls.Conn:
		// A question without an answer yet is all that can be asked under TLS:
		// whether the connection has ended.
		under, ok := c.NetConn().(*quickio.Conn)
		return !ok || !under.Ended()
	}
	return true
}

// limit is how long a reply to a command may take, and the stage that is logged
// when it takes longer. The defaults are those of RFC 5321 section 4.5.3.2, or
// more.
func (t *transaction) limit(v verb) (time.Duration, string) {
	tm := &t.d.set.time
	switch v {
	case verbRset:
		return tm.rset, "sending RSET probe"
	case verbXforward, verbXforward2:
		return tm.xforward, "sending XFORWARD command"
	case verbMail:
		return tm.mail, stageMail
	case verbRcpt:
		return tm.rcpt, stageRcpt
	default:
		return tm.dataInit, stageData
	}
}

// handleReply acts on the reply to one command. With PIPELINING the commands behind it are under way
// already: after a refused MAIL their replies, which are refusals too, do not count.
func (t *transaction) handleReply(c command, r *reply) {
	d, s := t.d, t.s
	switch c.verb {
	case verbRset:
		s.dirty = false
	case verbXforward, verbXforward2:
		// The server logs another client then. That is no reason to hold up mail.
		if !r.ok() {
			d.log.LogWarning(maillog.SMTPXForwardRefused{Relay: s.namaddr, Reply: r.text()})
		}
	case verbMail:
		// A refusal of the sender is one of the message: it counts for all
		// recipients.
		if t.mailed = r.ok(); !t.mailed {
			t.refused = true
			d.fail(s.said(messageFailed, r, commandMail), t.rcpts)
		}
	case verbRcpt:
		switch {
		case t.refused:
		case !r.ok():
			// One recipient's refusal is not another's.
			d.fail(s.said(recipientFailed, r, commandRcpt), []int{c.index})
		case d.env.Trace.DontDeliver() && !d.set.verifyAtData:
			t.probed(c.index, r)
		default:
			t.accepted = append(t.accepted, c.index)
		}
	case verbData:
		t.data = r.code/100 == 3
		switch {
		case t.data && d.env.Trace.DontDeliver():
			for _, i := range t.accepted {
				t.probed(i, r)
			}
		case !t.data && !t.refused:
			// Where every RCPT was refused this is for nobody, and each has its outcome.
			d.fail(s.said(messageFailed, r, commandData), t.accepted)
			t.accepted = nil
		}
	}
}

// probed reports that a message would have been delivered: the reply is what
// verify(8) remembers.
func (t *transaction) probed(i int, r *reply) {
	status := r.status
	// verify(8) records a success: a status of another class would contradict that,
	// as 354 to DATA would.
	if status.Class != 2 {
		status = dsn.S(2, 0, 0)
	}
	t.d.req.Sent(i, status, r.text(), t.success(i, r.text()))
}

// empty ends a DATA that nobody is to get: every RCPT was refused, and DATA,
// sent in the same flight, was not. RFC 2920 section 3.1 has the server say
// 554 to what follows.
func (t *transaction) empty() {
	s := t.s
	s.out = append(s.out, ".\r\n"...)
	if err := s.flush(t.d.set.time.dataXfer); err != nil {
		s.bad = true
		return
	}
	if _, err := s.readReply(t.d.set.time.dataDone, nil); err != nil {
		s.bad = true
	}
	s.dirty = true
}

// success is the detail of a delivery that went well: what a notification says of
// it, and who is to send one.
func (t *transaction) success(i int, text string) agent.Detail {
	// A notification of success, if the sender asked for one, is ours to send only
	// where the next system does not speak DSN.
	det := t.s.detail()
	det.MTA, det.DiagType, det.DiagText = t.s.host, "smtp", text
	det.Action = dsn.Delivered
	switch {
	case !t.d.env.Recipients[i].Notify.Success():
	case t.s.offers&offersDSN != 0:
		// The next host has been told, and answers for the notification (RFC 3461 section 5.2.2).
		det.Passed = true
	case !t.d.set.assumeFinal && !t.d.a.finalService:
		// Beyond the next host nobody knows of the request: the sender hears that now.
		det.Action = dsn.Relayed
	}
	return det
}

// appendMail appends MAIL FROM with its parameters, RFC 5321 section 4.1.1.2.
func (t *transaction) appendMail() {
	s, env := t.s, t.d.env
	b := append(s.out, "MAIL FROM:<"...)
	b = append(t.appendPath(b, t.sender), '>')
	downgrade := t.d.a.rules.downgrades(env.Body, s)
	// A message that is converted on its way grows by nobody knows how much.
	if s.offers&offersSize != 0 && !downgrade {
		b = strconv.AppendInt(append(b, " SIZE="...), t.d.body.Len(), 10)
	}
	if s.offers&offers8BitMIME != 0 && env.Body&mail.Body8Bit != 0 {
		b = append(b, " BODY=8BITMIME"...) // 7BIT goes without saying
	}
	if s.offers&offersDSN != 0 {
		if env.EnvID != "" {
			b = append(append(b, " ENVID="...), dsn.Xtext(env.EnvID)...)
		}
		if env.Ret != dsn.RetUnset {
			b = append(append(b, " RET="...), env.Ret.String()...)
		}
	}
	if t.utf8 {
		b = append(b, " SMTPUTF8"...)
	}
	if t.d.require >= requirePassOn && s.tls != nil && s.offers&offersRequireTLS != 0 {
		b = append(b, " REQUIRETLS"...)
	}
	if t.d.set.dummyAuth && t.d.a.sasl.enabled && s.offers&offersAuth != 0 {
		b = append(b, " AUTH=<>"...)
	}
	s.out = append(b, "\r\n"...)
}

// appendRcpt appends RCPT TO with its parameters, RFC 3461 section 4.
func (t *transaction) appendRcpt(i int) {
	s, rcpt := t.s, &t.d.env.Recipients[i]
	b := append(s.out, "RCPT TO:<"...)
	addr := rcpt.Address
	if to, ok := t.mapped[i]; ok {
		addr = to
	}
	b = append(t.appendPath(b, addr), '>')
	if s.offers&offersDSN != 0 {
		if orcpt := t.orcpt(rcpt); orcpt != "" {
			b = append(append(b, " ORCPT="...), orcpt...)
		}
		if rcpt.Notify != 0 {
			b = append(append(b, " NOTIFY="...), rcpt.Notify.String()...)
		}
	}
	s.out = append(b, "\r\n"...)
}

// appendPath appends an address as it stands between < and >. Without
// smtp_quote_rfc821_envelope it stays as it is, for servers that take quotes for part of the name.
func (t *transaction) appendPath(b []byte, addr string) []byte {
	if !t.d.set.quoteEnvelope {
		return append(b, addr...)
	}
	return rfc5322.AppendQuoted(b, addr)
}

// orcpt is the value of ORCPT: what came with the message, else made from the
// address that it came for.
func (t *transaction) orcpt(rcpt *mail.Recipient) string {
	kind, addr := "rfc822", ""
	switch i := strings.IndexByte(rcpt.ORCPT, ';'); {
	case i > 0:
		kind, addr = rcpt.ORCPT[:i], rcpt.ORCPT[i+1:]
	// No ORCPT came with the message: the address that it came for is the original
	// one.
	case rcpt.Original != "":
		addr = rfc5322.Quote(rcpt.Original)
	default:
		addr = rfc5322.Quote(rcpt.Address)
	}
	if isASCII(addr) {
		return kind + ";" + dsn.Xtext(addr)
	}
	if t.utf8 {
		return "utf-8;" + utf8Xtext(addr, true)
	}
	return "utf-8;" + utf8Xtext(addr, false)
}

// isASCII says whether s has no octet beyond ASCII.
func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// utf8Xtext encodes an international address for ORCPT, RFC 6533 section 3:
// as it is where the server takes UTF-8, else with \x{HEX} for what is not ASCII.
func utf8Xtext(addr string, native bool) string {
	var b strings.Builder
	for _, c := range addr {
		switch {
		case c > 0x7f && native:
			b.WriteRune(c)
		case c < '!' || c > '~' || c == '\\' || c == '+' || c == '=':
			b.WriteString(`\x{` + strings.ToUpper(strconv.FormatInt(int64(c), 16)) + "}")
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}
