package smtpd

import (
	"context"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/reuse"
	"posthaste/internal/smtpwire"
)

// greet is the start of the session: who is it, may they come in, and hello.
func (s *session) greet() error {
	s.a.Stage = "CONNECT"
	s.a.ResetHelo()
	if err := s.identifyClient(s.ctx()); err != nil {
		return err
	}
	return s.welcome(s.ctx()) // now that it is known who it is
}

// welcome judges the client and greets it. XCLIENT comes back here.
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

// panicked is told of a panic in the session: it ends, the service goes on.
func (s *session) panicked(what any) {
	s.srv.log.Panic(what)
	s.history.Fault(notice.Software)
	s.reply(smtpwire.R(421, dsn.S(4, 3, 0), s.set.myhostname+" Error: internal error"))
	s.leave()
}

// close ends the session for good: log lines, counters, socket.
// The caller must not touch the session after this.
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
