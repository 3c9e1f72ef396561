// DANE (RFC 7672): a server's certificate as the DNS has it, where DNSSEC vouches for
// the DNS.

package smtp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
	"posthaste/internal/tlspolicy"
	"posthaste/internal/tlsrpt"
)

// danePolicy turns level dane or dane-only into what the server's TLSA records ask
// for, RFC 7672. p is not shared yet. A failure is of this server, and temporary:
// where records may exist and cannot be had, TLS without them is no substitute, or
// an attacker need only suppress the answer (section 2.1.2).
func (d *delivery) danePolicy(ctx context.Context, t *target, p *policy) (*policy, *failure) {
	c := d.a.tls
	only := p.Level == tlspolicy.DaneOnly
	// without is for a server that DANE has nothing to say of.
	without := func(level tlspolicy.Level, why string) (*policy, *failure) {
		if only {
			return nil, &failure{kind: siteFailed, status: dsn.S(4, 7, 5), text: why + " for " + t.host}
		}
		p.Policy = c.At(p.Policy, level)
		p.names = tlspolicy.Names(p.Match, t.host, d.hop.host)
		return p, nil
	}
	switch {
	case d.set.dns != dnsSecure:
		d.log.LogWarning(maillog.SMTPNoDANE{Level: p.Level.String(), Nexthop: d.hop.text})
		return without(tlspolicy.May, "DNSSEC is not enabled")
	case d.set.ignoreMXErr:
		d.log.LogWarning(maillog.SMTPNoDANE{Level: p.Level.String(), Nexthop: d.hop.text, IgnoresMX: true})
		return without(tlspolicy.May, "DANE is disabled")
	}
	d.a.probe.warnIfUnsigned(ctx, t.mxSafe || t.secure, d.a.dns, d.log)
	// half: who the host is does not come from the DNS that is vouched for.
	// What smtp_tls_dane_insecure_mx_policy asks of it then, it asks only of
	// hosts that have TLSA records.
	half := !d.hop.noMX && !t.mxSafe
	if half && (only || c.insecureMX <= tlspolicy.May) {
		return without(tlspolicy.May, "non DNSSEC destination")
	}
	// TLSA records for a host whose addresses DNSSEC does not vouch for prove
	// nothing.
	safe, err := d.signedHost(ctx, t)
	if err == nil && !safe {
		return without(tlspolicy.May, "non DNSSEC address")
	}
	var records []tlspolicy.TLSA
	var base string
	if err == nil {
		records, base, err = d.tlsa(ctx, t)
	}
	switch {
	case err != nil:
		d.reportNoSession(t, tlsrpt.PolicyTLSA, &flaw{tlsrpt.DNSSECInvalid, err.Error()})
		return nil, &failure{kind: siteFailed, status: dsn.S(4, 7, 5), text: "TLSA lookup error for " + t.host + ":" + t.port}
	case len(records) == 0:
		return without(tlspolicy.May, "no TLSA records found")
	}
	// Records that we cannot use still say that the server has TLS. It is required
	// then, without a check of the certificate.
	usable := tlspolicy.Usable(records, c.DaneDigests)
	if len(usable) == 0 {
		d.log.LogWarning(maillog.SMTPNoUsableTLSA{ID: d.id, Host: t.host, Port: t.port})
		d.reportNoSession(t, tlsrpt.PolicyTLSA, &flaw{tlsrpt.TLSAInvalid, "no usable TLSA records"})
		return without(tlspolicy.Encrypt, "no usable TLSA records found")
	}
	level := p.Level
	switch {
	case half && !c.insecureMX.IsDane():
		return without(tlspolicy.Encrypt, "non DNSSEC destination")
	case half:
		level = tlspolicy.HalfDane
	}
	p.Policy = c.At(p.Policy, level)
	p.tlsa, p.sni, p.names = usable, base, []string{base}
	if !half && !d.hop.noMX {
		p.names = append(p.names, d.hop.host)
	}
	return p, nil
}

// signedHost says whether a server's TLSA records are worth a question: its
// addresses are vouched for, or it is an alias that is, whatever that leads to
// (RFC 7672 section 2.2.2). An error means that nobody knows.
func (d *delivery) signedHost(ctx context.Context, t *target) (bool, error) {
	if t.secure || d.a.tls.forceTLSA {
		return true, nil
	}
	own, ok := d.set.names.ToASCII(t.asked)
	if !ok || strings.EqualFold(own, t.name) {
		return false, nil
	}
	alias, err := d.a.dns.CNAME(ctx, own)
	if err != nil && !resolver.NotFound(err) && !isInvalid(err) {
		return false, err
	}
	return alias.Secure, nil
}

// tlsa looks up a server's TLSA records: under the name that its alias leads
// to, where all of the way there is vouched for, then under its own (RFC 7672
// section 2.2.2). Records that nobody vouches for do not count. An error means
// that there may be some.
func (d *delivery) tlsa(ctx context.Context, t *target) (records []tlspolicy.TLSA, base string, err error) {
	own, ok := d.set.names.ToASCII(t.asked)
	if !ok {
		return nil, "", nil // an address
	}
	names := []string{own}
	if t.secure && t.name != own {
		names = []string{t.name, own}
	}
	for _, base = range names {
		a, err := d.a.dns.TLSA(ctx, fmt.Sprintf("_%s._tcp.%s", t.port, base))
		switch {
		case err == nil && a.Secure:
			for _, r := range a.Records {
				records = append(records, tlspolicy.TLSA(r))
			}
			return records, base, nil
		case err != nil && !resolver.NotFound(err) && !isInvalid(err):
			return nil, "", err
		}
	}
	return nil, "", nil
}

// isInvalid says whether the name itself cannot be asked for: then there are no
// records.
func isInvalid(err error) bool {
	e, ok := errors.AsType[*resolver.Error](err)
	return ok && e.Kind == resolver.Invalid
}
