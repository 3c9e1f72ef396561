package e2e

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// dnsAddress is where the servers listen: no client has taken a port there.
const dnsAddress = "127.7.53.1"

// A signedDNS is an authoritative server with zones, signed and not, and a
// resolver that validates.
type signedDNS struct {
	t        *testing.T
	dir      string
	resolver string // address and port
}

// zoneFile is a zone as a test wants it.
type zoneFile struct {
	name    string
	records string
	signed  bool
	expired bool
	// spoil changes the zone after it has been signed.
	spoil func(text string) string
}

// run runs a program in d's directory and returns what it prints.
func (d *signedDNS) run(program string, args ...string) string {
	d.t.Helper()
	cmd := exec.Command(need(d.t, program), args...)
	cmd.Dir = d.dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("%s %v: %v\n%s%s", program, args, err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func (d *signedDNS) write(name, text string) string {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
	return path
}

// sign signs a zone, and returns the file and the anchor that leads to it.
func (d *signedDNS) sign(z *zoneFile) (file, anchor string) {
	key := d.run("ldns-keygen", "-a", "ECDSAP256SHA256", "-k", z.name)
	args := []string{"-f", z.name + ".signed", z.name + ".zone", key}
	if z.expired {
		args = append([]string{"-i", "20200101000000", "-e", "20200201000000"}, args...)
	}
	d.run("ldns-signzone", args...)
	path := filepath.Join(d.dir, z.name+".signed")
	if z.spoil != nil {
		text, err := os.ReadFile(path)
		if err != nil {
			d.t.Fatal(err)
		}
		spoilt := z.spoil(string(text))
		if spoilt == string(text) {
			d.t.Fatalf("zone %s is as good as it was:\n%s", z.name, text)
		}
		d.write(z.name+".signed", spoilt)
	}
	return path, filepath.Join(d.dir, key+".ds")
}

// start starts a program that stays until the test ends.
func (d *signedDNS) start(program string, args ...string) {
	cmd := exec.Command(need(d.t, program), args...)
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Dir = d.dir
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if d.t.Failed() {
			d.t.Logf("%s:\n%s", program, out.String())
		}
	})
}

// newSignedDNS serves zones by nsd, and asks it through unbound.
func newSignedDNS(t *testing.T, zones []zoneFile) *signedDNS {
	t.Helper()
	need(t, "ldns-signzone")
	need(t, "nsd")
	need(t, "unbound")
	d := &signedDNS{t: t}
	var err error
	if d.dir, err = os.MkdirTemp("", "dns"); err != nil {
		t.Fatal(err)
	}
	os.Chmod(d.dir, 0o755)
	t.Cleanup(func() { os.RemoveAll(d.dir) })
	authority, resolver := freePort(t), freePort(t)
	nsd := fmt.Sprintf("server:\n  ip-address: "+dnsAddress+"@%d\n  username: \"\"\n  chroot: \"\"\n  zonesdir: %q\n  pidfile: nsd.pid\n  database: \"\"\n"+
		"  xfrdfile: %q\n  zonelistfile: %q\n  logfile: \"\"\n  server-count: 1\nremote-control:\n  control-enable: no\n",
		authority, d.dir, filepath.Join(d.dir, "xfrd"), filepath.Join(d.dir, "zonelist"))
	unbound := fmt.Sprintf("server:\n  interface: "+dnsAddress+"@%d\n  username: \"\"\n  chroot: \"\"\n  directory: %q\n  pidfile: \"\"\n  use-syslog: no\n  logfile: \"\"\n"+
		"  do-not-query-localhost: no\n  do-daemonize: no\n  num-threads: 1\n  module-config: \"validator iterator\"\n  local-zone: \"test.\" nodefault\n"+
		"  root-hints: \"\"\n  val-log-level: 2\n", resolver, d.dir)
	stubs := ""
	for i := range zones {
		z := &zones[i]
		file := d.write(z.name+".zone", fmt.Sprintf("$ORIGIN %s.\n$TTL 300\n@ SOA ns.%[1]s. root.%[1]s. 1 3600 600 86400 300\n@ NS ns.%[1]s.\nns A 127.0.0.1\n%s",
			z.name, z.records))
		if z.signed {
			anchor := ""
			file, anchor = d.sign(z)
			unbound += fmt.Sprintf("  trust-anchor-file: %q\n", anchor)
		}
		nsd += fmt.Sprintf("zone:\n  name: %s\n  zonefile: %s\n", z.name, file)
		stubs += fmt.Sprintf("stub-zone:\n  name: %s\n  stub-addr: %s@%d\n", z.name, dnsAddress, authority)
	}
	d.start("nsd", "-d", "-c", d.write("nsd.conf", nsd))
	d.start("unbound", "-d", "-p", "-c", d.write("unbound.conf", unbound+"remote-control:\n  control-enable: no\n"+stubs))
	d.resolver = net.JoinHostPort(dnsAddress, fmt.Sprint(resolver))
	q := new(dns.Msg)
	q.SetQuestion(zones[0].name+".", dns.TypeSOA)
	q.SetEdns0(1232, true)
	for limit := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		m, err := dns.Exchange(q, d.resolver)
		if err == nil && len(m.Answer) > 0 && m.AuthenticatedData {
			return d
		}
		if time.Now().After(limit) {
			t.Fatalf("the resolver does not say anything that is vouched for: %v %v", m, err)
		}
	}
}

