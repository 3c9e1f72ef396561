// What TLS reports (TLSRPT, RFC 8460) are told: which sessions count, under which
// policy, and what was wrong with them. The reports themselves are package tlsrpt's.

package smtp

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dayreport"
	"posthaste/internal/egress"
	"posthaste/internal/maillog"
	"posthaste/internal/submit"
	"posthaste/internal/tlspolicy"
	"posthaste/internal/tlspolicy/mtasts"
	"posthaste/internal/tlsrpt"
)

// reporter keeps account of TLS sessions for TLSRPT, RFC 8460. It is set up with
// the Agent, and used by all deliveries at once.
type reporter struct {
	// record counts a session; f is nil for one that went well. It may be called concurrently.
	record     func(now time.Time, p tlsrpt.Policy, f *tlsrpt.Failure)
	skipReused bool          // smtp_tlsrpt_skip_reused_handshakes
	sts        *mtasts.Table // nil: there is no table of type mta-sts
}

// openReports opens the log of TLS sessions and sends reports until stop is called,
// which waits for what is being sent. It opens files in data_directory.
func (a *Agent) openReports(cfg *config.Config, s *submit.Client) (stop func(), err error) {
	sent := func(report, uri string) { a.log.Log(maillog.TLSReportSent{Report: report, URI: uri}) }
	warn := func(text string) { a.log.Warning("%s", text) }
	sender := cfg.String("smtp_tlsrpt_sender")
	l, err := tlsrpt.Open(tlsrpt.Options{Dir: filepath.Join(cfg.String("data_directory"), "tlsrpt"),
		Organization: cfg.String("smtp_tlsrpt_organization"), Contact: cfg.String("smtp_tlsrpt_contact"), Sender: sender,
		Hostname: a.set.myhostname, Resolver: a.dns, Allowed: a.webNetwork, Warn: warn, Sent: sent,
		Mail: func(ctx context.Context, to string, msg []byte) error {
			return dayreport.Submit(ctx, s, sender, to, msg)
		}})
	if err != nil {
		return nil, err
	}
	a.reports.record = l.Record
	// Reports are sent in the background, a day's at a time. The goroutine belongs
	// to the Agent, whose Close calls stop.
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Run(ctx)
	}()
	return func() { cancel(); <-done }, nil
}

// flaw is what was wrong with a session's TLS, in the terms of TLSRPT.
// kind is a result type of RFC 8460 section 4.3, reason is for people and may be empty.
type flaw struct{ kind, reason string }

// reportable says whether sessions of the present destination are counted: it is a
// mail domain, whose servers the DNS names. A relay that main.cf names has no
// policy to report on.
func (d *delivery) reportable() bool {
	if d.a.reports == nil || d.set.lmtp || d.hop.noMX || d.hop.port != smtpPort || d.fallback {
		return false
	}
	_, ok := d.hop.domain(d.set.names)
	return ok
}

// reportPolicy sets what reports say of the policy that is applied to a
// server. An MTA-STS policy in testing mode, which decides nothing, is to be
// reported of as if it did.
func (d *delivery) reportPolicy(ctx context.Context, p *policy) {
	if !d.reportable() {
		return
	}
	domain, _ := d.hop.domain(d.set.names)
	// A destination without a policy is counted, too: RFC 8460 has the type
	// no-policy-found for it.
	r := &tlsrpt.Policy{Type: tlsrpt.PolicyNone, Domain: domain}
	p.report = r
	if len(p.tlsa) > 0 {
		r.Type = tlsrpt.PolicyTLSA
		for _, t := range p.tlsa {
			r.Strings = append(r.Strings, fmt.Sprintf("%d %d %d %x", t.Usage, t.Selector, t.Matching, t.Data))
		}
		return
	}
	// The policy came from another program, by smtp_tls_policy_maps: what is known of it is in there.
	if d.a.reports.sts == nil {
		if p.STS {
			r.Type, r.MXHosts = tlsrpt.PolicySTS, p.MXPatterns
		}
		return
	}
	sts, err := d.a.reports.sts.Policy(ctx, domain)
	if err != nil || sts == nil || sts.Mode == mtasts.None {
		return
	}
	r.Type, r.MXHosts = tlsrpt.PolicySTS, sts.MX
	r.Strings = append(r.Strings, "version: STSv1", "mode: "+string(sts.Mode))
	for _, mx := range sts.MX {
		r.Strings = append(r.Strings, "mx: "+mx)
	}
	r.Strings = append(r.Strings, "max_age: "+strconv.Itoa(int(sts.MaxAge/time.Second)))
	if !p.STS && sts.Mode == mtasts.Testing {
		p.trial = &tlspolicy.Policy{STS: true, MXPatterns: sts.MX}
	}
}

