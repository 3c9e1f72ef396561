package smallnet

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testwait"
)

// TestSmallInternet is the story of docs/domain.md, on an internet of its own.
func TestSmallInternet(t *testing.T) {
	t.Parallel()
	n := newInternet(t)
	d := newTree(n, "example.org", "_acme-challenge.example.org", "example.com", "pfix.net", "exim.net", "rspam.net", "ca.net")
	a := newAuthority(n, d)
	s := &story{t: t, d: d, a: a, ours: newOurs(n, d, a), began: time.Now()}
	s.postfix = newPostfix(n, d, "pfix.net")
	s.exim = newExim(n, d)
	s.rspamd = newRspamd(n, d)
	s.step("hosts")
	for _, step := range []struct {
		what string
		do   func()
	}{{"ready", s.ready}, {"exchange", s.exchange}, {"report", s.report}, {"forward", s.forward}, {"renewal", s.renewal}, {"rotation", s.rotation},
		{"receivers", s.receivers}, {"second", s.second}, {"list", s.list},
		{"broken", s.broken}, {"clients", s.clients}, {"stolen", s.stolen}, {"refusal", s.refusal}, {"unreadable", s.unreadable}, {"clock", s.clock}, {"policy", s.policy}, {"provider", s.provider}} {
		step.do()
		s.step(step.what)
	}
}

// A story is what happens to the machine of ours.
type story struct {
	t       *testing.T
	d       *tree
	a       *authority
	ours    *host
	postfix *host
	exim    *host
	rspamd  *host
	began   time.Time
	probes  int
}

// step says how long the last part of the story took.
func (s *story) step(what string) {
	s.t.Logf("%s: %v", what, time.Since(s.began).Round(time.Millisecond))
	s.began = time.Now()
}

// ready makes a domain ready for the world, from nothing to a clean check.
func (s *story) ready() {
	t, h := s.t, s.ours
	h.must(`printf 'postmaster: root\nroot: ann\n' > /etc/aliases
posthaste setup -n mail.example.org -d example.org site
postconf -e 'maillog_file = /var/log/mail.log' 'smtpd_tls_security_level = may' \
  'tls_acme = yes' 'tls_acme_agree = yes' 'tls_acme_directory = ` + s.a.url + `' \
  'tls_acme_domains = mail.example.org, mta-sts.example.org, autoconfig.example.org, autodiscover.example.org' \
  'smtp_address_preference = ipv6' 'smtp_tls_security_level = dane' 'smtp_dns_support_level = dnssec' 'resolver_trust_ad = yes' 'smtp_tls_loglevel = 1' \
  'policyhost_sts_mode = enforce' 'policyhost_servers = imaps://mail.example.org, submissions://mail.example.org' \
  'dmarc_reject = yes' 'dmarc_report_enable = yes'
sed -i 's/^#80 /80 /; s/^#443 \(.*policyhost\)/443 \1/' /etc/posthaste/master.cf`)
	out := h.must("posthaste domain add -p reject example.org")
	s.d.publish("example.org", fragment(out)...)
	s.d.publish(reverse, "10 PTR mail.example.org.")
	s.d.publish(reverse6, nibbles(h.six)+" PTR mail.example.org.")
	h.must("posthaste start")
	h.must("posthaste domain rotate example.org")
	testwait.Until(t, "the authority's certificate serves", func() bool {
		out, _ := h.run("posthaste cert list")
		return strings.Contains(out, "Pebble")
	})
	record := regexp.MustCompile(`_25\._tcp\.mail\.example\.org\. IN TLSA .*`).FindString(h.must("posthaste cert list"))
	s.d.publish("example.org", record)
	s.clean()
}

// send has a user of a host send mail.
func send(h *host, from, to, subject string) {
	h.t.Helper()
	user, _, _ := strings.Cut(from, "@")
	if out, status := h.runAs(user, "printf 'From: "+from+"\\nTo: "+to+"\\nSubject: "+subject+"\\n\\nbody\\n' | /usr/sbin/sendmail -f "+from+" "+to); status != 0 {
		h.t.Fatalf("%s: sendmail: %d, %s", h.name, status, out)
	}
}

// found is an expression for an Authentication-Results field.
func found(t *testing.T, message string, results ...string) {
	t.Helper()
	for _, r := range results {
		if !regexp.MustCompile(`(?m)^Authentication-Results:(?:.*\n[ \t])*.*\b` + r).MatchString(message) {
			t.Errorf("no result says %s of\n%s", r, message)
		}
	}
}

