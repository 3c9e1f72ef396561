package differential

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// unquoteLines makes the content of a message of the lines of a case.
func unquoteLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if q := strings.TrimRight(line, "\n"); len(q) > 1 && q[0] == '"' && q[len(q)-1] == '"' {
			if u, err := strconv.Unquote(q); err == nil {
				line = u + "\n"
			}
		}
		if n, rest, ok := strings.Cut(strings.TrimPrefix(line, "repeat "), " "); ok && strings.HasPrefix(line, "repeat ") {
			if times, err := strconv.Atoi(n); err == nil {
				line = strings.Repeat(rest, times)
			}
		}
		b.WriteString(line)
	}
	return b.String()
}

// session plays one SMTP session, and tells what was answered.
func (s *system) session(b *strings.Builder, text string) {
	c, err := net.Dial("tcp", s.addr())
	if err != nil {
		s.t.Errorf("%s: %v", s.who(), err)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReader(c)
	say := func(p string, note bool) bool {
		if p != "" {
			if _, err := c.Write([]byte(p)); err != nil {
				fmt.Fprintf(b, "S: (%v)\n", err)
				return false
			}
		}
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				b.WriteString("S: (closed)\n")
				return false
			}
			if note {
				b.WriteString("S: " + strings.TrimRight(line, "\r\n") + "\n")
			}
			if len(line) < 4 || line[3] != '-' {
				return true
			}
		}
	}
	if !say("", false) {
		return
	}
	text = unquoteLines(text)
	if first, message, _ := strings.Cut(text, "\n"); strings.HasPrefix(first, "send ") {
		text = dialogue(first, message)
	}
	if !strings.HasPrefix(text, "EHLO") && !strings.HasPrefix(text, "HELO") && !say("EHLO client.test\r\n", false) {
		return
	}
	data := false
	var content strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n") + "\r\n"
		if data {
			content.WriteString(line)
			if line != ".\r\n" {
				continue
			}
			line, data = content.String(), false
			content.Reset()
		} else if strings.EqualFold(line, "DATA\r\n") {
			b.WriteString("C: DATA\n")
			n := b.Len()
			if !say(line, true) {
				return
			}
			data = strings.HasPrefix(b.String()[n:], "S: 354")
			if !data {
				break // no content is wanted
			}
			continue
		} else {
			b.WriteString("C: " + line[:len(line)-2] + "\n")
		}
		if !say(line, !strings.HasPrefix(line, "EHLO")) {
			return
		}
	}
	say("QUIT\r\n", false)
}

// dialogue is the session that sends one message.
func dialogue(first, message string) string {
	var b strings.Builder
	words := strings.Fields(first)[1:]
	if words[0] == "remote" {
		b.WriteString("EHLO client.test\nXCLIENT ADDR=192.0.2.1 NAME=client.test\nEHLO client.test\n")
		words = words[1:]
	}
	for i, w := range words {
		command := "RCPT TO:"
		if i == 0 {
			command = "MAIL FROM:"
		}
		b.WriteString(command + strings.ReplaceAll(w, "|", " ") + "\n")
	}
	b.WriteString("DATA\n")
	for line := range strings.Lines(message) {
		if strings.HasPrefix(line, ".") {
			b.WriteByte('.')
		}
		b.WriteString(line)
	}
	b.WriteString(".\n")
	return b.String()
}

// A sink is the next hop. It takes everything and writes down what it was told.
type sink struct {
	l     net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex
	mails []string
	conns map[net.Conn]struct{}
}

func newSink(t *testing.T) *sink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &sink{l: l, conns: map[net.Conn]struct{}{}}
	s.wg.Go(func() { accept(l, &s.wg, &s.mu, s.conns, s.serve) })
	t.Cleanup(func() { closeAll(l, &s.wg, &s.mu, s.conns) })
	return s
}

// accept serves connections until the listener is closed.
func accept(l net.Listener, wg *sync.WaitGroup, mu *sync.Mutex, conns map[net.Conn]struct{}, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		mu.Lock()
		conns[c] = struct{}{}
		mu.Unlock()
		wg.Go(func() {
			serve(c)
			c.Close()
			mu.Lock()
			delete(conns, c)
			mu.Unlock()
		})
	}
}

func closeAll(l net.Listener, wg *sync.WaitGroup, mu *sync.Mutex, conns map[net.Conn]struct{}) {
	l.Close()
	mu.Lock()
	for c := range conns {
		c.Close()
	}
	mu.Unlock()
	wg.Wait()
}

func (s *sink) port() int { return s.l.Addr().(*net.TCPAddr).Port }

// take is what has arrived, in an order that does not depend on speed.
func (s *sink) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.mails
	s.mails = nil
	slices.Sort(list)
	return list
}

func (s *sink) serve(c net.Conn) {
	r := bufio.NewReader(c)
	say := func(line string) { fmt.Fprintf(c, "%s\r\n", line) }
	say("220 sink.test ESMTP")
	var mail string
	var rcpts []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		switch verb, _, _ := strings.Cut(strings.ToUpper(line), " "); verb {
		case "EHLO":
			say("250-sink.test\r\n250-PIPELINING\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250-DSN\r\n250-ENHANCEDSTATUSCODES\r\n250 SIZE 0")
		case "MAIL":
			mail, rcpts = line, nil
			say("250 2.1.0 Ok")
		case "RCPT":
			if strings.Contains(line, "<refused") {
				say("550 5.1.1 no such user here")
				continue
			}
			if strings.Contains(line, "<later") {
				say("450 4.2.0 not now")
				continue
			}
			rcpts = append(rcpts, line)
			say("250 2.1.5 Ok")
		case "DATA":
			if len(rcpts) == 0 {
				say("554 5.5.1 no valid recipients")
				continue
			}
			say("354 go")
			var b strings.Builder
			slices.Sort(rcpts)
			fmt.Fprintf(&b, "sent %s\n", mail)
			for _, rcpt := range rcpts {
				fmt.Fprintf(&b, "sent %s\n", rcpt)
			}
			for {
				l, err := r.ReadString('\n')
				if err != nil {
					return
				}
				if l == ".\r\n" {
					break
				}
				l, _ = strings.CutSuffix(strings.TrimPrefix(l, "."), "\r\n")
				b.WriteString("  | " + visible(l) + "\n")
			}
			s.mu.Lock()
			s.mails = append(s.mails, b.String())
			s.mu.Unlock()
			say("250 2.0.0 Ok: sunk")
		case "QUIT":
			say("221 2.0.0 Bye")
			return
		default:
			say("250 2.0.0 Ok")
		}
	}
}

// visible shows what is not plain text, and how long what is long is.
func visible(l string) string {
	q := strconv.Quote(l)
	q = strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
	if len(q) > 200 {
		return fmt.Sprintf("(%d octets) %s...", len(l), q[:80])
	}
	return q
}
