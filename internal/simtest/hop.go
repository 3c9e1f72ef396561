package simtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"
)

// pause is how long a slow next hop takes for each reply.
const pause = 7 * time.Second

// moods of a next hop: what it does in a session.
const (
	good       = ""
	slowly     = "slow"         // takes seconds for each reply
	refuses    = "refuse"       // the connection
	silence    = "silence"      // says nothing to who connects
	greet421   = "421 greeting" // and so on, at a stage
	mail421    = "421 MAIL"
	rcpt421    = "421 RCPT"
	dot421     = "421 dot"
	rcpt450    = "450 RCPT"
	dot451     = "451 dot"
	dot554     = "554 dot"
	loseReply  = "lost reply"    // it has the message, and does not say so
	twoReplies = "two replies"   // to one command
	closeEarly = "close early"   // in the middle of the content
	closeMail  = "close at MAIL" // behind the greeting
)

var moods = []string{slowly, refuses, silence, greet421, mail421, rcpt421, dot421, rcpt450, dot451, dot554, loseReply, twoReplies, closeEarly, closeMail}

// A hop is an SMTP server that mail goes to.
type hop struct {
	site    *site
	addr    string
	trouble float64 // the share of sessions in which it is not good
	list    []string
	rnd     *rand.Rand
	busy    []*hopSession  // with a transaction under way
	most    map[string]int // how many there were at a time, by domain of the recipients
}

// mood is what the next session is like.
func (h *hop) mood() string {
	h.site.mu.Lock()
	defer h.site.mu.Unlock()
	if h.site.healed || h.rnd.Float64() >= h.trouble {
		return good
	}
	return h.list[h.rnd.IntN(len(h.list))]
}

// connectHop connects an agent to a next hop.
func (s *site) connectHop(ctx context.Context, p *process, addr string) (net.Conn, error) {
	h := s.hosts[addr]
	if h == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}
	}
	mood := h.mood()
	if mood == refuses {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	ap, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	n := s.count("hop " + addr)
	near, far := s.connect(p, fmt.Sprintf("to %s #%d", addr, n), farDelay, -1, &net.TCPAddr{IP: smtpdAddr.IP, Port: 10000 + n}, ap)
	if !p.own(near) {
		return nil, errKilled
	}
	s.all.Go(func() { h.serve(far, mood, n) })
	return near, ctx.Err()
}

// A hopSession is one session at a next hop.
type hopSession struct {
	h    *hop
	c    *conn
	in   *bufio.Reader
	mood string
	n    int
	from string
	rcpt []string

	domain string // of the recipients
}

func (h *hop) serve(c *conn, mood string, n int) {
	defer c.Close()
	hs := &hopSession{h: h, c: c, in: bufio.NewReader(c), mood: mood, n: n}
	defer hs.idle()
	if mood == silence {
		c.SetReadDeadline(time.Now().Add(10 * time.Minute))
		_, _ = hs.in.ReadString('\n')
		return
	}
	if mood == greet421 {
		hs.say("421 4.3.2 not now")
		return
	}
	hs.say("220 hop.test ESMTP")
	for hs.command() == nil {
	}
}

// begin notes that mail for a domain is on its way in this session.
func (hs *hopSession) begin(domain string) {
	h, s := hs.h, hs.h.site
	s.mu.Lock()
	defer s.mu.Unlock()
	if hs.domain == "" {
		h.busy = append(h.busy, hs)
	}
	hs.domain = domain
	n := 0
	for _, o := range h.busy {
		if o.domain == domain && !o.c.in.over() {
			n++
		}
	}
	h.most[domain] = max(h.most[domain], n)
	if odd(hs.from) {
		s.oddMost = max(s.oddMost, s.oddBusy())
	}
}

// odd says whether mail of a sender is that of the tenant who has a limit (tenants).
func odd(sender string) bool {
	name, _, _ := strings.Cut(sender, "@")
	return strings.HasPrefix(name, "sender") && strings.ContainsRune("13579", rune(name[len(name)-1]))
}

