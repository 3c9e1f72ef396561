package smtpd

import (
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/smtpwire"
)

// nextCommand reads commands until there is one for the engine.
func (s *session) nextCommand() (feed string, err error) {
	for {
		if s.ended {
			return "", io.EOF
		}
		if s.errors >= s.set.hardErrors && s.set.hardErrors > 0 {
			s.reason = "too many errors"
			s.reply(smtpwire.R(421, dsn.S(4, 7, 0), s.set.myhostname+" Error: too many errors"))
			return "", io.EOF
		}
		feed, err := s.read()
		if err != nil || feed != "" {
			return feed, err
		}
	}
}

// waiting is called before the session waits for a command: this is where a
// service that is to end may end it.
func (s *session) waiting() error {
	busy := s.a.HasSender || s.wire.buffered() > 0
	s.busy.Store(busy)
	if !busy && s.srv.draining.Load() {
		return errDraining
	}
	return nil
}

// read reads one command and either carries it out or returns what the
// engine is to see of it.
func (s *session) read() (feed string, err error) {
	s.wire.timeout = s.screened.CommandTime(s.set.timeout)
	if s.set.perRequest {
		s.wire.deadline = time.Now().Add(s.wire.timeout)
	}
	line, err := s.wire.line(s.set.lineLimit, s.waiting)
	if isTimeout(err) && s.srv.draining.Load() && !s.busy.Load() {
		err = errDraining // Drain has woken us up
	}
	s.busy.Store(true)
	if err == errLineTooLong {
		s.errors++
		s.screened.OverLimit("LENGTH", s.a.Stage)
		s.reply(smtpwire.R(500, dsn.S(5, 5, 2), "Error: line too long"))
		return "", nil
	}
	if err != nil {
		s.lost(err)
		return "", err
	}
	if s.wire.bareLF && s.bareNewline() {
		return "", io.EOF
	}
	if s.history != nil {
		s.history.In(notice.Redact(line))
	}
	s.traceCommand(line)
	text := string(line)
	if s.mistrusted != "" {
		s.mistrust()
		return "", io.EOF
	}
	s.renewBudget()
	return s.dispatch(s.filterCommand(text), s.wire.bareLF)
}

// dispatch judges a command line by its verb.
func (s *session) dispatch(line string, bareLF bool) (feed string, err error) {
	s.cmd = smtpwire.ParseCommand(line)
	if s.screened.TooManyCommands(s.a.Stage) {
		s.reply(smtpwire.R(421, dsn.S(4, 7, 0), s.set.myhostname+" Service unavailable - closing connection"))
		return "", io.EOF
	}
	if s.cmd.Verb == "" {
		s.errors++
		s.reply(smtpwire.R(500, dsn.S(5, 5, 2), "Error: bad syntax"))
		return "", nil
	}
	if s.set.smtputf8 && !utf8.ValidString(line) {
		s.errors++
		s.reply(smtpwire.R(500, dsn.S(5, 5, 2), "Error: bad UTF-8 syntax"))
		return "", nil
	}
	if s.set.noop[s.cmd.Verb] {
		s.countJunk()
		s.reply(ok200)
		return "", nil
	}
	v, known := verbs[s.cmd.Verb]
	if !known {
		v = vUnknown
	}
	s.verb = v
	s.counts[v].total++
	if s.srv.screen != nil && s.screenCommand(v, bareLF) {
		return "", io.EOF
	}
	if v == vUnknown && s.notSMTP(line) {
		return "", io.EOF
	}
	if s.denied != nil && v != vQuit {
		s.errors++
		s.a.Stage = strings.ToUpper(commands[v].name)
		s.reply(smtpwire.R(503, dsn.S(5, 7, 0), "Error: access denied for "+s.a.NameAddr()))
		return "", nil
	}
	if s.mustStartTLS(v) {
		s.errors++
		s.reply(smtpwire.R(530, dsn.S(5, 7, 0), "Must issue a STARTTLS command first"))
		return "", nil
	}
	s.a.Stage = strings.ToUpper(commands[v].name)
	if s.tooEarly(v) {
		return "", io.EOF
	}
	return s.perform(v)
}

// notSMTP ends the session of a client that speaks something else.
func (s *session) notSMTP(line string) bool {
	forbidden, err := s.set.forbidden.Match(s.ctx(), s.cmd.Word())
	if err != nil {
		s.srv.log.Warning("%v", err)
	}
	if !forbidden && !smtpwire.LooksLikeHeader(line) {
		return false
	}
	s.a.Stage = "UNKNOWN"
	s.srv.log.LogWarning(maillog.NonSMTPCommand{Peer: s.a.NameAddr(), Line: line})
	s.reply(smtpwire.R(221, dsn.S(2, 7, 0), "Error: I can break rules, too. Goodbye."))
	s.leave()
	return true
}

