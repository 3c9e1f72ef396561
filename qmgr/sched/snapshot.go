// What one queue manager leaves its successor at a reload, and how the successor takes it
// up. A snapshot comes from a file, so nothing in it is relied on: everything is brought
// within the limits that apply now.

package sched

import (
	"cmp"
	"maps"
	"math"
	"posthaste/internal/adaptive"
	"slices"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// A Snapshot is what a scheduler has learnt of destinations, for a successor:
// which are dead and until when, the windows and the feedback of the others, and
// which mail waits for a dead one to answer. It says nothing of messages
// otherwise, nor of transports that cannot be used: whoever starts a new
// queue manager has perhaps mended them.
type Snapshot struct {
	Dests []DestSnapshot
	Sites []SiteSnapshot
}

// A DestSnapshot is what is known of one destination.
type DestSnapshot struct {
	Transport mail.Transport
	Queue     string
	Nexthop   mail.Nexthop
	Source    string // what its mail goes from; "": it has no sources
	State     DestState
	Until     time.Time  // DestDead, DestSuspended
	Status    dsn.Status // DestDead
	Text      string     // DestDead: the reason, as Dest has it
	Window    int        // DestReady
	LastDone  time.Time  // when a delivery last ended; zero: none has
	Cache     Cache
	// Success and Failure are what has been summed up towards the next change of
	// the window, FailCohorts what counts towards the destination's death.
	Success, Failure, FailCohorts float64
	// What has been learnt of its answers, with times in microseconds by the wall clock; zero: nothing.
	Course adaptive.Memory
	// Since is when its mail ended; zero: it had some. What was learnt is forgotten some time after that, however
	// often the process is replaced.
	Since time.Time
}

// A SiteSnapshot names deferred messages that a destination's next answer
// releases.
type SiteSnapshot struct {
	Transport mail.Transport
	Queue     string
	Alive     bool // it has answered since it last failed
	Waiting   []MsgID
}

// maxInherited bounds the messages that all Sites of a Snapshot name. Others are
// tried at their own times.
const maxInherited = 1 << 17

// inheritTime is how long a restored destination is remembered without mail for
// it, and mail that waits without having been told of.
const inheritTime = int64(time.Minute / time.Microsecond)

// Snapshot returns what has been learnt so far. It shares no memory with s.
func (s *Scheduler) Snapshot() Snapshot {
	var snap Snapshot
	for _, t := range s.transports {
		if t.name == RetryTransport || t.name == ErrorTransport {
			continue // their destinations are reasons
		}
		for q := t.firstQueue; q != nil; q = q.nxt {
			if q.state == DestDead && q.hearsay {
				continue // the successor hears it, too
			}
			d := DestSnapshot{Transport: t.name, Queue: q.name, Nexthop: q.nexthop, Source: q.source, State: q.state, Status: q.status, Text: q.reason,
				LastDone: s.realTime(q.lastDone), Cache: q.cache, Success: q.success, Failure: q.failure, FailCohorts: q.failCohorts, Course: s.courseMemory(q.course)}
			if q.state == DestReady {
				d.Window = q.window
			} else {
				d.Until = s.realTime(q.until)
			}
			snap.Dests = append(snap.Dests, d)
		}
		// Of destinations without mail there is only this to say.
		if t.learnt != nil {
			for x := t.learnt.oldest.Front(); x != nil; x = x.Next() {
				l := x.Value.(*learnt)
				snap.Dests = append(snap.Dests, DestSnapshot{Transport: t.name, Queue: l.name, Source: l.source, State: DestReady, Window: t.cfg.InitialConcurrency, Course: s.courseMemory(l.course), Since: s.realTime(l.since)})
			}
		}
	}
	// Sites are named as a whole or not at all: the successor must not take a part for
	// all that waits.
	left := maxInherited
	for i := range s.sites {
		st := &s.sites[i]
		if st.tport == nil || st.pause != 0 || left < st.n() {
			continue // pauses are told anew, and what they mean is parked again
		}
		left -= st.n()
		site := SiteSnapshot{Transport: st.tport.name, Queue: st.name, Alive: st.alive, Waiting: make([]MsgID, 0, st.n())}
		for r := st.waiting.head; r != 0; r = s.recs.at(r).nxt {
			site.Waiting = append(site.Waiting, s.recs.at(r).id)
		}
		site.Waiting = append(site.Waiting, s.awayFrom(int32(i))...)
		snap.Sites = append(snap.Sites, site)
	}
	if h := s.inherited; h != nil {
		h.bequeath(&snap)
	}
	return snap
}

// bequeath adds what nobody has asked for yet: one reload may follow another.
func (h *inheritance) bequeath(snap *Snapshot) {
	at := len(snap.Dests)
	for _, d := range h.dests {
		snap.Dests = append(snap.Dests, d)
	}
	slices.SortFunc(snap.Dests[at:], func(a, b DestSnapshot) int {
		return cmp.Or(cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Queue, b.Queue))
	})
	sites := map[*heirSite]int{}
	for _, id := range slices.Sorted(maps.Keys(h.sites)) {
		st := h.sites[id]
		i, ok := sites[st]
		if !ok {
			i = len(snap.Sites)
			sites[st] = i
			snap.Sites = append(snap.Sites, SiteSnapshot{Transport: st.key.tport.name, Queue: st.key.name, Alive: st.alive})
		}
		snap.Sites[i].Waiting = append(snap.Sites[i].Waiting, id)
	}
}

