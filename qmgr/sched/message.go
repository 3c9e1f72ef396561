// A message's stay in the active queue, from the answers of its last delivery to the
// effect that ends it: notices to the sender, commands, the decision between deferring
// and returning. Also the back-off.

package sched

import "posthaste/internal/reuse"

// cmdKind is an operator's command that waits for deliveries to end.
type cmdKind uint8

const (
	cmdNone cmdKind = iota
	// In the order of strength: a command replaces a weaker one.
	cmdHold
	cmdRequeue
	cmdCorrupt // no operator's, but an agent's finding
	cmdRemove
)

// A message is what is known of a message while it is in the active queue.
type message struct {
	id MsgID
	// Index of its record. The record stays when the message leaves the active queue;
	// this struct does not.
	rec      int32  // its record
	slot     int32  // index in s.slots
	tenant   uint16 // its record's
	seq      uint64 // counts messages that entered the active queue
	queued   int64  // when it did, in seconds: the age that scheduling goes by
	entered  int64  // the same in microseconds
	prv, nxt *message

	// Reading: what has not been read, and what is asked for. A message is read in
	// batches (limit.go).
	unread   int // recipients not read yet; those being read are still among them
	next     int // index of the first of them
	loading  bool
	origin   Queue // where it came from, until recipients are asked for
	reserved int   // recipients asked for
	// When a batch last came; never: none has. recipient_refill_delay counts from here.
	readAt int64
	timer  timer // recipient_refill_delay

	// Entries that exist, waiting or busy. The message is complete when it is 0 and
	// nothing else is under way.
	refs                 int
	rcptCount, rcptLimit int // recipients in core, and how many may be
	jobs                 []*job

	// What came of its recipients in this stay.
	deferred bool // some recipient is to be tried again
	late     int  // recipients that are out of core and not final: deferred, withdrawn, lost
	failed   bool // some recipient failed for good: notice due
	success  bool // some recipient's success is to be reported
	sweeps   int  // looks at it, whether it is out of time
	swept    bool // out of time while it waited: what is left goes to retry
	fresh    bool // it is new: it has not waited outside the active queue
	early    bool // it is here before its own time, for recipients that have not been tried
	held     bool // there were others, which wait for that time
	// When it is to be tried first, by the wall clock, if it was read before that; else 0.
	starts int64
	asked  bool // the notice of expiry or delay was tried in this stay
	// The notice that has been asked for and not answered; 0: none.
	notifying Notice
	// The command that waits for its deliveries to end.
	cmd cmdKind
	// What it waits for once it is deferred: the first that is set of site, parked and
	// later. Each names the last such destination, for a message waits in one list only.
	site   siteKey // dead destination on whose account it is deferred
	later  siteKey // destination that has deferred a recipient although it answers
	parked siteKey // pause for which some recipient waits
	// With parked for beyondID: the limit that it waits for.
	gate *shared
}

// rec is the record of m.
func (s *Scheduler) record(m *message) *record { return s.recs.at(m.rec) }

// complete goes on with a message of which nothing is waiting or under way: with a
// notice, the next batch of recipients, or the end of its stay in the active queue. It
// does one thing, and is called again when that has been answered. The order is nqmgr's:
// failures are reported before more recipients are read, so that what must be reported
// stays small.
func (s *Scheduler) complete(m *message) {
	if m.refs > 0 || m.loading || m.notifying != 0 {
		return
	}
	rec := s.record(m)
	switch {
	case m.cmd == cmdRemove:
		s.end(m, EffectRemove)
	case m.failed && !s.traceFirst(m):
		s.notify(m, NoticeFailure)
	// A command would withdraw them at once.
	case m.unread > 0 && m.cmd == cmdNone:
		s.read(m, m.spare())
	case rec.flags&FlagTrace != 0 || m.success:
		s.notify(m, NoticeTrace)
	case m.cmd == cmdRequeue && rec.left():
		s.end(m, EffectRequeue)
	case m.cmd == cmdCorrupt && rec.left():
		s.end(m, EffectCorrupt)
	case m.cmd == cmdHold && rec.left():
		s.hold(m)
	case (m.deferred || rec.rcpts > 0) && m.cmd == cmdNone:
		s.completeDeferred(m)
	default:
		s.end(m, EffectFinish)
	}
}

// left says whether there is something left to do for a message: recipients to deliver
// to, or a failure to report.
func (r *record) left() bool { return r.rcpts > 0 || r.flags&FlagNoticeDue != 0 }

// traceFirst says whether the success or trace report must be made before the failure
// notice: that notice may be the end of the message, after which there is nothing left to
// report on.
func (s *Scheduler) traceFirst(m *message) bool {
	return m.unread == 0 && !m.asked && (s.record(m).flags&FlagTrace != 0 || m.success)
}

