package sched

import (
	"sort"

	"posthaste/internal/reuse"
)

// The job list of a lane is the order in which jobs are served: first
// come first served, but for jobs that preempted others and stand directly in
// front of them. It is a linked list whose members carry labels, numbers that
// increase along the list, so that "which is first" is a comparison and heaps
// can be ordered by it. An insertion takes a label between its neighbours';
// when there is none left, all labels are given anew, which changes no order.

const labelGap = 1 << 32

// insertAfter puts j behind prev, or at the front when prev is nil.
func (s *Scheduler) insertAfter(l *lane, prev, j *job) {
	next := l.first
	if prev != nil {
		next = prev.nxt
	}
	label, ok := between(prev, next)
	if !ok {
		s.relabel(l)
		label, _ = between(prev, next)
	}
	j.label = label
	j.prv, j.nxt = prev, next
	if prev != nil {
		prev.nxt = j
	} else {
		l.first = j
	}
	if next != nil {
		next.prv = j
	} else {
		l.last = j
	}
}

// unlinkJob takes j out of the list. Its label stays valid for comparison, but nobody
// compares with it.
func (l *lane) unlinkJob(j *job) {
	if j.prv != nil {
		j.prv.nxt = j.nxt
	} else {
		l.first = j.nxt
	}
	if j.nxt != nil {
		j.nxt.prv = j.prv
	} else {
		l.last = j.prv
	}
	j.prv, j.nxt = nil, nil
}

// between is a label between those of two neighbours, either of which may be nil; ok is
// false when there is none left.
func between(prev, next *job) (label uint64, ok bool) {
	switch {
	case prev == nil && next == nil:
		return 1 << 62, true
	case next == nil:
		return prev.label + labelGap, prev.label < 1<<64-2*labelGap
	case prev == nil && next.label > 2*labelGap:
		return next.label - labelGap, true
	case prev == nil:
		return next.label / 2, next.label > 1
	}
	return prev.label + (next.label-prev.label)/2, next.label-prev.label > 1
}

// relabel gives every job of a lane a new label. Labels are also in the keys of
// heaps, which keep their shape since no order changes.
func (s *Scheduler) relabel(l *lane) {
	label := uint64(1 << 62)
	for j := l.first; j != nil; j = j.nxt {
		j.label = label
		label += labelGap
	}
	t := l.tport
	for q := t.firstQueue; q != nil; q = q.nxt {
		for c := range q.claims {
			if c.lane != l {
				continue
			}
			switch {
			case t.cfg.Mode != Thread:
				c.peers.rekey(func(p *peer) key { return key{p.job.label, 0} })
			case t.cfg.Order != Random:
				c.peers.rekey(s.peerKey)
			}
			for _, k := range c.classes {
				k.peers.rekey(func(p *peer) key { return key{uint64(p.job.msg.queued), p.job.label} })
			}
		}
	}
	for i := range l.avail.s {
		l.avail.s[i].k = l.avail.s[i].v.availKey()
	}
	for _, list := range [2][]*bucket{l.fresh, l.started} {
		for _, b := range list {
			for i := range b.classes.s {
				b.classes.s[i].k = b.classes.s[i].v.peers.topKey()
			}
		}
	}
}

// timeline finds places in the job list by age: the linked jobs without a
// parent, in the order in which their messages entered the active queue.
// Those that left are kept as gaps until there are more gaps than jobs.
type timeline struct {
	s     []moment
	first int // what is before it is gaps
	gaps  int
}

type moment struct {
	seq uint64
	job *job // nil: a gap
}

// find is the place of seq: the first that is not less. New jobs are nearly always the
// youngest, and found without a search.
func (l *timeline) find(seq uint64) int {
	if n := len(l.s); n == 0 || l.s[n-1].seq < seq {
		return n
	}
	return sort.Search(len(l.s), func(i int) bool { return l.s[i].seq >= seq })
}

// add puts j in its place. A job that has left and comes back mostly finds its own gap.
func (l *timeline) add(j *job) {
	i := l.find(j.seq)
	if i < len(l.s) && l.s[i].seq == j.seq {
		l.s[i].job = j
		l.gaps--
		l.first = min(l.first, i)
		return
	}
	if len(l.s) == cap(l.s) && l.gaps > len(l.s)/2 {
		l.compact()
		i = l.find(j.seq)
	}
	l.s = append(l.s, moment{})
	copy(l.s[i+1:], l.s[i:])
	l.s[i] = moment{j.seq, j}
	l.first = min(l.first, i)
}

// remove leaves a gap. Its cost is that of a search, however many jobs are younger.
func (l *timeline) remove(j *job) {
	l.s[l.find(j.seq)].job = nil
	l.gaps++
	for l.first < len(l.s) && l.s[l.first].job == nil {
		l.first++
	}
	if l.gaps == len(l.s) {
		l.s, l.gaps, l.first = reuse.Truncated(l.s), 0, 0
	} else if l.gaps > 64 && l.gaps > 2*len(l.s)/3 {
		l.compact()
	}
}

// forget removes j if it is there.
func (l *timeline) forget(j *job) {
	if i := l.find(j.seq); i < len(l.s) && l.s[i].job == j {
		l.remove(j)
	}
}

// compact closes the gaps. It moves every job, and is called when at least half of the
// places are gaps: so it costs a constant for each removal.
func (l *timeline) compact() {
	kept := l.s[:0]
	for _, m := range l.s {
		if m.job != nil {
			kept = append(kept, m)
		}
	}
	clear(l.s[len(kept):])
	l.s, l.gaps, l.first = kept, 0, 0
}

// before is the last job on the timeline that is not younger than seq.
func (l *timeline) before(seq uint64) *job {
	for i := l.find(seq+1) - 1; i >= l.first; i-- {
		if l.s[i].job != nil {
			return l.s[i].job
		}
	}
	return nil
}

// oldest is the first job on the timeline.
func (l *timeline) oldest() *job {
	if l.first < len(l.s) {
		return l.s[l.first].job
	}
	return nil
}
