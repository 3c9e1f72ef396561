package maillog

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// smtpEvents are those of the SMTP and LMTP client, besides deliveries and connections.
func smtpEvents() []Event {
	return []Event{
		SMTPPutOff{"08A6F9D4443", "host mx.test[192.0.2.1] said: 450 4.2.0 try later (in reply to RCPT TO command)"},
		SMTPProblem{"08A6F9D4443", "smtp_generic_maps: hash:/etc/posthaste/generic: no such file or directory"},
		SMTPNoToken{"08A6F9D4443", "joe", "smtp_sasl_token_command: the output is not a token"},
		SMTPUTF8Alone{"mx.test[192.0.2.1]"},
		SMTPWorkarounds{"08A6F9D4443", "disable_esmtp delay_dotcrlf", "mx.test[192.0.2.1]:25"},
		SMTPCheck{"08A6F9D4443", "strip", "header", "X-Internal: 7", ""},
		SMTPCheck{"08A6F9D4443", "warning", "body", "buy now", "spam?"},
		SMTPNoMXAddress{"example.com"},
		SMTPOwnGreeting{"mx.example.com[192.0.2.1]:25", "mx.example.com"},
		SMTPStrayLine{"08A6F9D4443", "ESMTP", "mx.test[192.0.2.1]:25", "hello?"},
		SMTPPipeliningHint{"192.0.2.1", "smtp_discard_ehlo_keyword_address_maps"},
		SMTPXForwardRefused{"mx.test[192.0.2.1]", "550 5.7.0 not you"},
		SMTPRelayProblem{"relayhost", "Host or domain name not found. Name service error for name=gw.test type=A: Host not found"},
		SMTPRelayProblem{"smtp_fallback_relay", "mail for gw.test loops back to myself"},

		SMTPTLSOffered{"mx.test"},
		SMTPHandshakeFailed{"mx.test[192.0.2.1]:25", "lost connection"},
		SMTPUnverified{"mx.test[192.0.2.1]:25", "x509: certificate signed by unknown authority", false},
		SMTPUnverified{"mx.test[192.0.2.1]:25", "it is for none of mx.test, example.com", true},
		SMTPWithoutTLS{"08A6F9D4443", "mx.test"},
		SMTPWrapperHint{"465", "smtp_tls_wrappermode", "smtp_tls_security_level"},
		SMTPPolicyProblem{"08A6F9D4443", "example.com", "empty TLS policy: expected a security level"},
		SMTPPolicyMX{"08A6F9D4443", "mx.evil.test", "example.com"},
		SMTPNoDANE{"dane", "example.com", false},
		SMTPNoDANE{"dane-only", "example.com", true},
		SMTPNoUsableTLSA{"08A6F9D4443", "mx.test", "25"},
		SMTPNoDNSSEC{},
		SMTPProbeFailed{"ns:.", ""},
		SMTPProbeFailed{"ns:.", "Host or domain name not found. Name service error for name=. type=NS: Host not found, try again"},
		TLSReportSent{"2026-11-25T00:00:00Z_a.test", "mailto:tls@example.com"},
	}
}

// TestTypedLines: what the delivery agents log of usual things is an event. Warnings that are the
// text of an error, about a table or a parameter, may be composed where they arise.
func TestTypedLines(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../local/*/*.go")
	for _, pattern := range []string{"../../smtp/*.go", "../../local/*.go"} {
		more, bad := filepath.Glob(pattern)
		if files, err = append(files, more...), cmp.Or(err, bad); len(more) == 0 {
			t.Fatal("no files are", pattern)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if method, ok := call.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == "Info" && len(call.Args) > 0 {
				t.Errorf("%s: a line that is no event", set.Position(call.Pos()))
			}
			return true
		})
	}
}
