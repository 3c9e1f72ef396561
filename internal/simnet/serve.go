package simnet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Bounds of what a real client may do.
const (
	idleTime = time.Minute // without a command
	maxLine  = 1 << 12
	maxBody  = 64 << 20
)

// A Server gives a host a socket.
type Server struct {
	l    net.Listener
	mu   sync.Mutex // host, whose methods are for one at a time
	host *Host
	all  sync.WaitGroup
	ctx  context.Context
	stop context.CancelFunc
}

// Serve has a host answer at l, at once, until Close. A dead host takes connections and says nothing.
func Serve(l net.Listener, h *Host) *Server {
	s := &Server{l: l, host: h}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.all.Go(s.accept)
	return s
}

// Close ends all sessions, and returns when they have ended.
func (s *Server) Close() error {
	err := s.l.Close()
	s.stop()
	s.all.Wait()
	return err
}

// Counted is what the host has answered so far. It may be called at any time.
func (s *Server) Counted() Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.host.Counted()
}

func (s *Server) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.all.Go(func() {
			defer c.Close()
			// Close must not wait for a client that says nothing.
			defer context.AfterFunc(s.ctx, func() { c.Close() })()
			s.session(c)
		})
	}
}

// ask asks the host, and waits for as long as it takes.
func (s *Server) ask(f func(h *Host, now time.Time) Answer) Answer {
	s.mu.Lock()
	a := f(s.host, time.Now())
	s.mu.Unlock()
	select {
	case <-time.After(a.Took):
	case <-s.ctx.Done():
	}
	return a
}

// session speaks with one client.
func (s *Server) session(c net.Conn) {
	who, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	in := bufio.NewReaderSize(c, maxLine)
	a := s.ask(func(h *Host, now time.Time) Answer { return h.Connect(now, who) })
	switch {
	case a.Away():
		<-s.ctx.Done()
		return
	case !a.OK():
		say(c, a)
		return
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.host.Leave(time.Now(), who)
	}()
	fmt.Fprintf(c, "220 mx.simnet.example ESMTP\r\n")
	t := talk{s: s, c: c, in: in, who: who}
	for {
		_ = c.SetDeadline(time.Now().Add(idleTime))
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		verb, rest, _ := strings.Cut(strings.TrimRight(string(line), "\r\n"), " ")
		if !t.command(strings.ToUpper(verb), rest) {
			return
		}
	}
}

// talk is a session that has been greeted.
type talk struct {
	s     *Server
	c     net.Conn
	in    *bufio.Reader
	who   string
	from  string
	taken int // recipients of the transaction
}

// command answers one, and says whether the session goes on.
func (t *talk) command(verb, rest string) bool {
	switch verb {
	case "EHLO", "HELO":
		fmt.Fprintf(t.c, "250-mx.simnet.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 ENHANCEDSTATUSCODES\r\n")
	case "MAIL":
		t.from, t.taken = address(rest), 0
		fmt.Fprintf(t.c, "250 2.1.0 Ok\r\n")
	case "RCPT":
		a := t.s.ask(func(h *Host, now time.Time) Answer { return h.Hear(now, t.who, t.from, address(rest)) })
		say(t.c, a)
		if a.OK() {
			t.taken++
		}
		return a.Code != 421
	case "DATA":
		if t.taken == 0 {
			fmt.Fprintf(t.c, "554 5.5.1 Error: no valid recipients\r\n")
			return true
		}
		fmt.Fprintf(t.c, "354 End data with <CR><LF>.<CR><LF>\r\n")
		if skipBody(t.in) != nil {
			return false
		}
		fmt.Fprintf(t.c, "250 2.0.0 Ok: queued\r\n")
	case "RSET", "NOOP":
		fmt.Fprintf(t.c, "250 2.0.0 Ok\r\n")
	case "QUIT":
		fmt.Fprintf(t.c, "221 2.0.0 Bye\r\n")
		return false
	default:
		fmt.Fprintf(t.c, "502 5.5.2 Error: command not recognized\r\n")
	}
	return true
}

// say writes an answer as a reply.
func say(w io.Writer, a Answer) {
	text := a.Text
	if a.OK() {
		text = "2.1.5 Ok"
	}
	fmt.Fprintf(w, "%d %s\r\n", a.Code, text)
}

// address takes the address out of FROM:<...>.
func address(rest string) string {
	_, a, _ := strings.Cut(rest, "<")
	a, _, _ = strings.Cut(a, ">")
	return a
}

// skipBody reads a message up to its final dot.
func skipBody(in *bufio.Reader) error {
	for n, start := 0, true; n < maxBody; {
		line, err := in.ReadSlice('\n')
		n += len(line)
		switch {
		case err == bufio.ErrBufferFull:
			start = false
			continue
		case err != nil:
			return err
		case start && string(line) == ".\r\n":
			return nil
		}
		start = true
	}
	return io.ErrShortBuffer
}
