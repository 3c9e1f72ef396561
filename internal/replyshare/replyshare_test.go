package replyshare

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var now = time.Date(2026, 11, 27, 12, 0, 30, 0, time.UTC)

// Replies that mean the same are one group, and others are not.
func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code    int
		status  string
		text    string
		replies []string
	}{
		{421, "4.7.0", "too many connections from *", []string{
			"host mx.example.com[192.0.2.1] said: 421 4.7.0 too many connections from 198.51.100.7 (in reply to MAIL FROM command)",
			"host mx2.example.com[192.0.2.2] refused to talk to me: 421 4.7.0 too many connections from mta.example.org",
			"421 4.7.0 too many connections from [2001:db8::1]", "421-4.7.0 too many connections from 198.51.100.7",
			"delivery temporarily suspended: host mx[192.0.2.1] said: 421 4.7.0 too many connections from 198.51.100.9"}},
		{421, "4.7.28", "Our system has detected an unusual rate of mail from your address *. To protect our users, mail has been limited. For more visit * - gsmtp", []string{
			"421-4.7.28 Our system has detected an unusual rate of 421-4.7.28 mail from your address 198.51.100.7. To protect our users, 421-4.7.28 mail has been limited. For more visit 421 4.7.28 https://support.example.com/?p=Rate a1b2c3-4d5e6f.123 - gsmtp",
			"421-4.7.28 Our system has detected an unusual rate of 421-4.7.28 mail from your address 198.51.100.99. To protect our users, 421-4.7.28 mail has been limited. For more visit 421 4.7.28 https://support.example.com/?p=Rate 98fedc-sdf.77 - gsmtp"}},
		{450, "4.2.1", "*: Recipient address rejected: mailbox busy", []string{"450 4.2.1 <ann@a.test>: Recipient address rejected: mailbox busy", "450 4.2.1 <bob@b.test>: Recipient address rejected: mailbox busy"}},
		{451, "", "try again later, id *", []string{"451 try again later, id QrSTuvWXyzAB", "451 try again later, id 7f3a2b"}},
		{550, "5.1.1", "no such user", []string{"host a.test[192.0.2.1] said: 550 5.1.1 no such user (in reply to RCPT TO command)", "550 5.1.1: no such user"}},
		{0, "", "connect to *: Connection refused", []string{"connect to mx.example.com[192.0.2.1]:25: Connection refused", "connect to mx2.example.com[192.0.2.2]:25: Connection refused"}},
		{0, "", "conversation with * timed out while sending end of data", []string{"conversation with mx.example.com[192.0.2.1] timed out while sending end of data"}},
		{0, "", "Host or domain name not found. Name service error for * type=MX: Host not found, try again", []string{}},
		{0, "", "", []string{"", " \t\r\n"}},
		{0, "", "*", []string{"999 what", "42 x1"}[1:]},
	} {
		for _, reply := range c.replies {
			if got, want := Parse(reply), (Answer{Code: c.code, Status: c.status, Text: c.text}); got != want {
				t.Errorf("%s:\n%+v, want\n%+v", reply, got, want)
			}
		}
	}
	if Parse("421 4.7.0 too many connections") == Parse("421 4.7.0 too many messages") || Parse("421 4.7.0 x") == Parse("421 4.7.1 x") || Parse("421 x") == Parse("451 x") {
		t.Error("different replies are one group")
	}
}

// Whatever strangers say is printable, bounded, and has nothing of one session in it.
func TestHostileReply(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		reply := rapid.OneOf(rapid.String(), rapid.StringMatching(`([245]\d\d[ -]?)?(\d\.\d\.\d+ )?[a-zA-Z0-9<>"' .@\[\]:\x00-\x1f\x80-\xff]{0,600}`)).Draw(t, "reply")
		if rapid.Bool().Draw(t, "raw") {
			reply = string(rapid.SliceOf(rapid.Byte()).Draw(t, "octets"))
		}
		a := Parse(reply)
		for _, text := range []string{a.Text, a.Status, Clean(reply)} {
			if len(text) > MaxText || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("%q becomes %q", reply, text)
			}
		}
		if strings.ContainsAny(a.Text, "0123456789@") || a.Code != 0 && (a.Code < 200 || a.Code > 599) || a.Accepted {
			t.Fatalf("%q: %+v", reply, a)
		}
	})
	if a := Parse("421 " + strings.Repeat("word ", 100000)); len(a.Text) > MaxText {
		t.Errorf("%d octets", len(a.Text))
	}
}

