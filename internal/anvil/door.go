package anvil

import (
	"net"
	"strings"
	"sync"
	"time"
)

// Dir is where the sockets of processes of smtpd are, relative to the queue directory.
const Dir = "private/clients"

// maxAsking is how many may ask one process at a time: anvil(8) is one process.
const maxAsking = 16

// A Door is where anvil(8) asks a process of smtpd for what it has counted.
type Door struct {
	listener net.Listener
	wg       sync.WaitGroup
	closed   chan struct{}
	mu       sync.Mutex
	conns    map[net.Conn]struct{} // nil when the door is closed
}

// NewDoor opens the door of a process of a service, with a socket in Dir below the working
// directory, which own makes (ownsocket.Listen). lookup is told a client as the protocol names it, less the service: an address, or
// a network with its length; it reports whether that is one. It may be called concurrently.
func NewDoor(own func(dir, name string) (net.Listener, error), service string, lookup func(client string) (Counts, bool)) (*Door, error) {
	l, err := own(Dir, service)
	if err != nil {
		return nil, err
	}
	d := &Door{listener: l, closed: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	d.wg.Go(func() { d.accept(service, lookup) })
	return d, nil
}

func (d *Door) accept(service string, lookup func(string) (Counts, bool)) {
	for {
		conn, err := d.listener.Accept()
		if err != nil {
			select {
			case <-d.closed:
				return
			case <-time.After(time.Second): // too many open files, for a moment
			}
			continue
		}
		if !d.enter(conn) {
			conn.Close()
			continue
		}
		d.wg.Go(func() {
			defer d.leave(conn)
			_ = converse(conn, func(request, ident string) string { // a client of ours makes no mistakes
				client, ok := strings.CutPrefix(ident, service+":")
				if request == "lookup" && ok {
					if counts, ok := lookup(client); ok {
						return rates(counts)
					}
				}
				return failed
			})
		})
	}
}

func (d *Door) enter(conn net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns == nil || len(d.conns) >= maxAsking {
		return false
	}
	d.conns[conn] = struct{}{}
	return true
}

func (d *Door) leave(conn net.Conn) {
	conn.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, conn)
}

// Close closes the door and removes the socket. It is called once.
func (d *Door) Close() {
	d.mu.Lock()
	for conn := range d.conns {
		conn.Close()
	}
	d.conns = nil
	d.mu.Unlock()
	close(d.closed)
	d.listener.Close()
	d.wg.Wait()
}
