package tlspolicy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"fmt"
	"reflect"
	"slices"
)

// KeyExchange is the name that logs and Received: have for a TLS 1.3 key exchange,
// in Postfix's words. It is empty for none.
func KeyExchange(c tls.CurveID) string {
	switch c {
	case 0:
		return ""
	case tls.CurveP256:
		return "ECDHE (prime256v1)"
	case tls.CurveP384:
		return "ECDHE (secp384r1)"
	case tls.CurveP521:
		return "ECDHE (secp521r1)"
	}
	return c.String()
}

// pssDigests are the digests of RSA-PSS, by scheme.
var pssDigests = map[tls.SignatureScheme]string{tls.PSSWithSHA256: "SHA256", tls.PSSWithSHA384: "SHA384", tls.PSSWithSHA512: "SHA512"}

// Signature is how the owner of a key signs in a TLS 1.3 handshake, in Postfix's
// words: the kind of signature, and the digest under it. schemes are what the
// other side takes, in its order of preference; they decide about the digest of
// an RSA key. Where they are not known, digest is empty.
func Signature(key crypto.PublicKey, schemes []tls.SignatureScheme) (signature, digest string) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if i := slices.IndexFunc(schemes, func(s tls.SignatureScheme) bool { return pssDigests[s] != "" }); i >= 0 {
			digest = pssDigests[schemes[i]]
		}
		return fmt.Sprintf("RSA-PSS (%d bits)", k.N.BitLen()), digest
	case *ecdsa.PublicKey:
		switch k.Curve.Params().BitSize { // the curve has its digest, RFC 8446 section 4.2.3
		case 256:
			return "ECDSA (prime256v1)", "SHA256"
		case 384:
			return "ECDSA (secp384r1)", "SHA384"
		case 521:
			return "ECDSA (secp521r1)", "SHA512"
		}
	case ed25519.PublicKey:
		return "ED25519", ""
	}
	return "unknown", ""
}

// PeerSignature is what Signature is, of a server that has proved in a TLS 1.3
// handshake that its certificate is its own. Both are empty where it did not have
// to: before TLS 1.3, and where a session was resumed.
func PeerSignature(st *tls.ConnectionState) (signature, digest string) {
	if st.Version != tls.VersionTLS13 || st.DidResume || len(st.PeerCertificates) == 0 {
		return "", ""
	}
	return Signature(st.PeerCertificates[0].PublicKey, peerScheme(st))
}

// peerScheme is the scheme that the peer has signed with, or nothing where it is
// not known. crypto/tls keeps it, and exports it to nobody. A test notices when it
// is not there any more; the log then lacks the digest of RSA keys.
func peerScheme(st *tls.ConnectionState) []tls.SignatureScheme {
	v := reflect.ValueOf(st).Elem().FieldByName("testingOnlyPeerSignatureAlgorithm")
	if !v.IsValid() || !v.CanUint() || v.IsZero() {
		return nil
	}
	return []tls.SignatureScheme{tls.SignatureScheme(v.Uint())}
}
