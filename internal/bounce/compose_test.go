package bounce

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"mime"
	"mime/multipart"
	netmail "net/mail"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/testpeers"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const testMain = "myhostname = mx.example.org\nmydomain = example.org\nmyorigin = example.org\n" +
	"delay_warning_time = 4h\nmail_name = Posthaste\n"

func testConfig(t testing.TB, more string) *config.Config {
	t.Helper()
	cfg, err := config.LoadString(testMain + more)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func testComposer(t testing.TB, more string) *Composer {
	t.Helper()
	return NewComposer(testConfig(t, more), func(f string, a ...any) { t.Errorf("warning: "+f, a...) })
}

var arrival = time.Date(2026, 11, 20, 17, 56, 1, 0, time.UTC)

func testEnvelope() mail.Envelope {
	return mail.Envelope{ID: mail.MakeQueueID(arrival, 77), Arrival: arrival, Sender: "ann@client.test", Size: 120, EnvID: "run 7=x"}
}

const testMessage = "Received: from client.test\r\n\tby mx.example.org; Fri, 20 Nov 2026 17:56:01 +0000\r\n" +
	"From: ann@client.test\r\nMessage-Id: <m1@client.test>\r\nSubject: hello\r\n\r\nDear Bob,\r\n\r\n-- \r\nAnn\r\n"

func report(addr string, action dsn.Action, status dsn.Status, reason string) Report {
	return Report{Recipient: mail.Recipient{Address: addr}, Outcome: mail.Outcome{Action: action, Status: status, Reason: reason}}
}

func longReason() Report {
	r := report("bob@far.test", dsn.Failed, dsn.S(5, 1, 1),
		"host mail.far.test[192.0.2.7] said: 550 5.1.1 <bob@far.test>: Recipient address rejected: User unknown in virtual mailbox table (in reply to RCPT TO command)")
	r.Recipient.Original = "robert@example.org"
	r.Recipient.ORCPT = "rfc822;robert@example.org"
	r.Outcome.MTA = "mail.far.test"
	r.Outcome.DiagType, r.Outcome.DiagText = "smtp", "550 5.1.1 <bob@far.test>: Recipient address rejected: User unknown in virtual mailbox table"
	r.Outcome.Relay = "mail.far.test[192.0.2.7]:25"
	return r
}

func notices() map[string]*Notice {
	base := func(kind proto.NoticeKind, reports ...Report) *Notice {
		return &Notice{Kind: kind, ID: mail.MakeQueueID(arrival.Add(time.Minute), 78), Time: arrival.Add(time.Minute),
			To: "ann@client.test", Original: testEnvelope(), Reports: reports, Content: strings.NewReader(testMessage)}
	}
	failure := base(proto.NoticeFailure, longReason(), report(`odd name"@here.test`, dsn.Failed, dsn.S(5, 7, 1), "no"))
	expired := base(proto.NoticeExpired, report("carl@slow.test", dsn.Deferred, dsn.S(4, 4, 1), "connect to slow.test[192.0.2.9]:25: Connection timed out"))
	delay := base(proto.NoticeDelay, report("carl@slow.test", dsn.Deferred, dsn.S(4, 4, 1), "connect to slow.test[192.0.2.9]:25: Connection timed out"))
	delay.Return = dsn.RetHeaders
	local := report("dora@example.org", dsn.Delivered, dsn.S(2, 0, 0), "delivered to mailbox")
	local.Outcome.Relay = "local"
	success := base(proto.NoticeSuccess, local)
	success.Return = dsn.RetHeaders
	probe := report("erik@example.org", dsn.Deliverable, dsn.S(2, 0, 0), "delivers to mailbox")
	probe.Outcome.Relay = "local"
	trace := base(proto.NoticeTrace, probe, report("nix@example.org", dsn.Undeliverable, dsn.S(5, 1, 1), `unknown user: "nix"`))
	trace.Return = dsn.RetHeaders
	copyOf := base(proto.NoticeFailure, longReason())
	copyOf.Postmaster, copyOf.To, copyOf.Return = true, "postmaster", dsn.RetHeaders
	hostile := base(proto.NoticeFailure, report("x@y.test", dsn.Failed, dsn.S(5, 0, 0), "evil\r\nBcc: all@example.org\r\n\r\n\x00\xffbody\u0085"))
	hostile.Original.EnvID = "a\r\nX-Evil: 1"
	hostile.Reports[0].Recipient.ORCPT = "rfc822;x\r\nX-Evil: 2"
	hostile.Reports[0].Outcome.MTA = "h\r\nX-Evil: 3"
	utf8 := base(proto.NoticeFailure, report("søren@blå.test", dsn.Failed, dsn.S(5, 1, 1), "ukendt bruger: søren"))
	utf8.To, utf8.Original.Sender = "åse@client.test", "åse@client.test"
	utf8.Original.Body = mail.BodySMTPUTF8 | mail.BodyUTF8Addr | mail.BodyUTF8Hdr | mail.Body8Bit
	utf8.Content = strings.NewReader("From: åse@client.test\r\nSubject: blå\r\n\r\nå\r\n")
	ascii := base(proto.NoticeFailure, report("søren@blå.test", dsn.Failed, dsn.S(5, 1, 1), "ukendt bruger: søren"))
	return map[string]*Notice{"failure": failure, "expired": expired, "delay": delay, "success": success, "trace": trace,
		"postmaster": copyOf, "hostile": hostile, "smtputf8": utf8, "utf8-in-ascii": ascii}
}

func compose(t testing.TB, c *Composer, n *Notice) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := c.Compose(&b, n); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestGolden(t *testing.T) {
	c := testComposer(t, "")
	for name, n := range notices() {
		t.Run(name, func(t *testing.T) {
			got := compose(t, c, n)
			file := filepath.Join("testdata", name+".eml")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("differs from %s:\n%s", file, got)
			}
			checkLines(t, got)
		})
	}
}

