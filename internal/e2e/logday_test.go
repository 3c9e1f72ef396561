package e2e

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"posthaste/internal/resolver/fakezone"
)

// A caller is an SMTP client that says what a test has it say, from one of
// the addresses of loopback.
type caller struct {
	t testing.TB
	c net.Conn
	r *bufio.Reader
}

// call connects from 127.0.0.N to the port, and hears the greeting.
func (s *system) call(n, port int) *caller {
	s.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(n))}, Timeout: patience}
	c, err := d.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	k := &caller{t: s.t, c: c, r: bufio.NewReader(c)}
	k.hear("220")
	return k
}

// hear reads a reply, which must begin with want.
func (k *caller) hear(want string) {
	k.t.Helper()
	for {
		line, err := k.r.ReadString('\n')
		if err != nil {
			k.t.Fatalf("waiting for %s: %v", want, err)
		}
		if len(line) > 3 && line[3] == '-' {
			continue
		}
		if !strings.HasPrefix(line, want) {
			k.t.Fatalf("got %q, want %s", line, want)
		}
		return
	}
}

// say takes commands and the beginnings of their replies in turn.
func (k *caller) say(lines ...string) *caller {
	k.t.Helper()
	for i := 0; i < len(lines); i += 2 {
		fmt.Fprintf(k.c, "%s\r\n", lines[i])
		k.hear(lines[i+1])
	}
	return k
}

// secure begins TLS.
func (k *caller) secure() *caller {
	k.say("EHLO client.test", "250", "STARTTLS", "220")
	k.c = tls.Client(k.c, &tls.Config{InsecureSkipVerify: true})
	k.r = bufio.NewReader(k.c)
	return k
}

// quit ends the session, and waits until the server has closed it: what it
// logs of it follows at once.
func (k *caller) quit() {
	k.t.Helper()
	k.say("QUIT", "221").gone()
}

// gone waits for the end of the connection.
func (k *caller) gone() {
	k.t.Helper()
	if _, err := k.r.ReadByte(); err == nil {
		k.t.Fatal("the server says more")
	}
	k.c.Close()
}

// mail gives an envelope and a message.
func (k *caller) mail(from, subject string, to ...string) *caller {
	k.t.Helper()
	k.say("MAIL FROM:<"+from+">", "250")
	for _, r := range to {
		k.say("RCPT TO:<"+r+">", "250")
	}
	return k.say("DATA", "354", "From: <"+from+">\r\nSubject: "+subject+"\r\nMessage-Id: <"+subject+"@from.test>\r\n\r\nx\r\n.", "250")
}

// plain is the command that logs joe in.
func plain(password string) string {
	return "AUTH PLAIN " + base64.StdEncoding.EncodeToString([]byte("\x00joe\x00"+password))
}

// A logDay is a mail system that has had the events of a day of a small site,
// each of them made by the test: what programs find in its log must be that.
type logDay struct {
	*system
	user     string // who has a mailbox here
	sessions int    // begun so far
}

// dayMain is its configuration. Clients are strangers, except for joe, who
// has a password.
const dayMain = `mydestination = local.test
mail_spool_directory = {box}
local_recipient_maps = inline:{ {{user} = x} }
virtual_alias_maps = inline:{ {all@local.test = {user}@local.test far@far.test} }
smtpd_peername_lookup = no
smtpd_hard_error_limit = 4
smtpd_soft_error_limit = 4
smtpd_forbid_unauth_pipelining = yes
smtpd_client_restrictions = permit_sasl_authenticated, reject_rbl_client list.test
smtpd_helo_restrictions = permit_sasl_authenticated, reject_non_fqdn_helo_hostname
smtpd_sender_restrictions = check_sender_access inline:{ {spam@bad.test = REJECT} {wait@grey.test = 450 4.2.0 greylisted} {keep@hold.test = HOLD} {drop@void.test = DISCARD} },
	warn_if_reject reject_non_fqdn_sender
smtpd_relay_restrictions = permit_sasl_authenticated, reject_unauth_destination
header_checks = regexp:{dir}/etc/header_checks
minimal_backoff_time = 4000s
`

