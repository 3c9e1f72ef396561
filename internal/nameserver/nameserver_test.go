package nameserver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
)

const zone = `
example.org. NS ns1.example.org.
example.org. NS ns2.example.org.
ns1.example.org. A 192.0.2.1
ns1.example.org. AAAA 2001:db8::1
ns2.example.org. A 192.0.2.2
lost.example. NS nowhere.lost.example.
a1.example.org. CNAME a2.example.org.
a2.example.org. CNAME a3.example.org.
a3.example.org. CNAME a4.example.org.
a4.example.org. CNAME a5.example.org.
a5.example.org. TXT five
`

var (
	errSilent = &resolver.Error{Kind: resolver.TempFail, Name: "x", Type: "TXT", Err: errors.New("timeout")}
	errNone   = &resolver.Error{Kind: resolver.NXDomain, Name: "x", Type: "TXT"}
	errOther  = errors.New("another record")
)

func TestEverywhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		ask  string
		says map[string]error // by address; else nil
		want string           // the error; "" for none
		seen string           // the addresses that were asked, in any order
	}{
		{name: "all show it", ask: "x.example.org", seen: "192.0.2.1 192.0.2.2 2001:db8::1"},
		{name: "one server lacks it", ask: "example.org", says: map[string]error{"192.0.2.2": errNone}, want: "name server ns2.example.org[192.0.2.2]: "},
		{name: "one address of a server has another", ask: "example.org", says: map[string]error{"2001:db8::1": errOther}, want: "name server ns1.example.org[2001:db8::1]: another record"},
		{name: "an address does not answer", ask: "example.org", says: map[string]error{"2001:db8::1": errSilent}, seen: "192.0.2.1 192.0.2.2 2001:db8::1"},
		{name: "the other does not answer", ask: "example.org", says: map[string]error{"192.0.2.1": errSilent}, seen: "192.0.2.1 192.0.2.2 2001:db8::1"},
		{name: "a server does not answer", ask: "example.org", says: map[string]error{"192.0.2.2": errSilent}, want: "name server ns2.example.org: "},
		{name: "a server has no address", ask: "lost.example", want: "name server nowhere.lost.example: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dns := fakezone.Must(zone).Resolver()
			defer dns.Close()
			open := 0
			v := View[netip.Addr]{DNS: dns, At: func(a netip.Addr) (netip.Addr, func()) { open++; return a, func() { open-- } }}
			var seen []string
			err := v.Everywhere(t.Context(), c.ask, func(a netip.Addr) error {
				seen = append(seen, a.String())
				return c.says[a.String()]
			})
			if said := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && !strings.HasPrefix(said, c.want) {
				t.Errorf("error %q, want %q", said, c.want)
			}
			if slices.Sort(seen); c.seen != "" && strings.Join(seen, " ") != c.seen {
				t.Errorf("asked %s, want %s", seen, c.seen)
			}
			if open != 0 {
				t.Errorf("%d servers were not closed", open)
			}
		})
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	many.WriteString(zone)
	for i := range maxServers + 1 {
		fmt.Fprintf(&many, "many.example. NS ns%d.many.example.\n", i)
	}
	dns := fakezone.Must(many.String()).Resolver()
	defer dns.Close()
	v := View[netip.Addr]{DNS: dns, At: func(a netip.Addr) (netip.Addr, func()) { return a, func() {} }}
	look := func(a netip.Addr) error { t.Errorf("%s was asked", a); return nil }
	if err := v.Everywhere(t.Context(), "many.example", look); err == nil || !strings.Contains(err.Error(), "17 name servers, expected at most 16") {
		t.Errorf("too many servers: %v", err)
	}
	if err := v.Everywhere(t.Context(), "none.test", look); !errors.Is(err, ErrNoZone) {
		t.Errorf("no zone: %v", err)
	}
	for _, c := range []struct{ ask, want string }{{"a5.example.org", "a5.example.org"}, {"a2.example.org", "a5.example.org"}, {"a1.example.org", ""}} {
		if got, err := Canonical(t.Context(), dns, c.ask); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("Canonical of %s: %q, %v", c.ask, got, err)
		}
	}
}