// checkLines holds a notice to RFC 5322 section 2.1.1 and the form of content.
func checkLines(t rapidT, msg []byte) {
	t.Helper()
	if !bytes.HasSuffix(msg, []byte("\r\n")) {
		t.Errorf("does not end in CRLF")
	}
	for _, line := range bytes.Split(bytes.TrimSuffix(msg, []byte("\r\n")), []byte("\r\n")) {
		if len(line) > 998 {
			t.Errorf("line of %d octets", len(line))
		}
		if bytes.ContainsAny(line, "\r\n\x00") {
			t.Errorf("stray control character in %q", line)
		}
	}
}

type rapidT interface {
	Helper()
	Errorf(string, ...any)
	Fatalf(string, ...any)
}

// parsed is a notice as a mail reader sees it.
type parsed struct {
	Header map[string]string
	Types  []string
	Text   string
	Status []map[string]string
	Return string
}

func parse(t rapidT, msg []byte) parsed {
	t.Helper()
	m, err := netmail.ReadMessage(bytes.NewReader(msg))
	if err != nil {
		t.Fatalf("header: %v", err)
	}
	mediaType, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || mediaType != "multipart/report" {
		t.Fatalf("Content-Type %q: %v", mediaType, err)
	}
	p := parsed{Header: map[string]string{}}
	for k := range m.Header {
		p.Header[k] = m.Header.Get(k)
	}
	r := multipart.NewReader(m.Body, params["boundary"])
	for {
		part, err := r.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("part: %v", err)
		}
		body, err := io.ReadAll(part)
		if err != nil {
			t.Fatalf("part: %v", err)
		}
		p.Types = append(p.Types, strings.Fields(part.Header.Get("Content-Type"))[0])
		switch len(p.Types) {
		case 1:
			p.Text = string(body)
		case 2:
			p.Status = statusFields(t, params["report-type"], part.Header, body)
		case 3:
			p.Return = string(body)
		}
	}
	return p
}

func statusFields(t rapidT, reportType string, h textproto.MIMEHeader, body []byte) []map[string]string {
	t.Helper()
	if got := h.Get("Content-Type"); got != "message/"+reportType {
		t.Errorf("report-type=%s with a part of type %s", reportType, got)
	}
	var out []map[string]string
	for _, block := range strings.Split(strings.TrimRight(string(body), "\r\n"), "\r\n\r\n") {
		m, err := netmail.ReadMessage(strings.NewReader(block + "\r\n\r\n"))
		if err != nil {
			t.Fatalf("delivery status: %v in %q", err, block)
		}
		fields := map[string]string{}
		for k := range m.Header {
			fields[k] = m.Header.Get(k)
		}
		out = append(out, fields)
	}
	return out
}

