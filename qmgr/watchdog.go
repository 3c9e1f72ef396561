package qmgr

import (
	"slices"
	"time"

	"posthaste/internal/proto"
)

// agentGrace is what an agent has over daemon_timeout: it cuts deliveries off
// itself, and ends when that does not help.
const agentGrace = 15 * time.Minute

// watchPeriod is how often deliveries are looked at.
const watchPeriod = time.Minute

// watch has deliveries looked at while there are any.
func (s *Server) watch() {
	if s.watchAt.IsZero() && s.opt.Settings.DeliveryTime > 0 {
		s.watchAt = s.now.Add(min(watchPeriod, s.opt.Settings.DeliveryTime))
	}
}

// giveUpOverdue ends the wait for agents that hang: orders that nothing was
// heard of for far longer than an agent gives a delivery. What is said of them
// later on is heeded all the same (tooLate).
func (s *Server) giveUpOverdue() {
	s.watchAt = time.Time{}
	for _, d := range s.entries {
		if s.now.Sub(d.since) < s.opt.Settings.DeliveryTime {
			continue
		}
		s.opt.Log.Warning("timeout receiving delivery status from transport: %s", d.transport)
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

// tooLate takes in the answer to an order that is not waited for any more. Who
// has got the message is not to get it again.
func (s *Server) tooLate(d *delivery, reply *proto.DeliverReply) {
	if m := s.message(d.num); m != nil {
		s.finished(&proto.Finished{ID: m.id, Reply: *reply})
	}
}
