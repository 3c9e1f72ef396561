package milter

import (
	"sync"
	"time"

	"posthaste/internal/lockstep"
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
	unable map[string]bool // endpoints that do not serve a second session
	closed bool
}

type pooled struct {
	nc    *lockstep.Conn
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
		if !c.timer.Stop() {
			continue
		}
		if c.nc.Before() == nil {
			return c
		}
		c.nc.Close() // it has been ended, or said something unasked
	}
	return nil
}

func (p *Pool) give(endpoint string, c *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.unable[endpoint] || len(p.idle[endpoint]) >= poolSize {
		c.nc.Close()
		return
	}
	if p.idle == nil {
		p.idle = make(map[string][]*pooled)
	}
	c.timer = time.AfterFunc(poolIdle, func() { p.drop(endpoint, c) })
	p.idle[endpoint] = append(p.idle[endpoint], c)
}

// keeps says whether connections to this filter are kept.
func (p *Pool) keeps(endpoint string) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed && !p.unable[endpoint]
}

// refuse has no connection to this filter kept from now on.
func (p *Pool) refuse(endpoint string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unable == nil {
		p.unable = make(map[string]bool)
	}
	p.unable[endpoint] = true
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
