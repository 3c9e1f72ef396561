package e2e

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"testing"

	"posthaste/internal/testcert"
)

// An authority issues certificates that nobody else knows.
type authority struct {
	t testing.TB
	*testcert.Pair
}

func newAuthority(t testing.TB) *authority {
	return &authority{t, testcert.Make(t, x509.Certificate{Subject: pkix.Name{CommonName: "Test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)}
}

// server makes a certificate for names, with the authority's behind it.
func (a *authority) server(names ...string) tls.Certificate {
	return testcert.Make(a.t, x509.Certificate{Subject: pkix.Name{CommonName: names[0]}, DNSNames: names}, a.Pair).TLS(a.Pair)
}

// pem is the authority's own certificate as a file has it.
func (a *authority) pem() string { return string(a.CertPEM()) }

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
