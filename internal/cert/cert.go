// Package cert is the command posthaste cert: it shows the certificates of the mail system's
// servers, with the TLSA records of their keys, and asks the acme service for a renewal.
//
// # Security
//
// It is for root and the mail owner. In data_directory it acts with the rights of that directory's
// owner (package servercert).
package cert

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/servercert"
)

const usage = `usage: posthaste cert list [-j] [-c config_directory]
       posthaste cert renew [-c config_directory]
       posthaste cert rollover [-c config_directory]`

const (
	// takenTime is how long the service may take to notice a request: it looks every second, but may
	// have to be started, or wait between two attempts.
	takenTime = 30 * time.Second
	// renewTime is how long the command waits for a renewal.
	renewTime = 20 * time.Minute
	poll      = 500 * time.Millisecond
)

// A command is one run of it.
type command struct {
	*cli.Tool
	cfg  *config.Config
	json bool
}

// Run runs posthaste cert, and returns its exit status.
func Run(name string, args []string, stdout, stderr io.Writer) int {
	c := &command{Tool: &cli.Tool{Name: name, Stdout: stdout, Stderr: stderr}}
	return c.Run(map[string]cli.Verb{
		"list":     {Letters: "c:j", Do: c.list},
		"renew":    {Letters: "c:", Do: c.renew},
		"rollover": {Letters: "c:", Do: c.rollover},
	}, usage, args, c.begin)
}

// begin takes in the options, and reads main.cf.
func (c *command) begin(opts []cli.Option, _ []string) (err error) {
	dir := ""
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			dir = o.Value
		case 'j':
			c.json = true
		}
	}
	if c.cfg, err = config.Load(config.Dir(dir)); err != nil {
		return cli.Errorf(cli.ExitConfig, "%v", err)
	}
	return nil
}

// A Certificate is one that is listed.
type Certificate struct {
	Names      []string  `json:"names"`
	Issuer     string    `json:"issuer"`
	SelfSigned bool      `json:"self_signed"`
	Begin      time.Time `json:"not_before"`
	End        time.Time `json:"not_after"`
	Days       int       `json:"days_left"`
	TLSA       []string  `json:"tlsa"`
	// What follows is of tls_acme.
	Authority string    `json:"authority,omitempty"`
	Account   string    `json:"account,omitempty"`
	Renewal   time.Time `json:"renewal,omitzero"`
	Problem   string    `json:"problem,omitempty"`
	Next      time.Time `json:"next_attempt,omitzero"`
	NextTLSA  []string  `json:"next_tlsa,omitempty"` // of the key that is to follow
	Usable    time.Time `json:"next_usable,omitzero"`
}

// describe says what is shown of a certificate.
func describe(cfg *config.Config, leaf *x509.Certificate, now time.Time) (*Certificate, error) {
	c := &Certificate{Names: leaf.DNSNames, Issuer: leaf.Issuer.String(), SelfSigned: servercert.IsSelfSigned(leaf), Begin: leaf.NotBefore, End: leaf.NotAfter,
		Days: int(math.Floor(leaf.NotAfter.Sub(now).Hours() / 24))}
	data, err := servercert.TLSA(leaf.PublicKey)
	if err != nil {
		return nil, err
	}
	c.TLSA = records(cfg, c.Names, data)
	return c, nil
}

// websites are the first labels of names at which the policyhost service is asked, and no mail comes.
var websites = []string{"mta-sts", "autoconfig", "autodiscover"}

// records are the TLSA records of a key for port 25 of each name that a mail host may have: not of
// the websites, unless this host is called so, and not of a wildcard, which is the name of no host.
func records(cfg *config.Config, names []string, data string) (list []string) {
	for _, n := range names {
		first, _, _ := strings.Cut(n, ".")
		if first != "*" && (!slices.Contains(websites, first) || strings.EqualFold(n, cfg.String("myhostname"))) {
			list = append(list, fmt.Sprintf("_25._tcp.%s. IN TLSA %s", n, data))
		}
	}
	return list
}

// list shows the certificates.
func (c *command) list() error {
	now := time.Now()
	var certs []*Certificate
	var err error
	if servercert.Serves(c.cfg) {
		certs, err = c.own(now)
	} else {
		certs, err = c.files(now)
	}
	if err != nil {
		return err
	}
	for _, cert := range certs {
		if c.json {
			if err := json.NewEncoder(c.Stdout).Encode(cert); err != nil {
				return err
			}
		} else {
			cert.print(c.Stdout)
		}
	}
	return nil
}

