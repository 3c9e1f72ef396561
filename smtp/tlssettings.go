// The parameters of TLS, the files of certificates and CAs, and how a process notices
// that such a file has changed.

package smtp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/confine"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy"
)

// tlsClient is what is configured of TLS. All but what mu guards is read once and never changed;
// sessions lock themselves.
type tlsClient struct {
	tlspolicy.Settings
	maps    *table.Maps      // tls_policy_maps: first to say anything about a destination
	sites   *table.Maps      // tls_per_site, by destination and by server: asked where maps says nothing
	curves  []tls.CurveID    // tls_eecdh_auto_curves; empty: the library's
	grades  tlspolicy.Grades // what the site has other cipher lists for
	wrapper bool             // tls_wrappermode: TLS begins before the greeting (RFC 8314 section 3.3)
	// loglevel is tls_loglevel, for servers that loglevels (tls_loglevel_maps) does not have.
	// logParents: a domain there stands for its subdomains too.
	loglevel   int
	loglevels  *table.Maps
	logParents bool
	noteOffer  bool // tls_note_starttls_offer: an offer that is not used is logged
	// insecureMX is smtp_tls_dane_insecure_mx_policy: what DANE comes to at hosts that nobody
	// vouches for. LMTP has no MX records: May.
	insecureMX tlspolicy.Level
	// forceTLSA is tls_force_insecure_host_tlsa_lookup: TLSA records count even where the host's
	// addresses are not signed.
	forceTLSA   bool
	optionalTLS bool          // tls_required_enable: honour "TLS-Required: no" (RFC 8689 section 5)
	require     *requireRules // requiretls_policy
	depth       int           // tls_scert_verifydepth: CAs between a certificate and its root, besides one

	roots  *x509.CertPool     // of tls_CAfile and tls_CApath; empty: certificates are trusted by nobody
	chosen bool               // CAs are configured: the system's do not count besides
	certs  []*tls.Certificate // our own; empty: none is shown

	sessions *tlsSessions
	// The files that were read, as they were then. A process that is confined cannot read them
	// again, and ends when they have changed: keepUp.
	confined *confine.Confinement
	marks    []*confine.Mark

	mu      sync.Mutex                // guards the following
	pools   map[string]*x509.CertPool // of tafile attributes, by the files' names; at most 100
	checked time.Time                 // when marks were looked at last
}

// tlsFiles are the names of the files of CAs, certificates and keys; empty: there is none.
type tlsFiles struct {
	caFile, caPath string
	chains         []string // keys with their certificates: those below do not count then
	cert, key      string
	ecCert, ecKey  string
}

// newTLSClient reads the parameters of TLS, and the files that they name. The error
// has all that is wrong, joined, so that an administrator need not find one mistake
// after the other. A client comes with it, which is not to be used.
func newTLSClient(cfg *config.Config, lmtp bool, o table.Options) (*tlsClient, error) {
	own := ownParameters(cfg, lmtp)
	c := &tlsClient{pools: make(map[string]*x509.CertPool), confined: o.Confined, checked: time.Now()}
	c.readSettings(cfg, own, lmtp)
	c.maps = openMaps(own, "tls_policy_maps", o)
	c.sites = openMaps(own, "tls_per_site", o)
	c.loglevels = openMaps(own, "tls_loglevel_maps", o)
	c.logParents = slices.Contains(cfg.List("parent_domain_matches_subdomains"), own.Name("tls_loglevel_maps"))
	// Without requiretls_enable the extension is not there at all: a message that
	// says REQUIRETLS, from before the parameter was changed, is sent as any other.
	require := own.List("requiretls_policy")
	if !cfg.Bool("requiretls_enable") {
		require = []string{"disable"}
	}
	var errs [6]error
	c.require, errs[0] = newRequireRules(own.Name("requiretls_policy"), require, c.CertNames.Names, o)
	errs[1] = c.openSessions(own, o)
	if c.curves, errs[2] = tlspolicy.Curves(cfg.List("tls_eecdh_auto_curves")); errs[2] != nil {
		errs[2] = fmt.Errorf("tls_eecdh_auto_curves: %w", errs[2])
	}
	c.Level, errs[3] = defaultLevel(own)
	errs[4] = c.checkProtocols(cfg, own, o)
	errs[5] = c.readFiles(cfg, own, o)
	return c, errors.Join(errs[:]...)
}

