package sasl

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/table"
)

// Iterations is how often a new secret is hashed: about 20 ms of work for who
// verifies a password, and for who tries one.
const Iterations = 60000

const (
	minIterations = 4096 // RFC 7677 section 4
	maxIterations = 10_000_000
	saltLen       = 16
	maxPassword   = 1024
)

// A Secret is what is kept of a password, RFC 5802 section 3.
type Secret struct {
	Iterations           int
	Salt                 []byte
	StoredKey, ServerKey []byte
}

// NewSecret makes the secret of a password, with fresh salt.
func NewSecret(password string) (Secret, error) {
	if password == "" || len(password) > maxPassword {
		return Secret{}, fmt.Errorf("a password has 1 to %d octets", maxPassword)
	}
	salt := make([]byte, saltLen)
	rand.Read(salt)
	password, ok := prepare(password)
	if !ok {
		return Secret{}, errors.New("a password is a line of text in UTF-8, without control characters (RFC 4013)")
	}
	return derive(password, salt, Iterations)
}

func derive(password string, salt []byte, iterations int) (Secret, error) {
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return Secret{}, err
	}
	client := mac(salted, "Client Key")
	stored := sha256.Sum256(client)
	return Secret{iterations, salt, stored[:], mac(salted, "Server Key")}, nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// String is the secret as it stands in a table, RFC 5803 section 2:
// SCRAM-SHA-256$iterations:salt$storedkey:serverkey.
func (s Secret) String() string {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", s.Iterations, b64(s.Salt), b64(s.StoredKey), b64(s.ServerKey))
}

// ParseSecret reads what String prints.
func ParseSecret(text string) (Secret, error) {
	bad := errors.New("expected SCRAM-SHA-256$iterations:salt$storedkey:serverkey, as posthaste passwd prints it")
	parts := strings.Split(strings.TrimSpace(text), "$")
	if len(parts) != 3 || parts[0] != "SCRAM-SHA-256" {
		return Secret{}, bad
	}
	count, salt, ok1 := strings.Cut(parts[1], ":")
	stored, server, ok2 := strings.Cut(parts[2], ":")
	n, err := strconv.Atoi(count)
	if !ok1 || !ok2 || err != nil || n < minIterations || n > maxIterations {
		return Secret{}, bad
	}
	s := Secret{Iterations: n}
	for _, f := range []struct {
		text string
		to   *[]byte
		size int
	}{{salt, &s.Salt, 0}, {stored, &s.StoredKey, sha256.Size}, {server, &s.ServerKey, sha256.Size}} {
		b, err := base64.StdEncoding.DecodeString(f.text)
		if err != nil || len(b) == 0 || f.size > 0 && len(b) != f.size {
			return Secret{}, bad
		}
		*f.to = b
	}
	return s, nil
}

// Matches says whether password is the one that the secret was made of. One that
// RFC 4013 has another form for is tried as it is too: not everybody who makes
// secrets knows of it.
func (s Secret) Matches(password string) bool {
	if len(password) > maxPassword {
		return false
	}
	try := func(password string) bool {
		d, err := derive(password, s.Salt, s.Iterations)
		return err == nil && subtle.ConstantTimeCompare(d.StoredKey, s.StoredKey) == 1
	}
	prepared, ok := prepare(password)
	return ok && try(prepared) || prepared != password && try(password)
}

// Users is a Backend over tables of users: the key is the name, the value a
// Secret.
type Users struct {
	maps   *table.Maps
	realm  string        // added to names without one when they are not found as they are
	decoys *decoys       // what unknown users are compared with
	tokens TokenVerifier // nil: none are taken
	gate   gate
}

// hashTimeout bounds how long a password waits for its turn.
const hashTimeout = 10 * time.Second

// NewUsers returns a Backend over the tables, which may be none when there are
// tokens. Who shows a good token need not be in a table. decoyKey is what
// DecoyKey gives; nil makes up users that last as long as the process.
func NewUsers(maps *table.Maps, realm string, tokens TokenVerifier, decoyKey []byte) *Users {
	return &Users{maps: maps, realm: realm, decoys: newDecoys(decoyKey), tokens: tokens, gate: newGate()}
}

// Close implements Backend.
func (u *Users) Close() { u.maps.Close() }

