package simtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A segment is what one Write has sent. It can be read from then on.
type segment struct {
	at   time.Time
	data []byte
}

// A pipe is one direction of a connection. What is written arrives in order, each piece after a
// time that is drawn. What is written at one time is one piece, however many writes it takes, since that
// is for Go's scheduler to say and not for the seed; but each frame of package ipc is a piece of its own,
// since a server begins to work on each in a goroutine of its own. So all that happens between two
// processes happens at a time of its own, and it is the seed that says in what order.
type pipe struct {
	mu     sync.Mutex
	queue  []segment
	last   time.Time // when the latest arrives
	said   time.Time // when it was written
	frames frames
	ended  bool      // nothing comes after what is in queue
	reset  bool      // nothing can be read any more
	shut   bool      // nobody reads
	until  time.Time // the reader's deadline; zero: none
	wake   chan struct{}
	delay  stream
	slow   time.Duration // the longest delay

	// Of a pipe with a bound, as the kernel's are:
	room  int           // octets that may be under way; 0: any number, and to write takes no time
	held  int           // that are
	by    time.Time     // the writer's deadline; zero: none
	space chan struct{} // rings when there is room again
}

func newPipe(delay stream, slow time.Duration) *pipe {
	return &pipe{wake: make(chan struct{}, 1), space: make(chan struct{}, 1), delay: delay, slow: slow}
}

// isNew says whether nothing was written at this time yet.
func (p *pipe) isNew() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.said.Equal(time.Now())
}

// ring wakes who waits to read or to write. Called with mu held.
func (p *pipe) ring() {
	for _, c := range []chan struct{}{p.wake, p.space} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// free is how many octets may be written now. Without room it waits for it, until the writer's deadline. A pipe that has
// ended takes any number: put says what is wrong.
func (p *pipe) free() (int, error) {
	for {
		p.mu.Lock()
		left, by, over := p.room-p.held, p.by, p.room == 0 || p.ended || p.reset || p.shut
		p.mu.Unlock()
		wait := time.Until(by)
		switch {
		case over:
			return math.MaxInt, nil
		case !by.IsZero() && wait <= 0:
			return 0, os.ErrDeadlineExceeded
		case left > 0:
			return left, nil
		case by.IsZero():
			<-p.space
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-p.space:
		case <-t.C:
		}
		t.Stop()
	}
}

// put sends data, or the end.
func (p *pipe) put(data []byte, end bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reset || p.shut {
		return syscall.EPIPE
	}
	if p.ended {
		return net.ErrClosed
	}
	if end {
		p.queue = append(p.queue, segment{at: p.arrival(false)})
		p.ended = true
	}
	p.held += len(data)
	for len(data) > 0 {
		n, begins := p.frames.next(data)
		at := p.arrival(begins)
		if k := len(p.queue); k > 0 && p.queue[k-1].at.Equal(at) {
			p.queue[k-1].data = append(p.queue[k-1].data, data[:n]...)
		} else {
			p.queue = append(p.queue, segment{at, append([]byte(nil), data[:n]...)})
		}
		data = data[n:]
	}
	p.ring()
	return nil
}

// arrival is when what is written now arrives: with what was written at this time already, unless it is apart.
func (p *pipe) arrival(apart bool) time.Time {
	if now := time.Now(); apart || !p.said.Equal(now) {
		at := now.Add(1000 + time.Duration(p.delay.next()%uint64(p.slow)))
		if !at.After(p.last) {
			at = p.last.Add(1)
		}
		p.last, p.said = at, now
	}
	return p.last
}

// frames knows where the frames of package ipc begin in what a pipe carries: each has a header of 12
// octets, of which the first four are its payload's length. A preface of 8 octets is before them;
// where there is none, all is one. What is written holds whole frames.
type frames struct {
	begun, framed bool
	rest          int // octets of the present frame that have not been written
}

// next is how many octets of data go together, and whether a frame begins with them.
func (f *frames) next(data []byte) (n int, begins bool) {
	const preface, header = 8, 12
	switch {
	case !f.begun:
		f.begun = true
		if f.framed = len(data) >= preface && string(data[:3]) == "\x00PH"; f.framed {
			return preface, false
		}
	case f.rest > 0:
	case f.framed && len(data) >= header:
		f.rest, begins = header+int(binary.LittleEndian.Uint32(data)), true
	}
	if f.rest == 0 {
		return len(data), false
	}
	n = min(f.rest, len(data))
	f.rest -= n
	return n, begins
}

// over says that who writes has ended it.
func (p *pipe) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended || p.reset
}

// cut ends the pipe at once, with what was on its way.
func (p *pipe) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reset, p.queue = true, nil
	p.ring()
}

// take is one look for something to read. wait is how long to wait before the next; below 0: until woken.
func (p *pipe) take(b []byte) (n int, wait time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	wait = -1
	switch {
	case p.shut:
		return 0, 0, net.ErrClosed
	case p.reset:
		return 0, 0, syscall.ECONNRESET
	case !p.until.IsZero() && !now.Before(p.until):
		return 0, 0, os.ErrDeadlineExceeded
	case len(p.queue) > 0 && !p.queue[0].at.After(now):
		s := &p.queue[0]
		if len(s.data) == 0 { // the end
			return 0, 0, io.EOF
		}
		n = copy(b, s.data)
		if p.held -= n; p.room > 0 {
			p.ring()
		}
		if s.data = s.data[n:]; len(s.data) == 0 {
			p.queue = p.queue[1:]
		}
		return n, 0, nil
	case len(p.queue) > 0:
		wait = p.queue[0].at.Sub(now)
	}
	if !p.until.IsZero() && (wait < 0 || p.until.Sub(now) < wait) {
		wait = p.until.Sub(now)
	}
	return 0, wait, nil
}

