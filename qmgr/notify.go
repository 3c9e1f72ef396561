// Reports to senders: which outcomes go into a notice, and what follows when the bounce
// service has made it. The bounce service writes the text and queues the message; a
// report is queued before what it says is recorded here, so a crash in between repeats a
// report and never loses one.

package qmgr

import (
	"context"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/event"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// noticeTimeout is how long the bounce service has for a notice. It is a little over the
// time after which the service gives up itself, so that a slow service is told from one
// that has gone. The notice is then tried again.
const noticeTimeout = proto.NotifyTimeout + 10*time.Second

// A notice reports so many recipients, with so many bytes of what is said of
// them; for more of them more notices are made. Each is mail that somebody
// reads, and has to fit into one request.
const (
	noticeRcpts = 5000
	noticeBytes = ipc.MaxPayload / 2
)

// notify has the bounce service tell the sender of what, in a task. from is the number of
// the first recipient that a notice of delay is to report; 0: all. When there is more
// than fits into one notice, it goes on with the next when that is queued.
func (s *Server) notify(m *message, what sched.Notice, from int) {
	a := m.active
	// The message has left the active queue. The scheduler waits for an answer all the
	// same.
	if a == nil {
		s.then(sched.Event{Kind: sched.EventNotified, ID: m.num, OK: false})
		return
	}
	// Continued says that the sender has had a first part, so that the service does not
	// take it for the notice that was made before.
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
	ref := m.ref
	var over []event.Event // of recipients that have waited too long
	if what == sched.NoticeExpired {
		over = s.expired(m, n.Outcomes)
	}
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, noticeTimeout)
		defer cancel()
		var reply proto.NotifyReply
		// The bounce service records what it reports.
		s.tellExpired(ctx, ref, n, over)
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

// failed lists the recipients, from number from on, that one notice reports as failed or
// deferred, and the number with which the next notice begins; 0: there is none. With
// Failed, recipients count of which a part has failed (a member of an alias, say) that
// the sender has not been told of.
func (m *message) failed(action dsn.Action, from int) (list []mail.Outcome, next int) {
	for i := from; i < int(m.nrcpt); i++ {
		if o, ok := m.active.outcomes[i]; ok && (o.Action == action || action == dsn.Failed && o.Untold()) && !m.isDone(i) {
			list = append(list, o)
		}
	}
	return fittingFrom(list)
}

// fittingFrom is fitting, with the number of the recipient that the next notice begins
// with.
func fittingFrom(list []mail.Outcome) (part []mail.Outcome, next int) {
	part, n := fitting(list)
	if n > 0 {
		next = part[n-1].Rcpt + 1
	}
	return part, next
}

// expiry is what there is to say of a recipient without any outcome when the message's
// lifetime is over. The texts are Postfix's.
func (s *Server) expiry(m *message) mail.Outcome {
	o := mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 4, 7), Reason: "delivery time expired", Relay: "none", When: s.now}
	if info, ok := s.sched.Lookup(m.num); ok && info.Flags&sched.FlagExpire != 0 {
		o.Status, o.Reason = dsn.S(4, 7, 0), "message is administratively expired"
	}
	return o
}

// expired lists what one notice of expiry reports: every recipient that has not got the
// message. That includes recipients without an outcome, because their agent died each
// time, or because a command withdrew them. Those that failed for good have a notice of
// their own.
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

// fitting is the part of list that one notice reports; n is its length when there is
// more, else 0. A single outcome is never split, however large.
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

// notified takes in what came of a notice: recipients of whose failure the sender now
// knows are done, and that is recorded.
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
				// Only a part of the recipient has failed, and it is tried again for the
				// others.
				told = append(told, m.tell(o, false))
				continue
			}
			m.through(o.Rcpt)
			done = append(done, o.Rcpt)
		}
	// The first of a.success were reported; outcomes that have come since stay for the
	// next report.
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
	// A notice of delay changes nothing but FlagWarned, which the scheduler sets.
	default:
		return
	}
	// The bounce service has recorded the recipients as done together with its notice.
	if reply.Settled {
		return
	}
	s.log.done(m, done)
	if len(told) > 0 {
		s.log.update(m, proto.Op{Change: queue.Change{Outcomes: told}})
	}
}

// tell notes that the sender has been told of those parts of a recipient that failed or,
// with good, that have the message. It returns the latest outcome, which is o unless more
// has come since.
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

// finish ends a message's stay when nothing is left to do. Successes that the scheduler
// does not know of, since a former queue manager or cleanup recorded them, are reported
// first. If that fails they are not reported: nothing may keep a message in the queue
// that has arrived.
func (s *Server) finish(m *message) {
	if !m.finishing && m.active != nil && len(m.active.success) > 0 {
		m.finishing = true
		s.notify(m, sched.NoticeTrace, 0)
		return
	}
	s.log.finish(m)
	s.forget(m)
}
