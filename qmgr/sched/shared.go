// Shared limits: bounds that hold for several destinations together, because one provider,
// or one set of mail hosts, is behind them. Here is what they are, how destinations come
// under them, and what is counted. Who waits for one, and who goes next, is in gate.go;
// what becomes of mail that is too much for the active queue is in beyond.go.
//
// Shared limits are trees of at most three levels: a destination's own limits, those of its
// site, those of its provider. All that a delivery needs is to follow the way up from its
// destination. Mail that goes from one of several sources is under two trees: the limits
// that hold whatever it goes from, and those that hold for its source alone. One forest could
// not have both: what one domain takes from all sources is neither above nor below what a
// provider takes from one of them. With no limits set there are none of these structures,
// and a destination has nil pointers.

package sched

import (
	"time"

	"posthaste/internal/rate"
)

// Level says what a shared limit belongs to. A limit of a lower level is below at most one
// of each higher level.
type Level uint8

const (
	OwnLimit      Level = iota // one domain, whatever transports and mailboxes its mail goes to
	SiteLimit                  // the domains that have the same mail hosts
	ProviderLimit              // sites and domains that one company serves
	levels

	// TenantLimit is that of a tenant, wherever its mail goes; it is no part of a tree (allowance.go).
	TenantLimit = levels

	// PaceLimit is the level of what a course keeps to: of one destination from one source, below all levels that Terms
	// have (adaptive.go).
	PaceLimit = levels + 1
)

// String is the level's name in tables and listings.
func (l Level) String() string {
	switch l {
	case OwnLimit:
		return "domain"
	case SiteLimit:
		return "site"
	case ProviderLimit:
		return "provider"
	case TenantLimit:
		return "tenant"
	case PaceLimit:
		return "pace"
	}
	return "unknown"
}

// Limits are the bounds of one shared limit. The zero value of each is no bound.
type Limits struct {
	Concurrency int       // deliveries at once
	Connections rate.Rate // connections that are opened
	Messages    rate.Rate // deliveries that begin
	Recipients  rate.Rate // recipients of those. By the day, a delivery to too many is divided
	Warmup      rate.Rate // the same, by the day, while a source warms up (source.go)
}

// A Share is a limit by its name, as a destination is told of it. Without a name there is
// none.
type Share struct {
	Name   string
	Limits Limits
}

// Terms are what holds for a destination besides its window. They are not changed once
// they have been passed to the scheduler, which compares them by their address: who makes
// them gives destinations with the same terms the same pointer.
type Terms struct {
	Shares [levels]Share // by Level
	// What holds besides for mail that goes from Source, by Level. Without a source there is
	// nothing.
	Source string
	From   [levels]Share
	// Several next hops are one destination. It is for who names the destination: with any
	// terms each delivery goes to the next hop of its recipients.
	Rollup bool
	// The most deliveries that an agent may make over one connection; 0: as the agent's own
	// settings say.
	Reuse int
	// Place is where a Pause of a source finds the destination, which several may share.
	Place string
	// Advice goes with each delivery to the agent. What it says is the shell's to know.
	Advice string
}

// maxResting bounds the shared limits of each kind that are remembered only for what was counted.
// Beyond that number they are forgotten with their last destination: strangers choose
// destinations, and must not fill the memory with their names.
var maxResting = [kinds]int{anyPlace: 1 << 17, anyProvider: 1 << 15, anyTenant: 1 << 15, anyTenantPlace: 1 << 16}

// Kinds of shared limits. With as many domains as anybody likes, a mailing makes nobody forget what a provider has had today.
const (
	anyPlace       = iota // domains and sites
	anyProvider           // providers
	anyTenant             // tenants
	anyTenantPlace        // tenants at places
	kinds
)

// sharedKey names a shared limit. source is empty for one that holds whatever mail goes from, and
// tenant for one that holds whosever mail it is.
type sharedKey struct {
	level  Level
	name   string
	source string
	tenant string
}

// kind is what kind of limit k names.
func (k sharedKey) kind() int {
	switch {
	case k.tenant != "":
		return anyTenantPlace
	case k.level == TenantLimit:
		return anyTenant
	case k.level == ProviderLimit:
		return anyProvider
	}
	return anyPlace
}

// String is the name as people read it.
func (k sharedKey) String() string {
	if k.source != "" {
		return k.level.String() + " " + k.name + " from " + k.source
	}
	if k.tenant != "" {
		return k.level.String() + " " + k.name + " of tenant " + k.tenant
	}
	return k.level.String() + " " + k.name
}

