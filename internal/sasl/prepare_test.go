package sasl

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"

	"posthaste/internal/table"
)

func TestPrepare(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"I\u00adX": "IX", "user": "user", "USER": "USER", "\u00aa": "a", "\u2168": "IX", // RFC 4013 section 3
		"a b": "a b", "a\u00a0\u3000b": "a  b", "e\u0301": "\u00e9", "\uff41": "a", "\u2665\ufe0f": "\u2665", "\u05d0\u05d1": "\u05d0\u05d1",
		"\u06271\u0628": "\u06271\u0628", "\U0001f600": "\U0001f600",
		"\u0007": "", "a\tb": "", "\u06271": "", "a\u05d0": "", "\u00ad": "", "": "", "\xff": "", "a\u0085": "", "a\ue000": "", "a\ufdd0": "", "a\ufffd": "",
		"a\u200e": "", "a\u2028": "", "a\U000e0041": "", "a\U0001fffe": "",
	} {
		if got, ok := prepare(in); ok != (want != "") || ok && got != want {
			t.Errorf("%+q: %+q, %t, want %+q", in, got, ok, want)
		}
	}
}

func FuzzPrepare(f *testing.F) {
	f.Add("I\u00adX")
	f.Add("\u06271\u0628")
	f.Fuzz(func(t *testing.T, s string) {
		once, ok := prepare(s)
		if twice, still := prepare(once); ok && (!still || twice != once) {
			t.Errorf("%+q: %+q, and then %+q, %t", s, once, twice, still)
		}
	})
}

// Names and passwords count in the form that they have been given.
func TestPreparedLogin(t *testing.T) {
	t.Parallel()
	made, err := NewSecret("pa\u00a0\u00e9\u2168")
	if err != nil || !made.Matches("pa \u00e9IX") {
		t.Errorf("a new secret does not match its password in the form that counts (%v)", err)
	}
	secret := fast(t, "pa \u00e9IX")
	old := fast(t, "\u2168") // by who does not know of it
	spec := fmt.Sprintf("inline:{ {j\u00e9=%s}, {old=%s} }", secret, old)
	u := NewUsers(table.OpenMaps("users", []string{spec}, table.Options{}), "", nil, nil)
	defer u.Close()
	for _, tt := range []struct {
		response string
		want     string
	}{
		{"\x00j\u00e9\x00pa \u00e9IX", ""},
		{"\x00je\u0301\x00pa e\u0301\u2168", ""},
		{"je\u0301\x00j\u00e9\x00pa \u00e9IX", ""},
		{"je\x00j\u00e9\x00pa \u00e9IX", "not authorized to act as another user"},
		{"\x00je\x00pa \u00e9IX", errCredentials.Reason},
		{"\x00j\u00e9\x00pa eIX", errCredentials.Reason},
		{"\x00j\u00e9\x07\x00pa \u00e9IX", errCredentials.Reason},
		{"\x00old\x00\u2168", ""},
		{"\x00old\x00IX", errCredentials.Reason},
	} {
		x, err := u.Start(t.Context(), "PLAIN", Client{})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if _, _, err := x.Next(t.Context(), []byte(tt.response)); err != nil {
			got = err.Error()
		} else if name := x.Username(); name != "j\u00e9" && name != "old" {
			t.Errorf("%+q is %+q", tt.response, name)
		}
		if got != tt.want {
			t.Errorf("%+q: %q, want %q", tt.response, got, tt.want)
		}
	}
	if _, err := NewSecret("a\tb"); err == nil {
		t.Error("a password has a control character")
	}
}

// salts is what SCRAM says to users before they have shown anything.
func salts(t *testing.T, u *Users, name string) (salt []byte, iterations string) {
	t.Helper()
	x, err := u.Start(t.Context(), "SCRAM-SHA-256", Client{})
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := x.Next(context.Background(), []byte("n,,n="+name+",r=abc"))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(string(b), ",", 3)
	salt, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(parts[1], "s="))
	if err != nil {
		t.Fatal(err)
	}
	return salt, strings.TrimPrefix(parts[2], "i=")
}

// An unknown user looks like a known one, today and tomorrow.
func TestDecoys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	long, err := derive("x", []byte("a salt of its own length"), 5000)
	if err != nil {
		t.Fatal(err)
	}
	start := func() *Users {
		key, err := DecoyKey(dir)
		if err != nil {
			t.Fatal(err)
		}
		u := NewUsers(table.OpenMaps("users", []string{fmt.Sprintf("inline:{ {ann@realm=%s} }", long)}, table.Options{}), "realm", nil, key)
		t.Cleanup(u.Close)
		return u
	}
	u := start()
	if _, i := salts(t, u, "joe"); i != fmt.Sprint(Iterations) {
		t.Errorf("before anything is known: %s iterations", i)
	}
	ann, _ := salts(t, u, "ann")
	joe, i := salts(t, u, "joe")
	if len(joe) != len(ann) || i != "5000" {
		t.Errorf("%d octets, %s iterations, want %d and 5000", len(joe), i, len(ann))
	}
	other, _ := salts(t, u, "jim")
	if string(other) == string(joe) {
		t.Error("two users have one salt")
	}
	again := start()
	salts(t, again, "ann@realm")
	for _, name := range []string{"joe", "JOE", "joe@realm"} {
		if salt, _ := salts(t, again, name); string(salt) != string(joe) {
			t.Errorf("%s has another salt in another process", name)
		}
	}
	if err := os.WriteFile(dir+"/"+decoyFile, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := DecoyKey(dir); err == nil {
		t.Error("a key that is too short will do")
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%v %v: want the key alone", list, err)
	}
}
