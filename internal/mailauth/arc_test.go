package mailauth

import (
	"bytes"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"

	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/rfc5322"
)

// sealed is a message of testdata/arc, which dkimpy has sealed. The results of the second set say
// that DMARC failed, and that the first set was good.
func sealed(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/arc/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func arcChecker(t testing.TB, sealers ...string) *Checker {
	t.Helper()
	key := sealed(t, "k.pub")
	dns := fakezone.Must(`
_dmarc.author.test. 60 IN TXT "v=DMARC1; p=reject"
s1._domainkey.lists.test. 60 IN TXT "v=DKIM1; k=rsa; p=` + key + `"
s1._domainkey.relay.test. 60 IN TXT "v=DKIM1; k=rsa; p=` + key + `"
`).Resolver()
	t.Cleanup(dns.Close)
	c := New(dns, resolver.Names{}, "mx.test")
	c.Trust(sealers)
	return c
}

func (c *Checker) checkText(t testing.TB, text string) *Results {
	header, body, ok := strings.Cut(text, "\r\n\r\n")
	if !ok {
		header, body = text, ""
	}
	return c.Check(t.Context(), &Message{Client: netip.MustParseAddr("192.0.2.1"), Helo: "x.test", Sender: "list@lists.test", Header: []byte(header + "\r\n"),
		Body: func() io.Reader { return strings.NewReader(body) }, BodySize: int64(len(body))})
}

// A chain overrides DMARC when it is good, and as far as who has found that the message passed is
// trusted, and all who came later.
func TestARC(t *testing.T) {
	t.Parallel()
	one, two := sealed(t, "one.eml"), sealed(t, "two.eml")
	both := []string{"lists.test", "relay.test"}
	for _, tt := range []struct {
		what, text string
		sealers    []string
		result     Result
		vouched    bool
		reason     string
	}{
		{"a list", one, both, Pass, true, ""},
		{"nobody is trusted", one, nil, "", false, ""},
		{"another is trusted", one, []string{"relay.test"}, "", false, ""},
		{"two forwarders", two, both, Pass, true, ""},
		{"the newer one alone, which saw a failure", two, []string{"relay.test"}, Pass, false, ""},
		{"the older one alone", two, []string{"lists.test"}, "", false, ""},
		{"no chain", "From: joe@author.test\r\n\r\nx\r\n", both, None, false, ""},
		{"another body", strings.Replace(one, "footer", "footers", 1), both, Fail, false, "the body was changed"},
		{"white space in the body", strings.Replace(one, "footer", "footer  ", 1) + "\r\n\r\n", both, Pass, true, ""},
		{"another subject", strings.Replace(one, "hello", "hallo", 1), both, Fail, false, "the signature is not good"},
		{"another folding", strings.Replace(one, "[list]  hello\r\n\tworld", "[list] hello world", 1), both, Pass, true, ""},
		{"a field that is not signed", "X-Y: z\r\n" + one, both, Pass, true, ""},
		{"one more From:", strings.Replace(one, "From:", "From: evil@author.test\r\nFrom:", 1), both, Fail, false, "does not cover what it must"},
		{"an author of another domain", strings.Replace(one, "From: ", "From: eve@evil.test, ", 1), both, "", false, ""},
		{"other results", strings.Replace(one, "i=1; lists.test; dmarc=pass header.from=author.test", "i=1; lists.test; dmarc=pass header.from=other.test", 1), both, Fail, false, "seal 1: the signature is not good"},
		{"a set twice", one[:strings.Index(one, "ARC-Message")] + one, both, Fail, false, "two fields of a kind in set 1"},
		{"a set that is not complete", strings.Replace(one, "ARC-Authentication-Results", "X-Results", 1), both, Fail, false, "set 1 is not complete"},
		{"a gap", strings.ReplaceAll(one, "i=1;", "i=2;"), both, Fail, false, "set 1 is not complete"},
		{"too many sets", strings.ReplaceAll(one, "i=1;", "i=11;"), both, Fail, false, "a set with the number"},
		{"number 0", strings.ReplaceAll(one, "i=1;", "i=0;"), both, Fail, false, "a set with the number"},
		{"a chain that had failed", strings.Replace(two, "cv=pass", "cv=fail", 1), both, Fail, false, "set 2 says cv=fail"},
		{"a chain that begins with pass", strings.Replace(one, "cv=none", "cv=pass", 1), both, Fail, false, "set 1 says cv=pass"},
		{"a seal with fields", strings.Replace(one, "cv=none", "h=from; cv=none", 1), both, Fail, false, "the seal of set 1 has h="},
		{"the older set was changed", strings.Replace(two, "d=lists.test; s=s1; t=1795600000;\r\n b=", "d=lists.test; s=s1; t=1795600001;\r\n b=", 1), both, Fail, false, "the signature is not good"},
		{"another author", strings.ReplaceAll(one, "header.from=author.test", "header.from=x"), both, Fail, false, "the signature is not good"},
		{"a part of the body", strings.Replace(one, "c=relaxed/relaxed;", "c=relaxed/relaxed; l=1;", 1), both, Fail, false, "a part of the body"},
		{"From: is not signed", strings.Replace(one, "h=from : to", "h=to : to", 1), both, Fail, false, "does not cover what it must"},
		{"an unknown form", strings.Replace(one, "c=relaxed/relaxed", "c=relaxed/tight", 1), both, Fail, false, "unknown canonicalization"},
		{"a field that is too large", strings.Replace(one, "cv=none;", "cv=none; x="+strings.Repeat("y", maxSignature)+";", 1), both, Fail, false, "a set is too large"},
	} {
		r := arcChecker(t, tt.sealers...).checkText(t, tt.text)
		if r.DMARC.Result != Fail || r.ARC.Result != tt.result || r.ARC.Vouched != tt.vouched || !strings.Contains(r.ARC.Reason, tt.reason) || (r.Rejected() == nil) != tt.vouched {
			t.Errorf("%s: %+v %+v, expected %s %v %q", tt.what, r.DMARC, r.ARC, tt.result, tt.vouched, tt.reason)
		}
	}
}

// What a stranger has put into an address is no result of the sealer's.
func TestARCResults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		body   string
		passed bool
	}{
		{"i=1; lists.test; spf=pass smtp.mailfrom=a@b.test; dmarc=pass (p=REJECT sp=NONE) header.from=author.test", true},
		{"i=1; lists.test; dmarc=pass(p=REJECT) header.from=author.test; spf=pass", true},
		{`i=1; lists.test; dmarc=pass header.from="author.test"`, true},
		{"i=1; lists.test 1; dmarc=pass header.from=Author.test", true},
		{"i=1; lists.test; dmarc=fail header.from=author.test", false},
		{"i=1; lists.test; dmarc=pass header.from=evil.test", false},
		{`i=1; lists.test; spf=pass smtp.mailfrom="x; dmarc=pass header.from=author.test; y"@evil.test`, false},
		{`i=1; lists.test; spf=pass smtp.mailfrom="x\"; dmarc=pass header.from=author.test; y=\""@evil.test; dkim=none`, false},
		{`i=1; lists.test; spf=pass (domain of x; dmarc=pass header.from=author.test; y is good) smtp.helo=x`, false},
		{`i=1; lists.test; spf=pass (a (nested); dmarc=pass header.from=author.test; \) y) smtp.helo=x`, false},
		{"i=1; lists.test; spf=pass smtp.mailfrom=x; dmarc=pass header.from=author.test; y@evil.test; dmarc=fail header.from=author.test", false},
		{"i=1; lists.test; dmarc=fail header.from=author.test; spf=pass smtp.mailfrom=x; dmarc=pass header.from=author.test", false},
		{`i=1; lists.test; dmarc=pass header.from=author.test; x="`, false},
		{`i=1; lists.test; dmarc=pass header.from=author.test; x=1 (`, false},
	} {
		f, ok := rfc5322.ParseField([]byte("ARC-Authentication-Results: " + tt.body + "\r\n"))
		if !ok {
			t.Fatal(tt.body)
		}
		if s := (&set{results: &f}); s.passed("author.test") != tt.passed {
			t.Errorf("%s: %v", tt.body, !tt.passed)
		}
	}
}

