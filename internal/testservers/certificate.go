package testservers

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"os"
	"path/filepath"
	"testing"

	"posthaste/internal/testcert"
)

// Certificate makes a certificate for 127.0.0.1 that is its own issuer, and
// returns the paths of its file and of its key's, which anybody may read.
func Certificate(t testing.TB) (cert, key string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cert")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	pair := testcert.Make(t, x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}, nil)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, text := range map[string][]byte{cert: pair.CertPEM(), key: pair.KeyPEM()} {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
