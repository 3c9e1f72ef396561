// The beginning of a session, before the client may say anything, and its end.

package smtpd

import (
	"context"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/reuse"
	"posthaste/internal/smtpwire"
)

// greet is the start of the session: who the client is, whether it may come in, and
// the greeting. An error means that the session is over, and that the client has
// been told if it is still there.
func (s *session) greet() error {
	s.a.Stage = "CONNECT"
	s.a.ResetHelo()
	if err := s.identifyClient(s.ctx()); err != nil {
		return err
	}
	return s.welcome(s.ctx()) // now that it is known who it is
}

// welcome judges the client and greets it. XCLIENT comes back here with another
// client.
//
// Connections are counted first, since that is what protects all the rest: a client
// over its limit costs no handshake, no table lookup and no request to a filter.
// With smtpd_tls_wrappermode the handshake comes before the first octet of SMTP;
// there the client speaks first by design, so that early talkers are looked for
// only without it.
func (s *session) welcome(ctx context.Context) error {
	if r := s.asPolicy(s.srv.limits.connection(s)); r != nil {
		s.reply(r)
		s.leave()
		return errRefused
	}
	if s.srv.tlsSet.wrapper && s.a.TLS == nil {
		if err := s.wrap(); err != nil {
			return err
		}
	} else if err := s.earlyTalker(); err != nil {
		return err
	}
	if s.denied = s.asPolicy(s.srv.access.Connect(ctx, &s.a)); s.denied != nil {
		// The refusal takes the place of the greeting, and the session goes on: RFC
		// 5321 section 3.1 has the server wait for QUIT after a 554 greeting. All
		// else is answered 503, see dispatch.
		s.errors++
		s.reply(s.denied)
		if s.ended {
			return errRefused
		}
		return nil
	}
	if r := s.asPolicy(s.milterConnect(ctx)); r != nil {
		s.reply(r)
		s.leave()
		return errRefused
	}
	s.reply(smtpwire.R(220, dsn.Status{}, s.set.banner))
	return nil
}

// panicked is told of a panic in the session: that session ends with 421, the
// service goes on. A bug that a stranger can trigger must not end the sessions of
// others. The stack is in the log.
func (s *session) panicked(what any) {
	s.srv.log.Panic(what)
	s.history.Fault(notice.Software)
	s.reply(smtpwire.R(421, dsn.S(4, 3, 0), s.set.myhostname+" Error: internal error"))
	s.leave()
}

// close ends the session for good: log lines, counters, socket. The caller must not
// touch the session after this. It may be called more than once.
//
// The order matters. The last reply is sent before anything that may take time. The
// transaction ends before filters are told of the end of the session. The
// connection is counted until here, so that a client cannot exceed its limit with
// sessions that are slow to end; and the transcript is posted after the socket was
// closed, so that the client does not wait for cleanup.
func (s *session) close() {
	if s.closed { // the engine closes what it has been told to close
		return
	}
	s.closed = true
	s.wire.flush()
	inData, received := s.tx.inData, s.tx.received
	s.endMail()
	s.milterClose()
	s.endAuth()
	// No line for a client that went away after its message was taken: many close
	// the connection without QUIT, and Postfix does not log that. An empty Stage is
	// a connection that never became a session.
	if s.reason != "" || !s.quiet && s.a.Stage != "END-OF-MESSAGE" && s.a.Stage != "" {
		s.srv.log.Log(maillog.LostConnection{What: s.reason, After: s.a.Stage, Content: inData, Bytes: received,
			Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.LogPort})
	}
	if s.a.Stage != "" {
		s.logDisconnect()
	}
	s.srv.limits.disconnect(s)
	s.wire.nc.Close()
	s.wire.release()
	s.screened.Leave()
	s.postHistory()
	s.srv.ended(s)
}

// logDisconnect writes the disconnect line, with the counts of commands that
// Postfix's logs have: log analyzers and fail2ban read them.
func (s *session) logDisconnect() {
	counts := reuse.Truncated(s.parting.Counts)
	for v := range nverbs {
		if c := s.counts[v]; c.total > 0 {
			counts = append(counts, maillog.CommandCount{Name: commands[v].name, OK: int(c.ok), Total: int(c.total)})
		}
	}
	s.parting = maillog.SMTPDDisconnect{Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.LogPort, Counts: counts, Notes: s.notes}
	s.srv.log.Log(&s.parting)
}
