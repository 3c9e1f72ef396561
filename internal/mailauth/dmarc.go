package mailauth

import (
	"context"
	"strings"

	"golang.org/x/net/publicsuffix"

	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/resolver"
)

// record is a DMARC policy record, RFC 9989 section 4.7.
type record struct {
	domain      string // where it was found
	p, sp, np   string
	adkim, aspf string // r or s
	psd         string // y, n or u
	test        bool
	reports     bool // somebody wants aggregate reports (rua)
}

// parseRecord reads the text of a TXT record. ok is false if it is no DMARC
// record, which the standard wants ignored.
func parseRecord(domain, text string) (rec record, ok bool) {
	first, rest, _ := strings.Cut(text, ";")
	name, v, _ := strings.Cut(first, "=")
	if !strings.EqualFold(strings.TrimSpace(name), "v") || strings.TrimSpace(v) != "DMARC1" {
		return record{}, false
	}
	tags := make(map[string]string)
	for n, v := range dkimkey.Tags(rest) {
		tags[strings.ToLower(n)] = strings.ToLower(v)
	}
	rec = record{domain: domain, p: policyOf(tags["p"]), sp: policyOf(tags["sp"]), np: policyOf(tags["np"]),
		adkim: tags["adkim"], aspf: tags["aspf"], psd: tags["psd"], test: tags["t"] == "y",
		reports: tags["rua"] != ""}
	if rec.p == "" {
		// Without a valid p= the record is one that asks for reports at most.
		if tags["rua"] == "" {
			return record{}, false
		}
		rec.p, rec.sp, rec.np = "none", "", ""
	}
	return rec, true
}

func policyOf(v string) string {
	switch v {
	case "none", "quarantine", "reject":
		return v
	}
	return ""
}

// lookup gets the record of one domain. Several are as good as none.
func (c *Checker) lookup(ctx context.Context, domain string) (rec record, found bool, err error) {
	if !resolver.ValidHostname(domain) {
		return record{}, false, nil
	}
	a, err := c.dns.TXT(ctx, "_dmarc."+domain)
	if err != nil {
		if k := resolver.KindOf(err); k == resolver.TempFail {
			return record{}, false, err
		}
		return record{}, false, nil
	}
	n := 0
	for _, txt := range a.Records {
		if r, ok := parseRecord(domain, txt); ok {
			rec = r
			n++
		}
	}
	return rec, n == 1, nil
}

// maxWalk is how many names a tree walk asks about, RFC 9989 section 4.10.
const maxWalk = 8

// walk goes from a domain upwards and gives the records on the way, and the
// organizational domain that follows from them; it is the domain itself when
// there are none.
func (c *Checker) walk(ctx context.Context, domain string) (org string, found []record, err error) {
	labels := strings.Split(domain, ".")
	for at, n := 0, 0; at < len(labels) && n < maxWalk; n++ {
		name := strings.Join(labels[at:], ".")
		rec, ok, err := c.lookup(ctx, name)
		if err != nil {
			return "", nil, err
		}
		if ok {
			found = append(found, rec)
			switch {
			case rec.psd == "n":
				return name, found, nil
			case rec.psd == "y" && at > 0:
				return strings.Join(labels[at-1:], "."), found, nil
			}
		}
		if at == 0 && len(labels) > maxWalk {
			at = len(labels) - maxWalk + 1
		} else {
			at++
		}
	}
	if len(found) == 0 {
		return domain, nil, nil
	}
	return found[len(found)-1].domain, found, nil
}

// organization is the organizational domain of an authenticated name. When DNS
// does not answer the public suffix list does.
func (c *Checker) organization(ctx context.Context, domain string) string {
	org, found, err := c.walk(ctx, domain)
	if err != nil || len(found) == 0 {
		if e, perr := publicsuffix.EffectiveTLDPlusOne(domain); perr == nil {
			return e
		}
	}
	if org == "" {
		return domain
	}
	return org
}

