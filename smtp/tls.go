// TLS towards servers: which policy applies, the handshake, and what the certificate is
// worth. The parameters are in tlssettings.go, DANE in dane.go.

package smtp

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/tlspolicy"
	"posthaste/internal/tlsrpt"
)

// policy is what one server's TLS must be like. It is made for each attempt at a
// server; what it points at is shared.
type policy struct {
	*tlspolicy.Policy
	names []string         // for one of which its certificate must be; empty where nobody asks
	tlsa  []tlspolicy.TLSA // DANE: of which one must match; empty: another level applies
	sni   string           // the name that the handshake asks for; empty: none
	// system says that the CAs that everybody trusts count where none have
	// been chosen.
	system bool

	report *tlsrpt.Policy    // how TLSRPT calls it; nil: the session is not counted
	trial  *tlspolicy.Policy // an MTA-STS policy that is being tested
}

// tlsState is TLS that has been set up. It lives as long as the session does, over all
// the deliveries that use it: the cache keeps apart those with other demands.
type tlsState struct {
	tls.ConnectionState
	policy   *policy // under which it was set up
	trusted  bool    // a CA of ours vouches for the certificate
	matched  bool    // and it is for the right name, or is one that is known
	loglevel int     // how much is logged of it
	name     string  // protocol and cipher, for events
}

// tlsProblem is a failure of our own configuration: a table that cannot be asked,
// or an entry that means nothing. It is temporary, and mail does not go out under a
// weaker policy meanwhile.
func (d *delivery) tlsProblem(why error) *failure {
	d.log.LogWarning(maillog.SMTPPolicyProblem{ID: d.id, Nexthop: d.hop.text, Reason: why.Error()})
	return &failure{kind: siteFailed, status: dsn.S(4, 7, 5), text: "client TLS configuration problem"}
}

// policy says what TLS a server must have, before it is called. A failure is of
// this server.
func (d *delivery) policy(ctx context.Context, t *target) (*policy, *failure) {
	// Whether the sender demands TLS cannot be found out: the message waits rather
	// than go out without.
	if d.requireErr != nil {
		return nil, d.tlsProblem(d.requireErr)
	}
	p, f := d.sitePolicy(ctx, t)
	// The sender's demand comes on top of the site's policy: it may raise the
	// level, and never lowers it.
	if f == nil && d.require == requireAll {
		p, f = d.requirePolicy(t, p)
	}
	if f == nil {
		d.reportPolicy(ctx, p)
	}
	return p, f
}

// sitePolicy says what TLS a server must have for the destination's sake, and for
// this system's: the sender's wish to do without, smtp_tls_policy_maps,
// smtp_tls_per_site, and then smtp_tls_security_level, in this order.
func (d *delivery) sitePolicy(ctx context.Context, t *target) (*policy, *failure) {
	c := d.a.tls
	// "TLS-Required: no": the sender would rather have the mail read than lost (RFC 8689 section 5).
	if d.env.TLSOptional && c.optionalTLS && !d.env.RequireTLS {
		level := min(c.Level, tlspolicy.May)
		if t.path != "" {
			level = tlspolicy.None // see localPolicy
		}
		if c.wrapper {
			level = tlspolicy.Encrypt
		}
		return &policy{Policy: c.Default(level), sni: d.serverName(t, c.ServerName)}, nil
	}
	// The old table counts only where the new one is not used at all, as with
	// Postfix.
	found, err := d.policyEntry(ctx)
	if c.maps.Empty() && !c.sites.Empty() {
		var level tlspolicy.Level
		var ok bool
		if level, ok, err = d.perSite(ctx, t); ok {
			found = c.Default(level)
		}
	}
	if err != nil {
		return nil, d.tlsProblem(err)
	}
	// Nothing is said of this destination: the default, whatever it is.
	if found == nil {
		found = c.Default(d.advisedLevel())
	}
	if found.STS && c.Level.IsDane() {
		// DANE comes first where there is any, RFC 8461 section 2.
		p, f := d.danePolicy(ctx, t, &policy{Policy: c.Default(c.Level)})
		if f != nil || len(p.tlsa) > 0 {
			return p, f
		}
	}
	if t.path != "" {
		if found, err = d.localPolicy(found); err != nil {
			return nil, d.tlsProblem(err)
		}
	}
	// MTA-STS is about the CAs that everybody trusts; those of main.cf take their
	// place where there are any.
	p := &policy{Policy: found, sni: d.serverName(t, found.ServerName), system: found.STS && !c.chosen}
	// On a wrapped port there is no way to go on in the clear: a level that allows
	// that is a contradiction in main.cf.
	if c.wrapper && !p.Level.Mandatory() {
		return nil, d.tlsProblem(errors.New("smtp_tls_wrappermode = yes needs security level encrypt or stronger"))
	}
	// A server that a policy of MTA-STS does not name is not used, however good its
	// certificate is: the MX record may be forged (RFC 8461 section 4.1).
	if !p.AllowsMX(t.host) {
		d.log.LogWarning(maillog.SMTPPolicyMX{ID: d.id, Host: t.host, Domain: d.hop.host})
		d.reportNoSession(t, tlsrpt.PolicySTS, &flaw{tlsrpt.ValidationError, "the MX host is not in the policy"})
		return nil, &failure{kind: siteFailed, status: dsn.S(4, 7, 5), text: "MX host " + t.host + " does not match the MTA-STS policy of " + d.hop.host}
	}
	if p.Level.IsDane() {
		return d.danePolicy(ctx, t, p)
	}
	// Without names of their own, verify compares the certificate with the MX host,
	// secure with the destination: only the latter does not come from the DNS.
	p.names = tlspolicy.Names(p.Match, t.host, cmp.Or(d.hop.host, t.host))
	return p, nil
}

