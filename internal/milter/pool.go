package milter

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// poolIdle is how long a connection is kept for the next SMTP session: short,
// for filters end idle connections too, and only the next use tells.
const poolIdle = 10 * time.Second

// poolSize is how many idle connections are kept for one filter.
const poolSize = 20

// A Pool keeps connections to filters between SMTP sessions. Its methods may
// be called concurrently. A nil Pool keeps none.
type Pool struct {
	mu     sync.Mutex
	idle   map[string][]*pooled
	closed bool
}

type pooled struct {
	nc    net.Conn
	r     *bufio.Reader
	opts  options
	timer *time.Timer
}

func (p *Pool) take(endpoint string) *pooled {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[endpoint]
	for len(list) > 0 {
		c := list[len(list)-1]
		list = list[:len(list)-1]
		p.idle[endpoint] = list
		if c.timer.Stop() {
			return c
		}
	}
	return nil
}

func (p *Pool) give(endpoint string, c *pooled) {
	if p == nil {
		c.nc.Close()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle[endpoint]) >= poolSize {
		c.nc.Close()
		return
	}
	if p.idle == nil {
		p.idle = make(map[string][]*pooled)
	}
	c.timer = time.AfterFunc(poolIdle, func() { p.drop(endpoint, c) })
	p.idle[endpoint] = append(p.idle[endpoint], c)
}

func (p *Pool) drop(endpoint string, c *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, x := range p.idle[endpoint] {
		if x == c {
			p.idle[endpoint] = append(p.idle[endpoint][:i:i], p.idle[endpoint][i+1:]...)
			break
		}
	}
	c.nc.Close()
}

// Close closes all idle connections; none is kept from now on.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, list := range p.idle {
		for _, c := range list {
			if c.timer.Stop() {
				c.nc.Close()
			}
		}
	}
	p.idle = nil
}
