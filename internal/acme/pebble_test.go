package acme

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/servercert"
)

// TestIssue: for each challenge, an authority issues a certificate, and renews it. The key stays, the
// servers get what was issued, and nothing of the challenge is left.
func TestIssue(t *testing.T) {
	t.Parallel()
	update := "tls_acme_challenge = dns-01\ntls_acme_update_server = {dns}\ntls_acme_update_key_file = {key}\n"
	command := "tls_acme_challenge = dns-01\ntls_acme_command = {dir}/hook {dir}/provider\n"
	for name, main := range map[string]string{
		"http-01":     "tls_acme_domains = mail.example.org, mx.example.org\ntls_acme_account = joe@example.org\n",
		"a customer":  "# customers only\ntls_acme_eab_key_file = {eab}\n",
		"tls-alpn-01": "tls_acme_challenge = tls-alpn-01\ntls_acme_key_type = rsa\n",
		"dns-01":      update,
		"a command":   command + "tls_acme_domains = mail.example.org, example.org, *.example.org\n",
		"wildcard":    update + "tls_acme_domains = example.org, *.example.org\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, main, false)
			keys := servercert.New(s.cfg, servercert.Options{Warn: func(text string) { t.Error(text) }})
			at := time.Now()
			use := func() *x509.Certificate {
				at = at.Add(servercert.Recheck)
				if err := keys.Refresh(at); err != nil {
					t.Fatal(err)
				}
				leaf, err := x509.ParseCertificate(keys.Certificates()[0].Certificate[0])
				if err != nil {
					t.Fatal(err)
				}
				return leaf
			}
			if !servercert.IsSelfSigned(use()) {
				t.Error("who vouches for the certificate before there is one?")
			}
			s.turn(t.Context())
			first := use()
			for _, n := range s.set.names {
				if !hasName(first, n) || servercert.IsSelfSigned(first) {
					t.Fatalf("%v by %v lacks %s; the log: %s", first.DNSNames, first.Issuer, n, s.lines.text())
				}
			}
			// The authority looks at all names at the same time: who waits for a renewal waits once.
			if s.shown.most != len(s.set.names) || s.shown.now != 0 {
				t.Errorf("%d challenges of %d are answered at a time, and %d stay", s.shown.most, len(s.set.names), s.shown.now)
			}
			if wait := s.turn(t.Context()); wait < time.Hour || s.state.Renew.IsZero() || s.state.Account == "" {
				t.Errorf("after %v the next attempt; state %+v", wait, s.state)
			}
			if n := s.dns.texts(); n != 0 {
				t.Errorf("%d records are left", n)
			}
			if name == "a command" {
				told(t, s)
			}
			// Somebody asks for a renewal, later.
			s.state.Attempt = s.state.Attempt.Add(-apart)
			if err := s.store.Request(); err != nil {
				t.Fatal(err)
			}
			s.turn(t.Context())
			second := use()
			if second.SerialNumber.Cmp(first.SerialNumber) == 0 || !servercert.SameKey(first.PublicKey, second.PublicKey) {
				t.Errorf("the renewal is the same, or for another key; the log: %s", s.lines.text())
			}
			if s.store.Requested() {
				t.Error("the request stays")
			}
			if (name == "dns-01" || name == "wildcard") && s.dns.seen < 2 {
				t.Errorf("%d updates", s.dns.seen)
			}
			if _, err := tls.LoadX509KeyPair(servercert.ChainFile(s.cfg), servercert.ChainFile(s.cfg)); err != nil {
				t.Error(err)
			}
		})
	}
}

// told says whether the command was told what it should have been: to publish each record, those of
// one name beside each other, and then to remove each.
func told(t *testing.T, s *site) {
	t.Helper()
	text, err := os.ReadFile(s.dns.provider + ".told")
	if err != nil {
		t.Fatal(err)
	}
	var there, gone []string
	names := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		verb, record, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case verb == "present" && len(gone) == 0:
			there = append(there, record)
			name, _, _ := strings.Cut(record, " ")
			names[name]++
		case verb == "cleanup" && slices.Contains(there, record) && !slices.Contains(gone, record):
			gone = append(gone, record)
		default:
			t.Errorf("%q comes too early or too late in\n%s", line, text)
		}
	}
	if len(there) != 3 || len(gone) != 3 || names["_acme-challenge.example.org"] != 2 || names["_acme-challenge.mail.example.org"] != 1 {
		t.Errorf("the command was told\n%s", text)
	}
}