// serverName is the name that a server is asked for, in TLS (SNI): name, or what
// "hostname" and "nexthop" stand for. Empty for what cannot be a name.
func (d *delivery) serverName(t *target, name string) string {
	switch name {
	case "hostname":
		name = t.host
	case "nexthop":
		name = d.hop.host
	}
	ascii, ok := d.set.names.ToASCII(name)
	if !ok {
		return ""
	}
	return ascii
}

// localPolicy is a policy for a unix socket. Nobody can listen in there, so that
// TLS is of use only where it is demanded; and it has no TLSA records.
func (d *delivery) localPolicy(p *tlspolicy.Policy) (*tlspolicy.Policy, error) {
	switch {
	case p.Level.IsDane():
		return nil, fmt.Errorf("level %s has no meaning for a unix socket", p.Level)
	case p.Level == tlspolicy.May:
		d.log.Warning("smtp_connect_local: opportunistic TLS encryption is not appropriate for unix-domain destinations.")
		return d.a.tls.At(p, tlspolicy.None), nil
	}
	return p, nil
}

// policyEntry looks the destination up in smtp_tls_policy_maps: as it is written,
// then, if that is a plain domain, by its other form and the domains above it. nil
// is "no entry". An entry that cannot be parsed is an error, not "no entry": it was
// meant to demand something.
func (d *delivery) policyEntry(ctx context.Context) (*tlspolicy.Policy, error) {
	c := d.a.tls
	if c.maps.Empty() {
		return nil, nil
	}
	_, plain := d.set.names.ToASCII(d.hop.text)
	for key := range domainKeys(d.hop.text, d.set.names) {
		value, found, err := c.maps.Lookup(ctx, key, key[0] == '.')
		if err != nil {
			return nil, err
		}
		if found {
			p, err := c.Parse(value)
			if err == nil {
				for _, attribute := range p.Ignored {
					d.log.Warning("%s, next-hop destination \"%s\": ignoring attribute \"%s\" with TLS disabled", c.maps.Title(), key, attribute)
				}
			}
			return p, err
		}
		if !plain {
			break // in brackets, or with a port: there is nothing above it
		}
	}
	return nil, nil
}

