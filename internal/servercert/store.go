package servercert

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"path/filepath"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/statedir"
)

const (
	keyFile     = "key.pem"
	nextFile    = "next.pem"
	chainFile   = "chain.pem"
	accountFile = "account.pem"
	stateFile   = "state.json"
	requestFile = "request"
)

// Directory is where the acme service keeps its files.
func Directory(cfg *config.Config) string {
	return filepath.Join(cfg.String("data_directory"), "acme")
}

// ChainFile is the file that the servers of a configuration with tls_acme read.
func ChainFile(cfg *config.Config) string { return filepath.Join(Directory(cfg), chainFile) }

// A Store is the directory of the acme service. The service is the only one that writes to it,
// but for the request and the making of the next key.
type Store struct {
	path string
	dir  *statedir.Dir
}

// A State is what the acme service remembers between attempts, over restarts too.
type State struct {
	Authority string    `json:"authority,omitempty"` // the directory's URL at the last success
	Account   string    `json:"account,omitempty"`   // the account's URL
	Attempt   time.Time `json:"attempt,omitzero"`    // when the last attempt began
	Finished  time.Time `json:"finished,omitzero"`   // when the last one that was not interrupted ended
	// Asked is the directory's URL of the authority that is asked now, and Trouble what it has
	// refused. Elsewhere has what others have refused, by their URLs: see Turn.
	Asked string `json:"asked,omitempty"`
	Trouble
	Elsewhere map[string]Trouble `json:"elsewhere,omitempty"`
	// Start and End are the authority's suggestion for the renewal (RFC 9773), and Renew is the
	// time that was chosen in it. They are zero if it makes none.
	Start time.Time `json:"start,omitzero"`
	End   time.Time `json:"end,omitzero"`
	Renew time.Time `json:"renew,omitzero"`
	Ask   time.Time `json:"ask,omitzero"` // when to ask for a suggestion again
	// Seen is since when all name servers show the TLSA record of the next key, and Usable when the
	// key may be used.
	Seen   time.Time `json:"seen,omitzero"`
	Usable time.Time `json:"usable,omitzero"`
}

// Renewal is when the certificate that is in use should be renewed: at the time that its authority suggests,
// or else when two thirds of its lifetime have passed.
func (st *State) Renewal(leaf *x509.Certificate) time.Time {
	if !st.Renew.IsZero() {
		return st.Renew
	}
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 3 * 2)
}

// OpenStore opens the store of a configuration, and makes it if it does not exist.
func OpenStore(cfg *config.Config) (*Store, error) { return openStore(Directory(cfg)) }

func openStore(path string) (*Store, error) {
	dir, err := statedir.Open(path)
	if err != nil {
		return nil, err
	}
	return &Store{path, dir}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.dir.Close() }

// failed says which file an error is of.
func (s *Store) failed(name string, err error) error {
	return fmt.Errorf("%s: %w", filepath.Join(s.path, name), err)
}

// Key reads the private key of the certificate. Without one it makes it, of the kind ecdsa or
// rsa. A key that cannot be read is an error, and is never replaced.
func (s *Store) Key(kind string) (crypto.Signer, error) { return s.key(keyFile, kind) }

// Account is Key for the key of the account.
func (s *Store) Account() (crypto.Signer, error) { return s.key(accountFile, "ecdsa") }

// NextKey reads the private key that is to follow. fs.ErrNotExist says that there is none.
func (s *Store) NextKey() (crypto.Signer, error) { return s.readKey(nextFile) }

// MakeNext is Key for the key that is to follow.
func (s *Store) MakeNext(kind string) (crypto.Signer, error) { return s.key(nextFile, kind) }

// HasNext says whether there is a key that is to follow.
func (s *Store) HasNext() bool {
	_, err := s.dir.Lstat(nextFile)
	return err == nil
}

// Promote makes the key that is to follow that of the certificate.
func (s *Store) Promote() error {
	text, err := s.dir.ReadFile(nextFile)
	if err == nil {
		err = s.dir.ReplaceDurably(keyFile, text)
	}
	if err == nil {
		err = s.dir.Remove(nextFile)
	}
	if err != nil {
		return s.failed(nextFile, err)
	}
	return nil
}

