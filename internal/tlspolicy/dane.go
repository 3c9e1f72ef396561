package tlspolicy

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// TLSA is one TLSA record, RFC 6698 section 2.1.
type TLSA struct {
	Usage, Selector, Matching uint8
	Data                      []byte
}

// DANE certificate usages that mail clients use, RFC 7672 section 3.1.
const (
	usageTA = 2 // the certificate of a trust anchor in the server's chain
	usageEE = 3 // the server's own certificate or key
)

// Usable gives the records that a client can use, the strongest digest of
// each kind alone (digest agility, RFC 7671 section 9). allowed names the
// digests in order of preference.
func Usable(records []TLSA, allowed []string) []TLSA {
	rank := func(matching uint8) int {
		name := map[uint8]string{1: "sha256", 2: "sha512"}[matching]
		for i, a := range allowed {
			a, _, _ = strings.Cut(a, "=")
			if strings.EqualFold(a, name) {
				return i
			}
		}
		return -1
	}
	best := make(map[[2]uint8]int)
	var out []TLSA
	for _, r := range records {
		if r.check(rank(r.Matching)) != nil {
			continue
		}
		k := [2]uint8{r.Usage, r.Selector}
		if old, ok := best[k]; r.Matching != 0 && (!ok || rank(r.Matching) < old) {
			best[k] = rank(r.Matching)
		}
		out = append(out, r)
	}
	kept := out[:0]
	for _, r := range out {
		if r.Matching == 0 || rank(r.Matching) == best[[2]uint8{r.Usage, r.Selector}] {
			kept = append(kept, r)
		}
	}
	return kept
}

func (r *TLSA) check(rank int) error {
	size, known := map[uint8]int{1: sha256.Size, 2: sha512.Size}[r.Matching]
	switch {
	case r.Usage != usageTA && r.Usage != usageEE:
		return fmt.Errorf("certificate usage %d is not for mail", r.Usage)
	case r.Selector > 1:
		return fmt.Errorf("selector %d is unknown", r.Selector)
	case r.Matching == 0:
		return r.parse()
	case !known || rank < 0:
		return fmt.Errorf("matching type %d is not in use", r.Matching)
	case len(r.Data) != size:
		return errors.New("the digest has the wrong length")
	}
	return nil
}

// parse checks that a record without digest holds what it is to match.
func (r *TLSA) parse() (err error) {
	if r.Selector == 0 {
		_, err = x509.ParseCertificate(r.Data)
	} else {
		_, err = x509.ParsePKIXPublicKey(r.Data)
	}
	return err
}

// matches says whether a record is about a certificate.
func (r *TLSA) matches(c *x509.Certificate) bool {
	data := c.Raw
	if r.Selector == 1 {
		data = c.RawSubjectPublicKeyInfo
	}
	switch r.Matching {
	case 1:
		sum := sha256.Sum256(data)
		return bytes.Equal(sum[:], r.Data)
	case 2:
		sum := sha512.Sum512(data)
		return bytes.Equal(sum[:], r.Data)
	}
	return bytes.Equal(data, r.Data)
}

// A HostnameError says that the only thing wrong with a certificate is whom it is for.
type HostnameError struct {
	Names []string // that it may be for
}

func (e *HostnameError) Error() string {
	return "the certificate is for none of " + strings.Join(e.Names, ", ")
}

// VerifyDANE checks a server's chain against usable records. With usage 3 the
// server's certificate must match, and neither its names nor its dates count
// (RFC 7671 section 5.1). With usage 2 it must lead to the record's trust
// anchor, over a chain that is no longer than depth says (see Trusted), be valid
// now, and be for one of names (section 5.2): if only that is wrong the error is a *HostnameError.
func VerifyDANE(records []TLSA, chain []*x509.Certificate, names []string, depth int, now time.Time, rule NameRule) error {
	if len(chain) == 0 {
		return errors.New("the server has no certificate")
	}
	var last error
	for i := range records {
		r := &records[i]
		if r.Usage == usageEE {
			if r.matches(chain[0]) {
				return nil
			}
			continue
		}
		if err := r.anchored(chain, depth, now); err != nil {
			last = err
			continue
		}
		if rule.Match(chain[0], names) {
			return nil
		}
		last = &HostnameError{names}
	}
	if last == nil {
		last = errors.New("no TLSA record matches the server's certificate")
	}
	return last
}

// anchored checks that chain leads to the trust anchor of a record of usage 2,
// which is a certificate in the chain, or in the record itself.
func (r *TLSA) anchored(chain []*x509.Certificate, depth int, now time.Time) error {
	roots := x509.NewCertPool()
	found := false
	for _, c := range chain[1:] {
		if r.matches(c) {
			roots.AddCert(c)
			found = true
		}
	}
	if r.Selector == 0 && r.Matching == 0 {
		if c, err := x509.ParseCertificate(r.Data); err == nil {
			roots.AddCert(c)
			found = true
		}
	}
	if !found {
		return errors.New("no TLSA record matches a certificate of the server's chain")
	}
	return Trusted(chain, roots, depth, now, x509.ExtKeyUsageServerAuth)
}