func (p *pipe) read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		n, wait, err := p.take(b)
		if n > 0 || err != nil {
			return n, err
		}
		if wait < 0 {
			<-p.wake
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-p.wake:
		case <-t.C:
		}
		t.Stop()
	}
}

// A conn is one end of a connection.
type conn struct {
	in, out       *pipe
	owner         *process // nil: it is not of this mail system
	uid           int
	local, remote net.Addr
}

type address string

func (address) Network() string  { return "unix" }
func (a address) String() string { return string(a) }

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	if c.owner.dead() {
		return 0, errKilled
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	if c.owner.dead() {
		return 0, errKilled
	}
	if len(b) == 0 {
		return 0, nil
	}
	if c.out.isNew() {
		if err := c.owner.step("send " + c.remote.String()); err != nil {
			return 0, err
		}
	}
	for sent := 0; sent < len(b); {
		n, err := c.out.free()
		if err != nil {
			return sent, err
		}
		n = min(n, len(b)-sent)
		if err := c.out.put(b[sent:sent+n], false); err != nil {
			return sent, err
		}
		sent += n
	}
	return len(b), nil
}

// closeWrite sends the end, and the connection can still be read.
func (c *conn) closeWrite() { _ = c.out.put(nil, true) }

// Close sends the end behind what has been written.
func (c *conn) Close() error {
	_ = c.out.put(nil, true)
	c.in.mu.Lock()
	c.in.shut, c.in.queue = true, nil
	c.in.ring() // whoever writes to it, too
	c.in.mu.Unlock()
	c.owner.disown(c)
	return nil
}

// reset is what a peer sees of a machine that has lost its power.
func (c *conn) reset() {
	c.in.cut()
	c.out.cut()
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// PeerUID is for package ipc.
func (c *conn) PeerUID() int { return c.uid }

func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetWriteDeadline(t)
	return c.SetReadDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.until = t
	c.in.ring()
	return nil
}

// SetWriteDeadline is of no effect where to write takes no time.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.out.room > 0 {
		c.out.by = t
		c.out.ring()
	}
	return nil
}

// A socket is one that master listens on. It outlives the processes that accept from it.
type socket struct {
	mu      sync.Mutex
	path    string
	backlog []*conn
	wake    chan struct{} // closed, and made anew, when something changes
}

func newSocket(path string) *socket { return &socket{path: path, wake: make(chan struct{})} }

func (s *socket) ring() {
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *socket) push(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backlog = append(s.backlog, c)
	s.ring()
}

func (s *socket) waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.backlog) > 0
}

// clear resets who waits.
func (s *socket) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.backlog {
		c.reset()
	}
	s.backlog = nil
}

// A listener is a socket as a process has it.
type listener struct {
	s      *socket
	p      *process
	closed bool
	until  time.Time
	addr   net.Addr
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		l.s.mu.Lock()
		switch {
		case l.closed:
			l.s.mu.Unlock()
			return nil, net.ErrClosed
		case !l.until.IsZero() && !time.Now().Before(l.until):
			l.s.mu.Unlock()
			return nil, os.ErrDeadlineExceeded
		case len(l.s.backlog) > 0:
			c := l.s.backlog[0]
			l.s.backlog = l.s.backlog[1:]
			l.s.mu.Unlock()
			if !l.p.own(c) {
				return nil, net.ErrClosed
			}
			return c, nil
		}
		wake := l.s.wake
		l.s.mu.Unlock()
		<-wake
	}
}

func (l *listener) Close() error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.closed = true
	l.s.ring()
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }

// SetDeadline is what package service lends listeners with: a time in the past, or none.
func (l *listener) SetDeadline(t time.Time) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.until = t
	l.s.ring()
	return nil
}

// silent is a socket that nobody connects to.
type silent struct {
	once sync.Once
	done chan struct{}
}

func (s *silent) Accept() (net.Conn, error) { <-s.done; return nil, net.ErrClosed }
func (s *silent) Close() error              { s.once.Do(func() { close(s.done) }); return nil }
func (s *silent) Addr() net.Addr            { return address("own") }

// connect makes a connection, and gives its two ends. The name says which it is for the seed.
func (s *site) connect(from *process, name string, slow time.Duration, uid int, client, server net.Addr) (near, far *conn) {
	there, back := newPipe(s.seed.stream(name+" >"), slow), newPipe(s.seed.stream(name+" <"), slow)
	near = &conn{in: back, out: there, owner: from, uid: 0, local: client, remote: server}
	far = &conn{in: there, out: back, uid: uid, local: server, remote: client}
	return near, far
}

// dialled numbers the connections from a process to a path. A long run, in which there are very many processes, numbers
// them together.
func (s *site) dialled(from *process, path string) int {
	if s.outside != nil {
		return s.count("dial")
	}
	return s.count("dial " + from.name() + " " + path)
}

// dial connects to a socket of the mail system.
func (s *site) dial(ctx context.Context, from *process, path string, client net.Addr) (net.Conn, error) {
	if from.dead() {
		return nil, errKilled
	}
	sock := s.sockets[path]
	if sock == nil {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.ENOENT)}
	}
	name := fmt.Sprintf("%s to %s #%d", from.name(), path, s.dialled(from, path))
	near, far := s.connect(from, name, localDelay, 0, client, address(path))
	if tcp, ok := client.(*net.TCPAddr); ok {
		near.remote, far.local, far.uid = smtpdAddr, smtpdAddr, -1
		_ = tcp
	}
	if from != nil && !from.own(near) {
		return nil, errKilled
	}
	if !s.listening() {
		return nil, syscall.ECONNREFUSED
	}
	sock.push(far)
	s.demand(path)
	return near, ctx.Err()
}
