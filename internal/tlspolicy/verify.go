package tlspolicy

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"posthaste/internal/resolver"
)

// Names expands what match= and smtp_tls_*_cert_match say: "hostname" is the
// server's name, "nexthop" the destination's, "dot-nexthop" all below it.
func Names(match []string, hostname, nexthop string) []string {
	var out []string
	for _, m := range match {
		switch strings.ToLower(m) {
		case "hostname":
			out = append(out, hostname)
		case "nexthop":
			out = append(out, nexthop)
		case "dot-nexthop":
			out = append(out, "."+nexthop)
		case "":
		default:
			out = append(out, m)
		}
	}
	return out
}

// A NameRule is how the names in a certificate are compared with those that are expected.
type NameRule struct {
	ManyLabels bool           // "*" stands for any number of labels: tls_wildcard_matches_multiple_labels
	Names      resolver.Names // how expected names that are international become A-labels, which certificates have
}

// Match says whether a certificate is for one of names. A name with a dot
// before it stands for all below it. A certificate that has DNS names is not
// asked for its common name.
// International names may be in either form.
func (rule NameRule) Match(cert *x509.Certificate, names []string) bool {
	certNames := cert.DNSNames
	if len(certNames) == 0 && cert.Subject.CommonName != "" {
		certNames = []string{cert.Subject.CommonName}
	}
	for _, c := range certNames {
		c = strings.TrimSuffix(c, ".")
		if strings.ContainsRune(c, 0) {
			continue
		}
		for _, n := range names {
			if matchOne(c, asciiName(rule.Names, strings.TrimSuffix(n, ".")), rule.ManyLabels) {
				return true
			}
		}
	}
	return false
}

// asciiName gives an international name the form that certificates have.
func asciiName(rule resolver.Names, name string) string {
	if strings.IndexFunc(name, func(c rune) bool { return c >= 0x80 }) < 0 {
		return name
	}
	rest, dot := strings.CutPrefix(name, ".")
	ascii, ok := rule.ToASCII(rest)
	switch {
	case !ok:
		return ""
	case dot:
		return "." + ascii
	}
	return ascii
}

func matchOne(cert, name string, manyLabels bool) bool {
	if name == "" || cert == "" {
		return false
	}
	if name[0] == '.' {
		base := strings.TrimPrefix(cert, "*.")
		return len(base) > len(name) && strings.EqualFold(base[len(base)-len(name):], name) ||
			base != cert && strings.EqualFold("."+base, name)
	}
	if strings.EqualFold(cert, name) {
		return true
	}
	parent, wild := strings.CutPrefix(cert, "*.")
	if !wild || !strings.Contains(parent, ".") {
		return false
	}
	for rest := name; ; {
		_, after, ok := strings.Cut(rest, ".")
		if !ok {
			return false
		}
		if strings.EqualFold(after, parent) {
			return true
		}
		if !manyLabels {
			return false
		}
		rest = after
	}
}

// Trusted says whether chain leads to one of roots. The peer's certificate is
// the first; of the others those count that are needed. depth is what
// smtp_tls_scert_verifydepth and smtpd_tls_ccert_verifydepth say: one CA may
// stand between the peer's certificate and a root, and as many more as this.
func Trusted(chain []*x509.Certificate, roots *x509.CertPool, depth int, now time.Time, usages ...x509.ExtKeyUsage) error {
	if len(chain) == 0 {
		return errors.New("the peer has no certificate")
	}
	inter := x509.NewCertPool()
	for _, c := range chain[1:] {
		inter.AddCert(c)
	}
	built, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: inter, CurrentTime: now, KeyUsages: usages})
	if err == nil && !slices.ContainsFunc(built, func(c []*x509.Certificate) bool { return len(c)-2 <= depth+1 }) {
		err = fmt.Errorf("certificate chain longer than limit(%d)", depth)
	}
	return err
}

// Complete adds to certificates that come alone the CAs that lead to a root, as
// far as roots has them, the root included: who trusts the root by its digest
// alone (RFC 7672 section 3.1.2) must see it. Certificates that come with others
// are sent with these and no more. A nil pool has none.
func Complete(certs []*tls.Certificate, roots *x509.CertPool, now time.Time) {
	for _, c := range certs {
		if len(c.Certificate) != 1 || c.Leaf == nil || roots == nil {
			continue
		}
		at := now // one that has expired, or is not valid yet, is sent as well
		if at.Before(c.Leaf.NotBefore) {
			at = c.Leaf.NotBefore
		}
		if at.After(c.Leaf.NotAfter) {
			at = c.Leaf.NotAfter
		}
		chains, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: roots, CurrentTime: at,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		if err != nil {
			continue // by a CA that is not known here
		}
		longest := slices.MaxFunc(chains, func(a, b []*x509.Certificate) int { return len(a) - len(b) })
		for _, above := range longest[1:] {
			c.Certificate = append(c.Certificate, above.Raw)
		}
	}
}

// digests are the algorithms by which fingerprints are known.
var digests = map[string]func() hash.Hash{
	"md5": md5.New, "sha1": sha1.New, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
}

// CheckDigest says whether a digest is known.
func CheckDigest(name string) error {
	if digests[strings.ToLower(name)] == nil {
		return fmt.Errorf("fingerprint digest %q: expected md5, sha1, sha256, sha384 or sha512", name)
	}
	return nil
}

// MatchFingerprint says whether the certificate, or its public key, has one of
// the fingerprints, which are in hexadecimal with or without colons.
func MatchFingerprint(cert *x509.Certificate, digest string, fingerprints []string) bool {
	h := digests[strings.ToLower(digest)]
	if h == nil {
		return false
	}
	sum := func(b []byte) []byte {
		d := h()
		d.Write(b)
		return d.Sum(nil)
	}
	whole, key := sum(cert.Raw), sum(cert.RawSubjectPublicKeyInfo)
	for _, f := range fingerprints {
		want, err := hex.DecodeString(strings.ReplaceAll(f, ":", ""))
		if err == nil && (bytes.Equal(want, whole) || bytes.Equal(want, key)) {
			return true
		}
	}
	return false
}

// Roots reads trust anchors: files of certificates, and all certificates of a
// directory. system adds the system's own. The pool is never nil: with an error
// it has what could be read.
func Roots(files []string, dir string, system bool) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	var errs []string
	note := func(err error) {
		if err != nil {
			errs = append(errs, err.Error())
		}
	}
	if system {
		p, err := x509.SystemCertPool()
		if err == nil {
			pool = p
		}
		note(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && !pool.AppendCertsFromPEM(b) {
			err = fmt.Errorf("%s has no certificate in PEM form", f)
		}
		note(err)
	}
	if dir != "" {
		list, err := os.ReadDir(dir)
		note(err)
		for _, e := range list {
			if b, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
				pool.AppendCertsFromPEM(b) // what else is in there is of no interest
			}
		}
	}
	if len(errs) > 0 {
		return pool, fmt.Errorf("trusted certificates: %s", strings.Join(errs, "; "))
	}
	return pool, nil
}
