package sched

import (
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// Several queue managers may deliver the mail of one queue, each on its own machine. What one of them finds dead the others
// need not find out once more, at the price of the time that a host takes which does not answer: they get a hint.
//
// A hint is hearsay. It makes a destination dead as failures do, for the time that is left of it and no longer than
// failures would, but once only: after that this scheduler finds out for itself, and takes no other hint about the
// destination before it has. So a machine that cannot reach a host keeps no mail waiting on another one that can, and
// each message has an attempt of its own in the end. A destination that has just answered here is not given up on hearsay
// at all.

// A Hint says that somebody else has found a destination dead.
type Hint struct {
	Transport mail.Transport
	Queue     string
	Nexthop   mail.Nexthop
	Source    string     // what its mail goes from; "": it has no sources
	Status    dsn.Status // what is said to whoever waits for it
	Text      string
	Until     time.Time // when its time is over
}

const (
	// maxHinted bounds the destinations of which it is remembered that a hint was taken and nothing has been tried since.
	// Beyond that no hints are taken.
	maxHinted = 1 << 14
	// vouchTime is how long after a success a destination is not given up for a hint.
	vouchTime = int64(time.Minute / time.Microsecond)
)

// takeHints takes in what others have found. A hint may come again and again: that changes nothing.
func (s *Scheduler) takeHints(list []Hint) {
	for i := range list {
		if h := &list[i]; h.Transport != "" && h.Transport != RetryTransport && h.Transport != ErrorTransport {
			s.takeHint(h)
		}
	}
}

func (s *Scheduler) takeHint(h *Hint) {
	t := s.transportFor(h.Transport)
	until := min(s.clock.sanely(toMicros(h.Until)), s.now+micros(s.cfg.MinimalBackoff))
	// Where destinations are not given up for failures they are not for hearsay.
	if until <= s.now || t.cfg.FailedCohortLimit <= 0 || t.cfg.DestinationRateDelay > 0 {
		return
	}
	k := siteKey{tport: t, name: h.Queue}
	q := t.queues[h.Queue]
	switch {
	case s.hinted[k] != 0 || !s.remembersHints():
		return // it is to be tried first
	case q == nil && s.queueCount >= 2*s.cfg.RecipientLimit:
		return // names that others have sent do not fill the memory
	case q != nil && (q.state != DestReady || s.vouched(q)):
		return
	case q == nil:
		q = s.queueFor(t, h.Queue, h.Nexthop)
		q.setSource(h.Source)
	}
	if s.hinted == nil {
		s.hinted = make(map[siteKey]int64)
	}
	// What waits comes up again within the longest back-off, and is tried then.
	s.hinted[k] = s.now + 2*max(micros(s.cfg.MaximalBackoff), micros(s.cfg.MinimalBackoff))
	status := h.Status
	if status.IsZero() {
		status = dsn.S(4, 0, 0)
	}
	s.dead(q, status, h.Text, until)
	q.hearsay = true
	s.note(Note{Kind: NoteHint, Transport: t.name, Queue: q.name, Until: toTime(until), Status: status, Reason: h.Text})
	s.startTimer(&q.timer, until)
	s.updateQueue(q)
	s.excuseQueue(q, q.excuse, q.status, q.reason)
}

// vouched says whether q has taken a delivery just now, and failed none since.
func (s *Scheduler) vouched(q *queue) bool {
	return q.answered && q.failCohorts == 0 && q.lastDone != 0 && s.now-q.lastDone < vouchTime
}

// remembersHints says whether one more can be remembered. Those that are too old to matter make room.
func (s *Scheduler) remembersHints() bool {
	if len(s.hinted) < maxHinted {
		return true
	}
	for k, until := range s.hinted {
		if until <= s.now {
			delete(s.hinted, k)
		}
	}
	return len(s.hinted) < maxHinted
}

// tried notes that q has been tried here: the next hint may be taken.
func (s *Scheduler) tried(q *queue) {
	if len(s.hinted) > 0 {
		delete(s.hinted, siteKey{tport: q.tport, name: q.name})
	}
}
