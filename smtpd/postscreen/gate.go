// How many clients may be tested, wait, and be served at a time.

package postscreen

import (
	"net/netip"
	"sync"
)

// A gate counts the clients in front of postscreen's door and behind it. Postfix
// has a queue of its own on either side of that door, and a limit for each; the
// names of the limits come from there.
type gate struct {
	// The limits, which never change: clients that are tested at a time, clients that
	// have passed and wait for a session, and connections of one client. 0: no limit.
	preLimit, postLimit, clientLimit int
	// sessions holds one element for each session under way. Its capacity is
	// master.cf's limit for the service behind postscreen.
	sessions chan struct{}

	mu      sync.Mutex         // guards what follows
	clients map[netip.Addr]int // connections of each address; an address without any is not there
	testing int                // clients that are tested
	waiting int                // clients that wait for a session
}

// A pass is what one client occupies. Only its session's goroutine touches it.
// The zero pass occupies nothing.
type pass struct {
	addr    netip.Addr // under which the connection is counted, if counted
	counted bool       // in gate.clients
	testing bool       // in gate.testing
	session bool       // in gate.sessions
}

// enter counts a connection. It is false when the client has too many. The
// connection is counted in either case, until leave.
func (g *gate) enter(p *pass, a netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.addr, p.counted = a, true
	g.clients[a]++
	return g.clients[a] <= g.clientLimit || g.clientLimit <= 0
}

// test begins the tests. It is false when too many clients are tested.
func (g *gate) test(p *pass) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.testing >= g.preLimit && g.preLimit > 0 {
		return false
	}
	g.testing++
	p.testing = true
	return true
}

// admit waits for a session. It is false when too many wait already.
func (g *gate) admit(p *pass) bool {
	g.mu.Lock()
	if p.testing {
		g.testing--
		p.testing = false
	}
	select {
	case g.sessions <- struct{}{}:
		g.mu.Unlock()
		p.session = true
		return true
	default:
	}
	if g.waiting >= g.postLimit && g.postLimit > 0 {
		g.mu.Unlock()
		return false
	}
	// The wait has no bound: sessions have time limits, so that one ends at some time.
	g.waiting++
	g.mu.Unlock()
	g.sessions <- struct{}{}
	p.session = true
	g.mu.Lock()
	g.waiting--
	g.mu.Unlock()
	return true
}

// leave gives back everything that the client occupies. It may be called for a pass
// that occupies nothing.
func (g *gate) leave(p *pass) {
	if p.session {
		<-g.sessions
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.testing {
		g.testing--
	}
	if p.counted {
		if g.clients[p.addr]--; g.clients[p.addr] == 0 {
			delete(g.clients, p.addr)
		}
	}
	*p = pass{}
}
