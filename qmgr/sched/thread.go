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

// ringAppend makes q the last thread to have its turn.
func (t *transport) ringAppend(q *queue) {
	t.queueUp(q)
	t.ringLen++
	if t.ring == nil {
		q.ringPrv, q.ringNxt = q, q
		t.ring = q
		return
	}
	q.ringNxt, q.ringPrv = t.ring, t.ring.ringPrv
	q.ringPrv.ringNxt, q.ringNxt.ringPrv = q, q
}

func (t *transport) ringRemove(q *queue) {
	t.ringLen--
	if t.ring == q {
		t.ring = q.ringNxt
	}
	if t.ring == q {
		t.ring = nil
	}
	q.ringPrv.ringNxt, q.ringNxt.ringPrv = q.ringNxt, q.ringPrv
	q.ringPrv, q.ringNxt = nil, nil
}

// queueUp notes where q begins to wait: at the end of the ring, which it need
// not be in yet.
func (t *transport) queueUp(q *queue) {
	q.joined = t.handed
	q.patience = uint64(t.ringLen+t.busy+1) * uint64(t.cfg.ThreadQuantum)
}

// nextThread is the entry's peer whose thread has its turn, and how many
// deliveries that turn has then had.
func (t *transport) nextThread() (p *peer, turn int) {
	q := t.ring
	t.handed++
	t.ring = q.ringNxt
	turn = q.turn + 1
	q.turn = 0
	t.queueUp(q) // it stays when it may have more agents: behind all others
	return q.peers.top(), turn
}

// goOn lets an agent that has ended a delivery to q go on with that thread: the
// turn has had so many deliveries. When it is over and others wait, q stays
// where it is, behind them.
func (t *transport) goOn(q *queue, turn int) {
	if quantum := t.cfg.ThreadQuantum; quantum > 0 && turn >= quantum && t.ringLen > 1 {
		return
	}
	t.ringRemove(q)
	t.ringAppend(q)
	t.ring, q.turn = q, turn
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
