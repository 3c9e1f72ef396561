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
	part     int           // for whose node it is left when the other one does not answer; 0: for that one
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
	if !none {
		return
	}
	// As the queue manager does: what is not carried out is left for whoever can.
	err = p.courier().(storage.Orderer).Leave(ctx, []storage.Order{{Call: storage.Call{By: "an operator", Kind: 1, Payload: []byte(strconv.Itoa(i))}, Node: r.nodes[o.to].name, Part: o.part, What: "something"}})
	if p.isDead() {
		return
	}
	r.note("%s: order %d is left for part %d of %s: %v", p.n.name, i, o.part, r.nodes[o.to].name, err)
	if _, none = errors.AsType[storage.ErrNotCarriedOut](err); none || err == nil {
		r.books.leftFor(i, err == nil)
	}
}

// carry carries out what has been left for the node, and for its shards, until the process is gone.
func (p *proc) carry() {
	p.n.run.turn(p.source("carry"))
	for !p.isDead() {
		p.gate()
		if !p.n.isOlder() {
			p.carryLeft()
		}
		p.rest(time.Second)
	}
}

// carryLeft does so once. Of what it has carried out only the last may be there again.
func (p *proc) carryLeft() {
	parts := func() (ids []int, err error) {
		if en := p.engine(); en != nil {
			for _, o := range en.(storage.Owner).Owned() {
				ids = append(ids, o.Part)
			}
		}
		return ids, nil
	}
	last := -1
	err := p.courier().(storage.Orderer).Carry(p.ctx, parts, func(_ context.Context, o *storage.Order) error {
		p.n.run.books.forgotten(last)
		i, err := strconv.Atoi(string(o.Payload))
		if err != nil || i >= len(p.n.run.plan.orders) || o.Part != p.n.run.plan.orders[i].part || o.Part == 0 && o.Node != p.n.name {
			p.n.run.books.fail("%s is to carry out %+v", p.n.name, o)
			return errors.New("what?")
		}
		p.gate()
		if p.isDead() {
			return errGone
		}
		last = i
		p.n.run.note("%s: carries out order %d, which was left as number %d for part %d of %s", p.n.name, i, o.Number, o.Part, o.Node)
		p.n.run.books.beginsLeft(i, o)
		if p.rest(p.n.run.plan.orders[i].lasts); p.isDead() {
			return errGone
		}
		p.n.run.books.carriedLeft(i)
		return nil
	})
	if err == nil && !p.isDead() {
		p.n.run.books.forgotten(last)
	}
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
func newOrders(r, parts *rand.Rand, nodes, shards int) (list []order) {
	for range r.IntN(6) {
		from := r.IntN(nodes)
		o := order{at: between(r, time.Second, active+2*time.Second), from: from, to: (from + 1 + r.IntN(nodes-1)) % nodes, lasts: between(r, time.Millisecond, 300*time.Millisecond)}
		if r.IntN(4) == 0 {
			o.lasts = between(r, time.Second, 4*time.Second)
		}
		o.part = parts.IntN(shards + 1)
		list = append(list, o)
	}
	return list
}
