package domain

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/resolver/fakezone"
)

// run runs a command on the stage.
func (s *stage) run(t *testing.T, args ...string) (stdout, stderr string, status int) {
	s.write(t, "main.cf", strings.ReplaceAll(s.main, "DIR", s.dir))
	s.write(t, "master.cf", s.master)
	return s.again(t, args...)
}

// again runs another one, with the configuration as it is now.
func (s *stage) again(t *testing.T, args ...string) (stdout, stderr string, status int) {
	world := s.world(t)
	var out, errs bytes.Buffer
	c := &command{Tool: cli.Tool{Name: "posthaste domain", Stdin: strings.NewReader(s.answer), Stdout: &out, Stderr: &errs}, Now: s.now, terminal: s.answer != ""}
	c.world = func(*config.Config) (*World, func(), error) { return world, func() {}, nil }
	where := []string{args[0], "-c", s.dir, "-A", "192.0.2.1", "-A", "2001:db8::1"}
	if args[0] == "rotate" {
		where = where[:3]
	}
	args = append(where, args[1:]...)
	status = c.run(args)
	return out.String(), errs.String(), status
}

// The exit status is that of the worst finding, of all domains; -q leaves out what is good.
func TestStatus(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	out, errs, status := s.run(t, "check", "-q", "-o", "probe.test")
	if out != "" || errs != "" || status != 0 {
		t.Errorf("a good domain, quietly: status %d\n%s%s", status, out, errs)
	}
	s.zone = replaced(t, s.zone, "p=reject", "p=rejekt")
	if out, _, status = s.run(t, "check", "-q", "-o", "probe.test", "a.test"); status != 1 || !strings.HasPrefix(out, "warning  dmarc      _dmarc.a.test: p=rejekt: expected") {
		t.Errorf("a warning: status %d\n%s", status, out)
	}
	if out, _, status = s.run(t, "check", "-o", "", "a.test", "probe.test"); status != 2 || !strings.Contains(out, "\n\nprobe.test:\n") || !strings.HasPrefix(out, "a.test:\n") {
		t.Errorf("another domain, which is not signed: status %d\n%s", status, out)
	}
	s.zone = replaced(t, goodZone, "!secure", "!fail _smtp._tls.a.test SERVFAIL\n!secure")
	if out, _, status = s.run(t, "check", "-q", "-o", "probe.test"); status != 3 || !strings.HasPrefix(out, "unknown  tls-rpt") {
		t.Errorf("a server that fails: status %d\n%s", status, out)
	}
}