// completeDeferred decides what becomes of a message that could not be delivered to
// everybody: return it, warn the sender, or just try again later.
func (s *Scheduler) completeDeferred(m *message) {
	rec := s.record(m)
	warnAt := rec.created + micros(s.cfg.DelayWarning)
	switch {
	// One notice of delay or expiry is tried in a stay. If it could not be made, the next
	// attempt tries again; otherwise this would go round without end.
	case m.asked:
		s.postpone(m)
	case rec.rcpts > 0 && rec.flags&FlagExpire != 0:
		s.note(Note{Kind: NoteForceExpired, ID: m.id})
		s.notify(m, NoticeExpired)
	case rec.rcpts > 0 && s.clock.wall >= s.expiry(rec) && !s.graced(m):
		s.note(Note{Kind: NoteExpired, ID: m.id})
		s.notify(m, NoticeExpired)
	case s.cfg.DelayWarning > 0 && rec.flags&(FlagWarned|FlagNoDelayNotice) == 0 && s.clock.wall >= warnAt-second:
		s.notify(m, NoticeDelay)
	default:
		s.postpone(m)
	}
}

// notify asks for a notice to the sender.
func (s *Scheduler) notify(m *message, n Notice) {
	m.notifying = n
	s.emit(Effect{Kind: EffectNotify, ID: m.id, Notice: n})
}

// notified takes in the answer to a notice. A notice that could not be made keeps the
// message in the queue, and what it would have said stays due: nothing is dropped without
// its sender having been told.
func (s *Scheduler) notified(m *message, ok bool) {
	rec := s.record(m)
	n := m.notifying
	m.notifying = 0
	switch n {
	case NoticeFailure:
		m.failed = false
		rec.flags &^= FlagNoticeDue
		// The next stay in the active queue begins with this notice.
		if !ok {
			rec.flags |= FlagNoticeDue
			m.deferred = true
		}
	case NoticeTrace:
		m.success = false
		rec.flags &^= FlagTrace
		if !ok {
			rec.flags |= FlagTrace
			m.deferred, m.asked = true, true
			if !m.failed {
				s.completeDeferred(m)
				return
			}
		}
	case NoticeExpired:
		m.asked = true
		if ok {
			rec.rcpts = 0
			m.deferred = rec.flags&FlagNoticeDue != 0
		}
	case NoticeDelay:
		m.asked = true
		if ok {
			rec.flags |= FlagWarned
		}
	default:
		return // nobody asked
	}
	s.complete(m)
}

// end removes a message, with the effect that says how.
func (s *Scheduler) end(m *message, k EffectKind) {
	s.emit(Effect{Kind: k, ID: m.id, Attempts: int(s.record(m).attempts)})
	i := s.leaveActive(m)
	s.forgetRecord(i)
}

// postpone moves a message to the deferred queue, to be tried again at its own time, and
// notes what may release it before.
func (s *Scheduler) postpone(m *message) {
	rec := s.record(m)
	rec.created = min(rec.created, s.clock.wall) // it came while the clock was ahead
	k := m.site
	if k.tport == nil {
		k = m.parked
	}
	if k.tport == nil {
		k = m.later
	}
	own := s.now + max(rec.mark-s.clock.wall, 0)
	var idle Flags
	// Nothing was tried, so no attempt is counted and the back-off does not grow.
	switch {
	case m.starts != 0:
		rec.next = s.now + max(m.starts-s.clock.wall, 0)
	case m.parked.pause != 0 && !m.deferred: // nothing was tried in vain
		k = m.parked
		if rec.next = s.parkTime(m); m.held {
			rec.next = min(rec.next, own)
		} else {
			// The time is that of the pause, and nobody's own: what is on record may not say yet that recipients who
			// were tried once wait for it.
			idle = flagIdle
		}
	case m.held && !m.deferred:
		rec.next = own
	default:
		if rec.attempts < 1<<16-1 {
			rec.attempts++
		}
		// Those that were held back wait for their time, and for no more than the least back-off of those that have
		// failed now: they may be a few, and those many.
		if rec.next = s.retryTime(rec); m.held {
			rec.next = max(own, min(rec.next, s.now+micros(s.cfg.MinimalBackoff)+s.rng.below(micros(s.cfg.QueueRunDelay))))
		}
	}
	rec.flags = rec.flags&^flagsOwn | idle
	rec.mark = s.clock.real(rec.next)
	s.emit(Effect{Kind: EffectDefer, ID: m.id, Next: s.realTime(rec.next), Attempts: int(rec.attempts), Warned: rec.flags&FlagWarned != 0})
	// A pause may have ended while the message was still being delivered to others: then
	// nothing would ever release it from that list.
	var st int32
	if k.tport != nil && (k.pause == 0 || k.pause == laterID || s.pauses[k.pause] != nil || k.pause == beyondID && s.atGate(m)) {
		st = s.siteOf(k)
		if k.pause == beyondID {
			s.joinGate(st, s.shares[m.gate.key])
		}
	}
	s.enterDeferred(s.leaveActive(m), st)
}

