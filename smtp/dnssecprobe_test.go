package smtp

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/maillog"
	"posthaste/internal/resolver/fakezone"
)

// logHead is what stands before the text of a line.
var logHead = regexp.MustCompile(`(?m)^.*?: (warning: )`)

// TestProbe: the resolver is asked once, when nothing has been vouched for, and
// only what it answers then is complained of.
func TestProbe(t *testing.T) {
	t.Parallel()
	const complaint = "warning: DNSSEC validation may be unavailable\nwarning: reason: dnssec_probe 'QUESTION' "
	for _, tt := range []struct {
		text, zone string
		notes      []bool // what is found to be vouched for, or not
		want       string
	}{
		{"ns:.", ". NS a.root.test.", []bool{false, false}, complaint + "received a response that is not DNSSEC validated\n"},
		{"ns:.", ". NS a.root.test.\n!secure .", []bool{false, false}, ""},
		{"ns:.", ". NS a.root.test.", []bool{true, false}, ""},
		{"ns:.", ". NS a.root.test.", nil, ""},
		{"ns:.", "!fail . SERVFAIL NS", []bool{false}, complaint + "received no response: "},
		{"", ". NS a.root.test.", []bool{false}, ""},
		{"MX:x.test", "x.test. MX 10 y.test.", []bool{false}, complaint + "received a response that is not DNSSEC validated\n"},
		{"a:x.test", "x.test. A 192.0.2.1\n!secure x.test", []bool{false}, ""},
		{"aaaa:x.test", "x.test. AAAA 2001:db8::1\n!secure x.test", []bool{false}, ""},
		{"tlsa:_25._tcp.x.test", "_25._tcp.x.test. TLSA 3 1 1 00\n!secure x.test", []bool{false}, ""},
		{"srv:_s._tcp.x.test", "_s._tcp.x.test. SRV 1 1 25 x.test.\n!secure x.test", []bool{false}, ""},
		{"txt:x.test", "x.test. TXT \"x\"\n!secure x.test", []bool{false}, ""},
	} {
		p, err := newProbe(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		dns := fakezone.Must(tt.zone).Resolver()
		defer dns.Close()
		sink := new(lines)
		log := maillog.New("log", sink)
		for _, secure := range tt.notes {
			p.warnIfUnsigned(t.Context(), secure, dns, log)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
		want := strings.ReplaceAll(tt.want, "QUESTION", tt.text)
		if got := logHead.ReplaceAllString(sink.b.String(), "$1"); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s, %q: %q, want %q", tt.text, tt.zone, got, want)
		}
	}
	for _, text := range []string{"ns", "ns:", ":.", "hinfo:x.test"} {
		if _, err := newProbe(text); err == nil || !strings.Contains(err.Error(), "dnssec_probe = "+text) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestProbeCutOff: a question that is cut off has found out nothing, and is asked again.
func TestProbeCutOff(t *testing.T) {
	t.Parallel()
	p, err := newProbe("ns:.")
	if err != nil {
		t.Fatal(err)
	}
	dns := fakezone.Must(". NS a.root.test.").Resolver()
	defer dns.Close()
	sink := new(lines)
	log := maillog.New("log", sink)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	p.warnIfUnsigned(stopped, false, dns, log)
	log.Flush()
	if got := sink.String(); got != "" {
		t.Errorf("a process that stops says %q", got)
	}
	p.warnIfUnsigned(t.Context(), false, dns, log)
	p.warnIfUnsigned(t.Context(), false, dns, log)
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	if got := sink.String(); strings.Count(got, "DNSSEC validation may be unavailable") != 1 {
		t.Errorf("%q", got)
	}
}
