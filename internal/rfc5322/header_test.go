package rfc5322

import (
	"bytes"
	"net/mail"
	"strings"
	"testing"
	"time"
)

func TestFields(t *testing.T) {
	t.Parallel()
	msg := []byte("From: a\r\nSubject :  x\r\n\ty \r\nEmpty:\r\n\r\nbody: no\r\n")
	var names, values, lines []string
	rest := msg
	for {
		f, r, ok := NextField(rest)
		if !ok {
			break
		}
		names, values, lines = append(names, string(f.Name())), append(values, string(f.Value())), append(lines, string(f.Lines()))
		rest = r
	}
	if got := strings.Join(names, "|"); got != "From|Subject|Empty" {
		t.Errorf("names %q", got)
	}
	if got := strings.Join(values, "|"); got != "a|x\r\n\ty|" {
		t.Errorf("values %q", got)
	}
	if got := strings.Join(lines, "|"); got != "From: a|Subject:  x\n\ty |Empty:" {
		t.Errorf("lines %q", got)
	}
	if !bytes.HasPrefix(rest, []byte("\r\nbody")) {
		t.Errorf("rest %q", rest)
	}
}

func TestNoField(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", ":", ": x", "a b: c", " a: b", "a", "a\r\n", "\x80: b", "a\x00: b"} {
		if f, ok := ParseField([]byte(s)); ok {
			t.Errorf("%q is a field: %q", s, f.Name())
		}
		if IsField(s) {
			t.Errorf("%q is a field", s)
		}
	}
	if !IsField("X-A \t: b") || !IsField("a:") {
		t.Error("fields are not")
	}
}

func TestEqualName(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		want bool
	}{{"From", "FROM", true}, {"a-b", "A-B", true}, {"a@", "a`", false}, {"a[", "a{", false}, {"ab", "abc", false}} {
		if got := EqualName([]byte(tc.a), tc.b); got != tc.want {
			t.Errorf("%q %q: %v", tc.a, tc.b, got)
		}
	}
}

func TestDate(t *testing.T) {
	t.Parallel()
	for want, at := range map[string]time.Time{
		"Fri, 20 Nov 2026 17:56:01 +0000 (UTC)": time.Date(2026, 11, 20, 17, 56, 1, 0, time.UTC),
		"Sun, 1 Nov 2026 01:02:03 +0100 (CET)":  time.Date(2026, 11, 1, 1, 2, 3, 0, time.FixedZone("CET", 3600)),
		"Sun, 1 Nov 2026 01:02:03 -0330":        time.Date(2026, 11, 1, 1, 2, 3, 0, time.FixedZone("", -12600)),
	} {
		if got := Date(at); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if back, err := mail.ParseDate(want); err != nil || !back.Equal(at) {
			t.Errorf("%q: %v %v", want, back, err)
		}
	}
}

func TestStructureFaults(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		ctype, cte string
		fault      string
		wide       bool
	}{
		{"multipart/mixed", "Base64", "base64", false}, {"multipart/mixed", "8bit", "", true}, {"message/rfc822", "(x) quoted-printable (y)", "quoted-printable", false},
		{"message/partial", "8bit", "8bit", true}, {"message/global", "base64", "", false}, {"text/plain", "base64", "", false}, {"text/plain", "unknown", "", false},
		{"multipart/mixed", `"base64"`, "", false}, {"multipart/mixed", "base64.", "base64", false}, {"multipart/mixed", "base64/x", "", false}, {`multipart/"mixed"`, "base64", "base64", false},
		{`"multipart"/mixed`, "base64", "", false}, {"message/\"rfc822\"", "base64", "", false},
	} {
		var s Structure
		for _, raw := range []string{"Content-Type: " + tc.ctype + "\r\n", "Content-Transfer-Encoding: " + tc.cte + "\r\n"} {
			f, _ := ParseField([]byte(raw))
			s.Field(f)
		}
		if got := s.EncodingFault(); got != tc.fault {
			t.Errorf("%+v: %q", tc, got)
		}
		if s.encoding.wide != tc.wide {
			t.Errorf("%+v: wide %v", tc, s.encoding)
		}
	}
}

// What is taken for a boundary is what Postfix 3.7.11 takes for one.
func TestStructureBoundary(t *testing.T) {
	t.Parallel()
	for ctype, want := range map[string]string{
		`multipart/mixed; boundary="a;b" (x)`:                                  "a;b",
		`(a) multipart (b) / (c) mixed (d) ; (e) boundary (f) = (g) "a;b" (h)`: "a;b",
		`multipart/mixed; charset="us;ascii"; boundary="a;b"`:                  "a;b",
		`multipart/mixed; boundary*=us-ascii''a;b`:                             "-",
		`multipart/mixed; boundary*=us-ascii''a%3Bb`:                           "-",
		`multipart/mixed; boundary*0="a;"; boundary*1="b"`:                     "-",
		`multipart/mixed; boundary=a:b`:                                        "a",
		`multipart/mixed; boundary=a(x)b`:                                      "a",
		`multipart/mixed; boundary=<a;b>`:                                      "<",
		`multipart/mixed; boundary=""`:                                         "",
		`multipart/mixed; boundary="a;b "`:                                     "a;b ",
		`multipart/mixed; boundary="a\;b"`:                                     "a;b",
		`multipart/mixed; boundary="a;b`:                                       "a;b",
		`multipart; boundary="a;b"`:                                            "a;b",
		`multipart//mixed; boundary="a;b"`:                                     "a;b",
		`multipart/mixed boundary="a;b"`:                                       "-",
		`multipart/mixed; (x boundary="a;b"`:                                   "-",
		`"multipart"/"mixed"; boundary="a;b"`:                                  "-",
		`multipart/mixed; "boundary"="a;b"`:                                    "-",
		`; multipart/mixed; boundary="a;b"`:                                    "-",
	} {
		var s Structure
		s.MaxDepth = 1
		f, _ := ParseField([]byte("Content-Type: " + ctype + "\r\n"))
		s.Field(f)
		got := "-"
		if len(s.stack) > 0 {
			got = s.stack[0].text
		}
		if got != want || len(s.stack) > 1 {
			t.Errorf("%s: %q, want %q", ctype, got, want)
		}
	}
}

func BenchmarkHeader(b *testing.B) {
	msg := []byte(strings.Repeat("Received: from a.example.com (a.example.com [192.0.2.1])\r\n\tby b.example.com with ESMTP id 1234;\r\n\tFri, 20 Nov 2026 17:56:01 +0000\r\n", 3) +
		"From: Joe <joe@example.com>\r\nTo: jack@example.org\r\nSubject: hello\r\nDate: Fri, 20 Nov 2026 17:56:01 +0000\r\nMessage-ID: <1@x>\r\nMIME-Version: 1.0\r\n\r\n" + strings.Repeat("x", 9000))
	b.ReportAllocs()
	for b.Loop() {
		for rest, ok := msg, true; ok; {
			_, rest, ok = NextField(rest)
		}
	}
}
