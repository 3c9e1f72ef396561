// Who goes next under a shared limit. A destination that could take an entry asks its
// innermost limit for a place. With a place it is a candidate for selection; without, it
// stands in a line, and is none. A place is for one delivery, with one connection and one
// recipient at least. All limits from there to the top have room for the places that were
// given, so that whoever is a candidate may really begin: selection never has to look for
// one that may. A place that is not used, because the transport has no agent for it, is
// kept, and others of the same limits wait behind it. They mostly wait for the same agents.
//
//	provider   ◄─ line of sites and destinations, one turn each
//	  └ site   ◄─ line of destinations
//	      └ destination ── one place at a time, for one delivery
//
// A limit stands in its parent's line itself while somebody waits for it and it has room.
// So each place that becomes free at the top goes down to a destination in as many steps as
// there are levels, without looking at anybody who cannot go. Lines are first come, first
// served, and who has been served and wants more goes to the end. So who stands in a line
// of n is served after at most n others there, and those whose turn is owed.
//
// A turn is owed to a destination that is in two trees, when its turn came in one and there was
// no place in the other. It goes before all others there when it comes back. At the end it
// could stand for ever: whoever has ended a delivery would be before it in the one line each
// time, and have the place in the other when its own turn comes.
//
// That is not enough where others have both places nearly always, and the two are never free in
// one moment. So a destination that has lost a turn keeps its place in the tree of its source the
// next time, while it waits in the other: half of what it needs. It keeps it for as long at most
// as it has been losing turns, so that the time grows until it is enough. What stands idle is one
// place under a root, and that for half of the time at most: before another one is kept, others
// have the place for as long as it was idle. A place in the tree for all is never kept: nobody
// waits in a circle, nor for what one source may not send.

package sched

import "posthaste/internal/rate"

// A stander is a place in a limit's line: of a destination, or of a limit below.
type stander struct {
	gate     *shared // in whose line; nil: in none
	prv, nxt *stander
	// One of these is set for good, a claim only in the line of a tenant; tree is the tree of the line, of a destination's.
	queue *queue
	node  *shared
	claim *claim
	tree  int
	// A destination's: its turn here came, and there was no place in the other tree.
	owed bool
	// It stands among those at the head of the line whose turn is owed.
	ahead bool
	// gate's turns of its kind when it came, and how many of that kind stood before it then.
	joined, before uint64
}

// A line is the list of those who wait for a limit: those whose turn is owed, and then the
// others, first come first of each.
type line struct {
	first, last *stander
	owed        *stander // the last of those whose turn is owed; nil: there are none
	n, nOwed    int
}

// owing says whether a turn is owed to st, or to somebody in the line of the limit that it is.
func (st *stander) owing() bool { return st.owed || st.node != nil && st.node.line.owed != nil }

// joinLine puts st at the end of n's line, or behind the others whose turn is owed.
func (s *Scheduler) joinLine(n *shared, st *stander) {
	l := &n.line
	st.gate, st.prv, st.ahead = n, l.last, st.owing()
	st.joined, st.before = n.granted, uint64(l.n-l.nOwed)
	if st.ahead {
		st.joined, st.before = n.repaid, uint64(l.nOwed)
		st.prv, l.owed = l.owed, st
		l.nOwed++
	}
	if st.prv != nil {
		st.nxt, st.prv.nxt = st.prv.nxt, st
	} else {
		st.nxt, l.first = l.first, st
	}
	if st.nxt != nil {
		st.nxt.prv = st
	} else {
		l.last = st
	}
	l.n++
}

// leaveLine takes st out of the line in which it stands, if it stands in one.
func (s *Scheduler) leaveLine(st *stander) {
	if st.gate == nil {
		return
	}
	l := &st.gate.line
	if st.prv != nil {
		st.prv.nxt = st.nxt
	} else {
		l.first = st.nxt
	}
	if st.nxt != nil {
		st.nxt.prv = st.prv
	} else {
		l.last = st.prv
	}
	l.n--
	if st.ahead {
		l.nOwed--
		if l.owed == st {
			l.owed = st.prv
		}
	}
	st.gate, st.prv, st.nxt, st.ahead = nil, nil, nil, false
}

// ask brings a destination's place in line with whether it wants to begin a delivery, and
// says whether it may.
func (s *Scheduler) ask(q *queue, wants bool) bool {
	switch {
	case !wants:
		s.stepBack(q)
		return false
	case q.placed:
		return true
	// It wants, and stands in no line yet: the end of the line is its place, however long it
	// has had mail.
	case q.inLine() == nil:
		l := &q.legs[commonTree]
		if l.leaf == nil {
			l = &q.legs[sourceTree]
		}
		s.lineUp(l)
	}
	return false
}

// inLine is where q stands in a line; nil: nowhere. It never stands in two.
func (q *queue) inLine() *leg {
	for i := range q.legs {
		if l := &q.legs[i]; l.stand != nil && l.stand.gate != nil {
			return l
		}
	}
	return nil
}

