// What a tenant may send to one place (tenant_destination_limit_maps): to a domain, to a site, to a provider. The
// table is asked when mail of the tenant for the place is loaded, and not again for a minute, as those of tenants.go;
// what was said goes to the scheduler with each recipient. A recipient's place is known when trivial-rewrite has said
// where it goes, so this comes after that.

package qmgr

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"posthaste/qmgr/sched"
)

// maxQuotas bounds the places of tenants of which it is remembered what holds. Strangers choose domains; when there are too
// many all are forgotten, and asked for again.
const maxQuotas = 50000

// A spot is a tenant's mail for one place: what the table is asked for. Where there is no site, no provider, or no
// host, the name is empty.
type spot struct{ tenant, hop, site, provider string }

// spotOf is where mail of a tenant goes with these terms. Domains that are one destination are limited together: one of
// them could have no limit of its own.
func spotOf(tenant string, r *sched.Rcpt) spot {
	x := spot{tenant: tenant}
	if t := r.Terms; t != nil {
		x.site, x.provider = t.Shares[sched.SiteLimit].Name, t.Shares[sched.ProviderLimit].Name
	}
	if r.Terms == nil || !r.Terms.Rollup {
		x.hop, _ = r.Nexthop.Host()
	}
	return x
}

// spotAgain is the spot of which a quota was said.
func spotAgain(tenant string, q *sched.Quota) spot {
	return spot{tenant, q.Shares[sched.OwnLimit].Name, q.Shares[sched.SiteLimit].Name, q.Shares[sched.ProviderLimit].Name}
}

// A quota is what was said of a spot, and when; nil: nothing holds.
type quota struct {
	is *sched.Quota
	at time.Time
}

// recallQuota is what is known of a spot, if that is of now.
func (t *tenancies) recallQuota(x spot, now time.Time) (*sched.Quota, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.quotas[x]
	return k.is, ok && now.Sub(k.at) < tenantTime && !now.Before(k.at)
}

// latestQuota is what was said of a spot last, however long ago.
func (t *tenancies) latestQuota(x spot) (*sched.Quota, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.quotas[x]
	return k.is, ok
}

