package smallnet

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/testwait"
)

// sessions.py makes SMTP sessions, one after the other, until the file /tmp/stop is there. Each
// must have a certificate for the host that verifies. In the end it prints how many there were, how
// many failed, and of how many certificates.
const sessions = `import os, smtplib, ssl
context = ssl.create_default_context(cafile="/etc/ssl/certs/ca-certificates.crt")
count, failed, serials = 0, [], []
while not os.path.exists("/tmp/stop"):
    count += 1
    try:
        s = smtplib.SMTP("mail.example.org", 25, timeout=20)
        s.starttls(context=context)
        serial = s.sock.getpeercert()["serialNumber"]
        if serial not in serials:
            serials.append(serial)
            open("/tmp/serials", "a").write(serial + "\n")
        s.ehlo()
        assert s.mail("joe@exim.net")[0] == 250
        assert s.rcpt("ann@example.org")[0] == 250
        s.quit()
    except Exception as e:
        failed.append(repr(e))
print(count > len(serials), len(serials), failed[:3])
`

// renewal: while somebody makes one verified session after the other, the certificate is renewed.
// No session fails, and none needs a new TLSA record.
func (s *story) renewal() {
	t := s.t
	s.a.trust(s.exim)
	s.exim.write("tmp/sessions.py", sessions)
	s.exim.daemon("sessions", "python3 /tmp/sessions.py")
	serials := func() int { return strings.Count(s.exim.read("tmp/serials"), "\n") }
	testwait.Until(t, "there are sessions", func() bool { return serials() > 0 })
	record := regexp.MustCompile(`TLSA 3 1 1 \w+`).FindString(s.ours.must("posthaste cert list"))
	if out := s.ours.must("posthaste cert renew"); !strings.Contains(out, "the certificate for mail.example.org") {
		t.Errorf("cert renew: %s", out)
	}
	testwait.Until(t, "the renewed certificate is shown", func() bool { return serials() > 1 })
	s.exim.write("tmp/stop", "")
	testwait.Until(t, "the sessions end", func() bool { return strings.Contains(s.exim.read("var/log/sessions.out"), "]") })
	if out := s.exim.read("var/log/sessions.out"); out != "True 2 []\n" {
		t.Errorf("sessions while the certificate was renewed: %s", out)
	}
	if again := regexp.MustCompile(`TLSA 3 1 1 \w+`).FindString(s.ours.must("posthaste cert list")); again != record {
		t.Errorf("the TLSA record was %s and is %s", record, again)
	}
}

// rotation: while mail goes out, the next key is made, published and taken up. Every message has a
// signature that the receiver verifies.
func (s *story) rotation() {
	t := s.t
	sent := 0
	signedBy := func() string {
		sent++
		subject := fmt.Sprintf("rotation %d", sent)
		send(s.ours, "ann@example.org", "joe@pfix.net", subject)
		message := s.postfix.mail("joe", "Subject: "+subject+"\n")
		found(t, message, "dkim=pass")
		return regexp.MustCompile(`\bs=(\w+);`).FindStringSubmatch(message)[1]
	}
	first := signedBy()
	out := s.ours.must("posthaste domain rotate --new example.org")
	publish := regexp.MustCompile(`(?ms)^publish: (\S+ IN TXT \( .*? \))$`).FindStringSubmatch(out)
	if publish == nil {
		t.Fatalf("there is no record to publish: %s", out)
	}
	if by := signedBy(); by != first {
		t.Errorf("signed by %s, which is not published", by)
	}
	s.d.publish("example.org", publish[1])
	s.ours.must("posthaste domain rotate example.org")
	testwait.Until(t, "mail is signed by the next key", func() bool { return signedBy() != first })
	s.clean()
}

// clean is a check that finds nothing wrong.
func (s *story) clean() {
	s.t.Helper()
	testwait.For(s.t, func() string {
		out, _ := s.ours.run("posthaste domain check -o pfix.net")
		if regexp.MustCompile("(?m)^(warning|error|unknown)").MatchString(out) {
			return out
		}
		return ""
	})
}

// A breach is a record that is wrong, or missing, and what the check must say of it.
type breach struct{ zone, record, instead, says string }

