// Provisional messages: those that cleanup has told of while their clients wait, and that are on no disk
// (smtpd_delivery_wait). They are scheduled and delivered as all others. Whatever is recorded of them but a plain success
// makes cleanup keep them, and what cannot be tried at once is kept at once, so that nobody waits in vain. What others
// than cleanup do with a message, such as a notice to its sender, waits until it is kept. If cleanup goes away,
// they may be gone with it: nothing more is begun with them before the next one has told the queue.

package qmgr

import (
	"maps"
	"slices"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// A provision is what there is to know of a provisional message.
type provision struct {
	conn  *ipc.Conn // of the cleanup that told of it; another does not know it, unless it says so
	asked bool      // that is to keep it
	after []postponed
}

// postponed is what waits until a message is kept, or is gone.
type postponed struct{ kept, gone func() }

// provisional makes m, which is new, provisional. The end of the turn looks whether it is tried at once.
func (s *Server) provisional(m *message, conn *ipc.Conn) {
	m.provision = &provision{conn: conn}
	s.unordered = append(s.unordered, m.num)
}

// keep has cleanup make the message durable.
func (r *recorder) keep(num sched.MsgID, id mail.QueueID) {
	r.change(num, id).Keep = true
	r.urgent = true
}

// keep is recorder.keep, once.
func (s *Server) keep(m *message) {
	if !m.provision.asked {
		m.provision.asked = true
		s.log.keep(m.num, m.id)
	}
}

// onceKept calls kept when the message is on stable storage, at once if it is, or gone when it turns out that it is not
// there any more.
func (s *Server) onceKept(m *message, kept, gone func()) {
	if m.provision == nil {
		kept()
		return
	}
	s.keep(m)
	m.provision.after = append(m.provision.after, postponed{kept, gone})
}

// notifyKept is notify for a message that may be provisional. What has failed for good is told with the wish that it
// be kept: cleanup may refuse the message instead.
func (s *Server) notifyKept(m *message, what sched.Notice) {
	// All of them or none: with more than fit into one notice the message is not one that clients wait for.
	if m.provision != nil && what == sched.NoticeFailure && m.active != nil {
		if failed, next := m.failed(dsn.Failed, 0); next == 0 && len(failed) > 0 {
			s.log.update(m, proto.Op{Change: queue.Change{Outcomes: failed}})
		}
	}
	s.onceKept(m, func() {
		if !s.leaving { // else it stays pending, as in carry
			s.notify(m, what, 0)
		}
	}, func() { s.then(sched.Event{Kind: sched.EventNotified, ID: m.num}) })
}

// orderKept is order, unless cleanup, which alone knows the message, is away.
func (s *Server) orderKept(m *message, d *delivery) {
	// The delivery might be made twice: by this order, and after the client has sent the message again.
	if p := m.provision; p != nil && p.conn != s.log.conn {
		p.after = append(p.after, postponed{func() {
			if !s.leaving {
				s.order(m, d)
			}
		}, func() { s.lose(d) }})
		return
	}
	s.order(m, d)
}

// kept takes in that cleanup has the message on stable storage, if it was provisional.
func (s *Server) kept(num sched.MsgID) {
	m := s.messages[num]
	if m == nil || m.provision == nil {
		return
	}
	// What waits may look whether the message is provisional, and must find that it is not.
	after := m.provision.after
	m.provision = nil
	for _, p := range after {
		p.kept()
	}
}

// gone takes in that cleanup does not have a message that was provisional. Deliveries that are under way end; no other
// is begun. cleanup has named it.
func (s *Server) gone(id mail.QueueID) {
	m := s.message(msgID(id))
	if m == nil || m.id != id || s.log.removing(id) {
		return
	}
	var after []postponed
	if m.provision != nil {
		after = m.provision.after
		m.provision.after = nil
	}
	// The removal first: what is withdrawn by what follows is not tried again then.
	s.vanish(m)
	for _, p := range after {
		p.gone()
	}
}

// seeToProvisional has those kept that are not tried at once: of which a recipient waits for its destination, or that
// wait to be taken up. It is called at the end of each turn.
func (s *Server) seeToProvisional() {
	if len(s.unordered) == 0 {
		return
	}
	s.unordered = slices.DeleteFunc(s.unordered, func(num sched.MsgID) bool {
		m := s.messages[num]
		switch {
		// It has gone its way, one or the other.
		case m == nil || m.provision == nil || m.provision.asked:
			return true
		case m.active != nil && !m.active.complete:
			return false // it is being looked up where it goes
		}
		// It waits to be taken up, or some recipient waits for a place in a window, for a limit, for a destination
		// that is dead or suspended: all that may take longer than anybody waits.
		if m.active == nil || !m.active.ordered(m) {
			s.keep(m)
		}
		return true
	})
}

// ordered says whether all recipients that are pending are part of a delivery.
func (a *active) ordered(m *message) bool {
	for i, r := range a.rcpts {
		if !m.isDone(i) && (r == nil || r.order == nil) {
			return false
		}
	}
	return true
}

// provisionals are all provisional messages, in the order in which they came.
func (s *Server) provisionals() (list []*message) {
	for _, num := range slices.Sorted(maps.Keys(s.messages)) {
		if m := s.messages[num]; m.provision != nil {
			list = append(list, m)
		}
	}
	return list
}

// keepAll has all of them kept: the successor hears of mail on stable storage only.
func (s *Server) keepAll() {
	for _, m := range s.provisionals() {
		s.keep(m)
	}
}

// dropUnknown takes in that all of the incoming queue has come over conn: provisional messages that another cleanup told
// of, and that were not among it, are gone. But what was kept and is deferred or on hold by now is not told without
// being asked for: the predecessor may have died between recording that and saying so. Dropped here, it would lie in the
// queue, acknowledged, and nobody would try it.
func (s *Server) dropUnknown(conn *ipc.Conn) {
	var unsure []*message
	var numbers []uint64
	for _, m := range s.provisionals() {
		if m.provision.conn != conn {
			unsure, numbers = append(unsure, m), append(numbers, uint64(m.num))
		}
	}
	for len(numbers) > 0 {
		n := min(len(numbers), proto.PageNumbers)
		part := unsure[:n]
		s.readPage(&proto.Page{Numbers: numbers[:n]}, func(reply *proto.PageReply) { s.sure(part, reply) })
		unsure, numbers = unsure[n:], numbers[n:]
	}
}

// sure takes in which of the messages cleanup has, and drops the others.
func (s *Server) sure(list []*message, reply *proto.PageReply) {
	for i := range reply.Entries {
		e := &reply.Entries[i].Entry
		s.located(msgID(e.ID), e.Ref)
		s.kept(msgID(e.ID))
	}
	for _, m := range list {
		// It may have gone meanwhile, or be another one.
		if m.provision != nil && s.messages[m.num] == m {
			s.gone(m.id)
		}
	}
}
