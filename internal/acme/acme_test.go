package acme

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	"posthaste/internal/config"
	"posthaste/internal/servercert"
)

// A pretender is an authority in virtual time.
type pretender struct {
	life   time.Duration
	again  time.Duration // after a refusal
	advice suggestion
	root   crypto.Signer
	hang   bool

	mu     sync.Mutex // of what changes, and is looked at, while a manager runs
	refuse error
	times  []time.Time // of attempts
}

// attempts are those so far.
func (p *pretender) attempts() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.times)
}

// permit ends the refusals.
func (p *pretender) permit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = nil
}

// attempt notes one, and says how it ends.
func (p *pretender) attempt() (n int, refusal error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times = append(p.times, time.Now())
	return len(p.times), p.refuse
}

func (p *pretender) obtain(ctx context.Context, _, key crypto.Signer, _ *x509.Certificate) ([]byte, string, error) {
	n, refusal := p.attempt()
	if p.hang {
		<-ctx.Done()
		return nil, "", ctx.Err()
	}
	if refusal != nil {
		return nil, "", refusal
	}
	if p.root == nil {
		p.root, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(int64(n)), DNSNames: []string{"mail.example.org"}, NotBefore: time.Now(), NotAfter: time.Now().Add(p.life)}
	above := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the pretender"}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, above, key.Public(), p.root)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), "https://ca.example/1", err
}

func (p *pretender) suggest(context.Context, *x509.Certificate) (suggestion, error) {
	return p.advice, nil
}
func (p *pretender) advise(error) string { return "" }
func (p *pretender) said() (time.Time, time.Duration) {
	return time.Now().Add(p.again), 0
}

// begin runs a manager as the service does, until the context ends.
func begin(t *testing.T, cfg *config.Config, p *pretender, l *lines, look time.Duration) (stop func()) {
	t.Helper()
	set, err := read(cfg)
	if err != nil {
		t.Fatal(err)
	}
	store, err := servercert.OpenStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{set: set, store: store, ca: p, log: l, spread: func() float64 { return 0.5 }, look: look}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.run(ctx) }()
	synctest.Wait()
	return func() { cancel(); <-done; store.Close() }
}

const basic = "tls_acme = yes\ntls_acme_agree = yes\nmyhostname = mail.example.org\ntls_acme_directory = https://ca.example/dir\n"

// TestRenewals: a certificate is renewed when two thirds of its life have passed, or when the
// authority says, and not at another time, for a year.
func TestRenewals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, l := load(t, basic+"data_directory = "+t.TempDir()+"\n"), new(lines)
		p := &pretender{life: 45 * 24 * time.Hour}
		stop := begin(t, cfg, p, l, time.Hour)
		time.Sleep(365 * 24 * time.Hour)
		synctest.Wait()
		stop()
		if n := len(p.attempts()); n != 13 {
			t.Errorf("%d certificates in a year", n)
		}
		for i := 1; i < len(p.attempts()); i++ {
			if d := p.attempts()[i].Sub(p.attempts()[i-1]); d < 30*24*time.Hour-time.Minute || d > 30*24*time.Hour+time.Minute {
				t.Errorf("renewed after %v", d)
			}
		}
		// It is to be revoked: the authority wants it renewed tomorrow.
		start := time.Now().Add(24 * time.Hour)
		p.advice = suggestion{start: start, end: start.Add(2 * time.Hour), why: "https://ca.example/why"}
		p.times = nil
		stop = begin(t, cfg, p, l, time.Hour)
		time.Sleep(48 * time.Hour)
		synctest.Wait()
		stop()
		if len(p.attempts()) != 1 || p.attempts()[0].Sub(start.Add(time.Hour)).Abs() > time.Minute {
			t.Errorf("renewed at %v, wanted at %v; %s", p.attempts(), start.Add(time.Hour), l.text())
		}
		if !strings.Contains(l.text(), ", see https://ca.example/why") {
			t.Error("the log does not say why")
		}
	})
}

