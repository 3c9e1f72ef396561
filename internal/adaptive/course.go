package adaptive

import (
	"math"
	"time"
)

// Times are microseconds, as the scheduler has them.
const (
	second = int64(time.Second / time.Microsecond)
	minute = 60 * second
)

// The constants of the law. They are not parameters: what an operator knows better is the bounds.
const (
	fall       = .7          // what is left of the window after a refusal
	probeFirst = 30 * second // how long a window is kept before the refused level is tried again
	probeMost  = 15 * minute
	laterShare = .25        // of Later among the last deliveries
	shareOf    = 16         // about how many these are
	slowTimes  = 3.0        // as long as the fastest: too long
	calmTimes  = 2.0        // not to grow
	slowMore   = second / 2 // what a delivery takes longer than the fastest, and means nothing
	slowFall   = .8         // what is left of the window when deliveries take too long
	// MaxText bounds what is kept of a reply.
	MaxText = 200
)

// Bounds are what is configured.
type Bounds struct {
	Start   int   // the window of a destination of which nothing is known
	Floor   int   // deliveries at once, at least; at least 1
	Ceiling int   // the same, at most; 0: no bound
	Slowest int64 // the longest interval between two deliveries, µs; at least 1
	Longest int64 // the longest rest, µs; at least 1
}

// A Report is what came of one delivery.
type Report struct {
	Ask    Ask
	After  time.Duration // when the reply says that mail may be tried again; 0: it does not
	Text   string        // the reply; only of one that asks something
	Began  int64         // when it began
	Opened bool          // a connection was opened for it
	Busy   int           // deliveries under way, with this one
}

// A Memory is all of a Course, to be kept for a successor. The zero Memory is of a destination of which
// nothing is known. Fields are those of Course by the same names; times are those of the scheduler's clock.
type Memory struct {
	Window, Bad, Step float64
	ProbeAt, Wait     int64
	Interval, Refused float64 // µs
	PaceAt, PaceWait  int64
	Until, Rest       int64
	First, Proof      int64   // when the rest was asked for first; for how long a rate is to be used, at least
	Good, Drop        float64 // µs; by what share the interval has grown
	Share             float64
	Base              [2]int64
	Half              bool
	Why               Ask
	Text              string
	At                int64
}

// EachTime has f change each time in m; zero is none.
func (m *Memory) EachTime(f func(int64) int64) {
	for _, t := range [...]*int64{&m.ProbeAt, &m.PaceAt, &m.Until, &m.First, &m.At} {
		if *t != 0 {
			*t = f(*t)
		}
	}
}

// A Course is what has been learnt of a destination. The zero Course has learnt nothing. It belongs to one
// goroutine.
type Course struct {
	m Memory

	epoch int64 // what began before says nothing new of the window
	slow  int64 // the same of the rate
	trial bool  // the bad level is being tried
	// Of the present round, a window of deliveries: how many have ended, and the least ratio of what one
	// took to the base.
	ended int
	ratio float64
	calm  bool // the last round was slow: the window does not grow
	// Of the rate: deliveries that got through since the present one began, and when that was; for how long it was in
	// use, and when it was used last; by how much it has grown with this step of a try beyond what was refused.
	through, since int64
	used, last     int64
	step           float64
	lately         [3]lately
}

// Memory is what is to be kept. Resume is its inverse.
func (c *Course) Memory() Memory { return c.m }

