package sched

// sums is what a shared limit should have.
type sums struct{ members, busy, held, waiting, backlog, parked int }

// shared: the counts of each limit are the sums of what is below it, no limit is passed,
// and whoever waits has a reason to: a limit with room has nobody in its line, or stands in
// one itself.
func (c *checker) shared() {
	s := c.s
	has := map[*shared]*sums{}
	of := func(n *shared) *sums {
		if has[n] == nil {
			has[n] = &sums{}
		}
		return has[n]
	}
	for _, t := range s.transports {
		for q := t.firstQueue; q != nil; q = q.nxt {
			c.legs(q, of)
		}
	}
	for _, e := range s.busy {
		if e == nil {
			continue
		}
		for n := range e.all {
			of(n).busy++
		}
	}
	for i := range s.sites {
		if st := &s.sites[i]; st.gate != nil {
			of(st.gate).parked += st.n()
			c.ok(st.pause == beyondID || c.no("site %s: at a limit, and waits for something else", st.name))
		}
	}
	for _, t := range s.tenants {
		if t != nil && t.limit != nil {
			of(t.limit).members++
			c.ok(t.limit.key == sharedKey{level: TenantLimit, name: t.name} && t.limit.full == t.terms.Limits || c.no("tenant %s: another's limit", t.name))
		}
	}
	resting := [kinds]int{}
	for k, n := range s.shares {
		if n.parent != nil {
			of(n.parent).members++
		}
		if n.resting {
			resting[k.kind()]++
		}
		c.ok(k == n.key && (n.parent == nil || n.parent.key.level.rank() > k.level.rank() && n.parent.key.source == k.source && (n.parent.key.tenant == k.tenant || n.parent.key == sharedKey{level: TenantLimit, name: k.tenant})) || c.no("limit %v: misplaced", k))
	}
	for n := range has {
		c.ok(s.shares[n.key] == n || c.no("limit %v: forgotten, and in use", n.key))
	}
	c.ok(resting == s.resting || c.no("%v limits rest, count %v", resting, s.resting))
	c.ok(len(s.roots) == 0 && len(s.owing) == 0 && len(s.full) == 0 && len(s.spilling) == 0 || c.no("limits: places have not been given out"))
	for _, n := range s.shares {
		c.ok(*of(n) == sums{n.members, n.busy, n.held, n.waiting, n.backlog, n.parked} || c.no("limit %v: has %+v, counts %+v", n.key, *of(n),
			sums{n.members, n.busy, n.held, n.waiting, n.backlog, n.parked}))
		c.sharedOne(n)
	}
}

// legs adds what one destination makes of the sums of the limits above it, in both trees.
func (c *checker) legs(q *queue, of func(*shared) *sums) {
	for m := range q.claims {
		c.quota(m, of)
	}
	for tree, l := range q.legs {
		if l.leaf == nil {
			continue
		}
		of(l.leaf).members++
		c.ok(!q.placed && q.half == nil || !q.rests(c.s.now) || c.no("%s/%s: has a place in its rest", q.tport.name, q.name))
		c.ok(q.paced == nil || tree != q.paceTree() || q.paced == l.leaf || c.no("%s/%s: its pace is not the innermost limit", q.tport.name, q.name))
		// In the one tree are limits for all sources, in the other those of its own.
		k := l.leaf.key
		c.ok(tree == commonTree && k.source == "" || tree == sourceTree && k.source != "" && k.source == q.source || c.no("%s/%s: in the tree of %v", q.tport.name, q.name, k))
		for n := l.leaf; n != nil; n = n.parent {
			of(n).backlog += q.waiting
			if q.placed || q.half != nil && tree == sourceTree {
				of(n).held++
			} else if l.stand.gate != nil {
				of(n).waiting++
			}
		}
	}
}

