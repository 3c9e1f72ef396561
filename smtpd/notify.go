// The transcript of the session that notify_classes may have sent to postmaster.

package smtpd

import (
	"posthaste/internal/dsn"
	"posthaste/internal/notice"
	"posthaste/internal/smtpwire"
)

// A session is kept as a transcript for postmaster, if notify_classes asks
// for any, and posted when something went wrong in it: at its end, or when it
// has grown over smtpd_history_flush_threshold and a transaction is over.

// recordReply adds a reply to the transcript, with what is wrong if it refuses.
// text is the reply as it is sent. The mark of asPolicy is used up.
func (s *session) recordReply(r *smtpwire.Reply, text []byte) {
	policy := s.policy
	s.policy = false
	s.traceReply(text)
	if s.history == nil {
		return
	}
	s.history.Out(text)
	s.history.Fault(faultOf(r.Code, r.Status, policy))
}

// asPolicy marks the reply to come as a refusal by policy: of restrictions, filters
// or limits. It returns r, so that it can stand around the call that judges. A
// refusal that is not marked is the protocol's. nil takes the mark back.
func (s *session) asPolicy(r *smtpwire.Reply) *smtpwire.Reply {
	s.policy = r != nil
	return r
}

// faultOf is the class of a refusal for notify_classes, 0 for a reply that nobody
// is to be told of. The enhanced status code is what tells the classes apart: 4.3.5
// is an error in our configuration, 4.3.0 a table or a queue that cannot be used,
// x.3.4 a message too large.
func faultOf(code int, st dsn.Status, policy bool) notice.Class {
	switch {
	case code < 400:
		return 0
	case st == dsn.S(4, 3, 5):
		return notice.Software
	case policy && st == dsn.S(4, 3, 0):
		return notice.Data
	case policy:
		return notice.Policy
	case st == dsn.S(4, 3, 0), st == dsn.S(4, 3, 1):
		return notice.Resource
	case st.Subject == 3 && st.Detail == 4, st.Subject == 4 && code >= 500:
		return notice.Bounce
	case st == dsn.S(4, 4, 2):
		return 0 // a client went away
	case st.Subject == 5, st.IsZero(), st.Subject == 1 && code == 501:
		return notice.Protocol
	}
	return notice.Policy
}

// flushHistory posts the transcript when it has grown long, and is called when a
// transaction is over: so that a session of days does not lose its older half, and
// a notice is not cut in the middle of a transaction.
func (s *session) flushHistory() {
	if s.history.Lines() > s.set.historyLimit {
		s.postHistory()
	}
}

// postHistory posts the transcript if something went wrong, or else empties it. It
// waits for cleanup, at most as long as package notice lets it.
func (s *session) postHistory() {
	if s.history.Faulty() {
		s.srv.notices.Post(s.srv.ctx(), s.history, notice.Session{Side: "server", Peer: s.a.NameAddr(), Reason: s.reason})
		return
	}
	s.history.Reset()
}
