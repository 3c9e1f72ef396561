// Idle agents: those that keep a session open for more mail to the same destination. Busy
// agents need no more than a name, which their entry has.

package sched

// An agent carries out one delivery request at a time. One that reports
// itself hungry still has its session open: it is idle, and the next entry
// for the same destination is given to it. It is dismissed, and its session is
// closed, when it has been idle for IdleMax. Where threads are scheduled it also
// takes a place of the transport's process limit, and is dismissed when another
// thread needs that; elsewhere sessions are kept beside those that are in use, as
// with Postfix.
type agent struct {
	id    AgentID
	tport *transport
	queue *queue // destination of the open session, while that is in core
	// The name outlives the queue, which is forgotten with its last entry.
	name     string // its name, the key in tport.idleElse otherwise
	timer    timer
	prv, nxt *agent // in tport's list of idle agents
	qPrv     *agent // in its destination's list, latest first
	qNxt     *agent
}

// takeAgent finds an agent for e. It takes the one that became idle last, since its
// session is the least likely to have been closed by the other side, and says whether it
// took one.
func (s *Scheduler) takeAgent(e *entry) (reuse bool) {
	q := e.peer.queue
	t := q.tport
	a := q.idle
	reuse = a != nil
	if reuse {
		s.unlinkIdle(a)
	} else {
		if t.cfg.Mode == Thread && t.cfg.ProcessLimit > 0 && t.places()+t.idleCount > t.cfg.ProcessLimit {
			// A session that is kept for nobody must not cost another thread its place;
			// the one that has been idle longest goes.
			s.dismiss(t.idleFirst)
		}
		a = s.agentPool.Get()
		s.agentSeq++
		a.id, a.tport = AgentID(s.agentSeq), t
		a.timer.kind, a.timer.agent = timerIdle, a
	}
	e.agent = a
	return reuse
}

// idleAgent keeps a hungry agent for q, the destination that it just served.
func (s *Scheduler) idleAgent(a *agent, q *queue) {
	t := a.tport
	a.name = q.name
	a.prv = t.idleLast
	if a.prv != nil {
		a.prv.nxt = a
	} else {
		t.idleFirst = a
	}
	t.idleLast = a
	t.idleCount++
	a.attach(q)
	s.startTimer(&a.timer, s.now+micros(t.cfg.IdleMax))
}

// attach makes a the latest idle agent of q.
func (a *agent) attach(q *queue) {
	a.queue = q
	a.qNxt = q.idle
	if q.idle != nil {
		q.idle.qPrv = a
	}
	q.idle = a
}

// detach takes a out of the list of its destination's idle agents: out of q.idle while
// the destination is in core, else out of the transport's idleElse.
func (a *agent) detach() {
	switch {
	case a.qPrv != nil:
		a.qPrv.qNxt = a.qNxt
	case a.queue != nil:
		a.queue.idle = a.qNxt
	case a.qNxt != nil:
		a.tport.idleElse[a.name] = a.qNxt
	default:
		delete(a.tport.idleElse, a.name)
	}
	if a.qNxt != nil {
		a.qNxt.qPrv = a.qPrv
	}
	a.queue, a.qPrv, a.qNxt = nil, nil, nil
}

// unlinkIdle takes an agent out of both lists of idle agents and stops its timer. It then
// has work to do, or goes.
func (s *Scheduler) unlinkIdle(a *agent) {
	t := a.tport
	s.stopTimer(&a.timer)
	a.detach()
	if a.prv != nil {
		a.prv.nxt = a.nxt
	} else {
		t.idleFirst = a.nxt
	}
	if a.nxt != nil {
		a.nxt.prv = a.prv
	} else {
		t.idleLast = a.prv
	}
	a.prv, a.nxt = nil, nil
	t.idleCount--
}

// dismiss sends an idle agent away.
func (s *Scheduler) dismiss(a *agent) {
	s.unlinkIdle(a)
	s.sendAway(a)
}

// sendAway has an agent that is in no list close its session.
func (s *Scheduler) sendAway(a *agent) {
	ef := Effect{Kind: EffectDismiss, Agent: a.id, Transport: a.tport.name}
	if c := &a.tport.cfg; c.Mode == Thread {
		// Elsewhere the agent decides how long a session is kept; 0 says so.
		ef.Keep = c.IdleMax
	}
	s.emit(ef)
	s.freeAgent(a)
}

// freeAgent forgets an agent. The shell may still name it in a late report; agents are
// found through entries, so nobody looks.
func (s *Scheduler) freeAgent(a *agent) {
	*a = agent{}
	s.agentPool.Put(a)
}

// disownIdle prepares q's removal: its idle agents stay, under the destination's name,
// until more mail comes or their time is over.
func (t *transport) disownIdle(q *queue) {
	if q.idle == nil {
		return
	}
	if t.idleElse == nil {
		t.idleElse = map[string]*agent{}
	}
	t.idleElse[q.name] = q.idle
	for a := q.idle; a != nil; a = a.qNxt {
		a.queue = nil
	}
	q.idle = nil
}

// adoptIdle gives a new destination the agents that served the one of its name before.
func (t *transport) adoptIdle(q *queue) {
	if len(t.idleElse) == 0 {
		return
	}
	q.idle = t.idleElse[q.name]
	delete(t.idleElse, q.name)
	for a := q.idle; a != nil; a = a.qNxt {
		a.queue = q
	}
}
