package queue

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A DueSearch finds the messages that a DueQuery asks for, among all that it is shown. Times are in
// microseconds since 1970, 0 for none. It keeps twice as many marks as the query wants, at most. It is used by
// one goroutine.
type DueSearch struct {
	after         dueMark
	sane, amnesty int64
	limit         int
	found         []dueMark // at most twice the limit
	bound         dueMark   // those from here on are not wanted
	more          bool      // there were others
}

// dueMark is a Mark in microseconds.
type dueMark struct {
	next   int64
	number uint64
}

func (a dueMark) compare(b dueMark) int {
	return cmp.Or(cmp.Compare(a.next, b.next), cmp.Compare(a.number, b.number))
}

// NewDueSearch returns a search for what q asks for.
func NewDueSearch(q *DueQuery) *DueSearch {
	d := &DueSearch{after: dueMark{Micros(q.After.Next), q.After.Number}, sane: math.MaxInt64, amnesty: Micros(q.Amnesty),
		limit: max(q.Limit, 1), bound: dueMark{math.MaxInt64, math.MaxUint64}}
	if !q.Sane.IsZero() {
		d.sane = Micros(q.Sane)
	}
	return d
}

// Micros is t in microseconds since 1970, and 0 for the zero time.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// FromMicros is the counterpart of Micros.
func FromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// mark is where a message has its place.
func (d *DueSearch) mark(number uint64, next int64) dueMark {
	if next > d.sane && d.amnesty >= d.after.next {
		next = d.amnesty
	}
	return dueMark{next, number}
}

// Show shows it a deferred message.
func (d *DueSearch) Show(number uint64, next int64) {
	m := d.mark(number, next)
	if m.compare(d.after) <= 0 {
		return
	}
	if m.compare(d.bound) >= 0 {
		d.more = true
		return
	}
	if d.found = append(d.found, m); len(d.found) == 2*d.limit {
		d.cut()
	}
}

// cut leaves the first ones, in order.
func (d *DueSearch) cut() {
	slices.SortFunc(d.found, dueMark.compare)
	if len(d.found) > d.limit {
		d.found, d.bound, d.more = d.found[:d.limit], d.found[d.limit], true
	}
}

// Found calls yield for what was found, in order, until it returns false: find is asked for the message of
// that number as it is now. One that has changed since it was shown is left out. It returns the mark of the last
// one, or q.After, and whether there were no others behind it.
func (d *DueSearch) Found(q *DueQuery, find func(number uint64) (Entry, bool), yield func(Entry) bool) (last Mark, whole bool) {
	d.cut()
	last = q.After
	for _, m := range d.found {
		last = Mark{Number: m.number}
		if m.next != 0 {
			last.Next = time.UnixMicro(m.next)
		}
		if en, ok := find(m.number); ok && en.Queue == Deferred && d.mark(m.number, Micros(en.NextAttempt)) == m {
			en.NextAttempt = last.Next
			if !yield(en) {
				return last, false
			}
		}
	}
	return last, !d.more
}
