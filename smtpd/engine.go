package smtpd

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"posthaste/internal/smtpwire"
)

// The transaction engine is go-smtp: it decides in which state of a
// transaction a command is in order, calls us for MAIL, RCPT and DATA, and
// runs the challenges of AUTH. It is driven through a port, a net.Conn that
// it reads one command at a time from and writes one reply line at a time to.
// Neither are the client's: the session reads the client's command, judges
// its form, and lets the engine see a plain one of the same kind; the
// engine's reply says whether the command was in order, and the session
// answers the client in its own words. So the engine's own limits on lines,
// parameters, extensions and texts are never reached.
//
// The engine reads only when it has answered all there was to answer. Every
// command and its reply are thus in step, on one goroutine for each session.
//
// When a session has ended, its port takes the next one: the engine is told
// RSET and hears of it no more. The goroutine has a stack of the right size by
// then, and the engine its buffers; to make both anew took a fifth of the time
// of a session with one message.

// ports is the listener that the engine is served from.
type ports struct {
	in    chan *port    // for a new goroutine
	next  chan *session // for a port that has served another
	spare chan struct{} // a token for each port that may wait for a session
	done  chan struct{}
	once  sync.Once
}

// maxSpare bounds the ports that wait for a session.
const maxSpare = 32

func newPorts() *ports {
	return &ports{in: make(chan *port), next: make(chan *session), spare: make(chan struct{}, maxSpare), done: make(chan struct{})}
}

