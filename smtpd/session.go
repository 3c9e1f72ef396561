package smtpd

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"posthaste/internal/access"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/reuse"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
	"posthaste/internal/watch"
	"posthaste/smtpd/postscreen"
)

// verb is a command, in the order of Postfix's table: it is the order in
// which the disconnect line has them.
type verb uint8

const (
	vHelo verb = iota
	vEhlo
	vXclient
	vXforward
	vStartTLS
	vAuth
	vMail
	vRcpt
	vData
	vBdat
	vRset
	vNoop
	vVrfy
	vEtrn
	vQuit
	vHelp
	vUnknown
	nverbs
)

// A command's traits.
const (
	tJunk   = 1 << iota // counts towards smtpd_junk_command_limit
	tPreTLS             // allowed before STARTTLS when TLS is a must
	tLast               // must be the last of a pipelined group, RFC 2920 section 3.1
)

var commands = [nverbs]struct {
	name   string
	traits uint8
}{
	vHelo: {"helo", tJunk | tPreTLS | tLast}, vEhlo: {"ehlo", tJunk | tPreTLS | tLast},
	vXclient: {"xclient", tPreTLS}, vXforward: {"xforward", 0}, vStartTLS: {"starttls", tPreTLS | tLast},
	vAuth: {"auth", tLast}, vMail: {"mail", 0}, vRcpt: {"rcpt", 0}, vData: {"data", tLast}, vBdat: {"bdat", 0},
	vRset: {"rset", tJunk}, vNoop: {"noop", tJunk | tPreTLS | tLast}, vVrfy: {"vrfy", tJunk | tLast},
	vEtrn: {"etrn", tJunk}, vQuit: {"quit", tPreTLS}, vHelp: {"help", tPreTLS}, vUnknown: {"unknown", 0},
}

var verbs = func() map[string]verb {
	m := make(map[string]verb, nverbs)
	for v := range vUnknown {
		m[strings.ToUpper(commands[v].name)] = v
	}
	return m
}()

// A session is one client's connection. All of it runs on one goroutine, the
// engine's; only busy and the socket's deadline are touched by others.
type session struct {
	srv  *Server
	set  *settings
	port *port
	over chan struct{} // gets one when the session has ended; has room for it
	sock net.Conn      // the client's, under TLS if there is any
	wire wire
	busy atomic.Bool // not to be interrupted by draining

	// lookups is the context of lookups, and budget what patterns may cost in it. Both
	// are nil until the first.
	lookups context.Context
	budget  *table.Budget
	// traced is lookups for a client whose session is logged in full, with a trace; else nil.
	traced context.Context

	a          access.Session // what restrictions know
	cmd        smtpwire.Command
	verb       verb
	out        *smtpwire.Reply // the answer to the command that the engine has
	counts     [nverbs]struct{ ok, total int32 }
	errors     int
	junk       int
	excess     int  // recipients refused by smtpd_recipient_limit
	opened     bool // the client= line is out
	denied     *smtpwire.Reply
	limited    bool       // the client's connection is counted,
	limitedBy  netip.Addr // under this address
	privileged bool       // no limits: may use XCLIENT
	ended      bool       // nothing is to be said any more
	closed     bool
	quiet      bool // the end was orderly: no "lost connection"
	reason     string
	notes      string // for the disconnect line
	history    *notice.Transcript
	debug      bool       // the dialogue goes to the log
	talk       watch.Talk // and to those who watch it
	policy     bool       // the reply to come is a refusal by policy
	mistrusted string     // why TLS with the client does not do, smtpd_tls_req_ccert

	trusted  bool // allowed to send bare newlines
	discard  map[string]bool
	tls      *tlsState
	auth     authState
	milter   milterState
	screened postscreen.Visit

	tx       transaction // empty between two transactions
	foreseen int64       // position of the wire up to which foresee has looked

	// logged and parting are log lines, of a message and of the session. They are
	// here for their memory: each is filled in where it is logged.
	logged  maillog.SMTPDClient
	parting maillog.SMTPDDisconnect
}

// forget makes an ended session ready for another client.
func (s *session) forget() {
	over, rcpts, counts := s.over, s.tx.rcpts, s.parting.Counts
	lookups, budget := s.lookups, s.budget
	*s = session{} // in place: a literal with fields would first be made on the stack, where each client waits
	s.over, s.tx.rcpts, s.parting.Counts = over, rcpts, reuse.Truncated(counts)
	s.lookups, s.budget = lookups, budget
}

// ctx is the context of what a command asks for. The patterns that it makes tables
// try may cost so much and no more: see renewBudget.
func (s *session) ctx() context.Context {
	if s.traced != nil {
		return s.traced
	}
	return s.untraced()
}

// untraced is ctx for lookups with passwords, or with what a client logs in with: whoever
// follows the session does not see them.
func (s *session) untraced() context.Context {
	if s.lookups == nil {
		s.lookups, s.budget = table.NewBudget(s.srv.ctx(), table.MatchBudget)
	}
	return s.lookups
}

// renewBudget gives the next command what its lookups may cost.
func (s *session) renewBudget() {
	if s.budget != nil {
		s.budget.Renew()
	}
}

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

var errRefused = fmt.Errorf("client refused")

