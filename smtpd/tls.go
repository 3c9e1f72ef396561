// TLS of the server: what smtpd_tls_ says, STARTTLS and the wrapper mode, and what is
// known of a client by its certificate.

package smtpd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/access"
	"posthaste/internal/anvil"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/quickio"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy"
)

// tlsLevel is smtpd_tls_security_level. As with Postfix, the level does not concern
// the client's certificate: smtpd_tls_req_ccert does.
type tlsLevel uint8

const (
	tlsNone    tlsLevel = iota // no TLS, or none that could be had with level may
	tlsMay                     // STARTTLS is offered
	tlsEncrypt                 // STARTTLS is demanded, or the port is a wrapped one
)

// tlsSettings are what TLS sessions of one service have in common. They do not
// change, but for the certificates in keys. With level tlsNone the fields from
// config on are nil.
type tlsSettings struct {
	level     tlsLevel
	wrapper   bool   // smtpd_tls_wrappermode: TLS from the first octet
	authOnly  bool   // AUTH needs TLS
	askCert   bool   // clients are asked for a certificate, and need not have one
	needTrust bool   // smtpd_tls_req_ccert: they need one that our CAs vouch for
	digest    string // of fingerprints: a key of digests
	logLevel  int    // smtpd_tls_loglevel
	// logLevels is smtpd_tls_loglevel_maps, by client; with logParents a domain stands
	// for its subdomains.
	logLevels  *table.Maps
	logParents bool
	depth      int                // how long a client's chain may be above its certificate
	usages     []x509.ExtKeyUsage // that a client's certificate may have; one of them suffices
	config     *tls.Config
	keys       *keyring
	roots      *x509.CertPool // the CAs that vouch for clients; may be nil
	named      *x509.CertPool // those of smtpd_tls_CAfile, of which clients are told; nil: none
}

