package cleanup

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// plainRewriter is the address service with the usual configuration of
// example.org: enough for addresses without a domain.
type plainRewriter struct{}

func (plainRewriter) Rewrite(_ context.Context, rewriteContext, addr string) (string, error) {
	origin := "example.org"
	if rewriteContext == "remote" {
		origin = "remote.invalid"
	}
	switch {
	case addr == "", addr == "@":
		return "", nil
	case strings.HasPrefix(addr, "fail"):
		return "", fmt.Errorf("rewrite service is down")
	case strings.HasPrefix(addr, "@") && strings.Contains(addr, ":"):
		addr = addr[strings.Index(addr, ":")+1:]
	case !strings.Contains(addr, "@"):
		addr += "@" + origin
	}
	return strings.TrimSuffix(addr, "."), nil
}

const baseConfig = `
compatibility_level = 3.6
myhostname = mx.example.org
mydomain = example.org
myorigin = example.org
mydestination = example.org
inet_interfaces = 127.0.0.1
recipient_delimiter = +
virtual_alias_maps =
mynetworks = 127.0.0.0/8
`

func newCore(t testing.TB, conf string, warn func(string)) *Core {
	t.Helper()
	cfg, err := config.LoadString(baseConfig + conf)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCore(cfg, plainRewriter{}, table.Options{Warn: warn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

var arrival = time.Date(2026, 11, 20, 17, 56, 1, 0, time.UTC)

func submission(context string, rcpts ...string) *proto.Submit {
	s := &proto.Submit{
		Flags: proto.SubmitFilter | proto.SubmitBCC | proto.SubmitMap,
		Envelope: mail.Envelope{
			ID:             "4XyZ0000000000z1",
			Arrival:        arrival,
			Sender:         "s@a.test",
			RewriteContext: context,
			Client:         mail.Client{Name: "client.test", Addr: "192.0.2.1", Helo: "helo.test", Proto: "ESMTP"},
		},
	}
	for _, r := range rcpts {
		s.Envelope.Recipients = append(s.Envelope.Recipients, mail.Recipient{Address: r})
	}
	return s
}

// feed puts content through in pieces of step bytes; 0 is all at once. As the
// server does, it stores what it gets back and then uses the piece's memory again.
func feed(c *Core, s *proto.Submit, content string, step int) (string, Result) {
	ctx := context.Background()
	m := c.NewMessage(ctx, s)
	var stored []byte
	if step == 0 {
		step = len(content) + 1
	}
	for i := 0; i < len(content); i += step {
		p := []byte(content[i:min(i+step, len(content))])
		stored = append(stored, bytes.Join(m.Write(ctx, p, nil), nil)...)
		clear(p)
	}
	out, r := m.Finish(ctx, nil)
	return string(append(stored, bytes.Join(out, nil)...)), r
}

func crlfText(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

const remoteMail = "Received: from helo.test\n\tby mx.example.org; Fri, 20 Nov 2026 17:56:01 +0000\n" +
	"From: a@b.test\nTo: c@d.test\nSubject: hello\n world\nMessage-ID: <1@b.test>\n\nbody\n.dot\n"

func TestPassThroughDoesNotCopy(t *testing.T) {
	t.Parallel()
	c := newCore(t, "", nil)
	ctx := context.Background()
	p := []byte(crlfText(remoteMail))
	m := c.NewMessage(ctx, submission("remote", "c@d.test"))
	out := m.Write(ctx, p, nil)
	out, r := m.Finish(ctx, out)
	if r.Refused != nil {
		t.Fatal(r.Refused)
	}
	if len(out) != 1 || &out[0][0] != &p[0] || len(out[0]) != len(p) {
		t.Fatalf("got %d pieces, want the one given", len(out))
	}
	if want := int64(len(crlfText(remoteMail))); r.Envelope.Size != want {
		t.Errorf("size %d, want %d", r.Envelope.Size, want)
	}
	if r.Envelope.Body != mail.BodyDots|mail.BodyGauged {
		t.Errorf("body flags %b", r.Envelope.Body)
	}
	if r.MessageID != "<1@b.test>" {
		t.Errorf("message id %q", r.MessageID)
	}
	want := mail.Recipient{Address: "c@d.test", ORCPT: "rfc822;c@d.test"}
	if len(r.Envelope.Recipients) != 1 || r.Envelope.Recipients[0] != want {
		t.Errorf("recipients %+v", r.Envelope.Recipients)
	}
	if len(r.Log) != 1 || r.Log[0].String() != "4XyZ0000000000z1: message-id=<1@b.test>" {
		t.Errorf("log %+v", r.Log)
	}
}

// TestContent compares what is stored with golden text.
func TestContent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, conf, context, in, out string
		flags                        proto.SubmitFlags
	}{
		{name: "remote header is not touched", context: "remote",
			in:  "From: joe\nTo: Fred <fred>, x@y.z\n\nx\n",
			out: "From: joe\nTo: Fred <fred>, x@y.z\n\nx\n"},
		{name: "remote with a domain for it", context: "remote", conf: "remote_header_rewrite_domain = domain.invalid\nalways_add_missing_headers = no\n",
			in:  "From: joe\nDate: x\nMessage-Id: <a>\nTo: y@z.w\n\nx\n",
			out: "From: joe@remote.invalid\nDate: x\nMessage-Id: <a>\nTo: y@z.w\n\nx\n"},
		{name: "local header is completed", context: "local",
			in: "Subject: x\n\nx\n",
			out: "Subject: x\nMessage-Id: <4XyZ0000000000z1@mx.example.org>\nDate: Fri, 20 Nov 2026 17:56:01 +0000 (UTC)\n" +
				"From: s@a.test\n\nx\n"},
		{name: "resent", context: "local",
			in: "Resent-To: joe\nFrom: a@b.c\nMessage-Id: <q@b.c>\n\nx\n",
			out: "Resent-To: joe@example.org\nFrom: a@b.c\nMessage-Id: <q@b.c>\nResent-Message-Id: <4XyZ0000000000z1@mx.example.org>\n" +
				"Resent-Date: Fri, 20 Nov 2026 17:56:01 +0000 (UTC)\nResent-From: s@a.test\n\nx\n"},
		{name: "dropped fields", context: "remote",
			in:  "Bcc: secret@x.y\nReturn-Path: <a@b>\ncontent-length: 12\nFrom: a@b.c\n\nx\n",
			out: "From: a@b.c\n\nx\n"},
		{name: "undisclosed", context: "local", conf: "undisclosed_recipients_header = To: undisclosed-recipients:;\n",
			in:  "From: a@b.c\nDate: x\nMessage-Id: <q@b.c>\n\nx\n",
			out: "From: a@b.c\nDate: x\nMessage-Id: <q@b.c>\nTo: undisclosed-recipients:;\n\nx\n"},
		{name: "rewriting keeps the rest", context: "local",
			in:  "From: \"J. Doe\" <joe> (work)\nDate: x\nMessage-Id: <q@b.c>\nTo: Friends: a b,\n\tc@d.e, <@x,@y:f@g.h>;\n\nx\n",
			out: "From: \"J. Doe\" <joe@example.org> (work)\nDate: x\nMessage-Id: <q@b.c>\nTo: Friends: a@example.org, b@example.org, c@d.e, <f@g.h>;\n\nx\n"},
		{name: "space before the colon", context: "remote", in: "Subject : x\n\nx\n", out: "Subject: x\n\nx\n"},
		{name: "garbage ends the header", context: "remote", in: "Subject: x\nthis is no header\nmore\n", out: "Subject: x\n\nthis is no header\nmore\n"},
		{name: "no body", context: "remote", in: "Subject: x\n", out: "Subject: x\n"},
		{name: "no header", context: "remote", in: "\nbody\n", out: "\nbody\n"},
		{name: "last line is ended", context: "remote", in: "Subject: x\n\nbody", out: "Subject: x\n\nbody\n"},
		{name: "empty", context: "remote", in: "", out: ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCore(t, tc.conf, nil)
			s := submission(tc.context, "r@example.net")
			s.Flags |= tc.flags
			got, r := feed(c, s, crlfText(tc.in), 0)
			if r.Refused != nil {
				t.Fatal(r.Refused)
			}
			if want := crlfText(tc.out); got != want {
				t.Errorf("got\n%q\nwant\n%q", got, want)
			}
			if want := int64(len(got)); r.Envelope.Size != want {
				t.Errorf("size %d, want %d", r.Envelope.Size, want)
			}
			for _, step := range []int{1, 2, 7} {
				if again, ra := feed(c, s, crlfText(tc.in), step); again != got || ra.Envelope.Size != r.Envelope.Size {
					t.Errorf("in pieces of %d: %q", step, again)
				}
			}
		})
	}
}

func TestStray(t *testing.T) {
	t.Parallel()
	in := "Subject: a\nBcc: b\r\n\r\none\rtwo\r\nthree\n.\nfour\r\n"
	c := newCore(t, "", nil)
	got, r := feed(c, submission("remote", "r@x.y"), in, 0)
	if want := "Subject: a Bcc: b\r\n\r\none two\r\nthree . four\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if r.Envelope.Size != int64(len(got)) {
		t.Errorf("size %d of %q", r.Envelope.Size, got)
	}
	c = newCore(t, "cleanup_replace_stray_cr_lf = no\n", nil)
	got, r = feed(c, submission("remote", "r@x.y"), in, 0)
	if want := "Subject: a Bcc: b\r\n\r\none\r\ntwo\r\nthree\r\n.\r\nfour\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if r.Envelope.Body&mail.BodyDots == 0 {
		t.Error("the dot was not seen")
	}
}

