package sched

// Threads are ZMailer's way to share out agents. The mail for one destination
// is a thread, the threads of a transport that have mail and an agent to spare
// for it wait in a ring, and an agent that has nothing to do takes the next one.
// It goes on with that thread over its open session for one turn: as many
// deliveries as ThreadQuantum says, and more only while no other thread waits.
// Then the thread goes behind those that wait.
//
// So there is a bound for how long a thread waits for an agent, counted in
// deliveries that begin meanwhile: ThreadQuantum for each thread that is in
// front of it in the ring and for each turn that is under way when it joins.
// Check verifies it. Without a quantum, as in ZMailer, as many busy threads as
// there are agents keep everybody else waiting until one has no mail.

// ringAppend makes c the last thread to have its turn.
func (l *lane) ringAppend(c *claim) {
	l.queueUp(c)
	l.ringLen++
	if l.ring == nil {
		c.ringPrv, c.ringNxt = c, c
		l.ring = c
		return
	}
	c.ringNxt, c.ringPrv = l.ring, l.ring.ringPrv
	c.ringPrv.ringNxt, c.ringNxt.ringPrv = c, c
}

func (l *lane) ringRemove(c *claim) {
	l.ringLen--
	if l.ring == c {
		l.ring = c.ringNxt
	}
	if l.ring == c {
		l.ring = nil
	}
	c.ringPrv.ringNxt, c.ringNxt.ringPrv = c.ringNxt, c.ringPrv
	c.ringPrv, c.ringNxt = nil, nil
}

// queueUp notes where c begins to wait: at the end of the ring, which it need
// not be in yet.
func (l *lane) queueUp(c *claim) {
	c.joined = l.handed
	c.patience = uint64(l.ringLen+l.tport.busy+1) * uint64(l.tport.cfg.ThreadQuantum)
}

// nextThread is the entry's peer whose thread has its turn, and how many
// deliveries that turn has then had.
func (l *lane) nextThread() (p *peer, turn int) {
	c := l.ring
	l.handed++
	l.ring = c.ringNxt
	turn = c.turn + 1
	c.turn = 0
	l.queueUp(c) // it stays when it may have more agents: behind all others
	return c.peers.top(), turn
}

// goOn lets an agent that has ended a delivery to a destination go on with that thread: the
// turn has had so many deliveries. When it is over and others wait, the thread stays
// where it is, behind them.
func (c *claim) goOn(turn int) {
	l := c.lane
	if quantum := l.tport.cfg.ThreadQuantum; quantum > 0 && turn >= quantum && l.ringLen > 1 {
		return
	}
	l.ringRemove(c)
	l.ringAppend(c)
	l.ring, c.turn = c, turn
}

// takeUp is how many more messages that wait for q an answer releases: two, so
// that the flow doubles with each round trip, or in a thread that has a turn's
// worth of mail at hand just the one that the agent needs next.
func (q *queue) takeUp() int {
	if c := &q.tport.cfg; c.Mode == Thread && c.ThreadQuantum > 0 && q.todo >= c.ThreadQuantum {
		return 1
	}
	return 2
}
