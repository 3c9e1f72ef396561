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

// tlsClient is what is configured of TLS.
type tlsClient struct {
	tlspolicy.Settings
	maps        *table.Maps
	sites       *table.Maps // smtp_tls_per_site
	curves      []tls.CurveID
	grades      tlspolicy.Grades // what the site has other cipher lists for
	wrapper     bool
	loglevel    int
	loglevels   *table.Maps // by server
	logParents  bool        // in which a domain stands for its subdomains
	noteOffer   bool
	insecureMX  tlspolicy.Level // smtp_tls_dane_insecure_mx_policy
	forceTLSA   bool            // smtp_tls_force_insecure_host_tlsa_lookup
	optionalTLS bool            // tls_required_enable: honour "TLS-Required: no"
	require     *requireRules   // smtp_requiretls_policy
	depth       int

	roots    *x509.CertPool
	chosen   bool // CAs are configured
	certs    []*tls.Certificate
	sessions *tlsSessions
	confined *confine.Confinement
	marks    []*confine.Mark // of the files that were read

	mu      sync.Mutex
	pools   map[string]*x509.CertPool // of tafile attributes
	checked time.Time                 // when marks were looked at
}

// tlsFiles are the names of certificates and keys.
type tlsFiles struct {
	caFile, caPath             string
	chains                     []string
	cert, key, ecCert, ecKey   string
	level                      string
	useTLS, enforce, checkName bool
	policyMaps, require        []string
	perSite, loglevels         []string
	cache                      string
	cacheTime                  time.Duration
}

func newTLSClient(cfg *config.Config, lmtp bool, o table.Options) (*tlsClient, error) {
	c := &tlsClient{pools: make(map[string]*x509.CertPool), confined: o.Confined, checked: time.Now()}
	family := "smtp_tls_"
	var f tlsFiles
	if lmtp {
		family = "lmtp_tls_"
		f = c.readLMTP(cfg)
	} else {
		f = c.readSMTP(cfg)
	}
	c.DaneDigests = cfg.List("tls_dane_digests")
	c.CertNames = tlspolicy.NameRule{ManyLabels: cfg.Bool("tls_wildcard_matches_multiple_labels"), Names: resolver.NamesOf(cfg)}
	c.optionalTLS = cfg.Bool("tls_required_enable")
	if !cfg.Bool("requiretls_enable") {
		f.require = []string{"disable"}
	}
	c.maps = table.OpenMaps(family+"policy_maps", f.policyMaps, o)
	c.sites = table.OpenMaps(family+"per_site", f.perSite, o)
	c.loglevels = table.OpenMaps(family+"loglevel_maps", f.loglevels, o)
	c.logParents = slices.Contains(cfg.List("parent_domain_matches_subdomains"), family+"loglevel_maps")
	var errs []error
	fail := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%s: %w", family, name, err))
		}
	}
	var err error
	c.require, err = newRequireRules(strings.TrimSuffix(family, "tls_")+"requiretls_policy", f.require, c.CertNames.Names, o)
	if err != nil {
		errs = append(errs, err)
	}
	if c.sessions, err = newTLSSessions(family+"session_cache_database", f.cache, f.cacheTime); err != nil {
		errs = append(errs, err)
	} else if err = c.sessions.load(); err != nil {
		o.Warn(family + "session_cache_database: " + err.Error()) // it is but a cache
	}
	if c.curves, err = tlspolicy.Curves(cfg.List("tls_eecdh_auto_curves")); err != nil {
		errs = append(errs, fmt.Errorf("tls_eecdh_auto_curves: %w", err))
	}
	switch {
	case f.level != "":
		c.Level, err = tlspolicy.ParseLevel(f.level)
		fail("security_level", err)
	case f.enforce && f.checkName:
		c.Level = tlspolicy.Verify
	case f.enforce:
		c.Level = tlspolicy.Encrypt
	case f.useTLS:
		c.Level = tlspolicy.May
	}
	for _, list := range [][2]string{{"protocols", c.Protocols}, {"mandatory_protocols", c.MandatoryProtocols}} {
		p, err := tlspolicy.ParseProtocols(list[1])
		fail(list[0], err)
		if w := p.Warning(); w != "" {
			o.Warn(fmt.Sprintf("%s%s = %s: %s", family, list[0], list[1], w))
		}
	}
	c.grades = tlspolicy.ReadGrades(cfg, func(format string, args ...any) { o.Warn(fmt.Sprintf(format, args...)) })
	_, err = tlspolicy.CipherSuites(c.Ciphers, c.Exclude)
	fail("ciphers", err)
	_, err = tlspolicy.CipherSuites(c.MandatoryCiphers, c.MandatoryExclude)
	fail("mandatory_ciphers", err)
	for _, word := range tlspolicy.UnknownCiphers(slices.Concat(c.Exclude, c.MandatoryExclude)) {
		o.Warn(fmt.Sprintf("%sexclude_ciphers, %smandatory_exclude_ciphers: %q names no cipher, and excludes nothing", family, family, word))
	}
	fail("fingerprint_digest", tlspolicy.CheckDigest(c.FingerprintDigest))
	c.mark(&f)
	var files []string
	if f.caFile != "" {
		files = []string{f.caFile}
	}
	// CAs that cannot be read vouch for nobody, which holds up the mail that
	// needs them, and no other.
	if c.roots, err = tlspolicy.Roots(files, f.caPath, cfg.Bool("tls_append_default_CA")); err != nil {
		o.Warn(fmt.Sprintf("%sCAfile, %sCApath: %v", family, family, err))
	}
	c.chosen = f.caFile != "" || f.caPath != ""
	if len(c.TrustAnchorFiles) > 0 {
		if _, err := c.pool(&policy{Policy: &tlspolicy.Policy{TrustFiles: c.TrustAnchorFiles}}); err != nil {
			o.Warn(fmt.Sprintf("%strust_anchor_file: %v", family, err))
		}
	}
	// The system's own are read once, when they are first asked for: by then
	// they may be out of sight.
	_, _ = x509.SystemCertPool() // who needs them says what is wrong
	c.certs, err = f.keyPairs()
	fail("cert_file, chain_files", err)
	tlspolicy.Complete(c.certs, c.roots, time.Now())
	return c, errors.Join(errs...)
}

