package domain

import (
	"context"
	"fmt"
	"strings"
)

// dmarcRecord is a policy for a domain. An empty reports asks for none.
func dmarcRecord(domain, policy, reports string) Record {
	text := "v=DMARC1; p=" + policy
	if reports != "" {
		text += "; rua=mailto:" + reports
	}
	return Record{"_dmarc." + domain, "TXT", text, "DMARC: what receivers do with mail that neither SPF nor DKIM vouches for (RFC 9989)"}
}

// dmarc checks the domain's policy, and that reports on it arrive.
func (c *checker) dmarc(ctx context.Context, r *report) {
	p, at, n, err := c.auth.Policy(ctx, c.domain)
	wanted := dmarcRecord(c.domain, "none", "postmaster@"+c.domain)
	switch {
	case err != nil:
		r.unanswered(err)
		return
	case n > 1:
		r.say(Error, fmt.Sprintf("_dmarc.%s has %d DMARC records", c.domain, n), "receivers heed none of them: leave one")
		return
	case at == "":
		r.say(Error, c.domain+" has no DMARC record", "large providers want one of those who send much mail, and anybody can forge the domain", wanted)
		return
	}
	for _, fault := range p.Faults {
		r.say(Warning, "_dmarc."+at+": "+printable(fault), "")
	}
	policy := p.Policy
	if at != c.domain && p.Subdomains != "" {
		policy = p.Subdomains
	}
	switch {
	case policy == "none":
		r.say(Note, fmt.Sprintf("_dmarc.%s says none for mail of %s: receivers only report", at, c.domain),
			"when the reports show that all your mail passes, raise it to p=quarantine and then p=reject")
	case p.Testing:
		r.say(Note, fmt.Sprintf("_dmarc.%s says %s and t=y: receivers do what is next milder", at, policy), "remove t=y when the reports are clean")
	default:
		r.good("_dmarc.%s says %s for mail of %s", at, policy, c.domain)
	}
	if len(p.Reports) == 0 {
		r.say(Note, "_dmarc."+at+" asks for no reports (rua)", "nobody tells you when your mail fails")
	}
	for _, uri := range p.Reports {
		c.reportsTo(ctx, r, at, uri)
	}
}

// reportsTo checks that another domain takes the reports on this one.
func (c *checker) reportsTo(ctx context.Context, r *report, at, uri string) {
	address, _, _ := strings.Cut(uri[len("mailto:"):], "?")
	other := strings.ToLower(address[strings.LastIndexByte(address, '@')+1:])
	yes, err := c.auth.Allows(ctx, at, other)
	switch {
	case err != nil:
		r.unanswered(err)
	case !yes:
		r.say(Error, fmt.Sprintf("reports to %s are not sent: %s does not say that it takes reports on %s", printable(address), printable(other), at), "RFC 9990 section 4",
			Record{at + "._report._dmarc." + other, "TXT", "v=DMARC1", "DMARC: the domain takes reports on another one"})
	default:
		r.good("reports on %s go to %s", at, printable(address))
	}
}
