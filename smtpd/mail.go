// MAIL, RCPT and what DATA asks before content comes: each command is first judged by
// its place in the transaction (…InOrder), and then, when the engine agrees, by what
// it says. What cleanup is told of the transaction is put together here as well.

package smtpd

import (
	"cmp"
	"context"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/smtpwire"
	"posthaste/internal/submit"
)

// mailInOrder refuses a MAIL command that may not come now (RFC 5321 section
// 4.1.4), or that is one too many for smtpd_client_message_rate_limit.
func (s *session) mailInOrder() *smtpwire.Reply {
	if r := s.heloFirst(); r != nil {
		return r
	}
	if s.a.HasSender {
		return smtpwire.R(503, dsn.S(5, 5, 1), "Error: nested MAIL command")
	}
	return s.asPolicy(s.srv.limits.message(s))
}

// mail is MAIL, RFC 5321 section 4.1.1.2. The engine calls it. The transaction
// begins with its success: all that is set here is taken back by resetMail when a
// check refuses the sender.
func (s *session) mail() *smtpwire.Reply {
	m, refusal := smtpwire.ParseMail(s.cmd.Args, s.extensions(), s.set.strict)
	if refusal != nil {
		if smtpwire.IsAddressError(refusal) {
			s.illegalAddress("MAIL")
		}
		return refusal
	}
	if r := s.utf8Refused(m.From.Address, m.SMTPUTF8); r != nil {
		return r
	}
	// The RCPT commands behind this one are often here already; what they need from
	// trivial-rewrite is asked for while the sender is being judged.
	s.foresee(m.From.Address)
	if s.malformed(s.ctx(), "", m.From.Address, m.SMTPUTF8) {
		s.illegalAddress("MAIL")
		return smtpwire.R(501, dsn.S(5, 1, 7), "Bad sender address syntax")
	}
	// VERP puts each recipient into the sender address (verp(5) of Postfix); the
	// empty sender has nothing to put it into.
	if m.VERP != "" && m.From.Address == "" {
		return smtpwire.R(503, dsn.S(5, 5, 4), "Error: XVERP requires non-null sender")
	}
	if m.VERP != "default" && strings.Trim(m.VERP, s.set.verpFilter) != "" {
		return smtpwire.R(501, dsn.S(5, 5, 4), "Error: XVERP needs two characters from "+s.set.verpFilter)
	}
	s.tx.mail = m
	s.tx.arrival = s.srv.now()
	s.a.HasSender, s.a.Sender, s.a.Size, s.a.SMTPUTF8 = true, m.From.Address, m.Size, m.SMTPUTF8
	s.a.NoUnknownRcptChecks = s.set.override["no_unknown_recipient_checks"]
	// AUTH= says who submitted the message in the first place (RFC 4954 section 5).
	// It is believed, for the log and for policy services, from clients that have
	// authenticated; "<>" is "not known".
	if s.a.SASL.Username != "" && m.Auth != "" && m.Auth != "<>" {
		s.a.SASL.Sender = m.Auth
	}
	r := s.judgeMail()
	if r != nil {
		s.resetMail()
		return r
	}
	return senderOk
}

// judgeMail asks all who may refuse the sender, and settles what has to be known of
// the message before its first recipient. The cheap checks come first.
func (s *session) judgeMail() *smtpwire.Reply {
	ctx := s.ctx()
	if r := s.sizeRefused(); r != nil {
		return r
	}
	if r := s.asPolicy(s.srv.access.Mail(ctx, &s.a)); r != nil {
		return r
	}
	rewrite, err := s.rewriteContext(ctx)
	if err != nil {
		s.srv.log.Warning("%v", err)
		return smtpwire.R(451, dsn.S(4, 3, 0), "Error: temporary lookup failure")
	}
	s.tx.context = cmp.Or(s.tx.forwarded.source, rewrite)
	if !s.set.delayOpen {
		if r := s.openMail(ctx); r != nil {
			return r
		}
	}
	return s.asPolicy(s.milterMail())
}

// utf8Refused refuses an address beyond ASCII from a client that has not said
// SMTPUTF8, where that is asked for (RFC 6531 section 3.1).
func (s *session) utf8Refused(addr string, declared bool) *smtpwire.Reply {
	if declared || !s.set.strictUTF8 || smtpwire.IsASCII(addr) {
		return nil
	}
	return smtpwire.R(553, dsn.S(5, 6, 7), "Must declare SMTPUTF8 to send unicode address")
}

