// Mail that is too much for the active queue. What waits for a shared limit would fill it,
// and mail for everybody else would wait outside. So a limit that has no room keeps no more
// than SharedActiveLimit messages there. Further ones are parked: like mail for which there
// is a pause they are deferred without an attempt being counted, and kept by destination.
// As messages leave the limit's lines, parked ones take their places, one of each
// destination in turn.
//
// Mail that is new does not slip past mail that is parked: it is parked behind it.
// Deferred mail whose own time has come does, where there is room.
//
// A message may wait for a limit with one recipient while another has been tried and deferred. It
// comes back for the first; the other waits for its own time (Rcpt.Tried).

package sched

import (
	"time"

	"posthaste/internal/dsn"
)

// beyondID marks what waits for a shared limit outside the active queue. In the lists of
// deferred mail it stands where the number of a pause does.
const beyondID PauseID = 1<<32 - 2

// recheckTime is how often a limit that has mail parked looks whether its lines have become
// short although nobody left them: parked messages may be removed after they have been
// called, and then nothing calls the next.
const recheckTime = 10 * second

// StatusBeyond is that of EffectDeferRcpts for what waits for a limit: RFC 3463's "mail system congestion".
var StatusBeyond = dsn.S(4, 4, 5)

// beyondFor is the limit on whose account a message must not wait for q in the active
// queue; nil: it may. A flush of one message overrides it.
func (s *Scheduler) beyondFor(m *message, q *queue) *shared {
	limit, rec := s.cfg.SharedActiveLimit, s.record(m)
	if limit <= 0 || rec.flags&flagRevive != 0 {
		return nil
	}
	for n := range q.above {
		if (n.backlog >= limit && !s.room(n) || n.parked > 0 && m.fresh) && !m.waitsFor(q) {
			return n
		}
	}
	return nil
}

// advance is the beginning of a Step. When none has come for long, the scheduler was not there: it begins, the machine was
// suspended, or somebody has set the clock ahead.
func (s *Scheduler) advance(now time.Time) {
	s.now = s.clock.advance(now.UnixMicro())
	if s.now-s.stepped > micros(s.cfg.MaximalBackoff) {
		s.graceEnd = s.now + micros(s.cfg.MaximalBackoff)
	}
	s.stepped = s.now
}

// graced says whether a message is not returned although its lifetime is over: that was over when the scheduler had not
// been there for long, and nothing has been tried since, for a limit that has no room. It is given as long as what
// waits for its last attempt in the active queue: see sweep.
func (s *Scheduler) graced(m *message) bool {
	return m.parked.pause == beyondID && !m.deferred && s.now < s.graceEnd
}

// waitsFor says whether recipients of m wait for q already: then others may join them.
func (m *message) waitsFor(q *queue) bool {
	for _, j := range m.jobs {
		if j.tport == q.tport {
			p := j.findPeer(q)
			return p != nil && p.todo > 0
		}
	}
	return false
}

// parkBeyond parks a recipient.
func (s *Scheduler) parkBeyond(m *message, r *Rcpt, q *queue, n *shared) {
	m.gate = n
	var sites []string
	if r.Site != "" {
		sites = []string{r.Site}
	}
	p := &pause{Pause: Pause{ID: beyondID, Status: StatusBeyond, Reason: "waiting for the limit of " + n.key.String()}}
	s.park(m, p, q.tport, q.name, []int{r.Index}, sites)
	m.parked.tenant = n.key.tenant
	s.releaseQueue(q)
}

// atGate makes the list of a destination's parked mail one that the limit of m takes back
// from. It says whether there is such a limit; it may have been forgotten since.
func (s *Scheduler) atGate(m *message) bool { return m.gate != nil && s.shares[m.gate.key] != nil }

// joinGate puts a site into the ring of the limit for which its mail waits.
func (s *Scheduler) joinGate(i int32, n *shared) {
	st := &s.sites[i]
	if st.gate != nil {
		return
	}
	st.gate = n
	st.gatePrv, st.gateNxt = n.lastSite, 0
	if n.lastSite != 0 {
		s.sites[n.lastSite].gateNxt = i
	} else {
		n.firstSite = i
	}
	n.lastSite = i
	s.rest(n)
	if n.recheck.pos == 0 {
		s.startTimer(&n.recheck, s.now+recheckTime)
	}
}

// leaveGate takes it out.
func (s *Scheduler) leaveGate(i int32) {
	st := &s.sites[i]
	n := st.gate
	if st.gatePrv != 0 {
		s.sites[st.gatePrv].gateNxt = st.gateNxt
	} else {
		n.firstSite = st.gateNxt
	}
	if st.gateNxt != 0 {
		s.sites[st.gateNxt].gatePrv = st.gatePrv
	} else {
		n.lastSite = st.gatePrv
	}
	st.gate, st.gatePrv, st.gateNxt = nil, 0, 0
}

// countBacklog counts a job's mail for a destination in or out of the lines.
func (s *Scheduler) countBacklog(p *peer, n int) {
	for a := range p.lines {
		a.backlog += n
		if n < 0 && a.parked > 0 {
			if a.owed == 0 {
				s.owing = append(s.owing, a)
			}
			a.owed++
		}
	}
}

// lines visits the limits in whose lines p may have to wait.
func (p *peer) lines(yield func(*shared) bool) {
	for n := range p.queue.above {
		if !yield(n) {
			return
		}
	}
	for n := p.claim.pair; n != nil; n = n.parent {
		if !yield(n) {
			return
		}
	}
}

// takeBack has parked messages take the places of those that have left the lines.
func (s *Scheduler) takeBack() {
	for _, n := range s.owing {
		// Other mail may have come in their places meanwhile.
		k := min(n.owed, s.cfg.SharedActiveLimit-n.backlog)
		n.owed = 0
		s.callBack(n, k)
	}
	clear(s.owing)
	s.owing = s.owing[:0]
}

// callBack makes k parked messages of n due.
func (s *Scheduler) callBack(n *shared, k int) {
	for ; k > 0 && n.firstSite != 0; k-- {
		// The site may be gone with this message.
		i := n.firstSite
		s.leaveGate(i)
		s.joinGate(i, n) // its next one is behind those of the others
		if st := &s.sites[i]; st.waiting.n > 0 {
			s.makeDueEarly(st.waiting.head)
		} else {
			s.recall(i, true)
		}
	}
}

// beyondDue looks whether a limit has room for parked mail. When all that was called before
// has come, the lines are as short as they seem.
func (s *Scheduler) beyondDue(n *shared) {
	limit := s.cfg.SharedActiveLimit
	if limit <= 0 { // it has been switched off since
		limit = max(s.cfg.ActiveLimit/10, 1)
	}
	if s.Due() == 0 && s.loading == 0 && n.backlog <= limit/2 {
		s.callBack(n, limit-n.backlog)
	}
	if n.parked > 0 {
		s.startTimer(&n.recheck, s.now+recheckTime)
	}
}
