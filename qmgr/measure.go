// The numbers that the queue manager publishes for the metrics service. A scrape is made
// by a task, which has the loop count a bounded part of the queue at a time: a deep queue
// must not hold up deliveries because somebody looks at it.

package qmgr

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"posthaste/internal/metrics"
	"posthaste/qmgr/sched"
)

const (
	// measureTime bounds how long the metrics service waits for the loop.
	measureTime = 5 * time.Second
	// topDests is how many destinations are published by name: those with the
	// most to do. A label for each of a million would be no use to anybody.
	topDests = 20
	// unknown is the destination of messages that have not been looked at since the start, and the domain
	// of those that are not in memory.
	unknown = "unknown"
	// noTenant is the label of mail without a tenant. No tenant has brackets in its name.
	noTenant = "(none)"
)

// offer publishes the numbers of the queue and of the scheduler. It runs in a task of the
// metrics client. When the loop does not finish counting within measureTime nothing is
// published: half a queue would look like a queue that has drained.
func (s *Server) offer(o *metrics.Offer) {
	m := measurement{states: make(map[destKind]int), domains: make(map[string]int)}
	limit := time.NewTimer(measureTime)
	defer limit.Stop()
	// Three kinds of counting, each in pieces that take the loop a few milliseconds. The
	// sums are of different moments, which a graph does not show.
	if !s.inLoop(limit.C, func() { m.totals(s) }) {
		return
	}
	for first := true; first || m.sites != 0; first = false {
		if !s.inLoop(limit.C, func() { m.backlogs(s) }) {
			return
		}
	}
	for first := true; first || m.cursor != 0; first = false {
		if !s.inLoop(limit.C, func() { m.ages(s) }) {
			return
		}
	}
	m.offer(o)
}

// inLoop has f called by the loop and waits for that. It returns false when limit has
// fired, or when the loop has ended: a process that ends must not wait for its last
// numbers.
func (s *Server) inLoop(limit <-chan time.Time, f func()) bool {
	done := make(chan struct{})
	s.post(func() { f(); close(done) }, sched.Event{})
	select {
	case <-done:
		return true
	case <-limit:
		return false
	case <-s.deaf:
		return false
	}
}

// destKind is what destinations are counted by: their transport and their state.
type destKind struct {
	transport string
	state     string
}

// A measurement is what is counted for one scrape.
type measurement struct {
	now    time.Time
	stats  sched.Stats
	away   int // messages of stats that are not in memory
	states map[destKind]int
	// The destinations with most to do, up to twice as many as are published; cut sorts
	// out the others.
	top   []sched.Dest
	rest  sched.Dest // what those have that are not among the top
	sites int        // cursor of Backlogs
	// Pending recipients by domain, as far as domains are known.
	domains map[string]int
	// Where Scan goes on with the queue.
	cursor int
	// When the oldest message of each queue came; zero: it is empty.
	oldest [sched.QueueHold + 1]time.Time
	// suspensions are how many there are, and suspended how many messages wait for them.
	suspensions, suspended int
	limits, diversions     int // that operators have ordered
	// Shared limits, those with most to do first, at most topDests of them.
	shared []sched.SharedLimit
	// Tenants with mail in memory: those with most, up to twice as many as are published, and the sum of the others.
	tenants []sched.Tenant
	others  sched.Tenant
	// Sources that warm up, those that have sent most.
	warming []sched.SharedLimit
}

// totals copies what is counted anyhow, and looks at the destinations in core. It runs in
// the loop.
func (m *measurement) totals(s *Server) {
	m.now, m.stats = time.Now(), s.sched.Stats()
	a := &s.away
	m.away = a.deferred + a.hold
	m.stats.Deferred += a.deferred
	m.stats.Hold += a.hold
	m.oldest[sched.QueueDeferred], m.oldest[sched.QueueHold] = a.oldestDeferred, a.oldestHold
	for _, r := range s.rules.set.all() {
		if !r.queueOnly && !r.over(s.now) {
			m.suspensions++
			m.suspended += s.sched.Parked(r.id)
		}
	}
	// endRules drops those whose time is over a moment later.
	for _, r := range s.rules.limits.all() {
		if !r.over(s.now) {
			m.limits++
		}
	}
	for _, r := range s.rules.diversions.Load().all() {
		if !r.over(s.now) {
			m.diversions++
		}
	}
	// There are as many as somebody has written, or with a limit for all one for each
	// destination.
	s.sched.SharedLimits(func(l sched.SharedLimit) bool {
		if m.shared = append(m.shared, l); len(m.shared) >= 2*topDests {
			m.cutLimits()
		}
		return true
	})
	m.cutLimits()
	s.sched.Tenants(func(t sched.Tenant) bool {
		// What is nobody's is a tenant to the scheduler, and no label.
		if t.Name == "" {
			t.Name = noTenant
		}
		if m.tenants = append(m.tenants, t); len(m.tenants) >= 2*topDests {
			m.cutTenants()
		}
		return true
	})
	m.cutTenants()
	s.sched.SourceLimits(func(l sched.SharedLimit) bool {
		if l.Limits.Warmup.N == 0 {
			return true
		}
		if m.warming = append(m.warming, l); len(m.warming) >= 2*topDests {
			m.cutWarming()
		}
		return true
	})
	m.cutWarming()
	s.sched.Dests(func(d sched.Dest) bool {
		m.states[destKind{string(d.Transport), destState(d.State)}]++
		m.keep(d)
		return true
	})
}

