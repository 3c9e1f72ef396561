package spool

import (
	"cmp"
	"math"
	"slices"
)

// The queue manager does not keep all deferred mail in memory. It asks for what is due next,
// and for pages of the queue, in any order, when somebody wants to see it. Neither keeps a
// commit waiting: the index is looked at a few hundred messages at a time.

// dueMark is a Mark in microseconds.
type dueMark struct {
	next   int64
	number uint64
}

func (a dueMark) compare(b dueMark) int {
	return cmp.Or(cmp.Compare(a.next, b.next), cmp.Compare(a.number, b.number))
}

// A dueSearch finds the first so many marks of all that it is shown.
type dueSearch struct {
	after         dueMark
	sane, amnesty int64
	limit         int
	found         []dueMark // at most twice the limit
	bound         dueMark   // those from here on are not wanted
	more          bool      // there were others
}

func newDueSearch(q *DueQuery) *dueSearch {
	d := &dueSearch{after: dueMark{micros(q.After.Next), q.After.Number}, sane: math.MaxInt64, amnesty: micros(q.Amnesty),
		limit: max(q.Limit, 1), bound: dueMark{math.MaxInt64, math.MaxUint64}}
	if !q.Sane.IsZero() {
		d.sane = micros(q.Sane)
	}
	return d
}

// mark is where a message has its place.
func (d *dueSearch) mark(number uint64, next int64) dueMark {
	if next > d.sane && d.amnesty >= d.after.next {
		next = d.amnesty
	}
	return dueMark{next, number}
}

func (d *dueSearch) show(l *live) {
	if Queue(l.queue) != Deferred {
		return
	}
	m := d.mark(l.number, l.next)
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
func (d *dueSearch) cut() {
	slices.SortFunc(d.found, dueMark.compare)
	if len(d.found) > d.limit {
		d.found, d.bound, d.more = d.found[:d.limit], d.found[d.limit], true
	}
}

// Due calls yield for the deferred messages that q asks for, in order, until it returns
// false. NextAttempt is the time that counts. It gives the mark of the last, and says whether
// there is no other behind it. A message that changes meanwhile is given as
// it is when its turn comes, or not at all. Memory is bounded by q.Limit, 32 bytes for each.
func (s *Spool) Due(q *DueQuery, yield func(Entry) bool) (last Mark, whole bool) {
	return s.e.due(q, yield)
}

func (e *engine) due(q *DueQuery, yield func(Entry) bool) (last Mark, whole bool) {
	d := newDueSearch(q)
	for from, more := uint64(0), true; more; {
		from, more = e.livesFrom(from, func(l *live, _ uint64) { d.show(l) })
	}
	d.cut()
	last = q.After
	for _, m := range d.found {
		last = Mark{Next: fromMicros(m.next), Number: m.number}
		if en, ok := e.find(m.number); ok && en.Queue == Deferred && d.mark(m.number, micros(en.NextAttempt)) == m {
			en.NextAttempt = last.Next
			if !yield(en) {
				return last, false
			}
		}
	}
	return last, !d.more
}

// Find is the message of that number, as it is durable.
func (s *Spool) Find(number uint64) (Entry, bool) { return s.e.find(number) }

func (e *engine) find(number uint64) (Entry, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var room live
	l := e.idx.find(number, &room)
	if l == nil {
		return Entry{}, false
	}
	en := e.entry(l)
	en.ID = l.id()
	return en, true
}

// Page appends some hundred messages to list, those from a cursor on, which is 0 for the
// first page; next is the cursor of the next page, 0 when this was the last. What comes or goes
// between two pages may be missed; nothing is given twice.
func (s *Spool) Page(cursor uint64, list []Placed) (_ []Placed, next uint64) {
	return s.e.page(cursor, list)
}

func (e *engine) page(cursor uint64, list []Placed) (_ []Placed, next uint64) {
	type place struct{ number, next uint64 }
	var places []place
	next, more := e.livesFrom(cursor, func(l *live, next uint64) { places = append(places, place{l.number, next}) })
	for _, p := range places {
		if en, ok := e.find(p.number); ok {
			list = append(list, Placed{Entry: en, Next: p.next})
		}
	}
	if !more {
		next = 0
	}
	return list, next
}

// livesStep is how many leaves of the index are looked at while commits wait.
const livesStep = 8

// livesFrom calls f, which must not keep its argument, for some messages in the order of their numbers,
// beginning with a number, which is 0 at first, each with the number behind it. It gives the number to go
// on from; more says that there are others. The engine's lock is held meanwhile.
func (e *engine) livesFrom(from uint64, f func(l *live, next uint64)) (next uint64, more bool) {
	var room [leafLen]live
	e.mu.RLock()
	defer e.mu.RUnlock()
	for range livesStep {
		var list []live
		if list, from, more = e.idx.page(from, filter{}, &room); !more {
			return from, false
		}
		for i := range list {
			f(&list[i], list[i].number+1)
		}
	}
	return from, true
}
