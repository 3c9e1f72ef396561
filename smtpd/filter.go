package smtpd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/smtpwire"
	"posthaste/internal/submit"
)

// A message is where content goes: to cleanup, or to a content filter before
// the queue.
type message interface {
	Write(p []byte) (int, error)
	Amend(env *mail.Envelope, opt submit.Options)
	Commit(ctx context.Context) (proto.SubmitReply, error)
	Abort()
}

// filterSettings say which content filter mail goes to before it is accepted
// (smtpd_proxy_filter). The filter is spoken to when all of a message is
// here, as with Postfix's speed_adjust: a slow client then costs it nothing.
// What it says is what the client hears.
type filterSettings struct {
	network, addr, ehlo string
	timeout             time.Duration
}

func readFilter(cfg *config.Config) (*filterSettings, error) {
	dest := cfg.String("smtpd_proxy_filter")
	if dest == "" {
		return nil, nil
	}
	f := &filterSettings{network: "tcp", ehlo: cfg.String("smtpd_proxy_ehlo"), timeout: cfg.Duration("smtpd_proxy_timeout")}
	for _, o := range cfg.List("smtpd_proxy_options") {
		if o != "speed_adjust" {
			return nil, fmt.Errorf("smtpd_proxy_options: %q: expected speed_adjust", o)
		}
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

// filtered is a message on its way to the filter.
type filtered struct {
	set     *filterSettings
	env     *mail.Envelope
	prepend []string
	body8   bool
	utf8    bool
	buf     []byte
	file    *os.File
	err     error
}

func (s *session) newFiltered() *filtered {
	m := &filtered{set: s.srv.filter, body8: s.m.Body == smtpwire.Body8BitMIME, utf8: s.m.SMTPUTF8}
	m.Amend(s.envelope(), s.options())
	return m
}

func (m *filtered) Amend(env *mail.Envelope, opt submit.Options) {
	m.env, m.prepend = env, opt.Prepend
}

func (m *filtered) Write(p []byte) (int, error) {
	if m.err != nil {
		return 0, m.err
	}
	if len(m.buf)+len(p) > bigBuf {
		m.err = m.spill()
	}
	m.buf = append(m.buf, p...)
	return len(p), m.err
}

func (m *filtered) spill() error {
	if m.file == nil {
		f, err := os.CreateTemp("", "posthaste-filter-")
		if err != nil {
			return fmt.Errorf("keep message for the content filter: %w", err)
		}
		os.Remove(f.Name())
		m.file = f
	}
	_, err := m.file.Write(m.buf)
	m.buf = m.buf[:0]
	return err
}

func (m *filtered) Abort() {
	if m.file != nil {
		m.file.Close()
		m.file = nil
	}
}

// Commit hands the message to the filter and returns its verdict.
func (m *filtered) Commit(ctx context.Context) (proto.SubmitReply, error) {
	defer m.Abort()
	r, err := m.deliver(ctx)
	if err != nil {
		return proto.SubmitReply{Code: 451, Status: dsn.S(4, 3, 0), Text: "Error: queue file write error"},
			fmt.Errorf("proxy filter %s: %w", m.set.addr, err)
	}
	return proto.SubmitReply{Code: r.Code, Status: r.Status, Text: r.Text}, nil
}

func (m *filtered) deliver(ctx context.Context) (smtpwire.Reply, error) {
	var none smtpwire.Reply
	if m.err != nil {
		return none, m.err
	}
	d := net.Dialer{Timeout: m.set.timeout}
	nc, err := d.DialContext(ctx, m.set.network, m.set.addr)
	if err != nil {
		return none, err
	}
	defer nc.Close()
	c := &filterConn{nc: nc, br: bufio.NewReader(nc), timeout: m.set.timeout}
	if r, err := c.reply(); err != nil || r.Code != 220 {
		return none, orUnexpected(r, err)
	}
	ehlo, err := c.ask("EHLO " + m.set.ehlo)
	if err != nil || ehlo.Code != 250 {
		return none, orUnexpected(ehlo, err)
	}
	offers := map[string]string{}
	for line := range strings.Lines(ehlo.Text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		offers[strings.ToUpper(word)] = strings.ToUpper(rest)
	}
	for _, line := range m.commands(offers) {
		r, err := c.ask(line)
		if err != nil {
			return none, err
		}
		if r.Code/100 != 2 {
			return r, nil // the first refusal is that of the message
		}
	}
	if r, err := c.ask("DATA"); err != nil || r.Code != 354 {
		return r, err
	}
	if err := m.content(c); err != nil {
		return none, err
	}
	r, err := c.ask(".")
	if err == nil {
		c.send("QUIT\r\n")
	}
	return r, err
}

func orUnexpected(r smtpwire.Reply, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("unexpected reply: %s", r.String())
}

// commands are the transaction as the filter hears it.
func (m *filtered) commands(offers map[string]string) (lines []string) {
	if attrs, has := offers["XFORWARD"]; has {
		line := "XFORWARD"
		c := m.env.Client
		for _, a := range []struct{ name, value string }{{"NAME", c.Name}, {"ADDR", c.Addr}, {"PORT", c.Port},
			{"PROTO", c.Proto}, {"HELO", c.Helo}, {"IDENT", m.env.LogIdent}, {"SOURCE", "REMOTE"}} {
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
		lines = append(lines, line)
	}
	_, has8 := offers["8BITMIME"]
	_, hasDSN := offers["DSN"]
	_, hasUTF8 := offers["SMTPUTF8"]
	line := "MAIL FROM:<" + rfc5322.Quote(m.env.Sender) + ">"
	if m.body8 && has8 {
		line += " BODY=8BITMIME"
	}
	if m.utf8 && hasUTF8 {
		line += " SMTPUTF8"
	}
	if hasDSN && m.env.Ret != dsn.RetUnset {
		line += " RET=" + m.env.Ret.String()
	}
	if hasDSN && m.env.EnvID != "" {
		line += " ENVID=" + dsn.Xtext(m.env.EnvID)
	}
	lines = append(lines, line)
	for _, r := range m.env.Recipients {
		line := "RCPT TO:<" + rfc5322.Quote(r.Address) + ">"
		if hasDSN && r.Notify != 0 {
			line += " NOTIFY=" + r.Notify.String()
		}
		if typ, addr, ok := strings.Cut(r.ORCPT, ";"); hasDSN && ok {
			line += " ORCPT=" + typ + ";" + dsn.Xtext(addr)
		}
		lines = append(lines, line)
	}
	return lines
}

// content sends the message with dots stuffed (RFC 5321 section 4.5.2).
func (m *filtered) content(c *filterConn) error {
	w := bufio.NewWriterSize(c, 32<<10)
	for _, h := range m.prepend {
		w.WriteString(h + "\r\n")
	}
	var src io.Reader = bytes.NewReader(m.buf)
	if m.file != nil {
		if _, err := m.file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		src = io.MultiReader(m.file, src)
	}
	br := bufio.NewReaderSize(src, 32<<10)
	start := true
	for {
		line, err := br.ReadSlice('\n')
		if len(line) > 0 {
			if start && line[0] == '.' {
				w.WriteByte('.')
			}
			w.Write(line)
			start = line[len(line)-1] == '\n'
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			if err == io.EOF {
				return w.Flush()
			}
			return err
		}
	}
}

// filterConn is the connection to the filter. Each read and write is bounded
// in time, each reply in size.
type filterConn struct {
	nc      net.Conn
	br      *bufio.Reader
	timeout time.Duration
	parser  smtpwire.Parser
}

func (c *filterConn) Write(p []byte) (int, error) {
	c.nc.SetWriteDeadline(time.Now().Add(c.timeout))
	return c.nc.Write(p)
}

func (c *filterConn) send(s string) error {
	_, err := c.Write([]byte(s))
	return err
}

func (c *filterConn) ask(line string) (smtpwire.Reply, error) {
	if err := c.send(line + "\r\n"); err != nil {
		return smtpwire.Reply{}, err
	}
	return c.reply()
}

func (c *filterConn) reply() (smtpwire.Reply, error) {
	for {
		c.nc.SetReadDeadline(time.Now().Add(c.timeout))
		line, err := c.br.ReadSlice('\n')
		if err != nil {
			return smtpwire.Reply{}, err
		}
		done, err := c.parser.Line(strings.TrimRight(string(line), "\r\n"))
		if err != nil {
			return smtpwire.Reply{}, err
		}
		if done {
			return c.parser.Reply(), nil
		}
	}
}
