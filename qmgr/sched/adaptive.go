// Destinations whose deliveries follow what they answer (package adaptive). Here is where that law
// meets the rest: a course belongs to a destination from one source, says what its window is, and
// how fast its deliveries may follow each other.
//
// The window takes the place of the one that feedback.go makes. The pace is a shared limit that the
// destination shares with nobody: below all others, so that mail that waits for it does so as for any limit,
// costs nothing while it waits, and is parked outside the active queue when it is much. There is such a
// limit only while there is a pace.
//
// A destination that answers and wants less does not die of that: it rests, and its mail waits without an
// attempt. One with a pool of sources does die of refused connections, as it does without a course, so that its
// mail goes from other sources; but not while none of the others could take it. When it rests, what waits goes
// from another that does not.
//
// What was learnt outlives the mail for a destination, up to maxLearnt of each transport and for learntTime, if it
// keeps anything back. Strangers choose destinations: what is beyond that number is forgotten, the oldest first.
//
// With destination_adaptive = no, queue.course is nil, and nothing of this is done.

package sched

import (
	"container/list"
	"time"

	"posthaste/internal/adaptive"
	"posthaste/internal/mail"
	"posthaste/internal/rate"
)

const (
	maxLearnt  = 1 << 14
	learntTime = 6 * int64(time.Hour/time.Microsecond)
)

// rank orders levels from the innermost outwards.
func (l Level) rank() int {
	if l == PaceLimit {
		return -1
	}
	return int(l)
}

// A learnt is a course without mail.
type learnt struct {
	name, source string
	course       *adaptive.Course
	since        int64
}

// adaptives are a transport's courses without mail, by the name of the queue and by age. nil: there is none.
type adaptives struct {
	byName map[string]*list.Element
	oldest list.List
}

// take removes and returns what was learnt of a destination; nil: nothing.
func (a *adaptives) take(name string) *learnt {
	if a == nil {
		return nil
	}
	x := a.byName[name]
	if x == nil {
		return nil
	}
	// Who takes it changes it, so that there must be no second one of the name.
	delete(a.byName, name)
	return a.oldest.Remove(x).(*learnt)
}

// put keeps what was learnt, and forgets what is too old or too much.
func (t *transport) putLearnt(l *learnt) {
	// Most transports never need it.
	if t.learnt == nil {
		t.learnt = &adaptives{byName: make(map[string]*list.Element)}
	}
	a := t.learnt
	a.take(l.name)
	a.byName[l.name] = a.oldest.PushBack(l)
	// Each that is put in throws out two at most in the long run, so that this takes constant time.
	for {
		first := a.oldest.Front().Value.(*learnt)
		if len(a.byName) <= maxLearnt && l.since-first.since < learntTime {
			return
		}
		a.take(first.name)
	}
}

// Follows says whether what destinations of a transport answer is of interest.
func (s *Scheduler) Follows(name mail.Transport) bool {
	t := s.transportIndex[name]
	return t != nil && t.cfg.Adaptive
}

// bounds are those of a destination's course.
func (s *Scheduler) bounds(q *queue) adaptive.Bounds {
	c := &q.tport.cfg
	return adaptive.Bounds{Start: q.initial(), Floor: max(c.AdaptiveFloor, 1), Ceiling: q.limit,
		Slowest: max(micros(c.AdaptiveDelay), 1), Longest: max(micros(s.cfg.MaximalBackoff), 1)}
}

// adopt gives a new queue its course: what was learnt of the destination before, or an empty one.
func (s *Scheduler) adopt(q *queue) {
	t := q.tport
	if !t.cfg.Adaptive || t.name == RetryTransport || t.name == ErrorTransport {
		return
	}
	l := t.learnt.take(q.name)
	// What is older was not looked for: the provider may think otherwise by now.
	if l == nil || s.now-l.since > learntTime {
		q.course = new(adaptive.Course)
		return
	}
	// Its pace is in the tree of its source, and nobody has said yet what that is.
	q.setSource(l.source)
	s.setCourse(q, l.course)
}

// setCourse has a queue follow a course that knows something.
func (s *Scheduler) setCourse(q *queue, c *adaptive.Course) {
	q.course = c
	// A dead destination has no window until it is ready again; see makeReady.
	b := s.bounds(q)
	if q.state == DestReady {
		q.window = c.Window(&b)
	}
	s.pace(q)
}

// leaveCourse keeps what a queue that goes has learnt.
func (s *Scheduler) leaveCourse(q *queue) {
	if q.course != nil && !q.course.Fresh(s.now) {
		q.tport.putLearnt(&learnt{q.name, q.source, q.course, s.now})
	}
}

// followOrNot brings a queue that exists in line with a new configuration.
func (s *Scheduler) followOrNot(q *queue) {
	switch on := q.tport.cfg.Adaptive; {
	case on && q.course == nil:
		s.adopt(q)
	case !on && q.course != nil:
		s.unpace(q)
		q.course = nil
	}
}

