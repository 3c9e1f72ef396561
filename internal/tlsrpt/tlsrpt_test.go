package tlsrpt

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/webclient"
)

// system is a Log with what is around it.
type system struct {
	*Log
	mu    sync.Mutex
	mails map[string][]byte // by recipient
	lines []string          // warnings and other lines
	full  bool              // the queue takes nothing
}

func newSystem(t *testing.T, dir, zone string, client *http.Client) *system {
	t.Helper()
	dns := fakezone.Must(zone).Resolver()
	t.Cleanup(dns.Close)
	s := &system{mails: make(map[string][]byte)}
	say := func(text string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lines = append(s.lines, text)
	}
	l, err := Open(Options{Dir: dir, Organization: "Sender Inc.", Contact: "tls@send.test", Sender: "reports@send.test",
		Hostname: "mx.send.test", Resolver: dns, Client: client, Warn: say, Sent: func(report, uri string) { say("tlsrpt: report " + report + " sent to " + uri) },
		Mail: func(_ context.Context, to string, msg []byte) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.full {
				return errors.New("the queue is full")
			}
			s.mails[to] = msg
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	s.Log = l
	return s
}

var (
	day     = time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	noon    = day.Add(12 * time.Hour)
	morning = day.Add(29 * time.Hour) // later than any delay
	stsOf   = Policy{Type: PolicySTS, Strings: []string{"version: STSv1", "mode: testing", "mx: *.mail.to.test", "max_age: 86400"},
		Domain: "to.test", MXHosts: []string{"*.mail.to.test"}}
)

// TestReport has two processes count a day's sessions, and looks at the mail
// that comes of it as its receiver does: field by field of RFC 8460 section 4.4
// and 5.3.
func TestReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	zone := `_smtp._tls.to.test. TXT "v=TLSRPTv1; rua=mailto:tls%2Breports@to.test"`
	a, b := newSystem(t, dir, zone, nil), newSystem(t, dir, zone, nil)
	for range 3 {
		a.Record(noon, stsOf, nil)
		b.Record(noon, stsOf, nil)
	}
	expired := Failure{Type: Expired, SendingIP: "192.0.2.1", MXHost: "a.mail.to.test", MXHelo: "a", ReceivingIP: "192.0.2.9", Reason: "it was good until yesterday"}
	a.Record(noon, stsOf, &expired)
	b.Record(noon, stsOf, &expired)
	b.Record(noon, stsOf, &Failure{Type: NotSupported, MXHost: "b.mail.to.test"})
	b.Record(noon, Policy{Type: PolicyNone, Domain: "TO.test"}, nil)
	a.Record(noon, Policy{Type: PolicyNone, Domain: "nobody.test"}, nil) // wants no report
	a.Record(noon, Policy{Type: PolicyNone, Domain: "../x"}, nil)
	a.Record(morning, stsOf, nil) // is for the next report
	b.flush()
	a.Step(t.Context(), morning.Add(-5*time.Hour))
	if len(a.mails) > 0 {
		t.Fatal("a report before the day was over")
	}
	a.Step(t.Context(), morning)
	b.Step(t.Context(), morning)
	if len(a.mails) != 1 || len(b.mails) > 0 {
		t.Fatalf("%d and %d mails: %q", len(a.mails), len(b.mails), slices.Concat(a.lines, b.lines))
	}
	checkMail(t, a.mails["tls+reports@to.test"])
	if left, _ := filepath.Glob(filepath.Join(dir, "report", "*")); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
	if _, err := os.Stat(filepath.Join(dir, "2026-11-21.log")); err != nil {
		t.Errorf("the next day's counts: %v", err)
	}
}

// checkMail takes TestReport's mail apart.
func checkMail(t *testing.T, text []byte) {
	t.Helper()
	if bytes.Contains(bytes.ReplaceAll(text, []byte("\r\n"), nil), []byte("\n")) {
		t.Error("not all lines end in CRLF")
	}
	msg, err := mail.ReadMessage(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"From": "reports@send.test", "To": "tls+reports@to.test", "TLS-Report-Domain": "to.test",
		"TLS-Report-Submitter": "send.test", "MIME-Version": "1.0", "TLS-Required": "No",
		"Subject": "Report Domain: to.test Submitter: send.test Report-ID: <2026-11-20.to.test@mx.send.test>"} {
		if got := msg.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	kind, params, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/report" || params["report-type"] != "tlsrpt" {
		t.Fatal(kind, params, err)
	}
	parts := multipart.NewReader(msg.Body, params["boundary"])
	if p, err := parts.NextPart(); err != nil || p.Header.Get("Content-Type") != "text/plain; charset=us-ascii" {
		t.Fatal("no text for people", err)
	}
	p, err := parts.NextPart()
	if err != nil || p.Header.Get("Content-Type") != "application/tlsrpt+gzip" {
		t.Fatal("no report", err)
	}
	if name, want := p.FileName(), fmt.Sprintf("send.test!to.test!%d!%d.json.gz", day.Unix(), day.Unix()+86399); name != want {
		t.Errorf("file name %q, want %q", name, want)
	}
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, p))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	pretty, _ := json.MarshalIndent(got, "", "  ")
	const want = `{
  "contact-info": "tls@send.test",
  "date-range": {
    "end-datetime": "2026-11-20T23:59:59Z",
    "start-datetime": "2026-11-20T00:00:00Z"
  },
  "organization-name": "Sender Inc.",
  "policies": [
    {
      "policy": {
        "policy-domain": "to.test",
        "policy-type": "no-policy-found"
      },
      "summary": {
        "total-failure-session-count": 0,
        "total-successful-session-count": 1
      }
    },
    {
      "failure-details": [
        {
          "failed-session-count": 2,
          "failure-reason-code": "it was good until yesterday",
          "receiving-ip": "192.0.2.9",
          "receiving-mx-helo": "a",
          "receiving-mx-hostname": "a.mail.to.test",
          "result-type": "certificate-expired",
          "sending-mta-ip": "192.0.2.1"
        },
        {
          "failed-session-count": 1,
          "receiving-mx-hostname": "b.mail.to.test",
          "result-type": "starttls-not-supported"
        }
      ],
      "policy": {
        "mx-host": [
          "*.mail.to.test"
        ],
        "policy-domain": "to.test",
        "policy-string": [
          "version: STSv1",
          "mode: testing",
          "mx: *.mail.to.test",
          "max_age: 86400"
        ],
        "policy-type": "sts"
      },
      "summary": {
        "total-failure-session-count": 3,
        "total-successful-session-count": 6
      }
    }
  ],
  "report-id": "2026-11-20.to.test@mx.send.test"
}`
	if string(pretty) != want {
		t.Errorf("report:\n%s\nwant:\n%s", pretty, want)
	}
	if _, err := parts.NextPart(); err != io.EOF {
		t.Errorf("after the report: %v", err)
	}
}

