package e2e

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// newSubmission is a system that takes mail from users: STARTTLS on its port,
// TLS from the beginning on another, passwords under TLS only. more are
// further lines of main.cf; prepare writes files before the start.
func newSubmission(t *testing.T, next *sink, more string, prepare ...func(*system)) (s *system, wrapped int) {
	t.Helper()
	s = newSystem(t, options{unstarted: true})
	makeCertificate(t, s.path("key.pem"), s.path("cert.pem"))
	secret, status := s.tool([]byte("pass,word=1\n"), "passwd", "joe")
	if status != 0 {
		t.Fatalf("passwd: %s", secret)
	}
	s.write("etc/users", secret)
	for _, f := range prepare {
		f(s)
	}
	wrapped = freePort(t)
	s.configure(next.relayhost()+`smtpd_tls_security_level = may
smtpd_tls_chain_files = {dir}/key.pem, {dir}/cert.pem
smtpd_tls_loglevel = 1
smtpd_tls_auth_only = yes
smtpd_sasl_auth_enable = yes
smtpd_sasl_type = table
smtpd_sasl_path = texthash:{dir}/etc/users
mynetworks = 192.0.2.1
smtpd_relay_restrictions = permit_sasl_authenticated, reject
`+more, fmt.Sprintf("127.0.0.1:%d inet n - n - - smtpd -o smtpd_tls_wrappermode=yes\n", wrapped))
	s.start()
	return s, wrapped
}

// makeCertificate has openssl make a key and a certificate.
func makeCertificate(t *testing.T, key, cert string) {
	t.Helper()
	makeCertificateFor(t, "localhost", key, cert)
}