// TestStrayByLine: where lines are looked at, what is looked at is what is stored: a line with spaces for stray octets, or several
// lines. Characters that are not wanted are taken out before.
func TestStrayByLine(t *testing.T) {
	t.Parallel()
	in := "Subject: a\r\n\r\none\rtwo\r\nthree\n.\nfour\r\nz\rfive\nz"
	for replace, want := range map[string]struct{ out, lines string }{
		"yes": {"Subject: a\r\n\r\none two\r\nthree . four\r\n five \r\n", "one two|three . four| five "},
		"no":  {"Subject: a\r\n\r\none\r\ntwo\r\nthree\r\n.\r\nfour\r\n\r\nfive\r\n", "one|two|three|.|four|five"},
	} {
		c := newCore(t, "cleanup_replace_stray_cr_lf = "+replace+"\nbody_checks = static:WARN\nmessage_strip_characters = z\n", nil)
		for _, step := range []int{0, 1, 2, 7} {
			got, r := feed(c, submission("remote", "r@x.y"), in, step)
			var lines []string
			for _, l := range r.Log[1:] {
				_, text, _ := strings.Cut(l.String(), "warning: body ")
				text, _, _ = strings.Cut(text, " from client.test")
				lines = append(lines, text)
			}
			if out := strings.Join(lines, "|"); got != want.out || out != want.lines {
				t.Errorf("%s, in pieces of %d: got %q, want %q; looked at %q, want %q", replace, step, got, want.out, out, want.lines)
			}
			if r.Envelope.Size != int64(len(got)) {
				t.Errorf("size %d of %q", r.Envelope.Size, got)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, conf, in string
		want           refusal
	}{
		{"hops", "hopcount_limit = 3\n", "Received: 1\nReceived: 2\nReceived: 3\n\n", refusal{Code: 554, Status: dsn.S(5, 4, 0), Text: "Error: too many hops"}},
		{"size", "message_size_limit = 10\n", "Subject: 12345\n\n", refusal{Code: 552, Status: dsn.S(5, 3, 4), Text: "Error: message file too big"}},
		{"rewrite service", "", "From: fail\n\n", refusal{Code: 451, Status: dsn.S(4, 3, 0), Text: "Error: queue file write error", Cause: "address rewriting: rewrite service is down"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, r := feed(newCore(t, tc.conf, nil), submission("local", "r@x.y"), crlfText(tc.in), 0)
			if r.Refused == nil || *r.Refused != tc.want {
				t.Errorf("got %+v, want %+v", r.Refused, tc.want)
			}
		})
	}
	_, r := feed(newCore(t, "", nil), submission("local"), "\r\n", 0)
	if r.Refused == nil || r.Refused.Code != 550 {
		t.Errorf("no recipients: %+v", r.Refused)
	}
	// Two hops are fine when three are not.
	if _, r := feed(newCore(t, "hopcount_limit = 3\n", nil), submission("remote", "r@x.y"), "Received: 1\r\nReceived: 2\r\n\r\n", 0); r.Refused != nil {
		t.Error(r.Refused)
	}
}

func TestHeaderSizeLimit(t *testing.T) {
	t.Parallel()
	c := newCore(t, "header_size_limit = 100\n", nil)
	in := "Subject: " + strings.Repeat("x", 300) + "\r\n\t" + strings.Repeat("y", 50) + "\r\nTo: a@b.c\r\n\r\nbody\r\n"
	want, _ := feed(c, submission("remote", "r@x.y"), in, 0)
	if !strings.HasPrefix(want, "Subject: "+strings.Repeat("x", 91)+"\r\nTo: a@b.c\r\n") {
		t.Errorf("got %q", want)
	}
	for step := 1; step < 120; step++ {
		if got, _ := feed(c, submission("remote", "r@x.y"), in, step); got != want {
			t.Fatalf("pieces of %d: %q", step, got)
		}
	}
}

func TestPrependAndFullName(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ conf, name, want string }{
		{"", "Joe User", "From: Joe User <s@a.test>\r\n"},
		{"", "Joe Q. User", "From: \"Joe Q. User\" <s@a.test>\r\n"},
		{"header_from_format = obsolete\n", "Joe (x)", "From: s@a.test (Joe \\(x\\))\r\n"},
		{"", "J\u00f6", "From: =?utf-8?q?J=C3=B6?= <s@a.test>\r\n"},
	} {
		s := submission("local", "r@x.y")
		s.FullName = tc.name
		s.Prepend = []string{"X-One: 1", "X-Two: a\n b"}
		got, _ := feed(newCore(t, tc.conf, nil), s, "Date: x\r\nMessage-Id: <a@b>\r\nTo: r@x.y\r\n\r\nx\r\n", 3)
		if want := "X-One: 1\r\nX-Two: a\r\n b\r\nDate: x\r\nMessage-Id: <a@b>\r\nTo: r@x.y\r\n" + tc.want + "\r\nx\r\n"; got != want {
			t.Errorf("%s: got %q, want %q", tc.name, got, want)
		}
	}
}

func BenchmarkPassThrough(b *testing.B) {
	c := newCore(b, "", nil)
	var in bytes.Buffer
	in.WriteString(crlfText(remoteMail[:len(remoteMail)-11]))
	for in.Len() < 10240 {
		in.WriteString("The quick brown fox jumps over the lazy dog and goes on for a while like this.\r\n")
	}
	p := in.Bytes()
	s := submission("remote", "c@d.test")
	ctx := context.Background()
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	var out [][]byte
	for b.Loop() {
		m := c.NewMessage(ctx, s)
		out = m.Write(ctx, p, out[:0])
		var r Result
		if out, r = m.Finish(ctx, out); r.Refused != nil {
			b.Fatal(r.Refused)
		}
	}
}

func BenchmarkLocal(b *testing.B) {
	c := newCore(b, "virtual_alias_maps = inline:{v@example.org=w@example.org}\ncanonical_maps=inline:{q@example.org=z@example.org}\n", nil)
	var in bytes.Buffer
	in.WriteString(crlfText(remoteMail[:len(remoteMail)-11]))
	for in.Len() < 10240 {
		in.WriteString("The quick brown fox jumps over the lazy dog and goes on for a while like this.\r\n")
	}
	p := in.Bytes()
	s := submission("local", "c@d.test")
	ctx := context.Background()
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	var out [][]byte
	for b.Loop() {
		m := c.NewMessage(ctx, s)
		out = m.Write(ctx, p, out[:0])
		var r Result
		if out, r = m.Finish(ctx, out); r.Refused != nil {
			b.Fatal(r.Refused)
		}
	}
}

// largeAlias is a core with an alias of so many members, all@d.test.
func largeAlias(t testing.TB, members int) *Core {
	t.Helper()
	var list strings.Builder
	for i := range members {
		fmt.Fprintf(&list, "member%d@list%d.test, ", i, i%100)
	}
	file := filepath.Join(t.TempDir(), "virtual")
	if err := os.WriteFile(file, []byte("all@d.test "+list.String()+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return newCore(t, "virtual_alias_maps = texthash:"+file+"\nvirtual_alias_expansion_limit = 60000\n", nil)
}

// No member of a long list is left out.
func TestLargeAlias(t *testing.T) {
	t.Parallel()
	const members = 5000
	if _, r := feed(largeAlias(t, members), submission("remote", "all@d.test"), "Subject: s\r\n\r\nbody\r\n", 0); len(r.Envelope.Recipients) != members {
		t.Errorf("%d recipients, want %d", len(r.Envelope.Recipients), members)
	}
}

// A list of 50,000 members, from one virtual alias.
func BenchmarkLargeAlias(b *testing.B) {
	const members = 50000
	c := largeAlias(b, members)
	s := submission("remote", "all@d.test")
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		m := c.NewMessage(ctx, s)
		out := m.Write(ctx, []byte("Subject: s\r\n\r\nbody\r\n"), nil)
		_, r := m.Finish(ctx, out)
		if r.Refused != nil || len(r.Envelope.Recipients) != members {
			b.Fatal(r.Refused, len(r.Envelope.Recipients))
		}
	}
}
