package posttlsfinger

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	// The digests that fingerprints may have.
	_ "crypto/md5"
	_ "crypto/sha1"
	_ "crypto/sha256"
	_ "crypto/sha512"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/tlspolicy"
)

// depth is how many CAs may stand between a certificate and a root: smtp_tls_scert_verifydepth's default.
const depth = 9

// A client is our side of TLS.
type client struct {
	conf   *tls.Config
	roots  *x509.CertPool
	digest string
}

func newClient(o *options, cfg *config.Config) (*client, error) {
	protocols, err := tlspolicy.ParseProtocols(o.protocols)
	if err != nil {
		return nil, err
	}
	suites, err := tlspolicy.CipherSuites(o.grade, nil)
	if err != nil {
		return nil, fmt.Errorf("-g %s: %w", o.grade, err)
	}
	c := &client{digest: o.digest, conf: &tls.Config{
		InsecureSkipVerify: true, // see verify
		MinVersion:         protocols.Min, MaxVersion: protocols.Max, CipherSuites: suites,
	}}
	if c.conf.CurvePreferences, err = tlspolicy.Curves(cfg.List("tls_eecdh_auto_curves")); err != nil {
		return nil, fmt.Errorf("tls_eecdh_auto_curves: %w", err)
	}
	if c.digest == "" {
		c.digest = cfg.String("smtp_tls_fingerprint_digest")
	}
	if o.reconnect > 0 {
		c.conf.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	files := o.anchors
	if len(files) == 0 && o.caFile != "" {
		files = []string{o.caFile}
	}
	dir := o.caPath
	if len(o.anchors) > 0 {
		dir = ""
	}
	if c.roots, err = tlspolicy.Roots(files, dir, false); err != nil {
		return nil, err
	}
	certs, err := o.certificates()
	if err != nil {
		return nil, err
	}
	if len(certs) > 0 {
		c.conf.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			for _, cert := range certs {
				if info.SupportsCertificate(cert) == nil {
					return cert, nil
				}
			}
			return new(tls.Certificate), nil
		}
	}
	return c, nil
}

// certificates are our own.
func (o *options) certificates() ([]*tls.Certificate, error) {
	if len(o.chains) > 0 {
		return tlspolicy.ReadChains(o.chains)
	}
	cert, key := o.cert, o.key
	if cert == "" {
		cert = key
	}
	if key == "" {
		key = cert
	}
	if cert == "" {
		return nil, nil
	}
	pair, err := tlspolicy.ReadPair(cert, key)
	if err != nil {
		return nil, err
	}
	return []*tls.Certificate{&pair}, nil
}

// A policy is what a server's certificate must be.
type policy struct {
	level        tlspolicy.Level
	names        []string
	fingerprints []string
	tlsa         []tlspolicy.TLSA
	sni          string
}

// shakeHands does the TLS handshake and says what came of it.
func (f *finger) shakeHands(ctx context.Context, s *session, p *policy) error {
	conf := f.tls.conf.Clone()
	conf.ServerName = p.sni
	if conf.ServerName == "" && conf.ClientSessionCache != nil {
		conf.ClientSessionCache = keyed{conf.ClientSessionCache, s.peer} // without SNI it would go by the address alone
	}
	ctx, cancel := context.WithTimeout(ctx, f.cmdTime)
	defer cancel()
	conn := tls.Client(s.conn, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		f.say("SSL_connect error to %s: %v", s.peer, err)
		return err
	}
	s.use(conn)
	state := conn.ConnectionState()
	s.state = &state
	f.report(s, p)
	return nil
}

// keyed is a cache whose sessions are of one server.
type keyed struct {
	tls.ClientSessionCache
	server string
}

func (k keyed) Get(string) (*tls.ClientSessionState, bool) { return k.ClientSessionCache.Get(k.server) }
func (k keyed) Put(_ string, s *tls.ClientSessionState)    { k.ClientSessionCache.Put(k.server, s) }

// report says what the certificate is worth, and how the session is encrypted.
func (f *finger) report(s *session, p *policy) {
	chain := s.state.PeerCertificates
	if s.state.DidResume && f.logs&logCache != 0 {
		f.say("%s: Reusing old session", s.peer)
	}
	trust := "Anonymous"
	if len(chain) > 0 {
		trust = f.verify(s, p, chain)
	}
	if f.logs&(logPeer|logMatch) != 0 && len(chain) > 0 {
		cert := chain[0]
		f.say("%s: subject_CN=%s, issuer_CN=%s, fingerprint=%s, pkey_fingerprint=%s", s.peer, cert.Subject.CommonName,
			issuerName(cert), f.fingerprint(cert.Raw), f.fingerprint(cert.RawSubjectPublicKeyInfo))
	}
	if f.logs&logSummary == 0 {
		return
	}
	e := maillog.TLSEstablished{Trust: trust, Peer: s.peer, Proto: tlspolicy.ProtocolName(s.state.Version), Cipher: tlspolicy.CipherName(s.state.CipherSuite),
		Bits: tlspolicy.CipherBits(s.state.CipherSuite)}
	if s.state.Version == tls.VersionTLS13 {
		e.KeyExchange = tlspolicy.KeyExchange(s.state.CurveID)
	}
	e.Signature, e.Digest = tlspolicy.PeerSignature(s.state)
	f.say("%s", e.Append(nil))
}

