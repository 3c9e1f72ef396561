package smallnet

import (
	"crypto/x509"
	"strings"
	"time"

	"posthaste/internal/testcert"
)

// front.py passes what the authority is asked on to it, at port 8443, and says that it is another
// time. No name space has a clock of its own for the time of the day, and programs in Go cannot be
// lied to about it: so it is the world's clock that is wrong, which is the same to the machine of ours.
const front = `import datetime, email.utils, http.client, http.server, ssl
class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        c = http.client.HTTPSConnection("127.0.0.1", 443, context=ssl._create_unverified_context(), timeout=30)
        c.request(self.command, self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))), dict(self.headers))
        r = c.getresponse()
        body = r.read()
        self.send_response_only(r.status)
        for name, value in r.getheaders():
            if name.lower() not in ("date", "content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Date", email.utils.format_datetime(datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours={hours}), usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
    do_POST = do_HEAD = do_GET
s = http.server.ThreadingHTTPServer(("0.0.0.0", {port}), Front)
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
c.load_cert_chain("/etc/front{port}.pem", "/etc/front{port}.key")
s.socket = c.wrap_socket(s.socket, server_side=True)
s.serve_forever()
`

// shifted has the authority answer at another port, as of another time, with a certificate that is
// valid from a time on.
func (s *story) shifted(port, hours string, from time.Time) {
	h := s.a.host
	pair := testcert.Make(s.t, x509.Certificate{DNSNames: []string{h.name}, IsCA: true, BasicConstraintsValid: true, NotBefore: from, NotAfter: from.AddDate(1, 0, 0)}, nil)
	h.write("etc/front"+port+".pem", string(pair.CertPEM()))
	h.write("etc/front"+port+".key", string(pair.KeyPEM()))
	h.write("srv/front"+port+".py", strings.NewReplacer("{port}", port, "{hours}", hours).Replace(front))
	h.daemon("front"+port, "python3 /srv/front"+port+".py")
	h.listens(port)
	s.ours.must("cat >>/etc/ssl/certs/ca-certificates.crt <<'!'\n" + string(pair.CertPEM()) + "!")
}

// clock: the clock of our machine is wrong by a day. If it is fast, the authority's time shows it, and
// a certificate is got all the same. If it is slow, the authority's own certificate is not valid yet:
// then the former certificate serves. Both are said, and mail flows.
func (s *story) clock() {
	t, h := s.t, s.ours
	s.shifted("8443", "-24", time.Now().Add(-48*time.Hour))
	s.shifted("8444", "24", time.Now().Add(23*time.Hour))
	at := func(port string) { // and at once, though a refusal may not be long ago
		h.must("postconf -e 'tls_acme_directory = " + strings.Replace(s.a.url, "acme.ca.net", "acme.ca.net:"+port, 1) + "'; posthaste reload; posthaste cert renew || true")
	}
	at("8443")
	h.logged("the clock of this machine is 24h0m", " fast, by the authority's: renewals depend on it")
	s.flows("with a clock that is fast")
	if out := h.must("posthaste cert list"); !strings.Contains(out, "acme.ca.net:8443") || strings.Contains(out, "problem") {
		t.Errorf("a fast clock keeps the certificate from being renewed: %s", out)
	}
	at("8444")
	h.logged("acme.ca.net:8444/dir is asked for a certificate", "certificate has expired or is not yet valid", "is the clock of this machine right?")
	s.flows("with a clock that is slow")
	if out := h.must("posthaste cert list"); !strings.Contains(out, "Pebble") || !strings.Contains(out, "not yet valid") {
		t.Errorf("with a slow clock: %s", out)
	}
	h.must("postconf -e 'tls_acme_directory = " + s.a.url + "'; posthaste reload; posthaste cert renew")
	s.clean()
}

// policySite.py serves a policy (RFC 8461).
const policySite = `import http.server, ssl
class Policy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"version: STSv1\r\nmode: enforce\r\nmx: mx.rspam.net\r\nmax_age: 86400\r\n"
        self.send_response(200 if self.path == "/.well-known/mta-sts.txt" else 404)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
s = http.server.ThreadingHTTPServer(("0.0.0.0", 443), Policy)
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
c.load_cert_chain("/etc/site.pem", "/etc/site.key")
s.socket = c.wrap_socket(s.socket, server_side=True)
s.serve_forever()
`