func (s *Store) readKey(name string) (crypto.Signer, error) {
	text, err := s.dir.ReadFile(name)
	if err != nil {
		return nil, s.failed(name, err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, s.failed(name, errors.New("expected a private key in PEM form"))
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, s.failed(name, err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, s.failed(name, fmt.Errorf("a key of type %T cannot sign", parsed))
	}
	return key, nil
}

func (s *Store) key(name, kind string) (crypto.Signer, error) {
	key, err := s.readKey(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if key, err = NewKey(kind); err != nil {
		return nil, err
	}
	text, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	return key, s.save(name, text)
}

// Chain reads the certificate with its chain, the server's first. fs.ErrNotExist says that
// there is none.
func (s *Store) Chain() ([]*x509.Certificate, error) {
	text, err := s.dir.ReadFile(chainFile)
	if err != nil {
		return nil, s.failed(chainFile, err)
	}
	certs, err := ParseCertificates(text)
	if err != nil {
		return nil, s.failed(chainFile, err)
	}
	return certs, nil
}

// ParseCertificates reads the certificates of a text in PEM form, of which there must be one.
func ParseCertificates(text []byte) (certs []*x509.Certificate, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, errors.New("expected a certificate in PEM form")
	}
	return certs, nil
}

// SaveChain gives the servers a key and its certificate, with the chain, in PEM form. On return
// they are on stable storage; servers use them within Recheck.
func (s *Store) SaveChain(key crypto.Signer, chain []byte) error {
	text, err := keyPEM(key)
	if err != nil {
		return err
	}
	return s.save(chainFile, append(text, chain...))
}

// SaveSelfSigned gives the servers what SelfSigned has made.
func (s *Store) SaveSelfSigned(text []byte) error { return s.save(chainFile, text) }

// save keeps a file. On return it is on stable storage.
func (s *Store) save(name string, text []byte) error {
	if err := s.dir.ReplaceDurably(name, text); err != nil {
		return s.failed(name, err)
	}
	return nil
}

// State reads the state. Where there is none it is empty.
func (s *Store) State() (*State, error) {
	st := new(State)
	text, err := s.dir.ReadFile(stateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil
	}
	if err == nil {
		err = json.Unmarshal(text, st)
	}
	if err != nil {
		return new(State), s.failed(stateFile, err)
	}
	return st, nil
}

// SaveState keeps the state. On return it is on stable storage.
func (s *Store) SaveState(st *State) error {
	text, err := json.MarshalIndent(st, "", "\t")
	if err != nil {
		return err
	}
	return s.save(stateFile, append(text, '\n'))
}

// Request asks the service for a renewal.
func (s *Store) Request() error {
	if err := s.dir.WriteFile(requestFile, nil, 0o600); err != nil {
		return s.failed(requestFile, err)
	}
	return nil
}

// Requested says whether somebody waits for a renewal. The request stays.
func (s *Store) Requested() bool {
	_, err := s.dir.Lstat(requestFile)
	return err == nil
}

// Answered takes the request back.
func (s *Store) Answered() {
	_ = s.dir.Remove(requestFile) // one that stays is another request
}

// NewKey makes a private key: ecdsa, on the curve P-256, or rsa, of 2048 bits.
func NewKey(kind string) (crypto.Signer, error) {
	if kind == "rsa" {
		return rsa.GenerateKey(rand.Reader, 2048)
	}
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

func keyPEM(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// selfLife is how long a self-signed certificate is valid. Nobody verifies it.
const selfLife = 10 * 365 * 24 * time.Hour

// SelfSigned makes a certificate that signs itself, and returns the key and it in PEM form. It
// is valid since two days ago, for those whose clocks are slow.
func SelfSigned(key crypto.Signer, names []string, now time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: serial, DNSNames: names, NotBefore: now.Add(-48 * time.Hour), NotAfter: now.Add(selfLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if len(names) > 0 {
		template.Subject = pkix.Name{CommonName: names[0]}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	text, err := keyPEM(key)
	return append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...), err
}

// IsSelfSigned says whether a certificate comes from no authority.
func IsSelfSigned(c *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

// TLSA is the data of the DANE record of a key: 3 1 1, its SHA-256 digest (RFC 7672 section 3.1.1).
// A renewal that keeps the key leaves it as it is.
func TLSA(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return "3 1 1 " + hex.EncodeToString(sum[:]), nil
}

// SameKey says whether two public keys are one.
func SameKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}
