// DATA: the content of a message from the wire to cleanup or to a filter, and the
// reply to it.

package smtpd

import (
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/smtpwire"
)

// commitTimeout bounds the wait for cleanup to queue a message. A client gives us
// ten minutes for it (RFC 5321 section 4.5.3.2.6). It must get the reply before it
// gives up, or it would send the message again. Only a message that the queue's
// disk was given before it fell silent waits so long: it may be on that disk, and
// its client would send it again. Others cleanup refuses (spool.ErrSilent).
const commitTimeout = 9 * time.Minute

// data is the content of DATA. The engine calls it when it has said 354. It reads
// the content to its end whatever is wrong with it: SMTP has no other way to stay
// in step with the client.
func (s *session) data() *smtpwire.Reply {
	s.tx.received = 0
	msg := s.openMessage()
	s.tx.sink = sink{msg: msg}
	s.writeHead(&s.tx.sink)
	c := &s.tx.lines
	*c = content{w: &s.tx.sink, lenient: s.wire.bareLF && (s.trusted || s.set.bare == bareAllow), limit: s.set.messageLimit}
	// The DATA command is the line before the content, and how that line ended
	// counts: "DATA" LF "." CRLF does not end a message.
	c.afterLF = s.wire.bareLF && !c.lenient
	s.tx.inData = true
	err := s.readContent(c)
	s.tx.received = c.size
	if err != nil {
		msg.Abort()
		s.lost(err)
		return smtpwire.R(451, dsn.S(4, 4, 2), "Error: connection lost") // nobody hears it
	}
	s.tx.inData = false
	return s.finishMessage(msg, c, "Ok: queued as "+string(s.a.QueueID))
}

// openMessage begins the message: towards cleanup, or towards the filter that is to
// see it first. What it returns must be committed or aborted.
func (s *session) openMessage() message {
	switch {
	case s.srv.filter == nil:
		env := s.envelope()
		return s.srv.submit.Open(&env, s.options())
	case s.tx.discarded:
		return nowhere{}
	case s.srv.filter.buffer:
		return s.newFiltered()
	}
	return s.tx.filter
}

// writeHead writes what the message begins with: the Received: field, and for a
// filter the fields of PREPEND actions. On the way to cleanup those travel with the
// options instead.
func (s *session) writeHead(k *sink) {
	if s.srv.filter != nil {
		for _, h := range s.a.Effects.Prepend {
			k.Write([]byte(h + "\r\n"))
		}
		if s.tx.mail.RequireTLS && s.set.requireTLSField {
			k.Write([]byte(mail.RequireTLSField + ": yes\r\n"))
		}
		if s.tx.forwarded.given {
			return // we are but a part of somebody's filter
		}
	}
	k.Write(s.received(s.wire.scratch()))
}

// sink is a message that may be refused while it arrives: the rest of the content
// is then read all the same. The first error is kept for Commit to report; content
// writes on.
type sink struct {
	msg message
	err error
}

// Write implements io.Writer, and claims to have written p in any case.
func (k *sink) Write(p []byte) (int, error) {
	if k.err == nil {
		_, k.err = k.msg.Write(p)
	}
	return len(p), k.err
}

// readContent reads up to the end of the content. The error is that of the
// connection. What the client sent behind the end stays in the buffer: with
// pipelining it is the next command.
//
// The buffer grows only when one read has filled it. A line longer than the buffer
// is passed on in pieces.
func (s *session) readContent(c *content) error {
	w := &s.wire
	w.enlarge()
	defer w.shrink()
	start := time.Now()
	from := w.received
	for {
		full := w.w == len(w.buf)
		used, done := c.feed(w.buf[w.r:w.w])
		w.r += used
		s.tx.received = c.size
		if done {
			return nil
		}
		if full { // it is more than a little
			w.grow()
		}
		if w.r > 0 {
			n := copy(w.buf, w.buf[w.r:w.w])
			w.r, w.w = 0, n
		}
		if w.w == len(w.buf) {
			w.r = c.overlong(w.buf)
			n := copy(w.buf, w.buf[w.r:w.w])
			w.r, w.w = 0, n
		}
		s.extendDeadline(start, w.received-from)
		if err := w.fill(nil); err != nil {
			return err
		}
	}
}

