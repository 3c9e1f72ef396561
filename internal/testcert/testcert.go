// Package testcert makes certificates and keys for tests.
package testcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"
)

// A Pair is a certificate with its private key.
type Pair struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// Make makes a pair with a new key on the curve P-256. The certificate is as about says; where that says
// nothing of it, the serial number is random, and the certificate is valid from an hour ago to a day from
// now. issuer signs it; if issuer is nil it signs itself.
func Make(t testing.TB, about x509.Certificate, issuer *Pair) *Pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return sign(t, about, key, issuer)
}

// RSA is Make with an RSA key of 2048 bits.
func RSA(t testing.TB, about x509.Certificate, issuer *Pair) *Pair {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return sign(t, about, key, issuer)
}

func sign(t testing.TB, about x509.Certificate, key crypto.Signer, issuer *Pair) *Pair {
	t.Helper()
	if about.SerialNumber == nil {
		serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
		if err != nil {
			t.Fatal(err)
		}
		about.SerialNumber = serial
	}
	if about.NotBefore.IsZero() {
		about.NotBefore = time.Now().Add(-time.Hour)
	}
	if about.NotAfter.IsZero() {
		about.NotAfter = time.Now().Add(24 * time.Hour)
	}
	if issuer == nil {
		issuer = &Pair{&about, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, &about, issuer.Cert, key.Public(), issuer.Key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Pair{cert, key}
}

// TLS is the pair as crypto/tls has it, with the certificates of its issuers, the nearest first.
func (p *Pair) TLS(issuers ...*Pair) tls.Certificate {
	c := tls.Certificate{Certificate: [][]byte{p.Cert.Raw}, PrivateKey: p.Key, Leaf: p.Cert}
	for _, i := range issuers {
		c.Certificate = append(c.Certificate, i.Cert.Raw)
	}
	return c
}

// CertPEM is the certificate as a file has it.
func (p *Pair) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Cert.Raw})
}

// KeyPEM is the key as a file has it, in the form of PKCS #8.
func (p *Pair) KeyPEM() []byte {
	der, err := x509.MarshalPKCS8PrivateKey(p.Key)
	if err != nil {
		panic(err) // both kinds of keys have that form
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
