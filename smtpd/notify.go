package smtpd

import (
	"posthaste/internal/dsn"
	"posthaste/internal/notice"
	"posthaste/internal/smtpwire"
)

// A session is kept as a transcript for postmaster, if notify_classes asks
// for any, and posted when something went wrong in it: at its end, or when it
// has grown over smtpd_history_flush_threshold and a transaction is over.

// recordReply adds a reply to the transcript, and what is wrong if it refuses.
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

// asPolicy notes that a refusal is policy's: of restrictions, filters, limits.
func (s *session) asPolicy(r *smtpwire.Reply) *smtpwire.Reply {
	s.policy = r != nil
	return r
}

// faultOf is the class of a refusal.
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

// flushHistory posts what is worth it when the transcript has grown long.
func (s *session) flushHistory() {
	if s.history.Lines() > s.set.historyLimit {
		s.postHistory()
	}
}

// postHistory posts the transcript if something went wrong, and begins anew.
func (s *session) postHistory() {
	if s.history.Faulty() {
		s.srv.notices.Post(s.srv.ctx(), s.history, notice.Session{Side: "server", Peer: s.a.NameAddr(), Reason: s.reason})
		return
	}
	s.history.Reset()
}
