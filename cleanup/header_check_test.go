package cleanup

import (
	"strings"
	"testing"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

const from = " from client.test[192.0.2.1]; from=<s@a.test> to=<r@x.y> proto=ESMTP helo=<helo.test>"

func TestActions(t *testing.T) {
	t.Parallel()
	reject := func(code int, s dsn.Status, text string) *refusal { return &refusal{Code: code, Status: s, Text: text} }
	for _, tc := range []struct {
		name, action string
		out          string // the header that is left; "" means unchanged
		log          string // without queue ID; "w:" before warnings
		refused      *refusal
		check        func(r *Result) bool
	}{
		{name: "reject", action: "REJECT no bad mail", log: "reject: header Subject: bad" + from + ": 5.7.1 no bad mail", refused: reject(550, dsn.S(5, 7, 1), "no bad mail")},
		{name: "reject without text", action: "reject", log: "reject: header Subject: bad" + from + ": 5.7.1 message content rejected", refused: reject(550, dsn.S(5, 7, 1), "message content rejected")},
		{name: "reject with code", action: "REJECT 5.7.9 no", log: "reject: header Subject: bad" + from + ": 5.7.9 no", refused: reject(550, dsn.S(5, 7, 9), "no")},
		{name: "reject for now", action: "REJECT 4.7.9 later", log: "reject: header Subject: bad" + from + ": 4.7.9 later", refused: reject(451, dsn.S(4, 7, 9), "later")},
		{name: "reject as if it were good", action: "REJECT 2.7.9 no", log: "w:bad DSN action in 2.7.9 no -- need 4.x.x or 5.x.x|reject: header Subject: bad" + from + ": 4.7.9 no",
			refused: reject(451, dsn.S(4, 7, 9), "no")},
		{name: "warn", action: "WARN hm", log: "warning: header Subject: bad" + from + ": hm"},
		{name: "info", action: "INFO", log: "info: header Subject: bad" + from},
		{name: "dunno", action: "DUNNO"},
		{name: "ok", action: "OK whatever"},
		{name: "ignore", action: "IGNORE", out: "-"},
		{name: "strip", action: "STRIP it", out: "-", log: "strip: header Subject: bad" + from + ": it"},
		{name: "prepend", action: "PREPEND X-A: b", out: "X-A: b\r\nSubject: bad\r\n", log: "prepend: header Subject: bad" + from + ": X-A: b"},
		{name: "prepend no header", action: "PREPEND ab", log: `w:bad PREPEND header text "ab" in header_checks map -- need "headername: headervalue"`},
		{name: "prepend nothing", action: "PREPEND", log: "w:PREPEND action without text in header_checks map"},
		{name: "replace by nothing", action: "REPLACE", log: "w:REPLACE action without text in header_checks map"},
		{name: "replace by no header", action: "REPLACE ab", log: `w:bad REPLACE header text "ab" in header_checks map -- need "headername: headervalue"`},
		{name: "a tab after the verb", action: "WARN\thm", log: "warning: header Subject: bad" + from + ": hm"},
		{name: "replace", action: "REPLACE Subject: good", out: "Subject: good\r\n", log: "replace: header Subject: bad" + from + ": Subject: good"},
		{name: "hold", action: "HOLD it", log: "hold: header Subject: bad" + from + ": it", check: func(r *Result) bool { return r.Hold }},
		{name: "discard", action: "DISCARD", log: "discard: header Subject: bad" + from, check: func(r *Result) bool { return r.Discard && r.Stop }},
		{name: "filter", action: "FILTER smtp:[f]:25", log: "filter: header Subject: bad" + from + ": smtp:[f]:25", check: func(r *Result) bool { return r.Envelope.Filter == "smtp:[f]:25" }},
		{name: "bad filter", action: "FILTER smtp", log: "w:bad FILTER command smtp in header_checks -- need transport:destination"},
		{name: "filter without argument", action: "FILTER", log: "w:missing FILTER command argument in header_checks map"},
		{name: "pool", action: "pool news", log: "pool: header Subject: bad" + from + ": news", check: func(r *Result) bool { return r.Envelope.Pool == "news" && !r.Stop }},
		{name: "bad pool", action: "POOL a/b", log: `w:bad POOL command "a/b" in header_checks -- need the name of an egress pool`},
		{name: "redirect", action: "REDIRECT a@b.c", log: "redirect: header Subject: bad" + from + ": a@b.c", check: func(r *Result) bool { return r.Envelope.Redirect == "a@b.c" && r.Stop }},
		{name: "bad redirect", action: "REDIRECT ab", log: `w:bad REDIRECT target "ab" in header_checks map -- need user@domain`, check: func(r *Result) bool { return r.Envelope.Redirect == "" && !r.Stop }},
		{name: "bad bcc", action: "BCC ab", log: `w:bad BCC address "ab" in header_checks map -- need user@domain`, check: func(r *Result) bool { return len(r.Envelope.Recipients) == 1 }},
		{name: "bcc", action: "BCC a@b.c", log: "bcc: header Subject: bad" + from + ": a@b.c", check: func(r *Result) bool {
			n := len(r.Envelope.Recipients)
			return n == 2 && r.Envelope.Recipients[1] == mail.Recipient{Address: "a@b.c", Notify: dsn.NotifyNever}
		}},
		{name: "pass", action: "PASS", log: "pass: header Subject: bad" + from, check: func(r *Result) bool { return r.Stop }},
		{name: "unknown", action: "FOO bar", log: "w:unknown command in header_checks map: FOO bar"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCore(t, "header_checks = pcre:{{/^Subject: bad$$/ "+tc.action+"}}\n", nil)
			got, r := feed(c, submission("remote", "r@x.y"), "Message-Id: <a@b>\r\nSubject: bad\r\n\r\nx\r\n", 0)
			var lines []string
			for _, l := range r.Log[1:] {
				text := strings.TrimPrefix(l.String(), "4XyZ0000000000z1: ")
				if l.Warning {
					text = "w:" + text
				}
				lines = append(lines, text)
			}
			if log := strings.Join(lines, "|"); log != tc.log {
				t.Errorf("log %q, want %q", log, tc.log)
			}
			if tc.refused != nil {
				if r.Refused == nil || *r.Refused != *tc.refused {
					t.Errorf("refused %+v, want %+v", r.Refused, tc.refused)
				}
				return
			}
			if r.Refused != nil {
				t.Fatal(r.Refused)
			}
			want := "Subject: bad\r\n"
			switch tc.out {
			case "":
			case "-":
				want = ""
			default:
				want = tc.out
			}
			if want = "Message-Id: <a@b>\r\n" + want + "\r\nx\r\n"; got != want && !r.Discard {
				t.Errorf("got %q, want %q", got, want)
			}
			if tc.check != nil && !tc.check(&r) {
				t.Errorf("result %+v", r)
			}
		})
	}
}

