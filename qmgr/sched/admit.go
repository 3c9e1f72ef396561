// Which message enters the active queue next. Where there are tenants, they take turns
// (seats.go), one message for each of their weight; and none may have more than so many
// times what is free, so that there are places for those who have few. That is the rule by
// which switches share their memory among ports (Choudhury and Hahne, dynamic thresholds): a
// tenant that is alone leaves a ninth of the queue free, two leave a seventeenth, and so on.
// As long as all mail is that of tenants, and these are fewer than an eighth of the
// places, one without mail in the active queue finds a place at once.
//
// Mail of nobody is that of a tenant, too, but alone it may take all.

package sched

// freeShare is how many times what is free a tenant may have in the active queue.
const freeShare = 8

// ripenBudget bounds how many messages one Step moves to their tenants' lists.
const ripenBudget = 1000

// place is for s.crowding.
func (t *tenant) place(_ int, at int32) { t.overAt = at }

// waits says whether t has mail that waits for a place.
func (t *tenant) waits() bool { return t.incoming.n+t.due.n+t.ripe.n > 0 }

// tenantOf is whose message a record is.
func (s *Scheduler) tenantOf(rec *record) *tenant { return s.tenants[rec.tenant] }

// queueNew has a message wait as new.
func (s *Scheduler) queueNew(i int32) {
	rec := s.recs.at(i)
	t := s.tenantOf(rec)
	rec.where = whereIncoming
	t.incoming.append(s.recs, i)
	s.incoming++
	s.seatTenant(t)
}

func (s *Scheduler) leaveNew(i int32) {
	s.tenantOf(s.recs.at(i)).incoming.unlink(s.recs, i)
	s.incoming--
}

// queueDue has a deferred message wait that something has made due.
func (s *Scheduler) queueDue(i int32) {
	rec := s.recs.at(i)
	t := s.tenantOf(rec)
	rec.where = whereDue
	t.due.append(s.recs, i)
	s.due++
	s.seatTenant(t)
}

func (s *Scheduler) leaveDue(i int32) {
	rec := s.recs.at(i)
	t := s.tenantOf(rec)
	s.due--
	if rec.flags&flagRipe == 0 {
		t.due.unlink(s.recs, i)
		return
	}
	rec.flags &^= flagRipe
	t.ripe.unlink(s.recs, i)
	s.ripe--
}

// ripen has deferred messages whose time has come wait with their tenants.
func (s *Scheduler) ripen() {
	for n := 0; n < ripenBudget && len(s.retries.s) > 0 && s.retries.s[0].at <= s.now; n++ {
		i := s.retries.s[0].rec
		s.leaveDeferred(i)
		rec := s.recs.at(i)
		t := s.tenantOf(rec)
		rec.where = whereDue
		rec.flags |= flagRipe
		t.ripe.append(s.recs, i)
		s.due++
		s.ripe++
		s.seatTenant(t)
	}
}

// seatTenant has a tenant take its turns, unless it is to wait until others have left.
func (s *Scheduler) seatTenant(t *tenant) {
	if t.overAt == 0 && !t.sated {
		s.entry.sit(&t.seat)
	}
}

// crowds says whether t has its part of the active queue.
func (s *Scheduler) crowds(t *tenant) bool {
	return t.active >= freeShare*(s.cfg.ActiveLimit-s.stats.Active)
}

// countActive counts a message of t into the active queue, or out of it.
func (s *Scheduler) countActive(t *tenant, n int) {
	t.active += n
	s.stats.Active += n
	if t.overAt != 0 {
		s.crowding.fix(t.overAt, key{uint64(t.active), uint64(t.number)})
	}
	if n < 0 {
		s.seatAgain(t)
	}
}

// admitTenants fills the active queue where there are tenants.
func (s *Scheduler) admitTenants() {
	s.ripen()
	for s.stats.Active < s.cfg.ActiveLimit && s.loading < maxLoading {
		for s.crowding.len() > 0 && !s.crowds(s.crowding.s[0].v) {
			t := s.crowding.s[0].v
			s.crowding.remove(t.overAt)
			s.seatTenant(t)
		}
		x, lost := s.entry.next()
		switch {
		case lost != nil:
			// It had nothing to say when its turn came, or must wait now.
		case x == nil:
			return
		case s.sated(x.tenant):
			x.rise()
			x.tenant.sated = true
		case s.crowds(x.tenant):
			x.rise()
			s.crowding.push(key{uint64(x.tenant.active), uint64(x.tenant.number)}, x.tenant)
		default:
			x.left--
			s.admitOne(x.tenant)
		}
	}
}

// admitOne takes up the next message of a tenant: new and deferred mail take turns.
func (s *Scheduler) admitOne(t *tenant) {
	deferred := t.turnDeferred && t.due.n+t.ripe.n > 0 || t.incoming.n == 0
	t.turnDeferred = !deferred
	switch {
	case !deferred:
		i := t.incoming.head
		s.leaveNew(i)
		s.activate(i, QueueIncoming)
		return
	case t.due.n > 0:
		i := t.due.head
		s.leaveDeferred(i)
		s.activate(i, QueueDeferred)
	default:
		i := t.ripe.head
		s.leaveDeferred(i)
		s.activate(i, QueueDeferred)
	}
}