// TestNoHammering: failures are followed by longer and longer pauses, and restarts do not shorten
// them; nor do attempts that a restart interrupts. What somebody asks for is tried at once.
func TestNoHammering(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, l := load(t, basic+"data_directory = "+t.TempDir()+"\n"), new(lines)
		p := &pretender{life: time.Hour, refuse: errors.New("not today")}
		for range 3 * 24 * 6 { // for three days, a restart each ten minutes
			stop := begin(t, cfg, p, l, lookAgain)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			stop()
		}
		if n := len(p.attempts()); n < 10 || n > 12 {
			t.Errorf("%d attempts in three days", n)
		}
		for i := 1; i < len(p.attempts()); i++ {
			d, least := p.attempts()[i].Sub(p.attempts()[i-1]), min(firstBackOff<<(i-1), lastBackOff)
			if i < 10 && d < least || i >= 10 && d < lastBackOff {
				t.Errorf("attempt %d after %v", i, d)
			}
		}
		p.again, p.times = 100*time.Hour, nil
		store, err := servercert.OpenStore(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		stop := begin(t, cfg, p, l, lookAgain)
		if err := store.Request(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookAgain)
		synctest.Wait()
		if len(p.attempts()) != 1 {
			t.Errorf("%d attempts on request", len(p.attempts()))
		}
		time.Sleep(99 * time.Hour)
		synctest.Wait()
		if stop(); len(p.attempts()) != 1 {
			t.Errorf("%d attempts before the authority permits one", len(p.attempts()))
		}
		p.hang, p.times = true, nil
		time.Sleep(2 * time.Hour)
		for range 12 { // an hour of restarts
			stop := begin(t, cfg, p, l, lookAgain)
			time.Sleep(time.Second)
			stop()
			time.Sleep(interrupted - time.Second)
		}
		if n := len(p.attempts()); n > 12 {
			t.Errorf("%d interrupted attempts in an hour", n)
		}
		begin(t, cfg, p, l, lookAgain)()
		before := len(p.attempts())
		begin(t, cfg, p, l, lookAgain)()
		if len(p.attempts()) != before {
			t.Error("a restart repeats an attempt at once")
		}
	})
}

// TestAnotherAuthority: what one authority refuses does not keep another one from being asked at once,
// and whoever goes back finds the waits of the former one as they were.
func TestAnotherAuthority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, l := t.TempDir(), new(lines)
		at := func(url string) *config.Config {
			return load(t, basic+"data_directory = "+dir+"\ntls_acme_directory = "+url+"\n")
		}
		first, second := &pretender{life: time.Hour, refuse: errors.New("not today")}, &pretender{life: 90 * 24 * time.Hour, refuse: errors.New("not here")}
		for range 3 { // 15 minutes, 30, and then an hour
			begin(t, at("https://first.example/dir"), first, l, lookAgain)()
			time.Sleep(firstBackOff << len(first.attempts()) * 11 / 10)
		}
		stop := begin(t, at("https://first.example/dir"), first, l, lookAgain)
		asked := len(first.attempts())
		time.Sleep(lookAgain)
		stop()
		stop = begin(t, at("https://second.example/dir"), second, l, lookAgain)
		if len(second.attempts()) != 1 {
			t.Fatalf("the second authority is asked %d times: %s", len(second.attempts()), l.text())
		}
		time.Sleep(2 * time.Minute)
		stop()
		stop = begin(t, at("https://first.example/dir"), first, l, lookAgain)
		time.Sleep(time.Minute)
		if stop(); len(first.attempts()) != asked {
			t.Errorf("the first authority is asked again after %v", first.attempts()[asked].Sub(first.attempts()[asked-1]))
		}
		stop = begin(t, at("https://second.example/dir"), second, l, lookAgain)
		time.Sleep(time.Minute)
		if len(second.attempts()) != 1 {
			t.Errorf("the second authority is asked again after %v", second.attempts()[1].Sub(second.attempts()[0]))
		}
		second.permit()
		time.Sleep(firstBackOff)
		if stop(); len(second.attempts()) != 2 {
			t.Errorf("the second authority is asked %d times", len(second.attempts()))
		}
		// Its refusals are over. Those of the first one are not.
		if !strings.Contains(l.text(), "the certificate for mail.example.org is by ") {
			t.Errorf("the log: %s", l.text())
		}
		stop = begin(t, at("https://first.example/dir"), first, l, lookAgain)
		time.Sleep(lookAgain)
		if stop(); len(first.attempts()) != asked {
			t.Error("the success of another authority ends the wait for the first one")
		}
	})
}

// TestKeyUnreadable: without the private key nothing is asked for, and the key is not replaced. It is
// said once.
func TestKeyUnreadable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, l := load(t, basic+"data_directory = "+t.TempDir()+"\n"), new(lines)
		p := &pretender{life: 9 * 24 * time.Hour}
		begin(t, cfg, p, l, lookAgain)()
		key := filepath.Join(servercert.Directory(cfg), "key.pem")
		good, err := os.ReadFile(key)
		if err != nil || len(p.attempts()) != 1 {
			t.Fatal(err, p.attempts())
		}
		if err := os.WriteFile(key, []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
		stop := begin(t, cfg, p, l, lookAgain)
		time.Sleep(7 * 24 * time.Hour)
		synctest.Wait()
		if text, err := os.ReadFile(key); string(text) != "rubbish" || err != nil || len(p.attempts()) != 1 {
			t.Errorf("%q, %v, %d attempts", text, err, len(p.attempts()))
		}
		if n := strings.Count(l.text(), "key.pem: expected a private key in PEM form"); n != 1 {
			t.Errorf("said %d times: %s", n, l.text())
		}
		if err := os.WriteFile(key, good, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(mendLook)
		synctest.Wait()
		if stop(); len(p.attempts()) != 2 {
			t.Errorf("%d attempts when the key is back", len(p.attempts()))
		}
	})
}

