package nodesim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/nodeshare"
	"posthaste/internal/pgspool"
	"posthaste/internal/storage"
)

// A delivery is of a message to one of its recipients.
type delivery struct {
	id   mail.QueueID
	rcpt int
}

// A proc is the processes of a mail system, from its start until it is killed. It does what cleanup and the queue manager do
// around an engine, and nothing else of them.
type proc struct {
	n      *node
	name   string
	ctx    context.Context
	cancel context.CancelFunc
	rnd    *rand.Rand
	dials  int           // so far
	gone   chan struct{} // closed when it is killed
	wake   chan struct{} // capacity 1: there may be something to deliver
	reload chan struct{} // capacity 1: cleanup is to be followed by another one
	// leasing, of capacity 1, is full while somebody takes a queue ID: no virtual time passes while another waits for the
	// engine's mutex.
	leasing chan struct{}

	mu     sync.Mutex
	dead   bool
	store  *pgspool.Store
	deaf   context.CancelFunc // ends that it hears other nodes
	en     storage.Engine     // nil: mail is refused
	opened time.Time          // when it was
	holder nodeshare.Holder
	lapsed time.Time      // when its shares were last not good: others may have them in the place of what was begun before
	busy   map[string]int // deliveries under way, or about to be, by next hop
	want   map[string]int
	known  map[string]int    // what it knows to be spent of limits of a day
	hand   map[delivery]bool // those, and outcomes that are not recorded yet
	begun  int               // attempts
}

// source is the chance of a part of the process.
func (p *proc) source(part string) *rand.Rand { return p.n.run.seed.source(p.name + " " + part) }

func (p *proc) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *proc) die() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	close(p.gone)
	p.cancel()
}

func (p *proc) engine() storage.Engine {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil
	}
	return p.en
}

func (p *proc) use(en storage.Engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.en, p.opened = en, time.Now()
}

// openFor is how long the queue has been open; 0: it is not.
func (p *proc) openFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.en == nil || p.en.Err() != nil {
		return 0
	}
	return time.Since(p.opened)
}

// again is how often a queue that cannot be opened is tried again, as in package cleanup.
const again = 500 * time.Millisecond

// keep opens the queue whenever it is not open.
func (p *proc) keep() {
	defer func() { p.store.Close() }()
	for !p.isDead() {
		p.gate()
		en, err := p.store.Open(p.ctx, storage.Options{InlineLimit: 1 << 10, PostDelay: 50 * time.Millisecond, Warn: p.warn, Adopted: p.adopted})
		if err != nil {
			p.note("not open: %v", err)
			p.rest(again)
			continue
		}
		p.adopted(en, en.Recovery())
		if by := p.n.closedBy(nil); by != nil && by != p {
			p.unspoken(en)
		}
		p.use(en)
		p.ring()
		reloaded := false
		select {
		case <-en.Broken():
			p.note("ended: %v", en.Err())
		case <-p.reload:
			reloaded = true
		case <-p.gone:
		}
		p.use(nil)
		if err := en.Close(); err == nil && reloaded {
			p.n.closedBy(p)
			p.store.Close()
			p.mu.Lock()
			p.store = p.n.store(p) // another process
			if p.deaf != nil {
				p.deaf()
			}
			p.mu.Unlock()
		}
	}
}

// adopted names what is in doubt, so that nobody waits for its outcome.
func (p *proc) adopted(en storage.Engine, r storage.Recovery) {
	p.note("%s; %d in doubt", r.Summary, len(r.InDoubt))
	for i := range r.InDoubt {
		en.(storage.Drainer).Doubtful(r.InDoubt[i].ID, r.InDoubt[i].Rcpts)
	}
	p.ring()
}

// unspoken names what the predecessor left in hand of agents when it ended in order: they were killed before there was a
// successor. The queue manager finds it in Hands, nobody speaks for it, and it is said in the node's own list.
func (p *proc) unspoken(en storage.Engine) {
	for h := range en.Hands {
		p.note("nobody speaks for %s, recipients %v", h.ID, h.Rcpts)
		p.n.run.books.unspoken(h.ID, h.Rcpts)
	}
}

