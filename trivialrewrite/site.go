// What destinations share. Providers limit what comes to all of their customers' domains
// together, so limits have to be for more than one domain. Two things say which domains
// belong together: their MX hosts, and a table that names providers.
//
// A site is the set of MX hosts that a next hop has. With destination_rollup, domains with
// the same set are one destination of the queue manager's. A provider is named by
// destination_provider_maps, for the name or the domain of an MX host. Only the hosts of the
// best preference are asked about, and the first that is in the table decides: a backup MX
// that somebody else runs does not make the domain somebody else's. In the same way the
// first of several next hops decides for all.
//
// When the DNS does not answer, mail does not wait for it. What was known of the domain
// before is used, and a domain of which nothing is known is a destination of its own.

package trivialrewrite

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
)

const (
	// maxSiteName bounds the names of sites, which are in log lines and listings. A longer
	// one is replaced by its beginning and a number made of the whole.
	maxSiteName = 120
	// siteMark stands behind the beginning of a name that is made shorter. No name of a host has it.
	siteMark = "+"
	// quietTime is how long a domain whose name servers did not answer is not asked about
	// again: each question would wait for the time limit.
	quietTime = time.Minute
	// maxHosts bounds the domains of which the last answer is remembered.
	maxHosts = 20000
	// maxComplaints bounds the values that are complained of, once each.
	maxComplaints = 1000
)

// offHost are the classes of addresses whose mail leaves this host.
const offHost = proto.ResolveDefault | proto.ResolveRelay

// A sharing says what is limited for a next hop, in the terms of proto.ResolveReply.
type sharing struct {
	// The name of the next hop; empty: it is no host.
	hop string
	// Names; empty where there is no site, or no provider.
	site, provider string
	// The next hop has limits of its own, and is a destination of its own within its site.
	alone bool
	// Limits in the way in which rate.Limits prints them; empty: no entry. "none" is an
	// entry, and means that those for all do not hold.
	own, siteLimits, providerLimits string

	// With shaping_files: the mail hosts; where the limits of the destination are, its name, and whether that
	// is its own and not that of a site; that its limits are those for all destinations; and what goes with it
	// to the agent.
	hosts  []resolver.MX
	unit   string
	byName bool
	star   bool
	advice string
}

// sites finds what next hops share. It is set up by newSites, and only mu's fields are
// changed later.
type sites struct {
	// Where destinations are sites: everywhere, or for these transports.
	rollupAll bool
	rollup    []string
	// Tables are nil-safe: an empty one answers nothing, without being asked.
	providers *table.Maps   // destination_provider_maps
	limits    *table.Maps   // destination_limit_maps
	timeout   time.Duration // destination_mx_timeout
	warn      func(string)
	shaper    *shaper // shaping_files; nil: there are none
	// The service sets it where mail hosts matter. nil: domains have no sites and no
	// providers.
	dns mxLookup
	now func() time.Time // the clock, or that of a test

	mu sync.Mutex
	// What the DNS last said, by domain, for when it says nothing. The resolver has its own
	// cache, which goes by the TTL; this one is only looked at when that has no answer.
	known map[string]knownHosts
	// Texts that were complained of. It only grows, up to maxComplaints.
	said map[string]bool
}

// mxLookup is the part of a resolver that is needed here.
type mxLookup interface {
	MX(ctx context.Context, domain string) (resolver.Answer[resolver.MX], error)
}

// knownHosts is what the DNS last said of a domain.
type knownHosts struct {
	// By preference, then by name; empty: it has none. Names are in lower case, without a
	// dot at the end.
	hosts []resolver.MX
	// The domain is not to be asked about before; zero: it may be.
	quiet time.Time
}

