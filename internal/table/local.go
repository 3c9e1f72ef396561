package table

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"posthaste/internal/config"
)

// Local decides which domains are this system's own, for delivery by local(8)
// and for lookups of plain user names. OpenLocal makes it, and nothing changes it then.
type Local struct {
	Origin      string       // myorigin
	Destination *List        // mydestination
	Interfaces  []netip.Addr // of inet_interfaces
	Addresses   []netip.Addr // of inet_interfaces and proxy_interfaces
}

// OpenLocal reads what myorigin, mydestination, inet_interfaces and proxy_interfaces say.
// Names of hosts among the interfaces are looked up. mydestination is a list of strings, as for
// Postfix: .example.com there is no pattern for subdomains, and neither is example.com, whatever
// parent_domain_matches_subdomains says. With an error there is a Local all the same, to
// which what was wrong is unknown.
func OpenLocal(ctx context.Context, cfg *config.Config, o Options) (*Local, error) {
	destination, err := NewList("mydestination", cfg.List("mydestination"), ListOptions{Kind: Strings, Table: o})
	own, err2 := OwnAddresses(ctx, cfg.List("inet_interfaces"))
	if err2 != nil {
		err = errors.Join(err, fmt.Errorf("inet_interfaces: %w", err2))
	}
	proxied, err2 := OwnAddresses(ctx, cfg.List("proxy_interfaces"))
	if err2 != nil {
		err = errors.Join(err, fmt.Errorf("proxy_interfaces: %w", err2))
	}
	return &Local{Origin: cfg.String("myorigin"), Destination: destination, Interfaces: own, Addresses: slices.Concat(own, proxied)}, err
}

// IsDestination says whether mail for domain is delivered here: it is listed
// in mydestination, or is an address literal ([192.0.2.1], [IPv6:2001:db8::1])
// of this system. A dot at the end does not matter.
func (l *Local) IsDestination(ctx context.Context, domain string) (bool, error) {
	domain = strings.TrimSuffix(domain, ".")
	if domain == "" {
		return false, nil
	}
	if found, err := l.Destination.Match(ctx, domain); found || err != nil {
		return found, err
	}
	if addr, ok := ParseLiteral(domain); ok {
		return slices.Contains(l.Addresses, addr), nil
	}
	return false, nil
}

// IsLocal is IsDestination or the origin: the test for lookups without domain.
func (l *Local) IsLocal(ctx context.Context, domain string) (bool, error) {
	if l.Origin != "" && strings.EqualFold(domain, l.Origin) {
		return true, nil
	}
	return l.IsDestination(ctx, domain)
}

// ParseLiteral reads an address literal, RFC 5321 section 4.1.3.
func ParseLiteral(s string) (netip.Addr, bool) {
	if len(s) < 2 || s[0] != '[' || s[len(s)-1] != ']' {
		return netip.Addr{}, false
	}
	s = s[1 : len(s)-1]
	v6 := len(s) > 5 && strings.EqualFold(s[:5], "IPv6:")
	if v6 {
		s = s[5:]
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || a.Is6() != v6 {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// OwnAddresses is the addresses that interfaces stands for, the value of
// inet_interfaces or proxy_interfaces: "all", "loopback-only", addresses with
// or without brackets, host names.
func OwnAddresses(ctx context.Context, interfaces []string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, e := range interfaces {
		switch strings.ToLower(e) {
		case "all", "loopback-only":
			list, err := net.InterfaceAddrs()
			if err != nil {
				return nil, fmt.Errorf("list the addresses of this system: %w", err)
			}
			for _, n := range list {
				p, err := netip.ParsePrefix(n.String())
				if err == nil && (strings.EqualFold(e, "all") || p.Addr().IsLoopback()) {
					out = append(out, p.Addr().Unmap().WithZone(""))
				}
			}
			continue
		}
		text := strings.TrimSuffix(strings.TrimPrefix(e, "["), "]")
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap().WithZone(""))
			continue
		}
		list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", text)
		if err != nil {
			return nil, fmt.Errorf("interface %q: %w", e, err)
		}
		for _, a := range list {
			out = append(out, a.Unmap().WithZone(""))
		}
	}
	return out, nil
}
