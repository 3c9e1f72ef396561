package unsubscribe

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// maxClients bounds how many clients are remembered. With more of them all are forgotten: that lets a few ask more, and
// costs no memory. A token has 128 bits, and nobody finds one by asking.
const maxClients = 10000

// span is the time in which errors count.
const span = time.Minute

// clients bounds what one client may do: an address of IPv4, or a /64 of IPv6, which belongs to one person. This host's own
// addresses are not bounded: another web server may stand there. Methods may be called concurrently.
type clients struct {
	conns, errors int
	now           func() time.Time

	mu   sync.Mutex
	busy map[netip.Prefix]int // connections
	bad  map[netip.Prefix]int // errors since begun
	// begun is when counting began. It begins anew for all at a time.
	begun time.Time
}

func newClients(conns, errors int, now func() time.Time) *clients {
	return &clients{conns: conns, errors: errors, now: now, busy: map[netip.Prefix]int{}, bad: map[netip.Prefix]int{}}
}

// client is who is counted as one; not ok: nobody is.
func client(addr string) (netip.Prefix, bool) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return netip.Prefix{}, false // a socket in the file system
	}
	ip, bits := at.Addr().Unmap().WithZone(""), 32
	if !ip.Is4() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	return p, err == nil && !ip.IsLoopback()
}

// bounded closes the connections of clients that have as many as they may.
func (c *clients) bounded(accept accepting) accepting {
	return func(ctx context.Context, handle func(context.Context, net.Conn)) error {
		return accept(ctx, func(ctx context.Context, conn net.Conn) {
			who, counts := client(conn.RemoteAddr().String())
			if counts && !c.enter(who) {
				conn.Close()
				return
			}
			handle(ctx, conn)
			if counts {
				c.leave(who)
			}
		})
	}
}

func (c *clients) enter(who netip.Prefix) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[who] >= c.conns {
		return false
	}
	c.busy[who]++
	return true
}

func (c *clients) leave(who netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[who]--; c.busy[who] == 0 {
		delete(c.busy, who)
	}
}

// refuses says whether a client has made so many errors that it is not answered now.
func (c *clients) refuses(addr string) bool {
	who, counts := client(addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anew()
	return counts && c.bad[who] >= c.errors
}

// failed counts an error of a client.
func (c *clients) failed(addr string) {
	who, counts := client(addr)
	if !counts {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anew()
	if len(c.bad) >= maxClients {
		clear(c.bad)
	}
	c.bad[who]++
}

// anew forgets what was counted before this span. The caller has mu.
func (c *clients) anew() {
	if now := c.now(); now.Sub(c.begun) >= span {
		c.begun = now
		clear(c.bad)
	}
}
