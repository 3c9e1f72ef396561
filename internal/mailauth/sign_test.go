package mailauth

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"crypto/x509"

	"github.com/emersion/go-msgauth/dkim"
	"pgregory.net/rapid"

	"posthaste/internal/rfc5322"
)

// signedText signs a message over the fields of names, from the bottom upwards.
func signedText(t rapid.TB, s Signing, head, body string) string {
	t.Helper()
	var fields []rfc5322.Field
	for rest := []byte(head); len(rest) > 0; {
		f, r, ok := rfc5322.NextField(rest)
		if !ok {
			t.Fatalf("no field: %q", rest)
		}
		fields, rest = append(fields, f), r
	}
	seen := make(map[string]int)
	for _, n := range s.Names {
		var raw []byte
		if f := fromBottom(fields, n, seen[n]); f != nil {
			raw = f.Raw
		}
		s.Fields = append(s.Fields, raw)
		seen[n]++
	}
	sum, err := BodyHash(iotest.HalfReader(strings.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	field, err := Sign(&s, sum)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(field)) {
		if len(line) > 100 {
			t.Errorf("a line of %d octets: %q", len(line), line)
		}
	}
	return string(field) + head + "\r\n" + body
}

// verified is what go-msgauth finds of the signatures of a message.
func verified(t rapid.TB, text string, key crypto.Signer) []*dkim.Verification {
	t.Helper()
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	record := "v=DKIM1; p=" + base64.StdEncoding.EncodeToString(spki)
	if k, ok := key.Public().(ed25519.PublicKey); ok {
		record = "v=DKIM1; k=ed25519; p=" + base64.StdEncoding.EncodeToString(k)
	}
	list, err := dkim.VerifyWithOptions(strings.NewReader(text), &dkim.VerifyOptions{LookupTXT: func(string) ([]string, error) { return []string{record}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Whatever a message is, what is signed is found good by others, also when its lines were folded anew and
// white space at their ends was lost on the way; and what is changed is found bad.
func TestSign(t *testing.T) {
	t.Parallel()
	big, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keys := []crypto.Signer{big, ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))}
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "word", " ", "  ", "\t", "\r\n", "\r\n\r\n", "\xe4", "=", ":", ";", ".", strings.Repeat("long ", 30)}), 0, 30)
		body := strings.Join(words.Draw(t, "body"), "")
		value := func(label string) string {
			return strings.ReplaceAll(strings.Join(words.Draw(t, label), ""), "\r\n", " \r\n\t") + "x\r\n"
		}
		head := "Received: " + value("received") + "From: " + value("from") + "To:" + value("to") + "to : " + value("to 2") + "Subject:" + value("subject")
		names := rapid.Permutation([]string{"from", "from", "to", "to", "to", "subject", "cc", "list-unsubscribe-post", "content-transfer-encoding"}).Draw(t, "names")
		s := Signing{Domain: "example.org", Selector: "s1", Key: rapid.SampledFrom(keys).Draw(t, "key"), Names: names}
		if rapid.Bool().Draw(t, "dated") {
			s.Made = time.Now()
			s.Expires = s.Made.Add(time.Hour)
		}
		text := signedText(t, s, head, body)
		check := func(what, text string, good bool) {
			list := verified(t, text, s.Key)
			if len(list) != 1 || (list[0].Err == nil) != good {
				t.Fatalf("%s: %v of\n%q", what, list[0].Err, text)
			}
			if v := list[0]; v.Time.IsZero() != s.Made.IsZero() || v.Expiration.IsZero() != s.Expires.IsZero() {
				t.Errorf("%s: of %v until %v", what, v.Time, v.Expiration)
			}
		}
		check("as it is", text, true)
		check("on its way", "Received: elsewhere\r\n"+strings.ReplaceAll(text, "\r\n\t", "\r\n  ")+"\r\n\r\n", true)
		check("another body", text+"more\r\n", false)
		check("another author", "From: joe@example.net\r\n"+text, false)
		check("one more field", "Cc: joe@example.net\r\n"+text, false)
	})
}

// A signature that need not expire has no time in it: whatever time it is at the receiver, it is good. This is what it
// looks like.
func TestSignTimeless(t *testing.T) {
	t.Parallel()
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	s := Signing{Domain: "example.org", Selector: "202611a", Key: key, Names: strings.Fields("from from to cc subject date message-id mime-version content-type list-unsubscribe list-unsubscribe-post")}
	text := signedText(t, s, "From: joe@example.org\r\nSubject: x\r\n", "hello\r\n")
	const want = "DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed; d=example.org;\r\n" +
		"\ts=202611a;\r\n" +
		"\th=from:from:to:cc:subject:date:message-id:mime-version:content-type:\r\n" +
		"\tlist-unsubscribe:list-unsubscribe-post;\r\n" +
		"\tbh=zS7KNTV0HyeorkDDGwxB1AV6enuRKzO5rthkhdHIRnY=;\r\n" +
		"\tb="
	if !strings.HasPrefix(text, want) {
		t.Errorf("got\n%s", text)
	}
	if list := verified(t, text, key); len(list) != 1 || list[0].Err != nil || !list[0].Time.IsZero() || !list[0].Expiration.IsZero() {
		t.Errorf("%+v", list[0])
	}
	// A key that no receiver knows is an error.
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s.Key = other
	if _, err := Sign(&s, nil); err == nil {
		t.Error("signed with a key of the kind ECDSA")
	}
	if _, err := BodyHash(iotest.ErrReader(io.ErrUnexpectedEOF)); err == nil {
		t.Error("a body that cannot be read has a hash")
	}
}

// The hash of a body does not depend on the pieces in which it comes.
func FuzzBodyHash(f *testing.F) {
	f.Add([]byte("a \r\n \tb\r\r\n\n\r\n\r"), true)
	f.Add([]byte("a  b c\r\n"), false)
	f.Fuzz(func(t *testing.T, body []byte, relaxed bool) {
		whole, err := bodyHash(bytes.NewReader(body), relaxed)
		if err != nil {
			t.Fatal(err)
		}
		pieces, err := bodyHash(iotest.OneByteReader(bytes.NewReader(body)), relaxed)
		if err != nil || !bytes.Equal(whole, pieces) {
			t.Errorf("%q: %v", body, err)
		}
	})
}
