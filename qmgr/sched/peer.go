package sched

// A peer is what one job has for one destination: the meeting point of the
// two orders in which entries are chosen, jobs in turn and destinations in
// turn. It exists while some entry of it is waiting or busy.
//
// While entries wait, a peer is in its queue's heap of peers, ordered by the
// job's place in the job list, and either in its job's turn heap, or, when
// somebody looked and found the destination unavailable, on the
// destination's list of parked peers. Parking is what makes the round robin
// over destinations cheap: a destination that cannot take more is passed over
// once, and comes back by itself.
type peer struct {
	job        *job
	queue      *queue
	claim      *claim // of its job's tenant, on queue
	head, tail *entry // waiting, first in first out
	todo       int    // length of that list
	refs       int    // entries, waiting and busy
	// The number by which it stands in the round robin of its job; it keeps the number
	// while it is parked.
	turn     uint64 // place in the job's round robin
	parked   bool
	prv, nxt *peer // on claim.parked
	// Its class among the candidates for preemption; nil: its job is not indexed. links
	// are its places in the three orders of peerlist.go.
	class *class
	links [3]links
	index int // in job.peers
}

// peerFor finds or makes the peer of job j and queue q.
func (s *Scheduler) peerFor(j *job, q *queue) *peer {
	if p := j.findPeer(q); p != nil {
		return p
	}
	return s.newPeer(j, q)
}

// newPeer makes the peer of job j and queue q, which have none.
func (s *Scheduler) newPeer(j *job, q *queue) *peer {
	p := s.peers.Get()
	j.turn++
	p.job, p.queue, p.turn, p.index = j, q, j.turn, len(j.peers)
	j.peers = append(j.peers, p)
	p.claim = s.claimFor(q, j.lane)
	p.claim.refs++
	q.peerCount++
	if j.mapped {
		j.byQueue[q] = p
	}
	return p
}

// linearPeers is how many peers of a job are searched one by one. Most jobs
// have one.
const linearPeers = 8

// findPeer is the peer of j for q; nil when there is none.
func (j *job) findPeer(q *queue) *peer {
	if q.peerCount == 0 || len(j.peers) == 0 {
		return nil
	}
	if !j.mapped && len(j.peers) > linearPeers {
		j.mapped = true
		if j.byQueue == nil {
			j.byQueue = make(map[*queue]*peer)
		}
		for _, p := range j.peers {
			j.byQueue[p.queue] = p
		}
	}
	if j.mapped {
		return j.byQueue[q]
	}
	for _, p := range j.peers {
		if p.queue == q {
			return p
		}
	}
	return nil
}

// freePeer removes a peer whose last entry has ended. The last peer takes its place in
// job.peers, whose order means nothing.
func (s *Scheduler) freePeer(p *peer) {
	j := p.job
	last := len(j.peers) - 1
	j.peers[p.index] = j.peers[last]
	j.peers[p.index].index = p.index
	j.peers[last] = nil
	j.peers = j.peers[:last]
	if j.mapped {
		delete(j.byQueue, p.queue)
	}
	p.queue.peerCount--
	s.leftClaim(p.claim)
	*p = peer{}
	s.peers.Put(p)
}

// peerBegins: the first entry waits at p.
func (s *Scheduler) peerBegins(p *peer) {
	p.claim.peers.push(s.peerKey(p), p)
	p.queue.waiting++
	switch c := p.claim; {
	case c.inLine():
		p.queue.lined++
	case p.queue.others != nil:
		p.queue.seats.sit(&c.seat)
	}
	p.job.turns.push(key{p.turn, 0}, p)
	p.job.waiting++
	if p.queue.limited() || p.claim.pair != nil {
		s.countBacklog(p, 1)
	}
}

// peerKey is p's place among the peers of its queue: that of its job, or in a
// thread that of its message's age, or any.
func (s *Scheduler) peerKey(p *peer) key {
	switch c := &p.queue.tport.cfg; {
	case c.Mode == Thread && c.Order == Random:
		return key{s.rng.next(), 0}
	case c.Mode == Thread:
		// What comes back out of the deferred queue is older than what it meets.
		return key{uint64(s.record(p.job.msg).created), p.job.label}
	}
	return key{p.job.label, 0}
}

// peerEnds: no entry waits at p any more.
func (s *Scheduler) peerEnds(p *peer) {
	p.claim.peers.remove(p)
	p.queue.waiting--
	switch c := p.claim; {
	case c.inLine():
		if p.queue.lined--; c.peers.n == 0 {
			s.quitLine(c)
		}
	case c.peers.n == 0 && !c.open: // it may wait with a place
		s.giveBackPlace(c)
	}
	if p.parked {
		p.unpark()
	} else {
		p.job.turns.remove(p)
	}
	p.job.waiting--
	if p.queue.limited() || p.claim.pair != nil {
		s.countBacklog(p, -1)
	}
}

// turnPeer puts p last in its job's round robin.
func (s *Scheduler) turnPeer(p *peer) {
	p.job.turn++
	p.turn = p.job.turn
	if p.links[inTurn].in {
		p.job.turns.remove(p)
		p.job.turns.push(key{p.turn, 0}, p)
	}
}

// park takes p out of its job's round robin until something is offered to its claim again.
func (p *peer) park() {
	p.job.turns.remove(p)
	p.parked = true
	c := p.claim
	p.nxt = c.parked
	if c.parked != nil {
		c.parked.prv = p
	}
	c.parked = p
}

// unpark takes p off its queue's list of parked peers.
func (p *peer) unpark() {
	if p.prv != nil {
		p.prv.nxt = p.nxt
	} else {
		p.claim.parked = p.nxt
	}
	if p.nxt != nil {
		p.nxt.prv = p.prv
	}
	p.prv, p.nxt = nil, nil
	p.parked = false
}

// nextPeer is the next peer in j's round robin whose destination offers to take an entry; nil
// when there is none. Peers that it passes over are parked, so that each is looked at
// once however often the job is asked.
func (j *job) nextPeer() *peer {
	for j.turns.n > 0 {
		p := j.turns.top()
		if p.claim.open {
			return p
		}
		p.park()
	}
	return nil
}
