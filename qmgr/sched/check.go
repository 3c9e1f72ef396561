// The invariants of all structures, as code. The random and story tests call Check after
// every Step, and the simulator does so at intervals. It counts again from the ground
// what the scheduler counts as it goes; where the two disagree, some change has missed an
// index.

package sched

import (
	"fmt"
	"maps"
	"slices"
)

// checker collects the first invariant that does not hold.
type checker struct {
	// Only read, except by lookups that build a map on demand.
	s   *Scheduler
	err error
}

// ok is given what must hold, or what no says of it. Thus the text and its arguments are made only for
// what does not hold: to have them ready for every check would take as long as all checks.
func (c *checker) ok(bool) {}

// no keeps the first failure: later ones mostly follow from it. It returns false.
func (c *checker) no(format string, args ...any) bool {
	if c.err == nil {
		c.err = fmt.Errorf("sched: "+format, args...)
	}
	return false
}

// Check verifies every invariant, in time proportional to all that is
// queued. It is for tests.
func (s *Scheduler) Check() error {
	c := &checker{s: s}
	c.records()
	c.active()
	for _, t := range s.transports {
		c.transport(t)
		c.agents(t)
	}
	c.limits()
	c.shared()
	c.inheritance()
	// Members of a heap know their positions, and no member is before its parent.
	for i := range s.timers.s {
		c.ok(s.timers.s[i].v.pos == int32(i+1) || c.no("timer %d has position %d", i, s.timers.s[i].v.pos))
		c.ok(i == 0 || !s.timers.s[i].k.less(s.timers.s[(i-1)/heapWidth].k) || c.no("timers: no heap at %d", i))
	}
	return c.err
}

// records: each record is in exactly the place that it names.
func (c *checker) records() {
	s := c.s
	const whereFar = whereHold + 1
	var n [whereFar + 1]int
	for i := int32(1); i < s.recs.used; i++ {
		rec := s.recs.at(i)
		if rec.id == 0 {
			continue
		}
		// Each list and counter below must agree with the number of records that say they
		// are in it.
		n[rec.where]++
		if rec.flags&flagFar != 0 {
			n[whereFar]++
			c.ok(rec.where == whereDeferred || c.no("message %d is far in place %d", rec.id, rec.where))
		}
		c.ok(rec.where != whereNone || c.no("message %d is nowhere", rec.id))
		c.ok(s.recs.find(rec.id) == i || c.no("message %d is not in the index", rec.id))
		c.ok((rec.heap != 0) == (rec.where == whereDeferred) || c.no("message %d: retry heap and place disagree", rec.id))
		c.ok(rec.site == 0 || rec.where == whereDeferred || c.no("message %d waits for a site in place %d", rec.id, rec.where))
		if rec.where == whereActive {
			c.ok(s.slots[rec.active] != nil && s.slots[rec.active].id == rec.id || c.no("message %d: wrong slot", rec.id))
		}
	}
	c.tenants(n[whereIncoming], n[whereDue])
	c.ok(n[whereDeferred] == len(s.retries.s) || c.no("deferred: %d records, heap of %d", n[whereDeferred], len(s.retries.s)))
	c.ok(n[whereFar] == s.window.farN || c.no("far: %d records, count %d", n[whereFar], s.window.farN))
	c.ok(n[whereHold] == s.stats.Hold || c.no("hold: %d records, count %d", n[whereHold], s.stats.Hold))
	c.ok(n[whereActive] == s.stats.Active || c.no("active: %d records, count %d", n[whereActive], s.stats.Active))
	c.ok(s.stats.Active <= s.cfg.ActiveLimit || c.no("active: %d over the limit", s.stats.Active))
	for i, x := range s.retries.s {
		c.ok(s.recs.at(x.rec).heap == int32(i+1) && s.recs.at(x.rec).next == x.at || c.no("retry heap: slot %d", i))
		c.ok(i == 0 || !x.before(s.retries.s[(i-1)/2]) || c.no("retry heap: no heap at %d", i))
	}
	c.sites()
}