// What the DNS cannot say is no failure, and what it says of keys is looked at.
func TestARCKeys(t *testing.T) {
	t.Parallel()
	key := sealed(t, "k.pub")
	for _, tt := range []struct {
		zone, reason string
		result       Result
	}{
		{"!fail s1._domainkey.lists.test SERVFAIL", "the key cannot be had now", TempError},
		{"", "there is no key", Fail},
		{`s1._domainkey.lists.test. 60 IN TXT "v=DKIM1; p="`, "malformed or revoked", Fail},
		{`s1._domainkey.lists.test. 60 IN TXT "v=DKIM2; p=` + key + `"`, "malformed or revoked", Fail},
		{`s1._domainkey.lists.test. 60 IN TXT "v=DKIM1; k=ed25519; p=` + key + `"`, "the key is malformed", Fail},
		{`s1._domainkey.lists.test. 60 IN TXT "v=DKIM1; p=AAAA"`, "malformed, or too short", Fail},
		{`s1._domainkey.lists.test. 60 IN TXT "k=rsa; p=` + key + `"`, "", Pass},
	} {
		dns := fakezone.Must("_dmarc.author.test. 60 IN TXT \"v=DMARC1; p=reject\"\n" + tt.zone + "\n").Resolver()
		c := New(dns, resolver.Names{}, "mx.test")
		c.Trust([]string{"lists.test"})
		r := c.checkText(t, sealed(t, "one.eml"))
		dns.Close()
		if r.ARC.Result != tt.result || !strings.Contains(r.ARC.Reason, tt.reason) {
			t.Errorf("%s: %+v", tt.zone, r.ARC)
		}
		if field := string(c.Field(r)); !strings.Contains(field, ";\r\n\tarc="+string(tt.result)) || !strings.Contains(field, "header.d=lists.test") {
			t.Errorf("%s", field)
		}
	}
}

