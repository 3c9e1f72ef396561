// Deliveries that agents had in hand for a queue manager that died. Agents that live call and say
// what goes on (former.go). Of an agent that died within moments of it nobody would speak, and its
// mail would be delivered again without a word. So cleanup is asked what is on record: with
// spool_exact_doubt all that may arrive, without it what was recorded by the way (handed.go).

package qmgr

import (
	"slices"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/qmgr/sched"
)

// askHands asks over the first connection to cleanup. It is called before cleanup is asked for the
// queue, so that the answer comes before the first message, and so before the first order.
func (s *Server) askHands(conn *ipc.Conn) {
	s.hands(conn, s.expectHands)
}

// hands asks cleanup what agents have in hand, and calls take in the loop. If cleanup dies before it
// has answered, take is not called: the next cleanup names what was in hand by itself.
func (s *Server) hands(conn *ipc.Conn, take func([]proto.Hand)) {
	conn.Go(&proto.Hands{}, func(payload []byte, err error) {
		reply := new(proto.HandsReply)
		if err == nil {
			err = reply.Decode(payload)
		}
		if err == nil {
			s.post(func() { take(reply.List) }, sched.Event{})
		}
	})
}

// expectHands makes former deliveries of what is in hand. An agent has callTime to call, as
// after a handover; what it has not spoken of by then is in doubt (silent).
func (s *Server) expectHands(list []proto.Hand) {
	for i := range list {
		h := &list[i]
		num := msgID(h.ID)
		rcpts := slices.DeleteFunc(h.Index, func(i int) bool { return s.goingTo(num, i) })
		// A handover has spoken of it, or it is no queue ID.
		if num == 0 || len(rcpts) == 0 {
			continue
		}
		s.formers[num] = append(s.formers[num], &former{id: h.ID, rcpts: rcpts, nexthop: h.Relay, onRecord: true, recorded: h.At, release: func() {}})
	}
	s.expectAt, s.lookAgain = s.now.Add(s.callTime), true
}

// goingTo says whether a former delivery to the recipient is known.
func (s *Server) goingTo(num sched.MsgID, i int) bool {
	return slices.ContainsFunc(s.formers[num], func(f *former) bool { return slices.Contains(f.rcpts, i) })
}

// recognise is called when an agent speaks of a former delivery to rcpts, before anything else is
// done with that. What is on record of it may be for some of the recipients only, since the next host
// had refused the others, and there may be several records. They become one former delivery. It was
// under way at when, which tells it from an earlier attempt.
func (s *Server) recognise(id mail.QueueID, rcpts []int, when time.Time) {
	num := msgID(id)
	var whole *former
	list := slices.DeleteFunc(s.formers[num], func(f *former) bool {
		if !f.onRecord || f.id != id || when.Before(f.recorded.Add(-recordLag)) || !slices.ContainsFunc(f.rcpts, func(i int) bool { return slices.Contains(rcpts, i) }) {
			return false
		}
		if whole == nil {
			whole = f
			return false
		}
		whole.join(f)
		return true
	})
	// From here on it is a former delivery like one that a handover names.
	if whole != nil {
		whole.onRecord, whole.rcpts = false, slices.Clone(rcpts)
		s.formers[num] = list
	}
}

// join has those who wait for g wait for f instead.
func (f *former) join(g *former) {
	for _, d := range g.waiting {
		if slices.Contains(f.waiting, d) {
			d.awaits--
		} else {
			f.waiting = append(f.waiting, d)
		}
	}
	f.after = append(f.after, g.after...)
}

// recordLag is how much later than the end of a delivery the record of its beginning may be, which
// waits for others without spool_exact_doubt.
const recordLag = time.Second

// A handKey is a recipient that is in hand.
type handKey struct {
	num  sched.MsgID
	rcpt int
}

// lookForHands asks once more when agents have had their time. An agent that had not called yet may
// have begun with a transaction after the first question, and have died with it. named are the
// recipients that are in doubt by what was on record at first.
func (s *Server) lookForHands(named map[handKey]bool) {
	conn := s.log.conn
	if conn == nil {
		return // the next cleanup names them
	}
	s.hands(conn, func(list []proto.Hand) {
		left := s.unclaimed(list, named)
		if len(left) == 0 {
			return
		}
		// What has ended while the answer was on its way is recorded when the next question is
		// answered. What is in both answers, nobody speaks for.
		s.log.after(func() {
			if conn := s.log.conn; conn != nil && !s.leaving {
				s.hands(conn, func(list []proto.Hand) { s.orphaned(s.unclaimed(list, named), left) })
			}
		})
	})
}

// unclaimed are the recipients in list that neither an order of ours nor a former delivery has, and
// that are not in named.
func (s *Server) unclaimed(list []proto.Hand, named map[handKey]bool) map[handKey]*proto.Hand {
	if len(list) == 0 {
		return nil
	}
	// Also those that wait for their turn: they are recorded as over, or not begun.
	ours := make(map[handKey]bool)
	for _, d := range s.entries {
		for _, i := range d.index {
			ours[handKey{d.num, i}] = true
		}
	}
	left := make(map[handKey]*proto.Hand)
	for k := range list {
		h := &list[k]
		for _, i := range h.Index {
			if key := (handKey{msgID(h.ID), i}); !ours[key] && !named[key] && !s.goingTo(key.num, i) {
				left[key] = h
			}
		}
	}
	return left
}

// orphaned names what is in now and in before as in doubt.
func (s *Server) orphaned(now, before map[handKey]*proto.Hand) {
	lost := make(map[*proto.Hand]*former)
	for key, h := range now {
		if before[key] == nil {
			continue // it has begun meanwhile, and has somebody to speak for it
		}
		// One line of the log for each record, with all recipients of it that are left.
		if lost[h] == nil {
			lost[h] = &former{id: h.ID, nexthop: h.Relay}
		}
		lost[h].rcpts = append(lost[h].rcpts, key.rcpt)
	}
	for _, f := range lost {
		// The message may be one that need not be in memory.
		slices.Sort(f.rcpts)
		s.summon([]sched.MsgID{msgID(f.id)}, func() { s.inDoubt(msgID(f.id), f) })
	}
}
