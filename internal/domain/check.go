package domain

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"posthaste/internal/mailauth"
	"posthaste/internal/resolver"
)

// Names is what the checks ask of the DNS.
type Names interface {
	resolver.Resolver
	CAA(ctx context.Context, name string) (resolver.Answer[resolver.CAA], error)
}

// A World is what the checks find outside of this system.
type World struct {
	DNS   Names
	Dial  func(ctx context.Context, network, addr string) (net.Conn, error)
	HTTP  *http.Client   // of package webclient, or as strict
	Roots *x509.CertPool // that certificates are verified with; nil: the system's
	Now   time.Time
	At    func(addr netip.Addr) (Asker, func()) // the name server at an address, and what ends asking it
	Here  func(addr netip.Addr) bool            // whether an interface of this machine has the address; nil: none has
}

// Bounds of one check: of an area, and of a connection in it.
const (
	areaTime    = 60 * time.Second
	connectTime = 10 * time.Second
)

// A checker checks one domain of a site.
type checker struct {
	*World
	site   *Site
	domain string // in ASCII
	class  Class
	auth   *mailauth.Checker

	probe     string   // the domain to whose mail servers port 25 is tried; empty: not at all
	blocklist []string // DNS block lists to ask

	look sync.Once // fills live
	live live
}

// Wishes are what is checked on request only.
type Wishes struct {
	Probe     string   // try port 25 of this domain's mail servers; empty: do not
	Blocklist []string // ask these DNS block lists for the host's addresses
}

// Check checks everything that the world sees of a domain, all areas at once. The findings are
// in the order of the areas. The error is that of a table of main.cf, or the context's.
func Check(ctx context.Context, w *World, site *Site, domain string, wishes Wishes) ([]Finding, error) {
	class, err := site.Class(ctx, domain)
	if err != nil {
		return nil, err
	}
	c := &checker{World: w, site: site, domain: domain, class: class, auth: mailauth.New(w.DNS, site.names, site.Host),
		probe: wishes.Probe, blocklist: wishes.Blocklist}
	areas := []struct {
		name  string
		check func(ctx context.Context, r *report)
	}{
		{"address", c.addresses}, {"outward", c.outward}, {"blocklist", c.blocklists}, {"mx", c.mx}, {"tls", c.tls},
		{"dane", c.dane}, {"spf", c.spf}, {"dkim", c.dkim}, {"dmarc", c.dmarc}, {"mta-sts", c.mtaSTS},
		{"tls-rpt", c.tlsRPT}, {"caa", c.caa}, {"submission", c.submission}, {"autoconfig", c.autoconfig},
	}
	reports := make([]report, len(areas))
	var wg sync.WaitGroup
	for i, area := range areas {
		reports[i].area = area.name
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, areaTime)
			defer cancel()
			area.check(ctx, &reports[i])
		})
	}
	wg.Wait()
	var list []Finding
	for i := range reports {
		list = append(list, reports[i].list...)
	}
	return list, ctx.Err()
}

// ours are the MX hosts of the domain that lead to this host, in the order of preference, and
// whether the answer is vouched for by DNSSEC. A domain without MX records has itself (RFC 5321
// section 5.1).
func (c *checker) ours(ctx context.Context) (hosts []string, secure bool, err error) {
	a, err := c.DNS.MX(ctx, c.domain)
	if resolver.NotFound(err) {
		a.Records, err = []resolver.MX{{Host: c.domain}}, nil
	}
	if err != nil {
		return nil, false, err
	}
	slices.SortStableFunc(a.Records, func(a, b resolver.MX) int { return int(a.Pref) - int(b.Pref) })
	for _, mx := range a.Records {
		addrs, err := c.DNS.Addrs(ctx, mx.Host, resolver.IPv4|resolver.IPv6)
		if err == nil && slices.ContainsFunc(addrs.Records, c.site.has) {
			hosts = append(hosts, mx.Host)
		}
	}
	return hosts, a.Secure, nil
}
