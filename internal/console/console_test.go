package console

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/service"
	"posthaste/internal/testservers"
)

// chainFile is a key and a certificate for 127.0.0.1 in a file.
func chainFile(t *testing.T) (file string, roots *x509.CertPool) {
	t.Helper()
	cert, key := testservers.Certificate(t)
	var text []byte
	for _, path := range []string{key, cert} {
		part, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, part...)
	}
	file = filepath.Join(t.TempDir(), "chain.pem")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return file, roots
}

func environment(t *testing.T, main string) *service.Env {
	t.Helper()
	cfg, err := config.LoadString("compatibility_level = 3.6\ndata_directory = " + t.TempDir() + "\n" + main)
	if err != nil {
		t.Fatal(err)
	}
	return &service.Env{Config: cfg, Log: maillog.New("console", maillog.NewWriter(io.Discard, maillog.Classic))}
}

// A password does not go over a network in the clear, and what cannot work is said at the start.
func TestPrepare(t *testing.T) {
	t.Parallel()
	chain, _ := chainFile(t)
	for _, c := range []struct{ main, err string }{
		{"console_listen = 127.0.0.1:0\n", ""},
		{"console_listen = 0.0.0.0:0\n", "set console_tls = yes"},
		{"console_listen = 0.0.0.0:0\nconsole_tls = yes\nsmtpd_tls_chain_files = " + chain + "\n", ""},
		{"console_listen = 0.0.0.0:0\nconsole_tls = yes\nsmtpd_tls_cert_file = " + chain + "\n", ""},
		{"console_listen = 127.0.0.1:0\nconsole_tls = yes\n", "no server certificate"},
		{"console_listen = 127.0.0.1:0\nconsole_tls = yes\nsmtpd_tls_chain_files = /nonexistent\n", "no such file"},
		{"console_listen = 127.0.0.1:99999\n", "console_listen = "},
		{"console_listen = unix:x\n", ""},
		{"console_listen = 127.0.0.1:0\nconsole_oidc_issuer = https://id.test\nconsole_oidc_client_id = c\nconsole_url = https://c.test\n", ""},
		{"console_listen = 127.0.0.1:0\nconsole_oidc_issuer = https://id.test\nconsole_oidc_client_id = c\n", "console_url: "},
		{"console_listen = 127.0.0.1:0\nconsole_oidc_issuer = http://id.test\nconsole_oidc_client_id = c\nconsole_url = https://c.test\n", "console_oidc_issuer: "},
		{"console_listen = 127.0.0.1:0\nconsole_oidc_issuer = https://id.test\nconsole_oidc_client_secret_file = /nonexistent\n", "console_oidc_client_secret_file: "},
		{"console_listen = 127.0.0.1:0\nconsole_oidc_issuer = https://id.test\nconsole_oidc_CAfile = /nonexistent\n", "console_oidc_CAfile: "},
	} {
		_, secure, l, err := prepare(environment(t, c.main))
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v", c.main, err)
		}
		if strings.Contains(c.main, "_tls") && err == nil && secure == nil {
			t.Errorf("%s: there is no TLS", c.main)
		}
		if l != nil {
			l.Close()
		}
	}
}

// Over TLS the cookie is for this host and for TLS only. The service ends with its context
// although a live page is open.
func TestTLS(t *testing.T) {
	t.Parallel()
	chain, roots := chainFile(t)
	_, secure, l, err := prepare(environment(t, "console_listen = 127.0.0.1:0\nconsole_tls = yes\nsmtpd_tls_chain_files = "+chain+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.console.stopping = ctx.Done()
	served := make(chan error, 1)
	go func() { served <- w.console.serve(ctx, l, secure) }()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	base := "https://" + l.Addr().String()
	resp, err := client.PostForm(base+"/login", url.Values{"user": {"ann"}, "password": {"secret of ann"}})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	cookies := resp.Cookies()
	if len(cookies) != 1 || cookies[0].Name != "__Host-posthaste" || !cookies[0].Secure || resp.Header.Get("Strict-Transport-Security") == "" {
		t.Fatalf("%v %v", cookies, resp.Header)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", base+"/live/now", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.AddCookie(cookies[0])
	live, err := client.Do(req)
	if err != nil || live.StatusCode != 200 {
		t.Fatal(live, err)
	}
	defer live.Body.Close()
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A socket that was left over is replaced; another file is not.
func TestUnix(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "phc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "web")
	first, err := listenUnix("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	first.Close()
	w := newWorld(t)
	l, err := listenUnix("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- w.console.serve(ctx, l, nil) }()
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}
	resp, err := client.Get("http://mta.test/login")
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	if resp, err := client.PostForm("http://mta.test/login", url.Values{"user": {"ann"}, "password": {"wrong"}}); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatal(resp, err)
	}
	if events, _ := w.take(); len(events) != 1 || !strings.HasPrefix(events[0], "user=ann client=local: login failed") {
		t.Errorf("%q", events)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix("unix:" + path); err == nil {
		t.Error("a file was replaced")
	}
}
