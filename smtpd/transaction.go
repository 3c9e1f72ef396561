package smtpd

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/reuse"
	"posthaste/internal/smtpwire"
)

// A transaction is what the session knows of one message, from XFORWARD or MAIL
// to the reply to its content (RFC 5321 section 3.3). resetMail empties it by
// assignment: what is added here cannot be left over for the next message. What
// restrictions may know of it is in access.Session, which has a ResetMail of its own.
type transaction struct {
	mail    smtpwire.Mail    // MAIL, as it was parsed; empty before it, as everything but forwarded
	rcpts   []mail.Recipient // those that were accepted; the memory goes from one message to the next
	arrival time.Time        // of MAIL
	context string           // rewrite context: local or remote
	opened  bool             // the message has its queue ID, if it gets one, and the client= line is out
	excess  int              // recipients refused by smtpd_recipient_limit
	// forwarded is what XFORWARD has told. The command comes before MAIL, and is
	// good for one message.
	forwarded xforward

	// The content.
	inData   bool  // it is arriving: a session that breaks off says so in the log
	received int64 // octets of it, for log lines
	// sink and lines are what DATA takes the content with. They are here for
	// their memory.
	sink  sink
	lines content
	bdat  *bdatState // nil before the first chunk (RFC 3030), and with DATA
	// skipped is the octets of chunks that nobody wanted.
	skipped int64

	// filter is the conversation with smtpd_proxy_filter; nil: there is none, or
	// it hears of messages as a whole.
	filter *filterTalk
	// discarded says that a mail filter wants the message thrown away. Unlike an
	// access table's DISCARD it is no reason to judge recipients no more: what
	// a filter is told of has not been judged yet.
	discarded bool
}

// endMail gives up the transaction, if there is one.
func (s *session) endMail() {
	if s.tx.bdat != nil {
		s.tx.bdat.abort()
	}
	s.resetMail()
}

// resetMail ends the transaction. A message that has been opened must have been
// committed or aborted.
func (s *session) resetMail() {
	s.milterAbort()
	s.tx.filter.close()
	s.a.ResetMail()
	s.a.SASL.Sender = "" // AUTH= of MAIL; the user stays
	rcpts := reuse.Emptied(s.tx.rcpts)
	s.tx = transaction{}
	s.tx.rcpts = rcpts
}

// judgeContent asks all who may refuse the content before it comes: at DATA, and
// at the first BDAT.
func (s *session) judgeContent() *smtpwire.Reply {
	s.showOnlyRecipient()
	defer s.hideRecipient()
	if r := s.asPolicy(s.srv.access.Data(s.ctx(), &s.a)); r != nil {
		return r
	}
	if r := s.asPolicy(s.milterData()); r != nil {
		return r
	}
	return s.filterData()
}