// files describes the certificates in the administrator's files.
func (c *command) files(now time.Time) (list []*Certificate, err error) {
	keys := servercert.New(c.cfg, servercert.Options{Warn: func(text string) { c.Warn("%s", text) }})
	if err := keys.Refresh(now); err != nil {
		return nil, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	for _, k := range keys.Certificates() {
		leaf, err := x509.ParseCertificate(k.Certificate[0])
		if err != nil {
			return nil, err
		}
		cert, err := describe(c.cfg, leaf, now)
		if err != nil {
			return nil, err
		}
		list = append(list, cert)
	}
	return list, nil
}

// own describes the certificate of tls_acme.
func (c *command) own(now time.Time) ([]*Certificate, error) {
	store, err := servercert.OpenStore(c.cfg)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	chain, err := store.Chain()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cli.Errorf(cli.ExitUnavailable, "the acme service has not run yet: uncomment its line in master.cf, and type \"posthaste reload\"")
	}
	if err != nil {
		return nil, err
	}
	cert, err := describe(c.cfg, chain[0], now)
	if err != nil {
		return nil, err
	}
	st, err := store.State()
	if err != nil {
		return nil, err
	}
	cert.Authority, cert.Account, cert.Problem, cert.Next, cert.Usable = st.Authority, st.Account, st.Problem, st.Next, st.Usable
	if next, err := store.NextKey(); err == nil {
		data, err := servercert.TLSA(next.Public())
		if err != nil {
			return nil, err
		}
		cert.NextTLSA = records(c.cfg, cert.Names, data)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if !cert.SelfSigned {
		cert.Renewal = st.Renewal(chain[0])
	}
	return []*Certificate{cert}, nil
}

// print shows a certificate to a person.
func (c *Certificate) print(w io.Writer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-12s"+format+"\n", append([]any{name}, args...)...)
	}
	fmt.Fprintln(w, strings.Join(c.Names, " "))
	issuer := c.Issuer
	if c.SelfSigned {
		issuer = "itself: no authority vouches for it"
	}
	line("issued by", "%s", issuer)
	line("valid until", "%s, %d days left", date(c.End), c.Days)
	if !c.Renewal.IsZero() {
		line("renewal", "%s", date(c.Renewal))
	}
	if c.Account != "" {
		line("account", "%s", c.Account)
	}
	if c.Problem != "" {
		line("problem", "%s", c.Problem)
		line("next attempt", " %s", date(c.Next))
	}
	for _, r := range c.TLSA {
		line("TLSA", "%s", r)
	}
	for _, r := range c.NextTLSA {
		line("next TLSA", "%s", r)
	}
	if !c.Usable.IsZero() {
		line("next key", "used from %s", date(c.Usable))
	}
}

// date is a time as people read it.
func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// renew asks the service for a renewal, and waits for it.
func (c *command) renew() error {
	store, err := c.store()
	if err != nil {
		return err
	}
	defer store.Close()
	asked := time.Now()
	if err := store.Request(); err != nil {
		return err
	}
	st, err := wait(context.Background(), store, asked)
	if err != nil {
		return err
	}
	if st.Problem != "" {
		return cli.Errorf(cli.ExitUnavailable, "no certificate: %s", st.Problem)
	}
	chain, err := store.Chain()
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Stdout, "the certificate for %s is by %s, and valid until %s\n", strings.Join(slices.Clone(chain[0].DNSNames), " "), chain[0].Issuer, date(chain[0].NotAfter))
	return nil
}

// store opens the store, if the servers use it.
func (c *command) store() (*servercert.Store, error) {
	if !servercert.Serves(c.cfg) {
		return nil, cli.Errorf(cli.ExitConfig, "the servers do not use a certificate of tls_acme: set tls_acme = yes, and none of smtpd_tls_chain_files, smtpd_tls_cert_file and smtpd_tls_eccert_file")
	}
	return servercert.OpenStore(c.cfg)
}

// rollover makes the next key, unless there is one, and says what to publish.
func (c *command) rollover() error {
	store, err := c.store()
	if err != nil {
		return err
	}
	defer store.Close()
	key, err := store.MakeNext(c.cfg.String("tls_acme_key_type"))
	if err != nil {
		return err
	}
	data, err := servercert.TLSA(key.Public())
	if err != nil {
		return err
	}
	fmt.Fprint(c.Stdout, "; where there are TLSA records for port 25, publish those of the next key beside them:\n")
	for _, r := range records(c.cfg, c.cfg.List("tls_acme_domains"), data) {
		fmt.Fprintln(c.Stdout, r)
	}
	fmt.Fprint(c.Stdout, "; the key is used when all name servers have shown them for two times their TTL, and at once where there are no TLSA records\n")
	return nil
}

// wait waits for the end of an attempt that began after a request.
func wait(ctx context.Context, store *servercert.Store, asked time.Time) (*servercert.State, error) {
	for {
		st, err := store.State()
		if err != nil {
			return nil, err
		}
		passed := time.Since(asked)
		switch {
		case st.Finished.After(asked) && !st.Finished.Before(st.Attempt) && !st.Attempt.Before(asked):
			return st, nil
		case passed > takenTime && st.Attempt.Before(asked):
			return nil, cli.Errorf(cli.ExitUnavailable, "the acme service has not taken the request up: is the mail system running, and is its line in master.cf? The log says more; the request stays")
		case passed > renewTime:
			return nil, cli.Errorf(cli.ExitUnavailable, "the attempt has not ended after %v: the log says how it goes on", renewTime)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(poll):
		}
	}
}