// TestHoldOnce: a second match says nothing new, wherever the first was, and what is discarded is not held.
func TestHoldOnce(t *testing.T) {
	t.Parallel()
	c := newCore(t, "header_checks = pcre:{{/^Subject: hold/ HOLD it} {/^Subject: drop/ DISCARD it}}\n", nil)
	for _, tc := range []struct {
		name, fields  string
		flags         proto.SubmitFlags
		log           string
		held, dropped bool
	}{
		{"twice", "Subject: hold\nSubject: hold\n", 0, "hold", true, false},
		{"held by its client's table", "Subject: hold\n", proto.SubmitHold, "", true, false},
		{"discarded by its client's table", "Subject: hold\n", proto.SubmitDiscard, "", false, true},
		{"discarded afterwards", "Subject: hold\nSubject: drop\n", 0, "hold discard", true, true},
		{"discarded before", "Subject: drop\nSubject: hold\n", 0, "discard", false, true},
	} {
		s := submission("remote", "r@x.y")
		s.Flags |= tc.flags
		_, r := feed(c, s, crlfText("Message-Id: <a@b>\n"+tc.fields+"\nx\n"), 0)
		var lines []string
		for _, l := range r.Log {
			if verb, _, ok := strings.Cut(strings.TrimPrefix(l.String(), "4XyZ0000000000z1: "), ": header "); ok {
				lines = append(lines, verb)
			}
		}
		if log := strings.Join(lines, " "); log != tc.log || r.Hold != tc.held || r.Discard != tc.dropped {
			t.Errorf("%s: logged %q, held %v, discarded %v", tc.name, log, r.Hold, r.Discard)
		}
	}
}

const nested = `Message-Id: <a@b>
Content-Type: multipart/mixed; boundary="outer"

preamble
--outer
Content-Type: text/plain
X-Part: one

part one
--outer
Content-Type: message/rfc822

Subject: attached
 folded
Content-Type: multipart/digest; boundary=inner

--inner

Subject: in digest

digest text
--inner--
--outer--
epilogue
`

