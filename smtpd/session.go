// The state of one session. What is done with it is in the other files; here is what
// it consists of, and the contexts of its lookups.

package smtpd

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"

	"posthaste/internal/access"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/reuse"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
	"posthaste/internal/watch"
	"posthaste/smtpd/postscreen"
)

// A session is one client's connection, from accept to close. All of it runs on one
// goroutine, the engine's; only busy and the socket's deadline are touched by
// others. When it has ended its memory goes to another client: see forget, which
// empties every field that is not named there.
type session struct {
	srv *Server
	// set is the settings that were in force when the session began: a session that began
	// under stress keeps those limits to its end.
	set *settings
	// port is where the engine takes the session's commands from. changePort replaces it.
	port *port
	// over gets one element when the session has ended. It is buffered, so that
	// ending a session does not wait for ServeConn.
	over chan struct{}
	// sock is the client's connection, under TLS if there is any. Drain sets its deadline.
	sock net.Conn
	wire wire
	// busy says that draining must not interrupt: a command is being carried out, or the
	// client is between MAIL and the reply to its content. The session sets it before each
	// wait; Drain reads it from another goroutine.
	busy atomic.Bool

	// lookups is the context of lookups, and budget what patterns may cost in it. Both
	// are nil until the first.
	lookups context.Context
	budget  *table.Budget
	// traced is lookups for a client whose session is logged in full, with a trace; else nil.
	traced context.Context

	// a is what restrictions know of client and envelope. It is filled in as the
	// session goes on; ResetHelo and ResetMail empty its parts.
	a access.Session

	// The command under way. verb is cmd's, or vUnknown; cmd is the line after
	// smtpd_command_filter.
	cmd  smtpwire.Command
	verb verb
	// out is the answer to the command that the engine has, set by the functions that it
	// calls; nil: the engine did not call any, and its code is the answer.
	out *smtpwire.Reply

	// What the client has done so far.
	counts [nverbs]struct{ ok, total int32 } // commands, for the disconnect line
	errors int                               // smtpd_soft_error_limit, smtpd_hard_error_limit; 0 after a message
	junk   int                               // smtpd_junk_command_limit; 0 after a message
	// limited says that the client's connection is counted, under the address
	// limitedBy. XCLIENT does not change that address: what was counted must be
	// taken back under the same key.
	limited   bool
	limitedBy netip.Addr

	// How the session ends.
	// ended: nothing is to be sent any more, and nothing is read.
	ended bool
	// closed: close has run. The engine closes what it was told to close.
	closed bool
	// quiet: the end was orderly, and the log has no "lost connection".
	quiet bool
	// reason stands in place of "lost connection" in the log: timeout, too many errors.
	// Empty otherwise.
	reason string
	// notes is for the disconnect line, where bare_lf is the only note. Empty for none.
	notes string

	// denied is the refusal of the client: every command but QUIT is then
	// answered 503, as Postfix does it. nil for a client that may come in.
	denied *smtpwire.Reply
	// mistrusted is why TLS with the client is not sufficient for smtpd_tls_req_ccert;
	// empty: it is. The client hears it with the reply to its next command.
	mistrusted string
	policy     bool // the reply to come is a refusal by policy, see asPolicy

	// What follows from who the client is; applyClientSettings works it out again
	// after XCLIENT.
	privileged bool            // no limits: may use XCLIENT
	trusted    bool            // may send bare newlines
	discard    map[string]bool // EHLO keywords that it is not told of; nil: not looked up yet
	debug      bool            // the dialogue goes to the log
	talk       watch.Talk      // and to those who watch it

	// history is the transcript for postmaster; nil: nobody wants any.
	history *notice.Transcript
	tls     *tlsState // nil without TLS
	// auth is the AUTH command under way; empty between two of them. What came of the
	// last one is in a.SASL.
	auth authState
	// milter is the session with mail filters. Empty without any.
	milter milterState
	// screened is the client's visit to postscreen. Empty without its tests.
	screened postscreen.Visit

	tx       transaction // empty between two transactions
	foreseen int64       // position of the wire up to which foresee has looked

	// logged and parting are log lines, of a message and of the session. They are
	// here for their memory: each is filled in where it is logged.
	logged  maillog.SMTPDClient
	parting maillog.SMTPDDisconnect
}

// forget makes an ended session ready for another client. It keeps only memory, and
// nothing that the previous client sent.
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
		s.lookups = table.WithAnswers(s.lookups, &s.a.Answers)
	}
	return s.lookups
}

// renewBudget gives the next command what its lookups may cost.
func (s *session) renewBudget() {
	if s.budget != nil {
		s.budget.Renew()
	}
}

// The X-values of an authorized proxy (XFORWARD) take the place of the client's
// own, for the queue and its logs: that is what XFORWARD is for.
// clientOf is the client as envelopes have it.
func (s *session) clientOf() mail.Client {
	c := mail.Client{Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.Port, Helo: s.a.Helo, Proto: s.a.Proto}
	s.tx.forwarded.apply(&c)
	return c
}

var _ net.Conn = (*port)(nil)

// showOnlyRecipient lets restrictions and log lines on the message as a whole
// know its recipient, when there is but one. hideRecipient takes it back.
func (s *session) showOnlyRecipient() {
	if len(s.tx.rcpts) == 1 {
		s.a.HasRcpt, s.a.Recipient = true, s.tx.rcpts[0].Address
	}
}

// hideRecipient is showOnlyRecipient's other half, and ends what is said of a
// single recipient at RCPT.
func (s *session) hideRecipient() { s.a.HasRcpt, s.a.Recipient = false, "" }