// What is older than the span goes, minute by minute, and the largest share comes first.
func TestSliding(t *testing.T) {
	t.Parallel()
	var b Book
	busy := Parse("421 4.7.0 too many from 192.0.2.1")
	for i := range 10 {
		a, example := Accept(), "250 ok"
		if i%5 != 0 {
			a, example = busy, fmt.Sprintf("421 4.7.0 too many from 192.0.2.%d", i)
		}
		b.Add(now.Add(time.Duration(i)*time.Minute), "smtp:a.test", a, example)
	}
	at := now.Add(9 * time.Minute)
	s := b.Of(at, "smtp:a.test")
	if s.Sessions != 10 || len(s.Groups) != 2 || s.Groups[0].Answer != busy || s.Groups[0].Sessions != 8 || s.Percent(8) != 80 || s.Groups[0].Example != "421 4.7.0 too many from 192.0.2.9" ||
		!s.Groups[0].Last.Equal(at) || !s.Groups[1].Accepted || s.Groups[1].Example != "" {
		t.Errorf("%+v", s)
	}
	for later, want := range map[time.Duration]int{14 * time.Minute: 10, 15 * time.Minute: 9, 20 * time.Minute: 4, 24 * time.Minute: 0, 1000 * time.Hour: 0} {
		if s := b.Of(now.Add(later), "smtp:a.test"); s.Sessions != want {
			t.Errorf("%v later: %d sessions, want %d", later, s.Sessions, want)
		}
	}
	// The clock goes back: what was counted in times to come does not count, and counts no longer when they come.
	b.Add(now, "smtp:a.test", busy, "x")
	if s := b.Of(now, "smtp:a.test"); s.Sessions != 2 {
		t.Errorf("%+v", s)
	}
	if s := b.Of(now, "smtp:b.test"); s.Sessions != 0 || s.Groups != nil || s.Percent(0) != 0 {
		t.Errorf("%+v", s)
	}
	for _, c := range [][3]int{{1, 1000, 1}, {0, 9, 0}, {2, 3, 67}, {3, 3, 100}, {1, 3, 33}} {
		if s := (&Shares{Sessions: c[1]}); s.Percent(c[0]) != c[2] {
			t.Errorf("%d of %d are %d %%", c[0], c[1], s.Percent(c[0]))
		}
	}
}

// Strangers choose destinations and replies: both are bounded, the sums stay true, and a destination that is heard of
// again and again stays.
func TestBounds(t *testing.T) {
	t.Parallel()
	var b Book
	letters := func(i int) string {
		return strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprintf("%04d", i))
	}
	for i := range 3 * MaxDestinations {
		b.Add(now, "smtp:stays.test", Parse("450 "+letters(i)), "450 "+letters(i))
		b.Add(now, "smtp:"+letters(i)+".test", Accept(), "")
	}
	if n := len(b.byName); n != MaxDestinations || b.order.Len() != n {
		t.Errorf("%d destinations, %d in order", n, b.order.Len())
	}
	s := b.Of(now, "smtp:stays.test")
	if s.Sessions != 3*MaxDestinations || len(s.Groups) != MaxGroups || s.Others != 3*MaxDestinations-MaxGroups {
		t.Errorf("%d sessions, %d groups, %d others", s.Sessions, len(s.Groups), s.Others)
	}
	n := 0
	for range b.Names {
		n++
	}
	if n != MaxDestinations {
		t.Errorf("%d names", n)
	}
	// When the groups have passed there is room for others.
	later := now.Add(Span)
	b.Add(later, "smtp:stays.test", Parse("450 new"), "450 new")
	if s := b.Of(later, "smtp:stays.test"); s.Sessions != 1 || len(s.Groups) != 1 || s.Groups[0].Text != "new" || s.Others != 0 {
		t.Errorf("%+v", s)
	}
	if d := b.byName["smtp:stays.test"].Value.(*destination); len(d.groups) != 1 {
		t.Errorf("%d groups are kept", len(d.groups))
	}
}

func BenchmarkAdd(b *testing.B) {
	const reply = "host mx.example.com[192.0.2.1] said: 421 4.7.0 too many connections from 198.51.100.7, see https://example.com/id/7f3a (in reply to MAIL FROM command)"
	var book Book
	b.ReportAllocs()
	for b.Loop() {
		book.Add(now, "smtp:a.test", Parse(reply), reply)
	}
}

// FuzzParse: whatever a host says becomes a group that can be shown and compared, and is its own group.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"421 4.7.0 too many connections from 198.51.100.7", "host a[192.0.2.1] said: 550-5.1.1 <x@y.test>: no 550 5.1.1 such user (in reply to RCPT TO command)", "connect to a[::1]:25: Connection refused", "250", "4", "\xff\x00", "host a said: "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a := Parse(s)
		if len(a.Text) > MaxText || !utf8.ValidString(a.Text) || strings.ContainsAny(a.Text, "0123456789@\n\x1b") || a.Status != "" && !isStatus(a.Status) {
			t.Errorf("%q: %+v", s, a)
		}
		if again := Parse(fmt.Sprint(a.Code, " ", a.Text)); a.Code > 0 && a.Status == "" && (again.Code != a.Code || again.Text != a.Text) && len(a.Text) < MaxText/2 {
			t.Errorf("%q: %+v, and then %+v", s, a, again)
		}
	})
}
