// Sources: the addresses from which mail may be sent. A recipient may have a pool of them
// ([Pool]). Then its destination is a queue for each source, with a window, a state and
// limits of its own: a provider that refuses one source has not refused the others. Which
// source a delivery request goes from is drawn by weight when its recipients are assigned.
// It is drawn again, from those that are left, while the request waits: when its source
// turns out to be dead there, or has sent what it may send in a day while it warms up.
//
// The draw is from those that are best off. As a rule that is the first one drawn, which
// takes one look; else all members of the pool are looked at.

package sched

import (
	"slices"
	"strings"

	"posthaste/internal/mail"
)

// A Pool is what a recipient's mail may be sent from. It is not changed once it has been
// passed to the scheduler, which compares pools by their address: who makes them gives
// recipients with the same members, under the same terms, the same pointer.
type Pool struct {
	Name    string
	Members []Member // at least one, of different sources
}

// A Member is a source in a pool.
type Member struct {
	Source string // its name, which is part of the names of its destination queues
	Weight int    // its share of the draws; less than 1 counts as 1
	// What holds for the recipient's destination from this source, in the place of
	// Rcpt.Terms. Terms.Source is Source, or Terms is nil.
	Terms *Terms
	// What is over Limits.Warmup waits for the next day. Else it goes from another member, if
	// one is left.
	Wait bool
}

// weight is what counts of Weight.
func (mb *Member) weight() int64 { return int64(max(mb.Weight, 1)) }

// fromSource parts a destination's name from that of the source in the name of a queue.
const fromSource = " from "

// SourceQueue is the name of the destination queue of one source; of a destination without
// sources it is the destination's.
func SourceQueue(dest, source string) string {
	if source == "" {
		return dest
	}
	return dest + fromSource + source
}

// SourceOf is the source that is the end of a destination queue's name; "": it has none. A mailbox may be a destination,
// and its user "a from b": behind that is an @, which no source has in its name. The queues of the retry and error
// transports have reasons for names, of which it does not know.
func SourceOf(queue string) string {
	if at := strings.LastIndex(queue, fromSource); at >= 0 && !strings.Contains(queue[at:], "@") {
		return queue[at+len(fromSource):]
	}
	return ""
}

// dest is the name of q's destination, whatever mail goes from.
func (q *queue) dest() string {
	if q.source == "" {
		return q.name
	}
	return strings.TrimSuffix(q.name, fromSource+q.source)
}

// A grade says how well a source is off at a destination. Less is better.
type grade uint8

const (
	gradeReady  grade = iota
	gradePaused       // in a pause of destination_rate_delay, or it rests (adaptive.go)
	gradeSpent        // it has sent what it may today
	gradeDead
	gradeStopped // an operator has suspended it
)

// grade looks at a source's queue for a destination, which need not exist.
func (s *Scheduler) grade(t *transport, dest string, mb *Member) grade {
	if s.stoppedBy(mb.Source, mb.Terms) != nil {
		return gradeStopped
	}
	q := t.queues[SourceQueue(dest, mb.Source)]
	switch {
	case q != nil && q.state == DestDead: // whether it has sent what it may or not: nothing may wait there
		return gradeDead
	case s.spentUp(mb.Terms):
		return gradeSpent
	case q != nil && (q.state == DestSuspended || q.rests(s.now)):
		return gradePaused
	}
	return gradeReady
}

// spentUp says whether a source that warms up may begin no more deliveries today.
func (s *Scheduler) spentUp(terms *Terms) bool {
	if terms == nil {
		return false
	}
	for l := range levels {
		if sh := &terms.From[l]; sh.Limits.Warmup.N > 0 {
			if n := s.shares[sharedKey{level: l, name: sh.Name, source: terms.Source}]; n != nil && n.spentUp(s.now) {
				return true
			}
		}
	}
	return false
}

// spentUp says the same of one limit. Its places are counted as if they were used.
func (n *shared) spentUp(now int64) bool {
	l := n.limits.Warmup
	return n.cold || l.N > 0 && n.warm.Room(l, now) <= int64(n.held)
}

// pick draws the source for recipients of a destination.
func (s *Scheduler) pick(t *transport, dest string, pool *Pool) *Member {
	if len(pool.Members) == 1 {
		return &pool.Members[0]
	}
	mb := s.draw(pool, func(*Member) bool { return true })
	if s.fits(t, dest, mb) == gradeReady {
		return mb
	}
	best := gradeStopped
	for i := range pool.Members {
		best = min(best, s.fits(t, dest, &pool.Members[i]))
	}
	return s.draw(pool, func(mb *Member) bool { return s.fits(t, dest, mb) == best })
}

// fits is the grade of a member for mail that has no source yet. If what is over its day's
// number waits, it goes on to be drawn: its part of the mail is to be its part, later.
func (s *Scheduler) fits(t *transport, dest string, mb *Member) grade {
	g := s.grade(t, dest, mb)
	if g == gradeSpent && mb.Wait {
		return gradeReady
	}
	return g
}

