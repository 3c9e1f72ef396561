package mailauth

import (
	"context"

	"posthaste/internal/resolver"
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
	if c.organization(ctx, domain) == c.organization(ctx, other) {
		return true, nil
	}
	a, err := c.dns.TXT(ctx, domain+"._report._dmarc."+other)
	if resolver.NotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, text := range a.Records {
		if _, ok := ParsePublished(text); ok {
			return true, nil
		}
	}
	return false, nil
}
