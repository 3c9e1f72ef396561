package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/testcert"
)

// TestDANE sends mail to hosts in zones that are signed, or not, or wrongly,
// with TLSA records that are right, or not, through a resolver that validates.
func TestDANE(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	// Each host has an address and a certificate, or no TLS.
	hosts := []string{"ee", "cert", "wrong", "ta", "taname", "notls", "usage1", "none", "alias", "half"}
	certs := map[string]tls.Certificate{}
	for _, h := range hosts {
		certs[h] = ca.server("mx-" + h + ".dane.test")
	}
	certs["ee"] = stranger.server("nobody.test")
	certs["taname"] = ca.server("nobody.test")
	addrs := make([]string, len(hosts))
	for i := range hosts {
		addrs[i] = fmt.Sprintf("127.7.0.%d", i+1)
	}
	listeners := listenSame(t, addrs)
	port := listeners[0].Addr().(*net.TCPAddr).Port
	sinks := map[string]*sink{}
	tlsa := map[string]string{
		"ee":     "3 1 1 " + digest(certs["ee"].Leaf.RawSubjectPublicKeyInfo),
		"cert":   "3 0 1 " + digest(certs["cert"].Leaf.Raw),
		"wrong":  "3 1 1 " + digest([]byte("another key")),
		"ta":     "2 0 1 " + digest(ca.Cert.Raw),
		"taname": "2 0 1 " + digest(ca.Cert.Raw),
		"notls":  "3 1 1 " + digest(certs["notls"].Leaf.RawSubjectPublicKeyInfo),
		"half":   "3 1 1 " + digest(certs["half"].Leaf.RawSubjectPublicKeyInfo),
		"usage1": "1 1 1 " + digest(certs["usage1"].Leaf.RawSubjectPublicKeyInfo),
	}
	records, plain := "", ""
	for i, h := range hosts {
		s := &sink{l: listeners[i]}
		if h != "notls" {
			s.tls = &tls.Config{Certificates: []tls.Certificate{certs[h]}}
		}
		sinks[h] = startSink(t, s)
		records += fmt.Sprintf("%s MX 10 mx-%[1]s\nmx-%[1]s A %s\n", h, addrs[i])
		if tlsa[h] != "" {
			records += fmt.Sprintf("_%d._tcp.mx-%s TLSA %s\n", port, h, tlsa[h])
		}
	}
	records += fmt.Sprintf("_%d._tcp.mx-alias CNAME keys\nkeys TLSA 3 1 1 %s\n", port, digest(certs["alias"].Leaf.RawSubjectPublicKeyInfo))
	// A host that is an alias to one that is not signed has its own.
	for name, key := range map[string]string{"out": tlsa["ee"], "outwrong": tlsa["wrong"]} {
		records += fmt.Sprintf("%s MX 10 mx-%[1]s\nmx-%[1]s CNAME mx.plain.test.\n_%[2]d._tcp.mx-%[1]s TLSA %[3]s\n", name, port, key)
	}
	// Hosts of a zone that is not signed have records too, which do not count.
	plain = fmt.Sprintf("unsigned MX 10 mx\nmx A %s\n_%d._tcp.mx TLSA %s\nhalf MX 10 mx-half.dane.test.\nhalfwrong MX 10 mx-wrong.dane.test.\n",
		addrs[0], port, tlsa["wrong"])
	bogus := fmt.Sprintf("forged MX 10 mx\nmx A %s\n_%d._tcp.mx TLSA %s\nforgedmx MX 77 mx\n", addrs[0], port, tlsa["ee"])
	d := newSignedDNS(t, []zoneFile{
		{name: "dane.test", records: records, signed: true},
		{name: "plain.test", records: plain},
		{name: "bogus.test", records: bogus, signed: true, spoil: func(text string) string {
			text = regexp.MustCompile(`(?m)^(_\d+\._tcp\.mx\.bogus\.test\.\s.*\sTLSA\s+3 1 1 )\S+`).ReplaceAllString(text, "${1}"+digest([]byte("forged")))
			return strings.Replace(text, "\tMX\t77 ", "\tMX\t7 ", 1)
		}},
		{name: "expired.test", records: fmt.Sprintf("old MX 10 mx\nmx A %s\n", addrs[0]), signed: true, expired: true},
	})
	s := newSystem(t, options{
		main: fmt.Sprintf("resolver_address = %s\nresolver_trust_ad = yes\ndnssec_probe = ns:dane.test\nsmtp_dns_support_level = dnssec\nsmtp_tls_security_level = dane\n"+
			"smtp_tcp_port = %d\nsmtp_tls_loglevel = 1\ntransport_maps = pcre:{ {/^only@/ only:} }\n", d.resolver, port),
		master: "only unix - - n - - smtp -o smtp_tls_security_level=dane-only -o syslog_name=postfix/only\n",
	})
	const (
		verified  = "2.0.0 sent verified"
		trusted   = "2.0.0 sent trusted" // but who named the host?
		encrypted = "2.0.0 sent encrypted"
		untrusted = "4.7.5 deferred Server certificate not verified"
	)
	table := []struct{ domain, dane, only string }{
		{"ee.dane.test", verified, verified},
		{"cert.dane.test", verified, verified},
		{"wrong.dane.test", untrusted, untrusted},
		{"ta.dane.test", verified, verified},
		{"taname.dane.test", untrusted, untrusted},
		{"notls.dane.test", "4.7.4 deferred TLS is required, but was not offered by host", "4.7.4 deferred TLS is required, but was not offered by host"},
		{"usage1.dane.test", encrypted, "4.7.5 deferred no usable TLSA records found for"},
		{"none.dane.test", encrypted, "4.7.5 deferred no TLSA records found for"},
		{"alias.dane.test", verified, verified},
		{"gone.dane.test", "5.4.4 bounced Host or domain name not found", "5.4.4 bounced Host or domain name not found"},
		{"unsigned.plain.test", encrypted, "4.7.5 deferred non DNSSEC destination for"},
		{"out.dane.test", verified, verified},
		{"outwrong.dane.test", untrusted, untrusted},
		{"half.plain.test", trusted, "4.7.5 deferred non DNSSEC destination for"},
		{"halfwrong.plain.test", untrusted, "4.7.5 deferred non DNSSEC destination for"},
		{"forged.bogus.test", "4.7.5 deferred TLSA lookup error for", "4.7.5 deferred TLSA lookup error for"},
		{"forgedmx.bogus.test", "4.4.3 deferred Host or domain name not found", "4.4.3 deferred Host or domain name not found"},
		{"old.expired.test", "4.4.3 deferred Host or domain name not found", "4.4.3 deferred Host or domain name not found"},
	}
	var to []string
	for _, tt := range table {
		to = append(to, "any@"+tt.domain, "only@"+tt.domain)
	}
	s.sendMany(to)
	for _, tt := range table {
		for user, want := range map[string]string{"any": tt.dane, "only": tt.only} {
			rcpt := user + "@" + tt.domain
			got := s.became(sinks, rcpt)
			if !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s, want %s", rcpt, got, want)
			}
		}
	}
	if strings.Contains(s.log(), "DNSSEC validation may be unavailable") {
		t.Error("a resolver that validates is complained of")
	}
}

