package domain

import (
	"context"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/resolver"
	"posthaste/internal/tlspolicy"
	"posthaste/internal/tlspolicy/mtasts"
	"posthaste/internal/tlsrpt"
)

// shortPolicy is a max_age up to which an attacker only has to wait (RFC 8461 section 10.2 wants
// weeks).
const shortPolicy = 24 * time.Hour

// mtaSTS checks the domain's MTA-STS policy (RFC 8461): that senders find it, that it can be
// fetched, and that it names the MX hosts.
func (c *checker) mtaSTS(ctx context.Context, r *report) {
	if c.class == Foreign {
		return // it is the business of those who take its mail
	}
	own, publish, err := c.ownPolicy(ctx)
	if err != nil {
		r.unanswered(err)
		return
	}
	a, err := c.DNS.TXT(ctx, "_mta-sts."+c.domain)
	if resolver.NotFound(err) {
		r.say(Note, c.domain+" has no MTA-STS policy", "with one, senders insist on TLS with a certificate that verifies, and cannot be led astray", publish...)
		return
	}
	if err != nil {
		r.unanswered(err)
		return
	}
	id, ok := mtasts.ParseRecord(a.Records)
	if !ok {
		if own == nil {
			publish = []Record{stsRecord(c.domain, c.Now)}
		}
		r.say(Error, fmt.Sprintf("_mta-sts.%s is not well-formed, or not one record: %s", c.domain, printable(strings.Join(a.Records, " | "))), "senders take it for none", publish...)
		return
	}
	p, err := mtasts.Fetch(ctx, c.HTTP, c.domain, c.site.names)
	if err != nil {
		r.say(Error, "the policy cannot be fetched: "+printable(err.Error()), "senders that have it already hold to it until it expires; others do without")
		return
	}
	switch {
	case own == nil:
	case p.String() != own.String():
		r.say(Error, "the policy that is fetched is not that of policyhost_sts_mode, policyhost_sts_mx and policyhost_sts_max_age", "mta-sts."+c.domain+" leads elsewhere, or \"posthaste reload\" is missing")
	case id != own.ID():
		r.say(Warning, fmt.Sprintf("the id of _mta-sts.%s is that of another policy", c.domain), "senders that have the former policy keep to it until they must fetch it again", publish...)
	}
	c.stsPolicy(ctx, r, p)
}

// ownPolicy is the policy that the policyhost service of this host serves for the domain, with the
// record to publish; or nil.
func (c *checker) ownPolicy(ctx context.Context) (*mtasts.Policy, []Record, error) {
	h := c.site.hosted
	if ok, err := h.has(ctx, c.domain); err != nil || !ok || h.policy == nil {
		return nil, nil, err
	}
	return h.policy, []Record{hostedRecord(c.domain, h.policy)}, nil
}

// stsRecord announces a policy. Its id is the time at which the policy was changed last.
func stsRecord(domain string, now time.Time) Record {
	return Record{"_mta-sts." + domain, "TXT", "v=STSv1; id=" + now.UTC().Format("20060102T150405") + "Z", "MTA-STS: there is a policy (RFC 8461); change the id whenever the policy changes"}
}

// stsPolicy sets a policy beside the MX records.
func (c *checker) stsPolicy(ctx context.Context, r *report, p *mtasts.Policy) {
	switch p.Mode {
	case mtasts.None:
		r.say(Note, "the policy has mode none", "when its former max_age is over, remove the record and the policy")
		return
	case mtasts.Testing:
		r.say(Note, "the policy has mode testing: senders deliver in any case, and report", "when the TLS reports are clean, set mode: enforce and change the id")
	}
	if p.MaxAge <= shortPolicy {
		r.say(Warning, fmt.Sprintf("the policy has a max_age of %d seconds", int(p.MaxAge/time.Second)), "an attacker only has to wait for so long: weeks are usual")
	}
	a, err := c.DNS.MX(ctx, c.domain)
	if err != nil {
		return // it is said under mx
	}
	wrong := false
	for _, mx := range a.Records {
		if !tlspolicy.NamesMX(p.MX, strings.TrimSuffix(mx.Host, ".")) {
			wrong = true
			r.say(Error, fmt.Sprintf("the policy does not name the MX host %s", mx.Host), "senders that heed the policy do not deliver to it: add a line mx:")
		}
	}
	if !wrong {
		r.good("the policy has mode %s and names the MX hosts", p.Mode)
	}
}

// tlsRPT checks that reports on TLS reach somebody (RFC 8460).
func (c *checker) tlsRPT(ctx context.Context, r *report) {
	if c.class == Foreign {
		return
	}
	wanted := tlsRPTRecord(c.domain, "postmaster@"+c.domain)
	a, err := c.DNS.TXT(ctx, "_smtp._tls."+c.domain)
	switch {
	case resolver.NotFound(err):
		r.say(Note, c.domain+" asks for no TLS reports", "with them, you learn when senders cannot deliver for want of TLS", wanted)
	case err != nil:
		r.unanswered(err)
	default:
		var list []string
		for _, uri := range tlsrpt.Destinations(a.Records) {
			if err := tlsrpt.CheckDestination(uri); err != nil {
				r.say(Warning, fmt.Sprintf("no TLS report can go to %s: %s", printable(uri), printable(err.Error())), "", wanted)
				continue
			}
			list = append(list, uri)
		}
		if len(list) > 0 {
			r.good("TLS reports go to %s", printable(strings.Join(list, ", ")))
			return
		}
		r.say(Error, fmt.Sprintf("_smtp._tls.%s names no place for reports, or is not one record: %s", c.domain, printable(strings.Join(a.Records, " | "))), "", wanted)
	}
}

// tlsRPTRecord asks for reports.
func tlsRPTRecord(domain, reports string) Record {
	return Record{"_smtp._tls." + domain, "TXT", "v=TLSRPTv1; rua=mailto:" + reports, "TLSRPT: where senders report trouble with TLS (RFC 8460)"}
}
