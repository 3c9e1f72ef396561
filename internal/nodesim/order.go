package nodesim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"posthaste/internal/nodeshare"
	"posthaste/internal/storage"
)

// An order is what an operator has one node ask of another.
type order struct {
	at       time.Duration
	from, to int
	lasts    time.Duration // to carry it out
}

// orderTime is how long whoever asks waits, at most.
const orderTime = 100 * time.Second

// ask has a node ask another one for something, and holds the answer against what has happened.
func (r *run) ask(i int, o *order) {
	r.sleep(o.at)
	p := r.nodes[o.from].current()
	if p == nil || p.n.isOlder() {
		return
	}
	p.gate()
	ctx, cancel := context.WithTimeout(p.ctx, orderTime)
	defer cancel()
	answer, err := p.courier().Ask(ctx, r.nodes[o.to].name, storage.Call{By: "an operator", Kind: 1, Payload: []byte(strconv.Itoa(i))})
	if p.isDead() {
		return // nobody hears it
	}
	r.note("%s: order %d to %s: %q, %v", p.n.name, i, r.nodes[o.to].name, answer, err)
	_, none := errors.AsType[storage.ErrNotCarriedOut](err)
	r.books.answered(i, err == nil, none)
}

// courier is what the process asks and hears other nodes by.
func (p *proc) courier() storage.Courier {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.store.Reader().(storage.Courier)
}

// attend carries out what other nodes ask for, until the process is gone.
func (p *proc) attend() {
	rnd := p.source("attend")
	for !p.isDead() {
		p.n.run.turn(rnd)
		p.gate()
		if p.n.isOlder() {
			p.rest(time.Second)
			continue
		}
		ctx, cancel := context.WithCancel(p.ctx)
		p.mu.Lock()
		p.deaf = cancel
		p.mu.Unlock()
		p.courier().Attend(ctx, p.carryOut, p.warn)
		cancel()
	}
}

// carryOut does what another node asks for.
func (p *proc) carryOut(_ context.Context, c storage.Call) ([]byte, error) {
	i, err := strconv.Atoi(string(c.Payload))
	if err != nil || i >= len(p.n.run.plan.orders) {
		p.n.run.books.fail("%s is asked for %q", p.n.name, c.Payload)
		return nil, errors.New("what?")
	}
	p.gate()
	if p.isDead() {
		return nil, errGone
	}
	p.n.run.note("%s: carries out order %d", p.n.name, i)
	p.n.run.books.carriedOut(i)
	p.rest(p.n.run.plan.orders[i].lasts)
	return fmt.Appendf(nil, "done %d", i), nil
}

// tell tells the other nodes how often this one has, and hears of them.
func (p *proc) tell() {
	p.n.run.turn(p.source("tell"))
	for !p.isDead() {
		p.gate()
		if en := p.engine(); en != nil && !p.n.isOlder() {
			p.n.mu.Lock()
			p.n.said++
			said := p.n.said
			p.n.mu.Unlock()
			heard, err := en.(storage.Noter).Notes("counts", fmt.Appendf(nil, "%s %d", p.n.name, said))
			p.gate()
			if err == nil && !p.isDead() {
				p.n.run.books.heard(p.n, heard)
			}
		}
		p.rest(2 * nodeshare.NotePeriod)
	}
}

// newOrders draws some.
func newOrders(r *rand.Rand, nodes int) (list []order) {
	for range r.IntN(6) {
		from := r.IntN(nodes)
		o := order{at: between(r, time.Second, active+2*time.Second), from: from, to: (from + 1 + r.IntN(nodes-1)) % nodes, lasts: between(r, time.Millisecond, 300*time.Millisecond)}
		if r.IntN(4) == 0 {
			o.lasts = between(r, time.Second, 4*time.Second)
		}
		list = append(list, o)
	}
	return list
}
