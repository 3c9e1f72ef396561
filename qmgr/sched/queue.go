// Destinations, which nqmgr calls queues: their state, their window, and how they become
// available for selection. What the window's size should be is in feedback.go.

package sched

import (
	"posthaste/internal/adaptive"
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
	// Its transport, and its name there (see QueueName). Two recipients with the same
	// next hop share the queue, and so its window.
	tport *transport
	name  string
	// What its mail goes from, as the end of its name says (source.go); "": its recipients have
	// no pool.
	source string
	// The next hop as agents get it, in the letter case of the recipient that came first. A
	// site has several; then it is the first of them, and each entry has its own.
	nexthop  mail.Nexthop
	prv, nxt *queue // in tport's order of creation

	// until and timer are for the end of a dead or suspended time. window is 0 while the
	// destination is dead.
	state  DestState
	until  int64
	timer  timer
	window int // when ready
	limit  int // of the window; 0: none

	// Whether it has answered since it came to be, or was dead: unknown ones are tried by one
	// delivery at a time when slow deliveries give up their places.
	answered bool

	// It is dead by a hint of somebody else (hint.go). Of one that is not dead it says nothing.
	hearsay bool

	// Feedback that has not made up a whole step yet: towards a larger and a smaller
	// window, and the part of FailedCohortLimit used up by failures since the last
	// success.
	success, failure, failCohorts float64

	status dsn.Status // when dead: why
	reason string
	excuse mail.Nexthop // when dead: nexthop for the retry transport
	// Entries that wait here and entries that agents have; together they are what the
	// destination has in the active queue.
	todo int
	busy int // entries with agents

	// The limits that hold for it besides its window (shared.go): as it was told, where it is
	// in each tree of them, and whether it has a place in every tree in which it is.
	terms  *Terms
	legs   [trees]leg
	placed bool
	// The place that it keeps in one of two trees (gate.go), nil: none; and since when it has lost turns in that, 0: it has
	// lost none.
	half *half
	lost int64

	// What has been learnt of its answers, and the limit of its pace (adaptive.go); nil: nothing is followed, or
	// there is no pace.
	course *adaptive.Course
	paced  *shared

	// When a delivery last ended, whatever came of it: the connection cache hints go by
	// it. 0: none has.
	lastDone int64
	cache    Cache
	warnAt   int64 // no clog warning before
	// Index of the site for mail that waits for this destination's next answer; 0: none
	// does.
	site int32

	// Nothing may begin, whatever the window: see SetLimits.
	shut bool
	// Whether an entry may be chosen now: ready, window > busy, todo > 0, not shut, someMay, and a place under
	// its shared limits. updateQueue alone sets it.
	avail bool
	// Who has mail for it (lane.go). Mostly it is one tenant, which has the claim that is part of it. others are
	// those of further tenants, by number in claimOf; nil: there are none. cur is the one whose turn it is.
	claim
	others  []*claim
	claimOf map[uint16]*claim
	seats   ring
	cur     *claim
	waiting int // peers with waiting entries, of all claims
	lined   int // of those: of claims that wait for their tenants' limits
	// Peers altogether, waiting or busy. The queue cannot be forgotten while there is
	// one.
	peerCount int
	idle      *agent // idle agents with an open session, latest first
}

// initial is the window of a destination of which nothing is known.
func (q *queue) initial() int {
	if q.tport.cfg.SlowLimit > 0 && !q.answered {
		return 1
	}
	n := max(q.tport.cfg.InitialConcurrency, 1)
	if q.limit > 0 {
		n = min(n, q.limit)
	}
	return n
}

// queueFor finds or makes a destination. A new one takes over what is known of it: mail
// that waits on its account, agents that still have a session with it, and what a
// predecessor learnt.
func (s *Scheduler) queueFor(t *transport, name string, nexthop mail.Nexthop) *queue {
	if q := t.queues[name]; q != nil {
		return q
	}
	q := s.queuePool.Get()
	q.tport, q.name, q.nexthop = t, name, nexthop
	q.timer.kind, q.timer.queue = timerQueue, q
	q.claim.queue, q.claim.seat.claim, q.cur = q, &q.claim, &q.claim
	q.limit, q.shut = s.windowLimit(q)
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
	s.adopt(q)
	if s.inherited != nil {
		s.inherit(q)
	}
	return q
}

// releaseQueue forgets q when there is no reason to remember it. A dead destination is
// remembered until its time is over, unless more than twice as many destinations are in
// core as recipients may be: strangers choose destinations, and must not fill the memory
// with names.
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
	s.leaveCourse(q)
	// Agents with an open session outlive the queue, by the name of it.
	t.disownIdle(q)
	for tree := range q.legs {
		if q.legs[tree].leaf != nil {
			s.moveQueue(q, tree, nil)
		}
	}
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
	*q = queue{claim: claim{peers: peerList{odd: heap[*peer]{s: reuse.Truncated(q.peers.odd.s)}}, classes: reuse.Truncated(q.classes)}}
	s.queuePool.Put(q)
}

// updateQueue brings the indexes in line with a change of q: of its state, its window,
// its entries, or the job first in line. Whoever changes one of these must call it, or q
// is not served until something else happens to it; Check finds that.
func (s *Scheduler) updateQueue(q *queue) {
	for {
		avail := q.state == DestReady && q.window > q.busy && q.todo > 0 && !q.shut && q.someMay()
		if q.limited() {
			avail = s.ask(q, avail)
		}
		q.avail = avail
		if q.others != nil {
			if q.cur.peers.n == 0 {
				s.offer(q.cur, false)
			}
			if c := s.turn(q); c != q.cur {
				s.offer(q.cur, false)
				q.cur = c
			}
		}
		waits := q.cur.inLine()
		if !avail || s.may(q.cur) {
			s.offer(q.cur, avail)
			return
		}
		// Its tenant has no room. If it has only now come to wait for that, it is another one's turn.
		if s.offer(q.cur, false); waits {
			return
		}
	}
}

// someMay says whether there is mail that waits for no tenant's limit.
func (q *queue) someMay() bool { return q.lined < q.waiting }

// queueReady ends a dead or suspended time by its timer. After a rate delay the window is
// 1: the next delivery starts the next pause.
func (s *Scheduler) queueReady(q *queue) {
	suspended := q.state == DestSuspended
	s.makeReady(q)
	if suspended {
		q.window = 1
	}
	s.updateQueue(q)
	s.releaseQueue(q)
}

// makeReady ends a dead or suspended time. What was learnt before is void: the window is
// that of a new destination, but no smaller than the deliveries still under way, so that
// it can grow when these succeed.
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
	if q.course != nil { // what was learnt of how much it takes holds still
		b := s.bounds(q)
		q.window = q.course.Window(&b)
	}
}

// rateSuspend starts the pause that destination_rate_delay asks for after each delivery.
// It replaces a dead state: for a destination that gets one delivery at a time anyway,
// Postfix does not remember that it is dead either.
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

// clogCheck warns of a destination that fills more than a fifth of the active queue, at
// most once in qmgr_clog_warn_time. The fifth is Postfix's. The postmaster reads the
// warning, and gives the destination a transport of its own, or finds out why it is slow.
func (s *Scheduler) clogCheck(q *queue) {
	n := q.todo + q.busy
	if n <= s.cfg.ActiveLimit/5 || s.cfg.ClogWarn <= 0 || s.now < q.warnAt {
		return
	}
	q.warnAt = s.now + micros(s.cfg.ClogWarn)
	s.note(Note{Kind: NoteClog, Transport: q.tport.name, Queue: q.name, Count: n, Total: s.stats.Active})
}
