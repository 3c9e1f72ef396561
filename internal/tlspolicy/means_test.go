package tlspolicy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"testing"
)

func TestSignature(t *testing.T) {
	t.Parallel()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edKey, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	all := []tls.SignatureScheme{tls.PKCS1WithSHA256, tls.ECDSAWithP256AndSHA256, tls.PSSWithSHA512, tls.PSSWithSHA256}
	for _, tc := range []struct {
		key               crypto.PublicKey
		schemes           []tls.SignatureScheme
		signature, digest string
	}{
		{&rsaKey.PublicKey, all, "RSA-PSS (2048 bits)", "SHA512"},
		{&rsaKey.PublicKey, all[3:], "RSA-PSS (2048 bits)", "SHA256"},
		{&rsaKey.PublicKey, nil, "RSA-PSS (2048 bits)", ""},
		{&ecKey.PublicKey, all, "ECDSA (secp384r1)", "SHA384"},
		{edKey, all, "ED25519", ""},
		{"", all, "unknown", ""},
	} {
		if s, d := Signature(tc.key, tc.schemes); s != tc.signature || d != tc.digest {
			t.Errorf("%T, %v: %q, %q", tc.key, tc.schemes, s, d)
		}
	}
	for c, want := range map[tls.CurveID]string{0: "", tls.X25519: "X25519", tls.CurveP256: "ECDHE (prime256v1)", tls.X25519MLKEM768: "X25519MLKEM768"} {
		if got := KeyExchange(c); got != want {
			t.Errorf("%v: %q", c, got)
		}
	}
}
