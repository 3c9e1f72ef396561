package dkimkey

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rsa"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"
)

// What genkey makes and prints is what a verifier reads from DNS.
func TestGenkey(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"rsa", "ed25519"} {
		dir := t.TempDir()
		var out, errs bytes.Buffer
		if status := Command([]string{"genkey", "-d", "example.com", "-s", "s1", "-t", kind, "-o", dir}, &out, &errs); status != 0 {
			t.Fatalf("%s: exit status %d: %s", kind, status, errs.String())
		}
		path := filepath.Join(dir, "example.com.s1.pem")
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm() != 0o600 {
			t.Fatal(fi, err)
		}
		key, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		switch key.(type) {
		case *rsa.PrivateKey, ed25519.PrivateKey:
		default:
			t.Errorf("%s: %T", kind, key)
		}
		if !strings.Contains(out.String(), "s1._domainkey.example.com. IN TXT ( \"v=DKIM1; k="+kind+"; p=") ||
			!strings.Contains(out.String(), "\nexample.com s1:"+path+"\n") {
			t.Errorf("printed:\n%s", out.String())
		}
		signAndVerify(t, path, published(t, out.String()))
		// A key is never overwritten.
		if status := Command([]string{"genkey", "-d", "example.com", "-s", "s1", "-t", kind, "-o", dir}, &out, &errs); status != 1 {
			t.Errorf("%s: written twice, exit status %d", kind, status)
		}
		var again bytes.Buffer
		if status := Command([]string{"record", "-d", "example.com", "-s", "s1", path}, &again, &errs); status != 0 || again.String() != out.String() {
			t.Errorf("%s: record says, with status %d:\n%s", kind, status, again.String())
		}
	}
}

// published puts the strings of the TXT record together.
func published(t *testing.T, text string) string {
	t.Helper()
	_, text, _ = strings.Cut(text, "(")
	text, _, ok := strings.Cut(text, ")")
	if !ok {
		t.Fatal("no record")
	}
	var b strings.Builder
	for i, part := range strings.Split(text, `"`) {
		if i%2 == 1 {
			if len(part) > 255 {
				t.Errorf("a string of %d octets", len(part))
			}
			b.WriteString(part)
		}
	}
	return b.String()
}

func signAndVerify(t *testing.T, path, record string) {
	t.Helper()
	key, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	var signed bytes.Buffer
	msg := "From: a@example.com\r\nSubject: x\r\n\r\nbody\r\n"
	err = dkim.Sign(&signed, strings.NewReader(msg), &dkim.SignOptions{Domain: "example.com", Selector: "s1", Signer: key})
	if err != nil {
		t.Fatal(err)
	}
	vs, err := dkim.VerifyWithOptions(&signed, &dkim.VerifyOptions{LookupTXT: func(string) ([]string, error) { return []string{record}, nil }})
	if err != nil || len(vs) != 1 || vs[0].Err != nil {
		t.Errorf("verification: %+v, %v", vs, err)
	}
}

func TestBadKeys(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "nonsense", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%q was taken for a key", text)
		}
	}
	path := filepath.Join(t.TempDir(), "k")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "0644") {
		t.Errorf("a key for all to read: %v", err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", "x", "genkey", "genkey -d a.b", "genkey -d ../x -s s", "genkey -d a.b -s s more", "record -d a.b -s s", "genkey -Z"} {
		var out, errs bytes.Buffer
		if status := Command(strings.Fields(args), &out, &errs); status != 64 || !strings.Contains(errs.String(), "usage:") {
			t.Errorf("%q: exit status %d: %s", args, status, errs.String())
		}
	}
	var out, errs bytes.Buffer
	for _, args := range []string{"genkey -d a.b -s s -t dsa", "genkey -d a.b -s s -b 512"} {
		if status := Command(strings.Fields(args), &out, &errs); status != 1 {
			t.Errorf("%q: exit status %d", args, status)
		}
	}
}
