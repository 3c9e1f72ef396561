package rate

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want Rate
		says string // how it is printed, when otherwise
	}{
		{"5/s", Rate{5, time.Second}, ""},
		{"20/min", Rate{20, time.Minute}, ""},
		{"20/m", Rate{20, time.Minute}, "20/min"},
		{"100/h", Rate{100, time.Hour}, ""},
		{"100/hr", Rate{100, time.Hour}, "100/h"},
		{"50000/d", Rate{50000, Day}, ""},
		{"1/day", Rate{1, Day}, "1/d"},
		{"10/15min", Rate{10, 15 * time.Minute}, ""},
		{"10/60s", Rate{10, time.Minute}, "10/min"},
		{"10/90second", Rate{10, 90 * time.Second}, "10/90s"},
		{"100000/s", Rate{100000, time.Second}, ""},
		{"100/1h", Rate{100, time.Hour}, "100/h"},
	} {
		r, err := Parse(tt.text)
		if err != nil || r != tt.want {
			t.Errorf("%s: %+v, %v", tt.text, r, err)
		}
		if says := cmp.Or(tt.says, tt.text); r.String() != says {
			t.Errorf("%s is printed %q", tt.text, r.String())
		}
	}
	for text, why := range map[string]string{
		"":              "a number, a slash and a time",
		"100":           "a number, a slash and a time",
		"/h":            "the number is missing",
		"0/h":           "not from 1",
		"-1/h":          "not a number",
		"1.5/h":         "not a number",
		"9999999999/h":  "not from 1 to",
		"1/":            "no unit of time",
		"1/week":        "no unit of time",
		"1/2d":          "no multiple",
		"1/0s":          "not from 1",
		"1/1001s":       "not from 1 to",
		"200000/s":      "more than 100000 in a second",
		"1 /s":          "not a number",
		"1/ s":          "no unit of time",
		"1/hours":       "no unit of time",
		"1/h,max_burst": "no unit of time",
	} {
		if r, err := Parse(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %+v, %v; want an error that says %q", text, r, err, why)
		}
	}
}

// aRate draws a rate that Parse could give.
func aRate(t *rapid.T) Rate {
	per := rapid.SampledFrom([]time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour, Day}).Draw(t, "per")
	return Rate{rapid.Int64Range(1, 2000).Draw(t, "n"), per}
}

// What is printed is what is read.
func TestPrint(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := aRate(t)
		if again, err := Parse(r.String()); err != nil || again != r {
			t.Fatalf("%+v is printed %q and read %+v, %v", r, r, again, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("100/h")
	f.Add("10/15min")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(r.String()); err != nil || again != r {
			t.Fatalf("%q: %+v, printed %q, read %+v, %v", text, r, r, again, err)
		}
		// However long it runs, one can always go some day.
		var m Meter
		m.Spend(r, 0, 1)
		if at := m.Next(r, 0, 1); at < 0 || at > int64(maxMultiple*time.Hour/time.Microsecond) {
			t.Fatalf("%q: the next one may go at %d", text, at)
		}
	})
}

// spend is one that went at a time; of those that were refunded, back is true.
type spend struct {
	at   int64
	back bool
}

// most is how many of the list go within a span of r's time, counted from each of them:
// all that is not refunded. With a rate by the day, the span is the calendar's.
func most(list []spend, r Rate) (n int64) {
	for i := range list {
		k := int64(0)
		for _, o := range list[i:] {
			in := o.at < list[i].at+int64(r.Per/time.Microsecond)
			if r.Per == Day {
				in = o.at/day == list[i].at/day
			}
			if in && !o.back {
				k++
			}
		}
		n = max(n, k)
	}
	return n
}

// No span of the rate's time has more than N, whatever pauses lie between them, and what
// has gone without a pause for long is not much less than N.
func TestLimitHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := aRate(t)
		r.N = min(r.N, 60)
		var m Meter
		var list []spend
		now := rapid.Int64Range(0, 3*day).Draw(t, "begin")
		for range rapid.IntRange(1, 150).Draw(t, "turns") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				now += rapid.Int64Range(0, int64(r.Per/time.Microsecond)).Draw(t, "pause")
			case 1:
				now = m.Next(r, now, 1)
			}
			if room := m.Room(r, now); room > 0 {
				if m.Next(r, now, 1) != now {
					t.Fatalf("room for %d, and the next may go later", room)
				}
				n := rapid.Int64Range(1, min(room, 3)).Draw(t, "n")
				m.Spend(r, now, n)
				for range n {
					list = append(list, spend{at: now})
				}
			} else if next := m.Next(r, now, 1); next <= now || m.Room(r, next-1) > 0 {
				t.Fatalf("no room now, %d: the next may go at %d", now, next)
			} else if then := m; then.Room(r, next) < 1 {
				t.Fatalf("the next may go at %d, and there is no room then", next)
			}
		}
		if n := most(list, r); n > r.N {
			t.Fatalf("%v: %d within its time", r, n)
		}
	})
}

