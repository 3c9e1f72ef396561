package sasl

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	tokenLeeway = time.Minute // between the issuer's clock and ours
	minRSABits  = 2048        // RFC 7518 section 3.3
)

// Tokens verifies what an authorization server has signed: JSON Web Tokens,
// RFC 7519, with one of its public keys. Nobody is asked, so a token is good
// until it expires: an issuer that revokes them earlier needs Dovecot, which
// can ask it (RFC 7662). It does not change; it may be used concurrently.
type Tokens struct {
	keys                    []crypto.PublicKey
	issuer, audience, claim string
}

// TokenOptions say which tokens are good.
type TokenOptions struct {
	Keys     []string // files with public keys or certificates in PEM, or a JWK set (RFC 7517)
	Issuer   string   // iss
	Audience string   // what aud must have: without it tokens for other services would do
	Claim    string   // which one is the user's name
}

// NewTokens reads the keys.
func NewTokens(o TokenOptions) (*Tokens, error) {
	if o.Issuer == "" || o.Audience == "" || o.Claim == "" {
		return nil, errors.New("tokens need an issuer, an audience and the claim with the user's name")
	}
	t := &Tokens{issuer: o.Issuer, audience: o.Audience, claim: o.Claim}
	for _, file := range o.Keys {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		keys, err := parseKeys(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		t.keys = append(t.keys, keys...)
	}
	if len(t.keys) == 0 {
		return nil, errors.New("no keys to verify tokens with")
	}
	return t, nil
}

// parseKeys reads a JWK set or PEM blocks.
func parseKeys(text []byte) (keys []crypto.PublicKey, err error) {
	if strings.HasPrefix(strings.TrimSpace(string(text)), "{") {
		return parseJWKs(text)
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		var key crypto.PublicKey
		switch block.Type {
		case "PUBLIC KEY":
			key, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "RSA PUBLIC KEY":
			key, err = x509.ParsePKCS1PublicKey(block.Bytes)
		case "CERTIFICATE":
			var c *x509.Certificate
			if c, err = x509.ParseCertificate(block.Bytes); err == nil {
				key = c.PublicKey
			}
		default:
			err = fmt.Errorf("%s: expected PUBLIC KEY or CERTIFICATE", block.Type)
		}
		if err == nil {
			err = usableKey(key)
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("neither PEM nor a JWK set")
	}
	return keys, nil
}

func usableKey(key crypto.PublicKey) error {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSABits {
			return fmt.Errorf("RSA key of %d bits: at least %d are needed", k.N.BitLen(), minRSABits)
		}
		return nil
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	}
	return errors.New("a key is for RS256, PS256, ES256 or EdDSA: RSA, P-256 or Ed25519")
}

// parseJWKs reads a JWK set as authorization servers publish it. Keys of other
// kinds, or for encryption, are in such sets too, and passed over.
func parseJWKs(text []byte) (keys []crypto.PublicKey, err error) {
	var set struct {
		Keys []struct{ Kty, Use, Crv, N, E, X, Y string }
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("JWK set: %w", err)
	}
	for _, k := range set.Keys {
		if k.Use == "enc" {
			continue
		}
		var key crypto.PublicKey
		number := func(s string) []byte {
			b, e := base64.RawURLEncoding.DecodeString(s)
			err = errors.Join(err, e)
			return b
		}
		switch {
		case k.Kty == "RSA":
			e := new(big.Int).SetBytes(number(k.E))
			if !e.IsInt64() || e.Int64() > 1<<31-1 || e.Int64() < 3 {
				return nil, errors.New("JWK set: an RSA exponent is out of bounds")
			}
			key = &rsa.PublicKey{N: new(big.Int).SetBytes(number(k.N)), E: int(e.Int64())}
		case k.Kty == "EC" && k.Crv == "P-256":
			point := append(append([]byte{4}, number(k.X)...), number(k.Y)...)
			var e error
			key, e = ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
			err = errors.Join(err, e)
		case k.Kty == "OKP" && k.Crv == "Ed25519":
			x := number(k.X)
			if len(x) != ed25519.PublicKeySize {
				return nil, errors.New("JWK set: an Ed25519 key has another length")
			}
			key = ed25519.PublicKey(x)
		default:
			continue
		}
		if err == nil {
			err = usableKey(key)
		}
		if err != nil {
			return nil, fmt.Errorf("JWK set: %w", err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("the JWK set has no key for RS256, PS256, ES256 or EdDSA")
	}
	return keys, nil
}

var errToken = errors.New("the token is not a signed JWT of a known issuer")

// claims are what we look at of a token.
type claims struct {
	Iss           string
	Aud           audience
	Exp, Nbf      *float64
	EmailVerified *bool `json:"email_verified"`
}

// audience is one name or several, RFC 7519 section 4.1.3.
type audience []string

func (a *audience) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*a = make(audience, 1)
		return json.Unmarshal(b, &(*a)[0])
	}
	return json.Unmarshal(b, (*[]string)(a))
}

// Verify implements TokenVerifier.
func (t *Tokens) Verify(_ context.Context, token string, now time.Time) (user string, err error) {
	if user, err = t.verify(token, now); err != nil {
		return "", &Failure{err.Error()}
	}
	return user, nil
}

// verify returns whose token this is. The error is for the log.
func (t *Tokens) verify(token string, now time.Time) (user string, err error) {
	signed, signature, ok := cutLast(token, '.')
	head, body, ok2 := strings.Cut(signed, ".")
	sig, err := base64.RawURLEncoding.DecodeString(signature)
	if !ok || !ok2 || strings.Contains(body, ".") || err != nil {
		return "", errToken
	}
	var header struct {
		Alg  string
		Crit json.RawMessage
	}
	if err := decodePart(head, &header); err != nil || header.Crit != nil { // RFC 7515 section 4.1.11
		return "", errToken
	}
	if !t.signedBy(header.Alg, signed, sig) {
		return "", fmt.Errorf("token: none of the keys verifies its %.20q signature", header.Alg)
	}
	var c claims
	var all map[string]json.RawMessage
	if decodePart(body, &c) != nil || decodePart(body, &all) != nil {
		return "", errToken
	}
	at := float64(now.Unix())
	leeway := tokenLeeway.Seconds()
	switch {
	case c.Iss != t.issuer:
		return "", errors.New("token: another issuer")
	case !slices.Contains(c.Aud, t.audience):
		return "", errors.New("token: for another audience")
	case c.Exp == nil || *c.Exp+leeway <= at:
		return "", errors.New("token: expired")
	case c.Nbf != nil && *c.Nbf-leeway > at:
		return "", errors.New("token: not valid yet")
	case t.claim == "email" && c.EmailVerified != nil && !*c.EmailVerified:
		return "", errors.New("token: its address is not verified")
	}
	if user, err = userOf(all, t.claim); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	return user, nil
}

// signedBy looks for a key that verifies a signature. The kind of key says
// which algorithm it is for, not the token alone (RFC 8725 section 3.1).
func (t *Tokens) signedBy(alg, text string, sig []byte) bool {
	sum := sha256.Sum256([]byte(text))
	for _, key := range t.keys {
		ok := false
		switch k := key.(type) {
		case *rsa.PublicKey:
			switch alg {
			case "RS256":
				ok = rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], sig) == nil
			case "PS256":
				ok = rsa.VerifyPSS(k, crypto.SHA256, sum[:], sig, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}) == nil
			}
		case *ecdsa.PublicKey: // RFC 7518 section 3.4: the two numbers, 32 octets each
			ok = alg == "ES256" && len(sig) == 64 &&
				ecdsa.Verify(k, sum[:], new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:]))
		case ed25519.PublicKey:
			ok = alg == "EdDSA" && ed25519.Verify(k, []byte(text), sig)
		}
		if ok {
			return true
		}
	}
	return false
}

func decodePart(text string, to any) error {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}