// tenants: the lists of mail that waits for a place, and who has a seat for it.
func (c *checker) tenants(incoming, due int) {
	s := c.s
	var msgs, active map[uint16]int = map[uint16]int{}, map[uint16]int{}
	for i := int32(1); i < s.recs.used; i++ {
		if rec := s.recs.at(i); rec.id != 0 {
			msgs[rec.tenant]++
			if rec.where == whereActive {
				active[rec.tenant]++
			}
		}
	}
	var in, later, ripe int
	busy := map[uint16]int{}
	for _, e := range s.busy {
		if e != nil {
			busy[e.msg.tenant]++
		}
	}
	for n, t := range s.tenants {
		if t == nil {
			c.ok(msgs[uint16(n)] == 0 || c.no("tenant %d is forgotten, and has %d messages", n, msgs[uint16(n)]))
			continue
		}
		in, later, ripe = in+int(t.incoming.n), later+int(t.due.n+t.ripe.n), ripe+int(t.ripe.n)
		c.ok(int(t.number) == n && t.msgs == msgs[t.number] && t.active == active[t.number] || c.no("tenant %d: %d messages, %d active, counts %d, %d",
			n, msgs[t.number], active[t.number], t.msgs, t.active))
		c.ok(t.busy == busy[t.number] || c.no("tenant %d: %d deliveries under way, count %d", n, busy[t.number], t.busy))
		c.ok(n == 0 || t.msgs > 0 && s.tenantIndex[t.name] == t || c.no("tenant %s is not forgotten", t.name))
		c.ok(!t.waits() || (t.seat.in != nil) != (t.overAt != 0 || t.sated) || c.no("tenant %s waits for no turn, or for two", t.name))
		c.ok(t.overAt == 0 || !t.sated || c.no("tenant %s waits for room of two kinds", t.name))
		c.ok(!t.sated || s.sated(t) || c.no("tenant %s waits outside for a limit that has room", t.name))
		c.ok(t.overAt == 0 || s.crowding.s[t.overAt-1].k == (key{uint64(t.active), uint64(t.number)}) || c.no("tenant %s: stale count", t.name))
	}
	c.ok(in == s.incoming && in == incoming || c.no("incoming: %d records, lists of %d, count %d", incoming, in, s.incoming))
	c.ok(later == s.due && later == due && ripe == s.ripe || c.no("due: %d records, lists of %d, count %d; %d ripe, count %d", due, later, s.due, ripe, s.ripe))
	c.seats("active queue", &s.entry, true)
}

// sites: what waits for each knows, in memory or not.
func (c *checker) sites() {
	s := c.s
	sited := 0
	waiting, parked, remembered := 0, map[siteKey]int{}, 0
	parkedFor := map[PauseID]int{}
	for i := 1; i < len(s.sites); i++ {
		st := &s.sites[i]
		if st.tport == nil {
			continue
		}
		k := int32(0)
		for r := st.waiting.head; r != 0; r = s.recs.at(r).nxt {
			c.ok(s.recs.at(r).site == int32(i) || c.no("site %s: message %d does not know", st.name, s.recs.at(r).id))
			k++
		}
		away := len(s.awayFrom(int32(i)))
		c.ok(k == st.waiting.n && st.n() > 0 || c.no("site %s: %d wait, count %d", st.name, k, st.waiting.n))
		c.ok(away == st.awayN || c.no("site %s: %d are not in memory, count %d", st.name, away, st.awayN))
		remembered += away
		sited += int(k)
		if st.pause != 0 && st.pause != laterID {
			parked[siteKey{tport: st.tport, name: st.name}] += st.n()
			parkedFor[st.pause] += st.n()
		}
		q := st.tport.queues[st.name]
		c.ok(q == nil || st.pause != 0 || q.site == int32(i) || c.no("site %s: its queue does not know", st.name))
		waiting++
	}
	c.ok(sited == s.stats.Sited || c.no("sited: %d, counted %d", sited, s.stats.Sited))
	c.ok(maps.Equal(parked, s.parkedAt) || c.no("parked: %v, counted %v", parked, s.parkedAt))
	c.ok(maps.Equal(parkedFor, s.parkedFor) || c.no("parked for pauses: %v, counted %v", parkedFor, s.parkedFor))
	c.ok(remembered == len(s.window.awayAt) || c.no("%d forgotten messages are remembered, count %d", remembered, len(s.window.awayAt)))
	for id := range s.window.awayAt {
		c.ok(s.recs.find(id) == 0 || c.no("message %d is in memory, and remembered as if it were not", id))
	}
	c.ok(waiting == len(s.siteIndex) || c.no("sites: %d, index of %d", waiting, len(s.siteIndex)))
}

