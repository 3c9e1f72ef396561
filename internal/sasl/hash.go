package sasl

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"

	shacrypt "github.com/go-crypt/x/crypt"
	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"
)

// Schemes are the schemes that [NewHash] knows, the preferred one first.
var schemes = []string{"argon2id", "bcrypt", "sha512-crypt"}

// Schemes returns the names of the schemes of new password hashes, the preferred one first.
func Schemes() []string { return append([]string(nil), schemes...) }

// What a new hash costs who verifies a password, some 20 to 60 ms; and what a hash from elsewhere
// may cost at most. The bounds keep a mistake in a table from taking the machine.
const (
	argonMemory, maxArgonMemory = 19 << 10, 128 << 10 // KiB
	argonTime, maxArgonTime     = 2, 16
	maxArgonThreads             = 16
	bcryptCost, maxBcryptCost   = 10, 14
	shaRounds, maxShaRounds     = 100_000, 1_000_000
	minHashLen, maxHashLen      = 16, 64 // octets of an argon2id hash
)

// bcryptMost is how many octets of a password bcrypt looks at.
const bcryptMost = 72

// A verifier says whether a password, as it is, is the one that it was made of.
type verifier interface {
	matches(password string) bool
	// cheap says that verifying costs nearly nothing: it protects only what nobody can guess.
	cheap() bool
}

// NewHash makes the hash of a password, with fresh salt, in a scheme of [Schemes]. The text is as
// Dovecot and the crypt(3) of many systems read it, and has no white space.
func NewHash(scheme, password string) (string, error) {
	if password == "" || len(password) > maxPassword {
		return "", fmt.Errorf("a password has 1 to %d octets", maxPassword)
	}
	password, ok := prepare(password)
	if !ok {
		return "", errors.New("a password is a line of text in UTF-8, without control characters (RFC 4013)")
	}
	salt := make([]byte, saltLen)
	rand.Read(salt)
	switch scheme {
	case "argon2id":
		b64 := base64.RawStdEncoding.EncodeToString
		return fmt.Sprintf("{ARGON2ID}$argon2id$v=%d$m=%d,t=%d,p=1$%s$%s", argon2.Version, argonMemory, argonTime, b64(salt),
			b64(argon2.IDKey([]byte(password), salt, argonTime, argonMemory, 1, 32))), nil
	case "bcrypt":
		if len(password) > bcryptMost {
			return "", fmt.Errorf("bcrypt looks at %d octets of a password, and this one is longer", bcryptMost)
		}
		h, err := bcrypt.GenerateFromPassword([]byte(password), bcryptCost)
		return "{BLF-CRYPT}" + string(h), err
	case "sha512-crypt":
		salted := []byte(base64.RawURLEncoding.EncodeToString(salt)[:16])
		for i, c := range salted { // of the alphabet of crypt(3)
			if c == '-' || c == '_' {
				salted[i] = '.'
			}
		}
		return fmt.Sprintf("{SHA512-CRYPT}$6$rounds=%d$%s$%s", shaRounds, salted, shacrypt.KeySHACrypt(sha512.New, []byte(password), salted, shaRounds)), nil
	}
	return "", fmt.Errorf("%q: expected one of %s", scheme, strings.Join(schemes, ", "))
}

// newTokenHash makes the hash of a password that has been drawn by lot, which needs no slow one.
func newTokenHash(password string) string {
	salt := make([]byte, 8)
	rand.Read(salt)
	sum := sha256.Sum256(append([]byte(password), salt...))
	return "{SSHA256}" + base64.StdEncoding.EncodeToString(append(sum[:], salt...))
}

// errHash says what a hash looks like.
var errHash = errors.New("expected a password hash: argon2id, bcrypt, sha256-crypt, sha512-crypt, or SCRAM-SHA-256 as posthaste passwd prints it")

// parseHash reads a hash, with Dovecot's {SCHEME} in front or without.
func parseHash(text string) (verifier, error) {
	scheme, bare := "", text
	if rest, ok := strings.CutPrefix(text, "{"); ok {
		if scheme, bare, ok = strings.Cut(rest, "}"); !ok {
			return nil, errHash
		}
	}
	v, is, err := hashOf(strings.ToUpper(scheme), bare)
	if err != nil {
		return nil, err
	}
	if scheme != "" && !strings.EqualFold(scheme, is) && !(strings.EqualFold(scheme, "CRYPT") && strings.HasPrefix(bare, "$")) {
		return nil, fmt.Errorf("{%.20s}: the hash is one of %s", scheme, is)
	}
	return v, nil
}

