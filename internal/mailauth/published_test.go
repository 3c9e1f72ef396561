package mailauth

import (
	"strings"
	"testing"

	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
)

// A DMARC record is read as its owner wants to see it, with all that receivers do not heed.
func TestParsePublished(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text, policy, sub, reports, faults string
		ok, testing                        bool
	}{
		{text: "v=DMARC1; p=reject", policy: "reject", ok: true},
		{text: "v=DMARC1;p=Quarantine ; sp=none; np=reject; t=y", policy: "quarantine", sub: "none", ok: true, testing: true},
		{text: "V=DMARC1; p=none; rua=mailto:a@b.test, mailto:c@d.test!10m", policy: "none", ok: true, reports: "mailto:a@b.test mailto:c@d.test",
			faults: "the size !10m behind mailto:c@d.test has no effect since RFC 9990"},
		{text: "v=DMARC1; rua=mailto:a@b.test", policy: "none", ok: true, reports: "mailto:a@b.test", faults: "the record has no p=, which receivers take for p=none"},
		{text: "v=DMARC1; p=block; adkim=x; pct=10", policy: "none", ok: true,
			faults: "adkim=x: expected r or s|p=block: expected none, quarantine or reject|pct=10 has no effect since RFC 9989"},
		{text: "v=DMARC1; p=none; rua=https://b.test/", policy: "none", ok: true, faults: "rua=https://b.test/: expected mailto:user@domain"},
		{text: "v=DMARC2; p=reject"},
		{text: "p=reject; v=DMARC1"},
		{text: "v=spf1 -all"},
		{text: ""},
	} {
		p, ok := ParsePublished(tt.text)
		if ok != tt.ok || p.Policy != tt.policy || p.Subdomains != tt.sub || p.Testing != tt.testing ||
			strings.Join(p.Reports, " ") != tt.reports || strings.Join(p.Faults, "|") != tt.faults {
			t.Errorf("%q: %+v, %t", tt.text, p, ok)
		}
	}
	if p, _ := ParsePublished("v=DMARC1; p=none; adkim=s; aspf=S"); strings.Join(p.Strict, " ") != "dkim spf" {
		t.Errorf("strict alignment: %q", p.Strict)
	}
}

// The record that counts is the domain's own, or its organization's; of two, none counts.
// Reports on it go to other domains only where these say so.
func TestPolicy(t *testing.T) {
	t.Parallel()
	dns := fakezone.Must(`
_dmarc.a.test. TXT "v=DMARC1; p=reject"
_dmarc.a.test. TXT "something else"
_dmarc.own.a.test. TXT "v=DMARC1; p=none"
_dmarc.two.a.test. TXT "v=DMARC1; p=none"
_dmarc.two.a.test. TXT "v=DMARC1; p=reject"
a.test._report._dmarc.reports.test. TXT "v=DMARC1"
a.test._report._dmarc.other.test. TXT "yes"
!fail _dmarc.broken.test SERVFAIL
`).Resolver()
	t.Cleanup(dns.Close)
	c := New(dns, resolver.Names{}, "id.test")
	for _, tt := range []struct {
		domain, at, policy string
		records            int
		err                bool
	}{
		{domain: "a.test", at: "a.test", policy: "reject", records: 1},
		{domain: "sub.a.test", at: "a.test", policy: "reject"},
		{domain: "own.a.test", at: "own.a.test", policy: "none", records: 1},
		{domain: "b.test"},
		{domain: "broken.test", err: true},
	} {
		p, at, n, err := c.Policy(t.Context(), tt.domain)
		if err == nil && (at != tt.at || p.Policy != tt.policy || n != tt.records) || (err != nil) != tt.err {
			t.Errorf("%s: %+v at %q, %d records, %v", tt.domain, p, at, n, err)
		}
	}
	if _, _, n, err := c.Policy(t.Context(), "two.a.test"); n != 2 || err != nil {
		t.Errorf("two records: %d, %v", n, err)
	}
	for other, want := range map[string]bool{"a.test": true, "mail.a.test": true, "reports.test": true, "other.test": false, "none.test": false} {
		if got, err := c.Allows(t.Context(), "a.test", other); got != want || err != nil {
			t.Errorf("reports to %s: %t, %v", other, got, err)
		}
	}
}

// Where reports go: to addresses of the same organization, and elsewhere only where that is
// wanted, or where another address of the same domain is named for them.
func TestReportsTo(t *testing.T) {
	t.Parallel()
	dns := fakezone.Must(`
_dmarc.bank.test. 60 IN TXT "v=DMARC1; p=none; rua=mailto:d@bank.test"
bank.test._report._dmarc.reports.test. 60 IN TXT "v=DMARC1"
bank.test._report._dmarc.moved.test. 60 IN TXT "v=DMARC1; rua=mailto:z@evil.test,mailto:y@Moved.test"
bank.test._report._dmarc.evil.test. 60 IN TXT "v=spf1 -all"
!fail bank.test._report._dmarc.slow.test SERVFAIL
`).Resolver()
	defer dns.Close()
	c := New(dns, resolver.Names{}, "mx.test")
	for _, tt := range []struct {
		uri, want string
		err       bool
	}{
		{"mailto:d@bank.test", "d@bank.test", false}, {"mailto:d@sub.Bank.test", "d@sub.Bank.test", false}, {"mailto:a@reports.test", "a@reports.test", false},
		{"MAILTO:d%2Be@bank.test", "d+e@bank.test", false}, {"mailto:a@moved.test", "y@Moved.test", false}, {"mailto:a@evil.test", "", false}, {"mailto:a@none.test", "", false}, {"mailto:a@slow.test", "", true}, {"mailto:a@not a name", "", false},
		// The domain that is asked is that of the address that would get the reports.
		{"mailto:victim@none.test?cc=a@bank.test", "", false}, {"mailto:victim@none.test#@bank.test", "", false}, {"mailto:victim%40none.test%20(@bank.test", "", false},
		{"mailto:victim@none.test%20@bank.test", "victim@none.test@bank.test", false}, // a local part with an @
		{"mailto:%3Cvictim@none.test%3E@bank.test", "", false}, {"mailto:victim%40none.test%00@bank.test", "", false},
		{"mailto://victim@none.test/@bank.test", "", false}, {"https://x@bank.test", "", false}, {"x@bank.test", "", false},
	} {
		if got, err := c.ReportsTo(t.Context(), "bank.test", tt.uri); got != tt.want || (err != nil) != tt.err {
			t.Errorf("%s: %q %v, expected %q", tt.uri, got, err, tt.want)
		}
	}
}
