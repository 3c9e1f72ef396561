package resolver_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
)

// Whoever follows a lookup reads what Postfix says of it with -v, of each kind of record, of
// aliases and of each kind of failure; the answers are the same.
func TestTraced(t *testing.T) {
	t.Parallel()
	plain := fakezone.Must(`
dest.test. MX 10 mx.dest.test.
dest.test. MX 20 mx.dest.test.
dest.test. NS ns.dest.test.
dest.test. TXT "v=1"
mx.dest.test. A 192.0.2.1
als.test. CNAME dest.test.
_25._tcp.mx.dest.test. TLSA 3 1 1 0000000000000000000000000000000000000000000000000000000000000000
_smtp._tcp.dest.test. SRV 0 0 25 mx.dest.test.
1.2.0.192.in-addr.arpa. PTR mx.dest.test.
!fail bad.test SERVFAIL
`).Resolver()
	defer plain.Close()
	type key struct{}
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	r := resolver.Traced(plain, resolver.Names{}, func(ctx context.Context) func(string, ...any) {
		if ctx.Value(key{}) == nil {
			return nil
		}
		return say
	})
	both := resolver.IPv4 | resolver.IPv6
	for _, tc := range []struct {
		what string
		ask  func(context.Context, resolver.Resolver) (any, error)
		want string
	}{
		{"MX", func(ctx context.Context, r resolver.Resolver) (any, error) { return shown(r.MX(ctx, "dest.test")) },
			"dns_query: dest.test (MX): OK\ndns_get_answer: type MX for dest.test\ndns_get_answer: type MX for dest.test\n"},
		{"an alias", func(ctx context.Context, r resolver.Resolver) (any, error) { return shown(r.MX(ctx, "als.test")) },
			"dns_query: als.test (MX): OK\ndns_get_answer: type CNAME for als.test\ndns_get_answer: type MX for dest.test\ndns_get_answer: type MX for dest.test\n"},
		{"letter case", func(ctx context.Context, r resolver.Resolver) (any, error) { return shown(r.TXT(ctx, "DEST.test.")) },
			"dns_query: DEST.test. (TXT): OK\ndns_get_answer: type TXT for DEST.test\n"},
		{"addresses", func(ctx context.Context, r resolver.Resolver) (any, error) {
			return shown(r.Addrs(ctx, "mx.dest.test", both))
		}, "dns_query: mx.dest.test (A): OK\ndns_get_answer: type A for mx.dest.test\n" +
			"dns_query: mx.dest.test (AAAA): Host found but no data record of requested type\n"},
		{"one family", func(ctx context.Context, r resolver.Resolver) (any, error) {
			return shown(r.Addrs(ctx, "mx.dest.test", resolver.IPv6))
		}, "dns_query: mx.dest.test (AAAA): Host found but no data record of requested type\n"},
		{"PTR", func(ctx context.Context, r resolver.Resolver) (any, error) {
			return shown(r.PTR(ctx, netip.MustParseAddr("192.0.2.1")))
		}, "dns_query: 1.2.0.192.in-addr.arpa (PTR): OK\ndns_get_answer: type PTR for 1.2.0.192.in-addr.arpa\n"},
		{"TLSA", func(ctx context.Context, r resolver.Resolver) (any, error) {
			return shown(r.TLSA(ctx, "_25._tcp.mx.dest.test"))
		}, "dns_query: _25._tcp.mx.dest.test (TLSA): OK\ndns_get_answer: type TLSA for _25._tcp.mx.dest.test\n"},
		{"SRV", func(ctx context.Context, r resolver.Resolver) (any, error) {
			return shown(r.SRV(ctx, "_smtp._tcp.dest.test"))
		}, "dns_query: _smtp._tcp.dest.test (SRV): OK\ndns_get_answer: type SRV for _smtp._tcp.dest.test\n"},
		{"NS", func(ctx context.Context, r resolver.Resolver) (any, error) { return shown(r.NS(ctx, "dest.test")) },
			"dns_query: dest.test (NS): OK\ndns_get_answer: type NS for dest.test\n"},
		{"CNAME", func(ctx context.Context, r resolver.Resolver) (any, error) { return shown(r.CNAME(ctx, "als.test")) },
			"dns_query: als.test (CNAME): OK\ndns_get_answer: type CNAME for als.test\n"},
		{"no such name", func(ctx context.Context, r resolver.Resolver) (any, error) { return shown(r.MX(ctx, "nx.test")) },
			"dns_query: nx.test (MX): Host not found\n"},
		{"a failure", func(ctx context.Context, r resolver.Resolver) (any, error) { return shown(r.MX(ctx, "bad.test")) },
			"dns_query: bad.test (MX): Host not found, try again\n"},
		{"no name", func(ctx context.Context, r resolver.Resolver) (any, error) { return shown(r.MX(ctx, "a b")) },
			"dns_query: a b (MX): Invalid host or domain name\n"},
	} {
		want, wantErr := tc.ask(t.Context(), plain)
		for _, ctx := range []context.Context{t.Context(), context.WithValue(t.Context(), key{}, true)} {
			b.Reset()
			got, err := tc.ask(ctx, r)
			if fmt.Sprint(got, err) != fmt.Sprint(want, wantErr) {
				t.Errorf("%s: %v, %v; want %v, %v", tc.what, got, err, want, wantErr)
			}
			lines := tc.want
			if ctx.Value(key{}) == nil {
				lines = ""
			}
			if b.String() != lines {
				t.Errorf("%s: the trace is\n%swanted\n%s", tc.what, b.String(), lines)
			}
		}
	}
}

// shown is an answer without its age.
func shown[T any](a resolver.Answer[T], err error) (any, error) {
	return fmt.Sprint(a.Name, a.Secure, a.Records), err
}