// Resume makes a Course of what another one knew. What makes no sense is brought within what does.
func Resume(m Memory, now int64, b *Bounds) *Course {
	num := func(x, most float64) float64 {
		if math.IsNaN(x) || x < 0 {
			return 0
		}
		return min(x, most)
	}
	m.Window, m.Bad, m.Step = num(m.Window, 1e6), num(m.Bad, 1e6), num(m.Step, 1e6)
	m.Interval, m.Refused = num(m.Interval, float64(b.Slowest)), num(m.Refused, float64(b.Slowest))
	m.ProbeAt, m.PaceAt = min(m.ProbeAt, now+probeMost), min(m.PaceAt, now+pacedMost)
	m.Wait, m.PaceWait = min(max(m.Wait, 0), probeMost), min(max(m.PaceWait, 0), pacedMost)
	m.Rest = min(max(m.Rest, 0), pacedMost)
	m.Until = min(max(m.Until, 0), now+b.Longest)
	m.Share = num(m.Share, 1)
	for i := range m.Base {
		m.Base[i] = max(m.Base[i], 0)
	}
	m.Text, m.At = m.Text[:min(len(m.Text), MaxText)], min(m.At, now)
	if m.Interval == 0 && m.Until > now { // a rest is kept by a rate
		m.Until = now
	}
	if m.Interval == 0 {
		m.Half = false
	}
	// A rest whose beginning nobody noted is not one since the clock began.
	if m.Half && m.First <= 0 {
		m.First = m.At
		if m.At <= now-b.Longest {
			m.First = now
		}
	}
	m.Good, m.Drop, m.First = num(m.Good, float64(b.Slowest)), num(m.Drop, dropMost), min(max(m.First, 0), now)
	m.Proof = min(max(m.Proof, 0), proofMost)
	c := &Course{m: m, epoch: now, slow: now, since: now, last: now}
	c.bound(b)
	return c
}

// Window is how many deliveries may go on at once; at least 1, and between the bounds.
func (c *Course) Window(b *Bounds) int {
	w := int(c.m.Window)
	if c.m.Window == 0 {
		w = b.Start
	}
	if c.m.Half {
		w = 1 // one shows whether the rest was long enough
	}
	if b.Ceiling > 0 {
		w = min(w, b.Ceiling)
	}
	return max(w, 1)
}

// Until is the end of a rest, in which nothing is to begin. It is in the past when there is none.
func (c *Course) Until() int64 { return c.m.Until }

// Why is what the last change for the worse was made for, and the reply; Nothing: there was none, or all that was learnt
// by it has been given up.
func (c *Course) Why() (why Ask, text string, at int64) { return c.m.Why, c.m.Text, c.m.At }

// Bad is the level that was refused last and is kept below: deliveries at once, and microseconds between two; 0: none.
func (c *Course) Bad() (level int, interval float64) { return int(c.m.Bad), c.m.Refused }

// Fresh says whether nothing is lost when the course is forgotten: it keeps mail no more than the bounds do, and
// knows of no level that was refused.
func (c *Course) Fresh(now int64) bool {
	return c.m.Bad == 0 && c.m.Interval == 0 && c.m.Until <= now && c.m.Share < laterShare/2
}

// Ended takes in the end of a delivery.
func (c *Course) Ended(now int64, b *Bounds, r *Report) {
	if c.m.Window == 0 {
		c.m.Window = float64(max(b.Start, 1))
	}
	if c.since == 0 {
		c.since, c.last = r.Began, r.Began
	}
	ask := r.Ask
	later := 0.0
	if ask == Later {
		if later = 1; c.m.Share > laterShare {
			ask = Slower
		}
	}
	c.m.Share += (later - c.m.Share) / shareOf
	// Less at once than the floor is not possible.
	if ask == Fewer && c.m.Window <= float64(b.Floor) && r.Began >= c.epoch {
		ask = Slower
	}
	switch ask {
	case Fewer, Away:
		c.fewer(now, b, r, ask)
	case Slower:
		c.slower(now, b, r, r.Ask)
	default:
		c.took(now, b, r)
		c.went(now, b, r)
	}
	c.bound(b)
}

// bound keeps the window and the interval within their bounds.
func (c *Course) bound(b *Bounds) {
	if c.m.Window > 0 {
		c.m.Window = max(c.m.Window, float64(b.Floor), 1)
		if b.Ceiling > 0 {
			c.m.Window = min(c.m.Window, float64(b.Ceiling))
		}
	}
	c.m.Interval, c.m.Refused, c.m.Good = min(c.m.Interval, float64(b.Slowest)), min(c.m.Refused, float64(b.Slowest)), min(c.m.Good, float64(b.Slowest))
}