// extendDeadline sets the deadline for content that began to arrive at start, with
// smtpd_per_request_deadline. Each smtpd_min_data_rate octets that arrive extend it
// by one second. A slower client runs out of time sooner or later, however
// regularly it sends.
func (s *session) extendDeadline(start time.Time, octets int64) {
	if s.set.perRequest {
		s.wire.deadline = start.Add(s.set.timeout + time.Duration(octets)*time.Second/time.Duration(max(1, s.set.minDataRate)))
	}
}

// finishMessage judges a message whose content is complete, queues it, and ends the
// transaction. accepted is the reply to a message that was queued. With 250 the
// message is on stable storage, which is what RFC 5321 section 6.1 asks of whoever
// says 250.
func (s *session) finishMessage(msg message, c *content, accepted string) *smtpwire.Reply {
	s.a.Stage = "END-OF-MESSAGE"
	s.a.Size = c.size
	s.showOnlyRecipient()
	r := s.contentRefused(c)
	if r == nil && s.srv.access.JudgesEndOfData() {
		if r = s.asPolicy(s.srv.access.EndOfData(s.ctx(), &s.a)); r == nil {
			env := s.envelope()
			msg.Amend(&env, s.options())
		}
	}
	s.hideRecipient()
	if r != nil {
		msg.Abort()
		s.resetMail()
		return r
	}
	// From here on the client may wait as long as commitTimeout.
	reply, err := msg.Commit(s.ctx())
	if err != nil {
		s.srv.log.LogWarning(maillog.NotQueued{QueueID: string(s.a.QueueID), Reason: err.Error()})
	}
	s.toldBy(&reply)
	if s.srv.filter != nil && !s.tx.discarded {
		return s.filterSaid(&reply)
	}
	if reply.Code == 250 && s.srv.filter == nil {
		s.milter.begun = false // they have seen it to its end
	}
	s.resetMail()
	if reply.Code != 250 {
		return smtpwire.R(reply.Code, reply.Status, reply.Text)
	}
	s.forgive()
	if s.srv.filter != nil {
		accepted = "Ok" // it is queued nowhere
	}
	return smtpwire.R(250, dsn.S(2, 0, 0), accepted)
}

// forgive resets the counts of errors and junk commands when a message was
// accepted: the limits are not meant for clients that deliver mail.
func (s *session) forgive() {
	s.errors, s.junk = 0, 0
	s.history.Forgive()
}

// filterSaid passes the verdict of smtpd_proxy_filter on to the client, word by
// word, and logs it: the message is not ours, and no other line of this process
// shows what became of it.
func (s *session) filterSaid(reply *proto.SubmitReply) *smtpwire.Reply {
	r := smtpwire.R(reply.Code, reply.Status, reply.Text)
	e := maillog.ProxyVerdict{Accepted: r.Code/100 == 2, Stage: s.a.Stage, Reply: r.String(), From: s.srv.log.Address(s.a.Sender),
		Proto: s.a.Proto, Helo: s.a.Helo}
	if e.Accepted {
		s.forgive()
	}
	if len(s.tx.rcpts) > 0 { // Postfix logs the first one, too
		e.HasTo, e.To = true, s.srv.log.Address(s.tx.rcpts[0].Address)
	}
	s.srv.log.Log(e)
	s.resetMail()
	return r
}

// contentRefused refuses what is wrong with the content itself: bare newlines,
// where they are to be refused, and its size. Both are known only at the end of the
// content.
func (s *session) contentRefused(c *content) *smtpwire.Reply {
	if c.bareLF && !s.trusted {
		switch s.set.bare {
		case bareNote:
			s.notes = "bare_lf"
		case bareReject:
			r := s.bareRefusal()
			s.srv.access.LogAction(&s.a, "reject", r.String())
			return r
		}
	}
	if c.over {
		s.srv.log.LogWarning(maillog.MessageTooLarge{QueueID: string(s.a.QueueID)})
		return smtpwire.R(552, dsn.S(5, 3, 4), "Error: message file too big")
	}
	return nil
}

// newFiltered begins a message that the filter gets only when it is complete.
func (s *session) newFiltered() *filtered {
	env := s.envelope()
	return &filtered{set: s.srv.filter, log: s.srv.log, env: &env, body8: s.tx.mail.Body == smtpwire.Body8BitMIME, utf8: s.tx.mail.SMTPUTF8}
}
