// Views of the scheduler for listings, explanations and metrics. They return copies and change
// nothing. All may be called between Steps.

package sched

import (
	"slices"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// Info describes one message, for mailq, qshape and similar tools.
type Info struct {
	ID       MsgID
	Queue    Queue
	Created  time.Time
	Next     time.Time // deferred: when it is due
	Size     int64
	Pending  int // recipients without a final outcome
	Attempts int
	Flags    Flags
	Flushed  bool // EventFlush asked for an attempt that has not ended yet
}

// Wait is the reason why some recipients have not been delivered yet.
type Wait uint8

const (
	WaitNone          Wait = iota
	WaitDelivery           // an agent has been delivering since Since
	WaitWindow             // the destination's concurrency window, Limit, is full
	WaitProcess            // the transport's process limit, Limit, is reached
	WaitJob                // message By comes first
	WaitPreempted          // preempted by the smaller message By
	WaitRate               // destination_rate_delay, until Until
	WaitTransportRate      // transport_rate_delay, until Until if known
	WaitRead               // recipients not yet in memory: being read, or the recipient limit is reached
	WaitActive             // the active queue is full
	WaitRetry              // next attempt at Until
	WaitSite               // the destination is dead; next attempt at Until, or earlier if it answers
	WaitHold               // put on hold by an operator
	WaitNotice             // a notice to the sender is being written
	WaitCommand            // an operator's command waits for deliveries in progress
	WaitPause              // suspended by Pause; checked again at Until
	WaitShared             // the shared limit Gate has no room, until Until if known; without Gate, other destinations come first
	WaitBeyond             // outside the active queue for the shared limit Gate; next attempt at Until, or earlier when there is room
	WaitTenant             // it is another tenant's turn at the destination
	WaitNode               // other nodes have the destination's limit, or that of Gate: this one has no share of it for now
)

// A Reason says what a group of a message's recipients waits for.
type Reason struct {
	Wait      Wait
	Transport mail.Transport
	Queue     string
	Nexthop   mail.Nexthop
	Rcpts     []int // indexes, sorted; nil: all that are in no other Reason
	Count     int   // the number of recipients in the group
	Since     time.Time
	Until     time.Time
	Limit     int
	By        MsgID
	Pause     PauseID    // WaitPause
	Gate      string     // WaitShared, WaitBeyond: the limit's level and name
	Dead      time.Time  // WaitSite: until when the destination is considered dead; zero: no longer
	Status    dsn.Status // WaitSite, while dead: the reply that made it dead
	Text      string
}

// DestState is the state of a destination.
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
	Source    string // what its mail goes from, which is the end of Queue; "": it has no sources
	State     DestState
	Until     time.Time
	Status    dsn.Status // DestDead
	Text      string     // DestDead
	Hearsay   bool       // DestDead: somebody else has found that (EventHints)
	Window    int
	Success   float64 // positive feedback so far: at 1 the window grows
	Failure   float64 // negative feedback so far: at 1 the window shrinks
	Cohorts   float64 // consecutive failed cohorts
	Limit     int
	Busy      int // delivery requests in progress
	Todo      int // delivery requests waiting
	Waiting   int // deferred messages that become due when it answers
	Deferred  int // deferred messages that wait because of it, including Waiting
	Thread    ThreadState
	// The shared limit that keeps it from delivering, if it wants to; "": none. GateUntil is
	// until when at least; zero: until a delivery ends.
	Gate      string
	GateUntil time.Time
	Terms     *Terms  // as it was told last
	Learnt    *Learnt // by its answers; nil: nothing is followed
}

// A ThreadState is the state of a destination as a thread (see thread.go). It is zero if the
// transport is not in thread mode.
type ThreadState struct {
	On     bool
	Waits  bool   // it has mail, may have another agent, and waits for it
	Others int    // other threads that wait
	Bound  uint64 // how many deliveries of other threads may begin before one of its own; 0 without a quantum
}

