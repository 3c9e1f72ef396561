package domain

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// zone has the test replace a text of the zone.
func zone(before, after string) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) { s.zone = replaced(t, s.zone, before, after) }
}

// mainCF has it replace one of main.cf.
func mainCF(before, after string) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) { s.main = replaced(t, s.main, before, after) }
}

func replaced(t *testing.T, text, before, after string) string {
	if !strings.Contains(text, before) {
		t.Fatalf("%q does not occur", before)
	}
	return strings.Replace(text, before, after, 1)
}

// silent has smtpd not answer at addresses.
func silent(err error, addrs ...string) func(*testing.T, *stage) {
	return func(_ *testing.T, s *stage) {
		s.silent = make(map[string]error)
		for _, a := range addrs {
			s.silent[a] = err
		}
	}
}

// acme has the certificate be that of an authority, beside another change.
func acme(more func(*testing.T, *stage)) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		s.main += "tls_acme = yes\ntls_acme_agree = yes\ntls_acme_directory = https://ca.test/dir\n"
		more(t, s)
	}
}

// A broken record of each kind, and each other thing that can be wrong, is found, and the
// record that mends it is named.
func TestBroken(t *testing.T) {
	t.Parallel()
	const nothing = "" // no record is to be published
	for _, tt := range []struct {
		name    string
		break_  func(*testing.T, *stage)
		area    string
		level   Level
		text    string
		publish string // the beginning of a record
	}{
		{"no address", zone("mail.a.test. A 192.0.2.1\nmail.a.test. AAAA 2001:db8::1\n", ""), "address", Error, "mail.a.test has no address", "mail.a.test. IN A 192.0.2.1"},
		{"one address is missing", zone("mail.a.test. AAAA 2001:db8::1\n", ""), "address", Warning, "does not lead to 2001:db8::1", "mail.a.test. IN AAAA 2001:db8::1"},
		{"a strange address", zone("mail.a.test. A 192.0.2.1\n", "mail.a.test. A 192.0.2.1\nmail.a.test. A 192.0.2.9\n"), "address", Warning, "leads to 192.0.2.9", nothing},
		{"no reverse name", zone("1.2.0.192.in-addr.arpa. PTR mail.a.test.\n", ""), "address", Error, "192.0.2.1 has no name", "1.2.0.192.in-addr.arpa. IN PTR mail.a.test."},
		{"another reverse name", zone("ip6.arpa. PTR mail.a.test.", "ip6.arpa. PTR host.b.test."), "address", Error, "2001:db8::1 has the name host.b.test", "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. IN PTR"},
		{"no reverse name of IPv6", zone("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR mail.a.test.\n", ""), "address", Error, "2001:db8::1 has no name", "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. IN PTR mail.a.test."},
		{"many reverse names", zone("1.2.0.192.in-addr.arpa. PTR mail.a.test.\n", "1.2.0.192.in-addr.arpa. PTR mail.a.test.\n1.2.0.192.in-addr.arpa. PTR www.a.test.\n"), "address", Note, "2 names", nothing},
		{"port 25 is closed", func(_ *testing.T, s *stage) { s.closed = true }, "outward", Error, "cannot be reached", nothing},
		{"a block list", zone("!secure", "1.2.0.192.list.test. A 127.0.0.4\n!secure"), "blocklist", Error, "list.test lists 192.0.2.1 (127.0.0.4)", nothing},
		{"a block list that refuses", zone("2.0.0.127.list.test. A 127.0.0.2", "2.0.0.127.list.test. A 127.255.255.254"), "blocklist", Unknown, "refuses the name server", nothing},
		{"a block list that lists all", zone("2.0.0.127.list.test. A 127.0.0.2", "*.list.test. A 127.0.0.2\n2.0.0.127.list.test. A 127.0.0.2\n1.0.0.127.list.test. A 127.0.0.2"), "blocklist", Unknown, "lists 127.0.0.1", nothing},
		{"no MX", zone("a.test. MX 10 mail.a.test.\n", ""), "mx", Error, "has no MX record", "a.test. IN MX 10 mail.a.test."},
		{"null MX", zone("a.test. MX 10 mail.a.test.", "a.test. MX 0 ."), "mx", Error, "null MX", "a.test. IN MX 10 mail.a.test."},
		{"MX elsewhere", zone("a.test. MX 10 mail.a.test.", "a.test. MX 10 mx.probe.test."), "mx", Error, "lead elsewhere: mx.probe.test", "a.test. IN MX 10 mail.a.test."},
		{"MX without address", zone("a.test. MX 10 mail.a.test.", "a.test. MX 10 mail.a.test.\na.test. MX 20 gone.a.test."), "mx", Error, "gone.a.test has no address", nothing},
		{"MX that is an alias", zone("a.test. MX 10 mail.a.test.", "a.test. MX 10 mx.a.test.\nmx.a.test. CNAME mail.a.test."), "mx", Warning, "mx.a.test is an alias of mail.a.test", nothing},
		{"IPv6 is not answered", silent(syscall.ECONNREFUSED, "2001:db8::1"), "mx", Warning, "mail.a.test at 2001:db8::1: port 25 cannot be reached: dial tcp: connection refused", nothing},
		{"IPv4 is not answered", silent(syscall.ETIMEDOUT, "192.0.2.1"), "mx", Warning, "mail.a.test at 192.0.2.1: port 25 cannot be reached", nothing},
		{"nobody answers", silent(syscall.ECONNREFUSED, "192.0.2.1", "2001:db8::1"), "mx", Error, "mail.a.test at 2001:db8::1: port 25 cannot be reached", nothing},
		{"a strange address that does not answer", zone("!secure", "mail.a.test. AAAA 2001:db8::9\n!secure"), "mx", Warning, "mail.a.test at 2001:db8::9: port 25 cannot be reached", nothing},
		{"behind a translator", func(t *testing.T, s *stage) { s.away = true; silent(syscall.ETIMEDOUT, "192.0.2.1")(t, s) }, "mx", Unknown, "mail.a.test at 192.0.2.1: port 25", nothing},
		{"no way to IPv6", silent(syscall.ENETUNREACH, "2001:db8::1"), "mx", Unknown, "mail.a.test at 2001:db8::1: port 25", nothing},
		{"mail is not taken", mainCF("mydestination = a.test", "mydestination ="), "mx", Error, "main.cf does not take it", nothing},
		{"no STARTTLS", func(_ *testing.T, s *stage) { s.plain = true }, "tls", Warning, "does not offer STARTTLS", nothing},
		{"an expired certificate", func(_ *testing.T, s *stage) { s.expires = -time.Hour }, "tls", Error, "expired", nothing},
		{"a certificate near its end", func(_ *testing.T, s *stage) { s.expires = 5*24*time.Hour + time.Hour }, "tls", Warning, "ends in 5 days", nothing},
		{"a certificate of another name", func(_ *testing.T, s *stage) { s.certNames = []string{"www.a.test"} }, "tls", Warning, "mail.a.test", nothing},
		{"no TLSA", zone("_25._tcp.mail.a.test. TLSA 3 1 1 TLSADIGEST\n", ""), "dane", Note, "has no TLSA record", "_25._tcp.mail.a.test. IN TLSA 3 1 1 "},
		{"a wrong TLSA", zone("TLSADIGEST", strings.Repeat("00", 32)), "dane", Error, "no TLSA record of mail.a.test is about", "_25._tcp.mail.a.test. IN TLSA 3 1 1 "},
		{"a TLSA that is left", zone("!secure", "_25._tcp.mail.a.test. TLSA 3 1 1 "+strings.Repeat("00", 32)+"\n!secure"), "dane", Note, "matches no certificate in use", nothing},
		{"a TLSA for browsers", zone("3 1 1 TLSADIGEST", "1 1 1 TLSADIGEST"), "dane", Error, "none of the 1 TLSA records", "_25._tcp.mail.a.test. IN TLSA 3 1 1 "},
		{"a zone that is not signed", zone("!secure a.test\n", ""), "dane", Warning, "not heeded", nothing},
		{"no SPF", zone(`a.test. TXT "v=spf1 ip4:192.0.2.1 ip6:2001:db8::1 mx -all"`+"\n", ""), "spf", Error, "has no SPF record", `a.test. IN TXT "v=spf1 ip4:192.0.2.1 ip6:2001:db8::1 mx ~all"`},
		{"two of SPF", zone("a.test. MX", "a.test. TXT \"v=spf1 mx -all\"\na.test. MX"), "spf", Error, "2 SPF records", nothing},
		{"SPF for everybody", zone("mx -all", "mx +all"), "spf", Error, "lets everybody send", "a.test. IN TXT"},
		{"SPF without us", zone("ip4:192.0.2.1 ip6:2001:db8::1 mx -all", "ip4:192.0.2.1 -all"), "spf", Error, "from 2001:db8::1 has the result fail", "a.test. IN TXT"},
		{"SPF in error", zone("ip6:2001:db8::1 mx -all", "ip7:1 -all"), "spf", Error, "is in error", nothing},
		{"no SPF for HELO", zone("mail.a.test. TXT \"v=spf1 a -all\"\n", ""), "spf", Note, "mail.a.test has no SPF record", `mail.a.test. IN TXT "v=spf1 a -all"`},
		{"SPF for HELO without us", zone("v=spf1 a -all", "v=spf1 ip4:192.0.2.7 -all"), "spf", Warning, "notices of mail.a.test from 192.0.2.1", nothing},
		{"mail is not signed", mainCF("dkim_sign_maps = texthash:DIR/dkim\n", ""), "dkim", Error, "not signed", nothing},
		{"a key that is not there", func(t *testing.T, s *stage) { s.write(t, "dkim", "a.test s1:/nonexistent/key\n") }, "dkim", Error, "no such file", nothing},
		{"a key that is not published", zone("s1._domainkey.a.test.", "s2._domainkey.a.test."), "dkim", Error, "s1._domainkey.a.test does not exist", "s1._domainkey.a.test. IN TXT ( \"v=DKIM1"},
		{"another key", zone("DKIMRECORD", `"v=DKIM1; k=rsa; p=AAAA"`), "dkim", Error, "is not the key", "s1._domainkey.a.test. IN TXT"},
		{"a key that is revoked", zone("DKIMRECORD", `"v=DKIM1; p="`), "dkim", Error, "revokes the key", "s1._domainkey.a.test. IN TXT"},
		{"two keys", zone("!secure", "s1._domainkey.a.test. TXT \"v=DKIM1; p=AAAA\"\n!secure"), "dkim", Error, "has 2 records", "s1._domainkey.a.test. IN TXT"},
		{"a key for testing", zone("DKIMRECORD", `"t=y; " DKIMRECORD`), "dkim", Warning, "says t=y", "s1._domainkey.a.test. IN TXT"},
		{"a key for sha1", zone("DKIMRECORD", `"h=sha1; " DKIMRECORD`), "dkim", Error, "keep receivers from using it", "s1._domainkey.a.test. IN TXT"},
		{"a key of another domain", func(t *testing.T, s *stage) { s.write(t, "dkim", "a.test b.test:s1:"+s.dir+"/a.test.s1.pem\n") }, "dkim", Warning, "in the name of b.test", nothing},
		{"no DMARC", zone("_dmarc.a.test.", "_dmarc.b.test."), "dmarc", Error, "has no DMARC record", `_dmarc.a.test. IN TXT "v=DMARC1; p=none; rua=mailto:postmaster@a.test"`},
		{"two of DMARC", zone("!secure", "_dmarc.a.test. TXT \"v=DMARC1; p=none\"\n!secure"), "dmarc", Error, "has 2 DMARC records", nothing},
		{"DMARC only watches", zone("p=reject", "p=none"), "dmarc", Note, "says none", nothing},
		{"DMARC under test", zone("p=reject", "p=reject; t=y"), "dmarc", Note, "t=y", nothing},
		{"DMARC misspelt", zone("p=reject", "p=rejekt"), "dmarc", Warning, "p=rejekt: expected none", nothing},
		{"DMARC of before", zone("p=reject", "p=reject; pct=50"), "dmarc", Warning, "pct=50 has no effect", nothing},
		{"no reports", zone("; rua=mailto:dmarc@a.test", ""), "dmarc", Note, "asks for no reports", nothing},
		{"reports that are not taken", zone("mailto:dmarc@a.test", "mailto:a@reports.test"), "dmarc", Error, "reports.test does not say", `a.test._report._dmarc.reports.test. IN TXT "v=DMARC1"`},
		{"no MTA-STS", zone("_mta-sts.a.test.", "_mta-sts.b.test."), "mta-sts", Note, "has no MTA-STS policy", nothing},
		{"a wrong announcement", zone("v=STSv1; id=20261101T000000Z", "v=STSv1; id=2026-11-01"), "mta-sts", Error, "not well-formed", "_mta-sts.a.test. IN TXT \"v=STSv1; id="},
		{"no policy", func(_ *testing.T, s *stage) { s.policy = "" }, "mta-sts", Error, "status 404", nothing},
		{"a policy of other hosts", func(_ *testing.T, s *stage) { s.policy = strings.Replace(s.policy, "mail.", "mx.", 1) }, "mta-sts", Error, "does not name the MX host mail.a.test", nothing},
		{"a policy under test", func(_ *testing.T, s *stage) { s.policy = strings.Replace(s.policy, "enforce", "testing", 1) }, "mta-sts", Note, "mode testing", nothing},
		{"a short policy", func(_ *testing.T, s *stage) { s.policy = strings.Replace(s.policy, "1209600", "3600", 1) }, "mta-sts", Warning, "max_age of 3600", nothing},
		{"no TLS reports", zone("_smtp._tls.a.test.", "_smtp._tls.b.test."), "tls-rpt", Note, "asks for no TLS reports", `_smtp._tls.a.test. IN TXT "v=TLSRPTv1; rua=mailto:postmaster@a.test"`},
		{"TLS reports to a place of no kind", zone("rua=mailto:tls@a.test", "rua=gopher://tls.test,mailto:tls@a.test"), "tls-rpt", Warning, `no TLS report can go to gopher://tls.test: unknown scheme "gopher"`, `_smtp._tls.a.test. IN TXT "v=TLSRPTv1;`},
		{"TLS reports to no address", zone("v=TLSRPTv1; rua=mailto:tls@a.test", "v=TLSRPTv1; rua=mailto:nobody"), "tls-rpt", Error, "names no place", `_smtp._tls.a.test. IN TXT "v=TLSRPTv1;`},
		{"TLS reports to nobody", zone("v=TLSRPTv1; rua=mailto:tls@a.test", "v=TLSRPTv1"), "tls-rpt", Error, "names no place", `_smtp._tls.a.test. IN TXT "v=TLSRPTv1;`},
		{"a key for nobody", func(t *testing.T, s *stage) {
			if err := os.Chmod(filepath.Join(s.dir, "a.test.s1.pem"), 0); err != nil {
				t.Fatal(err)
			}
		}, "dkim", Error, "permission denied", nothing},
		{"no CAA", zone("mail.a.test. CAA 0 issue \"ca.test\"\n", ""), "caa", Note, "has no CAA record", nothing},
		{"no CAA of an authority", acme(zone("mail.a.test. CAA 0 issue \"ca.test\"\n", "")), "caa", Note, "has no CAA record", `mail.a.test. IN CAA 0 issue "ca.test"`},
		{"an authority that says nothing", func(t *testing.T, s *stage) {
			acme(zone("mail.a.test. CAA 0 issue \"ca.test\"\n", ""))(t, s)
			s.main = strings.Replace(s.main, "/dir", "/other", 1)
		}, "caa", Note, "has no CAA record", nothing},
		{"CAA for another", acme(zone(`issue "ca.test"`, `issue "other.test; validationmethods=dns-01"`)), "caa", Warning, "do not name the authority of tls_acme_directory, but other.test", `mail.a.test. IN CAA 0 issue "ca.test"`},
		{"CAA with parameters", acme(zone(`issue "ca.test"`, `issue "ca.test ; accounturi=https://ca.test/1"`)), "caa", Good, "may be issued by ca.test", nothing},
		{"CAA for nobody", zone(`issue "ca.test"`, `issue ";"`), "caa", Warning, "let nobody issue", nothing},
		{"no SRV", zone("_submissions._tcp.a.test. SRV 0 1 465 mail.a.test.\n", ""), "submission", Note, "port 465 takes submissions", "_submissions._tcp.a.test. IN SRV 0 1 465 mail.a.test."},
		{"SRV elsewhere", zone("SRV 0 1 587 mail.a.test.", "SRV 0 1 587 mx.probe.test."), "submission", Warning, "does not lead to port 587", "_submission._tcp.a.test. IN SRV 0 1 587 mail.a.test."},
		{"no autoconfig", zone("autoconfig.a.test. A 192.0.2.1\n", ""), "autoconfig", Note, "does not exist", nothing},
		{"autoconfig that is no XML", func(_ *testing.T, s *stage) { s.autoconf = "hello" }, "autoconfig", Error, "cannot be used", nothing},
		{"autoconfig of another port", func(_ *testing.T, s *stage) { s.autoconf = strings.Replace(s.autoconf, "465", "25", 1) }, "autoconfig", Error, "no outgoing server", nothing},
		{"DNS does not answer", zone("!secure", "!fail _dmarc.a.test SERVFAIL\n!secure"), "dmarc", Unknown, "_dmarc.a.test", nothing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			tt.break_(t, s)
			list := s.check(t)
			for _, f := range list {
				if f.Area != tt.area || f.Level != tt.level || !strings.Contains(f.Text, tt.text) {
					continue
				}
				if tt.publish == "" && len(f.Publish) == 0 {
					return
				}
				for _, r := range f.Publish {
					if tt.publish != "" && strings.HasPrefix(r.String(), tt.publish) {
						return
					}
				}
			}
			for _, f := range list {
				t.Logf("%s %s: %s (%s) %v", f.Level, f.Area, f.Text, f.Why, f.Publish)
			}
			t.Errorf("no finding of %s in %s with %q and the record %q", tt.level, tt.area, tt.text, tt.publish)
		})
	}
}

// TestFamilies: addresses of a family that is not spoken are not those of the mail system: nobody is told
// to publish them.
func TestFamilies(t *testing.T) {
	t.Parallel()
	for protocols, want := range map[string]string{"all": "11.22.33.10, 2a0c:11:22::10", "ipv4": "11.22.33.10", "ipv6": "2a0c:11:22::10", "ipv6, ipv4": "11.22.33.10, 2a0c:11:22::10"} {
		s := newStage(t)
		s.main += "inet_interfaces = 127.0.0.1, 11.22.33.10, [2a0c:11:22::10]\ninet_protocols = " + protocols + "\n"
		site, err := OpenSite(t.Context(), s.config(t), nil, nil, func(text string) { t.Error(text) })
		if err != nil {
			t.Fatal(err)
		}
		if got := join(site.Addrs); got != want {
			t.Errorf("inet_protocols = %s: %s, expected %s", protocols, got, want)
		}
		site.Close()
	}
}
