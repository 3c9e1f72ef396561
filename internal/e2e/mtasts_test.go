package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A policySite has the policies of mail domains on the port where everybody looks
// for them.
type policySite struct {
	addr string // without port

	mu       sync.Mutex
	policies map[string]string // by mail domain
	asked    map[string]int
}

// newPolicySite starts a web server whose certificate for a domain cert makes.
func newPolicySite(t *testing.T, cert func(name string) tls.Certificate) *policySite {
	t.Helper()
	p := &policySite{policies: map[string]string{}, asked: map[string]int{}}
	var l net.Listener
	for i := 1; l == nil; i++ {
		p.addr = fmt.Sprintf("127.7.80.%d", i)
		var err error
		switch l, err = net.Listen("tcp", p.addr+":443"); {
		case errors.Is(err, syscall.EACCES):
			t.Skip("SKIPPED: policies are looked for on port 443, which only root may serve here")
		case err != nil && i == 250:
			t.Fatal(err)
		}
	}
	server := &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0)}
	conf := &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c := cert(hello.ServerName)
		return &c, nil
	}}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(tls.NewListener(l, conf)) })
	t.Cleanup(func() { server.Close(); wg.Wait() })
	return p
}

func (p *policySite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	domain := strings.TrimPrefix(r.Host, "mta-sts.")
	p.asked[domain]++
	policy, ok := p.policies[domain]
	if !ok || r.URL.Path != "/.well-known/mta-sts.txt" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	io.WriteString(w, policy)
}

// set changes a domain's policy, as a line "mode mx ...".
func (p *policySite) set(domain, policy string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := strings.Fields(policy)
	text := "version: STSv1\r\nmode: " + f[0] + "\r\nmax_age: 86400\r\n"
	for _, mx := range f[1:] {
		text += "mx: " + mx + "\r\n"
	}
	p.policies[domain] = text
}

func (p *policySite) asks(domain string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[domain]
}