// active: every message has something under way, and its counts are the sums
// of its jobs'.
func (c *checker) active() {
	s := c.s
	n, loading, reserved, rcpts, busy := 0, 0, 0, 0, 0
	var last uint64
	for m := s.firstActive; m != nil; m = m.nxt {
		n++
		c.ok(m.seq > last || c.no("active list out of order at message %d", m.id))
		last = m.seq
		// This is what keeps mail from being stuck: each active message has an event to
		// come that goes on with it, a report, an answer to a read, or an answer to a
		// notice.
		c.ok(m.refs > 0 || m.loading || m.notifying != 0 || c.no("message %d is stuck: nothing is under way", m.id))
		c.ok(!m.loading || m.reserved > 0 || m.unread == 0 || c.no("message %d loads nothing", m.id))
		if m.loading && m.readAt == never {
			loading++
		}
		reserved += m.reserved
		rcpts += m.rcptCount
		refs, count, limit := 0, 0, max(s.cfg.RecipientMinimum, 1)
		for _, j := range m.jobs {
			c.ok(j.msg == m && j.seq == m.seq || c.no("message %d: foreign job", m.id))
			r, b := c.job(j)
			refs += r
			busy += b
			count += j.rcptCount
			limit += j.rcptLimit
			c.ok(j.rcptLimit >= 0 || c.no("message %d: job limit %d", m.id, j.rcptLimit))
		}
		c.ok(refs == m.refs || c.no("message %d: %d entries, refs %d", m.id, refs, m.refs))
		// No recipient is lost between the record's count and the places where recipients
		// can be.
		c.ok(int(s.record(m).rcpts) == m.rcptCount+m.late+m.unread || c.no("message %d: %d recipients left, of them %d in core, %d late, %d unread",
			m.id, s.record(m).rcpts, m.rcptCount, m.late, m.unread))
		c.ok(count == m.rcptCount || c.no("message %d: %d recipients, count %d", m.id, count, m.rcptCount))
		c.ok(limit == m.rcptLimit || c.no("message %d: limits add up to %d, not %d", m.id, limit, m.rcptLimit))
		if m.refs > 0 && m.unread > 0 && !m.loading && m.cmd == cmdNone && m.spare() > 0 {
			// The other way for mail to be stuck: recipients not read, room for them, and
			// no timer.
			c.ok(m.timer.pos != 0 || c.no("message %d: room for recipients, and nobody will read them", m.id))
		}
	}
	c.ok(n == s.stats.Active || c.no("active list has %d, count %d", n, s.stats.Active))
	c.ok(loading == s.loading || c.no("%d load, count %d", loading, s.loading))
	c.ok(reserved == s.reserved || c.no("%d reserved, count %d", reserved, s.reserved))
	c.ok(rcpts == s.stats.Rcpts || c.no("%d recipients, count %d", rcpts, s.stats.Rcpts))
	c.ok(busy == s.stats.Busy || c.no("%d busy, count %d", busy, s.stats.Busy))
}

// job checks a job, and returns its entries and how many of them are busy.
func (c *checker) job(j *job) (refs, busy int) {
	id := j.msg.id
	todo, waiting, indexed := 0, 0, 0
	for i, p := range j.peers {
		c.ok(p.index == i && p.job == j && p.queue.tport == j.tport || c.no("message %d: peer %d misplaced", id, i))
		c.ok(j.findPeer(p.queue) == p || c.no("message %d: peer for %s not found", id, p.queue.name))
		n := 0
		for e := p.head; e != nil; e = e.nxt {
			c.ok(e.peer == p && !e.busy && len(e.rcpts) > 0 || c.no("message %d: bad waiting entry for %s", id, p.queue.name))
			n++
		}
		c.ok(n == p.todo && p.refs >= n && p.refs > 0 || c.no("message %d: peer %s has %d of %d, refs %d", id, p.queue.name, n, p.todo, p.refs))
		todo += n
		refs += p.refs
		busy += p.refs - n
		has := n > 0
		if has {
			waiting++
		}
		// Which heaps a peer is in follows from its state; one heap too few and its mail
		// is never chosen, one too many and a freed peer is.
		c.ok(p.links[inQueue].in == has || c.no("message %d: peer %s and its queue's heap disagree", id, p.queue.name))
		c.ok(p.links[inTurn].in == (has && !p.parked) || c.no("message %d: peer %s and the turns disagree", id, p.queue.name))
		c.ok(!p.parked || has && !p.claim.open || c.no("message %d: peer %s is parked without need", id, p.queue.name))
		c.ok((p.class != nil) == p.links[inClass].in || c.no("message %d: peer %s: class", id, p.queue.name))
		if p.class != nil {
			indexed++
			c.ok(p.class.bucket == j.bucket && p.class.claim == p.claim || c.no("message %d: peer %s in the wrong class", id, p.queue.name))
		}
	}
	c.peerList(&j.turns)
	c.ok(waiting == j.waiting || c.no("message %d: %d peers wait, count %d", id, waiting, j.waiting))
	c.ok(j.read-j.selected == todo || c.no("message %d: %d entries wait, read %d selected %d", id, todo, j.read, j.selected))
	c.ok(waiting == 0 || j.linked || c.no("message %d: a job with entries is off the list", id))
	switch j.cand {
	case candIndexed:
		c.ok(indexed == waiting && j.firstChild == nil && j.linked || c.no("message %d: badly indexed", id))
		c.ok(j.bucket.total == j.total() && j.bucket.needed == j.needed() || c.no("message %d: indexed as %d/%d, is %d/%d",
			id, j.bucket.total, j.bucket.needed, j.total(), j.needed()))
	default:
		c.ok(indexed == 0 || c.no("message %d: in the index and not", id))
		t := j.tport
		must := j.lane.searching && waiting > 0 && j.firstChild == nil && t.cfg.SlotCost >= 2 && t.cfg.Mode == Preemptive
		c.ok(!must || j.cand == candLoose || c.no("message %d: not a candidate", id))
	}
	c.ok(j.linked || waiting == 0 && j.firstChild == nil && j.level == -1 && j.unreadAt == 0 || c.no("message %d: retired job is not at rest", id))
	c.ok(!j.linked || (j.unreadAt != 0) == (j.msg.unread > 0) || c.no("message %d: unread heap", id))
	return refs, busy
}

