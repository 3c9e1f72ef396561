package nodesim

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"posthaste/internal/pgspool"
)

// A node is a machine with a mail system. Its mail system may be killed and started again.
type node struct {
	run   *run
	name  string
	links map[string]*link // by host

	mu     sync.Mutex
	proc   *proc         // nil: it is down
	thawed chan struct{} // nil: it is not stopped; closed when it goes on
	wall   time.Duration // how far its clock is ahead
	conns  []*end
	stops  int                // so far
	starts int                // so far
	said   int                // notes so far
	older  bool               // it is of a version without notes and orders
	spent  map[string]int     // of limits of a day: that is kept on its disk, when its processes are not killed
	killed bool               // they were, and what is on its disk may be old
	closed *proc              // it has ended in order, and nobody has opened the queue since; nil: nobody has
	due    map[*hop]time.Time // when a rate allows the next delivery
}

// closedBy returns which process has ended in order without a successor, and notes the next one; nil: there is a successor.
func (n *node) closedBy(p *proc) *proc {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.closed
	n.closed = p
	return was
}

// gate waits while the machine's processes are stopped.
func (p *proc) gate() {
	n := p.n
	for {
		n.mu.Lock()
		ch := n.thawed
		n.mu.Unlock()
		if ch == nil || p.isDead() {
			return
		}
		after := between(p.rnd, time.Microsecond, time.Millisecond) // as the machine's scheduler says
		<-ch
		n.run.sleep(after)
	}
}

// stop is SIGSTOP for all processes, and goOn SIGCONT.
func (n *node) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.thawed == nil {
		n.thawed = make(chan struct{})
		n.stops++
	}
}

func (n *node) goOn() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.thawed != nil {
		close(n.thawed)
		n.thawed = nil
	}
}

// clock is the machine's clock, which may be set; engines use it for what people see.
func (n *node) clock() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Now().Add(n.wall)
}

// setClock sets the machine's clock by so much.
func (n *node) setClock(by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wall += by
}

// someConn is one of the connections that are open; nil: there is none.
func (n *node) someConn(which int) *end {
	n.mu.Lock()
	conns := n.conns
	n.mu.Unlock()
	var list []*end
	for _, c := range conns {
		if c.isOpen() {
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[which%len(list)]
}

// stopped is how often it has been stopped.
func (n *node) stopped() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stops
}

// isOlder says whether the node's programs are of an older version.
func (n *node) isOlder() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.older
}

func (n *node) current() *proc {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc
}

// start starts the mail system.
func (n *node) start() {
	n.starts++
	name := fmt.Sprintf("%s.%d", n.name, n.starts)
	p := &proc{n: n, name: name, rnd: n.run.seed.source(name), gone: make(chan struct{}), wake: make(chan struct{}, 1), busy: map[string]int{}, hand: map[delivery]bool{}, reload: make(chan struct{}, 1), leasing: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.store = n.store(p)
	n.mu.Lock()
	p.remember()
	n.proc = p
	n.mu.Unlock()
	n.run.all.Go(p.keep)
	n.run.all.Go(p.deliver)
	n.run.all.Go(p.share)
	n.run.all.Go(p.attend)
	n.run.all.Go(p.carry)
	n.run.all.Go(p.tell)
}

// Segments are so small that new mail goes to many, of all shards in turn, and pages so small that shards are read in parts.
const (
	segmentSize = 2 << 10
	pageRows    = 3
)

// pause is before each part of a shard that is read while the queue is open: as if there were many more in between. Where it is promised how
// long a takeover takes there are none.
func (p *proc) pause() {
	if !p.isDead() && p.n.run.plan.deep > 0 {
		p.n.run.books.count(func(c *Counts) { c.Parts++ })
		p.n.run.sleep(p.n.run.plan.deep)
	}
	p.gate()
}

// store is a Store for the processes p.
func (n *node) store(p *proc) *pgspool.Store {
	f := n.run.plan.Planted
	s, err := pgspool.Simulate(&pgspool.Simulation{Node: n.name, URL: "postgres://mail@db1,db2/mail?sslmode=disable",
		Dial: func(ctx context.Context, _, addr string) (net.Conn, error) { return n.dial(ctx, p, addr) }, Wall: n.clock,
		SegmentSize: segmentSize, PageRows: pageRows, Pause: p.pause, Older: n.isOlder(), Plant: f})
	if err != nil {
		panic(err) // the URL is ours
	}
	return s
}

// dial connects to a host.
func (n *node) dial(ctx context.Context, p *proc, addr string) (net.Conn, error) {
	name, _, _ := strings.Cut(addr, ":")
	l := n.links[name]
	p.gate()
	p.mu.Lock()
	p.dials++
	name = fmt.Sprintf("%s to %s, %d", p.name, name, p.dials)
	dead := p.dead
	p.mu.Unlock()
	if dead {
		return nil, net.ErrClosed
	}
	rnd := n.run.seed.source(name)
	n.run.step("%s: dials", name)
	for {
		if p.isDead() {
			return nil, net.ErrClosed
		}
		// A host that is off or cut off does not answer; one on which only the server is down refuses.
		if !l.isCut(true) && !l.isCut(false) && !l.host.isSilent() {
			break
		}
		select {
		case <-time.After(between(rnd, 150*time.Millisecond, 250*time.Millisecond)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if !l.host.isUp() {
		return nil, syscall.ECONNREFUSED
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc != p {
		return nil, net.ErrClosed // it was killed just now, and its connections with it
	}
	client, server := connect(l, p, name)
	n.conns = append(n.conns, client)
	n.run.all.Go(func() { l.host.accept(server, name) })
	return client, nil
}

// reload has its cleanup be followed by another one; false: the node is down.
func (n *node) reload() bool {
	p := n.current()
	if p == nil {
		return false
	}
	select {
	case p.reload <- struct{}{}:
	default:
	}
	return true
}

// kill ends all processes at once; lost: with the machine, so that the others of its connections hear nothing.
func (n *node) kill(lost bool) {
	n.mu.Lock()
	p, conns := n.proc, n.conns
	n.proc, n.conns, n.killed = nil, nil, true
	n.mu.Unlock()
	if p == nil {
		return
	}
	p.die()
	for _, c := range conns {
		if lost {
			c.vanish()
		} else {
			_ = c.Close()
		}
	}
	n.goOn() // what is left of it ends
}
