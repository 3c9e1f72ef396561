// Passwords that servers have refused (smtp_sasl_auth_cache_name).

package smtp

import (
	"crypto/sha256"
	"sync"
	"time"

	"posthaste/internal/dsn"
)

// refusals remembers passwords that servers have refused (535), so that they
// are not tried again and again, which locks accounts. They are kept in memory
// for smtp_sasl_auth_cache_time: a service that is restarted tries once more.
// Passwords themselves are not kept. The nil refusals remembers nothing.
type refusals struct {
	life time.Duration // smtp_sasl_auth_cache_time

	mu    sync.Mutex // guards known
	known map[refusalKey]refusal
}

// refusalKey is the digest of server, user and password: a password that has
// been changed is tried.
type refusalKey [sha256.Size]byte

// refusal is what a server said to a password, and until when that counts.
type refusal struct {
	status dsn.Status
	text   string
	until  time.Time
}

// maxRefusals bounds what is remembered.
const maxRefusals = 10000

// newRefusals makes one that remembers nothing yet.
func newRefusals(life time.Duration) *refusals {
	return &refusals{life: life, known: make(map[refusalKey]refusal)}
}

// keyOfRefusal is the key of a login. The octet between the parts can be in none of
// them.
func keyOfRefusal(host, user, pass string) refusalKey {
	return sha256.Sum256([]byte(host + "\x00" + user + "\x00" + pass))
}

// find gives the reply that a server gave to these words, while it counts. ok is
// false when the login is to be tried.
func (r *refusals) find(host, user, pass string, now time.Time) (refusal, bool) {
	if r == nil {
		return refusal{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := keyOfRefusal(host, user, pass)
	e, ok := r.known[k]
	if ok && !now.Before(e.until) {
		delete(r.known, k)
		return refusal{}, false
	}
	return e, ok
}

// add remembers a refusal, for life from now on.
func (r *refusals) add(host, user, pass string, status dsn.Status, text string, now time.Time) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxRefusals {
		for k := range r.known { // any will do: it costs one more attempt
			delete(r.known, k)
			break
		}
	}
	r.known[keyOfRefusal(host, user, pass)] = refusal{status, text, now.Add(r.life)}
}
