package selection

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// parse makes a selection of words as they stand on a command line, without dashes.
func parse(t *testing.T, words string) *Selection {
	t.Helper()
	s := New(now)
	for _, w := range strings.Fields(words) {
		name, value, _ := strings.Cut(w, "=")
		if err := s.Set(name, strings.ReplaceAll(value, "_", " ")); err != nil {
			t.Fatalf("%s: %v", w, err)
		}
	}
	return s
}

// whole says whether a message is selected by all that there is.
func whole(s *Selection, m *Message, sender string, rcpts []Recipient) bool {
	return s.Message(m) && s.Sender(sender) && s.Recipients(rcpts)
}

func TestMatch(t *testing.T) {
	t.Parallel()
	m := &Message{Queue: "deferred", Created: now.Add(-2 * time.Hour), Size: 5000}
	rcpts := []Recipient{
		{Address: "ann@one.test", Original: "staff@alias.test", Transport: "smtp", Nexthop: "relay.one.test",
			Reply: "host relay.one.test[192.0.2.1] said: 450 4.7.1 Greylisted"},
		{Address: "Bob@Sub.Two.test", Transport: "lmtp", Nexthop: "[mx.two.test]:24"},
	}
	for _, c := range []struct {
		words string
		want  bool
	}{
		{"", true},
		{"sender=S@from.test", true},
		{"sender=<S@from.test>", true},
		{"sender=x@from.test sender=@FROM.test", true},
		{"sender=@rom.test", false},
		{"sender=@.test", true},
		{"sender=@.from.test", false},
		{"sender=<>", false},
		{"sender=/^s@/", true},
		{"sender=/^t@/", false},
		{"recipient=ann@one.test", true},
		{"recipient=staff@alias.test", true},
		{"recipient=bob@sub.two.test", true},
		{"recipient=nobody@one.test", false},
		{"recipient=ann@one.test all-recipients", false},
		{"recipient=/test$/ all-recipients", true},
		{"domain=one.test", true},
		{"domain=two.test", false},
		{"domain=.two.test", true},
		{"domain=*", true},
		{"nexthop=relay.one.test", true},
		{"nexthop=one.test", false},
		{"nexthop=.one.test", true},
		{"nexthop=[MX.two.test]:24", true},
		{"nexthop=lmtp:[mx.two.test]:24", true},
		{"nexthop=smtp:[mx.two.test]:24", false},
		{"nexthop=smtp:", true},
		{"destination=one.test", true},
		{"destination=relay.one.test", true},
		{"destination=lmtp:sub.two.test", true},
		{"destination=smtp:sub.two.test", false},
		{"destination=* all-recipients", true},
		{"transport=lmtp", true},
		{"transport=virtual", false},
		{"reply=greylisted", true},
		{"reply=4.7.1_Grey", true},
		{"reply=/said:_45./", true},
		{"reply=refused", false},
		{"reply=greylisted domain=.two.test", false}, // not the same recipient
		{"reply=greylisted domain=one.test transport=smtp", true},
		{"older=1h", true},
		{"older=7199", true},
		{"older=2h", false},
		{"younger=3h older=1h", true},
		{"younger=2h", false},
		{"larger=4k", true},
		{"larger=5000", false},
		{"smaller=5k", true},
		{"queue=hold", false},
		{"queue=hold queue=deferred", true},
	} {
		s := parse(t, c.words)
		if got := whole(s, m, "s@from.test", rcpts); got != c.want {
			t.Errorf("%s: %v", c.words, got)
		}
		again, err := Decode(s.Encode())
		if err != nil || whole(again, m, "s@from.test", rcpts) != c.want {
			t.Errorf("%s: differs when it has gone over the wire: %v", c.words, err)
		}
	}
	if !parse(t, "all-recipients").Empty() || parse(t, "queue=hold").Empty() {
		t.Error("what selects everything is not told from what selects something")
	}
	if s := parse(t, "sender=<>"); !s.Sender("") || s.Sender("x@y") {
		t.Error("<> is not the null sender, and only that")
	}
	if m.Created = now.Add(time.Second); parse(t, "queue=deferred").Message(m) {
		t.Error("what came after the command is selected")
	}
}