// transport: the lanes, the destinations, whose turn it is.
func (c *checker) transport(t *transport) {
	busy, n, offers, jobs := 0, 0, 0, 0
	for q := t.firstQueue; q != nil; q = q.nxt {
		n++
		busy += q.busy
		c.queue(q)
	}
	for l := range t.lanes {
		open := 0
		for q := t.firstQueue; q != nil; q = q.nxt {
			for m := range q.claims {
				if m.open && m.lane == l {
					open++
				}
			}
		}
		c.lane(t, l, open)
		offers += open
		jobs += l.jobs
	}
	c.ok(n == len(t.queues) || c.no("%s: %d queues, index of %d", t.name, n, len(t.queues)))
	c.ok(busy == t.busy || c.no("%s: %d busy, count %d", t.name, busy, t.busy))
	c.ok(offers == t.offers || c.no("%s: %d offers, count %d", t.name, offers, t.offers))
	c.ok(jobs == t.jobCount && (t.others == nil || jobs > 0) && len(t.others) == len(t.laneOf) || c.no("%s: %d jobs, count %d, %d further lanes", t.name, jobs, t.jobCount, len(t.others)))
	c.ok(t.cfg.ProcessLimit == 0 || t.places() <= t.cfg.ProcessLimit || c.no("%s: %d busy, %d of them slow, limit %d", t.name, t.busy, t.slow.n, t.cfg.ProcessLimit))
	c.slow(t)
	c.seats(string(t.name), &t.seats, t.others != nil)
	// The scheduler never idles: what could go has gone in the Step before.
	c.ok(!c.s.selectableNow(t) || c.no("%s: an entry could be delivered and was not", t.name))
}

// seats: there are some only where there is somebody to wait for, and both lists are whole.
func (c *checker) seats(name string, r *ring, contested bool) {
	for _, l := range [2]*seatList{&r.fresh, &r.old} {
		var last *seat
		for x := l.first; x != nil; x = x.nxt {
			c.ok(contested && x.in == l && x.prv == last || c.no("%s: seats broken", name))
			last = x
		}
		c.ok(l.last == last || c.no("%s: last seat", name))
	}
}

