package sasl

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"

	"posthaste/internal/statedir"
)

// decoyFile has the key from which the salts of unknown users are made. A known user's salt
// does not change, and neither must theirs.
const decoyFile = "sasl_decoy"

const decoyKeyLen = 32

// DecoyKey returns the key of made-up salts that is kept in a directory. The first call makes it.
func DecoyKey(dir string) ([]byte, error) {
	root, err := statedir.Open(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	key, err := root.ReadFile(decoyFile)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDecoyKey(root); err == nil {
			key, err = root.ReadFile(decoyFile)
		}
	}
	if err == nil && len(key) != decoyKeyLen {
		err = fmt.Errorf("%s has %d octets, expected %d: remove it", filepath.Join(dir, decoyFile), len(key), decoyKeyLen)
	}
	return key, err
}

// makeDecoyKey makes the file, whole, unless another process has just done so.
func makeDecoyKey(root *statedir.Dir) error {
	key := make([]byte, decoyKeyLen)
	rand.Read(key)
	name := decoyFile + "." + rand.Text()
	err := root.WriteFile(name, key, 0o600)
	if err == nil {
		if err = root.Link(name, decoyFile); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	return errors.Join(err, root.Remove(name))
}

// decoys makes up the secrets of unknown users. They have the form
// of the others', as far as these have been seen.
type decoys struct {
	key  []byte
	keys [2]string // stored and server key, to which no password leads

	mu         sync.Mutex
	iterations int
	saltLen    int
}

func newDecoys(key []byte) *decoys {
	if key == nil {
		key = make([]byte, decoyKeyLen)
		rand.Read(key)
	}
	d := &decoys{key: key, iterations: Iterations, saltLen: saltLen}
	for i := range d.keys {
		random := make([]byte, sha256.Size)
		rand.Read(random)
		d.keys[i] = string(random)
	}
	return d
}

// learn takes note of what a real secret is like.
func (d *decoys) learn(s *Secret) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.iterations, d.saltLen = s.Iterations, len(s.Salt)
}

// secret is a user's, always the same but for what has been learned. Tables
// do not tell capitals, nor do they need to: neither does this.
func (d *decoys) secret(user string) Secret {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := hmac.New(sha512.New, d.key)
	h.Write([]byte(strings.ToLower(user)))
	salt := h.Sum(nil)
	return Secret{d.iterations, salt[:min(d.saltLen, len(salt))], []byte(d.keys[0]), []byte(d.keys[1])}
}