// The trees of shared limits in which a destination may be.
const (
	commonTree = iota // of limits that hold whatever mail goes from
	sourceTree        // of those for one source
	trees
)

// A leg is where a destination is in a tree of limits: the innermost that it is below, and
// its place in that one's line, if it stands there. leaf is nil when it is in none.
type leg struct {
	leaf  *shared
	stand *stander
}

// limited says whether there is any shared limit over q.
func (q *queue) limited() bool {
	return q.legs[commonTree].leaf != nil || q.legs[sourceTree].leaf != nil
}

// above visits all limits over q, the innermost first, those of its source last.
func (q *queue) above(yield func(*shared) bool) {
	for i := range q.legs {
		for n := q.legs[i].leaf; n != nil; n = n.parent {
			if !yield(n) {
				return
			}
		}
	}
}

// over visits all limits in which a busy entry counts.
func (e *entry) over(yield func(*shared) bool) {
	for _, leaf := range e.leaves {
		for n := leaf; n != nil; n = n.parent {
			if !yield(n) {
				return
			}
		}
	}
}

// all visits these and the limits of its tenant.
func (e *entry) all(yield func(*shared) bool) {
	for n := range e.over {
		if !yield(n) {
			return
		}
	}
	for n := e.allowance; n != nil; n = n.parent {
		if !yield(n) {
			return
		}
	}
}

// A shared is a shared limit that has destinations, or whose counts are still of use.
type shared struct {
	key sharedKey
	// What it bounds, and how much of that is for this scheduler (portion.go); shut: nothing, for now. kept is what
	// has been used of rates at portions that were larger.
	full, limits Limits
	shut         bool
	cold         bool  // nothing of Limits.Warmup is for this scheduler, for now
	asks         int64 // until when a cold one is remembered, although no mail is left for it
	kept         [bounds]kept
	// The limit that holds besides; nil: none. It is of a higher level.
	parent *shared
	// Destinations and shared limits directly below.
	members int
	// Deliveries under way to destinations below, and destinations below that may begin one
	// and have not yet. There is room for all of those.
	busy, held int
	// How many of these there may be beyond Concurrency: it was made smaller, or
	// destinations came from elsewhere with deliveries under way.
	over int
	// What has been spent.
	conns, msgs, rcpts, warm rate.Meter

	// Who waits for it, and its own place in its parent's line (gate.go). waiting is how
	// many destinations wait here and below, granted how many places in the line have been
	// served, ever, without those whose turn was owed, and repaid how many of those.
	line    line
	stand   stander
	waiting int
	granted uint64
	repaid  uint64
	// Of a root: who keeps a place of it while it waits in another tree; and until when nobody may.
	keeper *queue
	keeps  int64
	// When its meters let the next go, or make it forgettable.
	timer timer
	// Of a tenant's limit: the tenant, while it has mail.
	tenant *tenant
	// It is on s.roots.
	due bool
	// It has no members, and is counted in s.resting; or it is not even remembered any more.
	resting, gone bool

	// Jobs with mail that waits for destinations below: about the messages that it keeps in
	// the active queue. For the rest see beyond.go.
	backlog             int
	parked              int
	firstSite, lastSite int32
	owed                int
	recheck             timer
}

// room says whether one more delivery may begin under n itself, whatever holds above.
func (s *Scheduler) room(n *shared) bool { return n.place() && n.next(s.now) <= s.now }

// place says whether its concurrency allows one more.
func (n *shared) place() bool {
	return !n.shut && (n.limits.Concurrency == 0 || n.busy+n.held < n.limits.Concurrency)
}

// next is when its rates allow one more, besides those that have their places: now, later,
// or rate.Never, if one of those must begin first.
func (n *shared) next(now int64) int64 {
	l, k := &n.limits, int64(n.held)+1
	at := max(n.conns.Next(l.Connections, now, k), n.msgs.Next(l.Messages, now, k), n.rcpts.Next(l.Recipients, now, k))
	switch {
	case n.cold: // until the next day, as if all of it were spent, or until there is a portion
		at = max(at, (now/int64(rate.Day/time.Microsecond)+1)*int64(rate.Day/time.Microsecond))
	case l.Warmup.N > 0:
		at = max(at, n.warm.Next(l.Warmup, now, k))
	}
	return at
}