// TestClasses sees to which table each field goes.
func TestClasses(t *testing.T) {
	t.Parallel()
	c := newCore(t, "header_checks = pcre:{{/^(.*)$$/ WARN h}}\nmime_header_checks = pcre:{{/^/ WARN m}}\n"+
		"nested_header_checks = pcre:{{/^/ WARN n}}\nbody_checks = pcre:{{/./ WARN b}}\n", nil)
	in := crlfText(nested)
	for _, step := range []int{0, 1, 13} {
		got, r := feed(c, submission("remote", "r@x.y"), in, step)
		if got != in {
			t.Errorf("content changed:\n%s", got)
		}
		var lines []string
		for _, l := range r.Log {
			if _, text, ok := strings.Cut(l.String(), "warning: "); ok {
				what, _, _ := strings.Cut(text, from)
				lines = append(lines, text[len(text)-1:]+" "+what)
			}
		}
		want := []string{
			"h header Message-Id: <a@b>",
			`m header Content-Type: multipart/mixed; boundary="outer"`,
			"b body preamble", "b body --outer",
			"m header Content-Type: text/plain", "m header X-Part: one",
			"b body part one", "b body --outer",
			"m header Content-Type: message/rfc822",
			"n header Subject: attached? folded", "m header Content-Type: multipart/digest; boundary=inner",
			"b body --inner",
			"n header Subject: in digest",
			"b body digest text", "b body --inner--", "b body --outer--", "b body epilogue",
		}
		if g, w := strings.Join(lines, "\n"), strings.Join(want, "\n"); g != w {
			t.Errorf("pieces of %d: got\n%s\nwant\n%s", step, g, w)
		}
	}
}

func TestBodyChecks(t *testing.T) {
	t.Parallel()
	conf := "body_checks = pcre:{{/^drop/ IGNORE}, {/^repl/ REPLACE new}, {/^before/ PREPEND first}, {/^bad/ REJECT}}\n"
	in := "Message-Id: <a@b>\r\n\r\ndrop me\r\nrepl me\r\nbefore\r\nend\r\n"
	got, r := feed(newCore(t, conf, nil), submission("remote", "r@x.y"), in, 0)
	if want := "Message-Id: <a@b>\r\n\r\nnew\r\nfirst\r\nbefore\r\nend\r\n"; got != want || r.Envelope.Size != int64(len(want)) {
		t.Errorf("got %q (%d)", got, r.Envelope.Size)
	}
	// What takes the place of a line may be as long as it was.
	same, _ := feed(newCore(t, "body_checks = pcre:{{/^the secret/ REPLACE the xxxxxx word}}\n", nil), submission("remote", "r@x.y"),
		"Message-Id: <a@b>\r\n\r\nthe secret word\r\nend\r\n", 0)
	if want := "Message-Id: <a@b>\r\n\r\nthe xxxxxx word\r\nend\r\n"; same != want {
		t.Errorf("got %q, want %q", same, want)
	}
	// Only the beginning is looked at.
	long := in + strings.Repeat("0123456789\r\n", 10) + "bad\r\n"
	if _, r := feed(newCore(t, conf, nil), submission("remote", "r@x.y"), long, 0); r.Refused == nil {
		t.Error("not refused")
	}
	if _, r := feed(newCore(t, conf+"body_checks_size_limit = 60\n", nil), submission("remote", "r@x.y"), long, 0); r.Refused != nil {
		t.Error(r.Refused)
	}
}

// TestBodyChecksOfParts has nothing but body_checks look at a message with
// parts: each is looked at from its own beginning, its header is no body, and what is in an
// attached message is.
func TestBodyChecksOfParts(t *testing.T) {
	t.Parallel()
	conf := "body_checks = pcre:{{/^X-Part:/ REJECT header}, {/^bad/ REJECT}}\nbody_checks_size_limit = 100\n"
	const head = "Message-Id: <a@b>\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
	text := strings.Repeat("0123456789\r\n", 20)
	for name, tt := range map[string]struct {
		body    string
		refused bool
	}{
		"after much text":      {"--b\r\n\r\n" + text + "--b\r\nX-Part: y\r\n\r\nbad\r\n--b--\r\n", true},
		"deep in a part":       {"--b\r\n\r\n" + text + "--b\r\nX-Part: y\r\n\r\n" + text + "bad\r\n--b--\r\n", false},
		"in an attached one":   {"--b\r\nContent-Type: message/rfc822\r\n\r\nSubject: z\r\n\r\nbad\r\n--b--\r\n", true},
		"in the part's header": {"--b\r\nX-Part: y\r\n\r\nx\r\n--b--\r\n", false},
	} {
		_, r := feed(newCore(t, conf, nil), submission("remote", "r@x.y"), head+tt.body, 0)
		if (r.Refused != nil) != tt.refused {
			t.Errorf("%s: refused: %v, want %t", name, r.Refused, tt.refused)
		}
	}
}