// What is not understood is refused: a condition that means something else
// than the operator thinks deletes the wrong mail.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{"sender", ""}, {"sender", "/(/"}, {"reply", "/[/"}, {"queue", "defered"}, {"older", "1x"}, {"older", "0"},
		{"older", "-1h"}, {"older", "999999999w"}, {"larger", "k"}, {"larger", "-5"}, {"larger", "9223372036854775807g"}, {"domain", "a b"},
		{"domain", "[192.0.2.1]"}, {"domain", "smtp:x"}, {"nexthop", "[x"}, {"nexthop", "."}, {"nexthop", "a@b"}, {"nosuch", "x"},
		{"reply", strings.Repeat("x", maxValue+1)}} {
		if err := New(now).Set(c[0], c[1]); err == nil {
			t.Errorf("--%s=%.20s is accepted", c[0], c[1])
		}
	}
	s := New(now)
	if s.Set("older", "1h") != nil || s.Set("older", "2h") == nil {
		t.Error("--older twice is accepted")
	}
	if _, err := Decode(nil); err == nil {
		t.Error("nothing decodes")
	}
	if _, err := Decode([]string{"1", "sender"}); err == nil {
		t.Error("a sender without a value decodes")
	}
}

func TestDestination(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, transport, nexthop, domain string
		want                             bool
	}{
		{"*", "smtp", "x", "y", true},
		{"example.com", "smtp", "relay.test", "Example.COM", true},
		{"example.com", "smtp", "example.com", "other.test", true},
		{"example.com", "smtp", "relay.test", "a.example.com", false},
		{".example.com", "smtp", "relay.test", "a.example.com", true},
		{".example.com", "smtp", "relay.test", "example.com", false},
		{"[192.0.2.7]:2525", "smtp", "[192.0.2.7]:2525", "x.test", true},
		{"[192.0.2.7]", "smtp", "[192.0.2.7]:2525", "x.test", false},
		{"mx.test:25", "smtp", "mx.test:25", "x.test", true},
		{"slow:", "slow", "anything", "x.test", true},
		{"slow:", "smtp", "anything", "x.test", false},
		{"slow:example.com", "slow", "z", "example.com", true},
		{"slow:example.com", "smtp", "z", "example.com", false},
		{"smtp:[::1]:25", "smtp", "[::1]:25", "", true},
	} {
		d, err := ParseDestination(c.text)
		if err != nil || d.Match(c.transport, c.nexthop, c.domain) != c.want || d.String() != c.text {
			t.Errorf("%s: %s:%s for %s: want %v, %v", c.text, c.transport, c.nexthop, c.domain, c.want, err)
		}
	}
}

// More conditions never select more, more values of one never less, and
// --all-recipients selects a part of what is selected without it.
func TestMonotonic(t *testing.T) {
	t.Parallel()
	words := []string{"recipient=a@x.test", "recipient=@y.test", "domain=x.test", "domain=.test", "transport=smtp", "nexthop=y.test", "reply=no",
		"sender=s@x.test"}
	rapid.Check(t, func(rt *rapid.T) {
		pick := rapid.SliceOfN(rapid.SampledFrom(words), 0, 4).Draw(rt, "words")
		more := rapid.SampledFrom(words).Draw(rt, "more")
		var rcpts []Recipient
		for range rapid.IntRange(0, 3).Draw(rt, "n") {
			rcpts = append(rcpts, Recipient{Address: rapid.SampledFrom([]string{"a@x.test", "b@y.test", "c@a.test"}).Draw(rt, "to"),
				Transport: rapid.SampledFrom([]string{"smtp", "lmtp"}).Draw(rt, "tr"), Nexthop: rapid.SampledFrom([]string{"x.test", "y.test"}).Draw(rt, "hop"),
				Reply: rapid.SampledFrom([]string{"", "no", "yes"}).Draw(rt, "reply")})
		}
		m := &Message{Queue: "deferred", Created: now}
		base := parse(t, strings.Join(pick, " "))
		wider := parse(t, strings.Join(append(slices.Clone(pick), more), " "))
		name, _, _ := strings.Cut(more, "=")
		known := slices.ContainsFunc(pick, func(w string) bool { return strings.HasPrefix(w, name+"=") })
		was, is := whole(base, m, "s@x.test", rcpts), whole(wider, m, "s@x.test", rcpts)
		if known && was && !is || !known && is && !was {
			rt.Fatalf("%v: %v, with %s %v", pick, was, more, is)
		}
		if every := parse(t, strings.Join(append(slices.Clone(pick), "all-recipients"), " ")); whole(every, m, "s@x.test", rcpts) && !was {
			rt.Fatalf("%v selects more with all-recipients", pick)
		}
	})
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, n := range Names() {
		if known, value := Known(n); !known || value == (n == "all-recipients") {
			t.Errorf("%s: %v %v", n, known, value)
		}
	}
	if known, _ := Known("nosuch"); known {
		t.Error("nosuch is known")
	}
}

