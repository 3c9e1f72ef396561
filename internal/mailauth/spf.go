package mailauth

import (
	"context"
	"net"
	"net/netip"

	"blitiri.com.ar/go/spf"

	"posthaste/internal/resolver"
	"posthaste/internal/rfc5322"
)

// SPF asks whether the client may send for the sender's domain, or for the name
// it gave at HELO when the sender is null (RFC 7208 section 2.4).
func (c *Checker) SPF(ctx context.Context, client netip.Addr, helo, sender string) SPF {
	s := SPF{Result: None, MailFrom: sender, Domain: rfc5322.Domain(sender)}
	asked := sender
	if sender == "" {
		s.Helo, s.Domain = helo, helo
		asked = "postmaster@" + helo
	}
	if !resolver.ValidHostname(s.Domain) || !client.IsValid() {
		return s // RFC 7208 section 4.3: a malformed domain has no policy
	}
	res, _ := spf.CheckHostWithSender(net.IP(client.AsSlice()), helo, asked, spf.WithContext(ctx), spf.WithResolver(spfDNS{c.dns}))
	s.Result = Result(res)
	return s
}

// spfDNS asks our resolver in the words of package net.
type spfDNS struct{ r resolver.Resolver }

func dnsError(name string, err error) error {
	e := &net.DNSError{Err: err.Error(), Name: name}
	switch resolver.KindOf(err) {
	case resolver.NXDomain, resolver.NoData, resolver.Invalid:
		e.IsNotFound = true
	default:
		e.IsTemporary = true
	}
	return e
}

func (d spfDNS) LookupTXT(ctx context.Context, name string) ([]string, error) {
	a, err := d.r.TXT(ctx, name)
	if err != nil {
		return nil, dnsError(name, err)
	}
	return a.Records, nil
}

func (d spfDNS) LookupMX(ctx context.Context, name string) ([]*net.MX, error) {
	a, err := d.r.MX(ctx, name)
	if err != nil {
		return nil, dnsError(name, err)
	}
	list := make([]*net.MX, len(a.Records))
	for i, mx := range a.Records {
		list[i] = &net.MX{Host: mx.Host, Pref: mx.Pref}
	}
	return list, nil
}

func (d spfDNS) LookupIPAddr(ctx context.Context, host string) ([]net.IPAddr, error) {
	a, err := d.r.Addrs(ctx, host, resolver.IPv4|resolver.IPv6)
	if err != nil {
		return nil, dnsError(host, err)
	}
	list := make([]net.IPAddr, len(a.Records))
	for i, addr := range a.Records {
		list[i] = net.IPAddr{IP: addr.AsSlice()}
	}
	return list, nil
}

func (d spfDNS) LookupAddr(ctx context.Context, addr string) ([]string, error) {
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return nil, &net.DNSError{Err: err.Error(), Name: addr, IsNotFound: true}
	}
	a, err := d.r.PTR(ctx, ip)
	if err != nil {
		return nil, dnsError(addr, err)
	}
	return a.Records, nil
}
