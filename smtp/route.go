// Which servers a destination has, and in which order they are tried: MX records, the
// addresses of the hosts, and this system's own place among them.

package smtp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
)

// target is one address of a server. The list of a route is shared between the walk
// and its copies, and is not changed.
type target struct {
	host string     // as in the MX record, or as asked for
	ip   netip.Addr // not valid for a Unix-domain socket
	port string     // in digits; empty until route has filled it in
	path string     // of a Unix-domain socket; empty: it is TCP
	pref uint16     // of the MX record; with SRV records the place in their order
	best bool       // no other server of the destination is preferred

	asked  string // the name that was looked up: host, but for smtp_cname_overrides_servername
	name   string // the name that has the addresses, where that is an alias, as the DNS has it
	secure bool   // the addresses are vouched for by DNSSEC
	mxSafe bool   // so is the way to host: the MX records
}

// address is the IP address or the path, as tables and log lines have it.
func (t *target) address() string {
	if t.path != "" {
		return t.path
	}
	return t.ip.String()
}

// maxTargets bounds how many addresses of a destination are considered, and MX
// hosts looked up: the owner of a domain can publish any number, and make us look
// up each.
const maxTargets = 100

// route finds the servers of the present nexthop, in the order in which they are to
// be tried, at least one. A failure is of all of the nexthop.
func (d *delivery) route(ctx context.Context) ([]target, *failure) {
	hop := d.hop
	if hop.path != "" {
		return []target{{host: d.set.myhostname, path: hop.path, best: true}}, nil
	}
	list, f := d.lookup(ctx)
	if f == nil {
		list, f = d.reachable(list)
	}
	if f == nil {
		list, f = d.allowed(list)
	}
	if f != nil {
		return nil, f
	}
	for i := range list {
		// Only SRV records bring a port of their own.
		if list[i].port == "" {
			list[i].port = hop.port
		}
	}
	list = d.arrange(list)
	for i := range list {
		list[i].best = list[i].pref == list[0].pref
	}
	return list, nil
}

// lookup finds the servers' addresses in the way that the nexthop asks for: by SRV
// records, by its own address ([host], or smtp_dns_support_level = disabled), or by
// MX records.
func (d *delivery) lookup(ctx context.Context) ([]target, *failure) {
	// A service that use_srv_lookup names. Where it has no SRV records, and a
	// fallback is allowed, the domain's MX records count.
	if d.wantsSRV() {
		if list, f, done := d.srvTargets(ctx); done {
			return list, f
		}
	}
	if d.hop.noMX || d.set.dns == dnsDisabled {
		return d.loneHost(ctx)
	}
	return d.domainTargets(ctx, d.hop.host)
}

// loneHost finds the addresses of a nexthop that is a host, which must not be this
// one: mail that main.cf sends to this host would come back at once.
func (d *delivery) loneHost(ctx context.Context) ([]target, *failure) {
	list, f := d.hostTargets(ctx, d.lone[:0], d.hop.host, 0)
	if f == nil && d.hop.port == smtpPort && slices.ContainsFunc(list, func(t target) bool { return slices.Contains(d.a.own, t.ip) }) {
		return nil, d.loops(d.hop.host)
	}
	return list, f
}

// loops is the failure of mail that would come back to this system. It is
// permanent: no retry can change it, and best_mx_transport may take such mail.
func (d *delivery) loops(domain string) *failure {
	f := lookupFailure(dsn.S(5, 4, 6), "mail for "+domain+" loops back to myself")
	f.loop = true
	return f
}

// lookupError gives a DNS error the status that it deserves: permanent only for a
// name server's word that there is no such name.
func lookupError(err error) *failure {
	status := dsn.S(4, 4, 3)
	switch resolver.KindOf(err) {
	case resolver.NXDomain, resolver.NoData, resolver.Invalid:
		status = dsn.S(5, 4, 4)
	case resolver.NoRecovery:
		status = dsn.S(5, 4, 3)
	case resolver.Filtered:
		status = dsn.S(4, 7, 0)
	}
	return lookupFailure(status, err.Error())
}

// lookupFailure is a failure before there was any server to blame.
func lookupFailure(status dsn.Status, text string) *failure {
	return &failure{kind: sessionFailed, status: status, text: text}
}

