// Package srs rewrites envelope senders by the Sender Rewriting Scheme (SRS), and decodes such
// addresses. It does no I/O.
//
// A host that forwards mail with the original envelope sender sends it from its own IP address,
// which is not in the SPF record (RFC 7208) of the sender's domain. With SRS the forwarder
// replaces the sender by an address in its own domain, which says where a bounce must go:
//
//	SRS0=HHHH=TT=sender.example=user@forwarder.example
//	SRS1=HHHH=first.example==HHHH=TT=sender.example=user@second.example
//
// TT is the day on which the address was made. HHHH is a keyed hash of what follows it, so that
// nobody else can make addresses for which the forwarder would relay mail. The second form is for
// a sender that another forwarder has already rewritten: it leads directly to the first
// forwarder, and does not grow with each further one.
//
// # Security
//
// Addresses come from strangers. An address whose hash does not match, or that has expired, is
// never decoded: otherwise strangers could relay mail to any address. Hashes are compared in
// constant time. With the usual four characters, which forwarders on the way may write in either
// case, a guess succeeds once in about 1.6 million attempts. Nothing else about an address is
// secret.
//
// # Standards
//
// There is no RFC. Addresses and secrets are those of postsrsd and libsrs2: HMAC-SHA1 in
// base64 (that of URLs since postsrsd 2.2.6; both are taken), days modulo 1024 in base32.
package srs

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"time"

	"posthaste/internal/rfc5322"
)

const (
	// MinHash and MaxHash bound the characters of a hash: all of HMAC-SHA1 is 27.
	MinHash, MaxHash = 4, 27
	// MaxDays is the largest sensible age: time stamps repeat after 1024 days, and one of them
	// is tomorrow.
	MaxDays = slots - 2
	// Separators are the characters that may follow SRS0 and SRS1.
	Separators = "=+-"
)

const (
	slots    = 1 << 10 // different time stamps
	base32   = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	inner    = "=" // the separator of all fields but the tag
	maxBytes = 512 // a longer address is not made: it is twice what RFC 5321 section 4.5.3.1.3 has everybody take
)

// Why an address is not taken apart.
var (
	ErrNotSRS  = errors.New("not an SRS address")
	ErrSyntax  = errors.New("parts of the SRS address are missing")
	ErrHash    = errors.New("the hash of the SRS address does not match")
	ErrExpired = errors.New("the SRS address is too old")
)

// A Rewriter makes addresses of one domain, and takes them apart. It is not changed while it
// is used, and may be used concurrently. A nil Rewriter rewrites nothing.
type Rewriter struct {
	Domain string
	// Domains are further ones of the same forwarder, in lower case: addresses can be made of them (ForwardAs), and are
	// taken apart. nil: there are none.
	Domains []string
	Secrets []string // the first one signs, all verify; at least one
	// Separator follows the tag, and is one of Separators. Any of them is understood.
	Separator byte
	// HashLength is how many characters of the hash are written, and HashMinimum how many an
	// address must have; both from MinHash to MaxHash.
	HashLength, HashMinimum int
	// MaxDays is how many days after it was made an address is valid.
	MaxDays int
}

// Ours says whether addr looks like an address that this Rewriter made: of its domain and in the
// form of SRS. Whether it is one, Reverse says.
func (r *Rewriter) Ours(addr string) bool {
	if r == nil {
		return false
	}
	local, domain, at := rfc5322.Split(addr)
	if !at || !r.owns(domain) {
		return false
	}
	return tagged(local, "SRS0") || tagged(local, "SRS1")
}

// owns says whether addresses of domain are made here.
func (r *Rewriter) owns(domain string) bool {
	return strings.EqualFold(domain, r.Domain) || len(r.Domains) > 0 && slices.Contains(r.Domains, strings.ToLower(domain))
}

// tagged says whether a local part begins with a tag and a separator. Hosts on the way may
// have changed the tag's case.
func tagged(local, tag string) bool {
	n := len(tag)
	return len(local) > n && strings.EqualFold(local[:n], tag) && strings.IndexByte(Separators, local[n]) >= 0
}

// Forward is the address in the place of a sender. It returns false, and the sender as it is, when
// it cannot be rewritten: it is empty, has no domain that could be told from the rest again, is of
// one of these domains already, or the result would have over 512 octets.
func (r *Rewriter) Forward(sender string, now time.Time) (string, bool) {
	return r.ForwardAs("", sender, now)
}

