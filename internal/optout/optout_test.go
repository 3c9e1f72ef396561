package optout

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var day = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func coder(secrets ...string) *Coder {
	return &Coder{Base: "https://unsubscribe.example.org/u/", Secrets: secrets, MaxDays: 365}
}

// What is made is understood, with the secret that made it among others, and by nobody who has not got that.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z0-9/._-]{0,70}`)
		want := Token{Day: Day(day), QueueID: text.Draw(t, "id"), Recipient: rapid.StringN(1, 300, 400).Draw(t, "recipient"), Scope: text.Draw(t, "scope") + "/",
			Tenant: text.Draw(t, "tenant"), Campaign: text.Draw(t, "campaign")}
		c := coder("secret-1")
		link := c.Link(want)
		token, ok := strings.CutPrefix(link, c.Base)
		if !ok || link != c.Link(want) {
			t.Fatal(link)
		}
		for _, secrets := range [][]string{{"secret-1"}, {"secret-2", "secret-1"}, {"secret-1", "secret-2"}} {
			if got, err := coder(secrets...).Parse(token, day); err != nil || got != want {
				t.Fatalf("%v: %+v, %v, expected %+v", secrets, got, err, want)
			}
		}
		if got, err := coder("secret-2").Parse(token, day); !errors.Is(err, ErrForged) || got != (Token{}) {
			t.Fatalf("%+v, %v", got, err)
		}
		if strings.Trim(token, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			t.Fatalf("%s cannot stand in a URL", token)
		}
	})
}

var sample = Token{Day: Day(day), QueueID: "4jWn4F1YhnzSshsm4", Recipient: "joe@example.net", Scope: "shop/letter", Tenant: "shop", Campaign: "spring"}

// One character that is not as it was made makes a link that counts for nothing, and so does every other text.
func TestForged(t *testing.T) {
	t.Parallel()
	c := coder("secret-1")
	good := strings.TrimPrefix(c.Link(sample), c.Base)
	for i := range good {
		for _, x := range []byte{'A', 'B', '_', '=', '/', ' '} {
			bad := good[:i] + string(x) + good[i+1:]
			if got, err := c.Parse(bad, day); bad != good && (!errors.Is(err, ErrForged) || got != (Token{})) {
				t.Errorf("%s was taken for %s: %+v, %v", bad, good, got, err)
			}
		}
	}
	for _, bad := range []string{"", "A", good + "A", good + "AAAA", good[:len(good)-4], good[4:], good + "\n", strings.Repeat("A", 64), strings.Repeat("A", 4096), "\u00e9"} {
		if got, err := c.Parse(bad, day); !errors.Is(err, ErrForged) || got != (Token{}) {
			t.Errorf("%q was taken for a link: %+v, %v", bad, got, err)
		}
	}
}

// A link counts for its time, and tomorrow's is good.
func TestAge(t *testing.T) {
	t.Parallel()
	c := coder("secret-1")
	token := strings.TrimPrefix(c.Link(sample), c.Base)
	for days, want := range map[int]error{-2: ErrExpired, -1: nil, 0: nil, 365: nil, 366: ErrExpired} {
		if _, err := c.Parse(token, day.AddDate(0, 0, days)); !errors.Is(err, want) {
			t.Errorf("after %d days: %v, expected %v", days, err, want)
		}
	}
}

// A link shows nothing of what it is for: not in its text, not in its length to the octet, and two for one recipient have
// nothing in common.
func TestHidden(t *testing.T) {
	t.Parallel()
	c := coder("secret-1")
	lengths := map[int]bool{}
	for n := range 40 {
		s := sample
		s.Recipient = strings.Repeat("a", n+1) + "@example.net"
		lengths[len(c.Link(s))] = true
	}
	if len(lengths) > 4 {
		t.Errorf("40 lengths of an address make %d of a link", len(lengths))
	}
	other := sample
	other.QueueID = "4jWn4F1YhnzSshsm5"
	a, b := strings.TrimPrefix(c.Link(sample), c.Base), strings.TrimPrefix(c.Link(other), c.Base)
	for n := 0; n+6 <= len(a); n++ {
		if strings.Contains(b, a[n:n+6]) {
			t.Errorf("%s and %s have %s in common", a, b, a[n:n+6])
		}
	}
}

func FuzzParse(f *testing.F) {
	c := coder("secret-1")
	f.Add(strings.TrimPrefix(c.Link(sample), c.Base))
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, token string) {
		got, err := c.Parse(token, day)
		if err == nil && strings.TrimPrefix(c.Link(got), c.Base) != token {
			t.Errorf("%q: %+v", token, got)
		}
	})
}
