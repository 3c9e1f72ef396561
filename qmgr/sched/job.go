// Jobs and preemption, after nqmgr. The terms (slot, loan, discount, stack) are those of
// Postfix's SCHEDULER_README, which explains why the rule is as it is.

package sched

// A job is one message within one transport.
//
// A job that lets a smaller one past is its parent; levels count how deep
// such a stack is. A job earns a delivery slot with each entry selected, and
// every SlotCost of them pay for one entry of a job that is let past. The
// relations are kept for that account only: selection looks at the job list.
type job struct {
	msg   *message
	tport *transport
	lane  *lane  // of its tenant, in tport
	seq   uint64 // msg.seq

	linked   bool // on the job list
	label    uint64
	prv, nxt *job

	level                 int
	parent                *job
	firstChild, lastChild *job
	prvSib, nxtSib        *job

	// The account of delivery slots. slotsUsed is negative for a job that was let past
	// and has not used up what was paid for it; slotsAvail can be negative for a parent
	// that has given a loan.
	slotsUsed, slotsAvail int
	selected, read        int // entries: selected so far, ever made
	rcptCount, rcptLimit  int // recipients in core, slots for them

	// Its destinations. byQueue is made when a job has more of them than are worth a
	// linear search; mapped says that it is in use.
	peers   []*peer
	byQueue map[*queue]*peer // when there are many: mapped
	mapped  bool
	turns   peerList // peers with waiting entries, less the parked ones, by turn
	// The last number given in the round robin over its destinations.
	turn    uint64
	waiting int // peers with waiting entries

	unreadAt int32 // position in tport.unread
	cand     candState
	// In which bucket it is, while cand is candIndexed.
	bucket *bucket
}

// place is for tport.unread.
func (j *job) place(_ int, at int32) { j.unreadAt = at }

// total is the upper estimate of how many entries the job has altogether:
// each recipient not read yet may need one.
func (j *job) total() int { return j.read + j.msg.unread }

// needed is the upper estimate of how many of them have not been selected.
func (j *job) needed() int { return j.total() - j.selected }

// jobFor finds or makes message m's job within t, and makes sure that it is
// on the job list.
func (s *Scheduler) jobFor(m *message, t *transport) *job {
	var j *job
	for _, o := range m.jobs {
		if o.tport == t {
			j = o
			break
		}
	}
	if j == nil {
		j = s.jobs.Get()
		j.msg, j.tport, j.seq, j.level = m, t, m.seq, -1
		j.lane = s.laneFor(t, m.tenant)
		j.lane.jobs++
		t.jobCount++
		j.turns.which = inTurn
		m.jobs = append(m.jobs, j)
	}
	if !j.linked {
		s.linkJob(j)
	}
	return j
}

// linkJob puts a job that is new or has revived on the job list, behind the
// last one without a parent that is not younger, and lets it have the spare
// recipient slots of its transport.
func (s *Scheduler) linkJob(j *job) {
	t, l := j.tport, j.lane
	prev := l.byAge.before(j.seq)
	// Jobs that have lost their parent stand where they stood; a new job must not get in
	// front of one that is older.
	for _, o := range l.orphans {
		if o.seq <= j.seq && (prev == nil || o.label > prev.label) {
			prev = o
		}
	}
	s.insertAfter(l, prev, j)
	l.byAge.add(j)
	j.linked, j.level = true, 0

	// The oldest job that is not fully read has all spare slots. When this one
	// is older, they are taken back first.
	if t.unread.len() > 0 {
		if o := t.unread.s[0].v; o.seq > j.seq {
			o.giveBack()
		}
	}
	if j.msg.unread > 0 {
		t.unread.push(key{j.seq, 0}, j)
	}
	if t.rcptUnused > 0 {
		j.grant(t.rcptUnused)
	}
}

// retireJob takes a job with nothing to select off the lists. It comes back when more of
// its recipients have been read (jobFor). Its children stay where they are in the list,
// as orphans: only their account with this job ends.
func (s *Scheduler) retireJob(j *job) {
	t, l := j.tport, j.lane
	if j.level > 0 {
		s.popJob(j)
	}
	for c := j.firstChild; c != nil; c = j.firstChild {
		j.dropChild(c)
		l.orphans = append(l.orphans, c)
	}
	s.leaveCandidates(j)
	l.unlinkJob(j)
	l.byAge.forget(j)
	l.dropOrphan(j)
	j.linked, j.level = false, -1
	if j.unreadAt != 0 {
		t.unread.remove(j.unreadAt)
	}
	s.moveLimits(j)
}

