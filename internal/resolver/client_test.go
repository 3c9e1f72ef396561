package resolver_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
)

const zone = `
a.test.        60 MX 10 mx1.a.test.
a.test.        60 MX 20 mx2.a.test.
mx1.a.test.    A 192.0.2.1
mx1.a.test.    AAAA 2001:db8::1
mx2.a.test.    A 192.0.2.2
alias.test.    CNAME mx1.a.test.
null.test.     MX 0 .
numeric.test.  MX 5 192.0.2.9.
badmx.test.    MX 5 no_such!host.test.
partbad.test.  MX 5 bad!.test.
partbad.test.  MX 6 mx1.a.test.
loop1.test.    CNAME loop2.test.
loop2.test.    CNAME loop1.test.
dangling.test. CNAME nowhere.test.
txt.test.      TXT "one \"" "two\012\\"
_25._tcp.mx1.a.test. TLSA 3 1 1 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
_submission._tcp.a.test. SRV 1 2 587 mx1.a.test.
_none._tcp.a.test. SRV 0 0 0 .
a.test. CAA 128 ISSUE "ca.test; account=1"
1.2.0.192.in-addr.arpa. CNAME 1.0/25.2.0.192.in-addr.arpa.
1.0/25.2.0.192.in-addr.arpa. PTR mx1.a.test.
1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR mx1.a.test.
xn--bcher-kva.test. MX 1 mx1.a.test.
_mta-sts.xn--bcher-kva.test. TXT "v=STSv1"
half.test.     A 192.0.2.7
signed.test.   A 192.0.2.8
out.signed.test. CNAME mx2.a.test.
!secure signed.test
!fail servfail.test SERVFAIL
!fail refused.test REFUSED
!fail notimp.test NOTIMP
!fail formerr.test FORMERR
!fail silent.test TIMEOUT
!fail half.test SERVFAIL AAAA
!fail softhard.test SERVFAIL A
`

func describe[T any](a resolver.Answer[T], err error) string {
	if err != nil {
		var e *resolver.Error
		if errors.As(err, &e) {
			return fmt.Sprintf("%d %v", e.Kind, e)
		}
		return err.Error()
	}
	s := fmt.Sprintf("%v of %s", a.Records, a.Name)
	if a.Secure {
		s += " secure"
	}
	return s
}