// handshake brings a new connection to where a transaction can begin: greeting,
// EHLO, and TLS if the policy has any. The checks that a message's REQUIRETLS asks
// for come last, since the server must offer it inside TLS.
func (d *delivery) handshake(ctx context.Context, s *session, t *target, p *policy) *failure {
	// The greeting comes through TLS (RFC 8314).
	if d.a.tls.wrapper && p.Level != tlspolicy.None {
		if err := d.shakeHands(ctx, s, p); err != nil {
			return d.handshakeFailed(s, p, err)
		}
		if f := d.hello(s, t); f != nil {
			return f
		}
		if f := d.checkPeer(s, p); f != nil {
			return f
		}
		return d.checkRequireTLS(s)
	}
	if f := d.hello(s, t); f != nil {
		return f
	}
	if p.Level == tlspolicy.None {
		// smtp_tls_note_starttls_offer: the administrator learns where TLS could be
		// had.
		if s.offers&offersStartTLS != 0 && d.a.tls.noteOffer {
			d.log.Log(maillog.SMTPTLSOffered{Host: s.host})
		}
		return d.checkRequireTLS(s)
	}
	if s.offers&offersStartTLS == 0 {
		s.flaw = &flaw{tlsrpt.NotSupported, ""}
		if f := d.checkRequireTLS(s); f != nil || p.Level == tlspolicy.May {
			return f
		}
		// Temporary: an attacker in between may have removed the offer, and will
		// not be there for ever.
		return &failure{kind: siteFailed, status: dsn.S(4, 7, 4), detail: s.detail(),
			text: "TLS is required, but was not offered by host " + s.namaddr}
	}
	if f := d.startTLS(ctx, s, t, p); f != nil {
		return f
	}
	return d.checkRequireTLS(s)
}

// startTLS switches to TLS, RFC 3207, and introduces us again. It returns nil
// without TLS where the server refuses and the policy leaves it the choice.
func (d *delivery) startTLS(ctx context.Context, s *session, t *target, p *policy) *failure {
	s.out = append(s.out, "STARTTLS\r\n"...)
	if err := s.flush(d.set.time.starttls); err != nil {
		return s.broken(stageTLS, err)
	}
	r, err := s.readReply(d.set.time.starttls, nil)
	if err != nil {
		return s.broken(stageTLS, err)
	}
	if !r.ok() {
		s.flaw = &flaw{tlsrpt.NotSupported, r.text()}
		if p.Level == tlspolicy.May {
			return nil
		}
		f := s.refused(siteFailed, &r)
		f.status.Class = 4
		f.text = "TLS is required, but host " + s.namaddr + " refused to start TLS: " + f.detail.DiagText
		return f
	}
	// What came in the clear behind the reply would be taken for a reply that came through TLS
	// (CVE-2011-0411).
	err = errEarly
	if s.r == s.w {
		err = d.shakeHands(ctx, s, p)
	}
	if err != nil {
		return d.handshakeFailed(s, p, err)
	}
	if f := d.checkPeer(s, p); f != nil {
		return f
	}
	// What the server said before counts no more (RFC 3207 section 4.2).
	if d.set.lmtp {
		return d.introduce(s, t, "LHLO", stageLHLO)
	}
	f := d.introduce(s, t, "EHLO", stageEHLO)
	// A server may refuse EHLO inside TLS although it took it before: HELO is
	// enough for mail.
	if f == errNoEHLO {
		f = d.introduce(s, t, "HELO", stageHELO)
	}
	return f
}

// Errors of a handshake that are not TLS's own.
var (
	errEarly         = errors.New("the server sent something between its reply and the handshake")
	errLost          = errors.New("lost connection")
	errHandshakeTime = errors.New("the handshake took too long")
)

// handshakeFailed words a handshake that did not work. Where TLS is a wish the
// server may be asked again without. The connection is of no more use, not even for
// QUIT.
func (d *delivery) handshakeFailed(s *session, p *policy, err error) *failure {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		err = errLost
	}
	d.log.Log(maillog.SMTPHandshakeFailed{Peer: s.relay, Reason: err.Error()})
	s.bad = true
	s.flaw = &flaw{tlsrpt.ValidationError, err.Error()}
	f := &failure{kind: siteFailed, status: dsn.S(4, 7, 5), text: "Cannot start TLS: handshake failure", detail: s.detail(), hangUp: true}
	if p.Level == tlspolicy.May {
		f.kind, f.retry = notCapable, true
	}
	return f
}

