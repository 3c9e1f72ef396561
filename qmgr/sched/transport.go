// Transports: which one delivers next, and what becomes of its mail when it cannot be
// used. The loop that hands out deliveries, deliver, is here.

package sched

import (
	"slices"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// rateState is where a transport with transport_rate_delay is in its cycle:
// one delivery at a time, and a pause before each.
type rateState uint8

const (
	rateIdle  rateState = iota // nothing under way; work starts the pause
	ratePause                  // waiting
	rateOpen                   // one entry may go
	rateBusy                   // it is under way
)

// A transport is a delivery service of master.cf: its destinations, its jobs
// in the order of service, its agents. It is never forgotten.
type transport struct {
	// Its name in master.cf, and its settings, which reconfigure replaces.
	name mail.Transport
	cfg  TransportConfig

	// A transport is dead when no agent can be had. Its mail is excused then, and excuse
	// is the next hop that has the retry transport say why. until is when the next
	// attempt may be made, in microseconds.
	dead      bool
	until     int64
	status    dsn.Status // when dead: why
	reason    string
	excuse    mail.Nexthop // when dead: nexthop for the retry transport
	deadTimer timer

	// transport_rate_delay; rateIdle for ever when there is none.
	rate      rateState
	rateTimer timer

	// Destinations by name, and in the order of their creation. The list is for walks,
	// which must not depend on the order of a map.
	queues                map[string]*queue
	firstQueue, lastQueue *queue

	// Its mail by tenant (lane.go). Mostly there is that of one, which has the lane that is part of it. others are
	// those of further tenants, by number in laneOf; nil: there are none.
	lane
	others   []*lane
	laneOf   map[uint16]*lane
	seats    ring
	jobCount int // of all lanes
	offers   int // claims that are open: what destinations would take now

	unread heap[*job] // jobs whose messages are not fully read, oldest first
	// The pool of recipient slots (limit.go). It is negative while jobs that preempted
	// others use slots of the extra pool.
	rcptUnused int

	// Entries that agents have in hand. Those that are not slow are never more than
	// ProcessLimit.
	busy int
	slow slowList
	// Agents that keep a session open and have nothing to do.
	idleFirst *agent // idle agents with open sessions, longest idle first
	idleLast  *agent
	idleCount int
	idleElse  map[string]*agent // those of destinations not in core, by name

	learnt *adaptives // courses of destinations not in core; nil: there are none
}

// transportFor finds or makes a transport. A new one goes to the front: it has mail and
// has had no turn. The name was resolved by trivial-rewrite, so there are as many
// transports as main.cf, master.cf and the tables name.
func (s *Scheduler) transportFor(name mail.Transport) *transport {
	if len(s.transports) > 0 {
		if t := s.transports[len(s.transports)-1]; t.name == name {
			return t // the one that had its turn last: almost always
		}
	}
	if t := s.transportIndex[name]; t != nil {
		return t
	}
	t := &transport{name: name, queues: map[string]*queue{}}
	t.cfg = s.transportConfig(name)
	t.rcptUnused = t.cfg.RecipientLimit
	s.setLane(&t.lane, t, 0)
	t.deadTimer = timer{kind: timerTransport, tport: t}
	t.rateTimer = timer{kind: timerRate, tport: t}
	t.slow.timer = timer{kind: timerSlow, tport: t}
	s.transports = slices.Insert(s.transports, 0, t)
	s.transportIndex[name] = t
	return t
}

// transportConfig is the configuration of a transport: its own, or the common one.
func (s *Scheduler) transportConfig(name mail.Transport) TransportConfig {
	c := s.cfg.DefaultTransports
	if s.cfg.Transport != nil {
		c = s.cfg.Transport(name, c)
	}
	return c
}

// hasWork says whether some destination can take an entry.
func (t *transport) hasWork() bool { return t.offers > 0 }

// selectable says whether an entry of t can be delivered now. With transport_rate_delay
// it has a side effect: work that meets an idle transport starts the pause that comes
// before a delivery. Check has a variant without, selectableNow.
func (s *Scheduler) selectable(t *transport) bool {
	if t.rate == rateOpen && !t.hasWork() {
		// The pause is over, but what it was made for has gone elsewhere.
		t.rate = rateIdle
	}
	if !t.hasWork() || t.dead || t.full() {
		return false
	}
	if t.cfg.TransportRateDelay > 0 {
		if t.rate == rateIdle {
			t.rate = ratePause
			s.startTimer(&t.rateTimer, s.now+micros(t.cfg.TransportRateDelay))
		}
		return t.rate == rateOpen
	}
	return true
}

// deliver hands out entries for as long as there is one that can go:
// transports in turn, then jobs in order, then destinations in turn.
func (s *Scheduler) deliver() {
	for i := 0; i < len(s.transports); {
		// Each delivery that begins may let other destinations begin theirs.
		for len(s.roots)+len(s.full)+len(s.spilling) > 0 {
			s.grantAll()
			s.overflow()
		}
		t := s.transports[i]
		if !s.selectable(t) {
			i++
			continue
		}
		// The transport had its turn; the search begins again at the front, since handing
		// out may have changed what others may do.
		copy(s.transports[i:], s.transports[i+1:])
		s.transports[len(s.transports)-1] = t
		s.handOut(s.choose(t))
		i = 0
	}
}

// choose picks the next entry of t and makes it busy. t must have work.
//
// Where there is mail of several tenants, the tenant comes first. In nqmgr's modes it is then the first job that can be served, unless a smaller one is let
// past; within the job, destinations take turns. In thread mode the destination comes
// first, and its mail in the order of the thread.
func (s *Scheduler) choose(t *transport) *entry {
	var p *peer
	turn := 0
	l := t.turnOf()
	if t.cfg.Mode == Thread {
		p, turn = l.nextThread()
	} else {
		j := l.avail.s[0].v.peers.top().job
		if o := s.preempt(j); o != nil {
			j = o
		}
		p = j.nextPeer()
	}
	// Within a peer, entries go first in, first out.
	e, j := p.head, p.job
	e.turn = turn
	if p.queue.limited() || p.claim.allowed != nil {
		s.divide(e)
	}
	s.selectEntry(e)
	// A job that has just given its last entry must read on before it is judged to have
	// none.
	s.readForJob(j)
	s.settleJob(j)
	if t.others != nil {
		s.passOn(l, len(e.rcpts))
	}
	return e
}

// handOut gives a chosen entry to an agent: it orders the delivery.
func (s *Scheduler) handOut(e *entry) {
	q := e.peer.queue
	t := q.tport
	if t.cfg.TransportRateDelay > 0 {
		t.rate = rateBusy
	}
	reuse := s.takeAgent(e)
	s.stats.Decisions++
	ef := Effect{Kind: EffectDeliver, ID: e.msg.id, Entry: e.id, Agent: e.agent.id, Reuse: reuse,
		Transport: t.name, Nexthop: e.nexthop(), Source: q.source, Rcpts: e.rcpts}
	if q.terms != nil {
		ef.Most, ef.Terms = int32(q.terms.Reuse), q.terms
	}
	if t.cfg.Mode == Thread {
		// An idle agent's session is the cache: in thread mode the agent keeps it for
		// exactly as long as the scheduler does.
		if t.cfg.IdleMax > 0 {
			ef.Cache, ef.Keep = CacheLoad|CacheStore, t.cfg.IdleMax
		}
	} else {
		ef.Cache = s.cacheHints(q)
	}
	s.emit(ef)
}

// killTransport declares that t cannot be used until transport_retry_time is over. All
// that waits for it is sent to the retry transport, and so is deferred with the reason in
// the log and on record, not left in the active queue where it would take the places of
// other mail.
func (s *Scheduler) killTransport(t *transport, status dsn.Status, reason string) {
	if status.IsZero() {
		status, reason = dsn.S(4, 3, 0), "mail transport unavailable"
	}
	t.dead = true
	t.status, t.reason = status, reason
	t.excuse = mail.Nexthop(status.String() + " " + reason)
	t.until = s.now + micros(s.cfg.TransportRetry)
	s.startTimer(&t.deadTimer, t.until)
	s.note(Note{Kind: NoteTransportDown, Transport: t.name, Until: toTime(t.until), Status: status, Reason: reason})
	// Agents that cannot be reached keep no sessions.
	for t.idleFirst != nil {
		s.dismiss(t.idleFirst)
	}
	for q := t.firstQueue; q != nil; {
		// excuseQueue may remove q from the list.
		next := q.nxt
		s.excuseQueue(q, t.excuse, status, reason)
		q = next
	}
}

// undead ends a transport's dead time. Its mail was deferred and comes back at its own
// times.
func (t *transport) undead() {
	t.dead, t.until = false, never
	t.status, t.reason, t.excuse = dsn.Status{}, "", ""
}

// transportAlive ends it early: an agent has reported, or a flush asks for another
// attempt.
func (s *Scheduler) transportAlive(t *transport) {
	if t.dead {
		s.stopTimer(&t.deadTimer)
		t.undead()
	}
}

// excuseQueue sends every entry that waits for q to the retry transport. When q itself is
// dead, its messages are noted as waiting for it: its next answer releases them before
// their time.
func (s *Scheduler) excuseQueue(q *queue, excuse mail.Nexthop, status dsn.Status, reason string) {
	dead := q.state == DestDead
	for q.waiting > 0 {
		e := q.any().head
		if dead {
			e.msg.site = siteKey{tport: q.tport, name: q.name}
		}
		s.excuseEntry(e, excuse, status, reason)
	}
}

// excuseEntry sends one entry, waiting or busy, to the retry transport.
func (s *Scheduler) excuseEntry(e *entry, excuse mail.Nexthop, status dsn.Status, reason string) {
	// Between the old entry's end and the new one, the message must not look complete.
	e.msg.refs++ // the message is not complete between the two
	s.toRetry(e, excuse, status, reason)
	e.msg.refs--
	s.endEntry(e)
}

// toRetry makes a delivery request for old's recipients to the retry transport, whose agent
// defers them and logs the reason. When even that transport cannot be used,
// EffectDeferRcpts has the shell record the reason. Without this, mail for a dead
// destination would depend on the error(8) service, and would be stuck in the active
// queue while that is down.
func (s *Scheduler) toRetry(old *entry, excuse mail.Nexthop, status dsn.Status, reason string) {
	m := old.msg
	t := s.transportFor(RetryTransport)
	q := t.queues[string(excuse)]
	if t.dead || q != nil && q.state == DestDead {
		// The entry is about to be given back with its slice, and the effect needs its own until
		// the next Step. The capacity is cut, so that later appends do not write into it.
		from := len(s.scratch)
		s.scratch = append(s.scratch, old.rcpts...)
		m.deferred = true
		m.late += len(old.rcpts)
		s.rememberSites(m, old.sites)
		s.emit(Effect{Kind: EffectDeferRcpts, ID: m.id, Rcpts: s.scratch[from:len(s.scratch):len(s.scratch)], Status: status, Reason: reason})
		return
	}
	if q == nil {
		q = s.queueFor(t, string(excuse), excuse)
	}
	j := s.jobFor(m, t)
	e := s.newEntry(s.peerFor(j, q))
	// Recipients that come later join it only if they may be in one request with these.
	e.apart = old.apart
	e.rcpts = append(e.rcpts, old.rcpts...)
	e.sites = append(e.sites, old.sites...)
	s.count(j, len(old.rcpts))
	s.updateQueue(q)
	s.settleJob(j)
	s.refill(m, t)
}

// count adds n recipients, or takes -n away, that are in memory on account of j.
func (s *Scheduler) count(j *job, n int) {
	j.rcptCount += n
	j.msg.rcptCount += n
	s.stats.Rcpts += n
}
