package e2e

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"

	"posthaste/internal/resolver/fakezone"
)

// authZone is the DNS that the checks of TestMailAuth are made by; %s is the key.
const authZone = `
good.test. 60 IN TXT "v=spf1 ip4:192.0.2.1 -all"
_dmarc.good.test. 60 IN TXT "v=DMARC1; p=reject"
k1._domainkey.good.test. 60 IN TXT "v=DKIM1; k=ed25519; p=%s"
soft.test. 60 IN TXT "v=spf1 include:good.test ~all"
_dmarc.soft.test. 60 IN TXT "v=DMARC1; p=none"
none.test. 60 IN A 192.0.2.9
!fail broken.test SERVFAIL
`

// Mail from strangers is checked by SPF, DKIM and DMARC with a real DNS server:
// what was found is told in the message, lies are taken out of it, and what
// the domains want refused is refused.
func TestMailAuth(t *testing.T) {
	t.Parallel()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	dns := nameServer(t, fmt.Sprintf(authZone, base64.StdEncoding.EncodeToString(public)))
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + "resolver_address = " + dns + "\n" +
		"mail_authentication = check\nauthserv_id = mx.test\ndmarc_reject = yes\nrelay_domains = to.test\nsmtpd_peername_lookup = no\n" +
		"smtpd_authorized_xclient_hosts = 127.0.0.0/8\nsmtpd_recipient_restrictions = permit_mynetworks, reject_spf_fail\n"})

	const plain = "From: A <a@good.test>\nSubject: %s\nAuthentication-Results: mx.test; dkim=pass header.d=lie.test\n" +
		"Authentication-Results: elsewhere.test; spf=pass\n\nbody\n"
	message := func(subject string) string { return fmt.Sprintf(plain, subject) }
	sign := func(m string) string {
		var out bytes.Buffer
		if err := dkim.Sign(&out, strings.NewReader(strings.ReplaceAll(m, "\n", "\r\n")), &dkim.SignOptions{Domain: "good.test", Selector: "k1", Signer: key,
			HeaderKeys: []string{"From", "Subject"}}); err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(out.String(), "\r\n", "\n")
	}
	const theirs, stranger = "192.0.2.1", "192.0.2.66"
	for _, c := range []struct {
		name, client, sender, message string
		reply                         string   // the last, all but the name in the queue
		found                         []string // lines of the field, without the signature's own data
	}{
		{"all good", theirs, "a@good.test", sign(message("all good")), "250 2.0.0 Ok: queued",
			[]string{"spf=pass smtp.mailfrom=a@good.test", "dkim=pass header.d=good.test header.s=k1", "dmarc=pass (p=reject) header.from=good.test"}},
		{"changed", theirs, "a@good.test", strings.Replace(sign(message("changed")), "body", "other", 1), "250 2.0.0 Ok: queued",
			[]string{"spf=pass smtp.mailfrom=a@good.test", `dkim=fail reason="body hash did not verify" header.d=good.test header.s=k1`, "dmarc=pass (p=reject) header.from=good.test"}},
		{"forwarded", stranger, "list@none.test", sign(message("forwarded")), "250 2.0.0 Ok: queued",
			[]string{"spf=none smtp.mailfrom=list@none.test", "dkim=pass header.d=good.test header.s=k1", "dmarc=pass (p=reject) header.from=good.test"}},
		{"soft", stranger, "s@soft.test", strings.Replace(message("soft"), "good.test", "soft.test", 1), "250 2.0.0 Ok: queued",
			[]string{"spf=softfail smtp.mailfrom=s@soft.test", "dkim=none", "dmarc=fail (p=none) header.from=soft.test"}},
		{"forged", stranger, "x@none.test", message("forged"), "550 5.7.26 Error: good.test does not authorize this message: DMARC policy is reject", nil},
		{"changed and forwarded", stranger, "x@none.test", strings.Replace(sign(message("changed and forwarded")), "body", "other", 1),
			"550 5.7.26 Error: good.test does not authorize this message: DMARC policy is reject", nil},
		{"not permitted", stranger, "a@good.test", "", "550 5.7.23 <a@good.test>: Sender address rejected: SPF: good.test does not permit 192.0.2.66 to send its mail", nil},
		{"broken", stranger, "a@broken.test", "", "451 4.7.24 <a@broken.test>: Sender address rejected: SPF: the policy of broken.test cannot be had now", nil},
	} {
		lines := []string{"", "EHLO client.test", "XCLIENT NAME=[UNAVAILABLE] ADDR=" + c.client, "EHLO client.test", "MAIL FROM:<" + c.sender + ">", "RCPT TO:<b@to.test>"}
		if c.message != "" {
			lines = append(lines, "DATA", strings.ReplaceAll(c.message, "\n", "\r\n")+".")
		}
		replies := s.dialogue(t, lines...)
		if last := replies[len(replies)-1]; !strings.HasPrefix(last, c.reply) {
			t.Errorf("%s: %q, want %q", c.name, last, c.reply)
			continue
		}
		if c.found == nil {
			continue
		}
		var head string
		s.eventually("it arrives", func() bool {
			for _, m := range next.received() {
				if h, _, _ := strings.Cut(m.data, "\n\n"); strings.Contains(h, "\nSubject: "+c.name) {
					head = h
				}
			}
			return head != ""
		})
		want := "Authentication-Results: mx.test"
		for _, l := range c.found {
			want += ";\n\t" + l
		}
		if !strings.HasPrefix(withoutSignatureData(head), want+"\nReceived: ") {
			t.Errorf("%s: want\n%s\nfound\n%s", c.name, want, head)
		}
		if strings.Contains(head, "lie.test") || strings.Count(head, "Authentication-Results:") != 2 || !strings.Contains(head, "elsewhere.test; spf=pass") {
			t.Errorf("%s: fields that came with the message:\n%s", c.name, head)
		}
	}
	s.waitLog(`postfix/cleanup\[\d+\]: \w+: reject: END-OF-MESSAGE from \S+\[192\.0\.2\.66\]: 5\.7\.26 Error: good\.test does not authorize`)
	s.waitLog(`postfix/smtpd\[\d+\]: NOQUEUE: reject: RCPT from \S+\[192\.0\.2\.66\]: 550 5\.7\.23 `)

	// Mail of our own networks is not checked, whatever it says.
	s.mustSend("a@good.test", []string{"b@to.test"}, message("ours"))
	s.waitLogN(`qmgr\[\d+\]: \w+: removed`, 5)
	for _, m := range next.received() {
		if strings.Contains(m.data, "Subject: ours") && !strings.HasPrefix(m.data, "Received: ") {
			t.Errorf("our own mail was checked:\n%s", m.data)
		}
	}
}

// withoutSignatureData takes away what differs from one signature to another.
func withoutSignatureData(head string) string {
	var b strings.Builder
	for line := range strings.Lines(head) {
		if i := strings.Index(line, " header.a="); i >= 0 && strings.HasSuffix(line, ";\n") {
			line = line[:i] + ";\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// nameServer serves a zone until the test ends, and returns its address.
func nameServer(t *testing.T, text string) string {
	t.Helper()
	zone, err := fakezone.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	dns, err := zone.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dns.Close() })
	return dns.Addr
}

// judging has mail of strangers judged by a name server, whatever address they say with XCLIENT that they
// have, and mail of our own signed by entry.
func judging(dns, entry string) string {
	return "resolver_address = " + dns + "\nmail_authentication = check\nauthserv_id = mx.test\ndmarc_reject = yes\n" +
		"smtpd_peername_lookup = no\nsmtpd_authorized_xclient_hosts = 127.0.0.0/8\nsmtpd_recipient_restrictions = permit_mynetworks, permit_auth_destination, reject\n" +
		"dkim_sign_maps = inline:{ {from.test=" + entry + "} }\n"
}