// malformed says whether an address cannot be resolved for what it is, or has a
// domain beyond ASCII although the client has not said SMTPUTF8 (utf8). That the
// address service cannot be asked is no reason to call an address malformed:
// whoever needs the answer next says 451.
func (s *session) malformed(ctx context.Context, sender, addr string, utf8 bool) bool {
	if addr == "" {
		return false
	}
	if s.srv.foresee != nil {
		s.srv.foresee(ctx, sender, addr) // restrictions ask for its standard form next
	}
	r, err := s.srv.router.Resolve(ctx, sender, addr)
	if err != nil {
		return false
	}
	at := strings.LastIndexByte(r.Recipient, '@')
	return r.Flags&proto.ResolveError != 0 || !utf8 && at >= 0 && !smtpwire.IsASCII(r.Recipient[at:])
}

// illegalAddress logs an address that the parser refuses, with the command that it
// came with. Postfix has the same warning; operators find broken clients by it.
func (s *session) illegalAddress(command string) {
	arg := s.cmd.Args
	if i := strings.IndexByte(arg, ':'); i >= 0 {
		arg = strings.TrimSpace(arg[i+1:])
	}
	s.srv.log.LogWarning(maillog.IllegalAddress{Peer: s.a.NameAddr(), Command: command, Address: arg})
}

// sizeRefused judges the announced size (RFC 1870 section 6.1) and the room that
// there is. The replies are permanent only for what no retry can change. Refusals
// are logged as restrictions' are.
func (s *session) sizeRefused() *smtpwire.Reply {
	var r *smtpwire.Reply
	switch {
	case s.set.messageLimit > 0 && s.tx.mail.Size > s.set.messageLimit:
		r = s.asPolicy(smtpwire.R(552, dsn.S(5, 3, 4), "Message size exceeds fixed limit"))
	case !s.roomFor(), !s.roomForLarge():
		r = smtpwire.R(452, dsn.S(4, 3, 1), "Insufficient system storage")
	// The queue's disk has not finished a sync for seconds, and cleanup refuses mail
	// meanwhile: a client need not send all of a message to hear that.
	case s.srv.filter == nil && s.srv.submit.Silent():
		r = noQueue(s.srv.submit.Refusal(nil))
	default:
		return nil
	}
	s.srv.access.LogAction(&s.a, "reject", r.String())
	return r
}

// noQueue is the reply while no message can be queued.
func noQueue(r proto.SubmitReply) *smtpwire.Reply { return smtpwire.R(r.Code, r.Status, r.Text) }

// Where there is far more room than one message needs, it is not looked for again
// for a while: to add up a file system's free blocks takes the kernel as long as a
// reply to a client. The margin is so wide that mail does not use it up within the
// period.
const (
	amplePeriod = 100 * time.Millisecond
	ampleTimes  = 16
)

// roomFor says whether the file system of the queue has room for what the limits
// allow: one and a half times the largest message that goes there, so that clients
// in the middle of a message can finish it.
func (s *session) roomFor() bool {
	need := s.set.queueNeed
	if need <= 0 {
		return true
	}
	now := s.srv.now().UnixNano()
	if left := s.srv.ample.Load() - now; left > 0 && left <= int64(amplePeriod) { // more, when the clock was set back
		return true
	}
	free, err := s.free()
	if err != nil {
		return true // cleanup will find out for itself
	}
	if free/ampleTimes >= need {
		s.srv.ample.Store(now + int64(amplePeriod))
	}
	if free >= need {
		return true
	}
	s.srv.log.LogWarning(maillog.NoSpace{Where: "mail queue", Free: free})
	return false
}

// free is how many bytes there are for new mail.
func (s *session) free() (int64, error) {
	if s.srv.queueFree != nil {
		return s.srv.queueFree()
	}
	var st unix.Statfs_t
	err := unix.Statfs(s.set.queueDir, &st)
	return int64(st.Bavail) * st.Bsize, err
}

// roomForLarge says the same of the file system of spool_content_directory, for a
// message of which the client says that it will go there. If the client announces
// no size, cleanup finds out when the message has grown that large.
func (s *session) roomForLarge() bool {
	if s.srv.contentFree == nil || s.tx.mail.Size <= s.set.inlineLimit || s.set.contentNeed <= 0 {
		return true
	}
	free, err := s.srv.contentFree()
	if err != nil || free >= s.set.contentNeed {
		return true
	}
	s.srv.log.LogWarning(maillog.NoSpace{Where: "spool_content_directory", Free: free})
	return false
}

// rewriteContext says in whose name headers may be completed: mail of
// strangers is not given our domain (local_header_rewrite_clients).
func (s *session) rewriteContext(ctx context.Context) (string, error) {
	yes, err := s.srv.access.LocalClient(ctx, &s.a, s.set.localRewrite)
	if yes {
		return "local", err
	}
	return "remote", err
}

