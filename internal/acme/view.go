package acme

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"posthaste/internal/resolver"
)

// Bounds of a look at a zone's servers.
const (
	maxServers = 16 // name servers of a zone
	maxAliases = 3  // one after the other
)

// An asker looks names up.
type asker interface {
	TXT(ctx context.Context, name string) (resolver.Answer[string], error)
	TLSA(ctx context.Context, name string) (resolver.Answer[resolver.TLSA], error)
	NS(ctx context.Context, name string) (resolver.Answer[string], error)
	CNAME(ctx context.Context, name string) (resolver.Answer[string], error)
	Addrs(ctx context.Context, host string, f resolver.Family) (resolver.Answer[netip.Addr], error)
}

// A view is the DNS as its name servers have it.
type view struct {
	dns asker
	at  func(netip.Addr) (asker, func()) // the name server at an address, and what ends asking it
}

// everywhere asks each name server of a name's zone. The error is the first that look returns, with
// the server, or says that a server does not answer at any of its addresses.
func (v *view) everywhere(ctx context.Context, name string, look func(server asker) error) error {
	hosts, err := v.servers(ctx, name)
	if err != nil {
		return err
	}
	for _, host := range hosts {
		addrs, err := v.dns.Addrs(ctx, host, resolver.IPv4|resolver.IPv6)
		if err != nil {
			return fmt.Errorf("name server %s: %w", host, err)
		}
		// One address that answers speaks for its server.
		err = nil
		for _, addr := range addrs.Records {
			err = v.lookAt(addr, look)
			var silent *resolver.Error
			if !errors.As(err, &silent) || resolver.NotFound(err) {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("name server %s: %w", host, err)
		}
	}
	return nil
}

func (v *view) lookAt(addr netip.Addr, look func(asker) error) error {
	server, closing := v.at(addr)
	defer closing()
	return look(server)
}

// servers are the name servers of the zone that a name is in.
func (v *view) servers(ctx context.Context, name string) ([]string, error) {
	for zone := name; zone != ""; _, zone, _ = strings.Cut(zone, ".") {
		a, err := v.dns.NS(ctx, zone)
		switch {
		case err == nil && len(a.Records) > maxServers:
			return nil, fmt.Errorf("%s has %d name servers, expected at most %d", zone, len(a.Records), maxServers)
		case err == nil:
			return a.Records, nil
		case !resolver.NotFound(err):
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s is in no zone with name servers", name)
}

// real is the name that has the records of another, which may be an alias.
func (v *view) real(ctx context.Context, name string) (string, error) {
	for range maxAliases {
		a, err := v.dns.CNAME(ctx, name)
		if resolver.NotFound(err) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		name = a.Records[0]
	}
	return "", fmt.Errorf("%s is an alias of an alias of an alias", name)
}