// newSites reads the parameters. It returns nil when nothing is limited, and there are no pools
// of sources, which may be: then nothing of this costs anything. A limit for all destinations that is not understood is an error: that
// one can be read ahead.
func newSites(cfg *config.Config, maps func(name string) *table.Maps, pools bool, warn func(string)) (*sites, error) {
	s := &sites{providers: maps("destination_provider_maps"), limits: maps("destination_limit_maps"),
		timeout: cfg.Duration("destination_mx_timeout"), warn: warn, now: time.Now,
		known: make(map[string]knownHosts), said: make(map[string]bool)}
	// A transport may be called anything but yes or no.
	switch list := cfg.List("destination_rollup"); {
	case len(list) == 1 && strings.EqualFold(list[0], "yes"):
		s.rollupAll = true
	case len(list) == 1 && strings.EqualFold(list[0], "no"):
	default:
		s.rollup = list
	}
	shaper, err := newShaper(cfg, warn)
	if s.shaper = shaper; err != nil {
		return s, err
	}
	if !pools && shaper == nil && !s.rollupAll && len(s.rollup) == 0 && s.limits.Empty() && s.providers.Empty() {
		return nil, nil
	}
	// A table that cannot be read yet is one that must be read later.
	if text, found, err := s.limits.Lookup(context.Background(), "*", false); err == nil && found {
		if _, err := rate.ParseLimits(text); err != nil {
			return s, fmt.Errorf("destination_limit_maps: the limits of *: %w", err)
		}
	}
	return s, nil
}

// asksDNS says whether mail hosts matter.
func (s *sites) asksDNS() bool {
	return s != nil && (s.shaper != nil || s.rollupAll || len(s.rollup) > 0 || !s.providers.Empty())
}

// rollsUp says whether the destinations of a transport are sites.
func (s *sites) rollsUp(t mail.Transport) bool {
	return s.rollupAll || slices.Contains(s.rollup, string(t))
}

// share finds what is limited for where res goes. An error is a table that could not be
// read: without knowing the limits, mail must wait.
func (s *sites) share(ctx context.Context, res *Result) (x sharing, err error) {
	if res.Transport == transportError || res.Transport == transportRetry || res.Flags&proto.ResolveError != 0 {
		return x, nil
	}
	hop, hosts := s.hosts(ctx, res)
	// Agents that deliver to sockets and programs are limited by their own parameters.
	if hop == "" {
		return x, nil
	}
	x.hop = hop
	if x.provider, err = s.provider(ctx, hosts); err != nil {
		return sharing{}, err
	}
	if s.rollsUp(res.Transport) {
		x.site = siteName(hosts)
	}
	err = s.findLimits(ctx, hop, res.Flags&offHost != 0, &x)
	if err == nil && s.shaper != nil && res.Flags&offHost != 0 {
		err = s.place(ctx, &x, hosts)
	}
	return x, err
}

// findLimits looks up the limits of the destination, its site and its provider. A domain
// that has limits of its own is a destination of its own. What holds for all (*) holds for
// the destination as it is, the site or the domain, if mail leaves this host for it.
func (s *sites) findLimits(ctx context.Context, hop string, leaves bool, x *sharing) (err error) {
	if s.limits.Empty() {
		return nil
	}
	if x.own, err = s.limit(ctx, hop); err != nil {
		return err
	}
	x.alone = x.own != "" && x.site != ""
	whole := &x.own
	if x.site != "" {
		if x.siteLimits, err = s.limit(ctx, "site:"+x.site); err != nil {
			return err
		}
		whole = &x.siteLimits
	}
	if leaves && *whole == "" && x.own == "" {
		if *whole, err = s.limit(ctx, "*"); err != nil {
			return err
		}
		x.star = *whole != ""
	}
	if x.provider != "" {
		x.providerLimits, err = s.limit(ctx, "provider:"+x.provider)
	}
	return err
}

// limit looks one key up, and returns its limits in the one way of writing them; "" for
// none. Limits of which not all is understood are complained of. What is understood holds,
// and besides there is one delivery at a time: whoever wrote them wanted fewer than come
// without, and mail that goes slowly is noticed before a provider blocks us.
func (s *sites) limit(ctx context.Context, key string) (string, error) {
	text, found, err := s.limits.Lookup(ctx, key, false)
	if err != nil || !found {
		return "", err
	}
	l, err := rate.ParseLimits(text)
	if err != nil {
		s.complain(fmt.Sprintf("destination_limit_maps: %s: %v; of %.200q what is understood holds, and one delivery at a time", key, err, text))
		l.Concurrency = 1
	}
	return l.String(), nil
}

// complain warns of something once. Tables are read again and again.
func (s *sites) complain(text string) {
	s.mu.Lock()
	again := s.said[text] || len(s.said) >= maxComplaints
	if !again {
		s.said[text] = true
	}
	s.mu.Unlock()
	if !again {
		s.warn(text)
	}
}

