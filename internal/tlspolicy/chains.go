package tlspolicy

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
)

// ReadChains reads files of keys and chains. They are one: a key may be in one
// file, and its chain in the next. No files have no chains.
func ReadChains(files []string) ([]*tls.Certificate, error) {
	if len(files) == 0 {
		return nil, nil
	}
	var text []byte
	for _, f := range files {
		t, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		text = append(append(text, t...), '\n')
	}
	certs, err := ParseChains(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(files, ", "), err)
	}
	return certs, nil
}

// ParseChains reads keys in PEM form, each followed by the chain of its
// certificate.
func ParseChains(text []byte) ([]*tls.Certificate, error) {
	var out []*tls.Certificate
	var key, chain []byte
	finish := func() error {
		if key == nil {
			return nil
		}
		c, err := tls.X509KeyPair(chain, key)
		if err != nil {
			return err
		}
		out = append(out, &c)
		key, chain = nil, nil
		return nil
	}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		switch {
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			if err := finish(); err != nil {
				return nil, err
			}
			key = pem.EncodeToMemory(block)
		case block.Type == "CERTIFICATE":
			if key == nil {
				return nil, errors.New("a certificate comes before its key")
			}
			chain = append(chain, pem.EncodeToMemory(block)...)
		}
	}
	if err := finish(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("no key and certificate")
	}
	return out, nil
}

// ReadPair reads a certificate with its chain, and its key, from two files, which may be one.
func ReadPair(cert, key string) (tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(cert, key)
	if err == nil {
		return c, nil
	}
	if text, readErr := os.ReadFile(key); readErr == nil && encrypted().Match(text) {
		err = errors.New("the key is encrypted, and a service cannot ask for its passphrase: decrypt it with \"openssl pkey\", into a file for its owner alone")
	}
	return c, fmt.Errorf("certificate %s with key %s: %w", cert, key, err)
}

// encrypted finds a private key under a passphrase, in PKCS #8 or as OpenSSL had it before.
var encrypted = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: 4,ENCRYPTED)\r?$`)
})