// An inheritance is what has been restored and nothing has come for yet.
type inheritance struct {
	dests map[siteKey]DestSnapshot // that are ready
	sites map[MsgID]*heirSite
	timer timer // ends it
}

// heirSite is a site that mail waits for which has not been told of yet.
type heirSite struct {
	key   siteKey
	alive bool
}

// Restore has a scheduler that has not seen an event yet know what a predecessor
// has learnt. Whatever the snapshot says is brought within the limits of the present
// configuration: windows within those of their transports, times that
// lie ahead within those that would be set now. What makes no sense is left out.
func (s *Scheduler) Restore(now time.Time, snap Snapshot) {
	s.now = s.clock.advance(now.UnixMicro())
	s.stepped = s.now // the predecessor has only just ended
	h := &inheritance{dests: map[siteKey]DestSnapshot{}, sites: map[MsgID]*heirSite{}, timer: timer{kind: timerInherit}}
	for i := range snap.Dests {
		if d := snap.Dests[i]; d.Transport != "" && d.Transport != RetryTransport && d.Transport != ErrorTransport && len(h.dests)+s.queueCount < 2*s.cfg.RecipientLimit {
			s.restoreDest(h, &d)
		}
	}
	left := maxInherited
	for i := range snap.Sites {
		st := &snap.Sites[i]
		if left -= len(st.Waiting); left < 0 || st.Transport == "" {
			break
		}
		site := &heirSite{siteKey{tport: s.transportFor(st.Transport), name: st.Queue}, st.Alive}
		for _, id := range st.Waiting {
			h.sites[id] = site
		}
	}
	s.inherited = h
	s.startTimer(&h.timer, s.now+inheritTime)
}

// restoreDest makes a destination that is dead or suspended; what is known of one
// that is ready is kept for when there is mail for it.
func (s *Scheduler) restoreDest(h *inheritance, d *DestSnapshot) {
	d.Window, d.Cache = max(d.Window, 1), d.Cache&(CacheLoad|CacheStore)
	d.Success, d.Failure = within(d.Success, -1, 1), within(d.Failure, -1, 2) // see slack
	d.FailCohorts = within(d.FailCohorts, 0, math.MaxFloat64)
	t := s.transportFor(d.Transport)
	if _, twice := h.dests[siteKey{tport: t, name: d.Queue}]; twice || t.queues[d.Queue] != nil {
		return
	}
	most := micros(s.cfg.MinimalBackoff)
	if d.State == DestSuspended {
		most = micros(t.cfg.DestinationRateDelay)
	}
	until := min(s.clock.sanely(toMicros(d.Until)), s.now+most)
	switch {
	case d.State == DestReady:
		h.dests[siteKey{tport: t, name: d.Queue}] = *d
	// Its time is over: it is as good as unknown.
	case until <= s.now:
	// The new configuration may not know dead destinations any more.
	case d.State == DestDead && t.cfg.FailedCohortLimit > 0 && t.cfg.DestinationRateDelay <= 0:
		q := s.queueFor(t, d.Queue, d.Nexthop)
		q.setSource(d.Source)
		s.dead(q, d.Status, d.Text, until)
		q.failCohorts = d.FailCohorts
		s.recallCourse(q, d.Course)
		s.startTimer(&q.timer, until)
	case d.State == DestSuspended:
		q := s.queueFor(t, d.Queue, d.Nexthop)
		q.setSource(d.Source)
		q.state, q.until = DestSuspended, until
		q.failCohorts = d.FailCohorts
		s.recallCourse(q, d.Course)
		s.startTimer(&q.timer, until)
	}
}