// draw draws one of those members that may be drawn; there must be one.
func (s *Scheduler) draw(pool *Pool, may func(*Member) bool) *Member {
	// The sum is made anew each time: which members may be drawn changes.
	total := int64(0)
	for i := range pool.Members {
		if mb := &pool.Members[i]; may(mb) {
			total += mb.weight()
		}
	}
	k := s.rng.below(total)
	for i := range pool.Members {
		if mb := &pool.Members[i]; may(mb) {
			if k -= mb.weight(); k < 0 {
				return mb
			}
		}
	}
	panic("sched: nothing to draw from")
}

// another draws a member of the pool that is better off than worst, and not q's; nil: none
// is.
func (s *Scheduler) another(q *queue, pool *Pool, worst grade) *Member {
	if pool == nil {
		return nil
	}
	// Two passes over a pool: which is the best grade, and then a fair draw among those.
	t, dest, best := q.tport, q.dest(), worst
	for i := range pool.Members {
		if mb := &pool.Members[i]; mb.Source != q.source {
			best = min(best, s.grade(t, dest, mb))
		}
	}
	if best == worst {
		return nil
	}
	return s.draw(pool, func(mb *Member) bool { return mb.Source != q.source && s.grade(t, dest, mb) == best })
}

// member is what a pool says of q's source; nil: nothing any more.
func (p *Pool) member(q *queue) *Member {
	if p != nil {
		for i := range p.Members {
			if p.Members[i].Source == q.source {
				return &p.Members[i]
			}
		}
	}
	return nil
}

// spread has what waits for q go from other sources that are better off than worst, as far
// as there are any.
func (s *Scheduler) spread(q *queue, worst grade) {
	var list []*entry
	q.each(func(p *peer) {
		for e := p.head; e != nil; e = e.nxt {
			list = append(list, e)
		}
	})
	// Mostly all have one pool. What is known of it need not be found out again for each.
	var none *Pool
	for _, e := range list {
		if e.pool == nil || e.pool == none {
			continue
		}
		if mb := e.pool.member(q); worst == gradeSpent && mb != nil && mb.Wait {
			continue
		}
		if mb := s.another(q, e.pool, worst); mb != nil {
			s.sendFrom(e, mb, nil)
			s.endEntry(e)
		} else {
			none = e.pool
		}
	}
}

// secondTry draws another source for what a delivery has deferred; nil: it waits for its time.
// A host that answers and refuses may mean the source. So mail does not wait for that: it goes
// from another source at once, as often as once. A host that cannot be reached is mostly down,
// whatever the source is, and should not take an agent for each.
func (s *Scheduler) secondTry(e *entry, r *Result) *Member {
	const network = 4 // RFC 3463 section 3.5
	if e.pool == nil || e.second || !r.SiteFailed || r.SitePartly || r.Status.Subject == network || e.msg.cmd != cmdNone {
		return nil
	}
	// Meanwhile it may have come to be out of time, or no agent be had any more: then it goes no
	// way at all. See route.
	if s.record(e.msg).flags&FlagExpire != 0 || e.msg.swept || e.peer.queue.tport.dead {
		return nil
	}
	// Operators may have suspended meanwhile what it goes to. The next attempt will find out.
	if uint64(e.id)>>entryBits <= s.pausedAfter {
		return nil
	}
	// The agent may have named others than it was given.
	for _, i := range r.Deferred {
		if !slices.Contains(e.rcpts, i) {
			return nil
		}
	}
	if len(r.Deferred) == 0 || len(r.Deferred) > len(e.rcpts) {
		return nil
	}
	return s.another(e.peer.queue, e.pool, gradeSpent)
}

// sendFrom has an entry go from another source, or of a busy one the recipients that are
// named. The entry that it was has to be ended after that.
func (s *Scheduler) sendFrom(e *entry, mb *Member, only []int) {
	old := e.peer.queue
	// A job whose last entry an agent has is off the list, and must be put back.
	j := s.jobFor(e.msg, old.tport)
	// What holds where mail goes already has perhaps changed since this entry was told.
	q := old.tport.queues[SourceQueue(old.dest(), mb.Source)]
	if q == nil {
		q = s.sourceQueue(old.tport, old.dest(), old.nexthop, mb)
	}
	x := s.newEntry(s.peerFor(j, q))
	// What its tenant may send to the place holds whatever it goes from.
	if c := x.peer.claim; c.refs == 1 && c.quota == nil && e.peer.claim.quota != nil {
		s.setQuota(c, e.peer.claim.quota)
	}
	x.apart, x.pool, x.second = e.apart, e.pool, e.second || e.busy
	if !e.busy {
		x.since = e.since // it goes on waiting
	}
	if hop := e.nexthop(); !strings.EqualFold(string(hop), string(q.nexthop)) {
		x.hop = &hop
	}
	for i, r := range e.rcpts {
		if e.busy && !slices.Contains(only, r) {
			continue
		}
		x.rcpts = append(x.rcpts, r)
		if len(e.sites) > 0 {
			x.sites = append(x.sites, e.sites[i])
		}
	}
	s.count(j, len(x.rcpts))
	s.updateQueue(q)
}

