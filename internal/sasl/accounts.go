package sasl

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"posthaste/internal/table"
)

// A gate lets so many passwords be hashed at a time as leave half of the processors for other
// things, whatever strangers try.
type gate chan struct{}

func newGate() gate { return make(gate, max(1, runtime.NumCPU()/2)) }

// hash runs f when it is its turn, for which it waits hashTimeout at most.
func (g gate) hash(ctx context.Context, f func() bool) (matches bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, hashTimeout)
	defer cancel()
	select {
	case g <- struct{}{}:
	case <-ctx.Done():
		return false, fmt.Errorf("too many passwords to verify at once: %w", ctx.Err())
	}
	defer func() { <-g }()
	return f(), nil
}

// Accounts is a Backend over tables of accounts: the key is the name, the value an Account.
type Accounts struct {
	maps     *table.Maps
	realm    string // added to names without one when they are not found as they are
	tokens   TokenVerifier
	gate     gate
	failures *failures
	now      func() time.Time
	// decoy is what the passwords of unknown users are compared with: a hash of the cost of the
	// one that was used last, to which no password leads.
	decoy atomic.Pointer[verifier]
}

// AccountOptions are the settings of a Backend of accounts.
type AccountOptions struct {
	Maps   *table.Maps // may be none when there are tokens
	Realm  string
	Tokens TokenVerifier // nil: none are taken
	// Failures is how many failed logins an account may have from one client in a time of
	// FailureTime; 0: any number. See failures for the others.
	Failures    int
	FailureTime time.Duration
	Now         func() time.Time
}

// NewAccounts returns a Backend over tables of accounts.
func NewAccounts(o AccountOptions) *Accounts {
	a := &Accounts{maps: o.Maps, realm: o.Realm, tokens: o.Tokens, gate: newGate(), failures: newFailures(o.Failures, o.FailureTime), now: o.Now}
	salt, key := make([]byte, saltLen), make([]byte, 32)
	rand.Read(salt)
	rand.Read(key)
	var v verifier = argonHash{argonMemory, argonTime, 1, salt, key}
	a.decoy.Store(&v)
	return a
}

// Close implements Backend.
func (a *Accounts) Close() { a.maps.Close() }

// Mechanisms implements Backend.
func (a *Accounts) Mechanisms(_ context.Context, c Client) ([]Mechanism, error) {
	var list []Mechanism
	if !a.maps.Empty() {
		list = []Mechanism{{"PLAIN", Plaintext | Dictionary | Active}, {"LOGIN", Plaintext | Dictionary | Active}}
	}
	if a.tokens != nil && c.TLS != nil {
		list = append(list, Mechanism{"OAUTHBEARER", Plaintext | Active}, Mechanism{"XOAUTH2", Plaintext | Active})
	}
	return list, nil
}

// Start implements Backend.
func (a *Accounts) Start(ctx context.Context, mechanism string, c Client) (Exchange, error) {
	list, err := a.Mechanisms(ctx, c)
	if err != nil || !slices.ContainsFunc(list, func(m Mechanism) bool { return m.Name == mechanism }) {
		return nil, cmp.Or(err, ErrMechanism)
	}
	p := accountsOf{a, c.RemoteAddr, c.Shared}
	switch mechanism {
	case "PLAIN":
		return &plain{users: p}, nil
	case "LOGIN":
		return &login{users: p}, nil
	}
	return &bearer{tokens: a.tokens, old: mechanism == "XOAUTH2", permits: p.permits}, nil
}

// accountsOf are the accounts as one client may try them.
type accountsOf struct {
	*Accounts
	client string // its address
	shared bool   // by many users
}

