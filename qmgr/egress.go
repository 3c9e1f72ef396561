// What mail goes from, on its way from trivial-rewrite to the scheduler and the agents. The
// scheduler tells pools apart by the address of a sched.Pool, so here the same answer always
// becomes the same one. It knows sources by their names; what belongs to a source is kept
// here, for the agents.

package qmgr

import (
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/internal/shaping"
	"posthaste/qmgr/sched"
)

// poolKey is all that a pool's members and their terms are made of, as it came. The members are
// a text, which is compared faster than it is read: there is one of these look-ups for each
// recipient, and a pool is made once for each destination.
type poolKey struct {
	terms termsKey // as those of mail without a pool
	hop   string   // for limits of a source that are for this next hop alone
	// The pool's name, and its members in the form of proto.DecodeMembers.
	pool, members string
}

// A knownPool is a pool that has been made.
type knownPool struct {
	pool  *sched.Pool
	specs []sourceSpec // of its members, in their order
	// What was noted when its members were gone through last: see noted.
	version uint64
	hop     string
	times   int // since then
}

// notedFor is for how many recipients a pool's members are not gone through again: there may be many of them. An address by
// which they are asked about again should be one of late mail, but need not be that of the latest.
const notedFor = 64

// noted says that all there is to note of the pool's members, for mail to a next hop, has been noted, and that nobody has
// noted anything else since.
func (p *knownPool) noted(version uint64, hop string) bool {
	if p.version != version || p.hop != hop || p.times >= notedFor {
		return false
	}
	p.times++
	return true
}

