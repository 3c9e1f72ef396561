package adaptive

import (
	"math"
	"time"

	"posthaste/internal/rate"
)

// The constants of the law for the time between deliveries.
const (
	restShort  = 45 * second // a host that wants less rest than this does not count by the minute
	pacedFirst = 2 * minute  // how long a rate is kept, at least, before a faster one is tried
	pacedMost  = 12 * 60 * minute
	proofTime  = 30 * second // for how long a rate must be in use to count as good, at least
	proofMost  = 150 * second
	proofMin   = 10   // the same, in deliveries
	below      = 1.07 // how far a rate stays below what is taken for a limit
	near       = 1.25 // good and refused rates that are closer have nothing worth a try between them
	dropFirst  = .1   // by how much the interval grows when a rate is refused that was good
	dropMost   = 1.0  // the same, when that was not enough several times
	stepFirst  = .1   // by how much a rate grows with the first step of a try
	stepMost   = 1.0  // the same, with the last
	burst      = 1.05 // a rate.Rate lets so much less go in the long run than its number, since some go at once
)

// rests are how long rests are, from the first refusal on. Penalty times are chosen by people, and people choose
// these.
var rests = [...]int64{30 * second, minute, 2 * minute, 5 * minute, 10 * minute, 15 * minute, 30 * minute, 60 * minute}

// restAfter is the first rest that is longer than t.
func restAfter(t int64) int64 {
	for _, r := range rests {
		if r > t {
			return r
		}
	}
	return 2 * t
}

// horizons are over what times a Course counts: what is under way at once, what hosts count in mostly, and the long
// run.
var horizons = [...]int64{5 * second, minute, 10 * minute}

// A lately counts deliveries, and forgets them with time: n is about how many there were in a horizon before at.
type lately struct {
	n  float64
	at int64
}

// count forgets what is to be forgotten until now, and adds some. A time before that of the last call is that time.
func (l *lately) count(now, horizon int64, more float64) float64 {
	if now > l.at {
		l.n *= math.Exp(-float64(now-l.at) / float64(horizon))
		l.at = now
	}
	l.n += more
	return l.n
}

// interval is the mean time between deliveries within a horizon until now.
func (c *Course) interval(now int64, horizon int) float64 {
	return float64(horizons[horizon]) / max(c.lately[horizon].count(now, horizons[horizon], 0), 1)
}

// Rate is how fast deliveries may follow each other; zero: as fast as the window lets them.
func (c *Course) Rate() rate.Rate {
	if c.m.Interval <= 0 {
		return rate.Rate{}
	}
	// A rate lets a twentieth of its number go at once. The shortest span with ten keeps that small.
	for _, per := range [...]time.Duration{time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour} {
		n := int64(min(burst*float64(per/time.Microsecond)/c.m.Interval, 100_000))
		if n >= 10 || per == time.Hour {
			return rate.Rate{N: max(n, 1), Per: per}
		}
	}
	return rate.Rate{}
}

// slower has the destination rest, and the rate made less.
func (c *Course) slower(now int64, b *Bounds, r *Report, why Ask) {
	if r.Began < c.slow {
		return
	}
	var rest int64
	if c.m.Half { // it was too short
		rest = c.m.First + restAfter(now-c.m.First) - now
	} else {
		c.m.First = now
		c.repace(now)
		// The last one may have been too long, and to ask too early costs one delivery. So a long rest that was for
		// a burst does not stay for ever.
		rest = restAfter(c.m.Rest / 4)
	}
	if r.After > 0 {
		// Nobody who says "in a second" for ever is asked each second.
		rest = max((now-c.m.First)/2, rests[0]/2, int64(r.After/time.Microsecond))
	}
	c.m.Until = now + min(rest, b.Longest)
	c.slow, c.epoch, c.m.Half = now, now, true
	c.because(now, why, r.Text)
}

// repace sets the interval anew after the first refusal of a row; rested does it again when it is known how long the rest
// was.
func (c *Course) repace(now int64) {
	was := c.m.Interval
	if was == 0 { // nothing kept it until now: it is what was sent
		was = min(float64(max(now-c.since, 1))/float64(max(c.through, 1)), c.interval(now, 0))
	}
	c.m.Refused = was
	switch {
	case c.m.Good > was: // it was a try
		c.m.Interval = c.m.Good
		if c.step > 0 {
			c.m.PaceWait = min(2*c.m.PaceWait, pacedMost)
		}
	case c.m.Good > 0 || c.m.Drop > 0: // it was good, but not for ever: the host has changed, or counts over a longer time
		if c.m.Good > 0 {
			c.m.Proof = min(2*c.proof(), proofMost)
		}
		c.m.Drop = min(max(2*c.m.Drop, dropFirst), dropMost)
		c.m.Interval, c.m.Good = max(was*(1+c.m.Drop), min(1.1*c.interval(now, 2), 2*was)), 0
	default:
		c.m.Interval = 2 * was
	}
	c.step = 0
}