// thread returns the state of q's thread.
func (t *transport) thread(q *queue) ThreadState {
	if t.cfg.Mode != Thread {
		return ThreadState{}
	}
	c, l := q.cur, q.cur.lane
	if l == nil { // nothing has waited for it
		l = &t.lane
	}
	s := ThreadState{On: true, Waits: c.ringNxt != nil, Others: l.ringLen}
	if s.Waits {
		s.Others--
		if begun := l.handed - c.joined; t.cfg.ThreadQuantum > 0 && begun < c.patience {
			s.Bound = c.patience - begun
		}
	}
	return s
}

// Explain returns the reasons why message id is still in the queue, or nil if it is not. Every
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
			if st.pause == beyondID {
				r.Wait = WaitBeyond
				if st.gate != nil {
					r.Gate = st.gate.key.String()
				}
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
		} else if m.parked.pause == beyondID && !m.deferred {
			r.Wait, r.Until, r.Gate = WaitBeyond, time.Time{}, m.gate.key.String()
		} else if m.parked.pause != 0 && !m.deferred {
			r.Wait, r.Until, r.Pause = WaitPause, time.Time{}, m.parked.pause
		}
		list = append(list, r)
	}
	return list
}

// reason returns the part of a Reason that depends on the entry alone.
func (e *entry) reason() Reason {
	q := e.peer.queue
	r := Reason{Transport: q.tport.name, Queue: q.name, Nexthop: e.nexthop(), Count: len(e.rcpts), Since: toTime(e.since)}
	r.Rcpts = slices.Clone(e.rcpts)
	slices.Sort(r.Rcpts)
	return r
}

// explainWait sets what a waiting entry waits for: the narrowest limit that applies to it.
func (s *Scheduler) explainWait(e *entry, r *Reason) {
	j, q := e.peer.job, e.peer.queue
	t := q.tport
	switch {
	case q.state == DestSuspended:
		r.Wait, r.Until = WaitRate, toTime(q.until)
	case q.shut:
		r.Wait = WaitNode
	case q.rests(s.now) && q.paced != nil:
		r.Wait, r.Gate, r.Until = WaitShared, q.paced.key.String(), s.realTime(q.course.Until())
	case q.window <= q.busy:
		r.Wait, r.Limit = WaitWindow, q.window
		for _, b := range s.busy {
			if b != nil && b.peer.queue == q {
				r.By = b.msg.id
				break
			}
		}
	case e.peer.claim.inLine():
		s.explainGate(s.gateAbove(e.peer.claim.stand.gate), r)
	case q.limited() && !q.placed:
		r.Wait = WaitShared
		if n := s.gateOf(q); n != nil {
			s.explainGate(n, r)
		}
	case q.avail && q.cur != e.peer.claim:
		r.Wait = WaitTenant
	case t.cfg.TransportRateDelay > 0:
		r.Wait = WaitTransportRate
		if t.rate == ratePause {
			r.Until = toTime(t.rateTimer.at)
		}
	case j.firstChild != nil:
		r.Wait, r.By = WaitPreempted, j.lastChild.msg.id
	default:
		r.Wait, r.Limit = WaitProcess, t.cfg.ProcessLimit
		if l := j.lane; t.cfg.Mode != Thread && l.avail.len() > 0 {
			if first := l.avail.s[0].v.peers.top().job; first != j {
				r.Wait, r.By = WaitJob, first.msg.id
			}
		}
	}
}

// explainGate says that the limit n keeps an entry.
func (s *Scheduler) explainGate(n *shared, r *Reason) {
	r.Wait, r.Gate, r.Limit = WaitShared, n.key.String(), n.limits.Concurrency
	if n.shut {
		r.Wait, r.Limit = WaitNode, 0
		return
	}
	if at := n.opens(s.now); at != never {
		r.Limit, r.Until = 0, s.realTime(at)
	}
}

// Shut calls f for the recipients of an active message that wait for a shared limit: with
// the limit, and until when at least; zero: until a delivery ends. The numbers are not to be
// changed, nor kept.
func (s *Scheduler) Shut(id MsgID, f func(rcpts []int, gate string, until time.Time)) {
	m := s.activeMessage(id)
	if m == nil || len(s.shares) == 0 {
		return
	}
	for _, j := range m.jobs {
		for _, p := range j.peers {
			n := (*shared)(nil)
			if q := p.queue; p.claim.inLine() {
				n = s.gateAbove(p.claim.stand.gate)
			} else if q.limited() && !q.placed {
				n = s.gateOf(q)
			}
			if n != nil {
				for e := p.head; e != nil; e = e.nxt {
					f(e.rcpts, n.key.String(), s.realTime(n.opens(s.now)))
				}
			}
		}
	}
}

