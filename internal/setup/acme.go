package setup

import (
	"errors"
	"fmt"
	"net/mail"
	"strings"
)

// acme is what was said of a certificate that the mail system gets by itself.
type acme struct {
	on    bool
	agree bool   // to the terms of the authority
	email string // where the authority may write to; empty: nowhere
}

// acmeLine is the line of the acme service in master.cf, for the challenge that needs no setting, as
// an installation has it.
const acmeLine = "\n#80       inet "

// long takes the options with two dashes off the command line, wherever they are.
func (c *choice) long(args []string) (rest []string, err error) {
	for i := 0; i < len(args); i++ {
		name, value, given := strings.Cut(args[i], "=")
		switch name {
		case "--dry-run":
			c.dry = true
		case "--acme":
			c.acme.on = true
		case "--acme-agree":
			c.acme.agree = true
		case "--acme-email":
			if i++; !given && i == len(args) {
				return nil, errors.New("--acme-email: expected an address")
			}
			if given {
				i--
			} else {
				value, given = args[i], true
			}
			c.acme.email = value
			continue
		default:
			rest = append(rest, args[i])
			continue
		}
		if given {
			return nil, fmt.Errorf("%s has no value", name)
		}
	}
	return rest, nil
}

// valid says what is wrong with what was said. The terms are those of the default of
// tls_acme_directory; nobody but the administrator accepts them.
func (a *acme) valid(c *choice) error {
	switch {
	case !a.on && (a.agree || a.email != ""):
		return errors.New("--acme-agree and --acme-email are for --acme")
	case !a.on:
		return nil
	case !strings.Contains(allowed[c.kind], "t"):
		return fmt.Errorf("--acme is not for %s, which has no clients of other machines", c.kind)
	case c.chain != "":
		return errors.New("--acme and -t: the certificate is got, or in a file")
	case !a.agree:
		return errors.New("--acme: read the terms of service of Let's Encrypt, https://letsencrypt.org/repository/, and accept them with --acme-agree")
	}
	if p, err := mail.ParseAddress(a.email); a.email != "" && (err != nil || p.Address != a.email || strings.ContainsAny(a.email, " \t\r\n,$#")) {
		return fmt.Errorf("--acme-email %q: expected user@domain", a.email)
	}
	return nil
}

// certificate writes where the certificate of the servers comes from.
func (c *choice) certificate(t *mainText) {
	if c.acme.on {
		t.set("tls_acme = yes", "The certificate comes from Let's Encrypt, which is told the names of tls_acme_domains, and is", "renewed. The authority comes to port 80, where the acme service of master.cf answers.")
		t.set("tls_acme_agree = yes", "You accept the terms of service of the authority.")
		if c.acme.email != "" {
			t.set("tls_acme_account = "+c.acme.email, "The authority may write there.")
		}
		t.set("smtpd_tls_security_level = may", "Offer encryption to clients.")
		return
	}
	off, chain := "", c.chain
	if chain == "" {
		off, chain = "#", "/etc/posthaste/chain.pem"
	}
	t.set(off+"smtpd_tls_chain_files = "+chain, "One file with the private key and then the certificate with its chain; PEM. It is read again", "when it changes.")
	t.set(off+"smtpd_tls_security_level = may", "Offer encryption to clients.")
}

// master is the text of master.cf: what the installation has, with the head changed, and with the acme
// service if there is to be one.
func (c *choice) master(installed string) string {
	if c.acme.on {
		installed = strings.Replace(installed, acmeLine, strings.Replace(acmeLine, "#", "", 1), 1)
	}
	return c.head() + "#\n" + installed
}
