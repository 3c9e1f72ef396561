package mtasts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/webclient"
)

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"version: STSv1\r\nmode: enforce\r\nmx: mail.a.test\r\nmx: *.B.test\r\nmax_age: 604800\r\n": "enforce [mail.a.test *.b.test] 168h0m0s",
		"version:STSv1\nmode:testing\nmode:enforce\nmx:a.test\nmax_age:1\nfuture: x\n":              "testing [a.test] 1s",
		"version: STSv1\nmode: none\nmax_age: 86400":                                                "none [] 24h0m0s",
		"version: STSv1\nmode: enforce\nmx: a.test\nmax_age: 99999999\n":                            "enforce [a.test] 8766h0m0s",
		"version: STSv2\nmode: none\nmax_age: 1":                                                    "error",
		"version: STSv1\nmode: enforce\nmax_age: 1":                                                 "error",
		"version: STSv1\nmode: sometimes\nmx: a.test\nmax_age: 1":                                   "error",
		"version: STSv1\nmode: enforce\nmx: a.test\nmax_age: soon":                                  "error",
		"version: STSv1\nmode: enforce\nmx: a.test\n":                                               "error",
		"version: STSv1\nmode: enforce\nmx: a test match=x\nmax_age: 1":                             "error",
		"version: STSv1\nmode: enforce\nmx: *\nmax_age: 1":                                          "error",
		"<html>": "error",
		"":       "error",
	} {
		p, err := ParsePolicy(text, resolver.Names{})
		got := "error"
		if err == nil {
			got = fmt.Sprintf("%s %v %v", p.Mode, p.MX, p.MaxAge)
		}
		if got != want {
			t.Errorf("%q: %s (%v), want %s", text, got, err, want)
		}
	}
}

func TestParseRecord(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		records []string
		want    string
	}{
		{[]string{"v=STSv1; id=20160831085700Z;"}, "20160831085700Z"},
		{[]string{"v=spf1 -all", "v=STSv1;id=a"}, "a"},
		{[]string{"v=STSv1 ; id=a; x=y"}, "a"},
		{[]string{"v=STSv1; id=a", "v=STSv1; id=b"}, ""},
		{[]string{"v=STSv1;"}, ""}, {[]string{"v=STSv1; id=a-b"}, ""}, {[]string{"v=STSv10; id=a"}, ""}, {nil, ""},
		{[]string{"v=STSv1; id=" + strings.Repeat("a", 33)}, ""},
	} {
		if id, ok := ParseRecord(tt.records); id != tt.want && ok || ok != (tt.want != "") {
			t.Errorf("%q: %q, %v", tt.records, id, ok)
		}
	}
}

// site is a web server that has a policy.
type site struct {
	*httptest.Server
	mu     sync.Mutex
	policy string
	kind   string
	status int
	hits   atomic.Int32
}

func newSite(t *testing.T) *site {
	s := &site{kind: "text/plain", status: 200, policy: "version: STSv1\nmode: enforce\nmx: mx.a.test\nmx: *.b.test\nmax_age: 86400\n"}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.Host != "mta-sts.a.test" && r.Host != "mta-sts.xn--bcher-kva.test" || r.URL.Path != "/.well-known/mta-sts.txt" {
			http.NotFound(w, r)
			return
		}
		if s.status == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.Header().Set("Content-Type", s.kind)
		w.WriteHeader(s.status)
		fmt.Fprint(w, s.policy)
	}))
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// client reaches the site by the name that it is asked for; its certificate is
// for another, unless trust says to look at what it is for.
func (s *site) client(r resolver.Resolver, verify bool) *http.Client {
	c := webclient.New(webclient.Options{Resolver: r})
	tr := c.Transport.(*http.Transport)
	tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
	}
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	tr.TLSClientConfig = &tls.Config{RootCAs: pool}
	if !verify {
		tr.TLSClientConfig.ServerName = "example.com" // httptest's certificate is for it
	}
	return c
}

func TestTable(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dns := fakezone.Must("_mta-sts.a.test. 0 TXT \"v=STSv1; id=1\"\n_mta-sts.xn--bcher-kva.test. 0 TXT \"v=STSv1; id=1\"").Resolver()
	t.Cleanup(dns.Close)
	dir := filepath.Join(t.TempDir(), "sts")
	tab := New(Options{Dir: dir, Resolver: dns, Client: s.client(dns, false)})
	const want = "secure servername=hostname policy_type=sts policy_domain=a.test match=mx.a.test match=.b.test mx_host_pattern=mx.a.test mx_host_pattern=*.b.test"
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if got, ok, err := tab.Lookup(t.Context(), "a.test"); got != want || !ok || err != nil {
				t.Errorf("%q %v %v", got, ok, err)
			}
		})
	}
	wg.Wait()
	if n := s.hits.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	idn := strings.Replace(want, "policy_domain=a.test", "policy_domain=xn--bcher-kva.test", 1)
	for _, key := range []string{"bücher.test", "BÜCHER.test", "xn--bcher-kva.test"} {
		if got, ok, err := tab.Lookup(t.Context(), key); got != idn || !ok || err != nil {
			t.Errorf("%q: %q, %v, %v", key, got, ok, err)
		}
	}
	if n := s.hits.Load(); n != 2 {
		t.Errorf("fetched %d times: one domain has two names", n)
	}
	for _, key := range []string{"other.test", "[a.test]", "a.test:25", "192.0.2.1", "../x"} {
		if got, ok, err := tab.Lookup(t.Context(), key); ok || err != nil {
			t.Errorf("%q has a policy: %q, %v", key, got, err)
		}
	}
	tab.Close()

	// Another process, which cannot fetch, and whose domain has taken its record away.
	s.status = 500
	none := fakezone.Must("").Resolver()
	t.Cleanup(none.Close)
	again := New(Options{Dir: dir, Resolver: none, Client: s.client(none, false)})
	defer again.Close()
	if got, ok, err := again.Lookup(t.Context(), "a.test"); got != want || !ok || err != nil {
		t.Errorf("after a restart: %q %v %v", got, ok, err)
	}
}

