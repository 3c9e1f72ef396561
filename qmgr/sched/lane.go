package sched

import "posthaste/internal/reuse"

// A lane is a tenant's mail in a transport: its jobs in the order of service, which of them may preempt which,
// and the destinations that would take one of them now. A transport with mail of one tenant has one lane, its
// own; with more, the lanes take turns.
//
// A claim is a tenant's mail for a destination. When the destination can take an entry, it offers that to one
// claim, whose turn it is there; so a lane has work if something is offered to one of its claims. Whose turn
// it is for an agent and whose it is at a destination are two questions, and each has its own ring: a tenant
// whose mail all goes to one slow destination has its part of that, and nobody else waits behind it.
//
// Where agents are what is scarce, a tenant with mail for thousands of destinations could have the turn at one of
// them for long before it comes to use it. So an offer that others wait for passes to the next of them when its
// lane has had a whole turn, and has used it elsewhere (passOn).
type lane struct {
	tport  *transport
	tenant uint16 // by s.tenants
	weight int
	jobs   int
	seat   seat // among the lanes
	// Of its claims that are open, those with others at the destination, in the order in which they came to be
	// open; and how many recipients have gone, ever, with others in the transport.
	heldFirst, heldLast *claim
	served              uint64

	first, last *job // the job list
	byAge       timeline
	orphans     []*job       // jobs that have preempted a job that is gone
	avail       heap[*claim] // what is offered, by the first job that could take it
	ring        *claim       // thread mode: the thread whose turn is next; nil: none waits
	ringLen     int          // threads on the ring
	handed      uint64       // thread mode: deliveries begun, ever

	// The candidates for preemption: see candidate.go. fresh and started are buckets of
	// jobs not yet selected from and of others; loose are jobs that change too often to
	// be indexed. All are empty unless searching.
	searching      bool
	searched       int64 // when they were asked for last
	fresh, started []*bucket
	loose          []*job
}

// hasWork says whether some destination offers to take an entry.
func (l *lane) hasWork() bool { return l.ring != nil || l.avail.len() > 0 }

// claim: see lane.
type claim struct {
	queue  *queue
	lane   *lane // while it has peers, and after that until the lane is another's; nil: it has had none
	tenant uint16
	refs   int  // peers, waiting or busy
	seat   seat // among the claims of the queue

	// Its place among those of its lane that others wait for, and what the lane had served when it came there.
	held             bool
	heldPrv, heldNxt *claim
	since            uint64

	// Whether an entry of it may be chosen now: the destination may take one, and it is this claim's turn there.
	// offer alone sets it, and keeps the indexes in step. availAt is its place in lane.avail.
	open    bool
	availAt int32
	peers   peerList // with waiting entries, by place in the job list
	// Peers that were found blocked, and come back when it is open.
	parked *peer
	// Where its tenant has a limit (allowance.go): that of which it has a place, and its place in the line. missed is
	// since when it has been called and could not go; 0: it could. wait ends its wait with a place.
	allowed *shared
	stand   *stander
	missed  int64
	wait    *timer
	// What holds for its tenant at its destination (quota.go): as it was told, and the innermost limit of that; nil:
	// there is none.
	quota *Quota
	pair  *shared
	// Its jobs among the candidates for preemption, by size.
	classes []*class
	// Thread mode only: its place in the ring of its lane; nil when it is not in it.
	ringPrv  *claim
	ringNxt  *claim
	turn     int    // deliveries of the turn that an agent goes on with here; 0: the next turn is a new one
	joined   uint64 // lane.handed when it began to wait in the ring
	patience uint64 // deliveries that may begin before one of its own does
}

// place is for lane.avail.
func (c *claim) place(_ int, at int32) { c.availAt = at }

// availKey orders what is offered by the first job that could take it.
func (c *claim) availKey() key { return key{c.peers.topKey().hi, 0} }

