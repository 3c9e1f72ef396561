package nodesim

import (
	"sync"
	"time"
)

// A hop is a next hop, which counts: it may have so many deliveries at a time from all nodes together.
type hop struct {
	run   *run
	name  string
	limit int // deliveries at a time
	day   int // deliveries of a day; 0: as many as one likes
	rate  int // deliveries in rateTime; 0: the same

	mu     sync.Mutex
	active map[*proc]map[delivery]time.Time // by who delivers: when it was decided
	spent  map[string]int                   // of a day
	begun  []time.Duration                  // deliveries of late
}

// begin counts a delivery that begins. Those of nodes whose shares have not been good at some time since do not count, nor
// those of nodes that are dead: others may use their shares, and nobody can know of them.
func (h *hop) begin(p *proc, a *attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, decided := a.delivery, a.decided
	h.counted(p, a.day)
	if h.active[p] == nil {
		h.active[p] = map[delivery]time.Time{}
	}
	h.active[p][d] = decided
	n := 0
	for q, list := range h.active {
		for _, decided := range list {
			if q.counts(decided) {
				n++
			}
		}
	}
	if n > h.limit {
		h.run.books.fail("%s has %d deliveries at a time, of %d that are allowed, when %s begins %s", h.name, n, h.limit, p.n.name, d.id)
	}
	h.run.note("%s: delivers %s, recipient %d", p.n.name, d.id, d.rcpt)
}

// counts says whether the shares have been good ever since a delivery was decided.
func (p *proc) counts(decided time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead && decided.After(p.lapsed) && time.Now().Before(p.holder.Good()) && decided.After(p.n.run.clockRight())
}

// got is the moment at which the message has arrived.
func (h *hop) got(d delivery) { h.run.books.delivered(d) }

func (h *hop) end(p *proc, d delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.active[p], d)
}
