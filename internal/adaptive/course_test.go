package adaptive

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/simnet"
)

// What known providers say asks what it means.
func TestRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code     int
		text     string
		greeting bool
		ask      Ask
		after    time.Duration
	}{
		{250, "2.0.0 Ok", false, Nothing, 0},
		{550, "5.7.1 rate limited for ever", false, Nothing, 0},
		{421, "4.7.0 mx.example.com Error: too many connections from 192.0.2.1", true, Fewer, 0},
		{451, "4.7.652 The mail server [192.0.2.1] has exceeded the maximum number of connections. (S3115)", false, Fewer, 0},
		{421, "mwinf5c04 ME Trop de connexions, veuillez verifier votre configuration. Too many connections, slow down. OFR004_104 [104]", true, Fewer, 0},
		{421, "4.3.2 Service not available", true, Fewer, 0},
		{421, "4.3.2 Service not available", false, Later, 0},
		{421, "4.7.28 Gmail has detected an unusual rate of unsolicited mail originating from your IP address.", false, Slower, 0},
		{450, "4.2.1 The user you are trying to contact is receiving mail at a rate that prevents additional messages from being delivered.", false, Slower, 0},
		{421, "4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to unexpected volume or user complaints", false, Slower, 0},
		{451, "4.7.1 Too many messages, try again in 300 seconds", false, Slower, 5 * time.Minute},
		{450, "4.7.1 Rate limit reached (wait at least 2 hours)", false, Slower, 2 * time.Hour},
		{450, "4.2.0 <joe@example.com>: Recipient address rejected: Greylisted, see http://postgrey.schweikert.ch/help/example.com.html", false, Again, 0},
		{451, "4.7.1 Greylisting in action, please come back in 5 minutes: too fast", false, Again, 0},
		{451, "4.7.500 Server busy. Please try again later from [192.0.2.1]. (S77714)", false, Later, 0},
		{452, "4.2.2 Mailbox full", false, Nothing, 0},
		{450, "4.1.8 Sender address rejected: Domain not found", false, Nothing, 0},
	} {
		if ask, after := Read(c.code, c.text, c.greeting); ask != c.ask || after != c.after {
			t.Errorf("%d %s: %v, %v; not %v, %v", c.code, c.text, ask, after, c.ask, c.after)
		}
	}
	for name, p := range simnet.Profiles() {
		if ask, _ := Read(421, p.Reply, false); p.Kind != simnet.Dead && ask != map[simnet.Kind]Ask{simnet.Crowded: Fewer, simnet.Metered: Slower, simnet.Judged: Slower, simnet.Grey: Again}[p.Kind] && p.Reply != "" {
			t.Errorf("%s: %v", name, ask)
		}
	}
}

// Whatever is answered, and whenever, window, interval and rest are within their bounds, and what is
// refused makes nothing more.
func TestBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := Bounds{Start: rapid.IntRange(1, 30).Draw(t, "start"), Floor: rapid.IntRange(1, 5).Draw(t, "floor"),
			Slowest: rapid.Int64Range(1, 100*second).Draw(t, "slowest"), Longest: rapid.Int64Range(1, 1000*second).Draw(t, "longest")}
		if rapid.Bool().Draw(t, "ceiling") {
			b.Ceiling = b.Floor + rapid.IntRange(0, 50).Draw(t, "above")
			b.Start = min(b.Start, b.Ceiling)
		}
		var c Course
		now := int64(1)
		for range rapid.IntRange(1, 300).Draw(t, "deliveries") {
			now += rapid.Int64Range(0, 100*second).Draw(t, "time")
			w, i := c.Window(&b), c.m.Interval
			r := Report{Ask: Ask(rapid.IntRange(0, int(Away)).Draw(t, "ask")), Began: max(now-rapid.Int64Range(0, 20*second).Draw(t, "took"), 1),
				Busy: rapid.IntRange(1, w).Draw(t, "busy"), Opened: rapid.Bool().Draw(t, "opened"), After: time.Duration(rapid.Int64Range(0, 1e13).Draw(t, "after"))}
			c.Ended(now, &b, &r)
			got := c.Window(&b)
			switch {
			case got < 1 || b.Ceiling > 0 && got > b.Ceiling || got < b.Floor && !c.m.Half:
				t.Fatalf("a window of %d", got)
			case c.m.Interval < 0 || c.m.Interval > float64(b.Slowest):
				t.Fatalf("an interval of %g", c.m.Interval)
			case c.Until()-now > b.Longest:
				t.Fatalf("a rest of %d", c.Until()-now)
			case (r.Ask == Fewer || r.Ask == Away || r.Ask == Slower) && (got > max(w, b.Floor) || c.m.Interval < i):
				t.Fatalf("%v: from %d and %g to %d and %g", r.Ask, w, i, got, c.m.Interval)
			case c.Until() > now && c.Rate().IsZero():
				t.Fatal("a rest without a rate, which keeps it")
			}
			if rapid.IntRange(0, 20).Draw(t, "reload") == 0 {
				m := c.Memory()
				c = *Resume(m, now, &b)
				if c.Window(&b) != got || c.m != m {
					t.Fatalf("%+v was resumed as %+v", m, c.m)
				}
			}
		}
	})
}

