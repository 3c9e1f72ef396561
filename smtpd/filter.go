// The content filter before the queue (smtpd_proxy_filter): the conversation with it
// while the client speaks. The filter that hears of messages as a whole is in
// filterbuffer.go, and uses the same conversation.

package smtpd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/lockstep"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/smtpwire"
	"posthaste/internal/submit"
)

// A message is where content goes: to cleanup, or to a content filter before the
// queue. It belongs to one transaction. After Commit or Abort it must not be used.
type message interface {
	// Write takes content in lines with CRLF. An error is kept, and is Commit's as well.
	Write(p []byte) (int, error)
	// Amend replaces the envelope and the options before Commit.
	Amend(env *mail.Envelope, opt submit.Options)
	// Commit ends the message. The reply is for the client; code 250 says that cleanup
	// has it on stable storage, or that the filter has taken it. The error, if any, is
	// for the log: the reply is good in any case.
	Commit(ctx context.Context) (proto.SubmitReply, error)
	// Abort gives the message up. It may be called after it has failed.
	Abort()
}

// filterSettings say which content filter mail goes to before it is accepted
// (smtpd_proxy_filter). It hears the transaction while the client speaks: MAIL
// with the first recipient that we accept, each recipient, DATA, and the
// content as it comes; what it refuses, the client hears refused. With
// smtpd_proxy_options = speed_adjust it hears all of that when the message is
// here as a whole: a slow client then costs it nothing, but what it says of
// one recipient is said of the message.
type filterSettings struct {
	name string // as configured, for log lines
	// network and addr are what to connect to, ehlo the name that we use there.
	network, addr, ehlo string
	timeout             time.Duration // of connecting, of one write, and of one reply
	buffer              bool          // speed_adjust
}

// readFilter reads smtpd_proxy_filter and what belongs to it. nil is no filter. The
// name is looked up for each message, not here.
func readFilter(cfg *config.Config) (*filterSettings, error) {
	dest := cfg.String("smtpd_proxy_filter")
	if dest == "" {
		return nil, nil
	}
	f := &filterSettings{name: dest, network: "tcp", ehlo: cfg.String("smtpd_proxy_ehlo"), timeout: cfg.Duration("smtpd_proxy_timeout")}
	for _, o := range cfg.List("smtpd_proxy_options") {
		if o != "speed_adjust" {
			return nil, fmt.Errorf("smtpd_proxy_options: %q: expected speed_adjust", o)
		}
		f.buffer = true
	}
	if path, unix := strings.CutPrefix(dest, "unix:"); unix {
		f.network, f.addr = "unix", path
		return f, nil
	}
	dest = strings.TrimPrefix(dest, "inet:")
	host, port, err := net.SplitHostPort(dest)
	if err != nil { // a port alone
		host, port = "", dest
	}
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		return nil, fmt.Errorf("smtpd_proxy_filter = %s: expected host:port", dest)
	}
	f.addr = net.JoinHostPort(host, port)
	return f, nil
}

// filterFailed is the reply when the filter cannot be used: the client may try
// again, and learns nothing about the filter. The text is Postfix's.
var filterFailed = smtpwire.R(451, dsn.S(4, 3, 0), "Error: queue file write error")

// maxFilterLine bounds a line of a filter's reply, in octets; the parser bounds the
// reply.
const maxFilterLine = 4096

// A filterTalk is what is said to the filter about one message. Each read and write
// is bounded in time, each reply in size. When it has failed once, it fails to the
// end: the client is to begin anew. It belongs to the session's goroutine, and
// lives until close.
type filterTalk struct {
	set    *filterSettings
	log    *maillog.Logger
	nc     *lockstep.Conn // nil after close
	parser smtpwire.Parser
	offers map[string]string // extensions, with their parameters, in upper case
	failed bool              // nothing more is sent
	body   *bufio.Writer     // the content, from DATA to the reply to it; else nil
	inLine bool              // the content is in the middle of a line
}

// newFilterTalk connects to the filter. A refusal is for the client; why is in
// the log.
func newFilterTalk(ctx context.Context, set *filterSettings, log *maillog.Logger) (*filterTalk, *smtpwire.Reply) {
	d := net.Dialer{Timeout: set.timeout}
	nc, err := d.DialContext(ctx, set.network, set.addr)
	if err != nil {
		why := err.Error()
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			why = strings.ToUpper(errno.Error()[:1]) + errno.Error()[1:]
		}
		log.LogWarning(maillog.ProxyFailed{Filter: set.name, Problem: maillog.ProxyConnect, Text: why})
		return nil, filterFailed
	}
	t := &filterTalk{set: set, log: log, nc: lockstep.New(nc), offers: map[string]string{}}
	if _, r := t.hear("connection request", '2'); r != nil {
		t.close()
		return nil, filterFailed
	}
	ehlo, r := t.ask("EHLO "+set.ehlo, '2')
	if r != nil {
		t.close()
		return nil, filterFailed
	}
	for line := range strings.Lines(ehlo.Text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		t.offers[strings.ToUpper(word)] = strings.ToUpper(rest)
	}
	return t, nil
}

