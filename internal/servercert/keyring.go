package servercert

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/confine"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy"
)

// Recheck is how long certificate files are taken to be unchanged. A handshake
// that finds the time over pays for a look at each file.
const Recheck = 10 * time.Second

// Options are what a Keyring needs besides main.cf.
type Options struct {
	Warn     func(string)         // is told why new certificates cannot be used
	Confined *confine.Confinement // may be nil
	Roots    *x509.CertPool       // of CAs, some of which may be above our certificates; may be nil
	Names    *table.Maps          // tls_server_sni_maps; nil: every client gets one of the certificates of all
}

// A Keyring holds the server's certificates, and reads them again when their files
// have changed: a renewed certificate needs no restart and no reload. It keeps the
// old ones when the new ones cannot be used. It may be used concurrently.
//
// Behind chroot, or without the rights to read keys, the files cannot be read
// again. Then the whole process is replaced, with master's help, when a file has
// changed: see package confine.
type Keyring struct {
	Options
	chains []string    // files with keys and chains: smtpd_tls_chain_files
	pairs  [][2]string // certificate file, key file; empty when there are chains
	acme   string      // the directory of the certificate that tls_acme gets; else empty
	names  []string    // whom a self-signed certificate is for

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

// New says which files hold the certificates. Nothing is read.
// smtpd_tls_chain_files replaces the older parameters; a certificate file without a
// key file has the key in it. Where none of them is set, tls_acme has its turn.
func New(cfg *config.Config, o Options) *Keyring {
	k := &Keyring{Options: o}
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
	if len(k.pairs) == 0 && cfg.Bool("tls_acme") {
		k.acme, k.names = Directory(cfg), cfg.List("tls_acme_domains")
	}
	return k
}

// Serves says whether the servers of a configuration use the certificate that tls_acme gets.
func Serves(cfg *config.Config) bool { return New(cfg, Options{}).acme != "" }

// files are all files, in an order that does not change.
func (k *Keyring) files() []string {
	files := slices.Clone(k.chains)
	for _, p := range k.pairs {
		files = append(files, p[0], p[1])
	}
	if k.acme != "" {
		files = append(files, filepath.Join(k.acme, chainFile))
	}
	return files
}

// Certificates are those in use, in the order of preference. The slice must not be changed.
func (k *Keyring) Certificates() []*tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.certs
}

// Choose picks the certificate for a client: of those for the name that it asks for (SNI), if
// tls_server_sni_maps has that, and else of those in use, the first that the client can use. It is
// called in the middle of a handshake, and never fails: a client that can use none gets the first, and has
// the last word. named says whether the name was in the table. Refresh must have succeeded once.
func (k *Keyring) Choose(hello *tls.ClientHelloInfo) (cert *tls.Certificate, named bool) {
	_ = k.Refresh(time.Now()) // what fails is in the log, and the certificates in use stay
	certs := k.Certificates()
	list, err := k.named(hello.Context(), hello.ServerName)
	if err != nil {
		k.Warn(err.Error())
	} else if list != nil {
		certs, named = list, true
	}
	for _, c := range certs {
		if hello.SupportsCertificate(c) == nil {
			return c, named
		}
	}
	return certs[0], named
}

// named are the certificates for a server name, from tls_server_sni_maps; nil if it
// has none. The entry's value is the PEM text in base64, as postmap -F stores it,
// or names of files with it. It is parsed for each handshake that asks for the
// name.
func (k *Keyring) named(ctx context.Context, name string) ([]*tls.Certificate, error) {
	if name == "" || k.Names == nil || k.Names.Empty() {
		return nil, nil
	}
	value, found, err := k.Names.LookupDomain(ctx, strings.ToLower(name), true)
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

// Refresh reads the files if they have changed, and if Recheck has passed. The
// error is that of the first time; later ones are warnings, and the certificates in
// use stay.
func (k *Keyring) Refresh(now time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.certs != nil && now.Sub(k.checked) < Recheck {
		return nil
	}
	k.checked = now
	if k.certs != nil && k.Confined.Jailed() {
		k.Confined.Restart(k.marks)
		return nil
	}
	// The stamps are taken before the files are read: a file that changes meanwhile
	// is read again.
	stamp := k.stamps()
	if k.certs != nil && slices.Equal(stamp, k.stamp) {
		return nil
	}
	marks := k.mark()
	certs, err := k.load(now)
	if k.certs != nil && k.Confined.Lost(err) {
		k.Confined.Restart(k.marks)
		return nil
	}
	if err != nil {
		if k.certs == nil {
			return err
		}
		k.Warn("the certificates in use stay: " + err.Error())
		return nil
	}
	for _, m := range k.marks {
		m.Close()
	}
	k.certs, k.stamp, k.marks = certs, stamp, marks
	return nil
}

// mark marks all files. Where tls_acme's is not there yet, its directory is marked, or the one
// above.
func (k *Keyring) mark() (marks []*confine.Mark) {
	for _, f := range k.files() {
		m := k.Confined.Mark(f)
		for dir := filepath.Dir(f); m == nil && k.acme != "" && len(dir) > 1; dir = filepath.Dir(dir) {
			m = k.Confined.Mark(dir)
		}
		marks = append(marks, m)
	}
	return marks
}

// stamps are the present stamps of files, in the same order.
func (k *Keyring) stamps() []fileStamp {
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
func (k *Keyring) load(now time.Time) ([]*tls.Certificate, error) {
	if k.acme != "" {
		return k.loadOwn(now)
	}
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
	tlspolicy.Complete(certs, k.Roots, now)
	if len(certs) == 0 {
		return nil, errors.New("no server certificate: set smtpd_tls_chain_files, or smtpd_tls_cert_file and smtpd_tls_key_file, or tls_acme")
	}
	return certs, nil
}

// loadOwn reads the certificate of tls_acme. At first there may be none, or none that can be
// used: then a certificate that signs itself serves, since senders do not verify it, unless they
// use DANE or MTA-STS, and mail would go in clear text otherwise.
func (k *Keyring) loadOwn(now time.Time) ([]*tls.Certificate, error) {
	certs, err := readOwn(k.acme)
	if err == nil || k.certs != nil {
		return certs, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		k.Warn(fmt.Sprintf("tls_acme: a self-signed certificate serves: %v", err))
	}
	key, err := NewKey("ecdsa")
	if err != nil {
		return nil, err
	}
	text, err := SelfSigned(key, k.names, now)
	if err != nil {
		return nil, err
	}
	return tlspolicy.ParseChains(text)
}

// readOwn reads the chain in a directory of tls_acme.
func readOwn(dir string) ([]*tls.Certificate, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err // it is not for a reader to make it
	}
	s, err := openStore(dir)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	text, err := s.dir.ReadFile(chainFile)
	if err != nil {
		return nil, err
	}
	certs, err := tlspolicy.ParseChains(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, chainFile), err)
	}
	return certs, nil
}
