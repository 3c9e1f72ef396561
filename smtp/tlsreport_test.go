package smtp

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/dayreport"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/tlsrpt"
)

// TestReportsAreKept has an agent count a session, and another one make a
// report of what an earlier day had.
func TestReportsAreKept(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { talk(l, []string{"220 x ESMTP", "250 x", "550 no"}, nil) })
	dir := t.TempDir()
	cfg, err := config.LoadString("myhostname = me.test\nmydomain = me.test\nsmtp_tls_security_level = may\nsmtp_tlsrpt_enable = yes\ndata_directory = " + dir + "\n")
	if err != nil {
		t.Fatal(err)
	}
	dns := fakezone.Must("dest.test. MX 10 mx.dest.test.\nmx.dest.test. A 192.0.2.1\n").Resolver()
	defer dns.Close()
	c := new(fakeCleanup)
	submitter := c.client(t)
	a, err := newAgent(deps{Config: cfg, Log: maillog.New("smtp", new(lines)), Resolver: dns, Submit: submitter,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, l.Addr().String())
		}})
	if err != nil {
		t.Fatal(err)
	}
	a.Deliver(t.Context(), agent.NewTestRequest(envelope(10), "dest.test", []byte("A: b\r\n\r\n"), nil))
	a.Close()
	files, err := filepath.Glob(filepath.Join(dir, "tlsrpt", "*.log"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil || !strings.Contains(string(text), `"policy-domain":"dest.test"`) || !strings.Contains(string(text), "starttls-not-supported") {
		t.Errorf("%s %v", text, err)
	}

	if err := dayreport.Submit(t.Context(), submitter, "post@me.test", "tls@dest.test", []byte("Subject: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	got := c.messages()
	if len(got) != 1 {
		t.Fatalf("%d messages", len(got))
	}
	env := &got[0].Envelope
	if env.Sender != "post@me.test" || len(env.Recipients) != 1 || env.Recipients[0].Address != "tls@dest.test" || !env.TLSOptional || env.Client != (mail.Client{}) {
		t.Errorf("%+v", env)
	}
	if age := time.Since(env.Arrival); age < 0 || age > time.Hour {
		t.Error("arrival:", env.Arrival)
	}
}

// at is a connection from an address of this host.
type at struct{ net.Conn }

func (at) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 200), Port: 4711} }

// TestReportedAddress: a report has the address that the server has seen: with a proxy that of the source, and
// none if nobody here knows it.
func TestReportedAddress(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		"":                     "192.0.2.200",
		"address=198.51.100.7": "192.0.2.200",
		"address=198.51.100.7, proxy=haproxy:192.0.2.9:1": "198.51.100.7",
		"proxy=socks5:192.0.2.9:1":                        "",
	} {
		var got *tlsrpt.Failure
		d := &delivery{a: &Agent{reports: &reporter{record: func(_ time.Time, _ tlsrpt.Policy, f *tlsrpt.Failure) { got = f }}}}
		if spec != "" {
			r := agent.NewTestRequest(envelope(10), "dest.test", []byte("A: b\r\n\r\n"), nil)
			r.Source, r.SourceSpec = "m1", spec
			source, err := new(usedSources).of(r)
			if err != nil {
				t.Fatal(spec, err)
			}
			d.source = source
		}
		s := &session{wire: &wire{conn: at{}}, greeted: "mx.x\x07"}
		d.reportFailure(s, &target{host: "mx1.dest.test", ip: netip.MustParseAddr("192.0.2.1")}, &tlsrpt.Policy{}, &flaw{tlsrpt.ValidationError, "a\nb"})
		if got == nil || got.SendingIP != want || got.ReceivingIP != "192.0.2.1" || got.MXHelo != "mx.x?" || got.Reason != "a b" {
			t.Errorf("%q: %+v, want from %q", spec, got, want)
		}
	}
}
