// How the transaction engine is driven: what stands between it and the session.

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

// ports is the listener that the engine is served from. It lives as long as the
// Server, and may be used concurrently.
type ports struct {
	// in has ports that need a goroutine of the engine's: Accept returns them.
	in chan *port
	// next has sessions for a port that has served another and waits. It has no room, so
	// that a session is only given to a port that takes it at once.
	next chan *session
	// spare holds a token for each port that waits for a session.
	spare chan struct{}
	// done is closed when there will be no more sessions.
	done chan struct{}
	once sync.Once
}

// maxSpare bounds the ports that wait for a session, and thereby the memory that a
// burst of clients leaves behind. More of them would only help where more than this
// many sessions end and begin at the same time.
const maxSpare = 32

func newPorts() *ports {
	return &ports{in: make(chan *port), next: make(chan *session), spare: make(chan struct{}, maxSpare), done: make(chan struct{})}
}

// Accept implements net.Listener for the engine, which starts a goroutine for each
// port.
func (l *ports) Accept() (net.Conn, error) {
	select {
	case p := <-l.in:
		return p, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// serve gives a session to the engine: to a port that waits, or else to a new one.
// It returns when the engine has taken it.
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

// Close has all ports that wait go away, and Accept return. Sessions under way are
// not touched.
func (l *ports) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener. The engine only shows it in errors.
func (l *ports) Addr() net.Addr { return engineAddr }

var engineAddr = &net.UnixAddr{Name: "engine", Net: "unix"}

// portStage is a stage of the exchange with the engine: it says what the next reply
// line of the engine's answers.
type portStage uint8

const (
	portGreeting portStage = iota // the engine is about to greet
	portReady                     // the engine waits for a command
	portBusy                      // the engine has one
	portHidden                    // the engine has one that the client did not send
	portGone                      // nothing more is to pass
)

// A port is what the engine takes for the client's connection. It belongs to one
// goroutine of the engine's, which is also the session's; nothing here is locked.
type port struct {
	s     *session // nil after its end
	peer  net.Addr // the client's address; it is needed after the session has ended, too
	stage portStage
	feed  string // what the engine is still to read of the present command
	next  string // a command that waits until the engine has answered a hidden one
	// hello: the engine has seen a HELO. It wants one before MAIL.
	hello bool
	// stale: the engine may be in the middle of a transaction of a session that has
	// ended, and must be told RSET before it hears of this one.
	stale bool
	// detached says that the session goes on over another port.
	detached bool
}

func newPort(s *session, stage portStage) *port {
	return &port{s: s, peer: s.wire.nc.RemoteAddr(), stage: stage}
}

// Read implements net.Conn: it gives the engine its next command. The engine calls
// it when it has answered all before, so that this is where a session waits for its
// client. End of file is all that the engine is told of an error: the session has
// dealt with it.
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

// command gets the next command for the engine. Commands that the engine has no
// part in have been carried out by then. An error ends the session's use of this
// port.
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
	// RSET first, for what the last session may have left: the reply to it is
	// nobody's (portHidden), and the command follows.
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

// renew ends the session and takes the next one, on the goroutine that waits
// anyway. It returns false if there is none, or if the engine can do no more: it
// remembers who has authenticated, and no command makes it forget.
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

// end ends the session. From then on its memory may be another client's.
func (p *port) end() {
	if p.s != nil {
		p.s.close()
		p.s = nil
	}
}

// greet begins the session. A session that does not come about is marked as ended,
// and the engine finds no command. The engine calls us here from its own greeting,
// where it recovers from nothing: hence the recover.
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

// What the engine is given to read. Nothing that a client has sent is ever among
// it, so that there is nothing in the engine's parser for a client to exploit.
const (
	engineHelo = "HELO client\r\n"
	engineMail = "MAIL FROM:<s@c>\r\n" // short: the engine copies addresses, and its answers have them
	engineRcpt = "RCPT TO:<r@s>\r\n"
	engineData = "DATA\r\n"
	engineRset = "RSET\r\n"
	engineDone = ".\r\n" // all content that the engine ever sees
)

// Write implements net.Conn: it takes a reply line of the engine's. Only the last
// line of a reply counts, and of that only the code: the session has its own words.
// The engine writes each line with one call.
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
		// A challenge of AUTH; what the client answers is read by command, in stage
		// portBusy.
		if code == 334 {
			p.s.challenge(strings.TrimRight(string(b[4:]), "\r\n"))
			break
		}
		p.stage = portReady
		p.s.engineReplied(code)
	}
	return len(b), nil
}

// Close implements net.Conn. It ends the session, unless that goes on over another
// port.
func (p *port) Close() error {
	p.stage = portGone
	if !p.detached {
		p.end()
	}
	return nil
}

// The rest of net.Conn. Deadlines are the wire's: what the engine sets here has no
// effect.
func (p *port) LocalAddr() net.Addr              { return engineAddr }
func (p *port) RemoteAddr() net.Addr             { return p.peer }
func (p *port) SetDeadline(time.Time) error      { return nil }
func (p *port) SetReadDeadline(time.Time) error  { return nil }
func (p *port) SetWriteDeadline(time.Time) error { return nil }

// backend implements the engine's side of a new connection: one session for each
// port.
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

// The calls of go-smtp's Session, for the commands that are in order. Reset and
// Logout have nothing to do: the session resets itself when it reads the command.
func (e *engineSession) Mail(string, *smtp.MailOptions) error { return e.verdict(e.p.s.mail()) }
func (e *engineSession) Rcpt(string, *smtp.RcptOptions) error { return e.verdict(e.p.s.rcpt()) }
func (e *engineSession) Reset()                               {}
func (e *engineSession) Logout() error                        { return nil }

// Data takes the content from the client's wire, all of it. The engine then reads
// engineDone, so that it believes it has seen a message.
func (e *engineSession) Data(io.Reader) error {
	err := e.verdict(e.p.s.data())
	e.p.feed = engineDone
	return err
}

// AuthMechanisms is for the engine's reply to EHLO, which nobody sees.
func (e *engineSession) AuthMechanisms() []string { return nil }

// Auth begins the exchange of AUTH. The mechanism is always engineMechanism: the
// session knows the real one.
func (e *engineSession) Auth(mech string) (sasl.Server, error) { return e.p.s.authServer(mech) }

// newEngine makes the engine. Its limits are off: ours come first.
func newEngine(log smtp.Logger) *smtp.Server {
	e := smtp.NewServer(backend{})
	e.Domain = "localhost" // never seen
	e.ErrorLog = log
	e.AllowInsecureAuth = true // ours to judge
	e.MaxLineLength = 0
	return e
}

// changePort has the engine forget what has happened, with RSET where that is
// enough, or else with a new engine: after AUTH, since go-smtp takes no second one.
// io.EOF then ends the old port's goroutine, which must not touch the session any
// more. STARTTLS and XCLIENT need this (RFC 3207 section 4.2: what was known of the
// client is forgotten).
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
