package domain

import (
	"strings"
	"testing"
)

// What the policyhost service serves is announced, and a check sees when the world does not know it.
func TestHosted(t *testing.T) {
	t.Parallel()
	const policy = "version: STSv1\r\nmode: enforce\r\nmx: mail.a.test\r\nmax_age: 1209600\r\n"
	host := func(t *testing.T) *stage {
		s := newStage(t)
		s.main += "policyhost_sts_mode = enforce\npolicyhost_sts_max_age = 14d\npolicyhost_servers = imaps://mail.a.test, submissions://mail.a.test\n"
		s.master += "443 inet n - n - 50 policyhost\n"
		s.policy = policy
		return s
	}
	s := host(t)
	out, errs, status := s.run(t, "records", "a.test")
	record := hostedRecord("a.test", s.site(t).hosted.policy)
	line := record.Name + `. IN TXT "` + record.Data + `"`
	for _, want := range []string{"mta-sts.a.test. IN CNAME mail.a.test.", line, "autoconfig.a.test. IN CNAME mail.a.test.", "autodiscover.a.test. IN CNAME mail.a.test."} {
		if status != 0 || strings.Count(out, want+"\n") != 1 {
			t.Errorf("status %d, %s: records lack %s:\n%s", status, errs, want, out)
		}
	}
	for _, c := range []struct {
		name   string
		change func(s *stage)
		level  Level
		text   string
	}{
		{"right", func(s *stage) {
			s.zone = strings.Replace(s.zone, "v=STSv1; id=20261101T000000Z", record.Data, 1)
		}, Good, "the policy has mode enforce"},
		{"another id", func(*stage) {}, Warning, "the id of _mta-sts.a.test is that of another policy"},
		{"no record", func(s *stage) { s.zone = strings.Replace(s.zone, "_mta-sts.a.test.", "_mta-sts.b.test.", 1) }, Note, "has no MTA-STS policy"},
		{"a faulty record", func(s *stage) { s.zone = strings.Replace(s.zone, "id=20261101T000000Z", "id=2026-11", 1) }, Error, "not well-formed"},
		{"another policy", func(s *stage) { s.policy = goodPolicy + "mx: mail.b.test\n" }, Error, "is not that of policyhost_sts_mode"},
	} {
		s := host(t)
		c.change(s)
		found := false
		for _, f := range s.check(t) {
			if f.Area != "mta-sts" || f.Level != c.level || !strings.Contains(f.Text, c.text) {
				continue
			}
			found = true
			publishes := len(f.Publish) == 1 && f.Publish[0] == record
			if wants := c.name != "right" && c.name != "another policy"; publishes != wants {
				t.Errorf("%s: to publish: %v", c.name, f.Publish)
			}
		}
		if !found {
			t.Errorf("%s: not found: %s %s", c.name, c.level, c.text)
		}
	}
	// Whoever adds a domain hears which names its certificate needs, and gets the records with the others.
	for conf, want := range map[string]string{"": "policyhost must have the names mta-sts.c.test", "tls_acme = yes\n": "add them to tls_acme_domains",
		"tls_acme = yes\ntls_acme_domains = mta-sts.c.test, autoconfig.c.test, autodiscover.c.test\n": ""} {
		s := host(t)
		s.main += conf
		out, errs, status := s.run(t, "add", "--class", "local", "--dry-run", "c.test")
		if status != 0 || want != "" && !strings.Contains(out, want) || want == "" && strings.Contains(out, "tls_acme_domains") || !strings.Contains(out, "mta-sts.c.test.") {
			t.Errorf("add with %q: status %d, %s\n%s", conf, status, errs, out)
		}
	}
	// A domain that the service does not answer for has no policy of its.
	s = host(t)
	s.main += "policyhost_domains = b.test\n"
	if out, _, _ := s.run(t, "records", "a.test"); strings.Contains(out, "mta-sts") || strings.Contains(out, "autodiscover") {
		t.Errorf("records of another's policy:\n%s", out)
	}
	s.main += "policyhost_sts_mx =\n"
	if _, errs, status := s.run(t, "records", "a.test"); status == 0 || !strings.Contains(errs, "policyhost_sts_mx") {
		t.Errorf("a faulty setting: status %d, %s", status, errs)
	}
}
