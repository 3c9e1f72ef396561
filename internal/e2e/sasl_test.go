package e2e

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A client that binds its exchange to the TLS session is let in; one that
// knows the password and sees another session is not (internal/sasl).
func TestSCRAMClient(t *testing.T) {
	t.Parallel()
	gsasl := need(t, "gsasl")
	s, _ := newSubmission(t, newSink(t, nil), "")
	for _, tt := range []struct {
		mech, password string
		ok             bool
	}{
		{"SCRAM-SHA-256-PLUS", "pass,word=1", true},
		{"SCRAM-SHA-256-PLUS", "wrong", false},
		{"PLAIN", "pass,word=1", true},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, gsasl, "--smtp", "--connect=127.0.0.1:"+strconv.Itoa(s.port), "--hostname=localhost", "--x509-ca-file="+s.path("cert.pem"),
			"--mechanism="+tt.mech, "--authentication-id=joe", "--authorization-id=joe", "--password="+tt.password, "--no-client-first", "--verbose")
		out, err := cmd.CombinedOutput()
		cancel()
		if (err == nil && bytes.Contains(out, []byte("235 2.7.0"))) != tt.ok {
			t.Errorf("%s with %q: %v\n%s", tt.mech, tt.password, err, out)
		}
	}
	s.waitLog(`SASL SCRAM-SHA-256-PLUS authentication failed: .*sasl_username=joe`)
}

const pythonToken = `
import smtplib, ssl, sys
port, ca, token = int(sys.argv[1]), sys.argv[2], sys.argv[3]
c = smtplib.SMTP('127.0.0.1', port)
c.starttls(context=ssl.create_default_context(cafile=ca))
c.ehlo()
c.auth('XOAUTH2', lambda challenge=None: '' if challenge else 'user=joe@example.test\x01auth=Bearer ' + token + '\x01\x01')
c.sendmail('a@from.test', ['b@to.test'], sys.stdin.read())
c.quit()
`

// submitToken submits a message with a token.
func (s *system) submitToken(mechanism, token string) (out []byte, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	port, ca := strconv.Itoa(s.port), s.path("cert.pem")
	cmd := exec.CommandContext(ctx, need(s.t, "python3"), "-c", pythonToken, port, ca, token)
	if mechanism == "OAUTHBEARER" {
		cmd = exec.CommandContext(ctx, need(s.t, "curl"), "-sSv", "--url", "smtp://127.0.0.1:"+port, "--ssl-reqd", "--cacert", ca,
			"--mail-from", "a@from.test", "--mail-rcpt", "b@to.test", "--user", "joe@example.test", "--oauth2-bearer", token, "--upload-file", "-")
	}
	cmd.Stdin = strings.NewReader(submitted)
	return cmd.CombinedOutput()
}

// Tokens that an authorization server has signed let in, and no others.
func TestTokenClients(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := newSubmission(t, next, `smtpd_sasl_token_keys = {dir}/etc/issuer.pem
smtpd_sasl_token_issuer = https://id.example.test
smtpd_sasl_token_audience = mail.example.test
`, func(s *system) {
		s.write("etc/issuer.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	})
	token := func(audience string) string {
		claims, err := json.Marshal(map[string]any{"iss": "https://id.example.test", "aud": audience, "email": "joe@example.test",
			"exp": time.Now().Add(time.Hour).Unix()})
		if err != nil {
			t.Fatal(err)
		}
		b64 := base64.RawURLEncoding.EncodeToString
		text := b64([]byte(`{"alg":"EdDSA"}`)) + "." + b64(claims)
		return text + "." + b64(ed25519.Sign(key, []byte(text)))
	}
	for i, mechanism := range []string{"OAUTHBEARER", "XOAUTH2"} {
		if out, err := s.submitToken(mechanism, token("mail.example.test")); err != nil {
			t.Errorf("%s: %v\n%s", mechanism, err, out)
		}
		s.waitLog(`client=.*sasl_method=` + mechanism + `, sasl_username=joe@example\.test`)
		if out, err := s.submitToken(mechanism, token("web")); err == nil || !bytes.Contains(out, []byte("5.7.8 Error")) {
			t.Errorf("%s for another service: %v\n%s", mechanism, err, out)
		}
		s.waitLogN(`SASL `+mechanism+` authentication failed: token: for another audience, sasl_username=joe@example\.test`, 1)
		s.eventually("the message arrives", func() bool { return len(next.received()) == i+1 })
	}
}

const dovecotTokens = `protocols =
base_dir = {dir}/run
log_path = {dir}/dovecot.log
ssl = no
auth_mechanisms = plain oauthbearer xoauth2
auth_failure_delay = 0
passdb {
  driver = oauth2
  mechanisms = oauthbearer xoauth2
  args = {dir}/etc/dovecot-oauth2.conf.ext
}
passdb {
  driver = passwd-file
  mechanisms = plain
  args = {dir}/etc/passwords
}
userdb {
  driver = static
  args = uid=65534 gid=65534 home={dir}
}
service auth {
  unix_listener {dir}/spool/auth-client {
    mode = 0666
  }
}
`

// Dovecot asks the authorization server about each token (RFC 7662), and its
// word counts.
func TestDovecotTokens(t *testing.T) {
	t.Parallel()
	dovecot := need(t, "dovecot")
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: Dovecot changes users: the test needs root")
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"active":%t,"username":"joe@example.test"}`, r.FormValue("token") == "opaque-good")
	}))
	t.Cleanup(issuer.Close)
	next := newSink(t, nil)
	s, _ := newSubmission(t, next, "smtpd_sasl_type = dovecot\nsmtpd_sasl_path = auth-client\n")
	s.write("etc/dovecot.conf", strings.ReplaceAll(dovecotTokens, "{dir}", s.dir))
	s.write("etc/passwords", "joe@example.test:{PLAIN}secret\n")
	s.write("etc/dovecot-oauth2.conf.ext", "introspection_mode = post\nintrospection_url = "+issuer.URL+"/\nusername_attribute = username\n"+
		"active_attribute = active\nactive_value = true\nclient_id = mail\nclient_secret = x\n")
	s.runDovecot(dovecot, s.path("etc/dovecot.conf"), s.path("spool/auth-client"), "dovecot.log")
	for i, mechanism := range []string{"OAUTHBEARER", "XOAUTH2"} {
		if out, err := s.submitToken(mechanism, "opaque-good"); err != nil {
			t.Errorf("%s: %v\n%s", mechanism, err, out)
		}
		s.waitLog(`client=.*sasl_method=` + mechanism + `, sasl_username=joe@example\.test`)
		if out, err := s.submitToken(mechanism, "opaque-bad"); err == nil || !bytes.Contains(out, []byte("5.7.8 Error")) {
			t.Errorf("%s with a bad token: %v\n%s", mechanism, err, out)
		}
		s.waitLog(`SASL ` + mechanism + ` authentication failed: `)
		s.eventually("the message arrives", func() bool { return len(next.received()) == i+1 })
	}
}
