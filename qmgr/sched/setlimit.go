package sched

import "posthaste/internal/mail"

// An operator may set the limit of destinations' windows for now, beside the configuration
// ("posthaste limit"). Which destinations are meant is the shell's to say; the scheduler has
// every window that exists keep to it at once, and every one that comes to be. What is under
// way is let be: a smaller limit takes effect as deliveries end. A window that was made
// smaller grows again as deliveries succeed, when the limit is gone.

// SetLimits says what has been set for a destination: the most deliveries at once, 0 for
// nothing. Unless raises is true, a limit of the configuration that is smaller counts. It
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
	q.limit = s.windowLimit(q)
	if q.state == DestReady && q.limit > 0 {
		q.window = min(q.window, q.limit)
	}
	s.updateQueue(q)
}

// windowLimit is the most deliveries at once to a destination; 0: no limit. A destination
// rate delay means one at a time, as in Postfix, whatever was set.
func (s *Scheduler) windowLimit(q *queue) int {
	t := q.tport
	limit := t.cfg.ConcurrencyLimit
	if s.limits != nil {
		if n, raises := s.limits(t.name, q.nexthop); n > 0 && (raises || limit == 0 || n < limit) {
			limit = n
		}
	}
	if t.cfg.DestinationRateDelay > 0 {
		limit = 1
	}
	if n := t.cfg.AgentsPerThread; t.cfg.Mode == Thread && n > 0 && (limit == 0 || n < limit) {
		limit = n
	}
	return limit
}
