package smtp

import (
	"context"
	"net"
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
