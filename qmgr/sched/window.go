package sched

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Only the deferred messages that are due next are in memory: about Config.DeferredLimit of them,
// however long the deferred queue is. The others are known only to the shell's source, the spool's
// index. It returns them in the order in which they are due (EffectFetch), starting at the edge of the
// window: everything that is due before the edge is in memory. A message that is deferred to a time
// behind the edge is forgotten as soon as its changes have been recorded (EffectLeave, EventForget),
// and so is mail on hold.
//
// If the deferred queue is not longer than the limit, all of it is in memory, and nothing is fetched.
//
// For forgotten messages that wait for a dead destination or a pause, up to maxAway message numbers are
// kept. They are called back (EffectRecall) when the destination answers or the pause ends. Messages
// beyond that number are tried at their own times. When a pause ends, retry times that are further
// ahead than any regular back-off, which paused mail may have, are shortened.

// A Mark is a position in the order in which deferred mail is due: by the recorded time, and by message
// number within the same microsecond. The zero Mark is before all messages.
type Mark struct {
	Next time.Time
	ID   MsgID
}

// A Fetch asks for deferred messages that are due behind a mark.
type Fetch struct {
	After Mark
	Max   int // the maximal number of messages, at least 1
	// Messages with a recorded time after Sane are due at Amnesty, unless that is before After: their
	// times come from a wrong clock, or from a pause that has ended.
	Sane, Amnesty time.Time
}

// maxAway bounds the numbers of forgotten messages that are kept for destinations and pauses, and
// maxAwayFlush those that are kept for each fast flush domain.
const (
	maxAway      = 1 << 17
	maxAwayFlush = 1 << 15
)

const (
	// leaveBudget bounds how many messages one Step forgets, and recallBudget how many it calls back
	// at the end of a pause.
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

// A window describes which deferred mail is in memory.
type window struct {
	attached bool // there is a source
	whole    bool // all deferred mail is in memory
	fetching bool // an EffectFetch has not been answered yet; nothing is forgotten meanwhile
	passing  bool // a flush of all mail is in progress: it also brings in the mail that is not in memory
	// All deferred mail up to this mark is in memory. With the zero mark nothing has been fetched yet.
	edge    mark
	amnesty int64           // µs of the wall clock
	far     []MsgID         // messages for the next EffectLeave; some may have left the queue since
	farN    int             // deferred messages with flagFar
	awayAt  map[MsgID]int32 // the sites that forgotten messages wait for
}

// longest returns the maximal time from now to a retry.
func (s *Scheduler) longest() int64 {
	return micros(max(s.cfg.MaximalBackoff, s.cfg.MinimalBackoff) + s.cfg.QueueRunDelay)
}

// beyond reports whether a deferred message is due behind the edge.
func (s *Scheduler) beyond(rec *record) bool {
	return s.cfg.DeferredLimit > 0 && !s.window.whole && mark{rec.mark, rec.id}.compare(s.window.edge) > 0
}

// near returns the number of deferred messages that belong in memory and are there.
func (s *Scheduler) near() int { return len(s.retries.s) - s.window.farN }

// setFar records whether a deferred message need not be in memory.
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

// attach fetches the deferred queue from its beginning. It may contain messages that were never
// announced.
func (s *Scheduler) attach() {
	w := &s.window
	w.attached, w.fetching = true, false
	s.startOver()
}

// startOver moves the window back to the messages that are due first.
func (s *Scheduler) startOver() {
	w := &s.window
	w.whole, w.edge, w.amnesty = false, mark{}, s.clock.wall+s.longest()
}

// lookAhead keeps the number of deferred messages in memory near the limit.
func (s *Scheduler) lookAhead() {
	w, limit := &s.window, s.cfg.DeferredLimit
	if limit == 0 || !w.attached || w.fetching || w.passing {
		return
	}
	begin := w.edge == mark{} && !w.whole
	if !begin && s.near() > limit+limit/4 {
		s.narrow()
	}
	if w.whole || !begin && s.near()+s.ripe >= max(limit/4, 1) {
		return
	}
	if w.edge.next > s.clock.wall+s.longest() { // the clock was wrong, or nearly all is paused
		s.startOver()
	}
	f := &Fetch{After: Mark{toTime(w.edge.next), w.edge.id}, Max: limit, Sane: toTime(s.clock.wall + s.longest()), Amnesty: toTime(w.amnesty)}
	if w.edge != (mark{}) {
		f.Max = max(limit-s.near()-s.ripe, 1)
	}
	w.fetching = true
	s.emit(Effect{Kind: EffectFetch, Fetch: f})
}

// narrow moves the edge back until no more than DeferredLimit messages are before it.
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

// findFar determines again which messages need not be in memory.
func (s *Scheduler) findFar() {
	for i := range s.retries.s {
		rec := s.recs.at(s.retries.s[i].rec)
		s.setFar(rec, s.beyond(rec))
	}
}

// mayLeave marks a message that is on hold, or deferred behind the edge, as one that need not be in
// memory.
func (s *Scheduler) mayLeave(rec *record) {
	switch {
	case s.cfg.DeferredLimit == 0:
	case rec.where == whereHold:
		s.window.far = append(s.window.far, rec.id)
	case s.beyond(rec):
		s.setFar(rec, true)
	}
}

// sayFar reports messages that need not be in memory to the shell, a limited number in each Step.
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

// fetched handles the end of a fetch: all its messages have been announced with EventQueued.
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

// forget removes messages from memory whose state has been recorded. Messages whose state may have
// changed since are kept.
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
		case rec.flags&FlagTrace != 0 && rec.attempts > 0: // its report could not be written, and only the record says so
			continue
		default:
			if st := rec.site; st != 0 && s.sites[st].pause != laterID {
				s.remember(st, id)
			}
			s.leaveDeferred(i)
		}
		s.forgetRecord(i)
		s.emit(Effect{Kind: EffectForget, ID: id, Origin: origin})
	}
}

