// The names of clients, from /etc/hosts and the DNS.

package smtpd

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"posthaste/internal/resolver"
)

// hostNames finds names as the system's other programs do: in /etc/hosts, and then
// in the DNS. It implements Names, and may be used concurrently. The DNS is asked
// by our resolver, not by package net, whose errors do not tell what is temporary.
type hostNames struct {
	dns *resolver.Client
	// hosts reads /etc/hosts and no more: its Dial fails, so that it never gets as far as
	// the DNS.
	hosts *net.Resolver
	// names and addrs are what hosts has found lately, by address and by name.
	names fileNames[netip.Addr, string]
	addrs fileNames[hostKey, netip.Addr]
}

// hostKey is a name with the network ("ip4" or "ip6") whose addresses are wanted.
type hostKey struct{ network, name string }

func newHostNames(dns *resolver.Client) *hostNames {
	return &hostNames{dns: dns, hosts: &net.Resolver{PreferGo: true,
		Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errNoNetwork }}}
}

// errNoNetwork is what hosts gets instead of a connection to a name server. Nobody
// sees it.
var errNoNetwork = errors.New("names are looked up in files only")

// PTR implements Names. An error of hosts is "not in the file", whatever it says.
func (h *hostNames) PTR(ctx context.Context, addr netip.Addr) (resolver.Answer[string], error) {
	names := h.names.get(addr, func() []string {
		names, err := h.hosts.LookupAddr(ctx, addr.String())
		if err != nil {
			return nil
		}
		return names
	})
	if len(names) > 0 {
		return resolver.Answer[string]{Records: names, Name: names[0]}, nil
	}
	return h.dns.PTR(ctx, addr)
}

// Addrs implements Names.
func (h *hostNames) Addrs(ctx context.Context, host string, f resolver.Family) (resolver.Answer[netip.Addr], error) {
	network := "ip4"
	if f == resolver.IPv6 {
		network = "ip6"
	}
	addrs := h.addrs.get(hostKey{network, host}, func() []netip.Addr {
		addrs, err := h.hosts.LookupNetIP(ctx, network, host)
		if err != nil {
			return nil
		}
		for i := range addrs {
			addrs[i] = addrs[i].Unmap()
		}
		return addrs
	})
	if len(addrs) > 0 {
		return resolver.Answer[netip.Addr]{Records: addrs, Name: host}, nil
	}
	return h.dns.Addrs(ctx, host, f)
}

// fileNames remembers what /etc/hosts has, and has not, for as long as package net
// takes to notice that the file has changed: to ask it costs more than all else
// that is done to greet a client. It may be used concurrently.
type fileNames[K comparable, V any] struct {
	mu    sync.Mutex // guards what follows
	until time.Time  // when known is to be emptied
	known map[K][]V  // nil or empty for what is not in the file
}

const (
	// fileNamesTime is package net's own time between two looks at the file.
	fileNamesTime = 5 * time.Second
	// maxFileNames bounds what clients from many addresses can have us remember.
	maxFileNames = 1000
)

// get returns what is known of k, or what look finds. Nobody may change it. Two
// callers may look for the same key at once, which does no harm; the lock is not
// held meanwhile.
func (f *fileNames[K, V]) get(k K, look func() []V) []V {
	f.mu.Lock()
	now := time.Now()
	if !now.Before(f.until) || len(f.known) >= maxFileNames {
		f.known, f.until = map[K][]V{}, now.Add(fileNamesTime)
	}
	v, ok := f.known[k]
	f.mu.Unlock()
	if ok {
		return v
	}
	v = look()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[k] = v
	return v
}