// TestPost sends by HTTPS.
func TestPost(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []byte
	status := 500
	site := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPost && r.URL.Path == "/v1/tlsrpt" && r.Header.Get("Content-Type") == "application/tlsrpt+gzip" {
			got, _ = io.ReadAll(r.Body)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(site.Close)
	zone := `_smtp._tls.to.test. TXT "v=TLSRPTv1;rua=https://example.com/v1/tlsrpt"`
	dir := t.TempDir()
	client := site.Client()
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, site.Listener.Addr().String())
	}
	s := newSystem(t, dir, zone, client)
	s.Record(noon, stsOf, nil)
	s.Step(t.Context(), morning)
	if left, _ := filepath.Glob(filepath.Join(dir, "report", "*.json")); len(left) != 1 {
		t.Fatalf("a report that was not taken is not kept: %q", s.lines)
	}
	mu.Lock()
	got, status = nil, 201
	mu.Unlock()
	again := newSystem(t, dir, zone, client) // after a restart
	again.Step(t.Context(), morning.Add(time.Hour))
	mu.Lock()
	defer mu.Unlock()
	z, err := gzip.NewReader(bytes.NewReader(got))
	if err != nil {
		t.Fatal(err, again.lines)
	}
	if text, _ := io.ReadAll(z); !bytes.Contains(text, []byte(`"policy-domain":"to.test"`)) {
		t.Errorf("%s", text)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "report", "*")); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
}

func TestGiveUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newSystem(t, dir, `_smtp._tls.to.test. TXT "v=TLSRPTv1; rua=mailto:a@to.test"`, nil)
	s.full = true
	s.Record(noon, stsOf, nil)
	s.Step(t.Context(), morning)
	s.Step(t.Context(), morning.Add(12*time.Hour))
	if left, _ := filepath.Glob(filepath.Join(dir, "report", "*.json")); len(left) != 1 {
		t.Fatal("given up too early")
	}
	s.Step(t.Context(), morning.Add(26*time.Hour))
	if left, _ := filepath.Glob(filepath.Join(dir, "report", "*")); len(left) > 0 {
		t.Errorf("still there: %q", left)
	}
	if len(s.lines) != 1 || !strings.Contains(s.lines[0], "could not be sent") {
		t.Errorf("%q", s.lines)
	}
}