// remember records what a forgotten message waits for.
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
	if st.away = append(st.away, id); len(st.away) > 2*st.awayN+64 { // most of them have come back since, some repeatedly
		slices.Sort(st.away)
		st.away = slices.DeleteFunc(slices.Compact(st.away), func(id MsgID) bool { return w.awayAt[id] != site })
	}
}

// back returns the site that a forgotten message waited for, when it is in memory again; 0: none.
func (s *Scheduler) back(id MsgID) int32 {
	site := s.window.awayAt[id]
	if site != 0 {
		delete(s.window.awayAt, id)
		s.sites[site].awayN--
		s.countParked(site, -1)
	}
	return site
}

// awayFrom returns the forgotten messages that wait for a site.
func (s *Scheduler) awayFrom(site int32) []MsgID {
	list := slices.DeleteFunc(slices.Clone(s.sites[site].away), func(id MsgID) bool { return s.window.awayAt[id] != site })
	slices.Sort(list)
	return slices.Compact(list)
}

// recall calls back one forgotten message that waits for a site; early is as in Effect.
func (s *Scheduler) recall(site int32, early bool) {
	st := &s.sites[site]
	for len(st.away) > 0 {
		id := st.away[0]
		st.away = st.away[1:]
		if s.window.awayAt[id] == site {
			s.back(id)
			s.emit(Effect{Kind: EffectRecall, ID: id, Early: early})
			break
		}
	}
	s.leftSite(site)
}

// forgetAway drops the numbers of all forgotten messages, because all deferred mail is in memory.
func (s *Scheduler) forgetAway() {
	for _, id := range slices.Sorted(maps.Keys(s.window.awayAt)) {
		s.leftSite(s.back(id))
	}
}

// recalled makes a message due that was called back, or that was in memory all along.
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
	if ev.Early {
		s.makeDueEarly(i)
		return
	}
	s.makeDue(i)
}

// Whole reports whether all deferred mail is in memory.
func (s *Scheduler) Whole() bool { return !s.forgets() }

// Due returns the number of deferred messages that wait for a place in the active queue before their
// retry time.
func (s *Scheduler) Due() int { return s.due - s.ripe }
