// The loop of a session: a command is read, judged by its verb, and carried out or
// given to the engine; what the engine thinks of it becomes the reply. Every check
// that concerns all commands is here, in Postfix's order.

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

// nextCommand reads commands until there is one for the engine, and returns what
// the engine is to read. An error ends the session. The client has been told
// already, if it is to be told at all.
func (s *session) nextCommand() (feed string, err error) {
	for {
		if s.ended {
			return "", io.EOF
		}
		// Checked before the read: a client that has reached the limit does not get
		// another command in.
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

// waiting is called before the session waits for a command: this is where a service
// that is stopping may end it. busy is set before draining is read, while Drain
// sets draining before it reads busy. So at least one of the two notices the other.
func (s *session) waiting() error {
	busy := s.a.HasSender || s.wire.buffered() > 0
	s.busy.Store(busy)
	if !busy && s.srv.draining.Load() {
		return errDraining
	}
	return nil
}

// read reads one command line and either carries it out or returns what the engine
// is to see of it. Nothing is returned for a command that has been answered.
func (s *session) read() (feed string, err error) {
	s.wire.timeout = s.screened.CommandTime(s.set.timeout)
	// The deadline covers the whole command: a client that sends one octet a minute
	// would never reach the timeout of a single read.
	if s.set.perRequest {
		s.wire.deadline = time.Now().Add(s.wire.timeout)
	}
	line, err := s.wire.line(s.set.lineLimit, s.waiting)
	if isTimeout(err) && s.srv.draining.Load() && !s.busy.Load() {
		err = errDraining // Drain has woken us up
	}
	s.busy.Store(true)
	if err == errLineTooLong {
		// RFC 5321 section 4.5.3.1.9 asks for 500. The line was read to its end, so
		// that the session stays in step.
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
	// A transcript must not hold passwords; it is mailed in the clear.
	if s.history != nil {
		s.history.In(notice.Redact(line))
	}
	s.traceCommand(line)
	text := string(line)
	if s.mistrusted != "" {
		s.mistrust()
		return "", io.EOF
	}
	// A stranger chooses the text that the patterns of tables are matched against.
	// Each command has a budget of its own, so that a pattern that backtracks
	// without end costs only this client time.
	s.renewBudget()
	return s.dispatch(s.filterCommand(text), s.wire.bareLF)
}

// dispatch judges a command line by its verb, after smtpd_command_filter. bareLF
// says that the line ended without CR.
func (s *session) dispatch(line string, bareLF bool) (feed string, err error) {
	s.cmd = smtpwire.ParseCommand(line)
	// The limit of postscreen is for clients under test only.
	if s.screened.TooManyCommands(s.a.Stage) {
		s.reply(smtpwire.R(421, dsn.S(4, 7, 0), s.set.myhostname+" Service unavailable - closing connection"))
		return "", io.EOF
	}
	if s.cmd.Verb == "" {
		s.errors++
		s.reply(smtpwire.R(500, dsn.S(5, 5, 2), "Error: bad syntax"))
		return "", nil
	}
	// With SMTPUTF8 lines are text: RFC 6531 has UTF-8 and nothing else beyond
	// ASCII. Without it the octets are judged where they stand, in addresses.
	if s.set.smtputf8 && !utf8.ValidString(line) {
		s.errors++
		s.reply(smtpwire.R(500, dsn.S(5, 5, 2), "Error: bad UTF-8 syntax"))
		return "", nil
	}
	// smtpd_noop_commands comes before the table of commands: it may switch off a
	// real one. Such a command counts as junk, whatever it was.
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
	// Counted before it is judged: the disconnect line shows refused commands too
	// ("rcpt=0/1").
	s.counts[v].total++
	if s.srv.screen != nil && s.screenCommand(v, bareLF) {
		return "", io.EOF
	}
	if v == vUnknown && s.notSMTP(line) {
		return "", io.EOF
	}
	// The client was refused when it connected. QUIT is answered as ever.
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

// notSMTP ends the session of a client that speaks something else: a web browser
// that was sent here (smtpd_forbidden_commands has GET and POST), or a proxy that
// passes on a message header. Spam has been sent that way, by a web page or an open
// proxy that was made to talk to port 25. The reply is Postfix's own.
func (s *session) notSMTP(line string) bool {
	forbidden, err := s.set.forbidden.Match(s.ctx(), s.cmd.Word())
	if err != nil {
		s.srv.log.Warning("%v", err)
	}
	if !forbidden && !smtpwire.LooksLikeHeader(s.cmd.Word()) {
		return false
	}
	s.a.Stage = "UNKNOWN"
	s.srv.log.LogWarning(maillog.NonSMTPCommand{Peer: s.a.NameAddr(), Line: line})
	s.reply(smtpwire.R(221, dsn.S(2, 7, 0), "Error: I can break rules, too. Goodbye."))
	s.leave()
	return true
}

// tooEarly is for clients that send on before they have our answer, where that is
// not allowed: after the last command of a group (RFC 2920 section 3.1), and after
// any command without EHLO. It is seen once in a session, and logged;
// smtpd_forbid_unauth_pipelining then ends the session, and
// reject_unauth_pipelining may refuse what follows.
func (s *session) tooEarly(v verb) bool {
	if s.a.Pipelined || s.a.Proto == "ESMTP" && commands[v].traits&tLast == 0 || !s.sentAhead() {
		return false
	}
	return s.pipelined(string(s.wire.unread()))
}

// bareNewline judges a command that ended in LF alone. It returns true if the
// session is over.
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

// perform carries out a command, or gives it to the engine. Each command's own file
// judges whether it is in order before the engine does, so that the reply is in
// Postfix's words; the engine has the last word.
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
		// leave sends the reply before the socket is closed.
		s.replyAndCount(bye)
		s.leave()
		return "", io.EOF
	case vBdat:
		var last bool
		if r, last, err = s.bdatCmd(); err != nil {
			return "", err
		}
		// The transaction is over, and the engine, which never saw MAIL, has to be
		// told as much. Its answer is replaced by ours.
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

// simple carries out the commands that the engine has no part in. A nil reply means
// that the answer has been sent. An error ends the use of this port: the session is
// over, or goes on over another.
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
	// What is left is vUnknown. Mail filters that asked for it hear of such
	// commands.
	if r := s.asPolicy(s.milterUnknown()); r != nil {
		return r, nil
	}
	return smtpwire.R(500, dsn.S(5, 5, 2), "Error: command not recognized"), nil
}

// engineReplied gets the engine's reply code for the command that it was given, and
// answers the client.
func (s *session) engineReplied(code int) {
	switch {
	// The list of extensions is no Reply: it has no enhanced code, and is not
	// subject to filters of refusals.
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

// engineSays words a reply that the engine gave by itself. The session checks the
// order of commands before the engine does, so a refusal that is not listed here is
// a bug: it is logged as an error.
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
