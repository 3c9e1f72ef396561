package mailauth

import (
	"context"
	"net/url"
	"strings"
	"unicode"

	"posthaste/internal/resolver"
	"posthaste/internal/rfc5322"
)

// Policy finds the DMARC record that counts for a domain, which is in lower case: its own, or
// that of its organizational domain (RFC 9989 section 4.10). at is where it was found, and empty
// if there is none. records is how many DMARC records the domain itself has: of more than one,
// none counts. The error says that the DNS did not answer.
func (c *Checker) Policy(ctx context.Context, domain string) (p Published, at string, records int, err error) {
	p, records, err = c.published(ctx, domain)
	if err != nil || records == 1 {
		return p, domain, records, err
	}
	org, _, err := c.walk(ctx, domain)
	if err != nil || org == domain {
		return Published{}, "", records, err
	}
	p, n, err := c.published(ctx, org)
	if err != nil || n != 1 {
		return Published{}, "", records, err
	}
	return p, org, records, nil
}

// published is the DMARC record of one domain by itself, and how many it has.
func (c *Checker) published(ctx context.Context, domain string) (p Published, n int, err error) {
	a, err := c.dns.TXT(ctx, "_dmarc."+domain)
	if resolver.NotFound(err) {
		return Published{}, 0, nil
	}
	if err != nil {
		return Published{}, 0, err
	}
	for _, text := range a.Records {
		if q, ok := ParsePublished(text); ok {
			p = q
			n++
		}
	}
	return p, n, nil
}

// Allows says whether the domain of reports, OTHER, takes aggregate reports on domain:
// whether it publishes DOMAIN._report._dmarc.OTHER (RFC 9990 section 4). Domains of the same
// organization need no such record.
func (c *Checker) Allows(ctx context.Context, domain, other string) (bool, error) {
	uri, err := c.ReportsTo(ctx, domain, "mailto:postmaster@"+other)
	return uri != "", err
}

// ReportsTo is the address that aggregate reports on a domain go to which its record sends to a mailto: URI: that
// in the URI, if the domain of the address takes them (see Allows), or another at the same domain which
// that domain's record for such reports names in place of it (RFC 9990 section 4). It is empty if
// reports are not wanted there. The error says that the DNS did not answer.
func (c *Checker) ReportsTo(ctx context.Context, domain, uri string) (string, error) {
	address, other := reportAddress(uri)
	if !resolver.ValidHostname(other) {
		return "", nil
	}
	if c.organization(ctx, domain) == c.organization(ctx, other) {
		return address, nil
	}
	a, err := c.dns.TXT(ctx, domain+"._report._dmarc."+other)
	if resolver.NotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, text := range a.Records {
		p, ok := ParsePublished(text)
		if !ok {
			continue
		}
		for _, uri := range p.Reports {
			if instead, there := reportAddress(uri); there == other {
				return instead, nil
			}
		}
		return address, nil
	}
	return "", nil
}

// reportAddress is the address of a mailto: URI, in internal form, and its domain in lower case. Both are empty
// where there is no address, or more than one: who is asked whether reports are wanted must be
// who gets them, whatever else a stranger has written into the URI.
func reportAddress(uri string) (address, domain string) {
	u, err := url.Parse(uri)
	if err != nil || !strings.EqualFold(u.Scheme, "mailto") {
		return "", ""
	}
	text, err := url.PathUnescape(u.Opaque)
	if err != nil || strings.ContainsFunc(text, unicode.IsControl) {
		return "", ""
	}
	list := rfc5322.AppendAddresses(nil, text, 0)
	if len(list) != 1 {
		return "", ""
	}
	_, domain, ok := rfc5322.Split(list[0].Addr)
	if !ok {
		return "", ""
	}
	return list[0].Addr, strings.ToLower(domain)
}
