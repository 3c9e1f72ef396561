// Limits of destinations, on their way from trivial-rewrite, which reads the tables and the
// DNS, to the scheduler, which keeps them. trivial-rewrite says of each recipient what holds
// where it goes. The scheduler tells limits apart by the address of a sched.Terms, so here
// the same words always become the same one.

package qmgr

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/internal/shaping"
	"posthaste/qmgr/sched"
)

const (
	// maxTerms bounds the different terms that are remembered. Strangers choose
	// destinations; when there are too many all are forgotten, and mail that comes brings
	// its own again.
	maxTerms = 50000
	// maxPooled bounds the members of all pools that are remembered: there is a pool for each
	// destination, and it may have many members.
	maxPooled = 4 * maxTerms
	// termsTime is how often destinations that wait for a limit are asked about again: a
	// table may have changed, and no mail may come that would bring the news.
	termsTime = time.Minute
	// termsAtOnce bounds how many are asked about each time.
	termsAtOnce = 100
	// sitePrefix begins the name of a destination that is a site. No next hop looks like
	// that: behind the colon of a next hop is a port, and behind this one a name with a dot.
	sitePrefix = "site:"
)

// terms are the limits that are known. mu guards the maps: recipients are looked at by tasks
// as well as by the loop.
type terms struct {
	mu    sync.Mutex
	known map[termsKey]*sched.Terms
	// For each, the latest answer that it came with, to ask again.
	from map[*sched.Terms]asked
	// Pools of sources, their members' terms by what they are, and what agents are to be told
	// of each source, which is as many as the tables have (egress.go).
	pools  map[poolKey]*knownPool
	pooled int // members of all of pools
	same   map[sched.Terms]*sched.Terms
	specs  map[string]sourceSpec
	// It is another number once what the maps here have of pools' sources or of next hops' places has changed.
	version uint64
	// The members of each pool, as they were in the latest answer.
	latest map[string]string
	// The site of each next hop that has one, for "posthaste explain".
	sites map[string]string
	// Where the replies of each next hop count, and its limits are, with shaping_files.
	units map[string]place
	// Sites that next hops have left since the last look: mail that came later has brought the news, and
	// the next hop is not found under its former site any more. Bounded as the others are.
	left map[string]bool
	// What rules of automation have set; nil: nothing.
	settings *settingSet
	// The answer of which terms were made last.
	last lastTerms
	// When waiting destinations are asked about next. It belongs to the loop.
	again time.Time
}

// A place is where the replies of a next hop count, and the answer that said so.
type place struct {
	unit  string
	asked asked
}

// asked is a question that was answered with terms, and where mail went by that answer.
//
// The address is one of many that go there, and need not be queued any more: what is asked
// for is what holds for all of them.
type asked struct {
	addr, transport, nexthop string
	pool                     string // "": the terms are not those of one source
}

// lastTerms is what was made of an answer. Much mail goes where the mail before it went.
type lastTerms struct {
	key     termsKey // of what settings had laid on it
	nexthop string
	terms   *sched.Terms
	version uint64 // of terms; another one says that more was noted, or forgotten, since
	times   int    // how often it was the same since
}

// termsKey is all that terms are made of. whole says that the site is the destination. hop is
// only set where the next hop has limits of its own: else each domain of a site would have
// terms of its own, and one queue could not have them all. The limits are texts, as they
// came, which are compared faster than they are read.
type termsKey struct {
	whole                  bool
	hop, site, provider    string
	ownL, siteL, providerL string
	advice                 string
}

