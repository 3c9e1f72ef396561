package qmgr

import (
	"context"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// noticeTimeout is how long the bounce service has to say what came of a
// notice: it gives up itself before. The notice is then tried again.
const noticeTimeout = proto.NotifyTimeout + 10*time.Second

// A notice reports so many recipients, with so many bytes of what is said of
// them; for more of them more notices are made. Each is mail that somebody
// reads, and has to fit into one request.
const (
	noticeRcpts = 5000
	noticeBytes = ipc.MaxPayload / 2
)

// notify has the bounce service tell the sender, beside the loop. from is the
// first recipient that a notice of delay is to report.
func (s *Server) notify(m *message, what sched.Notice, from int) {
	a := m.active
	if a == nil {
		s.then(sched.Event{Kind: sched.EventNotified, ID: m.num, OK: false})
		return
	}
	n := &proto.Notify{ID: m.id, Continued: from > 0}
	var next int
	switch what {
	case sched.NoticeFailure:
		n.Notice = proto.NoticeFailure
		n.Outcomes, next = m.failed(dsn.Failed, 0)
	case sched.NoticeExpired:
		n.Notice = proto.NoticeExpired
		n.Outcomes, next = m.expired(s.expiry(m))
	case sched.NoticeDelay:
		n.Notice = proto.NoticeDelay
		n.Outcomes, next = m.failed(dsn.Deferred, from)
	case sched.NoticeTrace:
		n.Notice = proto.NoticeSuccess
		if a.env.Trace != 0 {
			n.Notice = proto.NoticeTrace
		}
		n.Outcomes, next = fitting(a.success)
	}
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, noticeTimeout)
		defer cancel()
		var reply proto.NotifyReply
		// A lost connection is not asked about again here: the notice may have
		// been queued. The scheduler tries again later, and the service then finds
		// out whether it was.
		err := s.bounce.Call(ctx, n, &reply)
		s.post(func() {
			m := s.messages[msgID(n.ID)]
			if m == nil {
				return
			}
			s.notified(m, n, &reply, err)
			switch {
			case err == nil && next > 0 && m.active != nil:
				s.notify(m, what, next)
			case m.finishing: // the scheduler has done with it already
				s.finish(m)
			default:
				// Who has had the first notices of a delay has been warned.
				s.then(sched.Event{Kind: sched.EventNotified, ID: m.num, OK: err == nil || from > 0})
			}
		}, sched.Event{})
	})
}

// failed is what one notice reports of the recipients from number from on
// whose last outcome was this, and the number with which the next one goes on;
// 0 is none. Those of whom some part has failed have failed in that.
func (m *message) failed(action dsn.Action, from int) (list []mail.Outcome, next int) {
	for i := from; i < int(m.nrcpt); i++ {
		if o, ok := m.active.outcomes[i]; ok && (o.Action == action || action == dsn.Failed && o.Untold()) && !m.isDone(i) {
			list = append(list, o)
		}
	}
	return fittingFrom(list)
}

func fittingFrom(list []mail.Outcome) (part []mail.Outcome, next int) {
	part, n := fitting(list)
	if n > 0 {
		next = part[n-1].Rcpt + 1
	}
	return part, next
}

// expiry is what there is to say of a recipient of whom no outcome is known when
// the message's time is over.
func (s *Server) expiry(m *message) mail.Outcome {
	o := mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 4, 7), Reason: "delivery time expired", Relay: "none", When: s.now}
	if info, ok := s.sched.Lookup(m.num); ok && info.Flags&sched.FlagExpire != 0 {
		o.Status, o.Reason = dsn.S(4, 7, 0), "message is administratively expired"
	}
	return o
}

// expired is what one notice of expiry reports, as failed does: every recipient
// who has not got the message, also one of whom no outcome is known, because its agent has
// died with it each time, or because it was withdrawn and never tried. Those
// who failed for good have a notice of their own.
func (m *message) expired(unknown mail.Outcome) (list []mail.Outcome, next int) {
	for i := range int(m.nrcpt) {
		if m.isDone(i) {
			continue
		}
		o, known := m.active.outcomes[i]
		switch {
		case !known:
			o = unknown
			o.Rcpt = i
		case o.Action != dsn.Deferred:
			continue
		}
		list = append(list, o)
	}
	return fittingFrom(list)
}

// fitting is the part of list that one notice reports, and how many those are
// when there are more.
func fitting(list []mail.Outcome) (part []mail.Outcome, n int) {
	size := 0
	for i := range list {
		o := &list[i]
		size += outcomeOctets(o)
		if i > 0 && (i == noticeRcpts || size > noticeBytes) {
			return list[:i:i], i
		}
	}
	return list, 0
}

// notified takes in what came of a notice.
func (s *Server) notified(m *message, n *proto.Notify, reply *proto.NotifyReply, err error) {
	if err != nil {
		s.opt.Log.Warning("%s: the bounce service has made no notice: %v; trying again later", n.ID, err)
		return
	}
	var done []int
	var told []mail.Outcome // who are still pending, but for some of their parts
	switch n.Notice {
	case proto.NoticeFailure, proto.NoticeExpired:
		for _, o := range n.Outcomes {
			if n.Notice == proto.NoticeFailure && o.Action == dsn.Deferred {
				told = append(told, m.tell(o, false))
				continue
			}
			m.through(o.Rcpt)
			done = append(done, o.Rcpt)
		}
	case proto.NoticeSuccess, proto.NoticeTrace:
		if m.active != nil {
			m.active.success = m.active.success[min(len(n.Outcomes), len(m.active.success)):]
		}
		for _, o := range n.Outcomes {
			if m.isDone(o.Rcpt) {
				done = append(done, o.Rcpt)
			} else if n.Notice == proto.NoticeSuccess && o.HasGood(false) {
				told = append(told, m.tell(o, true))
			}
		}
	default:
		return
	}
	if reply.Settled {
		return
	}
	s.log.done(m, done)
	if len(told) > 0 {
		s.log.update(m, proto.Op{Change: queue.Change{Outcomes: told}})
	}
}

// tell notes that the parts of a recipient that have failed, or are good, have
// been told. It returns the last outcome, which is o unless a notice since has
// told of more.
func (m *message) tell(o mail.Outcome, good bool) mail.Outcome {
	if m.active != nil {
		if last, ok := m.active.outcomes[o.Rcpt]; ok {
			o = last
		}
		defer func() { m.active.noted(&o) }()
	}
	o.Tell(good)
	return o
}

// finish ends a message's stay when nothing is left to do. Successes that the
// scheduler does not know of, because a former queue manager or cleanup
// recorded them, are reported first; should that fail, they are not: nothing
// may keep a message that has arrived.
func (s *Server) finish(m *message) {
	if !m.finishing && m.active != nil && len(m.active.success) > 0 {
		m.finishing = true
		s.notify(m, sched.NoticeTrace, 0)
		return
	}
	s.log.finish(m)
	s.forget(m)
}
