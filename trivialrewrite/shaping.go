// What the files of shaping_files say of a destination (package shaping). It is laid on what the
// tables say: destination_limit_maps counts, and what it leaves open the files may say. Where the
// table has an entry for all destinations (*), that counts more than the default section of the files,
// and less than the others.
//
// Limits of a destination hold where its MX hosts are the same: for the site, even where
// destination_rollup is off. Where a file says something of a domain by its name (mx_rollup = false, or
// a provider's DomainSuffix), the domain is under limits of its own, and not under the site's. With
// pools the limits hold for each source, as they do with KumoMTA.

package trivialrewrite

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
	"posthaste/internal/shaping"
)

const (
	// peersTime is how often it is found out which domains of the files have which mail hosts, and
	// peersAtOnce how many questions that is at once.
	peersTime   = 5 * time.Minute
	peersAtOnce = 8
)

// A shaper has the rules of the files. All fields but those of sites.mu are set by newShaper.
type shaper struct {
	rules   *shaping.Rules
	rollups []string // domains whose sections hold for all that have their mail hosts

	// Which those are, by site, and when they are looked for again. Both are under sites.mu.
	peers map[string][]string
	again time.Time
}

// newShaper reads the files; nil: there are none. What has no effect is warned of.
func newShaper(cfg *config.Config, warn func(string)) (*shaper, error) {
	// The files are read once: a reload starts another process, which reads them again.
	files := cfg.List("shaping_files")
	if len(files) == 0 {
		return nil, nil
	}
	// A fault in a file stops the service, as one in main.cf does: at a reload the former process
	// goes on with what it has read.
	rules, warnings, err := shaping.Load(files)
	if err != nil {
		return nil, errors.New("shaping_files: " + err.Error())
	}
	// Once at the start, with the line: the file is somebody else's, and is not changed here.
	for _, w := range warnings {
		warn("shaping_files: " + w.String())
	}
	return &shaper{rules: rules, rollups: rules.Rollups()}, nil
}

// due says that it is time to look for domains with the same mail hosts. It says so once each time.
func (s *sites) due() bool {
	// Where no section is for the mail hosts of its domain there is nothing to find out.
	if s == nil || s.shaper == nil || len(s.shaper.rollups) == 0 || s.dns == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if now.Before(s.shaper.again) {
		return false
	}
	// What is under way is not waited for: it is bounded by destination_mx_timeout.
	s.shaper.again = now.Add(peersTime)
	return true
}

// findPeers asks for the mail hosts of the domains that the files have sections of. Mail does not wait for
// it: until it is known, what a file says of one domain does not hold for others.
func (s *sites) findPeers(ctx context.Context) {
	// The answers are those that mail for these domains gets, too, from the same cache. The order is
	// that of the files, whichever comes first.
	found := make([]string, len(s.shaper.rollups))
	// A file has sections of tens of domains, and those of a site of its own of hundreds. The name
	// server is not to be asked for all of them in one moment.
	turn := make(chan struct{}, peersAtOnce)
	var wg sync.WaitGroup
	for i, domain := range s.shaper.rollups {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			found[i] = siteName(s.lookup(ctx, domain))
		})
	}
	wg.Wait()
	peers := make(map[string][]string)
	for i, site := range found {
		if site != "" {
			peers[site] = append(peers[site], s.shaper.rollups[i])
		}
	}
	// All at once: an answer has either what was known before or what is known now. A site whose
	// name servers do not answer keeps what it had (lookup).
	s.mu.Lock()
	s.shaper.peers = peers
	s.mu.Unlock()
}

// query asks the files about a destination.
func (s *sites) query(x *sharing, source string) *shaping.Settings {
	// The names without their preferences: a backup MX counts, as KumoMTA has it.
	q := shaping.Query{Domain: x.hop, Source: source}
	for _, mx := range x.hosts {
		if !slices.Contains(q.Hosts, mx.Host) {
			q.Hosts = append(q.Hosts, mx.Host)
		}
	}
	// Until findPeers has ended for the first time there are none.
	s.mu.Lock()
	q.Peers = s.shaper.peers[siteName(x.hosts)]
	s.mu.Unlock()
	return s.shaper.rules.Resolve(&q)
}

