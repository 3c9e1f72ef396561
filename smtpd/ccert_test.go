package smtpd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"posthaste/internal/config"
)

// issued is a chain: a certificate for the use, by as many authorities between
// it and the root as asked for, then these, and at last the root.
func issued(t *testing.T, between int, use x509.ExtKeyUsage) (chain []*x509.Certificate) {
	t.Helper()
	var issuer *x509.Certificate
	var issuerKey *ecdsa.PrivateKey
	for i := range between + 2 {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		ca := i <= between
		c := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: ca}
		c.Subject.CommonName = string(rune('a' + i))
		if !ca {
			c.ExtKeyUsage = []x509.ExtKeyUsage{use}
		}
		if issuer == nil {
			issuer, issuerKey = c, key
		}
		raw, err := x509.CreateCertificate(rand.Reader, c, issuer, &key.PublicKey, issuerKey)
		if err != nil {
			t.Fatal(err)
		}
		if issuer, err = x509.ParseCertificate(raw); err != nil {
			t.Fatal(err)
		}
		issuerKey = key
		chain = append([]*x509.Certificate{issuer}, chain...)
	}
	return chain
}

// A client's chain may be as long as smtpd_tls_ccert_verifydepth says, and
// its certificate must be one for clients, unless tls_trust_server_ccerts.
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	client, server := x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	for _, tt := range []struct {
		between int
		use     x509.ExtKeyUsage
		depth   int
		usages  []x509.ExtKeyUsage
		want    bool
	}{
		{0, client, 9, []x509.ExtKeyUsage{client}, true},
		{0, client, 1, []x509.ExtKeyUsage{client}, true},
		{0, client, 0, []x509.ExtKeyUsage{client}, false},
		{2, client, 3, []x509.ExtKeyUsage{client}, true},
		{2, client, 2, []x509.ExtKeyUsage{client}, false},
		{0, server, 9, []x509.ExtKeyUsage{client}, false},
		{0, server, 9, []x509.ExtKeyUsage{client, server}, true},
	} {
		chain := issued(t, tt.between, tt.use)
		set := &tlsSettings{roots: x509.NewCertPool(), depth: tt.depth, usages: tt.usages}
		set.roots.AddCert(chain[len(chain)-1])
		if got := set.trusted(chain[:len(chain)-1]); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
}

// CAs that cannot be read, and what else is where they are, keep the service
// from nothing: they vouch for nobody.
func TestClientRoots(t *testing.T) {
	t.Parallel()
	chain := issued(t, 0, x509.ExtKeyUsageClientAuth)
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain[1].Raw})
	if err := errors.Join(os.WriteFile(file, text, 0o600), os.Mkdir(filepath.Join(dir, "java"), 0o700),
		os.Symlink("nowhere", filepath.Join(dir, "dangling"))); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		conf   string
		warned bool
		want   bool
	}{
		{"smtpd_tls_CApath = " + dir, false, true},
		{"smtpd_tls_CAfile = " + file, false, true},
		{"smtpd_tls_CAfile = " + file + "\nsmtpd_tls_CApath = " + dir + "/none", true, true},
		{"smtpd_tls_CAfile = " + dir + "/none", true, false},
		{"", false, false},
	} {
		cfg, err := config.LoadString(tt.conf + "\n")
		if err != nil {
			t.Fatal(err)
		}
		set := &tlsSettings{askCert: true, depth: 9, usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		warned := false
		set.readRoots(cfg, func(string, ...any) { warned = true })
		if got := set.trusted(chain[:1]); got != tt.want || warned != tt.warned {
			t.Errorf("%q: trusted %t, warned %t", tt.conf, got, warned)
		}
	}
}
