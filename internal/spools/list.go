package spools

import (
	"cmp"
	"slices"

	"posthaste/internal/metrics"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// Page implements storage.Engine. The pages of all parts are joined by number, up to where the first of them ends: each
// is asked again from there on.
func (s *Set) Page(cursor uint64, list []queue.Placed) (_ []queue.Placed, next uint64) {
	begin := len(list)
	for _, p := range s.parts {
		from, st := len(list), p.present()
		var more uint64
		list, more = st.en.Page(cursor, list)
		kept := from // what is done with is left out
		for i := from; i < len(list); i++ {
			if e, there := p.shown(st, list[i].Entry); there {
				list[kept] = queue.Placed{Entry: e, Next: list[i].Next}
				kept++
			}
		}
		list = list[:kept]
		if more != 0 && (next == 0 || more < next) {
			next = more
		}
	}
	page := list[begin:]
	if next != 0 {
		// The next one of each part is there again; Next is behind an entry.
		page = slices.DeleteFunc(page, func(e queue.Placed) bool { return e.Next > next })
	}
	slices.SortFunc(page, func(a, b queue.Placed) int { return cmp.Compare(a.Next, b.Next) })
	return list[:begin+len(page)], next
}

// Due implements storage.Engine. Mail of a part that has failed is not due: what came of its delivery could not be
// recorded.
func (s *Set) Due(q *queue.DueQuery, yield func(queue.Entry) bool) (last queue.Mark, whole bool) {
	type due struct {
		mark  queue.Mark
		entry queue.Entry
	}
	var found []due
	// Beyond bound a part may have others that it has not told of.
	var bound *queue.Mark
	last, whole = q.After, true
	for _, p := range s.parts {
		st := p.present()
		if !st.up {
			continue
		}
		end, all := st.en.Due(q, func(e queue.Entry) bool {
			// An engine that has failed a moment ago gives what something else has been decided of.
			if now, there := p.shown(st, e); there && now.Queue == e.Queue && now.NextAttempt.Equal(e.NextAttempt) {
				found = append(found, due{queue.Mark{Next: e.NextAttempt, Number: e.ID.Number()}, now})
			}
			return true
		})
		if !all && (bound == nil || compareMarks(end, *bound) < 0) {
			bound = &end
		}
		if all && compareMarks(end, last) > 0 {
			last = end
		}
	}
	if bound != nil {
		last, whole = *bound, false
		found = slices.DeleteFunc(found, func(d due) bool { return compareMarks(d.mark, *bound) > 0 })
	}
	slices.SortFunc(found, func(a, b due) int { return compareMarks(a.mark, b.mark) })
	if limit := max(q.Limit, 1); len(found) > limit {
		found = found[:limit]
		last, whole = found[limit-1].mark, false
	}
	for i := range found {
		if !yield(found[i].entry) {
			return found[i].mark, false
		}
	}
	return last, whole
}

// compareMarks compares by time, and by number at the same time.
func compareMarks(a, b queue.Mark) int {
	return cmp.Or(cmp.Compare(queue.Micros(a.Next), queue.Micros(b.Next)), cmp.Compare(a.Number, b.Number))
}

// A Standing is how a part is now.
type Standing struct {
	Part
	Engine storage.Engine // closed, when Err is set
	Err    error          // why it cannot be written; nil: it can
}

// Standing says how the parts are, those that take mail first.
func (s *Set) Standing() (list []Standing) {
	for _, p := range s.parts {
		st := p.present()
		e := Standing{Part: p.Part, Engine: st.en}
		if !st.up {
			e.Err = st.err
		}
		list = append(list, e)
	}
	return list
}

// Offer implements storage.Engine.
func (s *Set) Offer(o *metrics.Offer) {
	if s.offer != nil {
		s.offer(o, s.Standing())
	}
}