// check verifies a password. user has been prepared. What a failure costs does not depend on
// whether there is such a user, as far as the accounts of the table are alike.
func (a accountsOf) check(ctx context.Context, user, password string) error {
	if len(password) > maxPassword {
		return errCredentials
	}
	account, hashes, err := a.find(ctx, user)
	if err != nil {
		return err
	}
	now := a.now()
	key := table.Fold(a.full(user))
	attempt, ok := a.failures.begin(key, networkOf(a.client), a.shared, now)
	if !ok {
		return fmt.Errorf("too many failed logins of %s, or from %s: no more are accepted for some time", user, a.client)
	}
	if account == nil || len(hashes) == 0 {
		hashes = []verifier{*a.decoy.Load()}
	}
	matches, err := a.gate.hash(ctx, func() bool { return anyMatches(hashes, password) })
	switch {
	case err != nil:
		attempt.withdraw(now)
		return err
	case !matches || account == nil:
		return errCredentials
	}
	attempt.succeed(now)
	if account.Disabled {
		return &Failure{"the account is disabled"}
	}
	return nil
}

// anyMatches compares the cheap hashes first: they are those of programs, which log in often.
func anyMatches(hashes []verifier, password string) bool {
	forms := []string{password}
	if prepared, ok := prepare(password); ok && prepared != password {
		forms = append(forms, prepared)
	}
	for _, cheap := range []bool{true, false} {
		for _, h := range hashes {
			if h.cheap() == cheap && slices.ContainsFunc(forms, h.matches) {
				return true
			}
		}
	}
	return false
}

// full is a user's name with the realm.
func (a *Accounts) full(user string) string {
	if a.realm == "" || strings.Contains(user, "@") {
		return user
	}
	return user + "@" + a.realm
}

// find looks an account up; it is nil for an unknown user. Known and unknown users cost the same
// number of lookups.
func (a *Accounts) find(ctx context.Context, user string) (*Account, []verifier, error) {
	value, found, err := a.maps.Lookup(ctx, user, false)
	if full := a.full(user); err == nil && full != user {
		other, also, e := a.maps.Lookup(ctx, full, false)
		if err = e; !found {
			value, found = other, also
		}
	}
	if err != nil || !found {
		return nil, nil, err
	}
	account, hashes, err := parseAccount(value)
	if err != nil {
		return nil, nil, fmt.Errorf("account %s: %w", user, err)
	}
	if len(hashes) > 0 && account.Password != "" {
		a.decoy.Store(a.decoyLike(hashes[0]))
	}
	return account, hashes, nil
}

// decoyLike is a decoy that costs as much as a user's hash: one with an outcome drawn by lot.
func (a *Accounts) decoyLike(v verifier) *verifier {
	key := make([]byte, 128) // more than any hash has
	rand.Read(key)
	var d verifier
	switch h := v.(type) {
	case argonHash:
		d = argonHash{h.memory, h.time, h.threads, h.salt, key[:len(h.hash)]}
	case shaCrypt:
		d = shaCrypt{h.of, h.rounds, h.salt, key[:len(h.hash)]}
	case scramHash:
		d = scramHash{Secret{h.s.Iterations, h.s.Salt, key[:len(h.s.StoredKey)], nil}}
	default: // a bcrypt hash of the same cost and salt, with another outcome
		d = bcryptDecoy(v.(bcryptHash), key)
	}
	return &d
}

// bcryptDecoy is a hash with the last characters of its outcome drawn by lot.
func bcryptDecoy(h bcryptHash, chance []byte) bcryptHash {
	const alphabet = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	text := []byte(h)
	for i, c := range chance[:24] {
		text[len(text)-2-i] = alphabet[c%64]
	}
	return bcryptHash(text)
}

// permits says whether a user whom a token has named may come in: one who has an account may not
// be disabled.
func (a accountsOf) permits(ctx context.Context, user string) error {
	account, _, err := a.find(ctx, user)
	if err == nil && account != nil && account.Disabled {
		return &Failure{"the account is disabled"}
	}
	return err
}

// networkOf is the network that a client counts as: an IPv4 address, or the /64 of an IPv6
// address, since a client with IPv6 has a whole network of them.
func networkOf(client string) string {
	addr, err := netip.ParseAddr(client)
	if err != nil {
		return client
	}
	bits := 64
	if addr = addr.Unmap().WithZone(""); addr.Is4() {
		bits = 32
	}
	p, _ := addr.Prefix(bits) // fits
	return p.String()
}
