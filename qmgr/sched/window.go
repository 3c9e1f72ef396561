package sched

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Of deferred mail only what is due next is in memory: about
// Config.DeferredLimit messages, however many there are. The others are known
// to the shell's source alone, which is the spool's index. It gives them in the order in
// which they are due (EffectFetch), from the edge of the window on: everything that is due up
// to the edge is in memory. What is deferred to a time behind the edge is forgotten, as soon as
// all that was to be recorded of it is (EffectLeave, EventForget), and so is what is on hold.
//
// A queue that is no longer than the limit is in memory as a whole, and nothing is
// asked for.
//
// Of what is forgotten on account of a destination that failed, or of a pause, the
// numbers are remembered, maxAway of them: the destination's next answer, and the end of
// the pause, have them called back (EffectRecall). Others are tried at their own times. Those
// that lie further ahead than any that is decided on, as those of paused mail may, are shortened
// when a pause ends.

// A Mark is a place in the order in which deferred mail is due: by the time on
// record, and by number among those of the same microsecond. The zero Mark is before all.
type Mark struct {
	Next time.Time
	ID   MsgID
}

// A Fetch asks for deferred messages that are due behind a mark.
type Fetch struct {
	After Mark
	Max   int // how many, at least 1
	// What is on record as due after Sane is due at Amnesty, if that is not before After:
	// a clock was wrong, or nobody waits for it any more.
	Sane, Amnesty time.Time
}

// maxAway bounds the forgotten messages that are remembered by the
// destination or pause that they wait for, and those that are for each domain of fast flushes.
const (
	maxAway      = 1 << 17
	maxAwayFlush = 1 << 15
)

const (
	// leaveBudget bounds how many messages one Step has forgotten, and recallBudget how many
	// it calls back at the end of a pause.
	leaveBudget  = 128
	recallBudget = 1000
)

// mark is a Mark in microseconds of the wall clock.
type mark struct {
	next int64
	id   MsgID
}

func (a mark) compare(b mark) int {
	return cmp.Or(cmp.Compare(a.next, b.next), cmp.Compare(a.id, b.id))
}

// A window is what is known of deferred mail that is not in memory.
type window struct {
	attached bool // there is a source to ask
	whole    bool // all deferred mail is in memory
	fetching bool // EffectFetch has not been answered: nothing is forgotten
	passing  bool // a flush of all mail goes on in what is not in memory: it comes in by that
	// The last mark up to which everything that is deferred is in memory. The zero mark:
	// nothing has been fetched yet.
	edge    mark
	amnesty int64           // µs of the wall clock
	far     []MsgID         // that EffectLeave is to name; some may have left since
	farN    int             // deferred messages with flagFar
	awayAt  map[MsgID]int32 // sites that forgotten messages wait for
}

// longest is how far ahead a retry may be set.
func (s *Scheduler) longest() int64 {
	return micros(max(s.cfg.MaximalBackoff, s.cfg.MinimalBackoff) + s.cfg.QueueRunDelay)
}

// beyond says whether a deferred message is due behind the edge.
func (s *Scheduler) beyond(rec *record) bool {
	return s.cfg.DeferredLimit > 0 && !s.window.whole && mark{rec.mark, rec.id}.compare(s.window.edge) > 0
}

// near is how many deferred messages are in memory and should be.
func (s *Scheduler) near() int { return len(s.retries.s) - s.window.farN }

// setFar notes whether a deferred message need not be in memory.
func (s *Scheduler) setFar(rec *record, far bool) {
	if was := rec.flags&flagFar != 0; was == far {
		return
	}
	rec.flags ^= flagFar
	if !far {
		s.window.farN--
		return
	}
	s.window.farN++
	s.window.far = append(s.window.far, rec.id)
}

// attach: what is in the deferred queue is asked for from the beginning. Some
// may have come that nobody has told of.
func (s *Scheduler) attach() {
	w := &s.window
	w.attached, w.fetching = true, false
	s.startOver()
}

// startOver has the window begin with what is due first.
func (s *Scheduler) startOver() {
	w := &s.window
	w.whole, w.edge, w.amnesty = false, mark{}, s.clock.wall+s.longest()
}

// lookAhead keeps the window as long as it should be.
func (s *Scheduler) lookAhead() {
	w, limit := &s.window, s.cfg.DeferredLimit
	if limit == 0 || !w.attached || w.fetching || w.passing {
		return
	}
	begin := w.edge == mark{} && !w.whole
	if !begin && s.near() > limit+limit/4 {
		s.narrow()
	}
	if w.whole || !begin && s.near() >= max(limit/4, 1) {
		return
	}
	if w.edge.next > s.clock.wall+s.longest() { // the clock was wrong, or nearly all is paused
		s.startOver()
	}
	f := &Fetch{After: Mark{toTime(w.edge.next), w.edge.id}, Max: limit, Sane: toTime(s.clock.wall + s.longest()), Amnesty: toTime(w.amnesty)}
	if w.edge != (mark{}) {
		f.Max = max(limit-s.near(), 1)
	}
	w.fetching = true
	s.emit(Effect{Kind: EffectFetch, Fetch: f})
}

// narrow moves the edge back, to where as many messages are before it as may be.
func (s *Scheduler) narrow() {
	w := &s.window
	var marks []mark
	for i := range s.retries.s {
		if rec := s.recs.at(s.retries.s[i].rec); !s.beyond(rec) {
			marks = append(marks, mark{rec.mark, rec.id})
		}
	}
	if len(marks) > s.cfg.DeferredLimit {
		slices.SortFunc(marks, mark.compare)
		w.whole, w.edge = false, marks[s.cfg.DeferredLimit-1]
	}
	s.findFar()
}