// lineUp puts a destination at the end of its line in a tree.
func (s *Scheduler) lineUp(l *leg) {
	s.joinLine(l.leaf, l.stand)
	for a := l.leaf; a != nil; a = a.parent {
		a.waiting++
	}
	s.settleShared(l.leaf)
	if l.stand.tree == sourceTree {
		s.spilling = append(s.spilling, l.stand.queue) // it may have to wait until tomorrow
	}
}

// stepBack takes a destination out of its line, or gives back the place that it has. Nothing is
// owed to it then.
func (s *Scheduler) stepBack(q *queue) {
	q.repay()
	s.giveBackHalf(q)
	if l := q.inLine(); l != nil {
		s.leaveLine(l.stand)
		for a := l.leaf; a != nil; a = a.parent {
			a.waiting--
		}
		s.settleShared(l.leaf)
		return
	}
	if !q.placed {
		return
	}
	q.placed = false
	for a := range q.above {
		a.held--
	}
	for i := range q.legs {
		s.settleShared(q.legs[i].leaf)
	}
}

// settleShared brings n and the limits above it in line with a change: of who waits, of
// what has been counted, of what is bounded. Whoever changes one of these must call it.
// Places are not given here, but by grantAll: what is changing may be half changed.
func (s *Scheduler) settleShared(n *shared) {
	for n != nil {
		parent := n.parent
		if n.over > 0 {
			n.over = min(n.over, max(n.busy+n.held-n.limits.Concurrency, 0))
		}
		wants := n.line.n > 0 && s.room(n)
		switch {
		case parent == nil:
			if wants && !n.due {
				n.due = true
				s.roots = append(s.roots, n)
			}
		case wants && n.stand.gate == nil:
			s.joinLine(parent, &n.stand)
		// Somebody has come to it who goes before others.
		case wants && !n.stand.ahead && n.stand.owing():
			s.leaveLine(&n.stand)
			s.joinLine(parent, &n.stand)
		case !wants && n.stand.gate != nil:
			s.leaveLine(&n.stand)
		}
		s.await(n)
		if n.tenant != nil {
			s.seatAgain(n.tenant)
		}
		n = parent
	}
}

// await sets n's timer: to when its rates let the next go, if somebody waits for that. A
// place of its concurrency becomes free with the end of a delivery, which needs no timer.
func (s *Scheduler) await(n *shared) {
	if n.line.n > 0 && n.place() {
		if at := n.opens(s.now); at != never {
			if n.timer.pos == 0 || n.timer.at != at {
				s.startTimer(&n.timer, at)
			}
			s.setResting(n, false)
			return
		}
	}
	s.stopTimer(&n.timer)
	s.rest(n)
}

// grantAll gives out all places that there are.
func (s *Scheduler) grantAll() {
	for i := 0; i < len(s.roots); i++ {
		n := s.roots[i]
		n.due = false
		for n.parent == nil && n.line.n > 0 && s.room(n) { // it may have got a parent since
			s.grant(n)
		}
	}
	clear(s.roots)
	s.roots = s.roots[:0]
}

// grant gives a place of root, which has one and somebody in its line, to the destination
// whose turn it is. Every limit in a line has somebody in its own, and room.
//
// A destination that is in two trees needs a place in both. To hold one while it waits for the
// other would keep others from it that have both. So if the other tree has none to give, or has
// others in line, it lines up there, and the place goes to the next, unless it keeps that
// (keepHalf); its turn is owed to it. Each root is left with nobody in line or without room, and
// nobody lines up at one that has room and no line; so this ends.
func (s *Scheduler) grant(root *shared) {
	n := root
	var st *stander
	for n != nil {
		if st = n.line.first; st.claim != nil {
			s.grantAllowance(n, st.claim)
			return
		}
		if st.ahead {
			n.repaid++
		} else {
			n.granted++
		}
		s.leaveLine(st)
		n = st.node
	}
	q := st.queue
	own, other := &q.legs[st.tree], &q.legs[trees-1-st.tree]
	for a := own.leaf; a != nil; a = a.parent {
		a.waiting--
	}
	if q.half == nil && other.leaf != nil && !s.free(other.leaf) {
		st.owed = true
		s.settleShared(own.leaf)
		s.lineUp(other)
		if st.tree == sourceTree {
			s.keepHalf(q)
		}
		return
	}
	if !s.endHalf(q) {
		other.hold(1)
	}
	own.hold(1)
	q.placed = true
	q.repay()
	s.settleShared(own.leaf) // those below root whose turn it was go to the end of their lines
	s.settleShared(other.leaf)
	s.updateQueue(q)
}

// hold counts n places of a destination in a tree.
func (l *leg) hold(n int) {
	for a := l.leaf; a != nil; a = a.parent {
		a.held += n
	}
}

// A half is the place in the tree of its source that a destination keeps while it waits in the other.
type half struct {
	root  *shared // of the tree when it began
	since int64
	timer timer
}