// laneFor finds or makes a tenant's lane.
func (s *Scheduler) laneFor(t *transport, tenant uint16) *lane {
	l := &t.lane
	if l.tenant != tenant && (t.others != nil || l.jobs > 0) {
		l = t.laneOf[tenant]
	}
	if l != nil {
		if l.jobs == 0 { // the number may have been another's
			s.setLane(l, t, tenant)
		}
		return l
	}
	if t.laneOf == nil {
		t.laneOf = make(map[uint16]*lane)
		if t.lane.hasWork() {
			t.seats.stay(&t.lane.seat)
		}
	}
	l = s.lanePool.Get()
	s.setLane(l, t, tenant)
	t.laneOf[tenant] = l
	t.others = append(t.others, l)
	return l
}

// setLane makes l the lane of a tenant.
func (s *Scheduler) setLane(l *lane, t *transport, tenant uint16) {
	l.tport, l.tenant, l.weight = t, tenant, s.tenants[tenant].weight
	l.seat.lane = l
}

// lanes visits all lanes of t.
func (t *transport) lanes(yield func(*lane) bool) {
	if !yield(&t.lane) {
		return
	}
	for _, l := range t.others {
		if !yield(l) {
			return
		}
	}
}

// turnOf is the lane that may give the next entry; one of them must have work.
func (t *transport) turnOf() *lane {
	if t.others == nil {
		return &t.lane
	}
	for {
		if x, lost := t.seats.next(); lost == nil {
			return x.lane
		}
	}
}

// leftLane sees to a lane that may have no jobs any more. They go when none of the transport has any.
func (s *Scheduler) leftLane(l *lane) {
	t := l.tport
	l.jobs--
	t.jobCount--
	if t.jobCount > 0 || t.others == nil {
		return
	}
	t.lane.seat.rise()
	for i, o := range t.others {
		o.seat.rise()
		*o = lane{byAge: timeline{s: reuse.Truncated(o.byAge.s)}}
		s.lanePool.Put(o)
		t.others[i] = nil
	}
	t.others, t.laneOf = nil, nil
}

// claimFor finds or makes the claim of a lane on a destination.
func (s *Scheduler) claimFor(q *queue, l *lane) *claim {
	c := &q.claim
	switch {
	case c.lane == l && c.tenant == l.tenant:
		return c
	case c.lane == nil || c.refs == 0 && q.others == nil:
		c.queue, c.lane, c.tenant = q, l, l.tenant
		return c
	}
	if c := q.claimOf[l.tenant]; c != nil {
		c.lane = l
		return c
	}
	if q.claimOf == nil {
		q.claimOf = make(map[uint16]*claim)
		if q.claim.peers.n > 0 {
			q.seats.stay(&q.claim.seat)
		}
		if q.claim.open {
			q.claim.hold()
		}
	}
	c = s.claimPool.Get()
	c.queue, c.lane, c.tenant = q, l, l.tenant
	c.seat.claim = c
	q.claimOf[l.tenant] = c
	q.others = append(q.others, c)
	return c
}

// claims visits all claims on q.
func (q *queue) claims(yield func(*claim) bool) {
	if !yield(&q.claim) {
		return
	}
	for _, c := range q.others {
		if !yield(c) {
			return
		}
	}
}

// each visits every waiting peer of q, of each tenant in no particular order.
func (q *queue) each(f func(p *peer)) {
	for c := range q.claims {
		c.peers.each(f)
	}
}

// any is a peer that waits for q; there must be one.
func (q *queue) any() *peer {
	for c := range q.claims {
		if c.peers.n > 0 {
			return c.peers.top()
		}
	}
	return nil
}

// dropClaim forgets a claim without peers and without a seat, but for the one that is part of its queue.
func (s *Scheduler) dropClaim(c *claim) {
	q := c.queue
	if c == &q.claim {
		return
	}
	if q.cur == c {
		q.cur = &q.claim
	}
	last := len(q.others) - 1
	for i, o := range q.others {
		if o == c {
			q.others[i], q.others[last] = q.others[last], nil
			q.others = q.others[:last]
			break
		}
	}
	delete(q.claimOf, c.tenant)
	*c = claim{peers: peerList{odd: heap[*peer]{s: reuse.Truncated(c.peers.odd.s)}}, classes: reuse.Truncated(c.classes)}
	s.claimPool.Put(c)
	if last == 0 {
		q.claim.seat.rise()
		q.claim.letGo()
		q.others, q.claimOf = nil, nil
	}
}

