package mailauth

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"

	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
)

var testKey = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// zone is the world of the tests.
func zone(t *testing.T) *fakezone.Zone {
	t.Helper()
	pub := base64.StdEncoding.EncodeToString(testKey.Public().(ed25519.PublicKey))
	z, err := fakezone.Parse(`
example.com. 60 IN TXT "v=spf1 ip4:192.0.2.1 mx -all"
example.com. 60 IN MX 10 mx.example.com.
mx.example.com. 60 IN A 192.0.2.2
_dmarc.example.com. 60 IN TXT "v=DMARC1; p=Reject; sp=quarantine; np=reject; rua=mailto:x@example.com"
sub.example.com. 60 IN TXT "v=spf1 +all"
s1._domainkey.example.com. 60 IN TXT "v=DKIM1; k=ed25519; p=` + pub + `"
strict._domainkey.example.com. 60 IN TXT "v=DKIM1; t=y:s; k=ed25519; p=` + pub + `"
long._domainkey.example.com. 60 IN TXT "` + strings.Repeat(`x" "`, 3000) + `x"
s1._domainkey.other.test. 60 IN TXT "v=DKIM1; k=ed25519; p=` + pub + `"
tight.test. 60 IN TXT "v=spf1 ?all"
_dmarc.tight.test. 60 IN TXT "v=DMARC1; p=reject; adkim=s; aspf=s; t=y"
s1._domainkey.a.tight.test. 60 IN TXT "v=DKIM1; k=ed25519; p=` + pub + `"
soft.test. 60 IN TXT "v=spf1 ~all"
twice.test. 60 IN TXT "v=spf1 ~all"
_dmarc.twice.test. 60 IN TXT "v=DMARC1; p=reject"
_dmarc.twice.test. 60 IN TXT "v=DMARC1; p=none"
_dmarc.reports.test. 60 IN TXT "v=DMARC1; rua=mailto:x@reports.test"
_dmarc.bank. 60 IN TXT "v=DMARC1; p=reject; psd=y"
loop.test. 60 IN TXT "v=spf1 include:loop.test -all"
!fail down.test SERVFAIL
!fail _dmarc.down.test SERVFAIL
!fail s1._domainkey.down.test SERVFAIL
`)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func checker(t *testing.T) *Checker {
	r := zone(t).Resolver()
	t.Cleanup(func() { r.Close() })
	return New(r, resolver.Names{}, "mx.test")
}

func TestSPF(t *testing.T) {
	t.Parallel()
	c := checker(t)
	for _, tt := range []struct {
		addr, helo, sender string
		want               Result
	}{
		{"192.0.2.1", "h", "a@example.com", Pass},
		{"192.0.2.2", "h", "a@example.com", Pass},
		{"192.0.2.3", "h", "a@example.com", Fail},
		{"2001:db8::1", "h", "a@sub.example.com", Pass},
		{"192.0.2.3", "example.com", "", Fail},
		{"192.0.2.1", "example.com", "", Pass},
		{"192.0.2.3", "h", "a@soft.test", SoftFail},
		{"192.0.2.3", "h", "a@tight.test", Neutral},
		{"192.0.2.3", "h", "a@none.test", None},
		{"192.0.2.3", "h", "a@down.test", TempError},
		{"192.0.2.3", "h", "a@loop.test", PermError},
		{"192.0.2.3", "h", "a@bad..name", None},
		{"192.0.2.3", "[1.2.3.4]", "", None},
	} {
		if got := c.SPF(t.Context(), netip.MustParseAddr(tt.addr), tt.helo, tt.sender); got.Result != tt.want {
			t.Errorf("%s %s <%s>: %s, want %s", tt.addr, tt.helo, tt.sender, got.Result, tt.want)
		}
	}
	reject := func(sender string) string {
		r := c.RejectSPF(t.Context(), netip.MustParseAddr("192.0.2.3"), "h", sender)
		if r == nil {
			return ""
		}
		return r.String()[:9]
	}
	for sender, want := range map[string]string{"a@example.com": "550 5.7.2", "a@down.test": "451 4.7.2", "a@soft.test": "", "a@none.test": ""} {
		if got := reject(sender); got != want {
			t.Errorf("reject_spf_fail of %s: %q, want %q", sender, got, want)
		}
	}
}

// signed makes a message from text with signatures of these domains.
func signed(t *testing.T, text string, by ...dkim.SignOptions) *Message {
	t.Helper()
	for i := range by {
		by[i].Signer = testKey
		if by[i].Selector == "" {
			by[i].Selector = "s1"
		}
		var out bytes.Buffer
		if err := dkim.Sign(&out, strings.NewReader(text), &by[i]); err != nil {
			t.Fatal(err)
		}
		text = out.String()
	}
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	return &Message{Client: netip.MustParseAddr("192.0.2.99"), Helo: "h.test", Sender: "a@none.test", Header: []byte(head + "\r\n"),
		Body: func() io.Reader { return strings.NewReader(body) }}
}

func TestDKIM(t *testing.T) {
	t.Parallel()
	c := checker(t)
	const text = "From: a@example.com\r\nSubject: s\r\n\r\nbody\r\n"
	got := func(m *Message) string {
		var list []string
		for _, d := range c.dkim(t.Context(), m) {
			list = append(list, string(d.Result)+" "+d.Domain)
		}
		return strings.Join(list, ", ")
	}
	keys := []string{"from", "subject"}
	for name, tt := range map[string]struct {
		m    *Message
		want string
	}{
		"none": {signed(t, text), ""},
		"good": {signed(t, text, dkim.SignOptions{Domain: "example.com"}), "pass example.com"},
		"two": {signed(t, text, dkim.SignOptions{Domain: "example.com", HeaderKeys: keys}, dkim.SignOptions{Domain: "other.test", HeaderKeys: keys}),
			"pass other.test, pass example.com"},
		"no key":       {signed(t, text, dkim.SignOptions{Domain: "none.test"}), "permerror none.test"},
		"no DNS":       {signed(t, text, dkim.SignOptions{Domain: "down.test"}), "temperror down.test"},
		"subdomain":    {signed(t, text, dkim.SignOptions{Domain: "example.com", Identifier: "@sub.example.com"}), "pass example.com"},
		"no subdomain": {signed(t, text, dkim.SignOptions{Domain: "example.com", Selector: "strict", Identifier: "@sub.example.com"}), "permerror example.com"},
		"same domain":  {signed(t, text, dkim.SignOptions{Domain: "example.com", Selector: "strict", Identifier: "@example.com"}), "pass example.com"},
	} {
		if g := got(tt.m); g != tt.want {
			t.Errorf("%s: %q, want %q", name, g, tt.want)
		}
	}
	m := signed(t, text, dkim.SignOptions{Domain: "example.com"})
	m.Body = func() io.Reader { return strings.NewReader("other\r\n") }
	if g := got(m); g != "fail example.com" {
		t.Errorf("changed body: %q", g)
	}
	many := signed(t, text, dkim.SignOptions{Domain: "example.com", HeaderKeys: keys})
	sig, _, _ := bytes.Cut(many.Header, []byte("From:"))
	many.Header = append(bytes.Repeat(sig, 20), many.Header...)
	if n := strings.Count(got(many), "pass"); n != maxSignatures {
		t.Errorf("%d of many signatures are looked at, want %d", n, maxSignatures)
	}
	many.Header = append(many.Header, bytes.Repeat([]byte("X: y\r\n"), maxFields)...)
	if g := got(many); g != "permerror " {
		t.Errorf("many fields: %q", g)
	}
}

func TestDMARC(t *testing.T) {
	t.Parallel()
	c := checker(t)
	for _, tt := range []struct {
		from, spf, dkim string // domains that passed
		result          Result
		policy          string
	}{
		{"example.com", "example.com", "", Pass, "reject"},
		{"example.com", "", "example.com", Pass, "reject"},
		{"example.com", "sub.example.com", "", Pass, "reject"},
		{"example.com", "other.test", "other.test", Fail, "reject"},
		{"example.com", "notexample.com", "", Fail, "reject"},
		{"example.com", "com", "", Fail, "reject"},
		{"sub.example.com", "", "", Fail, "quarantine"},
		{"nowhere.example.com", "", "", Fail, "reject"},
		{"sub.example.com", "", "example.com", Pass, "quarantine"},
		{"tight.test", "", "a.tight.test", Fail, "quarantine"},
		{"tight.test", "tight.test", "", Pass, "quarantine"},
		{"none.test", "none.test", "", None, ""},
		{"twice.test", "", "", None, ""},
		{"reports.test", "", "", Fail, "none"},
		{"down.test", "", "", TempError, ""},
		{"acme.bank", "other.bank", "", Fail, "reject"},
		{"acme.bank", "mail.acme.bank", "", Pass, "reject"},
		{"a.b.c.d.e.f.g.h.i.j.k.example.com", "", "example.com", Pass, "reject"},
		{"", "", "", None, ""},
	} {
		r := &Results{SPF: SPF{Result: None}}
		if tt.spf != "" {
			r.SPF = SPF{Result: Pass, Domain: tt.spf}
		}
		if tt.dkim != "" {
			r.DKIM = []DKIM{{Result: Fail, Domain: tt.from}, {Result: Pass, Domain: tt.dkim}}
		}
		d := c.dmarc(t.Context(), tt.from, r)
		if d.Result != tt.result || d.Policy != tt.policy {
			t.Errorf("From %q, SPF %q, DKIM %q: %s (%s), want %s (%s)", tt.from, tt.spf, tt.dkim, d.Result, d.Policy, tt.result, tt.policy)
		}
	}
	r := &Results{SPF: SPF{Result: TempError}}
	if d := c.dmarc(t.Context(), "example.com", r); d.Result != TempError {
		t.Errorf("SPF not known: %s, want temperror", d.Result)
	}
}

func TestAuthorDomains(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"From: A <a@Example.com>\r\n":                    "example.com",
		"Subject: x\r\nfrom: a@b.test,\r\n c@b.test\r\n": "b.test",
		"From: a@b.test, c@d.test\r\n":                   "b.test d.test",
		"From: CEO <ceo@b.test>, x\r\n":                  "b.test",
		"From: a@b.test\r\nX: y\r\nFrom: a@d.test\r\n":   "b.test d.test",
		"From: \"a@evil.test\" <a@b.test>\r\n":           "b.test",
		"From: a@B\u00fccher.test.\r\n":                  "xn--bcher-kva.test",
		"From: nobody\r\n":                               "",
		"Subject: x\r\n":                                 "",
	} {
		if got := strings.Join((&Checker{}).authorDomains([]byte(header)), " "); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

// TestAuthors forges an author whose domain wants forgeries refused, and adds
// others who do not mind.
func TestAuthors(t *testing.T) {
	t.Parallel()
	z, err := fakezone.Parse(`
_dmarc.bank.test.    60 IN TXT "v=DMARC1; p=reject"
_dmarc.lax.test.     60 IN TXT "v=DMARC1; p=none"
_dmarc.middle.test.  60 IN TXT "v=DMARC1; p=quarantine"
`)
	if err != nil {
		t.Fatal(err)
	}
	dns := z.Resolver()
	t.Cleanup(func() { dns.Close() })
	c := New(dns, resolver.Names{}, "mx.test")
	many := "a@bank.test"
	for i := range maxAuthors {
		many = fmt.Sprintf("a@%d.test, ", i) + many
	}
	for _, tt := range []struct {
		from, passes string
		result       Result
		refused      bool
	}{
		{"a@bank.test", "evil.test", Fail, true},
		{"a@bank.test", "bank.test", Pass, false},
		{"a@bank.test, x", "evil.test", Fail, true},
		{"a@evil.test, a@bank.test", "evil.test", Fail, true},
		{"a@lax.test, a@bank.test, a@middle.test", "lax.test", Fail, true},
		{"a@lax.test, a@middle.test", "evil.test", Fail, false},
		{"a@lax.test\r\nFrom: a@bank.test", "lax.test", Fail, true},
		{"a@nothing.test", "evil.test", None, false},
		{many, "evil.test", PermError, true},
	} {
		r := &Results{SPF: SPF{Result: Fail}, DKIM: []DKIM{{Result: Pass, Domain: tt.passes}}}
		r.DMARC = c.dmarcOf(t.Context(), c.authorDomains([]byte("From: "+tt.from+"\r\n")), r)
		if r.DMARC.Result != tt.result || (r.Rejected() != nil) != tt.refused {
			t.Errorf("From: %s, signed by %s: %+v, refused: %v", tt.from, tt.passes, r.DMARC, r.Rejected())
		}
	}
}

func TestField(t *testing.T) {
	t.Parallel()
	c := checker(t)
	m := signed(t, "From: a@example.com\r\n\r\nbody\r\n", dkim.SignOptions{Domain: "other.test"})
	m.Sender = "x y\";spf=pass@soft.test"
	r := c.Check(t.Context(), m)
	r.DKIM[0].B = "B8"
	got := string(c.Field(r))
	want := "Authentication-Results: mx.test;\r\n\tspf=softfail smtp.mailfrom=\"x y\\\";spf=pass@soft.test\";\r\n" +
		"\tdkim=pass header.d=other.test header.s=s1 header.a=ed25519-sha256 header.b=B8;\r\n\tdmarc=fail (p=reject) header.from=example.com\r\n"
	if got != want {
		t.Errorf("field\n%s\nwant\n%s", got, want)
	}
	if !c.Claims([]byte(got)) {
		t.Error("our own field is not recognized")
	}
	if rej := r.Rejected(); rej == nil || rej.Code != 550 {
		t.Errorf("refusal %v", rej)
	}
	for text, want := range map[string]bool{
		"MX.test; spf=pass": true, "(a (b) ) mx.test 1; spf=pass": true, "\"mx.test\"; none": true, "\r\n\tmx.test;x": true, "mx.(x)test; a": true,
		"mx.test": true, "other.test; mx.test": false, "mx.test.evil; x": false, "": false, "(mx.test)": false, "\"m\\x.test\";": true,
	} {
		if got := c.Claims([]byte("authentication-results: " + text + "\r\n")); got != want {
			t.Errorf("%q: ours %t, want %t", text, got, want)
		}
	}
	if c.Claims([]byte("X-Authentication-Results: mx.test; x\r\n")) {
		t.Error("another field is taken for ours")
	}
}

func FuzzMessage(f *testing.F) {
	f.Add("From: a@example.com\r\nDKIM-Signature: v=1; a=ed25519-sha256; d=example.com; s=s1; h=from; bh=x; b=y\r\n", "body\r\n", "v=DMARC1; p=reject")
	f.Add("DKIM-Signature: v=1; a=rsa-sha256; c=a/b/c; d=; s=; h=:::; bh=; b=; z=b=\r\nAuthentication-Results: (\r\n", "", "v=DMARC1;;=;p=;rua=x")
	f.Fuzz(func(t *testing.T, header, body, txt string) {
		c := checker(t)
		parseRecord("x.test", txt)
		m := &Message{Client: netip.MustParseAddr("192.0.2.3"), Helo: "h.test", Sender: "", Header: []byte(header),
			Body: func() io.Reader { return strings.NewReader(body) }}
		field := c.Field(c.Check(t.Context(), m))
		lines := strings.Split(strings.TrimSuffix(string(field), "\r\n"), "\r\n")
		for _, l := range lines[1:] {
			if !strings.HasPrefix(l, "\t") {
				t.Errorf("line %q in %q", l, field)
			}
		}
		if !c.Claims(field) {
			t.Errorf("not ours: %q", field)
		}
		c.Claims([]byte(header))
	})
}
