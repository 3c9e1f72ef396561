package trivialrewrite

import (
	"context"
	"strings"

	"posthaste/internal/mail"
	"posthaste/internal/table"
)

// lookupTransport applies transport_maps: the address with and without
// extension, its domain, the domain's parents, and last "*".
func (r *Rewriter) lookupTransport(ctx context.Context, m *table.Maps, domain string, res *Result) error {
	if m.Empty() {
		return nil
	}
	// As transport(5) has it: user+extension@domain, user@domain, domain, parents. The result
	// of a parent is found as .parent unless parent_domain_matches_subdomains has transport_maps.
	keys := table.KeyFull | table.KeyBare | table.KeyDomain | table.KeyExternalFirst
	if r.dotParents {
		keys |= table.KeyDotParents
	} else {
		keys |= table.KeyParents
	}
	value, _, found, err := m.LookupAddress(ctx, r.search, res.Recipient, keys)
	// "*" is no address, and is looked up as it stands, after all tables have been asked
	// for the address: an earlier table's "*" does not hide a later one's entry.
	if err == nil && !found {
		value, found, err = m.Lookup(ctx, "*", false)
	}
	if err != nil || !found {
		return err
	}
	applyTransport(res, value, domain)
	return nil
}

// applyTransport changes a route by a transport table's answer, in the form
// transport:nexthop. Without a transport only the next hop changes; a
// transport without next hop sets it back to the recipient's domain, also when
// relayhost or a parameter had set another.
func applyTransport(res *Result, value, domain string) {
	transport, hop, _ := strings.Cut(value, ":")
	if transport == "" {
		if hop != "" {
			res.Nexthop = mail.Nexthop(hop)
		}
		return
	}
	res.Transport = mail.Transport(transport)
	switch {
	case hop != "":
		res.Nexthop = mail.Nexthop(hop)
	// The domain would be read as the reason why the mail failed.
	case transport == transportError || transport == transportRetry:
		res.Nexthop = "Address is undeliverable"
	default:
		res.Nexthop = mail.Nexthop(domain)
	}
}