// TestSettings: what cannot work is said, before anything is asked for.
func TestSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "bad")
	if err := os.WriteFile(file, []byte("key x {};"), 0o600); err != nil {
		t.Fatal(err)
	}
	dns := "tls_acme_challenge = dns-01\n"
	for main, want := range map[string]string{
		"":                      "",
		"tls_acme = no\n":       "tls_acme = no",
		"tls_acme_agree = no\n": "set tls_acme_agree = yes",
		"tls_acme_directory = http://ca.example/\n":              "begins with https://",
		"tls_acme_domains =\n":                                   "has no name",
		"tls_acme_domains = mail\n":                              "expected a host name with its domain",
		"tls_acme_domains = 192.0.2.1\n":                         "expected a host name with its domain",
		"tls_acme_domains = *.example.org\n":                     "a wildcard needs tls_acme_challenge = dns-01",
		"tls_acme_domains = Mail.Example.ORG., bücher.example\n": "",
		"tls_acme_CAfile = /nonexistent\n":                       "tls_acme_CAfile: ",
		"tls_acme_CAfile = " + file + "\n":                       "expected certificates in PEM form",
		"tls_acme_eab_key_file = /nonexistent\n":                 "tls_acme_eab_key_file: ",
		"tls_acme_eab_key_file = " + file + "\n":                 "expected an identifier and a key",
		dns:                                                      "set tls_acme_update_server or tls_acme_command",
		dns + "tls_acme_command = /bin/true\n":                   "",
		dns + "tls_acme_update_server = 192.0.2.1\n":             "",
		dns + "tls_acme_update_server = ns.example.org\ntls_acme_update_key_file = " + file + "\n": "key x: expected algorithm and secret",
		dns + "tls_acme_update_server = ns.example.org\ntls_acme_update_key_file = /nonexistent\n": "tls_acme_update_key_file: /nonexistent: ",
	} {
		s, err := read(load(t, basic+main))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", main, err)
		}
		if err == nil && strings.Contains(main, "bücher") && strings.Join(s.names, " ") != "mail.example.org xn--bcher-kva.example" {
			t.Errorf("%q", s.names)
		}
		if err == nil && s.update != nil && s.update.server != "192.0.2.1:53" {
			t.Errorf("%q", s.update.server)
		}
	}
}

func TestKeyFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		tsig: "posthaste. hmac-sha256.",
		"# a comment\nkey Other.Name. {\n\talgorithm \"HMAC-SHA512\";\n\tsecret \"YQ==\";\n};\nkey \"second\" { algorithm hmac-sha1; secret \"eA==\"; };\n": "other.name. hmac-sha512.",
		"":                            "",
		"secret":                      "",
		"key a { secret \"YQ==\"; };": "",
		"key a { algorithm hmac-md5; secret \"YQ==\"; };": "",
	} {
		k, err := parseKey(text)
		if (err != nil) != (want == "") || err == nil && k.name+" "+k.algorithm != want {
			t.Errorf("%q: %v, %v", text, k, err)
		}
	}
}

