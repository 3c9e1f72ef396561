package servercert

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
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
		k := &Keyring{chains: tt.files}
		certs, err := k.load(time.Now())
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
		k := &Keyring{chains: []string{path}, Options: Options{Warn: func(text string) { warned = text }}}
		if err := k.Refresh(time.Now()); err != nil {
			t.Fatal(err)
		}
		name := func() string {
			if err := k.Refresh(time.Now()); err != nil {
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
		time.Sleep(Recheck)
		if got := name(); got != "two.example.test" {
			t.Errorf("%s is in use", got)
		}
		write(t, dir, "chain", []byte("nothing"))
		time.Sleep(Recheck)
		if got := name(); got != "two.example.test" || warned == "" {
			t.Errorf("%s is in use, warned %q", got, warned)
		}
	})
}

// own makes a configuration with tls_acme, and its store.
func own(t *testing.T, more string) (*config.Config, *Store) {
	t.Helper()
	cfg, err := config.LoadString("tls_acme = yes\ntls_acme_domains = mail.example.org\ndata_directory = " + t.TempDir() + "\n" + more)
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return cfg, s
}

// TestOwn: with tls_acme a self-signed certificate serves until there is another, which is then
// used without a restart. Files of the administrator's come first.
func TestOwn(t *testing.T) {
	t.Parallel()
	cfg, s := own(t, "")
	warned := ""
	k := New(cfg, Options{Warn: func(text string) { warned += text }})
	at := time.Now()
	leaf := func() *x509.Certificate {
		t.Helper()
		at = at.Add(Recheck)
		if err := k.Refresh(at); err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(k.Certificates()[0].Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := leaf()
	if !IsSelfSigned(first) || first.VerifyHostname("mail.example.org") != nil || warned != "" || !first.NotBefore.Before(time.Now().Add(-24*time.Hour)) {
		t.Errorf("%v, %q", first.Subject, warned)
	}
	key, err := s.Key("ecdsa")
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Key("rsa")
	if err != nil || !SameKey(key.Public(), again.Public()) {
		t.Errorf("the key is another: %v", err)
	}
	text, err := SelfSigned(key, []string{"mail.example.org"}, at)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SaveSelfSigned(text); err != nil {
		t.Fatal(err)
	}
	if second := leaf(); !SameKey(second.PublicKey, key.Public()) {
		t.Error("the new certificate is not in use")
	}
	write(t, Directory(cfg), chainFile, []byte("rubbish"))
	if !SameKey(leaf().PublicKey, key.Public()) || !strings.Contains(warned, "the certificates in use stay: ") {
		t.Errorf("a file that cannot be used is; %q", warned)
	}
	// A process that starts now has no other.
	warned = ""
	k = New(cfg, Options{Warn: func(text string) { warned += text }})
	if !IsSelfSigned(leaf()) || !strings.Contains(warned, "tls_acme: a self-signed certificate serves: ") {
		t.Errorf("%q", warned)
	}
	for _, more := range []string{"smtpd_tls_chain_files = /x\n", "smtpd_tls_cert_file = /x\n", "smtpd_tls_eccert_file = /x\n", "tls_acme = no\n"} {
		if cfg, _ := own(t, more); Serves(cfg) {
			t.Errorf("%s: the certificate of tls_acme serves", more)
		}
	}
	if cfg, _ := own(t, "smtpd_tls_cert_file = none\n"); !Serves(cfg) {
		t.Error("none is a certificate")
	}
}

// TestFiles: nobody else can read what is in the store, and what is saved is found again.
func TestFiles(t *testing.T) {
	t.Parallel()
	cfg, s := own(t, "")
	account, err := s.Account()
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.Key("rsa")
	if err != nil || SameKey(key.Public(), account.Public()) {
		t.Fatal("one key for all", err)
	}
	if _, err := s.Chain(); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	_, cert := keyPair(t, "mail.example.org", false)
	if err := errors.Join(s.SaveChain(key, cert), s.SaveState(&State{Trouble: Trouble{Failures: 3, Problem: "x"}}), s.Request()); err != nil {
		t.Fatal(err)
	}
	if st, err := s.State(); err != nil || st.Failures != 3 || st.Problem != "x" || !st.Next.IsZero() {
		t.Errorf("%+v, %v", st, err)
	}
	if s.Answered(); s.Requested() {
		t.Error("the request stays")
	}
	if err := s.Request(); err != nil || !s.Requested() {
		t.Error("no request", err)
	}
	entries, err := os.ReadDir(Directory(cfg))
	if err != nil || len(entries) != 5 {
		t.Errorf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if fi, err := e.Info(); err != nil || fi.Mode() != 0o600 {
			t.Errorf("%s has the mode %v, %v", e.Name(), fi.Mode(), err)
		}
	}
	write(t, Directory(cfg), stateFile, []byte("{"))
	if st, err := s.State(); err == nil || st == nil {
		t.Error("half a state is one")
	}
	write(t, Directory(cfg), keyFile, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
	if _, err := s.Key("rsa"); err == nil {
		t.Error("a key that cannot be read is replaced")
	}
}

// TestTLSA: the record is of the key, and openssl's.
func TestTLSA(t *testing.T) {
	t.Parallel()
	block, _ := pem.Decode([]byte("-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n"))
	key, err := x509.ParsePKIXPublicKey(block.Bytes) // RFC 8410 section 10.1
	if err != nil {
		t.Fatal(err)
	}
	if got, err := TLSA(key); err != nil || got != "3 1 1 a1e9156054e04fac899ae9f275132cdc07a5dbc4ea2c2ad3a1ffc6e0d253681f" {
		t.Error(got, err)
	}
}