// policy: another domain, without DANE, wants TLS that is verified (MTA-STS, mode enforce). While the
// certificate of its server does not verify, mail waits, and the log has the reason; with one that
// does, it goes out. Were our clock a day slow, its certificates would not be valid yet: a policy that cannot
// be had for that keeps no mail; under one that is known, mail waits. Both are said, with our time.
func (s *story) policy() {
	t, h := s.t, s.ours
	const early = "certificate has expired or is not yet valid: current time "
	trust := func(certificate string) {
		h.must("cat >>/etc/ssl/certs/ca-certificates.crt <<'!'\n" + certificate + "!\nposthaste reload")
	}
	template := func(name string, from time.Time) x509.Certificate {
		return x509.Certificate{DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true, NotBefore: from, NotAfter: from.AddDate(1, 0, 0)}
	}
	serve := func(from time.Time) {
		site := testcert.Make(t, template("mta-sts.rspam.net", from), nil)
		s.rspamd.write("etc/site.pem", string(site.CertPEM()))
		s.rspamd.write("etc/site.key", string(site.KeyPEM()))
		s.rspamd.write("srv/policy.py", policySite)
		s.rspamd.must("if p=$(cat /run/policy.pid 2>/dev/null); then kill $p; while kill -0 $p 2>/dev/null; do sleep 0.1; done; fi")
		s.rspamd.daemon("policy", "sh -c 'echo $$ >/run/policy.pid; exec python3 /srv/policy.py'")
		s.rspamd.listens("443")
		trust(string(site.CertPEM()))
	}
	var records []string
	for _, r := range s.d.zones["rspam.net"].records {
		if !strings.Contains(r, " TLSA ") {
			records = append(records, r)
		}
	}
	s.d.set("rspam.net", append(records, "mta-sts A "+s.rspamd.address, `_mta-sts TXT "v=STSv1; id=1"`)...)
	h.must("postconf -e 'smtp_tls_policy_maps = mta-sts:$data_directory/mta-sts'")
	tomorrow := time.Now().Add(23 * time.Hour)
	serve(tomorrow)
	send(h, "ann@example.org", "joe@rspam.net", "without a policy")
	s.rspamd.mail("joe", "Subject: without a policy")
	h.logged("mta-sts: policy of rspam.net: ", early)
	serve(time.Now().Add(-time.Hour))
	waits := func(subject, why string) {
		t.Helper()
		send(h, "ann@example.org", "joe@rspam.net", subject)
		h.logged("certificate verification failed for mx.rspam.net["+s.rspamd.address+"]:25: x509: "+why, "to=<joe@rspam.net>, relay=mx.rspam.net["+s.rspamd.address+"]:25", "status=deferred (Server certificate not ")
		if m, _ := s.rspamd.find("joe", "Subject: "+subject); m != "" {
			t.Errorf("the policy is not heeded:\n%s", m)
		}
	}
	waits("under a policy", "certificate signed by unknown authority")
	s.flows("while a policy has some wait")
	trust(s.rspamd.read("etc/cert.pem"))
	h.must("posthaste flush")
	found(t, s.rspamd.mail("joe", "Subject: under a policy"), "dkim=pass", "spf=pass", "dmarc=pass")
	next := testcert.Make(t, template(s.rspamd.name, tomorrow), nil)
	show := func(pair string) { // Postfix's servers read it when they start
		s.rspamd.write("etc/pair.pem", pair)
		s.rspamd.must("postconf -e smtpd_tls_chain_files=/etc/pair.pem; postfix reload")
	}
	show(string(next.KeyPEM()) + string(next.CertPEM()))
	trust(string(next.CertPEM()))
	h.must(": >/var/log/mail.log")
	waits("under a policy, tomorrow", early)
	show(s.rspamd.read("etc/key.pem") + s.rspamd.read("etc/cert.pem"))
	h.must("posthaste flush")
	s.rspamd.mail("joe", "Subject: under a policy, tomorrow")
}
