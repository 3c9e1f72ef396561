package rate

import (
	"math"
	"time"
)

// Never is later than any time.
const Never = math.MaxInt64

// Times are microseconds since the epoch, as the queue manager's scheduler has
// them. They should not go back; if they do, a meter waits for longer.

const day = int64(Day / time.Microsecond)

// A Meter counts what goes against a Rate. The zero Meter has counted
// nothing. It has no rate of its own: the one that holds now is passed to each
// call, so that it can be changed while the meter runs. All calls take constant
// time. A Meter must not be used by two goroutines at the same time.
type Meter struct {
	// Due is when what was spent will have been paid, for a rate that is spread: each of
	// the N costs its part of the time. It is in the past when nothing is owed.
	Due int64
	// Date is the day to which Count belongs, in days since the epoch, and Count what was
	// spent in it, for a rate by the day.
	Date, Count int64
}

// cost is the time that each one costs, and slack how much may be owed when one goes:
// together they keep every span of the rate's time to N.
func (r Rate) cost() (cost, slack int64) {
	span := int64(r.Per / time.Microsecond)
	slack = span / 20
	return (span + slack + r.N - 1) / r.N, slack
}

// roll begins a new day.
func (m *Meter) roll(now int64) {
	if d := now / day; d > m.Date {
		m.Date, m.Count = d, 0
	}
}

// Today is what has been counted today, of a rate by the day.
func (m Meter) Today(now int64) int64 {
	m.roll(now) // of a copy
	return m.Count
}

// Room is how many may go now. A negative number is none.
func (m *Meter) Room(r Rate, now int64) int64 {
	switch {
	case r.IsZero():
		return maxN
	case r.Per == Day:
		m.roll(now)
		return r.N - m.Count
	}
	cost, slack := r.cost()
	if free := slack - max(m.Due-now, 0); free >= 0 {
		return free/cost + 1
	}
	return 0
}

// Next is when n more may go at once, if nothing goes before: now, a later time, or Never
// if the rate does not let so many go at once.
func (m *Meter) Next(r Rate, now, n int64) int64 {
	switch {
	case m.Room(r, now) >= n:
		return now
	case n > r.N:
		return Never
	case r.Per == Day:
		return (m.Date + 1) * day
	}
	cost, slack := r.cost()
	if n > slack/cost+1 {
		return Never
	}
	return m.Due - slack + (n-1)*cost
}

// Spend counts n. It may be more than there is room for: then the rest is owed.
func (m *Meter) Spend(r Rate, now, n int64) {
	if r.IsZero() {
		return
	}
	if r.Per == Day {
		m.roll(now)
		m.Count += n
		return
	}
	cost, _ := r.cost()
	m.Due = max(m.Due, now) + n*cost
}

// Refund takes back n that were spent at a time, and not used. What belongs to
// a day that is over is gone with it.
func (m *Meter) Refund(r Rate, now, spent, n int64) {
	if r.IsZero() {
		return
	}
	if r.Per == Day {
		if m.roll(now); spent/day == m.Date {
			m.Count = max(m.Count-n, 0)
		}
		return
	}
	cost, _ := r.cost()
	m.Due = max(m.Due-n*cost, min(m.Due, now))
}

// Hold has nothing go before a time, and one then. It ends with a Change, and is of no
// effect for a rate by the day.
func (m *Meter) Hold(r Rate, until int64) {
	if r.IsZero() || r.Per == Day {
		return
	}
	_, slack := r.cost()
	m.Due = max(m.Due, until+slack)
}

// Change says that the rate is another one from now on. A count of the day
// stays; of what is owed no more than the new rate can owe.
func (m *Meter) Change(to Rate, now int64) {
	if to.IsZero() || to.Per == Day {
		m.Due = 0
		return
	}
	cost, slack := to.cost()
	m.Due = min(m.Due, now+slack+cost)
}

// Fresh says whether the meter is as good as a zero one: nothing is owed, and
// nothing counts for today.
func (m *Meter) Fresh(now int64) bool {
	return m.Due <= now && (m.Count == 0 || now/day > m.Date)
}

// Until is when the meter will be fresh if nothing more is spent.
func (m *Meter) Until(now int64) int64 {
	at := max(m.Due, now)
	if m.Count > 0 && now/day <= m.Date {
		at = max(at, (m.Date+1)*day)
	}
	return at
}
