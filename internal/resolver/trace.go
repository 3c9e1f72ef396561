package resolver

import (
	"context"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// traced is a Resolver of which somebody may be told what it is asked and what it answers.
type traced struct {
	Resolver
	names Names
	trace func(context.Context) func(format string, args ...any)
}

// Traced returns r, but a lookup for which trace has a function tells that, line by line, what
// was asked and how it went, in the words of Postfix with -v; trace returns nil for a lookup that
// nobody follows. Answers that were kept are told like others. The function may be called by
// several lookups at a time. Native lookups are not told. Names is the rule that r converts names by.
func Traced(r Resolver, names Names, trace func(context.Context) func(format string, args ...any)) Resolver {
	return &traced{r, names, trace}
}

// told tells of a lookup that somebody follows.
func told[T any](ctx context.Context, t *traced, name, qtype string, a Answer[T], err error) (Answer[T], error) {
	say := t.trace(ctx)
	if say == nil {
		return a, err
	}
	if err != nil {
		say("dns_query: %s (%s): %s", name, qtype, KindOf(err))
		return a, err
	}
	say("dns_query: %s (%s): OK", name, qtype)
	ascii, _ := t.names.ToASCII(name)
	owner := unqualify(name)
	if a.Name != "" && !strings.EqualFold(owner, a.Name) && ascii != a.Name {
		say("dns_get_answer: type CNAME for %s", owner)
		owner = a.Name
	}
	for range a.Records {
		say("dns_get_answer: type %s for %s", qtype, owner)
	}
	return a, err
}

func (t *traced) MX(ctx context.Context, domain string) (Answer[MX], error) {
	a, err := t.Resolver.MX(ctx, domain)
	return told(ctx, t, domain, "MX", a, err)
}

// Addrs tells of each family; what is asked for that has just been answered.
func (t *traced) Addrs(ctx context.Context, host string, f Family) (Answer[netip.Addr], error) {
	both, err := t.Resolver.Addrs(ctx, host, f)
	if t.trace(ctx) == nil {
		return both, err
	}
	for _, one := range []struct {
		family Family
		qtype  string
	}{{IPv4, "A"}, {IPv6, "AAAA"}} {
		if f&one.family != 0 {
			a, err := t.Resolver.Addrs(ctx, host, one.family)
			_, _ = told(ctx, t, host, one.qtype, a, err) // what counts is the answer for both
		}
	}
	return both, err
}

func (t *traced) PTR(ctx context.Context, addr netip.Addr) (Answer[string], error) {
	a, err := t.Resolver.PTR(ctx, addr)
	name, bad := dns.ReverseAddr(addr.Unmap().WithZone("").String())
	if bad != nil {
		name = addr.String()
	}
	return told(ctx, t, unqualify(name), "PTR", a, err)
}

func (t *traced) TXT(ctx context.Context, name string) (Answer[string], error) {
	a, err := t.Resolver.TXT(ctx, name)
	return told(ctx, t, name, "TXT", a, err)
}

func (t *traced) TLSA(ctx context.Context, name string) (Answer[TLSA], error) {
	a, err := t.Resolver.TLSA(ctx, name)
	return told(ctx, t, name, "TLSA", a, err)
}

func (t *traced) SRV(ctx context.Context, name string) (Answer[SRV], error) {
	a, err := t.Resolver.SRV(ctx, name)
	return told(ctx, t, name, "SRV", a, err)
}

func (t *traced) NS(ctx context.Context, name string) (Answer[string], error) {
	a, err := t.Resolver.NS(ctx, name)
	return told(ctx, t, name, "NS", a, err)
}

func (t *traced) CNAME(ctx context.Context, name string) (Answer[string], error) {
	a, err := t.Resolver.CNAME(ctx, name)
	return told(ctx, t, name, "CNAME", a, err)
}