// readSettings reads what is in force where no policy says otherwise.
func (c *tlsClient) readSettings(cfg *config.Config, own config.Prefixed, lmtp bool) {
	c.Settings = tlspolicy.Settings{
		Protocols:          strings.Join(own.List("tls_protocols"), " "),
		MandatoryProtocols: strings.Join(own.List("tls_mandatory_protocols"), " "),
		Ciphers:            own.String("tls_ciphers"),
		MandatoryCiphers:   own.String("tls_mandatory_ciphers"),
		Exclude:            own.List("tls_exclude_ciphers"),
		MandatoryExclude:   own.List("tls_mandatory_exclude_ciphers"),
		FingerprintMatch:   own.List("tls_fingerprint_cert_match"),
		VerifyMatch:        splitNames(own.List("tls_verify_cert_match")),
		SecureMatch:        splitNames(own.List("tls_secure_cert_match")),
		ServerName:         own.String("tls_servername"),
		FingerprintDigest:  own.String("tls_fingerprint_digest"),
		TrustAnchorFiles:   own.List("tls_trust_anchor_file"),
		ConnectionReuse:    own.Bool("tls_connection_reuse"),
		EnforceSTSPatterns: own.Bool("tls_enforce_sts_mx_patterns"),
		DaneDigests:        cfg.List("tls_dane_digests"),
		CertNames:          tlspolicy.NameRule{ManyLabels: cfg.Bool("tls_wildcard_matches_multiple_labels"), Names: resolver.NamesOf(cfg)},
	}
	c.wrapper = own.Bool("tls_wrappermode")
	c.loglevel = own.Int("tls_loglevel")
	c.noteOffer = own.Bool("tls_note_starttls_offer")
	c.forceTLSA = own.Bool("tls_force_insecure_host_tlsa_lookup")
	c.depth = own.Int("tls_scert_verifydepth")
	c.optionalTLS = cfg.Bool("tls_required_enable")
	c.insecureMX = tlspolicy.May
	if !lmtp {
		c.insecureMX, _ = tlspolicy.ParseLevel(cfg.String("smtp_tls_dane_insecure_mx_policy")) // an Enum: Load has checked it
	}
}

// defaultLevel is tls_security_level, or what the parameters come to that Postfix
// had before it: smtp_enforce_tls, smtp_tls_enforce_peername, smtp_use_tls.
func defaultLevel(own config.Prefixed) (level tlspolicy.Level, err error) {
	text := own.String("tls_security_level")
	enforce := own.Bool("enforce_tls")
	switch {
	case text != "":
		if level, err = tlspolicy.ParseLevel(text); err != nil {
			err = fmt.Errorf("%s: %w", own.Name("tls_security_level"), err)
		}
		return level, err
	case enforce && own.Bool("tls_enforce_peername"):
		return tlspolicy.Verify, nil
	case enforce:
		return tlspolicy.Encrypt, nil
	case own.Bool("use_tls"):
		return tlspolicy.May, nil
	}
	return tlspolicy.None, nil
}

// checkProtocols finds mistakes in the lists of protocols, ciphers and digests: at
// the start, since they would otherwise show as handshakes that fail one by one.
// What leaves something to negotiate is a warning; the error has the rest.
func (c *tlsClient) checkProtocols(cfg *config.Config, own config.Prefixed, o table.Options) error {
	var errs []error
	check := func(suffix string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", own.Name(suffix), err))
		}
	}
	for _, list := range [][2]string{{"tls_protocols", c.Protocols}, {"tls_mandatory_protocols", c.MandatoryProtocols}} {
		p, err := tlspolicy.ParseProtocols(list[1])
		check(list[0], err)
		if w := p.Warning(); w != "" {
			o.Warn(fmt.Sprintf("%s = %s: %s", own.Name(list[0]), list[1], w))
		}
	}
	// tls_high_cipherlist and its kin: a site that has set them means them.
	c.grades = tlspolicy.ReadGrades(cfg, func(format string, args ...any) { o.Warn(fmt.Sprintf(format, args...)) })
	_, err := tlspolicy.CipherSuites(c.Ciphers, c.Exclude)
	check("tls_ciphers", err)
	_, err = tlspolicy.CipherSuites(c.MandatoryCiphers, c.MandatoryExclude)
	check("tls_mandatory_ciphers", err)
	for _, word := range tlspolicy.UnknownCiphers(slices.Concat(c.Exclude, c.MandatoryExclude)) {
		o.Warn(fmt.Sprintf("%s, %s: %q names no cipher, and excludes nothing",
			own.Name("tls_exclude_ciphers"), own.Name("tls_mandatory_exclude_ciphers"), word))
	}
	check("tls_fingerprint_digest", tlspolicy.CheckDigest(c.FingerprintDigest))
	return errors.Join(errs...)
}

// openSessions reads the sessions that were kept. The file is no more than a cache: if it cannot be
// read, servers are asked for a whole handshake.
func (c *tlsClient) openSessions(own config.Prefixed, o table.Options) (err error) {
	title := own.Name("tls_session_cache_database")
	c.sessions, err = newTLSSessions(title, own.String("tls_session_cache_database"), own.Duration("tls_session_cache_timeout"))
	if err != nil {
		return err
	}
	if err := c.sessions.load(); err != nil {
		o.Warn(title + ": " + err.Error())
	}
	return nil
}

