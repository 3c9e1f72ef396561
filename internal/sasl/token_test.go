package sasl

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var b64 = base64.RawURLEncoding.EncodeToString

// sign makes a token as an authorization server does.
func sign(t *testing.T, key any, alg string, header, claims map[string]any) string {
	h := map[string]any{"alg": alg, "typ": "JWT"}
	maps.Copy(h, header)
	head, _ := json.Marshal(h)
	body, _ := json.Marshal(claims)
	text := b64(head) + "." + b64(body)
	sum := sha256.Sum256([]byte(text))
	var sig []byte
	var err error
	switch k := key.(type) {
	case *rsa.PrivateKey:
		if alg == "PS256" {
			sig, err = rsa.SignPSS(rand.Reader, k, crypto.SHA256, sum[:], &rsa.PSSOptions{SaltLength: 32})
		} else {
			sig, err = rsa.SignPKCS1v15(rand.Reader, k, crypto.SHA256, sum[:])
		}
	case *ecdsa.PrivateKey:
		var r, s *big.Int
		r, s, err = ecdsa.Sign(rand.Reader, k, sum[:])
		sig = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	case ed25519.PrivateKey:
		sig = ed25519.Sign(k, []byte(text))
	case []byte:
		m := hmac.New(sha256.New, k)
		m.Write([]byte(text))
		sig = m.Sum(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + b64(sig)
}

func publicPEM(t *testing.T, keys ...any) (text []byte) {
	for _, k := range keys {
		der, err := x509.MarshalPKIXPublicKey(k.(crypto.Signer).Public())
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})...)
	}
	return text
}

func tokens(t *testing.T, keys []byte, o TokenOptions) (*Tokens, error) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, keys, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Keys = []string{file}
	return NewTokens(o)
}

func tokenKeys(t *testing.T) (r *rsa.PrivateKey, e *ecdsa.PrivateKey, d ed25519.PrivateKey) {
	r, err1 := rsa.GenerateKey(rand.Reader, 2048)
	e, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, d, err3 := ed25519.GenerateKey(rand.Reader)
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	return r, e, d
}

var ours = TokenOptions{Issuer: "https://id.test", Audience: "mail", Claim: "email"}