// The newest sealer says that what came before was good; whether it was is looked at all the same.
func TestARCOlderSeal(t *testing.T) {
	t.Parallel()
	dns := fakezone.Must("_dmarc.author.test. 60 IN TXT \"v=DMARC1; p=reject\"\ns1._domainkey.relay.test. 60 IN TXT \"p=" + sealed(t, "k.pub") + "\"\n").Resolver()
	defer dns.Close()
	c := New(dns, resolver.Names{}, "mx.test")
	c.Trust([]string{"lists.test", "relay.test"})
	if r := c.checkText(t, sealed(t, "two.eml")); r.ARC.Result != Fail || r.ARC.Vouched || r.ARC.Reason != "seal 1: there is no key" {
		t.Errorf("%+v", r.ARC)
	}
}

// Bodies by RFC 6376 sections 3.4.3 to 3.4.5.
func TestBodyHash(t *testing.T) {
	t.Parallel()
	sum := func(text string, relaxed bool) string {
		b, err := bodyHash(strings.NewReader(text), relaxed)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, tt := range []struct {
		a, b    string
		relaxed bool
		same    bool
	}{
		{" C \r\nD \t E\r\n\r\n\r\n", " C\r\nD E\r\n", true, true}, {" C \r\nD \t E\r\n\r\n\r\n", " C \r\nD \t E\r\n", false, true}, {" C \r\n", " C\r\n", false, false},
		{"", "\r\n", false, true}, {"", "\r\n\r\n", true, true}, {"", " \r\n", true, true}, {"", "x", true, false}, {"a", "a\r\n", true, true}, {"\r\na\r\n", "a\r\n", true, false}, {"a\rb", "ab", true, false},
	} {
		if got := sum(tt.a, tt.relaxed) == sum(tt.b, tt.relaxed); got != tt.same {
			t.Errorf("%q %q relaxed %v: %v", tt.a, tt.b, tt.relaxed, got)
		}
	}
}

func FuzzARC(f *testing.F) {
	f.Add([]byte(sealed(f, "one.eml")))
	f.Add([]byte(sealed(f, "two.eml")))
	f.Add([]byte("ARC-Seal: i=1; cv=none; d=lists.test; s=s1; b=;\r\nARC-Message-Signature: i=1; h=from; b\r\nARC-Authentication-Results: i=1\r\nFrom: a@author.test\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := arcChecker(t, "lists.test", "relay.test")
		header, body, _ := bytes.Cut(text, []byte("\r\n\r\n"))
		a := c.chain(t.Context(), &Message{Header: append(header, crlf...), Body: func() io.Reader { return bytes.NewReader(body) }}, "author.test")
		if a.Vouched && a.Result != Pass {
			t.Errorf("%+v", a)
		}
	})
}

// A chain vouches for the author whom its results name, and for nobody else.
func TestARCAuthor(t *testing.T) {
	t.Parallel()
	c := arcChecker(t, "lists.test", "relay.test")
	header, body, _ := strings.Cut(sealed(t, "two.eml"), "\r\n\r\n")
	m := &Message{Header: []byte(header + "\r\n"), Body: func() io.Reader { return strings.NewReader(body) }}
	for author, want := range map[string]bool{"author.test": true, "other.test": false, "": false} {
		if a := c.chain(t.Context(), m, author); a.Result != Pass || a.Vouched != want {
			t.Errorf("%q: %+v", author, a)
		}
	}
	// What the older forwarder has found counts only where both are trusted.
	for _, sealers := range [][]string{{"relay.test"}, {"lists.test"}} {
		if a := arcChecker(t, sealers...).chain(t.Context(), m, "author.test"); a.Vouched {
			t.Errorf("%q: %+v", sealers, a)
		}
	}
}