// holdBack leaves a recipient that has been tried for the message's own time.
func (s *Scheduler) holdBack(m *message, r *Rcpt) {
	m.late++
	m.held = true
	if r.Site != "" {
		s.rememberSites(m, []string{r.Site})
	}
	// What its destination answers until then may still be of use.
	t := s.transportIndex[r.Transport]
	if t == nil || r.Pool != nil {
		return
	}
	if q := t.queues[r.Queue]; q != nil && q.state == DestDead {
		m.site = siteKey{tport: t, name: r.Queue}
	} else {
		m.later = siteKey{tport: t, name: r.Queue, pause: laterID}
	}
}

// hold moves a message to the hold queue.
func (s *Scheduler) hold(m *message) {
	s.emit(Effect{Kind: EffectHold, ID: m.id})
	rec := s.record(m)
	rec.flags &^= flagsOwn
	i := s.leaveActive(m)
	s.recs.at(i).where = whereHold
	s.stats.Hold++
	s.mayLeave(s.recs.at(i))
}

// expiry is when a message's lifetime is over, by the wall clock. Mail with the null sender
// has a lifetime of its own, bounce_queue_lifetime. The tenant's own, if it has some, count instead.
func (s *Scheduler) expiry(rec *record) int64 {
	life, bounce := s.lifetimes(s.tenantOf(rec))
	if rec.flags&FlagNullSender != 0 {
		life = bounce
	}
	return rec.created + micros(life)
}

// retryTime is when a message that could not be delivered is due again. The back-off is
// the message's age, within its bounds, so that the age doubles from one attempt to the
// next. In Postfix a message then waits for the next queue run, which is on average half
// of queue_run_delay away. Here each message waits for a random part of that time
// instead, so that what failed together does not come back together. The last attempt is
// made when the lifetime ends, not after it.
func (s *Scheduler) retryTime(rec *record) int64 {
	next := s.retryBase(rec) + s.rng.below(micros(s.cfg.QueueRunDelay))
	if left := s.expiry(rec) - s.clock.wall; left > 0 && s.now+left < next {
		next = s.now + left
	}
	return next
}

// retryBase is retryTime without what is random about it.
func (s *Scheduler) retryBase(rec *record) int64 {
	age := int64(0)
	if rec.created != never {
		age = s.clock.wall - rec.created
	}
	return s.now + max(min(age, micros(s.cfg.MaximalBackoff)), micros(s.cfg.MinimalBackoff))
}

// leaveActive takes a message out of the active queue and frees everything that it had
// there. Its record is then nowhere: the caller must put it somewhere or remove it, and
// gets its index for that.
func (s *Scheduler) leaveActive(m *message) int32 {
	for _, j := range m.jobs {
		if j.linked {
			s.retireJob(j)
		}
		s.moveLimits(j) // retired long ago, it may not have been able to give all
	}
	for _, j := range m.jobs {
		s.freeJob(j)
	}
	clear(m.jobs)
	s.stopTimer(&m.timer)
	if m.prv != nil {
		m.prv.nxt = m.nxt
	} else {
		s.firstActive = m.nxt
	}
	if m.nxt != nil {
		m.nxt.prv = m.prv
	} else {
		s.lastActive = m.prv
	}
	s.slots[m.slot] = nil
	s.slotFree = append(s.slotFree, m.slot)
	i := m.rec
	rec := s.recs.at(i)
	s.countActive(s.tenantOf(rec), -1)
	rec.where, rec.active = whereNone, 0
	*m = message{jobs: reuse.Truncated(m.jobs)}
	s.messages.Put(m)
	return i
}

// freeJob gives a job back, and keeps the storage of its lists unless that is very large.
func (s *Scheduler) freeJob(j *job) {
	byQueue := j.byQueue // empty by now, its storage is of use
	if cap(j.peers) > recordChunk {
		byQueue = nil
	}
	s.leftLane(j.lane)
	*j = job{byQueue: byQueue, peers: reuse.Truncated(j.peers), turns: peerList{odd: heap[*peer]{s: reuse.Truncated(j.turns.odd.s)}}}
	s.jobs.Put(j)
}
