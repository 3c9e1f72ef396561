package smtp

import (
	"testing"

	"posthaste/internal/tlspolicy"
)

// How a session is secured is told in words: what was agreed on, what the certificate is worth, and where the policy comes from.
func TestSecurity(t *testing.T) {
	t.Parallel()
	may, sts, secure := &tlspolicy.Policy{Level: tlspolicy.May}, &tlspolicy.Policy{Level: tlspolicy.Secure, STS: true}, &tlspolicy.Policy{Level: tlspolicy.Secure}
	dane := &policy{Policy: &tlspolicy.Policy{Level: tlspolicy.Dane}, tlsa: make([]tlspolicy.TLSA, 1)}
	for _, c := range []struct {
		tls  *tlsState
		p    *policy
		want string
	}{
		{nil, &policy{Policy: may}, "no TLS, policy may"},
		{&tlsState{name: "TLS 1.3 X"}, &policy{Policy: may}, "TLS 1.3 X, certificate not verified, policy may"},
		{&tlsState{name: "TLS 1.3 X", trusted: true}, &policy{Policy: may}, "TLS 1.3 X, certificate of a known CA, policy may"},
		{&tlsState{name: "TLS 1.3 X", trusted: true, matched: true}, &policy{Policy: sts}, "TLS 1.3 X, certificate verified, policy MTA-STS"},
		{&tlsState{name: "TLS 1.3 X", matched: true}, &policy{Policy: secure}, "TLS 1.3 X, certificate verified, policy secure"},
		{&tlsState{name: "TLS 1.3 X", matched: true}, dane, "TLS 1.3 X, certificate verified, policy DANE"},
	} {
		if got := (&session{tls: c.tls}).security(c.p); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}
