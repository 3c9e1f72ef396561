package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
)

// A sink is an SMTP server that takes everything, or answers as told.
type sink struct {
	l  net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	mails []sunk
	conns map[net.Conn]struct{}
	// reply, when set, says what to answer to a command line ("" is the
	// usual), and "." at the end of data.
	reply func(line string) string
	// tls, when set, is offered.
	tls *tls.Config
}

// sunk is one message that has arrived.
type sunk struct {
	from string
	to   []string
	data string // lines ended by LF
	tls  bool
}

func newSink(t *testing.T, reply func(string) string) *sink {
	t.Helper()
	return newSinkAt(t, "127.0.0.1:0", reply)
}

func newSinkAt(t *testing.T, addr string, reply func(string) string) *sink {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newSinkOn(t, l, reply)
}

func newSinkOn(t *testing.T, l net.Listener, reply func(string) string) *sink {
	return startSink(t, &sink{l: l, reply: reply})
}

// startSink starts a sink that has a listener.
func startSink(t *testing.T, s *sink) *sink {
	s.conns = map[net.Conn]struct{}{}
	s.wg.Go(func() {
		for {
			c, err := s.l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[c] = struct{}{}
			s.mu.Unlock()
			s.wg.Go(func() {
				s.serve(c)
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
			})
		}
	})
	t.Cleanup(s.close)
	return s
}

func (s *sink) close() {
	s.l.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *sink) port() int { return s.l.Addr().(*net.TCPAddr).Port }

func (s *sink) relayhost() string { return fmt.Sprintf("relayhost = [127.0.0.1]:%d\n", s.port()) }

// received is what has arrived so far.
func (s *sink) received() []sunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sunk(nil), s.mails...)
}

func (s *sink) serve(c net.Conn) {
	defer c.Close()
	r, w := bufio.NewReader(c), bufio.NewWriter(c)
	say := func(line, usual string) string {
		answer := usual
		if s.reply != nil {
			if a := s.reply(line); a != "" {
				answer = a
			}
		}
		fmt.Fprintf(w, "%s\r\n", answer)
		if r.Buffered() == 0 {
			w.Flush()
		}
		return answer
	}
	if !strings.HasPrefix(say("", "220 sink.test ESMTP"), "220") {
		w.Flush()
		return
	}
	var m sunk
	secure := false
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		verb := strings.ToUpper(line[:min(4, len(line))])
		switch verb {
		case "EHLO":
			offer := "250-sink.test\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SIZE 0"
			if s.tls != nil && !secure {
				offer = strings.Replace(offer, "250-PIPE", "250-STARTTLS\r\n250-PIPE", 1)
			}
			say(line, offer)
		case "STAR":
			if say(line, "220 2.0.0 go"); s.tls == nil {
				return
			}
			w.Flush()
			conn := tls.Server(c, s.tls)
			if conn.Handshake() != nil {
				return
			}
			secure = true
			r, w = bufio.NewReader(conn), bufio.NewWriter(conn)
		case "MAIL":
			m = sunk{from: between(line), tls: secure}
			say(line, "250 2.1.0 Ok")
		case "RCPT":
			if strings.HasPrefix(say(line, "250 2.1.5 Ok"), "250") {
				m.to = append(m.to, between(line))
			}
		case "DATA":
			if len(m.to) == 0 {
				say(line, "554 5.5.1 Error: no valid recipients")
				continue
			}
			if !strings.HasPrefix(say(line, "354 go"), "354") {
				continue
			}
			w.Flush()
			if m.data, err = readData(r); err != nil {
				return
			}
			if strings.HasPrefix(say(".", "250 2.0.0 Ok: sunk"), "250") {
				s.mu.Lock()
				s.mails = append(s.mails, m)
				s.mu.Unlock()
			}
		case "QUIT":
			say(line, "221 2.0.0 Bye")
			w.Flush()
			return
		default:
			say(line, "250 2.0.0 Ok")
		}
	}
}

func readData(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		l, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if l == ".\r\n" {
			return b.String(), nil
		}
		l = strings.TrimPrefix(l, ".")
		b.WriteString(strings.TrimSuffix(l, "\r\n"))
		b.WriteByte('\n')
	}
}

// between is what stands between the angle brackets.
func between(line string) string {
	_, after, _ := strings.Cut(line, "<")
	addr, _, _ := strings.Cut(after, ">")
	return addr
}

// listenSame listens on one port of several addresses.
func listenSame(t *testing.T, addrs []string) []net.Listener {
	t.Helper()
	for range 50 {
		port := freePort(t)
		var list []net.Listener
		for _, a := range addrs {
			l, err := net.Listen("tcp", net.JoinHostPort(a, fmt.Sprint(port)))
			if err != nil {
				break
			}
			list = append(list, l)
		}
		if len(list) == len(addrs) {
			return list
		}
		for _, l := range list {
			l.Close()
		}
	}
	t.Skip("no port is free on all addresses of loopback")
	return nil
}