// ForwardAs is Forward with an address of the given domain, if that is one of Domains, and else of Domain.
func (r *Rewriter) ForwardAs(own, sender string, now time.Time) (string, bool) {
	local, domain, at := rfc5322.Split(sender)
	if r == nil || !at || local == "" || domain == "" || strings.Contains(domain, inner) || r.owns(domain) {
		return sender, false
	}
	if own = strings.ToLower(own); !slices.Contains(r.Domains, own) {
		own = r.Domain
	}
	var made string
	if host, rest, ok := guarded(local); ok {
		made = r.again(host, rest)
	} else if tagged(local, "SRS0") {
		// rest begins with the separator of the first forwarder, which has to get it back.
		made = r.again(domain, local[len("SRS0"):])
	} else {
		stamp := timestamp(now)
		made = "SRS0" + string(r.Separator) + r.hash(r.Secrets[0], stamp, domain, local)[:r.HashLength] + inner +
			stamp + inner + domain + inner + local
	}
	made += "@" + own
	if len(made) > maxBytes {
		return sender, false
	}
	return made, true
}

// guarded takes an SRS1 address of another forwarder apart. What it has as the hash is not ours
// to judge.
func guarded(local string) (host, rest string, ok bool) {
	if !tagged(local, "SRS1") {
		return "", "", false
	}
	_, tail, _ := strings.Cut(local[len("SRS1")+1:], inner)
	host, rest, _ = strings.Cut(tail, inner)
	return host, rest, host != "" && rest != ""
}

// again is the local part for a sender that was rewritten before, first by host.
func (r *Rewriter) again(host, rest string) string {
	return "SRS1" + string(r.Separator) + r.hash(r.Secrets[0], host, rest)[:r.HashLength] + inner + host + inner + rest
}

// Reverse is the address that mail to addr belongs to. The error is one of this package:
// ErrNotSRS where addr is not ours.
func (r *Rewriter) Reverse(addr string, now time.Time) (string, error) {
	if !r.Ours(addr) {
		return "", ErrNotSRS
	}
	local, _, _ := rfc5322.Split(addr)
	hash, tail, _ := strings.Cut(local[len("SRS0")+1:], inner)
	if tagged(local, "SRS1") {
		host, rest, _ := strings.Cut(tail, inner)
		switch {
		case hash == "" || host == "" || rest == "":
			return "", ErrSyntax
		case !r.verify(hash, host, rest):
			return "", ErrHash
		}
		return "SRS0" + rest + "@" + host, nil
	}
	stamp, tail, _ := strings.Cut(tail, inner)
	host, user, _ := strings.Cut(tail, inner)
	switch {
	case hash == "" || stamp == "" || host == "" || user == "":
		return "", ErrSyntax
	// First, so that nobody learns which stamps are good.
	case !r.verify(hash, stamp, host, user):
		return "", ErrHash
	case !r.fresh(stamp, now):
		return "", ErrExpired
	}
	return user + "@" + host, nil
}

// hash is the whole hash of the parts, in base64. Their case does not count, since hosts
// on the way do not always keep it.
func (r *Rewriter) hash(secret string, parts ...string) string {
	mac := hmac.New(sha1.New, []byte(secret))
	for _, p := range parts {
		mac.Write(lower(p))
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// verify says whether a hash was made with one of the secrets. All are tried, so that the time it
// takes does not tell which.
func (r *Rewriter) verify(hash string, parts ...string) bool {
	if len(hash) < r.HashMinimum || len(hash) > MaxHash {
		return false
	}
	good := 0
	for _, s := range r.Secrets {
		good |= subtle.ConstantTimeCompare(folded(hash), folded(r.hash(s, parts...)[:len(hash)]))
	}
	return good == 1
}

// folded is a hash in the form in which hashes are compared: in lower case, and with the alphabet
// of URLs.
func folded(hash string) []byte {
	b := lower(hash)
	for i, c := range b {
		switch c {
		case '+':
			b[i] = '-'
		case '/':
			b[i] = '_'
		}
	}
	return b
}

// lower is s with its ASCII letters in lower case, which is all that libsrs2 knows of.
func lower(s string) []byte {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return b
}

// day is the number of a time stamp, of the day in UTC.
func day(now time.Time) int { return int(now.Unix()/86400) & (slots - 1) }

// timestamp is the day as an address has it.
func timestamp(now time.Time) string {
	n := day(now)
	return string([]byte{base32[n>>5], base32[n&31]})
}

// fresh says whether a time stamp is not too old. One of tomorrow is good: the host that made it
// may share our secret, and its clock be ahead of ours at midnight.
func (r *Rewriter) fresh(stamp string, now time.Time) bool {
	if len(stamp) != 2 {
		return false
	}
	stamp = strings.ToUpper(stamp)
	high, low := strings.IndexByte(base32, stamp[0]), strings.IndexByte(base32, stamp[1])
	if high < 0 || low < 0 {
		return false
	}
	age := (day(now) - (high<<5 | low) + slots) & (slots - 1)
	return age <= r.MaxDays || age == slots-1
}