func (l *ports) Accept() (net.Conn, error) {
	select {
	case p := <-l.in:
		return p, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// serve gives a session to the engine.
func (l *ports) serve(s *session) {
	select {
	case l.next <- s:
	default:
		s.port = newPort(s, portGreeting)
		l.in <- s.port
	}
}

// another waits for a session. It returns nil when enough others wait, or when
// there will be none.
func (l *ports) another() *session {
	select {
	case l.spare <- struct{}{}:
	default:
		return nil
	}
	defer func() { <-l.spare }()
	select {
	case s := <-l.next:
		return s
	case <-l.done:
		return nil
	}
}

func (l *ports) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *ports) Addr() net.Addr { return engineAddr }

var engineAddr = &net.UnixAddr{Name: "engine", Net: "unix"}

// portStage is a stage of the exchange with the engine.
type portStage uint8

const (
	portGreeting portStage = iota // the engine is about to greet
	portReady                     // the engine waits for a command
	portBusy                      // the engine has one
	portHidden                    // the engine has one that the client did not send
	portGone                      // nothing more is to pass
)

// A port is what the engine takes for the client's connection.
type port struct {
	s     *session // nil after its end
	peer  net.Addr // the client, also then
	stage portStage
	feed  string // what the engine is still to read
	next  string // a command that waits for a hidden one
	hello bool   // the engine has seen a HELO
	stale bool   // the engine may be in a transaction of the past
	// detached says that the session goes on over another port.
	detached bool
}

func newPort(s *session, stage portStage) *port {
	return &port{s: s, peer: s.wire.nc.RemoteAddr(), stage: stage}
}

// Read gives the engine its next command.
func (p *port) Read(b []byte) (int, error) {
	if p.feed == "" {
		if p.stage == portGone {
			return 0, io.EOF
		}
		feed, err := p.command()
		if err != nil {
			p.stage = portGone
			return 0, io.EOF
		}
		p.feed = feed
	}
	n := copy(b, p.feed)
	p.feed = p.feed[n:]
	return n, nil
}

// command gets the next command for the engine.
func (p *port) command() (feed string, err error) {
	if p.next != "" {
		feed, p.next, p.stage = p.next, "", portBusy
		return feed, nil
	}
	defer func() {
		// The engine recovers from what happens in its own calls only.
		if r := recover(); r != nil {
			p.s.panicked(r)
			err = errors.New("panic")
		}
	}()
	if p.stage == portBusy {
		return p.s.continuation() // inside AUTH
	}
	for feed == "" {
		if feed, err = p.s.nextCommand(); err != nil && !p.renew() {
			return "", err
		}
	}
	switch {
	case p.stale && p.hello:
		p.next, p.stage, p.stale = feed, portHidden, false
		return engineRset, nil
	case !p.hello && feed != engineHelo && feed != engineRset:
		// The engine insists on HELO; smtpd_helo_required is ours to judge.
		p.next, p.stage, p.hello, p.stale = feed, portHidden, true, false
		return engineHelo, nil
	}
	p.hello = p.hello || feed == engineHelo
	p.stage = portBusy
	return feed, nil
}

// renew ends the session and takes the next. It returns false if there is
// none, or if the engine can do no more: it remembers who has authenticated.
func (p *port) renew() bool {
	if p.detached || p.s.counts[vAuth].total > 0 {
		return false
	}
	ports := p.s.srv.ports
	p.end()
	s := ports.another()
	if s == nil {
		return false
	}
	p.s, p.peer, p.stale, s.port = s, s.wire.nc.RemoteAddr(), true, p
	p.greet()
	return true
}

// end ends the session. It may be another client's from then on.
func (p *port) end() {
	if p.s != nil {
		p.s.close()
		p.s = nil
	}
}

// greet begins the session. One that does not come to be has ended. The engine
// has us called from its own greeting, where it recovers from nothing.
func (p *port) greet() {
	defer func() {
		if r := recover(); r != nil {
			p.s.panicked(r)
		}
	}()
	if err := p.s.greet(); err != nil {
		p.s.ended = true
	}
}

// What the engine is given to read.
const (
	engineHelo = "HELO client\r\n"
	engineMail = "MAIL FROM:<s@c>\r\n" // short: the engine copies addresses, and its answers have them
	engineRcpt = "RCPT TO:<r@s>\r\n"
	engineData = "DATA\r\n"
	engineRset = "RSET\r\n"
	engineDone = ".\r\n" // all content that the engine ever sees
)

// Write takes a reply line of the engine.
func (p *port) Write(b []byte) (int, error) {
	if len(b) < 4 || b[3] == '-' {
		return len(b), nil
	}
	code := int(b[0]-'0')*100 + int(b[1]-'0')*10 + int(b[2]-'0')
	switch p.stage {
	case portGreeting:
		p.stage = portReady
		p.greet()
	case portHidden:
		p.stage = portReady
	case portBusy:
		if code == 354 {
			p.s.reply(reply354)
			break
		}
		if code == 334 {
			p.s.challenge(strings.TrimRight(string(b[4:]), "\r\n"))
			break
		}
		p.stage = portReady
		p.s.engineReplied(code)
	}
	return len(b), nil
}

// Close ends the session, unless it goes on over another port.
func (p *port) Close() error {
	p.stage = portGone
	if !p.detached {
		p.end()
	}
	return nil
}

func (p *port) LocalAddr() net.Addr              { return engineAddr }
func (p *port) RemoteAddr() net.Addr             { return p.peer }
func (p *port) SetDeadline(time.Time) error      { return nil }
func (p *port) SetReadDeadline(time.Time) error  { return nil }
func (p *port) SetWriteDeadline(time.Time) error { return nil }

// backend gives the engine its session.
type backend struct{}

func (backend) NewSession(c *smtp.Conn) (smtp.Session, error) {
	return &engineSession{c.Conn().(*port)}, nil
}

// engineSession is what the engine calls. The session has kept the client's
// command; the arguments here are those of the plain ones.
type engineSession struct{ p *port }

// verdict tells the engine what the client is told.
func (e *engineSession) verdict(r *smtpwire.Reply) error {
	e.p.s.out = r
	if r.Code/100 == 2 {
		return nil
	}
	return &smtp.SMTPError{Code: r.Code, EnhancedCode: smtp.NoEnhancedCode, Message: "no"}
}

func (e *engineSession) Mail(string, *smtp.MailOptions) error { return e.verdict(e.p.s.mail()) }
func (e *engineSession) Rcpt(string, *smtp.RcptOptions) error { return e.verdict(e.p.s.rcpt()) }
func (e *engineSession) Reset()                               {}
func (e *engineSession) Logout() error                        { return nil }

// Data takes the content from the wire. The engine then reads engineDone.
func (e *engineSession) Data(io.Reader) error {
	err := e.verdict(e.p.s.data())
	e.p.feed = engineDone
	return err
}

func (e *engineSession) AuthMechanisms() []string { return nil }

func (e *engineSession) Auth(mech string) (sasl.Server, error) { return e.p.s.authServer(mech) }

// newEngine makes the engine of one Serve call.
func newEngine(log smtp.Logger) *smtp.Server {
	e := smtp.NewServer(backend{})
	e.Domain = "localhost" // never seen
	e.ErrorLog = log
	e.AllowInsecureAuth = true // ours to judge
	e.MaxLineLength = 0
	return e
}

// changePort has the engine forget what has happened, with RSET where that is
// enough, or else with a new engine. The old one is done with then: its
// goroutine must not touch the session after this.
func (s *session) changePort() error {
	if s.counts[vAuth].total == 0 {
		s.port.stale = true
		return nil
	}
	s.port.detached = true
	p := newPort(s, portHidden) // its greeting is not for the client
	s.port = p
	s.srv.ports.in <- p
	return io.EOF
}
