package advice

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"slices"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/servercert"
	"posthaste/internal/table"
)

// soon is when a certificate is about to expire.
const soon = 10 * 24 * time.Hour

// certificates looks at when certificates are valid. That of a server is what mail programs,
// and senders with DANE or MTA-STS, insist on: their mail waits, or is not sent at all. What
// becomes of a client's is for its server to say. That they can be read, and that keys belong
// to them, is for the services to say, which have to use them.
func (c *checker) certificates() {
	served := c.servesTLS()
	c.acme(served)
	for _, v := range c.of("smtpd_tls_cert_file", "smtpd_tls_eccert_file", "smtpd_tls_chain_files", "smtp_tls_cert_file", "smtp_tls_eccert_file",
		"smtp_tls_chain_files", "lmtp_tls_cert_file", "lmtp_tls_eccert_file", "lmtp_tls_chain_files") {
		for _, path := range table.SplitList(v.text) {
			c.certificate(v, path, served && strings.HasPrefix(v.name, "smtpd_"))
		}
	}
}

// servesTLS says whether a client can have TLS.
func (c *checker) servesTLS() bool {
	for i := range c.services {
		s := &c.services[i]
		own, err := c.cfg.With(s.Overrides()...)
		if err != nil || s.Command != "smtpd" {
			continue
		}
		if level := own.String("smtpd_tls_security_level"); level != "" && level != "none" ||
			own.Bool("smtpd_use_tls") || own.Bool("smtpd_enforce_tls") || own.Bool("smtpd_tls_wrappermode") {
			return true
		}
	}
	return false
}

// certificate looks at the first certificate of each chain in a file: those of authorities
// follow it.
func (c *checker) certificate(v value, path string, server bool) {
	info, err := c.system.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxSource {
		return
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	first := true
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch {
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			first = true // smtpd_tls_chain_files: a key, then its chain
		case block.Type == "CERTIFICATE" && first:
			first = false
			if leaf, err := x509.ParseCertificate(block.Bytes); err == nil {
				c.validity(v, path, leaf, server)
			}
		}
	}
}

func (c *checker) validity(v value, path string, leaf *x509.Certificate, server bool) {
	now := c.system.Now()
	say, effect := c.warn, "a server that verifies it will refuse it"
	if server {
		say, effect = c.stop, "mail programs and verifying senders do not deliver to us"
	}
	switch {
	case now.After(leaf.NotAfter):
		say(v, "%s expired on %s: %s; renew it", path, leaf.NotAfter.Format(time.DateOnly), effect)
	case now.Before(leaf.NotBefore):
		say(v, "%s is not valid before %s: %s", path, leaf.NotBefore.Format(time.DateOnly), effect)
	case now.Add(soon).After(leaf.NotAfter):
		c.warn(v, "%s expires on %s: renew it", path, leaf.NotAfter.Format(time.DateOnly))
	}
}

// acme looks at the certificate that tls_acme gets, and at what it needs.
func (c *checker) acme(served bool) {
	if !c.cfg.Bool("tls_acme") {
		return
	}
	v := c.of("tls_acme")[0]
	if !servercert.Serves(c.cfg) {
		c.warn(v, "the certificate is not used: smtpd_tls_chain_files, smtpd_tls_cert_file or smtpd_tls_eccert_file names another")
	}
	if !c.cfg.Bool("tls_acme_agree") {
		c.warn(v, "no certificate is requested before you accept the terms of service of %s: set tls_acme_agree = yes", c.cfg.String("tls_acme_directory"))
	}
	lines := slices.DeleteFunc(slices.Clone(c.services), func(s config.Service) bool { return s.Command != "acme" })
	switch {
	case len(lines) == 0:
		c.warn(v, "no certificate is requested: master.cf has no line of acme; acme(8) shows it")
	case len(lines) > 1:
		c.warn(v, "master.cf has %d lines of acme, and two processes would request the same certificate: leave one", len(lines))
	case c.cfg.String("tls_acme_challenge") != "dns-01" && lines[0].Type != "inet":
		c.warn(v, "tls_acme_challenge = %s needs a port: the line of acme in master.cf must have the type inet", c.cfg.String("tls_acme_challenge"))
	}
	if servercert.Serves(c.cfg) {
		c.certificate(v, servercert.ChainFile(c.cfg), served)
	}
}
