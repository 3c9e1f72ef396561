// Where services listen: the endpoints that a line of master.cf stands for. Everything is
// worked out when the configuration is read, so that a mistake refuses a reload before
// anything has changed.

package master

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"posthaste/internal/config"
)

// An endpoint is a place where a service listens. It is a value; two services must not
// have the same.
type endpoint struct {
	// "tcp", "unix" or "unixgram", as package net names them
	network  string
	addr     netip.AddrPort
	path     string // relative to the queue directory
	optional bool   // an address that the system may not have, beside others
}

// String is how the endpoint is told apart from others, and printed.
func (e endpoint) String() string {
	if e.network == "tcp" {
		return e.addr.String()
	}
	return e.path
}

// endpoints works out where the service listens. The types are those of master(5); fifos
// and pass services are sockets here.
func endpoints(cfg *config.Config, c config.Service) ([]endpoint, error) {
	switch c.Type {
	case "inet":
		return inetEndpoints(cfg, c.Name)
	case "unix-dgram":
		return []endpoint{{network: "unixgram", path: socketPath(c)}}, nil
	}
	return []endpoint{{network: "unix", path: socketPath(c)}}, nil
}

// socketPath is where a unix-domain socket lies. private/ is for the mail system alone,
// public/ also for the set-gid group.
func socketPath(c config.Service) string {
	if c.Private {
		return filepath.Join("private", c.Name)
	}
	return filepath.Join("public", c.Name)
}

// inetEndpoints reads [host:]port. Without a host it is every address of inet_interfaces.
// Addresses of a protocol that inet_protocols does not have are left out.
func inetEndpoints(cfg *config.Config, name string) ([]endpoint, error) {
	host, service := "", name
	// The last colon: an IPv6 address has some itself.
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		host, service = name[:i], name[i+1:]
	}
	// A number, or a name such as smtp or submission.
	port, err := cfg.Port(service)
	if err != nil {
		return nil, err
	}
	v4, v6, err := protocols(cfg)
	if err != nil {
		return nil, err
	}
	hosts := []string{host}
	if host == "" {
		if hosts = cfg.List("inet_interfaces"); len(hosts) == 0 {
			return nil, errors.New("inet_interfaces is empty: expected all, loopback-only, or addresses")
		}
	}
	var addrs []netip.Addr
	for _, h := range hosts {
		found, err := hostAddrs(h)
		if err != nil {
			return nil, err
		}
		for _, a := range found {
			// Two names may mean the same address, which can be listened on once.
			if (a.Is4() && v4 || a.Is6() && v6) && !slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
	}
	// A service that listens nowhere is a mistake that nobody would notice otherwise.
	if len(addrs) == 0 {
		return nil, fmt.Errorf("no address to listen on: %s has none of inet_protocols = %s",
			strings.Join(hosts, " "), cfg.String("inet_protocols"))
	}
	list := make([]endpoint, len(addrs))
	for i, a := range addrs {
		// A system may have IPv6 names and no IPv6.
		list[i] = endpoint{network: "tcp", addr: netip.AddrPortFrom(a, port), optional: a.Is6() && len(addrs) > 1}
	}
	return list, nil
}

// protocols reads inet_protocols.
func protocols(cfg *config.Config) (v4, v6 bool, err error) {
	for _, p := range cfg.List("inet_protocols") {
		switch strings.ToLower(p) {
		case "all":
			v4, v6 = true, true
		case "ipv4":
			v4 = true
		case "ipv6":
			v6 = true
		default:
			return false, false, fmt.Errorf("inet_protocols = %s: expected all, ipv4 or ipv6", p)
		}
	}
	if !v4 && !v6 {
		return false, false, errors.New("inet_protocols is empty: expected all, ipv4 or ipv6")
	}
	return v4, v6, nil
}

// hostAddrs is the addresses that a word of inet_interfaces, or the host in a service's
// name, stands for. A name is looked up with the system's resolver, for at most ten
// seconds: master does nothing else meanwhile.
func hostAddrs(host string) ([]netip.Addr, error) {
	switch strings.ToLower(host) {
	case "all":
		return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}, nil
	case "loopback-only":
		return loopback()
	}
	literal := host
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		literal = host[1 : len(host)-1]
	}
	// RFC 5321 writes [ipv6:...]; Postfix takes it without as well.
	if a, err := netip.ParseAddr(strings.TrimPrefix(literal, "ipv6:")); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	if literal != host {
		return nil, fmt.Errorf("address %s: expected an IP address in brackets", host)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// /etc/hosts counts: that is where names of one's own addresses are.
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("address of %s: %w", host, err)
	}
	for i := range found {
		// An IPv4 address in the form of IPv6 would be listened on twice.
		found[i] = found[i].Unmap()
	}
	return found, nil
}

// loopback is the addresses of the loopback interface, IPv4 first.
func loopback() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	for _, a := range all {
		// Whatever addresses the interface has, 127.0.0.2 for example.
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsLoopback() {
			found = append(found, p.Addr())
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found, nil
}
