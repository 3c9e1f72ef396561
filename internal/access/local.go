// Whose headers are completed with our domain (local_header_rewrite_clients).

package access

import (
	"context"
	"slices"
	"strings"

	"posthaste/internal/table"
)

// LocalClient says whether the client is one of those that words, the value of
// local_header_rewrite_clients, name: headers of its mail are completed with our
// domain. Mail of strangers must not be: an address without a domain there would
// seem to be ours. The elements look like restrictions, but only say yes or
// nothing.
func (e *Evaluator) LocalClient(ctx context.Context, s *Session, words []string) (bool, error) {
	r := &run{e: e, s: s}
	for i := 0; i < len(words); i++ {
		var v verdict
		switch w := strings.ToLower(words[i]); {
		case w == "permit_inet_interfaces":
			if slices.Contains(e.local.Interfaces, s.Addr) {
				return true, nil
			}
		case w == "permit_mynetworks":
			if in, err := e.MyNetworks(ctx, &s.Client); in || err != nil {
				return in, err
			}
		case w == "permit_sasl_authenticated":
			if e.sasl { // a login told by XCLIENT is not one of our users
				v = r.permitSASL(ctx)
			}
		case w == "permit_tls_clientcerts":
			v = r.permitClientCerts(ctx)
		case w == "permit_tls_all_clientcerts":
			v = r.permitAllClientCerts(ctx)
		case w == "check_address_map":
			// The table follows.
		case table.IsSpec(words[i]):
			if found, err := e.addressIn(ctx, words[i], s.AddrText); found || err != nil {
				return found, err
			}
		default:
			e.log.Warning("local_header_rewrite_clients: unknown element %q", words[i])
		}
		if v == ok {
			return true, nil
		}
	}
	return false, nil
}

// addressIn says whether a table has the client's address or a network that it is
// in.
func (e *Evaluator) addressIn(ctx context.Context, spec, addr string) (bool, error) {
	m := e.localMaps[spec]
	if m == nil {
		return false, nil
	}
	_, found, err := m.LookupClientAddr(ctx, addr)
	return found, err
}