// hosts finds the name of the next hop, and the hosts that receive its mail, the preferred
// ones first. Of several next hops that is the first. A host in brackets is its own mail
// host. The name is "" for a next hop that is no host.
func (s *sites) hosts(ctx context.Context, res *Result) (hop string, list []resolver.MX) {
	hop, itself := res.Nexthop.Host()
	// No host's name has the mark of a long site's: an address as joe@[mx.example+3-...] would be taken for one of that
	// site's, and so would what becomes of its mail.
	if strings.Contains(hop, siteMark) {
		return "", nil
	}
	if itself {
		return hop, []resolver.MX{{Host: hop}}
	}
	// What stays on this host has no mail hosts, whatever the DNS says of its domain.
	if s.dns == nil || hop == "" || res.Flags&offHost == 0 {
		return hop, nil
	}
	// A lookup that nothing depends on is not made.
	if !s.rollsUp(res.Transport) && s.providers.Empty() && s.shaper == nil {
		return hop, nil
	}
	return hop, s.lookup(ctx, hop)
}

// lookup asks the DNS for the MX hosts of a domain, within the time limit. A domain without
// any has none here, even if mail goes to the host of that name.
func (s *sites) lookup(ctx context.Context, domain string) []resolver.MX {
	s.mu.Lock()
	last := s.known[domain]
	s.mu.Unlock()
	if s.now().Before(last.quiet) {
		return last.hosts
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	ans, err := s.dns.MX(ctx, domain)
	// That there are none, or no such domain, is an answer as good as any.
	next := knownHosts{}
	switch {
	case err == nil:
		for _, mx := range ans.Records {
			if host := strings.ToLower(strings.TrimSuffix(mx.Host, ".")); host != "" { // else it is the null MX
				next.hosts = append(next.hosts, resolver.MX{Pref: mx.Pref, Host: host})
			}
		}
		slices.SortFunc(next.hosts, func(a, b resolver.MX) int {
			return cmp.Or(cmp.Compare(a.Pref, b.Pref), cmp.Compare(a.Host, b.Host))
		})
	case resolver.KindOf(err) == resolver.TempFail:
		next = knownHosts{hosts: last.hosts, quiet: s.now().Add(quietTime)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxHosts { // strangers choose domains; the DNS can be asked again
		clear(s.known)
	}
	s.known[domain] = next
	return next.hosts
}

// provider is who is behind hosts: the first of the best preference that the table knows
// decides. A name that would be confused in logs and tables is no name.
func (s *sites) provider(ctx context.Context, hosts []resolver.MX) (string, error) {
	if s.providers.Empty() {
		return "", nil
	}
	for _, mx := range hosts {
		// From here on they are backups, whoever runs them.
		if mx.Pref != hosts[0].Pref {
			break
		}
		name, found, err := s.providers.LookupDomain(ctx, mx.Host, true)
		if err != nil {
			return "", err
		}
		if !found {
			continue
		}
		if !validName(name) {
			s.complain(fmt.Sprintf("destination_provider_maps: %s: %.100q is no name: letters, digits, \"-\", \"_\" and \".\" make one", mx.Host, name))
			continue
		}
		return name, nil
	}
	return "", nil
}

// validName says whether a provider may be called so.
func validName(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.", rune(c)) {
			return false
		}
	}
	return true
}

// siteName names a set of mail hosts, whatever their preferences are: in the order of their
// names, since two domains with the same hosts may prefer different ones. It is "" without
// hosts, and where they are known by a bare name: that says nothing beyond this network, and
// with a port it would look like another next hop.
func siteName(hosts []resolver.MX) string {
	names := make([]string, 0, len(hosts))
	for _, mx := range hosts {
		names = append(names, mx.Host)
	}
	slices.Sort(names)
	// A zone may name a host twice, with two preferences.
	names = slices.Compact(names)
	text := strings.Join(names, ",")
	if !strings.Contains(text, ".") {
		return ""
	}
	if len(text) <= maxSiteName {
		return text
	}
	// The number tells sites apart, and is the same on every machine and after every
	// restart, so that it can be a key of a table. Whoever has a domain chooses its hosts: nobody
	// must be able to make two sets of one number.
	h := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%.60s%s%d-%x", names[0], siteMark, len(names)-1, h[:16])
}
