// The state of one mail transaction, how it ends, and what DATA and BDAT have in
// common before content comes.

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
	// mail is the MAIL command as it was parsed. Empty before it, as is everything here
	// but forwarded.
	mail smtpwire.Mail
	// rcpts are the recipients that were accepted, in order. The memory goes from one
	// message to the next.
	rcpts []mail.Recipient
	// arrival is when MAIL came. It becomes the arrival time of the queued message.
	arrival time.Time
	// context is in whose name headers are completed (local_header_rewrite_clients):
	// local or remote.
	context string
	// opened: the message has its queue ID, if it gets one, and the client= line is out.
	opened bool
	// excess counts the recipients that smtpd_recipient_limit refused. The first of them
	// are no errors of the client, see rcpt.
	excess int
	// forwarded is what XFORWARD has told. The command comes before MAIL, and is
	// good for one message.
	forwarded xforward

	// The content.
	// inData: content is arriving. A session that breaks off says so in the log.
	inData bool
	// received is how many octets of it have come, as content counts them, for log lines.
	received int64
	// sink and lines are what DATA takes the content with. They are here for
	// their memory.
	sink  sink
	lines content
	bdat  *bdatState // nil before the first chunk (RFC 3030), and with DATA
	// skipped is the octets of chunks that nobody wanted, see tooMuch.
	skipped int64

	// filter is the conversation with smtpd_proxy_filter; nil: there is none, or
	// it hears of messages as a whole.
	filter *filterTalk
	// discarded says that a mail filter wants the message thrown away. Unlike an
	// access table's DISCARD it is no reason to judge recipients no more: what
	// a filter is told of has not been judged yet.
	discarded bool
}

// endMail gives up the transaction, if there is one: at HELO, RSET, STARTTLS,
// XCLIENT and the end of the session. A message that has begun to arrive leaves
// nothing behind.
func (s *session) endMail() {
	if s.tx.bdat != nil {
		s.tx.bdat.abort()
	}
	s.resetMail()
}

// resetMail ends the transaction, and empties its state. A message that has been
// opened must have been committed or aborted.
//
// Filters are told first, since what they are told is still in the state. A filter
// before the queue is left with QUIT, or cut off where content has begun.
func (s *session) resetMail() {
	s.milterAbort()
	s.tx.filter.close()
	s.a.ResetMail()
	s.a.SASL.Sender = "" // AUTH= of MAIL; the user stays
	rcpts := reuse.Emptied(s.tx.rcpts)
	s.tx = transaction{}
	s.tx.rcpts = rcpts
}

// judgeContent asks all who may refuse the content before it comes: at DATA, and at
// the first BDAT. The restrictions come first, as with Postfix: a mail filter, or a
// filter before the queue, must not hear of content that will not be sent.
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
