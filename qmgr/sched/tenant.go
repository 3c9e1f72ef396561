package sched

// A tenant is whose mail a message is (mail.Envelope.Tenant). Mail without one is that of the tenant 0.
type tenant struct {
	name   string
	number uint16
	weight int
	msgs   int // messages in memory
	active int // of them in the active queue
	busy   int // deliveries under way

	// Its mail that waits for a place in the active queue (admit.go), and whether the next place is for deferred mail.
	incoming     recList // new
	due          recList // deferred, that something has made due
	ripe         recList // deferred, whose own time has come
	turnDeferred bool
	seat         seat  // among the tenants with such mail
	overAt       int32 // in s.crowding
	// What holds for it as it was told (allowance.go), and its limit; nil: it has none. sated: it waits for
	// its limit, and for no place until there is room.
	terms TenantTerms
	limit *shared
	sated bool
}

// maxTenants bounds the tenants that are told apart. Mail of further ones is that of tenant 0.
const maxTenants = 1<<16 - 1

// tenantFor finds or makes a tenant, and counts a message of it.
func (s *Scheduler) tenantFor(name string) uint16 {
	t := s.tenants[0]
	if name != "" {
		if t = s.tenantIndex[name]; t == nil {
			t = s.newTenant(name)
		}
	}
	t.msgs++
	return t.number
}

func (s *Scheduler) newTenant(name string) *tenant {
	t := &tenant{name: name, weight: s.weightOf(name)}
	switch n := len(s.tenantFree); {
	case n > 0:
		t.number = s.tenantFree[n-1]
		s.tenantFree = s.tenantFree[:n-1]
		s.tenants[t.number] = t
	case len(s.tenants) > maxTenants:
		return s.tenants[0]
	default:
		t.number = uint16(len(s.tenants))
		s.tenants = append(s.tenants, t)
	}
	t.seat.tenant = t
	if s.tenantIndex == nil {
		s.tenantIndex = make(map[string]*tenant)
	}
	s.tenantIndex[name] = t
	return t
}

// forgetRecord forgets a message, and its tenant with the last one.
func (s *Scheduler) forgetRecord(i int32) {
	n := s.recs.at(i).tenant
	s.recs.remove(i)
	t := s.tenants[n]
	if t.msgs--; t.msgs > 0 || n == 0 {
		return
	}
	t.seat.rise()
	if t.overAt != 0 {
		s.crowding.remove(t.overAt)
	}
	s.leaveLimit(t)
	delete(s.tenantIndex, t.name)
	s.tenants[n] = nil
	s.tenantFree = append(s.tenantFree, n)
}

// MaxWeight bounds Config.TenantWeight, so that every turn ends soon.
const MaxWeight = 1000

// weightOf is the weight of a tenant's turns: its share, against that of others with mail.
func (s *Scheduler) weightOf(name string) int {
	if s.cfg.TenantWeight == nil || name == "" {
		return 1
	}
	return min(max(s.cfg.TenantWeight(name), 1), MaxWeight)
}

// reweigh asks for all weights anew.
func (s *Scheduler) reweigh() {
	for _, t := range s.tenants {
		if t != nil {
			s.reweighOne(t)
			s.seatAgain(t) // SharedActiveLimit may be another
		}
	}
}

// reweighOne asks for the weight of one. What its own terms say counts more than the configuration.
func (s *Scheduler) reweighOne(t *tenant) {
	if t.weight = s.weightOf(t.name); t.terms.Weight > 0 {
		t.weight = min(t.terms.Weight, MaxWeight)
	}
	for _, tp := range s.transports {
		if l := tp.lookLane(t.number); l != nil {
			l.weight = t.weight
		}
	}
}
