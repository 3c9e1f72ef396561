package dmarcsend

import (
	"bytes"
	"crypto/rand"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/dayreport"
	"posthaste/internal/rfc5322"
)

// A report is what is to be told a domain of a day.
type report struct {
	Day    time.Time `json:"day"`
	Domain string    `json:"domain"` // where the record is
	Rows   []counted `json:"rows"`
}

// id is the same for every attempt to send the report.
func (r *report) id(hostname string) string {
	return r.Day.Format(dayreport.DayForm) + "." + r.Domain + "@" + hostname
}

// namespace is that of RFC 9990's schema.
const namespace = "urn:ietf:params:xml:ns:dmarc-2.0"

// The elements of a report, in the order of RFC 9990's schema.
type (
	feedback struct {
		XMLName   xml.Name        `xml:"urn:ietf:params:xml:ns:dmarc-2.0 feedback"`
		Version   string          `xml:"version"`
		Metadata  metadata        `xml:"report_metadata"`
		Published policyPublished `xml:"policy_published"`
		Records   []record        `xml:"record"`
	}
	metadata struct {
		Organization string `xml:"org_name"`
		Email        string `xml:"email"`
		Extra        string `xml:"extra_contact_info,omitempty"`
		ID           string `xml:"report_id"`
		Begin        int64  `xml:"date_range>begin"`
		End          int64  `xml:"date_range>end"`
		Generator    string `xml:"generator"`
	}
	policyPublished struct {
		Domain     string `xml:"domain"`
		Discovery  string `xml:"discovery_method"`
		Policy     string `xml:"p"`
		Subdomains string `xml:"sp,omitempty"`
		Missing    string `xml:"np,omitempty"`
		DKIM       string `xml:"adkim,omitempty"`
		SPF        string `xml:"aspf,omitempty"`
		Testing    string `xml:"testing"`
	}
	record struct {
		Source      string      `xml:"row>source_ip"`
		Count       int64       `xml:"row>count"`
		Disposition string      `xml:"row>policy_evaluated>disposition"`
		DKIM        string      `xml:"row>policy_evaluated>dkim"`
		SPF         string      `xml:"row>policy_evaluated>spf"`
		Reasons     []reason    `xml:"row>policy_evaluated>reason"`
		From        string      `xml:"identifiers>header_from"`
		Envelope    string      `xml:"identifiers>envelope_from,omitempty"`
		Auth        authResults `xml:"auth_results"`
	}
	reason struct {
		Type    string `xml:"type"`
		Comment string `xml:"comment,omitempty"`
	}
	authResults struct {
		DKIM []dkimResult `xml:"dkim"`
		SPF  *spfResult   `xml:"spf"`
	}
	dkimResult struct {
		Domain   string `xml:"domain"`
		Selector string `xml:"selector"`
		Result   string `xml:"result"`
	}
	spfResult struct {
		Domain string `xml:"domain"`
		Scope  string `xml:"scope,omitempty"`
		Result string `xml:"result"`
	}
)

func passed(yes bool) string {
	if yes {
		return "pass"
	}
	return "fail"
}

// xml is the report's text. The policy is that of most messages, should it have changed in the
// course of the day.
func (l *Log) xml(r *report) ([]byte, error) {
	p := &r.Rows[0].Row.Published
	f := feedback{Version: "1.0", Metadata: metadata{Organization: l.opt.Organization, Email: l.opt.Contact, Extra: l.opt.Extra, ID: r.id(l.opt.Hostname),
		Begin: r.Day.Unix(), End: r.Day.AddDate(0, 0, 1).Unix() - 1, Generator: "Posthaste"},
		Published: policyPublished{Domain: r.Domain, Discovery: "treewalk", Policy: p.Policy, Subdomains: p.Subdomains, Missing: p.Missing,
			DKIM: alignment(p.DKIM), SPF: alignment(p.SPF), Testing: "n"}}
	if p.Testing {
		f.Published.Testing = "y"
	}
	for i := range r.Rows {
		f.Records = append(f.Records, r.Rows[i].record())
	}
	text, err := xml.MarshalIndent(&f, "", " ")
	return append([]byte(xml.Header), append(text, '\n')...), err
}

// alignment is r or s; what else a record says counts as r.
func alignment(s string) string {
	if s == "s" {
		return "s"
	}
	return "r"
}

// record is a row of the report.
func (c *counted) record() record {
	r := &c.Row
	e := record{Source: r.Source, Count: c.N, Disposition: r.Disposition, DKIM: passed(r.DKIM), SPF: passed(r.SPF), From: r.From, Envelope: r.Envelope}
	if r.Reason != "" {
		e.Reasons = []reason{{r.Reason, r.Comment}}
	}
	for _, s := range r.Signatures {
		e.Auth.DKIM = append(e.Auth.DKIM, dkimResult(s))
	}
	if r.SPFDomain != "" {
		s := &spfResult{Domain: r.SPFDomain, Result: r.SPFResult}
		if r.Envelope != "" {
			s.Scope = "mfrom"
		}
		e.Auth.SPF = s
	}
	return e
}

// message is the report as mail, RFC 9990 section 3.
func (l *Log) message(r *report, to string, now time.Time) ([]byte, error) {
	text, err := l.xml(r)
	if err != nil {
		return nil, err
	}
	data, err := dayreport.Gzip(text)
	for n := len(r.Rows); err == nil && len(data) > maxReport && n > 1; { // cannot be, but for names that are as long as may be
		n /= 2
		short := &report{Day: r.Day, Domain: r.Domain, Rows: r.Rows[:n]}
		if text, err = l.xml(short); err == nil {
			data, err = dayreport.Gzip(text)
		}
	}
	if err != nil {
		return nil, err
	}
	submitter := l.opt.Hostname
	if _, d, ok := rfc5322.Split(l.opt.Sender); ok {
		submitter = d
	}
	boundary := rand.Text()
	file := fmt.Sprintf("%s!%s!%d!%d.xml.gz", submitter, r.Domain, r.Day.Unix(), r.Day.AddDate(0, 0, 1).Unix()-1)
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\r\n", args...) }
	line("From: %s", rfc5322.Quote(l.opt.Sender))
	line("To: %s", rfc5322.Quote(to))
	line("Date: %s", rfc5322.Date(now))
	line("Subject: Report Domain: %s Submitter: %s\r\n Report-ID: <%s>", r.Domain, submitter, r.id(l.opt.Hostname))
	line("Message-ID: <%s.%s@%s>", strconv.FormatInt(now.UnixNano(), 36), strings.ToLower(boundary[:8]), l.opt.Hostname)
	line("Auto-Submitted: auto-generated")
	line("TLS-Required: No")
	line("MIME-Version: 1.0")
	line("Content-Type: multipart/mixed;\r\n\tboundary=\"%s\"", boundary)
	line("")
	line("--%s", boundary)
	line("Content-Type: text/plain; charset=us-ascii")
	line("")
	line("This is a DMARC aggregate report from %s about mail", submitter)
	line("of %s on %s (UTC). See RFC 9990.", r.Domain, r.Day.Format(dayreport.DayForm))
	line("--%s", boundary)
	line("Content-Type: application/gzip")
	line("Content-Transfer-Encoding: base64")
	line("Content-Disposition: attachment;\r\n\tfilename=\"%s\"", file)
	line("")
	b.Write(dayreport.AppendBase64(nil, data))
	line("--%s--", boundary)
	return b.Bytes(), nil
}
