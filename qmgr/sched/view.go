// Views of the scheduler for listings, explanations and numbers. They copy what they
// show; none of them changes anything, and all may be called between Steps.

package sched

import (
	"slices"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// Info describes one message, for mailq, qshape and their like.
type Info struct {
	ID       MsgID
	Queue    Queue
	Created  time.Time
	Next     time.Time // deferred: when it is due
	Size     int64
	Pending  int // recipients without a final outcome
	Attempts int
	Flags    Flags
	Flushed  bool // was to be tried at once, by EventFlush, and that has not ended yet
}

// Wait is why some recipients have not been delivered yet.
type Wait uint8

const (
	WaitNone          Wait = iota
	WaitDelivery           // with an agent, since Since
	WaitWindow             // Limit deliveries to the destination are under way already
	WaitProcess            // Limit deliveries of the transport are under way already
	WaitJob                // it is message By's turn
	WaitPreempted          // smaller message By was let past
	WaitRate               // destination_rate_delay, until Until
	WaitTransportRate      // transport_rate_delay, until Until when that is known
	WaitRead               // recipients not read yet: no room in memory, or being read
	WaitActive             // the active queue is full
	WaitRetry              // next attempt at Until
	WaitSite               // the destination is dead; next attempt at Until, sooner when it answers
	WaitHold               // an operator
	WaitNotice             // a notice to the sender is being made
	WaitCommand            // an operator's command waits for the deliveries under way
	WaitPause              // Pause; looked at again at Until
)

// A Reason says of a group of a message's recipients what they wait for.
type Reason struct {
	Wait      Wait
	Transport mail.Transport
	Queue     string
	Nexthop   mail.Nexthop
	Rcpts     []int // indexes, sorted; nil: all that no other Reason names
	Count     int   // recipients meant
	Since     time.Time
	Until     time.Time
	Limit     int
	By        MsgID
	Pause     PauseID    // WaitPause
	Dead      time.Time  // WaitSite: until when the destination counts as dead; zero: no longer
	Status    dsn.Status // WaitSite, while dead: the reply that counted
	Text      string
}

// DestState is a destination's condition.
type DestState uint8

const (
	DestReady     DestState = iota
	DestDead                // throttled after failures, until Until
	DestSuspended           // rate delay, until Until
)

// Dest describes one destination in core.
type Dest struct {
	Transport mail.Transport
	Queue     string
	Nexthop   mail.Nexthop
	State     DestState
	Until     time.Time
	Status    dsn.Status // DestDead
	Text      string     // DestDead
	Window    int
	Success   float64 // feedback so far: at 1 the window grows
	Failure   float64 // feedback so far: at 1 it shrinks
	Cohorts   float64 // failed in a row
	Limit     int
	Busy      int // delivery requests under way
	Todo      int // delivery requests waiting
	Waiting   int // deferred messages that its next answer releases
	Deferred  int // deferred messages that wait on its account, those included
	Thread    ThreadState
}

// A ThreadState is how a destination fares as a thread: see thread.go. It is zero where the
// transport is not in thread mode.
type ThreadState struct {
	On     bool
	Waits  bool   // for an agent: it has mail, and may have one more
	Others int    // threads that wait too
	Bound  uint64 // deliveries of others that may begin before one of its own does; without a quantum 0
}

// thread is the state of q's thread.
func (t *transport) thread(q *queue) ThreadState {
	if t.cfg.Mode != Thread {
		return ThreadState{}
	}
	s := ThreadState{On: true, Waits: q.ringNxt != nil, Others: t.ringLen}
	if s.Waits {
		s.Others--
		if begun := t.handed - q.joined; t.cfg.ThreadQuantum > 0 && begun < q.patience {
			s.Bound = q.patience - begun
		}
	}
	return s
}

// Explain says why message id is still here; nil when it is not. Every
// recipient without a final outcome is in exactly one Reason.
func (s *Scheduler) Explain(id MsgID) []Reason {
	i := s.recs.find(id)
	if i == 0 {
		return nil
	}
	rec := s.recs.at(i)
	r := Reason{Count: int(rec.rcpts), Since: toTime(rec.created)}
	switch rec.where {
	case whereHold:
		r.Wait = WaitHold
	case whereIncoming, whereDue:
		r.Wait, r.Limit = WaitActive, s.cfg.ActiveLimit
	case whereDeferred:
		r.Wait, r.Until = WaitRetry, s.realTime(rec.next)
		if rec.site != 0 {
			st := &s.sites[rec.site]
			r.Wait, r.Transport, r.Queue = WaitSite, st.tport.name, st.name
			if st.pause == laterID {
				r.Wait = WaitRetry
				break
			}
			if st.pause != 0 {
				r.Wait, r.Pause = WaitPause, st.pause
				break
			}
			if q := st.tport.queues[st.name]; q != nil {
				r.Nexthop = q.nexthop
				if q.state == DestDead {
					r.Status, r.Text, r.Dead = q.status, q.reason, toTime(q.until)
				}
			}
		}
	case whereActive:
		return s.explainActive(s.slots[rec.active])
	}
	return []Reason{r}
}

func (s *Scheduler) explainActive(m *message) []Reason {
	var list []Reason
	for _, e := range s.busy {
		if e != nil && e.msg == m {
			r := e.reason()
			r.Wait, r.Since = WaitDelivery, toTime(e.since)
			list = append(list, r)
		}
	}
	for _, j := range m.jobs {
		for _, p := range j.peers {
			for e := p.head; e != nil; e = e.nxt {
				r := e.reason()
				s.explainWait(e, &r)
				list = append(list, r)
			}
		}
	}
	if m.unread > 0 {
		list = append(list, Reason{Wait: WaitRead, Count: m.unread, Since: toTime(m.entered)})
	}
	if left := m.late; left > 0 || len(list) == 0 {
		r := Reason{Wait: WaitRetry, Count: left, Since: toTime(m.entered), Until: toTime(s.retryBase(s.record(m)))}
		if m.notifying != 0 {
			r.Wait, r.Until = WaitNotice, time.Time{}
		} else if m.cmd != cmdNone {
			r.Wait, r.Until = WaitCommand, time.Time{}
		} else if m.parked.pause != 0 && !m.deferred {
			r.Wait, r.Until, r.Pause = WaitPause, time.Time{}, m.parked.pause
		}
		list = append(list, r)
	}
	return list
}

// reason is what is the same for every reason of an entry.
func (e *entry) reason() Reason {
	q := e.peer.queue
	r := Reason{Transport: q.tport.name, Queue: q.name, Nexthop: q.nexthop, Count: len(e.rcpts), Since: toTime(e.since)}
	r.Rcpts = slices.Clone(e.rcpts)
	slices.Sort(r.Rcpts)
	return r
}

// explainWait says what a waiting entry waits for: the narrowest of the
// limits in its way.
func (s *Scheduler) explainWait(e *entry, r *Reason) {
	j, q := e.peer.job, e.peer.queue
	t := q.tport
	switch {
	case q.state == DestSuspended:
		r.Wait, r.Until = WaitRate, toTime(q.until)
	case q.window <= q.busy:
		r.Wait, r.Limit = WaitWindow, q.window
		for _, b := range s.busy {
			if b != nil && b.peer.queue == q {
				r.By = b.msg.id
				break
			}
		}
	case t.cfg.TransportRateDelay > 0:
		r.Wait = WaitTransportRate
		if t.rate == ratePause {
			r.Until = toTime(t.rateTimer.at)
		}
	case j.firstChild != nil:
		r.Wait, r.By = WaitPreempted, j.lastChild.msg.id
	default:
		r.Wait, r.Limit = WaitProcess, t.cfg.ProcessLimit
		if t.cfg.Mode != Thread && t.avail.len() > 0 {
			if first := t.avail.s[0].v.peers.top().job; first != j {
				r.Wait, r.By = WaitJob, first.msg.id
			}
		}
	}
}

// Lookup describes one message.
func (s *Scheduler) Lookup(id MsgID) (Info, bool) {
	i := s.recs.find(id)
	if i == 0 {
		return Info{}, false
	}
	return s.info(s.recs.at(i)), true
}

func (s *Scheduler) info(r *record) Info {
	return Info{ID: r.id, Queue: r.where.queue(), Created: toTime(r.created), Next: s.realTime(r.next), Size: r.size,
		Pending: int(r.rcpts), Attempts: int(r.attempts), Flags: r.flags &^ flagsOwn,
		Flushed: r.flags&flagFlush != 0}
}

// Scan visits about n messages in no particular order, starting with cursor
// 0, and returns the cursor to go on with, 0 at the end. What arrives or
// leaves between two calls may be missed, nothing is seen twice. It lets a
// queue of any length be listed without holding up deliveries.
func (s *Scheduler) Scan(cursor, n int, yield func(Info) bool) int {
	i := int32(max(cursor, 1))
	for ; i < s.recs.used && n > 0; i++ {
		if rec := s.recs.at(i); rec.id != 0 {
			n--
			if !yield(s.info(rec)) {
				return 0
			}
		}
	}
	if i >= s.recs.used {
		return 0
	}
	return int(i)
}

// Dests visits every destination in core, in order of creation within each
// transport.
func (s *Scheduler) Dests(yield func(Dest) bool) {
	for _, t := range s.transports {
		for q := t.firstQueue; q != nil; q = q.nxt {
			if !yield(s.dest(q)) {
				return
			}
		}
	}
}

// Dest describes one destination, if it is in memory.
func (s *Scheduler) Dest(transport mail.Transport, queue string) (Dest, bool) {
	t := s.transportIndex[transport]
	if t == nil || t.queues[queue] == nil {
		return Dest{}, false
	}
	return s.dest(t.queues[queue]), true
}

func (s *Scheduler) dest(q *queue) Dest {
	t := q.tport
	d := Dest{Transport: t.name, Queue: q.name, Nexthop: q.nexthop, State: q.state, Until: toTime(q.until),
		Status: q.status, Text: q.reason, Window: q.window, Limit: q.limit, Success: q.success, Failure: q.failure, Cohorts: q.failCohorts, Busy: q.busy, Todo: q.todo}
	d.Deferred, d.Thread = s.deferredFor(t, q.name), t.thread(q)
	if q.site != 0 {
		d.Waiting = s.sites[q.site].n()
	}
	return d
}

// Stats are totals of what is in memory, maintained as events happen.
type Stats struct {
	Incoming, Active, Deferred, Hold int // messages
	Rcpts                            int // recipients in memory
	Sited                            int // deferred messages that are counted for a destination, also such as are not in memory: see Backlogs
	Busy                             int // delivery requests under way
	Decisions                        uint64
	Preemptions                      uint64
}

// Stats returns the totals.
func (s *Scheduler) Stats() Stats {
	st := s.stats
	st.Incoming, st.Deferred = int(s.incoming.n), int(s.due.n)+len(s.retries.s)
	st.Sited += len(s.window.awayAt)
	return st
}
