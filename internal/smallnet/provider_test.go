package smallnet

import (
	"regexp"
	"slices"
	"strings"

	"posthaste/internal/testpeers"
	"posthaste/internal/testwait"
)

// providerPy is the provider of the DNS: who says "present" or "cleanup", a name and a text has the TXT
// record published or removed. It has one zone, and signs it anew each time.
const providerPy = `import http.server, subprocess
zone, texts, serial = "_acme-challenge.example.org", [], 1000
class Provider(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        global serial
        verb, name, text = self.rfile.read(int(self.headers["Content-Length"])).decode().split()
        known = name == zone and (verb == "present" or text in texts)
        if known:
            texts.append(text) if verb == "present" else texts.remove(text)
            serial += 1
            with open("/srv/dns/" + zone, "w") as f:
                f.write("$ORIGIN %s.\n$TTL 60\n@ SOA ns3.dns. hostmaster.dns. %d 3600 600 86400 1\n@ NS ns3.dns.\n" % (zone, serial) + "".join('@ TXT "%s"\n' % t for t in texts))
            subprocess.run("cd /srv/dns; ldns-signzone -o {zone}. -f {zone}.signed {zone} {key} && kill -HUP $(cat {pid})".replace("{zone}", zone), shell=True, check=True)
        with open("/var/log/provider", "a") as f:
            f.write("%s %s %s %d\n" % (verb, name, known, len(texts)))
        self.send_response(200 if known else 400)
        self.send_header("Content-Length", "0")
        self.end_headers()
http.server.HTTPServer(("{address}", 8053), Provider).serve_forever()
`

// provider: certificates by dns-01, with a command that speaks with the provider of the DNS, of a name and of
// all names below it: two records of one name. The mail system's user runs it.
func (s *story) provider() {
	t, h, d := s.t, s.ours, s.d
	curl := testpeers.Program(t, "curl")
	d.host.write("srv/provider.py", strings.NewReplacer("{address}", belowServer, "{key}", d.zones["_acme-challenge.example.org"].key, "{pid}", "/run/nsd."+belowServer).Replace(providerPy))
	d.host.daemon("provider", "python3 /srv/provider.py")
	testwait.Until(t, "the provider answers", func() bool {
		_, status := h.run("bash -c 'exec 3<>/dev/tcp/" + belowServer + "/8053' 2>/dev/null")
		return status == 0
	})
	h.write("etc/posthaste/acme-dns", "#!/bin/sh\nid -un >>/tmp/who\nexec "+curl+" -sS --fail --data-binary \"$2 $3 $4\" \"$1\"\n")
	record := regexp.MustCompile(`TLSA 3 1 1 \w+`).FindString(h.must("posthaste cert list"))
	h.must(`chmod 755 /etc/posthaste/acme-dns
sed -i 's/^80 .* acme$/acme unix - - n 60 20 acme/' /etc/posthaste/master.cf
grep '^acme unix' /etc/posthaste/master.cf
postconf -e 'tls_acme_domains = example.org, *.example.org' 'tls_acme_challenge = dns-01' 'tls_acme_command = /etc/posthaste/acme-dns http://` + belowServer + `:8053/'
posthaste reload`)
	testwait.For(t, func() string {
		out, _ := h.run("posthaste cert list")
		if first, _, _ := strings.Cut(out, "\n"); strings.Contains(first, "*.example.org") {
			return ""
		}
		return "the certificate is not for all names: " + out
	})
	calls := func() []string { return strings.Fields(strings.ReplaceAll(d.host.read("var/log/provider"), " ", "_")) }
	testwait.Until(t, "the records are removed", func() bool { return len(calls()) >= 4 })
	want := []string{"present__acme-challenge.example.org_True_1", "present__acme-challenge.example.org_True_2", "cleanup__acme-challenge.example.org_True_1", "cleanup__acme-challenge.example.org_True_0"}
	if got := calls(); !slices.Equal(got, want) {
		t.Errorf("the provider was told %q", got)
	}
	if who := h.read("tmp/who"); strings.Trim(strings.ReplaceAll(who, "posthaste", ""), "\n") != "" || who == "" {
		t.Errorf("the command was run by %q", who)
	}
	out := h.must("posthaste cert list")
	if again := regexp.MustCompile(`TLSA 3 1 1 \w+`).FindString(out); again != record || strings.Contains(out, "problem") {
		t.Errorf("the key was %s: %s", record, out)
	}
	if out, status := h.run("posthaste domain check -o '' example.org"); status != 0 {
		t.Errorf("with a certificate for all names: status %d\n%s", status, out)
	}
	s.flows("with a certificate for all names")
}