// Whatever a file says, what is made of it is within the bounds.
func TestResume(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, i := rapid.Float64(), rapid.Int64()
		m := Memory{Window: f.Draw(t, "window"), Bad: f.Draw(t, "bad"), Step: f.Draw(t, "step"), ProbeAt: i.Draw(t, "probe"), Wait: i.Draw(t, "wait"),
			Interval: f.Draw(t, "interval"), Refused: f.Draw(t, "refused"), Until: i.Draw(t, "until"), First: i.Draw(t, "first"), Proof: i.Draw(t, "proof"), Good: f.Draw(t, "good"), Drop: f.Draw(t, "drop"), Rest: i.Draw(t, "rest"), Share: f.Draw(t, "share"),
			Base: [2]int64{i.Draw(t, "base"), i.Draw(t, "base")}, Half: rapid.Bool().Draw(t, "half"), Text: rapid.String().Draw(t, "text"), At: i.Draw(t, "at")}
		now := rapid.Int64Range(1, 1e16).Draw(t, "now")
		b := Bounds{Start: 5, Floor: 1, Ceiling: 20, Slowest: minute, Longest: 10 * minute}
		c := Resume(m, now, &b)
		if w := c.Window(&b); w < 1 || w > 20 || c.Until() > now+b.Longest || !(c.m.Interval >= 0 && c.m.Interval <= float64(minute)) || c.Until() > now && c.Rate().IsZero() {
			t.Fatalf("%+v", c.m)
		}
		c.Ended(now+1, &b, &Report{Began: now, Busy: 1})
	})
}

// What an older version has kept of a rest says nothing of when it began: it is not taken for one since the clock began,
// whose law would keep the rate for half a day. However small an interval is, its rate is a fast one.
func TestResumeOlder(t *testing.T) {
	t.Parallel()
	now := int64(1e15)
	b := Bounds{Start: 5, Floor: 1, Ceiling: 20, Slowest: minute, Longest: 60 * minute}
	c := Resume(Memory{Window: 5, Interval: 1e6, Refused: 5e5, Half: true, Until: now + second, Rest: 30 * second, At: now - 29*second}, now, &b)
	c.Ended(now+2*second, &b, &Report{Began: now + second, Ask: Slower})
	if rest := c.Until() - now; rest > 2*minute {
		t.Errorf("a second refusal has it rest for %d s", rest/second)
	}
	at := c.Until()
	c.Ended(at+second, &b, &Report{Began: at, Busy: 1})
	if c.m.Half || c.m.Rest > 3*minute || c.m.PaceWait > 30*minute {
		t.Errorf("%+v", c.m)
	}
	for _, interval := range []float64{1, 1e-6, 1e-300} {
		c := Resume(Memory{Interval: interval, Refused: interval}, now, &b)
		if r := c.Rate(); r.N != 100_000 || r.Per != time.Second {
			t.Errorf("%g µs: %+v", interval, r)
		}
	}
}

// refuse plays a host that takes so many at once against a course that always has mail, a second to
// a delivery, and counts the refusals of each quarter of an hour.
func refuse(c *Course, b *Bounds, from, quarters int, limit func(quarter int) int) (refused []int, window []int) {
	now := int64(from)*15*minute + 1
	for q := range quarters {
		n := 0
		for range 15 * 60 {
			w := c.Window(b)
			began := now
			now += second
			for i := range w {
				r := Report{Began: began, Busy: w - i}
				if w-i > limit(q) { // those that came last are refused, and told first
					r.Ask, r.Text = Fewer, "421 too many"
					n++
				}
				c.Ended(now, b, &r)
			}
		}
		refused, window = append(refused, n), append(window, c.Window(b))
	}
	return refused, window
}

// A host with a fixed limit refuses one delivery in a quarter of an hour in the long run, and the window
// stays at the limit. When the limit is raised, that is found within two quarters; when all is taken, so is
// the ceiling.
func TestSettles(t *testing.T) {
	t.Parallel()
	b := Bounds{Start: 5, Floor: 1, Ceiling: 50, Slowest: minute, Longest: 10 * minute}
	var c Course
	refused, window := refuse(&c, &b, 0, 8, func(int) int { return 10 })
	for q := 2; q < 8; q++ {
		if refused[q] > 2 || window[q] < 9 || window[q] > 11 {
			t.Errorf("quarter %d: %d refused, window %d", q, refused[q], window[q])
		}
	}
	if refused[0] > 40 {
		t.Errorf("%d refused at first", refused[0])
	}
	_, window = refuse(&c, &b, 8, 4, func(int) int { return 20 })
	if window[3] < 19 {
		t.Errorf("of a limit of 20, windows %v are found", window)
	}
	_, window = refuse(&c, &b, 12, 4, func(int) int { return 100 })
	if window[3] != 50 || !c.Fresh(1<<60) {
		t.Errorf("without a limit, windows are %v; %+v", window, c.m)
	}
}

// A rate that was refused is tried again when as much as ten rests have passed, and each step of such a try is kept for a
// rest, before the next is made: a try that fails costs one.
func TestTriesAreDear(t *testing.T) {
	t.Parallel()
	b := Bounds{Start: 5, Floor: 1, Ceiling: 20, Slowest: minute, Longest: 4000 * second}
	var c Course
	const rest = 120 * second
	now := second
	deliver := func(ask Ask) {
		c.Ended(now, &b, &Report{Ask: ask, After: time.Duration(rest) * time.Microsecond, Began: now - 20, Busy: 1})
		now = max(now+int64(c.m.Interval), c.Until())
	}
	for range 100 { // a delivery each second
		c.Ended(now, &b, &Report{Began: now - 20, Busy: 1})
		now += second
	}
	refused := now
	deliver(Slower)
	bad := c.m.Refused
	var steps []int64 // when the interval has become shorter than what was refused, and shorter again
	for last := bad; len(steps) < 3 && now < refused+2*60*minute; {
		at := now
		if deliver(Nothing); c.m.Interval > 0 && c.m.Interval < last {
			steps, last = append(steps, at), c.m.Interval
		}
	}
	if len(steps) < 3 || steps[0]-refused < 10*rest || steps[1]-steps[0] < rest || steps[2]-steps[1] < rest {
		t.Errorf("refused at %d, faster than that at %d", refused/second, steps)
	}
}
