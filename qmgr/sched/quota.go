// Limits of a tenant at one place: at a domain, at a site, at a provider. They are between a
// claim, which is the tenant's mail for one destination, and the limit of the tenant
// (allowance.go):
//
//	tenant news                          ◄─ line of places and claims
//	  └ provider bigmail of tenant news  ◄─ line of places and claims
//	      └ site x of tenant news        ◄─ line of claims
//	          └ claim ── one place at a time, for one delivery
//
// So a tenant has a tree of its own beside those of destinations, and all that a delivery needs
// is the way up from its claim: three steps more at most. A claim stands in the line of the
// innermost limit that is above it, and is called when all limits on its way have room. What a
// tenant may not send to one place keeps neither its mail for others nor anybody else's: nobody
// looks at a claim that cannot go.
//
// Of what waits for such a limit only a part is in the active queue, as with the limits that
// destinations share (beyond.go): it would take the places of the tenant's other mail.

package sched

import "posthaste/internal/mail"

// A Quota is what holds for the mail of one tenant at one destination, besides what holds for the
// tenant and for the destination. It is not changed once it has been passed to the scheduler,
// which compares it by its address, as it does Terms. Connections and Warmup do not count.
type Quota struct {
	Shares [levels]Share // by Level
}

// quotaKey names a limit of a tenant at a place.
func quotaKey(l Level, place, tenant string) sharedKey {
	return sharedKey{level: l, name: place, tenant: tenant}
}

// setQuota brings a claim under the limits of a quota. The latest quota is right about a limit
// that several claims have.
func (s *Scheduler) setQuota(c *claim, quota *Quota) {
	c.quota = quota
	if quota == nil {
		quota = &Quota{}
	}
	t := s.tenants[c.tenant]
	var chain [levels]*shared
	leaf := t.limit
	var pair *shared
	for l := levels; l > 0; l-- {
		sh := &quota.Shares[l-1]
		k := quotaKey(l-1, sh.Name, t.name)
		n := s.shares[k]
		if sh.Name == "" || n == nil && sh.Limits == (Limits{}) {
			continue
		}
		if n == nil {
			n = s.newShared(k)
		}
		n.members++ // until c is below it, it must not be forgotten
		s.changeLimits(n, sh.Limits)
		s.reparent(n, leaf)
		chain[l-1], leaf, pair = n, n, n
	}
	if pair != c.pair {
		s.moveClaim(c, pair)
	}
	for _, n := range chain {
		if n != nil {
			n.members--
			s.settleShared(n)
		}
	}
	s.updateQueue(c.queue)
}

// moveClaim puts a claim below a limit of its tenant at a place; nil: there is none. Deliveries
// under way are counted where they began.
func (s *Scheduler) moveClaim(c *claim, pair *shared) {
	if c.inLine() {
		s.quitLine(c)
	}
	if c.open {
		s.offer(c, false)
	}
	s.giveBackPlace(c) // it may wait with one
	old := c.pair
	old.addBacklog(-c.peers.n)
	c.pair = pair
	pair.addBacklog(c.peers.n)
	if pair != nil {
		pair.members++
	}
	if old != nil {
		old.members--
		s.settleShared(old)
	}
}

// addBacklog counts jobs with mail that waits below n, which may be nil.
func (n *shared) addBacklog(jobs int) {
	for a := n; a != nil; a = a.parent {
		a.backlog += jobs
	}
}

// leaveQuota parts a claim that has no mail any more from its limits at places, which are remembered while
// what was counted is of use.
func (s *Scheduler) leaveQuota(c *claim) {
	c.quota, c.missed = nil, 0
	if c.pair != nil {
		s.moveClaim(c, nil)
	}
}

// adoptPlaces puts the limits of a tenant at places below that of the tenant, which is new.
func (s *Scheduler) adoptPlaces(t *tenant) {
	for c := range s.claimsOf(t) {
		n := c.pair
		for ; n != nil && n.parent != nil && n.parent != t.limit; n = n.parent {
		}
		if n != nil {
			s.reparent(n, t.limit)
		}
	}
}

