package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"posthaste/internal/resolver"
	"posthaste/internal/testcert"
	"posthaste/internal/tlspolicy/mtasts"
)

// The policyhost service of a real mail system, with a certificate of its own for the names that
// tls_server_sni_maps has: senders and mail programs get what main.cf says, over TLS and as another web
// server would ask. A client that has no such name gets the certificate of the SMTP server.
func TestPolicyHost(t *testing.T) {
	t.Parallel()
	secure, plain := freePort(t), freePort(t)
	s := newSystem(t, options{unstarted: true, main: `smtpd_tls_chain_files = {dir}/server.pem
tls_server_sni_maps = texthash:{dir}/sni
policyhost_domains = here.test
policyhost_sts_mode = enforce
policyhost_servers = imaps://mail.here.test, submissions://mail.here.test
`, master: fmt.Sprintf("127.0.0.1:%d inet n - n - 50 policyhost\n127.0.0.1:%d inet n - n - 50 policyhost -o policyhost_tls=no\n", secure, plain)})
	names := []string{"mta-sts.here.test", "autoconfig.here.test"}
	pair := testcert.Make(t, x509.Certificate{DNSNames: names, IsCA: true, BasicConstraintsValid: true}, nil)
	s.writeKeyPair("server.pem")
	s.write("names.pem", string(append(pair.KeyPEM(), pair.CertPEM()...)))
	s.write("sni", names[0]+" "+s.path("names.pem")+"\n"+names[1]+" "+s.path("names.pem")+"\n")
	s.start()
	roots := x509.NewCertPool()
	roots.AddCert(pair.Cert)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			port := secure
			if strings.HasSuffix(address, ":80") {
				port = plain
			}
			return new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		}}}
	policy, err := mtasts.Fetch(t.Context(), client, "here.test", resolver.Names{})
	if err != nil || policy.Mode != mtasts.Enforce || len(policy.MX) != 1 {
		t.Errorf("the policy is %+v, %v\n%s", policy, err, s.log())
	}
	for _, scheme := range []string{"https", "http"} {
		resp, err := client.Get(scheme + "://autoconfig.here.test/mail/config-v1.1.xml?emailaddress=ann@here.test")
		if err != nil {
			t.Fatalf("%s: %v\n%s", scheme, err, s.log())
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), "<hostname>mail.here.test</hostname>") {
			t.Errorf("%s: %d, %v: %s", scheme, resp.StatusCode, err, text)
		}
	}
	if _, err := client.Get("https://mail.here.test/"); err == nil || !strings.Contains(err.Error(), "mta.test") {
		t.Errorf("a client that asks for another name: %v, expected the certificate of the SMTP server", err)
	}
	if out, status := s.tool(nil, "reload"); status != 0 {
		t.Fatal(out)
	}
	if _, err := mtasts.Fetch(t.Context(), client, "here.test", resolver.Names{}); err != nil {
		t.Errorf("after a reload: %v\n%s", err, s.log())
	}
}
