package sched

import (
	"slices"
	"strings"
)

// command carries out an operator's command on everything in its scope, in
// order of arrival as far as the records tell.
func (s *Scheduler) command(ev *Event) {
	if ev.Scope == ScopeMessage {
		if i := s.recs.find(ev.ID); i != 0 {
			s.commandOne(ev, i)
		}
		return
	}
	for i := int32(1); i < s.recs.used; i++ {
		rec := s.recs.at(i)
		if rec.where == whereNone || ev.Scope == ScopeQueue && rec.where.queue() != ev.Queue {
			continue
		}
		s.commandOne(ev, i)
	}
}

func (s *Scheduler) commandOne(ev *Event, i int32) {
	rec := s.recs.at(i)
	switch ev.Kind {
	case EventHold:
		s.withdraw(i, cmdHold)
	case EventRequeue:
		s.withdraw(i, cmdRequeue)
	case EventRemove:
		s.withdraw(i, cmdRemove)
	case EventCorrupt:
		s.withdraw(i, cmdCorrupt)
	case EventRelease:
		if rec.where == whereHold {
			s.stats.Hold--
			rec.where, rec.next = whereDue, s.now
			s.due.append(s.recs, i)
			s.emit(Effect{Kind: EffectRelease, ID: rec.id, Next: s.realTime(s.now)})
		} else if m := s.activeMessage(rec.id); m != nil && m.cmd == cmdHold {
			m.cmd = cmdNone
			m.deferred = true // what was withdrawn is tried again
			for _, j := range m.jobs {
				s.refill(m, j.tport)
			}
		}
	case EventExpire:
		s.expire(i, ev.Now)
	}
}

// withdraw takes a message out of circulation. What is being delivered is
// waited for.
func (s *Scheduler) withdraw(i int32, c cmdKind) {
	rec := s.recs.at(i)
	if m := s.activeMessage(rec.id); m != nil {
		if c < m.cmd {
			return // a stronger command is under way
		}
		m.cmd = c
		m.waiting(func(e *entry) {
			m.late += len(e.rcpts)
			s.endEntry(e)
		})
		s.complete(m)
		return
	}
	origin := rec.where.queue()
	switch rec.where {
	case whereIncoming:
		s.incoming.unlink(s.recs, i)
	case whereHold:
		if c == cmdHold {
			return
		}
		s.stats.Hold--
	default:
		s.leaveDeferred(i)
	}
	switch c {
	case cmdHold:
		rec.where = whereHold
		s.stats.Hold++
		s.mayLeave(rec)
		s.emit(Effect{Kind: EffectHold, ID: rec.id})
		return
	case cmdRequeue:
		s.emit(Effect{Kind: EffectRequeue, ID: rec.id, Origin: origin, Attempts: int(rec.attempts)})
	case cmdCorrupt:
		s.emit(Effect{Kind: EffectCorrupt, ID: rec.id, Attempts: int(rec.attempts)})
	case cmdRemove:
		s.emit(Effect{Kind: EffectRemove, ID: rec.id, Attempts: int(rec.attempts)})
	}
	s.recs.remove(i)
}

// expire marks a message for return at its next attempt, and with now makes
// that attempt.
func (s *Scheduler) expire(i int32, now bool) {
	rec := s.recs.at(i)
	rec.flags |= FlagExpire
	if now {
		switch rec.where {
		case whereDeferred:
			s.makeDue(i)
		case whereHold:
			s.stats.Hold--
			rec.where, rec.next = whereDue, s.now
			s.due.append(s.recs, i)
		}
	}
	rec.mark = s.clock.real(rec.next)
	s.emit(Effect{Kind: EffectExpire, ID: rec.id, Next: s.realTime(rec.next), Attempts: int(rec.attempts)})
	if m := s.activeMessage(rec.id); m != nil && now {
		s.excuseWaiting(m, excuseExpired, textExpired)
	}
}

// flush makes mail due now, and forgets what is known to be dead: everything
// for all mail and for a site's, what is on the message's way for one message.
// For a site's mail the destinations of a transport that schedules threads stay
// dead but for those that the mail goes to.
func (s *Scheduler) flush(ev *Event) {
	switch ev.Scope {
	case ScopeMessage:
		s.flushOne(ev.ID, flagFlush|flagRevive)
	case ScopeSite:
		s.reviveAll(false)
		s.flushSite(ev.Site, ev.IDs)
	case ScopeAll, ScopeQueue:
		s.reviveAll(true)
		var list []int32
		for i := len(s.retries.s) - 1; i >= 0; i-- {
			if r := s.retries.s[i].rec; !s.firmly(s.recs.at(r)) {
				list = append(list, r)
			}
		}
		for _, i := range list {
			s.recs.at(i).flags |= flagFlush
			s.makeDue(i)
		}
		for i := s.incoming.head; i != 0; i = s.recs.at(i).nxt {
			s.recs.at(i).flags |= flagFlush
		}
		for m := s.firstActive; m != nil; m = m.nxt {
			s.record(m).flags |= flagFlush // for recipients still to be read
		}
		if s.cfg.DeferredLimit > 0 && !s.window.whole {
			s.window.passing = true
			s.emit(Effect{Kind: EffectPass})
		}
	}
}

