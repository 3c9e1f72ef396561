package access

import (
	"io"
	"net/netip"
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/table"
)

// evaluator is one with nobody to ask but tables.
func evaluator(t *testing.T, main string) *Evaluator {
	t.Helper()
	cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = mx.example.test\nqueue_directory = /\ninet_interfaces = 192.0.2.25\n" + main)
	if err != nil {
		t.Fatal(err)
	}
	log := maillog.New("smtpd", maillog.NewWriter(io.Discard, maillog.Classic))
	e, err := New(t.Context(), cfg, Deps{Log: log, Tables: table.Options{Recheck: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close(); log.Close() })
	return e
}

func client() *Session {
	return &Session{Stage: "CONNECT", Proto: "SMTP", Client: Client{Name: "unknown", ReverseName: "unknown",
		Addr: netip.MustParseAddr("198.51.100.7"), AddrText: "198.51.100.7"}}
}

// Names in a certificate are what its owner likes; fingerprints are not.
func TestCertificateAccess(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ check, want string }{
		{"inline:{ {AA=REJECT first} }", "first"},
		{"inline:{ {BB=REJECT second} }", "second"},
		{"inline:{ {AA=DUNNO}, {BB=REJECT second} }", "second"},
		{"inline:{AA=OK, BB=REJECT}", ""},
		{"{ inline:{ {AA=REJECT first}, {BB=REJECT second} } { search_order = pubkey_fingerprint, cert_fingerprint } }", "second"},
		{"{ inline:{ {AA=REJECT first}, {BB=DUNNO} } { search_order = pubkey_fingerprint } }", "last"},
		{"{ inline:{mx=OK} { search_order = subject } }", "Server configuration error"},
		{"{ inline:{ca=OK} { search_order = issuer } }", "Server configuration error"},
	} {
		e := evaluator(t, "smtpd_delay_reject = no\nsmtpd_client_restrictions = check_ccert_access "+tc.check+", check_client_access static:{REJECT last}\n")
		s := client()
		s.TLS = &TLS{Fingerprint: "AA", PubKeyPrint: "BB", Subject: "mx", Issuer: "ca"}
		got := ""
		if reply := e.Connect(t.Context(), s); reply != nil {
			got = reply.Text
		}
		if !strings.HasSuffix(got, tc.want) || got == "" != (tc.want == "") {
			t.Errorf("%s: %q, want %q", tc.check, got, tc.want)
		}
	}
}

// A rule with a typing error does not let through whom it was to keep out: mail
// that comes to it waits.
func TestUnreadableRule(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ tab, want string }{
		{"cidr:{{198.51.100.7/33 REJECT}, {0.0.0.0/0 OK}}", "Server configuration error"},
		{"cidr:{{198.51.100.7/33 554 5.7.1 No}, {0.0.0.0/0 OK}}", "Server configuration error"},
		{"cidr:{{198.51.100.7/33}, {0.0.0.0/0 OK}}", "Server configuration error"},
		{"cidr:{{198.51.100.7/33 DUNNO}, {0.0.0.0/0 OK}}", "Server configuration error"},
		{"cidr:{{198.51.100.7/33 ok}, {0.0.0.0/0 OK}}", ""},
		{"cidr:{{198.51.100.7/33 4711}, {0.0.0.0/0 REJECT no}}", "no"},
		{"cidr:{{! 198.51.100.7 OK}, {0.0.0.0/0 REJECT no}}", "no"},
		{"cidr:{{! 198.51.100.8 REJECT no}}", "no"},
		{"pcre:{{/^198/!/^199/ REJECT}, {/./ OK}}", "Server configuration error"},
		{"regexp:{{/^(198/ REJECT}, {/./ OK}}", "Server configuration error"},
	} {
		e := evaluator(t, "smtpd_delay_reject = no\nsmtpd_client_restrictions = check_client_access "+tc.tab+"\n")
		s := client()
		got := ""
		if reply := e.Connect(t.Context(), s); reply != nil {
			got = reply.Text
		}
		if !strings.HasSuffix(got, tc.want) || got == "" != (tc.want == "") {
			t.Errorf("%s: %q, want %q", tc.tab, got, tc.want)
		}
	}
}