// of is what holds for a recipient, by the resolver's answer; nil: nothing does, or what
// does was said as "none". whole says that destinations of the transport may be sites:
// those that are one recipient each may not, but can have limits in common.
func (t *terms) of(ans *proto.ResolveReply, whole bool) *sched.Terms {
	if ans.Site == "" && ans.Provider == "" && ans.OwnLimits == "" && ans.ProviderLimits == "" && ans.Advice == "" {
		return nil
	}
	// Loads of many messages come here at once, and none stays for long.
	t.mu.Lock()
	defer t.mu.Unlock()
	// The answer is the client's, which keeps it.
	if set := t.settings; set != nil {
		with := *ans
		set.lay("", ans.Hop, ans.Site, &with.OwnLimits, &with.SiteLimits, &with.ProviderLimits, &with.Advice)
		with.Alone = ans.Alone || set.ofDomain(ans.Hop)
		ans = &with
	}
	k := keyOf(ans, whole)
	last := &t.last
	if last.times < notedFor && last.version == t.version && last.nexthop == ans.Nexthop && last.key == k {
		last.times++
		return last.terms
	}
	// Terms that are in use go on to hold when they are forgotten here.
	if t.known == nil || len(t.known) >= maxTerms || len(t.sites) >= maxTerms || len(t.from) >= 2*maxTerms {
		t.known, t.from, t.sites = make(map[termsKey]*sched.Terms), make(map[*sched.Terms]asked), make(map[string]string)
		t.version++
	}
	terms, ok := t.known[k]
	if !ok {
		terms = k.terms()
		t.known[k] = terms
	}
	*last = lastTerms{key: k, nexthop: ans.Nexthop, version: t.version}
	if terms == nil {
		return nil
	}
	t.from[terms] = asked{ans.Recipient, ans.Transport, ans.Nexthop, ""}
	if terms.Place != "" {
		t.at(ans.Nexthop, place{terms.Place, t.from[terms]})
	}
	if k.whole {
		t.sites[strings.ToLower(ans.Nexthop)] = k.site
	}
	last.terms, last.version = terms, t.version // what this has changed itself is noted by now
	return terms
}

// keyOf is what terms are made of by an answer.
func keyOf(ans *proto.ResolveReply, whole bool) termsKey {
	k := termsKey{whole: whole && ans.Site != "" && !ans.Alone, site: ans.Site, provider: ans.Provider,
		ownL: ans.OwnLimits, siteL: ans.SiteLimits, providerL: ans.ProviderLimits, advice: ans.Advice}
	// A site's domains have the same terms, if they have none of their own.
	if k.ownL != "" {
		k.hop = strings.ToLower(ans.Nexthop)
	}
	return k
}

// limitsOf are limits as the scheduler has them.
func limitsOf(l *rate.Limits) sched.Limits {
	return sched.Limits{Concurrency: l.Concurrency, Connections: l.Connections, Messages: l.Messages, Recipients: l.Recipients}
}

// wholeSites says whether destinations of an answer's transport may be sites.
func (s *Server) wholeSites(ans *proto.ResolveReply) bool {
	return s.opt.Settings.batchLimit(mail.Transport(ans.Transport)) != 1
}

// terms makes the terms that k says; nil when they say nothing. trivial-rewrite has read the
// limits and written them anew, so that they have no errors.
func (k *termsKey) terms() *sched.Terms {
	x := &sched.Terms{Rollup: k.whole, Advice: k.advice, Place: shaping.ParseAdvice(k.advice).Unit}
	some := k.whole || k.advice != "" || k.provider != "" // deliveries are counted by provider, limits or not
	for level, text := range [...]string{sched.OwnLimit: k.ownL, sched.SiteLimit: k.siteL, sched.ProviderLimit: k.providerL} {
		l, err := rate.ParseLimits(text)
		if text == "" || err != nil {
			l = rate.Limits{}
		}
		// A name without limits bounds nothing; it is kept for those who look.
		sh := &x.Shares[level]
		sh.Name = [...]string{k.hop, k.site, k.provider}[level]
		sh.Limits = limitsOf(&l)
		// All of them hold, and so the least of the numbers does.
		if l.Reuse > 0 && (x.Reuse == 0 || l.Reuse < x.Reuse) {
			x.Reuse = l.Reuse
		}
		some = some || l != rate.Limits{}
	}
	if !some {
		return nil
	}
	return x
}

