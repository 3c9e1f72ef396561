package sched

import "sort"

// Candidates for preemption are the jobs behind the current one that could be
// served now and have no children. nqmgr walks the job list to find the one
// with the most age per entry. Here an index answers instead. The rule
// compares age/total among those with needed <= slots, so that among jobs with
// the same total and needed the oldest wins, whatever the time is: they share
// a bucket. And whether a job can be served is a property of destinations, of
// which few change at a time: within a bucket, the jobs of one destination
// form a class, and only classes of available destinations are in the bucket's
// heap.
//
//	lane ────── buckets (total, needed) ─ heap of classes ─ heap of peers, oldest first
//	            destination ─ classes ────────┘
//
// A job that has been selected from changes its needed with each selection.
// The few that were so lately are on a short list, the loose ones, and looked
// at one by one; only when that grows, its oldest goes into the index.
//
// All this is only kept up while somebody asks. Where no message is large
// enough to let another past, nobody does, and nothing is indexed.

// candState says where a job is as a candidate.
type candState uint8

const (
	// not one: off the list, a parent, nothing waits, or nobody searches
	candNone candState = iota
	// in a bucket, by the classes of its destinations
	candIndexed
	// on lane.loose
	candLoose
)

// maxLoose bounds the list of loose jobs, and so the cost of a search. It is small: jobs
// are loose only while they are being selected from. Tests lower Scheduler.maxLoose to
// have the index do the work.
const maxLoose = 16

// bucket holds the indexed jobs of one size.
type bucket struct {
	total, needed int
	classes       heap[*class] // those of available destinations
	refs          int          // classes altogether
}

// class holds the indexed jobs of one size that have entries waiting for one
// destination.
type class struct {
	claim  *claim
	bucket *bucket
	peers  peerList // by age, then by place in the job list
	at     int32    // in bucket.classes
}

func (c *class) place(_ int, at int32) { c.at = at }

// searchMemory is how long after the last search the index is kept up. Building it costs
// a walk over all jobs, keeping it up costs a little with each entry; a minute is long
// against the one and short against a mailing that has ended.
const searchMemory = 60 * second

// wantCandidates notes that candidates are searched for, and makes sure that
// all are known.
func (s *Scheduler) wantCandidates(l *lane) {
	l.searched = s.now
	if l.searching {
		return
	}
	l.searching = true
	for j := l.first; j != nil; j = j.nxt {
		if j.waiting > 0 {
			s.enterCandidates(j)
		}
	}
}

// enterCandidates makes a linked job with waiting entries a candidate, unless it is one
// or must not be one. A job with children must not, as in nqmgr: it
// has been preempted itself.
func (s *Scheduler) enterCandidates(j *job) {
	t, l := j.tport, j.lane
	if l.searching && s.now-l.searched > searchMemory {
		l.searching = false
	}
	if !l.searching || j.cand != candNone || t.cfg.SlotCost < 2 || t.cfg.Mode != Preemptive || j.firstChild != nil {
		return
	}
	if j.selected > 0 {
		s.addLoose(j)
	} else {
		s.indexJob(j)
	}
}

// leaveCandidates takes j out, whichever way it is a candidate.
func (s *Scheduler) leaveCandidates(j *job) {
	switch j.cand {
	case candIndexed:
		s.unindexJob(j)
	case candLoose:
		l := j.lane
		for i, o := range l.loose {
			if o == j {
				l.loose = append(l.loose[:i], l.loose[i+1:]...)
				break
			}
		}
	}
	j.cand = candNone
}

// startJob is called before an entry of j is taken: that changes the job's size, and with
// it its bucket, so an indexed job becomes loose.
func (s *Scheduler) startJob(j *job) {
	if j.cand == candIndexed {
		s.unindexJob(j)
		s.addLoose(j)
	}
}

// addLoose puts j on the short list. When that is full, the job that has been on it
// longest is indexed: it is likely to be selected from no more.
func (s *Scheduler) addLoose(j *job) {
	l := j.lane
	if len(l.loose) >= s.maxLoose {
		o := l.loose[0]
		l.loose = append(l.loose[:0], l.loose[1:]...)
		o.cand = candNone
		if o.waiting > 0 { // else it comes back with its next recipients
			s.indexJob(o)
		}
	}
	l.loose = append(l.loose, j)
	j.cand = candLoose
}

// indexJob puts j into the bucket of its size, once for each destination that it has
// waiting entries for.
func (s *Scheduler) indexJob(j *job) {
	b := s.bucketFor(j.lane, j.total(), j.needed())
	j.cand, j.bucket = candIndexed, b
	k := key{uint64(j.msg.queued), j.label}
	for _, p := range j.peers {
		if p.todo == 0 {
			continue
		}
		c := s.classFor(p.claim, b)
		p.class = c
		c.peers.push(k, p)
		c.settle()
	}
}

// unindexJob takes j out of its bucket. It must be called before anything that total or
// needed depend on changes.
func (s *Scheduler) unindexJob(j *job) {
	for _, p := range j.peers {
		c := p.class
		if c == nil {
			continue
		}
		p.class = nil
		c.peers.remove(p)
		if c.peers.n == 0 {
			s.freeClass(c)
		} else {
			c.settle()
		}
	}
	j.cand, j.bucket = candNone, nil
}

