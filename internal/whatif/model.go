package whatif

import (
	"math"
	"math/rand/v2"
	"time"

	"posthaste/internal/pace"
)

const (
	// enough is how many deliveries a level must have counted to be believed.
	enough = 3
	// supposed is how long a delivery takes where nothing has been measured anywhere.
	supposed = time.Second
	// maxSpread bounds how unequal deliveries are: their standard deviation, by their mean.
	maxSpread = 2
)

// A model is a destination as it was measured: what becomes of a delivery, by how many go on.
type model struct {
	away     [pace.Levels]float64 // the share that is turned away
	took     [pace.Levels]float64 // seconds, of those served
	awayTook [pace.Levels]float64
	// The time is in proportion to fixed + each × recipients.
	fixed, each  float64
	spread       float64 // of a logarithmic normal distribution
	first, again pace.Rcpts
	known        bool // something was measured, here or elsewhere in the transport
	down         bool // it takes nothing now
	most         int  // deliveries at once that were seen
}

// newModel makes a model of what was measured. others are those destinations of its transport that
// answer, for one of which nothing is known.
func newModel(b, others *pace.Behaviour) model {
	if b == nil || weight(b) == 0 {
		b = others
	}
	m := model{fixed: 1, first: b.First, again: b.Again, known: weight(b) >= enough, down: isDown(b)}
	for i := range b.Levels {
		if l := &b.Levels[i]; l.Served+l.Away >= 0.5 {
			m.most = pace.Busy(i)
		}
	}
	m.proportions(b)
	m.levels(b)
	return m
}

// isDown says whether a destination takes nothing now: it has turned away all that it was ever
// offered, or more in a row than it ever did before.
func isDown(b *pace.Behaviour) bool {
	served := 0.0
	for i := range b.Levels {
		served += b.Levels[i].Served
	}
	return b.Streak > 0 && served < 0.1 || b.Streak >= enough && b.Streak > 2*b.Longest
}

// weight is how many deliveries count.
func weight(b *pace.Behaviour) (n float64) {
	for i := range b.Levels {
		n += b.Levels[i].Served + b.Levels[i].Away
	}
	return n
}

// levels fills in what was measured at each level, and at others what was at the nearest. Beyond
// those that were measured, times grow as they did in the upper half of them.
func (m *model) levels(b *pace.Behaviour) {
	slope := m.growth(b)
	all := counted(b, func(l *pace.Level) float64 { return l.Served + l.Away })
	served := counted(b, func(l *pace.Level) float64 { return l.Served })
	away := counted(b, func(l *pace.Level) float64 { return l.Away })
	for i := range b.Levels {
		if j := all.nearest(i); j >= 0 {
			l := &b.Levels[j]
			m.away[i] = l.Away / (l.Served + l.Away)
		}
		m.took[i] = supposed.Seconds()
		if j := served.nearest(i); j >= 0 {
			m.took[i] = m.time(&b.Levels[j])
			if i > j {
				m.took[i] *= math.Pow(float64(pace.Busy(i))/float64(pace.Busy(j)), slope)
			}
		}
		if j := away.nearest(i); j >= 0 {
			m.awayTook[i] = b.Levels[j].AwayTime / b.Levels[j].Away
		}
	}
}

// time is the mean time of deliveries of a level, for as many recipients as all have on average.
func (m *model) time(l *pace.Level) float64 {
	mean := l.ServedTime / l.Served
	if f := m.fixed + m.each*l.Rcpts/l.Served; f > 0 {
		return mean / f
	}
	return mean
}

// counts are the levels of which something was counted, in order: mostly few.
type counts []levelCount

type levelCount struct {
	level int
	n     float64
}

func counted(b *pace.Behaviour, count func(*pace.Level) float64) (list counts) {
	for i := range b.Levels {
		if n := count(&b.Levels[i]); n > 0 {
			list = append(list, levelCount{i, n})
		}
	}
	return list
}

// nearest is the level nearest to i of which enough is known, of two the lower one; without one that of which
// most is, of several the nearest; less than 0: nothing is known.
func (c counts) nearest(i int) int {
	best, most, at := -1, 0.0, -1
	for _, x := range c {
		d := max(x.level-i, i-x.level)
		if x.n >= enough && (best < 0 || d < max(best-i, i-best)) {
			best = x.level
		}
		if x.n > most || x.n == most && d < max(at-i, i-at) {
			most, at = x.n, x.level
		}
	}
	if best >= 0 {
		return best
	}
	return at
}

