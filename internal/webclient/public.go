package webclient

import (
	"net/netip"
	"slices"
)

// special are the networks of IPv4, and of IPv6's global unicast addresses (2000::/3), that are not for hosts on the
// Internet: IANA's registries of special-purpose addresses, and multicast.
var special = [...]netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),       // this network, RFC 791
	netip.MustParsePrefix("10.0.0.0/8"),      // private, RFC 1918
	netip.MustParsePrefix("100.64.0.0/10"),   // shared by customers of a provider, RFC 6598
	netip.MustParsePrefix("127.0.0.0/8"),     // loopback, RFC 1122
	netip.MustParsePrefix("169.254.0.0/16"),  // link local, RFC 3927
	netip.MustParsePrefix("172.16.0.0/12"),   // private, RFC 1918
	netip.MustParsePrefix("192.0.0.0/24"),    // protocol assignments, RFC 6890
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation, RFC 5737
	netip.MustParsePrefix("192.88.99.0/24"),  // 6to4 relays, RFC 7526
	netip.MustParsePrefix("192.168.0.0/16"),  // private, RFC 1918
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarks, RFC 2544
	netip.MustParsePrefix("198.51.100.0/24"), // documentation, RFC 5737
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation, RFC 5737
	netip.MustParsePrefix("224.0.0.0/3"),     // multicast, RFC 5771; reserved, RFC 1112; broadcast, RFC 919

	netip.MustParsePrefix("2001::/23"),     // protocol assignments, Teredo among them, RFC 2928
	netip.MustParsePrefix("2001:db8::/32"), // documentation, RFC 3849
	netip.MustParsePrefix("2002::/16"),     // 6to4, RFC 3056: any IPv4 address
	netip.MustParsePrefix("3fff::/20"),     // documentation, RFC 9637
}

var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	translated    = netip.MustParsePrefix("64:ff9b::/96") // NAT64, RFC 6052: the last four octets are an IPv4 address
)

// Public says whether an address is that of a host on the Internet.
func Public(ip netip.Addr) bool {
	ip = ip.Unmap()
	if translated.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	if !ip.IsValid() || ip.Is6() && !globalUnicast.Contains(ip) {
		return false
	}
	return !slices.ContainsFunc(special[:], func(p netip.Prefix) bool { return p.Contains(ip) })
}
