package sched

import (
	"slices"
	"sort"
)

// A site is the memory of a destination that failed while mail was waiting
// for it. It outlives the destination's queue, and exists as long as deferred
// mail waits on its account. When the destination answers again, that mail is
// released by slow start: as many messages as the initial concurrency with
// the first answer, two more with each further one, so that the flow doubles
// with each round trip, until nothing waits or the destination fails again. It is not kept over a
// restart: the package comment says why that does no harm.
type site struct {
	tport *transport
	name  string
	// Those in memory, in the order in which they were deferred, which is that of their
	// release.
	waiting recList
	away    []MsgID // those that are not in memory, see window; some may have come back since
	awayN   int     // how many have not
	alive   bool    // it answered since it last failed
	pause   PauseID // the mail waits on account of this, not of a failure; 0: of a failure
	tenant  string  // whose limit at a place it waits for
	// The shared limit for which the mail waits, and the place in its ring; nil: none.
	gate             *shared
	gatePrv, gateNxt int32
	// The next unused site, while this one is.
	nxt int32
}

// siteKey names what a message waits for. pause is 0 for a failed destination, laterID
// for one that answered, else a pause.
type siteKey struct {
	tport *transport
	name  string
	pause PauseID
	// Of beyondID, where the mail waits for the limit of a tenant at a place: the tenant.
	tenant string
}

// siteOf finds or makes a site.
func (s *Scheduler) siteOf(k siteKey) int32 {
	if i := s.siteIndex[k]; i != 0 {
		return i
	}
	i := s.siteFree
	if i != 0 {
		s.siteFree = s.sites[i].nxt
	} else {
		i = int32(len(s.sites))
		s.sites = append(s.sites, site{})
	}
	s.sites[i] = site{tport: k.tport, name: k.name, pause: k.pause, tenant: k.tenant}
	s.siteIndex[k] = i
	if q := k.tport.queues[k.name]; q != nil && k.pause == 0 {
		q.site = i
	}
	return i
}

// n is how many messages wait for the site.
func (st *site) n() int { return int(st.waiting.n) + st.awayN }

// leftSite: one message less waits for a site, which goes with the last.
func (s *Scheduler) leftSite(i int32) {
	if s.sites[i].n() == 0 {
		s.dropSite(i)
	}
}

// dropSite forgets a site that nothing waits for.
func (s *Scheduler) dropSite(i int32) {
	st := &s.sites[i]
	if q := st.tport.queues[st.name]; q != nil && st.pause == 0 {
		q.site = 0
	}
	delete(s.siteIndex, siteKey{st.tport, st.name, st.pause, st.tenant})
	if n := st.gate; n != nil {
		s.leaveGate(i)
		s.settleShared(n)
	}
	*st = site{nxt: s.siteFree}
	s.siteFree = i
}

// siteAnswered releases some of the mail that waits for q.
func (s *Scheduler) siteAnswered(q *queue) {
	st := &s.sites[q.site]
	n := q.takeUp()
	// The first answer after a failure: slow start begins.
	if !st.alive {
		st.alive = true
		n = q.initial()
		s.note(Note{Kind: NoteAlive, Transport: q.tport.name, Queue: q.name, Count: st.n()})
	}
	for ; n > 0 && q.site != 0; n-- { // the site is gone with the last one
		if st := &s.sites[q.site]; st.waiting.n > 0 {
			s.makeDue(st.waiting.head)
		} else {
			s.recall(q.site, false)
		}
	}
}

// makeDue moves a deferred message to the due list.
func (s *Scheduler) makeDue(i int32) {
	s.leaveDeferred(i)
	rec := s.recs.at(i)
	rec.next = s.now
	s.queueDue(i)
}

// makeDueEarly is makeDue for what has waited for room or for the end of a pause: recipients that have been tried go on
// waiting for their own time.
func (s *Scheduler) makeDueEarly(i int32) {
	s.makeDue(i)
	s.recs.at(i).flags |= flagEarly
}

// enterDeferred puts a message that is nowhere into the deferred queue.
func (s *Scheduler) enterDeferred(i int32, site int32) {
	rec := s.recs.at(i)
	rec.where = whereDeferred
	rec.site = site
	s.retries.push(s.recs, i)
	if site != 0 {
		s.sites[site].waiting.append(s.recs, i)
		s.stats.Sited++
		s.countParked(site, 1)
	}
	s.mayLeave(rec)
}

// leaveDeferred takes a message out of the deferred queue and the due list,
// so that it is nowhere.
func (s *Scheduler) leaveDeferred(i int32) {
	rec := s.recs.at(i)
	switch rec.where {
	case whereDue:
		s.leaveDue(i)
	case whereDeferred:
		s.retries.remove(s.recs, i)
		s.setFar(rec, false)
		if st := rec.site; st != 0 {
			rec.site = 0
			s.stats.Sited--
			s.countParked(st, -1)
			s.sites[st].waiting.unlink(s.recs, i)
			s.leftSite(st)
		}
	}
	rec.where = whereNone
}

// A flushSite is a domain of fast_flush_domains with the messages that were
// deferred for it. Like a line of Postfix's flush log, an ID is only a hint:
// the message may be gone or deferred for another reason by now.
type flushSite struct {
	ids   []MsgID
	limit int // length at which the list is cleaned up
}

// rememberSite notes that message id waits for a recipient in domain.
func (s *Scheduler) rememberSite(domain string, id MsgID) {
	f := s.flushSites[domain]
	if f == nil {
		f = &flushSite{limit: 64}
		s.flushSites[domain] = f
	}
	if n := len(f.ids); n > 0 && f.ids[n-1] == id {
		return
	}
	f.ids = append(f.ids, id)
	if len(f.ids) >= f.limit {
		f.ids = s.stillHere(f.ids)
		if more := len(f.ids) - maxAwayFlush; more > 0 && s.forgets() {
			f.ids = slices.Delete(f.ids, 0, more)
		}
		// Cleaning up when the list has doubled costs a constant for each entry.
		f.limit = 2*len(f.ids) + 64
	}
}

// forgets says whether there may be mail that is not in memory.
func (s *Scheduler) forgets() bool { return s.cfg.DeferredLimit > 0 && !s.window.whole }

// stillHere returns ids without repetition and without what has left, as far as
// that is known, oldest first.
func (s *Scheduler) stillHere(ids []MsgID) []MsgID {
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	kept := ids[:0]
	for _, id := range ids {
		if (len(kept) == 0 || kept[len(kept)-1] != id) && (s.forgets() || s.recs.find(id) != 0) {
			kept = append(kept, id)
		}
	}
	return kept
}