// keyPairs reads our own certificates.
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

// pairs are the files of certificates and their keys.
func (f *tlsFiles) pairs() (pairs [][2]string) {
	for _, p := range [][2]string{{f.cert, f.key}, {f.ecCert, f.ecKey}} {
		if p[0] != "" && !strings.EqualFold(p[0], "none") {
			pairs = append(pairs, p)
		}
	}
	return pairs
}

// mark takes note of how the files are that have been read.
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
// keys has changed: this one could not read it any more.
func (c *tlsClient) keepUp(now time.Time) {
	c.mu.Lock()
	due := now.Sub(c.checked) >= filesRecheck
	if due {
		c.checked = now
	}
	c.mu.Unlock()
	if due {
		c.confined.Restart(c.marks)
	}
}

func (c *tlsClient) readSMTP(cfg *config.Config) tlsFiles {
	c.Settings = tlspolicy.Settings{
		Protocols:          strings.Join(cfg.List("smtp_tls_protocols"), " "),
		MandatoryProtocols: strings.Join(cfg.List("smtp_tls_mandatory_protocols"), " "),
		Ciphers:            cfg.String("smtp_tls_ciphers"),
		MandatoryCiphers:   cfg.String("smtp_tls_mandatory_ciphers"),
		Exclude:            cfg.List("smtp_tls_exclude_ciphers"),
		MandatoryExclude:   cfg.List("smtp_tls_mandatory_exclude_ciphers"),
		FingerprintMatch:   cfg.List("smtp_tls_fingerprint_cert_match"),
		VerifyMatch:        splitNames(cfg.List("smtp_tls_verify_cert_match")),
		SecureMatch:        splitNames(cfg.List("smtp_tls_secure_cert_match")),
		ServerName:         cfg.String("smtp_tls_servername"),
		FingerprintDigest:  cfg.String("smtp_tls_fingerprint_digest"),
		TrustAnchorFiles:   cfg.List("smtp_tls_trust_anchor_file"),
		ConnectionReuse:    cfg.Bool("smtp_tls_connection_reuse"),
		EnforceSTSPatterns: cfg.Bool("smtp_tls_enforce_sts_mx_patterns"),
	}
	c.wrapper = cfg.Bool("smtp_tls_wrappermode")
	c.loglevel = cfg.Int("smtp_tls_loglevel")
	c.noteOffer = cfg.Bool("smtp_tls_note_starttls_offer")
	c.insecureMX, _ = tlspolicy.ParseLevel(cfg.String("smtp_tls_dane_insecure_mx_policy")) // an Enum: Load has checked it
	c.forceTLSA = cfg.Bool("smtp_tls_force_insecure_host_tlsa_lookup")
	c.depth = cfg.Int("smtp_tls_scert_verifydepth")
	return tlsFiles{
		caFile: cfg.String("smtp_tls_CAfile"), caPath: cfg.String("smtp_tls_CApath"),
		chains: cfg.List("smtp_tls_chain_files"),
		cert:   cfg.String("smtp_tls_cert_file"), key: cfg.String("smtp_tls_key_file"),
		ecCert: cfg.String("smtp_tls_eccert_file"), ecKey: cfg.String("smtp_tls_eckey_file"),
		level:  cfg.String("smtp_tls_security_level"),
		useTLS: cfg.Bool("smtp_use_tls"), enforce: cfg.Bool("smtp_enforce_tls"),
		checkName:  cfg.Bool("smtp_tls_enforce_peername"),
		policyMaps: cfg.List("smtp_tls_policy_maps"), require: cfg.List("smtp_requiretls_policy"),
		perSite: cfg.List("smtp_tls_per_site"), loglevels: cfg.List("smtp_tls_loglevel_maps"),
		cache: cfg.String("smtp_tls_session_cache_database"), cacheTime: cfg.Duration("smtp_tls_session_cache_timeout"),
	}
}