// spend counts a delivery. That it needs a connection is assumed until it is known.
func (n *shared) spend(now int64, rcpts int) {
	l := &n.limits
	n.conns.Spend(l.Connections, now, 1)
	n.msgs.Spend(l.Messages, now, 1)
	n.rcpts.Spend(l.Recipients, now, int64(rcpts))
	n.warm.Spend(l.Warmup, now, int64(rcpts))
}

// refund takes back what was counted at a time, for a delivery that is not made.
func (n *shared) refund(now, spent int64, rcpts int) {
	l := &n.limits
	refund(&n.conns, l.Connections, now, spent, 1)
	refund(&n.msgs, l.Messages, now, spent, 1)
	refund(&n.rcpts, l.Recipients, now, spent, int64(rcpts))
	refund(&n.warm, l.Warmup, now, spent, int64(rcpts))
}

// refund takes back what was spent at a time, if it still counts. What the span of the rate has passed over is paid:
// to take it back would be at the expense of what came later.
func refund(m *rate.Meter, r rate.Rate, now, spent, count int64) {
	if r.Per == rate.Day || now-spent < micros(r.Per) {
		m.Refund(r, now, spent, count)
	}
}

// opens is when its rates let somebody go whom they keep now; never: they keep nobody, or
// that is not known.
func (n *shared) opens(now int64) int64 {
	if at := n.next(now); at > now && at != rate.Never {
		return at
	}
	return never
}

// fresh says whether nothing is lost when n is forgotten.
func (n *shared) fresh(now int64) bool {
	return n.conns.Fresh(now) && n.msgs.Fresh(now) && n.rcpts.Fresh(now) && n.warm.Fresh(now)
}

// until is when n will be fresh if nothing happens.
func (n *shared) until(now int64) int64 {
	return max(n.conns.Until(now), n.msgs.Until(now), n.rcpts.Until(now), n.warm.Until(now), n.asks)
}

// setTerms brings a destination under the limits of its terms. The latest terms are right
// about a limit that several destinations have: a table may have changed since the others
// were told.
func (s *Scheduler) setTerms(q *queue, terms *Terms) {
	q.terms = terms
	if terms == nil {
		terms = &Terms{}
	}
	s.setTree(q, commonTree, &terms.Shares, "")
	from := &terms.From
	if terms.Source != q.source { // they are not for this queue
		from = new([levels]Share)
	}
	s.setTree(q, sourceTree, from, q.source)
	s.updateQueue(q)
}

// setTree is setTerms for one tree of limits.
func (s *Scheduler) setTree(q *queue, tree int, shares *[levels]Share, source string) {
	var chain [levels]*shared
	var leaf *shared
	for l := levels; l > 0; l-- {
		sh := &shares[l-1]
		if sh.Name == "" || tree == sourceTree && source == "" {
			continue
		}
		k := sharedKey{level: l - 1, name: sh.Name, source: source}
		n := s.shares[k]
		if n == nil && sh.Limits == (Limits{}) {
			continue
		}
		if n == nil {
			n = s.newShared(k)
		}
		n.members++ // until q is below it, it must not be forgotten
		s.changeLimits(n, sh.Limits)
		s.reparent(n, leaf)
		chain[l-1], leaf = n, n
	}
	// The pace that its answers have taught stays the innermost.
	if n := q.paced; n != nil && tree == q.paceTree() {
		s.reparent(n, leaf)
		leaf = n
	}
	if leaf != q.legs[tree].leaf {
		s.moveQueue(q, tree, leaf)
	}
	for _, n := range chain {
		if n != nil {
			n.members--
			s.settleShared(n)
		}
	}
}

// newShared makes a shared limit that limits nothing yet.
func (s *Scheduler) newShared(k sharedKey) *shared {
	n := &shared{key: k}
	n.stand.node = n
	number := int32(len(s.numbered))
	if k := len(s.numbers); k > 0 {
		number = s.numbers[k-1]
		s.numbers = s.numbers[:k-1]
		s.numbered[number] = n
	} else {
		s.numbered = append(s.numbered, n)
	}
	n.timer.kind, n.timer.shared = timerShared, number
	n.recheck.kind, n.recheck.shared = timerBeyond, number
	if s.shares == nil {
		s.shares = make(map[sharedKey]*shared)
	}
	s.shares[k] = n
	return n
}

