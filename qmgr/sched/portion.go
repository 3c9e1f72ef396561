package sched

import (
	"time"

	"posthaste/internal/rate"
)

// Several schedulers, each on its own machine, may deliver the mail of one queue, and divide the shared limits between them. Who
// gets how much is not decided here: this scheduler says what it uses and wants of each bound of a limit ([Scheduler.SharedUses]),
// and is told its portion ([Portions]). A portion of a number of deliveries at once is a smaller number, and one of a rate a
// slower rate. A limit of which there is no portion is shut: nothing begins below it.
//
// What was used must be kept as long as it counts, or others would use it once more. Deliveries count until they end. Of a rate
// that is spread, what was spent is paid with the time that follows, at the rate by which it was spent: so when a portion is
// made smaller, the larger one is in use until what was owed then has been paid. Of a rate by the day all that was spent counts
// until midnight.
//
// What a source may send while it warms up is another such count. Without a portion of that its limit is not shut: it is as if
// the source had sent all that it may, so that mail goes from others. And a portion is wanted as long as there is one to be had,
// whether mail waits or not: what has gone elsewhere does not come back to wait for it.

// A Bound is one of those that a shared limit may have.
type Bound uint8

const (
	BoundConcurrency Bound = iota // Limits.Concurrency
	BoundConnections              // Limits.Connections
	BoundMessages                 // Limits.Messages
	BoundRecipients               // Limits.Recipients
	BoundWarmup                   // Limits.Warmup
	bounds
)

// String is the bound's name, as limits have it.
func (b Bound) String() string {
	return [...]string{"concurrency", "connections", "messages", "recipients", "warmup"}[b]
}

// A LimitName names a shared limit.
type LimitName struct {
	Level  Level // up to TenantLimit
	Name   string
	Source string // "": it holds whatever mail goes from
	Tenant string // "": it holds whosever mail it is
}

// Portions says how much of one bound of a shared limit may be used: 0: all of it; less than 0: nothing for now; else so
// much, in the unit of the bound: deliveries at once, or the N of its rate. limit is the whole. It must
// always answer the same, and is called in Step.
type Portions func(name LimitName, b Bound, limit rate.Rate) int64

// A SharedUse is what is used of one bound of a shared limit, and what more could be.
type SharedUse struct {
	LimitName
	Bound Bound
	Limit rate.Rate // the whole; of BoundConcurrency without a time
	Busy  int64     // in the unit of the bound
	Want  int64     // more than that
}

// askTime is how long a limit is remembered at least that has no portion of what a source may send while it warms up, in µs: all
// of its mail may go from others at once.
const askTime = int64(10 * time.Second / time.Microsecond)

// A kept is what has to be kept of a rate although the portion is smaller now.
type kept struct{ n, until int64 }

// bound is the whole of one bound of l; zero: there is none.
func (l *Limits) bound(b Bound) rate.Rate {
	switch b {
	case BoundConcurrency:
		return rate.Rate{N: int64(l.Concurrency)}
	case BoundConnections:
		return l.Connections
	case BoundMessages:
		return l.Messages
	case BoundWarmup:
		return l.Warmup
	}
	return l.Recipients
}

// setBound changes the number in one bound of l.
func (l *Limits) setBound(b Bound, n int64) {
	switch b {
	case BoundConcurrency:
		l.Concurrency = int(n)
	case BoundConnections:
		l.Connections.N = n
	case BoundMessages:
		l.Messages.N = n
	case BoundRecipients:
		l.Recipients.N = n
	case BoundWarmup:
		l.Warmup.N = n
	}
}

// meter is what counts against one bound; nil: deliveries under way do.
func (n *shared) meter(b Bound) *rate.Meter {
	switch b {
	case BoundConnections:
		return &n.conns
	case BoundMessages:
		return &n.msgs
	case BoundRecipients:
		return &n.rcpts
	case BoundWarmup:
		return &n.warm
	}
	return nil
}

// setPortions replaces what was said before. nil: all limits are this scheduler's alone.
func (s *Scheduler) setPortions(p Portions) {
	s.portions = p
	for _, n := range s.shares {
		s.portion(n)
	}
}