// findFar looks again which messages need not be in memory.
func (s *Scheduler) findFar() {
	for i := range s.retries.s {
		rec := s.recs.at(s.retries.s[i].rec)
		s.setFar(rec, s.beyond(rec))
	}
}

// mayLeave notes that a message that is on hold, or deferred, perhaps need not be
// in memory.
func (s *Scheduler) mayLeave(rec *record) {
	switch {
	case s.cfg.DeferredLimit == 0:
	case rec.where == whereHold:
		s.window.far = append(s.window.far, rec.id)
	case s.beyond(rec):
		s.setFar(rec, true)
	}
}

// sayFar names messages that need not be in memory, a part of them in each Step.
func (s *Scheduler) sayFar() {
	w := &s.window
	n := min(len(w.far), leaveBudget)
	for _, id := range w.far[:n] {
		if i := s.recs.find(id); i != 0 {
			if rec := s.recs.at(i); rec.where == whereHold || rec.where == whereDeferred && s.beyond(rec) {
				s.emit(Effect{Kind: EffectLeave, ID: id})
			}
		}
	}
	w.far = append(w.far[:0], w.far[n:]...)
	if cap(w.far) > recordChunk && len(w.far) < cap(w.far)/8 {
		w.far = slices.Clone(w.far)
	}
}

// fetched: all that was asked for has been told of with EventQueued.
func (s *Scheduler) fetched(ev *Event) {
	w := &s.window
	if !w.fetching {
		return
	}
	w.fetching = false
	if ev.OK {
		w.whole = true
		s.forgetAway()
	} else if ev.Mark != nil {
		w.edge = mark{toMicros(ev.Mark.Next), ev.Mark.ID}
	}
	s.findFar()
}

// forget has messages forgotten that are recorded as they are. Those of which
// that is not known to be right any more stay.
func (s *Scheduler) forget(ids []MsgID) {
	if s.window.fetching {
		return
	}
	for _, id := range ids {
		i := s.recs.find(id)
		if i == 0 {
			continue
		}
		rec := s.recs.at(i)
		origin := rec.where.queue()
		switch {
		case rec.where == whereHold && s.cfg.DeferredLimit > 0:
			s.stats.Hold--
		case rec.where != whereDeferred || !s.beyond(rec):
			continue
		case rec.flags&FlagTrace != 0 && rec.attempts > 0: // its report could not be made: nobody else knows that
			continue
		default:
			if st := rec.site; st != 0 && s.sites[st].pause != laterID {
				s.remember(st, id)
			}
			s.leaveDeferred(i)
		}
		s.recs.remove(i)
		s.emit(Effect{Kind: EffectForget, ID: id, Origin: origin})
	}
}

// remember notes what a forgotten message waits for.
func (s *Scheduler) remember(site int32, id MsgID) {
	w := &s.window
	if len(w.awayAt) >= maxAway {
		return
	}
	if w.awayAt == nil {
		w.awayAt = make(map[MsgID]int32)
	}
	st := &s.sites[site]
	w.awayAt[id] = site
	st.awayN++
	s.countParked(site, 1)
	if st.away = append(st.away, id); len(st.away) > 2*st.awayN+64 { // most have come back since, some more than once
		slices.Sort(st.away)
		st.away = slices.DeleteFunc(slices.Compact(st.away), func(id MsgID) bool { return w.awayAt[id] != site })
	}
}

// back is the site that a message which comes to exist again waits for; 0: none.
func (s *Scheduler) back(id MsgID) int32 {
	site := s.window.awayAt[id]
	if site != 0 {
		delete(s.window.awayAt, id)
		s.sites[site].awayN--
		s.countParked(site, -1)
	}
	return site
}

// awayFrom are the forgotten messages that wait for a site.
func (s *Scheduler) awayFrom(site int32) []MsgID {
	list := slices.DeleteFunc(slices.Clone(s.sites[site].away), func(id MsgID) bool { return s.window.awayAt[id] != site })
	slices.Sort(list)
	return slices.Compact(list)
}

// recall calls one forgotten message back that waits for a site, of which there is one.
func (s *Scheduler) recall(site int32) {
	st := &s.sites[site]
	for len(st.away) > 0 {
		id := st.away[0]
		st.away = st.away[1:]
		if s.window.awayAt[id] == site {
			s.back(id)
			s.emit(Effect{Kind: EffectRecall, ID: id})
			break
		}
	}
	s.leftSite(site)
}

// forgetAway: nothing is forgotten any more.
func (s *Scheduler) forgetAway() {
	for _, id := range slices.Sorted(maps.Keys(s.window.awayAt)) {
		s.leftSite(s.back(id))
	}
}

// recalled: a message that was called back is in memory, or was all the time.
func (s *Scheduler) recalled(ev *Event) {
	i := s.recs.find(ev.ID)
	if i == 0 || s.recs.at(i).where != whereDeferred {
		return
	}
	if ev.Now { // by a flush of all mail
		if s.firmly(s.recs.at(i)) {
			return
		}
		s.recs.at(i).flags |= flagFlush
	}
	s.makeDue(i)
}

// Whole says whether all deferred mail is in memory.
func (s *Scheduler) Whole() bool { return !s.forgets() }

// Due is how many deferred messages wait for a place in the active queue ahead
// of their time.
func (s *Scheduler) Due() int { return int(s.due.n) }
