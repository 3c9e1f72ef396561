package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/smtp"
	"net/textproto"
	"strings"
	"testing"
	"time"
)

// send sends one message over SMTP.
func (s *system) send(from string, to []string, content string) error {
	c, err := smtp.Dial(s.addr())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Hello("client.test"); err != nil {
		return err
	}
	if err := transaction(c, from, to, content); err != nil {
		return err
	}
	return c.Quit()
}

// transaction sends one message over a session that is open.
func transaction(c *smtp.Client, from string, to []string, content string) error {
	if err := c.Mail(from); err != nil {
		return err
	}
	for _, r := range to {
		if err := c.Rcpt(r); err != nil {
			return err
		}
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write([]byte(strings.ReplaceAll(content, "\n", "\r\n"))); err != nil {
		return err
	}
	return w.Close()
}

// replyCode is the code of an SMTP server's refusal, 0 when there was none.
func replyCode(err error) int {
	var refusal *textproto.Error
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return 0
}

func (s *system) mustSend(from string, to []string, content string) {
	s.t.Helper()
	if err := s.send(from, to, content); err != nil {
		s.t.Fatal(err)
	}
}

// dialogue sends lines and returns the first line of each reply. Nothing is
// sent for an empty line: that reads the greeting.
func (s *system) dialogue(t *testing.T, lines ...string) (replies []string) {
	t.Helper()
	c, err := net.Dial("tcp", s.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReader(c)
	for _, l := range lines {
		if l != "" {
			fmt.Fprintf(c, "%s\r\n", l)
		}
		first := ""
		for {
			reply, err := r.ReadString('\n')
			if err != nil {
				t.Fatalf("after %q: %v", l, err)
			}
			reply = strings.TrimRight(reply, "\r\n")
			if first == "" {
				first = reply
			}
			if len(reply) < 4 || reply[3] != '-' {
				break
			}
		}
		replies = append(replies, first)
	}
	return replies
}
