package webclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"posthaste/internal/resolver/fakezone"
)

func TestPublic(t *testing.T) {
	t.Parallel()
	for want, list := range map[bool]string{
		true: "1.1.1.1 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1 198.17.0.1 223.255.255.255 ::ffff:8.8.8.8 " +
			"2606:4700::1 2a00::1 2001:200::1 64:ff9b::808:808",
		false: "0.0.0.0 0.1.2.3 10.1.2.3 100.64.0.1 127.0.0.1 127.9.9.9 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 " +
			"192.168.0.1 198.19.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 " +
			":: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 100::1 64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b:1::808:808 2001::1 2001:db8::1 2002:7f00:1::1 " +
			"3fff::1 5f00::1 fc00::1 fd12::1 fe80::1 fec0::1 ff02::1",
	} {
		for _, text := range strings.Fields(list) {
			if got := Public(netip.MustParseAddr(text)); got != want {
				t.Errorf("%s: public %v, want %v", text, got, want)
			}
		}
	}
	if Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

// listening is a web site on this host, which counts connections.
func listening(t *testing.T) (port string, roots *x509.CertPool, calls *atomic.Int32) {
	t.Helper()
	calls = new(atomic.Int32)
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }))
	site.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			calls.Add(1)
		}
	}
	site.StartTLS()
	t.Cleanup(site.Close)
	roots = x509.NewCertPool()
	roots.AddCert(site.Certificate())
	_, port, err := net.SplitHostPort(site.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, roots, calls
}

// A name that leads to this host is not gone to, however it is said, unless that is allowed.
func TestDial(t *testing.T) {
	t.Parallel()
	port, roots, calls := listening(t)
	dns := fakezone.Must("here.test. A 127.0.0.1\nhere.test. AAAA ::ffff:127.0.0.1\nnone.test. TXT x").Resolver()
	t.Cleanup(dns.Close)
	get := func(o Options, host string) error {
		o.Resolver = dns
		c := New(o)
		c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: "example.com"} // httptest's
		r, err := c.Get("https://" + net.JoinHostPort(host, port) + "/")
		if err == nil {
			r.Body.Close()
			if r.StatusCode != http.StatusFound {
				t.Errorf("%s: status %d: a redirection was followed", host, r.StatusCode)
			}
		}
		return err
	}
	down := errors.New("the table is down")
	allow := func(ok bool, err error) Options {
		return Options{Allowed: func(_ context.Context, a netip.Addr) (bool, error) {
			if a != netip.MustParseAddr("127.0.0.1") {
				t.Errorf("asked for %v", a)
			}
			return ok, err
		}}
	}
	for _, host := range []string{"here.test", "127.0.0.1", "::ffff:127.0.0.1"} {
		for _, c := range []struct {
			o    Options
			want error
		}{{Options{}, ErrNotPublic}, {allow(false, nil), ErrNotPublic}, {allow(false, down), down}} {
			if err := get(c.o, host); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", host, err, c.want)
			}
		}
	}
	if err := get(Options{}, "none.test"); err == nil {
		t.Error("none.test has an address")
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
	if err := get(allow(true, nil), "here.test"); err != nil || calls.Load() == 0 {
		t.Errorf("%v, %d connections", err, calls.Load())
	}
}
