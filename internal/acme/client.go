package acme

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	"posthaste/internal/servercert"
)

// A solver shows the authority that a name is ours.
type solver interface {
	// present prepares the answer to a challenge, and returns what takes it back.
	present(ctx context.Context, c acme.Challenge) (undo func(context.Context), err error)
	// settle returns when the authority may look at the answers to these, which are all that there are.
	settle(ctx context.Context, list []acme.Challenge) error
}

// A client speaks with one certification authority.
type client struct {
	set    *settings
	acme   *acme.Client
	notes  *notes
	solver solver
}

const (
	requestTime = time.Minute      // for each request to the authority
	attemptTime = 20 * time.Minute // for all of an attempt
	pollWait    = time.Second      // between two looks at what the authority has found, unless it names another time
	maxAnswer   = 1 << 20          // octets
	maxChain    = 256 << 10        // octets
)

// newClient makes a client. solve answers the challenges.
func newClient(s *settings, solve solver) *client {
	n := &notes{below: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: true,
		IdleConnTimeout: 10 * time.Second, MaxResponseHeaderBytes: 64 << 10}, now: time.Now}
	return &client{set: s, notes: n, solver: solve,
		acme: &acme.Client{Directory: s.directory, HTTPClient: &http.Client{Transport: n, Timeout: requestTime}, UserAgent: "Posthaste/" + s.version,
			PollInterval: pollWait, PollTimeout: 5 * time.Minute}}
}

// A suggestion is the authority's for the time of a renewal (RFC 9773). Without one it is empty.
type suggestion struct {
	start, end time.Time
	why        string    // an address that explains it, or nothing
	again      time.Time // when to ask again; zero: the authority does not say
}

// suggest asks when to renew a certificate.
func (c *client) suggest(ctx context.Context, leaf *x509.Certificate) (suggestion, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	info, err := c.acme.GetRenewalInfo(ctx, leaf)
	if errors.Is(err, acme.ErrUnsupported) {
		return suggestion{}, nil
	}
	if err != nil {
		return suggestion{}, err
	}
	s := suggestion{start: info.SuggestedWindow.Start, end: info.SuggestedWindow.End, why: info.ExplanationURL}
	if info.RetryAfter != nil {
		s.again = *info.RetryAfter
	}
	return s, nil
}

// obtain requests a certificate for a key, and returns it with its chain, in PEM form, and the URL
// of the account. replaces is the one that it is to replace, or nil.
func (c *client) obtain(ctx context.Context, account, key crypto.Signer, replaces *x509.Certificate) (chain []byte, location string, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	c.notes.forget()
	a := acme.Account{TermsOfServiceAgreed: true, PrivateKey: account}
	if c.set.contact != "" {
		a.Contact = []string{"mailto:" + c.set.contact}
	}
	if c.set.eab != nil {
		// The binding has a URL of the directory in it, which must be known.
		_, err := c.acme.GetDirectory(ctx)
		if err == nil {
			err = a.SetExternalAccountBinding(ctx, c.acme, *c.set.eab)
		}
		if err != nil {
			return nil, "", fmt.Errorf("account: %w", err)
		}
	}
	// With a key that the authority knows, this finds the account.
	if a, err = c.acme.NewAccount(ctx, a); err != nil {
		return nil, "", fmt.Errorf("account: %w", err)
	}
	order, err := c.order(ctx, a, replaces)
	if err != nil {
		return nil, "", fmt.Errorf("order: %w", err)
	}
	if err := c.authorize(ctx, a, order.Authorizations); err != nil {
		return nil, "", err
	}
	csr, err := acmez.NewCSR(key, c.set.names)
	if err != nil {
		return nil, "", err
	}
	if order, err = c.acme.FinalizeOrder(ctx, a, order, csr.Raw); err != nil {
		return nil, "", fmt.Errorf("finish the order: %w", err)
	}
	chains, err := c.acme.GetCertificateChain(ctx, a, order.Certificate)
	if err != nil {
		return nil, "", fmt.Errorf("fetch the certificate: %w", err)
	}
	return chains[0].ChainPEM, a.Location, c.verify(chains[0].ChainPEM, key)
}