// oddBusy is how many transactions of that tenant are under way, at all next hops. The caller has mu.
func (s *site) oddBusy() (n int) {
	for _, h := range s.hosts {
		for _, o := range h.busy {
			if odd(o.from) && !o.c.in.over() {
				n++
			}
		}
	}
	return n
}

// idle notes that none is.
func (hs *hopSession) idle() {
	s := hs.h.site
	s.mu.Lock()
	defer s.mu.Unlock()
	hs.domain = ""
	hs.h.busy = slices.DeleteFunc(hs.h.busy, func(o *hopSession) bool { return o == hs })
}

var errEnd = errors.New("the session ends")

func (hs *hopSession) say(text string) {
	if hs.mood == slowly {
		time.Sleep(pause)
	}
	_, _ = hs.c.Write([]byte(text + "\r\n"))
}

// fail ends the session with 421.
func (hs *hopSession) fail() error {
	hs.say("421 4.3.2 closing the channel")
	return errEnd
}

// command takes one.
func (hs *hopSession) command() error {
	hs.c.SetReadDeadline(time.Now().Add(10 * time.Minute))
	line, err := hs.in.ReadString('\n')
	if err != nil {
		return err
	}
	verb, rest, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
	switch strings.ToUpper(verb) {
	case "EHLO":
		hs.say("250-hop.test\r\n250-PIPELINING\r\n250-8BITMIME\r\n250-ENHANCEDSTATUSCODES\r\n250 SIZE 1000000")
	case "MAIL":
		if hs.mood == mail421 {
			return hs.fail()
		}
		if hs.mood == closeMail {
			return errEnd
		}
		hs.idle()
		hs.from, hs.rcpt = path(rest), nil
		hs.say("250 2.1.0 ok")
	case "RCPT":
		return hs.recipient(path(rest))
	case "DATA":
		if len(hs.rcpt) == 0 {
			hs.say("554 5.5.1 no valid recipients")
			return nil
		}
		hs.say("354 go on")
		return hs.content()
	case "RSET", "NOOP":
		hs.idle()
		hs.rcpt = nil
		hs.say("250 2.0.0 ok")
	case "QUIT":
		hs.say("221 2.0.0 bye")
		return errEnd
	default:
		hs.say("502 5.5.2 what?")
	}
	return nil
}

// path takes the address out of FROM:<...>.
func path(rest string) string {
	_, a, _ := strings.Cut(rest, "<")
	a, _, _ = strings.Cut(a, ">")
	return a
}

func (hs *hopSession) recipient(a string) error {
	_, domain, _ := strings.Cut(a, "@")
	hs.begin(domain)
	switch {
	case hs.mood == rcpt421 && len(hs.rcpt) > 0:
		return hs.fail()
	case strings.HasPrefix(a, "never"):
		hs.say("550 5.1.1 no such user")
	case hs.mood == rcpt450 && hs.h.rnd.IntN(2) == 0:
		hs.say("450 4.2.1 later")
	default:
		hs.rcpt = append(hs.rcpt, a)
		hs.say("250 2.1.5 ok")
		if hs.mood == twoReplies {
			hs.say("250 2.1.5 ok indeed")
		}
	}
	return nil
}

// content takes a message, and answers the final dot.
func (hs *hopSession) content() error {
	var b strings.Builder
	for {
		line, err := hs.in.ReadString('\n')
		if err != nil {
			return err
		}
		if line == ".\r\n" {
			break
		}
		b.WriteString(strings.TrimPrefix(line, "."))
		if hs.mood == closeEarly {
			return errEnd
		}
	}
	switch hs.mood {
	case dot421:
		return hs.fail()
	case dot451:
		hs.idle()
		hs.say("451 4.3.0 try again")
		return nil
	case dot554:
		hs.idle()
		hs.say("554 5.6.0 not this")
		return nil
	}
	hs.h.site.books.arrived(&delivery{at: hs.h.site.since(), hop: hs.h.addr, session: hs.n, from: hs.from, rcpts: hs.rcpt, content: b.String(), mood: hs.mood})
	hs.idle()
	hs.rcpt = nil
	if hs.mood == loseReply {
		return errEnd
	}
	hs.say("250 2.0.0 taken")
	return nil
}