func (c *tlsClient) readLMTP(cfg *config.Config) tlsFiles {
	c.Settings = tlspolicy.Settings{
		Protocols:          strings.Join(cfg.List("lmtp_tls_protocols"), " "),
		MandatoryProtocols: strings.Join(cfg.List("lmtp_tls_mandatory_protocols"), " "),
		Ciphers:            cfg.String("lmtp_tls_ciphers"),
		MandatoryCiphers:   cfg.String("lmtp_tls_mandatory_ciphers"),
		Exclude:            cfg.List("lmtp_tls_exclude_ciphers"),
		MandatoryExclude:   cfg.List("lmtp_tls_mandatory_exclude_ciphers"),
		FingerprintMatch:   cfg.List("lmtp_tls_fingerprint_cert_match"),
		VerifyMatch:        splitNames(cfg.List("lmtp_tls_verify_cert_match")),
		SecureMatch:        splitNames(cfg.List("lmtp_tls_secure_cert_match")),
		ServerName:         cfg.String("lmtp_tls_servername"),
		FingerprintDigest:  cfg.String("lmtp_tls_fingerprint_digest"),
		TrustAnchorFiles:   cfg.List("lmtp_tls_trust_anchor_file"),
		ConnectionReuse:    cfg.Bool("lmtp_tls_connection_reuse"),
		EnforceSTSPatterns: cfg.Bool("lmtp_tls_enforce_sts_mx_patterns"),
	}
	c.wrapper = cfg.Bool("lmtp_tls_wrappermode")
	c.loglevel = cfg.Int("lmtp_tls_loglevel")
	c.noteOffer = cfg.Bool("lmtp_tls_note_starttls_offer")
	c.insecureMX = tlspolicy.May // LMTP has no MX
	c.forceTLSA = cfg.Bool("lmtp_tls_force_insecure_host_tlsa_lookup")
	c.depth = cfg.Int("lmtp_tls_scert_verifydepth")
	return tlsFiles{
		caFile: cfg.String("lmtp_tls_CAfile"), caPath: cfg.String("lmtp_tls_CApath"),
		chains: cfg.List("lmtp_tls_chain_files"),
		cert:   cfg.String("lmtp_tls_cert_file"), key: cfg.String("lmtp_tls_key_file"),
		ecCert: cfg.String("lmtp_tls_eccert_file"), ecKey: cfg.String("lmtp_tls_eckey_file"),
		level:  cfg.String("lmtp_tls_security_level"),
		useTLS: cfg.Bool("lmtp_use_tls"), enforce: cfg.Bool("lmtp_enforce_tls"),
		checkName:  cfg.Bool("lmtp_tls_enforce_peername"),
		policyMaps: cfg.List("lmtp_tls_policy_maps"), require: cfg.List("lmtp_requiretls_policy"),
		perSite: cfg.List("lmtp_tls_per_site"), loglevels: cfg.List("lmtp_tls_loglevel_maps"),
		cache: cfg.String("lmtp_tls_session_cache_database"), cacheTime: cfg.Duration("lmtp_tls_session_cache_timeout"),
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
// REQUIRETLS are about the CAs that everybody trusts (RFC 8461 section 4.2):
// where none have been chosen the system's count.
func (c *tlsClient) pool(p *policy) (*x509.CertPool, error) {
	system := p.system
	if len(p.TrustFiles) == 0 && !system {
		return c.roots, nil
	}
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
