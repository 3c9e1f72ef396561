// Time and chance, as the scheduler has them. Both are state that is set from outside:
// the time comes with each Step, the seed with the configuration. So the same events give
// the same effects, whatever machine runs them, and a failure that a random test finds
// can be repeated from its seed.

package sched

import "time"

// Times inside the scheduler are microseconds since the epoch; 0 is "none".
const (
	second = int64(time.Second / time.Microsecond)
	never  = int64(0)
)

// Durations are cut to whole microseconds. Two instants are then equal exactly if they
// are equal in the records of the spool, which has microseconds too.
func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

// toMicros and toTime keep "no time" apart from the epoch: the zero time.Time is never,
// and the reverse.
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

// clock is a monotonic time made from a wall clock that may be set back. After a backward
// jump it advances at half speed until the wall clock has caught up. So orders by time
// stay true and time spans still end, though late. What is compared with times on disk,
// and what is written there, uses the wall clock: see real.
//
// wall is the clock of the last Step as it was given, sane the monotonic one; both are
// microseconds, and sane is never behind wall.
type clock struct{ wall, sane int64 }

// advance takes the wall clock's time and returns the scheduler's.
func (c *clock) advance(wall int64) int64 {
	if wall >= c.sane {
		c.sane = wall
	} else if wall > c.wall {
		// After a further jump back neither branch applies: the time stands still for
		// that one Step.
		c.sane += (wall - c.wall) / 2
	}
	c.wall = wall
	return c.sane
}

// real converts a time of this clock to the wall clock's. They are equal unless the wall
// clock was set back and has not caught up yet.
func (c *clock) real(t int64) int64 { return t - (c.sane - c.wall) }

// sanely is the inverse of real.
func (c *clock) sanely(t int64) int64 { return t + (c.sane - c.wall) }

// when says what the wall clock will show when this clock shows t. For a time ahead that
// differs from real: until the wall clock has caught up, this clock runs at half its
// speed.
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

// rng is splitmix64: small, seedable, and good enough to spread retries and to shuffle a
// thread. Nothing that an attacker must not guess depends on it.
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