// became is what has become of the only message for a recipient.
func (s *system) became(sinks map[string]*sink, rcpt string) string {
	s.t.Helper()
	line := s.waitLog(`to=<` + regexp.QuoteMeta(rcpt) + `>, `)
	m := regexp.MustCompile(`dsn=(\S+), status=(\S+) \((.*)\)$`).FindStringSubmatch(line)
	if m[2] == "sent" {
		m[3] = howSent(s, sinks, rcpt, line)
	}
	return m[1] + " " + m[2] + " " + m[3]
}

// howSent says how the message of a log line has arrived: over TLS whose
// certificate was verified, over TLS, or without.
func howSent(s *system, sinks map[string]*sink, rcpt, line string) string {
	for _, k := range sinks {
		for _, m := range k.received() {
			switch {
			case len(m.to) != 1 || m.to[0] != rcpt:
				continue
			case !m.tls:
				return "clear"
			}
			program, _, _ := strings.Cut(line[strings.Index(line, " postfix/"):], "[")
			relay := regexp.MustCompile(`relay=(\S+),`).FindStringSubmatch(line)[1]
			for _, word := range []string{"Verified", "Trusted"} {
				if regexp.MustCompile(program + `\[\d+\]: ` + word + ` TLS connection established to ` + regexp.QuoteMeta(relay) + `:`).MatchString(s.log()) {
					return strings.ToLower(word)
				}
			}
			return "encrypted"
		}
	}
	return "lost"
}

// A certificate that nobody looks at may have a negative serial number, which
// crypto/tls by itself refuses to read.
func TestNegativeSerial(t *testing.T) {
	t.Parallel()
	pair := testcert.Make(t, x509.Certificate{SerialNumber: big.NewInt(0x5a)}, nil) // one octet: 02 01 5a
	der := bytes.Replace(pair.Cert.Raw, []byte{2, 1, 0x5a}, []byte{2, 1, 0xfa}, 1)
	if bytes.Equal(der, pair.Cert.Raw) {
		t.Fatal("no serial number in the certificate")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := startSink(t, &sink{l: l, tls: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: pair.Key}}}})
	s := newSystem(t, options{main: k.relayhost() + "smtp_tls_security_level = encrypt\n"})
	s.mustSend("from@here.test", []string{"to@there.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<to@there\.test>,.*status=sent`)
}