func (p *proc) ring() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// rest waits, or until the process is gone.
func (p *proc) rest(d time.Duration) {
	t := p.n.run.timer(between(p.rnd, d*9/10, d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.gone:
	}
}

// note has it in the log, unless nobody is there to say it.
func (p *proc) note(format string, args ...any) {
	if !p.isDead() {
		p.n.run.note(p.n.name+": "+format, args...)
	}
}

func (p *proc) warn(format string, args ...any) { p.note(format, args...) }

// deliver begins deliveries, as far as the limits allow.
func (p *proc) deliver() {
	for !p.isDead() {
		t := p.n.run.timer(between(p.rnd, 200*time.Millisecond, 250*time.Millisecond))
		select {
		case <-p.wake:
		case <-t.C:
		case <-p.gone:
		}
		t.Stop()
		p.gate()
		if en := p.engine(); en != nil && en.Err() == nil {
			p.begin(en)
		}
	}
}

// agentTime is less than it may take from the leave to a delivery until that begins.
const agentTime = 900 * time.Millisecond

// An attempt is a delivery that is about to be made.
type attempt struct {
	delivery
	hop     *hop
	shard   uint32
	decided time.Time
	day     string    // the limit of a day that it counts for
	leave   time.Time // when it got leave
	stops   int       // of the node until then
	rnd     *rand.Rand
}

// begin looks at the queue once, and asks for leave to deliver what may be delivered.
func (p *proc) begin(en storage.Engine) {
	for _, a := range p.choose(en) {
		p.n.run.books.asked(a.delivery)
		b := en.NewBatch()
		b.Apart()
		b.Handed(a.id, []int{a.rcpt}, a.hop.name)
		en.Post(b, func(err error) {
			ok := err == nil && b.Refused(0) == nil && !p.isDead()
			if ok {
				p.n.run.books.leave(p.n, a.delivery, a.shard)
				a.leave, a.stops = time.Now(), p.n.stopped()
			}
			p.n.run.all.Go(func() { p.attempt(&a, ok) })
		})
	}
	en.Hurry()
}

// choose says what may be delivered.
func (p *proc) choose(en storage.Engine) (list []attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want = map[string]int{}
	now := time.Now()
	for entry := range en.Entries {
		for i := range entry.NRcpt {
			d := delivery{entry.ID, i}
			if isDone(entry.Done, i) || p.hand[d] {
				continue
			}
			h := p.n.run.hopOf(d)
			day, ok := p.spend(now, h)
			if !ok {
				p.want[h.name]++
				continue
			}
			p.busy[h.name]++
			p.hand[d] = true
			p.begun++
			list = append(list, attempt{delivery: d, hop: h, shard: entry.Ref.File, decided: now, day: day, rnd: p.n.run.seed.source(fmt.Sprint(p.name, " attempt ", p.begun))})
		}
	}
	return list
}

// isDone says whether a bitmap has recipient i.
func isDone(done []byte, i int) bool { return i/8 < len(done) && done[i/8]&(1<<(i%8)) != 0 }

// attempt makes one delivery, when it has leave to.
func (p *proc) attempt(a *attempt, leave bool) {
	r, d, h := p.n.run, a.delivery, a.hop
	if r.turn(a.rnd); a.rnd.IntN(3) == 0 {
		r.sleep(between(a.rnd, 0, agentTime)) // the agent is being started
	}
	p.gate()
	if !leave || p.isDead() {
		p.settle(d, h, true)
		return
	}
	if time.Since(a.leave) <= agentTime && a.stops == p.n.stopped() {
		r.books.leave(p.n, d, a.shard)
	}
	h.begin(p, a)
	t := r.timer(r.plan.lasts(d))
	defer t.Stop()
	select {
	case <-t.C:
		h.got(d)
	case <-p.gone:
		if r.plan.arrives(d) {
			h.got(d)
		}
	}
	p.gate()
	h.end(p, d)
	p.settle(d, h, false)
	p.report(d, a.rnd)
}

// settle ends that a delivery counts, and with all, that the queue manager has it in mind.
func (p *proc) settle(d delivery, h *hop, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy[h.name]--
	if all {
		delete(p.hand, d)
	}
}

// report has an outcome recorded. If the queue is away it waits.
func (p *proc) report(d delivery, rnd *rand.Rand) {
	for !p.isDead() {
		p.n.run.turn(rnd)
		p.gate()
		en := p.engine()
		if en == nil {
			p.rest(100 * time.Millisecond)
			continue
		}
		b := en.NewBatch()
		b.Done(d.id, []int{d.rcpt})
		if en.Commit(b) == nil {
			break // or it is another node's by now, and without effect
		}
	}
	p.mu.Lock()
	delete(p.hand, d)
	p.mu.Unlock()
	p.ring()
}

// share exchanges shares of limits once a second.
func (p *proc) share() {
	p.n.run.turn(p.source("share"))
	for !p.isDead() {
		p.gate()
		if en := p.engine(); en != nil {
			p.exchange(en.(storage.Sharer))
		}
		p.ring()
		p.rest(time.Second)
	}
}

func (p *proc) exchange(en storage.Sharer) {
	began := time.Now()
	p.mu.Lock()
	q := p.holder.Request(began, "", p.uses())
	p.mu.Unlock()
	reply, err := en.Exchange(q)
	p.gate()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && !p.dead {
		if now := time.Now(); !now.Before(p.holder.Good()) {
			p.lapsed = now
		}
		p.holder.Take(began, &reply)
	}
}

// submit queues a message, and says whether its client was told so. sure is false when the client does not know.
func (p *proc) submit(nrcpt int) (queued, sure bool) {
	p.gate()
	en := p.engine()
	if en == nil || en.Silent() != nil {
		return false, true
	}
	p.n.run.step("%s: wants a number for %d", p.n.name, nrcpt)
	p.leasing <- struct{}{}
	n, err := en.Lease(1)
	p.n.run.step("%s: has a number %d for %d", p.n.name, n, nrcpt)
	<-p.leasing
	if err != nil {
		return false, true
	}
	id := mail.MakeQueueID(p.n.clock(), n)
	env := mail.Envelope{ID: id, Sender: "s@from.test", Size: 1}
	list := make([]mail.Recipient, nrcpt)
	for i := range list {
		list[i].Address = "r@to.test"
	}
	b := en.NewBatch()
	b.Add(storage.Addition{ID: id, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, list), NRcpt: nrcpt, Content: []byte("x")})
	p.n.run.books.submitted(id, nrcpt)
	err = en.Commit(b)
	p.gate()
	if p.isDead() {
		return false, false
	}
	if err != nil {
		return false, true
	}
	p.n.run.books.acknowledged(id, p.n.name)
	p.ring()
	return true, true
}