// dmarcOf judges the findings by the policies of all authors' domains. The
// strictest policy that the message fails decides (RFC 7489 section 6.6.1): another author
// in From: excuses nothing.
func (c *Checker) dmarcOf(ctx context.Context, domains []string, r *Results) DMARC {
	if len(domains) > maxAuthors {
		return DMARC{Result: PermError}
	}
	worst := DMARC{Result: None}
	for i, domain := range domains {
		if d := c.dmarc(ctx, domain, r); i == 0 || d.severity() > worst.severity() {
			worst = d
		}
	}
	return worst
}

// severity orders findings on several authors: failures by their policy, what is
// not known, the absence of a policy, and success.
func (d *DMARC) severity() int {
	switch {
	case d.Result == Fail && d.Policy == "reject":
		return 5
	case d.Result == Fail && d.Policy == "quarantine":
		return 4
	case d.Result == Fail:
		return 3
	case d.Result == TempError:
		return 2
	case d.Result == None:
		return 1
	}
	return 0
}

// dmarc judges the findings by the policy of the author's domain.
func (c *Checker) dmarc(ctx context.Context, from string, r *Results) DMARC {
	d := DMARC{Result: None, From: from}
	org, found, err := c.walk(ctx, from)
	if err != nil {
		d.Result = TempError
		return d
	}
	if len(found) == 0 {
		return d
	}
	rec := found[0]
	if rec.domain != from { // the organization's speaks for it, else that of the public suffix
		for _, f := range found {
			if rec = f; f.domain == org {
				break
			}
		}
	}
	d.Policy = c.policy(ctx, from, &rec)
	d.Result = Fail
	aligned := c.aligned(ctx, from, org, &rec, r)
	if aligned.SPF || aligned.DKIM {
		d.Result = Pass
	} else if r.temporary() {
		d.Result = TempError
	}
	if c.details && rec.reports {
		d.Aligned = aligned
		d.Published = &Record{Domain: rec.domain, Policy: rec.p, Subdomains: rec.sp, Missing: rec.np, DKIM: rec.adkim, SPF: rec.aspf, Testing: rec.test}
	}
	return d
}

// policy is what the record wants of mail from this domain.
func (c *Checker) policy(ctx context.Context, from string, rec *record) string {
	p := rec.p
	if rec.domain != from {
		if rec.sp != "" {
			p = rec.sp
		}
		if rec.np != "" && c.missing(ctx, from) {
			p = rec.np
		}
	}
	if rec.test { // RFC 9989: under test, the next weaker one
		p = map[string]string{"reject": "quarantine"}[p]
		if p == "" {
			p = "none"
		}
	}
	return p
}

// missing says whether a domain does not exist.
func (c *Checker) missing(ctx context.Context, domain string) bool {
	_, err := c.dns.TXT(ctx, domain)
	return resolver.KindOf(err) == resolver.NXDomain
}

// aligned says what of that which passed speaks for the author's domain. Without details one of
// both is enough, and DNS is asked for no more.
func (c *Checker) aligned(ctx context.Context, from, org string, rec *record, r *Results) (a Aligned) {
	same := func(domain, mode string) bool {
		domain = strings.ToLower(strings.TrimSuffix(domain, "."))
		if domain == from {
			return true
		}
		return mode != "s" && domain != "" && c.organization(ctx, domain) == org
	}
	if r.SPF.Result == Pass && same(r.SPF.Domain, rec.aspf) {
		if a.SPF = true; !c.details {
			return a
		}
	}
	for i := range r.DKIM {
		if r.DKIM[i].Result == Pass && same(r.DKIM[i].Domain, rec.adkim) {
			a.DKIM = true
			break
		}
	}
	return a
}

// temporary says whether something could not be found out.
func (r *Results) temporary() bool {
	for i := range r.DKIM {
		if r.DKIM[i].Result == TempError {
			return true
		}
	}
	return r.SPF.Result == TempError
}
