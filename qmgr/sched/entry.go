package sched

import "posthaste/internal/reuse"

// An entry is one delivery request: recipients of one message for one
// destination. It is waiting (on its peer's list) or busy (with an agent).
type entry struct {
	id       EntryID // 0 while it waits
	peer     *peer
	msg      *message
	rcpts    []int
	sites    []string // flush domains, parallel to rcpts; empty: none has one
	apart    uint32   // Rcpt.Apart of all of them
	busy     bool
	since    int64 // when it became what it is: waiting or busy
	turn     int   // thread mode, when busy: deliveries of its agent's turn so far, this one included
	agent    *agent
	prv, nxt *entry // on the peer's list
}

// EntryIDs are a count in the upper bits and an index into s.busy in the
// lower ones: found without a table, and never given twice before 2^40
// deliveries.
const entryBits = 24

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

// busyEntry finds an entry that an agent reports; nil when there is none.
func (s *Scheduler) busyEntry(id EntryID) *entry {
	i := int(id & (1<<entryBits - 1))
	if i >= len(s.busy) || s.busy[i] == nil || s.busy[i].id != id {
		return nil
	}
	return s.busy[i]
}

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
	p.refs++
	p.job.msg.refs++
	p.job.read++
	p.todo++
	q := p.queue
	q.todo++
	if p.todo == 1 {
		s.peerBegins(p)
	}
	s.clogCheck(q)
	return e
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
	j.slotsUsed++
	j.slotsAvail++
	s.startJob(j)
	s.unlinkTodo(e)
	q.busy++
	j.tport.busy++
	s.stats.Busy++
	s.setBusy(e)
	s.turnPeer(p)
	s.updateQueue(q)
}

// endEntry is the end of an entry, delivered (busy) or moved elsewhere. The
// order of things is nqmgr's.
func (s *Scheduler) endEntry(e *entry) {
	p := e.peer
	j, q, m, t := p.job, p.queue, e.msg, p.job.tport
	n, busy := len(e.rcpts), e.busy
	if busy {
		s.clearBusy(e)
		q.busy--
		t.busy--
		s.stats.Busy--
	} else {
		s.startJob(j)
		s.unlinkTodo(e)
	}
	j.rcptCount -= n
	m.rcptCount -= n
	s.stats.Rcpts -= n
	for _, o := range m.jobs {
		if o != j && o.rcptLimit > o.rcptCount && (!o.linked || m.unread == 0) {
			s.moveLimits(o)
		}
	}
	if m.unread == 0 {
		s.moveLimits(j)
	}
	if busy {
		q.lastDone = s.now
		s.rateSuspend(q)
	}
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

func (s *Scheduler) freeEntry(e *entry) {
	clear(e.sites)
	*e = entry{rcpts: reuse.Truncated(e.rcpts), sites: reuse.Truncated(e.sites)}
	s.entries.Put(e)
}
