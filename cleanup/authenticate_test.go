package cleanup

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/spool"
	"posthaste/internal/table"
)

// logText is a log that can be read.
type logText struct {
	mu sync.Mutex
	b  strings.Builder
	l  *maillog.Logger
}

func (t *logText) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *logText) String() string {
	t.l.Flush()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// newTestServer is a server without sockets, over a spool of its own.
func newTestServer(t testing.TB, main string, zone string) (*server, *logText) {
	t.Helper()
	cfg, err := config.LoadString(baseConfig + main)
	if err != nil {
		t.Fatal(err)
	}
	log := new(logText)
	logger := maillog.New("postfix/cleanup", maillog.NewWriter(log, maillog.Format(0)))
	log.l = logger
	core := newCore(t, main, func(text string) { logger.Warning("%s", text) })
	sp, err := spool.Open(spool.Options{Dir: t.TempDir(), SegmentSize: 1 << 20, InlineLimit: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	z, err := fakezone.Parse(zone)
	if err != nil {
		t.Fatal(err)
	}
	dns := z.Resolver()
	a, err := newAuthenticator(cfg, dns, table.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t.Context(), serverOptions{Core: core, Engine: logEngine{Spool: sp}, Log: logger, Token: func() bool { return true }, BufferLimit: 1 << 20, Authenticator: a})
	t.Cleanup(func() { s.Wait(); dns.Close(); sp.Close() })
	return s, log
}

// begun is a message that has its envelope.
func begun(s *server, q *proto.Submit) *incoming {
	in := s.incomings.Get()
	in.q = *q
	in.begin()
	return in
}

// stored is what would be queued of a message, and the verdict.
func stored(t *testing.T, s *server, q *proto.Submit) (string, *Result) {
	t.Helper()
	in := begun(s, q)
	defer in.abort()
	in.write(q.Content)
	var res Result
	in.out, res = in.msg.Finish(context.Background(), in.out[:0])
	in.store()
	in.authenticate(&res)
	if in.fault != nil {
		t.Fatal(in.fault)
	}
	c, err := in.content()
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, c.BodySize)
	if _, err := c.Body.ReadAt(body, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	text := string(headerBytes(c.Fields)) + "\r\n" + string(body)
	if got := int64(len(text)); res.Envelope.Size != got && c.BodySize > 0 {
		t.Errorf("the envelope says %d octets, there are %d", res.Envelope.Size, got)
	}
	return text, &res
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	s, log := newTestServer(t, "mail_authentication = check\nauthserv_id = mx.test\ndmarc_reject = yes\nmynetworks = 127.0.0.0/8\n", `
good.test. 60 IN TXT "v=spf1 ip4:192.0.2.1 -all"
_dmarc.good.test. 60 IN TXT "v=DMARC1; p=reject"
`)
	const lie = "Authentication-Results: MX.test; spf=pass\r\n"
	const other = "Authentication-Results: other.test; spf=pass\r\n"
	long := strings.Repeat(strings.Repeat("x", 70)+"\r\n", 500)
	submit := func(client, user, from, body string) (string, *Result) {
		return stored(t, s, &proto.Submit{Flags: proto.SubmitFilter | proto.SubmitNoReceive, Content: []byte("Received: x\r\n" + lie + other + "From: <" + from + ">\r\n\r\n" + body),
			Envelope: mail.Envelope{ID: mail.MakeQueueID(time.Unix(1, 0), 1), Sender: from, RewriteContext: "remote", SASL: mail.SASL{Username: user},
				Client: mail.Client{Name: "c.test", Addr: client, Helo: "h.test", Proto: "ESMTP"}, Recipients: []mail.Recipient{{Address: "r@here.test"}}}})
	}
	for _, body := range []string{"body\r\n.dot\r\n", long} {
		text, res := submit("192.0.2.1", "", "a@good.test", body)
		want := "Authentication-Results: mx.test;\r\n\tspf=pass smtp.mailfrom=a@good.test;\r\n\tdkim=none;\r\n\tdmarc=pass (p=reject) header.from=good.test\r\n" +
			"Received: x\r\n" + other + "From: <a@good.test>\r\n\r\n" + body
		if text != want || res.Refused != nil {
			t.Errorf("stored\n%.600s\nwant\n%.600s\nrefused %v", text, want, res.Refused)
		}
		if dots := res.Envelope.Body&mail.BodyDots != 0; dots != (body != long) {
			t.Errorf("lines with dots: %t", dots)
		}
	}
	if _, res := submit("192.0.2.9", "", "a@good.test", "x\r\n"); res.Refused == nil || res.Refused.Code != 550 || res.Refused.Status.String() != "5.7.26" {
		t.Errorf("forged: %v", res.Refused)
	}
	if want := ": reject: END-OF-MESSAGE from c.test[192.0.2.9]: 5.7.26 Error: good.test does not authorize this message: DMARC policy is reject; from=<a@good.test> to=<r@here.test> proto=ESMTP helo=<h.test>\n"; !strings.Contains(log.String(), want) {
		t.Errorf("log\n%s\nlacks %q", log.String(), want)
	}
	// Our own people are not asked for papers. But users are not us.
	for _, c := range []struct{ addr, user, top string }{{"127.0.0.1", "", lie}, {"127.0.0.1", "joe", lie}, {"192.0.2.9", "joe", ""}, {"", "", lie}} {
		if text, res := submit(c.addr, c.user, "a@good.test", "x\r\n"); res.Refused != nil || !strings.HasPrefix(text, "Received: x\r\n"+c.top+other) {
			t.Errorf("%v: changed or refused (%v):\n%s", c, res.Refused, text)
		}
	}
}

// While it cannot be found out whether the network is exempt nobody's mail from there is taken unchecked, a user's
// neither: the client is told to come back. What comes from here is not asked about.
func TestAuthenticateTableFails(t *testing.T) {
	t.Parallel()
	s, log := newTestServer(t, "mail_authentication = check\nmail_authentication_exempt_networks = fail:x\n", "")
	for _, tc := range []struct {
		addr, user string
		later      bool
	}{{"192.0.2.9", "", true}, {"192.0.2.9", "joe", true}, {"", "", false}} {
		_, res := stored(t, s, &proto.Submit{Flags: proto.SubmitFilter, Content: []byte("From: <a@good.test>\r\n\r\nx\r\n"),
			Envelope: mail.Envelope{ID: mail.MakeQueueID(time.Unix(1, 0), 1), Sender: "a@good.test", RewriteContext: "remote", SASL: mail.SASL{Username: tc.user},
				Client: mail.Client{Name: "c.test", Addr: tc.addr, Helo: "h.test", Proto: "ESMTP"}, Recipients: []mail.Recipient{{Address: "r@here.test"}}}})
		if later := res.Refused != nil && res.Refused.Code/100 == 4; later != tc.later || !later && res.Refused != nil {
			t.Errorf("from %q, user %q: %+v", tc.addr, tc.user, res.Refused)
		}
	}
	if !strings.Contains(log.String(), "mail_authentication_exempt_networks") {
		t.Errorf("the log does not name the table:\n%s", log)
	}
}

// Mail that fails DMARC is taken where the chain of a forwarder vouches for it whom arc_trusted_sealers
// names, and of nobody else; a chain that was tampered with, or is not whole, vouches for nothing.
func TestAuthenticateARC(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile("../internal/mailauth/testdata/arc/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	zone := "_dmarc.author.test. 60 IN TXT \"v=DMARC1; p=reject\"\ns1._domainkey.lists.test. 60 IN TXT \"v=DKIM1; k=rsa; p=" + read("k.pub") + "\"\n"
	one := read("one.eml")
	for _, tt := range []struct{ what, trusted, text, result string }{
		{"trusted", "Lists.TEST", one, "arc=pass header.d=lists.test"},
		{"one of several", "other.test, lists.test", one, "arc=pass header.d=lists.test"},
		{"not trusted", "", one, ""},
		{"another is trusted", "other.test", one, ""},
		{"changed", "lists.test", strings.Replace(one, "footer", "advertisement", 1), ""},
		{"forged", "lists.test", strings.Replace(one, "dmarc=pass", "dmarc=pass (so we say)", 1), ""},
		{"truncated", "lists.test", strings.Replace(one, "ARC-Message-Signature:", "X-Signature:", 1), ""},
		{"of another author", "lists.test", strings.Replace(one, "joe@author.test", "eve@author.test", 1), ""},
	} {
		s, log := newTestServer(t, "mail_authentication = check\nauthserv_id = mx.test\ndmarc_reject = yes\nmynetworks = 127.0.0.0/8\narc_trusted_sealers = "+tt.trusted+"\n", zone)
		text, res := stored(t, s, &proto.Submit{Flags: proto.SubmitFilter | proto.SubmitNoReceive, Content: []byte(tt.text), Envelope: mail.Envelope{ID: mail.MakeQueueID(time.Unix(1, 0), 1), Sender: "list@lists.test",
			RewriteContext: "remote", Client: mail.Client{Name: "c.test", Addr: "192.0.2.1", Helo: "h.test", Proto: "ESMTP"}, Recipients: []mail.Recipient{{Address: "r@here.test"}}}})
		if vouched := tt.result != ""; vouched != (res.Refused == nil) || vouched && !strings.Contains(text, "\tdmarc=fail (p=reject) header.from=author.test;\r\n\t"+tt.result+"\r\n") {
			t.Errorf("%s: refused %v\n%.400s", tt.what, res.Refused, text)
		}
		if (res.Refused != nil) != strings.Contains(log.String(), "5.7.26 Error: author.test does not authorize this message") {
			t.Errorf("%s: the log has\n%s", tt.what, log.String())
		}
	}
}

// TestManyFields has a message of nothing but header fields: it is refused for
// good before lists of them are made.
func TestManyFields(t *testing.T) {
	t.Parallel()
	s, _ := newTestServer(t, "mail_authentication = check\nauthserv_id = mx.test\nmynetworks = 127.0.0.0/8\n", "")
	for n, want := range map[int]int{maxFields / 2: 0, maxFields + 1: 552} {
		in := begun(s, &proto.Submit{Flags: proto.SubmitNoReceive, Envelope: mail.Envelope{ID: mail.MakeQueueID(time.Unix(1, 0), 1),
			Sender: "a@b.test", RewriteContext: "remote", Client: mail.Client{Name: "c.test", Addr: "192.0.2.1", Proto: "ESMTP"},
			Recipients: []mail.Recipient{{Address: "r@here.test"}}}})
		in.write([]byte(strings.Repeat("a:\r\n", n) + "\r\nbody\r\n"))
		_, err := in.content()
		code := 0
		if err != nil {
			code = s.storageReply("x", err).Code
		}
		if code != want {
			t.Errorf("%d fields: %d, want %d (%v)", n, code, want, err)
		}
		in.abort()
	}
}

func TestAuthenticateOff(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString(baseConfig)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := newAuthenticator(cfg, nil, table.Options{}); a != nil || err != nil {
		t.Errorf("checks by default: %v, %v", a, err)
	}
}

// What was found on mail from strangers, and what was done with it, is counted for reports; mail of
// domains that want none, and of users and clients that are not checked, is not.
func TestDMARCReports(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, reject := range []string{"yes", "no"} {
		s, _ := newTestServer(t, "mail_authentication = check\nauthserv_id = mx.test\ndmarc_report_enable = yes\ndata_directory = "+dir+"/"+reject+"\ndmarc_reject = "+reject+"\nmynetworks = 127.0.0.0/8\n", `
good.test. 60 IN TXT "v=spf1 ip4:192.0.2.1 -all"
_dmarc.good.test. 60 IN TXT "v=DMARC1; p=reject; rua=mailto:d@good.test"
trial.test. 60 IN TXT "v=spf1 -all"
_dmarc.trial.test. 60 IN TXT "v=DMARC1; p=reject; t=y; rua=mailto:d@trial.test"
_dmarc.quiet.test. 60 IN TXT "v=DMARC1; p=none"
`)
		a := s.opt.Authenticator
		if err := os.Mkdir(filepath.Join(dir, reject), 0o700); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.LoadString(baseConfig + "dmarc_report_enable = yes\ndata_directory = " + dir + "/" + reject + "\n")
		if err != nil {
			t.Fatal(err)
		}
		if err := a.openReports(cfg, s.opt.Log, nil); err != nil {
			t.Fatal(err)
		}
		for _, m := range []struct{ client, from, subject string }{
			{"192.0.2.1", "good.test", "x"}, {"192.0.2.9", "good.test", "x"}, {"192.0.2.9", "trial.test", "Report Domain: x Submitter: y Report-ID: <1>"},
			{"192.0.2.9", "quiet.test", "x"}, {"127.0.0.1", "good.test", "x"},
		} {
			stored(t, s, &proto.Submit{Envelope: mail.Envelope{Sender: "joe@" + m.from, Client: mail.Client{Name: "c.test", Addr: m.client, Helo: "c.test"},
				Recipients: []mail.Recipient{{Address: "ann@here.test"}}}, Content: []byte("From: joe@" + m.from + "\r\nSubject: " + m.subject + "\r\n\r\nx\r\n")})
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a.reports.Run(ctx) // which writes what was counted
		files, err := filepath.Glob(filepath.Join(dir, reject, "dmarc", "*.log"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		text, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		failed := map[string]string{"yes": `"disposition":"reject"`, "no": `"disposition":"none","reason":"local_policy"`}[reject]
		for _, part := range []string{`"source":"192.0.2.1","disposition":"pass","spf":true`, failed, `"reason":"policy_test_mode"`, `"quiet":true`} {
			if !strings.Contains(string(text), part) {
				t.Errorf("dmarc_reject = %s: there is no %s in\n%s", reject, part, text)
			}
		}
		if n := strings.Count(string(text), "\n"); n != 3 || strings.Count(string(text), `"quiet":true`) != 1 || strings.Contains(string(text), "ann") || strings.Contains(string(text), "joe") {
			t.Errorf("%d lines:\n%s", n, text)
		}
	}
}
