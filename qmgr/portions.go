// The limits that several destinations have in common, and those of tenants, over
// several nodes: deliveries at once, rates, recipients a day. Each bound is claimed by
// itself, in its own unit (qmgr/sched/portion.go): of a rate of 100/h there are a
// hundred to be divided, and a node that has 30 of them delivers by 30/h meanwhile.
//
// Why a rate is divided, and the nodes do not go by a common meter: each delivery would
// have to wait for the database, and a node that is cut off would have to stop at once,
// whatever the rate is.
//
// Why all nodes that have mail want all of a rate: a message more or less to go does
// not say how soon it is to go. What waits is the measure for what counts by number,
// deliveries at once and recipients of a day.
//
// A rate by the day is claimed by its date. What was spent of it stays in use until
// midnight, UTC, as the scheduler counts; then it is another limit, of which this node
// has nothing yet.

package qmgr

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"posthaste/internal/nodeshare"
	"posthaste/internal/rate"
	"posthaste/qmgr/sched"
)

// dayPart is the part of a day's recipients that a node asks for in advance: one of so
// many. It is what is lost for the others when the node dies, until it comes back or
// the day ends.
const dayPart = 20

// dayOf is the number of a day, as rates by the day count.
func dayOf(t time.Time) int64 { return t.Unix() / int64(rate.Day/time.Second) }

// portionKey names a bound of a limit among nodes. No transport has a space in its
// name, so that it is no destination's. Where nodes have different settings for the
// time of a rate, they have different limits.
func portionKey(name sched.LimitName, b sched.Bound, limit rate.Rate, day int64) string {
	when := ""
	switch {
	case limit.Per == rate.Day:
		when = fmt.Sprintf("%s%d ", nodeshare.DayPrefix, day)
	case limit.Per > 0:
		when = limit.Per.String() + " "
	}
	key := fmt.Sprintf("%s%s of %s %s from %s", when, b, name.Level, name.Name, name.Source)
	if name.Tenant != "" {
		key += " for " + name.Tenant
	}
	return key
}

// portions is what this node has of shared limits. It is for the scheduler, as within.
func (n *nodes) portions() sched.Portions {
	told, alone, day := n.told, n.alone, n.day
	return func(name sched.LimitName, b sched.Bound, limit rate.Rate) int64 {
		key := portionKey(name, b, limit, day)
		has := min(int64(told[key]), limit.N)
		switch {
		case alone && limit.Per != rate.Day:
			return 0
		case has > 0:
			return has
		}
		n.ask(key)
		return -1
	}
}

// sharedUses is what this node uses of shared limits, and wants.
func (s *Server) sharedUses() (list []nodeshare.Use) {
	day := dayOf(s.now)
	s.sched.SharedUses(func(u sched.SharedUse) bool {
		use := nodeshare.Use{Key: portionKey(u.LimitName, u.Bound, u.Limit, day), Limit: int(u.Limit.N), Busy: int(u.Busy), Want: int(u.Want)}
		switch {
		case u.Want == 0 || u.Limit.Per == 0:
		case u.Limit.Per == rate.Day:
			use.Want = min(use.Want, max(use.Limit/dayPart, 1))
		default:
			use.Want = max(use.Limit-use.Busy, 0)
		}
		list = append(list, use)
		return true
	})
	slices.SortFunc(list, func(a, b nodeshare.Use) int { return cmp.Compare(a.Key, b.Key) })
	return list
}
