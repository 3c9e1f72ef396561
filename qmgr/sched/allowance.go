// Limits of tenants: how much of a tenant's mail may be under way, and in what time, wherever it
// goes. Such a limit is a shared limit by itself, in no tree: it has the same meters, the same
// line and the same timer, but who stands in its line are claims, not destinations. A
// destination that could take an entry offers it to the claim whose turn it is. If that one's
// tenant has room, the claim gets a place, which is for one delivery, and is open as long as it
// has it. If not, it stands in its tenant's line, nobody at the destination waits for it, and
// the offer goes to the next tenant. So what a tenant may not send keeps nobody else's mail, and
// what a tenant may send is found without looking at any destination that cannot go.
//
// A claim that is called may not be able to go at once: the window of its destination is full, it is the turn of
// others there, or the destination waits for limits of its own. If its place went to the next in line, it
// could have each of the two only when the other is taken, for ever. So it waits with its place: for a
// moment at first, and when that was in vain, the next time for as long as it has been kept from going.
// What stands idle meanwhile is the tenant's own. Nobody waits for a tenant's limit with anything in hand
// that others need, so that each wait ends.
//
// A limit bounds deliveries to recipients. The transports that only say why mail is not delivered
// are not counted: retry and error.

package sched

import (
	"cmp"
	"time"
)

// TenantTerms are what holds for the mail of one tenant. The zero value of each is the
// configuration's.
type TenantTerms struct {
	Weight int    // of its turns; see Config.TenantWeight
	Limits Limits // Concurrency, Messages and Recipients, over all its destinations
	// MaximalLifetime and BounceLifetime, for its mail.
	Lifetime, BounceLifetime time.Duration
}

// setTenant takes note of the terms of a tenant that has mail in memory.
func (s *Scheduler) setTenant(name string, terms *TenantTerms) {
	t := s.tenantIndex[name]
	if t == nil || t.terms == *terms {
		return
	}
	t.terms = *terms
	s.reweighOne(t)
	for _, tp := range s.transports {
		// A shorter turn may be over.
		if l := tp.lookLane(t.number); l != nil && tp.others != nil {
			s.passOn(l, 0)
		}
	}
	// A limit that is no limit any more stays, and has room for all: what is under way counts in it.
	switch {
	case t.limit != nil:
		s.changeLimits(t.limit, terms.Limits)
	case terms.Limits != (Limits{}):
		s.limitTenant(t)
	}
	s.seatAgain(t)
}

// limitTenant gives a tenant a limit. What it has under way, or is offered, counts from now on.
func (s *Scheduler) limitTenant(t *tenant) {
	k := sharedKey{level: TenantLimit, name: t.name}
	n := s.shares[k]
	if n == nil {
		n = s.newShared(k)
	}
	t.limit, n.tenant = n, t
	n.members++
	if s.hasJobs(t) {
		s.adoptPlaces(t)
		s.adoptTenant(t)
	}
	s.changeLimits(n, t.terms.Limits)
	s.settleShared(n)
}

// hasJobs says whether mail of t has been assigned to destinations.
func (s *Scheduler) hasJobs(t *tenant) bool {
	for _, tp := range s.transports {
		if l := tp.lookLane(t.number); l != nil && l.jobs > 0 {
			return true
		}
	}
	return false
}

// adoptTenant brings what there is of a tenant's mail under its limit, which is new: the table
// has changed.
func (s *Scheduler) adoptTenant(t *tenant) {
	n := t.limit
	for c := range s.claimsOf(t) {
		if c.open && c.pair == nil {
			c.allowed = n
			n.held++
		}
	}
	for _, e := range s.busy {
		if e != nil && e.msg.tenant == t.number && e.allowance == nil && !e.peer.queue.tport.settles() {
			e.allowance = n
			n.busy++
		}
	}
}

// leaveLimit parts a tenant that is forgotten from its limit, which is remembered while what was
// counted is of use.
func (s *Scheduler) leaveLimit(t *tenant) {
	if n := t.limit; n != nil {
		t.limit, n.tenant = nil, nil
		n.members--
		s.settleShared(n)
	}
}