// because notes why something was made less.
func (c *Course) because(now int64, why Ask, text string) {
	c.m.Why, c.m.At, c.m.Text = why, now, text[:min(len(text), MaxText)]
}

// fewer makes the window smaller.
func (c *Course) fewer(now int64, b *Bounds, r *Report, why Ask) {
	used := min(float64(r.Busy), c.m.Window)
	if r.Began < c.epoch {
		// Of the same moment: the least that was refused is the level.
		if c.m.Bad > 0 && why == Fewer {
			c.m.Bad = max(min(c.m.Bad, float64(r.Busy)), c.m.Window+1)
		}
		return
	}
	if c.m.Wait = max(c.m.Wait, probeFirst); c.trial {
		c.m.Wait = min(2*c.m.Wait, probeMost)
		c.m.Window = max(used-1, 1) // the level below was good until now
	} else {
		c.m.Window = max(math.Floor(used*fall), 1)
	}
	c.m.Bad, c.m.Step = max(used, 2), 0
	c.m.ProbeAt, c.epoch, c.trial = now+c.m.Wait, now, false
	c.ended, c.ratio = 0, 0
	c.because(now, why, r.Text)
}

// went counts a delivery that was refused for nothing that concerns the sender.
func (c *Course) went(now int64, b *Bounds, r *Report) {
	c.passed(now, r)
	// A window that is not used says nothing of what would be if it were.
	if r.Began < c.epoch || c.calm || float64(r.Busy)+float64(b.Start) <= c.m.Window {
		return
	}
	c.more(now, b)
}

// more makes the window larger.
func (c *Course) more(now int64, b *Bounds) {
	switch w := c.m.Window; {
	case c.m.Bad == 0:
		c.m.Window++
	case w < c.m.Bad-1:
		c.m.Window = min(w+max(1, (c.m.Bad-1-w)/4)/w, c.m.Bad-1)
	case c.trial:
		// Counted in ended, which took counts: two windows at this level.
		if float64(c.ended) >= 2*w {
			c.m.Step = min(max(2*c.m.Step, 1), max(w/4, 1))
			c.m.Bad, c.m.Wait, c.ended = w+1+c.m.Step, probeFirst, 0
		}
	case now >= c.m.ProbeAt:
		c.m.Window, c.trial, c.ended, c.epoch = c.m.Bad, true, 0, now
	}
	if c.m.Bad > 0 && b.Ceiling > 0 && c.m.Window >= float64(b.Ceiling) && c.m.Bad > float64(b.Ceiling) {
		c.m.Bad, c.m.Step, c.trial = 0, 0, false // the bound is reached: nothing is left to be found
		c.forget()
	}
}

// forget forgets why there was less, when there is no less any more.
func (c *Course) forget() {
	if c.m.Bad == 0 && c.m.Interval == 0 {
		c.m.Why, c.m.Text, c.m.At = Nothing, "", 0
	}
}

// took looks at how long a delivery has taken.
func (c *Course) took(now int64, b *Bounds, r *Report) {
	k := 0
	if r.Opened {
		k = 1
	}
	took := max(now-r.Began, 1)
	if base := &c.m.Base[k]; *base == 0 || took < *base {
		*base = took
	}
	base := float64(c.m.Base[k])
	ratio := float64(took) / base
	if float64(took)-base < float64(slowMore) {
		ratio = 1 // too little to mean anything
	}
	if r.Began < c.epoch {
		return
	}
	if c.ended == 0 || ratio < c.ratio {
		c.ratio = ratio
	}
	c.ended++
	if float64(c.ended) < max(c.m.Window, 4) || c.trial {
		return
	}
	// The end of a round.
	c.calm = c.ratio > calmTimes
	if c.ratio > slowTimes && c.m.Window > float64(b.Floor) {
		c.m.Window = max(math.Floor(c.m.Window*slowFall), 1)
		c.epoch = now
		c.because(now, Latency, "")
	} else if !c.calm && c.m.Why == Latency {
		c.m.Why = Nothing
	}
	for i := range c.m.Base {
		c.m.Base[i] += c.m.Base[i] / 64
	}
	c.ended = 0
}