// changeLimits sets what n bounds. What is under way stays.
func (s *Scheduler) changeLimits(n *shared, l Limits) {
	if n.full == l {
		return
	}
	n.full = l
	n.conns.Change(l.Connections, s.now)
	n.msgs.Change(l.Messages, s.now)
	n.rcpts.Change(l.Recipients, s.now)
	n.warm.Change(l.Warmup, s.now)
	// What is owed is not more than that now. Where there are no portions nothing more comes between.
	if s.portions == nil || n.key.level > TenantLimit {
		n.limits = l
		n.allow()
		s.settleShared(n)
		return
	}
	s.portion(n)
}

// allow lets n have what it has, until some of it has ended.
func (n *shared) allow() {
	n.over = 0
	if c := n.limits.Concurrency; c > 0 {
		n.over = max(n.busy+n.held-c, 0)
	}
}

// reparent puts n below another limit, with all that it has.
func (s *Scheduler) reparent(n, parent *shared) {
	old := n.parent
	if old == parent {
		return
	}
	s.leaveLine(&n.stand)
	n.weigh(-1)
	n.parent = parent
	n.weigh(1)
	if parent != nil {
		parent.members++
	}
	if old != nil {
		old.members--
		s.settleShared(old)
	}
	s.settleShared(n)
}

// weigh adds what n has to all limits above it, or takes it away with sign -1.
func (n *shared) weigh(sign int) {
	for a := n.parent; a != nil; a = a.parent {
		a.busy += sign * n.busy
		a.held += sign * n.held
		a.waiting += sign * n.waiting
		a.backlog += sign * n.backlog
		a.allow()
	}
}

// moveQueue puts a destination below leaf in a tree; nil: it has no limits there. Deliveries
// under way are counted where they began.
func (s *Scheduler) moveQueue(q *queue, tree int, leaf *shared) {
	s.stepBack(q)
	l := &q.legs[tree]
	old := l.leaf
	for a := old; a != nil; a = a.parent {
		a.backlog -= q.waiting
	}
	l.leaf = leaf
	if leaf != nil && l.stand == nil {
		l.stand = &stander{queue: q, tree: tree}
	}
	for a := leaf; a != nil; a = a.parent {
		a.backlog += q.waiting
	}
	if leaf != nil {
		leaf.members++
	}
	if old != nil {
		old.members--
		s.settleShared(old)
	}
}

// rest sees to a shared limit that may have nobody below it any more: it is forgotten when
// nothing is lost by that.
func (s *Scheduler) rest(n *shared) {
	if n.gone {
		return
	}
	// A site stays in the ring for a moment while its last message comes back into memory.
	resting := n.members == 0 && n.busy == 0 && n.firstSite == 0
	s.setResting(n, resting)
	if !resting {
		return
	}
	if at := n.until(s.now); at > s.now && s.resting[n.key.kind()] <= s.maxResting[n.key.kind()] {
		s.startTimer(&n.timer, at)
		return
	}
	s.stopTimer(&n.timer)
	s.stopTimer(&n.recheck)
	s.resting[n.key.kind()]--
	n.gone = true
	delete(s.shares, n.key)
	s.numbered[n.timer.shared] = nil
	s.numbers = append(s.numbers, n.timer.shared)
	if p := n.parent; p != nil {
		n.parent = nil
		p.members--
		s.settleShared(p)
	}
}

// setResting notes whether n is only remembered for its counts.
func (s *Scheduler) setResting(n *shared, resting bool) {
	switch {
	case resting && !n.resting:
		s.resting[n.key.kind()]++
	case !resting && n.resting:
		s.resting[n.key.kind()]--
	}
	n.resting = resting
}

// A Spent is what has been counted for a shared limit, to be kept over a restart.
type Spent struct {
	Level                                     Level
	Name                                      string
	Source                                    string // "": it holds whatever mail goes from
	Tenant                                    string // "": it holds whosever mail it is
	Connections, Messages, Recipients, Warmup rate.Meter
}

// Spent returns what has been counted and still matters, in no particular order. It shares no
// memory with s.
func (s *Scheduler) Spent() []Spent {
	var list []Spent
	for _, n := range s.shares {
		if !n.fresh(s.now) && n.key.level != PaceLimit { // that is learnt anew
			list = append(list, Spent{n.key.level, n.key.name, n.key.source, n.key.tenant, n.conns, n.msgs, n.rcpts, n.warm})
		}
	}
	return list
}