// lane: the job list, the stack, the indexes. open is how many of its claims are.
func (c *checker) lane(t *transport, l *lane, open int) {
	c.ok(l.tport == t && (l == &t.lane || t.laneOf[l.tenant] == l && l.tenant != t.tenant) || c.no("%s: lane of tenant %d misplaced", t.name, l.tenant))
	c.ok(l.jobs == 0 || l.weight == c.s.tenants[l.tenant].weight || c.no("%s: tenant %d has weight %d", t.name, l.tenant, l.weight))
	c.ok(t.others == nil || open == 0 || l.seat.in != nil || c.no("%s: tenant %d could have the turn, and has no seat", t.name, l.tenant))
	var last *job
	var age uint64
	for j := l.first; j != nil; j = j.nxt {
		c.ok(j.linked && j.prv == last && j.lane == l && j.msg.tenant == l.tenant || c.no("%s: job list broken at %d", t.name, j.msg.id))
		c.ok(last == nil || last.label < j.label || c.no("%s: labels out of order at %d", t.name, j.msg.id))
		last = j
		// Jobs that were let past nobody are in the order of arrival: first come, first
		// served.
		if j.level == 0 {
			c.ok(j.seq > age || c.no("%s: level 0 out of order at %d", t.name, j.msg.id))
			age = j.seq
		}
		c.ok(j.parent == nil || j.level > 0 || c.no("%s: job %d has a parent at level %d", t.name, j.msg.id, j.level))
		c.ok(j.parent == nil || j.level > j.parent.level || c.no("%s: job %d is not above its parent", t.name, j.msg.id))
		i := l.byAge.find(j.seq)
		on := i < len(l.byAge.s) && l.byAge.s[i].job == j
		c.ok(on == (j.level == 0) || c.no("%s: job %d at level %d, timeline %v", t.name, j.msg.id, j.level, on))
		for ch := j.firstChild; ch != nil; ch = ch.nxtSib {
			c.ok(ch.parent == j && ch.linked && ch.lane == l || c.no("%s: child %d", t.name, ch.msg.id))
		}
	}
	for m := l.heldFirst; m != nil; m = m.heldNxt {
		c.ok(m.held && m.lane == l && m.open && m.queue.others != nil || c.no("%s/%s: tenant %d holds what nobody waits for", t.name, m.queue.name, m.tenant))
		c.ok(l.served-m.since < uint64(l.seat.quantum()) || c.no("%s/%s: tenant %d holds it for too long", t.name, m.queue.name, m.tenant))
	}
	c.ok(l.last == last || c.no("%s: last job", t.name))
	c.orphans(l)
	if t.cfg.Mode == Thread {
		ring := 0
		if l.ring != nil {
			ring = 1
			for m := l.ring.ringNxt; m != l.ring; m = m.ringNxt {
				ring++
			}
		}
		c.ok(ring == open && ring == l.ringLen && l.avail.len() == 0 || c.no("%s: ring of %d, length %d, %d available", t.name, ring, l.ringLen, open))
	} else {
		c.ok(l.avail.len() == open && l.ring == nil || c.no("%s: heap of %d, %d available", t.name, l.avail.len(), open))
	}
	for _, list := range [2][]*bucket{l.fresh, l.started} {
		for i, b := range list {
			c.ok(b.refs > 0 || c.no("%s: empty bucket", t.name))
			c.ok(i == 0 || list[i-1].total < b.total || list[i-1].total == b.total && list[i-1].needed < b.needed || c.no("%s: buckets out of order", t.name))
		}
	}
}

// slow: as many deliveries as have gone on for SlowTime take no place, if SlowLimit allows, and they
// are those that began first.
func (c *checker) slow(t *transport) {
	old, marked, listed := 0, 0, 0
	var youngest EntryID
	for _, e := range c.s.busy {
		if e == nil || e.peer.queue.tport != t {
			continue
		}
		if e.since+micros(t.cfg.SlowTime) <= c.s.now {
			old++
		}
		if e.slow {
			marked++
			youngest = max(youngest, e.id)
		}
	}
	for e := t.slow.first; e != nil; e = e.nxt {
		listed++
		c.ok(e.busy && !e.slow && e.id > youngest || c.no("%s: delivery %d takes a place, and a younger one does not", t.name, e.id))
		c.ok(e.nxt == nil && t.slow.last == e || e.nxt != nil && e.nxt.prv == e && e.nxt.id > e.id || c.no("%s: list of deliveries broken at %d", t.name, e.id))
	}
	c.ok(marked == t.slow.n && marked == min(old, t.cfg.SlowLimit) || c.no("%s: %d slow deliveries, count %d, %d are old, limit %d", t.name, marked, t.slow.n, old, t.cfg.SlowLimit))
	if t.cfg.SlowLimit > 0 {
		c.ok(listed+marked == t.busy || c.no("%s: %d deliveries in the list, %d slow, %d busy", t.name, listed, marked, t.busy))
		c.ok((t.slow.timer.pos != 0) == (listed > 0 && marked < t.cfg.SlowLimit) || c.no("%s: the next slow delivery is not awaited", t.name))
	}
}

// orphans: those that have preempted a job that is gone, and only those, are on
// the list that places new jobs.
func (c *checker) orphans(l *lane) {
	t, n := l.tport, 0
	for j := l.first; j != nil; j = j.nxt {
		if j.level == 0 || j.parent != nil {
			continue
		}
		n++
		c.ok(slices.Contains(l.orphans, j) || c.no("%s: job %d at level %d has no parent and is no orphan", t.name, j.msg.id, j.level))
	}
	c.ok(n == len(l.orphans) || c.no("%s: %d orphans, list of %d", t.name, n, len(l.orphans)))
}

