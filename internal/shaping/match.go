// Which providers a domain has.

package shaping

import "strings"

// A matchKind is what a matcher looks at.
type matchKind uint8

const (
	mxSuffix matchKind = iota
	domainSuffix
	hostName
)

func (k matchKind) String() string { return [...]string{"MXSuffix", "DomainSuffix", "HostName"}[k] }

// A matcher is one of the conditions by which a provider's domains are known. Endings are of octets,
// not of labels: "foo.com" is the ending of "notfoo.com", and ".foo.com" is none of "foo.com".
type matcher struct {
	by   matchKind
	text string // in lower case
	at   Place
}

// serves says whether a provider is behind a domain, and whether that is so by its mail hosts, and so
// for all domains that have the same.
func (s *section) serves(domain string, hosts []string) (yes, byHosts bool) {
	mx := false
	for i := range s.match {
		m := &s.match[i]
		if m.by == domainSuffix {
			yes = yes || strings.HasSuffix(domain, m.text)
		} else {
			mx = true
		}
	}
	if !mx || len(hosts) == 0 {
		return yes, false
	}
	for _, h := range hosts {
		if !s.runs(h) {
			return yes, false
		}
	}
	return true, true
}

// runs says whether a mail host is the provider's.
func (s *section) runs(host string) bool {
	for i := range s.match {
		switch m := &s.match[i]; {
		case m.by == mxSuffix && strings.HasSuffix(host, m.text), m.by == hostName && host == m.text:
			return true
		}
	}
	return false
}