// makeCertificateFor is for another name.
func makeCertificateFor(t *testing.T, name, key, cert string) {
	t.Helper()
	out, err := exec.Command(need(t, "openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
		"-subj", "/CN="+name, "-addext", "subjectAltName=DNS:"+name+",IP:127.0.0.1", "-days", "2",
		"-keyout", key, "-out", cert).CombinedOutput()
	if err != nil {
		t.Fatalf("openssl: %v\n%s", err, out)
	}
}

const submitted = "From: a@from.test\r\nTo: b@to.test\r\nSubject: hello\r\n\r\nbody\r\n"

const pythonClient = `
import smtplib, ssl, sys
port, wrapped = int(sys.argv[1]), sys.argv[2] == 'yes'
ctx = ssl.create_default_context(cafile=sys.argv[3])
c = smtplib.SMTP_SSL('127.0.0.1', port, context=ctx) if wrapped else smtplib.SMTP('127.0.0.1', port)
if not wrapped:
    c.starttls(context=ctx)
c.login('joe', 'pass,word=1')
c.sendmail('a@from.test', ['b@to.test'], sys.stdin.read())
c.quit()
`

// Programs that people send mail with send it, with a password and TLS of
// either kind.
func TestSubmissionClients(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s, wrapped := newSubmission(t, next, "")
	port := strconv.Itoa(s.port)
	ca := s.path("cert.pem")
	curl := func(scheme, port, login string) []string {
		return []string{"curl", "-sS", "--url", scheme + "://127.0.0.1:" + port, "--ssl-reqd", "--cacert", ca, "--mail-from", "a@from.test",
			"--mail-rcpt", "b@to.test", "--user", "joe:pass,word=1", "--login-options", "AUTH=" + login, "--upload-file", "-"}
	}
	swaks := []string{"swaks", "--server", s.addr(), "--from", "a@from.test", "--to", "b@to.test", "--auth-user", "joe",
		"--auth-password", "pass,word=1", "--data", "-"}
	msmtp := func(tls ...string) []string {
		return append([]string{"msmtp", "--file=/dev/null", "--host=127.0.0.1", "--auth=plain", "--user=joe", "--passwordeval=echo pass,word=1",
			"--from=a@from.test", "--tls=on", "--tls-trust-file=" + ca}, append(tls, "b@to.test")...)
	}
	mutt := func(set string) []string {
		return []string{"mutt", "-n", "-F", "/dev/null", "-e", set, "-e", "set smtp_pass='pass,word=1' smtp_authenticators=plain",
			"-e", "set certificate_file=" + ca + " ssl_verify_host=yes", "-e", "set from=a@from.test envelope_from_address=a@from.test copy=no",
			"-s", "hello", "b@to.test"}
	}
	for _, tt := range []struct {
		name   string
		args   []string
		method string
	}{
		{"curl PLAIN", curl("smtp", port, "PLAIN"), "PLAIN"},
		{"curl LOGIN", curl("smtp", port, "LOGIN"), "LOGIN"},
		{"curl submissions", curl("smtps", strconv.Itoa(wrapped), "PLAIN"), "PLAIN"},
		{"swaks", append(swaks, "-tls", "--auth", "LOGIN"), "LOGIN"},
		{"msmtp", msmtp("--port=" + port), "PLAIN"},
		{"msmtp submissions", msmtp("--tls-starttls=off", "--port="+strconv.Itoa(wrapped)), "PLAIN"},
		{"smtplib", []string{"python3", "-c", pythonClient, port, "no", ca}, ""},
		{"smtplib submissions", []string{"python3", "-c", pythonClient, strconv.Itoa(wrapped), "yes", ca}, ""},
		{"s-nail", []string{"s-nail", "-:/", "-Sv15-compat", "-Smta=smtp://joe:pass%2Cword%3D1@localhost:" + port, "-Ssmtp-use-starttls",
			"-Ssmtp-auth=plain", "-Stls-ca-file=" + ca, "-Stls-verify=strict", "-Shostname=localhost", "-r", "a@from.test", "-s", "hello", "b@to.test"}, "PLAIN"},
		{"mutt", mutt("set smtp_url=smtp://joe@localhost:" + port + "/ ssl_force_tls=yes"), "PLAIN"},
		{"mutt submissions", mutt("set smtp_url=smtps://joe@localhost:" + strconv.Itoa(wrapped) + "/"), "PLAIN"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			program := need(t, tt.args[0])
			before := len(next.received())
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, tt.args[1:]...)
			cmd.Stdin = strings.NewReader(submitted)
			cmd.Env = append(os.Environ(), "HOME="+s.dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			s.eventually("the message arrives", func() bool { return len(next.received()) > before })
			if got := next.received()[before]; !strings.Contains(string(got.data), "body") || got.from != "a@from.test" {
				t.Errorf("from %s: %q", got.from, got.data)
			}
			if tt.method != "" {
				s.waitLog(`client=.*sasl_method=` + tt.method + `, sasl_username=joe`)
			}
		})
	}
}

// A wrong password is refused with 535, and leaves the line that fail2ban
// looks for.
func TestSubmissionRefused(t *testing.T) {
	t.Parallel()
	curl := need(t, "curl")
	s, wrapped := newSubmission(t, newSink(t, nil), "")
	cmd := exec.Command(curl, "-sS", "-v", "--url", "smtps://127.0.0.1:"+strconv.Itoa(wrapped), "--cacert", s.path("cert.pem"), "--mail-from", "a@from.test",
		"--mail-rcpt", "b@to.test", "--user", "joe:wrong", "--upload-file", "-")
	cmd.Stdin = strings.NewReader(submitted)
	if out, err := cmd.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("535 5.7.8 Error: authentication failed")) {
		t.Errorf("%v\n%s", err, out)
	}
	s.waitLog(`warning: \S+\[127\.0\.0\.1\]: SASL PLAIN authentication failed: .*sasl_username=joe`)
}

// openssl s_client begins TLS, is given the certificate, and resumes.
func TestOpensslClient(t *testing.T) {
	t.Parallel()
	openssl := need(t, "openssl")
	s, wrapped := newSubmission(t, newSink(t, nil), "")
	for _, args := range [][]string{
		{"-starttls", "smtp", "-connect", s.addr()},
		{"-connect", net.JoinHostPort("127.0.0.1", strconv.Itoa(wrapped))},
		{"-connect", net.JoinHostPort("127.0.0.1", strconv.Itoa(wrapped)), "-tls1_2", "-reconnect"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, openssl, append([]string{"s_client", "-crlf", "-CAfile", s.path("cert.pem"), "-verify_return_error", "-ign_eof"}, args...)...)
		cmd.Stdin = strings.NewReader("QUIT\n")
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil || !bytes.Contains(out, []byte("221 2.0.0 Bye")) || !bytes.Contains(out, []byte("Verify return code: 0 (ok)")) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		if strings.Contains(strings.Join(args, " "), "-reconnect") && bytes.Count(out, []byte("Reused, TLSv1.2")) < 3 {
			t.Errorf("sessions are not resumed:\n%s", out)
		}
	}
}

