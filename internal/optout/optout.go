// Package optout makes the links by which recipients unsubscribe, one for each message and recipient, and takes them apart when somebody
// follows one. It does no I/O.
//
//	https://unsubscribe.example.org/u/TOKEN
//
// TOKEN is base64 for URLs. Its octets are a nonce of 12, and what AES-256 in GCM makes of the message's queue ID, the
// recipient, whose mail it is, of which list and mailing, and the day. Nothing need be recorded: a link says by
// itself what it is about, and does so for as long as its secret is kept.
//
// # Security
//
// Links come from strangers. One that was not made here, with a secret of ours, counts for nothing, and to make one is to find
// a tag of 128 bits. A link tells who sees it nothing of the recipient, the tenant or the list: it is in logs of web
// servers and proxies. Of two links nobody sees whether they are for one recipient. What a link's length tells is rounded
// up to 16 octets.
//
// The nonce is a keyed hash of the text, so that no clock and no chance is needed, and one nonce never stands for two texts
// but by an accident of 2^-48 after as many links.
//
// Secrets are of any length; the first one makes links, and all take them apart, so that they can be replaced.
package optout

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"posthaste/internal/pack"
)

const (
	nonceSize = 12
	tagSize   = 16
	// block is what the length of a text is a multiple of, in octets.
	block = 16
	// maxToken bounds what is looked at, in octets.
	maxToken = 2048
)

// version is in each text, and says what else is.
const version = 1

// Why a link counts for nothing.
var (
	ErrForged  = errors.New("it is no link of this system")
	ErrExpired = errors.New("it is too old")
)

var encoding = base64.RawURLEncoding.Strict()

// A Coder makes and takes apart links. It is not changed while it is used, and may be used concurrently.
type Coder struct {
	Base    string   // what stands before the token: an URL of https
	Secrets []string // the first one makes links, all take them apart; at least one
	MaxDays int      // how many days after it was made a link counts
}

// A Token is what a link says.
type Token struct {
	Day       int // since 1970, in UTC
	QueueID   string
	Recipient string
	// Scope is what the recipient gets no more mail of, as the suppression list has it: LIST, TENANT/ or TENANT/LIST.
	Scope            string
	Tenant, Campaign string // of the message; either may be empty
}

// Day is the day of a time.
func Day(t time.Time) int { return int(t.Unix() / 86400) }

// Link is the link of t.
func (c *Coder) Link(t Token) string {
	text := pack.Uint(nil, 'v', uint(version))
	text = pack.Int(text, 'd', t.Day)
	text = pack.String(text, 'q', t.QueueID)
	text = pack.String(text, 'r', t.Recipient)
	text = pack.String(text, 's', t.Scope)
	text = pack.String(text, 't', t.Tenant)
	text = pack.String(text, 'c', t.Campaign)
	if n := (len(text) + 2 + block - 1) / block * block; n > len(text) {
		text = pack.Bytes(text, 'x', make([]byte, n-len(text)-2)) // a field of less than 128 octets has a head of two
	}
	nonce, seal := keys(c.Secrets[0], text)
	return c.Base + encoding.EncodeToString(seal.Seal(nonce, nonce, text, nil))
}

// keys are the nonce of a text, and what seals it.
func keys(secret string, text []byte) (nonce []byte, seal cipher.AEAD) {
	mac := hmac.New(sha256.New, derived(secret, "unsubscribe nonce"))
	mac.Write(text)
	return mac.Sum(nil)[:nonceSize:nonceSize], aead(secret)
}

func derived(secret, what string) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(what))
	return mac.Sum(nil)
}

func aead(secret string) cipher.AEAD {
	b, err := aes.NewCipher(derived(secret, "unsubscribe key"))
	if err != nil {
		panic(err) // of a key of another length than 32
	}
	a, err := cipher.NewGCM(b)
	if err != nil {
		panic(err) // of a block that is not AES's
	}
	return a
}

// Parse takes a token apart: what stands behind Base in a link. The error is one of this package.
func (c *Coder) Parse(token string, now time.Time) (Token, error) {
	if len(token) > maxToken || strings.ContainsAny(token, "\r\n") { // which the decoder passes over
		return Token{}, ErrForged
	}
	b, err := encoding.DecodeString(token)
	if err != nil || len(b) < nonceSize+tagSize {
		return Token{}, ErrForged
	}
	// All are tried, so that the time it takes does not tell which.
	var text []byte
	for _, s := range c.Secrets {
		if t, err := aead(s).Open(nil, b[:nonceSize], b[nonceSize:], nil); err == nil {
			text = t
		}
	}
	t, ok := read(text)
	if !ok {
		return Token{}, ErrForged
	}
	// One of tomorrow is good: the host that made it may share our secret, and its clock be ahead.
	if age := Day(now) - t.Day; age > c.MaxDays || age < -1 {
		return Token{}, ErrExpired
	}
	return t, nil
}

// read reads a text. It is ours, but may be of a version that is not known here.
func read(text []byte) (t Token, ok bool) {
	r := pack.NewTextReader(text)
	for r.Next() {
		switch r.Tag() {
		case 'v':
			ok = r.Uint() == version
		case 'd':
			t.Day = int(r.Int())
		case 'q':
			t.QueueID = r.String()
		case 'r':
			t.Recipient = r.String()
		case 's':
			t.Scope = r.String()
		case 't':
			t.Tenant = r.String()
		case 'c':
			t.Campaign = r.String()
		}
	}
	return t, ok && r.Err() == nil && t.Recipient != "" && t.Scope != ""
}