// agents: idle agents are on their transport's list and on one by destination.
func (c *checker) agents(t *transport) {
	n, here := 0, 0
	for a := t.idleFirst; a != nil; a = a.nxt {
		n++
		c.ok(a.tport == t && a.timer.pos != 0 || c.no("%s: agent %d is idle for ever", t.name, a.id))
	}
	c.ok(n == t.idleCount || c.no("%s: %d idle agents, count %d", t.name, n, t.idleCount))
	lists := func(a *agent, q *queue, name string) {
		for ; a != nil; a = a.qNxt {
			here++
			c.ok(a.queue == q && a.name == name || c.no("%s: agent %d in the list of %s", t.name, a.id, name))
		}
	}
	for q := t.firstQueue; q != nil; q = q.nxt {
		lists(q.idle, q, q.name)
	}
	for name, a := range t.idleElse {
		c.ok(t.queues[name] == nil || c.no("%s: idle agents of %s are not with it", t.name, name))
		lists(a, nil, name)
	}
	c.ok(here == n || c.no("%s: %d idle agents, %d by destination", t.name, n, here))
	c.ok(t.cfg.Mode != Thread || t.cfg.ProcessLimit == 0 || t.idleCount == 0 || t.places()+t.idleCount <= t.cfg.ProcessLimit || c.no("%s: %d agents, limit %d", t.name, t.places()+t.idleCount, t.cfg.ProcessLimit))
}

// selectableNow is selectable without its side effects.
func (s *Scheduler) selectableNow(t *transport) bool {
	return t.hasWork() && !t.dead && !t.full() &&
		(t.cfg.TransportRateDelay == 0 || t.rate == rateOpen)
}

// queue checks one destination: its sums, its state against its timer and window, and its
// places in the indexes.
func (c *checker) queue(q *queue) {
	t := q.tport
	c.ok(t.queues[q.name] == q || c.no("%s/%s: not in the index", t.name, q.name))
	todo := 0
	c.claims(q)
	q.each(func(p *peer) {
		todo += p.todo
		c.ok(p.queue == q || c.no("%s/%s: foreign peer", t.name, q.name))
		// A random key cannot be calculated again.
		random := t.cfg.Mode == Thread && t.cfg.Order == Random
		c.ok(random || p.links[inQueue].k == c.s.peerKey(p) || c.no("%s/%s: stale key", t.name, q.name))
	})
	c.ok(todo == q.todo || c.no("%s/%s: %d wait, count %d", t.name, q.name, todo, q.todo))
	c.ok(q.source == "" || q.name == SourceQueue(q.dest(), q.source) || c.no("%s/%s: goes from %s", t.name, q.name, q.source))
	c.ok(q.terms == nil || q.terms.Source == "" || q.terms.Source == q.source || c.no("%s/%s: has the terms of %s", t.name, q.name, q.source))
	q.each(func(p *peer) {
		for e := p.head; e != nil; e = e.nxt {
			c.source(q, e)
		}
	})
	c.ok(q.todo+q.busy > 0 || q.state != DestReady || c.no("%s/%s: idle and not forgotten", t.name, q.name))
	c.ok(q.state != DestDead || q.window == 0 && q.todo == 0 || c.no("%s/%s: dead with window %d, %d waiting", t.name, q.name, q.window, q.todo))
	c.ok(q.state != DestReady || q.window >= 1 || c.no("%s/%s: ready with window %d", t.name, q.name, q.window))
	c.ok(q.limit == 0 || q.window <= q.limit || q.window <= q.busy || c.no("%s/%s: window %d over limit %d", t.name, q.name, q.window, q.limit))
	limit, shut := c.s.windowLimit(q)
	c.ok(q.limit == limit && q.shut == shut || c.no("%s/%s: limit %d, not %d; shut: %v", t.name, q.name, q.limit, limit, q.shut))
	c.ok((q.state == DestReady) == (q.timer.pos == 0) || c.no("%s/%s: state %d and timer disagree", t.name, q.name, q.state))
	wants := q.state == DestReady && q.window > q.busy && q.todo > 0 && !q.shut && q.someMay()
	avail := wants
	inLines := 0
	for i, l := range q.legs {
		if l.stand != nil && l.stand.gate != nil {
			inLines++
			c.ok(l.leaf != nil && l.stand.gate == l.leaf && l.stand.tree == i || c.no("%s/%s: waits for a limit that it has not", t.name, q.name))
		}
	}
	if q.limited() {
		avail = wants && q.placed
		// It holds no place in the tree for all while it waits for one in that of its source.
		c.ok(wants == (q.placed != (inLines == 1)) && inLines <= 1 || c.no("%s/%s: wants a place %v, has one %v, in %d lines", t.name, q.name, wants, q.placed, inLines))
	} else {
		c.ok(!q.placed && inLines == 0 || c.no("%s/%s: has a place, and no limits", t.name, q.name))
	}
	if h := q.half; h != nil {
		l := q.inLine()
		c.ok(h.timer.pos != 0 && h.root.keeper == q || c.no("%s/%s: keeps a place for ever", t.name, q.name))
		c.ok(!q.placed && q.legs[sourceTree].leaf != nil && l == &q.legs[commonTree] || c.no("%s/%s: keeps a place, and waits for no other", t.name, q.name))
	}
	c.ok(avail == q.avail || c.no("%s/%s: available %v, said %v", t.name, q.name, avail, q.avail))
}