// readFiles reads CAs, certificates and keys. The error is of our own certificates
// alone: CAs that cannot be read vouch for nobody, which holds up the mail that
// needs them, and no other. Marks are taken first, so that a change while the files
// are read is seen.
func (c *tlsClient) readFiles(cfg *config.Config, own config.Prefixed, o table.Options) error {
	f := tlsFiles{
		caFile: own.String("tls_CAfile"), caPath: own.String("tls_CApath"),
		chains: own.List("tls_chain_files"),
		cert:   own.String("tls_cert_file"), key: own.String("tls_key_file"),
		ecCert: own.String("tls_eccert_file"), ecKey: own.String("tls_eckey_file"),
	}
	c.mark(&f)
	var files []string
	if f.caFile != "" {
		files = []string{f.caFile}
	}
	var err error
	if c.roots, err = tlspolicy.Roots(files, f.caPath, cfg.Bool("tls_append_default_CA")); err != nil {
		o.Warn(fmt.Sprintf("%s, %s: %v", own.Name("tls_CAfile"), own.Name("tls_CApath"), err))
	}
	c.chosen = f.caFile != "" || f.caPath != ""
	if len(c.TrustAnchorFiles) > 0 {
		if _, err := c.pool(&policy{Policy: &tlspolicy.Policy{TrustFiles: c.TrustAnchorFiles}}); err != nil {
			o.Warn(fmt.Sprintf("%s: %v", own.Name("tls_trust_anchor_file"), err))
		}
	}
	// The system's own are read once, when they are first asked for: by then
	// they may be out of sight.
	_, _ = x509.SystemCertPool() // who needs them says what is wrong
	if c.certs, err = f.keyPairs(); err != nil {
		return fmt.Errorf("%s, chain_files: %w", own.Name("tls_cert_file"), err)
	}
	tlspolicy.Complete(c.certs, c.roots, time.Now())
	return nil
}

// keyPairs reads our own certificates. The newer parameter, a list of files with
// keys and chains, replaces the others.
func (f *tlsFiles) keyPairs() ([]*tls.Certificate, error) {
	if len(f.chains) > 0 {
		return tlspolicy.ReadChains(f.chains)
	}
	var certs []*tls.Certificate
	for _, p := range f.pairs() {
		c, err := tlspolicy.ReadPair(p[0], p[1])
		if err != nil {
			return nil, err
		}
		certs = append(certs, &c)
	}
	return certs, nil
}

// pairs are the files of certificates and their keys. "none" switches off a
// default, as with Postfix.
func (f *tlsFiles) pairs() (pairs [][2]string) {
	for _, p := range [][2]string{{f.cert, f.key}, {f.ecCert, f.ecKey}} {
		if p[0] != "" && !strings.EqualFold(p[0], "none") {
			pairs = append(pairs, p)
		}
	}
	return pairs
}

// mark takes note of how the files are, before they are read.
func (c *tlsClient) mark(f *tlsFiles) {
	names := slices.Concat([]string{f.caFile, f.caPath}, f.chains, c.TrustAnchorFiles)
	if len(f.chains) == 0 {
		for _, p := range f.pairs() {
			names = append(names, p[:]...)
		}
	}
	for _, name := range names {
		if name != "" {
			c.marks = append(c.marks, c.confined.Mark(name))
		}
	}
}

// filesRecheck is how long files are taken to be unchanged.
const filesRecheck = 10 * time.Second

// keepUp has another process take our place when a file of CAs, certificates or
// keys has changed: this one could not read it any more. It is called before a
// handshake, and looks at the files at most once in filesRecheck.
func (c *tlsClient) keepUp(now time.Time) {
	c.mu.Lock()
	due := now.Sub(c.checked) >= filesRecheck
	if due {
		c.checked = now
	}
	c.mu.Unlock()
	if due {
		// Restart does nothing while all files are as they were.
		c.confined.Restart(c.marks)
	}
}

// splitNames takes apart names joined by colons, which these lists allow too.
func splitNames(list []string) []string {
	var out []string
	for _, e := range list {
		out = append(out, strings.Split(e, ":")...)
	}
	return out
}

// pool gives the trust anchors of a policy; files are read once. MTA-STS and
// REQUIRETLS are about the CAs that everybody trusts (RFC 8461 section 4.2): where
// none have been chosen the system's count. The number of pools is bounded, since a
// table may hold any number of tafile attributes.
func (c *tlsClient) pool(p *policy) (*x509.CertPool, error) {
	system := p.system
	if len(p.TrustFiles) == 0 && !system {
		return c.roots, nil
	}
	// The lock is held while files are read, so that deliveries to one destination
	// read them once.
	key := strings.Join(p.TrustFiles, " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	if pool := c.pools[key]; pool != nil {
		return pool, nil
	}
	pool, err := tlspolicy.Roots(p.TrustFiles, "", system)
	if err == nil && len(c.pools) < 100 {
		c.pools[key] = pool
	}
	return pool, err
}
