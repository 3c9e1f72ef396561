package ipc

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"posthaste/internal/quickio"
)

// triggerTimeout is how long a peer may take to say its first byte.
const triggerTimeout = 10 * time.Second

// A Server accepts connections and serves them with one handler.
type Server struct {
	// Handler serves requests, see Handler.
	Handler Handler
	// Public, when set, says which requests are for everybody who can connect.
	// The others are refused unless the peer runs as root, as the present user,
	// or as Owner. It is called on the connection's reading goroutine. Nil: the
	// socket's directory alone says who may ask, and for anything.
	Public func(*Request) bool
	// Owner is one more user whom Public does not hold.
	Owner int
	// OnConn, when set, is told of each new connection before its first
	// request.
	OnConn func(*Conn)
	// OnClose, when set, is told of each connection that has ended.
	OnClose func(*Conn)
	// OnFault, when set, is told why a connection could not be accepted, each
	// time: it is tried again, every 10 ms at most.
	OnFault func(error)
	// OnTrigger, when set, is given what a peer sent that does not speak this
	// protocol: a few letters, as master's wake-up and postkick send.
	OnTrigger func([]byte)
	// Raw, when set, are conversations of another kind, by their first octet,
	// which has been read. uid is the peer's user, -1 when it is not known. The
	// connection has triggerTimeout to be read from, unless the function says
	// otherwise, and is closed when that returns; Serve waits for it.
	Raw map[byte]func(c net.Conn, uid int)
	// Last, when set, says of a connection that it is to go away only when no
	// others are left: what the others have begun is told there.
	Last func(*Conn) bool

	mu       sync.Mutex
	conns    map[*Conn]bool // whether it has been told to go away
	draining bool
	over     bool // peers have had their time to go away
	wg       sync.WaitGroup
}

// Serve accepts connections from l until ctx ends. It then tells the peers to
// go away, and returns when all connections have ended, which their clients
// see to; at the latest after drain.
func (s *Server) Serve(ctx context.Context, l net.Listener, drain time.Duration) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var err error
	for {
		var nc net.Conn
		if nc, err = l.Accept(); err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				if s.OnFault != nil {
					s.OnFault(err)
				}
				time.Sleep(10 * time.Millisecond) // out of descriptors, perhaps: others may end
				continue
			}
			break
		}
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			s.serveConn(nc)
		}()
	}
	s.drain(drain)
	return nil
}

// Len is the number of connections.
func (s *Server) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *Server) serveConn(nc net.Conn) {
	nc = quickio.New(nc)
	first := &sniffed{Conn: nc, br: bufio.NewReaderSize(nc, 512)}
	nc.SetReadDeadline(time.Now().Add(triggerTimeout))
	b, err := first.br.Peek(1)
	if err != nil {
		nc.Close()
		return
	}
	if talk := s.Raw[b[0]]; talk != nil {
		first.br.Discard(1)
		uid, known := peerUID(nc)
		if !known {
			uid = -1
		}
		talk(first, uid)
		nc.Close()
		return
	}
	if b[0] != 0 {
		letters, _ := first.br.Peek(first.br.Buffered())
		if s.OnTrigger != nil {
			s.OnTrigger(append([]byte(nil), letters...))
		}
		nc.Close()
		return
	}
	nc.SetReadDeadline(time.Time{})
	var c *Conn
	if s.Public != nil && !s.trusts(nc) {
		c = newConn(first, s.guarded) // strangers get none of our descriptors
	} else {
		c = newServerConn(first, s.Handler)
	}
	s.mu.Lock()
	if s.conns == nil {
		s.conns = make(map[*Conn]bool)
	}
	s.conns[c] = false
	over := s.over
	s.mu.Unlock()
	if s.OnConn != nil {
		s.OnConn(c)
	}
	s.sendAway() // it was accepted just before the end, perhaps
	c.start()
	// It was accepted before the end, and its first octet came after the others had been closed. What it asks may never be
	// answered, and nobody else would close it.
	if over {
		c.Close()
	}
	c.Wait()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.sendAway()
	if s.OnClose != nil {
		s.OnClose(c)
	}
}

// drain tells the peers to go away, and returns when they have, or when limit
// is over and their connections have been closed.
func (s *Server) drain(limit time.Duration) {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	s.sendAway()
	ended := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return
	case <-t.C:
	}
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.Close()
	<-ended
}

// sendAway tells the peers to go away. Those who go last are told when they are alone.
func (s *Server) sendAway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining {
		return
	}
	alone := true
	for c := range s.conns {
		alone = alone && s.isLast(c)
	}
	for c, told := range s.conns {
		if !told && (alone || !s.isLast(c)) {
			s.conns[c] = true
			c.GoAway()
		}
	}
}

func (s *Server) isLast(c *Conn) bool { return s.Last != nil && s.Last(c) }

// Written says that all that has been said over the connections has been given to the kernel: the peers have it
// even if the connections are closed now.
func (s *Server) Written() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if !c.written() {
			return false
		}
	}
	return true
}

// Close closes all connections at once.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// sniffed gives back the bytes that were looked at.
type sniffed struct {
	net.Conn
	br *bufio.Reader
}

func (s *sniffed) Read(p []byte) (int, error) {
	if s.br != nil {
		if s.br.Buffered() > 0 {
			return s.br.Read(p)
		}
		s.br = nil // what was looked at is used up: read directly from here on
	}
	return s.Conn.Read(p)
}
