package sasl

import (
	"crypto"
	"crypto/x509"
)

// Ways to bind an exchange to the TLS session it takes place in, so that
// nobody in between can take part in both: what both ends see of the session
// goes into the proof.
const (
	exporter       = "tls-exporter"         // RFC 9266
	serverEndPoint = "tls-server-end-point" // RFC 5929 section 4
)

// binding is the session's own data in one of these ways, nil when there is
// none. tls-unique is not among them: it says nothing in TLS 1.3, and in TLS 1.2 it
// was broken (RFC 7627).
func (c Client) binding(way string) []byte {
	switch {
	case c.TLS == nil:
	case way == exporter:
		// Fails in TLS 1.2 without extended master secret, as it must (RFC 9266
		// section 4.2).
		if b, err := c.TLS.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32); err == nil {
			return b
		}
	case way == serverEndPoint && c.Certificate != nil:
		if h := endPointHash(c.Certificate.SignatureAlgorithm); h != 0 {
			sum := h.New()
			sum.Write(c.Certificate.Raw)
			return sum.Sum(nil)
		}
	}
	return nil
}

// canBind says whether -PLUS mechanisms are for this client.
func (c Client) canBind() bool {
	return !c.Unbound && (c.binding(exporter) != nil || c.binding(serverEndPoint) != nil)
}

// endPointHash is that of the certificate's signature, SHA-256 in place of
// weaker ones; 0 where the RFC knows none, as for Ed25519.
func endPointHash(a x509.SignatureAlgorithm) crypto.Hash {
	switch a {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.ECDSAWithSHA1,
		x509.SHA256WithRSA, x509.SHA256WithRSAPSS, x509.ECDSAWithSHA256:
		return crypto.SHA256
	case x509.SHA384WithRSA, x509.SHA384WithRSAPSS, x509.ECDSAWithSHA384:
		return crypto.SHA384
	case x509.SHA512WithRSA, x509.SHA512WithRSAPSS, x509.ECDSAWithSHA512:
		return crypto.SHA512
	}
	return 0
}
