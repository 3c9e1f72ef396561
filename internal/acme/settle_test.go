package acme

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"posthaste/internal/nameserver"
	"posthaste/internal/resolver"
)

// A staleZone is a zone with one name server, which shows records some time after they were published.
type staleZone struct {
	zoneFile
	begun time.Time
	after time.Duration
}

func (z *staleZone) NS(context.Context, string) (resolver.Answer[string], error) {
	return resolver.Answer[string]{Records: []string{"ns.example.org"}}, nil
}

func (z *staleZone) CNAME(context.Context, string) (resolver.Answer[string], error) {
	return resolver.Answer[string]{}, nil
}

func (z *staleZone) Addrs(context.Context, string, resolver.Family) (resolver.Answer[netip.Addr], error) {
	return resolver.Answer[netip.Addr]{Records: []netip.Addr{netip.MustParseAddr("192.0.2.53")}}, nil
}

func (z *staleZone) TLSA(context.Context, string) (resolver.Answer[resolver.TLSA], error) {
	return resolver.Answer[resolver.TLSA]{}, nil
}

func (z *staleZone) TXT(_ context.Context, name string) (a resolver.Answer[string], err error) {
	if time.Since(z.begun) >= z.after {
		for r := range z.records {
			var at, text string
			if fmt.Sscanf(r, "%s %s", &at, &text); at == name {
				a.Records = append(a.Records, text)
			}
		}
	}
	return a, nil
}

// However many names a certificate has, a name server that does not follow is waited for once, and one that follows for as
// long as it takes.
func TestSettle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		after, want time.Duration
		warnings    int
	}{
		{"at once", 0, 0, 0},
		{"a minute later", time.Minute, time.Minute, 0},
		{"never", 24 * time.Hour, visibleTime, 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			z := &staleZone{zoneFile: zoneFile{records: map[string]bool{}}, begun: time.Now(), after: c.after}
			warnings := 0
			d := &dnsSolver{patience: visibleTime, publisher: z, warn: func(string, ...any) { warnings++ },
				view: &view{nameserver.View[asker]{DNS: z, At: func(netip.Addr) (asker, func()) { return z, func() {} }}}}
			var list []acme.Challenge
			for i := range 10 {
				list = append(list, acme.Challenge{Identifier: acme.Identifier{Type: "dns", Value: fmt.Sprintf("n%d.example.org", i)}, KeyAuthorization: fmt.Sprint("x", i)})
				if _, err := d.present(t.Context(), list[i]); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(z.begun); took != 0 {
				t.Errorf("%s: publishing waits for %v", c.name, took)
			}
			if err := d.settle(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(z.begun); took != c.want || warnings != c.warnings {
				t.Errorf("%s: it waits for %v with %d warnings, want %v and %d", c.name, took, warnings, c.want, c.warnings)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := d.settle(ctx, list); c.warnings > 0 && err == nil {
				t.Errorf("%s: the end of the attempt does not end the wait", c.name)
			}
		})
	}
}
