// REQUIRETLS (RFC 8689): a sender's demand that the message goes on over verified TLS
// only, and how far this site enforces it.

package smtp

import (
	"context"
	"fmt"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy"
)

// requireLevel is what becomes of a message's REQUIRETLS at one destination. Levels
// are in the order of what they demand.
type requireLevel uint8

const (
	requireDisable requireLevel = iota // as if the sender had not said it
	requirePassOn                      // said to a server that offers it
	requireTLS                         // and there must be TLS, whoever the server is
	requireAll                         // all that RFC 8689 section 4.2.1 demands
)

// requireWords are the levels as smtp_requiretls_policy and its tables have them.
var requireWords = map[string]requireLevel{
	"disable":                requireDisable,
	"opportunistic":          requirePassOn,
	"opportunistic+starttls": requireTLS,
	"enforce":                requireAll,
}

// requireRules are smtp_requiretls_policy: levels by destination from tables,
// and a word for the others. The first that says anything decides.
type requireRules struct {
	maps  *table.Maps
	names resolver.Names // how a destination gets the other form that it may have in maps
	other requireLevel   // where maps has nothing
}

// newRequireRules reads the elements of the parameter title. A word ends the
// list; without one REQUIRETLS is enforced.
func newRequireRules(title string, list []string, names resolver.Names, o table.Options) (*requireRules, error) {
	r := &requireRules{other: requireAll, names: names}
	for i, e := range list {
		if strings.Contains(e, ":") {
			continue
		}
		level, ok := requireWords[strings.ToLower(e)]
		if !ok || i != len(list)-1 {
			return nil, fmt.Errorf("%s: %q: expected tables, and at the end enforce, opportunistic+starttls, opportunistic or disable", title, e)
		}
		list, r.other = list[:i], level
	}
	r.maps = table.OpenMaps(title, list, o)
	return r, nil
}

// level looks a destination up: as it is written, without brackets and port, then
// the domains above it, with the dot before them. An error is of the table: no
// session is set up then.
func (r *requireRules) level(ctx context.Context, hop *nexthop) (requireLevel, error) {
	if r.maps.Empty() {
		return r.other, nil
	}
	if hop.text != hop.host {
		if level, found, err := r.lookup(ctx, hop.text); found || err != nil {
			return level, err
		}
	}
	if hop.host == "" {
		return r.other, nil
	}
	_, plain := hop.domain(r.names)
	for key := range domainKeys(hop.host, r.names) {
		if level, found, err := r.lookup(ctx, key); found || err != nil {
			return level, err
		}
		if !plain {
			break
		}
	}
	return r.other, nil
}

// lookup asks the tables for one key. After an error the level is the highest.
func (r *requireRules) lookup(ctx context.Context, key string) (level requireLevel, found bool, err error) {
	value, found, err := r.maps.Lookup(ctx, key, key[0] == '.')
	if err != nil || !found {
		return requireAll, false, err
	}
	level, known := requireWords[strings.ToLower(strings.TrimSpace(value))]
	if !known {
		return requireAll, false, fmt.Errorf("%s: %s: %q is no level", r.maps.Title(), key, value)
	}
	return level, true, nil
}

// requires says how this message's REQUIRETLS is handled at the present
// destination; requireDisable for a message without it.
func (d *delivery) requires(ctx context.Context) (requireLevel, error) {
	if !d.env.RequireTLS {
		return requireDisable, nil
	}
	return d.a.tls.require.level(ctx, d.hop)
}

// requirePolicy raises a policy to what RFC 8689 section 4.2.1 demands: the
// way to the server is vouched for (it is configured, DNSSEC-signed or named by
// an MTA-STS policy), and so is its certificate.
func (d *delivery) requirePolicy(t *target, p *policy) (*policy, *failure) {
	switch p.Level {
	case tlspolicy.Fingerprint, tlspolicy.Dane, tlspolicy.DaneOnly, tlspolicy.Secure:
		return p, nil // what they compare with does not come from an MX record that may be forged
	}
	// RFC 8689 section 4.2.1 has the client make sure that it has the right server
	// before it looks at the certificate: a forged MX record leads to a server with
	// a good certificate of its own.
	if !d.hop.noMX && d.hop.path == "" && !t.mxSafe && !p.STS {
		return nil, d.requireFailure(10, "REQUIRETLS Failure: the way to host "+t.host+" is vouched for neither by DNSSEC nor by MTA-STS")
	}
	if p.Level < tlspolicy.Fingerprint {
		p = &policy{Policy: d.a.tls.At(p.Policy, tlspolicy.Verify), sni: p.sni, names: []string{t.host}, system: !d.a.tls.chosen}
	}
	return p, nil
}

// requireFailure is for a server that a message with REQUIRETLS must not be given
// to. Another one may do better; when none does the message goes back, with a
// status that says why: 5.7.30 is for a server without the extension, 5.7.10 for
// TLS that is missing or not verified.
func (d *delivery) requireFailure(detail uint16, text string) *failure {
	status := dsn.S(5, 7, detail)
	if len(d.rest) > 0 {
		status.Class = 4
	}
	return &failure{kind: notCapable, status: status, text: text}
}

// checkRequireTLS holds a server to a message's REQUIRETLS, over the session as it
// is now.
func (d *delivery) checkRequireTLS(s *session) *failure {
	if d.require < requireTLS {
		return nil
	}
	var f *failure
	switch {
	case s.tls == nil:
		f = d.requireFailure(10, "REQUIRETLS Failure: TLS is required, but was not offered by host "+s.namaddr)
	case d.require == requireAll && !s.tls.matched:
		f = d.requireFailure(10, "REQUIRETLS Failure: the certificate of host "+s.namaddr+" was not verified")
	case d.require == requireAll && s.offers&offersRequireTLS == 0:
		f = d.requireFailure(30, "REQUIRETLS Failure: REQUIRETLS was not offered by host "+s.namaddr)
	default:
		return nil
	}
	f.detail = s.detail()
	return f
}