// shakeHands does the TLS handshake within smtp_starttls_timeout, and looks at the
// certificate. What the certificate is worth decides nothing here: checkPeer does,
// after the log has it.
func (d *delivery) shakeHands(ctx context.Context, s *session, p *policy) error {
	d.a.tls.keepUp(time.Now())
	conf, err := d.tlsConfig(p)
	if err != nil {
		return err
	}
	if limit := d.set.time.starttls; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	// The handshake is bounded by ctx. A deadline of an earlier read would end it
	// too soon.
	if err := s.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	conn := tls.Client(s.conn, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		// Without words of its own a handshake that was cut off would be logged as
		// a broken connection.
		if errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return errHandshakeTime
		}
		return err
	}
	s.conn = conn
	s.tls = &tlsState{ConnectionState: conn.ConnectionState(), policy: p}
	s.tls.loglevel = d.tlsLogLevel(ctx, s)
	s.tls.name = tls.VersionName(s.tls.Version) + " " + tls.CipherSuiteName(s.tls.CipherSuite)
	d.verify(s, p)
	d.logTLS(s)
	return nil
}

// tlsConfig makes the configuration of one handshake. Certificates are looked
// at afterwards, so that the log can say what is wrong with them.
func (d *delivery) tlsConfig(p *policy) (*tls.Config, error) {
	protocols, err := tlspolicy.ParseProtocols(p.Protocols)
	if err != nil {
		return nil, err
	}
	suites, err := d.a.tls.grades.Suites(p.Ciphers, p.Exclude)
	if err != nil {
		return nil, err
	}
	certs, err := d.ownCerts()
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{
		InsecureSkipVerify: true, // see verify
		MinVersion:         protocols.Min,
		MaxVersion:         protocols.Max,
		CipherSuites:       suites,
		ServerName:         p.sni,
		ClientSessionCache: d.a.tls.sessions.of(p, d.tlsSourceKey(certs)),
		CurvePreferences:   d.a.tls.curves,
	}
	// A server that asks for a certificate says which algorithms it knows.
	if len(certs) > 0 {
		conf.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			for i := range certs {
				if info.SupportsCertificate(certs[i]) == nil {
					return certs[i], nil
				}
			}
			// None: the server says whether that is enough.
			return new(tls.Certificate), nil
		}
	}
	return conf, nil
}

// verify finds out what the server's certificate is worth, as the policy's level
// has it, and logs why it is not worth more.
func (d *delivery) verify(s *session, p *policy) {
	c, st := d.a.tls, s.tls
	chain := st.PeerCertificates
	// Verification takes time. Where it decides nothing it is for the log alone.
	if len(chain) == 0 || p.Level < tlspolicy.Fingerprint && s.tls.loglevel == 0 {
		return
	}
	unverified := func(why string) { d.log.Log(maillog.SMTPUnverified{Peer: s.relay, Reason: why}) }
	switch {
	case p.Failure != "" && p.Level.Authenticates():
		unverified("external policy failure (" + p.Failure + ")")
		s.flaw = &flaw{p.Failure, ""}
		return
	case p.Level == tlspolicy.Fingerprint:
		st.matched = tlspolicy.MatchFingerprint(chain[0], c.FingerprintDigest, p.Match)
		if st.trusted = st.matched; !st.matched {
			unverified("neither the certificate nor its key has one of the fingerprints")
		}
		return
	case len(p.tlsa) > 0:
		err := tlspolicy.VerifyDANE(p.tlsa, chain, p.names, c.depth, time.Now(), c.CertNames)
		st.trusted, st.matched = err == nil, err == nil
		if name, ok := errors.AsType[*tlspolicy.HostnameError](err); ok {
			// The chain is what the records say. Only the name is another.
			st.trusted = true
			unverified(name.Error())
			s.flaw = &flaw{tlsrpt.HostMismatch, ""}
		} else if err != nil {
			unverified(err.Error())
			s.flaw = chainFlaw(err)
		}
		return
	}
	pool, err := c.pool(p)
	if err == nil {
		err = d.chain(chain, pool)
	}
	st.trusted = err == nil
	st.matched = st.trusted && c.CertNames.Match(chain[0], p.names)
	switch {
	case !p.Level.Authenticates():
	case err != nil:
		unverified(err.Error())
		s.flaw = chainFlaw(err)
	case !st.matched:
		s.flaw = &flaw{tlsrpt.HostMismatch, ""}
		d.log.Log(maillog.SMTPUnverified{Peer: s.relay, Reason: "it is for none of " + strings.Join(p.names, ", "), Name: true})
	}
}