// providerOf is who is behind a destination with such terms, else its site; "": neither is known.
func providerOf(x *sched.Terms) string {
	return cmp.Or(x.Shares[sched.ProviderLimit].Name, x.Shares[sched.SiteLimit].Name)
}

// place puts a recipient that has terms or a pool where they say: mail for a site is the site's, and
// each delivery has its recipients' next hop.
func (t *terms) place(r *sched.Rcpt) {
	switch {
	case r.Transport == sched.RetryTransport || r.Transport == sched.ErrorTransport:
		r.Terms, r.Pool = nil, nil // it does not go there after all
	case r.Terms != nil && r.Terms.Rollup:
		r.Queue = sitePrefix + r.Terms.Shares[sched.SiteLimit].Name
		r.Nexthop = mail.Nexthop(strings.ToLower(string(r.Nexthop)))
	}
}

// at notes where the replies of a next hop count. It is called with mu held.
func (t *terms) at(hop string, p place) {
	if t.units == nil || len(t.units) >= maxTerms {
		t.units = make(map[string]place)
		t.version++
	}
	hop = strings.ToLower(hop)
	old := t.units[hop].unit
	if old == p.unit {
		return
	}
	t.units[hop] = p
	t.version++
	// What waits for the site of before has nobody else who asks where it belongs.
	if old != "" && len(t.left) < maxTerms {
		if t.left == nil {
			t.left = make(map[string]bool)
		}
		t.left[old] = true
	}
}

// leftOf are those of the sites that next hops have left since it was called last. The others are forgotten: nothing is
// parked for a site that is not suspended, and what is parked for one later is parked by where it belongs then.
func (t *terms) leftOf(sites map[string]bool) (found []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for site := range t.left {
		if sites[site] {
			found = append(found, site)
		}
	}
	t.left = nil
	return found
}

// under are next hops whose replies count at one of the sites, a bounded number of them, with their questions.
func (t *terms) under(sites map[string]bool) map[string]place {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := make(map[string]place)
	for hop, p := range t.units {
		if sites[p.unit] && len(found) < termsAtOnce {
			found[hop] = p
		}
	}
	return found
}

// unitOf is where they do; "": nothing is known.
func (t *terms) unitOf(hop string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.units[strings.ToLower(hop)].unit
}

// setSettings has other settings laid on what is made from now on.
func (t *terms) setSettings(set *settingSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Terms that are in use go on to hold until they are renewed; where they came from is kept for that.
	t.settings = set
	t.known, t.pools, t.same, t.pooled = make(map[termsKey]*sched.Terms), make(map[poolKey]*knownPool), make(map[sched.Terms]*sched.Terms), 0
	t.last = lastTerms{}
	if t.from == nil {
		t.from, t.sites = make(map[*sched.Terms]asked), make(map[string]string)
	}
	if t.latest == nil {
		t.latest = make(map[string]string)
	}
}

// placeOf is where the replies to a recipient's mail count, by its terms; "": nowhere.
func placeOf(r *sched.Rcpt) string {
	switch {
	case r.Pool != nil && len(r.Pool.Members) > 0 && r.Pool.Members[0].Terms != nil:
		return r.Pool.Members[0].Terms.Place
	case r.Terms != nil:
		return r.Terms.Place
	}
	return ""
}

// siteOf is the site of a next hop; "" when none is known.
func (t *terms) siteOf(hop string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sites[strings.ToLower(hop)]
}

