package acme

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"posthaste/internal/servercert"
)

// due says when a certificate is to be requested, and why. leaf is the one in use, or nil; key is
// the key that it should have.
func due(now time.Time, leaf *x509.Certificate, key crypto.PublicKey, s *settings, st *servercert.State, requested bool) (at time.Time, why string) {
	if requested {
		return now, "somebody has asked for it"
	}
	if why = lacks(leaf, key, s, st); why != "" {
		return later(now, st.Next), why
	}
	at, why = st.Renewal(leaf), "two thirds of its lifetime have passed"
	if !st.Renew.IsZero() {
		why = "the authority suggests this time for the renewal"
	}
	// An authority that suggests a time in the past for each new certificate does not get us to
	// request one after the other.
	rest := min(longestRest, leaf.NotAfter.Sub(leaf.NotBefore)/6)
	return later(later(at, st.Finished.Add(rest)), st.Next), why
}

// lacks says why a certificate will not do, whatever its age.
func lacks(leaf *x509.Certificate, key crypto.PublicKey, s *settings, st *servercert.State) string {
	switch {
	case leaf == nil || servercert.IsSelfSigned(leaf):
		return "there is none yet"
	case !servercert.SameKey(leaf.PublicKey, key):
		return "the present one is for another key"
	case st.Authority != s.directory:
		return "the present one is from another authority"
	}
	for _, name := range s.names {
		if !hasName(leaf, name) {
			return fmt.Sprintf("the present one lacks %s", name)
		}
	}
	return ""
}

// hasName says whether a certificate has a name, which may be a wildcard.
func hasName(leaf *x509.Certificate, name string) bool {
	return slices.Contains(leaf.DNSNames, name) || leaf.VerifyHostname(name) == nil
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

const (
	// longestRest is how long a new certificate is left in peace.
	longestRest  = 24 * time.Hour
	firstBackOff = 15 * time.Minute
	lastBackOff  = 12 * time.Hour
	// interrupted is how long an attempt that did not end is waited for after a restart.
	interrupted = 5 * time.Minute
)

// backOff is how long to wait after so many failures in a row: 15 minutes, then twice as long each
// time, up to 12 hours. spread, from 0 to 1, makes it up to a tenth longer.
func backOff(failures int, spread float64) time.Duration {
	d := firstBackOff
	for i := 1; i < failures && d < lastBackOff; i++ {
		d *= 2
	}
	d = min(d, lastBackOff)
	return d + time.Duration(spread*float64(d)/10)
}

// choose picks the time for a renewal from a suggestion, at random within it (RFC 9773 section 4.2).
func choose(start, end time.Time, spread float64) time.Time {
	return start.Add(time.Duration(spread * float64(end.Sub(start))))
}
