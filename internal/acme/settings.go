package acme

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"github.com/mholt/acmez/v3/acme"
	"github.com/miekg/dns"
	"golang.org/x/net/idna"

	"posthaste/internal/config"
	"posthaste/internal/smallfile"
)

// The challenges, as RFC 8555 and RFC 8737 call them.
const (
	http01 = "http-01"
	alpn01 = "tls-alpn-01"
	dns01  = "dns-01"
)

// settings are what main.cf says.
type settings struct {
	directory string
	contact   string   // may be empty
	names     []string // as they are in certificates, lower case
	challenge string
	keyType   string
	roots     *x509.CertPool // nil: the system's
	version   string
	eab       *acme.EAB // who is the customer that an account is for; nil: nobody is named
	update    *updater  // nil: not by updates
	command   []string  // empty: not by a command
}

// errOff says that no certificate is to be asked for.
var errOff = errors.New("tls_acme = no: no certificate is requested")

// read reads the settings, and the files that they name.
func read(cfg *config.Config) (*settings, error) {
	if !cfg.Bool("tls_acme") {
		return nil, errOff
	}
	if !cfg.Bool("tls_acme_agree") {
		return nil, fmt.Errorf("no certificate is requested before you accept the terms of service of %s: set tls_acme_agree = yes", cfg.String("tls_acme_directory"))
	}
	s := &settings{directory: cfg.String("tls_acme_directory"), contact: cfg.String("tls_acme_account"), challenge: cfg.String("tls_acme_challenge"),
		keyType: cfg.String("tls_acme_key_type"), version: cfg.String("mail_version"), command: strings.Fields(cfg.String("tls_acme_command"))}
	if u, err := url.Parse(s.directory); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("tls_acme_directory = %s: expected a URL that begins with https://", s.directory)
	}
	for _, name := range cfg.List("tls_acme_domains") {
		ascii, err := certificateName(name)
		if err != nil {
			return nil, fmt.Errorf("tls_acme_domains: %s: %w", name, err)
		}
		if strings.HasPrefix(ascii, "*.") && s.challenge != dns01 {
			return nil, fmt.Errorf("tls_acme_domains: %s: a wildcard needs tls_acme_challenge = %s", name, dns01)
		}
		s.names = append(s.names, ascii)
	}
	if len(s.names) == 0 {
		return nil, errors.New("tls_acme_domains has no name")
	}
	if file := cfg.String("tls_acme_CAfile"); file != "" {
		text, err := smallfile.Read(file, maxFile)
		if err != nil {
			return nil, fmt.Errorf("tls_acme_CAfile: %w", err)
		}
		if s.roots = x509.NewCertPool(); !s.roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("tls_acme_CAfile: %s: expected certificates in PEM form", file)
		}
	}
	if err := s.readBinding(cfg); err != nil {
		return nil, err
	}
	return s, s.readUpdate(cfg)
}

// readBinding reads by what the authority knows us as a customer (RFC 8555 section 7.3.4).
func (s *settings) readBinding(cfg *config.Config) error {
	file := cfg.String("tls_acme_eab_key_file")
	if file == "" {
		return nil
	}
	text, err := smallfile.Read(file, maxFile)
	if err != nil {
		return fmt.Errorf("tls_acme_eab_key_file: %w", err)
	}
	words := strings.Fields(string(text))
	if len(words) != 2 {
		return fmt.Errorf("tls_acme_eab_key_file: %s: expected an identifier and a key", file)
	}
	// Some authorities print the key with padding.
	key := strings.TrimRight(words[1], "=")
	if secret, err := base64.RawURLEncoding.DecodeString(key); err != nil || len(secret) == 0 {
		return fmt.Errorf("tls_acme_eab_key_file: %s: the second word is not a key in base64url form", file)
	}
	s.eab = &acme.EAB{KeyID: words[0], MACKey: key}
	return nil
}

// readUpdate reads how the records of dns-01 are published.
func (s *settings) readUpdate(cfg *config.Config) error {
	server, file := cfg.String("tls_acme_update_server"), cfg.String("tls_acme_update_key_file")
	if s.challenge == dns01 && server == "" && len(s.command) == 0 {
		return errors.New("tls_acme_challenge = dns-01: set tls_acme_update_server or tls_acme_command")
	}
	if server == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(server); err != nil {
		server = net.JoinHostPort(strings.Trim(server, "[]"), "53")
	}
	s.update = &updater{server: server}
	if file == "" {
		return nil
	}
	text, err := smallfile.Read(file, maxFile)
	if err == nil {
		s.update.key, err = parseKey(string(text))
	}
	if err != nil {
		return fmt.Errorf("tls_acme_update_key_file: %s: %w", file, err)
	}
	return nil
}

// maxFile bounds the files that main.cf names, in octets.
const maxFile = 4 << 20

// certificateName is a name as certificates have it.
func certificateName(name string) (string, error) {
	rest, wild := strings.CutPrefix(strings.ToLower(strings.TrimSuffix(name, ".")), "*.")
	ascii, err := idna.Lookup.ToASCII(rest)
	if err == nil && (!strings.Contains(ascii, ".") || net.ParseIP(ascii) != nil) {
		err = errors.New("expected a host name with its domain: no public authority certifies another")
	}
	if wild {
		ascii = "*." + ascii
	}
	return ascii, err
}

// A tsigKey signs DNS updates.
type tsigKey struct{ name, algorithm, secret string }

var (
	keyName      = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)\bkey\s+"?([^\s"{};]+)"?\s*\{(.*?)\}`) })
	keyAlgorithm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\balgorithm\s+"?([A-Za-z0-9.-]+)"?\s*;`) })
	keySecret    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\bsecret\s+"?([A-Za-z0-9+/=]+)"?\s*;`) })
)

// parseKey reads the first key in a file of BIND's form.
func parseKey(text string) (*tsigKey, error) {
	m := keyName().FindStringSubmatch(text)
	if m == nil {
		return nil, errors.New(`expected a TSIG key: key "name" { algorithm hmac-sha256; secret "..."; };`)
	}
	algorithm, secret := keyAlgorithm().FindStringSubmatch(m[2]), keySecret().FindStringSubmatch(m[2])
	if algorithm == nil || secret == nil {
		return nil, fmt.Errorf("key %s: expected algorithm and secret", m[1])
	}
	name := dns.Fqdn(strings.ToLower(algorithm[1]))
	switch name {
	case dns.HmacSHA1, dns.HmacSHA224, dns.HmacSHA256, dns.HmacSHA384, dns.HmacSHA512:
	default:
		return nil, fmt.Errorf("key %s: unknown algorithm %s; tsig-keygen makes hmac-sha256", m[1], algorithm[1])
	}
	return &tsigKey{dns.CanonicalName(m[1]), name, secret[1]}, nil
}