// growth is by which power of the number of deliveries their time grows: 0, it does not; 1, what
// more go on wait for each other. It is that of the upper half of what was measured, and 0 if it
// may be chance.
func (m *model) growth(b *pace.Behaviour) float64 {
	var n, x, y, xx, xy float64
	for i := range b.Levels {
		l := &b.Levels[i]
		if l.Served <= 0 || l.ServedTime <= 0 || 2*pace.Busy(i) < m.most {
			continue
		}
		lx, ly := math.Log(float64(pace.Busy(i))), math.Log(m.time(l))
		n, x, y, xx, xy = n+l.Served, x+l.Served*lx, y+l.Served*ly, xx+l.Served*lx*lx, xy+l.Served*lx*ly
	}
	if n < enough {
		return 0
	}
	d := xx - x*x/n
	if d < 1e-9 {
		return 0
	}
	slope := (xy - x*y/n) / d
	if slope < 2*m.spread/math.Sqrt(d) {
		return 0
	}
	return min(slope, 1)
}

// proportions finds what recipients have to do with the time, and how unequal deliveries are.
func (m *model) proportions(b *pace.Behaviour) {
	n, t := 0.0, 0.0
	for i := range b.Levels {
		n, t = n+b.Levels[i].Served, t+b.Levels[i].ServedTime
	}
	if n < enough || t <= 0 {
		return
	}
	explained := 0.0
	if d := n*b.RR - b.R*b.R; d > 1e-6*b.R*b.R {
		each := (n*b.TR - b.R*t) / d
		if fixed := (t - each*b.R) / n; each > 0 {
			m.fixed, m.each = max(fixed, 0), each
			explained = each * each * d / n
		}
	}
	if mean := m.fixed + m.each*b.R/n; mean > 0 {
		m.fixed, m.each = m.fixed/mean, m.each/mean
	}
	mean := t / n
	v := min(max((b.TT-explained)/n/(mean*mean)-1, 0), maxSpread*maxSpread)
	m.spread = math.Sqrt(math.Log(1 + v))
}

// deliver is what becomes of a delivery that is one of so many: how long it takes, and whether it
// is turned away. slower is by how much its time is multiplied, if it is served.
func (m *model) deliver(rng *rand.Rand, busy, rcpts int, slower float64) (took time.Duration, away bool) {
	l := pace.LevelOf(busy)
	var seconds float64
	if away = m.down || rng.Float64() < m.away[l]; away {
		seconds = m.awayTook[l]
	} else {
		z := rng.NormFloat64()
		seconds = m.took[l] * (m.fixed + m.each*float64(rcpts)) * math.Exp(m.spread*z-m.spread*m.spread/2) * slower
	}
	return min(max(time.Duration(seconds*float64(time.Second)), time.Millisecond), time.Hour), away
}

// rcpt is what becomes of a recipient of a delivery that was served.
func (m *model) rcpt(rng *rand.Rand, again bool) (later, failed bool) {
	r := &m.first
	if again && m.again.All >= enough {
		r = &m.again
	}
	if r.All <= 0 {
		return false, false
	}
	x := rng.Float64() * r.All
	return x < r.Later, x >= r.Later && x < r.Later+r.Failed
}

// sum adds up what was measured of all destinations of a transport.
func sum(to, b *pace.Behaviour) {
	for i := range b.Levels {
		l, m := &to.Levels[i], &b.Levels[i]
		l.Served, l.Away = l.Served+m.Served, l.Away+m.Away
		l.ServedTime, l.AwayTime, l.Rcpts = l.ServedTime+m.ServedTime, l.AwayTime+m.AwayTime, l.Rcpts+m.Rcpts
	}
	for _, p := range [...][2]*pace.Rcpts{{&to.First, &b.First}, {&to.Again, &b.Again}} {
		p[0].All, p[0].Later, p[0].Failed = p[0].All+p[1].All, p[0].Later+p[1].Later, p[0].Failed+p[1].Failed
	}
	to.R, to.RR, to.TR, to.TT = to.R+b.R, to.RR+b.RR, to.TR+b.TR, to.TT+b.TT
}
