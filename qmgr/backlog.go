// The queue as forecasts need it (internal/whatif): what waits, by destination, and how the
// destinations take it. It is told a part at a time, as for qshape, so that a deep queue does not
// hold up deliveries.
//
// The pages come from cleanup, so that mail that is not in memory is counted, too. Of that, and of
// deferred mail from before a start, it is not known where it goes: the scheduler learns that when
// it tries a message. The domains of the recipients are told then, as far as the book has them.
// Envelopes are not read for it, as the forecast is asked for while the queue is deep.
//
// Messages change while pages are read. A message may leave in between, or be told with the state
// that it has a moment later. A forecast looks hours ahead, and does not depend on that.

package qmgr

import (
	"math/bits"
	"strings"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/qmgr/sched"
)

const (
	// backlogPage is how many messages one answer may be about, the last page's aside.
	backlogPage = 50_000
	// backlogRows is how many rows it may have.
	backlogRows = 20_000
)

// A backlog is an answer that is being made. It belongs to the loop. One that is given up by who
// asked, whose connection has closed, ends with the page that is being read: nobody asks for another.
type backlog struct {
	// Where the next page begins, as cleanup numbers them. 0 at the start, and when there is none.
	cursor uint64
	// Messages that have been looked at, those that count for no row included: it bounds the work of one answer.
	seen  int
	reply proto.BacklogReply
	// Where in the reply the row of a key is.
	rows map[backlogKey]int
	// Destinations that the reply has: each is told once in an answer.
	dests map[hop]bool
	// Pools that have been told, for a destination each, as the shell makes them.
	pools map[*sched.Pool]bool
	// Tenants that have been told; and what has been counted for limits, once that is asked for.
	tenants map[string]bool
	spent   map[spentKey]sched.Spent
	// What tenants may send to destinations, as far as that has been told; tenants of which some of it is not known; and those
	// that have limits at places, as far as the table has said.
	quotas          map[quotaOf]bool
	places, limited map[string]bool
}

// A quotaOf is a tenant's mail for a destination.
type quotaOf struct {
	to     hop
	tenant string
}

// A spentKey names a shared limit as sched.Spent does.
type spentKey struct {
	level                sched.Level
	name, source, tenant string
}

// backlogKey is what messages of a row have in common. Without this a million messages would be as
// many rows. What is lost is of no weight: a message's back-off depends on its age, of which the
// power of two is near enough, and retries are spread over queue_run_delay in any case.
type backlogKey struct {
	to       hop    // empty: it is not known
	domain   string // of the recipients, if it is not
	tenant   string
	rcpts    int   // exact up to 8
	age      int   // the power of two of seconds
	due      int64 // in halves of minutes; 0: it is not deferred
	deferred bool
	// Held back by a limit that it shares with others, and not by its own destination.
	waits bool
}

// backlog asks for the next page.
func (s *Server) backlog(r *ipc.Request, b *backlog) {
	s.readPage(&proto.Page{Cursor: b.cursor}, func(reply *proto.PageReply) { s.takeBacklog(r, b, reply) })
}

// takeBacklog counts a page, and answers when there is enough for an answer or nothing is left.
func (s *Server) takeBacklog(r *ipc.Request, b *backlog, reply *proto.PageReply) {
	for i := range reply.Entries {
		e := &reply.Entries[i].Entry
		m, info, ok := s.view(e)
		b.seen++
		if !ok {
			continue
		}
		if info.Queue == sched.QueueHold {
			b.reply.Hold++
			continue
		}
		// A message to several destinations is in a row of each.
		known := false
		s.sched.Parts(info.ID, func(p sched.Part) {
			if known = p.Transport != ""; known {
				b.part(s, &p, &info, e.Tenant)
			}
		})
		if !known {
			b.unknown(s, m, &info, e.Tenant)
		}
	}
	if b.cursor = reply.Next; b.cursor != 0 && b.seen < backlogPage && len(b.reply.Rows)+len(b.reply.Members) < backlogRows {
		s.backlog(r, b)
		return
	}
	b.reply.Next = cursorOf(b.cursor, heldToo)
	for i := range b.reply.Tenants {
		x := &b.reply.Tenants[i]
		x.Places = b.places[x.Name]
	}
	r.Reply(&b.reply)
}

// part counts a part of a message whose destination is known.
func (b *backlog) part(s *Server, p *sched.Part, info *sched.Info, tenant string) {
	switch {
	case p.Transport == sched.RetryTransport || p.Transport == sched.ErrorTransport:
		return // it leaves the active queue at once
	case p.Paused:
		b.reply.Suspended++
		return
	}
	to := hop{p.Transport, mail.Nexthop(p.Queue)}
	if p.Beyond { // it comes back as soon as the limit has room, and its own time is of no account
		due := *info
		if due.Next = s.now; due.Attempts == 0 {
			due.Queue = sched.QueueIncoming
		}
		info = &due
	}
	b.count(s, backlogKey{to: to, tenant: tenant, rcpts: p.Rcpts, waits: p.Waits}, info)
	if !b.dests[to] {
		b.dests[to] = true
		b.reply.Dests = append(b.reply.Dests, s.backlogDest(b, p))
	}
	b.pool(s, p)
	b.quota(s, p, tenant)
}

