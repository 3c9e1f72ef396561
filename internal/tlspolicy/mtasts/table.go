// Package mtasts looks up the MTA-STS policies of mail domains (RFC 8461) and
// gives them out as entries of a TLS policy table:
//
//	smtp_tls_policy_maps = mta-sts:$data_directory/mta-sts
//
// The name is a directory in which policies are kept, so that somebody who can
// keep us from fetching a policy cannot make us forget it. A directory that
// cannot be written is warned of; policies are then kept in memory. Once a day
// those are removed whose max_age is over, and if there are more than 10000, or
// more than 64 MB of them, those that have not been used for longest.
//
// A domain that says "enforce" gets level secure, for the MX hosts that its
// policy names; one that says "testing" or "none", or has no policy, is not
// found, so that the next table or smtp_tls_security_level decides.
//
// # Security
//
// A policy comes over HTTPS from mta-sts.DOMAIN, whose certificate must be
// valid for that name by the system's CAs. The site must have a public address, or one
// that smtp_https_networks allows. Redirections are not followed, and
// the answer is bounded in size and time. A policy that cannot be fetched is
// not tried for again for five minutes; what was known before goes on counting
// until its max_age is over.
//
// Who can keep us from fetching a policy must not have to wait for the end of
// its max_age. A policy that is in use is therefore fetched again once a day, or
// when half of its max_age is over if that is sooner, whether or not the DNS says
// anything. No mail waits for that. If it fails, the log says so and until
// when the policy goes on counting; the next attempt is made after a 24th of
// max_age, though not within five minutes and at most an hour later.
//
// # Standards
//
// RFC 8461.
package mtasts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"posthaste/internal/resolver"
	"posthaste/internal/statedir"
	"posthaste/internal/table"
	"posthaste/internal/webclient"
)

const (
	fetchTime  = 20 * time.Second // of one fetch, RFC 8461 section 3.3 suggests a minute at most
	retryAfter = 5 * time.Minute  // after a fetch that failed
	renewEvery = 24 * time.Hour   // a policy in use, RFC 8461 section 3.3
	renewRetry = time.Hour        // after a renewal that failed, at most
	maxDomains = 10000            // kept in memory
	maxFetches = 20               // at once
	maxRenewed = 5                // at once, besides
)

// Options say how policies are had.
type Options struct {
	Dir      string // where policies are kept; empty: in memory alone
	Resolver resolver.Resolver
	Names    resolver.Names // the rule that Resolver converts names by
	Warn     func(text string)
	// Allowed says which addresses that are not public the sites may have; nil: none (package webclient).
	Allowed func(ctx context.Context, addr netip.Addr) (bool, error)
	// Client fetches; nil means one that asks Resolver for addresses and trusts the system's CAs.
	Client *http.Client
}

// Table is the table mta-sts:. It may be used concurrently.
type Table struct {
	opt   Options
	dir   *statedir.Dir // nil: policies are kept in memory alone
	slots chan struct{}
	spare chan struct{} // slots of renewals
	wg    sync.WaitGroup

	mu      sync.Mutex
	known   map[string]*entry
	calls   map[string]*call
	warned  bool
	closing bool
	swept   time.Time
}

var _ table.Table = (*Table)(nil)

// entry is what is known of a domain. Its fields are what is kept on disk.
type entry struct {
	ID      string    `json:"id"`
	Policy  *Policy   `json:"policy"` // nil: none is known
	Expires time.Time `json:"expires"`

	retry   time.Time // not fetched again before
	again   time.Time // not renewed before
	touched time.Time // when its file was last said to be in use
}

// call is a refresh under way.
type call struct {
	cancel context.CancelFunc
	done   chan struct{}
	e      *entry
}

// New makes a table.
func New(o Options) *Table {
	t := &Table{opt: o, slots: make(chan struct{}, maxFetches), spare: make(chan struct{}, maxRenewed),
		known: make(map[string]*entry), calls: make(map[string]*call)}
	if t.opt.Client == nil {
		t.opt.Client = webclient.New(webclient.Options{Resolver: o.Resolver, Allowed: o.Allowed})
	}
	if o.Dir != "" {
		var err error
		if t.dir, err = statedir.Open(o.Dir); err != nil {
			t.warn("mta-sts: policies cannot be kept: %v", err)
		}
	}
	t.wg.Go(func() { t.sweepDaily(time.Now()) })
	return t
}

func (t *Table) warn(format string, args ...any) {
	if t.opt.Warn != nil {
		t.opt.Warn(fmt.Sprintf(format, args...))
	}
}

