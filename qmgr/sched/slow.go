// Slow deliveries: those that wait for a host that does not answer. With thousands of dead
// destinations they would take all places of the process limit, and mail for hosts that do
// answer would wait behind them for as long as connections take to time out. So a delivery
// that has gone on for SlowTime gives its place to another. It goes on itself, beside
// the process limit, as long as there are no more than SlowLimit such deliveries.
//
// A destination of which nothing is known gets one delivery at a time then, until it
// answers: five that wait for the same dead host say no more than one does.

package sched

import (
	"cmp"
	"slices"
)

// A slowList is what a transport knows of the age of its deliveries. All of it is zero
// unless SlowLimit is set.
type slowList struct {
	// Deliveries that take a place of the process limit, in the order in which they began,
	// linked through entry.prv and entry.nxt.
	first, last *entry
	// Deliveries that take none; at most SlowLimit. It is as many as have gone on for
	// SlowTime, if SlowLimit allows.
	n int
	// When the first will have gone on for SlowTime. It does not run while n is SlowLimit.
	timer timer
}

// places is how many places of the process limit t's deliveries take.
func (t *transport) places() int { return t.busy - t.slow.n }

// full says whether the process limit keeps t from delivering.
func (t *transport) full() bool { return t.cfg.ProcessLimit > 0 && t.places() >= t.cfg.ProcessLimit }

// beginSlow notes that e has become busy.
func (s *Scheduler) beginSlow(t *transport, e *entry) {
	if t.cfg.SlowLimit <= 0 {
		return
	}
	l := &t.slow
	e.prv = l.last
	if l.last != nil {
		l.last.nxt = e
	} else {
		l.first = e
	}
	l.last = e
	s.markSlow(t)
}

// endSlow notes that the busy entry e ends. Another may have gone on for longer than
// SlowTime and not have been among the SlowLimit so far.
func (s *Scheduler) endSlow(t *transport, e *entry) {
	if t.cfg.SlowLimit <= 0 {
		return
	}
	if e.slow {
		e.slow = false
		t.slow.n--
	} else {
		t.slow.unlink(e)
	}
	s.markSlow(t)
}

// roomFor says whether the agent of e, which ends, may be kept idle. Where threads are
// scheduled, idle agents take places of the process limit. A slow delivery had none, so its
// agent needs that of one which has been idle for longer.
func (s *Scheduler) roomFor(e *entry) bool {
	t := e.peer.queue.tport
	if !e.slow || t.cfg.Mode != Thread || t.cfg.ProcessLimit == 0 || t.places()+t.idleCount < t.cfg.ProcessLimit {
		return true
	}
	if t.idleFirst == nil {
		return false
	}
	s.dismiss(t.idleFirst)
	return true
}

func (l *slowList) unlink(e *entry) {
	if e.prv != nil {
		e.prv.nxt = e.nxt
	} else {
		l.first = e.nxt
	}
	if e.nxt != nil {
		e.nxt.prv = e.prv
	} else {
		l.last = e.prv
	}
	e.prv, e.nxt = nil, nil
}

// markSlow takes off the list what has gone on for SlowTime, and has itself called again
// when the next will have.
func (s *Scheduler) markSlow(t *transport) {
	l, span := &t.slow, micros(t.cfg.SlowTime)
	for e := l.first; e != nil && l.n < t.cfg.SlowLimit && e.since+span <= s.now; e = l.first {
		l.unlink(e)
		e.slow = true
		l.n++
	}
	switch {
	case l.first == nil || l.n >= t.cfg.SlowLimit:
		s.stopTimer(&l.timer)
	case l.timer.pos == 0 || l.timer.at != l.first.since+span:
		s.startTimer(&l.timer, l.first.since+span)
	}
}

// recountSlow makes the list anew: the settings have changed.
func (s *Scheduler) recountSlow(t *transport) {
	s.stopTimer(&t.slow.timer)
	t.slow.first, t.slow.last, t.slow.n = nil, nil, 0
	var busy []*entry
	for _, e := range s.busy {
		if e != nil && e.peer.queue.tport == t {
			e.prv, e.nxt, e.slow = nil, nil, false
			busy = append(busy, e)
		}
	}
	// The count in the upper bits of the IDs is the order in which they began.
	slices.SortFunc(busy, func(a, b *entry) int { return cmp.Compare(a.id, b.id) })
	for _, e := range busy {
		s.beginSlow(t, e)
	}
}