// TestMTASTS sends mail to domains with policies, which are had from a web server
// by way of a resolver that validates.
func TestMTASTS(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	web := newPolicySite(t, func(name string) tls.Certificate {
		switch {
		case strings.Contains(name, "stranger"):
			return stranger.server(name)
		case strings.Contains(name, "misnamed"):
			return ca.server("www.sts.test")
		}
		return ca.server(name)
	})
	hosts := []string{"good", "bad", "notls", "pinned", "mispinned"}
	addrs := make([]string, len(hosts))
	for i := range hosts {
		addrs[i] = fmt.Sprintf("127.7.81.%d", i+1)
	}
	listeners := listenSame(t, addrs)
	port := listeners[0].Addr().(*net.TCPAddr).Port
	sinks := map[string]*sink{}
	signed := ""
	for i, h := range hosts {
		k := &sink{l: listeners[i]}
		c := ca.server("mx-" + h + ".sts.test")
		switch h {
		case "bad":
			c = ca.server("nobody.test")
		case "pinned":
			c = stranger.server("nobody.test")
			signed += fmt.Sprintf("_%d._tcp.mx-pinned TLSA 3 1 1 %s\n", port, digest(c.Leaf.RawSubjectPublicKeyInfo))
		case "mispinned":
			signed += fmt.Sprintf("_%d._tcp.mx-mispinned TLSA 3 1 1 %s\n", port, digest([]byte("another key")))
		}
		if h != "notls" {
			k.tls = &tls.Config{Certificates: []tls.Certificate{c}}
		}
		sinks[h] = startSink(t, k)
		signed += fmt.Sprintf("mx-%s A %s\n", h, addrs[i])
	}
	const (
		verified  = "2.0.0 sent verified"
		encrypted = "2.0.0 sent encrypted"
		untrusted = "4.7.5 deferred Server certificate not verified"
	)
	table := []struct{ domain, mx, policy, want string }{
		{"enforce", "good", "enforce mx-good.sts.test", verified},
		{"wildcard", "good", "enforce mx.else.test *.sts.test", verified},
		{"name", "bad", "enforce mx-bad.sts.test", untrusted},
		{"unlisted", "good", "enforce mx-else.sts.test", "4.7.5 deferred MX host mx-good.sts.test does not match the MTA-STS policy of unlisted.sts.test"},
		{"next", "bad good", "enforce mx-good.sts.test", verified},
		{"notls", "notls", "enforce mx-notls.sts.test", "4.7.4 deferred TLS is required, but was not offered by host"},
		{"testing", "bad", "testing mx-else.sts.test", encrypted},
		{"testingclear", "notls", "testing mx-notls.sts.test", "2.0.0 sent clear"},
		{"none", "bad", "none", encrypted},
		{"absent", "bad", "", encrypted},
		{"misnamed", "bad", "enforce mx-else.sts.test", encrypted},
		{"stranger", "bad", "enforce mx-else.sts.test", encrypted},
		{"unsaid", "bad", "enforce mx-else.sts.test", encrypted},
		{"pinned", "pinned", "enforce mx-else.sts.test", verified},
		{"mispinned", "mispinned", "enforce mx-mispinned.sts.test", untrusted},
	}
	for _, tt := range table {
		for i, mx := range strings.Fields(tt.mx) {
			signed += fmt.Sprintf("%s MX %d mx-%s\n", tt.domain, 10+i, mx)
		}
		signed += fmt.Sprintf("mta-sts.%s A %s\n", tt.domain, web.addr)
		if tt.domain != "unsaid" {
			signed += fmt.Sprintf("_mta-sts.%s TXT \"v=STSv1; id=1;\"\n", tt.domain)
		}
		if tt.policy != "" {
			web.set(tt.domain+".sts.test", tt.policy)
		}
	}
	changing := func(id int) zoneFile {
		return zoneFile{name: "changing.test", version: id, records: fmt.Sprintf("@ MX 10 mx-good.sts.test.\nmta-sts A %s\n_mta-sts 0 TXT \"v=STSv1; id=%d\"\n", web.addr, id)}
	}
	web.set("changing.test", "enforce mx-good.sts.test")
	d := newSignedDNS(t, []zoneFile{{name: "sts.test", records: signed, signed: true}, changing(1)})
	s := newSystem(t, options{unstarted: true})
	s.own(s.path("data"))
	s.write("etc/ca.pem", ca.pem())
	s.configure(fmt.Sprintf("resolver_address = %s\nresolver_trust_ad = yes\ndnssec_probe = ns:sts.test\nsmtp_dns_support_level = dnssec\nsmtp_tls_security_level = dane\n"+
		"smtp_tcp_port = %d\nsmtp_tls_loglevel = 1\nsmtp_https_networks = 127.7.80.0/24\nsmtp_tls_policy_maps = mta-sts:$data_directory/mta-sts\n"+
		"import_environment = TZ SSL_CERT_FILE={dir}/etc/ca.pem\nminimal_backoff_time = 1h\ndefault_destination_concurrency_failed_cohort_limit = 1000\n", d.resolver, port), "")
	s.start()
	count := 0
	outcome := func(domain string) string {
		count++
		rcpt := fmt.Sprintf("n%d@%s", count, domain)
		s.mustSend("from@sts.test", []string{rcpt}, "Subject: x\n\nx\n")
		// That a CA of ours vouches for a certificate counts only where that was asked.
		return strings.Replace(s.became(sinks, rcpt), " sent trusted", " sent encrypted", 1)
	}
	for _, tt := range table {
		if got := outcome(tt.domain + ".sts.test"); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s, want %s", tt.domain, got, tt.want)
		}
	}
	s.waitLog(`warning: mta-sts: policy of absent\.sts\.test: .*status 404`)
	s.waitLog(`warning: mta-sts: policy of misnamed\.sts\.test: .*certificate is valid for www\.sts\.test`)
	s.waitLog(`warning: mta-sts: policy of stranger\.sts\.test: .*unknown authority`)
	if n := web.asks("unsaid.sts.test"); n != 0 {
		t.Errorf("the policy of a domain that does not say that it has one was fetched %d times", n)
	}

	// A policy is used until the domain says that it has changed, by the next process too.
	if got := outcome("changing.test"); got != verified {
		t.Errorf("the first policy: %s", got)
	}
	web.set("changing.test", "enforce mx-else.sts.test")
	if got := outcome("changing.test"); got != verified {
		t.Errorf("while nothing is said of another: %s", got)
	}
	s.stop()
	s.start()
	if got := outcome("changing.test"); got != verified || web.asks("changing.test") != 1 {
		t.Errorf("after a restart: %s, the policy was fetched %d times", got, web.asks("changing.test"))
	}
	d.change(changing(2))
	for limit := time.Now().Add(patience); ; {
		got := outcome("changing.test")
		if regexp.MustCompile(`^4\.7\.5 deferred MX host mx-good\.sts\.test does not match`).MatchString(got) {
			break
		}
		if got != verified || time.Now().After(limit) {
			t.Fatalf("the new policy: %s", got)
		}
	}
}
