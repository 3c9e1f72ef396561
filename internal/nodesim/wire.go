package nodesim

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"
)

// A piece is what one Write has sent, or the end of it.
type piece struct {
	at   time.Time
	data []byte
	end  bool
}

// A pipe is one direction of a connection, as TCP makes it: in order, each piece after a time that is drawn, and what is sent
// while the way is cut arrives when it is not any more.
type pipe struct {
	mu      sync.Mutex
	transit []piece
	buf     []byte
	ended   bool      // nothing comes after buf
	reset   bool      // nothing can be read or written any more
	mute    bool      // its writer is gone, and the reader does not know
	held    bool      // nothing gets through for now
	until   time.Time // the reader's deadline; zero: none
	wake    chan struct{}

	link *link // the way it goes
	up   bool  // from the node to the database
	name string
	rnd  *rand.Rand
}

// A link is the way between a node and a host of the database.
type link struct {
	node           *node
	host           *host
	mu             sync.Mutex
	cutUp, cutDown bool // nothing gets to the database; nothing gets back
	slow           time.Duration
	pipes          []*pipe
}

func (l *link) isCut(up bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return up && l.cutUp || !up && l.cutDown
}

// sentAgain is how long it may take until what was sent while the way was cut is sent again.
const sentAgain = 200 * time.Millisecond

// set cuts the way, or mends it: then what was on it goes on.
func (l *link) set(up, down bool) {
	l.mu.Lock()
	l.cutUp, l.cutDown = up, down
	pipes := append([]*pipe(nil), l.pipes...)
	l.mu.Unlock()
	for _, p := range pipes {
		p.mu.Lock()
		if len(p.transit) > 0 {
			p.plan(time.Now().Add(between(p.rnd, time.Millisecond, sentAgain)))
		}
		p.mu.Unlock()
	}
}

func newPipe(l *link, up bool, name string) *pipe {
	p := &pipe{wake: make(chan struct{}, 1), link: l, up: up, name: name, rnd: l.node.run.seed.source(name)}
	l.mu.Lock()
	l.pipes = append(l.pipes, p)
	l.mu.Unlock()
	return p
}

func (p *pipe) ring() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// put sends data, or the end.
func (p *pipe) put(data []byte, end bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reset || p.mute {
		return net.ErrClosed
	}
	delay := between(p.rnd, 50*time.Microsecond, 50*time.Microsecond+p.link.slow)
	at := time.Now().Add(delay)
	if n := len(p.transit); n > 0 && p.transit[n-1].at.After(at) {
		at = p.transit[n-1].at
	}
	at = p.plan(at)
	p.link.node.run.step("%s: %d octets on their way until %v", p.name, len(data), at.Sub(p.link.node.run.began))
	p.transit = append(p.transit, piece{at, append([]byte(nil), data...), end})
	return nil
}

// plan has something arrive at about that time.
func (p *pipe) plan(at time.Time) time.Time {
	at = p.link.node.run.alone(at)
	time.AfterFunc(time.Until(at), p.arrive)
	return at
}

// arrive lets the reader have what has arrived.
func (p *pipe) arrive() {
	if p.link.isCut(p.up) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held {
		return
	}
	now, n := time.Now(), 0
	for ; n < len(p.transit) && !p.transit[n].at.After(now); n++ {
		p.buf = append(p.buf, p.transit[n].data...)
		p.ended = p.ended || p.transit[n].end
	}
	if n > 0 {
		p.transit = append(p.transit[:0], p.transit[n:]...)
		p.ring()
	}
}

// lose ends it at once, with all that is on its way: a machine is gone.
func (p *pipe) lose() {
	p.mu.Lock()
	p.reset, p.transit, p.buf = true, nil, nil
	p.mu.Unlock()
	p.ring()
	p.link.mu.Lock()
	defer p.link.mu.Unlock()
	for i, other := range p.link.pipes {
		if other == p {
			p.link.pipes = append(p.link.pipes[:i], p.link.pipes[i+1:]...)
			return
		}
	}
}

func (p *pipe) read(b []byte) (int, error) {
	for {
		p.mu.Lock()
		n := copy(b, p.buf)
		p.buf = p.buf[n:]
		reset, ended, until := p.reset, p.ended, p.until
		p.mu.Unlock()
		switch {
		case reset:
			return 0, net.ErrClosed
		case n > 0:
			return n, nil
		case ended:
			return 0, io.EOF
		case !until.IsZero() && !until.After(time.Now()):
			return 0, os.ErrDeadlineExceeded
		}
		if until.IsZero() {
			<-p.wake
			continue
		}
		t := time.NewTimer(time.Until(until))
		select {
		case <-p.wake:
		case <-t.C:
		}
		t.Stop()
	}
}

// hold has it hang, or go on.
func (p *pipe) hold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held = on; !on && len(p.transit) > 0 {
		p.plan(time.Now().Add(between(p.rnd, time.Millisecond, sentAgain)))
	}
}

// An end is one end of a connection. It implements net.Conn.
type end struct {
	in, out *pipe
	proc    *proc // that has this end; nil: the host
	once    sync.Once
}

// connect makes a connection of a node to a host of the database.
func connect(l *link, p *proc, name string) (client, server *end) {
	up, down := newPipe(l, true, name+" up"), newPipe(l, false, name+" down")
	return &end{in: down, out: up, proc: p}, &end{in: up, out: down}
}

// pass waits while the process that has this end is stopped. It is false when that is dead.
func (c *end) pass() bool {
	if c.proc == nil {
		return true
	}
	c.proc.gate()
	return !c.proc.isDead()
}

func (c *end) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	if !c.pass() { // the process is told when it runs again
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *end) Write(b []byte) (int, error) {
	if !c.pass() {
		return 0, net.ErrClosed
	}
	if err := c.out.put(b, false); err != nil {
		return 0, err
	}
	return len(b), nil
}

// hold has both directions hang, or go on.
func (c *end) hold(on bool) {
	c.in.hold(on)
	c.out.hold(on)
}

// isOpen says whether nobody has closed it.
func (c *end) isOpen() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return !c.in.reset && !c.in.ended
}

// Close sends the end; what was written before arrives.
func (c *end) Close() error {
	c.once.Do(func() {
		_ = c.out.put(nil, true)
		c.in.lose()
	})
	return nil
}

// deadTime is how long a node's connection waits for a host that is gone, as pgspool has the system do.
const deadTime = 10 * time.Second

// vanish is for a machine that is gone: the other side hears nothing. If that is a node, it is told by its system in the end.
func (c *end) vanish() {
	c.once.Do(func() {})
	c.in.lose()
	c.out.mu.Lock()
	c.out.transit, c.out.mute = nil, true
	c.out.mu.Unlock()
	if c.proc == nil {
		r := c.in.link.node.run
		time.AfterFunc(time.Until(r.alone(time.Now().Add(between(c.out.rnd, deadTime/2, deadTime)))), c.out.lose)
	}
}

func (c *end) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	c.in.until = t
	c.in.mu.Unlock()
	c.in.ring()
	return nil
}

// SetWriteDeadline has no effect: there is always room.
func (c *end) SetWriteDeadline(time.Time) error { return nil }

func (c *end) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

type address string

func (a address) Network() string { return "sim" }
func (a address) String() string  { return string(a) }

func (c *end) LocalAddr() net.Addr  { return address("node") }
func (c *end) RemoteAddr() net.Addr { return address(c.in.link.host.name) }