// verify says what the server's certificate is worth, in a word.
func (f *finger) verify(s *session, p *policy, chain []*x509.Certificate) string {
	fail := func(format string, args ...any) {
		if p.level >= tlspolicy.Fingerprint || f.logs&logUntrusted != 0 {
			f.say(format, args...)
		}
	}
	matched := func(what string) string {
		if f.logs&logMatch != 0 {
			f.say("%s: matched %s", s.peer, what)
		}
		return "Verified"
	}
	switch {
	case p.level == tlspolicy.Fingerprint:
		if tlspolicy.MatchFingerprint(chain[0], f.tls.digest, p.fingerprints) {
			return matched("fingerprint")
		}
		fail("server certificate verification failed for %s: neither the certificate nor its key has one of the fingerprints", s.peer)
		return "Untrusted"
	case len(p.tlsa) > 0:
		rule := tlspolicy.NameRule{Names: f.names}
		if err := tlspolicy.VerifyDANE(p.tlsa, chain, p.names, depth, time.Now(), rule); err != nil {
			fail("certificate verification failed for %s: %v", s.peer, err)
			return "Untrusted"
		}
		return matched("DANE TLSA record")
	}
	if err := tlspolicy.Trusted(chain, f.tls.roots, depth, time.Now(), x509.ExtKeyUsageServerAuth); err != nil {
		text := err.Error()
		if bytes.Equal(chain[0].RawSubject, chain[0].RawIssuer) && len(chain) == 1 {
			text = "self-signed certificate"
		}
		fail("certificate verification failed for %s: %s", s.peer, text)
		return "Untrusted"
	}
	if p.level < tlspolicy.Verify {
		return "Trusted"
	}
	rule := tlspolicy.NameRule{Names: f.names}
	for _, name := range p.names {
		if rule.Match(chain[0], []string{name}) {
			return matched("peername: " + nameIn(chain[0], name, rule))
		}
	}
	fail("server certificate verification failed for %s: num=62:hostname mismatch", s.peer)
	return "Untrusted"
}

// nameIn is the name in a certificate that one that is looked for stands for.
func nameIn(cert *x509.Certificate, name string, rule tlspolicy.NameRule) string {
	for _, own := range cert.DNSNames {
		if rule.Match(&x509.Certificate{DNSNames: []string{own}}, []string{name}) {
			return own
		}
	}
	return cert.Subject.CommonName
}

// issuerName is what the issuer of a certificate is called.
func issuerName(cert *x509.Certificate) string {
	if cert.Issuer.CommonName == "" && len(cert.Issuer.Organization) > 0 {
		return cert.Issuer.Organization[0]
	}
	return cert.Issuer.CommonName
}

// hashes are the digests by their names.
var hashes = map[string]crypto.Hash{"md5": crypto.MD5, "sha1": crypto.SHA1, "sha224": crypto.SHA224, "sha256": crypto.SHA256,
	"sha384": crypto.SHA384, "sha512": crypto.SHA512}

// fingerprint is the digest of a certificate or a key.
func (f *finger) fingerprint(der []byte) string {
	hash, ok := hashes[strings.ToLower(f.tls.digest)]
	if !ok {
		return "(" + f.tls.digest + "?)"
	}
	h := hash.New()
	h.Write(der)
	return colons(h.Sum(nil))
}

// colons are octets in hexadecimal.
func colons(b []byte) string { return strings.ReplaceAll(fmt.Sprintf("% X", b), " ", ":") }

// printChain is -C: the certificates that the server sent.
func (f *finger) printChain(chain []*x509.Certificate) {
	fmt.Fprint(f.out, "\n---\nCertificate chain\n")
	for i, cert := range chain {
		fmt.Fprintf(f.out, "%2d subject: %s\n    issuer: %s\n   cert digest=%s\n   pkey digest=%s\n%s", i, oneLine(cert.RawSubject), oneLine(cert.RawIssuer),
			f.fingerprint(cert.Raw), f.fingerprint(cert.RawSubjectPublicKeyInfo), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	}
}

// attributes are the short names of what distinguished names are made of.
var attributes = map[string]string{"2.5.4.3": "CN", "2.5.4.5": "serialNumber", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST",
	"2.5.4.9": "street", "2.5.4.10": "O", "2.5.4.11": "OU", "2.5.4.17": "postalCode", "1.2.840.113549.1.9.1": "emailAddress",
	"0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID"}

// oneLine is a distinguished name, from the root down.
func oneLine(raw []byte) string {
	var names pkix.RDNSequence
	if rest, err := asn1.Unmarshal(raw, &names); err != nil || len(rest) > 0 {
		return "(unreadable)"
	}
	var b strings.Builder
	for _, set := range names {
		for _, a := range set {
			name := a.Type.String()
			if short, ok := attributes[name]; ok {
				name = short
			}
			fmt.Fprintf(&b, "/%s=%v", name, a.Value)
		}
	}
	return string(maillog.AppendClean(nil, []byte(b.String())))
}
