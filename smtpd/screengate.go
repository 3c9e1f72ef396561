package smtpd

import (
	"net/netip"
	"sync"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/smtpwire"
)

// A screenGate counts the clients in front of postscreen's door and behind
// it: those that are tested (postscreen_pre_queue_limit), those that have
// passed and wait for a session (postscreen_post_queue_limit), the sessions
// (master.cf's limit for the service behind postscreen), and the connections
// of each client (postscreen_client_connection_count_limit).
type screenGate struct {
	preLimit, postLimit, clientLimit int
	sessions                         chan struct{} // holds one for each session under way

	mu      sync.Mutex
	clients map[netip.Addr]int
	testing int
	waiting int
}

// gatePass is what one client occupies.
type gatePass struct {
	addr                      netip.Addr
	counted, testing, session bool
	commands                  int // given while tests go on
}

// enter counts a connection. It is false when the client has too many.
func (g *screenGate) enter(p *gatePass, a netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.addr, p.counted = a, true
	g.clients[a]++
	return g.clients[a] <= g.clientLimit || g.clientLimit <= 0
}

// test begins the tests. It is false when too many clients are tested.
func (g *screenGate) test(p *gatePass) bool {
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
func (g *screenGate) admit(p *gatePass) bool {
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
	g.waiting++
	g.mu.Unlock()
	g.sessions <- struct{}{}
	p.session = true
	g.mu.Lock()
	g.waiting--
	g.mu.Unlock()
	return true
}

// leave gives back what the client has.
func (g *screenGate) leave(p *gatePass) {
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
	*p = gatePass{}
}

// turnAway ends the session of a client that there is no room for.
func (s *session) turnAway(st dsn.Status, text string) error {
	s.reply(smtpwire.R(421, st, text))
	s.srv.screenSet.log.Info("DISCONNECT %s", s.endpoint())
	return errRefused
}

// admitted has a client that has passed its tests wait for a session.
func (s *session) admitted() error {
	c := s.srv.screenSet
	if c.gate.admit(&s.screened.pass) {
		return nil
	}
	c.log.Info("NOQUEUE: reject: CONNECT from %s: all server ports busy", s.endpoint())
	return s.turnAway(dsn.S(4, 3, 2), "All server ports are busy")
}

// tested says whether the client is still being tested, or has failed and may
// not send mail. Postscreen has limits of its own for those.
func (s *session) tested() bool { return s.screened.pass.testing }

// screenCommand counts a command of a client that is still tested. It says
// whether the session is over.
func (s *session) screenCommand() bool {
	c := s.srv.screenSet
	if s.screened.pass.commands++; s.screened.pass.commands <= c.commandCount || c.commandCount <= 0 {
		return false
	}
	c.log.Info("COMMAND COUNT LIMIT from %s after %s", s.endpoint(), s.a.Stage)
	s.reply(smtpwire.R(421, dsn.S(4, 7, 0), s.set.myhostname+" Service unavailable - closing connection"))
	return true
}

// commandTime is how long the session waits for a command.
func (s *session) commandTime() time.Duration {
	if s.tested() {
		return min(s.set.timeout, s.srv.screenSet.commandTime)
	}
	return s.set.timeout
}
