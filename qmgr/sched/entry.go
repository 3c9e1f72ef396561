// Delivery requests. An entry joins the two orders of nqmgr: it belongs to a job, which
// says when its turn is, and to a destination, which says whether it may go. All counters
// of transports, jobs, peers and messages change here, in newEntry, selectEntry and
// endEntry, so that Check can hold them against each other.

package sched

import (
	"posthaste/internal/mail"
	"posthaste/internal/reuse"
)

// An entry is one delivery request: recipients of one message for one
// destination. It is waiting (on its peer's list) or busy (with an agent).
type entry struct {
	// What the agent's report will name. 0 while it waits, since only a selected entry
	// needs a name.
	id EntryID
	// Where it belongs; msg is peer.job.msg, at hand.
	peer *peer
	msg  *message
	// Indexes in the envelope, in the order in which agents see them. It has at most
	// BatchLimit members and is not changed while the entry is busy, since the effect
	// shares it.
	rcpts []int
	sites []string // flush domains, parallel to rcpts; empty: none has one
	apart uint32   // Rcpt.Apart of all of them
	busy  bool
	slow  bool  // when busy: takes no place of the process limit (slow.go)
	since int64 // when it became what it is: waiting or busy
	turn  int   // thread mode, when busy: deliveries of its agent's turn so far, this one included
	// Where it goes; nil: to its queue's next hop. Only the domains of a site have others.
	hop *mail.Nexthop
	// When busy: the innermost shared limits in which it counts, by tree; nil: none.
	leaves [trees]*shared
	// When busy: the limit of its tenant in which it counts; nil: none.
	allowance *shared
	// The sources from which it may go; nil: its queue has none.
	pool *Pool
	// Its recipients were refused for the sake of another source: see secondTry.
	second bool
	// Only when busy; nil otherwise.
	agent *agent
	// On the peer's list while it waits. While it is busy, on the transport's list in slow.go,
	// or nil.
	prv, nxt *entry
}

// EntryIDs are a count in the upper bits and an index into s.busy in the
// lower ones: found without a table, and never given twice before 2^40
// deliveries.
//
// 2^24 deliveries at once is far beyond any process limit.
const entryBits = 24

// setBusy gives an entry that has been selected its ID and its place among the busy ones.
func (s *Scheduler) setBusy(e *entry) {
	n := len(s.busyFree)
	var i int
	if n > 0 {
		i = int(s.busyFree[n-1])
		s.busyFree = s.busyFree[:n-1]
	} else {
		i = len(s.busy)
		s.busy = append(s.busy, nil)
	}
	s.busy[i] = e
	s.entrySeq++
	e.id = EntryID(s.entrySeq<<entryBits | uint64(i))
	e.busy = true
	e.since = s.now
}

// busyEntry finds the entry that an agent reports on; nil when the report is late,
// repeated or made up. The index is the agent's to choose, so it is checked before use.
func (s *Scheduler) busyEntry(id EntryID) *entry {
	i := int(id & (1<<entryBits - 1))
	if i >= len(s.busy) || s.busy[i] == nil || s.busy[i].id != id {
		return nil
	}
	return s.busy[i]
}

// clearBusy takes a busy entry's ID back. The index is used again; the count in the upper
// bits keeps the next ID different.
func (s *Scheduler) clearBusy(e *entry) {
	i := int(e.id & (1<<entryBits - 1))
	s.busy[i] = nil
	s.busyFree = append(s.busyFree, int32(i))
}

// newEntry makes a waiting entry at the end of p's list.
func (s *Scheduler) newEntry(p *peer) *entry {
	if p.job.cand == candIndexed {
		s.unindexJob(p.job) // its size changes
	}
	e := s.entries.Get()
	e.peer, e.msg, e.since = p, p.job.msg, s.now
	e.prv = p.tail
	if p.tail != nil {
		p.tail.nxt = e
	} else {
		p.head = e
	}
	p.tail = e
	// refs count entries until they end, todo only those that wait.
	p.refs++
	p.job.msg.refs++
	p.job.read++
	p.todo++
	q := p.queue
	q.todo++
	if p.todo == 1 {
		s.peerBegins(p)
	}
	// A destination that fills the active queue is warned of when it grows, not when it
	// is served.
	s.clogCheck(q)
	return e
}

