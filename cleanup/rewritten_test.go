package cleanup

import (
	"io"
	netmail "net/mail"
	"slices"
	"strings"
	"testing"
)

// FuzzRewrittenLikeOthers: an address field that net/mail can read has, after rewriting, the addresses that it should
// have as net/mail reads it: those in from.test are in to.test, all others are as they were. Fields of other
// names, and the body, are not touched.
//
// Known differences:
//   - Addresses with a domain literal, or in encoded form, are not compared: see rfc5322.FuzzAddressesLikeOthers.
//   - A field of nothing but groups without members, or of "<>", has no address that could be compared.
func FuzzRewrittenLikeOthers(f *testing.F) {
	for _, s := range []string{"a@from.test", "A B <a@from.test>, \"c d\"@from.test (e)", "G: a@from.test, b@x.test;", "a@from.test,\r\n\tb@from.test", `"a\"b" <"c,d"@from.test>`, "<@r.test:a@from.test>",
		"=?utf-8?q?=2C?= <a@from.test>, b . c @ from.test", "(x) a@from.test (y (z))", "\"from.test\" <from.test@from.test>", strings.Repeat("long@from.test, ", 30) + "x@y.test", "\u00fc@from.test"} {
		f.Add(s)
	}
	c := newCore(f, "canonical_maps = pcre:{{/^(.*)@from\\.test$$/ $$1@to.test}}\nlocal_header_rewrite_clients = static:all\n", nil)
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsAny(unfold(text), "\r\n\x00") || strings.Contains(text, "@[") || len(text) > 8<<10 {
			return
		}
		before, err := netmail.ParseAddressList(unfold(text))
		if err != nil {
			return
		}
		rest := "X-Note: a@from.test\r\n\r\nTo: a@from.test\r\n"
		out, r := feed(c, submission("local", "r@x.test"), "From: x@x.test\r\nDate: Fri, 20 Nov 2026 17:56:01 +0000\r\nMessage-Id: <1@x.test>\r\nTo: "+text+"\r\n"+rest, 0)
		if r.Refused != nil {
			return
		}
		if !strings.HasSuffix(out, "\r\n"+rest) {
			t.Fatalf("%q: the fields behind it, and the body, are now\n%q", text, out)
		}
		msg, err := netmail.ReadMessage(strings.NewReader(out))
		if err != nil {
			t.Fatalf("%q: %v in\n%q", text, err, out)
		}
		if body, _ := io.ReadAll(msg.Body); string(body) != "To: a@from.test\r\n" {
			t.Fatalf("%q: the body is now %q", text, body)
		}
		var want, got []string
		for _, a := range before {
			if local, ok := cutSuffixFold(a.Address, "@from.test"); ok {
				a.Address = local + "@to.test"
			}
			want = append(want, a.Address)
		}
		after, err := netmail.ParseAddressList(msg.Header.Get("To"))
		for _, a := range after {
			got = append(got, a.Address)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%q: %q, want %q (%v) in\n%q", text, got, want, err, out)
		}
	})
}

// unfold takes the line ends of folds out.
func unfold(s string) string {
	return strings.NewReplacer("\r\n ", " ", "\r\n\t", "\t").Replace(s)
}

// cutSuffixFold is strings.CutSuffix without regard to letter case.
func cutSuffixFold(s, suffix string) (string, bool) {
	if n := len(s) - len(suffix); n >= 0 && strings.EqualFold(s[n:], suffix) {
		return s[:n], true
	}
	return s, false
}
