package sched

import "posthaste/internal/mail"

// An operator may set the limit of destinations' windows for now, beside the configuration
// ("posthaste limit"). Which destinations are meant is the shell's to say; the scheduler has
// every window that exists keep to it at once, and every one that comes to be. What is under
// way is let be: a smaller limit takes effect as deliveries end. A window that was made
// smaller grows again as deliveries succeed, when the limit is gone.

// Several nodes that share a queue divide the limits among them. A node that has no share of a destination's limit
// at the moment begins no delivery there, and has its mail wait: the destination is shut.

// SetLimits says what has been set for a destination: the most deliveries at once, 0 for
// nothing; less than 0: none may begin for now. Unless raises is true, a limit of the configuration that is smaller counts. It
// must always answer the same, and is called in Step.
type SetLimits func(transport mail.Transport, nexthop mail.Nexthop) (most int, raises bool)

// setLimits replaces what operators have set. nil: nothing.
func (s *Scheduler) setLimits(limits SetLimits) {
	s.limits = limits
	for _, t := range s.transports {
		for q := t.firstQueue; q != nil; q = q.nxt {
			s.limitWindow(q)
		}
	}
}

// limitWindow brings the window of a destination that exists within its limit, which may
// have changed.
func (s *Scheduler) limitWindow(q *queue) {
	q.limit, q.shut = s.windowLimit(q)
	if q.state == DestReady && q.limit > 0 {
		q.window = min(q.window, q.limit)
	}
	s.updateQueue(q)
}

// windowLimit is the most deliveries at once to a destination; 0: no limit; and whether none may begin. A destination
// rate delay means one at a time, as in Postfix, whatever was set.
func (s *Scheduler) windowLimit(q *queue) (limit int, shut bool) {
	t := q.tport
	limit = t.cfg.ConcurrencyLimit
	if s.limits != nil {
		n, raises := s.limits(t.name, q.nexthop)
		if n > 0 && (raises || limit == 0 || n < limit) {
			limit = n
		}
		shut = n < 0
	}
	if t.cfg.DestinationRateDelay > 0 {
		limit = 1
	}
	if n := t.cfg.AgentsPerThread; t.cfg.Mode == Thread && n > 0 && (limit == 0 || n < limit) {
		limit = n
	}
	return limit, shut
}
