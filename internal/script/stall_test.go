package script

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A stalling server answers all questions at once but those about one
// address, which wait until it is told.
type stalling struct {
	asked, answer chan struct{}
	path          string
}

// newStalling starts one; serve answers the questions of one connection.
func newStalling(t *testing.T, serve func(s *stalling, c net.Conn)) *stalling {
	s := &stalling{asked: make(chan struct{}), answer: make(chan struct{}), path: filepath.Join(t.TempDir(), "s")}
	l, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			serving.Go(func() { serve(s, c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return s
}

// about waits if the question is about the address.
func (s *stalling) about(question string) {
	if strings.Contains(question, "alice@") {
		s.asked <- struct{}{}
		<-s.answer
	}
}

func stallingPolicy(s *stalling, c net.Conn) {
	r := bufio.NewReader(c)
	for {
		var request strings.Builder
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if line == "\n" {
				break
			}
			request.WriteString(line)
		}
		s.about(request.String())
		io.WriteString(c, "action=dunno\n\n")
	}
}

// stallingTable speaks the socketmap protocol: netstrings.
func stallingTable(s *stalling, c net.Conn) {
	r := bufio.NewReader(c)
	for {
		var n int
		if _, err := fmt.Fscanf(r, "%d:", &n); err != nil {
			return
		}
		text := make([]byte, n+1)
		if _, err := io.ReadFull(r, text); err != nil {
			return
		}
		s.about(string(text))
		io.WriteString(c, "9:NOTFOUND ,")
	}
}

// A server that does not answer holds up the session that asks it, and no
// other that asks it too.
func TestStalledLookup(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, restriction string
		serve             func(*stalling, net.Conn)
	}{
		{"policy", "check_policy_service unix:%s", stallingPolicy},
		{"table", "check_recipient_access socketmap:unix:%s:access", stallingTable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStalling(t, tt.serve)
			_, addr := serve(t, benchMain+"smtpd_recipient_restrictions = "+fmt.Sprintf(tt.restriction, s.path)+"\n")
			held := dialBench(t, addr)
			held.send("EHLO client.test\r\n")
			held.replies(1)
			held.send("MAIL FROM:<a@client.test>\r\nRCPT TO:<alice@example.test>\r\n")
			<-s.asked
			for range 2 {
				c := dialBench(t, addr)
				c.send("EHLO client.test\r\n")
				c.replies(1)
				c.send("MAIL FROM:<b@client.test>\r\nRCPT TO:<bob@example.test>\r\n")
				c.replies(2)
				c.send("QUIT\r\n")
				c.replies(1)
				c.c.Close()
			}
			close(s.answer)
			held.replies(2)
			held.send("QUIT\r\n")
			held.replies(1)
			held.c.Close()
		})
	}
}

// A client that goes on sending content, but more slowly than it must, is sent
// away, although it never pauses for long.
func TestSlowContent(t *testing.T) {
	t.Parallel()
	// The time limit is that of each command, too, and of a client that has to share the machine.
	w, addr := serve(t, benchMain+"smtpd_timeout = 5s\nsmtpd_per_request_deadline = yes\nsmtpd_min_data_rate = 100000000\n")
	c := dialBench(t, addr)
	c.send("EHLO client.test\r\n")
	c.replies(1)
	c.send("MAIL FROM:<a@client.test>\r\nRCPT TO:<alice@example.test>\r\nDATA\r\n")
	c.replies(3)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		io.Copy(io.Discard, c.br)
	}()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	enough := time.After(4 * patience)
	for {
		select {
		case <-pace.C:
			io.WriteString(c.c, "x")
			continue
		case <-ended:
		case <-enough:
			t.Error("the client is listened to for ever")
		}
		break
	}
	c.c.Close()
	<-ended
	w.log.Flush()
	if text := w.logText(); !strings.Contains(text, "timeout after DATA (") {
		t.Errorf("log:\n%s", text)
	}
}
