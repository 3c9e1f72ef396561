package smtpd

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"posthaste/internal/anvil"
)

// A header is taken whole or not at all, wherever it is cut.
func FuzzProxyHeader(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nEHLO x\r\n"))
	f.Add([]byte("PROXY UNKNOWN\r\n"))
	f.Add(append(append([]byte(nil), proxySignature...), 0x21, 0x11, 0, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
	f.Fuzz(func(t *testing.T, in []byte) {
		used, client, server, err := parseProxy(in)
		if used > len(in) || used < 0 || (client == nil) != (server == nil) || err != nil && used != 0 {
			t.Fatalf("%d of %d, %v %v %v", used, len(in), client, server, err)
		}
		for n := 0; n < len(in); n++ {
			u, c, _, e := parseProxy(in[:n])
			if u > 0 && (u != used || (c == nil) != (client == nil)) {
				t.Fatalf("cut at %d: %d, whole %d", n, u, used)
			}
			if used > 0 && n < used && e != nil {
				t.Fatalf("cut at %d: %v", n, e)
			}
		}
		if used == 0 && err == nil && len(in) > proxyV2Max {
			t.Fatal("wants more for ever")
		}
	})
}

func TestLimitsByNetwork(t *testing.T) {
	t.Parallel()
	l := &limits{bits4: 24, bits6: 64}
	for _, c := range []struct{ addr, want string }{
		{"192.0.2.99", "192.0.2.0/24"}, {"2001:db8::1", "2001:db8::/64"},
	} {
		if got := l.key(netip.MustParseAddr(c.addr)); got.String() != c.want {
			t.Errorf("%s is counted as %s, want %s", c.addr, got, c.want)
		}
	}
}

// anvil(8) names a client as Postfix's smtpd does, by its address or its network.
func TestLimitsLookup(t *testing.T) {
	t.Parallel()
	l := &limits{bits4: 24, bits6: 64, Table: anvil.NewTable(anvil.Options[netip.Prefix]{Unit: time.Minute, Now: time.Now})}
	l.Add(l.key(netip.MustParseAddr("192.0.2.99")), anvil.Message)
	for _, c := range []struct {
		client string
		ok     bool
		want   int
	}{
		{"192.0.2.99", true, 1}, {"192.0.2.0/24", true, 1}, {"192.0.2.1", true, 1}, {"192.0.3.1", true, 0}, {"2001:db8::1", true, 0}, {"25:192.0.2.99", false, 0}, {"", false, 0},
	} {
		if got, ok := l.lookup(c.client); ok != c.ok || got[anvil.Message] != c.want {
			t.Errorf("%q: %v, %v", c.client, got, ok)
		}
	}
}

func TestAddrOf(t *testing.T) {
	t.Parallel()
	a, port := addrOf(&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 25})
	if a.String() != "192.0.2.1" || port != "25" {
		t.Errorf("%s %s", a, port)
	}
	a, _ = addrOf(&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"})
	if a.String() != "fe80::1" {
		t.Errorf("%s", a)
	}
}