// force_mime_input_conversion comes before checks.
func TestForceMIMEConversion(t *testing.T) {
	t.Parallel()
	const conf = "force_mime_input_conversion = yes\nheader_checks = pcre:{{/quoted-printable/ PREPEND X-Seen: it}}\n" +
		"body_checks = pcre:{{/^=E9/ PREPEND seen}}\n"
	const in = "Message-Id: <a@b>\r\nContent-Transfer-Encoding: 8bit\r\n\r\n\xe9\r\nx"
	const want = "Message-Id: <a@b>\r\nX-Seen: it\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\nseen\r\n=E9\r\nx\r\n"
	for _, step := range []int{0, 1, 3} {
		got, r := feed(newCore(t, conf, nil), submission("remote", "r@x.y"), in, step)
		if got != want || r.Envelope.Size != int64(len(want)) || r.Envelope.Body&mail.Body8Bit != 0 {
			t.Errorf("pieces of %d: got %q (%d, %v)", step, got, r.Envelope.Size, r.Envelope.Body)
		}
	}
	if got, r := feed(newCore(t, conf+"disable_mime_input_processing = yes\n", nil), submission("remote", "r@x.y"), in, 0); got != in+"\r\n" || r.Envelope.Body&mail.Body8Bit == 0 {
		t.Errorf("without MIME: got %q", got)
	}
}

func TestStrict(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, conf, in, text string }{
		{"8bit header", "strict_7bit_headers = yes\n", "Subject: \x80\n\nx\n", "improper use of 8-bit data in message header"},
		{"8bit body", "strict_8bitmime_body = yes\n", "Subject: x\n\n\x80\n", "improper use of 8-bit data in message body"},
		{"both", "strict_8bitmime = yes\n", "Subject: x\n\n\x80\n", "improper use of 8-bit data in message body"},
		{"8bit body, declared", "strict_8bitmime_body = yes\n", "Content-Transfer-Encoding: 8bit\n\n\x80\n", ""},
		{"encoding", "strict_mime_encoding_domain = yes\n", "Content-Type: multipart/mixed; boundary=x\nContent-Transfer-Encoding: base64\n\n\n", "invalid message/* or multipart/* encoding domain"},
		{"nesting", "mime_nesting_limit = 1\nheader_checks = pcre:{{/x-nothing/ OK}}\n",
			"Content-Type: multipart/mixed; boundary=a\n\n--a\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: multipart/mixed; boundary=c\n\n--c\nContent-Type: multipart/mixed; boundary=d\n\n", "MIME nesting exceeds safety limit"},
		{"end of header", "non_empty_end_of_header_action = reject\n", "Subject: x\nfoo\n", "primary header was terminated with non-empty line"},
		{"end of header, quietly", "", "Subject: x\nfoo\n", ""},
		{"characters", "message_reject_characters = \\0x\n", "Subject: a\n\nb\000\n", "disallowed character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, r := feed(newCore(t, tc.conf, nil), submission("remote", "r@x.y"), crlfText(tc.in), 0)
			switch {
			case tc.text == "" && r.Refused != nil:
				t.Error(r.Refused)
			case tc.text != "" && (r.Refused == nil || r.Refused.Text != tc.text || r.Refused.Code != 550):
				t.Errorf("got %+v, want %q", r.Refused, tc.text)
			}
			s := submission("remote", "r@x.y")
			s.Flags &^= proto.SubmitFilter
			if _, r := feed(newCore(t, tc.conf, nil), s, crlfText(tc.in), 0); r.Refused != nil {
				t.Errorf("without Filter: %v", r.Refused)
			}
		})
	}
}

func TestTLSRequired(t *testing.T) {
	t.Parallel()
	c := newCore(t, "", nil)
	if _, r := feed(c, submission("remote", "r@x.y"), "TLS-Required: No\r\n\r\n", 0); !r.Envelope.TLSOptional {
		t.Error("TLS-Required: No was not seen")
	}
	if _, r := feed(c, submission("remote", "r@x.y"), "TLS-Required: maybe\r\n\r\n", 0); r.Envelope.TLSOptional || !r.Log[0].Warning {
		t.Errorf("%+v", r)
	}
}

