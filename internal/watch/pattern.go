package watch

import (
	"errors"
	"net/netip"
	"strings"
)

// A Pattern is one client or destination, or a group of them, as in debug_peer_list: a name,
// which stands for the names below it too, an address, or a network. Tables are not looked up
// for it.
type Pattern struct {
	name   string // lower case; empty if it is a network
	prefix netip.Prefix
}

// maxPattern bounds a pattern: a domain name has at most 255 octets.
const maxPattern = 255

// ParsePattern reads a pattern. An address may be in brackets.
func ParsePattern(text string) (Pattern, error) {
	bare := strings.NewReplacer("[", "", "]", "").Replace(text)
	if prefix, err := netip.ParsePrefix(bare); err == nil {
		return Pattern{prefix: prefix.Masked()}, nil
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		addr = addr.Unmap().WithZone("")
		return Pattern{prefix: netip.PrefixFrom(addr, addr.BitLen())}, nil
	}
	name := strings.ToLower(strings.Trim(bare, "."))
	if name == "" || len(name) > maxPattern || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("!,:;{}*", r) }) {
		return Pattern{}, errors.New("expected one name, address or network/length")
	}
	return Pattern{name: name}, nil
}

// Matches reports whether the pattern stands for a peer that has these names and this address.
func (p Pattern) Matches(addr netip.Addr, names ...string) bool {
	if p.name == "" {
		return addr.IsValid() && p.prefix.Contains(addr.Unmap().WithZone(""))
	}
	for _, n := range names {
		n = strings.ToLower(strings.Trim(n, ".[]"))
		if n == p.name || strings.HasSuffix(n, "."+p.name) {
			return true
		}
	}
	return false
}