// listenSame listens on one port of several addresses.
func listenSame(t *testing.T, addrs []string) []net.Listener {
	t.Helper()
	for range 50 {
		port := freePort(t)
		var list []net.Listener
		for _, a := range addrs {
			l, err := net.Listen("tcp", net.JoinHostPort(a, fmt.Sprint(port)))
			if err != nil {
				break
			}
			list = append(list, l)
		}
		if len(list) == len(addrs) {
			return list
		}
		for _, l := range list {
			l.Close()
		}
	}
	t.Skip("no port is free on all addresses of loopback")
	return nil
}

// TestDANE sends mail to hosts in zones that are signed, or not, or wrongly,
// with TLSA records that are right, or not, through a resolver that validates.
func TestDANE(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	// Each host has an address and a certificate, or no TLS.
	hosts := []string{"ee", "cert", "wrong", "ta", "taname", "notls", "usage1", "none", "alias"}
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
		"ta":     "2 0 1 " + digest(ca.cert.Raw),
		"taname": "2 0 1 " + digest(ca.cert.Raw),
		"notls":  "3 1 1 " + digest(certs["notls"].Leaf.RawSubjectPublicKeyInfo),
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
	// Hosts of a zone that is not signed have records too, which do not count.
	plain = fmt.Sprintf("unsigned MX 10 mx\nmx A %s\n_%d._tcp.mx TLSA %s\nhalf MX 10 mx-ee.dane.test.\nhalfwrong MX 10 mx-wrong.dane.test.\n",
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
		main: fmt.Sprintf("resolver_address = %s\nresolver_trust_ad = yes\nsmtp_dns_support_level = dnssec\nsmtp_tls_security_level = dane\n"+
			"smtp_tcp_port = %d\nsmtp_tls_loglevel = 1\ntransport_maps = pcre:{ {/^only@/ only:} }\n", d.resolver, port),
		master: "only unix - - n - - smtp -o smtp_tls_security_level=dane-only -o syslog_name=postfix/only\n",
	})
	const (
		verified  = "2.0.0 sent verified"
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
		{"half.plain.test", verified, "4.7.5 deferred non DNSSEC destination for"},
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
			line := s.waitLog(`to=<` + regexp.QuoteMeta(rcpt) + `>, `)
			m := regexp.MustCompile(`dsn=(\S+), status=(\S+) \((.*)\)$`).FindStringSubmatch(line)
			got := m[1] + " " + m[2] + " " + m[3]
			if m[2] == "sent" {
				got = "2.0.0 sent " + howSent(s, sinks, rcpt, line)
			}
			if !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s, want %s", rcpt, got, want)
			}
		}
	}
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
			if regexp.MustCompile(program + `\[\d+\]: Verified TLS connection established to ` + regexp.QuoteMeta(relay) + `:`).MatchString(s.log()) {
				return "verified"
			}
			return "encrypted"
		}
	}
	return "lost"
}
