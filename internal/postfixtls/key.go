package postfixtls

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
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"posthaste/internal/smallfile"
)

// The algorithms, as the command line names them.
const (
	rsaName   = "rsa"
	ecdsaName = "ecdsa"
)

// curves are the curves of ecdsa by their names; others would reach few peers.
var curves = map[string]elliptic.Curve{
	"secp256r1": elliptic.P256(), "prime256v1": elliptic.P256(), "secp384r1": elliptic.P384(), "secp521r1": elliptic.P521(),
}

// Sizes of an RSA key: fewer bits are refused by peers, more take minutes to make.
const (
	defaultBits = 2048
	maxBits     = 8192
)

// lifetime is that of a self-signed certificate, which nobody checks: as long as Postfix's.
const lifetime = 100 * 365 * 24 * time.Hour

// A pair is a key and its certificate, in files.
type pair struct {
	keyFile, certFile string
	key               crypto.Signer
}

// algorithm is what -a and -b say.
func (c *command) algorithm() (name, bits string, err error) {
	name, bits = c.opts['a'], c.opts['b']
	switch name {
	case "", rsaName:
		name = rsaName
		if bits == "" {
			bits = strconv.Itoa(defaultBits)
		}
		if n, err := strconv.Atoi(bits); err != nil || n < defaultBits || n > maxBits {
			return "", "", fmt.Errorf("-b %s: expected a number of bits, from %d to %d", bits, defaultBits, maxBits)
		}
	case ecdsaName:
		if bits == "" {
			bits = "secp256r1"
		}
		if curves[bits] == nil {
			return "", "", fmt.Errorf("-b %s: expected secp256r1, secp384r1 or secp521r1", bits)
		}
	default:
		return "", "", fmt.Errorf("-a %s: expected rsa or ecdsa", name)
	}
	return name, bits, nil
}

// makePair makes a certificate, and a key unless it is to be that of the file keyOf. Both are
// new files in the configuration directory, whose names say when they were made.
func (c *command) makePair(keyOf string) (p *pair, err error) {
	name, bits, err := c.algorithm()
	if err != nil {
		return nil, err
	}
	p = &pair{}
	prefix, stamp := "", c.Now.UTC().Format("20060102-150405")
	if name == ecdsaName {
		prefix = "ec"
	}
	p.keyFile = filepath.Join(c.cfg.Dir(), prefix+"key-"+stamp+".pem")
	p.certFile = filepath.Join(c.cfg.Dir(), prefix+"cert-"+stamp+".pem")
	switch {
	case keyOf != "":
		if p.key, err = readKey(keyOf); err == nil && algorithmOf(p.key) != name {
			err = fmt.Errorf("%s: expected a key of the algorithm %s", keyOf, name)
		}
	case name == ecdsaName:
		p.key, err = ecdsa.GenerateKey(curves[bits], rand.Reader)
	default:
		n, _ := strconv.Atoi(bits) // algorithm has read it
		p.key, err = rsa.GenerateKey(rand.Reader, n)
	}
	if err != nil {
		return nil, err
	}
	cert, err := selfSigned(p.key, c.hostnames(), c.Now)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return nil, err
	}
	if err := writeNew(p.keyFile, 0o600, "PRIVATE KEY", der); err != nil {
		return nil, err
	}
	if err := writeNew(p.certFile, 0o644, "CERTIFICATE", cert); err != nil {
		return nil, errors.Join(err, os.Remove(p.keyFile))
	}
	return p, nil
}

// selfSigned is a certificate for the names, the first of which is also its common name.
func selfSigned(key crypto.Signer, names []string, now time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: now, NotAfter: now.Add(lifetime), BasicConstraintsValid: true, IsCA: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if algorithmOf(key) == ecdsaName {
		t.KeyUsage &^= x509.KeyUsageKeyEncipherment // RFC 5480, section 3
	}
	return x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
}

// writeNew makes a file, durably; one that is there is an error.
func writeNew(name string, mode os.FileMode, kind string, der []byte) (err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(name)
		}
	}()
	if err := pem.Encode(f, &pem.Block{Type: kind, Bytes: der}); err != nil {
		return err
	}
	return f.Sync()
}

// maxFile bounds a file of keys and certificates.
const maxFile = 1 << 20

// blocks are the PEM blocks of a file.
func blocks(name string) (list []*pem.Block, err error) {
	b, err := smallfile.Read(name, maxFile)
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			return list, nil
		}
		list = append(list, block)
	}
}

// readKey is the first private key of a file, which may have certificates too.
func readKey(name string) (crypto.Signer, error) {
	list, err := blocks(name)
	if err != nil {
		return nil, err
	}
	for _, block := range list {
		var key any
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("private key in %s: %w", name, err)
		}
		if s, ok := key.(crypto.Signer); ok && algorithmOf(s) != "" {
			return s, nil
		}
		return nil, fmt.Errorf("private key in %s: expected the algorithm rsa or ecdsa", name)
	}
	return nil, fmt.Errorf("no private key found in %s", name)
}

// algorithmOf is the name of a key's algorithm; "" for others than the two.
func algorithmOf(key crypto.Signer) string {
	switch key.(type) {
	case *rsa.PrivateKey:
		return rsaName
	case *ecdsa.PrivateKey:
		return ecdsaName
	}
	return ""
}

// readCertificate is the first certificate of a file: the server's own.
func readCertificate(name string) (*x509.Certificate, error) {
	list, err := blocks(name)
	if err != nil {
		return nil, err
	}
	for _, block := range list {
		if block.Type == "CERTIFICATE" {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("certificate in %s: %w", name, err)
			}
			return cert, nil
		}
	}
	return nil, fmt.Errorf("no certificate found in %s", name)
}

// publicDigest is what a TLSA record 3 1 1 has (RFC 6698, section 2.1).
func publicDigest(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	return sum[:], nil
}

// writeRequest writes a certificate signing request (RFC 2986) for the names.
func writeRequest(w io.Writer, key crypto.Signer, names []string) error {
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: names[0]}, DNSNames: names}, key)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := pem.Encode(&b, &pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}); err != nil {
		return err
	}
	_, err = b.WriteTo(w)
	return err
}
