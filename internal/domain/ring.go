package domain

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A KeyState is how far a DKIM key has come in its life.
type KeyState string

const (
	Pending  KeyState = "pending"  // its record is to be published; nothing is signed with it
	Active   KeyState = "active"   // mail is signed with it
	Retiring KeyState = "retiring" // nothing is signed with it any more; its record must stay for mail that is under way
	Retired  KeyState = "retired"  // its record may be removed
)

// A RingKey is one DKIM key of a domain.
type RingKey struct {
	Selector string
	Kind     string // rsa or ed25519
	State    KeyState
	Since    time.Time // when it came into this state, to the second, in UTC
}

// A ring are the DKIM keys of a domain and their states, as they are kept in a file beside the keys.
type ring struct {
	domain string
	keys   []RingKey // in the order in which they were made
}

// maxRing bounds the file, and maxRingKeys the keys in it: they are some two a year.
const (
	maxRing     = 64 << 10
	maxRingKeys = 500
)

// ringFile is the name of the file, and keyFile that of a key.
func ringFile(domain string) string          { return domain + ".keys" }
func keyFile(domain, selector string) string { return domain + "." + selector + ".pem" }

// parseRing reads the text of the file.
func parseRing(domain, text string) (*ring, error) {
	r := &ring{domain: domain}
	n := 0
	for line := range strings.Lines(text) {
		n++
		words := strings.Fields(line)
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		bad := func(what string) error {
			return fmt.Errorf("%s, line %d: %s: expected: selector, rsa or ed25519, pending, active, retiring or retired, and a time such as 2026-11-27T08:00:00Z", ringFile(domain), n, what)
		}
		if len(words) != 4 || len(r.keys) == maxRingKeys {
			return nil, bad(fmt.Sprintf("%d words", len(words)))
		}
		k := RingKey{Selector: words[0], Kind: words[1], State: KeyState(words[2])}
		if !validSelector(k.Selector) || r.find(k.Selector) != nil {
			return nil, bad(fmt.Sprintf("selector %q", k.Selector))
		}
		if k.Kind != kindRSA && k.Kind != kindEd25519 {
			return nil, bad(fmt.Sprintf("%q", k.Kind))
		}
		if !slices.Contains([]KeyState{Pending, Active, Retiring, Retired}, k.State) {
			return nil, bad(fmt.Sprintf("%q", words[2]))
		}
		var err error
		if k.Since, err = time.Parse(time.RFC3339, words[3]); err != nil {
			return nil, bad(fmt.Sprintf("%q", words[3]))
		}
		r.keys = append(r.keys, k)
	}
	return r, nil
}

// The kinds of keys.
const (
	kindRSA     = "rsa"
	kindEd25519 = "ed25519"
)

// validSelector says whether a word can be one label of a name, and part of a file name.
func validSelector(s string) bool {
	return s != "" && len(s) <= 63 && s[0] != '-' && strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

// String is the text of the file.
func (r *ring) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The DKIM keys of %s, as \"posthaste domain\" keeps them.\n", r.domain)
	b.WriteString("# pending: its record is to be published. active: mail is signed with it. retiring: its record must stay.\n" +
		"# retired: its record may be removed.\n")
	for _, k := range r.keys {
		fmt.Fprintf(&b, "%-12s %-8s %-9s %s\n", k.Selector, k.Kind, k.State, k.Since.UTC().Format(time.RFC3339))
	}
	return b.String()
}

// find is the key with a selector, or nil.
func (r *ring) find(selector string) *RingKey {
	for i := range r.keys {
		if strings.EqualFold(r.keys[i].Selector, selector) {
			return &r.keys[i]
		}
	}
	return nil
}

// in are the keys in a state.
func (r *ring) in(state KeyState) (list []RingKey) {
	for _, k := range r.keys {
		if k.State == state {
			list = append(list, k)
		}
	}
	return list
}

// add adds a key.
func (r *ring) add(selector, kind string, state KeyState, since time.Time) {
	r.keys = append(r.keys, RingKey{selector, kind, state, since.UTC().Truncate(time.Second)})
}

// selectors are the selectors for keys that are made in a month, in the order in which they are
// taken: 202611a to 202611z, with an e at the end for Ed25519. A selector is never used again.
func selectors(kind string, now time.Time) (list []string) {
	for letter := 'a'; letter <= 'z'; letter++ {
		s := now.UTC().Format("200601") + string(letter)
		if kind == kindEd25519 {
			s += "e"
		}
		list = append(list, s)
	}
	return list
}