// flushOne makes one message due. It goes ahead with new mail.
func (s *Scheduler) flushOne(id MsgID, flags Flags) {
	i := s.recs.find(id)
	if i == 0 {
		return
	}
	rec := s.recs.at(i)
	switch rec.where {
	case whereIncoming, whereDue:
		rec.flags |= flags
	case whereDeferred:
		if s.firmly(rec) {
			return
		}
		s.leaveDeferred(i)
		rec.flags |= flags
		rec.where, rec.next = whereIncoming, s.now
		s.incoming.append(s.recs, i)
	}
}

// flushSite makes the mail for one site due: what was deferred for recipients
// in that domain, what waits for a destination of that name, and what the
// shell adds.
func (s *Scheduler) flushSite(name string, more []MsgID) {
	var ids []MsgID
	if f := s.flushSites[name]; f != nil {
		ids = append(ids, f.ids...)
		delete(s.flushSites, name)
	}
	for k := range s.sites {
		if s.sites[k].tport == nil || !named(s.sites[k].name, name) {
			continue
		}
		for i := s.sites[k].waiting.head; i != 0; i = s.recs.at(i).nxt {
			ids = append(ids, s.recs.at(i).id)
		}
		ids = append(ids, s.sites[k].away...)
	}
	ids = append(ids, more...)
	for _, id := range s.stillHere(ids) {
		if s.recs.find(id) == 0 {
			s.emit(Effect{Kind: EffectRecall, ID: id, Flush: true})
		}
		s.flushOne(id, flagFlush|flagRevive)
	}
}

// named says whether a destination's name is that of a site: with one recipient
// to a delivery, destinations are named user@nexthop.
func named(queue, site string) bool {
	return queue == site || len(queue) > len(site) && strings.HasSuffix(queue, site) && queue[len(queue)-len(site)-1] == '@'
}

// reviveAll forgets every dead transport and destination in core; unless threads is
// set, not the destinations that are threads: those are woken one by one.
func (s *Scheduler) reviveAll(threads bool) {
	for _, t := range s.transports {
		s.transportAlive(t)
		if t.cfg.Mode == Thread && !threads {
			continue
		}
		for q := t.firstQueue; q != nil; {
			next := q.nxt
			if q.state == DestDead {
				s.stopTimer(&q.timer)
				s.makeReady(q)
				s.updateQueue(q)
				s.releaseQueue(q)
			}
			q = next
		}
	}
}

// reconfigure brings what exists in line with a new configuration.
func (s *Scheduler) reconfigure(cfg *Config) {
	old := s.cfg
	s.cfg = *cfg
	s.cfg.DeferTransports = slices.Clone(cfg.DeferTransports)
	s.cfg.DeferredLimit = old.DeferredLimit
	s.sane(&s.cfg)
	s.rng.state ^= cfg.Seed ^ old.Seed
	for _, t := range s.transports {
		c := s.transportConfig(t.name)
		t.rcptUnused += c.RecipientLimit - t.cfg.RecipientLimit
		s.changeMode(t, c)
		for q := t.firstQueue; q != nil; q = q.nxt {
			q.limit = t.windowLimit()
			if q.state == DestReady && q.limit > 0 {
				q.window = min(q.window, q.limit)
			}
			s.updateQueue(q)
		}
	}
}

// changeMode takes every queue out of the indexes of the old mode and puts it
// into those of the new one.
func (s *Scheduler) changeMode(t *transport, c TransportConfig) {
	for q := t.firstQueue; q != nil; q = q.nxt {
		if q.avail {
			state := q.state
			q.state = DestSuspended // not available, for a moment
			s.updateQueue(q)
			q.state = state
		}
	}
	for j := t.first; j != nil; j = j.nxt {
		s.leaveCandidates(j)
	}
	t.cfg = c
	for c.Mode == Thread && c.ProcessLimit > 0 && t.idleCount > 0 && t.busy+t.idleCount > c.ProcessLimit {
		s.dismiss(t.idleFirst)
	}
	for q := t.firstQueue; q != nil; q = q.nxt {
		var list []*peer
		q.peers.each(func(p *peer) { list = append(list, p) })
		for _, p := range list {
			q.peers.remove(p)
		}
		for _, p := range list {
			q.peers.push(s.peerKey(p), p)
		}
		s.updateQueue(q)
	}
	for j := t.first; j != nil; j = j.nxt {
		if j.waiting > 0 {
			s.enterCandidates(j)
		}
	}
}