var breaches = []breach{
	{"example.org", `mail\.example\.org\. IN A .*`, "mail.example.org. IN A 11.22.33.99", `(?m)^(warning|error) +address `},
	{reverse, `10 PTR .*`, "10 PTR other.example.org.", `(?m)^(warning|error) +address `},
	{reverse, `10 PTR .*`, "; nothing", `(?m)^error +address +11\.22\.33\.10 has no name`},
	{reverse6, `0\.1\.[0.]* PTR .*`, "; nothing", `(?ms)^error +address +2a0c:11:22:33::10 has no name.* publish: 0\.1\.0\..*\.ip6\.arpa\. IN PTR mail\.example\.org\.$`},
	{"example.org", `mail\.example\.org\. IN AAAA .*`, "; nothing", `(?m)^warning +address +mail\.example\.org does not lead to 2a0c:11:22:33::10`},
	{"example.org", `mail\.example\.org\. IN AAAA .*`, "mail.example.org. IN AAAA 2a0c:11:22:33::10\nmail.example.org. IN AAAA 2a0c:11:22:33::bad", `(?m)^warning +mx +mail\.example\.org at 2a0c:11:22:33::bad: port 25 cannot be reached`},
	{"example.org", `example\.org\. IN TXT "v=spf1.*`, `example.org. IN TXT "v=spf1 ip4:11.22.33.10 -all"`, `(?m)^error +spf +mail of example\.org from 2a0c:11:22:33::10 has the result fail`},
	{"example.org", `example\.org\. IN MX .*`, "example.org. IN MX 10 mx.pfix.net.", `(?m)^(warning|error) +mx `},
	{"example.org", `example\.org\. IN TXT "v=spf1.*`, `example.org. IN TXT "v=spf1 ip4:11.22.33.99 -all"`, `(?m)^error +spf `},
	{"example.org", `example\.org\. IN TXT "v=spf1.*`, `example.org. IN TXT "v=spf1 bogus -all"`, `(?m)^error +spf `},
	{"example.org", `(?s)\w+\._domainkey\.example\.org\. IN TXT .*`, "; nothing", `(?m)^error +dkim `},
	{"example.org", `_dmarc\.example\.org\. .*`, `_dmarc.example.org. IN TXT "v=DMARC1; p=rejekt"`, `(?m)^(warning|error) +dmarc `},
	{"example.org", `_mta-sts\.example\.org\. .*`, `_mta-sts.example.org. IN TXT "v=STSv1; id=stale"`, `(?m)^(warning|error) +mta-sts `},
	{"example.org", `mta-sts\.example\.org\. IN CNAME .*`, `mta-sts.example.org. IN CNAME mx.pfix.net.`, `(?m)^(warning|error|unknown) +mta-sts `},
	{"example.org", `_25\._tcp\.mail\.example\.org\. .*`, "_25._tcp.mail.example.org. IN TLSA 3 1 1 " + strings.Repeat("ab", 32), `(?m)^error +dane +no TLSA record`},
	{"example.org", `_smtp\._tls\.example\.org\. .*`, `_smtp._tls.example.org. IN TXT "v=TLSRPTv1; rua=gopher://x"`, `(?m)^(warning|error) +tls-rpt `},
}

// broken: what is wrong in the DNS is found, one thing after the other, with what it says.
func (s *story) broken() {
	good := map[string][]string{"example.org": s.d.zones["example.org"].records, reverse: s.d.zones[reverse].records, reverse6: s.d.zones[reverse6].records}
	last := ""
	mend := func() {
		if last != "" {
			s.d.set(last, good[last]...)
		}
	}
	for _, b := range breaches {
		bad, n := slices.Clone(good[b.zone]), 0
		for i, r := range bad {
			if regexp.MustCompile("^" + b.record + "$").MatchString(r) {
				bad[i] = b.instead
				n++
			}
		}
		if n == 0 {
			s.t.Errorf("%s has no record %s", b.zone, b.record)
			continue
		}
		if b.zone != last { // or what is broken replaces what was
			mend()
		}
		last = b.zone
		s.d.set(b.zone, bad...)
		if out, status := s.ours.run("posthaste domain check -o '' example.org"); !regexp.MustCompile(b.says).MatchString(out) || status == 0 {
			s.t.Errorf("instead of %s %s: status %d, and not %s:\n%s", b.record, b.instead, status, b.says, out)
		}
	}
	mend()
	s.clean()
}