// quota adds what one claim makes of the sums of its tenant's limits.
func (c *checker) quota(m *claim, of func(*shared) *sums) {
	for n := m.allowed; n != nil; n = n.parent {
		of(n).held++
	}
	if m.inLine() {
		for n := m.stand.gate; n != nil; n = n.parent {
			of(n).waiting++
		}
	}
	if m.pair == nil {
		return
	}
	of(m.pair).members++
	t := c.s.tenants[m.tenant]
	c.ok(m.refs > 0 && !m.queue.tport.settles() || c.no("%s: tenant %d has no mail there, and a limit", m.queue.name, m.tenant))
	for n := m.pair; n != nil; n = n.parent {
		of(n).backlog += m.peers.n
		c.ok(n == t.limit || n.key.tenant == t.name && n.key.source == "" || c.no("limit %v: of %s", n.key, t.name))
		c.ok(n.parent != nil || t.limit == nil || n == t.limit || c.no("limit %v: not below that of its tenant", n.key))
	}
}

// sharedOne checks one shared limit by itself.
func (c *checker) sharedOne(n *shared) {
	now, conc := c.s.now, n.limits.Concurrency
	c.ok(conc == 0 || n.busy+n.held <= conc+n.over || c.no("limit %v: %d under way and %d about to be, of %d and %d", n.key, n.busy, n.held, conc, n.over))
	c.ok(n.keeper == nil || n.keeper.half != nil && n.keeper.half.root == n || c.no("limit %v: its keeper keeps nothing", n.key))
	count, owed := 0, 0
	var last, lastOwed *stander
	for st := n.line.first; st != nil; st = st.nxt {
		count++
		c.ok(st.gate == n && st.prv == last || c.no("limit %v: line broken", n.key))
		served := n.granted - st.joined
		if st.ahead {
			c.ok(last == lastOwed || c.no("limit %v: one whose turn is owed is behind others", n.key))
			served = n.repaid - st.joined
			owed++
			lastOwed = st
		}
		c.ok(served <= st.before || c.no("limit %v: %d were served before one that had %d ahead", n.key, served, st.before))
		c.ok(st.ahead || !st.owing() || c.no("limit %v: one whose turn is owed is not ahead", n.key))
		last = st
	}
	c.ok(count == n.line.n && last == n.line.last || c.no("limit %v: %d in line, count %d", n.key, count, n.line.n))
	c.ok(owed == n.line.nOwed && lastOwed == n.line.owed || c.no("limit %v: the turns of %d are owed, count %d", n.key, owed, n.line.nOwed))
	room := c.s.room(n)
	if n.parent == nil {
		c.ok(n.line.n == 0 || !room || c.no("limit %v: has room, and %d wait", n.key, n.line.n))
	} else {
		c.ok((n.line.n > 0 && room) == (n.stand.gate == n.parent) || c.no("limit %v: %d wait, has room %v, in its parent's line %v", n.key, n.line.n, room, n.stand.gate != nil))
	}
	if at := n.opens(now); n.line.n > 0 && n.place() && at != never {
		c.ok(n.timer.pos != 0 && n.timer.at == at || c.no("limit %v: nobody wakes it", n.key))
	}
	c.ok(n.resting == (n.members == 0 && n.busy == 0 && n.parked == 0) || c.no("limit %v: rests %v with %d members", n.key, n.resting, n.members))
	c.ok(!n.resting || n.timer.pos != 0 || c.no("limit %v: kept for ever", n.key))
	c.ok(n.parked == 0 || n.recheck.pos != 0 || c.no("limit %v: nobody looks after its parked mail", n.key))
	parked := 0
	for i := n.firstSite; i != 0; i = c.s.sites[i].gateNxt {
		parked += c.s.sites[i].n()
		c.ok(c.s.sites[i].gate == n || c.no("limit %v: ring broken", n.key))
	}
	c.ok(parked == n.parked || c.no("limit %v: %d parked in its ring, count %d", n.key, parked, n.parked))
}
