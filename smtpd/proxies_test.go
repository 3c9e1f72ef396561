package smtpd

import (
	"net"
	"net/netip"
	"testing"
	"time"
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

func TestLimitsForget(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	l := &limits{unit: time.Minute, bits4: 24, bits6: 64, now: func() time.Time { return now }, clients: map[netip.Prefix]*clientCount{}}
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.99")
	if n := l.count(a, evConnect); n != 1 {
		t.Errorf("count %d", n)
	}
	if n := l.count(b, evConnect); n != 2 { // the same network
		t.Errorf("count %d", n)
	}
	l.count(netip.MustParseAddr("2001:db8::1"), evMessage)
	if len(l.clients) != 2 {
		t.Errorf("%d clients", len(l.clients))
	}
	now = now.Add(time.Minute)
	if n := l.count(a, evConnect); n != 1 { // a new interval
		t.Errorf("count %d after an interval", n)
	}
	now = now.Add(10 * time.Minute)
	l.count(netip.MustParseAddr("198.51.100.1"), evConnect)
	if len(l.clients) != 1 {
		t.Errorf("%d clients are kept", len(l.clients))
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
