package smallnet

import (
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/testcert"
	"posthaste/internal/testpeers"
	"posthaste/internal/testwait"
)

// The page says 192.0.2.1, which no server of the world may have. Here it is this.
const (
	pageAddress = "192.0.2.1"
	newAddress  = "11.22.33.11"
)

// TestStart types what docs/start.md shows, on a machine on which Debian has just been installed, and
// compares what is printed and logged with the page. The machine begins with the package; the rest of
// the world is there.
func TestStart(t *testing.T) {
	t.Parallel()
	n := newInternet(t)
	d := newTree(n, "example.org", "example.net", "ca.net", "letsencrypt.org", "gmail.com")
	a := newAuthority(n, d)
	a.known(n, d)
	friend := newPostfix(n, d, "example.net")
	d.publish("gmail.com", "@ MX 10 mx.example.net.") // whether port 25 is open is tried there
	p := &reader{t: t, d: d, host: n.debian("mail.example.org", newAddress)}
	p.host.write("etc/resolv.conf", "nameserver "+d.provider(n).address+"\n")
	a.trust(p.host)
	p.host.copyFrom(buildPackage(t), "root/posthaste_0.1_amd64.deb")
	page, err := os.ReadFile("../../docs/start.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range pageBlocks.FindAllStringSubmatch(string(page), -1) {
		switch title, kind, text := b[3], b[1], b[2]; {
		case title == "Publish":
			p.publish()
		case title == "Check":
			p.certified()
		case title == "Done":
			p.signed(friend)
		case title != "":
		case kind == "console":
			p.console(text)
		case kind == "log":
			if strings.Contains(text, "from=<joe@example.net>") {
				send(friend, "joe@example.net", "ann@example.org", "answer")
			}
			p.logged(text)
		case kind != "text":
			t.Errorf("start.md has a block of the kind %q", kind)
		}
	}
	if p.commands < 8 || p.lines < 3 {
		t.Errorf("%d commands and %d lines of the log only", p.commands, p.lines)
	}
	// What the page promises, as the other side sees it.
	hello := friend.mail("joe", "Subject: hello\n")
	found(t, hello, "spf=pass", "dkim=pass", "dmarc=pass")
	if !strings.Contains(hello, "It works.") || !strings.Contains(hello, "with ESMTPS") {
		t.Errorf("the mail that was sent is not whole, or came in clear text:\n%s", hello)
	}
	answer := p.host.mail("ann", "Subject: answer\n")
	found(t, answer, "spf=pass", "dkim=pass", "dmarc=pass")
	if !strings.Contains(answer, "with ESMTPS") {
		t.Errorf("mail comes in clear text:\n%s", answer)
	}
}

// buildPackage makes the Debian package, neither compressed nor position-independent.
func buildPackage(t *testing.T) (file string) {
	t.Helper()
	for _, p := range []string{"apt-get", "dpkg-deb", "dpkg-shlibdeps", "make"} {
		testpeers.Program(t, p)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "../../etc/debian/build.sh", dir)
	cmd.Env = append(os.Environ(), "BUILDMODE=default", "COMPRESS=none", "TRIMPATH=", "BIN="+filepath.Join(dir, "bin"))
	out, err := cmd.CombinedOutput()
	files, _ := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) != 1 {
		t.Fatalf("build the package: %v\n%s", err, out)
	}
	return files[0]
}

// redirect.py sends who asks for Let's Encrypt's directory to that of the authority.
const redirect = `import http.server, ssl
class To(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(301 if self.path == "/directory" else 404)
        self.send_header("Location", "{url}")
        self.end_headers()
    do_HEAD = do_GET
s = http.server.ThreadingHTTPServer(("0.0.0.0", 443), To)
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
c.load_cert_chain("/etc/cert.pem", "/etc/key.pem")
s.socket = c.wrap_socket(s.socket, server_side=True)
s.serve_forever()
`

// known has the authority answer where a new installation looks for one.
func (a *authority) known(n *internet, d *tree) {
	n.t.Helper()
	testpeers.Program(n.t, "python3")
	h := n.host("acme-v02.api.letsencrypt.org", "11.22.33.61")
	d.publish("letsencrypt.org", "acme-v02.api A "+h.address)
	pair := testcert.Make(n.t, x509.Certificate{DNSNames: []string{h.name}, IsCA: true, BasicConstraintsValid: true}, nil)
	h.write("etc/cert.pem", string(pair.CertPEM()))
	h.write("etc/key.pem", string(pair.KeyPEM()))
	h.write("srv/redirect.py", strings.ReplaceAll(redirect, "{url}", a.url))
	h.daemon("redirect", "python3 /srv/redirect.py")
	h.listens("443")
	a.pem += string(pair.CertPEM())
}

