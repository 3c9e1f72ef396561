package smtp

import (
	"net/netip"
	"sync"
	"time"
)

// cache keeps sessions open between deliveries, each under the address of its
// server, and under the name of the destination if it is the server that the
// destination is best reached by. Each is kept for a limited time; who takes
// one owns it. All methods may be called concurrently.
type cache struct {
	leave func(*session) // says goodbye; called without the lock

	mu     sync.Mutex
	byName map[cacheKey][]*keptEntry // of destinations; the last was used last
	byAddr map[cacheKey][]*keptEntry // of servers
	timer  *time.Timer
	count  int
	closed bool
}

// cacheKey is what a session is kept under: the destination's name, or the
// server's address, and what was demanded of the session.
type cacheKey struct {
	hop        string // the destination as it is written
	host, port string
	ip         netip.Addr
	path       string

	sender                        string // whose password was used; "": not one of a sender's own
	utf8, requireTLS, tlsOptional bool
}

// keptEntry is one session in the cache.
type keptEntry struct {
	s          *session
	name, addr cacheKey
	expires    time.Time
}

func newCache(leave func(*session)) *cache {
	return &cache{leave: leave, byName: make(map[cacheKey][]*keptEntry), byAddr: make(map[cacheKey][]*keptEntry)}
}

// maxKept bounds the sessions that are kept: each is a descriptor, of which
// deliveries need theirs.
const maxKept = 500

// put keeps a session until expires under addr, and under name unless that is
// the zero key. It returns false when the cache is closed or full.
func (c *cache) put(s *session, name, addr cacheKey, expires time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.count >= maxKept {
		return false
	}
	e := s.kept
	if e == nil {
		e = new(keptEntry)
		s.kept = e
	}
	*e = keptEntry{s: s, name: name, addr: addr, expires: expires}
	c.byAddr[addr] = append(c.byAddr[addr], e)
	if name != (cacheKey{}) {
		c.byName[name] = append(c.byName[name], e)
	}
	if c.count++; c.count == 1 {
		c.arm(time.Until(expires))
	}
	return true
}

// arm has expired sessions looked for after d. Called with the lock held.
func (c *cache) arm(d time.Duration) {
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.expire)
		return
	}
	c.timer.Reset(d)
}

// takeName takes the session last kept under a destination's name, nil if there is none.
func (c *cache) takeName(name cacheKey) *session { return c.take(c.byName, name) }

// takeAddr takes the session last kept under a server's address.
func (c *cache) takeAddr(addr cacheKey) *session { return c.take(c.byAddr, addr) }

func (c *cache) take(from map[cacheKey][]*keptEntry, key cacheKey) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := from[key]
	if len(list) == 0 {
		return nil
	}
	e := list[len(list)-1]
	c.remove(e)
	return e.s
}

// remove takes an entry off the lists it is on. Called with the lock held.
func (c *cache) remove(e *keptEntry) {
	drop(c.byAddr, e.addr, e)
	if e.name != (cacheKey{}) {
		drop(c.byName, e.name, e)
	}
	c.count--
}

// drop removes e from a list, looking from the end, where it mostly is. An
// emptied list stays for the next session of a busy destination; expire
// throws it away.
func drop(m map[cacheKey][]*keptEntry, key cacheKey, e *keptEntry) {
	list := m[key]
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] == e {
			copy(list[i:], list[i+1:])
			list[len(list)-1] = nil
			m[key] = list[:len(list)-1]
			return
		}
	}
}

// expire ends the sessions whose time is up.
func (c *cache) expire() {
	now := time.Now()
	c.mu.Lock()
	var gone []*session
	next := time.Time{}
	for key, list := range c.byAddr {
		for i := len(list) - 1; i >= 0; i-- {
			e := list[i]
			if !now.Before(e.expires) {
				c.remove(e)
				gone = append(gone, e.s)
				list = c.byAddr[key]
			} else if next.IsZero() || e.expires.Before(next) {
				next = e.expires
			}
		}
		if len(c.byAddr[key]) == 0 {
			delete(c.byAddr, key)
		}
	}
	for key, list := range c.byName {
		if len(list) == 0 {
			delete(c.byName, key)
		}
	}
	if !next.IsZero() && !c.closed {
		c.arm(next.Sub(now))
	}
	c.mu.Unlock()
	for _, s := range gone {
		c.leave(s)
	}
}

// close ends all sessions, and keeps no more.
func (c *cache) close() {
	c.mu.Lock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	var gone []*session
	for _, list := range c.byAddr {
		for _, e := range list {
			gone = append(gone, e.s)
		}
	}
	clear(c.byAddr)
	clear(c.byName)
	c.count = 0
	c.mu.Unlock()
	for _, s := range gone {
		c.leave(s)
	}
}
