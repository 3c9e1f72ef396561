package domain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
	"posthaste/internal/webclient"
)

// A Class is what main.cf says that becomes of a domain's mail.
type Class string

const (
	Local   Class = "mydestination"
	Alias   Class = "virtual_alias_domains"
	Mailbox Class = "virtual_mailbox_domains"
	Relay   Class = "relay_domains"
	Foreign Class = "" // it is not for this system
)

// A Port is a service of master.cf at which users submit mail.
type Port struct {
	Number  uint16
	Wrapped bool // TLS from the first octet (RFC 8314), else STARTTLS
}

// A Site is what the configuration says of this mail system that the world must know of it.
type Site struct {
	Host      string       // myhostname
	Addrs     []netip.Addr // by which the world knows this host, sorted; empty if it has only private ones
	Relayhost string       // by which mail leaves; empty: by the MX records of its destinations
	Ports     []Port       // of submission, those with TLS from the first octet first

	classes map[Class]*table.List
	named   []string // the domains that the lists of the classes name themselves
	keys    *table.Maps
	hosted  *hosted // by the policyhost service; nil: nothing
	cfg     *config.Config
	names   resolver.Names // how international names are converted
}

// OpenSite reads the configuration. addrs are the host's addresses as the world sees them; if
// there are none, those of the interfaces and of proxy_interfaces that are public count. Close the
// Site.
func OpenSite(ctx context.Context, cfg *config.Config, services []config.Service, addrs []netip.Addr, warn func(string)) (*Site, error) {
	s := &Site{Host: strings.ToLower(cfg.String("myhostname")), Addrs: addrs, Relayhost: cfg.String("relayhost"),
		Ports: submission(services), cfg: cfg, classes: make(map[Class]*table.List), names: resolver.NamesOf(cfg)}
	o := table.Options{Warn: warn}
	var errs []error
	for _, class := range []Class{Local, Alias, Mailbox, Relay} {
		items := cfg.List(string(class))
		how := table.ListOptions{Kind: table.Strings, Table: o}
		if class == Relay { // of the four, the only one in which .example.com is a pattern
			how.Kind = table.Domains
			how.Parent = slices.Contains(cfg.List("parent_domain_matches_subdomains"), string(class))
		}
		list, err := table.NewList(string(class), items, how)
		errs = append(errs, err)
		s.classes[class] = list
		for _, d := range items {
			if d = strings.ToLower(d); resolver.ValidHostname(d) && strings.Contains(d, ".") && !slices.Contains(s.named, d) && !local(d) {
				s.named = append(s.named, d)
			}
		}
	}
	var err error
	s.hosted, err = readHosted(cfg, services, o)
	errs = append(errs, err)
	s.keys = table.OpenMaps("dkim_sign_maps", cfg.List("dkim_sign_maps"), o)
	if len(addrs) == 0 {
		for _, name := range []string{"inet_interfaces", "proxy_interfaces"} {
			list, err := table.OwnAddresses(ctx, cfg.List(name))
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
			s.Addrs = append(s.Addrs, list...)
		}
		speaks := cfg.List("inet_protocols")
		s.Addrs = slices.DeleteFunc(s.Addrs, func(a netip.Addr) bool {
			family := "ipv4"
			if a.Is6() {
				family = "ipv6" // where it is not spoken, no mail comes or goes by such an address
			}
			return !webclient.Public(a) || !slices.Contains(speaks, "all") && !slices.Contains(speaks, family)
		})
	}
	slices.SortFunc(s.Addrs, netip.Addr.Compare)
	s.Addrs = slices.Compact(s.Addrs)
	return s, errors.Join(errs...)
}

// local says whether a name is one that only this machine uses. mydestination has localhost.$mydomain by
// default.
func local(domain string) bool {
	return domain == "localhost" || strings.HasSuffix(domain, ".localhost") || strings.HasPrefix(domain, "localhost.")
}

// submission finds the services at which users submit mail.
func submission(services []config.Service) (ports []Port) {
	for _, s := range services {
		if s.Type != "inet" {
			continue
		}
		_, name, found := strings.Cut(s.Name, ":")
		if !found {
			name = s.Name
		}
		var p Port
		switch name {
		case "submissions", "smtps", "465":
			p = Port{465, true}
		case "submission", "587":
			p = Port{587, false}
		default:
			continue
		}
		if !slices.Contains(ports, p) {
			ports = append(ports, p)
		}
	}
	slices.SortFunc(ports, func(a, b Port) int { return int(a.Number) - int(b.Number) })
	return ports
}

// Close closes the tables.
func (s *Site) Close() error { return s.keys.Close() }

// Domains are the domains that main.cf names itself, as opposed to those in tables. The host's own name
// is one of them only if there is no other: mydestination has it for mail of the machine to itself, and
// nobody publishes an MX record, a key or a policy for it.
func (s *Site) Domains() []string {
	others := slices.DeleteFunc(slices.Clone(s.named), func(d string) bool { return d == s.Host })
	if len(others) == 0 {
		return s.named
	}
	return others
}

// Class says what becomes of a domain's mail. The error says that a table could not be asked.
func (s *Site) Class(ctx context.Context, domain string) (Class, error) {
	in, err := s.Classes(ctx, domain)
	if err != nil || len(in) == 0 {
		return Foreign, err
	}
	return in[0], nil
}

// Classes are all classes that a domain is in: one, or none, unless main.cf is wrong. They are in
// the order in which they count.
func (s *Site) Classes(ctx context.Context, domain string) (in []Class, err error) {
	for _, class := range []Class{Local, Alias, Mailbox, Relay} {
		found, err := s.classes[class].Match(ctx, domain)
		if err != nil {
			return nil, err
		}
		if found {
			in = append(in, class)
		}
	}
	return in, nil
}

// Keys are the keys that the domain's mail is signed with.
func (s *Site) Keys(ctx context.Context, domain string) ([]dkimkey.Entry, error) {
	return dkimkey.Find(ctx, s.keys, "", domain)
}

// ring are the domain's keys as posthaste domain keeps them, and the directory of their files.
// Close the latter.
func (s *Site) ring(domain string) (*ring, *vault, error) {
	v, _, err := openVault(s.cfg, true)
	if err != nil {
		return nil, nil, err
	}
	r, err := v.ring(domain)
	if err != nil {
		return nil, nil, errors.Join(err, v.Close())
	}
	return r, v, nil
}

// has says whether an address is one of this host.
func (s *Site) has(a netip.Addr) bool { return slices.Contains(s.Addrs, a.Unmap()) }