// Lookup returns the description of one message; false if the scheduler does not know it.
func (s *Scheduler) Lookup(id MsgID) (Info, bool) {
	i := s.recs.find(id)
	if i == 0 {
		return Info{}, false
	}
	return s.info(s.recs.at(i)), true
}

// Bound returns the destination that a message waits for: that which deferred it, or of an active
// message one that it is delivered to. Both are empty when there is none, as for new mail and mail on
// hold, and for a message that is not in memory.
func (s *Scheduler) Bound(id MsgID) (transport mail.Transport, queue string) {
	i := s.recs.find(id)
	if i == 0 {
		return "", ""
	}
	return s.bound(s.recs.at(i))
}

func (s *Scheduler) bound(rec *record) (transport mail.Transport, queue string) {
	switch {
	case rec.where == whereDeferred && rec.site != 0:
		st := &s.sites[rec.site]
		return st.tport.name, st.name
	case rec.where == whereActive:
		for _, j := range s.slots[rec.active].jobs {
			if len(j.peers) > 0 {
				return j.tport.name, j.peers[0].queue.name
			}
		}
	}
	return "", ""
}

// A Part is recipients of one message that wait for one destination, or are being delivered there.
type Part struct {
	Transport mail.Transport // empty: it is not known where they go
	Queue     string
	Nexthop   mail.Nexthop // empty: it is not in memory
	Rcpts     int
	Pool      *Pool // what they may go from; nil: they have none, or it is not in memory
	Waits     bool  // they are tried when the destination answers, which failed
	Paused    bool  // they wait for a pause
	Beyond    bool  // they wait for a shared limit outside the active queue, and not for their time
}

// Parts visits the parts of a message in memory. Of a deferred message there is one, for the
// destination that deferred it.
func (s *Scheduler) Parts(id MsgID, yield func(Part)) {
	i := s.recs.find(id)
	if i == 0 {
		return
	}
	rec := s.recs.at(i)
	p := Part{Rcpts: int(rec.rcpts)}
	switch {
	case rec.site != 0 && rec.where == whereDeferred:
		at := &s.sites[rec.site]
		p.Transport, p.Queue = at.tport.name, at.name
		p.Waits, p.Paused, p.Beyond = at.pause == 0, at.pause != 0 && at.pause < beyondID, at.pause == beyondID
		if q := at.tport.queues[at.name]; q != nil {
			p.Nexthop = q.nexthop
		}
	case rec.where == whereActive:
		s.activeParts(s.slots[rec.active], p.Rcpts, yield)
		return
	}
	yield(p)
}

// activeParts visits the parts of an active message with so many recipients. Those under way, and
// those that are not in memory, are shared out among the destinations that are known.
func (s *Scheduler) activeParts(m *message, left int, yield func(Part)) {
	var list []Part
	for _, j := range m.jobs {
		for _, p := range j.peers {
			x := Part{Transport: j.tport.name, Queue: p.queue.name, Nexthop: p.queue.nexthop}
			if p.head != nil { // all of a peer have the same, but for the moment in which a table changes
				x.Pool = p.head.pool
			}
			for e := p.head; e != nil; e = e.nxt {
				x.Rcpts += len(e.rcpts)
			}
			left -= x.Rcpts
			list = append(list, x)
		}
	}
	if len(list) == 0 {
		yield(Part{Rcpts: max(left, 1)})
	}
	for i := range list {
		n := max(left, 0) / (len(list) - i)
		left -= n
		if list[i].Rcpts += n; list[i].Rcpts > 0 {
			yield(list[i])
		}
	}
}

// Under is how many deliveries go on to the destination of a delivery that is under way, with it; 0:
// there is no such delivery.
func (s *Scheduler) Under(id EntryID) int {
	if e := s.busyEntry(id); e != nil {
		return e.peer.queue.busy
	}
	return 0
}