// Pattern implements table.Table: only whole domains have policies.
func (t *Table) Pattern() bool { return true }

// Close breaks off what is under way. Call it after the last lookup.
func (t *Table) Close() error {
	t.mu.Lock()
	t.closing = true
	for _, c := range t.calls {
		c.cancel()
	}
	t.mu.Unlock()
	t.wg.Wait()
	if t.dir == nil {
		return nil
	}
	return t.dir.Close()
}

// Lookup gives the TLS policy entry of a domain. A domain whose policy cannot
// be found out and of which nothing is known has none: MTA-STS protects from
// the second message on.
func (t *Table) Lookup(ctx context.Context, domain string) (string, bool, error) {
	ascii, ok := t.opt.Names.ToASCII(domain)
	if !ok {
		return "", false, nil
	}
	p, err := t.policy(ctx, ascii)
	if err != nil || p == nil || p.Mode != Enforce {
		return "", false, err
	}
	var b strings.Builder
	b.WriteString("secure servername=hostname policy_type=sts policy_domain=" + ascii)
	// Which of the two counts, smtp_tls_enforce_sts_mx_patterns says.
	for _, mx := range p.MX {
		b.WriteString(" match=" + strings.TrimPrefix(mx, "*"))
	}
	for _, mx := range p.MX {
		b.WriteString(" mx_host_pattern=" + mx)
	}
	return b.String(), true, nil
}

// Policy gives the policy in force for a domain, which may be in either form if
// it is international, nil if there is none. The only error is the context's.
func (t *Table) Policy(ctx context.Context, domain string) (*Policy, error) {
	domain, ok := t.opt.Names.ToASCII(domain)
	if !ok {
		return nil, nil
	}
	return t.policy(ctx, domain)
}

// policy is Policy for a name in ASCII.
func (t *Table) policy(ctx context.Context, domain string) (*Policy, error) {
	id, published := t.record(ctx, domain)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	now := time.Now()
	e := t.recall(domain)
	t.touch(domain, e, now)
	fresh := e.Policy != nil && now.Before(e.Expires)
	if !published || id == e.ID && fresh || now.Before(e.retry) {
		if e.due(now) {
			t.renew(domain)
		}
		return e.inForce(now), nil
	}
	e, err := t.refresh(ctx, domain, id)
	if err != nil {
		return nil, err
	}
	return e.inForce(time.Now()), nil
}

// inForce is the policy as long as it has not expired.
func (e *entry) inForce(now time.Time) *Policy {
	if e.Policy == nil || !now.Before(e.Expires) {
		return nil
	}
	return e.Policy
}

// record asks the DNS whether the domain says that it has a policy, and which.
// A domain that stops saying so, or cannot be asked, goes on having the policy
// that is known (RFC 8461 section 3.1 and 5.1).
func (t *Table) record(ctx context.Context, domain string) (id string, published bool) {
	a, err := t.opt.Resolver.TXT(ctx, "_mta-sts."+domain)
	if err != nil {
		return "", false
	}
	return ParseRecord(a.Records)
}

// recall gives what is known of a domain, from memory or from disk.
func (t *Table) recall(domain string) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.known[domain]; e != nil {
		return e
	}
	e := t.read(file(domain))
	if e == nil {
		e = new(entry)
	}
	t.remember(domain, e)
	return e
}

// remember keeps an entry in memory. Called with the lock held.
func (t *Table) remember(domain string, e *entry) {
	if len(t.known) >= maxDomains {
		for d := range t.known { // any will do: what counts is on disk
			delete(t.known, d)
			break
		}
	}
	t.known[domain] = e
}

// due says whether a policy that is in force is to be fetched again. One of
// mode none has nothing to protect.
func (e *entry) due(now time.Time) bool {
	p := e.inForce(now)
	if p == nil || p.Mode == None || now.Before(e.retry) || now.Before(e.again) {
		return false
	}
	fetched := e.Expires.Add(-p.MaxAge)
	return now.Sub(fetched) >= min(renewEvery, p.MaxAge/2)
}

// begin registers a refresh of a domain. Called with the lock held, for a
// domain that has none under way.
func (t *Table) begin(domain string) (context.Context, *call) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTime)
	w := &call{cancel: cancel, done: make(chan struct{})}
	t.calls[domain] = w
	return ctx, w
}