func TestTokens(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	r, e, d := tokenKeys(t)
	_, stranger, _ := tokenKeys(t)
	public := publicPEM(t, r, e, d)
	v, err := tokens(t, public, ours)
	if err != nil {
		t.Fatal(err)
	}
	good := func(more ...any) map[string]any {
		m := map[string]any{"iss": "https://id.test", "aud": "mail", "exp": now.Unix() + 300, "email": "joe@example.test"}
		for i := 0; i < len(more); i += 2 {
			if m[more[i].(string)] = more[i+1]; more[i+1] == nil {
				delete(m, more[i].(string))
			}
		}
		return m
	}
	whole := sign(t, e, "ES256", nil, good())
	parts := strings.Split(whole, ".")
	for _, tt := range []struct{ name, token, err string }{
		{"RSA", sign(t, r, "RS256", nil, good()), ""},
		{"RSA-PSS", sign(t, r, "PS256", nil, good()), ""},
		{"ECDSA", whole, ""},
		{"Ed25519", sign(t, d, "EdDSA", nil, good()), ""},
		{"several audiences", sign(t, e, "ES256", nil, good("aud", []string{"web", "mail"})), ""},
		{"verified", sign(t, e, "ES256", nil, good("email_verified", true)), ""},
		{"begun", sign(t, e, "ES256", nil, good("nbf", now.Unix())), ""},
		{"just over, with leeway", sign(t, e, "ES256", nil, good("exp", now.Unix()-30)), ""},

		{"another key", sign(t, stranger, "ES256", nil, good()), "none of the keys"},
		{"none", b64([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".", "none of the keys"},
		{"the public key as a secret", sign(t, public, "HS256", nil, good()), "none of the keys"},
		{"named otherwise", sign(t, r, "ES256", nil, good()), "none of the keys"},
		{"changed", parts[0] + "." + b64([]byte(`{"email":"root"}`)) + "." + parts[2], "none of the keys"},
		{"critical extension", sign(t, e, "ES256", map[string]any{"crit": []string{"exp"}}, good()), "not a signed JWT"},
		{"issuer", sign(t, e, "ES256", nil, good("iss", "https://evil.test")), "another issuer"},
		{"audience", sign(t, e, "ES256", nil, good("aud", "web")), "another audience"},
		{"no audience", sign(t, e, "ES256", nil, good("aud", nil)), "another audience"},
		{"audience that is a number", sign(t, e, "ES256", nil, good("aud", 1)), "not a signed JWT"},
		{"expired", sign(t, e, "ES256", nil, good("exp", now.Unix()-61)), "expired"},
		{"for ever", sign(t, e, "ES256", nil, good("exp", nil)), "expired"},
		{"early", sign(t, e, "ES256", nil, good("nbf", now.Unix()+61)), "not valid yet"},
		{"not verified", sign(t, e, "ES256", nil, good("email_verified", false)), "not verified"},
		{"nobody", sign(t, e, "ES256", nil, good("email", nil)), "no claim email"},
		{"a number", sign(t, e, "ES256", nil, good("email", 7)), "no claim email"},
		{"two lines", sign(t, e, "ES256", nil, good("email", "a\nb")), "control characters"},
		{"empty", "", "not a signed JWT"},
		{"opaque", "ya29.abcdef", "not a signed JWT"},
		{"dots", "...", "not a signed JWT"},
		{"encrypted", "a.b.c.d.e", "not a signed JWT"},
	} {
		user, err := v.verify(tt.token, now)
		if tt.err == "" && (err != nil || user != "joe@example.test") || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || user != "") {
			t.Errorf("%s: %q, %v", tt.name, user, err)
		}
	}
}

// The same keys, as authorization servers publish them.
func TestTokenKeys(t *testing.T) {
	t.Parallel()
	r, e, d := tokenKeys(t)
	now := time.Now()
	point, err := e.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	set, _ := json.Marshal(map[string]any{"keys": []map[string]string{
		{"kty": "RSA", "use": "sig", "kid": "1", "n": b64(r.N.Bytes()), "e": "AQAB"},
		{"kty": "EC", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:])},
		{"kty": "OKP", "crv": "Ed25519", "x": b64(d.Public().(ed25519.PublicKey))},
		{"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"}, {"kty": "oct"}, {"kty": "RSA", "use": "enc"},
	}})
	v, err := tokens(t, set, ours)
	if err != nil || len(v.keys) != 3 {
		t.Fatal(v, err)
	}
	claims := map[string]any{"iss": "https://id.test", "aud": "mail", "exp": now.Unix() + 300, "email": "joe"}
	for alg, key := range map[string]any{"RS256": r, "ES256": e, "EdDSA": d} {
		if user, err := v.verify(sign(t, key, alg, nil, claims), now); err != nil || user != "joe" {
			t.Errorf("%s: %q, %v", alg, user, err)
		}
	}
	small, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 1023), E: 65537})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "text": "hello", "set of nothing": `{"keys":[]}`, "not JSON": `{"keys"`,
		"exponent":      `{"keys":[{"kty":"RSA","n":"` + b64(r.N.Bytes()) + `","e":"AQ"}]}`,
		"modulus":       `{"keys":[{"kty":"RSA","n":"$","e":"AQAB"}]}`,
		"off the curve": `{"keys":[{"kty":"EC","crv":"P-256","x":"` + b64(point[1:33]) + `","y":"` + b64(point[1:33]) + `"}]}`,
		"short":         `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA"}]}`,
		"small":         string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: small})),
		"private":       string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte{1}})),
	} {
		if v, err := tokens(t, []byte(text), ours); err == nil {
			t.Errorf("%s: %v", name, v.keys)
		}
	}
	for _, o := range []TokenOptions{{Issuer: "x", Audience: "x"}, {Issuer: "x", Claim: "x"}, {Audience: "x", Claim: "x"}} {
		if _, err := tokens(t, publicPEM(t, e), o); err == nil {
			t.Errorf("%+v will do", o)
		}
	}
	if _, err := NewTokens(TokenOptions{Issuer: "x", Audience: "x", Claim: "x"}); err == nil {
		t.Error("no keys will do")
	}
}