// order makes an order. An authority that does not want to know which certificate it replaces,
// as when it is not its own, is not told.
func (c *client) order(ctx context.Context, a acme.Account, replaces *x509.Certificate) (acme.Order, error) {
	wanted := acme.Order{}
	for _, name := range c.set.names {
		wanted.Identifiers = append(wanted.Identifiers, acme.Identifier{Type: "dns", Value: name})
	}
	plain := wanted
	if replaces != nil {
		dir, err := c.acme.GetDirectory(ctx)
		if err != nil {
			return wanted, err
		}
		if dir.RenewalInfo != "" {
			if wanted.Replaces, err = acme.ARIUniqueIdentifier(replaces); err != nil {
				wanted.Replaces = ""
			}
		}
	}
	order, err := c.acme.NewOrder(ctx, a, wanted)
	var refused acme.Problem
	if wanted.Replaces != "" && errors.As(err, &refused) && refused.Type != acme.ProblemTypeRateLimited {
		order, err = c.acme.NewOrder(ctx, a, plain)
	}
	return order, err
}

// authorize shows the authority that the names of an order are ours, of which it may know some. All
// answers are there before it is asked to look at the first one: two records of one name must not be
// seen one without the other, as name servers may keep what they have seen. It is asked to look at all
// of them before it is waited for, since it looks at them at the same time. Until this returns all
// challenges are answered.
func (c *client) authorize(ctx context.Context, a acme.Account, urls []string) error {
	var asked []acme.Authorization
	var ready []acme.Challenge
	for _, url := range urls {
		auth, err := c.acme.GetAuthorization(ctx, a, url)
		if err != nil {
			return err
		}
		if auth.Status == acme.StatusValid {
			continue
		}
		ch, err := c.offered(auth)
		var undo func(context.Context)
		if err == nil {
			undo, err = c.solver.present(ctx, ch)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", auth.Identifier.Value, err)
		}
		defer func() {
			// What was published is taken back although the attempt is over.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			undo(ctx)
		}()
		asked, ready = append(asked, auth), append(ready, ch)
	}
	if err := c.solver.settle(ctx, ready); err != nil {
		return err
	}
	for i, ch := range ready {
		if _, err := c.acme.InitiateChallenge(ctx, a, ch); err != nil {
			return fmt.Errorf("%s: %w", asked[i].Identifier.Value, err)
		}
	}
	return c.await(ctx, a, asked)
}

