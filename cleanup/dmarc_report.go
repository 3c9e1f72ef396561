// DMARC aggregate reports: what became of mail from strangers is counted, and told to
// the domains that it claims to be of. The counts and the reports are package
// dmarcsend's; this file says what is counted, and runs it beside the server.

package cleanup

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dayreport"
	"posthaste/internal/dmarcsend"
	"posthaste/internal/ipc"
	"posthaste/internal/mailauth"
	"posthaste/internal/maillog"
	"posthaste/internal/milter"
	"posthaste/internal/resolver"
	"posthaste/internal/rfc5322"
	"posthaste/internal/service"
	"posthaste/internal/submit"
	"posthaste/internal/table"
)

// newReportingAuthenticator makes an authenticator, and opens the log of its findings.
func newReportingAuthenticator(cfg *config.Config, log *maillog.Logger, dns resolver.Resolver, o table.Options) (*authenticator, *reportMailer, error) {
	a, err := newAuthenticator(cfg, dns, o)
	if err != nil {
		return nil, nil, err
	}
	m := &reportMailer{sender: cfg.String("dmarc_report_sender")}
	return a, m, a.openReports(cfg, log, m.mail)
}

// openReports opens the log of a's findings, if dmarc_report_enable says so. It is
// called before the process gives up its rights: the log's directory is in
// data_directory. mail queues a report; what it needs may come later.
func (a *authenticator) openReports(cfg *config.Config, log *maillog.Logger, mail func(ctx context.Context, to string, msg []byte) error) (err error) {
	if a == nil || !cfg.Bool("dmarc_report_enable") {
		return nil
	}
	a.checker.Detailed()
	o := dmarcsend.OptionsOf(cfg, a.checker)
	o.Mail = mail
	o.Warn = func(text string) { log.Warning("%s", text) }
	o.Sent = func(report, uri string) { log.Log(maillog.DMARCReportSent{Report: report, URI: uri}) }
	a.reports, err = dmarcsend.Open(o)
	return err
}

// A reportMailer queues reports: cleanup is its own client, so that they are rewritten
// and signed as all mail is.
type reportMailer struct {
	sender string
	client *submit.Client // set when the process may connect to its own socket
}

// mail queues one report for one address of a policy domain. It is durable when this returns
// without an error.
func (m *reportMailer) mail(ctx context.Context, to string, msg []byte) error {
	return dayreport.Submit(ctx, m.client, m.sender, to, msg)
}

// sendReports counts and sends in the background until stop is called, which waits for
// what is being sent. The end of ctx is not heeded: messages are still being finished
// then, and count.
func (a *authenticator) sendReports(ctx context.Context, env *service.Env, m *reportMailer) (stop func()) {
	if a == nil || a.reports == nil {
		return func() {}
	}
	own := ipc.NewClient(env.Public(env.Config.String("cleanup_service_name")), nil)
	m.client = submit.New(own)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.reports.Run(ctx)
	}()
	return func() { cancel(); <-done; m.client.Close(); own.Close() }
}

// count notes what was found and done: refused says that the message was.
func (a *authenticator) count(in *incoming, client netip.Addr, c *milter.Content, r *mailauth.Results, refused bool) {
	if a.reports == nil {
		return
	}
	e := &dmarcsend.Evaluation{Client: client, Sender: in.q.Envelope.Sender, Results: r, Disposition: "none", Report: isReport(c.Fields)}
	switch d := &r.DMARC; {
	// Whatever the reason was: the domain learns that its mail was not taken.
	case refused:
		e.Disposition = "reject"
	// Nothing was to be done, or there is nobody who would want something done.
	case d.Result != mailauth.Fail || d.Published == nil:
	// From here on it has failed and was taken all the same: the report says why.
	case r.ARC.Vouched:
		e.Override, e.Comment = "trusted_forwarder", "arc=pass, sealed by "+r.ARC.Sealer
	case d.Published.Testing:
		e.Override = "policy_test_mode"
	case d.Policy != "none":
		// Quarantine is for filters behind us, which read the findings.
		e.Override, e.Comment = "local_policy", "the message was not refused; filters and users see the result"
	}
	a.reports.Record(time.Now(), e)
}

// isReport says whether a message looks like a report of somebody else's, by the
// subject that RFC 9990 section 3 and RFC 8460 section 5.3 prescribe. Whoever imitates it
// gains no more than that his mail alone causes no report.
func isReport(fields []milter.Field) bool {
	for i := range fields {
		f, ok := rfc5322.ParseField(fields[i].Raw)
		if !ok || !rfc5322.EqualName(f.Name(), "Subject") {
			continue
		}
		text := strings.ToLower(string(bytes.TrimSpace(f.Body())))
		return strings.HasPrefix(text, "report domain:") && strings.Contains(text, "report-id:")
	}
	return false
}