// Next says when there is room for several, to the microsecond, and that there never is.
func TestNext(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := aRate(t)
		r.N = min(r.N, 200)
		var m Meter
		now := rapid.Int64Range(0, 3*day).Draw(t, "begin")
		m.Spend(r, now, rapid.Int64Range(0, 2*r.N).Draw(t, "spent"))
		n := rapid.Int64Range(1, 2*r.N).Draw(t, "n")
		empty := Meter{}
		at := m.Next(r, now, n)
		switch before, then := m, m; {
		case (at == Never) != (empty.Room(r, now) < n):
			t.Fatalf("%v: %d may go at %d; at most %d may", r, n, at, empty.Room(r, now))
		case at == Never:
		case then.Room(r, at) < n || at < now:
			t.Fatalf("%v: %d may go at %d, and there is room for %d", r, n, at, then.Room(r, at))
		case at > now && before.Room(r, at-1) >= n:
			t.Fatalf("%v: %d may go at %d, and there was room before", r, n, at)
		}
	})
}

// With refunds, what was not refunded stays within N and those that were to be refunded.
func TestRefund(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := aRate(t)
		r.N = min(r.N, 40)
		var m Meter
		var list []spend
		var open []int
		now, width := rapid.Int64Range(0, 3*day).Draw(t, "begin"), rapid.IntRange(1, 5).Draw(t, "at once")
		for range rapid.IntRange(1, 120).Draw(t, "turns") {
			if rapid.Bool().Draw(t, "wait") {
				now = m.Next(r, now, 1) + rapid.Int64Range(0, 1000).Draw(t, "late")
			}
			if len(open) < width && m.Room(r, now) > 0 {
				m.Spend(r, now, 1)
				open = append(open, len(list))
				list = append(list, spend{at: now})
			} else if len(open) > 0 {
				i := open[0]
				open = open[1:]
				if rapid.Bool().Draw(t, "unused") {
					before := m.Room(r, now)
					m.Refund(r, now, list[i].at, 1)
					list[i].back = true
					if after := m.Room(r, now); after < before || after > before+1 {
						t.Fatalf("%v: a refund makes room for %d of %d", r, after, before)
					}
				}
			}
		}
		if n := most(list, r); n > r.N+int64(width) {
			t.Fatalf("%v: %d within its time, %d at once", r, n, width)
		}
	})
}

// A sender that always has something sends nearly all that it may.
func TestSustained(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"5/s", "100/s", "20/min", "1000/h", "10/15min", "40/d"} {
		r, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		var m Meter
		now, n, spans := int64(0), int64(0), int64(20)
		for end := spans * int64(r.Per/time.Microsecond); now < end; now = m.Next(r, now, 1) {
			m.Spend(r, now, 1)
			n++
		}
		if n > spans*r.N || n < spans*r.N*95/100 {
			t.Errorf("%s: %d in %d times", text, n, spans)
		}
	}
}

// After a pause a twentieth goes at once, and the rest evenly.
func TestBurst(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"100/h": 5, "1000/s": 48, "5/s": 1, "7/d": 7} {
		r, _ := Parse(text)
		var m Meter
		if n := m.Room(r, day); n != want {
			t.Errorf("%s: %d at once, want %d", text, n, want)
		}
	}
}

// The day begins at midnight UTC, for everybody and for what was spent the day before.
func TestDay(t *testing.T) {
	t.Parallel()
	r, _ := Parse("10/d")
	var m Meter
	midnight := time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC).UnixMicro()
	late := midnight - 1
	m.Spend(r, late, 10)
	if m.Room(r, late) != 0 || m.Next(r, late, 1) != midnight {
		t.Errorf("room %d, next %d", m.Room(r, late), m.Next(r, late, 1))
	}
	if m.Fresh(late) || m.Until(late) != midnight || !m.Fresh(midnight) {
		t.Errorf("fresh %v until %d", m.Fresh(late), m.Until(late))
	}
	if m.Room(r, midnight) != 10 {
		t.Errorf("room %d after midnight", m.Room(r, midnight))
	}
	// A clock that goes back does not give the day's count back.
	m.Spend(r, midnight, 4)
	if m.Room(r, late) != 6 {
		t.Errorf("room %d when the clock goes back", m.Room(r, late))
	}
	// What was spent yesterday is not refunded today.
	if m.Refund(r, midnight, late, 3); m.Room(r, midnight) != 6 {
		t.Errorf("room %d after a refund of yesterday's", m.Room(r, midnight))
	}
	if m.Refund(r, midnight, midnight, 3); m.Room(r, midnight) != 9 {
		t.Errorf("room %d after a refund", m.Room(r, midnight))
	}
}

// Another rate holds from now on, and a debt that was made under a slow one does not
// block a fast one for longer than it can itself.
func TestChange(t *testing.T) {
	t.Parallel()
	slow, _ := Parse("1/h")
	fast, _ := Parse("10/s")
	count, _ := Parse("5/d")
	var m Meter
	m.Spend(slow, 0, 1)
	m.Change(fast, 0)
	if at := m.Next(fast, 0, 1); at > int64(time.Second/time.Microsecond) {
		t.Errorf("the next one may go at %d", at)
	}
	m = Meter{}
	m.Spend(count, 0, 5)
	if m.Change(count, 0); m.Room(count, 0) != 0 {
		t.Errorf("the day's count is forgotten: room %d", m.Room(count, 0))
	}
	if m.Change(Rate{8, Day}, 0); m.Room(Rate{8, Day}, 0) != 3 {
		t.Errorf("room %d", m.Room(Rate{8, Day}, 0))
	}
}