// clients: mail programs ask as they do, and senders for the policy.
func (s *story) clients() {
	t, h := s.t, s.rspamd
	s.a.trust(h)
	curl := "curl -sS --fail-with-body "
	ask := func(command string, want ...string) {
		t.Helper()
		out, status := h.run(command)
		for _, w := range want {
			if status != 0 || !strings.Contains(out, w) {
				t.Errorf("%s\nstatus %d, without %q:\n%s", command, status, w, out)
			}
		}
	}
	// Thunderbird: a GET with the address as it is, and its own name.
	ask(curl+"-A 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Thunderbird/140.0' -H 'Accept: */*' 'https://autoconfig.example.org/mail/config-v1.1.xml?emailaddress=ann%40example.org'",
		"<hostname>mail.example.org</hostname>", `<outgoingServer type="smtp">`, "<port>465</port>", `<incomingServer type="imap">`, "<username>%EMAILADDRESS%</username>")
	// Outlook: a POST (MS-OXDSCLI section 3.1.5).
	h.write("tmp/outlook.xml", `<?xml version="1.0" encoding="utf-8"?>
<Autodiscover xmlns="http://schemas.microsoft.com/exchange/autodiscover/outlook/requestschema/2006">
<Request><EMailAddress>ann@example.org</EMailAddress>
<AcceptableResponseSchema>http://schemas.microsoft.com/exchange/autodiscover/outlook/responseschema/2006a</AcceptableResponseSchema></Request></Autodiscover>`)
	ask(curl+"-A 'Microsoft Office/16.0 (Windows NT 10.0; Microsoft Outlook 16.0; Pro)' -H 'Content-Type: text/xml' --data-binary @/tmp/outlook.xml https://autodiscover.example.org/autodiscover/autodiscover.xml",
		"<Type>IMAP</Type>", "<Type>SMTP</Type>", "<Server>mail.example.org</Server>", "<LoginName>ann@example.org</LoginName>")
	// It writes the path with capitals, too.
	ask(curl+"-H 'Content-Type: text/xml' --data-binary @/tmp/outlook.xml https://autodiscover.example.org/Autodiscover/Autodiscover.xml", "<Type>SMTP</Type>")
	// Apple's devices fetch a profile that somebody has linked.
	ask(curl+"-D - 'https://autoconfig.example.org/email.mobileconfig?email=ann@example.org'", "application/x-apple-aspen-config", "com.apple.mail.managed", "<string>mail.example.org</string>")
	ask(curl+"-D - https://mta-sts.example.org/.well-known/mta-sts.txt", "text/plain", "version: STSv1", "mode: enforce", "mx: mail.example.org")
}

// stolen: Dovecot knows the passwords. An account that sends to too many is stopped, and the
// postmaster hears of it; others go on.
func (s *story) stolen() {
	t, h := s.t, s.ours
	h.write("etc/dovecot/dovecot.conf", `protocols =
log_path = /var/log/dovecot.log
ssl = no
auth_mechanisms = plain login
passdb {
  driver = passwd-file
  args = /etc/dovecot/users
}
service auth {
  unix_listener /var/spool/posthaste/private/auth {
    mode = 0660
    user = posthaste
    group = posthaste
  }
}
`)
	h.write("etc/dovecot/users", "ann@example.org:{PLAIN}secret\njoe@example.org:{PLAIN}other\n")
	h.must(`chown root:dovecot /etc/dovecot/users
chmod 640 /etc/dovecot/users
dovecot
postconf -e 'smtpd_sasl_type = dovecot' 'smtpd_sasl_path = private/auth' 'account_recipient_limit = 3/d' 'account_limit_lock = yes'
cat >>/etc/posthaste/master.cf <<!
submissions inet n - n - - smtpd
  -o syslog_name=postfix/submissions
  -o smtpd_tls_wrappermode=yes
  -o smtpd_sasl_auth_enable=yes
  -o smtpd_recipient_restrictions=permit_sasl_authenticated,reject
!
posthaste reload`)
	try := func(user, password, to string) string {
		out, _ := s.exim.run("swaks --server mail.example.org:465 --tls-on-connect --auth PLAIN --auth-user " + user + "@example.org --auth-password " + password +
			" --from " + user + "@example.org --to " + to + " --header 'Subject: offer' --body x")
		return out
	}
	testwait.For(t, func() string { // the reload may take a moment
		if out := try("ann", "secret", "1@rspam.net,2@rspam.net,3@rspam.net,4@rspam.net"); !strings.Contains(out, "locked") && !strings.Contains(out, "too many recipients") {
			return out
		}
		return ""
	})
	if out := try("ann", "secret", "5@rspam.net"); !strings.Contains(out, "550 5.7.1 Error: account ann@example.org is locked") {
		t.Errorf("the stolen account sends: %s", out)
	}
	if out := try("joe", "other", "joe@rspam.net"); !strings.Contains(out, "250 2.0.0") {
		t.Errorf("another account: %s", out)
	}
	h.mail("ann", "account ann@example.org") // she is postmaster, too
	s.rspamd.mail("joe", "Subject: offer")
}

// TestBreaches: there is one for each area of the check that has a record.
func TestBreaches(t *testing.T) {
	t.Parallel()
	for _, area := range []string{"address", "mx", "spf", "dkim", "dmarc", "mta-sts", "dane", "tls-rpt"} {
		found := false
		for _, b := range breaches {
			found = found || strings.Contains(b.says, "+"+area+" ")
		}
		if !found {
			t.Errorf("no record of %s is broken", area)
		}
	}
}
