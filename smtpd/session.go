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

	// a is what restrictions know of client and envelope. It is filled in as the
	// session goes on; ResetHelo and ResetMail empty its parts.
	a access.Session

	// The command under way.
	cmd  smtpwire.Command
	verb verb
	out  *smtpwire.Reply // the answer to the command that the engine has; nil: the engine did not ask us

	// What the client has done so far.
	counts [nverbs]struct{ ok, total int32 } // commands, for the disconnect line
	errors int                               // smtpd_soft_error_limit, smtpd_hard_error_limit; 0 after a message
	junk   int                               // smtpd_junk_command_limit; 0 after a message
	// limited: the client's connection is counted, under the address limitedBy,
	// which XCLIENT does not change.
	limited   bool
	limitedBy netip.Addr

	// How the session ends.
	ended  bool   // nothing is to be said any more
	closed bool   // close has run
	quiet  bool   // the end was orderly: no "lost connection"
	reason string // in place of "lost connection": timeout, too many errors; empty otherwise
	notes  string // for the disconnect line; empty for none

	// denied is the refusal of the client: every command but QUIT is then
	// answered 503, as Postfix does it. nil for a client that may come in.
	denied     *smtpwire.Reply
	mistrusted string // why TLS with the client does not do, smtpd_tls_req_ccert; empty: it does
	policy     bool   // the reply to come is a refusal by policy, see asPolicy

	// What follows from who the client is; applyClientSettings works it out again
	// after XCLIENT.
	privileged bool            // no limits: may use XCLIENT
	trusted    bool            // may send bare newlines
	discard    map[string]bool // EHLO keywords that it is not told of; nil: not looked up yet
	debug      bool            // the dialogue goes to the log
	talk       watch.Talk      // and to those who watch it

	history  *notice.Transcript // for postmaster; nil: nobody wants any
	tls      *tlsState          // nil without TLS
	auth     authState          // of an AUTH command under way
	milter   milterState        // empty without filters
	screened postscreen.Visit   // empty without postscreen's tests

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

// hideRecipient ends what is said of a single recipient.
func (s *session) hideRecipient() { s.a.HasRcpt, s.a.Recipient = false, "" }