// claims checks the tenants' claims on a destination: that it is offered to one of them, and their places in
// the indexes.
func (c *checker) claims(q *queue) {
	t := q.tport
	waiting, refs, cur := 0, 0, false
	for m := range q.claims {
		cur = cur || m == q.cur
		waiting += m.peers.n
		refs += m.refs
		c.ok(m.queue == q && (m == &q.claim || q.claimOf[m.tenant] == m && m.tenant != q.claim.tenant) || c.no("%s/%s: claim of tenant %d misplaced", t.name, q.name, m.tenant))
		c.ok(m == &q.claim || m.refs > 0 || m.seat.in != nil || c.no("%s/%s: claim of tenant %d not forgotten", t.name, q.name, m.tenant))
		c.ok(m.held == (m.open && q.others != nil) || c.no("%s/%s: tenant %d holds it: %v", t.name, q.name, m.tenant, m.held))
		c.ok(m.open == (q.avail && m == q.cur && !m.inLine()) || c.no("%s/%s: offered to tenant %d: %v", t.name, q.name, m.tenant, m.open))
		c.ok(q.others == nil || m.peers.n == 0 || m.inLine() || m.seat.in != nil || c.no("%s/%s: tenant %d has no seat", t.name, q.name, m.tenant))
		c.ok(m.refs == 0 || m.lane.tenant == m.tenant && m.lane.tport == t || c.no("%s/%s: claim of tenant %d in the lane of another", t.name, q.name, m.tenant))
		c.peerList(&m.peers)
		m.peers.each(func(p *peer) {
			c.ok(p.claim == m && p.job.lane == m.lane || c.no("%s/%s: foreign peer in the claim of tenant %d", t.name, q.name, m.tenant))
		})
		c.claim(q, m)
	}
	c.lined(q)
	c.ok(cur && waiting == q.waiting && refs == q.peerCount || c.no("%s/%s: %d peers wait, count %d; %d peers, count %d", t.name, q.name, waiting, q.waiting, refs, q.peerCount))
	c.ok(len(q.others) == len(q.claimOf) || c.no("%s/%s: %d claims, index of %d", t.name, q.name, len(q.others), len(q.claimOf)))
	c.seats(q.name, &q.seats, q.others != nil)
}

// lined checks who of q waits for a tenant's limit, or has a place of one.
func (c *checker) lined(q *queue) {
	lined := 0
	for m := range q.claims {
		n := c.s.limitOf(m)
		if m.inLine() {
			lined += m.peers.n
			c.ok(m.peers.n > 0 && m.stand.gate == n && m.allowed == nil && m.stand.claim == m || c.no("%s/%s: tenant %d waits for a limit that it has not", q.tport.name, q.name, m.tenant))
		}
		c.ok(!m.open || m.allowed == n || c.no("%s/%s: offered to tenant %d, which has no place", q.tport.name, q.name, m.tenant))
		waits := m.wait != nil && m.wait.pos != 0
		c.ok(waits == (m.allowed != nil && !m.open) || c.no("%s/%s: tenant %d waits with a place: %v", q.tport.name, q.name, m.tenant, waits))
		c.ok(!waits || m.allowed == n && m.peers.n > 0 || c.no("%s/%s: tenant %d waits with a place of which it has no use", q.tport.name, q.name, m.tenant))
	}
	c.ok(lined == q.lined || c.no("%s/%s: %d peers wait for tenants' limits, count %d", q.tport.name, q.name, lined, q.lined))
}

