package nodesim

import (
	"fmt"
	"time"

	"posthaste/internal/nodeshare"
)

// happen has a fault begin, and end.
func (r *run) happen(f *Fault) {
	n := r.nodes[f.Node]
	switch f.Kind {
	case kill, lose, killAll:
		r.killed(n, f)
	case freeze:
		n.stop()
		r.sleep(f.Last)
		n.goOn()
	case cut, cutUp, cutDown:
		for _, h := range r.hosts {
			n.links[h.name].set(f.Kind != cutDown, f.Kind != cutUp)
		}
		r.sleep(f.Last)
		for _, h := range r.hosts {
			n.links[h.name].set(false, false)
		}
	case hang:
		if c := n.someConn(f.N); c != nil {
			c.hold(true)
			r.sleep(f.Last)
			c.hold(false)
		}
	case setClock:
		n.setClock(time.Duration(f.N-500) * time.Minute)
		r.sleep(f.Last)
		n.setClock(time.Duration(500-f.N) * time.Minute)
	case reload:
		n.reload()
	case upgrade:
		r.upgrade(n, f)
	case drain:
		r.drain(n, f)
	default:
		r.database(n, f)
	}
}

// database has a fault of the database begin, and end.
func (r *run) database(n *node, f *Fault) {
	switch f.Kind {
	case crash, failover:
		r.databaseDies(f)
	case stall:
		h := r.hosts[0]
		h.mu.Lock()
		h.stalled = time.Now().Add(f.Last)
		h.mu.Unlock()
		h.ring()
	case dbClock:
		r.setDatabase(time.Duration(f.N-500) * 20 * time.Millisecond)
		r.sleep(f.Last)
		r.setDatabase(time.Duration(500-f.N) * 20 * time.Millisecond)
	case lockRows:
		if h := r.primary(); h != nil {
			h.lockLeases(f.Last)
		}
	case full:
		if h := r.primary(); h != nil {
			h.setFull(true)
			r.sleep(f.Last)
			h.setFull(false)
		}
	case commit:
		for _, h := range r.hosts {
			h.ambush(n.name, 1+f.N%3, f.N%2 == 0)
		}
	}
}

// killed has a node's processes die, or those of all, and starts them again.
func (r *run) killed(n *node, f *Fault) {
	list := []*node{n}
	if f.Kind == killAll {
		list = r.nodes
	}
	for _, n := range list {
		n.kill(f.Kind == lose)
	}
	if r.plan.single != "" {
		r.takenOver(n)
	}
	r.sleep(f.Last)
	for _, n := range list {
		r.revive(n)
	}
}

// upgrade has a node's next processes be of a later version: they follow in order, or the old ones are killed.
func (r *run) upgrade(n *node, f *Fault) {
	n.mu.Lock()
	n.older = false
	n.mu.Unlock()
	if f.N%2 == 0 && n.reload() {
		return
	}
	n.kill(false)
	r.sleep(f.Last)
	r.revive(n)
}

// setDatabase sets the primary's clock.
func (r *run) setDatabase(d time.Duration) {
	h := r.primary()
	if h == nil {
		return
	}
	h.mu.Lock()
	h.skew += d
	h.mu.Unlock()
	r.mu.Lock()
	r.clock = time.Now().Add(2 * nodeshare.Lease)
	r.mu.Unlock()
}

// revive starts a node again that is down.
func (r *run) revive(n *node) {
	if n.current() == nil {
		n.start()
	}
}

// databaseDies has the primary die and come back, or the standby promoted.
func (r *run) databaseDies(f *Fault) {
	h := r.primary()
	if h == nil {
		return // it is dead already
	}
	h.setSilent(f.N%2 == 0)
	h.die(f.N%2 == 0)
	r.sleep(f.Last)
	if f.Kind == crash || h.standby == nil {
		h.setSilent(false)
		h.restart()
		return
	}
	h.standby.promote()
}

// drain has a node give up its shards, and take them again.
func (r *run) drain(n *node, f *Fault) {
	r.setDrained(n, "t")
	r.sleep(f.Last)
	r.setDrained(n, "f")
}

// setDrained is "posthaste cluster drain" and "undrain": as a client of the database would, it changes the node's row.
func (r *run) setDrained(n *node, on string) {
	for !r.isOver() {
		if h := r.primary(); h != nil && h.drain(n.name, on) {
			return
		}
		r.sleep(100 * time.Millisecond)
	}
}

// takeoverTime is how long it may take from the last sign of life of a node until another has its mail.
const takeoverTime = 5 * time.Second

// takenOver holds that promise. Nothing else is wrong.
func (r *run) takenOver(dead *node) {
	waiting := r.books.missing()
	r.sleep(takeoverTime)
	h := r.primary()
	h.mu.Lock()
	for _, k := range (&tx{s: &session{host: h}}).keys("shard") {
		if s := h.data["shard"][k]; s[1] == dead.name || s[1] == null || atoi(h.data["lease"][k][1]) <= h.now() {
			defer r.books.fail("%v after the death of %s shard %s is not another's: %q", takeoverTime, dead.name, k, s)
		}
	}
	h.mu.Unlock()
	for _, d := range waiting {
		if !r.has(d) {
			r.books.fail("%v after the death of %s nobody has %s", takeoverTime, dead.name, fmt.Sprint(d))
		}
	}
	r.books.count(func(c *Counts) { c.Takeovers++ })
}

// has says whether a delivery has been made, or a node's open queue has it.
func (r *run) has(d delivery) bool {
	r.books.mu.Lock()
	done := r.books.arrived[d] > 0
	r.books.mu.Unlock()
	for _, n := range r.nodes {
		if p := n.current(); p != nil && !done {
			if en := p.engine(); en != nil {
				_, done = en.Locate(d.id)
			}
		}
	}
	return done
}