// rcptInOrder refuses a RCPT command that may not come now, or that is one too many
// for smtpd_client_recipient_rate_limit. After a BDAT chunk there are no more
// recipients: cleanup, or the filter, has the envelope by then.
func (s *session) rcptInOrder() *smtpwire.Reply {
	if !s.a.HasSender {
		return smtpwire.R(503, dsn.S(5, 5, 1), "Error: need MAIL command")
	}
	if s.tx.bdat != nil {
		return smtpwire.R(503, dsn.S(5, 5, 1), "Error: RCPT after BDAT")
	}
	return s.asPolicy(s.srv.limits.recipient(s))
}

// rcpt is RCPT, RFC 5321 section 4.1.1.3. The engine calls it. Those who may refuse
// the recipient are asked in Postfix's order: syntax, number, restrictions, mail
// filters, content filter. A recipient counts only when all have agreed.
func (s *session) rcpt() *smtpwire.Reply {
	p, refusal := smtpwire.ParseRcpt(s.cmd.Args, s.extensions(), s.set.strict)
	if refusal != nil {
		if smtpwire.IsAddressError(refusal) {
			s.illegalAddress("RCPT")
		}
		return refusal
	}
	if r := s.utf8Refused(p.To.Address, s.tx.mail.SMTPUTF8); r != nil {
		return r
	}
	if s.set.rcptLimit > 0 && len(s.tx.rcpts) >= s.set.rcptLimit {
		if s.tx.excess++; s.tx.excess <= s.set.overshoot {
			s.errors-- // RFC 5321 section 4.5.3.1.10: the client may go on asking
		}
		return smtpwire.R(452, dsn.S(4, 5, 3), "Error: too many recipients")
	}
	// The sender of the next question to trivial-rewrite is that of the
	// transaction, for sender_dependent_default_transport_maps.
	s.foresee(s.a.Sender)
	ctx := s.ctx()
	if s.malformed(ctx, s.a.Sender, p.To.Address, s.tx.mail.SMTPUTF8) {
		s.illegalAddress("RCPT")
		return smtpwire.R(501, dsn.S(5, 1, 3), "Bad recipient address syntax")
	}
	s.a.HasRcpt, s.a.Recipient = true, p.To.Address
	r := s.asPolicy(s.screened.Recipient(&s.a))
	if r == nil {
		r = s.asPolicy(s.srv.access.Rcpt(ctx, &s.a))
	}
	if r == nil {
		r = s.accountLimit(ctx)
	}
	// HasRcpt is for restrictions and their log lines: from here on no recipient is
	// judged.
	s.a.HasRcpt = false
	if r != nil {
		s.milterRefused(&p.To, r)
		return r
	}
	if r := s.asPolicy(s.milterRcpt(&p.To)); r != nil {
		return r
	}
	if r := s.openMail(ctx); r != nil {
		return r
	}
	to := mail.Recipient{Address: p.To.Address, ORCPT: originalOf(&p), Notify: p.Notify}
	if fixed, ok := s.srv.access.VerifySender(to.Address); ok {
		to.Address = fixed
	}
	if s.tx.filter != nil && !s.tx.discarded {
		if r := s.tx.filter.rcpt(&to); r != nil {
			return r
		}
	}
	s.tx.rcpts = append(s.tx.rcpts, to)
	s.a.Accepted = len(s.tx.rcpts)
	return recipientOk
}

// originalOf is the original recipient for notifications (RFC 3461 section 4.2):
// what the client says with ORCPT, or the address as typed, before anything was
// rewritten.
func originalOf(p *smtpwire.Rcpt) string {
	if p.ORCPT != "" {
		return p.ORCPT
	}
	if smtpwire.IsASCII(p.To.Raw) {
		return "rfc822;" + p.To.Raw
	}
	return "utf-8;" + p.To.Raw
}

// openMail gives the message its queue ID, and logs the client= line with it: this
// is where a message appears in the log. It does so once for each transaction, at
// the first recipient that is accepted, or at MAIL without
// smtpd_delay_open_until_valid_rcpt. When it fails the next recipient tries again.
func (s *session) openMail(ctx context.Context) *smtpwire.Reply {
	if s.tx.opened {
		return nil
	}
	s.tx.opened = true
	if s.srv.filter == nil {
		id, err := s.srv.submit.NewID(ctx, s.srv.now())
		if err != nil {
			s.srv.log.Warning("%v", err)
			s.tx.opened = false
			return noQueue(s.srv.submit.Refusal(err))
		}
		s.a.QueueID = id
		s.toldCleanup()
	} else if r := s.openFilter(ctx); r != nil {
		s.tx.opened = false
		return r
	}
	e := &s.logged
	*e = maillog.SMTPDClient{QueueID: string(s.a.QueueID), Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.LogPort, SASLMethod: s.a.SASL.Method,
		SASLUsername: s.a.SASL.Username, SASLSender: s.a.SASL.Sender}
	s.tx.forwarded.log(e)
	s.srv.log.Log(e)
	return nil
}