// lookLane is a tenant's lane in t; nil: it has none.
func (t *transport) lookLane(tenant uint16) *lane {
	if t.lane.tenant == tenant {
		return &t.lane
	}
	return t.laneOf[tenant]
}

// settles says whether deliveries of t reach nobody, but say why mail is not delivered.
func (t *transport) settles() bool { return t.name == RetryTransport || t.name == ErrorTransport }

// limitOf is the innermost limit of the tenant whose claim c is: that at the place, or that of the tenant; nil: it
// has none.
func (s *Scheduler) limitOf(c *claim) *shared {
	if c.pair != nil {
		return c.pair
	}
	if t := s.tenants[c.tenant]; t != nil && t.limit != nil && !c.queue.tport.settles() {
		return t.limit
	}
	return nil
}

// inLine says whether c waits for its tenant's limit.
func (c *claim) inLine() bool { return c.stand != nil && c.stand.gate != nil }

// may says whether c, whose turn it is at an available destination, may have an entry chosen. If not,
// it is in its tenant's line.
func (s *Scheduler) may(c *claim) bool {
	n := s.limitOf(c)
	// Who stands in line is served before who comes, also when there is room for a moment: the places of those
	// are given out at the end of the Step (grantAll).
	switch {
	case n == nil || c.allowed == n:
		return true
	case c.inLine():
		return false
	case s.free(n):
		s.takePlace(c, n)
		return true
	}
	s.standInLine(c, n)
	return false
}

// takePlace gives c a place of its tenant's limits, from n on upwards.
func (s *Scheduler) takePlace(c *claim, n *shared) {
	c.allowed = n
	for a := n; a != nil; a = a.parent {
		a.held++
	}
	s.settleShared(n)
}

// standInLine has c wait for its tenant's limit.
func (s *Scheduler) standInLine(c *claim, n *shared) {
	if c.stand == nil {
		c.stand = &stander{claim: c}
	}
	s.joinLine(n, c.stand)
	for a := n; a != nil; a = a.parent {
		a.waiting++
	}
	c.queue.lined += c.peers.n
	s.settleShared(n)
}

// gateAbove is the limit that a claim which stands in n's line really waits for: the innermost on its way that has no
// room; n: it waits for its turn.
func (s *Scheduler) gateAbove(n *shared) *shared {
	for a := n; a != nil; a = a.parent {
		if !s.room(a) {
			return a
		}
	}
	return n
}

// quitLine takes c out of its tenant's line.
func (s *Scheduler) quitLine(c *claim) {
	q, n := c.queue, c.stand.gate
	s.leaveLine(c.stand)
	for a := n; a != nil; a = a.parent {
		a.waiting--
	}
	q.lined -= c.peers.n
	// It had no seat as long as it could not have used its turn.
	if q.others != nil && c.peers.n > 0 {
		q.seats.resume(&c.seat)
	}
	s.settleShared(n)
}

// grantAllowance calls the first claim in a tenant's line, which has the place from then on. All limits on its way
// have room.
func (s *Scheduler) grantAllowance(n *shared, c *claim) {
	n.granted++
	s.quitLine(c)
	s.takePlace(c, n)
	s.updateQueue(c.queue)
	if !c.open {
		s.waitWithPlace(c)
	}
}

// patience is for how long a claim that is called waits with its place when it could go each time before.
const patience = 10 * second

// waitWithPlace has c keep its place until its destination offers it an entry, unless that takes too long: other mail
// of the tenant may have use for it. It may take the longer, the longer c has been kept from going: so it goes some time,
// however slow its destination is.
func (s *Scheduler) waitWithPlace(c *claim) {
	if c.missed == 0 {
		c.missed = s.now
	}
	end := s.now + min(max(s.now-c.missed, patience), micros(s.cfg.MaximalBackoff))
	if c.queue.shut || s.opensAgain(c.queue) > end {
		s.giveBackPlace(c)
		return
	}
	if c.wait == nil {
		c.wait = &timer{kind: timerPlace, claim: c}
	}
	s.startTimer(c.wait, end)
}

