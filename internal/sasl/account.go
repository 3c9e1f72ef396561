package sasl

import (
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxAppPasswords is how many application passwords an account may have.
const maxAppPasswords = 32

// maxSlow is how many of an account's hashes may be slow ones: each costs every login that fails.
const maxSlow = 4

// maxAppName is the longest name of an application password, in octets.
const maxAppName = 32

// An Account is what a table of accounts (account_maps) says of a user: words, separated by white
// space, or by commas where a database returns several rows.
//
//	{ARGON2ID}$argon2id$v=19$m=19456,t=2,p=1$...$... phone:{SSHA256}... disabled
//
// A hash is the user's password. One with a name before it is an application password: it is as
// good as the other one, and can be withdrawn alone. The word disabled keeps the user out. The
// hashes are those of [NewHash], SHA-256-crypt, and what posthaste passwd prints; with a name,
// SSHA256 as well, for passwords that were drawn by lot ([NewAppPassword]).
type Account struct {
	Disabled bool
	Password string // its hash; empty: there are only application passwords
	Apps     []AppPassword
}

// An AppPassword is the password of one program or device.
type AppPassword struct {
	Name string // 1 to 32 letters, digits, and . _ -
	Hash string
}

// NewAppPassword draws a password by lot, with 100 bits of chance, and makes its hash.
func NewAppPassword() (password, hash string) {
	b := make([]byte, 13)
	rand.Read(b)
	text := strings.ToLower(base32.StdEncoding.EncodeToString(b))[:20]
	password = text[:5] + "-" + text[5:10] + "-" + text[10:15] + "-" + text[15:]
	return password, newTokenHash(password)
}

// IsAppName says whether an application password may have a name.
func IsAppName(s string) bool {
	return s != "" && len(s) <= maxAppName && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	})
}

// PrepareName gives a user's name the form in which tables have it (RFC 4013). ok is false for
// what cannot be a name: white space, commas and colons would be taken for something else in
// tables, and # begins a comment.
func PrepareName(name string) (prepared string, ok bool) {
	prepared, ok = prepare(name)
	return prepared, ok && len(prepared) <= maxPassword && !strings.ContainsAny(prepared, " \t,:\"") && !strings.HasPrefix(prepared, "#")
}

// ParseAccount reads the value of a table of accounts. Every hash is looked at.
func ParseAccount(text string) (*Account, error) {
	a, _, err := parseAccount(text)
	return a, err
}

// parseAccount also returns the verifiers: that of the password first, if there is one.
func parseAccount(text string) (*Account, []verifier, error) {
	a := &Account{}
	var main verifier
	var all []verifier
	slow := 0
	for _, word := range accountWords(text) {
		if word == "disabled" {
			a.Disabled = true
			continue
		}
		name, hash := "", word
		if before, after, ok := strings.Cut(word, ":"); ok && IsAppName(before) && !strings.Contains(before, "$") && !strings.HasPrefix(word, "SCRAM-") {
			name, hash = before, after
		}
		v, err := parseHash(hash)
		if err != nil {
			return nil, nil, err
		}
		if !v.cheap() {
			slow++
		}
		switch {
		case name == "" && v.cheap():
			return nil, nil, errors.New("a fast hash is good only for application passwords, which are drawn by lot")
		case name == "" && main != nil:
			return nil, nil, errors.New("there are two passwords without a name")
		case name == "":
			a.Password, main = hash, v
		case slices.ContainsFunc(a.Apps, func(p AppPassword) bool { return p.Name == name }):
			return nil, nil, fmt.Errorf("there are two passwords %s", name)
		default:
			a.Apps = append(a.Apps, AppPassword{name, hash})
			all = append(all, v)
		}
	}
	switch {
	case len(a.Apps) > maxAppPasswords:
		return nil, nil, fmt.Errorf("there are %d application passwords, and %d is the most", len(a.Apps), maxAppPasswords)
	case slow > maxSlow:
		return nil, nil, fmt.Errorf("there are %d slow hashes, and %d is the most: each costs every login that fails", slow, maxSlow)
	}
	if main != nil {
		all = slices.Insert(all, 0, main)
	}
	return a, all, nil
}

// accountWords splits a value. A comma separates where a hash, a named one, or the word disabled
// follows: argon2id has commas of its own.
func accountWords(text string) (words []string) {
	for _, field := range strings.Fields(text) {
		start := 0
		for i := range len(field) {
			if field[i] == ',' && beginsWord(field[i+1:]) {
				if i > start {
					words = append(words, field[start:i])
				}
				start = i + 1
			}
		}
		if start < len(field) {
			words = append(words, field[start:])
		}
	}
	return words
}

// beginsWord says whether what is behind a comma is another word.
func beginsWord(rest string) bool {
	word, _, _ := strings.Cut(rest, ",")
	if name, after, ok := strings.Cut(word, ":"); ok && IsAppName(name) {
		word = after
	}
	return word == "disabled" || strings.HasPrefix(word, "{") || strings.HasPrefix(word, "$") || strings.HasPrefix(word, "SCRAM-")
}

// String is the account as ParseAccount reads it.
func (a *Account) String() string {
	var words []string
	if a.Password != "" {
		words = append(words, a.Password)
	}
	for _, p := range a.Apps {
		words = append(words, p.Name+":"+p.Hash)
	}
	if a.Disabled {
		words = append(words, "disabled")
	}
	return strings.Join(words, " ")
}
