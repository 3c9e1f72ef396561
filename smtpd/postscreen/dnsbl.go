// postscreen_dnsbl_sites: lists in the DNS, whose answers add up to a score.

package postscreen

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"posthaste/internal/access"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
)

// dnsblSite is one element of postscreen_dnsbl_sites.
type dnsblSite struct {
	*access.DNSList     // the list, and which of its answers count
	weight          int // what such an answer adds to the score; under 0 for a list of good clients
}

// parseSite reads domain=filter*weight.
func parseSite(text string) (dnsblSite, error) {
	spec, weight, has := strings.Cut(text, "*")
	site := dnsblSite{weight: 1}
	var err error
	if has {
		if site.weight, err = strconv.Atoi(weight); err != nil {
			return site, fmt.Errorf("%q: the weight must be a number", text)
		}
	}
	site.DNSList, err = access.ParseDNSList(spec)
	return site, err
}

// dnsblResult is what all lists together say of a client.
type dnsblResult struct {
	score  int                    // the weights of the elements that match, added up
	by     string                 // domain that weighs most; empty: none has a weight over 0
	ttl    time.Duration          // how long the result may be remembered
	listed []maillog.ScreenListed // the answers, for the log
}

// askLists asks all lists at once. A list that does not answer in time counts
// for nothing.
func (c *Screen) askLists(ctx context.Context, a netip.Addr) dnsblResult {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	// A list is asked once, however many elements with different filters name it.
	answers := make(map[string]resolver.Answer[netip.Addr])
	var mu sync.Mutex
	var wg sync.WaitGroup
	asked := map[string]bool{}
	for _, site := range c.sites {
		if asked[site.Domain] {
			continue
		}
		asked[site.Domain] = true
		wg.Go(func() {
			if ans, err := c.dns.Addrs(ctx, access.AddrQuery(a, site.Domain), resolver.IPv4); err == nil {
				mu.Lock()
				answers[site.Domain] = ans
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r := dnsblResult{ttl: c.maxTTL}
	most := 0
	said := map[string]bool{}
	for _, site := range c.sites {
		ans, hit := answers[site.Domain]
		if !hit {
			continue
		}
		if !said[site.Domain] {
			said[site.Domain] = true
			for _, addr := range ans.Records {
				r.listed = append(r.listed, maillog.ScreenListed{Addr: a.String(), Domain: site.Domain, Answer: addr.String()})
			}
		}
		r.ttl = min(r.ttl, ans.TTL)
		for _, addr := range ans.Records {
			if !site.Counts(addr) {
				continue
			}
			r.score += site.weight
			if site.weight > most {
				most, r.by = site.weight, site.Domain
			}
			break // once for each pattern
		}
	}
	r.ttl = max(r.ttl, c.minTTL)
	return r
}

// siteName is how a list is called towards clients (postscreen_dnsbl_reply_map):
// its domain may contain a password.
func (c *Screen) siteName(ctx context.Context, domain string) string {
	if !c.replyMap.Empty() {
		value, found, err := c.replyMap.Lookup(ctx, domain, false)
		if err != nil {
			c.log.Warning("%v", err)
		} else if found {
			return value
		}
	}
	return domain
}
