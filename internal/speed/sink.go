package main

import (
	"bufio"
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A sink is the next hop: it takes everything, and counts it.
type sink struct {
	l          net.Listener
	deliveries atomic.Int64 // recipients of messages that have come whole
	last, gap  atomic.Int64 // when the last one came, and the longest time between two, in nanoseconds
	conns      sync.WaitGroup
	mu         sync.Mutex
	open       map[net.Conn]struct{}
}

func newSink() (*sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{l: l, open: make(map[net.Conn]struct{})}
	s.conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open[c] = struct{}{}
			s.mu.Unlock()
			s.conns.Go(func() {
				s.session(c)
				s.mu.Lock()
				delete(s.open, c)
				s.mu.Unlock()
			})
		}
	})
	return s, nil
}

// close ends it, and all sessions.
func (s *sink) close() {
	s.l.Close()
	s.mu.Lock()
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.conns.Wait()
}

func (s *sink) port() int { return s.l.Addr().(*net.TCPAddr).Port }

// session answers each command with success. Replies to what came together go together.
func (s *sink) session(c net.Conn) {
	defer c.Close()
	r, w := bufio.NewReaderSize(c, 64<<10), bufio.NewWriter(c)
	w.WriteString("220 sink.test ESMTP\r\n")
	rcpts := int64(0)
	for {
		if r.Buffered() == 0 && w.Flush() != nil {
			return
		}
		line, err := r.ReadSlice('\n')
		if err != nil || len(line) < 4 {
			return
		}
		switch string(bytes.ToUpper(line[:4])) {
		case "EHLO":
			w.WriteString("250-sink.test\r\n250-PIPELINING\r\n250-SIZE\r\n250 8BITMIME\r\n")
		case "RCPT":
			rcpts++
			w.WriteString("250 2.1.5 Ok\r\n")
		case "DATA":
			w.WriteString("354 go on\r\n")
			if w.Flush() != nil || skipText(r) != nil {
				return
			}
			w.WriteString("250 2.0.0 Ok\r\n")
			s.deliveries.Add(rcpts)
			now := time.Now().UnixNano()
			if gap := now - s.last.Swap(now); gap > s.gap.Load() {
				s.gap.Store(gap) // of two at the same moment either may count
			}
			rcpts = 0
		case "QUIT":
			w.WriteString("221 2.0.0 Bye\r\n")
			w.Flush()
			return
		default:
			w.WriteString("250 2.0.0 Ok\r\n")
		}
	}
}

// skipText reads a message to its final dot.
func skipText(r *bufio.Reader) error {
	for begins := true; ; {
		line, err := r.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull {
			return err
		}
		if begins && string(line) == ".\r\n" {
			return nil
		}
		begins = err == nil
	}
}
