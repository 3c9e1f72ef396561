package occupant

import (
	"net"
	"net/netip"
	"os"
	"testing"
)

// TestOf asks for ports of this very process.
func TestOf(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ network, listen, ask string }{
		{"tcp4", "127.0.0.1", "127.0.0.1"}, {"tcp4", "127.0.0.1", "0.0.0.0"}, {"tcp4", "0.0.0.0", "127.0.0.1"},
		{"tcp6", "::1", "::1"}, {"tcp6", "::1", "::"}, {"tcp", "::", "127.0.0.1"},
	} {
		l, err := net.Listen(c.network, net.JoinHostPort(c.listen, "0"))
		if err != nil {
			t.Logf("SKIPPED: %v", err) // without IPv6
			continue
		}
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		got, ok := Of(netip.AddrPortFrom(netip.MustParseAddr(c.ask), port))
		if want := (Program{self, os.Getpid()}); !ok || got != want {
			t.Errorf("%s listens, %s is wanted: %v, %v, want %v", c.listen, c.ask, got, ok, want)
		}
		l.Close()
		if got, ok := Of(netip.AddrPortFrom(netip.MustParseAddr(c.ask), port)); ok {
			t.Errorf("nobody listens, and %v is named", got)
		}
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got, ok := Of(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), uint16(l.Addr().(*net.TCPAddr).Port))); ok {
		t.Errorf("127.0.0.2 is free, and %v is named", got)
	}
}

func TestString(t *testing.T) {
	t.Parallel()
	if got := (Program{"/usr/sbin/exim4", 7}).String(); got != "/usr/sbin/exim4 (process 7)" {
		t.Error(got)
	}
	if got := (Program{}).String(); got != "a program that root can see (ss -ltnp)" {
		t.Error(got)
	}
}
