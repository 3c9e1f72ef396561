package sched

import (
	"slices"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// A wait that somebody chose is no attempt: mail for a destination that is
// queue-only or suspended costs no agent and no retry, and its back-off does not
// grow. Its age counts: it is warned of, and returned, when it is time.
//
// Which recipients a pause is for is the shell's to say, with Rcpt.Pause and
// EventPause: it knows senders, and recipients' domains. The scheduler keeps what waits on
// account of a pause as it keeps what waits for a dead destination, in a list by
// destination, and makes it due when the pause is over, in the order of its arrival. From then on it is mail
// like any other: it enters the active queue in turns with new mail, and destinations' windows bound what is delivered at once.

// PauseID names a pause; 0 is none. It is never given twice in a Scheduler's life.
type PauseID uint32

// laterID marks what waits for its own next attempt, after a destination that
// answers has deferred it. It is kept by destination only to be counted.
const laterID PauseID = 1<<32 - 1

// A Pause is somebody's decision that some mail is not to be tried.
type Pause struct {
	ID     PauseID
	Until  time.Time  // it ends then; zero: when EventPauses no longer has it
	Flush  bool       // a flush overrides it (queue_only_destinations)
	Status dsn.Status // what is recorded and logged of the recipients that wait
	Reason string
	// It is for what goes from this source, wherever to, and no recipient has it as Rcpt.Pause:
	// the mail goes from other sources of its pool, and waits when there are none. Empty: it
	// is for those that have it.
	Source string
	// It is for what goes from Source to destinations with this Terms.Place; empty: to all.
	Place string
}

// pause is a Pause that is in force.
type pause struct {
	Pause
	until int64 // never: no end is known
}

// releaseBudget bounds how many messages one Step makes due at the end of a pause.
const releaseBudget = 10000

// setPauses replaces the pauses. What waits on account of those that are gone
// is made due.
func (s *Scheduler) setPauses(list []Pause) {
	old := s.pauses
	s.pausedAfter = s.entrySeq
	s.pauses = make(map[PauseID]*pause, len(list))
	for _, p := range list {
		s.pauses[p.ID] = &pause{Pause: p, until: toMicros(p.Until)}
	}
	for id, p := range old {
		s.sourceBack = s.sourceBack || p.Source != "" && s.pauses[id] == nil
	}
	s.endPauses()
	s.stopSources()
}

// endPauses forgets the pauses whose time is over, and finds what waits for
// those that there are no longer. Oldest mail is made due first: numbers are in the order of arrival.
func (s *Scheduler) endPauses() {
	s.pauseEnd = never
	for id, p := range s.pauses {
		switch {
		case p.until == never:
		case p.until <= s.clock.wall:
			delete(s.pauses, id)
			s.sourceBack = s.sourceBack || p.Source != ""
		case s.pauseEnd == never || p.until < s.pauseEnd:
			s.pauseEnd = p.until
		}
	}
	s.ended = nil
	for _, i := range s.siteIndex {
		if !s.over(i) {
			continue
		}
		for r := s.sites[i].waiting.head; r != 0; r = s.recs.at(r).nxt {
			s.ended = append(s.ended, s.recs.at(r).id)
		}
		s.ended = append(s.ended, s.awayFrom(i)...)
	}
	slices.Sort(s.ended)
	// Mail that is not in memory may be on record as due at the end of this pause, however
	// far ahead. From now on it counts as due within the longest back-off.
	if len(s.ended) > 0 {
		s.window.amnesty = s.clock.wall + s.longest()
	}
}

// over says whether what waits for a site waits for a pause that there is no longer. What waits
// because all sources of its pool are suspended waits for one of them, and may go from any: when
// one comes back, all of it is looked at.
func (s *Scheduler) over(site int32) bool {
	id := s.sites[site].pause // 0 of site 0, which is none
	if id == 0 || id >= beyondID {
		return false
	}
	p := s.pauses[id]
	return p == nil || s.sourceBack && p.Source != ""
}

// releaseEnded makes mail due whose pause has ended, a part of it in each Step.
func (s *Scheduler) releaseEnded() {
	n := 0
	for ; n < releaseBudget && len(s.ended) > 0; n++ {
		// It may have left the queue, or wait for something else, since it was listed.
		id := s.ended[0]
		s.ended = s.ended[1:]
		if i := s.recs.find(id); i != 0 {
			if rec := s.recs.at(i); rec.where == whereDeferred && s.over(rec.site) {
				s.makeDueEarly(i)
			}
		} else if site := s.window.awayAt[id]; s.over(site) {
			// A recall costs the shell a read, so it counts as much as ten messages in
			// memory.
			n += releaseBudget/recallBudget - 1
			s.back(id)
			s.emit(Effect{Kind: EffectRecall, ID: id, Early: true})
			s.leftSite(site)
		}
	}
	// What waits for a source from now on has been looked at.
	if len(s.ended) == 0 {
		s.ended, s.sourceBack = nil, false
	}
}

// paused is the pause that keeps a recipient of a message with these flags
// waiting now; nil when there is none.
func (s *Scheduler) paused(id PauseID, flags Flags) *pause {
	p := s.pauses[id]
	if p == nil || p.until != never && p.until <= s.clock.wall || p.Flush && flags&flagFlush != 0 {
		return nil
	}
	return p
}

// firmly says whether a deferred message waits for a pause that no flush overrides.
func (s *Scheduler) firmly(rec *record) bool {
	if rec.where != whereDeferred || rec.site == 0 {
		return false
	}
	p := s.paused(s.sites[rec.site].pause, 0)
	return p != nil && !p.Flush
}

// park has recipients wait for the end of a pause. They have nothing to do with
// any destination from then on, and are looked at again when the message is.
func (s *Scheduler) park(m *message, p *pause, t *transport, queue string, rcpts []int, sites []string) {
	m.late += len(rcpts)
	m.parked = siteKey{tport: t, name: queue, pause: p.ID}
	s.rememberSites(m, sites)
	from := len(s.scratch)
	s.scratch = append(s.scratch, rcpts...)
	s.emit(Effect{Kind: EffectDeferRcpts, ID: m.id, Rcpts: s.scratch[from:len(s.scratch):len(s.scratch)], Status: p.Status, Reason: p.Reason})
}

// routePaused is route for a recipient that a pause is for: it says whether the
// recipient waits.
func (s *Scheduler) routePaused(m *message, r *Rcpt) bool {
	if r.Pause == 0 {
		return false
	}
	p := s.paused(r.Pause, s.record(m).flags)
	if p == nil {
		return false
	}
	var sites []string
	if r.Site != "" {
		sites = []string{r.Site}
	}
	s.park(m, p, s.transportFor(r.Transport), r.Queue, []int{r.Index}, sites)
	return true
}

// pauseActive takes recipients that wait for their delivery out of the active
// queue. What is being delivered is let be.
func (s *Scheduler) pauseActive(id MsgID, list []Rcpt) {
	m := s.activeMessage(id)
	if m == nil || m.cmd != cmdNone {
		return
	}
	pauses := make(map[int]PauseID, len(list))
	for i := range list {
		pauses[list[i].Index] = list[i].Pause
	}
	m.waiting(func(e *entry) { s.pauseEntry(e, pauses) })
	s.complete(m)
}

// pauseEntry parks those recipients of a waiting entry that a pause is for.
func (s *Scheduler) pauseEntry(e *entry, pauses map[int]PauseID) {
	m, q := e.msg, e.peer.queue
	kept, keptSites := 0, 0
	var gone []int
	for i, r := range e.rcpts {
		p := s.paused(pauses[r], s.record(m).flags)
		if p == nil {
			// In place: nobody else has the recipients of an entry that waits.
			e.rcpts[kept] = r
			kept++
			if i < len(e.sites) {
				e.sites[keptSites] = e.sites[i]
				keptSites++
			}
			continue
		}
		var sites []string
		if i < len(e.sites) {
			sites = e.sites[i : i+1]
		}
		s.park(m, p, q.tport, q.name, []int{r}, sites)
		gone = append(gone, r)
	}
	if len(gone) == 0 {
		return
	}
	if kept == 0 {
		s.endEntry(e) // it counts the recipients that are still in it
		return
	}
	e.rcpts, e.sites = e.rcpts[:kept], e.sites[:keptSites]
	j := e.peer.job
	s.count(j, -len(gone))
	if m.unread == 0 {
		s.moveLimits(j)
	}
	s.refill(m, j.tport)
}

// parkTime is when a message that waits by somebody's choice is looked at
// again: at the end of the pause, when its sender is to be warned, and when its
// time is over, whatever comes first.
func (s *Scheduler) parkTime(m *message) int64 {
	rec, p := s.record(m), s.pauses[m.parked.pause]
	if m.parked.pause == beyondID && s.atGate(m) {
		return s.retryTime(rec) // at the latest: it is taken back when there is room
	}
	if p == nil { // it has ended while other recipients were delivered to
		return s.now
	}
	at := s.expiry(rec)
	if at <= s.clock.wall { // its return could not be told
		return s.retryTime(rec)
	}
	if p.until != never {
		at = min(at, p.until)
	}
	if warnAt := rec.created + micros(s.cfg.DelayWarning); s.cfg.DelayWarning > 0 && rec.flags&(FlagWarned|FlagNoDelayNotice) == 0 && warnAt > s.clock.wall {
		at = min(at, warnAt)
	}
	return s.now + max(at-s.clock.wall, second)
}

// Waiting calls f for every recipient of an active message that waits for its
// delivery, with where it goes and the terms of that: pauses may be for a Terms.Place.
func (s *Scheduler) Waiting(id MsgID, f func(Rcpt)) {
	m := s.activeMessage(id)
	if m == nil {
		return
	}
	m.waiting(func(e *entry) {
		q := e.peer.queue
		for _, r := range e.rcpts {
			f(Rcpt{Index: r, Transport: q.tport.name, Nexthop: e.nexthop(), Queue: q.name, Terms: q.terms})
		}
	})
}

// A SiteInfo is deferred mail that waits on account of one destination: since
// that failed, for a pause, or for its own time after that has deferred it.
type SiteInfo struct {
	Transport mail.Transport
	Queue     string
	Waiting   int
	Pause     PauseID // 0: none
	Failed    bool    // its next answer releases what waits
}

// Sites visits all that deferred mail waits for, in no particular order.
func (s *Scheduler) Sites(yield func(SiteInfo) bool) {
	for i := 1; i < len(s.sites); i++ {
		st := &s.sites[i]
		if st.tport == nil {
			continue
		}
		info := SiteInfo{Transport: st.tport.name, Queue: st.name, Waiting: st.n(), Failed: st.pause == 0}
		if st.pause < beyondID {
			info.Pause = st.pause
		}
		if !yield(info) {
			return
		}
	}
}

// deferredFor is how many deferred messages wait on account of a destination, whatever for.
func (s *Scheduler) deferredFor(t *transport, name string) int {
	if len(s.siteIndex) == 0 {
		return 0
	}
	k := siteKey{tport: t, name: name}
	n := s.parkedAt[k]
	for _, k.pause = range [...]PauseID{0, laterID} {
		if i := s.siteIndex[k]; i != 0 {
			n += s.sites[i].n()
		}
	}
	return n
}

// Parked is how many deferred messages wait for a pause, as far as they have been looked at since it began.
func (s *Scheduler) Parked(id PauseID) int { return s.parkedFor[id] }

// countParked keeps count of what waits for pauses, by destination and by pause.
func (s *Scheduler) countParked(site int32, n int) {
	st := &s.sites[site]
	if st.pause == 0 || st.pause == laterID {
		return
	}
	if st.gate != nil {
		st.gate.parked += n
	}
	k := siteKey{tport: st.tport, name: st.name}
	if s.parkedAt[k] += n; s.parkedAt[k] == 0 {
		delete(s.parkedAt, k)
	}
	if s.parkedFor[st.pause] += n; s.parkedFor[st.pause] == 0 {
		delete(s.parkedFor, st.pause)
	}
}

// Backlogs visits the destinations that deferred mail waits for and that are not in core
// (Dests has those), about n of them, starting with cursor 0; it returns
// the cursor to go on with, 0 at the end. Of each only Transport, Queue and
// Deferred are set. One that mail waits for on account of several pauses is visited
// for each, with its part.
func (s *Scheduler) Backlogs(cursor, n int, yield func(Dest)) int {
	i := max(cursor, 1)
	for ; i < len(s.sites) && n > 0; i, n = i+1, n-1 {
		st := &s.sites[i]
		if st.tport == nil || st.tport.queues[st.name] != nil {
			continue
		}
		d := Dest{Transport: st.tport.name, Queue: st.name, Deferred: st.n()}
		failed := s.siteIndex[siteKey{tport: st.tport, name: st.name}]
		later := s.siteIndex[siteKey{tport: st.tport, name: st.name, pause: laterID}]
		switch first := max(failed, later); {
		case first == 0: // only pauses
		case first == int32(i):
			d.Deferred = s.deferredFor(st.tport, st.name)
		default:
			continue // it is counted there
		}
		yield(d)
	}
	if i >= len(s.sites) {
		return 0
	}
	return i
}