func TestNewPolicyAndFailure(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := t.TempDir()
	look := func(id string) string {
		dns := fakezone.Must("_mta-sts.a.test. 0 TXT \"v=STSv1; id=" + id + "\"").Resolver()
		defer dns.Close()
		tab := New(Options{Dir: dir, Resolver: dns, Client: s.client(dns, false)})
		defer tab.Close()
		p, err := tab.Policy(t.Context(), "A.test")
		if err != nil || p == nil {
			return fmt.Sprint(p, err)
		}
		return string(p.Mode)
	}
	if got := look("1"); got != "enforce" {
		t.Error(got)
	}
	s.policy = strings.Replace(s.policy, "enforce", "testing", 1)
	if got := look("1"); got != "enforce" {
		t.Errorf("the same identifier: %s", got)
	}
	s.kind = "text/html"
	if got := look("2"); got != "enforce" {
		t.Errorf("a new policy that cannot be had: %s", got)
	}
	s.kind = "text/plain; charset=utf-8"
	if got := look("2"); got != "testing" {
		t.Errorf("a new policy: %s", got)
	}
	s.status = http.StatusFound
	if got := look("3"); got != "testing" {
		t.Errorf("a redirection: %s", got)
	}
}

func TestFetchFails(t *testing.T) {
	t.Parallel()
	dns := fakezone.Must("_mta-sts.a.test. 0 TXT \"v=STSv1; id=1\"").Resolver()
	t.Cleanup(dns.Close)
	for name, change := range map[string]func(s *site, o *Options){
		"wrong name in the certificate": func(s *site, o *Options) { o.Client = s.client(dns, true) },
		"not found":                     func(s *site, o *Options) { s.status = 404 },
		"malformed":                     func(s *site, o *Options) { s.policy = "hello" },
		"too large":                     func(s *site, o *Options) { s.policy += strings.Repeat("x: y\n", 20000) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			var warnings atomic.Int32
			o := Options{Resolver: dns, Client: s.client(dns, false), Warn: func(string) { warnings.Add(1) }}
			change(s, &o)
			tab := New(o)
			defer tab.Close()
			for range 3 {
				if p, err := tab.Policy(t.Context(), "a.test"); p != nil || err != nil {
					t.Errorf("%v, %v", p, err)
				}
			}
			if n := warnings.Load(); n != 1 {
				t.Errorf("%d warnings: it was tried again at once", n)
			}
		})
	}
}

// dead is a site that takes connections and says nothing.
type dead struct{}

func (dead) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// However many sites are dead, no domain's mail waits for longer than one
// fetch may take, and a domain that had no turn has one at the next message.
func TestDeadSites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var zone strings.Builder
		for i := range 3 * maxFetches {
			fmt.Fprintf(&zone, "_mta-sts.d%d.test. 0 TXT \"v=STSv1; id=2\"\n", i)
		}
		dns := fakezone.Must(zone.String()).Resolver()
		defer dns.Close()
		var busy atomic.Int32
		tab := New(Options{Resolver: dns, Client: &http.Client{Transport: dead{}}, Warn: func(text string) {
			if strings.Contains(text, errBusy.Error()) {
				busy.Add(1)
			}
		}})
		defer tab.Close()
		last := fmt.Sprintf("d%d.test", 3*maxFetches-1)
		tab.known[last] = &entry{ID: "1", Policy: &Policy{Mode: Enforce}, Expires: time.Now().Add(time.Hour)}
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 3 * maxFetches {
			wg.Go(func() {
				p, err := tab.Policy(context.Background(), fmt.Sprintf("d%d.test", i))
				if known := i == 3*maxFetches-1; err != nil || (p != nil) != known {
					t.Errorf("d%d.test: %v, %v", i, p, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took > fetchTime {
			t.Errorf("the last domain waited for %v", took)
		}
		if n := busy.Load(); n != 2*maxFetches {
			t.Errorf("%d had no turn, want %d", n, 2*maxFetches)
		}
		again := 0
		for _, e := range tab.known {
			if time.Now().Before(e.retry) {
				again++
			}
		}
		if again != maxFetches {
			t.Errorf("%d are left alone for a while, want those %d that were asked", again, maxFetches)
		}
	})
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	e := &entry{Policy: &Policy{Mode: Enforce}, Expires: time.Unix(100, 0)}
	if e.inForce(time.Unix(99, 0)) == nil || e.inForce(time.Unix(100, 0)) != nil {
		t.Error("max_age is not what counts")
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add("version: STSv1\r\nmode: enforce\r\nmx: mail.a.test\r\nmax_age: 604800\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePolicy(text, resolver.Names{})
		if err != nil {
			return
		}
		for _, mx := range p.MX {
			if strings.ContainsAny(mx, " =,\t\r\n") {
				t.Errorf("%q could pass for an attribute", mx)
			}
		}
	})
}
