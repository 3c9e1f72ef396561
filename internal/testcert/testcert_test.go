package testcert

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"
)

func TestChain(t *testing.T) {
	t.Parallel()
	root := Make(t, x509.Certificate{Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	for _, make := range []func(testing.TB, x509.Certificate, *Pair) *Pair{Make, RSA} {
		leaf := make(t, x509.Certificate{DNSNames: []string{"mx.test"}}, root)
		roots := x509.NewCertPool()
		roots.AddCert(root.Cert)
		if _, err := leaf.Cert.Verify(x509.VerifyOptions{DNSName: "mx.test", Roots: roots}); err != nil {
			t.Error(err)
		}
		again, err := tls.X509KeyPair(append(leaf.CertPEM(), root.CertPEM()...), leaf.KeyPEM())
		if err != nil || len(again.Certificate) != len(leaf.TLS(root).Certificate) {
			t.Errorf("%d certificates, %v", len(again.Certificate), err)
		}
	}
	old := Make(t, x509.Certificate{NotAfter: time.Unix(1, 0), NotBefore: time.Unix(0, 0)}, nil)
	if !old.Cert.NotAfter.Equal(time.Unix(1, 0)) || old.Cert.CheckSignature(old.Cert.SignatureAlgorithm, old.Cert.RawTBSCertificate, old.Cert.Signature) != nil {
		t.Error("a certificate of one's own is not as it was ordered")
	}
}
