package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// foreign is a mail server to which mail is sent.
type foreign struct {
	name  string // its domain is this below test
	start func(t *testing.T, p *peer, next string)
	lmtp  string // its nexthop, with {dir} and {port}; empty: SMTP

	plain, utf8, dsn bool // has no TLS; takes SMTPUTF8; takes DSN
	unknown          string
}

var foreigners = []foreign{
	{name: "postfix", start: peerPostfix, utf8: true, dsn: true, unknown: "5.1.1"},
	{name: "exim", start: peerExim, utf8: true, dsn: true, unknown: "5.1.1"},
	// What Debian has built fails in the handshake, whoever asks: OpenSSL has the
	// keys from an engine of an older kind.
	{name: "opensmtpd", start: peerOpenSMTPD, plain: true, dsn: true, unknown: "5.0.0"},
	{name: "aiosmtpd", start: peerAIOSMTPD, utf8: true, unknown: "5.1.1"},
	{name: "dovecot", start: peerDovecot, lmtp: "unix:{dir}/lmtp", plain: true, unknown: "5.1.1"},
	{name: "dovecot-inet", start: peerDovecot, lmtp: "inet:127.0.0.1:{port}", unknown: "5.1.1"},
}

func peerExim(t *testing.T, p *peer, next string) {
	p.jail("exim4-daemon-light", "usr/sbin/exim4")
	p.configure("exim4.conf", "etc/exim4/exim4.conf", next)
	for _, dir := range []string{"var/log/exim4", "var/spool/exim4"} {
		p.mkdir(dir, 0o755)
		p.own(dir, 65000)
	}
	p.own("etc/key.pem", 65000)
	p.start(p.jailed("/usr/sbin/exim4", "-bdf"))
}

func peerOpenSMTPD(t *testing.T, p *peer, next string) {
	p.jail("opensmtpd", "usr/sbin/smtpd", "usr/libexec/opensmtpd/mail.maildir")
	p.configure("smtpd.conf", "etc/smtpd.conf", next)
	p.mkdir("var/spool/smtpd", 0o711)
	p.mkdir("var/lib/opensmtpd/empty", 0o711)
	p.start(p.jailed("/usr/sbin/smtpd", "-d"))
}

func peerAIOSMTPD(t *testing.T, p *peer, _ string) {
	python := needModule(t, "aiosmtpd")
	p.certificate()
	p.start(exec.Command(python, "testdata/peers/keeper.py", p.port, p.path("etc/cert.pem"), p.path("etc/key.pem"), p.path("mail")))
}

func peerDovecot(t *testing.T, p *peer, _ string) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: Dovecot only runs as root here")
	}
	users := ""
	for _, u := range []string{"one:::::::", "two:::::::", "full:::::::userdb_quota_rule=*:bytes=100"} {
		users += u + "\n"
	}
	p.write("users", users, 0o644)
	p.certificate()
	p.configure("dovecot.conf", "dovecot.conf", "")
	p.start(exec.Command(need(t, "dovecot"), "-F", "-c", p.path("dovecot.conf")))
}

func peerPostfix(t *testing.T, p *peer, next string) {
	users := ""
	for _, u := range []string{"one", "two", "jürgen"} {
		users += fmt.Sprintf(" {%s@postfix.test=%s/}", u, u)
	}
	p.certificate()
	s := newPostfix(t, options{main: fmt.Sprintf("myhostname = postfix.test\nvirtual_mailbox_domains = postfix.test\nvirtual_mailbox_base = %s\nvirtual_mailbox_maps = inline:{%s }\n"+
		"virtual_uid_maps = static:65534\nvirtual_gid_maps = static:65534\nrelayhost = [127.0.0.1]:%s\nsmtpd_tls_security_level = may\nsmtputf8_enable = yes\n"+
		"smtpd_tls_cert_file = %s\nsmtpd_tls_key_file = %s\n", p.path("mail"), users, next, p.path("etc/cert.pem"), p.path("etc/key.pem"))})
	p.port = fmt.Sprint(s.port)
}