// offer brings the indexes in line with whether an entry of c may be chosen, or with the job first in line.
func (s *Scheduler) offer(c *claim, open bool) {
	l := c.lane
	switch {
	case open && c.open:
		if l.tport.cfg.Mode != Thread {
			l.avail.fix(c.availAt, c.availKey())
		}
		return
	case !open && !c.open:
		return
	}
	c.open = open
	t := l.tport
	if !open {
		s.giveBackPlace(c)
	}
	if open {
		s.stopWaiting(c)
		t.offers++
		// They lose no turn: each keeps the turn number that it was parked with.
		for p := c.parked; p != nil; p = c.parked {
			p.unpark()
			p.job.turns.push(key{p.turn, 0}, p)
		}
	} else {
		t.offers--
	}
	switch {
	case t.cfg.Mode == Thread && open:
		l.ringAppend(c)
	case t.cfg.Mode == Thread:
		l.ringRemove(c)
		// Without mail or a free place its turn is over.
		c.turn = 0
	case open:
		l.avail.push(c.availKey(), c)
	default:
		l.avail.remove(c.availAt)
	}
	if open && t.others != nil {
		t.seats.sit(&l.seat)
	}
	if open && c.queue.others != nil {
		c.hold()
	} else {
		c.letGo()
	}
	// Only classes of what is offered are in the heaps of candidates.
	for _, k := range c.classes {
		k.settle()
	}
}

// turn is the claim that q, which has several, offers its next place to.
func (s *Scheduler) turn(q *queue) *claim {
	for q.others != nil {
		x, lost := q.seats.next()
		switch {
		case lost != nil && lost.claim.refs == 0:
			s.dropClaim(lost.claim)
		case lost == nil && x != nil:
			return x.claim
		case lost == nil:
			return q.cur
		}
	}
	return q.cur
}

// hold notes that others wait for what is offered to c.
func (c *claim) hold() {
	l := c.lane
	c.held, c.since = true, l.served
	c.heldPrv, c.heldNxt = l.heldLast, nil
	if l.heldLast != nil {
		l.heldLast.heldNxt = c
	} else {
		l.heldFirst = c
	}
	l.heldLast = c
}

// letGo is the reverse of hold.
func (c *claim) letGo() {
	if !c.held {
		return
	}
	l := c.lane
	if c.heldPrv != nil {
		c.heldPrv.heldNxt = c.heldNxt
	} else {
		l.heldFirst = c.heldNxt
	}
	if c.heldNxt != nil {
		c.heldNxt.heldPrv = c.heldPrv
	} else {
		l.heldLast = c.heldPrv
	}
	c.held, c.heldPrv, c.heldNxt = false, nil, nil
}

// maxPasses bounds the offers that are passed on with one delivery. Without it each delivery would take time for every
// destination that tenants share, where a turn is short.
const maxPasses = 16

// passOn counts recipients that have gone from a lane, and has what was offered to it before its last whole turn
// offered to others: a few at a time, those that it has had longest first.
func (s *Scheduler) passOn(l *lane, rcpts int) {
	l.served += uint64(rcpts)
	turn := uint64(l.seat.quantum())
	for n := 0; n < maxPasses && l.heldFirst != nil && l.served-l.heldFirst.since >= turn; n++ {
		c := l.heldFirst
		c.letGo()
		c.hold() // nobody else may want it
		c.queue.seats.pass(&c.seat)
		s.updateQueue(c.queue)
	}
}

// leftClaim sees to a claim that has lost a peer.
func (s *Scheduler) leftClaim(c *claim) {
	q := c.queue
	c.refs--
	if c.refs == 0 {
		s.leaveQuota(c)
	}
	switch {
	case c.refs > 0 || q.others == nil:
	case q.peerCount == 0: // nobody waits for a turn
		for q.others != nil {
			c := q.others[len(q.others)-1]
			c.seat.rise()
			s.dropClaim(c)
		}
	case c.seat.in == nil:
		s.dropClaim(c)
	}
}
