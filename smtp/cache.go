// Sessions that are kept open between deliveries. Postfix has a process of its own for
// this, scache(8); here all deliveries are in one process.

package smtp

import (
	"net/netip"
	"sync"
	"time"
)

// cache keeps sessions open between deliveries, each under the address of its
// server, and under the name of the destination if it is the server that the
// destination is best reached by. The latter also have the number by which the
// queue manager knows them. Each is kept for a limited time; who takes
// one owns it. All methods may be called concurrently.
type cache struct {
	leave func(*session) // says goodbye; called without the lock

	mu sync.Mutex // guards the following
	// Every entry is in byAddr; in byName and byNum only those that have a name, a number. Lists may
	// be empty: expire takes them away.
	byName map[cacheKey][]*keptEntry // of destinations; the last was used last
	byAddr map[cacheKey][]*keptEntry // of servers
	byNum  map[uint64]*keptEntry     // by the queue manager's numbers
	timer  *time.Timer               // runs expire; nil until the first session is kept
	next   time.Time                 // when the timer ends; zero: it is not running
	count  int                       // entries; at most maxKept
	closed bool                      // no more are taken
}

// cacheKey is what a session is kept under: the destination's name, or the
// server's address, and what was demanded of the session.
// A session serves a delivery only if all of it is the same: a password, a certificate or an offer
// that was checked for one destination proves nothing for another.
type cacheKey struct {
	hop string // the destination as it is written; empty: any that has this server
	// The server's. Empty in the key of a destination's name.
	host, port string
	ip         netip.Addr
	path       string // of a unix socket

	source                        string // what the connection comes from; "": what the settings say
	sender                        string // whose password was used; "": not one of a sender's own
	utf8, requireTLS, tlsOptional bool
}

// keptEntry is one session in the cache.
// The session keeps it for the next time.
type keptEntry struct {
	s          *session
	name, addr cacheKey  // name is the zero key where it has none
	number     uint64    // 0: none
	expires    time.Time // smtp_connection_cache_time_limit after it was kept
}

// newCache makes an empty cache. leave may take its time: it is called without the
// lock.
func newCache(leave func(*session)) *cache {
	return &cache{leave: leave, byName: make(map[cacheKey][]*keptEntry), byAddr: make(map[cacheKey][]*keptEntry),
		byNum: make(map[uint64]*keptEntry)}
}

// maxKept bounds the sessions that are kept: each is a descriptor, of which
// deliveries need theirs.
const maxKept = 500

// put keeps a session until expires: under addr; under name, unless that is the
// zero key; and then under number, unless that is 0. It returns false when the
// cache is closed or full, and the session is still the caller's. After true it
// must not be touched.
func (c *cache) put(s *session, number uint64, name, addr cacheKey, expires time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.count >= maxKept {
		return false
	}
	// The entry of the last time is used again. It is on no list now: whoever takes
	// a session removes it.
	e := s.kept
	if e == nil {
		e = new(keptEntry)
		s.kept = e
	}
	*e = keptEntry{s: s, name: name, addr: addr, expires: expires}
	c.byAddr[addr] = append(c.byAddr[addr], e)
	if name != (cacheKey{}) {
		c.byName[name] = append(c.byName[name], e)
		if number != 0 {
			e.number = number
			c.byNum[number] = e
		}
	}
	c.count++
	if c.next.IsZero() || expires.Before(c.next) {
		c.arm(expires)
	}
	return true
}

// arm has expire run at a time, for the session that expires first. Called with the
// lock held.
func (c *cache) arm(at time.Time) {
	c.next = at
	d := time.Until(at)
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.expire)
		return
	}
	c.timer.Reset(d)
}

// takeName takes the session last kept under a destination's name, nil if there is
// none. Whoever takes a session owns it.
func (c *cache) takeName(name cacheKey) *session { return c.takeLatest(c.byName, name) }

// takeAddr takes the session last kept under a server's address, nil if there is
// none.
func (c *cache) takeAddr(addr cacheKey) *session { return c.takeLatest(c.byAddr, addr) }

// takeNumber takes the session that the queue manager knows by a number, nil if
// there is none.
func (c *cache) takeNumber(number uint64) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byNum[number]
	if e == nil {
		return nil
	}
	c.remove(e)
	return e.s
}

// takeLatest takes the session that was used last of those under a key: the one that the server is
// least likely to have ended.
func (c *cache) takeLatest(from map[cacheKey][]*keptEntry, key cacheKey) *session {
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
	if c.byNum[e.number] == e { // one of a former queue manager may have had it
		delete(c.byNum, e.number)
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

// expire ends the sessions whose time is up, and throws empty lists away. It is the
// timer's function.
func (c *cache) expire() {
	now := time.Now()
	c.mu.Lock()
	var gone []*session
	next := time.Time{}
	// A look at each session, but only when one has expired: there are at most
	// maxKept.
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
	c.next = time.Time{}
	if !next.IsZero() && !c.closed {
		c.arm(next)
	}
	c.mu.Unlock()
	for _, s := range gone {
		c.leave(s)
	}
}

// close ends all sessions, and keeps no more. Those that are in use stay with their
// deliveries, which find the cache closed when they are done.
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
	clear(c.byNum)
	c.count = 0
	c.mu.Unlock()
	for _, s := range gone {
		c.leave(s)
	}
}