// TestStrangers: who connects to the port learns nothing but the answers to present challenges, and
// is not waited for.
func TestStrangers(t *testing.T) {
	t.Parallel()
	r := newResponder()
	undo, err := r.present(t.Context(), acme.Challenge{Type: http01, Token: "tok_en", KeyAuthorization: "tok_en.thumb"})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(request string) string {
		here, there := net.Pipe()
		done := make(chan struct{})
		go func() { defer close(done); r.http(t.Context(), there); there.Close() }()
		go func() { io.WriteString(here, request) }()
		answer, _ := io.ReadAll(here)
		here.Close()
		<-done
		line, _, _ := strings.Cut(string(answer), "\r\n")
		_, body, _ := strings.Cut(string(answer), "\r\n\r\n")
		return line + " " + body
	}
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: mail.example.org\r\n\r\n" }
	good := "HTTP/1.1 200 OK tok_en.thumb"
	for request, want := range map[string]string{
		get(wellKnown + "tok_en"):         good,
		get(wellKnown + "tok_en/../../x"): "HTTP/1.1 404 ",
		get(wellKnown):                    "HTTP/1.1 404 ",
		get("/"):                          "HTTP/1.1 404 ",
		strings.Replace(get(wellKnown+"tok_en"), "GET", "POST", 1): "HTTP/1.1 404 ",
		get("/" + strings.Repeat("x", 2*maxRequest)):               " ",
	} {
		if got := ask(request); !strings.HasPrefix(got, want) {
			t.Errorf("%.60q: %q", request, got)
		}
	}
	if undo(t.Context()); strings.HasPrefix(ask(get(wellKnown+"tok_en")), good) {
		t.Error("the answer stays")
	}
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		began := time.Now()
		r.http(t.Context(), there) // nobody says anything
		r.alpn(t.Context(), there)
		if d := time.Since(began); d > 2*clientTime {
			t.Errorf("waited %v", d)
		}
	})
}

// TestHandshakes: port 443 has no certificate but that of the challenge.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	r := newResponder()
	undo, err := r.present(t.Context(), acme.Challenge{Type: alpn01, Token: "t", KeyAuthorization: "t.x", Identifier: acme.Identifier{Type: "dns", Value: "mail.example.org"}})
	if err != nil {
		t.Fatal(err)
	}
	shake := func(name string) error {
		here, there := net.Pipe()
		defer here.Close()
		done := make(chan struct{})
		go func() { defer close(done); r.alpn(t.Context(), there); there.Close() }()
		err := tls.Client(here, &tls.Config{ServerName: name, NextProtos: []string{acmez.ACMETLS1Protocol}, InsecureSkipVerify: true}).Handshake()
		here.Close()
		<-done
		return err
	}
	if err := shake("MAIL.example.org"); err != nil {
		t.Error(err)
	}
	if shake("example.org") == nil {
		t.Error("there is a certificate for another name")
	}
	if undo(t.Context()); shake("mail.example.org") == nil {
		t.Error("the certificate stays")
	}
}

// TestVerify: a chain that is not for our key is not used.
func TestVerify(t *testing.T) {
	t.Parallel()
	ours, _ := servercert.NewKey("ecdsa")
	other, _ := servercert.NewKey("rsa")
	text, err := servercert.SelfSigned(ours, []string{"x.example"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, chain := pem.Decode(text)
	for _, tt := range []struct {
		chain []byte
		key   crypto.Signer
		name  string
		good  bool
	}{{chain, ours, "x.example", true}, {chain, other, "x.example", false}, {chain, ours, "y.example", false}, {text, ours, "x.example", false}, {nil, ours, "x.example", false},
		{append(chain, make([]byte, maxChain)...), ours, "x.example", false}} {
		c := &client{set: &settings{names: []string{tt.name}}}
		if err := c.verify(tt.chain, tt.key); (err == nil) != tt.good {
			t.Errorf("%d octets: %v", len(tt.chain), err)
		}
	}
}

// FuzzKeyFile: any text is a key that can be used, or an error.
func FuzzKeyFile(f *testing.F) {
	f.Add(tsig)
	f.Add(`key a { algorithm hmac-sha1; secret "eA=="; };`)
	f.Fuzz(func(t *testing.T, text string) {
		if k, err := parseKey(text); err == nil && (k.name == "" || k.secret == "" || !strings.HasSuffix(k.name, ".")) {
			t.Errorf("%+v", k)
		}
	})
}

// A zoneFile is a publisher that fails, perhaps after it has published.
type zoneFile struct {
	records map[string]bool
	fails   error
}

func (z *zoneFile) add(_ context.Context, name, text string) error {
	z.records[name+" "+text] = true
	return z.fails
}

func (z *zoneFile) remove(ctx context.Context, name, text string) error {
	delete(z.records, name+" "+text)
	return ctx.Err()
}

// TestFailedPublication: of a command that hangs when it has published a record, the record does not stay, although the
// attempt is over.
func TestFailedPublication(t *testing.T) {
	t.Parallel()
	z := &zoneFile{map[string]bool{}, errors.New("it took longer than 2m")}
	d := &dnsSolver{publisher: z, warn: func(format string, args ...any) { t.Errorf(format, args...) }}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	undo, err := d.present(ctx, acme.Challenge{Identifier: acme.Identifier{Type: "dns", Value: "*.example.org"}, KeyAuthorization: "x"})
	if !errors.Is(err, z.fails) || undo != nil || len(z.records) > 0 {
		t.Errorf("%v, %v", err, z.records)
	}
}
