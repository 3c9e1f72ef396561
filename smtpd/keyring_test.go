package smtpd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

// keyPair makes a key and a certificate that signs itself, as PEM.
func keyPair(t *testing.T, name string, useRSA bool) (key, cert []byte) {
	t.Helper()
	var private, public any
	if useRSA {
		k, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		private, public = k, &k.PublicKey
	} else {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		private, public = k, &k.PublicKey
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(20, 0, 0), KeyUsage: x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
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
