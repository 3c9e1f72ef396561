package resolver

import (
	"sync"
	"sync/atomic"
	"time"
)

// A name server that says nothing this often in a row is named in the log, and
// again each silencePeriod while it stays silent: not for each message that waits
// for it, and not for one datagram that was lost.
const (
	silentTimes   = 3
	silencePeriod = 5 * time.Minute
)

// silence counts which name servers do not answer. It may be used concurrently.
type silence struct {
	warn func(format string, args ...any) // nil: nobody wants to know

	any     atomic.Bool // servers is not empty
	mu      sync.Mutex
	servers map[string]*silentServer
}

// silentServer is one whose last question had no answer.
type silentServer struct {
	times int       // in a row
	said  time.Time // when the log was told; zero if it was not
}

// heard notes that a server has answered.
func (s *silence) heard(server string) {
	if s.warn == nil || !s.any.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.servers, server)
	s.any.Store(len(s.servers) > 0)
}

// missed notes that a server has not answered at now, and why.
func (s *silence) missed(server string, why error, now time.Time) {
	if s.warn == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.servers == nil {
		s.servers = make(map[string]*silentServer)
	}
	one := s.servers[server]
	if one == nil {
		one = new(silentServer)
		s.servers[server] = one
		s.any.Store(true)
	}
	if one.times++; one.times < silentTimes || !one.said.IsZero() && now.Sub(one.said) < silencePeriod {
		return
	}
	one.said = now
	s.warn("name server %s does not answer: %v; what needs the DNS waits", server, why)
}