// tooEarly is for clients that send on before they have our answer, where
// that is not allowed. It is seen once.
func (s *session) tooEarly(v verb) bool {
	if s.a.Pipelined || s.a.Proto == "ESMTP" && commands[v].traits&tLast == 0 || !s.sentAhead() {
		return false
	}
	return s.pipelined(string(s.wire.unread()))
}

// bareNewline judges a command that ended in LF alone.
func (s *session) bareNewline() bool {
	if s.trusted {
		return false
	}
	switch s.set.bare {
	case bareNote:
		s.notes = "bare_lf"
	case bareReject:
		s.reply(s.bareRefusal())
		s.leave()
		return true
	}
	return false
}

// perform carries out a command, or gives it to the engine.
func (s *session) perform(v verb) (feed string, err error) {
	s.out = nil
	r := s.asPolicy(s.milterOther(v))
	if r != nil {
		s.replyAndCount(r)
		return "", nil
	}
	switch v {
	case vHelo, vEhlo:
		if r = s.helo(v); r == nil {
			return engineHelo, nil
		}
	case vMail:
		if r = s.mailInOrder(); r == nil {
			return engineMail, nil
		}
	case vRcpt:
		if r = s.rcptInOrder(); r == nil {
			return engineRcpt, nil
		}
	case vData:
		if r = s.dataInOrder(); r == nil {
			return engineData, nil
		}
	case vRset:
		if r = s.rset(); r == nil {
			return engineRset, nil
		}
	case vQuit:
		s.replyAndCount(bye)
		s.leave()
		return "", io.EOF
	case vBdat:
		var last bool
		if r, last, err = s.bdatCmd(); err != nil {
			return "", err
		}
		if last {
			s.out = r
			return engineRset, nil
		}
	case vAuth:
		if feed, r = s.authInOrder(); r == nil {
			return feed, nil
		}
	default:
		r, err = s.simple(v)
		if err != nil {
			return "", err
		}
	}
	s.replyAndCount(r)
	return "", nil
}

// simple carries out the commands that the engine has no part in. A nil
// reply means that the answer has been sent.
func (s *session) simple(v verb) (*smtpwire.Reply, error) {
	switch v {
	case vNoop:
		return ok200, nil
	case vVrfy:
		return s.vrfy(), nil
	case vEtrn:
		return s.etrn(), nil
	case vHelp:
		return help, nil
	case vStartTLS:
		if r, err := s.startTLS(); r != nil || err != nil {
			return r, err
		}
		return nil, s.changePort()
	case vXclient:
		if r := s.xclient(); r != nil {
			return r, nil
		}
		// The session begins anew, as that of the client that XCLIENT has named.
		if err := s.welcome(s.ctx()); err != nil {
			return nil, err
		}
		return nil, s.changePort()
	case vXforward:
		return s.xforwardCmd(), nil
	}
	if r := s.asPolicy(s.milterUnknown()); r != nil {
		return r, nil
	}
	return smtpwire.R(500, dsn.S(5, 5, 2), "Error: command not recognized"), nil
}

// engineReplied is told what the engine thinks of the command that it was given.
func (s *session) engineReplied(code int) {
	switch {
	case s.verb == vEhlo && code == 250:
		s.countCommand(true)
		s.sendText(s.appendEhlo(s.wire.scratch()))
	case s.out != nil:
		s.replyAndCount(s.out)
	default: // the engine did not ask us
		s.replyAndCount(s.engineSays(code))
	}
	if s.verb == vAuth {
		s.endAuth()
	}
}

// engineSays words an answer that the engine gave by itself. We judge the
// order of commands before it does, so a refusal here is a mistake of ours.
func (s *session) engineSays(code int) *smtpwire.Reply {
	switch {
	case s.verb == vRset && code == 250:
		return ok200
	case s.verb == vHelo && code == 250:
		return smtpwire.R(250, dsn.Status{}, s.set.myhostname)
	case code == 235:
		return s.authenticated()
	case code == 501 && s.verb == vAuth:
		s.srv.log.LogWarning(maillog.SASLAborted{Peer: s.a.NameAddr(), Method: clip(s.auth.mechanism, 40)})
		return smtpwire.R(501, dsn.S(5, 7, 0), "Authentication aborted")
	}
	s.srv.log.Error("transaction engine answered %s with %d", s.a.Stage, code)
	return smtpwire.R(503, dsn.S(5, 5, 1), "Error: bad sequence of commands")
}