// keepHalf has q, whose turn has come in the tree of its source, keep its place there until its turn comes in the other, in
// the line of which it stands; unless it has lost no turn before, or another one keeps a place or has just kept one.
func (s *Scheduler) keepHalf(q *queue) {
	if q.lost == 0 {
		q.lost = s.now
	}
	l := &q.legs[sourceTree]
	root := l.leaf
	for root.parent != nil {
		root = root.parent
	}
	end := s.now + min(s.now-q.lost, micros(s.cfg.MaximalBackoff))
	if s.opensAgain(q) >= end || root.keeper != nil || s.now < root.keeps {
		return
	}
	l.stand.owed = false // it has its turn
	q.half = &half{root: root, since: s.now, timer: timer{kind: timerHalf, queue: q}}
	root.keeper = q
	s.startTimer(&q.half.timer, end)
	l.hold(1)
	s.settleShared(l.leaf)
}

// endHalf ends that, and leaves the place to q. It says whether q had kept one.
func (s *Scheduler) endHalf(q *queue) bool {
	h := q.half
	if h == nil {
		return false
	}
	s.stopTimer(&h.timer)
	h.root.keeper, h.root.keeps = nil, s.now+(s.now-h.since)
	q.half = nil
	return true
}

// giveBackHalf is the reverse of keepHalf: q may not go, or it has waited for long enough.
func (s *Scheduler) giveBackHalf(q *queue) {
	if s.endHalf(q) {
		l := &q.legs[sourceTree]
		l.hold(-1)
		s.settleShared(l.leaf)
	}
}

// repay takes note that no turn is owed to q.
func (q *queue) repay() {
	q.lost = 0
	for i := range q.legs {
		if st := q.legs[i].stand; st != nil {
			st.owed = false
		}
	}
}

// free says whether n and all above it have room, and nobody who is to be served before.
func (s *Scheduler) free(n *shared) bool {
	for ; n != nil; n = n.parent {
		if n.line.n > 0 || !s.room(n) {
			return false
		}
	}
	return true
}

// beginShared makes a place a delivery: e has been selected.
func (s *Scheduler) beginShared(e *entry) {
	q := e.peer.queue
	q.placed = false
	// Terms may change while the delivery is under way. It ends where it began.
	for i := range q.legs {
		e.leaves[i] = q.legs[i].leaf
	}
	for a := range e.over {
		a.held--
		a.busy++
		a.spend(s.now, len(e.rcpts))
	}
	s.settleBoth(e)
	s.usedUp(q)
}

// settleBoth settles the limits in which an entry counts.
func (s *Scheduler) settleBoth(e *entry) {
	for _, leaf := range e.leaves {
		s.settleShared(leaf)
	}
}

// endShared ends it.
func (s *Scheduler) endShared(e *entry) {
	for a := range e.over {
		a.busy--
	}
	s.settleBoth(e)
	e.leaves = [trees]*shared{}
}

// reused: a delivery was made over a connection that was open before it. The one that was
// counted for it in advance was not needed.
func (s *Scheduler) reused(e *entry) {
	for a := range e.over {
		refund(&a.conns, a.limits.Connections, s.now, e.since, 1)
	}
	s.settleBoth(e)
}

// unmade: a delivery has not even been begun, since no agent could be had.
func (s *Scheduler) unmade(e *entry) {
	for a := range e.all {
		// A pace may have begun to rest meanwhile, and what is taken back would end that early. It is one
		// delivery's time, at a destination that has asked for less.
		if a.key.level != PaceLimit {
			a.refund(s.now, e.since, len(e.rcpts))
		}
	}
	s.settleBoth(e)
	if e.allowance != nil {
		s.settleShared(e.allowance)
	}
}

// divide cuts an entry that is about to be selected to what its limits have left for the
// day. The rest waits as an entry of its own.
func (s *Scheduler) divide(e *entry) {
	n := len(e.rcpts)
	for a := range e.peer.bounds {
		if r := a.limits.Recipients; r.Per == rate.Day {
			n = min(n, int(a.rcpts.Room(r, s.now))-a.held+1) // each other place is good for one
		}
		if r := a.limits.Warmup; r.N > 0 {
			n = min(n, int(a.warm.Room(r, s.now))-a.held+1)
		}
	}
	// There was room for one when the place was given, and there still is, but for limits
	// that have been made smaller since.
	if n = max(n, 1); n == len(e.rcpts) {
		return
	}
	rest := s.newEntry(e.peer)
	rest.apart, rest.hop, rest.since, rest.pool, rest.second = e.apart, e.hop, e.since, e.pool, e.second
	rest.rcpts = append(rest.rcpts, e.rcpts[n:]...)
	e.rcpts = e.rcpts[:n]
	if len(e.sites) > n {
		rest.sites = append(rest.sites, e.sites[n:]...)
		e.sites = e.sites[:n]
	}
}

// gateOf is the limit that a destination which stands in a line really waits for: the
// innermost on its way that has no room. nil: it waits for its turn.
func (s *Scheduler) gateOf(q *queue) *shared {
	l := q.inLine()
	if l == nil {
		return nil
	}
	for n := l.leaf; n != nil; n = n.parent {
		if !s.room(n) {
			return n
		}
	}
	return nil
}
