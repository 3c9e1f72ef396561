// What operators ask for (postsuper, postqueue -f and -i, a flush of one site), and
// changes of the configuration. A command takes effect at once on mail that waits; mail
// that is being delivered finishes first, since nobody can call a delivery back.

package sched

import (
	"slices"
	"strings"
)

// command carries out an operator's command on everything in its scope, in the order of
// the records. That is roughly the order of arrival; no command depends on it.
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

// commandOne carries out a command on one message.
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
			rec.next = s.now
			s.queueDue(i)
			s.emit(Effect{Kind: EffectRelease, ID: rec.id, Next: s.realTime(s.now)})
			// The hold had not taken effect yet: it is called off.
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

// withdraw takes a message out of circulation. Entries that wait end at once; what is
// being delivered is waited for, and complete then carries out the command for what is
// left. The kinds are in the order of their strength: a removal is not undone by a hold
// that comes after it.
func (s *Scheduler) withdraw(i int32, c cmdKind) {
	rec := s.recs.at(i)
	if m := s.activeMessage(rec.id); m != nil {
		if c < m.cmd {
			return // a stronger command is under way
		}
		m.cmd = c
		m.waiting(func(e *entry) {
			// They are still undelivered, and must stay in the sum.
			m.late += len(e.rcpts)
			s.endEntry(e)
		})
		s.complete(m)
		return
	}
	origin := rec.where.queue()
	switch rec.where {
	case whereIncoming:
		s.leaveNew(i)
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
	s.forgetRecord(i)
}

// expire marks a message for return to its sender at its next attempt; with now it makes
// that attempt. The mark is recorded (EffectExpire), so that it outlives a restart.
func (s *Scheduler) expire(i int32, now bool) {
	rec := s.recs.at(i)
	rec.flags |= FlagExpire
	if now {
		switch rec.where {
		case whereDeferred:
			s.makeDue(i)
		case whereHold:
			s.stats.Hold--
			rec.next = s.now
			s.queueDue(i)
		}
	}
	rec.mark = s.clock.real(rec.next)
	s.emit(Effect{Kind: EffectExpire, ID: rec.id, Next: s.realTime(rec.next), Attempts: int(rec.attempts)})
	if m := s.activeMessage(rec.id); m != nil && now {
		s.excuseWaiting(m, excuseExpired, textExpired)
	}
}

// flush makes mail due now and forgets what is known to be dead: for all mail and for a
// site every dead transport and destination, for one message those on its way. The
// exception: the flush of a site leaves the threads of a thread-mode transport dead,
// except those that the mail goes to. Reviving them all would send agents to hosts that
// nobody asked about.
func (s *Scheduler) flush(ev *Event) {
	switch ev.Scope {
	case ScopeMessage:
		if ev.Now {
			s.flushOne(ev.ID, flagNow)
		}
		s.flushOne(ev.ID, flagFlush|flagRevive)
	case ScopeSite:
		s.reviveAll(false)
		s.flushSite(ev.Site, ev.IDs)
	case ScopeAll, ScopeQueue:
		s.reviveAll(true)
		var list []int32
		// makeDue changes the heap; so the messages are listed before.
		for i := len(s.retries.s) - 1; i >= 0; i-- {
			if r := s.retries.s[i].rec; !s.firmly(s.recs.at(r)) {
				list = append(list, r)
			}
		}
		for _, i := range list {
			s.recs.at(i).flags |= flagFlush
			s.makeDue(i)
		}
		for _, t := range s.tenants {
			if t == nil {
				continue
			}
			for _, head := range [...]int32{t.incoming.head, t.ripe.head} {
				for i := head; i != 0; i = s.recs.at(i).nxt {
					s.recs.at(i).flags |= flagFlush
				}
			}
		}
		for m := s.firstActive; m != nil; m = m.nxt {
			s.record(m).flags |= flagFlush // for recipients still to be read
		}
		// The rest of the deferred queue is known to the shell only. It comes in as there
		// is room.
		if s.cfg.DeferredLimit > 0 && !s.window.whole {
			s.window.passing = true
			s.emit(Effect{Kind: EffectPass})
		}
	}
}

// flushOne makes one message due. It goes to the incoming queue rather than to the due
// list: somebody is looking at this message, and new mail is taken up first when the
// queue was full.
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
		rec.next = s.now
		s.queueNew(i)
	}
}

// flushSite makes the mail for one site due: what was deferred for recipients in that
// domain, what waits for a destination of that name, and what the shell adds. A hint that
// is out of date costs one attempt too many.
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

// named says whether a destination's name is that of a site. With one recipient to a
// delivery, destinations are named user@nexthop.
func named(queue, site string) bool {
	return queue == site || len(queue) > len(site) && strings.HasSuffix(queue, site) && queue[len(queue)-len(site)-1] == '@'
}

// reviveAll forgets that transports and destinations are dead. Without threads,
// destinations of thread-mode transports are left out: flushSite revives those that
// matter.
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

// reconfigure brings what exists in line with a new configuration. DeferredLimit stays:
// the window is built on it. Nothing that is under way is interrupted; a smaller limit
// takes effect as deliveries end.
func (s *Scheduler) reconfigure(cfg *Config) {
	old := s.cfg
	s.cfg = *cfg
	s.cfg.DeferTransports = slices.Clone(cfg.DeferTransports)
	s.cfg.DeferredLimit = old.DeferredLimit
	s.sane(&s.cfg)
	// A new seed is worked in, so that runs with different seeds stay different.
	s.rng.state ^= cfg.Seed ^ old.Seed
	s.reweigh()
	for _, t := range s.transports {
		c := s.transportConfig(t.name)
		// The pool may go below zero for a while; jobs pay back as their recipients are
		// delivered.
		t.rcptUnused += c.RecipientLimit - t.cfg.RecipientLimit
		s.changeMode(t, c)
		for q := t.firstQueue; q != nil; q = q.nxt {
			s.limitWindow(q)
			s.followOrNot(q)
		}
	}
}

// changeMode takes every queue out of the indexes of the old mode and puts it
// into those of the new one.
func (s *Scheduler) changeMode(t *transport, c TransportConfig) {
	for q := t.firstQueue; q != nil; q = q.nxt {
		if q.avail {
			// updateQueue takes it out of the old mode's indexes; availability is decided
			// anew below, when the configuration is the new one.
			state := q.state
			q.state = DestSuspended // not available, for a moment
			s.updateQueue(q)
			q.state = state
		}
	}
	for l := range t.lanes {
		for j := l.first; j != nil; j = j.nxt {
			s.leaveCandidates(j)
		}
	}
	t.cfg = c
	s.recountSlow(t)
	for c.Mode == Thread && c.ProcessLimit > 0 && t.idleCount > 0 && t.places()+t.idleCount > c.ProcessLimit {
		s.dismiss(t.idleFirst)
	}
	for q := t.firstQueue; q != nil; q = q.nxt {
		// The keys by which peers are ordered depend on the mode.
		var list []*peer
		q.each(func(p *peer) { list = append(list, p) })
		for _, p := range list {
			p.claim.peers.remove(p)
		}
		for _, p := range list {
			p.claim.peers.push(s.peerKey(p), p)
		}
		s.updateQueue(q)
	}
	for l := range t.lanes {
		for j := l.first; j != nil; j = j.nxt {
			if j.waiting > 0 {
				s.enterCandidates(j)
			}
		}
	}
}
