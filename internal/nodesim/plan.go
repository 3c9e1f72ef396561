package nodesim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// The kinds of faults. What begins ends after a time that is drawn.
const (
	kill     = "kill"     // a node's processes die, and are started again
	lose     = "lose"     // the same with the machine: nobody hears of it
	killAll  = "killall"  // all nodes' processes die
	freeze   = "freeze"   // a node's processes are stopped, and go on
	cut      = "cut"      // nothing gets from a node to the database, nor back
	cutUp    = "cut-up"   // to it
	cutDown  = "cut-down" // back
	crash    = "crash"    // the database dies and comes back
	failover = "failover" // it dies, heard or not, and the standby is promoted
	stall    = "stall"    // the standby does not follow
	setClock = "clock"    // a node's clock is set, and back
	dbClock  = "db-clock" // the primary's clock is set, and back
	full     = "full"     // the primary's disk is full
	hang     = "hang"     // one of a node's connections to the database hangs
	commit   = "commit"   // some of a node's connections end at COMMIT: before it, or before it is answered
	lockRows = "locked"   // somebody keeps the rows of the leases locked: they cannot be renewed
	upgrade  = "upgrade"  // a node is started again with a later version
	drain    = "drain"    // a node is drained
	reload   = "reload"   // a node's cleanup is followed by another
)

// A Fault happens at a time.
type Fault struct {
	Kind string
	At   time.Duration
	Node int
	Last time.Duration // until it ends
	N    int           // what else is drawn
}

// A letter is what a client wants to have delivered.
type letter struct {
	at    time.Duration
	node  int // that it tries first
	nrcpt int
}

// A Plan is all that a seed says.
type Plan struct {
	Seed              uint64
	Planted           string // a fault in the engine: epoch, lease or sync; "": none
	Trace             bool   // the log has each step
	Faults            []Fault
	nodes, shards     int
	letters           []letter
	limits            []int
	slow, flush, skew time.Duration // of the network, of disks, of the second host's clock
	single            string        // the only kind of fault; then more is promised
	days, rates       []int         // limits of next hops
	orders            []order
	shift             time.Duration // of all clocks: some runs have a midnight
	rolling           bool          // nodes begin with an older version
	deep              time.Duration // how long a part of a shard takes to be read, besides what a few rows take
}

// active is how long something may go wrong.
const active = 12 * time.Second

// balanced is when nodes that have just been started have divided the shards among them: each has waited for its deliveries
// then, in which it took no mail.
const balanced = 14 * time.Second

// NewPlan draws a plan.
func NewPlan(n uint64) *Plan {
	p := &Plan{Seed: n}
	r := seed(n).source("plan")
	p.nodes, p.shards = 2+r.IntN(2), 1+r.IntN(4)
	p.slow, p.flush = between(r, 200*time.Microsecond, 3*time.Millisecond), between(r, 200*time.Microsecond, 4*time.Millisecond)
	p.skew = between(r, -400*time.Millisecond, 400*time.Millisecond)
	for range 2 {
		p.limits = append(p.limits, 1+r.IntN(4))
		p.days = append(p.days, max(0, 6*r.IntN(5)-2*r.IntN(4)))
		p.rates = append(p.rates, max(0, 5*r.IntN(5)-5))
	}
	if deep := seed(n).source("deep"); n%6 != 0 && deep.IntN(2) == 0 {
		p.deep = between(deep, 5*time.Millisecond, 400*time.Millisecond)
		// Who takes over dies in the middle of it, or loses its lease, when it has begun to deliver: what the dead one's shares of limits were
		// it has five seconds later.
		if deep.IntN(2) == 0 {
			p.deep = between(deep, 300*time.Millisecond, 1500*time.Millisecond)
			first := Fault{Kind: pick(deep, kill, lose), At: between(deep, 4*time.Second, 7*time.Second), Node: deep.IntN(p.nodes), Last: 12 * time.Second}
			next := Fault{Kind: pick(deep, kill, lose, freeze, cut), At: first.At + between(deep, 4*time.Second, 10*time.Second), Last: between(deep, time.Second, 6*time.Second)}
			next.Node = (first.Node + 1 + deep.IntN(p.nodes-1)) % p.nodes
			p.Faults = append(p.Faults, first, next)
		}
	}
	if r.IntN(3) == 0 {
		p.shift = 24*time.Hour - between(r, time.Second, active+5*time.Second)
	}
	p.orders = newOrders(r, seed(n).source("parts"), p.nodes, p.shards)
	for range 8 + r.IntN(12) {
		p.letters = append(p.letters, letter{between(r, 0, active), r.IntN(p.nodes), 1 + r.IntN(2)})
	}
	kinds := []string{kill, kill, lose, killAll, freeze, freeze, cut, cut, cutUp, cutDown, crash, failover, failover, stall, setClock, setClock, dbClock, drain, reload, full, hang, hang, commit, commit, lockRows}
	if n%6 == 0 {
		p.single = pick(r, kill, lose, drain)
		f := p.fault(r, p.single)
		f.At, f.Last = between(r, balanced, balanced+3*time.Second), 8*time.Second
		p.Faults = []Fault{f}
		for i := range p.letters {
			p.letters[i].at = p.letters[i].at * 2 // some come meanwhile
		}
		return p
	}
	if p.rolling = n%10 == 3; p.rolling {
		for i := range p.nodes {
			f := p.fault(r, upgrade)
			f.Node, f.At = i, time.Duration(i)*3*time.Second+between(r, time.Second, 3*time.Second)
			p.Faults = append(p.Faults, f)
		}
	}
	failed := false
	for range 1 + r.IntN(4) {
		kind := pick(r, kinds...)
		if kind == failover {
			if failed {
				kind = freeze // there is one standby
			}
			failed = true
		}
		p.Faults = append(p.Faults, p.fault(r, kind))
	}
	return p
}

func (p *Plan) fault(r *rand.Rand, kind string) Fault {
	f := Fault{Kind: kind, At: between(r, time.Second, active), Node: r.IntN(p.nodes), Last: between(r, 200*time.Millisecond, 9*time.Second), N: r.IntN(1000)}
	switch kind {
	case crash, failover:
		f.Last = min(f.Last, 4*time.Second)
	case upgrade:
		f.Last = min(f.Last, 2*time.Second)
	}
	return f
}

// Masked leaves out the faults that the mask has a bit for.
func (p *Plan) Masked(mask uint64) *Plan {
	q := *p
	q.Faults = nil
	for i, f := range p.Faults {
		if mask&(1<<i) == 0 {
			q.Faults = append(q.Faults, f)
		}
	}
	return &q
}

// lasts is how long a delivery takes.
func (p *Plan) lasts(d delivery) time.Duration {
	r := seed(p.Seed).source(fmt.Sprint("lasts ", d.id, d.rcpt))
	if r.IntN(6) == 0 {
		return between(r, 500*time.Millisecond, 4*time.Second)
	}
	return between(r, time.Millisecond, 300*time.Millisecond)
}

// arrives says whether a message has arrived whose delivery breaks off.
func (p *Plan) arrives(d delivery) bool {
	return seed(p.Seed).source(fmt.Sprint("arrives ", d.id, d.rcpt)).IntN(2) == 0
}

func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d nodes, %d shards, %d letters, limits %v", p.Seed, p.nodes, p.shards, len(p.letters), p.limits)
	for i, f := range p.Faults {
		fmt.Fprintf(&b, "\n  fault %d: %s of n%d at %v for %v", i, f.Kind, f.Node+1, f.At.Round(time.Millisecond), f.Last.Round(time.Millisecond))
	}
	return b.String()
}