// quota tells what a tenant may send to the destination of a part: what its mail there has been told, else what the table
// has said last. The table itself is not asked: a backlog has up to tens of thousands of destinations, and the loop would
// wait for each answer. What is not known is left out, and the tenant is named as one of which not all is known, so that
// who reads a forecast sees it.
func (b *backlog) quota(s *Server, p *sched.Part, tenant string) {
	t, k := s.opt.Settings.tenants, quotaOf{hop{p.Transport, mail.Nexthop(p.Queue)}, tenant}
	if t == nil || t.places.Empty() || tenant == "" || b.quotas[k] {
		return
	}
	if b.quotas == nil {
		b.quotas, b.places, b.limited = make(map[quotaOf]bool), make(map[string]bool), t.limited()
	}
	b.quotas[k] = true
	q, known := s.sched.QuotaOf(tenant, p.Transport, p.Queue)
	if !known {
		q, known = s.quotaFor(p, tenant)
	}
	if !known {
		b.places[tenant] = b.limited[tenant]
		return
	}
	if q == nil {
		return
	}
	x := proto.BacklogQuota{Transport: string(p.Transport), Queue: p.Queue, Tenant: tenant}
	for level := range q.Shares {
		x.Limits = b.limit(s, x.Limits, spentKey{level: sched.Level(level), name: q.Shares[level].Name, tenant: tenant}, &q.Shares[level].Limits)
	}
	b.reply.Quotas = append(b.reply.Quotas, x)
}

// quotaFor is what the table has said last of a tenant where mail goes that is not in the active queue; false: it has not been
// asked, or it is not known which site and provider that is.
func (s *Server) quotaFor(p *sched.Part, tenant string) (*sched.Quota, bool) {
	r := sched.Rcpt{Nexthop: p.Nexthop}
	d, ok := s.sched.Dest(p.Transport, p.Queue)
	if ok {
		r.Nexthop, r.Terms = d.Nexthop, d.Terms
	}
	if r.Nexthop == "" || !ok && s.opt.Settings.limits {
		return nil, false
	}
	return s.opt.Settings.tenants.latestQuota(spotOf(tenant, &r))
}

// pool tells from which other sources a part may go: the forecast has the scheduler choose, as it does here. A source from
// which nothing waits at the destination is a destination of the reply without mail.
func (b *backlog) pool(s *Server, p *sched.Part) {
	source := sched.SourceOf(p.Queue)
	if p.Pool == nil || source == "" || b.pools[p.Pool] {
		return
	}
	if b.pools == nil {
		b.pools = make(map[*sched.Pool]bool)
	}
	b.pools[p.Pool] = true
	dest := strings.TrimSuffix(p.Queue, sched.SourceQueue("", source))
	for i := range p.Pool.Members {
		mb := &p.Pool.Members[i]
		at := sched.Part{Transport: p.Transport, Queue: sched.SourceQueue(dest, mb.Source), Nexthop: p.Nexthop}
		to := hop{at.Transport, mail.Nexthop(at.Queue)}
		if !b.dests[to] {
			b.dests[to] = true
			d := s.backlogDest(b, &at)
			// What is not in memory has the terms that the pool has for it.
			if d.Source == "" {
				d.Source, d.Limits, d.Untold, d.Shared = mb.Source, b.limits(s, mb.Terms), false, true
			}
			b.reply.Dests = append(b.reply.Dests, d)
		}
		b.reply.Members = append(b.reply.Members, proto.BacklogMember{Transport: string(p.Transport), Queue: at.Queue, Weight: max(mb.Weight, 1), Wait: mb.Wait})
	}
}

// unknown counts a message of which it is not known where it goes, by the domains of its recipients
// if these are.
func (b *backlog) unknown(s *Server, m *message, info *sched.Info, tenant string) {
	if p := s.book.find(info.ID); p != nil && p.sender != 0 {
		s.book.eachDomain(p, info.Pending, func(id nameID, n int) {
			b.count(s, backlogKey{domain: s.book.names.list[id].text, tenant: tenant, rcpts: n}, info)
		})
		return
	}
	_, domains := m.domains()
	for d, n := range domains {
		b.count(s, backlogKey{domain: d, tenant: tenant, rcpts: n}, info)
	}
	if len(domains) == 0 { // nor has anybody read for whom it is
		b.count(s, backlogKey{tenant: tenant, rcpts: info.Pending}, info)
	}
}

