package qmgr

import (
	"context"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/qmgr/sched"
)

// noticeTimeout bounds the making of one notice. It is then tried again.
const noticeTimeout = 5 * time.Minute

// notify has the bounce service tell the sender, beside the loop.
func (s *Server) notify(m *message, what sched.Notice) {
	a := m.active
	if a == nil {
		s.then(sched.Event{Kind: sched.EventNotified, ID: m.num, OK: false})
		return
	}
	n := &proto.Notify{ID: m.id, Ref: m.ref}
	failed := func(action dsn.Action) {
		for i := 0; i < int(m.nrcpt); i++ {
			if o, ok := a.outcomes[i]; ok && o.Action == action && !m.isDone(i) {
				n.Outcomes = append(n.Outcomes, o)
			}
		}
	}
	switch what {
	case sched.NoticeFailure:
		n.Notice = proto.NoticeFailure
		failed(dsn.Failed)
	case sched.NoticeExpired:
		n.Notice = proto.NoticeExpired
		failed(dsn.Deferred)
	case sched.NoticeDelay:
		n.Notice = proto.NoticeDelay
		failed(dsn.Deferred)
	case sched.NoticeTrace:
		n.Notice = proto.NoticeSuccess
		if a.env.Trace != 0 {
			n.Notice = proto.NoticeTrace
		}
		n.Outcomes = a.success
	}
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, noticeTimeout)
		defer cancel()
		var reply proto.NotifyReply
		// A lost connection is not asked about again here: the notice may have
		// been queued. The scheduler tries again later.
		err := s.bounce.Call(ctx, n, &reply)
		s.post(func() { s.notified(m.id, n, &reply, err) }, sched.Event{})
	})
}

// notified takes in what came of a notice.
func (s *Server) notified(id mail.QueueID, n *proto.Notify, reply *proto.NotifyReply, err error) {
	num := msgID(id)
	ev := sched.Event{Kind: sched.EventNotified, ID: num, OK: err == nil}
	m := s.messages[num]
	if m == nil {
		return
	}
	switch {
	case err != nil:
		s.opt.Log.Warning("%s: the bounce service has made no notice: %v; trying again later", id, err)
	case n.Notice == proto.NoticeFailure || n.Notice == proto.NoticeExpired:
		var done []int
		for _, o := range n.Outcomes {
			m.setDone(o.Rcpt)
			done = append(done, o.Rcpt)
			if m.active != nil {
				delete(m.active.outcomes, o.Rcpt)
				delete(m.active.rcpts, o.Rcpt)
			}
		}
		if !reply.Settled {
			s.log.done(m, done)
		}
	case n.Notice == proto.NoticeSuccess || n.Notice == proto.NoticeTrace:
		if m.active != nil {
			m.active.success = nil
		}
		var done []int
		for _, o := range n.Outcomes {
			if m.isDone(o.Rcpt) {
				done = append(done, o.Rcpt)
			}
		}
		if !reply.Settled {
			s.log.done(m, done)
		}
	}
	if m.finishing { // the scheduler has done with it already
		s.finish(m)
		return
	}
	s.then(ev)
}

// finish ends a message's stay when nothing is left to do. Successes that the
// scheduler does not know of, because a former queue manager or cleanup
// recorded them, are reported first; should that fail, they are not: nothing
// may keep a message that has arrived.
func (s *Server) finish(m *message) {
	if !m.finishing && m.active != nil && len(m.active.success) > 0 {
		m.finishing = true
		s.notify(m, sched.NoticeTrace)
		return
	}
	s.log.finish(m)
	s.forget(m)
}