// opensAgain is when q may be able to take an entry at the earliest, as far as that is a matter of time.
func (s *Scheduler) opensAgain(q *queue) int64 {
	if q.state != DestReady {
		return q.until
	}
	if n := s.gateOf(q); n != nil {
		return max(n.opens(s.now), s.now)
	}
	return s.now
}

// stopWaiting ends the wait of c with its place.
func (s *Scheduler) stopWaiting(c *claim) {
	if c.wait != nil {
		s.stopTimer(c.wait)
	}
}

// giveBackPlace is the reverse of takePlace: nothing of c can be chosen any more, or it has waited for long.
func (s *Scheduler) giveBackPlace(c *claim) {
	if n := c.allowed; n != nil {
		s.stopWaiting(c)
		c.allowed = nil
		for a := n; a != nil; a = a.parent {
			a.held--
		}
		s.settleShared(n)
	}
}

// beginAllowed makes a claim's place a delivery: e has been selected.
func (s *Scheduler) beginAllowed(e *entry) {
	c := e.peer.claim
	n := c.allowed
	c.allowed, c.missed, e.allowance = nil, 0, n
	for a := n; a != nil; a = a.parent {
		a.held--
		a.busy++
		a.spend(s.now, len(e.rcpts))
	}
	s.settleShared(n)
}

// endAllowed ends it.
func (s *Scheduler) endAllowed(e *entry) {
	n := e.allowance
	e.allowance = nil
	for a := n; a != nil; a = a.parent {
		a.busy--
	}
	s.settleShared(n)
}

// sated says whether a tenant has so much mail in the active queue that waits for its limit that no more
// is to enter: it would take the places of what can go.
func (s *Scheduler) sated(t *tenant) bool {
	// The line says that it waits, not whether there is room: that is so for a moment with the end of each delivery,
	// before the next one in line is called, and the whole backlog would slip in.
	most := s.cfg.SharedActiveLimit
	return t.limit != nil && most > 0 && t.active >= most && t.limit.line.n > 0
}

// seatAgain has a tenant take its turns again that was sated.
func (s *Scheduler) seatAgain(t *tenant) {
	if t.sated && !s.sated(t) {
		t.sated = false
		if t.waits() {
			s.seatTenant(t)
		}
	}
}

// bounds visits all limits for a delivery that p is about to give.
func (p *peer) bounds(yield func(*shared) bool) {
	for n := range p.queue.above {
		if !yield(n) {
			return
		}
	}
	for n := p.claim.allowed; n != nil; n = n.parent {
		if !yield(n) {
			return
		}
	}
}

// A Tenant describes a tenant that has mail in memory, for listings.
type Tenant struct {
	Name             string // "": all mail that is nobody's
	Terms            TenantTerms
	Weight           int
	Messages, Active int         // in memory; in the active queue
	Busy             int         // deliveries under way
	Limit            SharedLimit // without a name: it has none. Waiting counts its claims at destinations
	Sated            bool        // more of its mail waits outside the active queue for the limit
	// How long its mail is tried, and its mail with the null sender.
	Lifetime, BounceLifetime time.Duration
}

// Tenants visits all tenants with mail in memory, in no particular order.
func (s *Scheduler) Tenants(yield func(Tenant) bool) {
	for _, t := range s.tenants {
		if t == nil || t.msgs == 0 {
			continue
		}
		v := Tenant{Name: t.name, Terms: t.terms, Weight: t.weight, Messages: t.msgs, Active: t.active, Busy: t.busy, Sated: t.sated}
		v.Lifetime, v.BounceLifetime = s.lifetimes(t)
		if t.limit != nil && t.limit.full != (Limits{}) {
			v.Limit = t.limit.view(s)
		}
		if !yield(v) {
			return
		}
	}
}

// lifetimes are how long mail of t is tried, and its mail with the null sender.
func (s *Scheduler) lifetimes(t *tenant) (life, bounce time.Duration) {
	life = cmp.Or(t.terms.Lifetime, s.cfg.MaximalLifetime)
	return life, min(cmp.Or(t.terms.BounceLifetime, s.cfg.BounceLifetime), life)
}
