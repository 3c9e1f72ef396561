package smallnet

import (
	"fmt"
	"strings"

	"posthaste/internal/testwait"
)

// flows: mail goes out and comes in.
func (s *story) flows(when string) {
	s.t.Helper()
	send(s.ours, "ann@example.org", "joe@pfix.net", "out, "+when)
	s.postfix.mail("joe", "Subject: out, "+when)
	send(s.postfix, "joe@pfix.net", "ann@example.org", "in, "+when)
	s.ours.mail("ann", "Subject: in, "+when)
}

// refusal: the authority does not certify one of the names, or one is not in the DNS. The log has its reason
// and when the next attempt is, the former certificate serves, and mail flows.
func (s *story) refusal() {
	h := s.ours
	names := strings.TrimSpace(h.must("postconf -h tls_acme_domains"))
	for name, says := range map[string]string{refused: "rejectedIdentifier: ", "nowhere.example.org": " nowhere.example.org: "} {
		h.must(": >/var/log/mail.log; postconf -e 'tls_acme_domains = " + names + ", " + name + "'; posthaste reload; posthaste cert renew >/tmp/renew 2>&1 || true")
		h.logged(says, name, "; next attempt at ")
		out := h.read("tmp/renew")
		s.t.Logf("%s", out)
		if !strings.Contains(out, name) {
			s.t.Errorf("cert renew: %s", out)
		}
		s.flows("with a name that is refused, " + name)
	}
	h.must("postconf -e 'tls_acme_domains = " + names + "'; posthaste reload")
	s.clean()
}

// unreadable: the key by which mail is signed cannot be read: it is not there, or the mail system's user
// has no right to it. The log says so, and so do the checks, though root, who can read everything,
// makes them. Mail waits, as without a signature it would be refused elsewhere. Mail that comes in is
// not held up, and with the key mail goes out, signed.
func (s *story) unreadable() {
	t, h := s.t, s.ours
	key := strings.TrimSpace(h.must("grep ^example.org /etc/posthaste/dkim_keys | sed -n 's/.*:\\(\\/[^ ,]*\\).*/\\1/p'"))
	if !strings.HasPrefix(key, "/etc/posthaste/dkim/") || strings.Contains(key, "\n") {
		t.Fatalf("the signing table has %q", key)
	}
	for _, c := range []struct{ what, spoil, mend, says string }{
		{"moved", "mv {key} /etc/posthaste/key.away", "mv /etc/posthaste/key.away {key}", "no such file"},
		{"closed", "chmod 000 {key}", "chmod 640 {key}", "permission denied"},
		{"of root alone", "chgrp root {key}", "chgrp posthaste {key}", "permission denied"},
	} {
		name := strings.NewReplacer("{key}", key)
		subject := "without a key, " + c.what
		h.must(name.Replace(c.spoil) + "; : >/var/log/mail.log; posthaste reload")
		for _, check := range []string{"posthaste domain check -o '' example.org", "posthaste check -v"} {
			out, status := h.run(check)
			if !strings.Contains(out, key) || !strings.Contains(out, c.says) || strings.Contains(check, "domain") && status == 0 {
				t.Errorf("%s: %s does not say it: %d\n%s", c.what, check, status, out)
			}
		}
		out, _ := h.runAs("ann", "printf 'From: ann@example.org\\nTo: joe@pfix.net\\nSubject: "+subject+"\\n\\nbody\\n' | /usr/sbin/sendmail joe@pfix.net; echo $?")
		h.logged("not signed: ", c.says)
		send(s.postfix, "joe@pfix.net", "ann@example.org", "in, "+subject)
		h.mail("ann", "Subject: in, "+subject)
		if m, _ := s.postfix.find("joe", "Subject: "+subject); m != "" {
			t.Errorf("%s: the mail went out:\n%s", c.what, m)
		}
		h.must(name.Replace(c.mend) + "; posthaste reload")
		testwait.For(t, func() string { // pickup takes it from maildrop again
			h.must("postqueue -f")
			if m, _ := s.postfix.find("joe", "Subject: "+subject); m == "" {
				return fmt.Sprintf("%s: the mail that waited does not come: sendmail said %q", c.what, out)
			}
			return ""
		})
		found(t, s.postfix.mail("joe", "Subject: "+subject), "dkim=pass")
	}
}