// The world of the command asks what DNSSEC vouches for. Without that no TLSA record is heeded.
func TestOutsideIsValidated(t *testing.T) {
	t.Parallel()
	zone, err := fakezone.Must("a.test. MX 10 mail.a.test.\nb.test. MX 10 mail.b.test.\n!secure a.test\n").Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer zone.Close()
	s := newStage(t)
	s.write(t, "main.cf", "resolver_address = "+zone.Addr+"\nresolver_trust_ad = yes\n")
	s.write(t, "master.cf", "")
	cfg, err := config.Load(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	world, done, err := new(command).outside(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	for name, want := range map[string]bool{"a.test": true, "b.test": false} {
		if a, err := world.DNS.MX(t.Context(), name); err != nil || a.Secure != want {
			t.Errorf("%s: %v, secure %v", name, err, a.Secure)
		}
	}
}

// What JSON says can be read back, with the records to publish.
func TestJSON(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.zone = replaced(t, s.zone, "_smtp._tls.a.test.", "_smtp._tls.b.test.")
	out, _, status := s.run(t, "check", "-j", "-o", "probe.test")
	var got struct {
		Domain, Host, Level string
		Findings            []struct {
			Area, Level, Text, Why string
			Publish                []Record
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || status != 0 {
		t.Fatalf("status %d, %v: %s", status, err, out)
	}
	if got.Domain != "a.test" || got.Host != "mail.a.test" || got.Level != "note" {
		t.Errorf("%+v", got)
	}
	for _, f := range got.Findings {
		if f.Area == "tls-rpt" {
			if f.Level != "note" || len(f.Publish) != 1 || f.Publish[0].Data != "v=TLSRPTv1; rua=mailto:postmaster@a.test" {
				t.Errorf("%+v", f)
			}
			return
		}
	}
	t.Error("tls-rpt is not among the findings")
}

// The records that are printed are those that make a good domain: published as they stand, all
// checks are content.
func TestRecords(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	out, errs, status := s.run(t, "records", "-a", "ca.test", "-p", "reject", "-r", "hostmaster@a.test", "-i", "imap.a.test", "a.test")
	if status != 0 || errs != "" {
		t.Fatalf("status %d: %s", status, errs)
	}
	want := `; the address of the mail host
mail.a.test. IN A 192.0.2.1
mail.a.test. IN AAAA 2001:db8::1
; mail for the domain comes here
a.test. IN MX 10 mail.a.test.
; SPF: which hosts send for the domain (RFC 7208)
a.test. IN TXT "v=spf1 ip4:192.0.2.1 ip6:2001:db8::1 mx -all"
; SPF: notices of the mail host, which have no sender
mail.a.test. IN TXT "v=spf1 a -all"
; DKIM: the key that mail is signed with (RFC 6376)
s1._domainkey.a.test. IN TXT DKIMRECORD
; DMARC: what receivers do with mail that neither SPF nor DKIM vouches for (RFC 9989)
_dmarc.a.test. IN TXT "v=DMARC1; p=reject; rua=mailto:hostmaster@a.test"
; TLSRPT: where senders report trouble with TLS (RFC 8460)
_smtp._tls.a.test. IN TXT "v=TLSRPTv1; rua=mailto:hostmaster@a.test"
; where users' programs find their servers (RFC 6186, RFC 8314)
_submissions._tcp.a.test. IN SRV 0 1 465 mail.a.test.
_submission._tcp.a.test. IN SRV 0 1 587 mail.a.test.
_imaps._tcp.a.test. IN SRV 0 1 993 imap.a.test.
; who may issue certificates for the mail host (RFC 8659)
mail.a.test. IN CAA 0 issue "ca.test"
`
	if want = strings.ReplaceAll(want, "DKIMRECORD", quoted(s.dkimKey)); out != want {
		t.Errorf("got\n%s\nexpected\n%s", out, want)
	}
	s.zone = out + `
1.2.0.192.in-addr.arpa. PTR mail.a.test.
1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR mail.a.test.
`
	s.wishes = Wishes{}
	for _, f := range s.check(t) {
		if f.Level > Note {
			t.Errorf("%s %s: %s", f.Level, f.Area, f.Text)
		}
	}
}

// A second domain of a host: what is published of the host is in another zone, whose records no name
// server would load from the file of this one.
func TestRecordsApart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.main = replaced(t, s.main, "mydestination = a.test", "mydestination = a.test, b.test")
	out, errs, status := s.run(t, "records", "-a", "ca.test", "b.test")
	want := `; mail for the domain comes here
b.test. IN MX 10 mail.a.test.
; SPF: which hosts send for the domain (RFC 7208)
b.test. IN TXT "v=spf1 ip4:192.0.2.1 ip6:2001:db8::1 mx ~all"
`
	if status != 0 || errs != "" || !strings.HasPrefix(out, want) {
		t.Errorf("status %d, %s:\n%s", status, errs, out)
	}
	const end = `; the address of the mail host; in the zone of the host, unless it is there
; mail.a.test. IN A 192.0.2.1
; mail.a.test. IN AAAA 2001:db8::1
; SPF: notices of the mail host, which have no sender; in the zone of the host, unless it is there
; mail.a.test. IN TXT "v=spf1 a -all"
; who may issue certificates for the mail host (RFC 8659); in the zone of the host, unless it is there
; mail.a.test. IN CAA 0 issue "ca.test"
`
	if !strings.HasSuffix(out, end) {
		t.Errorf("the end is not\n%s, but\n%s", end, out)
	}
	for line := range strings.Lines(out) {
		if name, _, _ := strings.Cut(line, ". IN "); line[0] != ';' && !strings.HasSuffix("."+name, ".b.test") {
			t.Errorf("in the zone of b.test: %s", line)
		}
	}
}

// Without an argument, the domains of main.cf are checked, and not the name of the machine.
func TestDomains(t *testing.T) {
	t.Parallel()
	for main, want := range map[string]string{
		"$myhostname, localhost.$mydomain, localhost, localhost.localdomain, a.test, $mydomain": "a.test", "$myhostname, a.test, B.test, texthash:DIR/dkim": "a.test b.test", "$myhostname": "mail.a.test"} {
		s := newStage(t)
		s.main = replaced(t, s.main, "mydestination = a.test", "mydestination = "+main)
		if got := strings.Join(s.site(t).Domains(), " "); got != want {
			t.Errorf("mydestination = %s: %s, expected %s", main, got, want)
		}
	}
}

// A command line that cannot be meant is refused, with the usage and its status.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"chek"}, {"records"}, {"records", "a.test", "b.test"}, {"check", "-A", "here"}, {"check", "localhost"}, {"check", "a test"},
		{"records", "-p", "strict", "a.test"}, {"records", "-r", "me", "a.test"}, {"records", "-r", `"a b"@a.test`, "a.test"}, {"records", "-b", "a.test"},
		{"check", "-l", "a b"},
	} {
		if out, errs, status := newStage(t).run(t, args...); status != 64 || out != "" || errs == "" {
			t.Errorf("%q: status %d, %q, %q", args, status, out, errs)
		}
	}
	if status := Run("posthaste domain", nil, new(bytes.Buffer), new(bytes.Buffer), new(bytes.Buffer)); status != 64 {
		t.Errorf("no verb: status %d", status)
	}
	s := newStage(t)
	s.main = strings.Replace(s.main, "mydestination = a.test", "mydestination = localhost, $myhostname.localdomain.", 1)
	if _, errs, status := s.run(t, "check"); status != 64 || !strings.Contains(errs, "main.cf names no domain") {
		t.Errorf("no domain: status %d, %q", status, errs)
	}
}

// A text that does not fit one string is cut into several, and quotes in it are kept.
func TestQuoted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"", `""`},
		{`a"b\c`, `"a\"b\\c"`},
		{strings.Repeat("x", 255), `"` + strings.Repeat("x", 255) + `"`},
		{strings.Repeat("x", 256), `( "` + strings.Repeat("x", 255) + "\"\n\t\"x\" )"},
	} {
		if got := quoted(tt.text); got != tt.want {
			t.Errorf("%q: %s, expected %s", tt.text, got, tt.want)
		}
	}
	if got := arpa(netip.MustParseAddr("192.0.2.55")); got != "55.2.0.192.in-addr.arpa" {
		t.Error(got)
	}
}