// askAgain has the resolver asked about destinations that wait for a limit, and tells the
// scheduler what has changed. It is called once a turn.
func (s *Server) askAgain() {
	t := &s.terms
	if !s.opt.Settings.limits || s.now.Before(t.again) {
		return
	}
	// At the start there is nothing to ask about yet.
	first := t.again.IsZero()
	t.again = s.now.Add(termsTime)
	if first {
		return
	}
	// What waits for a site that is suspended may be another's by now.
	suspended := s.rules.sites()
	// Mail that came since may have said so already; else the resolver is asked. Once a minute, however often
	// a domain changes its hosts: all that is parked for the site is read anew.
	for _, site := range t.leftOf(suspended) {
		s.renumber(site)
	}
	for hop, p := range t.under(suspended) {
		s.tasks.Go(func() { s.findMoved(hop, p) })
	}
	waiting := make(map[*sched.Terms]bool)
	s.sched.Dests(func(d sched.Dest) bool {
		if d.Gate != "" || d.Terms != nil && suspended[d.Terms.Place] {
			waiting[d.Terms] = true
		}
		return len(waiting) < termsAtOnce
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	for old := range waiting {
		if q, ok := t.from[old]; ok {
			s.tasks.Go(func() { s.renew(old, q) })
		}
	}
}

// findMoved asks whether the mail of a next hop still counts at its site. If not, what waits for that site is looked at anew:
// the MX hosts of a domain may change while it is suspended. It runs in a task.
func (s *Server) findMoved(hop string, p place) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.ResolveTime)
	defer cancel()
	ans, err := s.opt.Resolver.ResolveFrom(ctx, "", p.asked.addr, p.asked.pool)
	if err != nil || ans.Flags&(proto.ResolveFail|proto.ResolveError) != 0 || ans.Transport != p.asked.transport || ans.Nexthop != p.asked.nexthop {
		return
	}
	// Without an answer, or without files, nothing is known of it: it waits on.
	now := shaping.ParseAdvice(ans.Advice).Unit
	if now == "" || now == p.unit {
		return
	}
	s.terms.mu.Lock()
	s.terms.at(hop, place{now, p.asked})
	delete(s.terms.left, p.unit) // it is looked at right away
	s.terms.mu.Unlock()
	// Several domains may have left; each has the rules of the site numbered anew, once a minute at most.
	s.post(func() { s.renumber(p.unit) }, sched.Event{})
}

// termsNow are what an answer says in the place of terms.
func (s *Server) termsNow(old *sched.Terms, pool string, ans *proto.ResolveReply) *sched.Terms {
	if pool != "" {
		return s.renewMember(old, ans)
	}
	return s.terms.of(ans, s.wholeSites(ans))
}

// renew asks whether other terms hold in the place of old. It runs in a task. Mail that
// would go another way now is left alone: that is found out with its next attempt.
func (s *Server) renew(old *sched.Terms, q asked) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.ResolveTime)
	defer cancel()
	// Without a sender: what depends on one goes its own way, and then the answer is not
	// for this destination.
	ans, err := s.opt.Resolver.ResolveFrom(ctx, "", q.addr, q.pool)
	if err != nil || ans.Flags&(proto.ResolveFail|proto.ResolveError) != 0 || ans.Transport != q.transport || ans.Nexthop != q.nexthop {
		return
	}
	terms := s.termsNow(old, q.pool, &ans)
	// What was a destination of its own, for a setting that has ended, stays one until its mail is tried anew; the setting
	// must not hold until then.
	if terms != nil && terms.Rollup && !old.Rollup && !ans.Alone {
		ans.Alone = true
		terms = s.termsNow(old, q.pool, &ans)
	}
	if terms == old || (terms != nil && terms.Rollup) != old.Rollup || old.Rollup && terms.Shares[sched.SiteLimit].Name != old.Shares[sched.SiteLimit].Name {
		return
	}
	// Whoever has the old terms by then gets the new ones. The list is made first: an event
	// that is carried out changes what is listed.
	s.post(func() {
		var list []sched.Dest
		s.sched.Dests(func(d sched.Dest) bool {
			if d.Terms == old {
				list = append(list, d)
			}
			return true
		})
		for _, d := range list {
			s.then(sched.Event{Kind: sched.EventTerms, Transport: d.Transport, Site: d.Queue, Terms: terms})
		}
	}, sched.Event{})
}
