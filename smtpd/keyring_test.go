package smtpd

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/table"
	"posthaste/internal/testcert"
)

// keyPair makes a key and a certificate that signs itself, as PEM.
func keyPair(t *testing.T, name string, useRSA bool) (key, cert []byte) {
	t.Helper()
	about := x509.Certificate{DNSNames: []string{name}, Subject: pkix.Name{CommonName: name}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(20, 0, 0), KeyUsage: x509.KeyUsageDigitalSignature}
	pair := testcert.Make(t, about, nil)
	if useRSA {
		pair = testcert.RSA(t, about, nil)
	}
	return pair.KeyPEM(), pair.CertPEM()
}

func write(t *testing.T, dir, name string, text ...[]byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	var all []byte
	for _, b := range text {
		all = append(all, b...)
	}
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Of several keys the client gets one that it can use.
func TestKeyChosen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ecKey, ecCert := keyPair(t, "ec.test", false)
	rsaKey, rsaCert := keyPair(t, "rsa.test", true)
	cfg, err := config.LoadString("smtpd_tls_chain_files = " + write(t, dir, "all", ecKey, ecCert, rsaKey, rsaCert) + "\n")
	if err != nil {
		t.Fatal(err)
	}
	k := newKeyring(cfg, table.Options{Warn: func(text string) { t.Error(text) }}, nil)
	for _, tt := range []struct {
		suite uint16
		name  string
	}{{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "rsa.test"}, {tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "ec.test"}} {
		c, err := k.choose(&tls.ClientHelloInfo{CipherSuites: []uint16{tt.suite}, SupportedVersions: []uint16{tls.VersionTLS12},
			SupportedCurves: []tls.CurveID{tls.CurveP256}, SupportedPoints: []uint8{0},
			SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256, tls.PSSWithSHA256}})
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil || leaf.Subject.CommonName != tt.name {
			t.Errorf("suite %x: %s, %v", tt.suite, leaf.Subject.CommonName, err)
		}
	}
}
