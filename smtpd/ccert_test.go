package smtpd

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/table"
	"posthaste/internal/testcert"
)

// issued is a chain: a certificate for the use, by as many authorities between
// it and the root as asked for, then these, and at last the root. The key is that
// of the first.
func issued(t *testing.T, between int, use x509.ExtKeyUsage) (chain []*x509.Certificate, key crypto.Signer) {
	t.Helper()
	var pair *testcert.Pair
	for i := range between + 2 {
		ca := i <= between
		c := x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), BasicConstraintsValid: true, IsCA: ca}
		c.Subject.CommonName = string(rune('a' + i))
		if !ca {
			c.ExtKeyUsage = []x509.ExtKeyUsage{use}
		}
		pair = testcert.Make(t, c, pair)
		chain = append([]*x509.Certificate{pair.Cert}, chain...)
	}
	return chain, pair.Key
}

// A client's chain may be about as long as smtpd_tls_ccert_verifydepth says, and
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
		// As Postfix 3.7 has it: one CA in between is always allowed.
		{0, client, 0, []x509.ExtKeyUsage{client}, true},
		{1, client, 0, []x509.ExtKeyUsage{client}, true},
		{2, client, 0, []x509.ExtKeyUsage{client}, false},
		{2, client, 1, []x509.ExtKeyUsage{client}, true},
		{3, client, 1, []x509.ExtKeyUsage{client}, false},
		{3, client, 2, []x509.ExtKeyUsage{client}, true},
		{0, server, 9, []x509.ExtKeyUsage{client}, false},
		{0, server, 9, []x509.ExtKeyUsage{client, server}, true},
	} {
		chain, _ := issued(t, tt.between, tt.use)
		unneeded, _ := issued(t, 3, client) // which the client sends along
		set := &tlsSettings{roots: x509.NewCertPool(), depth: tt.depth, usages: tt.usages}
		set.roots.AddCert(chain[len(chain)-1])
		if got := set.verify(slices.Concat(chain[:len(chain)-1], unneeded)) == nil; got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
}

// CAs that cannot be read, and what else is where they are, keep the service
// from nothing: they vouch for nobody.
func TestClientRoots(t *testing.T) {
	t.Parallel()
	chain, _ := issued(t, 0, x509.ExtKeyUsageClientAuth)
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
		if got := set.verify(chain[:1]) == nil; got != tt.want || warned != tt.warned {
			t.Errorf("%q: trusted %t, warned %t", tt.conf, got, warned)
		}
	}
}

// A certificate in a file of its own is sent with the CAs above it, as far as
// smtpd_tls_CAfile has them; one with others in its file with just these.
func TestCompleteChain(t *testing.T) {
	t.Parallel()
	chain, private := issued(t, 2, x509.ExtKeyUsageServerAuth)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name string, certs ...*x509.Certificate) string {
		var text []byte
		for _, c := range certs {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
		return write(t, dir, name, text)
	}
	key := write(t, dir, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
	other, _ := issued(t, 0, x509.ExtKeyUsageServerAuth)
	alone, some := file("alone.pem", chain[0]), file("some.pem", chain[:2]...)
	all, near, strange := file("all.pem", chain[1:]...), file("near.pem", chain[1]), file("strange.pem", other[1])
	for _, tt := range []struct {
		name, conf string
		want       int
	}{
		{"alone", "smtpd_tls_cert_file = " + alone + "\nsmtpd_tls_key_file = " + key, 1},
		{"all its CAs", "smtpd_tls_cert_file = " + alone + "\nsmtpd_tls_key_file = " + key + "\nsmtpd_tls_CAfile = " + all, 4},
		{"its own CA", "smtpd_tls_cert_file = " + alone + "\nsmtpd_tls_key_file = " + key + "\nsmtpd_tls_CAfile = " + near, 2},
		{"another's CA", "smtpd_tls_cert_file = " + alone + "\nsmtpd_tls_key_file = " + key + "\nsmtpd_tls_CAfile = " + strange, 1},
		{"with others", "smtpd_tls_cert_file = " + some + "\nsmtpd_tls_key_file = " + key + "\nsmtpd_tls_CAfile = " + all, 2},
		{"chain files", "smtpd_tls_chain_files = " + key + ", " + alone + "\nsmtpd_tls_CAfile = " + all, 4},
	} {
		cfg, err := config.LoadString("smtpd_tls_security_level = may\n" + tt.conf + "\n")
		if err != nil {
			t.Fatal(err)
		}
		set, err := readTLS(cfg, t.Errorf, table.Options{Warn: func(text string) { t.Error(text) }})
		if err != nil {
			t.Fatal(err)
		}
		c, err := set.keys.choose(new(tls.ClientHelloInfo))
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Certificate) != tt.want {
			t.Errorf("%s: %d certificates are sent, want %d", tt.name, len(c.Certificate), tt.want)
		}
		for i, raw := range c.Certificate {
			if !bytes.Equal(raw, chain[i].Raw) {
				t.Errorf("%s: the certificate of index %d is not the one above that before it", tt.name, i)
			}
		}
	}
}

// A client that is asked for a certificate is told the CAs of smtpd_tls_CAfile, by which
// one that has several chooses. Those of smtpd_tls_CApath are too many for that.
func TestClientCANames(t *testing.T) {
	t.Parallel()
	chain, private := issued(t, 0, x509.ExtKeyUsageServerAuth)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir, cas := t.TempDir(), t.TempDir()
	key := write(t, dir, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
	cert := write(t, dir, "cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain[0].Raw}))
	ca := write(t, cas, "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain[1].Raw}))
	for _, tt := range []struct {
		conf string
		want [][]byte
	}{
		{"smtpd_tls_CAfile = " + ca, [][]byte{chain[1].RawSubject}},
		{"smtpd_tls_CApath = " + cas, nil},
	} {
		cfg, err := config.LoadString("smtpd_tls_security_level = may\nsmtpd_tls_ask_ccert = yes\nsmtpd_tls_chain_files = " + key + ", " + cert + "\n" + tt.conf + "\n")
		if err != nil {
			t.Fatal(err)
		}
		set, err := readTLS(cfg, t.Errorf, table.Options{Warn: func(text string) { t.Error(text) }})
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		done := make(chan error, 1)
		go func() { done <- tls.Server(ours, set.config).HandshakeContext(t.Context()) }()
		asked := false
		client := tls.Client(theirs, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			if !slices.EqualFunc(info.AcceptableCAs, tt.want, bytes.Equal) {
				t.Errorf("%s: CAs %q, want %q", tt.conf, info.AcceptableCAs, tt.want)
			}
			return new(tls.Certificate), nil
		}})
		if err := errors.Join(client.HandshakeContext(t.Context()), <-done); err != nil || !asked {
			t.Errorf("%s: %v, asked %t", tt.conf, err, asked)
		}
	}
}
