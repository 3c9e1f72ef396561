package simtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// A Letter is a message that a client sends.
type Letter struct {
	At     time.Duration // after the start
	Token  string        // what it is known by
	From   string
	Rcpts  []string
	Lines  int
	Chunks bool   // BDAT
	Ahead  bool   // the envelope is sent in one piece
	Late   bool   // it is sent after the clock has been set
	GiveUp string // the stage at which the client goes away: MAIL, RCPT, DATA, content, dot
	Local  bool   // it is given to the sendmail program instead
	File   bool   // and that leaves it in maildrop, without offering it to pickup
}

// body is its content, as the client sends it.
func (l *Letter) body() string {
	var b strings.Builder
	fmt.Fprintf(&b, "From: <%s>\r\nTo: list:;\r\nDate: Sat, 1 Jan 2000 00:00:00 +0000\r\nMessage-ID: <%s@client.test>\r\nSubject: letter %s\r\n\r\n", l.From, l.Token, l.Token)
	for i := range l.Lines {
		switch i % 7 {
		case 3:
			b.WriteString(".a line with a dot\r\n")
		case 5:
			b.WriteString("\r\n")
		default:
			fmt.Fprintf(&b, "line %d of %s\r\n", i, l.Token)
		}
	}
	return b.String()
}

// send is the client of a letter.
func (s *site) send(l *Letter) {
	time.Sleep(l.At)
	f := s.books.sent(l)
	if l.Local {
		f.answer(s.submit(l, f))
		return
	}
	f.answer(s.talk(l, f))
}

var errGaveUp = errors.New("the client has given up")

type client struct {
	c  net.Conn
	in *bufio.Reader
}

// ask sends a command, and reads the code of the reply.
func (c *client) ask(text string) (code int, err error) {
	if text != "" {
		if _, err := c.c.Write([]byte(text)); err != nil {
			return 0, err
		}
	}
	c.c.SetReadDeadline(time.Now().Add(11 * time.Minute))
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if len(line) > 3 && line[3] == '-' {
			continue
		}
		if _, err := fmt.Sscanf(line, "%3d", &code); err != nil {
			return 0, err
		}
		return code, nil
	}
}

// talk has one session, and gives the reply to the message. f learns which recipients were taken.
func (s *site) talk(l *Letter, f *fate) (code int, err error) {
	nc, err := s.dial(context.Background(), nil, "inet", &net.TCPAddr{IP: net.IPv4(198, 18, 0, 1), Port: 2000 + s.count("client")})
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	c := &client{nc, bufio.NewReader(nc)}
	if code, err = c.ask(""); err != nil || code != 220 {
		return code, err
	}
	if code, err = c.ask("EHLO client.test\r\n"); err != nil || code != 250 {
		return code, err
	}
	if code, err = c.envelope(l, f); err != nil || code != 250 {
		return code, err
	}
	if code, err = c.content(l, f); err == nil {
		f.told = true
		_, _ = c.ask("QUIT\r\n")
	}
	return code, err
}

// envelope sends MAIL and RCPT.
func (c *client) envelope(l *Letter, f *fate) (code int, err error) {
	mail := "MAIL FROM:<" + l.From + ">\r\n"
	commands := []string{mail}
	for _, r := range l.Rcpts {
		commands = append(commands, "RCPT TO:<"+r+">\r\n")
	}
	if l.Ahead {
		if _, err := c.c.Write([]byte(strings.Join(commands, ""))); err != nil {
			return 0, err
		}
	}
	bad := 0
	for i, text := range commands {
		if l.Ahead {
			text = ""
		}
		if code, err = c.ask(text); err != nil {
			return 0, err
		}
		switch {
		case i == 0 && code != 250:
			return code, nil
		case i == 0 && l.GiveUp == "MAIL", i == 1 && l.GiveUp == "RCPT":
			return 0, errGaveUp
		case i > 0 && code == 250:
			f.rcpts = append(f.rcpts, l.Rcpts[i-1])
		case i > 0:
			bad = code
		}
	}
	if len(f.rcpts) == 0 {
		return bad, nil
	}
	return 250, nil
}

// content sends DATA or BDAT.
func (c *client) content(l *Letter, f *fate) (code int, err error) {
	body := l.body()
	if l.Chunks {
		half := len(body) / 2
		if code, err = c.ask(fmt.Sprintf("BDAT %d\r\n%s", half, body[:half])); err != nil || code != 250 {
			return code, err
		}
		if l.GiveUp == "content" {
			return 0, errGaveUp
		}
		f.whole = true
		text := fmt.Sprintf("BDAT %d LAST\r\n%s", len(body)-half, body[half:])
		if l.GiveUp == "dot" {
			_, _ = c.c.Write([]byte(text))
			return 0, errGaveUp
		}
		return c.ask(text)
	}
	if code, err = c.ask("DATA\r\n"); err != nil || code != 354 {
		return code, err
	}
	if l.GiveUp == "DATA" {
		return 0, errGaveUp
	}
	text := strings.ReplaceAll("\r\n"+body, "\r\n.", "\r\n..")[2:]
	if l.GiveUp == "content" {
		_, _ = c.c.Write([]byte(text[:len(text)/2]))
		return 0, errGaveUp
	}
	f.whole = true
	if l.GiveUp == "dot" {
		_, _ = c.c.Write([]byte(text + ".\r\n"))
		return 0, errGaveUp
	}
	return c.ask(text + ".\r\n")
}
