// The server's certificates: which files they are in, which one a client gets, and how
// a renewed one comes into use.

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
	"errors"
	"fmt"
	"hash"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/confine"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy"
)

// keyRecheck is how long certificate files are taken to be unchanged. A handshake
// that finds the time over pays for a look at each file.
const keyRecheck = 10 * time.Second

// A keyring holds the server's certificates, and reads them again when their files
// have changed: a renewed certificate needs no restart and no reload. It keeps the
// old ones when the new ones cannot be used. It may be used concurrently.
//
// Behind chroot, or without the rights to read keys, the files cannot be read
// again. Then the whole process is replaced, with master's help, when a file has
// changed: see package confine.
type keyring struct {
	chains   []string       // files with keys and chains: smtpd_tls_chain_files
	pairs    [][2]string    // certificate file, key file; empty when there are chains
	sni      *table.Maps    // tls_server_sni_maps
	roots    *x509.CertPool // of CAs, some of which may be above our certificates; may be nil
	warn     func(string)
	confined *confine.Confinement

	mu sync.Mutex // guards what follows
	// certs are the certificates in use, in the order of preference; nil before the first
	// refresh. The slice is not changed, but replaced.
	certs   []*tls.Certificate
	stamp   []fileStamp     // of the files that certs are from
	marks   []*confine.Mark // by which confine sees that a file has changed
	checked time.Time       // when the files were last looked at
}

// A fileStamp tells one version of a file from another. The zero one is of a file
// that is not there.
type fileStamp struct {
	size int64
	mod  time.Time
}

// newKeyring says which files hold the certificates. Nothing is read.
// smtpd_tls_chain_files replaces the older parameters; a certificate file without a
// key file has the key in it.
func newKeyring(cfg *config.Config, o table.Options) *keyring {
	k := &keyring{warn: o.Warn, confined: o.Confined, sni: table.OpenMaps("tls_server_sni_maps", cfg.List("tls_server_sni_maps"), o)}
	if k.chains = cfg.List("smtpd_tls_chain_files"); len(k.chains) > 0 {
		return k
	}
	for _, p := range [][2]string{{"smtpd_tls_eccert_file", "smtpd_tls_eckey_file"}, {"smtpd_tls_cert_file", "smtpd_tls_key_file"}} {
		cert, key := cfg.String(p[0]), cfg.String(p[1])
		if cert != "" && cert != "none" {
			if key == "" {
				key = cert
			}
			k.pairs = append(k.pairs, [2]string{cert, key})
		}
	}
	return k
}

// files are all files, in an order that does not change.
func (k *keyring) files() []string {
	files := slices.Clone(k.chains)
	for _, p := range k.pairs {
		files = append(files, p[0], p[1])
	}
	return files
}

// refresh reads the files if they have changed, and if keyRecheck has passed. The
// error is that of the first time; later ones are warnings, and the certificates in
// use stay.
func (k *keyring) refresh(now time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.certs != nil && now.Sub(k.checked) < keyRecheck {
		return nil
	}
	k.checked = now
	if k.certs != nil && k.confined.Jailed() {
		k.confined.Restart(k.marks)
		return nil
	}
	// The stamps are taken before the files are read: a file that changes meanwhile
	// is read again.
	stamp := k.stamps()
	if k.certs != nil && slices.Equal(stamp, k.stamp) {
		return nil
	}
	var marks []*confine.Mark
	for _, f := range k.files() {
		marks = append(marks, k.confined.Mark(f))
	}
	certs, err := k.load()
	if k.certs != nil && k.confined.Lost(err) {
		k.confined.Restart(k.marks)
		return nil
	}
	if err != nil {
		if k.certs == nil {
			return err
		}
		k.warn("the certificates in use stay: " + err.Error())
		return nil
	}
	for _, m := range k.marks {
		m.Close()
	}
	k.certs, k.stamp, k.marks = certs, stamp, marks
	return nil
}

// stamps are the present stamps of files, in the same order.
func (k *keyring) stamps() []fileStamp {
	var out []fileStamp
	for _, f := range k.files() {
		var st fileStamp
		if fi, err := os.Stat(f); err == nil {
			st = fileStamp{fi.Size(), fi.ModTime()}
		}
		out = append(out, st)
	}
	return out
}

// load reads all files. Certificates that lack an intermediate get it from roots,
// if it is there. An error is of one file, and nothing is used then: a certificate
// with half of its files renewed would not match its key.
func (k *keyring) load() ([]*tls.Certificate, error) {
	certs, err := tlspolicy.ReadChains(k.chains)
	if err != nil {
		return nil, fmt.Errorf("smtpd_tls_chain_files: %w", err)
	}
	for _, p := range k.pairs {
		c, err := tlspolicy.ReadPair(p[0], p[1])
		if err != nil {
			return nil, err
		}
		certs = append(certs, &c)
	}
	tlspolicy.Complete(certs, k.roots, time.Now())
	if len(certs) == 0 {
		return nil, errors.New("no server certificate: set smtpd_tls_chain_files, or smtpd_tls_cert_file and smtpd_tls_key_file")
	}
	return certs, nil
}

// choose picks the certificate for a client: by the name it asks for (SNI), if
// tls_server_sni_maps has it, and else the first that the client can use. It is
// called by crypto/tls in the middle of a handshake, and never fails: a client that
// can use none gets the first one, and its library the last word.
func (k *keyring) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.refresh(time.Now())
	k.mu.Lock()
	certs := k.certs
	k.mu.Unlock()
	if named, err := k.named(hello.ServerName); err != nil {
		k.warn(err.Error())
	} else if named != nil {
		certs = named
		if t, ok := hello.Conn.(*transport); ok {
			t.sni = hello.ServerName
		}
	}
	best := certs[0]
	for _, c := range certs {
		if hello.SupportsCertificate(c) == nil {
			best = c
			break
		}
	}
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
	tlspolicy.Complete(certs, k.roots, time.Now())
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