// domainTargets finds the servers of a mail domain: its MX hosts, or itself where
// there are none (RFC 5321 section 5.1). A lookup that failed is not "there are
// none": the domain's own address may be a web server. ignore_mx_lookup_error
// overrides this.
func (d *delivery) domainTargets(ctx context.Context, domain string) ([]target, *failure) {
	mx, err := d.a.dns.MX(ctx, domain)
	if err != nil {
		if resolver.NotFound(err) {
			list, f := d.loneHost(ctx)
			e, ok := errors.AsType[*resolver.Error](err)
			for i := range list {
				list[i].mxSafe = ok && e.Secure // vouched for: there is no MX
			}
			return list, f
		}
		if d.set.ignoreMXErr && resolver.KindOf(err) != resolver.Filtered {
			return d.loneHost(ctx)
		}
		return nil, lookupError(err)
	}
	// RFC 7505: one MX record with an empty host says that the domain takes no
	// mail. Without this check each message would wait out its queue lifetime.
	if len(mx.Records) == 1 && mx.Records[0].Host == "" {
		return nil, lookupFailure(dsn.S(5, 1, 0), "Domain "+domain+" does not accept mail (nullMX)")
	}
	return d.exchangers(ctx, domain, mx)
}

// exchangers looks up the addresses of MX hosts, all at once. If some have none,
// the others count; if all have none, the failure is a temporary one where any of
// them was.
func (d *delivery) exchangers(ctx context.Context, domain string, mx resolver.Answer[resolver.MX]) ([]target, *failure) {
	hosts := slices.Clone(mx.Records)
	slices.SortStableFunc(hosts, func(a, b resolver.MX) int { return int(a.Pref) - int(b.Pref) })
	// The most preferred of them are kept, in the order of the records.
	hosts = hosts[:min(len(hosts), maxTargets)]
	found := make([][]target, len(hosts))
	failed := make([]*failure, len(hosts))
	if len(hosts) == 1 {
		found[0], failed[0] = d.hostTargets(ctx, nil, hosts[0].Host, hosts[0].Pref)
	} else {
		// One MX host with slow name servers must not delay the lookups of the
		// others. Each lookup writes to its own element.
		var wg sync.WaitGroup
		for i, h := range hosts {
			wg.Go(func() { found[i], failed[i] = d.hostTargets(ctx, nil, h.Host, h.Pref) })
		}
		wg.Wait()
	}
	var list []target
	var why *failure
	best := hosts[0].Pref
	for i := range hosts {
		list = append(list, found[i]...)
		if f := failed[i]; f != nil && (why == nil || f.soft() || !why.soft()) {
			why = f
		}
	}
	if len(list) == 0 {
		d.log.LogWarning(maillog.SMTPNoMXAddress{Domain: domain})
		// Without smtp_defer_if_no_mx_address_found such mail is returned at once
		// where all names do not exist.
		if d.set.deferNoAddr {
			why.status.Class = 4
		}
		return nil, why
	}
	list = list[:min(len(list), maxTargets)]
	for i := range list {
		list[i].mxSafe = mx.Secure
	}
	return d.withoutLoops(domain, list, best)
}

// withoutLoops takes this system off the list, with all that come after it: mail
// goes only to servers that are preferred to this one (RFC 5321 section 5.1), or
// two backup hosts would hand it to each other. best is the preference of the best
// MX host, with or without address.
func (d *delivery) withoutLoops(domain string, list []target, best uint16) ([]target, *failure) {
	// Another port of this host is another program: a content filter, or a proxy.
	if d.hop.port != smtpPort {
		return list, nil
	}
	self := slices.IndexFunc(list, func(t target) bool { return slices.Contains(d.a.own, t.ip) })
	if self < 0 {
		return list, nil
	}
	d.finalHop = true // a fallback relay would send it right back
	pref := list[self].pref
	cut := slices.IndexFunc(list, func(t target) bool { return t.pref >= pref })
	if cut > 0 {
		return list[:cut], nil
	}
	// We are a backup, and the primary has no address just now: it may have one
	// later. Otherwise this host is the best there is, and mail would loop.
	if best < list[0].pref {
		return nil, lookupFailure(dsn.S(4, 4, 4), "unable to find primary relay for "+domain)
	}
	return nil, d.loops(domain)
}

// hostTargets looks up the addresses of one host, and appends them to list. An
// address stands for itself. An error of the DNS is one of this host.
func (d *delivery) hostTargets(ctx context.Context, list []target, host string, pref uint16) ([]target, *failure) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return append(list, target{host: host, asked: host, name: host, ip: ip.Unmap(), pref: pref}), nil
	}
	if host == "" {
		return nil, lookupFailure(dsn.S(5, 4, 4), "Name service error for .: invalid host or domain name")
	}
	a, err := d.lookupHost(ctx, host)
	if err != nil {
		f := lookupError(err)
		f.text = d.hostError(host, err)
		return nil, f
	}
	asked := host
	// smtp_cname_overrides_servername: logs, password tables and certificates then
	// go by the name that the alias leads to.
	if d.set.cnameNames && a.Name != "" {
		host = a.Name
	}
	list = slices.Grow(list, len(a.Records))
	for _, ip := range a.Records {
		list = append(list, target{host: host, asked: asked, name: a.Name, ip: ip, pref: pref, secure: a.Secure})
	}
	return list, nil
}