// RestoreSpent has a scheduler that knows of no shared limit yet go on with what another
// one has counted. What comes from a file is not relied on: what lies ahead of the clock is
// of no use, and a debt is cut to what the limit can owe as soon as that is known.
func (s *Scheduler) RestoreSpent(now time.Time, list []Spent) {
	s.now = s.clock.advance(now.UnixMicro())
	for i := range list {
		sp := &list[i]
		k := sharedKey{sp.Level, sp.Name, sp.Source, sp.Tenant}
		if sp.Level > TenantLimit || sp.Name == "" || s.shares[k] != nil {
			continue
		}
		n := s.newShared(k)
		n.conns, n.msgs, n.rcpts = s.saneMeter(sp.Connections), s.saneMeter(sp.Messages), s.saneMeter(sp.Recipients)
		n.warm = s.saneMeter(sp.Warmup)
		s.rest(n)
	}
}

// saneMeter is a meter that another process has written down.
func (s *Scheduler) saneMeter(m rate.Meter) rate.Meter {
	const day = int64(rate.Day / time.Microsecond)
	m.Due, m.Count = min(max(m.Due, 0), s.now+day), max(m.Count, 0)
	if m.Date > s.now/day || m.Date < 0 {
		m.Date, m.Count = 0, 0
	}
	return m
}

// A SharedLimit describes a shared limit, for listings.
type SharedLimit struct {
	Level    Level
	Name     string
	Source   string // that it holds for alone; "": it holds whatever mail goes from
	Tenant   string // the same of tenants
	Limits   Limits
	Portion  Limits // how much of them is for this scheduler; all, unless it shares them with others
	None     bool   // nothing of them, for now
	Provider string // of a site or a domain; "": none that has limits
	Busy     int    // deliveries in progress
	Held     int    // places that are taken: of deliveries that have not begun yet
	Waiting  int    // destinations that wait for it, or for one above it
	Backlog  int    // about the messages that it keeps in the active queue
	Parked   int    // messages that wait outside, until there is room
	// Whether it keeps destinations waiting now, and until when at least; zero: until a
	// delivery ends.
	Shut  bool
	Until time.Time
	// What has been counted today, of rates by the day.
	Connections, Messages, Recipients, Warmup int64
}

// SharedLimits visits all shared limits that are in use, in no particular order: that have
// destinations in core, deliveries under way, or mail that waits outside.
func (s *Scheduler) SharedLimits(yield func(SharedLimit) bool) {
	for _, n := range s.shares {
		if !n.resting && !yield(n.view(s)) {
			return
		}
	}
}

// String is the limit's name as people read it.
func (l *SharedLimit) String() string { return sharedKey{l.Level, l.Name, l.Source, l.Tenant}.String() }

// SourceLimits visits all shared limits of sources, also those that are only remembered for
// what was counted, in no particular order.
func (s *Scheduler) SourceLimits(yield func(SharedLimit) bool) {
	for k, n := range s.shares {
		if k.source != "" && !yield(n.view(s)) {
			return
		}
	}
}

func (n *shared) view(s *Scheduler) SharedLimit {
	today := func(r rate.Rate, m rate.Meter) int64 {
		if r.Per != rate.Day {
			return 0
		}
		return r.N - m.Room(r, s.now) // m is a copy
	}
	l := &n.limits
	v := SharedLimit{Level: n.key.level, Name: n.key.name, Source: n.key.source, Tenant: n.key.tenant, Limits: n.full, Portion: n.limits, None: n.shut, Busy: n.busy, Held: n.held, Waiting: n.waiting, Backlog: n.backlog, Parked: n.parked,
		Connections: today(l.Connections, n.conns), Messages: today(l.Messages, n.msgs), Recipients: today(l.Recipients, n.rcpts),
		Warmup: n.warm.Today(s.now)}
	if !s.room(n) {
		v.Shut = true
		v.Until = s.realTime(n.opens(s.now))
	}
	for a := n.parent; a != nil; a = a.parent {
		if a.key.level == ProviderLimit {
			v.Provider = a.key.name
		}
	}
	return v
}

// Sharing visits the shared limits that hold for a destination in core, innermost first, and those for
// its source behind those for all.
func (s *Scheduler) Sharing(d *Dest, yield func(SharedLimit) bool) {
	t := s.transportIndex[d.Transport]
	if t == nil || t.queues[d.Queue] == nil {
		return
	}
	t.queues[d.Queue].above(func(n *shared) bool { return yield(n.view(s)) })
}
