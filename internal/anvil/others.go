package anvil

import (
	"cmp"
	"slices"
	"time"
)

// others is what clients have done elsewhere, by the last word that came of it.
type others[K comparable] struct {
	counts map[K]Counts // nil: nothing is known
	until  time.Time    // after that it is too old
}

// of is what client k has done elsewhere; zero: nothing, or nobody has told for a while.
func (o *others[K]) of(k K, now time.Time) Counts {
	if o.counts == nil || !now.Before(o.until) {
		return Counts{}
	}
	return o.counts[k]
}

// SetOthers has Add and Lookup count in what clients have done elsewhere, in the place of what was set before, until a time
// by the table's clock. The caller does not change counts afterwards.
func (t *Table[K]) SetOthers(counts map[K]Counts, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others = others[K]{counts, until}
}

// A Client is one with what it has done here, in its present interval.
type Client[K comparable] struct {
	Who    K
	Counts Counts
	Weight float64
}

// Busiest are those n clients that weigh most by what they have done here, the heaviest first, without those that weigh
// nothing.
func (t *Table[K]) Busiest(n int, weight func(Counts) float64) (list []Client[K]) {
	t.mu.Lock()
	now := t.o.Now()
	for k, c := range t.clients {
		counts := c.present(now, t.o.Unit)
		if w := weight(counts); w > 0 {
			list = append(list, Client[K]{k, counts, w})
		}
	}
	t.mu.Unlock()
	slices.SortFunc(list, func(a, b Client[K]) int { return cmp.Compare(b.Weight, a.Weight) })
	return list[:min(len(list), n)]
}

// present is what a client has done in its interval; when that is over, what it has open.
func (c *client) present(now time.Time, unit time.Duration) Counts {
	if now.Sub(c.began) >= unit {
		return Counts{Connections: c.counts[Connections]}
	}
	return c.counts
}
