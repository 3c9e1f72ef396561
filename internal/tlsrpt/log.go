package tlsrpt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"posthaste/internal/dayreport"
	"posthaste/internal/resolver"
	"posthaste/internal/statedir"
	"posthaste/internal/webclient"
)

// Types of policies, RFC 8460 section 4.2.
const (
	PolicyTLSA = "tlsa"
	PolicySTS  = "sts"
	PolicyNone = "no-policy-found"
)

// Types of failures, RFC 8460 section 4.3.
const (
	NotSupported    = "starttls-not-supported"
	HostMismatch    = "certificate-host-mismatch"
	Expired         = "certificate-expired"
	NotTrusted      = "certificate-not-trusted"
	ValidationError = "validation-failure"
	TLSAInvalid     = "tlsa-invalid"
	DNSSECInvalid   = "dnssec-invalid"
	STSWebPKI       = "sts-webpki-invalid"
)

// Policy is what a domain asks of those who send mail to it.
type Policy struct {
	Type    string   `json:"policy-type"`
	Strings []string `json:"policy-string,omitempty"` // the policy as it was published
	Domain  string   `json:"policy-domain"`
	MXHosts []string `json:"mx-host,omitempty"` // of an MTA-STS policy
}

// Failure is what went wrong with a session.
type Failure struct {
	Type        string `json:"result-type"`
	SendingIP   string `json:"sending-mta-ip,omitempty"`
	MXHost      string `json:"receiving-mx-hostname,omitempty"`
	MXHelo      string `json:"receiving-mx-helo,omitempty"`
	ReceivingIP string `json:"receiving-ip,omitempty"`
	Reason      string `json:"failure-reason-code,omitempty"`
}

// Options are what a Log is made of.
type Options struct {
	Dir          string
	Organization string // organization-name of reports
	Contact      string // contact-info: an address
	Sender       string // From: and envelope sender of reports
	Hostname     string // of this system
	Resolver     resolver.Resolver
	// Mail queues a message for one recipient of reports. It may be called
	// again with the same message after an error. It, Warn and Sent may be called concurrently.
	Mail func(ctx context.Context, to string, message []byte) error
	// Allowed says which addresses that are not public a site may have; nil: none (package webclient).
	Allowed func(ctx context.Context, addr netip.Addr) (bool, error)
	// Client posts reports; nil: one that goes to public addresses, and to what is Allowed.
	Client *http.Client
	Warn   func(text string)
	// Sent is told which report has gone to whom; printable is what of a URI may be logged.
	Sent func(report, uri string)
}

// A Log counts sessions and sends reports. Record may be called concurrently;
// a nil Log counts nothing.
type Log struct {
	opt     Options
	journal *dayreport.Journal // in Dir, which may be out of sight by now

	mu      sync.Mutex
	days    map[string]map[string]*tally // by day, by policy
	dropped bool                         // more policies than fit, since the last flush
}

// tally are the counts of one policy.
type tally struct {
	policy Policy
	good   int64
	bad    map[Failure]int64
}

// Bounds of what is counted between two flushes. What is over the first is not
// counted; failures over the second are counted without details.
const (
	maxPolicies = 20000
	maxFailures = 100
	maxReason   = 200 // octets
)

// Open makes a log that keeps its files in o.Dir, which it makes if need be.
// It may be called with other rights, and another root directory, than what follows.
func Open(o Options) (*Log, error) {
	dir, err := statedir.Open(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("tlsrpt: %w", err)
	}
	if o.Client == nil {
		o.Client = webclient.New(webclient.Options{Resolver: o.Resolver, Allowed: o.Allowed})
	}
	l := &Log{opt: o, days: make(map[string]map[string]*tally)}
	l.journal = &dayreport.Journal{Dir: dir, Hostname: o.Hostname, Suffix: ".json", Warn: l.warn}
	return l, nil
}

func (l *Log) warn(format string, args ...any) { l.opt.Warn("tlsrpt: " + fmt.Sprintf(format, args...)) }

// Record counts one session with a server of a domain: a success if f is nil.
func (l *Log) Record(now time.Time, p Policy, f *Failure) {
	if l == nil || !resolver.ValidHostname(p.Domain) {
		return
	}
	p.Domain = strings.ToLower(p.Domain)
	day := now.UTC().Format(dayreport.DayForm)
	key := p.Type + " " + p.Domain + " " + strings.Join(p.Strings, "\n")
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.days[day]
	if of == nil {
		of = make(map[string]*tally)
		l.days[day] = of
	}
	t := of[key]
	if t == nil {
		if len(of) >= maxPolicies {
			l.dropped = true
			return
		}
		t = &tally{policy: p}
		of[key] = t
	}
	if f == nil {
		t.good++
		return
	}
	t.fail(*f, 1)
}

// fail counts a failure.
func (t *tally) fail(f Failure, n int64) {
	f.Reason = f.Reason[:min(len(f.Reason), maxReason)]
	if t.bad == nil {
		t.bad = make(map[Failure]int64)
	}
	if _, known := t.bad[f]; !known && len(t.bad) >= maxFailures {
		f = Failure{Type: f.Type}
	}
	t.bad[f] += n
}

// line is one line of a day's file: so many more sessions that went well, or
// failed in one way.
type line struct {
	Policy  Policy   `json:"policy"`
	Good    int64    `json:"good,omitempty"`
	Failure *Failure `json:"failure,omitempty"`
	Bad     int64    `json:"bad,omitempty"`
}

// flush appends what has been counted to the files.
func (l *Log) flush() {
	l.mu.Lock()
	days, dropped := l.days, l.dropped
	l.days, l.dropped = make(map[string]map[string]*tally), false
	l.mu.Unlock()
	if dropped {
		l.warn("over %d policies in a minute: not all sessions are counted", maxPolicies)
	}
	for day, of := range days {
		if err := l.appendDay(day, of); err != nil {
			l.warn("counts are lost: %v", err)
		}
	}
}

// appendDay writes a day's counts to its file.
func (l *Log) appendDay(day string, of map[string]*tally) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, t := range of {
		var err error
		if t.good > 0 {
			err = enc.Encode(line{Policy: t.policy, Good: t.good})
		}
		for f, n := range t.bad {
			err = errors.Join(err, enc.Encode(line{Policy: t.policy, Failure: &f, Bad: n}))
		}
		if err != nil {
			return err // cannot be: these are strings and numbers
		}
	}
	return l.journal.Append(day, b.Bytes())
}

// readDay adds up the lines of a day.
func (l *Log) readDay(day string) (map[string][]*tally, error) {
	byKey := make(map[string]*tally)
	domains := make(map[string][]*tally)
	err := l.journal.Lines(day, func(text []byte) {
		var one line
		if json.Unmarshal(text, &one) != nil || !resolver.ValidHostname(one.Policy.Domain) {
			return
		}
		p := &one.Policy
		key := p.Type + " " + p.Domain + " " + strings.Join(p.Strings, "\n")
		t := byKey[key]
		if t == nil {
			t = &tally{policy: *p}
			byKey[key] = t
			domains[p.Domain] = append(domains[p.Domain], t)
		}
		t.good += one.Good
		if one.Failure != nil {
			t.fail(*one.Failure, one.Bad)
		}
	})
	return domains, err
}