// reportSession counts a new session, once: it is one for a report if TLS was
// tried, or should have been.
func (d *delivery) reportSession(s *session, t *target, p *policy) {
	if p.report == nil {
		return
	}
	// A policy in testing mode has not been applied: find out now what it would
	// have said.
	if s.flaw == nil && s.tls != nil && p.trial != nil {
		s.flaw = d.tryOut(s, t, p.trial)
	}
	switch {
	case s.flaw != nil:
		d.reportFailure(s, t, p.report, s.flaw)
	case s.tls != nil && !(s.tls.DidResume && d.a.reports.skipReused):
		d.a.reports.record(time.Now(), *p.report, nil)
	}
}

// reportFailure counts a session that failed, or that there was none for the
// policy's sake: s may be nil. The texts are a server's, and end up in JSON that
// others read: hence printable.
func (d *delivery) reportFailure(s *session, t *target, p *tlsrpt.Policy, why *flaw) {
	f := &tlsrpt.Failure{Type: why.kind, Reason: printable([]byte(why.reason)), MXHost: t.host, ReceivingIP: t.address()}
	if s != nil {
		f.MXHelo = printable([]byte(s.greeted))
		if host, _, err := net.SplitHostPort(s.conn.LocalAddr().String()); err == nil {
			f.SendingIP = host
		}
		if d.source != nil && d.source.Proxy.Kind != egress.NoProxy { // the connection here is with the proxy
			f.SendingIP = ""
			if from, _ := d.source.From(t.ip); from.IsValid() {
				f.SendingIP = from.String()
			}
		}
	}
	d.a.reports.record(time.Now(), *p, f)
}

// reportNoSession counts that there was no session for the policy's sake: kind is
// the policy's type.
func (d *delivery) reportNoSession(t *target, kind string, why *flaw) {
	if d.reportable() {
		domain, _ := d.hop.domain(d.set.names)
		d.reportFailure(nil, t, &tlsrpt.Policy{Type: kind, Domain: domain}, why)
	}
}

// tryOut looks at a server as an MTA-STS policy in testing mode asks, for the
// report alone: mail flows whatever comes of it (RFC 8461 section 5).
func (d *delivery) tryOut(s *session, t *target, trial *tlspolicy.Policy) *flaw {
	if !trial.AllowsMX(t.host) {
		return &flaw{tlsrpt.ValidationError, "the MX host is not in the policy"}
	}
	pool, err := d.a.tls.pool(&policy{Policy: trial, system: !d.a.tls.chosen})
	if err == nil {
		err = d.chain(s.tls.PeerCertificates, pool)
	}
	if err != nil {
		return chainFlaw(err)
	}
	if !(tlspolicy.NameRule{Names: d.set.names}).Match(s.tls.PeerCertificates[0], []string{t.host}) {
		return &flaw{tlsrpt.HostMismatch, ""}
	}
	return nil
}

// chainFlaw sorts an error of a chain of certificates into the result types of RFC
// 8460 section 4.3.
func chainFlaw(err error) *flaw {
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return &flaw{tlsrpt.Expired, ""} // the words have the time in them
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return &flaw{tlsrpt.NotTrusted, err.Error()}
	}
	return &flaw{tlsrpt.ValidationError, err.Error()}
}
