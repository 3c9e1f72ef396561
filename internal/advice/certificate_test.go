package advice

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testcert"
)

// certificateDay is when the tests of this package take place.
var certificateDay = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// A certificate that nobody believes any more is found before the clients find it.
func TestCertificates(t *testing.T) {
	t.Parallel()
	cert := func(begin, end time.Time) string {
		return string(testcert.Make(t, x509.Certificate{NotBefore: begin, NotAfter: end}, nil).CertPEM())
	}
	day := certificateDay
	good, old := cert(day.AddDate(0, -1, 0), day.AddDate(0, 1, 0)), cert(day.AddDate(0, -2, 0), day.AddDate(0, -1, 0))
	const secret = "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"
	const served = "smtpd_tls_security_level = may\n"
	const acme = "tls_acme = yes\ntls_acme_agree = yes\ndata_directory = DIR\n"
	for _, c := range []struct{ main, master, want string }{
		{served + "smtpd_tls_cert_file = DIR/good.pem\n", "", ""},
		{served + "smtpd_tls_cert_file = DIR/old.pem\n", "", "!main.cf:5: smtpd_tls_cert_file: DIR/old.pem expired on 2026-10-21: mail programs"},
		{served + "smtpd_tls_chain_files = DIR/chain.pem\n", "", "!main.cf:5: smtpd_tls_chain_files: DIR/chain.pem expired on 2026-10-21"},
		{served + "smtpd_tls_cert_file = DIR/ending.pem\n", "", "main.cf:5: smtpd_tls_cert_file: DIR/ending.pem expires on 2026-11-24"},
		{served + "smtpd_tls_cert_file = DIR/early.pem\n", "", "!main.cf:5: smtpd_tls_cert_file: DIR/early.pem is not valid before 2026-12-21"},
		{served + "smtpd_tls_cert_file = DIR/authority.pem\n", "", ""},
		{"smtpd_tls_cert_file = DIR/old.pem\n", "", "main.cf:4: smtpd_tls_cert_file: DIR/old.pem expired on"},
		{"smtpd_tls_cert_file = DIR/old.pem\n", "465 inet n - n - - smtpd -o smtpd_tls_wrappermode=yes\n", "!main.cf:4: smtpd_tls_cert_file: DIR/old.pem expired on"},
		{"", "465 inet n - n - - smtpd -o smtpd_tls_wrappermode=yes -o smtpd_tls_eccert_file=DIR/old.pem\n", "!master.cf:7: service 465/inet: -o smtpd_tls_eccert_file: DIR/old.pem expired"},
		{"smtp_tls_cert_file = DIR/old.pem\n", "", "main.cf:4: smtp_tls_cert_file: DIR/old.pem expired on 2026-10-21: a server"},
		{served + "smtpd_tls_cert_file = DIR/none.pem\n", "", ""},
		{served + acme, "acme unix - - n 60 20 acme\n", "main.cf:5: tls_acme: tls_acme_challenge = http-01 needs a port\n!main.cf:5: tls_acme: DIR/acme/chain.pem expired on 2026-10-21: mail programs"},
		{served + acme + "tls_acme_challenge = dns-01\n", "acme unix - - n 60 20 acme\n", "!main.cf:5: tls_acme: DIR/acme/chain.pem expired on 2026-10-21: mail programs"},
		{acme, "80 inet n - n 60 20 acme\n443 inet n - n 60 20 acme\n", "main.cf:4: tls_acme: master.cf has 2 lines of acme\nmain.cf:4: tls_acme: DIR/acme/chain.pem expired on 2026-10-21"},
		{acme + "tls_acme_agree = no\nsmtpd_tls_chain_files = DIR/good.pem\n", "", "main.cf:4: tls_acme: the certificate is not used: smtpd_tls_chain_files\nmain.cf:4: tls_acme: no certificate is requested before you accept\nmain.cf:4: tls_acme: no certificate is requested: master.cf has no line of acme"},
	} {
		s := newStage(t)
		if err := os.Mkdir(filepath.Join(s.dir, "acme"), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"good.pem": good, "old.pem": secret + old, "ending.pem": cert(day.AddDate(0, -2, 0), day.AddDate(0, 0, 3)),
			"early.pem": cert(day.AddDate(0, 1, 0), day.AddDate(0, 2, 0)), "chain.pem": secret + good + secret + old, "acme/chain.pem": secret + old, "authority.pem": good + old} {
			s.write(t, name, text, 0o600)
		}
		s.expect(t, c.main, c.master, c.want)
	}
}

// expect compares the mistakes with those wanted: the beginnings of lines, "!" before what stops
// mail.
func (s *stage) expect(t *testing.T, main, master, want string) {
	t.Helper()
	got := s.mistakes(t, mainStart+main+"queue_directory = "+s.dir+"/spool\n", masterCF+master)
	wants := strings.Split(want, "\n")
	if want == "" {
		wants = nil
	}
	ok := len(got) == len(wants)
	for i := 0; ok && i < len(got); i++ {
		text, stops := strings.CutPrefix(wants[i], "!")
		ok = strings.HasPrefix(got[i].String(), text) && got[i].Stops == stops
	}
	if !ok {
		t.Errorf("%q, %q:\n%q, want\n%q", main, master, got, wants)
	}
}

