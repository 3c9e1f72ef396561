package cleanup

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-msgauth/dkim"

	"posthaste/internal/config"
	"posthaste/internal/mailauth"
	"posthaste/internal/milter"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
)

// testKey writes a key and returns its path and DNS record.
func testKey(t *testing.T, seed byte) (path, record string) {
	t.Helper()
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, "v=DKIM1; k=ed25519; p=" + base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
}

func testSigner(t *testing.T, main string) *signer {
	t.Helper()
	cfg, err := config.LoadString(main)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSigner(cfg, table.Options{Warn: func(text string) { t.Log(text) }})
	if err != nil || s == nil {
		t.Fatal(s, err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func testContent(t *testing.T, text string) *milter.Content {
	t.Helper()
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	c := &milter.Content{Body: strings.NewReader(body), BodySize: int64(len(body))}
	for rest := []byte(head + "\r\n"); len(rest) > 0; {
		f, r, ok := rfc5322.NextField(rest)
		if !ok {
			t.Fatalf("no field: %q", rest)
		}
		c.Fields, rest = append(c.Fields, milter.Field{Name: string(f.Name()), Raw: f.Raw}), r
	}
	return c
}

// makeSignature makes the signature of a message.
func makeSignature(s *signer, c *milter.Content, u *use) ([]byte, error) {
	body, err := mailauth.BodyHash(io.NewSectionReader(c.Body, 0, c.BodySize))
	if err != nil {
		return nil, err
	}
	return s.signature(c, u, body)
}

const signText = "Received: x\r\nFrom: Joe <joe@Mail.Example.com>\r\nTo: a@b.test\r\nSubject: folded\r\n\tsubject\r\n\r\nbody  \r\n.dot\r\n\r\n\r\n"

// What is signed is verified by whoever asks DNS, and cannot be added to.
func TestSignature(t *testing.T) {
	t.Parallel()
	path, record := testKey(t, 1)
	path2, record2 := testKey(t, 2)
	s := testSigner(t, "dkim_signature_lifetime = 1d\ndkim_sign_maps = inline:{ {.example.com = s1:"+path+" other.test:s2:"+path2+"} }\n")
	c := testContent(t, signText)
	domain := fromDomain(c.Fields, "")
	if domain != "mail.example.com" {
		t.Fatalf("domain %q", domain)
	}
	keys, err := s.keysFor(t.Context(), "", domain)
	if err != nil || len(keys) != 2 {
		t.Fatal(keys, err)
	}
	var signed []byte
	for _, k := range keys {
		raw, err := makeSignature(s, c, &k)
		if err != nil {
			t.Fatal(err)
		}
		signed = append(signed, raw...)
	}
	lookup := func(name string) ([]string, error) {
		return map[string][]string{"s1._domainkey.example.com": {record}, "s2._domainkey.other.test": {record2}}[name], nil
	}
	verify := func(text string) (good int) {
		vs, err := dkim.VerifyWithOptions(strings.NewReader(text), &dkim.VerifyOptions{LookupTXT: lookup})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range vs {
			if v.Err == nil {
				good++
				if left := time.Until(v.Expiration); left < 23*time.Hour || left > 25*time.Hour {
					t.Errorf("expires in %s, want a day", left)
				}
			}
		}
		return good
	}
	if n := verify(string(signed) + signText); n != 2 {
		t.Errorf("%d good signatures, want 2\n%s", n, signed)
	}
	// What relays do on the way does no harm, what forgers do is seen.
	if n := verify("Received: y\r\n" + string(signed) + strings.Replace(signText, "folded\r\n\tsubject", "folded subject", 1)); n != 2 {
		t.Errorf("refolded: %d good signatures, want 2", n)
	}
	for _, change := range []string{"From: forger@example.net\r\n", "Subject: other\r\n", "Cc: x@y.test\r\n", "Date: today\r\n"} {
		if n := verify(string(signed) + change + signText); n != 0 {
			t.Errorf("with %q added: %d good signatures", change, n)
		}
	}
	if n := verify(string(signed) + signText + "more\r\n"); n != 0 {
		t.Errorf("with a longer body: %d good signatures", n)
	}
}

// A signature that does not expire has no time in it, by which a receiver with another clock could judge; and
// fields of one name are signed from the bottom upwards, as receivers take them.
func TestSignatureTimeless(t *testing.T) {
	t.Parallel()
	path, record := testKey(t, 1)
	s := testSigner(t, "dkim_sign_maps = inline:{ {mail.example.com = s1:"+path+"} }\n")
	keys, err := s.keysFor(t.Context(), "", "mail.example.com")
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	const text = "Subject: first\r\nSubject: second\r\n" + signText
	raw, err := makeSignature(s, testContent(t, text), &keys[0])
	if err != nil {
		t.Fatal(err)
	}
	vs, err := dkim.VerifyWithOptions(strings.NewReader(string(raw)+text), &dkim.VerifyOptions{LookupTXT: func(string) ([]string, error) { return []string{record}, nil }})
	if err != nil || len(vs) != 1 || vs[0].Err != nil || !vs[0].Time.IsZero() || !vs[0].Expiration.IsZero() {
		t.Errorf("%v, %+v of\n%s", err, vs, raw)
	}
}

func TestSignMaps(t *testing.T) {
	t.Parallel()
	path, _ := testKey(t, 1)
	s := testSigner(t, "dkim_sign_maps = inline:{ {a.test="+path+"}, {b.test=s:none}, {c.test=s:/nonexistent}, {d.test=s:"+path+"}, {e.test=s:/1 s:/2 s:/3 s:/4 s:/5 s:/6} }\n")
	for domain, want := range map[string]string{
		"a.test": "expected selector", "b.test": "expected selector", "c.test": "no such file", "e.test": "at most 5",
		"d.test": "", "sub.d.test": "none", "test": "none",
	} {
		keys, err := s.keysFor(t.Context(), "", domain)
		switch {
		case want == "":
			if err != nil || len(keys) != 1 || keys[0].domain != domain || keys[0].selector != "s" {
				t.Errorf("%s: %v, %v", domain, keys, err)
			}
		case want == "none":
			if err != nil || len(keys) != 0 {
				t.Errorf("%s: %v, %v; want no key", domain, keys, err)
			}
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v, want an error with %q", domain, err, want)
		}
	}
	cfg, err := config.LoadString("dkim_sign_maps = inline:{a=b}\ndkim_sign_headers = subject\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newSigner(cfg, table.Options{}); err == nil {
		t.Error("signatures without From: are allowed")
	}
}

// A tenant can have keys of its own for a domain, which sign nobody else's mail, whatever that says of itself.
func TestSignTenants(t *testing.T) {
	t.Parallel()
	ours, _ := testKey(t, 1)
	theirs, _ := testKey(t, 2)
	s := testSigner(t, "dkim_sign_maps = inline:{ {a.test=s:"+ours+"}, {shop/a.test=shop:"+theirs+"}, {shop/b.test=shop:"+theirs+"}, {shop/.c.test=mail.test:shop:"+theirs+"} }\n")
	for _, c := range []struct{ tenant, domain, want string }{
		{"", "a.test", "s a.test"}, {"news", "a.test", "s a.test"}, {"shop", "a.test", "shop a.test"},
		{"", "b.test", ""}, {"news", "b.test", ""}, {"shop", "b.test", "shop b.test"},
		{"shop", "x.c.test", "shop mail.test"}, {"news", "x.c.test", ""},
		{"", "shop/b.test", ""}, {"news", "shop/b.test", ""}, {"", "x.shop/.c.test", ""},
	} {
		keys, err := s.keysFor(t.Context(), c.tenant, c.domain)
		got := ""
		for _, k := range keys {
			got += k.selector + " " + k.domain
		}
		if err != nil || got != c.want {
			t.Errorf("%s of %q: %q, %v, want %q", c.domain, c.tenant, got, err, c.want)
		}
	}
}

// A key that is replaced is used from then on.
func TestKeyChanges(t *testing.T) {
	t.Parallel()
	path, _ := testKey(t, 1)
	other, _ := testKey(t, 2)
	s := testSigner(t, "dkim_sign_maps = inline:{a.test=s:"+path+"}\n")
	first, err := s.key(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.key(path); err != nil || !again.Public().(ed25519.PublicKey).Equal(first.Public()) {
		t.Error(again, err)
	}
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if now, err := s.key(path); err != nil || now.Public().(ed25519.PublicKey).Equal(first.Public()) {
		t.Error("the old key is still in use", err)
	}
}

func BenchmarkSign(b *testing.B) {
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	s := &signer{names: []string{"from", "to", "subject"}, over: map[string]bool{"from": true}}
	body := strings.Repeat("0123456789012345678901234567890123456789\r\n", 250)
	c := &milter.Content{Fields: []milter.Field{{Name: "From", Raw: []byte("From: a@b.test\r\n")}}, Body: strings.NewReader(body), BodySize: int64(len(body))}
	for b.Loop() {
		if _, err := makeSignature(s, c, &use{"b.test", "s", key}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSignKeys is what it costs to find the key of a domain among so many, and to sign with it a message of 10 KB.
// Each key is RSA with 2048 bits and in a file of its own, as those of tenants are.
func BenchmarkSignKeys(b *testing.B) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		b.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		b.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	body := strings.Repeat("0123456789012345678901234567890123456789\r\n", 250)
	for _, n := range []int{1, 10000} {
		dir := b.TempDir()
		var lines strings.Builder
		for i := range n {
			path := filepath.Join(dir, fmt.Sprint("k", i))
			if err := os.WriteFile(path, text, 0o600); err != nil {
				b.Fatal(err)
			}
			fmt.Fprintf(&lines, "d%d.test s1:%s\n", i, path)
		}
		if err := os.WriteFile(filepath.Join(dir, "keys"), []byte(lines.String()), 0o600); err != nil {
			b.Fatal(err)
		}
		cfg, err := config.LoadString("dkim_sign_maps = texthash:" + filepath.Join(dir, "keys") + "\n")
		if err != nil {
			b.Fatal(err)
		}
		s, err := newSigner(cfg, table.Options{})
		if err != nil {
			b.Fatal(err)
		}
		c := &milter.Content{Fields: []milter.Field{{Name: "From", Raw: []byte("From: a@b.test\r\n")}}, Body: strings.NewReader(body), BodySize: int64(len(body))}
		use := func(i int) use {
			keys, err := s.keysFor(b.Context(), "", fmt.Sprintf("d%d.test", i))
			if err != nil || len(keys) != 1 {
				b.Fatal(keys, err)
			}
			return keys[0]
		}
		b.Run(fmt.Sprint("keys=", n), func(b *testing.B) {
			for i := range n { // each has been read once
				use(i)
			}
			i := 0
			for b.Loop() {
				u := use(i * 7919 % n)
				if _, err := makeSignature(s, c, &u); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
		b.Run(fmt.Sprint("find/keys=", n), func(b *testing.B) {
			i := 0
			for b.Loop() {
				use(i * 7919 % n)
				i++
			}
		})
		s.Close()
	}
}

// What our own people send costs no more to sign than its size, however it is
// folded, and is refused for good where it would. It counts what is allocated,
// and runs by itself for that.
func TestSignatureOfUglyHeader(t *testing.T) {
	path, _ := testKey(t, 1)
	s := testSigner(t, "dkim_sign_maps = inline:{ {mail.example.com = s1:"+path+"} }\n")
	keys, err := s.keysFor(t.Context(), "", "mail.example.com")
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	for _, tt := range []struct {
		name, header string
		refused      bool
	}{
		{"folded", strings.Repeat("Subject: a\r\n"+strings.Repeat(" a\r\n", 25000), 3), false},
		{"many fields of no interest", strings.Repeat("X: y\r\n", 9000), false},
		{"many fields", strings.Repeat("Subject: y\r\n", 9000), true},
	} {
		c := testContent(t, tt.header+signText)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		raw, err := makeSignature(s, c, &keys[0])
		runtime.ReadMemStats(&after)
		if tt.refused != errors.Is(err, errHead) || !tt.refused && (err != nil || len(raw) == 0) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 100 {
			t.Errorf("%s: %d MiB allocated", tt.name, n)
		}
	}
}

// A message that is signed loses the signatures that are made anew, and no others.
func TestWithoutOurs(t *testing.T) {
	t.Parallel()
	sig := func(tags string) string {
		return "DKIM-Signature: v=1; a=rsa-sha256; " + tags + "; h=from; bh=x; b=y\r\n"
	}
	fields := testContent(t, sig("d=a.test; s=s1")+"From: x@a.test\r\n"+sig("d=A.TEST;\r\n s=S1")+sig("d=a.test; s=s2")+sig("d=b.test; s=s1")+
		"DKIM-Signature: nonsense\r\nX-DKIM-Signature: d=a.test; s=s1\r\n"+sig("s=s3; d=b.test")+"\r\n").Fields
	var left []string
	for _, f := range withoutOurs(fields, []use{{domain: "a.test", selector: "s1"}, {domain: "b.test", selector: "s3"}}) {
		left = append(left, string(f.Raw))
	}
	want := []string{"From: x@a.test\r\n", sig("d=a.test; s=s2"), sig("d=b.test; s=s1"), "DKIM-Signature: nonsense\r\n", "X-DKIM-Signature: d=a.test; s=s1\r\n"}
	if !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}