// reply sends r, slowed down for clients that make many mistakes.
func (s *session) reply(r *smtpwire.Reply) {
	if s.ended {
		return
	}
	if r == access.Hangup {
		s.wire.out = reuse.Truncated(s.wire.out)
		s.leave()
		return
	}
	if s.errors >= s.set.softErrors && s.set.errorSleep > 0 {
		s.wire.flush()
		s.pause(s.set.errorSleep)
	}
	if r.Code >= 400 {
		r = s.filterReject(r)
	}
	if r.Code >= 500 && s.set.softBounce { // of whatever kind, also what cleanup and filters say
		r = smtpwire.R(r.Code-100, r.Status, r.Text)
		if !r.Status.IsZero() {
			r.Status = r.Status.WithClass(4)
		}
	}
	s.wire.kept()
	from := len(s.wire.out)
	s.wire.out = r.Append(s.wire.out)
	s.recordReply(r, s.wire.out[from:])
	if len(s.wire.out) > maxOut || r.Code == 354 {
		s.wire.flush()
	}
	if r.Code == 421 || r.Code == 521 {
		s.leave()
	}
}

// pause makes a client wait that gives reason to.
func (s *session) pause(d time.Duration) {
	if !s.srv.draining.Load() {
		time.Sleep(d)
	}
}

// leave ends the session in order.
func (s *session) leave() {
	s.wire.flush()
	s.ended, s.quiet = true, true
}

// lost ends the session because reading or writing failed.
func (s *session) lost(err error) {
	if s.ended {
		return
	}
	switch {
	case err == errDraining:
		s.reply(smtpwire.R(421, dsn.S(4, 3, 2), s.set.myhostname+" Service shutting down"))
	case isTimeout(err):
		s.reason = "timeout"
		s.ended = true
		s.screened.OverLimit("TIME", s.a.Stage)
		s.wire.nc.SetWriteDeadline(time.Now().Add(time.Second))
		r := smtpwire.R(421, dsn.S(4, 4, 2), s.set.myhostname+" Error: timeout exceeded")
		text := r.Append(nil)
		s.wire.nc.Write(text)
		s.traceReply(text)
	default:
		s.ended = true
	}
}

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

// withoutPasswords is what a client has sent, for the log: without what belongs
// to AUTH, in data or before it.
func withoutPasswords(data string, auth bool) string {
	var b strings.Builder
	for line := range strings.Lines(data) {
		text := strings.TrimRight(line, "\r\n")
		v, known := verbs[smtpwire.ParseCommand(text).Verb]
		switch {
		case known:
			auth = v == vAuth
			b.Write(notice.Redact([]byte(text)))
		case auth:
			b.WriteString(notice.Secret)
		default:
			b.WriteString(text)
		}
		b.WriteString(line[len(text):])
	}
	return b.String()
}

func (s *session) pipelined(data string) bool {
	s.a.Pipelined = true
	s.srv.log.Log(maillog.Pipelining{After: s.a.Stage, Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.LogPort,
		Data: withoutPasswords(data, s.verb == vAuth)})
	if !s.set.pipelining {
		return false
	}
	s.reply(smtpwire.R(554, dsn.S(5, 5, 0), "Error: SMTP protocol synchronization"))
	s.leave()
	return true
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

func (s *session) bareRefusal() *smtpwire.Reply {
	code := s.set.bareCode
	return smtpwire.R(code, dsn.S(uint8(code/100), 5, 2), s.set.myhostname+" Error: bare <LF> received")
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
		return s.startTLS()
	case vXclient:
		return s.xclient()
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

// sendText sends an answer that has been written out already.
func (s *session) sendText(b []byte) {
	s.queueText(b)
	s.history.Out(b)
	s.traceReply(b)
}

// queueText is send for what is neither logged nor kept.
func (s *session) queueText(b []byte) {
	if s.errors >= s.set.softErrors && s.set.errorSleep > 0 {
		s.wire.flush()
		s.pause(s.set.errorSleep)
	}
	s.wire.kept()
	s.wire.out = append(s.wire.out, b...)
}

// replyAndCount answers a command and counts it.
func (s *session) replyAndCount(r *smtpwire.Reply) {
	if r == nil {
		return
	}
	s.countCommand(r.Code < 400)
	s.reply(r)
	if s.a.Stage == "END-OF-MESSAGE" {
		s.flushHistory()
	}
}

func (s *session) countCommand(success bool) {
	if success {
		s.counts[s.verb].ok++
	} else {
		s.errors++
	}
	if commands[s.verb].traits&tJunk != 0 {
		s.countJunk()
	}
}

func (s *session) countJunk() {
	if s.junk++; s.junk > s.set.junkLimit+1 { // Postfix looks at what was before
		s.errors++
	}
}

var (
	senderOk    = smtpwire.R(250, dsn.S(2, 1, 0), "Ok")
	recipientOk = smtpwire.R(250, dsn.S(2, 1, 5), "Ok")
	ok200       = smtpwire.R(250, dsn.S(2, 0, 0), "Ok")
	bye         = smtpwire.R(221, dsn.S(2, 0, 0), "Bye")
	help        = smtpwire.R(214, dsn.S(2, 0, 0), "https://www.rfc-editor.org/rfc/rfc5321")
	reply354    = smtpwire.R(354, dsn.Status{}, "End data with <CR><LF>.<CR><LF>")
)

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

// clientOf is the client as envelopes have it.
func (s *session) clientOf() mail.Client {
	c := mail.Client{Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.Port, Helo: s.a.Helo, Proto: s.a.Proto}
	s.tx.forwarded.apply(&c)
	return c
}

var _ net.Conn = (*port)(nil)
