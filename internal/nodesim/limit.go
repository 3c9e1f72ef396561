package nodesim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"posthaste/internal/nodeshare"
)

const (
	// rateTime is the time of a rate: so many deliveries in that.
	rateTime = 5 * time.Second
	// dayPart is the part of a day's limit that a node asks for in advance: one of so many, as in package qmgr.
	dayPart = 20
	// dayTime is when the limits of a day are lifted: what a dead node had got of them is nobody's until the day is over, and the
	// queue must become empty.
	dayTime = 20 * time.Second
)

// dayKey names a limit of a day, by the node's clock.
func (n *node) dayKey(h *hop) string {
	return fmt.Sprintf("%s%d of %s", nodeshare.DayPrefix, n.clock().Unix()/86400, h.name)
}

// rateKey names a rate.
func (h *hop) rateKey() string { return rateTime.String() + " of " + h.name }

// dayLimit is how many deliveries may begin in a day.
func (h *hop) dayLimit() int {
	if h.run.since() > dayTime {
		return math.MaxInt32
	}
	return h.day
}

// remember has the process begin with what is on the node's disk of limits of a day. If a former one was killed, that may be older than
// what was spent. The node's mu is held.
func (p *proc) remember() {
	rnd := p.source("known")
	p.known, p.holder.Fresh = map[string]int{}, p.n.killed
	for _, day := range slices.Sorted(maps.Keys(p.n.spent)) {
		switch n := p.n.spent[day]; {
		case !p.n.killed || rnd.IntN(3) == 0:
			p.known[day] = n
		case rnd.IntN(2) == 0: // else nothing is known
			p.known[day] = rnd.IntN(n + 1)
		}
	}
}

// spend says whether the limits of a next hop allow one more delivery, and counts it. p.mu is held.
func (p *proc) spend(now time.Time, h *hop) (day string, ok bool) {
	if p.busy[h.name] >= p.holder.Allowed(now, h.name, h.limit) {
		return "", false
	}
	day = p.n.dayKey(h)
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if h.day > 0 && p.known[day] >= p.holder.Allowed(now, day, h.dayLimit()) {
		return "", false
	}
	if h.rate > 0 {
		share := p.holder.Allowed(now, h.rateKey(), h.rate)
		if share == 0 || now.Before(p.n.due[h]) {
			return "", false
		}
		p.n.due[h] = now.Add(rateTime / time.Duration(share))
	}
	if h.day > 0 {
		p.known[day]++
		p.n.spent[day]++
	}
	return day, true
}

// uses is how the node stands with its limits. p.mu is held.
func (p *proc) uses() (list []nodeshare.Use) {
	for _, h := range p.n.run.hops {
		busy, want := p.busy[h.name], p.want[h.name]
		if busy+want > 0 {
			list = append(list, nodeshare.Use{Key: h.name, Limit: h.limit, Busy: busy, Want: want})
			if h.rate > 0 {
				list = append(list, nodeshare.Use{Key: h.rateKey(), Limit: h.rate, Want: h.rate})
			}
		}
		if h.day > 0 {
			key, limit := p.n.dayKey(h), h.dayLimit()
			spent := p.known[key]
			if want = min(want, max(limit/dayPart, 1)); spent+want > 0 {
				list = append(list, nodeshare.Use{Key: key, Limit: limit, Busy: spent, Want: want})
			}
		}
	}
	return list
}

// counted holds the limits of days and of rates, when a delivery begins. h.mu is held.
func (h *hop) counted(p *proc, day string) {
	if h.day > 0 {
		if h.spent[day]++; h.spent[day] > h.dayLimit() {
			h.run.books.fail("%s gets %d deliveries of %q, of %d that are allowed, when %s begins one", h.name, h.spent[day], day, h.day, p.n.name)
		}
	}
	if h.rate > 0 {
		now := h.run.since()
		h.begun = append(h.begun, now)
		for now-h.begun[0] > rateTime {
			h.begun = h.begun[1:]
		}
		// Each node may begin one at once, after a pause, and goes on by its share from then on.
		if most := h.rate + 2*len(h.run.nodes); len(h.begun) > most && !h.run.wrongClock() {
			h.run.books.fail("%s gets %d deliveries in %v, of %d that are allowed, when %s begins one", h.name, len(h.begun), rateTime, h.rate, p.n.name)
		}
	}
}
