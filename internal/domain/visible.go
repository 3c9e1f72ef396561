package domain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/resolver"
)

// An Asker answers questions for texts.
type Asker interface {
	TXT(ctx context.Context, name string) (resolver.Answer[string], error)
}

// Bounds of a look at a zone's servers.
const (
	maxServers = 16 // name servers of a zone
	maxAliases = 3  // one after the other
)

// visible says whether every name server of the zone shows the key of a record, and only that one,
// and whether the resolver of this system does, too. The error says who does not, or that it could not
// be found out. Servers are asked by address; one address that answers speaks for its server. A zone
// whose servers are not known, as in a network of its own, is what the resolver says.
func (w *World) visible(ctx context.Context, r Record) error {
	name := r.Name
	for range maxAliases { // a selector may be an alias in the zone of a provider
		a, err := w.DNS.CNAME(ctx, name)
		if resolver.NotFound(err) {
			break
		}
		if err != nil {
			return err
		}
		name = a.Records[0]
	}
	hosts, err := w.servers(ctx, name)
	if err != nil {
		return err
	}
	for _, host := range hosts {
		if err := w.shownBy(ctx, host, name, r.Data); err != nil {
			return err
		}
	}
	if err := shows(ctx, w.DNS, r.Name, r.Data); err != nil {
		return fmt.Errorf("the resolver of this system: %w", err)
	}
	return nil
}

// servers are the name servers of the zone that a name is in; none if there is no such zone.
func (w *World) servers(ctx context.Context, name string) ([]string, error) {
	for zone := name; zone != ""; {
		a, err := w.DNS.NS(ctx, zone)
		if err == nil {
			if len(a.Records) > maxServers {
				return nil, fmt.Errorf("%s has %d name servers, expected at most %d", zone, len(a.Records), maxServers)
			}
			return a.Records, nil
		}
		if !resolver.NotFound(err) {
			return nil, err
		}
		_, zone, _ = strings.Cut(zone, ".")
	}
	return nil, nil
}

// shownBy says whether a name server shows a key.
func (w *World) shownBy(ctx context.Context, host, name, want string) error {
	a, err := w.DNS.Addrs(ctx, host, resolver.IPv4|resolver.IPv6)
	if err != nil {
		return fmt.Errorf("name server %s: %w", host, err)
	}
	answered := false
	var silent error
	for _, addr := range a.Records {
		err := w.shownAt(ctx, addr, name, want)
		var failed *resolver.Error
		switch {
		case err == nil:
			answered = true
		case errors.As(err, &failed) && !resolver.NotFound(err): // this address does not answer
			silent = err
		default:
			return fmt.Errorf("name server %s[%s]: %w", host, addr, err)
		}
	}
	if !answered {
		return fmt.Errorf("name server %s: %w", host, silent)
	}
	return nil
}

// shownAt asks one address.
func (w *World) shownAt(ctx context.Context, addr netip.Addr, name, want string) error {
	asker, closing := w.At(addr)
	defer closing()
	return shows(ctx, asker, name, want)
}

// shows says whether somebody who is asked shows a key.
func shows(ctx context.Context, asker Asker, name, want string) error {
	a, err := asker.TXT(ctx, name)
	if err != nil {
		return err
	}
	if len(a.Records) > 1 {
		return fmt.Errorf("%s has %d records", name, len(a.Records))
	}
	if text, ok := publishes(a.Records[0], want); !ok {
		return fmt.Errorf("%s is another record: %s", name, text)
	}
	return nil
}

// publishes says whether the text of a record publishes the key of another, for use with mail; text
// is what there is, to be shown.
func publishes(have, want string) (text string, ok bool) {
	h, w := dkimkey.Tags(have), dkimkey.Tags(want)
	kind := h["k"]
	if kind == "" {
		kind = kindRSA // RFC 6376 section 3.6.1
	}
	ok = h["p"] == w["p"] && kind == w["k"] && (h["v"] == "" || h["v"] == "DKIM1") && (h["h"] == "" || contains(h["h"], "sha256")) &&
		(h["s"] == "" || contains(h["s"], "email") || contains(h["s"], "*"))
	return printable(have), ok
}
