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

// refusal: the authority does not certify one of the names. The log has its reason and when the next
// attempt is, the former certificate serves, and mail flows.
func (s *story) refusal() {
	h := s.ours
	names := strings.TrimSpace(h.must("postconf -h tls_acme_domains"))
	h.must("postconf -e 'tls_acme_domains = " + names + ", " + refused + "'; posthaste reload")
	h.logged("rejectedIdentifier", refused, "; next attempt at ")
	s.flows("with a name that is refused")
	h.must("postconf -e 'tls_acme_domains = " + names + "'; posthaste reload")
	s.clean()
}

// unreadable: the key by which mail is signed cannot be read. The log says so, and mail waits, as
// without a signature it would be refused elsewhere. Mail that comes in is not held up, and with
// the key mail goes out.
func (s *story) unreadable() {
	t, h := s.t, s.ours
	key := strings.TrimSpace(h.must("sed -n 's/.*:\\(\\/[^ ,]*\\).*/\\1/p' /etc/posthaste/dkim_keys"))
	if !strings.HasPrefix(key, "/etc/posthaste/dkim/") || strings.Contains(key, "\n") {
		t.Fatalf("the signing table has %q", key)
	}
	h.must("mv " + key + " /etc/posthaste/key.away; posthaste reload")
	if out, status := h.run("posthaste domain check -o '' example.org"); status == 0 || !strings.Contains(out, key) {
		t.Errorf("the check does not miss %s: %d\n%s", key, status, out)
	}
	out, _ := h.runAs("ann", "printf 'From: ann@example.org\\nTo: joe@pfix.net\\nSubject: without a key\\n\\nbody\\n' | /usr/sbin/sendmail joe@pfix.net; echo $?")
	h.logged("not signed: ")
	send(s.postfix, "joe@pfix.net", "ann@example.org", "in, without a key")
	h.mail("ann", "Subject: in, without a key")
	h.must("mv /etc/posthaste/key.away " + key + "; posthaste reload")
	testwait.For(t, func() string { // pickup takes it from maildrop again
		h.must("postqueue -f")
		if m, _ := s.postfix.find("joe", "Subject: without a key"); m == "" {
			return fmt.Sprintf("the mail that waited does not come: sendmail said %q", out)
		}
		return ""
	})
	found(t, s.postfix.mail("joe", "Subject: without a key"), "dkim=pass")
}