// readTLS reads the smtpd_tls_ parameters. TLS that is asked for and cannot be had
// is an error with level encrypt, and a warning with may, which then goes on
// without TLS: mail that may come in the clear is better than no mail.
func readTLS(cfg *config.Config, warn func(string, ...any), o table.Options) (*tlsSettings, error) {
	t := &tlsSettings{wrapper: cfg.Bool("smtpd_tls_wrappermode"), authOnly: cfg.Bool("smtpd_tls_auth_only"),
		askCert: cfg.Bool("smtpd_tls_ask_ccert"), digest: cfg.String("smtpd_tls_fingerprint_digest"),
		logLevel: cfg.Int("smtpd_tls_loglevel"), depth: cfg.Int("smtpd_tls_ccert_verifydepth"),
		usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if cfg.Bool("tls_trust_server_ccerts") {
		t.usages = append(t.usages, x509.ExtKeyUsageServerAuth)
	}
	switch level := cfg.String("smtpd_tls_security_level"); level {
	case "":
		if cfg.Bool("smtpd_enforce_tls") {
			t.level = tlsEncrypt
		} else if cfg.Bool("smtpd_use_tls") {
			t.level = tlsMay
		}
	case "none":
	case "may":
		t.level = tlsMay
	case "encrypt":
		t.level = tlsEncrypt
	case "fingerprint", "verify", "secure", "dane", "dane-only", "half-dane":
		warn("smtpd_tls_security_level: unsupported level %q, using \"encrypt\"", level)
		t.level = tlsEncrypt
	default:
		return nil, fmt.Errorf("smtpd_tls_security_level = %s: expected none, may or encrypt", level)
	}
	// There is nothing opportunistic about such a port: the mandatory settings are
	// the ones that apply.
	if t.wrapper {
		t.level = tlsEncrypt
	}
	// Where TLS is demanded, AUTH before it is refused in any case.
	t.authOnly = t.authOnly || t.level == tlsEncrypt
	if t.level == tlsNone {
		return t, nil
	}
	if cfg.Bool("smtpd_tls_req_ccert") {
		t.askCert = true
		if t.level == tlsEncrypt {
			t.needTrust = true
		} else {
			warn("smtpd_tls_req_ccert is ignored unless smtpd_tls_security_level = encrypt")
		}
	}
	if _, ok := digests[t.digest]; !ok {
		return nil, fmt.Errorf("smtpd_tls_fingerprint_digest = %s: expected md5, sha1, sha256, sha384 or sha512", t.digest)
	}
	t.readRoots(cfg, warn)
	t.keys = newKeyring(cfg, o, t.roots)
	if err := t.keys.Refresh(time.Now()); err != nil {
		if t.level == tlsEncrypt {
			return nil, err
		}
		warn("TLS is disabled: %v", err)
		t.level = tlsNone
		return t, nil
	}
	t.logLevels = table.OpenMaps("smtpd_tls_loglevel_maps", cfg.List("smtpd_tls_loglevel_maps"), o)
	t.logParents = slices.Contains(cfg.List("parent_domain_matches_subdomains"), "smtpd_tls_loglevel_maps")
	return t, t.makeConfig(cfg, warn)
}

// readRoots reads the CAs that vouch for clients, and that may be needed above our
// own certificate. Files that cannot be read vouch for nobody: a warning, since
// mail needs no client certificates.
func (t *tlsSettings) readRoots(cfg *config.Config, warn func(string, ...any)) {
	var files []string
	if f := cfg.String("smtpd_tls_CAfile"); f != "" {
		files = []string{f}
		t.named, _ = tlspolicy.Roots(files, "", false) // the warning comes with what follows
	}
	var err error
	if t.roots, err = tlspolicy.Roots(files, cfg.String("smtpd_tls_CApath"), cfg.Bool("tls_append_default_CA")); err != nil {
		warn("smtpd_tls_CAfile, smtpd_tls_CApath: %v", err)
	}
}

// makeConfig turns protocol and cipher settings into a tls.Config. Mandatory TLS
// has settings of its own, the stricter ones.
func (t *tlsSettings) makeConfig(cfg *config.Config, warn func(string, ...any)) error {
	protocols, exclude := "smtpd_tls_protocols", cfg.List("smtpd_tls_exclude_ciphers")
	grade := cfg.String("smtpd_tls_ciphers")
	if t.level == tlsEncrypt {
		protocols, grade = "smtpd_tls_mandatory_protocols", cfg.String("smtpd_tls_mandatory_ciphers")
		exclude = append(exclude[:len(exclude):len(exclude)], cfg.List("smtpd_tls_mandatory_exclude_ciphers")...)
	}
	allowed, err := tlspolicy.ParseProtocols(strings.Join(cfg.List(protocols), " "))
	if err != nil {
		return fmt.Errorf("%s: %w", protocols, err)
	}
	if w := allowed.Warning(); w != "" {
		warn("%s: %s", protocols, w)
	}
	curves, err := tlspolicy.Curves(cfg.List("tls_eecdh_auto_curves"))
	if err != nil {
		return fmt.Errorf("tls_eecdh_auto_curves: %w", err)
	}
	suites, err := cipherSuites(tlspolicy.ReadGrades(cfg, warn), grade, exclude, warn)
	if err != nil {
		return err
	}
	// The suites of TLSv1.3 cannot be excluded in crypto/tls.
	if len(suites) == 0 {
		if allowed.Min = tls.VersionTLS13; allowed.Max < allowed.Min {
			return fmt.Errorf("smtpd_tls_exclude_ciphers: no cipher is left for the protocols of %s", protocols)
		}
	}
	t.config = &tls.Config{MinVersion: allowed.Min, MaxVersion: allowed.Max, GetCertificate: t.keys.choose,
		CipherSuites: suites, CurvePreferences: curves}
	if t.askCert {
		t.config.ClientAuth = tls.RequestClientCert // one that must be there is missed in a reply, not in the handshake
		t.config.ClientCAs = t.named                // for clients that have to choose one of several
	}
	limitTickets(t.config, cfg.Duration("smtpd_tls_session_cache_timeout"), time.Now)
	for _, option := range cfg.List("tls_ssl_options") {
		switch strings.ToUpper(strings.TrimPrefix(strings.ToUpper(option), "SSL_OP_")) {
		case "NO_TICKET":
			t.config.SessionTicketsDisabled = true
		case "NO_RENEGOTIATION", "NO_COMPRESSION": // never done
		default:
			warn("tls_ssl_options: %s is not supported", option)
		}
	}
	return nil
}

// verify says why our CAs do not vouch for a client with this chain, or nil if they
// do. chain is as the client sent it, its own certificate first, and not empty.
func (t *tlsSettings) verify(chain []*x509.Certificate) error {
	if t.roots == nil {
		return errors.New("smtpd_tls_CAfile and smtpd_tls_CApath name no CA")
	}
	return tlspolicy.Trusted(chain, t.roots, t.depth, time.Now(), t.usages...)
}

// cipherSuites are the TLS 1.2 suites that are not excluded. Every grade for which
// the site has no cipher list of its own means the same: those that crypto/tls
// takes for good. OpenSSL's grades below that have no suites left here.
func cipherSuites(grades tlspolicy.Grades, grade string, exclude []string, warn func(string, ...any)) ([]uint16, error) {
	_, own := grades[strings.ToLower(grade)]
	switch {
	case own || grade == "high" || grade == "medium" || grade == "":
	case grade == "low" || grade == "export" || grade == "null":
		warn("cipher grade %q is not supported, using \"medium\"", grade)
		grade = "medium"
	default:
		warn("unknown cipher grade %q, using \"medium\"", grade)
		grade = "medium"
	}
	for _, word := range tlspolicy.UnknownCiphers(exclude) {
		warn("smtpd_tls_exclude_ciphers, smtpd_tls_mandatory_exclude_ciphers: %q names no cipher, and excludes nothing", word)
	}
	if _, own = grades[strings.ToLower(grade)]; own {
		return grades.Suites(grade, exclude)
	}
	return tlspolicy.CipherSuites("high", exclude)
}

// tlsState is the TLS of one session. It lives until the session ends.
type tlsState struct {
	cert  *tls.Certificate // what we presented; may be nil for a resumed session
	under *transport
}

// transport is the socket under TLS. It remembers which certificate was chosen for
// it, which crypto/tls does not tell. Only the session's goroutine touches it.
type transport struct {
	net.Conn
	cert *tls.Certificate // set by keyring.choose
	sni  string           // the name that tls_server_sni_maps has a certificate for; or empty
	// now: Read does not wait. Set only within readNow.
	now bool
	// schemes are the signatures that the client accepts, in its order.
	schemes []tls.SignatureScheme
}

// Read implements net.Conn.
func (t *transport) Read(p []byte) (int, error) {
	if !t.now {
		return t.Conn.Read(p)
	}
	if c, ok := t.Conn.(*quickio.Conn); ok {
		if n := c.ReadNow(p); n > 0 {
			return n, nil
		}
	}
	return 0, os.ErrDeadlineExceeded // which TLS takes for something that passes
}

// readNow reads what c, the TLS over t, can have without waiting: what it has
// deciphered or received already, or what is in the socket. It returns the number
// of octets, 0 if there are none. An error is left to the next read.
func (t *transport) readNow(c *tls.Conn, p []byte) int {
	t.now = true
	n, _ := c.Read(p)
	t.now = false
	return n
}

// mustStartTLS says whether a command has to wait for encryption. RFC 3207 section
// 4 has 530 for it, and lets NOOP, EHLO, STARTTLS and QUIT pass; HELO, HELP and
// XCLIENT pass with Postfix.
func (s *session) mustStartTLS(v verb) bool {
	t := s.srv.tlsSet
	return t.level == tlsEncrypt && s.a.TLS == nil && commands[v].traits&tPreTLS == 0
}

// startTLS is STARTTLS, RFC 3207. Without a reply and an error the session goes on
// under TLS, over another port: the engine may know of an authentication that has
// to be forgotten. Section 4.2 has both sides forget what they learned before,
// since it could have been forged.
func (s *session) startTLS() (*smtpwire.Reply, error) {
	t := s.srv.tlsSet
	switch {
	case s.cmd.Args != "":
		return smtpwire.R(501, dsn.S(5, 5, 4), "Syntax: STARTTLS"), nil
	case s.a.TLS != nil:
		return smtpwire.R(554, dsn.S(5, 5, 1), "Error: TLS already active"), nil
	case t.level == tlsNone || t.wrapper || s.hiddenKeywords()["starttls"]:
		return smtpwire.R(502, dsn.S(5, 5, 1), "Error: command not implemented"), nil
	case s.srv.limits.exceeded(s, anvil.NewTLS):
		return smtpwire.R(454, dsn.S(4, 7, 0), "Error: too many new TLS sessions from "+s.a.AddrText), nil
	}
	// The reply is the last thing in the clear; the handshake flushes it.
	s.replyAndCount(smtpwire.R(220, dsn.S(2, 0, 0), "Ready to start TLS"))
	if err := s.handshake(); err != nil {
		return nil, err
	}
	s.endMail()
	s.a.ResetHelo()
	s.logout()
	return nil, nil
}

// wrap begins TLS before anything is said (RFC 8314 section 3.3). An error has
// ended the session.
func (s *session) wrap() error {
	if s.srv.limits.exceeded(s, anvil.NewTLS) {
		s.leave()
		return errRefused
	}
	if err := s.handshake(); err != nil {
		return err
	}
	if s.mistrusted != "" {
		s.mistrust()
		return errRefused
	}
	return nil
}

// handshake encrypts the connection. What the client sent before it is forgotten:
// it may have been put there by somebody in between, who would have us take it for
// the client's once TLS is up (RFC 3207 section 6; the STARTTLS command injection
// of 2011). An error has ended the session.
//
// A certificate that is missing is not an error of the handshake: the client would
// learn no more than that a connection broke. mistrusted keeps it for a reply
// instead.
func (s *session) handshake() error {
	if err := s.wire.flush(); err != nil {
		s.lost(err)
		return err
	}
	s.wire.discard()
	under := &transport{Conn: s.wire.nc}
	c := tls.Server(under, s.srv.tlsSet.config)
	ctx, cancel := context.WithTimeout(s.ctx(), s.set.startTLSTimeout)
	defer cancel()
	// The context bounds the handshake; deadlines of the wire would cut it short.
	s.wire.nc.SetDeadline(time.Time{})
	if err := c.HandshakeContext(ctx); err != nil {
		s.srv.log.Log(maillog.TLSAcceptFailed{Peer: s.a.NameAddr(), Reason: handshakeProblem(err)})
		if ctx.Err() != nil {
			s.reason = "timeout"
		}
		s.ended = true
		return err
	}
	s.wire.nc = c
	s.tls = &tlsState{cert: under.cert, under: under}
	s.a.TLS = s.srv.tlsSet.describe(c.ConnectionState())
	e := maillog.TLSEstablished{Server: true, Trust: s.trust(), Peer: s.a.NameAddr(), SNI: under.sni,
		Proto: s.a.TLS.Protocol, Cipher: s.a.TLS.Cipher, Bits: s.a.TLS.Bits}
	e.KeyExchange, e.Signature, e.Digest = s.tlsMeans()
	if s.tlsLogLevel() == 0 {
		s.srv.log.Count(e)
	} else {
		s.srv.log.Log(e)
	}
	if s.srv.tlsSet.needTrust && !s.a.TLS.Trusted {
		s.mistrusted = "No client certificate presented"
		if chain := s.a.TLS.State.PeerCertificates; len(chain) > 0 {
			s.mistrusted = "Client certificate not trusted"
			s.srv.log.Log(maillog.CertificateNotTrusted{Peer: s.a.NameAddr(), Reason: fmt.Sprint(s.srv.tlsSet.verify(chain))})
		}
		s.srv.log.Log(maillog.TLSAborted{Peer: s.a.NameAddr(), Reason: s.mistrusted})
	}
	return nil
}

// mistrust ends a session whose client has not shown the certificate that it must
// have (smtpd_tls_req_ccert): with 421 in reply to what it says first, or in place
// of the greeting.
func (s *session) mistrust() {
	s.reply(smtpwire.R(421, dsn.S(4, 7, 1), s.set.myhostname+" Error: "+s.mistrusted))
}

// handshakeProblem words a handshake that failed: a connection that broke as
// Postfix's logs have it, and what is wrong with TLS in the library's words.
func handshakeProblem(err error) string {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "lost connection"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "Connection reset by peer"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "Connection timed out"
	}
	return err.Error()
}

