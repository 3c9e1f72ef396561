package whatif

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/overview"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/qmgr/sched"
)

// maxNamed is how many names a sentence about what is left out has.
const maxNamed = 5

// limitsOf are limits as the queue manager has told them.
func limitsOf(l *proto.BacklogLimit) sched.Limits {
	r := func(i int) rate.Rate { return rate.Rate{N: l.N[i], Per: l.Per[i]} }
	return sched.Limits{Concurrency: l.Concurrency, Connections: r(0), Messages: r(1), Recipients: r(2), Warmup: r(3)}
}

// setTerms makes a destination's terms of what the queue manager has told. What was counted is spent.
func (t *taking) setTerms(x *Dest, d *proto.BacklogDest) {
	if x.Source = d.Source; len(d.Limits) == 0 && d.Source == "" {
		return
	}
	x.Terms = &sched.Terms{Source: d.Source}
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Level < 0 || l.Level >= len(x.Terms.Shares) {
			continue
		}
		at, source := &x.Terms.Shares[l.Level], ""
		if l.Source {
			at, source = &x.Terms.From[l.Level], d.Source
		}
		*at = sched.Share{Name: l.Name, Limits: limitsOf(l)}
		t.spend(sched.LimitName{Level: sched.Level(l.Level), Name: l.Name, Source: source}, &l.Today)
	}
}

// spend takes note of what has been counted today for a limit, once.
func (t *taking) spend(n sched.LimitName, today *[4]int64) {
	if *today == ([4]int64{}) || t.spent[n] {
		return
	}
	if t.spent == nil {
		t.spent = make(map[sched.LimitName]bool)
	}
	t.spent[n] = true
	m := func(i int) rate.Meter {
		return rate.Meter{Date: t.Now.UnixMicro() / int64(rate.Day/time.Microsecond), Count: today[i]}
	}
	t.Spent = append(t.Spent, sched.Spent{Level: n.Level, Name: n.Name, Source: n.Source, Tenant: n.Tenant, Connections: m(0), Messages: m(1), Recipients: m(2), Warmup: m(3)})
}

// setTenant takes note of what holds for a tenant.
func (t *taking) setTenant(b *proto.BacklogTenant) {
	if t.Tenants == nil {
		t.Tenants = make(map[string]sched.TenantTerms)
	}
	// A tenant is told of in each part that has mail of it.
	if b.Places && !slices.Contains(t.places, b.Name) {
		t.places = append(t.places, b.Name)
	}
	if b.Untold {
		if !slices.Contains(t.untold, b.Name) {
			t.untold = append(t.untold, b.Name)
		}
		return
	}
	t.Tenants[b.Name] = sched.TenantTerms{Weight: b.Weight, Limits: limitsOf(&b.Limit), Lifetime: b.Lifetime, BounceLifetime: b.BounceLifetime}
	t.spend(sched.LimitName{Level: sched.TenantLimit, Name: b.Name}, &b.Limit.Today)
}

// setQuota takes note of what a tenant may send to a destination.
func (t *taking) setQuota(b *proto.BacklogQuota) {
	at, ok := t.index[destKey{mail.Transport(b.Transport), b.Queue}]
	if !ok {
		return
	}
	q := &sched.Quota{}
	for i := range b.Limits {
		l := &b.Limits[i]
		if l.Level < 0 || l.Level >= len(q.Shares) {
			continue
		}
		q.Shares[l.Level] = sched.Share{Name: l.Name, Limits: limitsOf(l)}
		t.spend(sched.LimitName{Level: sched.Level(l.Level), Name: l.Name, Tenant: b.Tenant}, &l.Today)
	}
	if t.Quotas == nil {
		t.Quotas = make(map[quotaKey]*sched.Quota)
	}
	// Mail of which it is not known yet that it goes there, or from another source, is under the same limits.
	hop := t.Dests[at].Nexthop
	t.Quotas[quotaKey{hop, b.Tenant}] = q
}

// leaveOut says what of the queue's settings is not in forecasts of the copy.
func (t *taking) leaveOut() {
	var untold, learnt []string
	var alone []string
	for i := range t.Dests {
		d := &t.Dests[i]
		name := string(d.Transport) + ":" + d.Queue
		if d.untold {
			untold = append(untold, name)
		}
		if d.learnt {
			learnt = append(learnt, name)
		}
		if d.Source != "" && d.Weight == 0 {
			alone = append(alone, name)
		}
	}
	add := func(names []string, text string) {
		if len(names) > 0 {
			t.LeftOut = append(t.LeftOut, fmt.Sprintf(text, list(names)))
		}
	}
	add(untold, "Not in the forecast: limits in common of %s, of which the queue manager learns when it tries their mail.")
	add(t.untold, "Not in the forecast: what the tables say of the tenants %s, which have not been asked since the queue manager was started.")
	add(t.places, "Not in the forecast: a part of what the tenants %s may send to one domain, site or provider (tenant_destination_limit_maps), which the queue manager looks up when it tries their mail.")
	add(learnt, "Not in the forecast: how many at once, and how fast, the answers of %s have taught (smtp_destination_adaptive). That begins anew.")
	add(alone, "Not in the forecast: other sources of the pool of %s. Mail goes from the source that it waits for, also when that one has sent what it may in a day, or fails: the queue manager knows the pool of mail that is in the active queue.")
}

// list is names in a sentence.
func list(names []string) string {
	more := len(names) - maxNamed
	text := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %s more", overview.Number(int64(more)))
	}
	return text
}

