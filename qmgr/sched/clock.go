package sched

import "time"

// Times inside the scheduler are microseconds since the epoch; 0 is "none".
const (
	second = int64(time.Second / time.Microsecond)
	never  = int64(0)
)

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

func toMicros(t time.Time) int64 {
	if t.IsZero() {
		return never
	}
	return t.UnixMicro()
}

func toTime(t int64) time.Time {
	if t == never {
		return time.Time{}
	}
	return time.UnixMicro(t)
}

// clock is a time that never goes back, made from one that may. After a
// backward jump it advances at half speed until it is caught up with, so
// that orders by time stay true and time spans still end. What is measured
// against times on disk, and what goes there, goes by the wall: see real.
type clock struct{ wall, sane int64 }

func (c *clock) advance(wall int64) int64 {
	if wall >= c.sane {
		c.sane = wall
	} else if wall > c.wall {
		c.sane += (wall - c.wall) / 2
	}
	c.wall = wall
	return c.sane
}

// real is a time of this clock as the wall says it: the same, unless the wall
// has gone back and is not caught up with.
func (c *clock) real(t int64) int64 { return t - (c.sane - c.wall) }

// sanely is the contrary of real.
func (c *clock) sanely(t int64) int64 { return t + (c.sane - c.wall) }

// when is what the wall says when this clock says t, which real is not for
// times that lie ahead: until the wall has caught up this clock has half its speed.
func (c *clock) when(t int64) int64 {
	switch left := t - c.sane; {
	case left <= 0:
		return min(t, c.wall)
	case left < c.sane-c.wall:
		return c.wall + 2*left
	default:
		return t
	}
}

// rng is splitmix64: small, seedable, and good enough to spread retries.
type rng struct{ state uint64 }

func (r *rng) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number from 0 to n-1. The bias of a remainder does not
// matter here.
func (r *rng) below(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return int64(r.next()>>1) % n
}
