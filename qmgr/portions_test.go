package qmgr

import (
	"testing"
	"time"

	"posthaste/internal/nodeshare"
	"posthaste/internal/rate"
	"posthaste/qmgr/sched"
)

// Of each bound of a shared limit this node has what the exchange says, and nothing of what it has not asked for, which is asked
// for at once. A node that is alone has all, but of a day; and of a day that has begun nobody has anything yet.
func TestPortions(t *testing.T) {
	t.Parallel()
	s := &Server{nodes: newNodes(true), now: time.Unix(1800000000, 0)}
	name := sched.LimitName{Level: sched.ProviderLimit, Name: "big"}
	at, hourly, daily := rate.Rate{N: 20}, rate.Rate{N: 100, Per: time.Hour}, rate.Rate{N: 1000, Per: rate.Day}
	key := func(b sched.Bound, r rate.Rate) string { return portionKey(name, b, r, dayOf(s.now)) }
	look := func(what string, b sched.Bound, r rate.Rate, want int64, hurried bool) {
		t.Helper()
		got := s.nodes.portions()(name, b, r)
		asked := len(s.nodes.hurry) == 1
		if asked {
			<-s.nodes.hurry
		}
		if got != want || asked != hurried {
			t.Errorf("%s: %d, asked for: %v", what, got, asked)
		}
	}
	look("at the start", sched.BoundConcurrency, at, -1, true)
	s.nodes.claimed = map[string]bool{}
	take := func(r nodeshare.Reply) {
		for _, g := range r.Grants {
			s.nodes.claimed[g.Key] = true
		}
		s.nodes.holder.Take(s.now, &r)
		s.applyShares()
	}
	take(nodeshare.Reply{Grants: []nodeshare.Grant{{Key: key(sched.BoundConcurrency, at), Share: 5, Target: 5}, {Key: key(sched.BoundMessages, hourly), Share: 200, Target: 200},
		{Key: key(sched.BoundRecipients, daily), Share: 50, Target: 50}, {Key: key(sched.BoundConnections, hourly)}}})
	if n := len(s.queue); n != 2 || s.queue[1].event.Kind != sched.EventPortions {
		t.Errorf("the scheduler has not been told: %+v", s.queue)
	}
	look("a share", sched.BoundConcurrency, at, 5, false)
	look("more than there is", sched.BoundMessages, hourly, 100, false)
	look("another time", sched.BoundMessages, rate.Rate{N: 100, Per: time.Minute}, -1, true)
	look("a day", sched.BoundRecipients, daily, 50, false)
	look("refused", sched.BoundConnections, hourly, -1, false)
	s.now = s.now.Add(24 * time.Hour)
	s.nodes.holder.Take(s.now, &nodeshare.Reply{Grants: []nodeshare.Grant{{Key: portionKey(name, sched.BoundRecipients, daily, dayOf(s.now)-1), Share: 50, Target: 50}}})
	s.applyShares()
	look("the next day", sched.BoundRecipients, daily, -1, true)
	take(nodeshare.Reply{Alone: true, Grants: []nodeshare.Grant{{Key: key(sched.BoundRecipients, daily), Share: 70, Target: 70}}})
	look("alone", sched.BoundConcurrency, at, 0, false)
	look("alone, a day", sched.BoundRecipients, daily, 70, false)
	told := len(s.queue)
	s.applyShares()
	if len(s.queue) != told {
		t.Error("the scheduler is told of what it knows")
	}
}