// cutLimits leaves the limits with most to do, in order; names decide between equals.
func (m *measurement) cutLimits() {
	slices.SortFunc(m.shared, func(a, b sched.SharedLimit) int {
		return cmp.Or(cmp.Compare(b.Busy+b.Backlog+b.Parked, a.Busy+a.Backlog+a.Parked), cmp.Compare(a.Level, b.Level), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Tenant, b.Tenant))
	})
	m.shared = m.shared[:min(len(m.shared), topDests)]
}

// limitName is what a shared limit is called within its level.
func limitName(l *sched.SharedLimit) string {
	if l.Tenant != "" {
		return l.Name + " of tenant " + l.Tenant
	}
	return sched.SourceQueue(l.Name, l.Source)
}

// cutTenants leaves the tenants with most mail, and adds up the others.
//
// Which tenants have a name may change with each scrape, as destinations do; the sums stay right, since what is not
// named is in the label for all others.
func (m *measurement) cutTenants() {
	slices.SortFunc(m.tenants, byMail)
	for i := topDests; i < len(m.tenants); i++ {
		t := &m.tenants[i]
		m.others.Messages += t.Messages
		m.others.Active += t.Active
		m.others.Busy += t.Busy
	}
	m.tenants = m.tenants[:min(len(m.tenants), topDests)]
}

// offerTenants publishes them. Where no mail has a tenant there is nothing to say.
func (m *measurement) offerTenants(o *metrics.Offer) {
	if len(m.tenants) == 0 || len(m.tenants) == 1 && m.tenants[0].Name == noTenant {
		return
	}
	m.others.Name = metrics.Other
	for _, t := range append(m.tenants, m.others) {
		o.Gauge(metrics.TenantMessages, float64(t.Messages), t.Name)
		o.Gauge(metrics.TenantActive, float64(t.Active), t.Name)
		o.Gauge(metrics.TenantBusy, float64(t.Busy), t.Name)
	}
}

// cutWarming leaves the sources that have sent most while they warm up, in order.
func (m *measurement) cutWarming() {
	slices.SortFunc(m.warming, func(a, b sched.SharedLimit) int {
		return cmp.Or(cmp.Compare(b.Warmup, a.Warmup), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Level, b.Level), cmp.Compare(a.Name, b.Name))
	})
	m.warming = m.warming[:min(len(m.warming), topDests)]
}

// backlogs looks at a part of the destinations that only deferred mail waits for. It runs
// in the loop.
func (m *measurement) backlogs(s *Server) { m.sites = s.sched.Backlogs(m.sites, censusTurn, m.keep) }

// byWork sorts those with most to do first; names decide between equals, so that two
// scrapes of the same queue are the same.
func byWork(a, b sched.Dest) int {
	return cmp.Or(cmp.Compare(work(&b), work(&a)), cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Queue, b.Queue))
}

// work is what a destination has to do: deliveries under way and waiting, and deferred
// messages.
func work(d *sched.Dest) int { return d.Busy + d.Todo + d.Deferred }

// keep counts d, among the top or in the rest. Sorting once for every topDests
// destinations is cheaper than to keep the top sorted.
func (m *measurement) keep(d sched.Dest) {
	if len(m.top) >= 2*topDests {
		m.cut()
	}
	m.top = append(m.top, d)
}

// cut leaves the top in order, and adds the others to the rest.
func (m *measurement) cut() {
	slices.SortFunc(m.top, byWork)
	for i := topDests; i < len(m.top); i++ {
		d := &m.top[i]
		m.rest.Busy += d.Busy
		m.rest.Todo += d.Todo
		m.rest.Deferred += d.Deferred
	}
	m.top = m.top[:min(len(m.top), topDests)]
}

// ages looks at a part of the queue: ages and domains. It runs in the loop.
func (m *measurement) ages(s *Server) {
	m.cursor = s.sched.Scan(m.cursor, censusTurn, func(info sched.Info) bool {
		if t := &m.oldest[info.Queue]; t.IsZero() || info.Created.Before(*t) {
			*t = info.Created
		}
		m.domain(s, &info)
		return true
	})
}

