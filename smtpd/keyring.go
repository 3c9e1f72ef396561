// The server's certificates: which one a client gets.

package smtpd

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"hash"

	"posthaste/internal/config"
	"posthaste/internal/servercert"
	"posthaste/internal/table"
)

// A keyring chooses among the server's certificates, which package servercert reads. It
// may be used concurrently.
type keyring struct{ *servercert.Keyring }

// newKeyring says which files hold the certificates. Nothing is read. roots are CAs, some of
// which may be above our certificates.
func newKeyring(cfg *config.Config, o table.Options, roots *x509.CertPool) *keyring {
	return &keyring{servercert.New(cfg, servercert.Options{Warn: o.Warn, Confined: o.Confined, Roots: roots,
		Names: table.OpenMaps("tls_server_sni_maps", cfg.List("tls_server_sni_maps"), o)})}
}

// choose picks the certificate for a client, and has its session know. It is called by crypto/tls in the
// middle of a handshake.
func (k *keyring) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	cert, named := k.Choose(hello)
	if t, ok := hello.Conn.(*transport); ok {
		t.cert, t.schemes = cert, hello.SignatureSchemes
		if named {
			t.sni = hello.ServerName
		}
	}
	return cert, nil
}

// digests are the hash functions of smtpd_tls_fingerprint_digest. md5 and sha1 are
// for tables that were made when they were good.
var digests = map[string]func() hash.Hash{"md5": md5.New, "sha1": sha1.New, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New}

// fingerprint is a digest in the form of access tables: AB:CD:...
func fingerprint(digest string, data []byte) string {
	h := digests[digest]()
	h.Write(data)
	const hex = "0123456789ABCDEF"
	var b []byte
	for i, c := range h.Sum(nil) {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, hex[c>>4], hex[c&15])
	}
	return string(b)
}