// place finds where the limits of a destination belong, before they are looked at. Sites of which
// destination_rollup knows nothing are given their names here.
func (s *sites) place(ctx context.Context, x *sharing, hosts []resolver.MX) error {
	x.hosts = hosts
	// What holds because of a domain's name is the same for all sources.
	set := s.query(x, "")
	// Alone keeps the domain a destination of its own: only its limits are the site's.
	if x.site == "" {
		if x.site = siteName(hosts); x.site != "" {
			x.alone = true
		}
	}
	// A domain with an entry of its own in the table has all its limits there.
	if x.byName = set.Alone || x.own != "" && !x.star; x.byName && x.site != "" {
		x.alone = true
	}
	// Replies are counted where limits are.
	x.unit = x.hop
	if !x.byName && x.site != "" {
		x.unit = x.site
	}
	// A name of destination_provider_maps counts more. Limits of the table may be for a provider that only
	// the files know.
	if name := set.Limited; x.provider == "" && (name != "" || set.Provider != "") {
		if name == "" {
			name = set.Provider
		}
		x.provider = shaping.ProviderName(name)
		if s.limits.Empty() {
			return nil
		}
		var err error
		x.providerLimits, err = s.limit(ctx, "provider:"+x.provider)
		return err
	}
	return nil
}

// whole is where the limits of the destination are.
func (x *sharing) whole(own, site *string) *string {
	// A domain without MX hosts is a site of its own, which needs no name.
	if x.byName || x.site == "" {
		return own
	}
	return site
}

// shape lays what the files say on the limits of mail that goes from no pool.
func (s *sites) shape(x *sharing) {
	set := s.query(x, "")
	whole := x.whole(&x.own, &x.siteLimits)
	// The entry for all may have been put where the destination is not.
	if x.star && *whole == "" {
		if x.own != "" {
			*whole, x.own = x.own, ""
		} else {
			*whole, x.siteLimits = x.siteLimits, ""
		}
	}
	table, providerTable := *whole, x.providerLimits
	*whole = set.Limits(*whole, x.star)
	// Those of a provider that the table calls otherwise are no limits of the one that it names.
	if x.provider == shaping.ProviderName(set.Limited) {
		x.providerLimits = set.ProviderLimits(x.providerLimits)
	}
	// The scheduler does not look into it; the queue manager does, for automation.
	x.advice = set.Advice(x.unit, shaping.Kept(table, *whole), shaping.Kept(providerTable, x.providerLimits))
}

// shapeSource does the same for one source of a pool.
func (s *sites) shapeSource(x *sharing, m *proto.PoolMember, star bool) {
	// KumoMTA counts for each source by itself. So nothing is laid on the limits over all of them.
	set := s.query(x, m.Source)
	whole := x.whole(&m.OwnLimits, &m.SiteLimits)
	if m.OwnLimits != "" && !star {
		whole = &m.OwnLimits // a domain with an entry of its own in the table has all its limits there
	}
	// The entry for all from this source stands where it does without files. If the limits are elsewhere, it
	// goes there: else both would hold, and the narrower one always.
	if star && *whole == "" {
		if m.OwnLimits != "" {
			*whole, m.OwnLimits = m.OwnLimits, ""
		} else {
			*whole, m.SiteLimits = m.SiteLimits, ""
		}
	}
	table, providerTable := *whole, m.ProviderLimits
	*whole = set.Limits(*whole, star)
	if x.provider == shaping.ProviderName(set.Limited) {
		m.ProviderLimits = set.ProviderLimits(m.ProviderLimits)
	}
	m.Advice = set.Advice(x.unit, shaping.Kept(table, *whole), shaping.Kept(providerTable, m.ProviderLimits))
}
