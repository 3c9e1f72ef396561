// What other programs are told of mail (package event) that no agent has had in hand: what operators order, and
// mail that has waited too long. An event is told before the queue records what it says, and recorder.send and
// notify wait until it is on stable storage. Lines of the log become events by themselves.

package qmgr

import (
	"context"
	"slices"

	"posthaste/internal/event"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// tellOrdered tells that a message is held, let go on, or deleted. Its sender is known only while its envelope
// is in memory.
func (s *Server) tellOrdered(m *message, kind event.Kind) {
	// What cleanup does not have any more has an end of which the bounce service has told.
	if s.opt.Events == nil || m.vanished {
		return
	}
	// Of mail that lies in the queue there is no more to say than its ID.
	e := event.Event{Kind: kind, Time: s.now, QueueID: string(m.id)}
	if m.active != nil {
		e.Sender, e.FromMessage = s.opt.Log.Address(m.active.env.Sender), true
		e.Tenant, e.Campaign = m.active.env.Tenant, m.active.env.Campaign
		e.MessageID, e.EnvID, e.Size = m.active.env.MessageID, m.active.env.EnvID, m.active.env.Size
	}
	s.opt.Events.Tell(&e)
}

// expired makes the events of recipients whose message's lifetime is over. outcomes are those of the last attempts;
// nil while nobody is told of events.
func (s *Server) expired(m *message, outcomes []mail.Outcome) (list []event.Event) {
	if s.opt.Events == nil {
		return nil
	}
	env := &m.active.env
	for i := range outcomes {
		o := &outcomes[i]
		e := event.Event{Kind: event.Expired, Time: s.now, QueueID: string(m.id), MessageID: env.MessageID, EnvID: env.EnvID,
			Sender: s.opt.Log.Address(env.Sender), FromMessage: true, Size: env.Size, Attempt: s.attempt(m.num) - 1,
			DSN: o.Status.String(), Reply: o.Reason, Tenant: env.Tenant, Campaign: env.Campaign}
		if r := m.active.rcpt(o.Rcpt); r != nil {
			e.Recipient, e.Original = s.opt.Log.Address(r.Address), s.opt.Log.Address(r.Original)
		}
		list = append(list, e)
	}
	return list
}

// tellExpired tells of them, in a task. A recipient that has had no attempt in this stay may not have been read: then
// it is read from the queue.
func (s *Server) tellExpired(ctx context.Context, ref queue.Ref, n *proto.Notify, list []event.Event) {
	unread := func(e event.Event) bool { return e.Recipient == "" }
	if slices.ContainsFunc(list, unread) {
		// What cannot be read is said of the message when the notice is made.
		if st, err := s.opt.Open(ctx, ref, n.ID); err == nil {
			if rcpts, err := st.Recipients(0, -1); err == nil {
				for i := range list {
					if k := n.Outcomes[i].Rcpt; unread(list[i]) && k < len(rcpts) {
						list[i].Recipient, list[i].Original = s.opt.Log.Address(rcpts[k].Address), s.opt.Log.Address(rcpts[k].Original)
					}
				}
			}
		}
	}
	// The sender is told of them behind this, so that no notice is made of what has no event.
	for i := range list {
		s.opt.Events.Tell(&list[i])
	}
	s.opt.Events.Wait(ctx)
}

// attempt is the number of the attempt to deliver a message that is under way, or comes next.
func (s *Server) attempt(num sched.MsgID) int {
	info, _ := s.sched.Lookup(num)
	return info.Attempts + 1
}