// ask says a command. A reply of another class than is wanted is a refusal, for the
// client to hear. want is the first digit, 0 where any will do.
func (t *filterTalk) ask(line string, want byte) (answer, refusal *smtpwire.Reply) {
	if t.failed {
		return nil, filterFailed
	}
	// A reply that is here already would be taken for the one to this: at the end of the
	// content for the word that the filter has the message.
	if err := t.nc.Before(); errors.Is(err, lockstep.ErrUnasked) {
		t.log.LogWarning(maillog.ProxyFailed{Filter: t.set.name, Problem: maillog.ProxyUnasked, Text: err.Error()})
		t.failed = true
		return nil, filterFailed
	}
	if _, err := t.send([]byte(line + "\r\n")); err != nil {
		return nil, t.fail(err)
	}
	return t.hear(line, want)
}

// hear reads the reply to what was asked, which is for the log line. What the
// filter refuses in words of its own is passed on; what is no reply, or of a class
// that makes no sense, breaks the conversation off.
func (t *filterTalk) hear(asked string, want byte) (answer, refusal *smtpwire.Reply) {
	t.nc.SetReadDeadline(time.Now().Add(t.set.timeout)) // of the whole reply
	for done := false; !done; {
		line, err := lockstep.ReadLine(t.nc.Reader(), maxFilterLine)
		if err != nil {
			return nil, t.fail(err)
		}
		text := string(line)
		if done, err = t.parser.Line(text); err != nil {
			t.log.LogWarning(maillog.ProxyFailed{Filter: t.set.name, Problem: maillog.ProxyGarbage, Text: smtpwire.Printable(text)})
			t.failed = true
			return nil, filterFailed
		}
	}
	r := t.parser.Reply()
	class := byte('0' + r.Code/100)
	if want == 0 && (class == '2' || class == '4' || class == '5') || class == want {
		return &r, nil
	}
	t.log.LogWarning(maillog.ProxyFailed{Filter: t.set.name, Problem: maillog.ProxyRejected, Command: asked, Text: r.String()})
	if class != '4' && class != '5' {
		t.failed = true // it is out of step
		return nil, filterFailed
	}
	return nil, &r
}

// fail says in the log, once, why nothing more can be said, and returns the
// refusal.
func (t *filterTalk) fail(err error) *smtpwire.Reply {
	if !t.failed {
		e := maillog.ProxyFailed{Filter: t.set.name, Problem: maillog.ProxyLost}
		if isTimeout(err) {
			e.Problem = maillog.ProxyTimeout
		}
		t.log.LogWarning(e)
	}
	t.failed = true
	return filterFailed
}

// send writes p within the timeout.
func (t *filterTalk) send(p []byte) (int, error) {
	t.nc.SetWriteDeadline(time.Now().Add(t.set.timeout))
	return t.nc.Write(p)
}

// close ends the conversation: in order, unless it is in the middle of content, of
// which the filter must not see an end. t may be nil. It may be called more than
// once.
func (t *filterTalk) close() {
	if t == nil || t.nc == nil {
		return
	}
	if t.body == nil && !t.failed {
		_, _ = t.send([]byte("QUIT\r\n"))
	}
	t.nc.Close()
	t.nc, t.failed = nil, true
}

// mail begins the transaction: XFORWARD, so that the filter can log and judge the
// client, and MAIL. A refusal of MAIL is the client's to hear; one of XFORWARD is
// not about its mail.
func (t *filterTalk) mail(env *mail.Envelope, body8, utf8 bool) *smtpwire.Reply {
	if line := t.xforward(env); line != "" {
		if _, r := t.ask(line, '2'); r != nil {
			return filterFailed
		}
	}
	_, r := t.ask(t.mailCommand(env, body8, utf8), '2')
	return r
}

