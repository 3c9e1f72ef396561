package dmarcsend

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/mailauth"
	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
)

// A site is a Log, and what it has sent and said.
type site struct {
	*Log
	mu       sync.Mutex
	mails    map[string]string // messages by recipient
	said     []string          // warnings
	sent     []string
	checker  *mailauth.Checker
	refusing error // what Mail says
}

const zone = `
_dmarc.bank.test. 60 IN TXT "v=DMARC1; p=reject; sp=quarantine; np=reject; adkim=s; rua=mailto:d@bank.test,mailto:bank@reports.test!10m,mailto:bank@unwilling.test,mailto:x@moved.test,https://bank.test/x"
bank.test._report._dmarc.reports.test. 60 IN TXT "v=DMARC1"
bank.test._report._dmarc.moved.test. 60 IN TXT "v=DMARC1; rua=mailto:z@evil.test,mailto:y@moved.test"
_dmarc.test.test. 60 IN TXT "v=DMARC1; p=reject; t=y; rua=mailto:d@test.test"
_dmarc.silent.test. 60 IN TXT "v=DMARC1; p=reject"
!fail _dmarc.slow.test SERVFAIL
`

func newSite(t *testing.T, dir, zone string) *site {
	t.Helper()
	dns := fakezone.Must(zone).Resolver()
	t.Cleanup(dns.Close)
	s := &site{mails: map[string]string{}, checker: mailauth.New(dns, resolver.Names{}, "mx.test")}
	s.checker.Detailed()
	var err error
	s.Log, err = Open(Options{Dir: dir, Organization: "Me & Co", Contact: "dmarc@me.test", Extra: "https://me.test/dmarc", Sender: "dmarc@me.test", Hostname: "mx.me.test", Checker: s.checker,
		Mail: func(_ context.Context, to string, msg []byte) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.refusing == nil {
				s.mails[to] = string(msg)
			}
			return s.refusing
		},
		Warn: func(text string) { s.mu.Lock(); s.said = append(s.said, text); s.mu.Unlock() },
		Sent: func(report, uri string) { s.mu.Lock(); s.sent = append(s.sent, report+" "+uri); s.mu.Unlock() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

var (
	noon    = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	morning = time.Date(2026, 11, 26, 6, 0, 0, 0, time.UTC)
)

// found is an evaluation of mail from a domain.
func found(domain string, change func(e *Evaluation)) *Evaluation {
	e := &Evaluation{Client: netip.MustParseAddr("192.0.2.9"), Sender: "joe@Sender.test", Disposition: "none",
		Results: &mailauth.Results{SPF: mailauth.SPF{Result: mailauth.Pass, Domain: "sender.test", MailFrom: "joe@sender.test"},
			DKIM:  []mailauth.DKIM{{Result: mailauth.Fail, Domain: domain, Selector: "s1"}, {Result: mailauth.PermError}},
			DMARC: mailauth.DMARC{Result: mailauth.Fail, From: domain, Policy: "reject", Published: &mailauth.Record{Domain: domain, Policy: "reject", Subdomains: "quarantine", DKIM: "s"}}}}
	change(e)
	return e
}

// report takes a report out of a message.
func reportIn(t *testing.T, msg string) string {
	t.Helper()
	_, part, ok := strings.Cut(msg, ".xml.gz\"\r\n\r\n")
	text, _, ok2 := strings.Cut(part, "\r\n--")
	data, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "\r\n", ""))
	if !ok || !ok2 || err != nil {
		t.Fatalf("%v: %s", err, msg)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A day's mail becomes one report, which is as the schema wants it and goes to those addresses
// that take it.
func TestReport(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dmarc")
	s := newSite(t, dir, zone)
	same := func(*Evaluation) {}
	for range 3 {
		s.Record(noon, found("bank.test", same))
	}
	s.Record(noon, found("bank.test", func(e *Evaluation) {
		e.Disposition, e.Client, e.Sender = "reject", netip.MustParseAddr("::ffff:198.51.100.7"), ""
	}))
	s.Record(noon, found("bank.test", func(e *Evaluation) {
		d := &e.Results.DMARC
		d.Result, d.Aligned.DKIM, e.Results.DKIM[0].Result = mailauth.Pass, true, mailauth.Pass
		d.From = "<evil>&\x01\xff" + strings.Repeat("x", 300)
	}))
	s.Record(noon, found("bank.test", func(e *Evaluation) { e.Override, e.Comment = "local_policy", "no" }))
	s.flush()
	s.Record(noon, found("bank.test", same))
	// None of these counts.
	s.Record(noon, found("bank.test", func(e *Evaluation) { e.Results.DMARC.Published = nil }))
	s.Record(noon, found("bank.test", func(e *Evaluation) { e.Results.DMARC.Result = mailauth.TempError }))
	s.Record(noon, found("bank.test", func(e *Evaluation) { e.Client = netip.Addr{} }))
	var none *Log
	none.Record(noon, found("bank.test", same))

	s.Step(t.Context(), noon.Add(12*time.Hour)) // at midnight none is due
	if len(s.mails) > 0 {
		t.Error("a report is sent before it is due")
	}
	pending, err := s.Pending()
	if want := []Pending{{Day: "2026-11-25", Domain: "bank.test", Messages: 7, Rows: 4}}; err != nil || !slices.Equal(pending, want) {
		t.Errorf("%+v %v", pending, err)
	}
	s.Step(t.Context(), morning)
	var to []string
	for address := range s.mails {
		to = append(to, address)
	}
	slices.Sort(to)
	if want := []string{"bank@reports.test", "d@bank.test", "y@moved.test"}; !slices.Equal(to, want) || len(s.sent) != 3 || len(s.said) != 0 {
		t.Fatalf("%q, expected %q; sent %q, said %q", to, want, s.sent, s.said)
	}
	msg := s.mails["d@bank.test"]
	for _, part := range []string{"From: dmarc@me.test\r\nTo: d@bank.test\r\n", "Subject: Report Domain: bank.test Submitter: me.test\r\n Report-ID: <2026-11-25.bank.test@mx.me.test>\r\n",
		"Auto-Submitted: auto-generated\r\n", "filename=\"me.test!bank.test!1795564800!1795651199.xml.gz\"\r\n", "Content-Type: application/gzip\r\n"} {
		if !strings.Contains(msg, part) {
			t.Errorf("there is no %q in\n%s", part, msg)
		}
	}
	text := reportIn(t, msg)
	root, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.validate(root); err != nil {
		t.Errorf("%v in\n%s", err, text)
	}
	for _, part := range []string{"<org_name>Me &amp; Co</org_name>", "<extra_contact_info>https://me.test/dmarc</extra_contact_info>", "<begin>1795564800</begin>", "<end>1795651199</end>",
		"<domain>bank.test</domain>", "<p>reject</p>", "<sp>quarantine</sp>", "<adkim>s</adkim>", "<aspf>r</aspf>", "<testing>n</testing>",
		"<source_ip>192.0.2.9</source_ip>\n   <count>4</count>", "<source_ip>198.51.100.7</source_ip>", "<disposition>reject</disposition>", "<disposition>pass</disposition>",
		"<type>local_policy</type>", "<envelope_from>sender.test</envelope_from>", "<header_from>&lt;evil&gt;&amp;??xx", "<scope>mfrom</scope>", "<selector>s1</selector>"} {
		if !strings.Contains(text, part) {
			t.Errorf("there is no %q in\n%s", part, text)
		}
	}
	if strings.Contains(text, "joe") {
		t.Error("a report names a person")
	}
	if files, _ := filepath.Glob(dir + "/*/*"); len(files) != 0 {
		t.Errorf("left over: %q", files)
	}
	s.Step(t.Context(), morning.Add(time.Hour))
	if len(s.sent) != 3 {
		t.Errorf("sent again: %q", s.sent)
	}
}

// Reports about mail that looks like reports would go on for ever; together with other mail it is
// reported.
func TestNoLoop(t *testing.T) {
	t.Parallel()
	s := newSite(t, t.TempDir(), zone)
	report := func(e *Evaluation) { e.Report = true }
	s.Record(noon, found("bank.test", report))
	s.Record(noon, found("test.test", report))
	s.Record(noon, found("test.test", func(*Evaluation) {}))
	s.Step(t.Context(), morning)
	if len(s.mails) != 1 || !strings.Contains(s.mails["d@test.test"], "Report Domain: test.test") || strings.Count(reportIn(t, s.mails["d@test.test"]), "<record>") != 2 {
		t.Errorf("%q", s.mails)
	}
}

// A report waits while it cannot be sent, for a day; one whose domain wants none any more is
// dropped, and so is a file that is no report.
func TestWaiting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newSite(t, dir, zone)
	for _, domain := range []string{"slow.test", "gone.test", "silent.test", "test.test"} {
		s.Record(noon, found(domain, func(*Evaluation) {}))
	}
	s.refusing = errors.New("451 not now")
	s.Step(t.Context(), morning)
	files, _ := filepath.Glob(dir + "/report/*.json")
	if len(files) != 2 || len(s.said) != 0 {
		t.Errorf("%q wait, %q", files, s.said)
	}
	pending, err := s.Pending()
	if err != nil || len(pending) != 2 || !pending[0].Waiting {
		t.Errorf("%+v %v", pending, err)
	}
	s.refusing = nil
	if err := os.WriteFile(dir+"/report/x.json", []byte(`{"rows":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Step(t.Context(), morning.Add(time.Hour))
	if len(s.mails) != 1 || len(s.said) != 1 || !strings.Contains(s.said[0], "it has no rows") {
		t.Errorf("%q %q", s.mails, s.said)
	}
	s.Step(t.Context(), morning.Add(30*time.Hour))
	if files, _ := filepath.Glob(dir + "/report/*.json"); len(files) != 0 || len(s.said) != 2 || !strings.Contains(s.said[1], "2026-11-25.slow.test@mx.me.test could not be sent") {
		t.Errorf("%q wait, %q", files, s.said)
	}
}

// A domain whose name is as long as may be gets its report, and what cannot be kept does not have others sent twice.
func TestLongName(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dmarc")
	label := strings.Repeat("x", 60) + "."
	long := label + label + label + label[:50] + ".test"
	s := newSite(t, dir, zone+"_dmarc."+long+`. 60 IN TXT "v=DMARC1; p=none; rua=mailto:d@`+long+"\"\n")
	same := func(*Evaluation) {}
	s.Record(noon, found(long, same))
	s.Record(noon, found("bank.test", same))
	s.Step(t.Context(), morning)
	if len(s.sent) < 2 || s.mails["d@"+long] == "" || len(s.said) > 0 {
		t.Errorf("sent %v, said %q", s.sent, s.said)
	}
	s.sent, s.said = nil, nil
	s.Step(t.Context(), morning.Add(time.Hour))
	if len(s.sent) > 0 || len(s.said) > 0 {
		t.Errorf("afterwards: sent %v, said %q", s.sent, s.said)
	}
	// The next day's reports cannot be made: something is in the way of one of them.
	tomorrow := noon.AddDate(0, 0, 1)
	s.Record(tomorrow, found("bank.test", same))
	s.Record(tomorrow, found("test.test", same))
	obstacle := filepath.Join(dir, "report", "2026-11-26.test.test.json.new")
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	for hours := range 3 {
		s.Step(t.Context(), morning.AddDate(0, 0, 1).Add(time.Duration(hours)*time.Hour))
	}
	if len(s.sent) > 0 || len(s.said) != 3 {
		t.Errorf("with an obstacle: sent %v, said %q", s.sent, s.said)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	s.mails = map[string]string{}
	s.Step(t.Context(), morning.AddDate(0, 0, 1).Add(4*time.Hour))
	if len(s.sent) != len(s.mails) || s.mails["d@test.test"] == "" {
		t.Errorf("without it: sent %v, mails %d", s.sent, len(s.mails))
	}
}

// Without waiting the reports of days that are over are sent, and today's are not.
func TestSendNow(t *testing.T) {
	t.Parallel()
	s := newSite(t, t.TempDir(), zone)
	s.Record(noon, found("bank.test", func(*Evaluation) {}))
	s.Record(noon.Add(24*time.Hour), found("test.test", func(*Evaluation) {}))
	if !s.SendNow(t.Context(), noon.Add(12*time.Hour)) || len(s.mails) != 3 || s.mails["d@test.test"] != "" {
		t.Errorf("%q", s.mails)
	}
	s.journal.Locked(func() {
		if s.SendNow(t.Context(), noon.Add(48*time.Hour)) {
			t.Error("two processes send at a time")
		}
	})
}

// Strangers decide how many rows there are; the memory for them does not grow with that.
func TestBounds(t *testing.T) {
	t.Parallel()
	s := newSite(t, t.TempDir(), zone)
	for i := range maxRows + 1 {
		s.Record(noon, found("bank.test", func(e *Evaluation) {
			e.Client = netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)})
			e.Results.DKIM = slices.Repeat(e.Results.DKIM[:1], 30)
		}))
	}
	s.Record(noon, found("bank.test", func(e *Evaluation) {
		e.Client = netip.AddrFrom4([4]byte{192, 0, 0, 5})
		e.Results.DKIM = slices.Repeat(e.Results.DKIM[:1], 30)
	}))
	if len(s.rows) != maxRows {
		t.Errorf("%d rows", len(s.rows))
	}
	s.Step(t.Context(), morning)
	text := reportIn(t, s.mails["d@bank.test"])
	if n := strings.Count(text, "<record>"); n != maxReportRows || strings.Count(text, "<selector>") != maxReportRows*maxSignatures {
		t.Errorf("%d records", n)
	}
	if !strings.Contains(text, "<source_ip>192.0.0.5</source_ip>\n   <count>2</count>") {
		t.Error("the largest row is not there")
	}
	// On a busy machine more is said: the time for other destinations is over then.
	if len(s.said) == 0 || !strings.Contains(s.said[0], "not all messages are counted") {
		t.Errorf("%q", s.said)
	}
}

// A day of more kinds of mail than there is memory for has reports of some, and says so. What has been seen
// once more is no further kind.
func TestDayBound(t *testing.T) {
	t.Parallel()
	s := newSite(t, t.TempDir(), zone)
	s.dayText = 20 << 10
	for range 2 {
		for i := range 500 {
			s.Record(noon, found("bank.test", func(e *Evaluation) { e.Client = netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }))
		}
		s.flush()
	}
	s.Step(t.Context(), morning)
	n := strings.Count(reportIn(t, s.mails["d@bank.test"]), "<count>2</count>")
	if want := fmt.Sprintf("over %d kinds of mail on ", n); n < 20 || n > 200 || len(s.said) != 1 || !strings.Contains(s.said[0], want) {
		t.Errorf("%d records; %q", n, s.said)
	}
}

// What is in a journal, whoever wrote it, makes no report that is not valid.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"row":{"published":{"domain":"bank.test","p":"reject"},"source":"192.0.2.1","disposition":"none","from":"a"},"n":1}`))
	f.Add([]byte("{\"row\":{\"published\":{\"domain\":\"bank.test\"},\"from\":\"\\u0000\"},\"n\":1}"))
	f.Fuzz(func(t *testing.T, line []byte) {
		s := newSite(t, t.TempDir(), zone)
		if err := s.journal.Append("2026-11-25", append(line, '\n')); err != nil {
			t.Fatal(err)
		}
		s.Step(t.Context(), morning)
		for _, msg := range s.mails {
			if _, err := parse(reportIn(t, msg)); err != nil {
				t.Errorf("%q: %v", line, err)
			}
		}
	})
}

// name leaves nothing that XML forbids.
func FuzzName(f *testing.F) {
	f.Add("a\x00b\ufffe\u0085")
	f.Fuzz(func(t *testing.T, s string) {
		n := name(s)
		if len(n) > maxName {
			t.Errorf("%d octets", len(n))
		}
		if root, err := parse(fmt.Sprintf("<a xmlns=%q>%s</a>", namespace, strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(n))); err != nil || root.text != n {
			t.Errorf("%q: %q %v", s, n, err)
		}
	})
}