// await waits until the authority has looked at all names.
func (c *client) await(ctx context.Context, a acme.Account, asked []acme.Authorization) error {
	errs := make([]error, len(asked))
	var wg sync.WaitGroup
	for i, auth := range asked {
		wg.Go(func() {
			if _, err := c.acme.PollAuthorization(ctx, a, auth); err != nil {
				errs[i] = fmt.Errorf("%s: %w", auth.Identifier.Value, err)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err // of several the first: the text of a refusal is for one name
		}
	}
	return nil
}

// offered is the challenge of the kind that is set.
func (c *client) offered(auth acme.Authorization) (acme.Challenge, error) {
	var offers []string
	for _, ch := range auth.Challenges {
		if offers = append(offers, ch.Type); ch.Type != c.set.challenge {
			continue
		}
		if ch.Identifier.Value == "" {
			ch.Identifier = auth.Identifier
		}
		return ch, nil
	}
	return acme.Challenge{}, fmt.Errorf("the authority does not offer tls_acme_challenge = %s, but %s", c.set.challenge, strings.Join(offers, ", "))
}

// verify says whether a chain is what was asked for.
func (c *client) verify(chain []byte, key crypto.Signer) error {
	if len(chain) > maxChain {
		return fmt.Errorf("the certificate's chain has more than %d octets", maxChain)
	}
	certs, err := servercert.ParseCertificates(chain)
	if err != nil {
		return fmt.Errorf("the certificate of the authority: %w", err)
	}
	if !servercert.SameKey(certs[0].PublicKey, key.Public()) {
		return errors.New("the authority has issued a certificate for another key")
	}
	for _, name := range c.set.names {
		if !hasName(certs[0], name) {
			return fmt.Errorf("the authority has issued a certificate that lacks %s", name)
		}
	}
	if bytes.Contains(chain, []byte("PRIVATE KEY")) {
		return errors.New("the authority has sent a private key with the certificate")
	}
	return nil
}

// explain is the text of an error, with what the authority says of it (RFC 8555 section 6.7).
func explain(err error) string {
	var p acme.Problem
	if !errors.As(err, &p) || p.Type == "" && p.Detail == "" {
		return err.Error()
	}
	text := strings.TrimPrefix(p.Type, "urn:ietf:params:acme:error:") + ": " + p.Detail
	for _, sub := range p.Subproblems {
		text += fmt.Sprintf("; %s: %s: %s", sub.Identifier.Value, strings.TrimPrefix(sub.Type, "urn:ietf:params:acme:error:"), sub.Detail)
	}
	if auth, ok := p.Resource.(acme.Authorization); ok {
		text = auth.Identifier.Value + ": " + text
	}
	if p.Instance != "" {
		text += " (" + p.Instance + ")"
	}
	return text
}

// advise says what to look at after an error; nothing where the error says it all.
func (c *client) advise(err error) string {
	var p acme.Problem
	var expired x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return "is the clock of this machine right?"
	case errors.As(err, &unknown):
		return "if the authority is your own, set tls_acme_CAfile"
	case !errors.As(err, &p):
		return ""
	}
	switch strings.TrimPrefix(p.Type, "urn:ietf:params:acme:error:") {
	case "connection", "tls", "unauthorized":
		switch c.set.challenge {
		case http01:
			return "port 80 of that name must lead to the acme service: see its line in master.cf, and the address in the DNS"
		case alpn01:
			return "port 443 of that name must lead to the acme service: see its line in master.cf, and the address in the DNS"
		case dns01:
			if len(c.set.command) > 0 {
				return "tls_acme_command must leave other records of that name in place: all are there at the same time"
			}
		}
	case "dns":
		return "has the name an address in the DNS that everybody can look up?"
	case "caa":
		return "a CAA record of the name or of a domain above it forbids this authority to issue"
	case "externalAccountRequired":
		return "the authority wants to know whose the account is: set tls_acme_eab_key_file"
	case "userActionRequired":
		return "the terms of service have changed: read them at the address given"
	}
	return ""
}

// notes are what the authority says between the lines: how long to leave it in peace, and what
// time it is.
type notes struct {
	below http.RoundTripper
	now   func() time.Time

	mu    sync.Mutex
	again time.Time     // not before, after a refusal
	ahead time.Duration // of the authority's clock, that of this machine
}

// RoundTrip carries out a request.
func (n *notes) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := n.below.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = &bounded{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		n.ahead = now.Sub(date)
	}
	if resp.StatusCode >= 400 {
		after := resp.Header.Get("Retry-After")
		if date, err := http.ParseTime(after); err == nil {
			n.again = date.Add(max(n.ahead, 0))
		} else if seconds, err := strconv.Atoi(after); err == nil {
			n.again = now.Add(time.Duration(min(max(seconds, 0), 7*24*3600)) * time.Second)
		}
	}
	return resp, nil
}

// forget begins an attempt.
func (n *notes) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.again, n.ahead = time.Time{}, 0
}

// said is what is known since then.
func (n *notes) said() (again time.Time, ahead time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.again, n.ahead
}

// A bounded body ends after some octets.
type bounded struct {
	io.Reader
	io.Closer
}