// asks says whether the destination itself has asked for less, so that it is not to be taken for dead, and mail
// such as e has no other way to go.
func (s *Scheduler) asks(q *queue, e *entry, r *Result) bool {
	if q.course == nil || r.Ask == adaptive.Nothing || r.Ask == adaptive.Away {
		return false
	}
	// A rest is mostly shorter than death, which is for others to take over. If they have died already, or have sent
	// what they may today, there is nothing to be won by it.
	return q.source == "" || s.another(q, e.pool, gradeSpent) == nil
}

// follow has a course take in the end of a delivery, which q.busy still counts.
func (s *Scheduler) follow(q *queue, e *entry, r *Result) {
	ask, text := r.Ask, r.Said
	// A host that nobody reaches is overloaded, perhaps by us. That it may be dead as well is a separate matter
	// (feedback.go).
	if ask == adaptive.Nothing && r.SiteFailed {
		ask, text = adaptive.Away, r.Reason
	}
	b, rested := s.bounds(q), q.course.Until()
	q.course.Ended(s.now, &b, &adaptive.Report{Ask: ask, After: r.After, Text: text, Began: e.since, Opened: r.Opened, Busy: q.busy})
	if q.state == DestReady {
		q.window = q.course.Window(&b)
	}
	s.pace(q)
	// The window has changed, or what the destination may begin now.
	s.updateQueue(q)
	// What another source can take need not wait for this one.
	if at := q.course.Until(); q.source != "" && at > rested && at > s.now {
		s.spread(q, gradePaused)
	}
}

// rests says whether nothing is to begin for now.
func (q *queue) rests(now int64) bool { return q.course != nil && q.course.Until() > now }

// paceTree is the tree of limits that a queue's pace belongs to.
func (q *queue) paceTree() int {
	if q.source != "" {
		return sourceTree
	}
	return commonTree
}

// pace brings the limit of a queue's pace in line with its course.
func (s *Scheduler) pace(q *queue) {
	r := q.course.Rate()
	if r.IsZero() {
		s.unpace(q)
		return
	}
	n, l := q.paced, &q.legs[q.paceTree()]
	if n == nil {
		k := sharedKey{level: PaceLimit, name: string(q.tport.name) + ":" + q.dest(), source: q.source}
		if n = s.shares[k]; n == nil { // it may rest still, after an earlier queue of the name
			n = s.newShared(k)
		}
	}
	n.members++ // until q is below it, it must not be forgotten
	// Nothing happens if it is the same rate. A rest is imposed anew, since a change has ended it.
	s.changeLimits(n, Limits{Messages: r})
	if at := q.course.Until(); at > s.now {
		n.msgs.Hold(r, at)
		s.stepBack(q) // a place that was given before the rest is not for now
	}
	if q.paced == nil {
		q.paced = n
		s.reparent(n, l.leaf)
		s.moveQueue(q, q.paceTree(), n)
	}
	n.members--
	s.settleShared(n)
}

// unpace ends it.
func (s *Scheduler) unpace(q *queue) {
	n := q.paced
	if n == nil {
		return
	}
	// What waits outside the active queue for it finds room, and comes back, before it is forgotten.
	q.paced = nil
	s.changeLimits(n, Limits{})
	s.moveQueue(q, q.paceTree(), n.parent)
	s.updateQueue(q)
}

// A Learnt is what has been learnt of a destination, for listings.
type Learnt struct {
	Why   adaptive.Ask // what the last change for the worse was made for
	Text  string       // the reply
	At    time.Time
	Bad   int       // deliveries at once that were refused; 0: none were
	Pace  rate.Rate // zero: none is kept
	Rests time.Time // nothing begins before; zero: it does not rest
}

// learntOf is the same for a queue; nil: nothing is followed.
func (s *Scheduler) learntOf(q *queue) *Learnt {
	if q.course == nil {
		return nil
	}
	l := &Learnt{Pace: q.course.Rate()}
	var at int64
	l.Why, l.Text, at = q.course.Why()
	l.At = s.realTime(at)
	l.Bad, _ = q.course.Bad()
	if q.rests(s.now) {
		l.Rests = s.realTime(q.course.Until())
	}
	return l
}

// courseMemory is a course for a snapshot. Its times are by the wall clock there.
func (s *Scheduler) courseMemory(c *adaptive.Course) (m adaptive.Memory) {
	if c == nil || c.Fresh(s.now) {
		return m
	}
	// This clock may have been set back or ahead since; the successor's begins anew.
	m = c.Memory()
	m.EachTime(s.clock.real)
	return m
}

// recallCourse is the inverse: it gives a queue the course that a predecessor has left, if it has left one. What the
// memory says is not relied on.
func (s *Scheduler) recallCourse(q *queue, m adaptive.Memory) {
	if q.course == nil || m == (adaptive.Memory{}) {
		return
	}
	m.EachTime(s.clock.sanely)
	b := s.bounds(q)
	s.setCourse(q, adaptive.Resume(m, s.now, &b))
}
