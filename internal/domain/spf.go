package domain

import (
	"context"
	"fmt"
	"strings"

	"posthaste/internal/mailauth"
	"posthaste/internal/resolver"
)

// spfRecord is a record that lets this host send for a domain. end is what becomes of others.
func (c *checker) spfRecord(end string) Record {
	return spfFor(c.site, c.domain, end)
}

func spfFor(s *Site, domain, end string) Record {
	text := "v=spf1"
	for _, addr := range s.Addrs {
		mechanism := " ip4:"
		if addr.Is6() {
			mechanism = " ip6:"
		}
		text += mechanism + addr.String()
	}
	return Record{domain, "TXT", text + " mx " + end, "SPF: which hosts send for the domain (RFC 7208)"}
}

// spf checks that receivers take mail of the domain from this host's addresses, and notices
// that have no sender from its name.
func (c *checker) spf(ctx context.Context, r *report) {
	texts, err := c.spfTexts(ctx, c.domain)
	switch {
	case err != nil:
		r.unanswered(err)
		return
	case len(texts) == 0:
		r.say(Error, c.domain+" has no SPF record", "large providers refuse or suspect mail of a domain without", c.spfRecord("~all"))
		return
	case len(texts) > 1:
		r.say(Error, fmt.Sprintf("%s has %d SPF records", c.domain, len(texts)), "receivers take that for an error: make one of them (RFC 7208 section 4.5)")
		return
	}
	if strings.HasSuffix(texts[0], "+all") || strings.HasSuffix(texts[0], " all") {
		r.say(Error, "the SPF record of "+c.domain+" lets everybody send for it: "+printable(texts[0]), "end it with ~all or -all", c.spfRecord("~all"))
	}
	for _, addr := range c.site.Addrs {
		s := c.auth.SPF(ctx, addr, c.site.Host, "postmaster@"+c.domain)
		switch s.Result {
		case mailauth.Pass:
			r.good("mail of %s from %s passes", c.domain, addr)
		case mailauth.TempError:
			r.say(Unknown, fmt.Sprintf("mail of %s from %s: the DNS did not answer", c.domain, addr), "try again")
		case mailauth.PermError:
			r.say(Error, "the SPF record of "+c.domain+" is in error: "+printable(texts[0]), "look for a typing error, for names that do not exist, and for more than ten lookups (RFC 7208 section 4.6.4)")
			return
		default:
			r.say(Error, fmt.Sprintf("mail of %s from %s has the result %s", c.domain, addr, s.Result), "add this host to the record: "+printable(texts[0]), c.spfRecord("~all"))
		}
	}
	c.heloSPF(ctx, r)
}

// heloSPF checks the record of the host's own name, by which notices are judged, which have no
// sender.
func (c *checker) heloSPF(ctx context.Context, r *report) {
	texts, err := c.spfTexts(ctx, c.site.Host)
	if err != nil || len(texts) > 0 {
		for _, addr := range c.site.Addrs {
			if s := c.auth.SPF(ctx, addr, c.site.Host, ""); err == nil && s.Result != mailauth.Pass {
				r.say(Warning, fmt.Sprintf("notices of %s from %s have the result %s", c.site.Host, addr, s.Result), "they have no sender, and are judged by the host's name")
			}
		}
		return
	}
	r.say(Note, c.site.Host+" has no SPF record", "notices have no sender, and are judged by the host's name",
		Record{c.site.Host, "TXT", "v=spf1 a -all", "SPF: notices of the mail host, which have no sender"})
}

// spfTexts are the SPF records of a name.
func (c *checker) spfTexts(ctx context.Context, name string) (texts []string, err error) {
	a, err := c.DNS.TXT(ctx, name)
	if resolver.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, text := range a.Records {
		if lower := strings.ToLower(text); lower == "v=spf1" || strings.HasPrefix(lower, "v=spf1 ") {
			texts = append(texts, text)
		}
	}
	return texts, nil
}
