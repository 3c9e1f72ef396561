package metrics

import (
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/standing"
)

// Domains are chosen by who sends mail, and there may be millions. The first
// few have a name at once; after that a domain gets one when it has had its
// share of a stretch of deliveries. A name is never taken away, since its
// counter must not go back.

const (
	// freeNames have a name without more ado.
	freeNames = 50
	// maxNames bounds how many have one.
	maxNames = 200
	// stretch is how many deliveries a stretch has, and share how many of them
	// make a name.
	stretch = 10000
	share   = stretch / 200
)

// names are the domains that have a name, and those that may get one.
type names struct {
	known   map[string]bool
	waiting map[string]int // at most stretch
	seen    int            // deliveries of this stretch
}

// name is the label value for a domain.
func (n *names) name(domain string) string {
	domain = strings.ToLower(domain)
	if len(domain) > maxLabel {
		return Other
	}
	if n.known[domain] {
		return domain
	}
	if n.known == nil {
		n.known, n.waiting = make(map[string]bool), make(map[string]int)
	}
	if n.seen++; n.seen > stretch {
		clear(n.waiting)
		n.seen = 0
	}
	if len(n.known) >= freeNames {
		if len(n.known) >= maxNames {
			return Other
		}
		n.waiting[strings.Clone(domain)]++
		if n.waiting[domain] < share {
			return Other
		}
		delete(n.waiting, domain)
	}
	n.known[strings.Clone(domain)] = true
	return domain
}

// addDomain counts a delivery by the recipient's domain.
func (s *Set) addDomain(domain, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(makeKey(DomainDeliveries, []string{s.names.name(domain), status}), 1)
}

// addTenant counts a delivery of a tenant's mail. There may be many tenants, too.
func (s *Set) addTenant(tenant, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(makeKey(TenantDeliveries, []string{s.tenants.name(tenant), status}), 1)
}

// noTenant is the label of mail without one.
const noTenant = "(none)"

// AddFeedback counts what has come back of a tenant's mail to an address. kind is one of few words.
func (s *Set) AddFeedback(tenant, address, kind string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := noTenant
	if tenant != "" {
		name = s.tenants.name(tenant)
	}
	s.add(makeKey(Feedback, []string{name, kind}), 1)
	s.add(makeKey(DomainFeedback, []string{s.names.name(domainOf(address)), kind}), 1)
}

// AddSuppressRefused counts entries that a tenant could not add to the suppression list.
func (s *Set) AddSuppressRefused(tenant string, n int) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(makeKey(SuppressRefused, []string{s.tenants.name(tenant)}), float64(n))
}

// noSource is the label of mail that is sent from none.
const noSource = "(none)"

// AddProviderFeedback counts the same by the provider and the source of the delivery, where these are known.
func (s *Set) AddProviderFeedback(provider, source, kind string) {
	s.addProvider(ProviderFeedback, provider, source, kind)
}

// addProvider counts something by provider and source. Operators name sources, and providers; but a site's name, and how
// many there are, is strangers' choice.
func (s *Set) addProvider(id ID, provider, source, what string) {
	if s == nil || provider == "" {
		return
	}
	if source == "" {
		source = noSource
	}
	provider = standing.Site(provider)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.providers.name(provider+"\x00"+source) == Other {
		provider, source = Other, Other
	}
	s.add(makeKey(id, []string{provider, source, what}), 1)
}

// domainOf is what is behind an address's last @, or "local" for an address without one.
func domainOf(addr string) string {
	if i := strings.LastIndexByte(addr, '@'); i >= 0 {
		return addr[i+1:]
	}
	return "local"
}

func replyClass(class uint8) string {
	switch class {
	case 2:
		return "2xx"
	case 4:
		return "4xx"
	case 5:
		return "5xx"
	}
	return ""
}

// statusCode is a status code as a label: peers may send any.
func statusCode(s dsn.Status) string {
	if s.Subject > 7 || s.Detail > 30 {
		return Other
	}
	return s.String()
}