// lookupHost asks as smtp_host_lookup says: the DNS, then the system, or one of
// them. The system is asked after the DNS only for a name that the DNS does not
// have: a hosts file must not hide that the name servers do not answer.
func (d *delivery) lookupHost(ctx context.Context, host string) (resolver.Answer[netip.Addr], error) {
	dns := d.set.hostDNS && d.set.dns != dnsDisabled
	if !dns {
		return d.a.dns.Native(ctx, host, d.set.families)
	}
	a, err := d.a.dns.Addrs(ctx, host, d.set.families)
	// smtp_host_lookup = dns, native.
	if err != nil && d.set.hostNative && resolver.NotFound(err) {
		return d.a.dns.Native(ctx, host, d.set.families)
	}
	return a, err
}

// hostError words an error as the kind of lookup that made it does: with the
// system's lookup the texts are those of getaddrinfo(3), as with Postfix.
func (d *delivery) hostError(host string, err error) string {
	if d.set.hostDNS && !d.set.hostNative && d.set.dns != dnsDisabled {
		return err.Error()
	}
	text := "Temporary failure in name resolution"
	switch resolver.KindOf(err) {
	case resolver.NXDomain:
		text = "Name or service not known"
	case resolver.NoData:
		text = "No address associated with hostname"
	case resolver.NoRecovery, resolver.Invalid:
		text = "Non-recoverable failure in name resolution"
	}
	return "unable to look up host " + host + ": " + text
}

// arrange puts addresses in the order in which they are tried: by preference, among
// equals at random or by family, and takes care that the first few are not all of
// one family. At random, since RFC 5321 section 5.1 has clients spread their load
// over equal MX hosts.
func (d *delivery) arrange(list []target) []target {
	// The shuffle comes before the sort, which is stable: equals stay shuffled.
	if len(list) > 1 && d.set.randomize {
		d.a.mu.Lock()
		d.a.rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		d.a.mu.Unlock()
	}
	family := func(t *target) int {
		switch {
		case d.set.preference == "ipv4" && !t.ip.Is4(), d.set.preference == "ipv6" && t.ip.Is4():
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b target) int {
		if a.pref != b.pref {
			return int(a.pref) - int(b.pref)
		}
		return family(&a) - family(&b)
	})
	if d.set.balance && d.set.maxAddrs > 0 {
		list = balance(list, d.set.maxAddrs)
	}
	return list
}

// balance keeps limit addresses, and gives the family that has fewer up to half of
// the places: IPv6 that does not work must not use up smtp_mx_address_limit. The
// order stays.
func balance(list []target, limit int) []target {
	v4 := 0
	for i := range list {
		if list[i].ip.Is4() {
			v4++
		}
	}
	v6 := len(list) - v4
	limit = min(limit, maxTargets)
	if v4 == 0 || v6 == 0 || len(list) <= limit {
		return list
	}
	switch {
	case v6 <= limit/2:
		v4 = limit - v6
	case v4 <= limit/2:
		v6 = limit - v4
	default:
		first := 0
		if list[0].ip.Is4() {
			first = 1
		}
		v4 = (limit + first) / 2
		v6 = limit - v4
	}
	out := list[:0:0]
	for _, t := range list {
		room := &v6
		if t.ip.Is4() {
			room = &v4
		}
		if *room > 0 {
			*room--
			out = append(out, t)
		}
	}
	return out
}

// A source is the address that connections come from.
type source struct {
	addr  netip.Addr
	given bool // by smtp_bind_address or smtp_bind_address6: smtp_bind_address_enforce is about it
}

// bindAddrs gives the source address for each family (true: IPv4): what the
// parameters say, or this system's only address if it has but one, so that a host
// with aliases calls from the address that inet_interfaces gives it.
func (s *settings) bindAddrs(own []netip.Addr) (map[bool]source, error) {
	bind := make(map[bool]source)
	for _, p := range []struct {
		v4    bool
		value string
		name  string
	}{{true, s.bind4, "bind_address"}, {false, s.bind6, "bind_address6"}} {
		if p.value != "" {
			text := strings.TrimSuffix(strings.TrimPrefix(p.value, "["), "]")
			ip, err := netip.ParseAddr(text)
			if err != nil || ip.Is4() != p.v4 {
				return nil, fmt.Errorf("%s = %s: expected an address of that family", s.own.Name(p.name), p.value)
			}
			bind[p.v4] = source{ip, true}
			continue
		}
		var only []netip.Addr
		for _, ip := range own {
			if ip.Is4() == p.v4 && !slices.Contains(only, ip) { // several names may have it
				only = append(only, ip)
			}
		}
		// inet_interfaces with one address of the family is a statement of which
		// address this system has; with several, or with 0.0.0.0, the system
		// chooses.
		if len(only) == 1 && !only[0].IsLoopback() && !only[0].IsUnspecified() {
			bind[p.v4] = source{only[0], false}
		}
	}
	return bind, nil
}
