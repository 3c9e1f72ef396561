// Package nameserver looks at a zone as each of its name servers has it. Whoever publishes a record must
// know when all of them show it: the one resolver of a system may have what it has heard before.
package nameserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"posthaste/internal/resolver"
)

// Bounds of a look.
const (
	maxServers = 16 // name servers of a zone
	maxAliases = 3  // one after the other
)

// Names finds the name servers. A resolver's Client is one.
type Names interface {
	NS(ctx context.Context, name string) (resolver.Answer[string], error)
	CNAME(ctx context.Context, name string) (resolver.Answer[string], error)
	Addrs(ctx context.Context, host string, f resolver.Family) (resolver.Answer[netip.Addr], error)
}

// A View is the DNS as its name servers have it. An S answers questions: it is one name server. The methods may
// be called concurrently if those of DNS and At may be.
type View[S any] struct {
	DNS Names
	At  func(netip.Addr) (server S, closing func()) // the name server at an address, and what ends asking it
}

// Everywhere has look ask each name server of the zone that a name is in, at each of its addresses. An
// address that does not answer is passed over if another of the same server does. The error is the
// first that look returns, with the name server; or that a server does not answer; or that
// the name servers could not be found. ErrNoZone says that there are none.
func (v *View[S]) Everywhere(ctx context.Context, name string, look func(server S) error) error {
	hosts, err := v.servers(ctx, name)
	if err != nil {
		return err
	}
	for _, host := range hosts {
		if err := v.server(ctx, host, look); err != nil {
			return fmt.Errorf("name server %s%w", host, err)
		}
	}
	return nil
}

// server asks one name server. The error continues a text that ends in the server's name.
func (v *View[S]) server(ctx context.Context, host string, look func(S) error) error {
	addrs, err := v.DNS.Addrs(ctx, host, resolver.IPv4|resolver.IPv6)
	if err != nil {
		return fmt.Errorf(": %w", err)
	}
	answered := false
	var silent error
	for _, addr := range addrs.Records {
		var failed *resolver.Error
		switch err := v.lookAt(addr, look); {
		case err == nil:
			answered = true
		case errors.As(err, &failed) && !resolver.NotFound(err): // nobody has answered there
			silent = err
		default:
			return fmt.Errorf("[%s]: %w", addr, err)
		}
	}
	if !answered {
		return fmt.Errorf(": %w", silent)
	}
	return nil
}

func (v *View[S]) lookAt(addr netip.Addr, look func(S) error) error {
	server, closing := v.At(addr)
	defer closing()
	return look(server)
}

// ErrNoZone says that a name is in no zone that has name servers, as in a network of its own.
var ErrNoZone = errors.New("there is no zone with name servers")

// servers are the names of the name servers of the zone that a name is in.
func (v *View[S]) servers(ctx context.Context, name string) ([]string, error) {
	for zone := name; zone != ""; _, zone, _ = strings.Cut(zone, ".") {
		a, err := v.DNS.NS(ctx, zone)
		switch {
		case err == nil && len(a.Records) > maxServers:
			return nil, fmt.Errorf("%s has %d name servers, expected at most %d", zone, len(a.Records), maxServers)
		case err == nil:
			return a.Records, nil
		case !resolver.NotFound(err):
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: %w", name, ErrNoZone)
}

// Canonical is the name that has the records of another, which may be an alias (CNAME) of it.
func Canonical(ctx context.Context, dns Names, name string) (string, error) {
	for range maxAliases + 1 {
		a, err := dns.CNAME(ctx, name)
		if resolver.NotFound(err) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		name = a.Records[0]
	}
	return "", fmt.Errorf("%s is reached by more than %d aliases", name, maxAliases)
}
