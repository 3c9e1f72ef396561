// What may be spent of limits by the day, on one machine, is written down before it is
// spent. A queue manager that is killed must not send a second time what may go in a day,
// and what it has sent since the file was last written nobody knows. So the scheduler is
// given a twentieth of the limit at a time, as a sequence gives out numbers: the file says
// that it is spent, durably, before the scheduler may spend it. After a crash all of it
// counts as spent: no day has more than its limit, and up to a twentieth of it may be left
// unsent. A queue manager that ends in order writes what was spent indeed.
//
// Nodes that share a queue have their portions from the database, which remembers them:
// see portions.go. Where no limit is by the day nothing is written for this.
//
// Other rates are not written ahead: what was spent of 100/h is paid with time, and what a
// crash can lose is what was spent since the file was written, a minute's mail.

package qmgr

import (
	"time"

	"posthaste/internal/rate"
	"posthaste/qmgr/sched"
)

// aheadTime is how often it is looked whether more has to be written ahead, while mail waits
// for limits by the day, and aheadIdle how often while none does; at once when nothing has
// been written yet of a limit that mail waits for.
const aheadTime, aheadIdle = 100 * time.Millisecond, time.Second

// A dayBound is a bound of a limit by the day.
type dayBound struct {
	sched.LimitName
	sched.Bound
}

// ahead is what is written ahead. It belongs to the loop.
type ahead struct {
	day  int64              // for which it holds
	told map[dayBound]int64 // up to which count the scheduler may spend. It is replaced, not changed
	// wanted says that something waits of which nothing is written yet, and used that there
	// are limits by the day at all.
	wanted, used bool
	at           time.Time // when it is looked next
}

// portions is what the scheduler may spend. Other limits than those by the day are its own.
func (a *ahead) portions() sched.Portions {
	told := a.told
	return func(name sched.LimitName, b sched.Bound, limit rate.Rate) int64 {
		// Of a source that warms up mail would go elsewhere until the disk has answered: what a kill can
		// lose of its count is a minute's mail.
		if limit.Per != rate.Day || b == sched.BoundWarmup {
			return 0
		}
		a.used = true
		if n := min(told[dayBound{name, b}], limit.N); n > 0 {
			return n
		}
		a.wanted = true
		return -1
	}
}

// tellAhead tells the scheduler what is written.
func (s *Server) tellAhead() {
	s.then(sched.Event{Kind: sched.EventPortions, Portions: s.ahead.portions()})
}

// newDay begins anew at midnight, UTC, as rates by the day do. It comes before anything
// else in a turn: what was written for the old day is not for the new one.
func (s *Server) newDay() {
	day := dayOf(s.now)
	switch {
	case s.nodes != nil && s.nodes.day != day && s.nodes.told != nil:
		s.nodes.unsure = false // what the predecessor has used was the old day's
		s.applyShares()
	case s.ahead != nil && s.ahead.day != day:
		s.ahead.day, s.ahead.told = day, nil
		s.tellAhead()
	}
}

// lookAhead writes more when the scheduler has nearly spent what it was given.
func (s *Server) lookAhead() {
	a := s.ahead
	if a == nil || !a.used || s.spent.writing || s.leaving || !a.wanted && s.now.Before(a.at) {
		return
	}
	a.at, a.wanted = s.now.Add(aheadIdle), false
	next := make(map[dayBound]int64, len(a.told))
	more := false
	s.sched.SharedUses(func(u sched.SharedUse) bool {
		if u.Limit.Per != rate.Day || u.Bound == sched.BoundWarmup {
			return true
		}
		if u.Want > 0 {
			a.at = s.now.Add(aheadTime)
		}
		k := dayBound{u.LimitName, u.Bound}
		next[k] = a.told[k]
		part := max(u.Limit.N/dayPart, 1)
		// Half of it is left when more is written, so that deliveries seldom wait for the disk.
		if most := min(u.Busy+part, u.Limit.N); u.Want > 0 && next[k] < most && next[k]-u.Busy <= part/2 {
			next[k], more = most, true
		}
		return true
	})
	if !more {
		return
	}
	day := a.day
	s.writeSpent(next, func(err error) {
		// If the disk does not take it, mail goes all the same: then a crash can lose the count.
		if a.day == day {
			a.told = next
			s.tellAhead()
		}
	})
}

// aheadOf is what has been spent, and what may be.
func (s *Server) aheadOf(list []sched.Spent, told map[dayBound]int64) []sched.Spent {
	at := make(map[sched.LimitName]int, len(list))
	for i := range list {
		at[sched.LimitName{Level: list[i].Level, Name: list[i].Name, Source: list[i].Source, Tenant: list[i].Tenant}] = i
	}
	for k, n := range told {
		i, ok := at[k.LimitName]
		if !ok {
			i = len(list)
			at[k.LimitName] = i
			list = append(list, sched.Spent{Level: k.Level, Name: k.Name, Source: k.Source, Tenant: k.Tenant})
		}
		m := meterOf(&list[i], k.Bound)
		if m == nil || n == 0 {
			continue
		}
		if m.Date < s.ahead.day {
			m.Date, m.Count = s.ahead.day, 0
		}
		m.Count = max(m.Count, n)
	}
	return list
}

// meterOf is what counts against a bound; nil: nothing that is kept.
func meterOf(sp *sched.Spent, b sched.Bound) *rate.Meter {
	switch b {
	case sched.BoundConnections:
		return &sp.Connections
	case sched.BoundMessages:
		return &sp.Messages
	case sched.BoundRecipients:
		return &sp.Recipients
	}
	return nil
}
