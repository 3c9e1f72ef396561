package fakezone

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"posthaste/internal/resolver"
)

func TestServer(t *testing.T) {
	t.Parallel()
	z := Must("a.test. MX 1 b.a.test.\n!fail bad.test SERVFAIL\n")
	s, err := z.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	host, port, _ := net.SplitHostPort(s.Addr)
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, "nameserver %s:%s\n", host, port), 0o644); err != nil {
		t.Fatal(err)
	}
	c := resolver.New(resolver.Options{ResolvConf: conf})
	defer c.Close()
	if a, err := c.MX(t.Context(), "a.test"); err != nil || a.Records[0].Host != "b.a.test" {
		t.Error(a, err)
	}
	for name, want := range map[string]resolver.Kind{"bad.test": resolver.TempFail, "b.a.test": resolver.NXDomain, "test": resolver.NoData} {
		if _, err := c.MX(t.Context(), name); resolver.KindOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"!nonsense", "!fail a", "a.test. NOTYPE x"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}
