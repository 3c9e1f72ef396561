// dnssec_probe: a warning where DANE is configured and the resolver cannot do it.

package smtp

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
)

// probe is dnssec_probe: a question whose answer shows whether the resolver
// vouches for anything at all. It is asked once, when DANE wanted to know and
// nothing has been vouched for yet, so that a resolver that does not validate
// is not taken for a world without DNSSEC.
type probe struct {
	text    string // TYPE:NAME, as it is configured; empty: nothing is asked
	name    string // NAME
	ask     func(context.Context, resolver.Resolver, string) (secure bool, err error)
	vouched atomic.Bool // some answer has been vouched for: the resolver validates
	asked   atomic.Bool // the probe has been sent, by this or by another delivery
}

// secureOf reduces a lookup's result to what a probe asks for.
func secureOf[T any](a resolver.Answer[T], err error) (secure bool, _ error) { return a.Secure, err }

// probeTypes are the types of records that the probe can be asked for.
var probeTypes = map[string]func(context.Context, resolver.Resolver, string) (bool, error){
	"a": func(ctx context.Context, r resolver.Resolver, name string) (bool, error) {
		return secureOf(r.Addrs(ctx, name, resolver.IPv4))
	},
	"aaaa": func(ctx context.Context, r resolver.Resolver, name string) (bool, error) {
		return secureOf(r.Addrs(ctx, name, resolver.IPv6))
	},
	"mx": func(ctx context.Context, r resolver.Resolver, name string) (bool, error) {
		return secureOf(r.MX(ctx, name))
	},
	"ns": func(ctx context.Context, r resolver.Resolver, name string) (bool, error) {
		return secureOf(r.NS(ctx, name))
	},
	"srv": func(ctx context.Context, r resolver.Resolver, name string) (bool, error) {
		return secureOf(r.SRV(ctx, name))
	},
	"tlsa": func(ctx context.Context, r resolver.Resolver, name string) (bool, error) {
		return secureOf(r.TLSA(ctx, name))
	},
	"txt": func(ctx context.Context, r resolver.Resolver, name string) (bool, error) {
		return secureOf(r.TXT(ctx, name))
	},
}

// newProbe reads the value of dnssec_probe, TYPE:NAME or nothing.
func newProbe(text string) (*probe, error) {
	p := &probe{text: text}
	if text == "" {
		return p, nil
	}
	kind, name, found := strings.Cut(text, ":")
	p.name, p.ask = name, probeTypes[strings.ToLower(kind)]
	if !found || name == "" || p.ask == nil {
		return nil, fmt.Errorf("dnssec_probe = %s: expected TYPE:NAME, with type a, aaaa, mx, ns, srv, tlsa or txt", text)
	}
	return p, nil
}

// warnIfUnsigned is told whether an answer on which DANE depends was vouched for. If none has been since
// the process began, it asks for a name that is signed, once, and warns if that is not vouched for either.
func (p *probe) warnIfUnsigned(ctx context.Context, secure bool, r resolver.Resolver, log *maillog.Logger) {
	switch {
	case secure:
		p.vouched.Store(true)
		return
	case p.ask == nil || p.vouched.Load() || p.asked.Swap(true):
		return
	}
	secure, err := p.ask(ctx, r, p.name)
	switch {
	case secure:
		p.vouched.Store(true)
		return
	case ctx.Err() != nil: // nothing was found out
		p.asked.Store(false)
		return
	}
	// Once for each process: the administrator must learn of it, and each delivery
	// need not repeat it.
	log.LogWarning(maillog.SMTPNoDNSSEC{})
	failed := maillog.SMTPProbeFailed{Probe: p.text}
	if err != nil {
		failed.Reason = err.Error()
	}
	log.LogWarning(failed)
}