// TestTornLine reads counts of which a crash cut the last line short.
func TestTornLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newSystem(t, dir, "", nil)
	s.Record(noon, stsOf, nil)
	s.flush()
	path := filepath.Join(dir, "2026-11-20.log")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = append(append(text, "{}\nnonsense\n"...), text[:len(text)-5]...)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := s.readDay("2026-11-20")
	if err != nil || len(got) != 1 || len(got["to.test"]) != 1 || got["to.test"][0].good != 1 {
		t.Errorf("%v %v", got, err)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	s := newSystem(t, t.TempDir(), "", nil)
	for i := range maxFailures + 50 {
		s.Record(noon, stsOf, &Failure{Type: Expired, Reason: fmt.Sprint(i, strings.Repeat("x", 1000))})
	}
	for i := range maxPolicies + 10 {
		s.Record(noon, Policy{Type: PolicyNone, Domain: fmt.Sprintf("d%d.test", i)}, nil)
	}
	for _, of := range s.days {
		if len(of) != maxPolicies {
			t.Errorf("%d policies", len(of))
		}
		for _, c := range of {
			if n := c.bad[Failure{Type: Expired}]; len(c.bad) > 0 && (n != 50 || len(c.bad) != maxFailures+1) {
				t.Errorf("%d failures without details, %d with", n, len(c.bad)-1)
			}
		}
	}
	s.flush()
	if len(s.lines) != 1 {
		t.Errorf("%q", s.lines)
	}
	var none *Log
	none.Record(noon, stsOf, nil)
}

func TestDestinations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		records []string
		want    string
	}{
		{[]string{"v=TLSRPTv1; rua=mailto:a@b.test"}, "mailto:a@b.test"},
		{[]string{"v=spf1 -all", "v=TLSRPTv1;rua=mailto:a@b.test, https://b.test/x ;x=y"}, "mailto:a@b.test https://b.test/x"},
		{[]string{"v=TLSRPTv1; rua=mailto:a@b.test", "v=TLSRPTv1; rua=mailto:c@b.test"}, ""},
		{[]string{"v=TLSRPTv2; rua=mailto:a@b.test"}, ""}, {[]string{"rua=mailto:a@b.test"}, ""}, {nil, ""},
		{[]string{"v=TLSRPTv1; rua=1,2,3,4,5,6,7"}, "1 2 3 4 5"},
	} {
		if got := strings.Join(Destinations(tt.records), " "); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.records, got, tt.want)
		}
	}
}

// TestBadDestinations has places that nothing is sent to.
func TestBadDestinations(t *testing.T) {
	t.Parallel()
	s := newSystem(t, t.TempDir(), "inside.test. A 127.0.0.1\nprivate.test. A 10.1.2.3\n", nil)
	r := s.compose("to.test", day, []*tally{{policy: stsOf, good: 1}})
	for uri, want := range map[string]string{
		"http://to.test/":                        "unknown scheme",
		"ftp://to.test/":                         "unknown scheme",
		"mailto:":                                "no address",
		"mailto:a@b.test%0d%0aBcc:c@d.test":      "no address",
		"mailto:a@b.test,c@d.test":               "no address",
		"https://inside.test/":                   webclient.ErrNotPublic.Error(),
		"https://private.test/":                  webclient.ErrNotPublic.Error(),
		"https://127.0.0.1:1/":                   webclient.ErrNotPublic.Error(),
		"https://[::1]:1/":                       webclient.ErrNotPublic.Error(),
		"https://[::ffff:10.0.0.1]:1/":           webclient.ErrNotPublic.Error(),
		"https://169.254.169.254/latest":         webclient.ErrNotPublic.Error(),
		"https://nowhere.test/":                  "nowhere.test",
		"https://to.test:port/":                  "port",
		"https://" + strings.Repeat("x", 300):    "xxx",
		string([]byte{'m', 0x7f, ':', 'x', '@'}): "first path segment",
	} {
		err := s.sendTo(t.Context(), r, uri, noon)
		if err == nil || !strings.Contains(err.Error(), want) && want != "first path segment" {
			t.Errorf("%q: %v, want %s", uri, err, want)
		}
	}
	if len(s.mails) > 0 {
		t.Errorf("%q", s.mails)
	}
	if s.opt.Client.Transport.(*http.Transport).TLSClientConfig.MinVersion < tls.VersionTLS12 {
		t.Error("old TLS")
	}
}

func FuzzDestinations(f *testing.F) {
	f.Add("v=TLSRPTv1; rua=mailto:a@b.test,https://x")
	f.Fuzz(func(t *testing.T, text string) {
		if list := Destinations([]string{text}); len(list) > maxDestinations {
			t.Error(list)
		}
	})
}
