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

// keyRecheck is how long certificate files are taken to be unchanged.
const keyRecheck = 10 * time.Second

// A keyring holds the server's certificates, and reads them again when their
// files have changed: a renewed certificate needs no restart. It keeps the
// old ones when the new ones cannot be used.
type keyring struct {
	chains   []string    // files with keys and chains
	pairs    [][2]string // certificate file, key file
	sni      *table.Maps
	roots    *x509.CertPool // of CAs, some of which may be above our certificates; may be nil
	warn     func(string)
	confined *confine.Confinement

	mu      sync.Mutex
	certs   []*tls.Certificate
	stamp   []fileStamp
	marks   []*confine.Mark
	checked time.Time
}

type fileStamp struct {
	size int64
	mod  time.Time
}

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

func (k *keyring) files() []string {
	files := slices.Clone(k.chains)
	for _, p := range k.pairs {
		files = append(files, p[0], p[1])
	}
	return files
}

// refresh reads the files if they have changed. The error is that of the
// first time; later ones are warned of.
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

// choose picks the certificate for a client: by the name it asks for, if
// tls_server_sni_maps has it, and else the first that it can use.
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

// named are the certificates for a server name: the entry's value is the
// PEM text in base64, as postmap -F stores it, or names of files with it.
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