// To describes the destination of a delivery that is under way; ok is false if it is not.
func (s *Scheduler) To(id EntryID) (d Dest, ok bool) {
	if e := s.busyEntry(id); e != nil {
		return s.dest(e.peer.queue), true
	}
	return d, false
}

func (s *Scheduler) info(r *record) Info {
	return Info{ID: r.id, Queue: r.where.queue(), Created: toTime(r.created), Next: s.realTime(r.next), Size: r.size,
		Pending: int(r.rcpts), Attempts: int(r.attempts), Flags: r.flags &^ flagsOwn,
		Flushed: r.flags&flagFlush != 0}
}

// Scan visits about n messages in no particular order, starting at cursor, and returns the cursor
// for the next call; 0 is the beginning, and the end. Messages that arrive or leave between two calls
// may be missed; none is visited twice. So a long queue can be listed without delaying deliveries.
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

// A Sought says which messages Sweep looks for. nil means all.
type Sought struct {
	Queue  func(Queue) bool
	Tenant func(name string) bool                            // "": of none
	Waits  func(transport mail.Transport, queue string) bool // as Bound has it
}

// Sweep is Scan for who looks for few messages among many: it visits those that are sought, of about n that it looks
// at. What deferred mail waits for is asked once in a call for each destination, not for each message.
func (s *Scheduler) Sweep(cursor, n int, sought Sought, yield func(Info)) int {
	const yes, no = 1, 2
	sites := []uint8(nil) // by number: what was answered; 0: not asked yet
	if sought.Waits != nil {
		sites = make([]uint8, len(s.sites))
	}
	waits := func(rec *record) bool {
		if rec.where == whereDeferred && sites[rec.site] != 0 {
			return sites[rec.site] == yes
		}
		meant := sought.Waits(s.bound(rec))
		if rec.where == whereDeferred {
			if sites[rec.site] = no; meant {
				sites[rec.site] = yes
			}
		}
		return meant
	}
	// Mail of tenants that are one too many has no name here: it may be anybody's.
	nameless := len(s.tenants) > maxTenants
	i := int32(max(cursor, 1))
	for ; i < s.recs.used && n > 0; i++ {
		rec := s.recs.at(i)
		if rec.id == 0 {
			continue
		}
		n--
		if sought.Queue != nil && !sought.Queue(rec.where.queue()) {
			continue
		}
		if sought.Tenant != nil && !sought.Tenant(s.tenantOf(rec).name) && !(nameless && rec.tenant == 0) || sought.Waits != nil && !waits(rec) {
			continue
		}
		yield(s.info(rec))
	}
	if i >= s.recs.used {
		return 0
	}
	return int(i)
}

// Dests visits every destination in core, in the order of creation within each transport.
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
	d := Dest{Transport: t.name, Queue: q.name, Nexthop: q.nexthop, Source: q.source, State: q.state, Until: toTime(q.until),
		Status: q.status, Text: q.reason, Hearsay: q.hearsay && q.state == DestDead, Window: q.window, Limit: q.limit, Success: q.success, Failure: q.failure, Cohorts: q.failCohorts, Busy: q.busy, Todo: q.todo, Terms: q.terms}
	d.Learnt = s.learntOf(q)
	d.Deferred, d.Thread = s.deferredFor(t, q.name), t.thread(q)
	if q.site != 0 {
		d.Waiting = s.sites[q.site].n()
	}
	if n := s.gateOf(q); n != nil {
		d.Gate = n.key.String()
		d.GateUntil = s.realTime(n.opens(s.now))
	}
	return d
}

// Stats are totals, updated as events happen.
type Stats struct {
	Incoming, Active, Deferred, Hold int // messages
	Rcpts                            int // recipients in memory
	Sited                            int // deferred messages that are counted for a destination, in memory or not: see Backlogs
	Busy                             int // delivery requests in progress
	Decisions                        uint64
	Preemptions                      uint64
}

// Stats returns the totals.
func (s *Scheduler) Stats() Stats {
	st := s.stats
	st.Incoming, st.Deferred = s.incoming, s.due+len(s.retries.s)
	st.Sited += len(s.window.awayAt)
	return st
}
