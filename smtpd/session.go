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