// count adds a message to its row.
func (b *backlog) count(s *Server, k backlogKey, info *sched.Info) {
	k.rcpts = max(k.rcpts, 1)
	if k.rcpts > 8 { // one of 8 steps for each doubling is near enough
		low := bits.Len(uint(k.rcpts)) - 4
		k.rcpts = k.rcpts >> low << low
	}
	b.tenant(s, k.tenant)
	k.age = bits.Len64(uint64(max(s.now.Sub(info.Created)/time.Second, 0)))
	if k.deferred = info.Queue == sched.QueueDeferred; k.deferred {
		k.due = info.Next.Unix() / 30
	}
	i, ok := b.rows[k]
	if !ok {
		i = len(b.reply.Rows)
		b.rows[k] = i
		row := proto.BacklogRow{Transport: string(k.to.transport), Queue: string(k.to.nexthop), Domain: k.domain, Tenant: k.tenant, Rcpts: k.rcpts, Created: info.Created, Deferred: k.deferred, Waits: k.waits}
		if k.deferred {
			row.Due = info.Next
		}
		b.reply.Rows = append(b.reply.Rows, row)
	}
	b.reply.Rows[i].Count++
}

// backlogDest is what is known of the destination of a part.
func (s *Server) backlogDest(b *backlog, p *sched.Part) proto.BacklogDest {
	d := proto.BacklogDest{Transport: string(p.Transport), Queue: p.Queue, Nexthop: string(p.Nexthop)}
	// Of a destination that is not in memory the name says where it is.
	if d.Nexthop == "" {
		d.Nexthop = nexthopOf(p.Queue)
	}
	x, ok := s.sched.Dest(p.Transport, p.Queue)
	if ok {
		d.State, d.Until, d.Window = int(x.State), x.Until, x.Window
		d.Source, d.Limits, d.Learnt = x.Source, b.limits(s, x.Terms), x.Learnt != nil
		// Sums of feedback are small numbers, and may be negative.
		for i, f := range [...]float64{x.Success, x.Failure, x.Cohorts} {
			d.Feedback[i] = int64(f * 1e6)
		}
	}
	// Limits come with the answers of trivial-rewrite, and those with mail that is tried.
	d.Untold = !ok && s.opt.Settings.limits
	d.Shared = len(d.Limits) > 0 || d.Source != ""
	// What an operator has set holds in the forecast as it does here, with any settings.
	if r := limitOf(s.rules.limits, p.Transport, mail.Nexthop(d.Nexthop)); r != nil {
		d.Most, d.Raises = r.order.Most, r.order.Raises
	}
	if x := s.seen.pace.Of(hopName(p.Transport, mail.Nexthop(d.Nexthop))); x != nil {
		d.Behaviour = x.Append(nil)
	}
	return d
}

// limits are those of a destination's terms; nil: it has none.
func (b *backlog) limits(s *Server, t *sched.Terms) (list []proto.BacklogLimit) {
	if t == nil {
		return nil
	}
	for level := range t.Shares {
		list = b.limit(s, list, spentKey{level: sched.Level(level), name: t.Shares[level].Name}, &t.Shares[level].Limits)
		list = b.limit(s, list, spentKey{level: sched.Level(level), name: t.From[level].Name, source: t.Source}, &t.From[level].Limits)
	}
	return list
}

// limit adds a limit, if it limits anything.
func (b *backlog) limit(s *Server, list []proto.BacklogLimit, k spentKey, l *sched.Limits) []proto.BacklogLimit {
	if k.name == "" || *l == (sched.Limits{}) {
		return list
	}
	x := proto.BacklogLimit{Level: int(k.level), Source: k.source != "", Name: k.name, Concurrency: l.Concurrency}
	sp := b.counted(s, k)
	// What was spent of a rate by the second or the hour is paid within it, and does not matter hours ahead.
	now := s.now.UnixMicro()
	for i, r := range [...]struct {
		rate  rate.Rate
		meter *rate.Meter
	}{{l.Connections, &sp.Connections}, {l.Messages, &sp.Messages}, {l.Recipients, &sp.Recipients}, {l.Warmup, &sp.Warmup}} {
		if x.N[i], x.Per[i] = r.rate.N, r.rate.Per; r.rate.Per == rate.Day {
			x.Today[i] = r.meter.Today(now)
		}
	}
	return append(list, x)
}

// counted is what has been counted for a limit.
func (b *backlog) counted(s *Server, k spentKey) sched.Spent {
	if b.spent == nil {
		b.spent = make(map[spentKey]sched.Spent)
		for _, sp := range s.sched.Spent() {
			b.spent[spentKey{sp.Level, sp.Name, sp.Source, sp.Tenant}] = sp
		}
	}
	return b.spent[k]
}

// tenant tells what holds for a tenant, as it was looked up last. The tables are not asked for it: a forecast is no
// reason to wait for them.
func (b *backlog) tenant(s *Server, name string) {
	if s.opt.Settings.tenants == nil || name == "" || b.tenants[name] {
		return
	}
	b.tenants[name] = true
	terms, ok := s.opt.Settings.tenants.latest(name)
	x := proto.BacklogTenant{Name: name, Untold: !ok, Weight: terms.Weight, Lifetime: terms.Lifetime, BounceLifetime: terms.BounceLifetime}
	if l := b.limit(s, nil, spentKey{level: sched.TenantLimit, name: name}, &terms.Limits); l != nil {
		x.Limit = l[0]
	}
	b.reply.Tenants = append(b.reply.Tenants, x)
}