func TestBearer(t *testing.T) {
	t.Parallel()
	_, e, _ := tokenKeys(t)
	v, err := tokens(t, publicPEM(t, e), ours)
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{"iss": "https://id.test", "aud": "mail", "exp": time.Now().Unix() + 300, "email": "joe"}
	token := sign(t, e, "ES256", nil, claims)
	const sep = "\x01"
	for _, tt := range []struct {
		mech, message string
		user, err     string // err: of the second step if told is set
		told          string
	}{
		{"OAUTHBEARER", "n,a=joe," + sep + "host=mx" + sep + "port=25" + sep + "auth=Bearer " + token + sep + sep, "joe", "", ""},
		{"OAUTHBEARER", "n,," + sep + "auth=bearer " + token + sep + sep, "joe", "", ""},
		{"OAUTHBEARER", "n,a=ann," + sep + "auth=Bearer " + token + sep + sep, "joe", "not authorized", invalidToken},
		{"OAUTHBEARER", "n,a=ann," + sep + "auth=Bearer x" + sep + sep, "ann", "not a signed JWT", invalidToken},
		{"OAUTHBEARER", "p=tls-exporter,," + sep + "auth=Bearer " + token + sep + sep, "", "malformed", ""},
		{"OAUTHBEARER", "n,joe," + sep + "auth=Bearer " + token + sep + sep, "", "malformed", ""},
		{"OAUTHBEARER", "n,," + sep + "auth=Basic " + token + sep + sep, "", "malformed", ""},
		{"OAUTHBEARER", "n,," + sep + sep, "", "malformed", ""},
		{"OAUTHBEARER", "user=joe" + sep + "auth=Bearer " + token + sep + sep, "", "malformed", ""},
		{"OAUTHBEARER", "n,," + sep + "auth=Bearer " + token, "", "malformed", ""},
		{"XOAUTH2", "user=joe" + sep + "auth=Bearer " + token + sep + sep, "joe", "", ""},
		{"XOAUTH2", "user=ann" + sep + "auth=Bearer " + token + sep + sep, "joe", "not authorized", invalidTokenOld},
		{"XOAUTH2", "user=joe" + sep + "auth=Bearer y" + sep + sep, "joe", "not a signed JWT", invalidTokenOld},
		{"XOAUTH2", "", "", "malformed", ""},
	} {
		x := &bearer{tokens: v, old: tt.mech == "XOAUTH2"}
		if challenge, done, err := x.Next(t.Context(), nil); len(challenge) > 0 || done || err != nil {
			t.Fatalf("%s: %q %v", tt.mech, challenge, err)
		}
		challenge, done, err := x.Next(t.Context(), []byte(tt.message))
		if string(challenge) != tt.told {
			t.Errorf("%s %.40q: told %q", tt.mech, tt.message, challenge)
		}
		if tt.told != "" {
			_, done, err = x.Next(t.Context(), []byte{1})
		}
		if done != (tt.err == "") || (err == nil) != done || err != nil && !strings.Contains(err.Error(), tt.err) || x.Username() != tt.user {
			t.Errorf("%s %.40q: %v, user %q, %v", tt.mech, tt.message, done, x.Username(), err)
		}
	}
}

// Whatever a client shows, nothing gives way.
func FuzzToken(f *testing.F) {
	f.Add("eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJ4IiwiYXVkIjpbIngiXSwiZXhwIjoxfQ.AAAA")
	f.Add("n,a=x,\x01auth=Bearer a.b.c\x01\x01")
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	v := &Tokens{keys: []crypto.PublicKey{public}, issuer: "x", audience: "x", claim: "x"}
	f.Fuzz(func(t *testing.T, text string) {
		if user, err := v.verify(text, time.Unix(0, 0)); err == nil {
			t.Fatalf("%q is let in", user)
		}
		for _, old := range []bool{true, false} {
			x := &bearer{tokens: v, old: old}
			if _, done, _ := x.Next(t.Context(), []byte(text)); done {
				t.Fatal("let in")
			}
		}
	})
}