// What stands on the right side of tables is an action, or something like one.
func TestActions(t *testing.T) {
	t.Parallel()
	const restricted = "smtpd_recipient_restrictions = check_sender_access %, reject_unauth_destination\n"
	for _, c := range []struct{ main, want string }{
		{strings.ReplaceAll(restricted, "%", "texthash:DIR/fine"), ""},
		{strings.ReplaceAll(restricted, "%", "hash:DIR/wrong"), "!wrong:2: bad.test: REJCT is neither an action, nor a restriction, nor in smtpd_restriction_classes: " +
			"mail that matches gets 451; did you mean REJECT?\n!wrong:3: c.test: strikt is neither an action, nor a restriction, nor in smtpd_restriction_classes: " +
			"mail that matches gets 451; did you mean strict?\n!wrong:4: d.test: hash:/x: an access table cannot ask for a table"},
		{strings.ReplaceAll(restricted, "%", "cidr:DIR/net"), "!net:4: 10.0.0.0/8: PERMITT is neither an action"},
		{strings.ReplaceAll(restricted, "%", "pcre:DIR/pcre"), "!pcre:3: /^b/: HOLDD is neither an action"},
		{strings.ReplaceAll(restricted, "%", "inline:{{a.test=OKAY}}"), "!main.cf:4: smtpd_recipient_restrictions: OKAY is neither an action"},
		{strings.ReplaceAll(restricted, "%", "static:REJCT"), "!main.cf:4: smtpd_recipient_restrictions: REJCT is neither an action"},
		{strings.ReplaceAll(restricted, "%", "static:{REJECT no}"), ""},
		{"smtpd_restriction_classes = strict\nstrict = check_helo_access texthash:DIR/wrong\n",
			"!wrong:2: bad.test: REJCT is neither an action\n!wrong:3: c.test: strikt\n!wrong:4: d.test:"},
		{"header_checks = pcre:DIR/header\n", "header:2: /^X-B:/: DISCARDD is no action of header_checks: what it matches is passed over; did you mean DISCARD?"},
		{"smtp_header_checks = pcre:DIR/header\n", "header:1: /^X-A:/: HOLD is no action of smtp_header_checks\nheader:2: /^X-B:/: DISCARDD is no action"},
		{"body_checks = static:INFO\n", ""},
		{"postscreen_access_list = permit_mynetworks, cidr:{{10.0.0.0/8 permit}}, cidr:DIR/screen\n", "screen:2: 10.0.0.2: OK is not one of permit, reject and dunno"},
	} {
		s := newStage(t)
		for name, text := range map[string]string{
			"fine":  "a.test OK\nb.test 554 5.7.1 no\nc.test 4711\nd.test permit_mynetworks, reject\ne.test\tReject\tno\n",
			"wrong": "a.test strict\nbad.test REJCT go away\nc.test strikt\nd.test check_client_access hash:/x\n",
			"net":   "if 10.0.0.0/8\n! 10.1.0.0/16 OK\n!10.2.0.0/16 REJECT\n10.0.0.0/8 PERMITT\nendif\n",
			"pcre":  "if /x/\n/^(a)/ ${1}x\n/^b/ HOLDD\n/p/!/q r/ OK\nendif\n", "screen": "10.0.0.1 Reject\n10.0.0.2 OK\n", "header": "/^X-A:/ HOLD\n/^X-B:/ DISCARDD\n/^X-(C):/ $1\n"} {
			s.write(t, name, text, 0o644)
		}
		main := c.main
		if strings.Contains(main, "hash:DIR/wrong") && !strings.Contains(main, "classes") {
			s.write(t, "wrong.phdb", "", 0o644)
			main += "smtpd_restriction_classes = strict\nstrict = reject\n"
		}
		s.expect(t, main, "", c.want)
	}
}

// The actions that are known here are those that the services know.
func TestActionsOfServices(t *testing.T) {
	t.Parallel()
	for file, known := range map[string][]string{"cleanup/header_check.go": cleanupActions, "smtp/output.go": deliveryActions} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, m := range regexp.MustCompile(`\tcase ("[A-Z]+"(?:, "[A-Z]+")*):`).FindAllStringSubmatch(string(text), -1) {
			for _, name := range strings.Split(m[1], ", ") {
				found = append(found, strings.Trim(name, `"`))
			}
		}
		slices.Sort(found)
		found = slices.Compact(found) // more than one function looks at an action
		if !slices.Equal(found, known) {
			t.Errorf("%s knows %q, advice %q", file, found, known)
		}
	}
}