// claimsOf visits the claims of a tenant whose deliveries reach somebody.
func (s *Scheduler) claimsOf(t *tenant) func(yield func(*claim) bool) {
	return func(yield func(*claim) bool) {
		for _, tp := range s.transports {
			if tp.settles() {
				continue
			}
			for q := tp.firstQueue; q != nil; q = q.nxt {
				for c := range q.claims {
					if c.tenant == t.number && !yield(c) {
						return
					}
				}
			}
		}
	}
}

// tellQuota is EventQuota.
func (s *Scheduler) tellQuota(ev *Event) {
	t, tp := s.tenantIndex[ev.Tenant], s.transportIndex[ev.Transport]
	if t == nil || tp == nil || tp.settles() || tp.queues[ev.Site] == nil {
		return
	}
	for c := range tp.queues[ev.Site].claims {
		if c.tenant == t.number && c.refs > 0 {
			s.setQuota(c, ev.Quota)
			return
		}
	}
}

// beyondQuota is the limit of a tenant at a place on whose account a message must not wait for q
// in the active queue; nil: there is none.
func (s *Scheduler) beyondQuota(m *message, q *queue, quota *Quota) *shared {
	limit, rec := s.cfg.SharedActiveLimit, s.record(m)
	if limit <= 0 || rec.flags&flagRevive != 0 {
		return nil
	}
	tenant := s.tenants[m.tenant].name
	for l := range quota.Shares {
		if quota.Shares[l].Name == "" {
			continue
		}
		n := s.shares[quotaKey(Level(l), quota.Shares[l].Name, tenant)]
		if n != nil && (n.backlog >= limit && !s.room(n) || n.parked > 0 && m.fresh) && !m.waitsFor(q) {
			return n
		}
	}
	return nil
}

// A Waiter is a tenant's mail for a destination that has a quota and waits for it.
type Waiter struct {
	Tenant string
	Quota  *Quota
	Dest   Dest // Transport, Queue, Nexthop
}

// Waiters visits the claims that wait for a quota, in no particular order.
func (s *Scheduler) Waiters(yield func(Waiter) bool) {
	for _, n := range s.shares {
		if n.key.tenant == "" {
			continue
		}
		for st := n.line.first; st != nil; st = st.nxt {
			c := st.claim
			if c == nil || c.quota == nil {
				continue
			}
			q := c.queue
			if !yield(Waiter{n.key.tenant, c.quota, Dest{Transport: q.tport.name, Queue: q.name, Nexthop: q.nexthop}}) {
				return
			}
		}
	}
}

// QuotaOf is what holds for a tenant's mail at a destination, as it was told with that; false: there is no such mail in
// the active queue.
func (s *Scheduler) QuotaOf(tenant string, transport mail.Transport, queue string) (*Quota, bool) {
	t, tp := s.tenantIndex[tenant], s.transportIndex[transport]
	if t == nil || tp == nil || tp.queues[queue] == nil {
		return nil, false
	}
	q := tp.queues[queue]
	c := q.claimOf[t.number]
	if q.claim.tenant == t.number {
		c = &q.claim
	}
	if c == nil || c.refs == 0 {
		return nil, false
	}
	return c.quota, true
}

// QuotasAt visits the limits of tenants at places that hold for a destination in core, each tenant's innermost first; of a
// bounded number of tenants.
func (s *Scheduler) QuotasAt(d *Dest, yield func(SharedLimit) bool) {
	t := s.transportIndex[d.Transport]
	if t == nil || t.queues[d.Queue] == nil {
		return
	}
	for c := range t.queues[d.Queue].claims {
		for n := c.pair; n != nil && n.key.tenant != ""; n = n.parent {
			if !yield(n.view(s)) {
				return
			}
		}
	}
}

// Quotas visits the limits of a tenant at places that are in use, in no particular order.
func (s *Scheduler) Quotas(tenant string, yield func(SharedLimit) bool) {
	for k, n := range s.shares {
		if k.tenant == tenant && tenant != "" && !n.resting && !yield(n.view(s)) {
			return
		}
	}
}
