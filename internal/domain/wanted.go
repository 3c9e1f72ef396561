package domain

import (
	"context"
	"slices"
	"strings"

	"posthaste/internal/mailauth/dkimkey"
)

// A Choice is what somebody decides who publishes a domain.
type Choice struct {
	Policy  string // p= of DMARC: none, quarantine or reject
	Reports string // the address to which DMARC and TLS reports go
	IMAP    string // the host at which users read mail by IMAPS; empty: nothing is said of it
	CA      string // the authority that issues certificates, as a CAA record names it; empty: nothing is said
}

// Wanted are the records that a domain of this site should have, those of one purpose together.
// They are made of the configuration and the key files alone: the DNS is not asked, since an
// answer that there is no such record would be kept by name servers until after it is published
// (RFC 2308). The error is that of a table or of a key file.
func Wanted(ctx context.Context, s *Site, domain string, ch Choice) ([]Record, error) {
	class, err := s.Class(ctx, domain)
	if err != nil {
		return nil, err
	}
	return wantedOf(ctx, s, domain, class, ch)
}

// wantedOf is Wanted for a domain that is going to be of a class.
func wantedOf(ctx context.Context, s *Site, domain string, class Class, ch Choice) ([]Record, error) {
	c := &checker{site: s, domain: domain, class: class}
	list := c.addressRecords(s.Addrs)
	end := "~all"
	if ch.Policy == "reject" {
		end = "-all"
	}
	if class != Foreign {
		list = append(list, c.mxRecord())
	}
	list = append(list, c.spfRecord(end))
	if s.Host != domain {
		list = append(list, Record{s.Host, "TXT", "v=spf1 a -all", "SPF: notices of the mail host, which have no sender"})
	}
	keys, err := c.keyRecords(ctx)
	if err != nil {
		return nil, err
	}
	list = append(list, keys...)
	list = append(list, dmarcRecord(domain, ch.Policy, ch.Reports))
	if class != Foreign {
		list = append(list, tlsRPTRecord(domain, ch.Reports))
		list = append(list, c.clientRecords(ch.IMAP)...)
		more, err := s.hosted.records(ctx, domain, s.Host)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	if ch.CA != "" {
		list = append(list, Record{s.Host, "CAA", issue(ch.CA), "who may issue certificates for the mail host (RFC 8659)"})
	}
	return apart(list, domain), nil
}

// apart puts the records that are not in the domain behind those that are, and says so: a host with another
// name is in another zone, which has them already unless the domain is the first of the site.
func apart(list []Record, domain string) []Record {
	var in, out []Record
	for _, r := range list {
		if within(r.Name, domain) {
			in = append(in, r)
			continue
		}
		r.Why += "; in the zone of the host, unless it is there"
		out = append(out, r)
	}
	return append(in, out...)
}

// within says whether a name is a domain's, or below it.
func within(name, domain string) bool {
	return name == domain || strings.HasSuffix(name, "."+domain)
}

// keyRecords publish the keys that mail is signed with, those that it is going to be signed with,
// and those that signed mail that is still under way.
func (c *checker) keyRecords(ctx context.Context) (list []Record, err error) {
	entries, err := c.site.Keys(ctx, c.domain)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		key, err := dkimkey.Read(e.File)
		if err != nil {
			return nil, err
		}
		text, err := dkimkey.Record(key)
		if err != nil {
			return nil, err
		}
		list = append(list, dkimRecord(e, text))
	}
	r, v, err := c.site.ring(c.domain)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	for _, state := range []KeyState{Pending, Retiring} {
		for _, k := range r.in(state) {
			record, err := v.record(c.domain, k)
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(list, func(r Record) bool { return strings.EqualFold(r.Name, record.Name) }) {
				list = append(list, record)
			}
		}
	}
	return list, nil
}

// clientRecords lead users' programs to the ports that there are, and tell them which there are
// not (RFC 6186 section 3.4, RFC 8314 section 5.1).
func (c *checker) clientRecords(imap string) (list []Record) {
	const why = "where users' programs find their servers (RFC 6186, RFC 8314)"
	offered := make(map[string]bool)
	for _, p := range c.site.Ports {
		r := srvRecord(p, c.domain, c.site.Host)
		r.Why = why
		offered[r.Name] = true
		list = append(list, r)
	}
	if len(list) == 0 {
		return nil
	}
	if imap != "" {
		list = append(list, Record{"_imaps._tcp." + c.domain, "SRV", "0 1 993 " + imap + ".", why})
	}
	for _, name := range []string{"_submissions._tcp." + c.domain, "_submission._tcp." + c.domain} {
		if !offered[name] {
			list = append(list, Record{name, "SRV", "0 0 0 .", why})
		}
	}
	return list
}
