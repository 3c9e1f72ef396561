package e2e

import (
	"fmt"
	"net/textproto"
	"os"
	"strings"
	"testing"
)

// TestEximSends has Exim pass mail on to our SMTP server with all the
// extensions that both have: STARTTLS, PIPELINING, CHUNKING, DSN and SMTPUTF8.
func TestEximSends(t *testing.T) {
	t.Parallel()
	p := newPeer(t, fmt.Sprint(freePort(t)))
	ours := newPeer(t, "") // where our system has a certificate and keeps mail
	ours.certificate()
	s := newSystem(t, options{main: "virtual_mailbox_domains = far.test, from.test\nvirtual_mailbox_base = " + ours.path("mail") +
		"\nvirtual_mailbox_maps = inline:{ {jürgen@far.test=jürgen/} {two@far.test=two/} {a@from.test=a/} }\nvirtual_uid_maps = static:65534\nvirtual_gid_maps = static:65534\nsmtpd_tls_security_level = encrypt\nsmtpd_tls_loglevel = 1\n" +
		"smtpd_tls_chain_files = " + ours.path("etc/key.pem") + ", " + ours.path("etc/cert.pem") + "\n"})
	peerExim(t, p, fmt.Sprint(s.port))

	c, err := textproto.Dial("tcp", "127.0.0.1:"+p.port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	expect := func(code int) {
		t.Helper()
		if _, text, err := c.ReadResponse(code); err != nil {
			t.Fatal(text, err)
		}
	}
	say := func(code int, line string) {
		t.Helper()
		if err := c.PrintfLine("%s", line); err != nil {
			t.Fatal(err)
		}
		expect(code)
	}
	body := "first\n.\n..\n.x\n\n \n" + strings.Repeat("x", 900) + "\n" + strings.Repeat("Grüße aus München\n", 10000) + "last\n"
	expect(220)
	say(250, "EHLO client.test")
	say(250, "MAIL FROM:<a@from.test> SMTPUTF8 BODY=8BITMIME RET=HDRS ENVID=envelope-7")
	say(250, "RCPT TO:<jürgen@far.test> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;jurgen@old.test")
	say(250, "RCPT TO:<two@far.test> NOTIFY=NEVER")
	say(354, "DATA")
	w := c.DotWriter()
	fmt.Fprintf(w, "From: <a@from.test>\nSubject: grüße\n\n%s", body)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	expect(250)
	say(221, "QUIT")

	s.waitLog(`Anonymous TLS connection established from localhost\[127\.0\.0\.1\]: TLSv1\.3`)
	s.waitLog(`disconnect from localhost\[127\.0\.0\.1\] ehlo=2 starttls=1 mail=1 rcpt=2 bdat=\d+ quit=1 commands=\d+\n`)
	ours.keptBody("jürgen", 1, body)
	ours.keptBody("two", 1, body)
	report := ours.kept("a", 1)[0]
	for _, want := range []string{"Reporting-MTA: dns; mta.test\n", "Original-Envelope-Id: envelope-7\n", "Original-Recipient: rfc822;jurgen@old.test\n", "Action: delivered\n"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%.5000s", want, report)
		}
	}
	if strings.Contains(report, "two@far.test") {
		t.Errorf("the report is of somebody of whom there is to be none:\n%.5000s", report)
	}
	text, err := os.ReadFile(p.path("var/log/exim4/mainlog"))
	if err != nil || !strings.Contains(string(text), " K ") || !strings.Contains(string(text), " L ") {
		t.Errorf("Exim's log has not that it used CHUNKING (K) and PIPELINING (L): %v\n%s", err, text)
	}
}