// hashOf reads a hash without its scheme's name, and says what the name is.
func hashOf(scheme, text string) (v verifier, is string, err error) {
	switch {
	case strings.HasPrefix(text, "$argon2id$"):
		v, err = parseArgon(text)
		return v, "ARGON2ID", err
	case strings.HasPrefix(text, "$2a$"), strings.HasPrefix(text, "$2b$"), strings.HasPrefix(text, "$2y$"):
		cost, err := bcrypt.Cost([]byte(text))
		if err == nil && cost > maxBcryptCost {
			err = fmt.Errorf("bcrypt: its cost is %d, and %d is the most", cost, maxBcryptCost)
		}
		return bcryptHash(text), "BLF-CRYPT", err
	case strings.HasPrefix(text, "$5$"):
		v, err = parseSHACrypt(text, sha256.New, 43)
		return v, "SHA256-CRYPT", err
	case strings.HasPrefix(text, "$6$"):
		v, err = parseSHACrypt(text, sha512.New, 86)
		return v, "SHA512-CRYPT", err
	case strings.HasPrefix(text, "SCRAM-SHA-256$"):
		s, err := ParseSecret(text)
		return scramHash{s}, "SCRAM-SHA-256", err
	case scheme == "SSHA256":
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(b) < sha256.Size+4 || len(b) > sha256.Size+64 {
			return nil, "", errHash
		}
		return tokenHash{b[:sha256.Size], b[sha256.Size:]}, scheme, nil
	}
	return nil, "", errHash
}

// argonHash is argon2id, RFC 9106.
type argonHash struct {
	memory, time uint32
	threads      uint8
	salt, hash   []byte
}

// parseArgon reads $argon2id$v=19$m=19456,t=2,p=1$salt$hash.
func parseArgon(text string) (verifier, error) {
	parts := strings.Split(text, "$")
	if len(parts) != 6 || parts[2] != "v="+strconv.Itoa(argon2.Version) {
		return nil, errors.New("argon2id: expected $argon2id$v=19$m=...,t=...,p=...$salt$hash")
	}
	numbers := make([]uint64, 3)
	words := strings.Split(parts[3], ",")
	if len(words) != len(numbers) {
		return nil, errors.New("argon2id: expected m=, t= and p=")
	}
	for i, most := range []uint64{maxArgonMemory, maxArgonTime, maxArgonThreads} {
		name := []string{"m=", "t=", "p="}[i]
		value, ok := strings.CutPrefix(words[i], name)
		n, err := strconv.ParseUint(value, 10, 32)
		if !ok || err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("argon2id: %.20q: expected %s1 to %d", words[i], name, most)
		}
		numbers[i] = n
	}
	salt, err := base64.RawStdEncoding.DecodeString(parts[4])
	key, err2 := base64.RawStdEncoding.DecodeString(parts[5])
	if err != nil || err2 != nil || len(salt) < 8 || len(salt) > 64 || len(key) < minHashLen || len(key) > maxHashLen {
		return nil, errors.New("argon2id: malformed salt or hash")
	}
	return argonHash{uint32(numbers[0]), uint32(numbers[1]), uint8(numbers[2]), salt, key}, nil
}

func (h argonHash) matches(password string) bool {
	return subtle.ConstantTimeCompare(argon2.IDKey([]byte(password), h.salt, h.time, h.memory, h.threads, uint32(len(h.hash))), h.hash) == 1
}

func (argonHash) cheap() bool { return false }

// bcryptHash is bcrypt.
type bcryptHash string

func (h bcryptHash) matches(password string) bool {
	return bcrypt.CompareHashAndPassword([]byte(h), []byte(password)) == nil
}

func (bcryptHash) cheap() bool { return false }

// shaCrypt is SHA-crypt, as glibc and Dovecot have it.
type shaCrypt struct {
	of         func() hash.Hash
	rounds     int
	salt, hash []byte
}

// parseSHACrypt reads $6$rounds=5000$salt$hash; without rounds= there are 5000.
func parseSHACrypt(text string, of func() hash.Hash, size int) (verifier, error) {
	parts := strings.Split(text, "$")[2:]
	rounds := 5000
	if value, ok := strings.CutPrefix(parts[0], "rounds="); ok {
		n, err := strconv.Atoi(value)
		if err != nil || n < 1000 || n > maxShaRounds {
			return nil, fmt.Errorf("SHA-crypt: %.20q: expected rounds=1000 to %d", parts[0], maxShaRounds)
		}
		rounds, parts = n, parts[1:]
	}
	if len(parts) != 2 || len(parts[0]) > 16 || len(parts[1]) != size {
		return nil, errors.New("SHA-crypt: malformed salt or hash")
	}
	return shaCrypt{of, rounds, []byte(parts[0]), []byte(parts[1])}, nil
}

func (h shaCrypt) matches(password string) bool {
	return subtle.ConstantTimeCompare(shacrypt.KeySHACrypt(h.of, []byte(password), h.salt, h.rounds), h.hash) == 1
}

func (shaCrypt) cheap() bool { return false }

// scramHash is a secret of SCRAM, with which plain passwords can be verified too.
type scramHash struct{ s Secret }

func (h scramHash) matches(password string) bool {
	d, err := derive(password, h.s.Salt, h.s.Iterations)
	return err == nil && subtle.ConstantTimeCompare(d.StoredKey, h.s.StoredKey) == 1
}

func (scramHash) cheap() bool { return false }

// tokenHash is a salted SHA-256, for passwords that have been drawn by lot.
type tokenHash struct{ sum, salt []byte }

func (h tokenHash) matches(password string) bool {
	sum := sha256.Sum256(append([]byte(password), h.salt...))
	return subtle.ConstantTimeCompare(sum[:], h.sum) == 1
}

func (tokenHash) cheap() bool { return true }