// Mechanisms implements Backend.
func (u *Users) Mechanisms(_ context.Context, c Client) ([]Mechanism, error) {
	var list []Mechanism
	if !u.maps.Empty() {
		list = []Mechanism{{"PLAIN", Plaintext | Dictionary | Active}, {"LOGIN", Plaintext | Dictionary | Active},
			{"SCRAM-SHA-256", Dictionary | MutualAuth}}
		if c.canBind() {
			list = append(list, Mechanism{"SCRAM-SHA-256-PLUS", Dictionary | MutualAuth})
		}
	}
	if u.tokens != nil && c.TLS != nil {
		list = append(list, Mechanism{"OAUTHBEARER", Plaintext | Active}, Mechanism{"XOAUTH2", Plaintext | Active})
	}
	return list, nil
}

// Start implements Backend.
func (u *Users) Start(ctx context.Context, mechanism string, c Client) (Exchange, error) {
	list, err := u.Mechanisms(ctx, c)
	if err != nil || !slices.ContainsFunc(list, func(m Mechanism) bool { return m.Name == mechanism }) {
		return nil, cmp.Or(err, ErrMechanism)
	}
	switch mechanism {
	case "PLAIN":
		return &plain{users: u}, nil
	case "LOGIN":
		return &login{users: u}, nil
	case "OAUTHBEARER", "XOAUTH2":
		return &bearer{tokens: u.tokens, old: mechanism == "XOAUTH2"}, nil
	}
	return &scram{users: u, client: c, plus: mechanism == "SCRAM-SHA-256-PLUS"}, nil
}

// secret finds a user's secret; ok is false for an unknown user, who gets a made-up one. Known
// and unknown users cost the same number of lookups.
func (u *Users) secret(ctx context.Context, user string) (s Secret, ok bool, err error) {
	full := user
	value, found, err := u.maps.Lookup(ctx, user, false)
	if err == nil && u.realm != "" && !strings.Contains(user, "@") {
		full = user + "@" + u.realm
		other, also, e := u.maps.Lookup(ctx, full, false)
		if err = e; !found {
			value, found = other, also
		}
	}
	decoy := u.decoys.secret(full)
	if err != nil || !found {
		return decoy, false, err
	}
	if s, err = ParseSecret(value); err != nil {
		return s, false, fmt.Errorf("user %s: %w", user, err)
	}
	u.decoys.learn(&s)
	return s, true, nil
}

// check verifies a password. user has been prepared.
func (u *Users) check(ctx context.Context, user, password string) error {
	s, known, err := u.secret(ctx, user)
	if err != nil {
		return err
	}
	matches, err := u.gate.hash(ctx, func() bool { return s.Matches(password) })
	if err == nil && (!matches || !known) {
		err = errCredentials
	}
	return err
}

// sameUser says whether a name is that of a user, who has been prepared.
func sameUser(name, user string) bool {
	name, ok := prepare(name)
	return ok && name == user
}

// passwords says whether a password is that of a user, whose name has been prepared. A *Failure
// says that it is not.
type passwords interface {
	check(ctx context.Context, user, password string) error
}

// plain is PLAIN, RFC 4616.
type plain struct {
	users passwords
	user  string
}

func (p *plain) Username() string { return p.user }
func (p *plain) Close()           {}

func (p *plain) Next(ctx context.Context, response []byte) ([]byte, bool, error) {
	if response == nil {
		return []byte{}, false, nil
	}
	parts := bytes.Split(response, []byte{0})
	if len(parts) != 3 || len(parts[1]) == 0 || len(parts[2]) == 0 {
		return nil, false, ErrMalformed
	}
	var ok bool
	if p.user, ok = prepare(string(parts[1])); !ok {
		return nil, false, errCredentials
	}
	if authz := string(parts[0]); authz != "" && !sameUser(authz, p.user) {
		return nil, false, &Failure{"not authorized to act as another user"}
	}
	if err := p.users.check(ctx, p.user, string(parts[2])); err != nil {
		return nil, false, err
	}
	return nil, true, nil
}

// login is LOGIN, which never became a standard: name and password are asked
// for one after the other.
type login struct {
	users passwords
	user  string
	asked int
}

func (l *login) Username() string { return l.user }
func (l *login) Close()           {}

func (l *login) Next(ctx context.Context, response []byte) ([]byte, bool, error) {
	if response != nil && l.asked == 0 { // some clients send the name along
		l.asked = 1
	}
	l.asked++
	switch l.asked {
	case 1:
		return []byte("Username:"), false, nil
	case 2:
		if len(response) == 0 {
			return nil, false, ErrMalformed
		}
		var ok bool
		if l.user, ok = prepare(string(response)); !ok {
			return nil, false, errCredentials
		}
		return []byte("Password:"), false, nil
	}
	if err := l.users.check(ctx, l.user, string(response)); err != nil {
		return nil, false, err
	}
	return nil, true, nil
}