// domain counts a message's pending recipients by domain.
func (m *measurement) domain(s *Server, info *sched.Info) {
	if p := s.book.find(info.ID); p != nil {
		s.book.eachDomain(p, info.Pending, func(id nameID, n int) { m.domains[s.book.names.list[id].text] += n })
		return
	}
	if w := s.messages[info.ID]; w != nil {
		_, domains := w.domains()
		for d, n := range domains {
			m.domains[d] += n
		}
	}
}

// destState is the label of a state. Dashboards depend on these words.
func destState(st sched.DestState) string {
	switch st {
	case sched.DestDead:
		return "dead"
	case sched.DestSuspended:
		return "suspended"
	}
	return "ready"
}

// offer publishes what was counted. It runs outside the loop, which does not touch m any
// more.
func (m *measurement) offer(o *metrics.Offer) {
	st := &m.stats
	for q, n := range map[sched.Queue]int{sched.QueueIncoming: st.Incoming, sched.QueueActive: st.Active,
		sched.QueueDeferred: st.Deferred, sched.QueueHold: st.Hold} {
		o.Gauge(metrics.QueueMessages, float64(n), q.String())
		age := 0.0
		if t := m.oldest[q]; !t.IsZero() {
			age = max(0, m.now.Sub(t).Seconds())
		}
		o.Gauge(metrics.QueueOldest, age, q.String())
	}
	o.Gauge(metrics.QueueRecipients, float64(st.Rcpts))
	o.Gauge(metrics.DeliveriesBusy, float64(st.Busy))
	o.Gauge(metrics.Suspensions, float64(m.suspensions))
	o.Gauge(metrics.SuspendedMessages, float64(m.suspended))
	o.Gauge(metrics.Limits, float64(m.limits))
	o.Gauge(metrics.Diversions, float64(m.diversions))
	o.Total(metrics.Decisions, float64(st.Decisions))
	o.Total(metrics.Preemptions, float64(st.Preemptions))
	for k, n := range m.states {
		o.Gauge(metrics.Destinations, float64(n), k.transport, k.state)
	}
	m.offerDomains(o)
	o.Gauge(metrics.DomainTodo, float64(m.away), unknown)
	m.cut()
	for i := range m.top {
		d := &m.top[i]
		labels := []string{string(d.Transport), d.Queue}
		o.Gauge(metrics.DestinationWindow, float64(d.Window), labels...)
		o.Gauge(metrics.DestinationBusy, float64(d.Busy), labels...)
		o.Gauge(metrics.DestinationTodo, float64(d.Todo+d.Deferred), labels...)
		if d.State == sched.DestDead {
			o.Gauge(metrics.DestinationDeadUntil, float64(d.Until.UnixMilli())/1e3, labels...)
		}
	}
	for i := range m.shared {
		l := &m.shared[i]
		labels := []string{l.Level.String(), limitName(l)}
		o.Gauge(metrics.LimitBusy, float64(l.Busy), labels...)
		o.Gauge(metrics.LimitWaiting, float64(l.Waiting), labels...)
		o.Gauge(metrics.LimitParked, float64(l.Parked), labels...)
	}
	m.offerTenants(o)
	for i := range m.warming {
		l := &m.warming[i]
		labels := []string{l.Source, l.Level.String(), l.Name}
		o.Gauge(metrics.WarmupRecipients, float64(l.Warmup), labels...)
		o.Gauge(metrics.WarmupLimit, float64(l.Limits.Warmup.N), labels...)
	}
	// New mail has no destination yet, and deferred mail that no destination is held
	// responsible for has none any more.
	o.Gauge(metrics.DestinationTodo, float64(m.stats.Incoming+m.stats.Deferred-m.stats.Sited), unknown, unknown)
	o.Gauge(metrics.DestinationBusy, float64(m.rest.Busy), metrics.Other, metrics.Other)
	o.Gauge(metrics.DestinationTodo, float64(m.rest.Todo+m.rest.Deferred), metrics.Other, metrics.Other)
}

// offerDomains publishes the largest backlogs by domain, and the sum of all others, so
// that the numbers add up.
func (m *measurement) offerDomains(o *metrics.Offer) {
	names := slices.Collect(maps.Keys(m.domains))
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(m.domains[b], m.domains[a]), cmp.Compare(a, b)) })
	rest := 0
	for i, name := range names {
		if i >= topDests {
			rest += m.domains[name]
			continue
		}
		o.Gauge(metrics.DomainTodo, float64(m.domains[name]), name)
	}
	o.Gauge(metrics.DomainTodo, float64(rest), metrics.Other)
}
