// Package sasl authenticates clients of SMTP: the mechanisms PLAIN, LOGIN and
// SCRAM-SHA-256 over a table of users, PLAIN and LOGIN over a table of accounts
// with application passwords, OAUTHBEARER and XOAUTH2 with tokens that an
// authorization server has signed or vouches for, and any mechanism that a Dovecot
// server knows, by relaying its steps.
//
// A Backend says which mechanisms there are and starts exchanges. An exchange
// goes through steps: what the client sends goes in, what it is to be sent
// comes out, until the outcome is known.
//
// # Security
//
// Everything that a client sends is bounded by whoever reads it. Passwords
// are compared in constant time, and an unknown user costs as much as a wrong
// password. SCRAM tells a client a user's salt before it has shown anything: an
// unknown user has one too, made from the name and a key that is kept, and the
// iteration count of the entry that was used last. If the entries of a table do not all
// have the same count (those of "posthaste passwd" do) a stranger can tell. So many passwords are verified at a time as leave half of the
// processors for other things. The table holds no passwords but what is needed to verify them
// (RFC 5803, RFC 9106): who steals it must try passwords one by one. Failed logins of accounts are
// counted by account and client, and after too many no more passwords are looked at. A token counts when
// a configured key has signed it for this service, or when the configured endpoint says
// so, over TLS with a certificate that is verified; tokens are taken under TLS only
// (RFC 7628 section 4).
//
// # Standards
//
//	RFC 4422 (SASL), RFC 4013 (SASLprep), RFC 4616 (PLAIN), RFC 5802 and RFC 7677 (SCRAM-SHA-256),
//	RFC 9266 (tls-exporter), RFC 5929 (tls-server-end-point), RFC 5803 (how
//	SCRAM secrets are written down), RFC 9106 (argon2id), RFC 7628 (OAUTHBEARER), RFC 7519 and RFC
//	8725 (JWT), RFC 7662 (introspection), RFC 6750 (bearer tokens), draft-murchison-sasl-login (LOGIN), the Dovecot authentication
//	protocol 1.1
package sasl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
)

// Property is what a security option may ask of a mechanism.
type Property uint8

const (
	Plaintext  Property = 1 << iota // the password can be read off the wire
	Anonymous                       // nobody in particular
	Dictionary                      // passwords can be tried against what was overheard
	Active                          // can be attacked by who sits in between
	ForwardSecrecy
	MutualAuth
)

// A Mechanism is what a backend offers.
type Mechanism struct {
	Name       string
	Properties Property
}

// A Client is whom an exchange is with, for backends that want to know.
type Client struct {
	Service               string // smtp
	RemoteAddr, LocalAddr string
	RemotePort, LocalPort string
	// Shared says that many users come from the address, as by a web mail of ours: failed logins
	// of one are not held against the others.
	Shared bool
	TLS    *tls.ConnectionState // nil: in the clear
	// Certificate is what the client was shown; nil when that is not known, as
	// in a TLS session that was resumed.
	Certificate *x509.Certificate
	// Unbound says that SCRAM with channel binding is not offered for other
	// reasons: a client that says so has not been deceived.
	Unbound bool
}

// A Backend authenticates. All methods may be called concurrently.
type Backend interface {
	// Mechanisms returns what c may use, in the order of preference.
	Mechanisms(ctx context.Context, c Client) ([]Mechanism, error)
	// Start begins an exchange. ErrMechanism says that there is no such
	// mechanism.
	Start(ctx context.Context, mechanism string, c Client) (Exchange, error)
	Close()
}

// An Exchange is one attempt. It is used by one goroutine.
type Exchange interface {
	// Next takes what the client sent, nil when it has sent nothing yet. Until
	// done it returns what the client is to be sent. A *Failure says that the
	// client is not who it says; any other error that nobody knows.
	Next(ctx context.Context, response []byte) (challenge []byte, done bool, err error)
	// Username is who the client is, or claims to be; it may be empty.
	Username() string
	Close()
}

// ErrMechanism says that a mechanism is not offered.
var ErrMechanism = errors.New("invalid authentication mechanism")

// ErrMalformed says that what a client sent is not of the mechanism's form.
var ErrMalformed = errors.New("malformed response")

// A Failure says why a client is not let in.
type Failure struct{ Reason string }

func (f *Failure) Error() string { return f.Reason }

var errCredentials = &Failure{"authentication failure"}
