package tlsrpt

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/dayreport"
	"posthaste/internal/rfc5322"
)

// report is one, RFC 8460 section 4.4.
type report struct {
	Organization string        `json:"organization-name"`
	Range        dateRange     `json:"date-range"`
	Contact      string        `json:"contact-info"`
	ID           string        `json:"report-id"`
	Policies     []policyCount `json:"policies"`
}

type dateRange struct {
	Start time.Time `json:"start-datetime"`
	End   time.Time `json:"end-datetime"`
}

type policyCount struct {
	Policy  Policy `json:"policy"`
	Summary struct {
		Good int64 `json:"total-successful-session-count"`
		Bad  int64 `json:"total-failure-session-count"`
	} `json:"summary"`
	Failures []failureCount `json:"failure-details,omitempty"`
}

type failureCount struct {
	Failure
	Count int64 `json:"failed-session-count"`
}

// compose makes the report about a domain's day. The same counts make the same
// report.
func (l *Log) compose(domain string, day time.Time, counts []*tally) *report {
	r := &report{Organization: l.opt.Organization, Contact: l.opt.Contact,
		Range: dateRange{day, day.AddDate(0, 0, 1).Add(-time.Second)},
		ID:    day.Format(dayreport.DayForm) + "." + domain + "@" + l.opt.Hostname}
	slices.SortFunc(counts, func(a, b *tally) int {
		return cmp.Or(strings.Compare(a.policy.Type, b.policy.Type), slices.Compare(a.policy.Strings, b.policy.Strings))
	})
	for _, t := range counts {
		c := policyCount{Policy: t.policy}
		c.Summary.Good = t.good
		failures := slices.SortedFunc(maps.Keys(t.bad), func(a, b Failure) int {
			return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.MXHost, b.MXHost), strings.Compare(a.ReceivingIP, b.ReceivingIP),
				strings.Compare(a.SendingIP, b.SendingIP), strings.Compare(a.Reason, b.Reason), strings.Compare(a.MXHelo, b.MXHelo))
		})
		for _, f := range failures {
			c.Summary.Bad += t.bad[f]
			c.Failures = append(c.Failures, failureCount{f, t.bad[f]})
		}
		r.Policies = append(r.Policies, c)
	}
	return r
}

// domain is whom a report is about.
func (r *report) domain() string { return r.Policies[0].Policy.Domain }

// compressed is the report as it is sent.
func (r *report) compressed() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return dayreport.Gzip(text)
}

// message is the report as mail, RFC 8460 section 5.3.
func (l *Log) message(r *report, to string, now time.Time) ([]byte, error) {
	data, err := r.compressed()
	if err != nil {
		return nil, err
	}
	domain, boundary := r.domain(), rand.Text()
	submitter := l.opt.Hostname
	if _, d, ok := rfc5322.Split(l.opt.Sender); ok {
		submitter = d
	}
	file := fmt.Sprintf("%s!%s!%d!%d.json.gz", submitter, domain, r.Range.Start.Unix(), r.Range.End.Unix())
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\r\n", args...) }
	line("From: %s", rfc5322.Quote(l.opt.Sender))
	line("To: %s", rfc5322.Quote(to))
	line("Date: %s", rfc5322.Date(now))
	line("Subject: Report Domain: %s Submitter: %s Report-ID: <%s>", domain, submitter, r.ID)
	line("Message-ID: <%s.%s@%s>", strconv.FormatInt(now.UnixNano(), 36), strings.ToLower(boundary[:8]), l.opt.Hostname)
	line("TLS-Report-Domain: %s", domain)
	line("TLS-Report-Submitter: %s", submitter)
	line("TLS-Required: No") // it may be about TLS that does not work
	line("Auto-Submitted: auto-generated")
	line("MIME-Version: 1.0")
	line("Content-Type: multipart/report; report-type=\"tlsrpt\";\r\n\tboundary=\"%s\"", boundary)
	line("")
	line("--%s", boundary)
	line("Content-Type: text/plain; charset=us-ascii")
	line("")
	line("This is an aggregate TLS report from %s about mail", submitter)
	line("sent to %s on %s (UTC). See RFC 8460.", domain, r.Range.Start.Format(dayreport.DayForm))
	line("--%s", boundary)
	line("Content-Type: application/tlsrpt+gzip")
	line("Content-Transfer-Encoding: base64")
	line("Content-Disposition: attachment;\r\n\tfilename=\"%s\"", file)
	line("")
	b.Write(dayreport.AppendBase64(nil, data))
	line("--%s--", boundary)
	return b.Bytes(), nil
}

// Destinations reads the TXT records of _smtp._tls.DOMAIN: the URIs to which its owner
// wants reports sent, five at most. Just one record may be one of TLSRPT (RFC 8460 section 3).
func Destinations(records []string) []string {
	found := ""
	for _, r := range records {
		version, rest, _ := strings.Cut(r, ";")
		if strings.TrimSpace(version) != "v=TLSRPTv1" {
			continue
		}
		if found != "" {
			return nil
		}
		found = rest
	}
	var list []string
	for field := range strings.SplitSeq(found, ";") {
		key, value, _ := strings.Cut(field, "=")
		if strings.TrimSpace(key) != "rua" {
			continue
		}
		for uri := range strings.SplitSeq(value, ",") {
			if uri = strings.TrimSpace(uri); uri != "" && len(list) < maxDestinations {
				list = append(list, uri)
			}
		}
	}
	return list
}

// maxDestinations bounds to how many places one report is sent.
const maxDestinations = 5
