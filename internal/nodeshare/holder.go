package nodeshare

import (
	"maps"
	"time"
)

// A Use is how a node stands with one limit.
type Use struct {
	Key   string
	Limit int // at least 1
	Busy  int // in use
	Want  int // what more could be used
}

// A Holder is what a node knows of its shares. It is used by one goroutine. Times are of one monotonic clock.
type Holder struct {
	alone bool
	until time.Time // when it must have stopped to use what it has; zero: it has nothing
	has   map[string]int
	// Fresh is set, before the first request, by a process that does not know for certain what its predecessor has used of limits of
	// days. claimed is what was in use, by key, when that was claimed last, and lost what the predecessor may have used besides.
	Fresh         bool
	claimed, lost map[string]int
}

// Allowed is how many may be in use of a limit at a time: limit itself for a node that is alone, but for limits of a day, 0
// without a share.
func (h *Holder) Allowed(now time.Time, key string, limit int) int {
	switch {
	case !now.Before(h.until):
		return 0
	case h.alone && !IsDay(key):
		return limit
	}
	return min(h.has[key], limit-h.lost[key])
}

// Shares is all that Allowed says: that the node is alone, and has every limit but those of a day as it is, and what it has, by key. The map
// is not changed.
func (h *Holder) Shares(now time.Time) (alone bool, has map[string]int) {
	if !now.Before(h.until) {
		return false, nil
	}
	return h.alone, h.has
}

// Good says until when what Allowed says is so, but for the next Take.
func (h *Holder) Good() time.Time { return h.until }

// Request is what to bring to an exchange that begins now. uses has each limit that is in use, and what else is wanted:
// of all others the node gives back its share, at once.
func (h *Holder) Request(now time.Time, node string, uses []Use) *Request {
	q := &Request{Node: node, Alone: h.alone && now.Before(h.until), Fresh: h.Fresh, Claims: make([]Claim, 0, len(uses))}
	// The exchange may be made although its reply is lost: from here on nothing counts that is not claimed.
	kept := make(map[string]int, len(uses))
	claimed := make(map[string]int)
	for _, u := range uses {
		lost := h.lost[u.Key]
		q.Claims = append(q.Claims, Claim{Key: u.Key, Limit: u.Limit, Hold: max(u.Busy, h.Allowed(now, u.Key, u.Limit)) + lost, Demand: u.Busy + u.Want + lost})
		// Never more than is claimed: a limit may be raised while the exchange is under way.
		if n := min(h.has[u.Key], u.Limit-lost); n > 0 {
			kept[u.Key] = n
		}
		if h.Fresh && IsDay(u.Key) {
			claimed[u.Key] = u.Busy
		}
	}
	h.claimed = claimed
	h.prune(claimed)
	h.has = kept
	return q
}

// Take takes in the reply to a request that was made at began. What is not in the reply the node has no share of.
func (h *Holder) Take(began time.Time, r *Reply) {
	h.alone, h.until = r.Alone, began.Add(Lease-Margin)
	h.has = make(map[string]int, len(r.Grants))
	for _, g := range r.Grants {
		h.recall(&g)
		if n := min(g.Share, g.Target) - h.lost[g.Key]; n > 0 {
			h.has[g.Key] = n
		}
	}
}

// Lost is what the predecessor may have used of limits of days besides what is known, by key: of those of which this process has learnt it, 0
// included. The map is not changed.
func (h *Holder) Lost() map[string]int { return maps.Clone(h.lost) }

// SetLost has a process that follows another one in order, which was Fresh, go on with its Lost: what that one has used itself is known. It
// comes before the first request.
func (h *Holder) SetLost(lost map[string]int) { h.lost = maps.Clone(lost) }

// prune forgets what is not in use any more, when there is much of it: yesterday's limits above all. One that is claimed again is recalled
// again, and then all of the row counts as used.
func (h *Holder) prune(claimed map[string]int) {
	if len(h.lost) <= maxIdle+2*len(claimed) {
		return
	}
	for key := range h.lost {
		if _, ok := claimed[key]; !ok {
			delete(h.lost, key)
		}
	}
}

// maxIdle bounds the limits of days that a Holder remembers and that are not in use.
const maxIdle = 1000

// recall takes in what the predecessor may have used of a limit of a day: all that its row had beyond what is known. It is
// asked for once: later the row is this process's own.
func (h *Holder) recall(g *Grant) {
	busy, asked := h.claimed[g.Key]
	if _, known := h.lost[g.Key]; known || !asked {
		return
	}
	if h.lost == nil {
		h.lost = make(map[string]int)
	}
	h.lost[g.Key] = max(g.Former-busy, 0)
}
