package sched

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/rate"
)

// The model's shared limits: lines are slices, and who may go is looked for from the top
// each time.

type mShare struct {
	limits             Limits
	parent             *mShare
	line               []any // *mQueue or *mShare
	busy, held         int
	conns, msgs, rcpts rate.Meter
	wake, seq          int64
}

// shareOf finds or makes the limits of a destination, and returns the innermost.
func (m *model) shareOf(terms *Terms) (leaf *mShare) {
	if terms == nil {
		return nil
	}
	for l := levels; l > 0; l-- {
		sh := terms.Shares[l-1]
		k := sharedKey{level: l - 1, name: sh.Name}
		if sh.Name == "" || sh.Limits == (Limits{}) {
			continue
		}
		if m.shares[k] == nil {
			m.shares[k] = &mShare{limits: sh.Limits, parent: leaf}
		}
		leaf = m.shares[k]
	}
	return leaf
}

func (n *mShare) place() bool {
	return n.limits.Concurrency == 0 || n.busy+n.held < n.limits.Concurrency
}

func (n *mShare) next(now int64) int64 {
	k := int64(n.held) + 1
	return max(n.conns.Next(n.limits.Connections, now, k), n.msgs.Next(n.limits.Messages, now, k), n.rcpts.Next(n.limits.Recipients, now, k))
}

func (n *mShare) room(now int64) bool { return n.place() && n.next(now) <= now }

// settle looks at n and all above it.
func (m *model) settle(n *mShare) {
	for ; n != nil; n = n.parent {
		wants := len(n.line) > 0 && n.room(m.now)
		if p := n.parent; p != nil {
			if in := slices.Contains(p.line, any(n)); wants && !in {
				p.line = append(p.line, n)
			} else if !wants && in {
				p.leave(n)
			}
		}
		at := n.next(m.now)
		if len(n.line) == 0 || !n.place() || at == rate.Never || at <= m.now {
			n.wake = 0
		} else if n.wake != at {
			m.timers++
			n.wake, n.seq = at, m.timers
		}
	}
}

func (n *mShare) leave(who any) {
	n.line = slices.DeleteFunc(n.line, func(x any) bool { return x == who })
}

// wakeShares: time has passed.
func (m *model) wakeShares() {
	var due []*mShare
	for _, n := range m.shares {
		if n.wake != 0 && n.wake <= m.now {
			due = append(due, n)
		}
	}
	slices.SortFunc(due, func(a, b *mShare) int { return cmp.Or(cmp.Compare(a.wake, b.wake), cmp.Compare(a.seq, b.seq)) })
	for _, n := range due {
		m.settle(n)
	}
}

// ask brings q's place in line with what it has.
func (m *model) ask(q *mQueue) {
	if q.leaf == nil {
		return
	}
	wants := q.deadUntil == 0 && q.window > q.busy && q.todo() > 0
	switch in := slices.Contains(q.leaf.line, any(q)); {
	case wants && !q.held && !in:
		q.leaf.line = append(q.leaf.line, q)
	case !wants && q.held:
		q.held = false
		for n := q.leaf; n != nil; n = n.parent {
			n.held--
		}
	case !wants && in:
		q.leaf.leave(q)
	default:
		return
	}
	m.settle(q.leaf)
}

// grants gives out the places that there are.
func (m *model) grants() {
	for again := true; again; {
		again = false
		for _, n := range m.shares {
			for n.parent == nil && len(n.line) > 0 && n.room(m.now) {
				m.grant(n)
				again = true
			}
		}
	}
}

func (m *model) grant(n *mShare) {
	for {
		who := n.line[0]
		n.line = n.line[1:]
		q, ok := who.(*mQueue)
		if !ok {
			n = who.(*mShare)
			continue
		}
		q.held = true
		for n := q.leaf; n != nil; n = n.parent {
			n.held++
		}
		m.settle(q.leaf)
		return
	}
}

// divide cuts the entry that p is about to give.
func (m *model) divide(p *mPeer) {
	e := p.todo[0]
	n := len(e.rcpts)
	for a := p.q.leaf; a != nil; a = a.parent {
		if a.limits.Recipients.Per == rate.Day {
			n = min(n, int(a.rcpts.Room(a.limits.Recipients, m.now))-a.held+1)
		}
	}
	if n = max(n, 1); n < len(e.rcpts) {
		p.todo = append(p.todo, &mEntry{p: p, rcpts: slices.Clone(e.rcpts[n:]), apart: e.apart})
		e.rcpts = e.rcpts[:n]
		p.refs++
		p.j.total++
	}
}

func (m *model) beginShared(e *mEntry) {
	q := e.p.q
	q.held = false
	for n := q.leaf; n != nil; n = n.parent {
		n.held--
		n.busy++
		n.conns.Spend(n.limits.Connections, m.now, 1)
		n.msgs.Spend(n.limits.Messages, m.now, 1)
		n.rcpts.Spend(n.limits.Recipients, m.now, int64(len(e.rcpts)))
	}
	m.settle(q.leaf)
}

func (m *model) reused(e *mEntry) {
	for n := e.p.q.leaf; n != nil; n = n.parent {
		refund(&n.conns, n.limits.Connections, m.now, e.since, 1)
	}
	m.settle(e.p.q.leaf)
}

func (m *model) endShared(e *mEntry) {
	for n := e.p.q.leaf; n != nil; n = n.parent {
		n.busy--
	}
	m.settle(e.p.q.leaf)
}

// TestSharedModel plays random histories with shared limits to the scheduler and to the
// model: every decision must be the same.
func TestSharedModel(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 30
	}
	config := func(r *rand.Rand) Config {
		cfg := modelConfig(r)
		cfg.SharedActiveLimit = 0
		inner := cfg.Transport
		cfg.Transport = func(name mail.Transport, c TransportConfig) TransportConfig {
			c = inner(name, c)
			c.IdleMax = time.Second
			return c
		}
		return cfg
	}
	waited := 0
	for seed := range n {
		differs := compareWith(t, seed, config, false, func(r *rand.Rand, w *world, m *model) {
			w.terms = randomTerms(r, randomLimits)
			shared := &Terms{Shares: w.terms[destinations[1]].orNone()}
			for i := range 30 { // those of large mail
				if i%3 > 0 {
					w.terms["d"+string(rune('0'+i%10))+".example"] = shared
				}
			}
			m.terms = w.terms
			w.each = func(*rand.Rand) {
				for _, n := range w.s.shares {
					waited += n.waiting
				}
			}
		})
		if differs != "" {
			t.Fatalf("seed %d: %s", seed, differs)
		}
	}
	if waited < int(n) {
		t.Errorf("%d waits in %d histories: this compares too little", waited, n)
	}
}

func (t *Terms) orNone() (none [levels]Share) {
	if t == nil {
		return none
	}
	return t.Shares
}