// TestRequireTLSField: REQUIRETLS survives a content filter that does not know it.
func TestRequireTLSField(t *testing.T) {
	t.Parallel()
	const field = "Require-TLS-ESMTP: yes\r\n"
	for _, tc := range []struct {
		conf     string
		asked    bool // by MAIL
		in, want string
		require  bool
	}{
		{"", true, "", field, true},
		{"", true, field, field, true},
		{"", false, "require-tls-esmtp: YES\r\n", "require-tls-esmtp: YES\r\n", true},
		{"", false, "Require-TLS-ESMTP: maybe\r\n", "Require-TLS-ESMTP: maybe\r\n", false},
		{"", false, "", "", false},
		{"requiretls_esmtp_header = no\n", true, "", "", true},
		{"requiretls_esmtp_header = no\n", false, field, field, false},
		{"requiretls_enable = no\n", false, field, field, false},
		{"message_drop_headers = require-tls-esmtp\n", false, field, "", true},
	} {
		s := submission("remote", "r@x.y")
		s.Envelope.RequireTLS = tc.asked
		got, r := feed(newCore(t, tc.conf, nil), s, "Subject: a\r\n"+tc.in+"\r\n", 0)
		if want := "Subject: a\r\n" + tc.want + "\r\n"; got != want || r.Envelope.RequireTLS != tc.require {
			t.Errorf("%+v: RequireTLS %v, %q", tc, r.Envelope.RequireTLS, got)
		}
	}
}

func TestStripCharacters(t *testing.T) {
	t.Parallel()
	c := newCore(t, "message_strip_characters = \\0\\001z\n", nil)
	got, r := feed(c, submission("remote", "r@x.y"), "Sub\x00ject: az\r\n\r\nb\x01z\r\nz\r\n", 1)
	if want := "Subject: a\r\n\r\nb\r\n\r\n"; got != want || r.Envelope.Size != int64(len(want)) {
		t.Errorf("got %q", got)
	}
}

// TestBounce: what is to go back to its sender is kept whole.
func TestBounce(t *testing.T) {
	t.Parallel()
	c := newCore(t, "hopcount_limit = 2\nheader_checks = pcre:{{/^X: p/ REJECT}, {/^X: t/ REJECT 4.1.1 x}, {/^X: d/ DISCARD}}\n", nil)
	const rest = "Date: x\r\nMessage-Id: <a@b>\r\nFrom: a@b.c\r\n\r\nbody\r\n"
	for _, tc := range []struct {
		header          string
		bounce, headers bool
	}{
		{"X: p\r\n", true, true}, {"Received: a\r\nReceived: b\r\n", true, false}, {"X: t\r\n", false, false}, {"X: d\r\n", false, false},
	} {
		s := submission("local", "r@x.y")
		s.Flags |= proto.SubmitBounce
		out, r := feed(c, s, tc.header+rest, 0)
		if r.Bounce != tc.bounce || r.HeadersOnly != tc.headers || (r.Refused == nil) != r.Discard {
			t.Errorf("%q: %+v", tc.header, r)
		}
		if whole := out == tc.header+rest; whole != tc.bounce {
			t.Errorf("%q: stored %q", tc.header, out)
		}
		s.Flags &^= proto.SubmitBounce
		if out, r = feed(c, s, tc.header+rest, 0); r.Bounce || out == tc.header+rest {
			t.Errorf("%q, not to be bounced: %q", tc.header, out)
		}
	}
}

// What a stranger's message has logged is bounded, in lines and in their length. What was
// decided about it is logged all the same.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	c := newCore(t, "header_size_limit = 102400\nheader_checks = inline:{ {Last: one=REJECT no} }\n", func(string) {})
	long := "<" + strings.Repeat("x", 90000) + "@a.test>"
	_, r := feed(c, submission("remote", "r@b.test"), "Message-Id: "+long+"\r\n"+strings.Repeat("Message-Id: <x@a.test>\r\n", 5000)+
		strings.Repeat("TLS-Required: maybe\r\n", 5000)+"Last: one\r\n\r\nbody\r\n", 4096)
	if n := len(r.Log); n < 100 || n > maxContentLines+10 {
		t.Errorf("%d lines", n)
	}
	if n := len(r.Log[0].String()); n > maxLoggedID+100 {
		t.Errorf("a line of %d octets", n)
	}
	if last := r.Log[len(r.Log)-1].String(); !strings.Contains(last, ": reject: header Last: one from ") || r.Refused == nil {
		t.Errorf("last line %q, refused %v", last, r.Refused)
	}
}