// TestSMTPPeers sends mail to servers that others have written, over TLS where
// they have it, and reads what they have kept of it.
func TestSMTPPeers(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	peers := make([]*peer, len(foreigners))
	routes, secure := "", ""
	for i, f := range foreigners {
		p := newPeer(t, fmt.Sprint(freePort(t)))
		f.start(t, p, fmt.Sprint(next.port()))
		peers[i] = p
		hop := "smtp:[127.0.0.1]:" + p.port
		if f.lmtp != "" {
			hop = "lmtp:" + strings.NewReplacer("{dir}", p.dir, "{port}", p.port).Replace(f.lmtp)
		}
		routes += fmt.Sprintf(" {%s.test=%s}", f.name, hop)
		if !f.plain {
			secure += fmt.Sprintf(" {[127.0.0.1]:%[1]s=encrypt} {127.0.0.1:%[1]s=encrypt}", p.port)
		}
	}
	s := newSystem(t, options{main: fmt.Sprintf("transport_maps = inline:{%s {from.test=smtp:[127.0.0.1]:%d} }\nsmtp_tls_policy_maps = inline:{%s }\nsmtp_tls_loglevel = 1\n"+
		"lmtp_tls_policy_maps = $smtp_tls_policy_maps\nlmtp_tls_loglevel = 1\n", routes, next.port(), secure)})
	for i, f := range foreigners {
		f.test(s, peers[i], next)
	}
}

func (f *foreign) test(s *system, p *peer, next *sink) {
	domain := f.name + ".test"
	const from = "a@from.test"
	at := func(user string) string { return user + "@" + domain }

	// Several recipients, of whom one is none.
	body := "first\n.\n..\n.x\n\n \n" + strings.Repeat("x", 900) + "\nlast\n"
	s.mustSend(from, []string{at("one"), at("two"), at("unknown")}, "From: <"+from+">\nSubject: one\n\n"+body)
	for _, user := range []string{"one", "two"} {
		s.waitLog(`to=<` + at(user) + `>, .*dsn=2\.\d\.\d, status=sent \(250 `)
		p.keptBody(user, 1, body)
	}
	s.waitLog(`to=<` + at("unknown") + `>, .*dsn=` + regexp.QuoteMeta(f.unknown) + `, status=bounced \(host .* said: 550 .*in reply to RCPT TO command`)
	if !f.plain {
		s.waitLog(`Untrusted TLS connection established to 127\.0\.0\.1\[127\.0\.0\.1\]:` + p.port)
	}

	// Eight bits.
	const eight = "Grüße aus München\n"
	s.mustSend(from, []string{at("one")}, "From: <"+from+">\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n"+eight)
	p.keptBody("one", 2, eight)

	// An address that is not ASCII.
	s.mustSend(from, []string{at("jürgen")}, "From: <"+from+">\nSubject: grüße\n\nhello\n")
	if f.utf8 {
		s.waitLog(`to=<` + at("jürgen") + `>, .*status=sent`)
		p.keptBody("jürgen", 1, "hello\n")
	} else {
		s.waitLog(`to=<` + at("jürgen") + `>, .*dsn=5\.6\.7, status=bounced \(SMTPUTF8 is required, but was not offered by host`)
	}

	// A report of success: from the server where it takes DSN, else from us.
	if out, status := s.tool([]byte("From: <"+from+">\nSubject: report\n\nx\n"), "sendmail", "-N", "success", "-V", "envelope-7", "-f", from, at("two")); status != 0 {
		s.t.Fatal(out)
	}
	action := "relayed"
	if f.dsn {
		action = "delivered"
	}
	s.eventually("a report of success comes", func() bool {
		for _, m := range next.received() {
			if strings.Contains(m.data, "Action: "+action) && strings.Contains(m.data, "two@"+domain) {
				if ours := strings.Contains(m.data, "Reporting-MTA: dns; mta.test"); ours == f.dsn {
					s.t.Errorf("who reports?\n%s", m.data)
				}
				return true
			}
		}
		return false
	})
	if f.lmtp == "" {
		return
	}

	// One of two recipients is refused after the message.
	s.mustSend(from, []string{at("one"), at("full")}, "From: <"+from+">\nSubject: full\n\n"+strings.Repeat("too much\n", 100))
	s.waitLogN(`to=<`+at("one")+`>, .*status=sent`, 3)
	s.waitLog(`to=<` + at("full") + `>, .*dsn=5\.2\.2, status=bounced \(host .* said: 552 5\.2\.2 .*Quota exceeded.*in reply to end of DATA command`)
	p.kept("one", 3)
}
