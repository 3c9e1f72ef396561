// Limits that hold over several nodes. With a queue that nodes share, each has a share
// of the limit of every destination, which follows what it has to do: package nodeshare
// says how, and cleanup carries the exchanges to the database. Here it is said what is
// in use and what is wanted, and the scheduler is told of this node's share as it is
// told of what an operator has set. A destination without a share begins nothing.
//
// What is shared are the windows of destinations: those of main.cf, those that
// operators have set, and the one delivery at a time of destination_rate_delay, whose
// pause counts as if it were in use, so that no other node delivers before it is over.
// The limits that destinations have in common (sched.Terms), and those of tenants, are
// shared as well, each of their bounds by itself (portions.go).
//
// Why the scheduler knows nothing of nodes: what it needs is how many deliveries may be
// under way to a destination now, and that an operator could have said as well. So a
// share takes the way of "posthaste limit", with one thing more, that it may be none: a
// window is never less than one, since what is learnt of a destination is learnt by
// trying, and so a destination without a share is shut, whatever its window.
//
// Why the first share is asked for at once, and is not a fixed part of the limit: with
// many nodes and small limits a fixed part would be nothing, and with two nodes half of
// each limit would lie idle with the one that has no mail for it. Most destinations
// have little mail and are with one node, which then has all of the limit until another
// wants some.
//
// A queue manager that ends exchanges nothing more: its successor speaks for the node.
// Of deliveries that it leaves to their agents the successor does not know how many
// there are, and they are not counted, as they are not on one node.

package qmgr

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/nodeshare"
	"posthaste/internal/proto"
	"posthaste/qmgr/sched"
)

const (
	// sharePeriod is how often shares are exchanged, and shareHurry how soon after the
	// last exchange another one may follow, when there is mail for a destination of
	// which the node has no share yet.
	sharePeriod = time.Second
	shareHurry  = 100 * time.Millisecond
)

// nodes is what the loop knows of its shares. All of it is the loop's own, but for
// hurry.
type nodes struct {
	holder nodeshare.Holder
	told   map[string]int // what the scheduler was told last; nil: that it has nothing, or all
	day    int64          // on which day that was: rates by the day begin anew at midnight
	alone  bool           // it was told that it has all
	unsure bool           // what the predecessor has used of limits of days was not known
	// claimed are the limits of the last exchange that was begun. Of others it is not
	// known what there would be.
	claimed map[string]bool
	hurry   chan struct{} // capacity 1: some destination waits for its first share
}

// newNodes is for a queue that nodes share; nil for another.
func newNodes(shared bool) *nodes {
	if !shared {
		return nil
	}
	return &nodes{hurry: make(chan struct{}, 1)}
}

// shareKey names the limit of a destination. Next hops are compared without regard to
// case, here as in the scheduler's own names for destinations.
func shareKey(transport mail.Transport, nexthop mail.Nexthop) string {
	return string(transport) + ":" + strings.ToLower(string(nexthop))
}

// nodeLimit is the limit of a destination over all nodes; 0: it has none. set is what
// operators have set, as sched.SetLimits.
func (s *Server) nodeLimit(set sched.SetLimits, transport mail.Transport, nexthop mail.Nexthop) int {
	if transport == sched.RetryTransport || transport == sched.ErrorTransport {
		return 0
	}
	c := &s.opt.Settings.Sched
	t := c.DefaultTransports
	if c.Transport != nil {
		t = c.Transport(transport, t)
	}
	limit := t.ConcurrencyLimit
	if set != nil {
		if n, raises := set(transport, nexthop); n > 0 && (raises || limit == 0 || n < limit) {
			limit = n
		}
	}
	if t.DestinationRateDelay > 0 {
		limit = 1
	}
	return limit
}

// within is set, as far as other nodes leave it. It is for the scheduler, and called in
// the loop; what it answers does not change until there is another.
func (n *nodes) within(s *Server, set sched.SetLimits) sched.SetLimits {
	// The holder's words are for this moment, and the scheduler keeps to them until it
	// is told of others.
	told, alone := n.told, n.alone
	return func(transport mail.Transport, nexthop mail.Nexthop) (int, bool) {
		most, raises := 0, false
		if set != nil {
			most, raises = set(transport, nexthop)
		}
		limit := s.nodeLimit(set, transport, nexthop)
		if limit == 0 || alone {
			return most, raises
		}
		key := shareKey(transport, nexthop)
		if has := min(told[key], limit); has > 0 {
			return has, true
		}
		n.ask(key)
		return -1, false
	}
}

// ask has the next exchange begin soon if it is not known what there is of a limit.
func (n *nodes) ask(key string) {
	if n.claimed[key] {
		return
	}
	select {
	case n.hurry <- struct{}{}:
	default:
	}
}