// pool is what mail goes from by the resolver's answer; nil: it has no pool. base are the
// terms that hold whatever it goes from, as of has made them of the same answer. Without
// limited it is under none of the limits of the answer, as mail that an operator diverts.
//
// It may be called by any goroutine.
func (t *terms) pool(ans *proto.ResolveReply, base *sched.Terms, whole, limited bool) *sched.Pool {
	if ans.Pool == "" {
		return nil
	}
	k := poolKey{pool: ans.Pool, members: ans.Members}
	if limited {
		k.terms, k.hop = keyOf(ans, whole), ans.Hop
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pools == nil || len(t.pools) >= maxTerms || t.pooled >= maxPooled || len(t.same) >= maxTerms || len(t.latest) >= maxTerms {
		t.pools, t.same = make(map[poolKey]*knownPool), make(map[sched.Terms]*sched.Terms)
		t.from, t.latest, t.pooled = make(map[*sched.Terms]asked), make(map[string]string), 0
		t.version++
	}
	known, ok := t.pools[k]
	// Mail that has been told of pools and terms keeps them when they are forgotten here.
	if !ok {
		known = t.newPool(&k, base)
		t.pools[k] = known
		t.pooled += len(known.specs)
	} else if known.noted(t.version, ans.Nexthop) {
		return known.pool
	}
	if t.specs == nil {
		t.specs = make(map[string]sourceSpec)
	}
	if t.latest[ans.Pool] != ans.Members {
		t.latest[ans.Pool] = ans.Members
		t.version++ // or the pool of before, when it comes back, would be taken for the latest
	}
	for i := range known.pool.Members {
		mb := &known.pool.Members[i]
		// The latest answer is right about a source, whichever pool it was in.
		if t.specs[mb.Source] != known.specs[i] {
			t.specs[mb.Source] = known.specs[i]
			t.version++
		}
		// Mail that waits for a limit of this source is asked about by this answer.
		if limited {
			t.from[mb.Terms] = asked{ans.Recipient, ans.Transport, ans.Nexthop, ans.Pool}
			if mb.Terms.Place != "" {
				t.at(ans.Nexthop, place{mb.Terms.Place, t.from[mb.Terms]})
			}
		}
	}
	// What this has changed itself is noted by now.
	known.version, known.hop, known.times = t.version, ans.Nexthop, 0
	return known.pool
}

// newPool makes a pool. trivial-rewrite has written the members, so that they have no errors.
// It is called with mu held.
func (t *terms) newPool(k *poolKey, base *sched.Terms) *knownPool {
	// The order is that of the table, so that a seed draws the same sources each time.
	list, _ := proto.DecodeMembers(k.members)
	known := &knownPool{pool: &sched.Pool{Name: k.pool}}
	for i := range list {
		m := &list[i]
		known.specs = append(known.specs, sourceSpec{m.Spec, m.Day, m.Warmup, m.Wait})
		known.pool.Members = append(known.pool.Members, sched.Member{Source: m.Source, Weight: m.Weight, Wait: m.Wait,
			Terms: t.memberTerms(k, base, m)})
	}
	return known
}

// memberTerms are base with what holds for one source besides. The same words are the same
// terms: domains of a site have one queue for a source, and so must have the same.
func (t *terms) memberTerms(k *poolKey, base *sched.Terms, m *proto.PoolMember) *sched.Terms {
	x := sched.Terms{}
	// What holds whatever the mail goes from holds for it from this source, too.
	if base != nil {
		x = *base
	}
	// The scheduler takes terms of another source for a mistake, and leaves them out.
	x.Source = m.Source
	if k.hop != "" {
		t.settings.lay(m.Source, k.hop, k.terms.site, &m.OwnLimits, &m.SiteLimits, &m.ProviderLimits, &m.Advice)
		x.Advice, x.Place = m.Advice, shaping.ParseAdvice(m.Advice).Unit
	}
	// The limits are those of a destination that it does not go to, or it goes to no host.
	if k.hop == "" {
		m.OwnLimits, m.SiteLimits, m.ProviderLimits, m.Warmup = "", "", "", 0
	}
	// What a source may send in a day while it warms up is for each provider, else for each
	// site, else for each domain.
	warms := sched.OwnLimit
	switch {
	case k.terms.provider != "":
		warms = sched.ProviderLimit
	case k.terms.site != "":
		warms = sched.SiteLimit
	}
	// As in termsKey.terms, by level. What is not limited there has no name, so that two
	// destinations that differ in nothing else have the same terms.
	for level, text := range [...]string{sched.OwnLimit: m.OwnLimits, sched.SiteLimit: m.SiteLimits, sched.ProviderLimit: m.ProviderLimits} {
		l, err := rate.ParseLimits(text)
		if text == "" || err != nil {
			l = rate.Limits{}
		}
		limits := limitsOf(&l)
		if m.Warmup > 0 && sched.Level(level) == warms {
			limits.Warmup = rate.Rate{N: m.Warmup, Per: rate.Day}
		}
		if limits != (sched.Limits{}) {
			x.From[level] = sched.Share{Name: [...]string{k.hop, k.terms.site, k.terms.provider}[level], Limits: limits}
		}
		// The least of all numbers holds.
		if l.Reuse > 0 && (x.Reuse == 0 || l.Reuse < x.Reuse) {
			x.Reuse = l.Reuse
		}
	}
	if same := t.same[x]; same != nil {
		return same
	}
	t.same[x] = &x
	return &x
}

// specOf is what agents are to be told of a source; "": nothing has been heard of it. That
// cannot be of a source in a pool. Should it be, the agent finds no address and defers the mail.
func (t *terms) specOf(source string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.specs[source].spec
}

// renewMember is the part of renew that is about a source: ans is the answer of now for where
// mail under old goes, and the result what holds in the place of old.
func (s *Server) renewMember(old *sched.Terms, ans *proto.ResolveReply) *sched.Terms {
	// The same steps as for mail that is loaded: what comes of them is the same pool, where
	// nothing has changed.
	whole := s.wholeSites(ans)
	base := s.terms.of(ans, whole)
	pool := s.terms.pool(ans, base, whole, true)
	if pool == nil {
		return old // all mail of this pool has errors now, or goes without it
	}
	// A source that has left the pool goes on under its old terms, until its mail is tried anew.
	for i := range pool.Members {
		if pool.Members[i].Source == old.Source {
			return pool.Members[i].Terms
		}
	}
	return old
}