// settle brings the class's place in its bucket's heap in line with its
// oldest job and its destination's state.
func (c *class) settle() {
	b := &c.bucket.classes
	switch {
	case !c.claim.open:
		if c.at != 0 {
			b.remove(c.at)
		}
	case c.at != 0:
		b.fix(c.at, c.peers.topKey())
	default:
		b.push(c.peers.topKey(), c)
	}
}

// buckets is the list for a size: jobs that have not been started need all
// they have.
func (l *lane) buckets(total, needed int) *[]*bucket {
	if total == needed {
		return &l.fresh
	}
	return &l.started
}

// findBucket and findClass search in the order of total, then needed. candidate relies on
// that order to stop early.
func findBucket(list []*bucket, total, needed int) int {
	return sort.Search(len(list), func(i int) bool {
		b := list[i]
		return b.total > total || b.total == total && b.needed >= needed
	})
}

// bucketFor finds or makes the bucket of a size.
func (s *Scheduler) bucketFor(l *lane, total, needed int) *bucket {
	list := l.buckets(total, needed)
	i := findBucket(*list, total, needed)
	if i < len(*list) && (*list)[i].total == total && (*list)[i].needed == needed {
		return (*list)[i]
	}
	b := s.bucketPool.Get()
	b.total, b.needed = total, needed
	*list = append(*list, nil)
	copy((*list)[i+1:], (*list)[i:])
	(*list)[i] = b
	return b
}

func findClass(list []*class, b *bucket) int {
	return sort.Search(len(list), func(i int) bool {
		c := list[i].bucket
		return c.total > b.total || c.total == b.total && c.needed >= b.needed
	})
}

// classFor finds or makes the class of a destination in a bucket.
func (s *Scheduler) classFor(m *claim, b *bucket) *class {
	i := findClass(m.classes, b)
	if i < len(m.classes) && m.classes[i].bucket == b {
		return m.classes[i]
	}
	c := s.classPool.Get()
	c.claim, c.bucket = m, b
	c.peers.which = inClass
	b.refs++
	m.classes = append(m.classes, nil)
	copy(m.classes[i+1:], m.classes[i:])
	m.classes[i] = c
	return c
}

// freeClass removes a class that has no peers left, and its bucket with the last class.
func (s *Scheduler) freeClass(c *class) {
	m, b := c.claim, c.bucket
	if c.at != 0 {
		b.classes.remove(c.at)
	}
	i := findClass(m.classes, b)
	m.classes = append(m.classes[:i], m.classes[i+1:]...)
	b.refs--
	if b.refs == 0 {
		list := m.lane.buckets(b.total, b.needed)
		i := findBucket(*list, b.total, b.needed)
		*list = append((*list)[:i], (*list)[i+1:]...)
		s.bucketPool.Put(b)
	}
	c.claim, c.bucket, c.at = nil, nil, 0
	s.classPool.Put(c)
}

// choice is the best candidate so far.
type choice struct {
	job   *job
	score float64
}

// consider takes j if it has more age per entry than the one before, or as
// much and an earlier place in the job list.
func (c *choice) consider(s *Scheduler, j *job) {
	score := float64(s.now/second-j.msg.queued+1) / float64(j.total())
	if c.job == nil || score > c.score || score == c.score && j.label < c.job.label {
		c.job, c.score = j, score
	}
}

// candidate is the best job to be let past cur; nil when there is none.
//
// The bound on slots is nqmgr's: what cur has earned, and what it will have earned when
// all of its entries that are in memory are selected. A job that needs more could never
// be paid for.
func (s *Scheduler) candidate(cur *job) *job {
	l := cur.lane
	slots := (cur.read - cur.selected + cur.slotsAvail) / l.tport.cfg.SlotCost
	if slots <= 0 {
		return nil
	}
	s.wantCandidates(l)
	// cur must not be found as a candidate against itself.
	if cur.cand == candIndexed {
		s.startJob(cur)
	}
	var best choice
	for i := 0; i < len(l.loose); i++ {
		j := l.loose[i]
		if n := j.needed(); j != cur && j.waiting > 0 && n > 0 && n <= slots && j.nextPeer() != nil {
			best.consider(s, j)
		}
	}
	oldest := l.byAge.oldest()
	if oldest == nil {
		return best.job
	}
	// No job can be older than the oldest on the list; so age/total bounds the score of a
	// whole bucket, and the search ends at the first bucket that cannot win. In fresh,
	// needed equals total, and the limit on slots ends the search as well.
	age := float64(s.now/second - oldest.msg.queued + 1)
	for _, b := range l.fresh {
		if b.needed > slots || best.job != nil && age/float64(b.total) < best.score {
			break
		}
		if b.classes.len() > 0 {
			best.consider(s, b.classes.s[0].v.peers.top().job)
		}
	}
	for _, b := range l.started {
		if best.job != nil && age/float64(b.total) < best.score {
			break
		}
		if b.needed <= slots && b.classes.len() > 0 {
			best.consider(s, b.classes.s[0].v.peers.top().job)
		}
	}
	return best.job
}