// claim checks one.
func (c *checker) claim(q *queue, m *claim) {
	t := q.tport
	if m.open && t.cfg.Mode != Thread {
		c.ok(m.availAt != 0 && m.lane.avail.s[m.availAt-1].k == m.availKey() || c.no("%s/%s: stale key", t.name, q.name))
	}
	if m.open && t.cfg.Mode == Thread && t.cfg.ThreadQuantum > 0 {
		// The promise of thread.go: the wait for a turn is bounded.
		c.ok(m.lane.handed-m.joined <= m.patience || c.no("%s/%s: %d deliveries began while it waited for its turn, at most %d may",
			t.name, q.name, m.lane.handed-m.joined, m.patience))
	}
	c.ok(m.turn == 0 || m.open && t.cfg.Mode == Thread || c.no("%s/%s: a turn of %d and no mail", t.name, q.name, m.turn))
	for _, k := range m.classes {
		c.ok(k.claim == m && k.peers.n > 0 || c.no("%s/%s: empty class", t.name, q.name))
		c.ok((k.at != 0) == m.open || c.no("%s/%s: class and availability disagree", t.name, q.name))
		c.peerList(&k.peers)
		if k.at != 0 {
			c.ok(k.bucket.classes.s[k.at-1].k == k.peers.topKey() || c.no("%s/%s: stale class", t.name, q.name))
		}
	}
}

// source: an entry waits for one of the sources that it may go from.
func (c *checker) source(q *queue, e *entry) {
	c.ok((e.pool == nil) == (q.source == "") || c.no("message %d: waits for %s/%s", e.msg.id, q.tport.name, q.name))
	if e.pool == nil {
		return
	}
	c.ok(c.s.stoppedBy(q.source, q.terms) == nil || c.no("message %d: waits for %s, which is suspended", e.msg.id, q.source))
	c.ok(e.pool.member(q) != nil || c.no("message %d: may not go from %s", e.msg.id, q.source))
}

// limits: recipients in memory are bounded. Postfix's scheduler document gives
// as bound the greater of qmgr_message_recipient_limit and the sum of all other
// limits. It is their sum: first reads fill up what the former leaves, and what
// they took is not missing from the pools that later reads draw on.
func (c *checker) limits() {
	s := c.s
	sum := 0
	for _, t := range s.transports {
		sum += t.cfg.RecipientLimit + t.cfg.ExtraRecipientLimit
		given := 0
		for m := s.firstActive; m != nil; m = m.nxt {
			for _, j := range m.jobs {
				if j.tport == t {
					given += j.rcptLimit
				}
			}
		}
		c.ok(given+t.rcptUnused == t.cfg.RecipientLimit || c.no("%s: %d slots given, %d in the pool, of %d", t.name, given, t.rcptUnused, t.cfg.RecipientLimit))
		c.ok(t.rcptUnused >= -t.cfg.ExtraRecipientLimit && t.rcptUnused <= t.cfg.RecipientLimit || c.no("%s: pool %d", t.name, t.rcptUnused))
	}
	bound := max(s.cfg.RecipientMinimum, 1)*s.cfg.ActiveLimit + sum + s.cfg.RecipientLimit
	c.ok(s.stats.Rcpts+s.reserved <= bound || c.no("%d recipients in memory, %d being read, bound %d", s.stats.Rcpts, s.reserved, bound))
}

// inheritance: what is restored has not been taken up twice, and goes some day.
func (c *checker) inheritance() {
	h := c.s.inherited
	if h == nil {
		return
	}
	c.ok(h.timer.pos != 0 || c.no("what was inherited is kept for ever"))
	for k, d := range h.dests {
		c.ok(k.tport.queues[k.name] == nil || c.no("%s/%s: in use, and to be inherited", k.tport.name, k.name))
		c.ok(d.State == DestReady || c.no("%s/%s: to be inherited in state %d", k.tport.name, k.name, d.State))
	}
	for id, st := range h.sites {
		i := c.s.recs.find(id)
		c.ok(i == 0 || c.s.recs.at(i).where != whereDeferred || c.no("message %d is deferred, and is to wait for %s", id, st.key.name))
	}
}

// peerList: the list is sorted, the heap is one, and both know their members.
func (c *checker) peerList(l *peerList) {
	n := 0
	var last *peer
	for p := l.head; p != nil; p = p.links[l.which].nxt {
		x := &p.links[l.which]
		c.ok(x.in && x.at == 0 && x.prv == last || c.no("peer list broken"))
		c.ok(last == nil || last.links[l.which].k.less(x.k) || c.no("peer list out of order"))
		last = p
		n++
	}
	c.ok(last == l.tail || c.no("peer list: tail"))
	for i, x := range l.odd.s {
		y := &x.v.links[l.which]
		c.ok(y.in && y.at == int32(i+1) && y.k == x.k || c.no("peer heap: slot %d", i))
		c.ok(i == 0 || !x.k.less(l.odd.s[(i-1)/heapWidth].k) || c.no("peer heap: no heap at %d", i))
	}
	c.ok(n+l.odd.len() == l.n || c.no("peer list: %d, count %d", n+l.odd.len(), l.n))
}
