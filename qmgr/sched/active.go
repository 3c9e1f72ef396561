// The active queue: what is taken up into it, how its recipients are read and grouped
// into delivery requests, and what becomes of mail that stays in it too long.

package sched

import (
	"slices"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// maxLoading bounds how many messages enter the active queue before the
// recipients of the first ones have been read: one step then has a bounded
// number of effects however much is due, and incoming and deferred mail
// alternate as fast as it can really be taken up.
const maxLoading = 128

// sweepInterval is how often the active queue is searched for mail that is
// out of time.
const sweepInterval = 60 * second

// Excuses of the scheduler's own.
//
// Each pair of a status and a text is what the retry transport logs and records for
// recipients that the scheduler itself decides not to try.
var (
	excuseDeferred  = dsn.S(4, 3, 2)
	excuseExpired   = dsn.S(4, 7, 0)
	excuseOutOfTime = dsn.S(4, 4, 7)
)

const (
	textDeferred  = "deferred transport"
	textExpired   = "message is administratively expired"
	textOutOfTime = "delivery time expired"
)

// excuse is the next hop that gives the retry transport its reason.
func excuse(status dsn.Status, reason string) mail.Nexthop {
	return mail.Nexthop(status.String() + " " + reason)
}

// nextDeferred is the deferred message to take up next; 0: none is due. What a flush, an
// answer or the end of a pause made due goes before what is due by its own time, which
// nobody is waiting for.
func (s *Scheduler) nextDeferred() int32 {
	t := s.tenants[0]
	switch {
	case t.due.n > 0:
		return t.due.head
	case t.ripe.n > 0: // there were tenants until now
		return t.ripe.head
	}
	if len(s.retries.s) > 0 && s.retries.s[0].at <= s.now {
		return s.retries.s[0].rec
	}
	return 0
}

// admit fills the active queue; admit.go has what holds where there are tenants. New and deferred mail take turns, as in Postfix, so that
// neither a flood of new mail nor a large backlog keeps the other out. When the queue was
// full, the next free place is for new mail: deferred mail has waited before and can
// wait, while new mail is what users notice.
func (s *Scheduler) admit() {
	if len(s.tenantIndex) > 0 {
		s.admitTenants()
		return
	}
	t := s.tenants[0]
	for s.stats.Active < s.cfg.ActiveLimit && s.loading < maxLoading {
		deferred := t.turnDeferred
		i := int32(0)
		for range 2 {
			if deferred {
				i = s.nextDeferred()
			} else {
				i = t.incoming.head
			}
			// An empty side gives its turn away.
			if i != 0 {
				break
			}
			deferred = !deferred
		}
		if i == 0 {
			return
		}
		t.turnDeferred = !deferred
		if s.stats.Active+1 >= s.cfg.ActiveLimit {
			t.turnDeferred = false
		}
		if deferred {
			s.leaveDeferred(i)
			s.activate(i, QueueDeferred)
		} else {
			s.leaveNew(i)
			s.activate(i, QueueIncoming)
		}
	}
}

// activate moves a message that is nowhere into the active queue, and asks for its first
// recipients: as many as there is room for in memory altogether, and never fewer than
// every message may have. The guaranteed minimum lets a small message start while a
// mailing list fills the memory.
func (s *Scheduler) activate(i int32, origin Queue) {
	rec := s.recs.at(i)
	m := s.messages.Get()
	s.messageSeq++
	m.id, m.rec, m.seq, m.entered, m.queued = rec.id, i, s.messageSeq, s.now, s.now/second
	m.timer.kind, m.timer.msg = timerRefill, m
	m.tenant = rec.tenant
	m.origin, m.fresh = origin, origin == QueueIncoming
	m.early = rec.flags&flagEarly != 0 && rec.flags&(flagFlush|flagRevive|flagNow|flagIdle|FlagExpire) == 0 && rec.mark > s.clock.wall
	m.rcptLimit = max(s.cfg.RecipientMinimum, 1)
	m.failed = rec.flags&FlagNoticeDue != 0
	m.unread = int(rec.rcpts)
	m.prv = s.lastActive
	if m.prv != nil {
		m.prv.nxt = m
	} else {
		s.firstActive = m
	}
	s.lastActive = m
	// Slots are used again, last one first; the record has the index.
	if n := len(s.slotFree); n > 0 {
		m.slot = s.slotFree[n-1]
		s.slotFree = s.slotFree[:n-1]
		s.slots[m.slot] = m
	} else {
		m.slot = int32(len(s.slots))
		s.slots = append(s.slots, m)
	}
	rec.where, rec.active = whereActive, m.slot
	s.countActive(s.tenantOf(rec), 1)
	s.loading++
	s.read(m, max(s.cfg.RecipientLimit-s.stats.Rcpts-s.reserved, m.rcptLimit))
}

// activeMessage finds a message in the active queue.
func (s *Scheduler) activeMessage(id MsgID) *message {
	if i := s.recs.find(id); i != 0 && s.recs.at(i).where == whereActive {
		return s.slots[s.recs.at(i).active]
	}
	return nil
}

// endRead ends a read that was asked for: its recipients are here, or will not come. The
// reservation is dropped, since from now on recipients are counted themselves.
func (s *Scheduler) endRead(m *message) {
	m.loading = false
	s.reserved -= m.reserved
	m.reserved = 0
	// The message's first read is what maxLoading counts.
	if m.readAt == never {
		s.loading--
	}
	m.readAt = s.now
}

// loaded takes in a batch of recipients. An answer that nobody asked for is ignored.
func (s *Scheduler) loaded(ev *Event) {
	m := s.activeMessage(ev.ID)
	if m == nil || !m.loading {
		return
	}
	// No recipient, and no progress in the envelope: the next answer would be the same.
	stalled := m.reserved > 0 && ev.Next <= m.next && len(ev.Rcpts) == 0
	s.endRead(m)
	for _, j := range m.jobs {
		if j.cand == candIndexed {
			s.unindexJob(j) // its size changes
		}
	}
	rec := s.record(m)
	if ev.Single {
		rec.flags |= FlagSingleRcpt
	}
	m.unread, m.next = max(ev.Unread, 0), ev.Next
	// What the shell says is right: after a crash there may be fewer than were
	// known, and it may have dealt with some itself.
	rec.rcpts = int32(m.rcptCount + m.late + len(ev.Rcpts) + m.unread)
	m.failed = m.failed || ev.Failed
	switch {
	case s.early(rec, ev.Starts):
		m.starts = toMicros(ev.Starts)
		m.late += len(ev.Rcpts)
		m.giveUpReading()
	case m.unread > 0 && stalled:
		// Recipients that are said to be there cannot be had. Not to ask for ever,
		// and not to lose them either.
		s.note(Note{Kind: NoteBadCount, ID: m.id, Count: m.unread})
		m.giveUpReading()
	case rec.flags&FlagExpire != 0 && rec.attempts > 0 && len(ev.Rcpts)+m.unread > 0:
		// Outcomes are on record from an earlier attempt: nothing needs to be tried.
		m.late += len(ev.Rcpts)
		m.giveUpReading()
	// A command waits for the message: recipients just read are withdrawn with the
	// others.
	case m.cmd != cmdNone:
		m.late += len(ev.Rcpts)
	default:
		// Every recipient may go to a retry transport that cannot be used, which ends
		// nothing but must not let the message look complete in the middle of the batch.
		m.refs++
		s.assign(m, ev.Rcpts)
		m.refs--
	}
	// All is read. The message's jobs need no more slots than they use; what they have
	// over goes to jobs that still read.
	if m.unread == 0 {
		// In a loop of its own: moveLimits looks at tport.unread, which must hold none of
		// this message's jobs by then.
		for _, j := range m.jobs {
			if j.unreadAt != 0 {
				j.tport.unread.remove(j.unreadAt)
			}
		}
		for _, j := range m.jobs {
			s.moveLimits(j)
		}
	}
	// Jobs that expected recipients and got none leave the list.
	for _, j := range m.jobs {
		s.settleJob(j)
		s.refill(m, j.tport)
	}
	if m.refs == 0 {
		s.complete(m)
	}
}

// full says whether no recipient can be added to the request that was made last at p.
func (p *peer) full() bool {
	limit := p.job.tport.cfg.BatchLimit
	return p.tail == nil || limit > 0 && len(p.tail.rcpts) >= limit
}

// hopFor is the next hop for a recipient that is delivered by way of q; nil: q's. Of a site's
// domains each has another. Where mail goes to the retry transport instead, q's next hop is
// the reason. A queue without terms has one next hop, in the letter case of the recipient
// that came first.
func (q *queue) hopFor(r *Rcpt) *mail.Nexthop {
	if r.Terms == nil && q.terms == nil || r.Transport != q.tport.name || strings.EqualFold(string(r.Nexthop), string(q.nexthop)) {
		return nil
	}
	hop := r.Nexthop
	return &hop
}

// sameHop says whether two next hops of one queue are the same.
func sameHop(a, b *mail.Nexthop) bool { return a == b || a != nil && b != nil && *a == *b }

// early says whether a message is not to be tried yet, and has its lifetime count from when it is.
func (s *Scheduler) early(rec *record, starts time.Time) bool {
	if starts.IsZero() {
		return false
	}
	rec.created = max(rec.created, toMicros(starts))
	return rec.created > s.clock.wall && rec.attempts == 0 && rec.flags&(flagNow|FlagExpire) == 0
}

// giveUpReading leaves the recipients that have not been read for the message's next
// attempt.
func (m *message) giveUpReading() {
	m.late += m.unread
	m.deferred, m.unread = true, 0
}

// loadFailed ends a read that failed: the record could not be read, or trivial-rewrite
// did not answer. Damaged mail is set aside for the postmaster; other mail is tried again
// after its back-off.
func (s *Scheduler) loadFailed(ev *Event) {
	m := s.activeMessage(ev.ID)
	if m == nil || !m.loading {
		return
	}
	first := m.readAt == never
	s.endRead(m)
	// With deliveries under way, damage is acted on when the next attempt finds it again:
	// agents may be reading the content.
	if ev.Corrupt && m.refs == 0 {
		s.end(m, EffectCorrupt)
		return
	}
	// What is in core is finished; then the message is tried again. What would be
	// said of it in a notice is not all known: it is not made now.
	m.giveUpReading()
	m.asked = true
	// Nothing was resolved, so no job exists and no notice is due.
	if first && m.cmd == cmdNone {
		s.postpone(m)
		return
	}
	for _, j := range m.jobs {
		if j.unreadAt != 0 {
			j.tport.unread.remove(j.unreadAt)
		}
		s.leaveCandidates(j)
		s.settleJob(j)
	}
	if m.refs == 0 {
		s.complete(m)
	}
}

// assign groups a batch of recipients into delivery requests: neighbours with the same
// transport and destination share one, up to the transport's BatchLimit. Sorting is the
// shell's work (see Rcpt); in an unsorted batch nothing breaks, but requests get smaller.
func (s *Scheduler) assign(m *message, rcpts []Rcpt) {
	single := s.record(m).flags&FlagSingleRcpt != 0
	var p *peer
	// The first batch of a message, in the order in which it should be, names
	// each destination once: there is no need to look for what is there.
	fresh := len(m.jobs) == 0
	for i := range rcpts {
		r := &rcpts[i]
		if i == 0 {
			p = s.route(m, r, fresh)
		} else if last := &rcpts[i-1]; p == nil || r.Transport != last.Transport || r.Queue != last.Queue || r.Pause != last.Pause || r.Pool != last.Pool ||
			r.Pool != nil && (single || p.full()) { // each request has its own draw
			// With a pool the same destination may come again, as another one.
			fresh = fresh && r.Pool == nil && last.Pool == nil && (r.Transport > last.Transport || r.Transport == last.Transport && r.Queue > last.Queue)
			p = s.route(m, r, fresh)
		}
		if p == nil { // it went to the retry transport
			continue
		}
		j := p.job
		e := p.tail
		hop, pool := p.queue.hopFor(r), r.Pool
		if p.queue.source == "" { // it goes to the retry transport
			pool = nil
		}
		if limit := j.tport.cfg.BatchLimit; e == nil || single || e.apart != r.Apart || limit > 0 && len(e.rcpts) >= limit || !sameHop(e.hop, hop) || e.pool != pool {
			e = s.newEntry(p)
			e.apart, e.hop, e.pool = r.Apart, hop, pool
			s.updateQueue(p.queue)
		}
		if r.Site != "" || len(e.sites) > 0 {
			// sites is parallel to rcpts, and is empty as long as no recipient has one.
			// Most never have.
			for len(e.sites) < len(e.rcpts) {
				e.sites = append(e.sites, "")
			}
			e.sites = append(e.sites, r.Site)
		}
		e.rcpts = append(e.rcpts, r.Index)
		s.count(j, 1)
	}
}

// route finds the peer for a recipient; fresh says that m has none for its destination.
// Mail that is not to be tried now gets a peer of the retry transport. nil means that the
// recipient has been dealt with: it is parked, or not even the retry transport could be
// used.
//
// The order of the tests is that of their weight. What must not be tried at all (expired,
// out of time, paused) comes before what cannot be tried now. A flush overrides
// defer_transports; that of one message revives what is dead on its way.
func (s *Scheduler) route(m *message, r *Rcpt, fresh bool) *peer {
	rec := s.record(m)
	if m.early && r.Tried && !m.swept && rec.flags&FlagExpire == 0 {
		s.holdBack(m, r)
		return nil
	}
	// trivial-rewrite or a transport table may name "retry" itself, with a status and
	// text as next hop. The text alone will do.
	if r.Transport == RetryTransport {
		status, reason, ok := dsn.CutStatus(string(r.Nexthop))
		if !ok {
			status, reason = dsn.S(4, 0, 0), string(r.Nexthop)
		}
		return s.routeRetry(m, r, r.Nexthop, status, reason)
	}
	if rec.flags&FlagExpire != 0 {
		return s.routeRetry(m, r, excuse(excuseExpired, textExpired), excuseExpired, textExpired)
	}
	if m.swept {
		return s.routeRetry(m, r, excuse(excuseOutOfTime, textOutOfTime), excuseOutOfTime, textOutOfTime)
	}
	if s.routePaused(m, r) {
		return nil
	}
	if rec.flags&flagFlush == 0 && slices.Contains(s.cfg.DeferTransports, string(r.Transport)) {
		return s.routeRetry(m, r, excuse(excuseDeferred, textDeferred), excuseDeferred, textDeferred)
	}
	t := s.transportFor(r.Transport)
	if rec.flags&flagRevive != 0 {
		s.transportAlive(t)
	}
	if t.dead {
		return s.routeRetry(m, r, t.excuse, t.status, t.reason)
	}
	q := s.queueOf(t, r)
	if q == nil {
		s.parkStopped(m, t, r)
		return nil
	}
	if q.state == DestDead && rec.flags&flagRevive != 0 {
		s.stopTimer(&q.timer)
		s.makeReady(q)
	}
	// The message is noted as waiting for it, to be released by its next answer.
	if q.state == DestDead {
		m.site = siteKey{tport: t, name: q.name}
		return s.routeRetry(m, r, q.excuse, q.status, q.reason)
	}
	return s.meet(m, r, q, fresh)
}

// meet is route for a recipient of which the destination is found: it waits for q, or outside the active queue for a
// limit over q.
func (s *Scheduler) meet(m *message, r *Rcpt, q *queue, fresh bool) *peer {
	t := q.tport
	quota := r.Quota
	if t.settles() || m.tenant == 0 { // there are more tenants than can be told apart
		quota = nil
	}
	var n *shared
	if q.limited() {
		n = s.beyondFor(m, q)
	}
	if n == nil && quota != nil {
		n = s.beyondQuota(m, q, quota)
	}
	if n != nil {
		s.parkBeyond(m, r, q, n)
		return nil
	}
	var p *peer
	if fresh {
		p = s.newPeer(s.jobFor(m, t), q)
	} else {
		p = s.peerFor(s.jobFor(m, t), q)
	}
	if p.claim.quota != quota {
		s.setQuota(p.claim, quota)
	}
	return p
}

// queueOf is the destination queue for a recipient, under its terms: that of the destination,
// or of one of the sources from which its mail may go. nil: all of these are suspended.
func (s *Scheduler) queueOf(t *transport, r *Rcpt) *queue {
	if r.Pool != nil {
		mb := s.pick(t, r.Queue, r.Pool)
		if s.stoppedBy(mb.Source, mb.Terms) != nil {
			return nil
		}
		return s.sourceQueue(t, r.Queue, r.Nexthop, mb)
	}
	q := s.queueFor(t, r.Queue, r.Nexthop)
	if q.terms != r.Terms {
		s.setTerms(q, r.Terms)
	}
	return q
}

// routeRetry is route for mail that the retry transport is to defer. A next hop of that
// transport is a reason, so all mail that is deferred for one reason shares a queue.
func (s *Scheduler) routeRetry(m *message, r *Rcpt, nexthop mail.Nexthop, status dsn.Status, reason string) *peer {
	t := s.transportFor(RetryTransport)
	q := t.queues[string(nexthop)]
	if t.dead || q != nil && q.state == DestDead {
		s.toRetry(&entry{msg: m, rcpts: []int{r.Index}, sites: []string{r.Site}, apart: r.Apart}, nexthop, status, reason)
		return nil
	}
	if q == nil {
		q = s.queueFor(t, string(nexthop), nexthop)
	}
	return s.peerFor(s.jobFor(m, t), q)
}

// sweep sends what has waited in the active queue beyond its lifetime to the retry
// transport. Without it, a full window or a rate limit could keep a message for ever:
// expiry is otherwise decided when a message leaves the active queue.
//
// A message whose lifetime was over when it entered is given as long as the longest
// back-off for its last attempt. Two clocks must agree on that. After a leap of the wall
// clock all mail seems to have waited for long, so the number of sweeps that have seen
// the message counts as well.
func (s *Scheduler) sweep() {
	for m := s.firstActive; m != nil; {
		next := m.nxt
		m.sweeps++
		waited := min(int64(m.sweeps)*sweepInterval, s.now-m.entered)
		if !m.swept && s.clock.wall >= s.expiry(s.record(m)) && waited >= micros(s.cfg.MaximalBackoff) {
			m.swept = true
			s.excuseWaiting(m, excuseOutOfTime, textOutOfTime)
		}
		m = next
	}
	if s.firstActive != nil {
		s.startTimer(&s.sweeper, s.now+sweepInterval)
	}
	if len(s.numbered) > 0 {
		s.lookForSources()
	}
}

// waiting calls f for every entry of m that waits, except those of the retry and error
// transports: these settle their recipients anyway, and what f sends to retry would come
// back to it for ever. The entries are listed first, because f may end them and with them peers
// and jobs.
func (m *message) waiting(f func(e *entry)) {
	var list []*entry
	for _, j := range m.jobs {
		if j.tport.name == RetryTransport || j.tport.name == ErrorTransport {
			continue
		}
		for _, p := range j.peers {
			for e := p.head; e != nil; e = e.nxt {
				list = append(list, e)
			}
		}
	}
	m.refs++ // f may end every entry
	for _, e := range list {
		f(e)
	}
	m.refs--
}

// excuseWaiting sends everything of m that waits to the retry transport. What is under
// way is let be.
func (s *Scheduler) excuseWaiting(m *message, status dsn.Status, reason string) {
	nexthop := excuse(status, reason)
	m.waiting(func(e *entry) { s.excuseEntry(e, nexthop, status, reason) })
	s.complete(m)
}
