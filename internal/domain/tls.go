package domain

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-smtp"

	"posthaste/internal/resolver"
	"posthaste/internal/tlspolicy"
)

// Days before the end of a certificate from which it is warned of. Certificates of public
// authorities are valid for 90 days and soon for 45, and are renewed at two thirds of that.
const renewDays = 14

// A silence is an address of an MX host whose port 25 cannot be reached.
type silence struct {
	addr netip.Addr
	err  error
}

// maxTried bounds at how many addresses of a host it is looked.
const maxTried = 16

// errSilent is what handshake says where nobody answers.
var errSilent = errors.New("port 25 cannot be reached")

// chain gets the certificates that the host shows on port 25 after STARTTLS, at one of this
// machine's addresses. It tries all addresses of the host, at the same time, since senders take
// any of them, and says at which nobody answers.
func (c *checker) chain(ctx context.Context, host string) (certs []*x509.Certificate, silent []silence, err error) {
	a, err := c.DNS.Addrs(ctx, host, both)
	if err != nil {
		return nil, nil, err
	}
	addrs := a.Records[:min(len(a.Records), maxTried)]
	chains, errs := make([][]*x509.Certificate, len(addrs)), make([]error, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() { chains[i], errs[i] = c.handshake(ctx, addr, host) })
	}
	wg.Wait()
	for i, addr := range addrs {
		if errors.Is(errs[i], errSilent) {
			silent = append(silent, silence{addr, errs[i]})
		}
		// What a stranger shows at an address that is not ours is no finding on this machine.
		if c.site.has(addr) && certs == nil {
			certs, err = chains[i], errs[i]
		}
	}
	return certs, silent, err
}

// handshake begins TLS with an SMTP server.
func (c *checker) handshake(ctx context.Context, addr netip.Addr, host string) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	conn, err := c.Dial(ctx, "tcp", net.JoinHostPort(addr.String(), "25"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSilent, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(c.Now.Add(areaTime)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	// The chain is what is judged here, and it is judged afterwards.
	client, err := smtp.NewClientStartTLS(conn, &tls.Config{ServerName: host, InsecureSkipVerify: true})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", net.JoinHostPort(addr.String(), "25"), err)
	}
	if err := client.Noop(); err != nil { // the first command after STARTTLS has the handshake made
		return nil, fmt.Errorf("%s: %w", net.JoinHostPort(addr.String(), "25"), err)
	}
	state, _ := client.TLSConnectionState()
	_ = client.Quit()
	return state.PeerCertificates, nil
}

// A live is what the MX hosts that lead here show on port 25.
type live struct {
	hosts  []string
	secure bool // DNSSEC vouches for the MX records
	chains map[string][]*x509.Certificate
	errs   map[string]error // why there is no chain
	silent map[string][]silence
	err    error // why the hosts are not known
}

// seen looks at the hosts once, for all areas that want it.
func (c *checker) seen(ctx context.Context) *live {
	c.look.Do(func() {
		l := &c.live
		l.chains, l.errs, l.silent = make(map[string][]*x509.Certificate), make(map[string]error), make(map[string][]silence)
		l.hosts, l.secure, l.err = c.ours(ctx)
		for _, host := range l.hosts {
			chain, silent, err := c.chain(ctx, host)
			l.silent[host] = silent
			if err == nil && len(chain) == 0 {
				err = errors.New("no certificate was shown")
			}
			if err != nil {
				l.errs[host] = err
			} else {
				l.chains[host] = chain
			}
		}
	})
	return &c.live
}

// tls checks the certificate that senders see.
func (c *checker) tls(ctx context.Context, r *report) {
	l := c.seen(ctx)
	if l.err != nil {
		r.unanswered(l.err)
	}
	for _, host := range l.hosts {
		switch err := l.errs[host]; {
		case err == nil:
			c.certificate(r, host, l.chains[host])
		case strings.Contains(err.Error(), "doesn't support STARTTLS"): // go-smtp has no type for it
			r.say(Warning, fmt.Sprintf("%s does not offer STARTTLS", host), "mail comes in clear text: set smtpd_tls_security_level = may and give smtpd a certificate (posthaste tls enable-server)")
		default:
			r.say(Unknown, fmt.Sprintf("%s: %s", host, printable(err.Error())), "a machine behind an address translator often cannot reach itself; ask from another one")
		}
	}
}

// certificate checks one chain, as a sender does that wants it verified (RFC 8461 section 4.2).
func (c *checker) certificate(r *report, host string, chain []*x509.Certificate) {
	leaf := chain[0]
	pool := x509.NewCertPool()
	for _, cert := range chain[1:] {
		pool.AddCert(cert)
	}
	_, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: c.Roots, Intermediates: pool, CurrentTime: c.Now})
	left := leaf.NotAfter.Sub(c.Now)
	days := int(left / (24 * time.Hour))
	switch {
	case left <= 0:
		r.say(Error, fmt.Sprintf("the certificate of %s expired on %s", host, leaf.NotAfter.UTC().Format(time.DateOnly)), "senders that verify it (MTA-STS, DANE with a CA) hold your mail back: renew it")
	case err != nil:
		r.say(Warning, fmt.Sprintf("the certificate of %s: %v", host, err), "senders with opportunistic TLS do not mind; MTA-STS and some partners need a certificate that verifies")
	case days < renewDays:
		r.say(Warning, fmt.Sprintf("the certificate of %s ends in %d days", host, days), "find out why it has not been renewed")
	default:
		r.good("the certificate of %s verifies, and is valid for %d more days", host, days)
	}
}