// tlsLogLevel is how much is logged about the TLS of this client: what
// smtpd_tls_loglevel_maps has for its name or address, or smtpd_tls_loglevel.
func (s *session) tlsLogLevel() int {
	t := s.srv.tlsSet
	if level, found := t.logLevels.LookupLevel(s.ctx(), s.a.Name, s.a.AddrText, !t.logParents, s.srv.log.Warning); found {
		return level
	}
	return t.logLevel
}

// describe is what restrictions, log lines and Received: fields may know of a TLS
// session. The fingerprints are of the client's certificate and of its key; both
// are empty without a certificate, and neither needs a CA.
func (t *tlsSettings) describe(state tls.ConnectionState) *access.TLS {
	a := &access.TLS{State: state, Protocol: tlspolicy.ProtocolName(state.Version), Cipher: tlspolicy.CipherName(state.CipherSuite),
		Bits: tlspolicy.CipherBits(state.CipherSuite)}
	if len(state.PeerCertificates) > 0 {
		leaf := state.PeerCertificates[0]
		a.Fingerprint = fingerprint(t.digest, leaf.Raw)
		a.PubKeyPrint = fingerprint(t.digest, leaf.RawSubjectPublicKeyInfo)
		a.Subject, a.Issuer = leaf.Subject.CommonName, issuerName(leaf)
		a.Trusted = t.verify(state.PeerCertificates) == nil
	}
	return a
}

// issuerName is the name of the issuer for log lines: its common name or, since
// some CAs have none, its organization.
func issuerName(c *x509.Certificate) string {
	if c.Issuer.CommonName == "" && len(c.Issuer.Organization) > 0 {
		return c.Issuer.Organization[0]
	}
	return c.Issuer.CommonName
}

// trust is how much is known of the client, in the word that log lines have for it.
func (s *session) trust() string {
	switch {
	case s.a.TLS.Fingerprint == "":
		return "Anonymous"
	case s.a.TLS.Trusted:
		return "Trusted"
	}
	return "Untrusted"
}
