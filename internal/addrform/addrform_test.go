package addrform

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var usual = Form{Origin: "origin.test", Domain: "domain.test", AppendAtOrigin: true, AppendDot: true, PercentHack: true, SwapBangPath: true}

func TestRewrite(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ addr, want string }{
		{"", ""},
		{"@", ""},
		{"user", "user@origin.test"},
		{"user@", "user@"},
		{"user@host", "user@host.domain.test"},
		{"user@host.", "user@host"},
		{"user@host.test.", "user@host.test"},
		{"user@host.test..", "user@host.test.."},
		{"user@.", "user@."},
		{"user@[192.0.2.1]", "user@[192.0.2.1]"},
		{"host.test!user", "user@host.test"},
		{"a.test!b.test!user", "b.test!user@a.test"},
		{"user%host.test", "user@host.test"},
		{"a%b.test%c.test", "a%b.test@c.test"},
		{"host!user%other", "user%other@host.domain.test"},
		{"user%host@other.test", "user%host@other.test"},
		{"two words", "two words@origin.test"},
		{"a b%host.test", "a b%host.test@origin.test"}, // it needs quotes: its own affair
		{"@a.test,@b.test:user@c.test", "user@c.test"},
		{"@a.test:user", "user@origin.test"},
		{"@a.test:", "@a.test:"},
		{"@[IPv6:2001:db8::1]:user@c.test", "user@c.test"},
		{"@a.test,@[IPv6:2001:db8::1]:user@c.test", "user@c.test"},
		{"@[IPv6:2001:db8::1]", "@[IPv6:2001:db8::1]"},
		{"user.", "user.@origin.test"},
		{"jörg@bücher", "jörg@bücher.domain.test"},
	} {
		if got := usual.Rewrite(tt.addr); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.addr, got, tt.want)
		}
	}
	var none Form
	for _, addr := range []string{"user", "user@host", "host!user", "user%host", "user@[192.0.2.1]"} {
		if got := none.Rewrite(addr); got != addr {
			t.Errorf("the zero Form makes %q of %q", got, addr)
		}
	}
}

// What is in standard form stays as it is, an address that had a domain keeps
// it, and nothing is made up but the domains that are added.
func TestRewriteProperties(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom([]string{"a", "user", "@", "%", "!", ".", ":", ",", "[", "]", "IPv6:", " ", "\"", "host", "x.test", "é", "\xff", "\r\n"})
	rapid.Check(t, func(t *rapid.T) {
		addr := strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "pieces"), "")
		form := Form{Origin: rapid.SampledFrom([]string{"", "origin.test"}).Draw(t, "origin"), Domain: "domain.test",
			AppendAtOrigin: true, AppendDot: rapid.Bool().Draw(t, "dot"),
			PercentHack: rapid.Bool().Draw(t, "percent"), SwapBangPath: rapid.Bool().Draw(t, "bang")}
		got := form.Rewrite(addr)
		if len(got) > len(addr)+len("@origin.test.domain.test") {
			t.Fatalf("%q became %q", addr, got)
		}
		if form.Origin != "" && got != "" && strings.IndexByte(got, '@') < 0 {
			t.Fatalf("%q became %q, which has no domain", addr, got)
		}
		at := strings.LastIndexByte(addr, '@')
		if at > 0 && addr[0] != '@' && !strings.HasPrefix(got, addr[:at+1]) {
			t.Fatalf("%q became %q: another local part", addr, got)
		}
		if got == "" || got[0] == '@' || strings.HasSuffix(addr, ".") || strings.HasSuffix(got, ".") || strings.IndexByte(got, '@') < 0 {
			return // no address before nor after
		}
		if again := form.Rewrite(got); again != got {
			t.Fatalf("%q became %q, and that %q", addr, got, again)
		}
	})
}

func FuzzRewrite(f *testing.F) {
	f.Add("@a,@b:user@c")
	f.Add("a!b%c@d.")
	f.Fuzz(func(t *testing.T, addr string) {
		usual.Rewrite(addr)
		new(Form).Rewrite(addr)
	})
}