// settleJob brings a job's place in line with what it has: off the list when
// it has nothing and nothing is to be expected, among the candidates for
// preemption when it could be one.
func (s *Scheduler) settleJob(j *job) {
	if !j.linked {
		return
	}
	if j.waiting == 0 {
		m := j.msg
		if m.unread == 0 || !m.loading && m.spare() <= 0 {
			s.retireJob(j)
		}
		return
	}
	s.enterCandidates(j)
}

// addChild makes c the youngest child of j.
func (j *job) addChild(c *job) {
	c.parent = j
	c.prvSib, c.nxtSib = j.lastChild, nil
	if j.lastChild != nil {
		j.lastChild.nxtSib = c
	} else {
		j.firstChild = c
	}
	j.lastChild = c
}

func (j *job) dropChild(c *job) {
	if c.prvSib != nil {
		c.prvSib.nxtSib = c.nxtSib
	} else {
		j.firstChild = c.nxtSib
	}
	if c.nxtSib != nil {
		c.nxtSib.prvSib = c.prvSib
	} else {
		j.lastChild = c.prvSib
	}
	c.parent, c.prvSib, c.nxtSib = nil, nil, nil
}

// dropOrphan removes j from the list of orphans if it is there.
func (l *lane) dropOrphan(j *job) {
	for i, o := range l.orphans {
		if o == j {
			l.orphans = append(l.orphans[:i], l.orphans[i+1:]...)
			return
		}
	}
}

// popJob takes j out of its stack. It accounts for what j has used, so that its parent
// gets back the slots that were paid and not used. A parent that merely adopted it, which
// is more than one level below, has paid nothing. The children of j go to its parent.
func (s *Scheduler) popJob(j *job) {
	l, parent := j.lane, j.parent
	if parent != nil {
		if j.level == parent.level+1 {
			parent.slotsAvail -= j.slotsUsed * l.tport.cfg.SlotCost
		}
		parent.dropChild(j)
	}
	for c := j.firstChild; c != nil; c = j.firstChild {
		j.dropChild(c)
		if parent != nil {
			parent.addChild(c)
		} else {
			l.orphans = append(l.orphans, c)
		}
	}
	l.dropOrphan(j)
	j.level = 0
	if parent != nil {
		// Without children, the parent may be a candidate again.
		s.settleJob(parent)
	}
}

// preempt decides whether another job is let past cur, which is the first
// that could be served now, and returns that job, or nil. It is nqmgr's rule:
// the candidate is the job with the most age per entry among those that cur
// could ever pay for, and it is let past when cur has earned enough slots for
// it, less the discount and the loan.
func (s *Scheduler) preempt(cur *job) *job {
	c := &cur.tport.cfg
	// The tests are in nqmgr's order, the cheap ones first: most jobs are too small ever
	// to be preempted, and for those no candidate is looked for.
	if c.SlotCost < 2 || c.Mode != Preemptive {
		return nil
	}
	if cur.slotsAvail <= 0 || cur.total() < c.MinimumSlots*c.SlotCost {
		return nil
	}
	j := s.candidate(cur)
	if j == nil {
		return nil
	}
	expected := j.needed()
	if float64(cur.slotsAvail/c.SlotCost+c.SlotLoan) < float64(expected)*float64(100-c.SlotDiscount)/100 {
		return nil
	}
	s.letPast(cur, j, expected)
	return j
}

// letPast moves j directly in front of cur and settles the account.
func (s *Scheduler) letPast(cur, j *job, expected int) {
	t, l := cur.tport, cur.lane
	s.stats.Preemptions++
	if _, ok := between(cur.prv, cur); !ok {
		s.relabel(l) // while every job is on the list
	}
	s.leaveCandidates(j)
	s.leaveCandidates(cur)
	if j.level > 0 {
		s.popJob(j)
	}
	l.unlinkJob(j)
	l.byAge.forget(j)
	s.insertAfter(l, cur.prv, j)
	for _, p := range j.peers {
		if p.todo > 0 {
			p.claim.peers.remove(p)
			p.claim.peers.push(key{j.label, 0}, p)
			s.updateQueue(p.queue)
		}
	}
	cur.addChild(j)
	j.level = cur.level + 1
	cur.slotsAvail -= expected * t.cfg.SlotCost
	j.slotsUsed = -expected
	if j.msg.unread > 0 {
		// Half of what is left of the pool and the extra pool together: jobs that preempt
		// each other in turn get less and less, and never nothing while there is
		// something.
		extra := (t.cfg.ExtraRecipientLimit + t.rcptUnused + 1) / 2
		if extra > 0 {
			j.grant(extra)
			s.refill(j.msg, t)
		}
	}
}
