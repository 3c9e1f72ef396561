package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"net/smtp"
	"os"
	"strings"
	"testing"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"

	"posthaste/internal/resolver/fakezone"
)

// TestACME: a mail system without a certificate begins with a self-signed one, gets another from an
// authority, and uses it without a restart. posthaste cert shows it, and has it renewed, with the
// same key.
func TestACME(t *testing.T) {
	t.Parallel()
	os.Setenv("PEBBLE_VA_NOSLEEP", "1") // the authority waits for some seconds otherwise
	zone, err := fakezone.Must("mail.to.test. A 127.0.0.1\n").Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { zone.Close() })
	port, quiet, store := freePort(t), log.New(io.Discard, "", 0), db.NewMemoryStore()
	authority := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "of the test"}})
	web := wfe.New(quiet, store, va.New(quiet, port, port, true, zone.Addr, store), authority, nil, true, false, 0, 0)
	server := httptest.NewTLSServer(web.Handler())
	t.Cleanup(server.Close)

	s := newSystem(t, options{unstarted: true})
	s.write("roots.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	s.configure(`smtpd_tls_security_level = may
tls_acme = yes
tls_acme_agree = yes
tls_acme_domains = mail.to.test
tls_acme_directory = `+server.URL+wfe.DirectoryPath+`
tls_acme_CAfile = {dir}/roots.pem
`, fmt.Sprintf("127.0.0.1:%d inet n - n 60 20 acme\n", port))
	s.start()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.GetRootCert(0).PEM())
	leaf := func() *x509.Certificate {
		c, err := smtp.Dial(s.addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.StartTLS(&tls.Config{InsecureSkipVerify: true}); err != nil {
			t.Fatal(err)
		}
		state, _ := c.TLSConnectionState()
		above := x509.NewCertPool()
		for _, c := range state.PeerCertificates[1:] {
			above.AddCert(c)
		}
		if _, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: above, DNSName: "mail.to.test"}); err != nil {
			return nil
		}
		return state.PeerCertificates[0]
	}
	s.eventually("the authority's certificate serves", func() bool { return leaf() != nil })
	first := leaf()
	out, status := s.tool(nil, "cert", "list")
	if status != 0 || !strings.Contains(out, "_25._tcp.mail.to.test. IN TLSA 3 1 1 ") || !strings.Contains(out, "\n  renewal ") {
		t.Errorf("%d, %s", status, out)
	}
	if os.Geteuid() == 0 {
		// What root does there is the mail owner's.
		for _, name := range []string{"key.pem", "chain.pem", "state.json"} {
			info, err := os.Stat(s.path("data/acme/" + name))
			if err != nil || info.Mode() != 0o600 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
	}
	if out, status := s.tool(nil, "cert", "renew"); status != 0 || !strings.Contains(out, "the certificate for mail.to.test is by ") {
		t.Errorf("%d, %s", status, out)
	}
	s.eventually("the renewed certificate serves", func() bool {
		c := leaf()
		return c != nil && c.SerialNumber.Cmp(first.SerialNumber) != 0 && bytes.Equal(c.RawSubjectPublicKeyInfo, first.RawSubjectPublicKeyInfo)
	})
}