func TestParsedByGo(t *testing.T) {
	t.Parallel()
	c := testComposer(t, "")
	n := notices()["failure"]
	p := parse(t, compose(t, c, n))
	if len(p.Types) != 3 || p.Types[1] != "message/delivery-status" || p.Types[2] != "message/rfc822" {
		t.Errorf("parts %q", p.Types)
	}
	if p.Return != "Return-Path: <ann@client.test>\r\n"+testMessage {
		t.Errorf("returned %q", p.Return)
	}
	if len(p.Status) != 3 {
		t.Fatalf("%d blocks of status", len(p.Status))
	}
	for field, want := range map[string]string{
		"Final-Recipient": "rfc822; bob@far.test", "Original-Recipient": "rfc822;robert@example.org", "Action": "failed",
		"Status": "5.1.1", "Remote-Mta": "dns; mail.far.test",
		"Diagnostic-Code": "smtp; 550 5.1.1 <bob@far.test>: Recipient address rejected: User unknown in virtual mailbox table",
	} {
		if got := strings.Join(strings.Fields(p.Status[1][field]), " "); got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
	if got := p.Status[0]["Original-Envelope-Id"]; got != "run 7=x" {
		t.Errorf("envelope id %q", got)
	}
	if got := p.Header["Auto-Submitted"]; got != "auto-replied" {
		t.Errorf("Auto-Submitted: %s", got)
	}
}

func TestHostileTextStaysInItsPlace(t *testing.T) {
	t.Parallel()
	msg := compose(t, testComposer(t, ""), notices()["hostile"])
	p := parse(t, msg)
	for _, m := range append(p.Status, p.Header) {
		for _, k := range []string{"Bcc", "X-Evil"} {
			if v, ok := m[k]; ok {
				t.Errorf("injected %s: %s", k, v)
			}
		}
	}
}

// TestParsedByPython gives every kind of notice to Python's email package.
func TestParsedByPython(t *testing.T) {
	t.Parallel()
	python := testpeers.Program(t, "python3")
	const script = `
import sys, json, email, email.policy
m = email.message_from_bytes(sys.stdin.buffer.read(), policy=email.policy.default)
parts = list(m.iter_parts())
status = [{k.lower(): " ".join(str(v).split()) for k, v in b.items()} for b in parts[1].get_payload()]
print(json.dumps({"type": m.get_content_type(), "report": m.get_param("report-type"),
  "types": [p.get_content_type() for p in parts], "status": status,
  "defects": [str(d) for p in m.walk() for d in p.defects], "text": parts[0].get_content()}))
`
	c := testComposer(t, "")
	for name, n := range notices() {
		if name == "smtputf8" {
			continue // Python's parser knows no message/global-delivery-status
		}
		cmd := exec.Command(python, "-c", script)
		cmd.Stdin = bytes.NewReader(compose(t, c, n))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got struct {
			Type, Report   string
			Types, Defects []string
			Status         []map[string]string
			Text           string
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		if got.Type != "multipart/report" || got.Report != "delivery-status" || len(got.Types) != 3 || len(got.Defects) != 0 {
			t.Errorf("%s: %+v", name, got)
		}
		if len(got.Status) != len(n.Reports)+1 {
			t.Fatalf("%s: %d status blocks for %d recipients", name, len(got.Status), len(n.Reports))
		}
		for i := range n.Reports {
			if got.Status[i+1]["status"] != n.Reports[i].Outcome.Status.String() {
				t.Errorf("%s: status %q", name, got.Status[i+1]["status"])
			}
		}
	}
}

func TestReturnedPart(t *testing.T) {
	t.Parallel()
	long := "X-Long: " + strings.Repeat("a ", 400) + "\r\n"
	for _, tt := range []struct {
		name, more, content string
		size                int64
		ret                 dsn.Ret
		want                string
	}{
		{"full", "", testMessage, 100, dsn.RetFull, testMessage},
		{"ret hdrs", "", testMessage, 100, dsn.RetHeaders, testMessage[:strings.Index(testMessage, "\r\n\r\n")+2]},
		{"too large", "bounce_size_limit = 99", "A: 1\r\n\r\nbody\r\n", 100, dsn.RetFull, "A: 1\r\n"},
		{"no body", "", "A: 1\r\n", 6, dsn.RetHeaders, "A: 1\r\n"},
		{"no header", "", "\r\nbody\r\n", 6, dsn.RetHeaders, ""},
		{"header over the limit ends at a field", "bounce_size_limit = 1000", long + "B: 2\r\n 3\r\n" + long + "C: 4\r\n\r\n", 5000, dsn.RetHeaders, long + "B: 2\r\n 3\r\n"},
		{"one endless field", "bounce_size_limit = 10", "A: 123456\r\n" + strings.Repeat(" bcdefg\r\n", 100), 5000, dsn.RetHeaders, "A: 123456\r\n bcdefg\r\n bcdefg\r\n"},
	} {
		n := notices()["failure"]
		n.Content, n.Original.Size, n.Return = strings.NewReader(tt.content), tt.size, tt.ret
		p := parse(t, compose(t, testComposer(t, tt.more), n))
		if want := "Return-Path: <ann@client.test>\r\n" + tt.want; p.Return != want {
			t.Errorf("%s: returned %q, want %q", tt.name, p.Return, want)
		}
	}
}

func TestThreaded(t *testing.T) {
	t.Parallel()
	n := notices()["failure"]
	p := parse(t, compose(t, testComposer(t, "enable_threaded_bounces = yes"), n))
	if p.Header["References"] != "<m1@client.test>" || p.Header["In-Reply-To"] != "<m1@client.test>" {
		t.Errorf("%q", p.Header)
	}
	n = notices()["failure"]
	n.Content = strings.NewReader("Message-Id: <a> <b\r\n\r\n")
	if p := parse(t, compose(t, testComposer(t, "enable_threaded_bounces = yes"), n)); p.Header["References"] != "" {
		t.Errorf("odd Message-Id repeated: %q", p.Header["References"])
	}
}

// TestAnyNotice is the composer's law: whatever strangers put in, the notice
// has three parts and one block of status for each recipient.
func TestAnyNotice(t *testing.T) {
	t.Parallel()
	c := testComposer(t, "")
	rapid.Check(t, func(t *rapid.T) {
		n := notices()["failure"]
		text := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom([]rune("a \r\n:;<>@\\\"ü\x00"))), rapid.Just(strings.Repeat("x", 3000)))
		n.Kind = proto.NoticeKind(rapid.IntRange(1, 5).Draw(t, "kind"))
		n.Postmaster = rapid.Bool().Draw(t, "postmaster")
		n.Original.Body = mail.Body(rapid.IntRange(0, 63).Draw(t, "body"))
		n.Original.EnvID = text.Draw(t, "envid")
		address := rapid.OneOf(text, rapid.Just(strings.Repeat("\"", 980)+"@a.test"), rapid.Just(strings.Repeat("ü", 450)+"@a.test"), rapid.Just(strings.Repeat("x", 980)+"@a.test"))
		n.To, n.Original.Sender = address.Draw(t, "to"), address.Draw(t, "sender")
		n.Reports = nil
		for range rapid.IntRange(1, 4).Draw(t, "n") {
			r := report(text.Draw(t, "addr"), dsn.Failed, dsn.S(5, 0, 0), text.Draw(t, "reason"))
			r.Recipient.ORCPT, r.Recipient.Original = text.Draw(t, "orcpt"), text.Draw(t, "orig")
			r.Outcome.MTA, r.Outcome.DiagType, r.Outcome.DiagText = text.Draw(t, "mta"), "smtp", text.Draw(t, "diag")
			n.Reports = append(n.Reports, r)
		}
		var b bytes.Buffer
		if err := c.Compose(&b, n); err != nil {
			t.Fatal(err)
		}
		checkLines(t, b.Bytes())
		p := parse(t, b.Bytes())
		if len(p.Types) != 3 || len(p.Status) != len(n.Reports)+1 {
			t.Fatalf("%d parts, %d blocks for %d recipients", len(p.Types), len(p.Status), len(n.Reports))
		}
	})
}

func BenchmarkCompose(b *testing.B) {
	c := testComposer(b, "")
	n := notices()["failure"]
	b.ReportAllocs()
	for b.Loop() {
		n.Content = strings.NewReader(testMessage)
		c.Compose(io.Discard, n)
	}
}