// rested takes in that a rest was long enough. While no rate is known to be good, the interval is between what was
// refused, and what got through in the long run, with the rest.
func (c *Course) rested(now int64) {
	c.m.Half, c.m.Rest = false, min(max(now-c.m.First, 1), pacedMost)
	if c.m.Good == 0 && c.m.Drop == 0 {
		long := max(below*float64(now-c.since)/float64(max(c.through, 1)), near*c.m.Refused)
		limit := c.interval(c.m.First, 1)
		switch {
		case c.m.PaceWait == 0 && c.m.Rest > restShort && limit > c.m.Refused && below*limit < long:
			// Most hosts count by the minute. That a minute's mail went out in seconds says nothing against it.
			c.m.Interval, c.m.Refused = below*limit, limit
		case long < near*near*c.m.Refused:
			c.m.Interval = long
		default:
			c.m.Interval = math.Sqrt(c.m.Refused * long)
		}
	}
	c.begin(now)
}

// begin begins a rate, and says when the next one is tried.
func (c *Course) begin(now int64) {
	c.m.PaceWait = max(c.m.PaceWait, c.hold())
	c.m.PaceAt = now + c.m.PaceWait
	c.through, c.since, c.used, c.last = 0, now, 0, now
}

// next is the interval of the next try, and by how much it is beyond what was refused; 0: it is not.
func (c *Course) next() (interval, step float64) {
	if c.m.Interval > near*c.m.Refused {
		return math.Sqrt(c.m.Interval * c.m.Refused), 0
	}
	step = min(max(2*c.step, stepFirst), stepMost)
	return c.m.Interval / (1 + step), step
}

// hold is how long a rate is kept at least before the next one is tried: a try may cost a rest, and gains as much as it
// is faster.
func (c *Course) hold() int64 {
	next, _ := c.next()
	return min(max(pacedFirst, int64(float64(c.m.Rest)/(c.m.Interval/next-1))), pacedMost)
}

// proof is for how long a rate must be in use to count as good. What a host counts over a time that is longer than
// its rest is more than it forgives.
func (c *Course) proof() int64 { return max(c.m.Rest+max(proofTime, c.m.Rest/2), c.m.Proof) }

// passed counts a delivery for the rate.
func (c *Course) passed(now int64, r *Report) {
	if c.m.Half && r.Began >= c.slow {
		c.rested(now)
	}
	at := now
	if c.m.Half {
		at = c.m.First // the host has counted it before it refused another
	}
	for i := range c.lately {
		c.lately[i].count(at, horizons[i], 1)
	}
	c.through++
	if c.m.Interval > 0 && !c.m.Half && now >= c.m.Until {
		c.faster(now, r)
	}
}

// faster makes the interval shorter, if it is time for that.
func (c *Course) faster(now int64, r *Report) {
	// Where less is sent than the rate allows, nothing is learnt of it.
	if gap := now - c.last; gap > 0 && float64(gap) <= 2*c.m.Interval {
		c.used += gap
	}
	c.last = max(c.last, now)
	if c.used < c.proof() || c.through < proofMin {
		return
	}
	c.m.Good, c.m.Drop = c.m.Interval, 0
	// A step of a try that has passed is followed by the next one at once.
	if c.step == 0 && now < c.m.PaceAt {
		return
	}
	if c.step > stepFirst { // it was no accident that the one before has passed
		c.m.PaceWait = 0
	}
	if c.m.Interval, c.step = c.next(); c.step > 0 {
		c.m.Refused = min(c.m.Refused, c.m.Interval)
	}
	c.begin(now)
	// What the window lets through by itself in that time is less: the interval keeps nothing.
	if 2*c.m.Interval*c.m.Window < float64(now-r.Began) {
		c.m.Interval, c.m.Refused, c.m.Good, c.m.Drop, c.step = 0, 0, 0, 0, 0
		c.m.PaceWait, c.m.Rest, c.m.Proof = 0, 0, 0
		c.forget()
	}
}
