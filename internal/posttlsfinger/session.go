package posttlsfinger

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// A session is a connection to one server.
type session struct {
	target   *target
	conn     net.Conn
	br       *bufio.Reader
	peer     string // HOST[ADDR]:PORT
	addrSafe bool   // the address is vouched for
	addrName string // where the host's aliases lead
	state    *tls.ConnectionState
	greeted  string // what the server calls itself
	offers   bool   // STARTTLS
}

func (f *finger) newSession(t *target, conn net.Conn, peer string, safe bool, name string) *session {
	s := &session{target: t, peer: peer, addrSafe: safe, addrName: name}
	s.use(conn)
	if !f.quiet {
		f.say("Connected to %s", peer)
	}
	return s
}

// use has the session go on over a connection.
func (s *session) use(conn net.Conn) { s.conn, s.br = conn, bufio.NewReaderSize(conn, maxLine) }

// Bounds of a server's reply.
const (
	maxLine  = 4096
	maxLines = 200
)

// A reply is what a server says to one command.
type reply struct {
	lines []string // without CRLF
}

func (r reply) ok() bool { return len(r.lines) > 0 && strings.HasPrefix(r.lines[0], "2") }

// read reads a reply within a time, and shows it.
func (f *finger) read(s *session, limit time.Duration) (r reply, err error) {
	if err := s.conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return r, err
	}
	for len(r.lines) < maxLines {
		b, err := s.br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return r, fmt.Errorf("the server says a line of more than %d octets", maxLine)
		}
		if err != nil {
			return r, err
		}
		line := strings.TrimRight(string(b), "\r\n")
		if !f.quiet {
			f.say("< %s", line)
		}
		if len(line) < 3 || strings.Trim(line[:3], "0123456789") != "" {
			return r, fmt.Errorf("the server does not say a reply code: %.80q", line)
		}
		r.lines = append(r.lines, line)
		if len(line) == 3 || line[3] != '-' {
			return r, nil
		}
	}
	return r, fmt.Errorf("the server says more than %d lines", maxLines)
}

// command says something and reads the reply.
func (f *finger) command(s *session, text string) (reply, error) {
	if !f.quiet {
		f.say("> %s", text)
	}
	if err := s.conn.SetDeadline(time.Now().Add(f.cmdTime)); err != nil {
		return reply{}, err
	}
	if _, err := s.conn.Write([]byte(text + "\r\n")); err != nil {
		return reply{}, err
	}
	return f.read(s, f.cmdTime)
}

// session talks to a server.
func (f *finger) session(ctx context.Context, s *session) {
	if err := f.talk(ctx, s); err != nil {
		f.say("%s: %v", s.peer, err)
	}
	if f.chain && s.state != nil {
		f.printChain(s.state.PeerCertificates)
	}
}

func (f *finger) talk(ctx context.Context, s *session) error {
	wanted := f.level != 0
	if f.wrapper && wanted {
		if f.shakeHands(ctx, s, f.policy(ctx, s)) != nil {
			return nil // it has been said
		}
	}
	greeting, err := f.read(s, f.connTime)
	if err != nil {
		return fmt.Errorf("while receiving the initial server greeting: %w", err)
	}
	if !greeting.ok() {
		return f.refused(s, "the server greets with: ", greeting)
	}
	if err := f.hello(s); err != nil {
		return err
	}
	if wanted && s.state == nil {
		if !s.offers {
			f.say("%s did not offer STARTTLS", s.peer)
			return f.quit(s)
		}
		if done, err := f.startTLS(ctx, s); done || err != nil {
			return err
		}
	}
	return f.quit(s)
}

// hello introduces us. An old server that does not know EHLO has no TLS either.
func (f *finger) hello(s *session) error {
	verb := "EHLO "
	if f.lmtp {
		verb = "LHLO "
	}
	r, err := f.command(s, verb+f.cfg.String("myhostname"))
	if err != nil {
		return fmt.Errorf("after %s: %w", strings.TrimSpace(verb), err)
	}
	s.offers = false
	if !r.ok() {
		return nil
	}
	for i, line := range r.lines {
		words := strings.Fields(line[min(4, len(line)):])
		if len(words) == 0 {
			continue
		}
		if i == 0 {
			s.greeted = words[0]
		} else if strings.EqualFold(words[0], "STARTTLS") {
			s.offers = true
		}
	}
	return nil
}

// startTLS switches to TLS and introduces us again. done says that there is no going on.
func (f *finger) startTLS(ctx context.Context, s *session) (done bool, err error) {
	p := f.policy(ctx, s)
	r, err := f.command(s, "STARTTLS")
	if err != nil {
		return true, fmt.Errorf("after STARTTLS: %w", err)
	}
	if !r.ok() {
		f.say("%s rejected STARTTLS: %s", s.peer, strings.Join(r.lines, " "))
		return true, f.quit(s)
	}
	if s.br.Buffered() > 0 {
		return true, errors.New("the server sent something between its reply and the handshake")
	}
	if f.shakeHands(ctx, s, p) != nil {
		return true, nil // it has been said
	}
	return false, f.hello(s)
}

func (f *finger) refused(s *session, text string, r reply) error {
	f.say("%s: %s%s", s.peer, text, strings.Join(r.lines, " "))
	return f.quit(s)
}

func (f *finger) quit(s *session) error {
	if _, err := f.command(s, "QUIT"); err != nil {
		return fmt.Errorf("after QUIT: %w", err)
	}
	return nil
}
