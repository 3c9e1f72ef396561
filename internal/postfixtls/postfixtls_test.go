package postfixtls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/postconf"
	"posthaste/internal/testpeers"
)

// A bench is a configuration directory with the command beside it.
type bench struct {
	t        *testing.T
	dir      string
	now      time.Time
	out, say bytes.Buffer
	log      []string
}

func newBench(t *testing.T, main string) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if err := os.WriteFile(filepath.Join(b.dir, "main.cf"), []byte("myhostname = mx.example\n"+main), 0o644); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) run(want int, args ...string) string {
	b.t.Helper()
	b.out.Reset()
	b.say.Reset()
	status := Run(b.dir, args, Tools{Now: b.now, Stdout: &b.out, Stderr: &b.say, Log: func(text string) { b.log = append(b.log, text) },
		Postconf: func(args []string, stdout, stderr io.Writer) int {
			return postconf.Run(args, postconf.Build{}, stdout, stderr)
		}})
	if status != want {
		b.t.Fatalf("%q: status %d, want %d: %s", args, status, want, b.say.String())
	}
	b.now = b.now.Add(time.Second)
	return b.out.String()
}

func (b *bench) has(settings ...string) {
	b.t.Helper()
	cfg, err := config.Load(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		if got := cfg.Raw(name); got != value {
			b.t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
}

func TestEnableServer(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	b.run(0, "all-default-server")
	b.run(0, "enable-server", "-a", "ecdsa", "-r", "dev:/dev/urandom", "mx.example", "mail.example")
	key, cert := b.dir+"/eckey-20260102-030406.pem", b.dir+"/eccert-20260102-030406.pem"
	b.has("smtpd_tls_eckey_file="+key, "smtpd_tls_eccert_file="+cert, "smtpd_tls_security_level=may", "smtpd_tls_received_header=yes",
		"smtpd_tls_loglevel=1", "tls_random_source=dev:/dev/urandom")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if leaf := pair.Leaf; leaf.Subject.CommonName != "mx.example" || leaf.VerifyHostname("mail.example") != nil || leaf.NotAfter.Year() != 2125 {
		t.Errorf("%v %v %v", leaf.Subject, leaf.DNSNames, leaf.NotAfter)
	}
	if info, err := os.Stat(key); err != nil || info.Mode() != 0o600 {
		t.Errorf("the key: %v, %v", info.Mode(), err)
	}
	if !strings.Contains(strings.Join(b.log, "\n"), "  # posthaste tls output-server-csr -k "+key) {
		t.Errorf("logged: %q", b.log)
	}
	b.run(1, "all-default-server")
	before := b.file("main.cf")
	b.run(0, "enable-server")
	if !strings.Contains(b.say.String(), "nothing was changed") || b.file("main.cf") != before {
		t.Errorf("the second time: %s", b.say.String())
	}
}

func (b *bench) file(name string) string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

func TestEnableClient(t *testing.T) {
	t.Parallel()
	b := newBench(t, "smtp_tls_security_level =\n")
	b.run(0, "all-default-client")
	b.run(0, "enable-client")
	b.has("smtp_tls_security_level=may", "smtp_tls_loglevel=1", "smtp_tls_session_cache_database=btree:${data_directory}/smtp_scache")
	b.run(1, "all-default-client")
	if b.say.Len() > 0 {
		t.Errorf("said %q", b.say.String())
	}
	b.run(0, "enable-client")
	if !strings.Contains(b.say.String(), "nothing was changed") {
		t.Errorf("the second time: %s", b.say.String())
	}
}

// A key is made, and deployed with its certificate; a later certificate is of the same
// key, so that its TLSA record is the same.
func TestKeyAndCertificates(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	b.run(0, "new-server-key")
	b.has("smtpd_tls_key_file=$smtpd_tls_cert_file", "smtpd_tls_cert_file=")
	b.run(0, "deploy-server-cert", "cert-20260102-030405.pem", b.dir+"/key-20260102-030405.pem")
	b.has("smtpd_tls_key_file="+b.dir+"/key-20260102-030405.pem", "smtpd_tls_cert_file="+b.dir+"/cert-20260102-030405.pem")
	first := b.run(0, "output-server-tlsa")
	if !strings.HasPrefix(first, "; "+b.dir+"/key-20260102-030405.pem\n_25._tcp.mx.example. IN TLSA 3 1 1 ") {
		t.Errorf("%q", first)
	}
	b.run(0, "new-server-cert", "other.example")
	second := b.run(0, "output-server-tlsa", "-h", "mx.example", "key-20260102-030408.pem")
	if first[strings.Index(first, "IN TLSA"):] != second[strings.Index(second, "IN TLSA"):] {
		t.Errorf("%q and %q", first, second)
	}
	b.run(0, "new-server-key", "-b", "3072")
	b.run(1, "deploy-server-cert", "cert-20260102-030405.pem", "key-20260102-030410.pem")
	if !strings.Contains(b.say.String(), "does not match the key") {
		t.Errorf("%s", b.say.String())
	}
	block, _ := pem.Decode([]byte(b.run(0, "output-server-csr", "a.example", "b.example")))
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || request.CheckSignature() != nil || request.Subject.CommonName != "a.example" || len(request.DNSNames) != 2 {
		t.Errorf("%v, %v", request, err)
	}
}

// What is there is never written over.
func TestFilesStay(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	if err := os.WriteFile(filepath.Join(b.dir, "eccert-20260102-030405.pem"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.run(1, "new-server-key", "-a", "ecdsa")
	if _, err := os.Stat(filepath.Join(b.dir, "eckey-20260102-030405.pem")); err == nil || b.file("eccert-20260102-030405.pem") != "mine" {
		t.Error("a key without a certificate, or another certificate")
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	for _, c := range []struct{ args, says string }{
		{"", "expected one of all-default-client, "},
		{"frobnicate", `unknown command: "frobnicate"`},
		{"enable-client x", "usage: posthaste tls enable-client [-r devrandom]"},
		{"enable-client -x", "usage: "},
		{"new-server-key -a dsa", "-a dsa: expected rsa or ecdsa"},
		{"new-server-key -b 512", "-b 512: "},
		{"new-server-key -a ecdsa -b secp112r1", "-b secp112r1: "},
		{"deploy-server-cert one", "usage: "},
		{"deploy-server-cert none.pem none.pem", "no such file"},
		{"output-server-csr", "none is deployed"},
		{"output-server-csr -k main.cf", "no private key found"},
		{"output-server-tlsa", "none is deployed"},
	} {
		b.run(1, strings.Fields(c.args)...)
		if !strings.Contains(b.say.String(), c.says) || !strings.HasPrefix(b.say.String(), "posthaste: fatal: tls: ") {
			t.Errorf("%s: %q, want %q", c.args, b.say.String(), c.says)
		}
	}
}

// The original's script, where it is installed, says the same of a key.
func TestAsOriginal(t *testing.T) {
	t.Parallel()
	testpeers.Postfix(t, "postfix")
	testpeers.Program(t, "openssl")
	text, err := os.ReadFile(testpeers.PostfixServices + "/postfix-tls-script")
	if err != nil {
		t.Fatal(err)
	}
	for _, algorithm := range []string{"rsa", "ecdsa"} {
		b := newBench(t, "compatibility_level = 3.6\n")
		b.run(0, "enable-server", "-a", algorithm)
		// It asks /etc/postfix, which a test has no part in, where openssl is.
		script := filepath.Join(b.dir, "script")
		own := bytes.ReplaceAll(text, []byte("`$postconf -dh config_directory`"), []byte(b.dir))
		if err := os.WriteFile(script, own, 0o644); err != nil || bytes.Equal(own, text) {
			t.Fatalf("%v, or the script is another one", err)
		}
		cmd := exec.Command("sh", script, "output-server-tlsa")
		cmd.Env = append(os.Environ(), "config_directory="+b.dir, "command_directory=/usr/sbin", "daemon_directory=/usr/lib/postfix/sbin",
			"data_directory="+b.dir, "MAIL_CONFIG="+b.dir, "MAIL_LOGTAG=test")
		out, err := cmd.Output()
		if got := b.run(0, "output-server-tlsa"); err != nil || got != string(out) {
			t.Errorf("%s: %q, the original says %q (%v)", algorithm, got, out, err)
		}
	}
}