// inherit gives a new queue what a predecessor knew of it.
func (s *Scheduler) inherit(q *queue) {
	k := siteKey{tport: q.tport, name: q.name}
	d, ok := s.inherited.dests[k]
	if !ok {
		return
	}
	delete(s.inherited.dests, k)
	q.window, q.answered = d.Window, true
	if q.limit > 0 {
		q.window = min(q.window, q.limit)
	}
	q.success, q.failure, q.failCohorts, q.cache = d.Success, d.Failure, d.FailCohorts, d.Cache
	q.setSource(d.Source)
	// What is older was not looked for, as without a predecessor.
	if s.now-s.leftAt(&d) <= learntTime {
		s.recallCourse(q, d.Course)
	}
	if done := s.clock.sanely(toMicros(d.LastDone)); !d.LastDone.IsZero() && done <= s.now {
		q.lastDone = done
	}
}

// within is x, no less than least and no more than most; 0 for what is no number.
func within(x, least, most float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return min(max(x, least), most)
}

// inheritedSite is the site that a message which comes to exist waits for; 0: none.
func (s *Scheduler) inheritedSite(id MsgID, in Queue) int32 {
	if i := s.back(id); i != 0 {
		if in == QueueDeferred {
			return i
		}
		s.leftSite(i)
		return 0
	}
	if s.inherited == nil {
		return 0
	}
	st := s.inherited.sites[id]
	if st == nil {
		return 0
	}
	delete(s.inherited.sites, id)
	if in != QueueDeferred {
		return 0
	}
	i := s.siteOf(st.key)
	s.sites[i].alive = st.alive
	return i
}

// leftAt is since when a destination that was restored has had no mail, by the clock of s.
func (s *Scheduler) leftAt(d *DestSnapshot) int64 {
	if d.Since.IsZero() {
		return s.now
	}
	// A clock that was wrong makes nothing of the future.
	return min(s.clock.sanely(toMicros(d.Since)), s.now)
}

// disinherit ends the wait for mail that has not been told of. When not all is in
// memory, it may be there all the same.
func (s *Scheduler) disinherit() {
	h := s.inherited
	s.inherited = nil
	left := make(map[siteKey]int64, len(h.dests))
	for k, d := range h.dests {
		left[k] = s.leftAt(&d)
	}
	// The oldest first, since they are the first to be forgotten; of one age in the order of their names.
	for _, k := range slices.SortedFunc(maps.Keys(h.dests), func(a, b siteKey) int {
		return cmp.Or(cmp.Compare(left[a], left[b]), cmp.Compare(a.tport.name, b.tport.name), cmp.Compare(a.name, b.name))
	}) {
		if d := h.dests[k]; k.tport.cfg.Adaptive && d.Course != (adaptive.Memory{}) {
			d.Course.EachTime(s.clock.sanely)
			b := adaptive.Bounds{Slowest: max(micros(k.tport.cfg.AdaptiveDelay), 1), Longest: max(micros(s.cfg.MaximalBackoff), 1)}
			k.tport.putLearnt(&learnt{d.Queue, d.Source, adaptive.Resume(d.Course, s.now, &b), left[k]})
		}
	}
	if !s.forgets() {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(h.sites)) {
		st := h.sites[id]
		if len(s.window.awayAt) < maxAway {
			i := s.siteOf(st.key)
			s.sites[i].alive = s.sites[i].alive || st.alive
			s.remember(i, id)
		}
	}
}
