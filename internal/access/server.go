// The restrictions that look at the hosts behind a name: check_..._a_access, _mx_access
// and _ns_access. They catch domains of strangers by the few servers they share.

package access

import (
	"context"
	"net/netip"
	"strings"

	"posthaste/internal/resolver"
	"posthaste/internal/table"
)

// serverKind is whose hosts an a/mx/ns access check is about.
type serverKind uint8

const (
	serverA serverKind = iota
	serverMX
	serverNS
)

// serverWord is how warnings call such a host.
var serverWord = [...]string{"address", "mail server", "name server"}

// serverCheck is check_..._a_access, check_..._mx_access and check_..._ns_access
// for what of the session gives. An OK counts as a mistake: the owner of the domain
// chooses what its servers are.
func serverCheck(kind serverKind, what func(r *run) (domain, name string, cl class)) func(*Evaluator, string) (check, error) {
	return tableCheck(func(r *run, ctx context.Context, m *table.Maps) verdict {
		domain, name, cl := what(r)
		if domain == "" || domain == "unknown" {
			return dunno
		}
		v := r.serverAccess(ctx, m, kind, domain, name, cl)
		if v == ok {
			return r.mustNotPermit(m.Title(), name)
		}
		return v
	})
}

// serverAccess looks the servers of domain up in m: their names, and then their
// addresses. A failing lookup says nothing, as with Postfix: the domain is a
// stranger's, who could refuse mail from others by it.
func (r *run) serverAccess(ctx context.Context, m *table.Maps, kind serverKind, domain, name string, cl class) verdict {
	if strings.HasPrefix(domain, "[") {
		// An address literal is its own server, and has no name servers.
		addr, literal := table.ParseLiteral(domain)
		if !literal || kind == serverNS {
			return dunno
		}
		v, _ := r.addrAccess(ctx, m, addr, name, cl)
		return v
	}
	// A domain of many servers is looked at until one of them decides.
	hosts, err := r.serversOf(ctx, kind, strings.TrimSuffix(domain, "."))
	if err != nil {
		r.e.log.Warning("Unable to look up %s host for %s: %v", serverWord[kind], domain, err)
		return dunno
	}
	n := 0
	for _, host := range hosts {
		// A name is its own to give: with its addresses, only they count.
		if kind != serverA {
			if v, done := r.domainAccess(ctx, m, host, name, cl); done {
				return v
			}
		}
		addrs, err := r.serverAddrs(ctx, host)
		if err != nil {
			if resolver.KindOf(err) == resolver.TempFail {
				r.e.log.Warning("Unable to look up %s %s of %s: %v", serverWord[kind], host, domain, err)
			}
			continue
		}
		for _, a := range addrs {
			if n++; n > maxServerAddrs {
				r.e.log.Warning("%s of %s have more than %d addresses: the others are not looked up", serverWord[kind]+"s", domain, maxServerAddrs)
				return dunno
			}
			if v, done := r.addrAccess(ctx, m, a, name, cl); done {
				return v
			}
		}
	}
	return dunno
}

// maxServerAddrs bounds the lookups that one stranger's domain can cause.
const maxServerAddrs = 100

// serverAddrs is the addresses of a host. An MX record may hold an address in place
// of a name, against the rules: it stands for itself.
func (r *run) serverAddrs(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	answer, err := r.e.dns.Addrs(ctx, host, resolver.IPv4|resolver.IPv6)
	return answer.Records, err
}

// addrAccess looks up an address, and the networks that it is in.
func (r *run) addrAccess(ctx context.Context, m *table.Maps, a netip.Addr, name string, cl class) (verdict, bool) {
	value, found, err := m.LookupClientAddr(ctx, a.String())
	return r.found(ctx, m, value, found, err, name, cl)
}

// serversOf is the hosts to be looked for. A domain without MX records is its
// own mail server (RFC 5321 section 5.1); the name servers of a name are those
// of the zone that it is in.
func (r *run) serversOf(ctx context.Context, kind serverKind, domain string) ([]string, error) {
	switch kind {
	case serverMX:
		mx, err := r.e.dns.MX(ctx, domain)
		switch resolver.KindOf(err) {
		case 0:
			hosts := make([]string, 0, len(mx.Records))
			for _, m := range mx.Records {
				if m.Host != "" {
					hosts = append(hosts, m.Host)
				}
			}
			return hosts, nil
		case resolver.TempFail:
			return nil, err
		}
		return []string{domain}, nil // some servers say that there is no such name
	case serverNS:
		for domain != "" {
			ns, err := r.e.dns.NS(ctx, domain)
			if err == nil {
				return ns.Records, nil
			}
			if resolver.KindOf(err) == resolver.TempFail {
				return nil, err
			}
			_, domain, _ = strings.Cut(domain, ".")
		}
		return nil, nil
	}
	return []string{domain}, nil
}

// The names that such restrictions can be about: what is looked up, how it is
// called in texts, and its class. An empty domain is "nothing to look up".
func ofClient(r *run) (string, string, class)  { return r.s.Name, r.s.NameAddr(), classClient }
func ofReverse(r *run) (string, string, class) { return r.s.ReverseName, r.s.ReverseName, classReverse }
func ofHelo(r *run) (string, string, class)    { return r.s.Helo, r.s.Helo, classHelo }
func ofSender(r *run) (string, string, class) {
	return domainOf(r.s.Sender), r.s.Sender, classSender
}

func ofRcpt(r *run) (string, string, class) {
	if !r.s.HasRcpt {
		return "", "", classRcpt
	}
	return domainOf(r.s.Recipient), r.s.Recipient, classRcpt
}