func TestLookups(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := fakezone.Must(zone).Resolver()
	t.Cleanup(c.Close)
	both := resolver.IPv4 | resolver.IPv6
	mx := func(n string) func() string { return func() string { return describe(c.MX(ctx, n)) } }
	addrs := func(n string, f resolver.Family) func() string {
		return func() string { return describe(c.Addrs(ctx, n, f)) }
	}
	const nf = "Host or domain name not found. Name service error for name="
	for _, tt := range []struct {
		name string
		ask  func() string
		want string
	}{
		{"MX", mx("A.Test."), "[{10 mx1.a.test} {20 mx2.a.test}] of a.test"},
		{"no MX", mx("mx1.a.test"), "3 " + nf + "mx1.a.test type=MX: Host found but no data record of requested type"},
		{"no name", mx("nowhere.test"), "2 " + nf + "nowhere.test type=MX: Host not found"},
		{"null MX", mx("null.test"), "[{0 }] of null.test"},
		{"MX is an address", mx("numeric.test"), "[{5 192.0.2.9}] of numeric.test"},
		{"MX is no host name", mx("badmx.test"), "5 Name service error for badmx.test: invalid host or domain name"},
		{"one MX is no host name", mx("partbad.test"), "[{6 mx1.a.test}] of partbad.test"},
		{"international", mx("bücher.test"), "[{1 mx1.a.test}] of xn--bcher-kva.test"},
		{"bad syntax", mx("a..test"), "5 Name service error for a..test: invalid host or domain name"},
		{"injection", mx("a test"), "5 Name service error for a test: invalid host or domain name"},
		{"empty", mx(""), "5 Name service error for : invalid host or domain name"},
		{"SERVFAIL", mx("servfail.test"), "1 " + nf + "servfail.test type=MX: Host not found, try again"},
		{"REFUSED", mx("refused.test"), "1 " + nf + "refused.test type=MX: Host not found, try again"},
		{"NOTIMP", mx("notimp.test"), "1 " + nf + "notimp.test type=MX: Host not found, try again"},
		{"FORMERR", mx("formerr.test"), "4 " + nf + "formerr.test type=MX: Non-recoverable error"},
		{"timeout", mx("silent.test"), "1 " + nf + "silent.test type=MX: Host not found, try again"},
		{"both families", addrs("mx1.a.test", both), "[192.0.2.1 2001:db8::1] of mx1.a.test"},
		{"IPv6 only", addrs("mx1.a.test", resolver.IPv6), "[2001:db8::1] of mx1.a.test"},
		{"one family only exists", addrs("mx2.a.test", both), "[192.0.2.2] of mx2.a.test"},
		{"alias", addrs("alias.test", resolver.IPv4), "[192.0.2.1] of mx1.a.test"},
		{"alias loop", addrs("loop1.test", resolver.IPv4), "1 " + nf + "loop1.test type=A: Host not found, try again"},
		{"alias to nothing", addrs("dangling.test", resolver.IPv4), "2 " + nf + "dangling.test type=A: Host not found"},
		{"one family fails", addrs("half.test", both), "[192.0.2.7] of half.test"},
		{"soft error counts more", addrs("softhard.test", both), "1 " + nf + "softhard.test type=A: Host not found, try again"},
		{"localhost", addrs("LocalHost", both), "[127.0.0.1 ::1] of localhost"},
		{"under localhost", addrs("x.localhost.", resolver.IPv4), "[127.0.0.1] of x.localhost"},
		{"secure", addrs("signed.test", resolver.IPv4), "[192.0.2.8] of signed.test secure"},
		{"alias out of a signed zone", addrs("out.signed.test", resolver.IPv4), "[192.0.2.2] of mx2.a.test"},
		{"the alias itself", func() string { return describe(c.CNAME(ctx, "out.signed.test")) }, "[mx2.a.test] of out.signed.test secure"},
		{"no alias", func() string { return describe(c.CNAME(ctx, "signed.test")) }, "3 " + nf + "signed.test type=CNAME: Host found but no data record of requested type"},
		{"below an international name", func() string { return describe(c.TXT(ctx, "_mta-sts.bücher.test")) }, "[v=STSv1] of _mta-sts.xn--bcher-kva.test"},
		{"a character that decomposes", mx("℀ü.test"), "5 Name service error for ℀ü.test: invalid host or domain name"},
		{"TXT", func() string { a, err := c.TXT(ctx, "txt.test"); return fmt.Sprintf("%q %v", a.Records, err) }, `["one \"two\f\\"] <nil>`},
		{"TLSA", func() string {
			a, err := c.TLSA(ctx, "_25._tcp.mx1.a.test")
			return fmt.Sprint(len(a.Records), len(a.Records[0].Data), err)
		}, "1 32 <nil>"},
		{"SRV", func() string { return describe(c.SRV(ctx, "_submission._tcp.a.test")) }, "[{1 2 587 mx1.a.test}] of _submission._tcp.a.test"},
		{"CAA", func() string { return describe(c.CAA(ctx, "a.test")) }, "[{true issue ca.test; account=1}] of a.test"},
		{"no service", func() string { return describe(c.SRV(ctx, "_none._tcp.a.test")) }, "[{0 0 0 }] of _none._tcp.a.test"},
		{"PTR in a delegated part", func() string { return describe(c.PTR(ctx, netip.MustParseAddr("::ffff:192.0.2.1"))) }, "[mx1.a.test] of 1.0/25.2.0.192.in-addr.arpa"},
		{"PTR of IPv6", func() string { return describe(c.PTR(ctx, netip.MustParseAddr("2001:db8::1"))) },
			"[mx1.a.test] of 1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.ask(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestNativeHosts(t *testing.T) {
	t.Parallel()
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("# x\n192.0.2.40 Mail mail.local # y\nnonsense\n2001:db8::40 mail\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := resolver.New(resolver.Options{Exchanger: fakezone.Must(zone), Hosts: hosts})
	t.Cleanup(c.Close)
	if got := describe(c.Native(t.Context(), "mail", resolver.IPv4|resolver.IPv6)); got != "[192.0.2.40 2001:db8::40] of mail" {
		t.Error(got)
	}
	if got := describe(c.Native(t.Context(), "mx2.a.test", resolver.IPv4|resolver.IPv6)); got != "[192.0.2.2] of mx2.a.test" {
		t.Error(got)
	}
}

// slow is an Exchanger that answers after a second.
type slow struct {
	zone *fakezone.Zone
	soa  bool
}

func (s slow) Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	time.Sleep(time.Second)
	m, err := s.zone.Exchange(ctx, q)
	if err == nil && s.soa && len(m.Answer) == 0 {
		soa, _ := dns.NewRR("test. 900 SOA ns.test. h.test. 1 2 3 4 30")
		m.Ns = append(m.Ns, soa)
	}
	return m, err
}

func TestCacheAndMerge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		z := fakezone.Must(zone)
		c := resolver.New(resolver.Options{Exchanger: slow{z, true}, Hosts: os.DevNull})
		defer c.Close()
		ctx := context.Background()
		count := func(want int, why string) {
			t.Helper()
			if got := len(z.Asked()); got != want {
				t.Errorf("%s: %d questions, want %d: %v", why, got, want, z.Asked())
			}
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := c.MX(ctx, "a.test"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		count(1, "ten lookups at once")
		time.Sleep(59 * time.Second)
		a, _ := c.MX(ctx, "A.test.")
		count(1, "within the TTL")
		if a.TTL != time.Second {
			t.Errorf("%v of the TTL left, want 1s", a.TTL)
		}
		time.Sleep(time.Second)
		_, _ = c.MX(ctx, "a.test")
		count(2, "after the TTL")

		_, _ = c.MX(ctx, "nowhere.test")
		time.Sleep(29 * time.Second)
		_, _ = c.MX(ctx, "nowhere.test")
		count(3, "negative, within the SOA's minimum")
		time.Sleep(2 * time.Second)
		_, _ = c.MX(ctx, "nowhere.test")
		count(4, "negative, after the SOA's minimum")

		_, _ = c.MX(ctx, "servfail.test")
		_, _ = c.MX(ctx, "servfail.test")
		count(5, "failure, in a burst")
		time.Sleep(6 * time.Second)
		_, _ = c.MX(ctx, "servfail.test")
		count(6, "failure, later")

		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if _, err := c.MX(short, "null.test"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller whose time is up got %v", err)
		}
		time.Sleep(time.Second)
		if _, err := c.MX(ctx, "null.test"); err != nil {
			t.Error(err)
		}
		count(7, "the query that nobody waited for was of use")
	})
}

func TestFilter(t *testing.T) {
	t.Parallel()
	var seen []string
	c := resolver.New(resolver.Options{Exchanger: fakezone.Must(zone), Filter: func(rr string) bool {
		seen = append(seen, rr)
		return strings.HasSuffix(rr, "mx2.a.test.")
	}})
	t.Cleanup(c.Close)
	if got := describe(c.MX(t.Context(), "a.test")); got != "[{20 mx2.a.test}] of a.test" {
		t.Error(got)
	}
	if got := describe(c.MX(t.Context(), "null.test")); got != "6 Error looking up name=null.test type=MX: DNS reply filter drops all results" {
		t.Error(got)
	}
	if want := []string{"a.test. 60 IN MX 10 mx1.a.test.", "a.test. 60 IN MX 20 mx2.a.test.", "null.test. 60 IN MX 0 ."}; !slices.Equal(seen, want) {
		t.Errorf("seen %q", seen)
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	z := fakezone.Must(zone)
	c := resolver.New(resolver.Options{Exchanger: z, CacheSize: 2})
	t.Cleanup(c.Close)
	for _, n := range []string{"a.test", "null.test", "a.test", "numeric.test", "a.test", "null.test"} {
		if _, err := c.MX(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"a.test MX", "null.test MX", "numeric.test MX", "null.test MX"}
	if !slices.Equal(z.Asked(), want) {
		t.Errorf("asked %v, want %v", z.Asked(), want)
	}
}

func TestValidHostname(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 63)
	for name, want := range map[string]bool{
		"a": true, "a.b": true, "_dmarc.a": true, "1a.2": true, "xn--a": true, long: true, "a-b.c": true,
		"": false, ".": false, "a.": false, ".a": false, "a..b": false, "-a": false, "a-": false, "a-.b": false, "a.-b": false,
		"1.2": false, "1.2.3.4": false, "a b": false, "a\nb": false, "ü.test": false, long + "a": false,
		strings.Repeat(long+".", 4) + "a": false,
	} {
		if got := resolver.ValidHostname(name); got != want {
			t.Errorf("ValidHostname(%q) = %v", name, got)
		}
	}
}
