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
	"testing/synctest"
	"time"
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

// All files of smtpd_tls_chain_files are as one: a key may be in one and its
// certificate in the next.
func TestChainFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rsaKey, rsaCert := keyPair(t, "rsa.test", true)
	ecKey, ecCert := keyPair(t, "ec.test", false)
	rk, rc := write(t, dir, "rk", rsaKey), write(t, dir, "rc", rsaCert)
	ek, ec := write(t, dir, "ek", ecKey), write(t, dir, "ec", ecCert)
	both := write(t, dir, "both", rsaKey, rsaCert, ecKey, ecCert)
	for _, tt := range []struct {
		files []string
		certs int // 0: an error
	}{
		{[]string{rk, rc}, 1}, {[]string{ek, ec, rk, rc}, 2}, {[]string{both}, 2}, {[]string{rc, rk}, 0}, {[]string{rk, ec}, 0}, {[]string{rk}, 0},
	} {
		k := &keyring{chains: tt.files}
		certs, err := k.load()
		if len(certs) != tt.certs || (err == nil) != (tt.certs > 0) {
			t.Errorf("%v: %d certificates, %v", tt.files, len(certs), err)
		}
	}
}

// A certificate that changes is used for the next session; one that cannot be
// read leaves the old one in use.
func TestKeysReloaded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		key, cert := keyPair(t, "one.test", false)
		path := write(t, dir, "chain", key, cert)
		warned := ""
		k := &keyring{chains: []string{path}, warn: func(text string) { warned = text }}
		if err := k.refresh(time.Now()); err != nil {
			t.Fatal(err)
		}
		name := func() string {
			if err := k.refresh(time.Now()); err != nil {
				t.Fatal(err)
			}
			c, err := x509.ParseCertificate(k.certs[0].Certificate[0])
			if err != nil {
				t.Fatal(err)
			}
			return c.Subject.CommonName
		}
		key, cert = keyPair(t, "two.example.test", false) // another size
		write(t, dir, "chain", key, cert)
		if got := name(); got != "one.test" {
			t.Errorf("%s is looked for before it is time to", got)
		}
		time.Sleep(keyRecheck)
		if got := name(); got != "two.example.test" {
			t.Errorf("%s is in use", got)
		}
		write(t, dir, "chain", []byte("nothing"))
		time.Sleep(keyRecheck)
		if got := name(); got != "two.example.test" || warned == "" {
			t.Errorf("%s is in use, warned %q", got, warned)
		}
	})
}

// Of several keys the client gets one that it can use.
func TestKeyChosen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ecKey, ecCert := keyPair(t, "ec.test", false)
	rsaKey, rsaCert := keyPair(t, "rsa.test", true)
	k := &keyring{chains: []string{write(t, dir, "all", ecKey, ecCert, rsaKey, rsaCert)}, warn: func(text string) { t.Error(text) }}
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
