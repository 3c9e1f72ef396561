// What other programs are told of mail (package event) that no agent has had in hand: what operators order, and
// mail that has waited too long. An event is told before the queue records what it says, and recorder.send and
// notify wait until it is on stable storage. Lines of the log become events by themselves.

package qmgr

import (
	"posthaste/internal/event"
	"posthaste/internal/mail"
	"posthaste/qmgr/sched"
)

// tellOrdered tells that a message is held, let go on, or deleted. Its sender is known only while its envelope
// is in memory.
func (s *Server) tellOrdered(m *message, kind event.Kind) {
	// What cleanup does not have any more has an end of which the bounce service has told.
	if s.opt.Events == nil || m.vanished {
		return
	}
	e := event.Event{Kind: kind, Time: s.now, QueueID: string(m.id)}
	if m.active != nil {
		e.Sender, e.FromMessage = s.opt.Log.Address(m.active.env.Sender), true
		e.MessageID, e.EnvID, e.Size = m.active.env.MessageID, m.active.env.EnvID, m.active.env.Size
	}
	s.opt.Events.Tell(&e)
}

// tellExpired tells of each recipient of a message whose lifetime is over. outcomes are those of the last attempts.
func (s *Server) tellExpired(m *message, outcomes []mail.Outcome) {
	if s.opt.Events == nil {
		return
	}
	env := &m.active.env
	for i := range outcomes {
		o := &outcomes[i]
		e := event.Event{Kind: event.Expired, Time: s.now, QueueID: string(m.id), MessageID: env.MessageID, EnvID: env.EnvID,
			Sender: s.opt.Log.Address(env.Sender), FromMessage: true, Size: env.Size, Attempt: s.attempt(m.num) - 1,
			DSN: o.Status.String(), Reply: o.Reason}
		// A recipient that has not been read has had no attempt in this stay.
		if r := m.active.rcpt(o.Rcpt); r != nil {
			e.Recipient, e.Original = s.opt.Log.Address(r.Address), s.opt.Log.Address(r.Original)
		}
		s.opt.Events.Tell(&e)
	}
}

// attempt is the number of the attempt to deliver a message that is under way, or comes next.
func (s *Server) attempt(num sched.MsgID) int {
	info, _ := s.sched.Lookup(num)
	return info.Attempts + 1
}