// TestCommandLeaves: a record that the command does not remove is named, and the certificate is had all
// the same.
func TestCommandLeaves(t *testing.T) {
	t.Parallel()
	s := newSite(t, "tls_acme_challenge = dns-01\ntls_acme_command = {dir}/failing {dir}/provider\n", false)
	s.turn(t.Context())
	for _, want := range []string{"warning: the record stays: _acme-challenge.mail.example.org IN TXT ", "failing cleanup: exit status 3: not now", "info: the certificate for mail.example.org is by "} {
		if !strings.Contains(s.lines.text(), want) {
			t.Errorf("the log lacks %q: %s", want, s.lines.text())
		}
	}
}

// TestRefused: what the authority says is in the log and in the state, a self-signed certificate
// serves, and the next attempt is not soon, over a restart too.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		main   string
		closed bool
		spoil  func(*site)
		log    []string
	}{
		"a name it does not certify": {spoil: func(s *site) { s.pebble.AddBlockedDomain("mail.example.org") }, log: []string{"rejectedIdentifier: ", "mail.example.org"}},
		"a port that is closed":      {closed: true, log: []string{"mail.example.org: connection: ", "port 80 of that name must lead to"}},
		"a port for another challenge": {main: "tls_acme_challenge = tls-alpn-01\n", closed: true,
			log: []string{"port 443 of that name must lead to"}},
		"a key that the name server does not know": {main: "tls_acme_challenge = dns-01\ntls_acme_update_server = {dns}\n",
			log: []string{"publish _acme-challenge.mail.example.org: name server 127.0.0.1:", "REFUSED: it does not permit the update"}},
		"a customer that is not named": {main: "# customers only\n", log: []string{"externalAccountRequired: ", "set tls_acme_eab_key_file"}},
		"a command that fails": {main: "tls_acme_challenge = dns-01\ntls_acme_command = /bin/ls /nonexistent.posthaste\n",
			log: []string{"tls_acme_command: /bin/ls present: exit status 2: ", "nonexistent.posthaste"}},
		"a command that keeps one record of a name only": {main: "tls_acme_challenge = dns-01\ntls_acme_command = {dir}/forgetful {dir}/provider\ntls_acme_domains = mail.example.org, *.mail.example.org\n",
			log: []string{"unauthorized: Correct value not found", "tls_acme_command must leave other records of that name in place", "no certificate for mail.example.org *.mail.example.org: "}},
		"an authority whose certificate does not verify": {spoil: func(s *site) { s.manager = nil }, log: []string{"set tls_acme_CAfile"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, tt.main, tt.closed)
			if tt.spoil != nil {
				set := s.manager.set
				if tt.spoil(s); s.manager == nil {
					set.roots = x509.NewCertPool()
					s.manager = s.open(t, set)
				}
			}
			s.turn(t.Context())
			for _, want := range append(tt.log, "warning: no certificate for mail.example.org", "; next attempt at ", "a self-signed certificate serves meanwhile") {
				if !strings.Contains(s.lines.text(), want) {
					t.Errorf("the log lacks %q: %s", want, s.lines.text())
				}
			}
			chain, err := s.store.Chain()
			if err != nil || !servercert.IsSelfSigned(chain[0]) {
				t.Errorf("%v, %v", chain, err)
			}
			again := s.open(t, s.set)
			before := len(s.lines.list)
			if wait := again.turn(t.Context()); wait < firstBackOff-time.Minute || again.state.Failures != 1 || again.state.Problem == "" || len(s.lines.list) != before {
				t.Errorf("after a restart %v, %+v", wait, again.state)
			}
		})
	}
}

// TestLimited: an authority that wants to be left in peace is, and its clock is compared with ours.
func TestLimited(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(-25*time.Hour).UTC().Format(http.TimeFormat))
		w.Header().Set("Replay-Nonce", "bm9uY2U")
		switch r.URL.Path {
		case "/dir":
			w.Header().Set("Content-Type", "application/json")
			w.Write([]byte(`{"newNonce": "` + server.URL + `/nonce", "newAccount": "` + server.URL + `/account", "newOrder": "` + server.URL + `/order"}`))
		case "/account":
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "36000")
			w.WriteHeader(http.StatusTooManyRequests)
			w.Write([]byte(`{"type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many accounts", "instance": "https://ca.example/limits"}`))
		}
	})
	server.StartTLS()
	defer server.Close()
	s := newSite(t, "", false)
	set := s.manager.set
	set.directory, set.roots = server.URL+"/dir", x509.NewCertPool()
	set.roots.AddCert(server.Certificate())
	m := s.open(t, set)
	m.turn(t.Context())
	if wait := m.turn(t.Context()); wait < 9*time.Hour || wait > 11*time.Hour {
		t.Errorf("the next attempt is after %v", wait)
	}
	for _, want := range []string{"rateLimited: too many accounts (https://ca.example/limits)", "the clock of this machine is 25h0m"} {
		if !strings.Contains(s.lines.text(), want) {
			t.Errorf("the log lacks %q: %s", want, s.lines.text())
		}
	}
}
