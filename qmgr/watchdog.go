// The watchdog over deliveries: an agent that hangs must not hold a place in the active
// queue for ever.

package qmgr

import (
	"slices"
	"time"

	"posthaste/internal/proto"
)

// agentGrace is what an agent has in addition to daemon_timeout. It cuts deliveries off
// itself at daemon_timeout, and ends when that does not help; so this catches only agents
// that do neither.
const agentGrace = 15 * time.Minute

// watchPeriod is how often deliveries are looked at.
const watchPeriod = time.Minute

// watch has deliveries looked at, once in a watchPeriod while there are any.
func (s *Server) watch() {
	if s.watchAt.IsZero() && s.opt.Settings.DeliveryTime > 0 {
		s.watchAt = s.now.Add(min(watchPeriod, s.opt.Settings.DeliveryTime))
	}
}

// giveUpOverdue ends the wait for agents that hang. What they say later is taken in all
// the same (tooLate).
func (s *Server) giveUpOverdue() {
	s.watchAt = time.Time{}
	for _, d := range s.entries {
		if s.now.Sub(d.since) < s.opt.Settings.DeliveryTime {
			continue
		}
		s.opt.Log.Warning("timeout receiving delivery status from transport: %s", d.transport)
		// It may not even have been sent; then it must not be sent later.
		if a := s.agents[d.transport]; a != nil {
			a.waiting = slices.DeleteFunc(a.waiting, func(w *delivery) bool { return w == d })
		}
		for _, list := range s.formers[d.num] {
			list.waiting = slices.DeleteFunc(list.waiting, func(w *delivery) bool { return w == d })
		}
		s.lose(d)
	}
	if len(s.entries) > 0 {
		s.watch()
	}
}

// tooLate takes in the answer to an order that was given up. Recipients that have got the
// message must not get it again.
func (s *Server) tooLate(d *delivery, reply *proto.DeliverReply) {
	if m := s.message(d.num); m != nil {
		s.finished(&proto.Finished{ID: m.id, Reply: *reply})
	}
}