// xforward is the XFORWARD command with those attributes that the filter has asked
// for, or empty if it asks for none.
func (t *filterTalk) xforward(env *mail.Envelope) string {
	attrs, has := t.offers["XFORWARD"]
	if !has {
		return ""
	}
	line := "XFORWARD"
	c := env.Client
	for _, a := range []struct{ name, value string }{{"NAME", c.Name}, {"ADDR", c.Addr}, {"PORT", c.Port},
		{"PROTO", c.Proto}, {"HELO", c.Helo}, {"IDENT", env.LogIdent}, {"SOURCE", strings.ToUpper(env.RewriteContext)}} {
		if !strings.Contains(" "+attrs+" ", " "+a.name+" ") {
			continue
		}
		value := a.value
		if value == "" || value == "unknown" {
			value = unavailable
		}
		if a.name == "ADDR" && strings.Contains(value, ":") {
			value = "IPv6:" + value
		}
		line += " " + a.name + "=" + dsn.Xtext(value)
	}
	return line
}

// has says whether the filter offers an extension.
func (t *filterTalk) has(extension string) bool {
	_, has := t.offers[extension]
	return has
}

// mailCommand is MAIL with those of its parameters that the filter understands.
// What it does not offer is left out: the filter passes the message back to us, and
// the rest is lost on that way, as with Postfix.
func (t *filterTalk) mailCommand(env *mail.Envelope, body8, utf8 bool) string {
	line := "MAIL FROM:<" + rfc5322.Quote(env.Sender) + ">"
	if body8 && t.has("8BITMIME") {
		line += " BODY=8BITMIME"
	}
	if utf8 && t.has("SMTPUTF8") {
		line += " SMTPUTF8"
	}
	if t.has("DSN") && env.Ret != dsn.RetUnset {
		line += " RET=" + env.Ret.String()
	}
	if t.has("DSN") && env.EnvID != "" {
		line += " ENVID=" + dsn.Xtext(env.EnvID)
	}
	return line
}

// rcpt tells of a recipient.
func (t *filterTalk) rcpt(to *mail.Recipient) *smtpwire.Reply {
	line := "RCPT TO:<" + rfc5322.Quote(to.Address) + ">"
	if t.has("DSN") && to.Notify != 0 {
		line += " NOTIFY=" + to.Notify.String()
	}
	if typ, addr, ok := strings.Cut(to.ORCPT, ";"); ok && t.has("DSN") {
		line += " ORCPT=" + typ + ";" + dsn.Xtext(addr)
	}
	_, r := t.ask(line, '2')
	return r
}

// data begins the content.
func (t *filterTalk) data() *smtpwire.Reply {
	_, r := t.ask("DATA", '3')
	if r == nil {
		t.body = bufio.NewWriterSize(filterBody{t}, 32<<10)
	}
	return r
}

// filterBody is where content leaves for the filter. An error is logged where it
// happens.
type filterBody struct{ t *filterTalk }

// Write implements io.Writer.
func (b filterBody) Write(p []byte) (int, error) {
	n, err := b.t.send(p)
	if err != nil {
		b.t.fail(err)
	}
	return n, err
}

// Write implements message: it sends content, with dots stuffed (RFC 5321 section
// 4.5.2). Lines may come in pieces.
func (t *filterTalk) Write(p []byte) (int, error) {
	if t.failed {
		return 0, net.ErrClosed
	}
	for rest := p; len(rest) > 0; {
		if !t.inLine && rest[0] == '.' {
			t.body.WriteByte('.')
		}
		line := rest
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			line = rest[:i+1]
		}
		if _, err := t.body.Write(line); err != nil {
			return 0, err
		}
		rest = rest[len(line):]
		t.inLine = line[len(line)-1] != '\n'
	}
	return len(p), nil
}

// Amend implements message. It does nothing: the filter has been told what there is
// to tell.
func (t *filterTalk) Amend(*mail.Envelope, submit.Options) {}

// Commit implements message: it ends the content, and returns the filter's verdict,
// of whatever class. What remains in the buffer is lost when the filter is.
func (t *filterTalk) Commit(context.Context) (proto.SubmitReply, error) {
	r := filterFailed
	if !t.failed && t.body.Flush() == nil {
		answer, refusal := t.ask(".", 0)
		if r = refusal; r == nil {
			r = answer
			t.body = nil // it may be left in order
		}
	}
	t.close()
	return proto.SubmitReply{Code: r.Code, Status: r.Status, Text: r.Text}, nil
}

// Abort implements message: it breaks off, so that the filter sees no end of the
// content and drops the message.
func (t *filterTalk) Abort() { t.close() }

// nowhere takes a message that the content filter is not to see, because a mail
// filter has said that it is to be thrown away. The client is told that all is
// well, as DISCARD always does.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error)          { return len(p), nil }
func (nowhere) Amend(*mail.Envelope, submit.Options) {}
func (nowhere) Abort()                               {}

func (nowhere) Commit(context.Context) (proto.SubmitReply, error) {
	return proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"}, nil
}
