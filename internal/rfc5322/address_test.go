package rfc5322

import (
	"testing"

	"pgregory.net/rapid"
)

func TestQuote(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ internal, external string }{
		{"", ""},
		{"user", "user"},
		{"user@example.com", "user@example.com"},
		{"a.b@c.d", "a.b@c.d"},
		{"a..b@c.d", `"a..b"@c.d`},
		{".a@c.d", `".a"@c.d`},
		{"a.@c.d", `"a."@c.d`},
		{"a b@c.d", `"a b"@c.d`},
		{`a"b@c.d`, `"a\"b"@c.d`},
		{`a\b@c.d`, `"a\\b"@c.d`},
		{"a@b@c.d", `"a@b"@c.d`},
		{"@c.d", `""@c.d`},
		{"\u00fc@c.d", "\u00fc@c.d"},
		{"a(b)@c.d", `"a(b)"@c.d`},
		{"a!b%c@d.e", "a!b%c@d.e"},
		{"x@[1.2.3.4]", "x@[1.2.3.4]"},
	} {
		if got := Quote(tc.internal); got != tc.external {
			t.Errorf("Quote(%q) = %q, want %q", tc.internal, got, tc.external)
		}
		if got := Unquote(tc.external); got != tc.internal {
			t.Errorf("Unquote(%q) = %q, want %q", tc.external, got, tc.internal)
		}
	}
	for external, internal := range map[string]string{
		`"a"@b`: "a@b", `a\b@c`: "ab@c", `"a@b"`: "a@b", `"a\@b"@c`: "a@b@c", `"unfinished@x`: "unfinished@x", `\`: `\`,
	} {
		if got := Unquote(external); got != internal {
			t.Errorf("Unquote(%q) = %q, want %q", external, got, internal)
		}
	}
}

// TestQuoteRoundTrip: quoting loses nothing, and the parser reads what Quote
// writes.
func TestQuoteRoundTrip(t *testing.T) {
	t.Parallel()
	local := rapid.StringMatching(`[ -~]{0,12}`)
	domain := rapid.StringMatching(`[a-z0-9]{1,5}(\.[a-z]{2,4}){0,2}`)
	rapid.Check(t, func(t *rapid.T) {
		addr := local.Draw(t, "local") + "@" + domain.Draw(t, "domain")
		q := Quote(addr)
		if got := Unquote(q); got != addr {
			t.Fatalf("%q -> %q -> %q", addr, q, got)
		}
		list := AppendAddresses(nil, "Name <"+q+">, "+q, 0)
		if len(list) != 2 || list[0].Addr != addr || list[1].Addr != addr {
			t.Fatalf("%q -> %q -> %+v", addr, q, list)
		}
	})
}

func TestMailbox(t *testing.T) {
	for text, want := range map[string]string{
		"joe@x.test": "joe@x.test", `"joe"@x.test`: "joe@x.test", `"j\oe"@x.test`: "joe@x.test", `"john doe"@x.test`: "john doe@x.test",
		`"a\"b\\c"@x.test`: `a"b\c@x.test`, `"a@b"@x.test`: "a@b@x.test", "a@b@x.test": "a@b@x.test", "a,b@x.test": "a,b@x.test", "joe@[192.0.2.1]": "joe@[192.0.2.1]",
		"": "", "joe": "", "@x.test": "", "joe@": "", `""@x.test`: "", `"joe"`: "", `"joe"x@x.test`: "", `"joe@x.test`: "", `"joe\"@x.test`: "",
		"john doe@x.test": "", "joe@x test": "", `"a"@b@x.test`: "", "\"a\tb\"@x.test": "", "joe@x.test\n": "", `"`: "", `"\`: "",
	} {
		if got, ok := Mailbox(text); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", text, got, ok)
		}
	}
	local := rapid.StringMatching(`[ -~]{1,12}`)
	rapid.Check(t, func(t *rapid.T) {
		addr := local.Draw(t, "local") + "@x.test"
		if got, ok := Mailbox(Quote(addr)); !ok || got != addr {
			t.Fatalf("%q -> %q -> %q", addr, Quote(addr), got)
		}
	})
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		addr, local, domain string
		at                  bool
	}{{"a@b", "a", "b", true}, {"a", "a", "", false}, {"a@", "a", "", true}, {"a@b@c", "a@b", "c", true}, {"", "", "", false}} {
		local, domain, at := Split(tc.addr)
		if local != tc.local || domain != tc.domain || at != tc.at || Domain(tc.addr) != tc.domain {
			t.Errorf("%q: %q %q %v", tc.addr, local, domain, at)
		}
	}
}

func TestPhraseAndComment(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"Joe User": "Joe User", "J. User": `"J. User"`, `a"b`: `"a\"b"`, "a\nb": "a b", "": ""} {
		if got := string(AppendPhrase(nil, in)); got != want {
			t.Errorf("phrase %q: %q", in, got)
		}
	}
	if got := string(AppendComment(nil, "a(b)\\\n")); got != `(a\(b\)\\ )` {
		t.Errorf("comment %q", got)
	}
}