// end ends a refresh with what is known now.
func (t *Table) end(domain string, w *call, e *entry) {
	w.cancel()
	t.mu.Lock()
	t.remember(domain, e)
	delete(t.calls, domain)
	t.mu.Unlock()
	w.e = e
	close(w.done)
}

// refresh fetches a policy, once for all who want it.
func (t *Table) refresh(ctx context.Context, domain, id string) (*entry, error) {
	t.mu.Lock()
	w := t.calls[domain]
	if w == nil {
		if t.closing {
			e := t.known[domain]
			t.mu.Unlock()
			return e, nil
		}
		var own context.Context
		own, w = t.begin(domain)
		t.wg.Go(func() { t.end(domain, w, t.run(own, domain, id)) })
	}
	t.mu.Unlock()
	select {
	case <-w.done:
		return w.e, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// renew fetches in the background a policy that is due, unless there are too
// many at it: the next message asks again.
func (t *Table) renew(domain string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing || t.calls[domain] != nil {
		return
	}
	select {
	case t.spare <- struct{}{}:
	default:
		return
	}
	ctx, w := t.begin(domain)
	t.wg.Go(func() {
		t.end(domain, w, t.renewed(ctx, domain))
		<-t.spare
	})
}

// renewed fetches the policy of a domain again, or takes it from another
// process that did.
func (t *Table) renewed(ctx context.Context, domain string) *entry {
	old, now := t.recall(domain), time.Now()
	if e := t.read(file(domain)); e != nil && e.Expires.After(old.Expires) && !e.due(now) {
		return e
	}
	p, err := Fetch(ctx, t.opt.Client, domain, t.opt.Names)
	e := t.learn(ctx, domain, old.ID, p, err)
	if err != nil && old.Policy != nil {
		e.again = time.Now().Add(max(retryAfter, min(renewRetry, old.Policy.MaxAge/24)))
	}
	return e
}

// errBusy says that a policy was not fetched for want of a turn.
var errBusy = errors.New("too many policies are being fetched")

// run fetches. Its context is nobody's who waits; its time is bounded, and half
// of it is the most that is spent on waiting for a turn: sites that do not
// answer must not hold up the mail to others.
func (t *Table) run(ctx context.Context, domain, id string) *entry {
	var p *Policy
	err := errBusy
	turn := time.NewTimer(fetchTime / 2)
	defer turn.Stop()
	select {
	case t.slots <- struct{}{}:
		p, err = Fetch(ctx, t.opt.Client, domain, t.opt.Names)
		<-t.slots
	case <-turn.C:
	case <-ctx.Done():
	}
	return t.learn(ctx, domain, id, p, err)
}

// learn is what is known of a domain after a fetch, which may have failed.
func (t *Table) learn(ctx context.Context, domain, id string, p *Policy, err error) *entry {
	now := time.Now()
	if err == nil {
		e := &entry{ID: id, Policy: p, Expires: now.Add(p.MaxAge), touched: now}
		t.save(domain, e, now)
		t.sweepDaily(now)
		return e
	}
	old := t.recall(domain)
	t.mu.Lock()
	e := &entry{ID: old.ID, Policy: old.Policy, Expires: old.Expires, touched: old.touched, again: old.again}
	t.mu.Unlock()
	switch {
	case errors.Is(ctx.Err(), context.Canceled): // Close
		return e
	case e.inForce(now) != nil:
		t.warn("mta-sts: policy of %s: %v; the one that is known counts until %s", domain, err, e.Expires.UTC().Format(time.RFC3339))
	default:
		t.warn("mta-sts: policy of %s: %v", domain, err)
	}
	if err != errBusy { // else the site is not to blame: the next message may have more luck
		e.retry = now.Add(retryAfter)
	}
	return e
}

// Fetch gets the policy that a domain publishes, which is in ASCII, whatever its DNS says of
// it. Context bounds the time; the answer is bounded in size. client should be one of package
// webclient, which follows no redirection and connects to public addresses alone. Names of hosts
// that are international are converted by names.
func Fetch(ctx context.Context, client *http.Client, domain string, names resolver.Names) (*Policy, error) {
	url := "https://mta-sts." + domain + "/.well-known/mta-sts.txt"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d, expected 200", url, resp.StatusCode)
	}
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "text/plain" {
		return nil, fmt.Errorf("%s: type %q, expected text/plain", url, clip(resp.Header.Get("Content-Type")))
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxPolicy+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxPolicy {
		return nil, errors.New(url + ": over 64 KB")
	}
	return ParsePolicy(string(b), names)
}