// askQuota is what holds at a spot, from the table if it is not known as of now. It may wait for that. inVain is how long the
// caller has waited for answers that did not come: after tenantPatience the table is not asked any more. A message may be for
// thousands of domains, and its load would wait for each.
func (t *tenancies) askQuota(ctx context.Context, x spot, inVain *time.Duration) (*sched.Quota, error) {
	now := time.Now()
	if q, ok := t.recallQuota(x, now); ok {
		return q, nil
	}
	var found *sched.Quota
	err := errMute
	if *inVain < tenantPatience {
		err = t.consult(ctx, func(ctx context.Context) (err error) {
			found, err = t.lookQuota(ctx, x)
			return err
		})
		if err != nil {
			*inVain += time.Since(now)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old, known := t.quotas[x]
	if err != nil {
		if known { // it was right once
			return old.is, nil
		}
		return nil, err
	}
	// The scheduler tells quotas apart by their addresses.
	if found != nil && old.is != nil && *found == *old.is {
		found = old.is
	}
	if t.quotas == nil || len(t.quotas) >= maxQuotas {
		t.quotas = make(map[spot]quota)
	}
	t.quotas[x] = quota{found, now}
	return found, nil
}

// limited are the tenants that were said to have a limit at some place.
func (t *tenancies) limited() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := make(map[string]bool)
	for x, q := range t.quotas {
		if q.is != nil {
			found[x.tenant] = true
		}
	}
	return found
}

// lookQuota asks the table. An entry of the tenant counts more than one of all tenants (*), and what holds for each place
// (*) is for those without an entry: it bounds what goes to the provider, else to the site, else to the domain.
func (t *tenancies) lookQuota(ctx context.Context, x spot) (*sched.Quota, error) {
	q, some, entries := &sched.Quota{}, false, false
	widest := sched.OwnLimit
	for level, name := range [...]string{sched.OwnLimit: x.hop, sched.SiteLimit: x.site, sched.ProviderLimit: x.provider} {
		if name == "" {
			continue
		}
		widest = sched.Level(level)
		q.Shares[level].Name = name
		key := name
		if sched.Level(level) != sched.OwnLimit {
			key = sched.Level(level).String() + ":" + name
		}
		l, found, err := t.quotaEntry(ctx, x.tenant, key)
		if err != nil {
			return nil, err
		}
		q.Shares[level].Limits = l
		some, entries = some || l != (sched.Limits{}), entries || found
	}
	if !entries && q.Shares[widest].Name != "" {
		l, _, err := t.quotaEntry(ctx, x.tenant, "*")
		if err != nil {
			return nil, err
		}
		q.Shares[widest].Limits = l
		some = l != (sched.Limits{})
	}
	if !some {
		return nil, nil
	}
	return q, nil
}

// quotaEntry is the entry of a tenant for a place, or that of all tenants.
func (t *tenancies) quotaEntry(ctx context.Context, tenant, place string) (sched.Limits, bool, error) {
	for _, who := range [...]string{tenant, "*"} {
		key := who + " at " + place
		value, found, err := t.places.Lookup(ctx, key, who == "*")
		if err != nil {
			return sched.Limits{}, false, err
		}
		if !found {
			continue
		}
		var terms sched.TenantTerms
		if err := readTenantLimits(&terms, value); err != nil {
			t.complain(t.places.Title() + ": " + key + ": " + err.Error())
		}
		return terms.Limits, true, nil
	}
	return sched.Limits{}, false, nil
}

// knowQuota finds out what holds for a recipient's tenant where it goes. It returns false when that has to be waited for,
// and l must not wait. Mail that cannot be asked about is deferred: to let it go could break a promise to a provider.
func (s *Server) knowQuota(l *loading, r *loadedRcpt) bool {
	t := s.opt.Settings.tenants
	if t == nil || t.places.Empty() || l.env.Tenant == "" || !r.away || r.Transport == sched.RetryTransport || r.Transport == sched.ErrorTransport {
		return true
	}
	x := spotOf(l.env.Tenant, &r.Rcpt)
	if x.hop == "" && x.site == "" && x.provider == "" {
		return true // it goes to no host
	}
	if !l.asks {
		var known bool
		r.Quota, known = t.recallQuota(x, time.Now())
		return known
	}
	ctx, cancel := context.WithTimeout(s.ctx, min(tenantPatience, s.opt.ResolveTime))
	defer cancel()
	var err error
	if r.Quota, err = t.askQuota(ctx, x, &l.inVain); err == nil {
		return true
	}
	if s.ctx.Err() == nil && !l.unresolved { // one line for a load, however many recipients it has
		l.unresolved = true
		s.opt.Log.Warning("%s: tenant %s: %v", l.id, l.env.Tenant, err)
	}
	r.Transport, r.Nexthop, r.Terms, r.Pool = sched.RetryTransport, "4.3.0 tenant lookup failure", nil, nil
	return true
}

// askQuotas has the table asked about mail that waits for a limit of its tenant at a place, once a minute: no mail may come
// that would bring the news that the table has changed.
func (s *Server) askQuotas() {
	t := s.opt.Settings.tenants
	if t == nil || t.places.Empty() {
		return
	}
	var list []sched.Waiter
	s.sched.Waiters(func(w sched.Waiter) bool {
		list = append(list, w)
		return len(list) < termsAtOnce
	})
	if len(list) == 0 {
		return
	}
	s.tasks.Go(func() {
		var inVain time.Duration
		for _, w := range list {
			ctx, cancel := context.WithTimeout(s.ctx, min(tenantPatience, s.opt.ResolveTime))
			q, err := t.askQuota(ctx, spotAgain(w.Tenant, w.Quota), &inVain)
			cancel()
			if err != nil {
				return // what holds goes on to hold
			}
			if q != w.Quota {
				s.post(nil, sched.Event{Kind: sched.EventQuota, Transport: w.Dest.Transport, Site: w.Dest.Queue, Tenant: w.Tenant, Quota: q})
			}
		}
	})
}

// quotaRows bounds the limits at places that are named of one tenant.
const quotaRows = 20

// quotaLines says what limits a tenant has at places, as far as mail goes there: those that most waits for first.
func (s *Server) quotaLines(tenant string) (lines []string) {
	var list []sched.SharedLimit
	s.sched.Quotas(tenant, func(l sched.SharedLimit) bool {
		list = append(list, l)
		return true
	})
	slices.SortFunc(list, func(a, b sched.SharedLimit) int {
		return cmp.Or(cmp.Compare(b.Backlog+b.Parked, a.Backlog+a.Parked), cmp.Compare(a.Level, b.Level), cmp.Compare(a.Name, b.Name))
	})
	for i := range list {
		if i == quotaRows {
			return append(lines, fmt.Sprintf("  and %d more limits at places", len(list)-i))
		}
		lines = append(lines, "  limit of "+list[i].String()+": "+limitText(&list[i]))
	}
	return lines
}