// tlsaRecord is the record for the key of a certificate: 3 1 1, which stays valid when the
// certificate is renewed with the same key (RFC 7671 section 5.1).
func tlsaRecord(host string, cert *x509.Certificate) Record {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return Record{"_25._tcp." + host, "TLSA", "3 1 1 " + hex.EncodeToString(sum[:]), "DANE: the key that senders see (RFC 7672)"}
}

// dane checks the TLSA records of the MX hosts that lead here against the certificates that
// they show. What cannot be reached is said under tls.
func (c *checker) dane(ctx context.Context, r *report) {
	l := c.seen(ctx)
	for _, host := range l.hosts {
		c.daneHost(ctx, r, host, l.chains[host], l.secure)
	}
}

// daneHost checks one host. mxSecure says whether the MX records are vouched for.
func (c *checker) daneHost(ctx context.Context, r *report, host string, chain []*x509.Certificate, mxSecure bool) {
	a, err := c.DNS.TLSA(ctx, "_25._tcp."+host)
	if err != nil && !resolver.NotFound(err) {
		r.unanswered(err)
		return
	}
	if err != nil {
		addrs, err := c.DNS.Addrs(ctx, host, both)
		if err == nil && addrs.Secure && mxSecure && chain != nil {
			r.say(Note, fmt.Sprintf("%s has no TLSA record, though its zone is signed", host), "with it, senders that do DANE insist on TLS with this key", tlsaRecord(host, chain[0]))
		} else {
			r.say(Note, fmt.Sprintf("%s has no TLSA record", host), "DANE needs a signed zone; without one, MTA-STS serves")
		}
		return
	}
	if !a.Secure || !mxSecure {
		r.say(Warning, fmt.Sprintf("the TLSA records of %s are not heeded, as they or the MX records are not vouched for by DNSSEC", host),
			"sign the zones, or, if they are, ask a name server that validates and is trusted (resolver_trust_ad)")
	}
	if chain == nil {
		return
	}
	records := make([]tlspolicy.TLSA, len(a.Records))
	for i, t := range a.Records {
		records[i] = tlspolicy.TLSA{Usage: t.Usage, Selector: t.Selector, Matching: t.Matching, Data: t.Data}
	}
	usable := tlspolicy.Usable(records, []string{"sha512", "sha256"})
	if len(usable) == 0 {
		r.say(Error, fmt.Sprintf("none of the %d TLSA records of %s can be used by SMTP clients", len(records), host), "publish one of usage 3 or 2 (RFC 7672 section 3.1)", tlsaRecord(host, chain[0]))
		return
	}
	if err := tlspolicy.VerifyDANE(usable, chain, []string{host}, 9, c.Now, tlspolicy.NameRule{}); err != nil {
		r.say(Error, fmt.Sprintf("no TLSA record of %s is about the certificate that it shows", host), "senders that do DANE hold your mail back", tlsaRecord(host, chain[0]))
		return
	}
	r.good("a TLSA record of %s is about the certificate that it shows", host)
	c.stale(r, host, usable, chain)
}

// stale names the records that the present chain does not match. Those of the next key belong
// there; others are left over.
func (c *checker) stale(r *report, host string, records []tlspolicy.TLSA, chain []*x509.Certificate) {
	for _, record := range records {
		if tlspolicy.VerifyDANE([]tlspolicy.TLSA{record}, chain, []string{host}, 9, c.Now, tlspolicy.NameRule{}) != nil {
			r.say(Note, fmt.Sprintf("the TLSA record %d %d %d %s of %s matches no certificate in use", record.Usage, record.Selector, record.Matching, hex.EncodeToString(record.Data), host),
				"that is right for the key that comes next (RFC 7671 section 8.1); otherwise remove it")
		}
	}
}