// sourceQueue finds or makes the queue of a destination for a member of a pool.
func (s *Scheduler) sourceQueue(t *transport, dest string, hop mail.Nexthop, mb *Member) *queue {
	q := s.queueFor(t, SourceQueue(dest, mb.Source), hop)
	q.source = mb.Source
	if q.terms != mb.Terms {
		s.setTerms(q, mb.Terms)
	}
	return q
}

// setSource says what q's mail goes from, by what somebody else has noted: its name must say
// so, too.
func (q *queue) setSource(source string) {
	if source != "" && strings.HasSuffix(q.name, fromSource+source) {
		q.source = source
	}
}

// A stop names what a pause of a source is for: all that goes from it, or what goes to one place.
type stop struct{ source, place string }

// stoppedBy is the pause that keeps mail under these terms from going from a source; nil: there is none.
func (s *Scheduler) stoppedBy(source string, terms *Terms) *pause {
	if len(s.stopped) == 0 {
		return nil
	}
	p := s.paused(s.stopped[stop{source, ""}], 0)
	if p == nil && terms != nil && terms.Place != "" {
		p = s.paused(s.stopped[stop{source, terms.Place}], 0)
	}
	return p
}

// stopSources takes note of which sources are suspended now, and has what waits for them go
// from others, or park. What is under way is let be.
func (s *Scheduler) stopSources() {
	s.stopped = nil
	for id, p := range s.pauses {
		if p.Source == "" {
			continue
		}
		if s.stopped == nil {
			s.stopped = make(map[stop]PauseID)
		}
		// Of several for one source any would do; the first that was made is always the same.
		k := stop{p.Source, p.Place}
		if old := s.stopped[k]; old == 0 || id < old {
			s.stopped[k] = id
		}
	}
	if s.stopped == nil {
		return
	}
	for _, t := range s.transports {
		for q := t.firstQueue; q != nil; {
			next := q.nxt // q is forgotten with its last entry
			if p := s.stoppedBy(q.source, q.terms); p != nil && q.source != "" {
				s.spread(q, gradeDead)
				for q.waiting > 0 {
					s.parkEntry(q.any().head, p)
				}
			}
			q = next
		}
	}
}

// parkEntry has all recipients of a waiting entry wait for the end of a pause of its source.
func (s *Scheduler) parkEntry(e *entry, p *pause) {
	q := e.peer.queue
	s.park(e.msg, p, q.tport, q.dest(), e.rcpts, e.sites)
	s.endEntry(e)
}

// parkStopped does the same for a recipient that has no entry yet. All sources of its pool are
// suspended; it waits for the first of them.
func (s *Scheduler) parkStopped(m *message, t *transport, r *Rcpt) {
	var sites []string
	if r.Site != "" {
		sites = []string{r.Site}
	}
	for i := range r.Pool.Members {
		if p := s.stoppedBy(r.Pool.Members[i].Source, r.Pool.Members[i].Terms); p != nil {
			s.park(m, p, t, r.Queue, []int{r.Index}, sites)
			return
		}
	}
}

// usedUp notes the sources that have sent what they may today with the delivery that has begun
// from q: in this Step, what waits for them goes from others, if there are any.
func (s *Scheduler) usedUp(q *queue) {
	for n := q.legs[sourceTree].leaf; n != nil; n = n.parent {
		if n.limits.Warmup.N > 0 && n.spentUp(s.now) {
			s.full = append(s.full, n)
		}
	}
}

// overflow carries out what usedUp has noted, and what lineUp has. Each entry moves at most
// once for each source of its pool that is used up.
func (s *Scheduler) overflow() {
	for _, n := range s.full {
		if !n.gone && n.spentUp(s.now) {
			s.spilling = n.standing(s.spilling)
		}
	}
	clear(s.full)
	s.full = s.full[:0]
	for _, q := range s.spilling {
		// It may have got its place, or be forgotten and another one by now.
		if l := q.inLine(); l != nil && l.stand.tree == sourceTree && s.spentUp(q.terms) {
			s.spread(q, gradeSpent)
		}
	}
	clear(s.spilling)
	s.spilling = s.spilling[:0]
}

// standing appends the destinations that stand in line for n, here or below.
func (n *shared) standing(list []*queue) []*queue {
	for st := n.line.first; st != nil; st = st.nxt {
		if st.queue != nil {
			list = append(list, st.queue)
		} else {
			list = st.node.standing(list)
		}
	}
	return list
}

// lookForSources is called once a minute: a source may have come back that can take what
// waits for one that is used up.
func (s *Scheduler) lookForSources() {
	for _, n := range s.numbered {
		if n != nil && n.line.n > 0 && n.limits.Warmup.N > 0 && n.spentUp(s.now) {
			s.full = append(s.full, n)
		}
	}
}

// elsewhere says whether what has failed with e may be sent from another source. Then it need
// not wait for the answer of this one: its own back-off is enough.
func (s *Scheduler) elsewhere(e *entry) bool {
	q := e.peer.queue
	if e.pool == nil {
		return false
	}
	dest := q.dest()
	for i := range e.pool.Members {
		if mb := &e.pool.Members[i]; mb.Source != q.source && s.grade(q.tport, dest, mb) < gradeDead {
			return true
		}
	}
	return false
}