// chain checks a chain of certificates, and its length
// (smtp_tls_scert_verifydepth).
func (d *delivery) chain(chain []*x509.Certificate, pool *x509.CertPool) error {
	return tlspolicy.Trusted(chain, pool, d.a.tls.depth, time.Now(), x509.ExtKeyUsageServerAuth)
}

// checkPeer refuses a server that is not who it must be. A message with REQUIRETLS
// has words of its own for that.
func (d *delivery) checkPeer(s *session, p *policy) *failure {
	if !p.Level.Authenticates() && len(p.tlsa) == 0 || s.tls.matched {
		return nil
	}
	if d.require == requireAll {
		return d.checkRequireTLS(s)
	}
	return &failure{kind: siteFailed, status: dsn.S(4, 7, 5), text: "Server certificate not verified", detail: s.detail()}
}

// tlsLogLevel is how much is logged about TLS with a server: what
// smtp_tls_loglevel_maps has for its name or address, or smtp_tls_loglevel.
func (d *delivery) tlsLogLevel(ctx context.Context, s *session) int {
	c := d.a.tls
	if level, found := c.loglevels.LookupLevel(ctx, s.host, s.addr, !c.logParents, d.log.Warning); found {
		return level
	}
	return c.loglevel
}

// logTLS says how a session is encrypted, in the words of Postfix's log: Untrusted,
// Trusted, Verified.
func (d *delivery) logTLS(s *session) {
	st := s.tls
	trust := "Untrusted"
	switch {
	case st.matched && st.policy.Level >= tlspolicy.Fingerprint && st.policy.Level != tlspolicy.HalfDane: // who named the host?
		trust = "Verified"
	case st.trusted:
		trust = "Trusted"
	}
	e := &maillog.TLSEstablished{Trust: trust, Peer: s.relay, Proto: tlspolicy.ProtocolName(st.Version),
		Cipher: tlspolicy.CipherName(st.CipherSuite), Bits: tlspolicy.CipherBits(st.CipherSuite)}
	if st.Version == tls.VersionTLS13 { // before that the cipher's name has it all
		e.KeyExchange = tlspolicy.KeyExchange(st.CurveID)
		e.Signature, e.Digest = tlspolicy.PeerSignature(&st.ConnectionState)
	}
	if s.tls.loglevel == 0 {
		d.log.Count(e)
		return
	}
	d.log.Log(e)
}

// security is how a session that was opened under a policy is secured, in words: for the
// operator who looks at the destination. It is made once for each connection.
func (s *session) security(p *policy) string {
	// What the policy is called is where it comes from, if that is the destination itself:
	// a level alone would not say who has set it.
	name := p.Level.String()
	switch {
	case len(p.tlsa) > 0:
		name = "DANE"
	case p.STS:
		name = "MTA-STS"
	}
	if s.tls == nil {
		return "no TLS, policy " + name
	}
	proof := "certificate not verified"
	switch {
	case s.tls.matched:
		proof = "certificate verified"
	case s.tls.trusted:
		proof = "certificate of a known CA"
	}
	return s.tls.name + ", " + proof + ", policy " + name
}

// plainAllowed says whether a server whose TLS does not work may be talked to
// without, where TLS is but a wish: when the message has waited for a while
// already, or nobody's message is at stake, and no password is.
func (d *delivery) plainAllowed(t *target) bool {
	// A password in the clear would be a way to get at it: break TLS, and wait.
	if d.env.RequireTLS || d.hasPassword(t) {
		return false
	}
	return d.env.Trace.DontDeliver() || d.age() >= d.set.minBackoff
}

// connectPlain connects to a server and leaves TLS out. Only tryTarget calls it,
// after plainAllowed.
func (d *delivery) connectPlain(ctx context.Context, t *target) (*session, *failure) {
	return d.open(ctx, t, &policy{Policy: d.a.tls.Default(tlspolicy.None)})
}
