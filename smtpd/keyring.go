// The server's certificates: which one a client gets.

package smtpd

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"hash"
	"os"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/servercert"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy"
)

// A keyring chooses among the server's certificates, which package servercert reads. It
// may be used concurrently.
type keyring struct {
	*servercert.Keyring
	sni *table.Maps // tls_server_sni_maps
}

// newKeyring says which files hold the certificates. Nothing is read. roots are CAs, some of
// which may be above our certificates.
func newKeyring(cfg *config.Config, o table.Options, roots *x509.CertPool) *keyring {
	return &keyring{servercert.New(cfg, servercert.Options{Warn: o.Warn, Confined: o.Confined, Roots: roots}),
		table.OpenMaps("tls_server_sni_maps", cfg.List("tls_server_sni_maps"), o)}
}

// choose picks the certificate for a client: by the name it asks for (SNI), if
// tls_server_sni_maps has it, and else the first that the client can use. It is
// called by crypto/tls in the middle of a handshake, and never fails: a client that
// can use none gets the first one, and its library the last word.
func (k *keyring) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.Refresh(time.Now())
	certs := k.Certificates()
	if named, err := k.named(hello.ServerName); err != nil {
		k.Warn(err.Error())
	} else if named != nil {
		certs = named
		if t, ok := hello.Conn.(*transport); ok {
			t.sni = hello.ServerName
		}
	}
	best := servercert.For(hello, certs)
	if t, ok := hello.Conn.(*transport); ok {
		t.cert, t.schemes = best, hello.SignatureSchemes
	}
	return best, nil
}

// named are the certificates for a server name, from tls_server_sni_maps; nil if it
// has none. The entry's value is the PEM text in base64, as postmap -F stores it,
// or names of files with it. It is parsed for each handshake that asks for the
// name.
func (k *keyring) named(name string) ([]*tls.Certificate, error) {
	if name == "" || k.sni.Empty() {
		return nil, nil
	}
	value, found, err := k.sni.LookupDomain(context.Background(), strings.ToLower(name), true)
	if err != nil || !found {
		return nil, err
	}
	text, err := base64.StdEncoding.DecodeString(value)
	if err != nil || !bytes.Contains(text, []byte("-----BEGIN")) {
		text = nil
		for _, f := range table.SplitList(value) {
			part, err := os.ReadFile(f)
			if err != nil {
				return nil, fmt.Errorf("tls_server_sni_maps: %s: %w", name, err)
			}
			text = append(text, part...)
		}
	}
	certs, err := tlspolicy.ParseChains(text)
	if err != nil {
		return nil, fmt.Errorf("tls_server_sni_maps: %s: %w", name, err)
	}
	tlspolicy.Complete(certs, k.Roots, time.Now())
	return certs, nil
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