// nexthop is where e goes.
func (e *entry) nexthop() mail.Nexthop {
	if e.hop != nil {
		return *e.hop
	}
	return e.peer.queue.nexthop
}

// unlinkTodo takes a waiting entry off its peer's list: it is about to be
// delivered, or to go elsewhere.
func (s *Scheduler) unlinkTodo(e *entry) {
	p := e.peer
	if e.prv != nil {
		e.prv.nxt = e.nxt
	} else {
		p.head = e.nxt
	}
	if e.nxt != nil {
		e.nxt.prv = e.prv
	} else {
		p.tail = e.prv
	}
	e.prv, e.nxt = nil, nil
	p.todo--
	p.queue.todo--
	p.job.selected++
	if p.todo == 0 {
		s.peerEnds(p)
	}
}

// selectEntry makes a waiting entry busy, and counts the delivery slot that
// its job earns.
func (s *Scheduler) selectEntry(e *entry) {
	p := e.peer
	j, q := p.job, p.queue
	// A job earns by delivering: each entry is one slot, of which SlotCost pay for one
	// entry of a smaller job (preempt).
	j.slotsUsed++
	j.slotsAvail++
	// The candidate index orders jobs by what they still need, which this selection
	// changes; so the job leaves the index first.
	s.startJob(j)
	s.unlinkTodo(e)
	q.busy++
	j.tport.busy++
	s.stats.Busy++
	s.tenants[e.msg.tenant].busy++
	s.setBusy(e)
	s.beginSlow(j.tport, e)
	// The job's next entry should be for its next destination: that is the round robin of
	// nqmgr, which keeps one slow destination from taking all of a job's turns.
	s.turnPeer(p)
	p.claim.seat.use(len(e.rcpts))
	j.lane.seat.use(len(e.rcpts))
	if q.limited() {
		s.beginShared(e)
	}
	if p.claim.allowed != nil {
		s.beginAllowed(e)
	}
	s.updateQueue(q)
}

// endEntry is the end of an entry, delivered (busy) or moved elsewhere. The order of its
// steps is that of nqmgr's qmgr_entry_done: recipient slots go back to the pool before
// anything is read with them, and the destination's rate pause begins before the
// destination can be chosen again. complete comes last: it may end the message, and with
// it job and peer.
func (s *Scheduler) endEntry(e *entry) {
	p := e.peer
	j, q, m, t := p.job, p.queue, e.msg, p.job.tport
	n, busy := len(e.rcpts), e.busy
	if busy {
		s.endSlow(t, e)
		s.clearBusy(e)
		q.busy--
		t.busy--
		s.stats.Busy--
		s.tenants[m.tenant].busy--
		if e.leaves != ([trees]*shared{}) {
			s.endShared(e)
		}
		if e.allowance != nil {
			s.endAllowed(e)
		}
	} else {
		s.startJob(j)
		s.unlinkTodo(e)
	}
	j.rcptCount -= n
	m.rcptCount -= n
	s.stats.Rcpts -= n
	// Jobs of the same message that have gone off the list, or have nothing left to read,
	// hold slots that nobody will use.
	for _, o := range m.jobs {
		if o != j && o.rcptLimit > o.rcptCount && (!o.linked || m.unread == 0) {
			s.moveLimits(o)
		}
	}
	// While recipients are still to be read, the job keeps its slots for them.
	if m.unread == 0 {
		s.moveLimits(j)
	}
	if busy {
		q.lastDone = s.now
		s.rateSuspend(q)
	}
	// e is not used after this.
	p.refs--
	s.freeEntry(e)
	s.updateQueue(q)
	if p.refs == 0 {
		s.freePeer(p)
	}
	s.settleJob(j)
	s.releaseQueue(q)
	m.refs--
	s.refill(m, t)
	if m.refs == 0 {
		s.complete(m)
	}
}

// freeEntry gives an entry back. The domains are cleared, because a pool must not keep
// strings of strangers alive.
func (s *Scheduler) freeEntry(e *entry) {
	clear(e.sites)
	*e = entry{rcpts: reuse.Truncated(e.rcpts), sites: reuse.Truncated(e.sites)}
	s.entries.Put(e)
}
