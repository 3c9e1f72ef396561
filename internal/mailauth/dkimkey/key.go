// Package dkimkey reads and makes the keys that mail is signed with (DKIM,
// RFC 6376), RSA and Ed25519 (RFC 8463), and is the command posthaste dkim.
//
// # Security
//
// Whoever has a key signs in the name of the domain. Keys are written with mode
// 0600; one that others than owner and group can read, or that anybody may
// write to, is refused.
package dkimkey

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
)

// MinBits is the shortest RSA key that mail is signed with, RFC 8301 section
// 3.2; verifiers need not accept shorter ones.
const MinBits = 1024

// maxFile bounds what is read of a key file.
const maxFile = 64 << 10

// Read reads a private key in PEM form, PKCS #8 or PKCS #1.
func Read(path string) (crypto.Signer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("DKIM key: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("DKIM key: %w", err)
	}
	if mode := fi.Mode(); mode&0o027 != 0 {
		return nil, fmt.Errorf("DKIM key %s: mode %04o lets others read or change it; expected 0640 or 0600", path, mode.Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("DKIM key: %w", err)
	}
	key, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("DKIM key %s: %w", path, err)
	}
	return key, nil
}

// Parse is Read for the text of a key file.
func Parse(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(bytes.TrimSpace(text))
	if block == nil {
		return nil, errors.New("no private key in PEM form")
	}
	var key any
	var err error
	switch block.Type {
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("a PEM block %q, expected PRIVATE KEY or RSA PRIVATE KEY", block.Type)
	}
	if err != nil {
		return nil, err
	}
	switch k := key.(type) {
	case *rsa.PrivateKey:
		if bits := k.N.BitLen(); bits < MinBits {
			return nil, fmt.Errorf("an RSA key of %d bits, expected at least %d (RFC 8301 section 3.2)", bits, MinBits)
		}
		return k, nil
	case ed25519.PrivateKey:
		return k, nil
	}
	return nil, fmt.Errorf("a key of type %T, expected RSA or Ed25519", key)
}

// Make makes a key of a kind, rsa or ed25519, and the text of its file. bits is the size of an RSA
// key.
func Make(kind string, bits int) (key crypto.Signer, text []byte, err error) {
	if kind == "rsa" {
		key, err = rsa.GenerateKey(rand.Reader, bits)
	} else {
		_, key, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// Record is the text of the TXT record that publishes a key, RFC 6376 section
// 3.6.1.
func Record(key crypto.Signer) (string, error) {
	switch pub := key.Public().(type) {
	case *rsa.PublicKey:
		der, err := x509.MarshalPKIXPublicKey(pub)
		if err != nil {
			return "", err
		}
		return "v=DKIM1; k=rsa; p=" + base64.StdEncoding.EncodeToString(der), nil
	case ed25519.PublicKey:
		return "v=DKIM1; k=ed25519; p=" + base64.StdEncoding.EncodeToString(pub), nil
	}
	return "", fmt.Errorf("a key of type %T, expected RSA or Ed25519", key.Public())
}