// signed waits until mail of somebody is signed. The table of keys is looked at again within a second of
// its change; until then mail is not signed.
func (s *story) signed(from string) {
	s.t.Helper()
	testwait.Until(s.t, "mail of "+from+" is signed", func() bool {
		s.probes++
		subject := fmt.Sprintf("probe %d", s.probes)
		send(s.ours, from, "ann@pfix.net", subject)
		return strings.Contains(s.postfix.mail("ann", "Subject: "+subject+"\n"), "\nDKIM-Signature: ")
	})
}

// exchange sends mail both ways. What each side finds of the other's is at its best: SPF, DKIM and
// DMARC pass, and TLS is verified by DANE.
func (s *story) exchange() {
	t := s.t
	s.signed("ann@example.org")
	for _, peer := range []struct {
		host   *host
		domain string
		finds  []string
	}{
		{s.postfix, "pfix.net", []string{"dkim=pass", "spf=pass", "dmarc=pass"}},
		{s.exim, "exim.net", []string{"dkim=pass", "spf=pass"}},
		{s.rspamd, "rspam.net", []string{"dkim=pass", "spf=pass", "dmarc=pass"}},
	} {
		send(s.ours, "ann@example.org", "joe@"+peer.domain, "hello "+peer.domain)
		found(t, peer.host.mail("joe", "Subject: hello "+peer.domain), peer.finds...)
		theirs, our := peer.host.address, s.ours.address
		if peer.host.six != "" { // who has an IPv6 address speaks by it
			theirs, our = peer.host.six, s.ours.six
		}
		s.ours.logged("Verified TLS connection established to " + peer.host.name + "[" + theirs + "]:25")
		send(peer.host, "joe@"+peer.domain, "ann@example.org", "answer "+peer.domain)
		found(t, s.ours.mail("ann", "Subject: answer "+peer.domain), "dkim=pass", "spf=pass", "dmarc=pass")
		s.ours.logged("connect from " + peer.host.name + "[" + theirs + "]")
		if peer.host == s.exim {
			testwait.Until(t, "Exim has verified TLS by DANE", func() bool {
				return regexp.MustCompile(`=> ann@example\.org .* CV=dane `).MatchString(s.exim.read("var/log/exim4/mainlog"))
			})
		} else {
			peer.host.logged("Verified TLS connection established to mail.example.org[" + our + "]:25")
		}
	}
}

// forward: mail for an alias, and for a user with a .forward file, goes on to a site that refuses what SPF
// does not permit, with the author's signature as it was. A bounce finds its way back to the author, and
// whom the site does not know comes back, too. An address that was made up is refused.
func (s *story) forward() {
	t := s.t
	s.ours.must(`umask 077
head -c 24 /dev/urandom | base64 >/etc/posthaste/srs.secret
umask 022
postconf -e 'srs_domain = example.org'
printf 'far: joe@exim.net\nlost: nobody@exim.net\n' >>/etc/aliases
newaliases
echo joe@exim.net >/home/joe/.forward
chown joe: /home/joe/.forward
posthaste reload`)
	bounce := func(to, subject string) string {
		out, status := s.exim.run("swaks --server mail.example.org --helo mx.exim.net --from '<>' --to '" + to + "' --header 'Subject: " + subject + "' --body x")
		return fmt.Sprint(status, "\n", out)
	}
	var m []string
	for _, to := range []string{"far", "joe"} {
		send(s.postfix, "joe@pfix.net", to+"@example.org", "go on, "+to)
		message := s.exim.mail("joe", "Subject: go on, "+to)
		found(t, message, "dkim=pass header.d=pfix.net", "spf=pass smtp.mailfrom=example.org")
		m = regexp.MustCompile(`(?im)^Return-path: <(SRS0=\S+=pfix\.net=joe@example\.org)>`).FindStringSubmatch(message)
		if m == nil {
			t.Fatalf("the sender is not one of ours:\n%s", message)
		}
		if out := bounce(m[1], "came back, "+to); !strings.HasPrefix(out, "0\n") {
			t.Errorf("a bounce is refused: %s", out)
		}
		s.postfix.mail("joe", "Subject: came back, "+to)
	}
	s.ours.must("rm /home/joe/.forward")
	if out := bounce(strings.Replace(m[1], "=joe@", "=root@", 1), "made up"); !strings.Contains(out, "<** 550 5.1.1") {
		t.Errorf("a bounce to an address that was made up: %s", out)
	}
	send(s.postfix, "joe@pfix.net", "lost@example.org", "lose me")
	s.postfix.mail("joe", "5.1.1 no such user")
}
