package smallnet

import (
	"strings"

	"posthaste/internal/testwait"
)

// second: the site gets another domain. Its mail is signed by a key of its own, and has SPF and DMARC
// records of its own, so that it is aligned at the others; its policy is served beside that of the
// first one, and the names are in the same certificate. What concerns the host is published already.
func (s *story) second() {
	t, h := s.t, s.ours
	out := h.must("posthaste domain add -p reject --class local example.com")
	names := "mta-sts.example.com, autoconfig.example.com, autodiscover.example.com"
	if !strings.Contains(out, "note: when "+names+" lead to this host, add them to tls_acme_domains") {
		t.Errorf("domain add: %s", out)
	}
	for _, r := range fragment(out) { // all of it goes into the zone, which nsd would not load with others
		if name, _, _ := strings.Cut(r, ". IN "); !strings.HasSuffix("."+name, ".example.com") {
			t.Errorf("a record of another zone: %s", r)
		}
	}
	s.d.publish("example.com", fragment(out)...)
	h.must("postconf -e \"tls_acme_domains = $(postconf -h tls_acme_domains), " + names + "\"; posthaste reload; posthaste domain rotate example.com")
	testwait.For(t, func() string {
		out, _ := h.run("posthaste cert list")
		if first, _, _ := strings.Cut(out, "\n"); strings.Contains(first, "mta-sts.example.com") && strings.Contains(first, "mta-sts.example.org") {
			return ""
		}
		return "the certificate lacks a name: " + out
	})
	s.signed("ann@example.com")
	for _, domain := range []string{"example.org", "example.com"} {
		for _, peer := range []struct {
			host  *host
			finds []string
		}{
			{s.postfix, []string{`dkim=pass .*header\.d=` + domain, "spf=pass", `dmarc=pass .*header\.from=` + domain}},
			{s.exim, []string{`dkim=pass header\.d=` + domain, `spf=pass smtp\.mailfrom=` + domain}},
			{s.rspamd, []string{`dkim=pass header\.d=` + domain, "spf=pass", `dmarc=pass .*header\.from=` + domain}},
		} {
			_, theirs, _ := strings.Cut(peer.host.name, ".")
			send(h, "ann@"+domain, "joe@"+theirs, "of "+domain)
			message := peer.host.mail("joe", "Subject: of "+domain)
			found(t, message, peer.finds...)
			if n := strings.Count(message, "\nDKIM-Signature:"); n != 1 {
				t.Errorf("%d signatures:\n%s", n, message)
			}
			send(peer.host, "joe@"+theirs, "ann@"+domain, "to "+domain+" from "+theirs)
			found(t, h.mail("ann", "Subject: to "+domain+" from "+theirs), "dkim=pass", "spf=pass", "dmarc=pass")
		}
	}
	s.a.trust(s.rspamd)
	for _, domain := range []string{"example.org", "example.com"} {
		testwait.For(t, func() string { // the servers take the certificate up within ten seconds
			out, status := s.rspamd.run("curl -sS --fail-with-body https://mta-sts." + domain + "/.well-known/mta-sts.txt")
			if status != 0 || !strings.Contains(out, "mode: enforce") || !strings.Contains(out, "mx: mail.example.org") {
				return "the policy of " + domain + ": " + out
			}
			return ""
		})
	}
	s.clean()
	if out := h.must("posthaste domain check -o ''"); !strings.HasPrefix(out, "example.org:\n") || !strings.Contains(out, "\n\nexample.com:\n") || strings.Count(out, ":\ngood ") != 2 {
		t.Errorf("a check of all domains: %s", out)
	}
}