// What is not in a domain that can be meant is not meant, whatever the conditions and the address.
func TestIn(t *testing.T) {
	t.Parallel()
	addresses := []string{"", "a@x.test", "A@X.Test", "b@sub.x.test", "b@y.test", "local", "x@", "@", "a@\u017f.test", "a@\u0130.test", "@y.test", `"a@b"@x.test`}
	values := append(slices.Clone(addresses[1:]), "<>", "@x.test", "@.x.test", "@X.TEST", "/^a/", "<a@x.test>", "mailer-daemon", "a@S.test", "@.")
	in := func(addr string) string { // as the queue manager's book has it
		if strings.HasSuffix(addr, "@") {
			return "@"
		}
		return strings.ToLower(addr[strings.LastIndexByte(addr, '@')+1:])
	}
	narrow := 0
	for _, value := range values {
		for _, name := range []string{"sender", "recipient"} {
			s := New(now)
			if err := s.Set(name, value); err != nil {
				t.Fatalf("%s=%s: %v", name, value, err)
			}
			if s.Narrow() {
				narrow++
			}
			for _, addr := range addresses {
				means, can := s.Sender(addr), s.SenderIn(in(addr))
				if name == "recipient" {
					means, can = s.Recipient(&Recipient{Address: addr}), s.RecipientIn(in(addr))
				}
				if means && !can {
					t.Errorf("%s=%s means %q, which its domain says it cannot", name, value, addr)
				}
				if name == "sender" && s.Told() && means != can && strings.Contains(addr, "@") {
					t.Errorf("%s=%s: whether %q is meant is not told by its domain", name, value, addr)
				}
				if s.Narrow() && can && value == "a@x.test" && addr == "b@y.test" {
					t.Errorf("%s=%s can mean %q by its domain", name, value, addr)
				}
			}
		}
	}
	if narrow != 2*(len(values)-1) {
		t.Errorf("%d of %d leave domains out", narrow, 2*len(values))
	}
}

// What mail waits for is a condition on the message: on its destination and its source as the scheduler has them.
func TestWaits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		words, transport, nexthop, source string
		want                              bool
	}{
		{"waits-for=a.test", "smtp", "A.test", "", true},
		{"waits-for=a.test", "smtp", "b.test", "", false},
		{"waits-for=smtp:a.test", "relay", "a.test", "", false},
		{"waits-for=smtp:", "smtp", "b.test", "one", true},
		{"waits-for=*", "", "", "", false}, // it waits for nothing that is known
		{"waits-for=[hub.test]:25 waits-for=b.test", "smtp", "[hub.test]:25", "", true},
		{"source=one", "smtp", "a.test", "one", true},
		{"source=one source=two", "smtp", "a.test", "two", true},
		{"source=one", "smtp", "a.test", "", false},
		{"source=one waits-for=a.test", "smtp", "b.test", "one", false},
		{"queue=hold", "", "", "", true},
	} {
		s := parse(t, c.words)
		if got := s.Waits(c.transport, c.nexthop, c.source); got != c.want || s.NeedsScheduler() != (c.words != "queue=hold") || s.NeedsManager() != s.NeedsScheduler() {
			t.Errorf("%s means %s:%s from %q: %v", c.words, c.transport, c.nexthop, c.source, got)
		}
		if s.NeedsEnvelope() || s.NeedsRoute() {
			t.Errorf("%s reads messages", c.words)
		}
	}
	for _, v := range []string{"a b", "x/y", strings.Repeat("x", maxSource+1)} {
		if New(now).Set("source", v) == nil {
			t.Errorf("source=%.20s is accepted", v)
		}
	}
}

// The selection of what was set aside comes over the wire as it is, and is told from any that has more conditions.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	s, err := Decode(Corrupt().Encode())
	if err != nil || !s.OnlyCorrupt() || !s.NamesQueue("corrupt") {
		t.Errorf("%+v, %v", s, err)
	}
	for name, value := range map[string]string{"queue": "hold", "sender": "a@b.test", "older": "1h"} {
		s, err := Decode(Corrupt().Encode())
		if err == nil {
			err = s.Set(name, value)
		}
		if err != nil || s.OnlyCorrupt() {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	if New(time.Time{}).OnlyCorrupt() {
		t.Error("all mail")
	}
}