// A reader types what a page shows, on a machine.
type reader struct {
	t        *testing.T
	d        *tree
	host     *host
	commands int    // that were typed
	lines    int    // that were in the log
	added    string // what "posthaste domain add" printed
}

// pageBlocks are the blocks of a page, and its titles.
var pageBlocks = regexp.MustCompile("(?ms)^```(\\S*)\n(.*?)^```$|^##+ (.*?)$")

// console types the commands of a block, and compares what they print.
func (p *reader) console(text string) {
	p.t.Helper()
	for _, part := range regexp.MustCompile(`(?m)^[#$] .*\n(?:[^#$].*\n|\n)*`).FindAllString(text, -1) {
		command, want, _ := strings.Cut(part, "\n")
		user := "root"
		if command[0] == '$' {
			user = "ann"
		}
		p.commands++
		out, status := p.host.runAs(user, "cd\n"+command[2:])
		if strings.Contains(command, "domain add") {
			p.added = out
		}
		p.t.Logf("%s\n%s", command, out)
		if !p.pattern(want).MatchString(out) || status != 0 {
			p.t.Fatalf("start.md: %s\nexit status %d, expected\n%s\nprinted\n%s", command, status, want, out)
		}
	}
}

// logged waits for lines of the log.
func (p *reader) logged(text string) {
	p.t.Helper()
	for line := range strings.Lines(text) {
		p.lines++
		testwait.For(p.t, func() string {
			log := p.host.journal()
			if p.logLine(line).MatchString(log) {
				return ""
			}
			return "start.md: the log lacks\n" + line + "of\n" + log
		})
	}
}

// varies is what is different each time: the rest of a line, a selector, a number of a process, a
// queue ID, delays, a size or a user's number.
var varies = regexp.MustCompile(`\.\.\.|\b20\d{4}a\b|\[\d+\]|\b4j\w{11,17}\b|\b(?:delays?|size|uid)=[\d./]+`)

// quote is the expression for a line of the page.
func (p *reader) quote(line string) string {
	line = strings.ReplaceAll(strings.ReplaceAll(line, pageAddress, newAddress), "1.2.0.192.in-addr", last(newAddress)+".33.22.11.in-addr")
	var e strings.Builder
	at := 0
	for _, m := range varies.FindAllStringIndex(line, -1) {
		e.WriteString(regexp.QuoteMeta(line[at:m[0]]))
		at = m[1]
		switch word := line[m[0]:m[1]]; {
		case word == "...":
			e.WriteString(".*")
		case word[0] == '[':
			e.WriteString(`\[\d+\]`)
		case strings.HasPrefix(word, "20"):
			e.WriteString(`20\d{4}a`)
		case strings.HasPrefix(word, "4j"):
			e.WriteString(`\w+`)
		default:
			name, _, _ := strings.Cut(word, "=")
			e.WriteString(name + `=[\d./]+`)
		}
	}
	return e.String() + regexp.QuoteMeta(line[at:])
}

// pattern is the expression for all that a command prints.
func (p *reader) pattern(text string) *regexp.Regexp {
	var e strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \n"); line == "..." {
			e.WriteString(`(?:.*\n)*?`)
			continue
		}
		e.WriteString(p.quote(line) + ` *\n`)
	}
	return regexp.MustCompile(`^` + e.String() + `\n*$`)
}

// logLine is the expression for a line of the log.
func (p *reader) logLine(line string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)` + p.quote(strings.TrimSpace(line)) + `$`)
}

// publish enters what was printed at the provider of the DNS, and at that of the address.
func (p *reader) publish() {
	p.t.Helper()
	records := fragment(p.added)
	if len(records) < 6 {
		p.t.Fatalf("there are %d records in\n%s", len(records), p.added)
	}
	p.d.publish("example.org", records...)
	p.d.publish(reverse, last(newAddress)+" PTR mail.example.org.")
}

// certified waits for the certificate, which takes seconds.
func (p *reader) certified() {
	p.t.Helper()
	testwait.For(p.t, func() string {
		out, _ := p.host.run("posthaste cert list")
		if strings.Contains(out, "Pebble") {
			return ""
		}
		return out
	})
}

// signed waits until mail is signed: the table of keys is looked at again within a second of its change.
func (p *reader) signed(friend *host) {
	p.t.Helper()
	probes := 0
	testwait.Until(p.t, "mail is signed", func() bool {
		probes++
		subject := fmt.Sprintf("probe %d", probes)
		send(p.host, "ann@example.org", "ann@example.net", subject)
		return strings.Contains(friend.mail("ann", "Subject: "+subject+"\n"), "\nDKIM-Signature: ")
	})
}

// copyFrom copies a file of this machine to the host.
func (h *host) copyFrom(from, to string) {
	h.t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(h.path(to), b, 0o644)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}