// scan is what sslscan reports, as far as it matters here.
type scan struct {
	Tests []struct {
		Protocols []struct {
			Type    string `xml:"type,attr"`
			Version string `xml:"version,attr"`
			Enabled int    `xml:"enabled,attr"`
		} `xml:"protocol"`
		Compression struct {
			Supported int `xml:"supported,attr"`
		} `xml:"compression"`
		Renegotiation struct {
			Supported int `xml:"supported,attr"`
			Secure    int `xml:"secure,attr"`
		} `xml:"renegotiation"`
		Heartbleed []struct {
			Vulnerable int `xml:"vulnerable,attr"`
		} `xml:"heartbleed"`
		Ciphers []struct {
			Version  string `xml:"sslversion,attr"`
			Bits     int    `xml:"bits,attr"`
			Name     string `xml:"cipher,attr"`
			Strength string `xml:"strength,attr"`
		} `xml:"cipher"`
	} `xml:"ssltest"`
}

// A scanner finds no protocol or cipher below the settings asked for.
func TestTLSScan(t *testing.T) {
	t.Parallel()
	sslscan := need(t, "sslscan")
	for _, tt := range []struct{ name, main, protocols string }{
		{"default", "", "1.0 1.1 1.2 1.3"},
		{"mandatory", "smtpd_tls_security_level = encrypt\nsmtpd_tls_mandatory_protocols = >=TLSv1.2\nsmtpd_tls_mandatory_ciphers = high\n", "1.2 1.3"},
		{"newest only", "smtpd_tls_protocols = >=TLSv1.3\n", "1.3"},
		{"old form", "smtpd_tls_protocols = !SSLv2, !SSLv3, !TLSv1, !TLSv1.1\n", "1.2 1.3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, _ := newSubmission(t, newSink(t, nil), tt.main)
			file := s.path("scan.xml")
			ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
			defer cancel()
			if out, err := exec.CommandContext(ctx, sslscan, "--starttls-smtp", fmt.Sprintf("--timeout=%.0f", patience.Seconds()), "--xml="+file, s.addr()).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got scan
			if err := xml.Unmarshal(text, &got); err != nil || len(got.Tests) != 1 {
				t.Fatalf("%v\n%s", err, text)
			}
			test := got.Tests[0]
			var protocols []string
			for _, p := range test.Protocols {
				if p.Enabled != 0 && p.Type == "ssl" {
					t.Errorf("SSL %s is offered", p.Version)
				} else if p.Enabled != 0 {
					protocols = append(protocols, p.Version)
				}
			}
			if list := strings.Join(protocols, " "); list != tt.protocols {
				t.Errorf("TLS %s, want %s", list, tt.protocols)
			}
			if test.Compression.Supported != 0 || test.Renegotiation.Supported != 0 && test.Renegotiation.Secure == 0 {
				t.Errorf("compression %d, renegotiation %v", test.Compression.Supported, test.Renegotiation)
			}
			for _, h := range test.Heartbleed {
				if h.Vulnerable != 0 {
					t.Error("vulnerable to Heartbleed")
				}
			}
			if len(test.Ciphers) == 0 {
				t.Errorf("no ciphers:\n%s", text)
			}
			for _, c := range test.Ciphers {
				if c.Bits < 128 || !strings.Contains(" "+tt.protocols+" ", " "+strings.TrimPrefix(c.Version, "TLSv")+" ") ||
					strings.Contains(c.Name, "RC4") || strings.Contains(c.Name, "NULL") {
					t.Errorf("%s %s, %d bits, %s", c.Version, c.Name, c.Bits, c.Strength)
				}
			}
		})
	}
}
