// Package hostile tests clients against servers that do not keep to their
// protocol: that answer without end, drop by drop, twice, before they are asked, or
// when nobody waits any more.
package hostile

import (
	"bufio"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Protocol is what the test has to know of one.
type Protocol struct {
	// Greet serves what comes before the first question; nil is nothing.
	Greet func(r *bufio.Reader, c net.Conn) error
	// Question reads a question and returns what it asks for. What comes before the question
	// itself it answers.
	Question func(r *bufio.Reader, c net.Conn) (key string, err error)
	// Answer is the answer to a question.
	Answer func(key string) []byte
	// Endless is the beginning of an answer; then its last octet comes again and again.
	Endless string
	// Huge is an answer that says that it is very long; empty where there is none.
	Huge string
	// Fresh says that the client makes a connection for each question.
	Fresh bool
	// Lenient says that of two answers at once the first is taken: what belongs to
	// what is known.
	Lenient bool
}

// A Client asks a question. It gives up soon.
type Client func(key string) (answer string, err error)

// most is how much a client may take of an answer without end. What waits in the socket is a
// quarter of that.
const most = 1 << 20

// A server is hostile on its first connection, and good on all others.
type server struct {
	p        Protocol
	path     string
	first    func(s *server, r *bufio.Reader, c net.Conn)
	conns    atomic.Int64
	accepted atomic.Int64 // octets of an endless answer
	say      chan []byte  // what the first connection is to say unasked
	said     chan error
	gone     chan struct{} // the client has given up
}

func listen(t *testing.T, p Protocol, first func(*server, *bufio.Reader, net.Conn)) *server {
	t.Helper()
	s := &server{p: p, first: first, path: filepath.Join(t.TempDir(), "s"), say: make(chan []byte), said: make(chan error, 1), gone: make(chan struct{})}
	l, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			n := s.conns.Add(1)
			wg.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				if p.Greet != nil && p.Greet(r, c) != nil {
					return
				}
				if n == 1 {
					s.first(s, r, c)
					return
				}
				for s.serve(r, c) == nil {
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return s
}

// serve answers one question as it should be.
func (s *server) serve(r *bufio.Reader, c net.Conn) error {
	key, err := s.p.Question(r, c)
	if err == nil {
		_, err = c.Write(s.p.Answer(key))
	}
	return err
}

// endless answers without end, in pieces of a size.
func endless(size int, pause time.Duration) func(*server, *bufio.Reader, net.Conn) {
	return func(s *server, r *bufio.Reader, c net.Conn) {
		if _, err := s.p.Question(r, c); err != nil {
			return
		}
		text := s.p.Endless
		piece := strings.Repeat(text[len(text)-1:], size)
		for {
			n, err := c.Write([]byte(text))
			s.accepted.Add(int64(n))
			if err != nil {
				return
			}
			text = piece
			time.Sleep(pause)
		}
	}
}

var cases = []struct {
	name  string
	fails bool // the first question has no answer
	first func(s *server, r *bufio.Reader, c net.Conn)
	huge  bool
}{
	{name: "without end", fails: true, first: endless(4096, 0)},
	{name: "drop by drop", fails: true, first: endless(1, 20*time.Millisecond)},
	{name: "a huge length", fails: true, huge: true, first: func(s *server, r *bufio.Reader, c net.Conn) {
		if _, err := s.p.Question(r, c); err == nil {
			c.Write([]byte(s.p.Huge))
			r.ReadByte() // until the client has given up
		}
	}},
	{name: "late", fails: true, first: func(s *server, r *bufio.Reader, c net.Conn) {
		if _, err := s.p.Question(r, c); err == nil {
			<-s.gone
			c.Write(s.p.Answer("stolen")) // it may well be closed
			for s.serve(r, c) == nil {
			}
		}
	}},
	{name: "ended", fails: true, first: func(s *server, r *bufio.Reader, c net.Conn) { s.p.Question(r, c) }},
}

// Run tests a client: open makes one for the server at path, a unix-domain socket.
func Run(t *testing.T, p Protocol, open func(t *testing.T, path string) Client) {
	for _, tt := range cases {
		if tt.huge && p.Huge == "" {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := listen(t, p, tt.first)
			ask := open(t, s.path)
			if got, err := ask("one"); err == nil {
				t.Errorf("the first answer is %q", got)
			} else {
				t.Log(err)
			}
			close(s.gone)
			s.good(t, ask, "two", 2)
			if n := s.accepted.Load(); n > most {
				t.Errorf("the client has taken %d octets", n)
			}
		})
	}
	t.Run("two answers at once", func(t *testing.T) {
		t.Parallel()
		s := listen(t, p, func(s *server, r *bufio.Reader, c net.Conn) {
			if _, err := p.Question(r, c); err == nil {
				c.Write(append(p.Answer("one"), p.Answer("stolen")...))
				for s.serve(r, c) == nil {
				}
			}
		})
		ask := open(t, s.path)
		if got, err := ask("one"); (err == nil) != p.Lenient || err == nil && got != "one" {
			t.Errorf("the first answer is %q, %v", got, err)
		}
		s.good(t, ask, "two", 2)
	})
	if p.Fresh {
		return
	}
	t.Run("before the question", func(t *testing.T) {
		t.Parallel()
		s := listen(t, p, func(s *server, r *bufio.Reader, c net.Conn) {
			if s.serve(r, c) != nil {
				return
			}
			_, err := c.Write(<-s.say)
			s.said <- err
			for s.serve(r, c) == nil {
			}
		})
		ask := open(t, s.path)
		s.good(t, ask, "one", 1)
		s.say <- p.Answer("stolen")
		if err := <-s.said; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Logf("the connection was not kept: %v", err)
		}
		s.good(t, ask, "two", 2)
		s.good(t, ask, "three", 2)
	})
}

// good asks and wants the answer to just this question, by the so manyeth connection.
func (s *server) good(t *testing.T, ask Client, key string, conns int64) {
	t.Helper()
	if got, err := ask(key); err != nil || got != key {
		t.Errorf("%s: the answer is %q, %v", key, got, err)
	}
	if n := s.conns.Load(); n != conns {
		t.Errorf("%s: %d connections were made, want %d", key, n, conns)
	}
}
