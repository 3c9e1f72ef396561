package sched

import (
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/reuse"
)

// A queue is a destination within a transport, and how many deliveries to it
// may be under way: its window. It exists while it has entries, and while it
// is dead or suspended; what is known of a destination that works is
// forgotten with its last entry, as with Postfix.
//
// Only a ready queue becomes dead or suspended, and these only become ready.
type queue struct {
	tport    *transport
	name     string
	nexthop  mail.Nexthop
	prv, nxt *queue // in tport's order of creation

	state  DestState
	until  int64
	timer  timer
	window int // when ready
	limit  int // of the window; 0: none

	success, failure, failCohorts float64

	status  dsn.Status // when dead: why
	reason  string
	excuse  mail.Nexthop // when dead: nexthop for the retry transport
	todo    int          // entries waiting
	busy    int          // entries with agents
	created int64

	lastDone int64
	cache    Cache
	warnAt   int64 // no clog warning before
	site     int32

	avail     bool     // ready, window > busy, todo > 0
	availAt   int32    // in tport.avail
	peers     peerList // with waiting entries, by place in the job list
	peerCount int
	parked    *peer
	classes   []*class
	ringPrv   *queue // thread mode: in tport's ring
	ringNxt   *queue
	turn      int    // deliveries of the turn that an agent goes on with here; 0: the next turn is a new one
	joined    uint64 // tport.handed when it began to wait in the ring
	patience  uint64 // deliveries that may begin before one of its own does
	idle      *agent // idle agents with an open session, latest first
}

func (q *queue) place(_ int, at int32) { q.availAt = at }

// availKey orders available queues by the first job that each could serve.
func (q *queue) availKey() key { return key{q.peers.topKey().hi, 0} }

// initial is the window of a destination of which nothing is known.
func (q *queue) initial() int {
	n := max(q.tport.cfg.InitialConcurrency, 1)
	if q.limit > 0 {
		n = min(n, q.limit)
	}
	return n
}

func (t *transport) windowLimit() int {
	limit := t.cfg.ConcurrencyLimit
	if t.cfg.DestinationRateDelay > 0 {
		limit = 1
	}
	if n := t.cfg.AgentsPerThread; t.cfg.Mode == Thread && n > 0 && (limit == 0 || n < limit) {
		limit = n
	}
	return limit
}

// queueFor finds or makes a destination.
func (s *Scheduler) queueFor(t *transport, name string, nexthop mail.Nexthop) *queue {
	if q := t.queues[name]; q != nil {
		return q
	}
	q := s.queuePool.Get()
	q.tport, q.name, q.nexthop, q.created = t, name, nexthop, s.now
	q.timer.kind, q.timer.queue = timerQueue, q
	q.limit = t.windowLimit()
	q.window = q.initial()
	q.prv = t.lastQueue
	if q.prv != nil {
		q.prv.nxt = q
	} else {
		t.firstQueue = q
	}
	t.lastQueue = q
	t.queues[name] = q
	s.queueCount++
	if len(s.siteIndex) > 0 {
		q.site = s.siteIndex[siteKey{tport: t, name: name}]
	}
	t.adoptIdle(q)
	if s.inherited != nil {
		s.inherit(q)
	}
	return q
}

// releaseQueue forgets q when there is no reason to remember it. A dead
// destination is remembered until its time is over, unless too many are.
func (s *Scheduler) releaseQueue(q *queue) {
	if q.todo > 0 || q.busy > 0 || q.peerCount > 0 || q.tport == nil {
		return
	}
	if q.state == DestDead && s.queueCount > 2*s.cfg.RecipientLimit {
		s.stopTimer(&q.timer)
		s.makeReady(q)
	}
	if q.state != DestReady {
		return
	}
	t := q.tport
	t.disownIdle(q)
	if q.prv != nil {
		q.prv.nxt = q.nxt
	} else {
		t.firstQueue = q.nxt
	}
	if q.nxt != nil {
		q.nxt.prv = q.prv
	} else {
		t.lastQueue = q.prv
	}
	delete(t.queues, q.name)
	s.queueCount--
	*q = queue{peers: peerList{odd: heap[*peer]{s: reuse.Truncated(q.peers.odd.s)}}, classes: reuse.Truncated(q.classes)}
	s.queuePool.Put(q)
}

// updateQueue brings the indexes in line with what changed about q: its
// state, its window, its entries, the job first in line.
func (s *Scheduler) updateQueue(q *queue) {
	t := q.tport
	avail := q.state == DestReady && q.window > q.busy && q.todo > 0
	switch {
	case avail && q.avail:
		if t.cfg.Mode != Thread {
			t.avail.fix(q.availAt, q.availKey())
		}
		return
	case !avail && !q.avail:
		return
	}
	q.avail = avail
	if avail {
		for p := q.parked; p != nil; p = q.parked {
			p.unpark()
			p.job.turns.push(key{p.turn, 0}, p)
		}
	}
	switch {
	case t.cfg.Mode == Thread && avail:
		t.ringAppend(q)
	case t.cfg.Mode == Thread:
		t.ringRemove(q)
		q.turn = 0
	case avail:
		t.avail.push(q.availKey(), q)
	default:
		t.avail.remove(q.availAt)
	}
	for _, c := range q.classes {
		c.settle()
	}
}

// queueReady is the end of a dead or suspended time.
func (s *Scheduler) queueReady(q *queue) {
	suspended := q.state == DestSuspended
	s.makeReady(q)
	if suspended {
		q.window = 1
	}
	s.updateQueue(q)
	s.releaseQueue(q)
}

// makeReady ends a dead or suspended time; the window is that of a new queue.
func (s *Scheduler) makeReady(q *queue) {
	q.state, q.until = DestReady, never
	q.status, q.reason, q.excuse = dsn.Status{}, "", ""
	q.window = q.initial()
	if q.busy > 0 {
		q.window = q.busy
		if q.limit > 0 {
			q.window = min(q.window, q.limit)
		}
	}
	q.success, q.failure = 0, 0
}

// rateSuspend makes the pause after a delivery that destination_rate_delay
// asks for. Of a rate-limited destination it is not remembered that it is
// dead.
func (s *Scheduler) rateSuspend(q *queue) {
	d := q.tport.cfg.DestinationRateDelay
	if d <= 0 {
		return
	}
	if q.state != DestReady {
		s.stopTimer(&q.timer)
		s.makeReady(q)
	}
	q.state = DestSuspended
	q.until = s.now + micros(d)
	s.startTimer(&q.timer, q.until)
}

// clogCheck warns of a destination that fills the active queue.
func (s *Scheduler) clogCheck(q *queue) {
	n := q.todo + q.busy
	if n <= s.cfg.ActiveLimit/5 || s.cfg.ClogWarn <= 0 || s.now < q.warnAt {
		return
	}
	q.warnAt = s.now + micros(s.cfg.ClogWarn)
	s.note(Note{Kind: NoteClog, Transport: q.tport.name, Queue: q.name, Count: n, Total: s.stats.Active})
}
