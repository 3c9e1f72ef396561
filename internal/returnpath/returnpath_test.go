package returnpath

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var day = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func coder(secrets ...string) *Coder {
	return &Coder{Domain: "bounces.example.org", Secrets: secrets, MaxDays: 14}
}

// What is made is understood, whatever case the letters come back in, and fits into a local part.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := Token{Day: Day(day), Position: rapid.Int64Range(0, MaxPosition-1).Draw(t, "position"),
			QueueID: rapid.StringMatching(`[0-9A-Za-z]{0,18}`).Draw(t, "id")}
		rcpt := rapid.StringMatching(`[a-z]{1,9}@[a-z]{1,9}\.example`).Draw(t, "recipient")
		addr := coder("secret-1").Make(want, rcpt)
		if local, _, _ := strings.Cut(addr, "@"); len(local) > 64 {
			t.Fatalf("%s: %d octets", addr, len(local))
		}
		for _, come := range []string{addr, strings.ToUpper(addr)} {
			got, err := coder("secret-2", "secret-1").Parse(come, day)
			if err != nil || got.Day != want.Day || got.Position != want.Position || got.QueueID != want.QueueID {
				t.Fatalf("%s: %+v, %v, expected %+v", come, got, err, want)
			}
			if !got.IsFor(strings.ToUpper(rcpt)) || got.IsFor("x"+rcpt) {
				t.Fatalf("%s is not for %s", come, rcpt)
			}
		}
	})
}

// Nothing but what was made counts, and that for its time only.
func TestRefused(t *testing.T) {
	t.Parallel()
	c := coder("secret-1")
	good := c.Make(Token{Day: Day(day), Position: 4711, QueueID: "4jWn4F1YhnzSshsm4"}, "joe@example.net")
	other := *c
	other.Domain = "bounces.example.com"
	for _, tt := range []struct {
		addr string
		at   time.Time
		c    *Coder
		want error
	}{
		{good, day, c, nil},
		{good, day.Add(-24 * time.Hour), c, nil},
		{good, day.Add(-48 * time.Hour), c, ErrExpired},
		{good, day.Add(14 * 24 * time.Hour), c, nil},
		{good, day.Add(15 * 24 * time.Hour), c, ErrExpired},
		{good, day, coder("secret-2"), ErrForged},
		{good, day, &other, ErrNone},
		{strings.Replace(good, "bounces.example.org", "bounces.example.com", 1), day, &other, ErrForged},
		{strings.Replace(good, "b+", "c+", 1), day, c, ErrNone},
		{"joe@bounces.example.org", day, c, ErrNone},
		{"b+@bounces.example.org", day, c, ErrNone},
		{"b+aaaa@bounces.example.org", day, c, ErrForged},
		{"b+???@bounces.example.org", day, c, ErrForged},
		{"", day, c, ErrNone},
	} {
		if _, err := tt.c.Parse(tt.addr, tt.at); !errors.Is(err, tt.want) {
			t.Errorf("%s at %v: %v, expected %v", tt.addr, tt.at, err, tt.want)
		}
	}
	local, _, _ := strings.Cut(good, "@")
	for i := len(prefix); i < len(local); i++ {
		bad := []byte(good)
		if bad[i]++; bad[i] > 'z' || bad[i] == '8' {
			bad[i] = 'a'
		}
		// The last character may have bits that stand for nothing.
		if tok, err := c.Parse(string(bad), day); err == nil && (i < len(local)-1 || !tok.IsFor("joe@example.net")) {
			t.Errorf("%s was taken for %s", bad, good)
		}
	}
}

func FuzzParse(f *testing.F) {
	c := coder("secret-1")
	f.Add(c.Make(Token{Day: Day(day), QueueID: "4jWn4F1YhnzSshsm4"}, "joe@example.net"))
	f.Add("b+aeaq@bounces.example.org")
	f.Fuzz(func(t *testing.T, addr string) {
		tok, err := c.Parse(addr, day)
		if err == nil && len(packID(tok.QueueID)) > maxID {
			t.Errorf("%q: %+v", addr, tok)
		}
	})
}

// A return path is for its recipient in whatever case, and not for an address that only looks like it.
func TestFold(t *testing.T) {
	t.Parallel()
	c := coder("a secret")
	token, err := c.Parse(c.Make(Token{Day: Day(day)}, "Jack@Example.NET"), day)
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{"jack@example.net": true, "JACK@EXAMPLE.NET": true, "jac\u212a@example.net": false, "jac\xff@example.net": false} {
		if got := token.IsFor(addr); got != want {
			t.Errorf("%q: %v", addr, got)
		}
	}
	if a, b := Fold("\xffA@x"), Fold("\xfeA@x"); a == b || a != "\xffa@x" {
		t.Errorf("%q, %q", a, b)
	}
}
