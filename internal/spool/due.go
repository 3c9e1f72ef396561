package spool

import "posthaste/internal/queue"

// The queue manager does not keep all deferred mail in memory. It asks for what is due next,
// and for pages of the queue, in any order, when somebody wants to see it. Neither keeps a
// commit waiting: the index is looked at a few hundred messages at a time.

// Due calls yield for the deferred messages that q asks for, in order, until it returns
// false. NextAttempt is the time that counts. It gives the mark of the last, and says whether
// there is no other behind it. A message that changes meanwhile is given as
// it is when its turn comes, or not at all. Memory is bounded by q.Limit, 32 bytes for each.
func (s *Spool) Due(q *DueQuery, yield func(Entry) bool) (last Mark, whole bool) {
	return s.e.due(q, yield)
}

func (e *engine) due(q *DueQuery, yield func(Entry) bool) (last Mark, whole bool) {
	d := queue.NewDueSearch(q)
	for from, more := uint64(0), true; more; {
		from, more = e.livesFrom(from, func(l *live, _ uint64) {
			if Queue(l.queue) == Deferred {
				d.Show(l.number, l.next)
			}
		})
	}
	return d.Found(q, e.find, yield)
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