// uses is what the node uses of limits, and wants: what is in use first, since that
// must not be left out. more: what only counts until the day is over is not all there.
func (s *Server) uses() (list []nodeshare.Use, more bool) {
	// A walk over all destinations once a second takes the loop a fraction of what one
	// delivery does for each of them. To keep count of what has changed would have to
	// be done with each.
	byKey := map[string]*nodeshare.Use{}
	set := s.operatorLimits()
	s.sched.Dests(func(d sched.Dest) bool {
		busy, limit := d.Busy, s.nodeLimit(set, d.Transport, d.Nexthop)
		if d.State == sched.DestSuspended {
			busy = max(busy, 1) // destination_rate_delay: nobody may deliver yet
		}
		if limit == 0 || busy+d.Todo == 0 {
			return true
		}
		key := shareKey(d.Transport, d.Nexthop)
		u := byKey[key]
		if u == nil {
			u = &nodeshare.Use{Key: key, Limit: limit}
			byKey[key] = u
		}
		// A destination with several sources has the limit for each of them.
		u.Busy, u.Want = max(u.Busy, busy), max(u.Want, d.Todo)
		return true
	})
	list = s.sharedUses()
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		list = append(list, *byKey[key])
	}
	return foremost(list)
}

// foremost is what there is room for in an exchange. The rest waits until others have
// ended.
func foremost(list []nodeshare.Use) (first []nodeshare.Use, more bool) {
	// What is in use goes before what is wanted: the row of a limit that is in use must
	// not be given back. What was used of a day counts until midnight, and there is
	// more of it with each destination that somebody writes to: it comes last, and its
	// rows stay without being claimed.
	rank := func(u *nodeshare.Use) int {
		switch {
		case u.Want == 0 && nodeshare.IsDay(u.Key):
			return 2
		case u.Busy == 0:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b nodeshare.Use) int { return rank(&a) - rank(&b) })
	n := min(len(list), proto.SharesLimit)
	return list[:n], n < len(list)
}

// applyShares tells the scheduler what it may use now, if that has changed.
func (s *Server) applyShares() {
	n := s.nodes
	alone, told := n.holder.Shares(s.now)
	day := dayOf(s.now)
	if alone == n.alone && day == n.day && maps.Equal(told, n.told) {
		return
	}
	// The scheduler looks at every destination when it is told: so it is told of what
	// has changed only.
	n.alone, n.told, n.day = alone, told, day
	s.tellLimits()
	s.then(sched.Event{Kind: sched.EventPortions, Portions: n.portions()})
}

// shareLimits exchanges shares until ctx ends. It is a goroutine of its own, since it
// waits for cleanup.
func (s *Server) shareLimits(ctx context.Context) {
	period := time.NewTimer(0)
	defer period.Stop()
	for ctx.Err() == nil {
		select {
		case <-period.C:
		case <-s.nodes.hurry:
		case <-ctx.Done():
			return
		}
		s.exchange(ctx)
		// Each new destination asks for its first share at once. When there are many,
		// they share an exchange.
		select {
		case <-time.After(shareHurry):
		case <-ctx.Done():
		}
		period.Reset(sharePeriod - shareHurry)
	}
}

// A begun is an exchange on its way.
type begun struct {
	at, until time.Time // when it began, and until when the shares are good that there were
	request   *nodeshare.Request
}

// exchange makes one exchange. If the answer does not come while the shares are good
// that there are, they are over.
func (s *Server) exchange(ctx context.Context) {
	ch := make(chan begun, 1)
	s.post(func() {
		b := begun{at: time.Now()}
		if s.leaving {
			ch <- b // it begins nothing more, and the successor speaks for the node
			return
		}
		uses, more := s.uses()
		b.request = s.nodes.holder.Request(b.at, "", uses)
		b.request.More = more
		// Of what is claimed the answer says whether there is a share. What comes
		// meanwhile has to ask again.
		s.nodes.claimed = make(map[string]bool, len(b.request.Claims))
		for i := range b.request.Claims {
			s.nodes.claimed[b.request.Claims[i].Key] = true
		}
		b.until = s.nodes.holder.Good()
		s.applyShares()
		ch <- b
	}, sched.Event{})
	var b begun
	select {
	case b = <-ch:
	case <-s.deaf:
		return
	case <-ctx.Done():
		return
	}
	if b.request == nil {
		return
	}
	// A node without good shares has nothing to lose by waiting: it waits as long as
	// the answer would be of use.
	if b.until.Before(b.at) {
		b.until = b.at.Add(nodeshare.Lease - nodeshare.Margin)
	}
	calling, cancel := context.WithDeadline(ctx, b.until)
	defer cancel()
	var reply proto.SharesReply
	// Cleanup may be on its way from one process to the next, or wait for the database:
	// both take their time, and then the node goes on with the shares that it has,
	// until they are over.
	conn, err := s.cleanup.Conn(calling)
	if err == nil {
		err = conn.Call(calling, &proto.Shares{Alone: b.request.Alone, Claims: b.request.Claims, More: b.request.More, Fresh: b.request.Fresh}, &reply)
	}
	s.post(func() {
		if err == nil {
			s.nodes.holder.Take(b.at, &nodeshare.Reply{Alone: reply.Alone, Grants: reply.Grants})
		}
		s.applyShares()
	}, sched.Event{})
}