// openFilter tells the content filter of the sender, unless it is to hear of the
// message as a whole (speed_adjust) or not at all. What the filter refuses is
// refused to the client.
func (s *session) openFilter(ctx context.Context) *smtpwire.Reply {
	if s.srv.filter.buffer || s.tx.discarded {
		return nil
	}
	t, r := newFilterTalk(ctx, s.srv.filter, s.srv.log)
	if r == nil {
		env := s.envelope()
		r = t.mail(&env, s.tx.mail.Body == smtpwire.Body8BitMIME, s.tx.mail.SMTPUTF8)
	}
	if r != nil {
		t.close()
		return r
	}
	s.tx.filter = t
	return nil
}

// filterData asks the content filter for DATA, if it hears the content while it
// comes. Its refusal reaches the client before 354, so that nothing is sent in
// vain.
func (s *session) filterData() *smtpwire.Reply {
	if s.tx.filter == nil || s.tx.discarded {
		return nil
	}
	return s.tx.filter.data()
}

// dataInOrder refuses a DATA command that may not come now, and asks all who may
// refuse it for what it brings.
func (s *session) dataInOrder() *smtpwire.Reply {
	if r := s.contentInOrder(); r != nil {
		return r
	}
	if s.cmd.Args != "" {
		return smtpwire.R(501, dsn.S(5, 5, 4), "Syntax: DATA")
	}
	if s.tx.bdat != nil {
		return smtpwire.R(503, dsn.S(5, 5, 1), "Error: DATA after BDAT")
	}
	return s.judgeContent()
}

// contentInOrder is what DATA and BDAT have in common, RFC 5321 section 4.1.1.4 and
// RFC 3030 section 2. A client that pipelines has sent DATA before it knew that all
// its recipients were refused: it must not get 354.
func (s *session) contentInOrder() *smtpwire.Reply {
	if len(s.tx.rcpts) > 0 {
		return nil
	}
	if s.a.HasSender {
		return smtpwire.R(554, dsn.S(5, 5, 1), "Error: no valid recipients")
	}
	return smtpwire.R(503, dsn.S(5, 5, 1), "Error: need RCPT command")
}

// envelope is the transaction as cleanup gets it. The recipients are good until the
// transaction ends: the list is the session's own. It is put together twice where
// smtpd_end_of_data_restrictions may change it.
func (s *session) envelope() mail.Envelope {
	eff := &s.a.Effects
	env := mail.Envelope{
		ID: s.a.QueueID, Arrival: s.tx.arrival, Sender: s.a.Sender, EnvID: s.tx.mail.EnvID, Ret: s.tx.mail.Ret,
		Client: s.clientOf(), SASL: s.a.SASL, Reverse: s.a.ReverseName, RewriteContext: s.tx.context,
		LogIdent: s.tx.forwarded.ident, Filter: s.set.filter, Redirect: eff.Redirect, Pool: eff.Pool, VERP: s.tx.mail.VERP,
		RequireTLS: s.tx.mail.RequireTLS, Recipients: s.tx.rcpts,
	}
	if env.VERP == "default" {
		env.VERP = s.set.verpDelims
	}
	if eff.Filter != "" {
		env.Filter = eff.Filter
	}
	if s.tx.mail.SMTPUTF8 {
		env.Body |= mail.BodySMTPUTF8
	}
	return env
}

// options are the transaction's other half: what cleanup is to do with the message,
// as receive_override_options and the actions of access tables say.
func (s *session) options() submit.Options {
	eff := &s.a.Effects
	o := submit.Options{BCC: eff.BCC, Prepend: eff.Prepend, Late: s.srv.access.JudgesEndOfData(), Limit: commitTimeout,
		Flags: proto.SubmitFilter | proto.SubmitMilter | proto.SubmitBCC | proto.SubmitMap}
	o.Flags = o.Flags&^s.set.withheld | s.set.autoUTF8
	if o.Milter = s.milterContent(); o.Milter == 0 {
		// Without sessions of SMTP filters those of non_smtpd_milters would be asked, which
		// are for mail that did not come by SMTP.
		o.Flags &^= proto.SubmitMilter
	} else {
		o.Told = s.milter.eventsTold()
	}
	o.Wait, o.Refuse = s.set.wait, s.set.refuse
	o.Known, o.Asked = s.a.Answers.Told()
	if eff.Hold {
		o.Flags |= proto.SubmitHold
	}
	if eff.Discard || s.tx.discarded {
		o.Flags |= proto.SubmitDiscard
	}
	return o
}