// portion brings what n bounds in line with its limits and with this scheduler's portion of them.
func (s *Scheduler) portion(n *shared) {
	l, shut, cold := n.full, false, false
	if s.portions != nil && n.key.level <= TenantLimit {
		for b := range bounds {
			whole := n.full.bound(b)
			if whole.N == 0 {
				continue
			}
			switch p := s.portions(LimitName{n.key.level, n.key.name, n.key.source, n.key.tenant}, b, whole); {
			case p < 0 && b == BoundWarmup:
				cold = true
				n.asks = max(n.asks, s.now+askTime) // somebody has to see that it wants a portion
			case p < 0:
				shut = true
				s.keep(n, b, 0)
				l.setBound(b, 1) // what is about to begin is counted as for the smallest portion
			case p > 0 && p < whole.N:
				l.setBound(b, p)
				s.keep(n, b, p)
			}
		}
	}
	if n.limits == l && n.shut == shut && n.cold == cold {
		return
	}
	for b := range bounds {
		s.carry(n, b, l.bound(b))
	}
	n.limits, n.shut, n.cold = l, shut, cold
	n.allow()
	s.settleShared(n)
}

// carry has what is owed outlast a change of the portion, which comes with each turn of what cannot be divided: to forgive it
// then, as when somebody sets another limit, would let deliveries with many recipients go again and again.
func (s *Scheduler) carry(n *shared, b Bound, to rate.Rate) {
	m, was := n.meter(b), n.limits.bound(b)
	// At a smaller portion what was spent is paid as before: for so long others are kept from it.
	if m == nil || to.Per != was.Per || to.N <= was.N || m.Due <= s.now {
		return
	}
	// At a larger one it is as many, which takes less time; but no less than what others have waited for.
	owed := float64(m.Due-s.now) * float64(was.N) / float64(to.N)
	m.Due = max(s.now+int64(owed), min(m.Due, n.kept[b].until))
}

// keep notes what is owed at the rate that there was, when the portion becomes smaller.
func (s *Scheduler) keep(n *shared, b Bound, to int64) {
	m, was := n.meter(b), n.limits.bound(b)
	if m == nil || was.N <= to || was.Per == rate.Day || m.Due <= s.now {
		return
	}
	k := &n.kept[b]
	if k.until <= s.now {
		*k = kept{}
	}
	k.n, k.until = max(k.n, was.N), max(k.until, m.Due)
}

// SharedUses visits the bounds of all shared limits of which something is used or wanted, in no particular order.
func (s *Scheduler) SharedUses(yield func(SharedUse) bool) {
	for _, n := range s.shares {
		if n.key.level > TenantLimit {
			continue // a pace is its destination's own
		}
		for b := range bounds {
			u := SharedUse{LimitName{n.key.level, n.key.name, n.key.source, n.key.tenant}, b, n.full.bound(b), n.used(b, s.now), int64(max(n.backlog, n.waiting, n.line.n))}
			if b == BoundWarmup {
				u.Want = max(u.Limit.N-u.Busy, 0) // what has gone elsewhere is not seen here
			}
			// What was counted before a restart is in use, and how much it may be is known when there is mail again.
			if m := n.meter(b); n.full == (Limits{}) && m != nil && m.Today(s.now) > 0 {
				u.Busy, u.Want = m.Today(s.now), 0
				u.Limit = rate.Rate{N: u.Busy, Per: rate.Day}
			}
			if u.Limit.N > 0 && u.Busy+u.Want > 0 && !yield(u) {
				return
			}
		}
	}
}

// used is what counts against one bound now.
func (n *shared) used(b Bound, now int64) int64 {
	m, r := n.meter(b), n.limits.bound(b)
	switch {
	case m == nil:
		return int64(n.busy + n.held)
	// Who has a place already may begin at any moment.
	case r.Per == rate.Day:
		return m.Today(now) + int64(n.held)
	}
	used := int64(0)
	if m.Due > now || n.held > 0 {
		used = r.N
	}
	if k := &n.kept[b]; k.until > now {
		used = max(used, k.n)
	}
	return used
}