// newLogDay starts the mail system; prepare is called before, with more
// settings in main.cf.
func newLogDay(t *testing.T, more string, prepare func(*system)) *logDay {
	t.Helper()
	dns, err := fakezone.Must("51.0.0.127.list.test. 60 A 127.0.0.2\n51.0.0.127.list.test. 60 TXT \"listed\"\n").Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dns.Close() })
	next := newSink(t, func(line string) string {
		switch {
		case strings.HasPrefix(line, "RCPT TO:<slow@"):
			return "450 4.2.1 later"
		case strings.HasPrefix(line, "RCPT TO:<gone@"):
			return "550 5.1.1 no such user"
		}
		return ""
	})
	d := &logDay{user: localUser(t)}
	r := strings.NewReplacer("{box}", mailDir(t, d.user), "{user}", d.user)
	d.system, _ = newSubmission(t, next, r.Replace(dayMain)+"resolver_address = "+dns.Addr+"\n"+more, func(s *system) {
		s.write("etc/header_checks", "/^Subject: bad/ REJECT no bad mail\n/^Subject: odd/ WARN looks odd\n")
		prepare(s)
	})
	// Somebody only looks whether anyone is at home.
	c, err := net.Dial("tcp", d.addr())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	d.sessions = 1
	return d
}

// from begins a session from 127.0.0.N when the log has the end of all
// others. One process serves many sessions: programs that tell sessions apart
// by the number of the process take those that overlap for one.
func (d *logDay) from(n int) *caller {
	d.t.Helper()
	d.waitLogN(`disconnect from unknown`, d.sessions)
	d.sessions++
	return d.call(n, d.port)
}

// live has the day happen.
func (d *logDay) live() {
	s, user := d.system, d.user+"@local.test"
	const hello = "EHLO client.test"
	refused := func(n int, helo, from string, answers ...string) {
		s.t.Helper()
		d.from(n).say(helo, "250", "MAIL FROM:<"+from+">", "250").say(answers...).quit()
	}

	// Mail of strangers: to a mailbox, and to an alias for it and for somebody
	// elsewhere; looked at twice; held; thrown away.
	d.from(2).say(hello, "250").mail("a@from.test", "one", user).mail("a@from.test", "two", "all@local.test").quit()
	d.from(5).say(hello, "250").mail("bob", "odd", user).quit()
	d.from(6).say(hello, "250").mail("keep@hold.test", "six", user).quit()
	d.from(7).say(hello, "250").mail("drop@void.test", "seven", user).quit()
	// Of joe, with TLS: one to three recipients elsewhere, of whom one must wait
	// and one does not exist, of which he is told.
	d.from(3).secure().say(hello, "250", plain("pass,word=1"), "235").
		mail(user, "three", "ok@far.test", "slow@far.test", "gone@far.test").quit()
	// Of this machine.
	if out, status := s.tool([]byte("Subject: four\n\nx\n"), "sendmail", "-f", "cron@local.test", user); status != 0 {
		s.t.Fatalf("sendmail: %s", out)
	}

	refused(21, hello, "a@from.test", "RCPT TO:<nobody1@local.test>", "550 5.1.1", "RCPT TO:<nobody2@local.test>", "550 5.1.1")
	refused(22, hello, "a@from.test", "RCPT TO:<x@else.test>", "554 5.7.1")
	refused(23, hello, "spam@bad.test", "RCPT TO:<"+user+">", "554 5.7.1")
	refused(24, "EHLO pc", "a@from.test", "RCPT TO:<"+user+">", "504 5.5.2")
	refused(25, hello, "wait@grey.test", "RCPT TO:<"+user+">", "450 4.2.0", "RCPT TO:<"+user+">", "450 4.2.0")
	refused(51, hello, "a@from.test", "RCPT TO:<"+user+">", "554 5.7.1")
	refused(26, hello, "a@from.test", "RCPT TO:<"+user+">", "250", "DATA", "354", "Subject: bad\r\n\r\nx\r\n.", "550 5.7.1")

	// Wrong passwords; the second client does not wait for more.
	d.from(31).secure().say(hello, "250", plain("wrong"), "535", plain("worse"), "535").quit()
	d.from(32).secure().say(hello, "250", "AUTH LOGIN am9l", "334", "d3Jvbmc=", "535").c.Close()

	// Bad manners.
	k := d.from(41).say(hello, "250", "HAVE", "500", "SOME", "500", "MORE", "500", "FUN", "500")
	k.hear("421")
	k.gone()
	k = d.from(42)
	fmt.Fprint(k.c, "HELO client.test\r\nMAIL FROM:<a@from.test>\r\n")
	k.hear("554")
	k.gone()
	d.from(43).say(hello, "250").c.Close()
	d.from(44).say(hello, "250", "MAIL FROM:<a@from.test>", "250", "RCPT TO:<"+user+">", "250", "DATA", "354").c.Close()

	s.waitLogN(`disconnect from unknown`, d.sessions)
	s.waitLogN(`: removed\b`, 5) // one, two, odd, four, and what joe is told
	s.waitLog(`non-delivery notification`)
	s.waitLogN(`status=(?:sent|deferred|bounced)`, 9)
}