// pooled says whether mail may go from another source than it waits for.
func (m *Mail) pooled() bool {
	return slices.ContainsFunc(m.Dests, func(d Dest) bool { return d.Weight > 0 })
}

// pinned is the weight of the source that mail waits for, in the pool for that mail: so it is the one that is drawn as long as it is as
// well off as others.
const pinned = 1 << 30

// pools makes the pools of sources. What waits for a source has been drawn already, and stays there as long as that is well off; what is
// tried again is drawn by weight. A source of whose pool nothing is known has one of its own.
func (r *run) pools() {
	groups := make(map[destKey][]int)
	for i := range r.mail.Dests {
		if d := &r.mail.Dests[i]; d.Weight > 0 {
			k := destKey{d.Transport, baseQueue(d)}
			groups[k] = append(groups[k], i)
		}
	}
	for i := range r.mail.Dests {
		d, of := &r.mail.Dests[i], &r.dests[i]
		if d.Source == "" {
			continue
		}
		if d.Weight == 0 {
			of.pool = &sched.Pool{Name: d.Queue, Members: []sched.Member{{Source: d.Source, Weight: 1, Terms: of.terms, Wait: true}}}
			continue
		}
		of.members = groups[destKey{d.Transport, baseQueue(d)}]
		// The scheduler tells pools apart by their addresses.
		if first := &r.dests[of.members[0]]; first.again != nil {
			of.again = first.again
		} else {
			of.again = r.poolOf(of.members, -1)
		}
		of.pool = r.poolOf(of.members, i)
	}
}

// poolOf is a pool of destinations' sources; own is the one that mail waits for, if it waits for one.
func (r *run) poolOf(members []int, own int) *sched.Pool {
	p := &sched.Pool{Name: baseQueue(&r.mail.Dests[members[0]])}
	for _, i := range members {
		d := &r.mail.Dests[i]
		mb := sched.Member{Source: d.Source, Weight: d.Weight, Wait: d.Wait, Terms: r.dests[i].terms}
		if i == own {
			mb.Weight = pinned
		}
		p.Members = append(p.Members, mb)
	}
	return p
}

// from is the destination of a delivery from a source, of mail that waits for one.
func (r *run) from(dest int, source string) int {
	for _, i := range r.dests[dest].members {
		if r.mail.Dests[i].Source == source {
			return i
		}
	}
	return dest
}

// down says whether mail for a destination cannot leave: neither from its source nor from another one of the pool.
func (r *run) down(dest int) bool {
	d := &r.dests[dest]
	return d.down && !slices.ContainsFunc(d.members, func(i int) bool { return !r.dests[i].down })
}

// limited says whether there are limits by rate, which count messages. They hold for several destinations, so that one
// message must stand for as many everywhere.
func (m *Mail) limited() bool {
	rated := func(l *sched.Limits) bool {
		return l.Connections.N+l.Messages.N+l.Recipients.N+l.Warmup.N > 0
	}
	for i := range m.Dests {
		if t := m.Dests[i].Terms; t != nil {
			for k := range t.Shares {
				if rated(&t.Shares[k].Limits) || rated(&t.From[k].Limits) {
					return true
				}
			}
		}
	}
	for _, t := range m.Tenants {
		if rated(&t.Limits) {
			return true
		}
	}
	for _, q := range m.Quotas {
		for k := range q.Shares {
			if rated(&q.Shares[k].Limits) {
				return true
			}
		}
	}
	return false
}

// slower is a rate for a run in which one message stands for so many.
func slower(r rate.Rate, by float64) rate.Rate {
	switch {
	case r.IsZero() || by <= 1:
	case r.Per == rate.Day:
		r.N = max(int64(float64(r.N)/by+0.5), 1)
	default:
		// Fewer in the same time would be too rough for rates of few.
		if r.Per = time.Duration(float64(r.Per) * by); r.Per == rate.Day {
			r.Per += time.Millisecond // that would be by the calendar
		}
	}
	return r
}

func slowerLimits(l sched.Limits, by float64) sched.Limits {
	l.Connections, l.Messages = slower(l.Connections, by), slower(l.Messages, by)
	l.Recipients, l.Warmup = slower(l.Recipients, by), slower(l.Warmup, by)
	return l
}

// share prepares limits in common, sources and tenants for a run in which one message stands for so many.
func (r *run) share(by float64) {
	for i := range r.mail.Dests {
		d := &r.mail.Dests[i]
		if d.Terms == nil {
			continue
		}
		t := *d.Terms
		for k := range t.Shares {
			t.Shares[k].Limits = slowerLimits(t.Shares[k].Limits, by)
			t.From[k].Limits = slowerLimits(t.From[k].Limits, by)
		}
		r.dests[i].terms = &t
	}
	r.pools()
	for name, t := range r.mail.Tenants {
		if r.tenants == nil {
			r.tenants = make(map[string]sched.TenantTerms)
		}
		t.Limits = slowerLimits(t.Limits, by)
		r.tenants[name] = t
	}
	for k, q := range r.mail.Quotas {
		if r.quotas == nil {
			r.quotas = make(map[quotaKey]*sched.Quota)
		}
		x := *q
		for l := range x.Shares {
			x.Shares[l].Limits = slowerLimits(x.Shares[l].Limits, by)
		}
		r.quotas[k] = &x
	}
	spent := slices.Clone(r.mail.Spent)
	for i := range spent {
		s := &spent[i]
		for _, m := range []*rate.Meter{&s.Connections, &s.Messages, &s.Recipients, &s.Warmup} {
			m.Count = int64(float64(m.Count) / max(by, 1))
		}
	}
	r.s.RestoreSpent(r.mail.Now, spent)
}
