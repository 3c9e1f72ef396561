package main

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
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/emersion/go-msgauth/dkim"
)

// A signingKey is one of DKIM's, in each form in which it is needed.
type signingKey struct {
	algorithm string // as signatures name it
	record    string // what DNS would have of it
	text      []byte // as files have it
	signer    crypto.Signer
}

// rsaKey makes a key of 2,048 bits.
func rsaKey() (signingKey, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return signingKey{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return signingKey{}, err
	}
	return newKey("rsa-sha256", "rsa", public, key)
}

func ed25519Key() (signingKey, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return signingKey{}, err
	}
	return newKey("ed25519-sha256", "ed25519", public, key)
}

func newKey(algorithm, kind string, public []byte, private crypto.Signer) (signingKey, error) {
	der, err := x509.MarshalPKCS8PrivateKey(private)
	return signingKey{algorithm, "v=DKIM1; k=" + kind + "; p=" + base64.StdEncoding.EncodeToString(public),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), private}, err
}

// signed is mail that is signed on its way: by Posthaste itself, and for Postfix by OpenDKIM as a mail filter.
func signed(name string, generate func() (signingKey, error)) *contest {
	c := &contest{workload: like("relay", name), needs: []need{{"OpenDKIM, the package opendkim", installed("opendkim")}}}
	c.messages = 3000
	c.inquiry.mark = "DKIM-Signature:"
	keys := map[*entrant]signingKey{}
	c.equip = func(e *entrant) (string, error) {
		key, err := generate()
		if err != nil {
			return "", err
		}
		keys[e] = key
		return e.sign(key)
	}
	c.check = func(e *entrant, t tally) error {
		if t.marked != t.messages {
			return fmt.Errorf("%d of %d messages are signed", t.marked, t.messages)
		}
		return keys[e].verify(t.text)
	}
	return c
}

// sign has the mail system sign by a key, and returns the lines of main.cf for that.
func (e *entrant) sign(key signingKey) (string, error) {
	path := filepath.Join(e.dir, "etc", "dkim.pem")
	if err := os.WriteFile(path, key.text, 0o600); err != nil {
		return "", err
	}
	if !e.postfix { // the mail system's user reads it
		info, err := os.Stat(filepath.Join(e.dir, "data"))
		if err != nil {
			return "", err
		}
		return "dkim_sign_maps = inline:{ {from.test = s1:" + path + "} }\n", os.Chown(path, int(info.Sys().(*syscall.Stat_t).Uid), -1)
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	conf := filepath.Join(e.dir, "etc", "opendkim.conf")
	text := fmt.Sprintf("Domain from.test\nSelector s1\nKeyFile %s\nSocket inet:%d@127.0.0.1\nMode s\nSignatureAlgorithm %s\n"+
		"Canonicalization relaxed/relaxed\nInternalHosts 127.0.0.1\nRequireSafeKeys no\nBackground no\n", path, port, key.algorithm)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return "", err
	}
	h, err := e.help("opendkim", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), nil, programPath("opendkim"), "-f", "-x", conf)
	if err != nil {
		return "", err
	}
	return filterLines(h.addr), nil
}

// filterLines are those of main.cf for a mail filter at an address.
func filterLines(addr string) string {
	return "smtpd_milters = inet:" + addr + "\nmilter_default_action = tempfail\n"
}

// verify says what is wrong with the signature of a message.
func (k signingKey) verify(text []byte) error {
	if !bytes.Contains(text, []byte("a="+k.algorithm+";")) {
		return errors.New("the signature is not by " + k.algorithm)
	}
	look := func(name string) ([]string, error) {
		if name != "s1._domainkey.from.test" {
			return nil, errors.New("the record of " + name + " is asked for")
		}
		return []string{k.record}, nil
	}
	list, err := dkim.VerifyWithOptions(bytes.NewReader(text), &dkim.VerifyOptions{LookupTXT: look})
	if err != nil {
		return err
	}
	var bad []string
	for _, v := range list {
		if v.Err != nil {
			bad = append(bad, v.Err.Error())
		}
	}
	if len(bad) > 0 || len(list) != 1 {
		return fmt.Errorf("%d signatures: %s", len(list), strings.Join(bad, "; "))
	}
	return nil
}
