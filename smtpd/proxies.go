package smtpd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/access"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// proxySettings say who may speak for others.
type proxySettings struct {
	xclient, xforward *table.List
	haproxy           bool
	timeout           time.Duration
}

func readProxies(cfg *config.Config, screen bool, o table.Options) (*proxySettings, error) {
	protocol, timeout := cfg.String("smtpd_upstream_proxy_protocol"), cfg.Duration("smtpd_upstream_proxy_timeout")
	if screen { // it is postscreen that the proxy speaks to
		protocol, timeout = cfg.String("postscreen_upstream_proxy_protocol"), cfg.Duration("postscreen_upstream_proxy_timeout")
	}
	p := &proxySettings{timeout: timeout}
	switch protocol {
	case "":
	case "haproxy":
		p.haproxy = true
	default:
		return nil, fmt.Errorf("smtpd_upstream_proxy_protocol = %s: expected haproxy", protocol)
	}
	var err error
	list := func(name string) *table.List {
		l, e := table.NewList(name, cfg.List(name), table.ListOptions{Kind: table.Clients, Parent: true, Table: o})
		err = errors.Join(err, e)
		return l
	}
	p.xclient, p.xforward = list("smtpd_authorized_xclient_hosts"), list("smtpd_authorized_xforward_hosts")
	return p, err
}

const (
	xclientNames  = "NAME ADDR PROTO HELO REVERSE_NAME PORT LOGIN DESTADDR DESTPORT"
	xforwardNames = "NAME ADDR PROTO HELO SOURCE PORT IDENT"

	unavailable = "[UNAVAILABLE]"
	tempUnavail = "[TEMPUNAVAIL]"
	// maxAttribute bounds what an attribute may be.
	maxAttribute = 255
	maxProtocol  = 64
)

var unauthorized = smtpwire.R(550, dsn.S(5, 7, 0), "Error: insufficient authorization")

// attributes reads the arguments of XCLIENT and XFORWARD: name=value, the
// value in xtext.
func (s *session) attributes(set func(name, value string) *smtpwire.Reply) *smtpwire.Reply {
	words := strings.Fields(s.cmd.Args)
	if len(words) == 0 {
		return smtpwire.R(501, dsn.S(5, 5, 4), "Syntax: "+s.cmd.Verb+" attribute=value...")
	}
	for _, w := range words {
		name, raw, has := strings.Cut(w, "=")
		if !has {
			return smtpwire.R(501, dsn.S(5, 5, 4), "Error: attribute=value expected")
		}
		value, err := dsn.ParseXtext(raw)
		if err != nil || len(value) > maxAttribute || value != smtpwire.Printable(value) {
			return smtpwire.R(501, dsn.S(5, 5, 4), "Bad attribute value syntax: "+clip(raw, 100))
		}
		if r := set(strings.ToUpper(name), value); r != nil {
			return r
		}
	}
	return nil
}

func badAttribute(name, value string) *smtpwire.Reply {
	return smtpwire.R(501, dsn.S(5, 5, 4), "Bad "+name+" syntax: "+clip(value, 100))
}

// xclient is XCLIENT: an authorized client says whom it speaks for. Without a
// reply the session is to be welcomed anew, as that client's.
func (s *session) xclient() *smtpwire.Reply {
	switch {
	case !s.mayXclient():
		return unauthorized
	case s.a.HasSender:
		return smtpwire.R(503, dsn.S(5, 5, 1), "Error: MAIL transaction in progress")
	}
	// Nothing is changed unless all of it is well-formed.
	next := xclientState{client: s.a.Client, proto: "SMTP"}
	if r := s.attributes(next.set); r != nil {
		return r
	}
	s.countCommand(true)
	s.endMail()
	s.logout()
	s.a.ResetHelo()
	s.a.Client = next.client
	s.a.Helo, s.a.Proto = next.helo, next.proto
	if next.login != "" {
		s.a.SASL = mail.SASL{Method: "XCLIENT", Username: next.login}
	}
	s.denied = nil
	s.applyClientSettings(s.ctx())
	s.a.Stage = "CONNECT"
	return nil
}

// xclientState is what XCLIENT tells, as it is read.
type xclientState struct {
	client      access.Client
	helo, proto string
	login       string
}

func (x *xclientState) set(name, value string) *smtpwire.Reply {
	gone := strings.EqualFold(value, unavailable)
	c := &x.client
	switch name {
	case "NAME", "REVERSE_NAME":
		status := access.NameOK
		switch {
		case gone:
			status, value = access.NameNotFound, "unknown"
		case strings.EqualFold(value, tempUnavail):
			status, value = access.NameTempFail, "unknown"
		case !resolver.ValidHostname(value):
			return badAttribute(name, value)
		}
		if name == "NAME" {
			c.Name, c.NameStatus = value, status
		}
		if name == "REVERSE_NAME" || status == access.NameOK { // what a name resolves to, resolves to it
			c.ReverseName, c.ReverseStatus = value, status
		}
	case "ADDR":
		if gone {
			c.Addr, c.AddrText = netip.Addr{}, "unknown"
			return nil
		}
		a, ok := parseAddr(value)
		if !ok {
			return badAttribute(name, value)
		}
		c.Addr, c.AddrText = a, a.String()
	case "DESTADDR":
		if gone {
			c.ServerAddr = "unknown"
			return nil
		}
		a, ok := parseAddr(value)
		if !ok {
			return badAttribute(name, value)
		}
		c.ServerAddr = a.String()
	case "PORT", "DESTPORT":
		if gone {
			value = "unknown"
		} else if n, err := strconv.ParseUint(value, 10, 16); err != nil || n == 0 {
			return badAttribute(name, value)
		}
		if name == "PORT" {
			c.Port = value
		} else {
			c.ServerPort = value
		}
	case "HELO":
		if x.helo = neutered(value); gone {
			x.helo = ""
		}
	case "PROTO":
		if x.proto = strings.ToUpper(value); x.proto != "SMTP" && x.proto != "ESMTP" {
			return badAttribute(name, value)
		}
	case "LOGIN":
		if x.login = value; gone {
			x.login = ""
		}
	default:
		return smtpwire.R(501, dsn.S(5, 5, 4), "Bad XCLIENT attribute name: "+clip(name, 100))
	}
	return nil
}

// parseAddr reads an address as XCLIENT and XFORWARD have it.
func parseAddr(s string) (netip.Addr, bool) {
	if len(s) > 5 && strings.EqualFold(s[:5], "IPv6:") {
		s = s[5:]
	}
	a, err := netip.ParseAddr(s)
	return a.Unmap().WithZone(""), err == nil
}

// xforward is what an authorized client has told of the message's way up to
// it. It is for logs and for the queue; it changes nothing of who the client
// is.
type xforward struct {
	given                         bool // something,
	client                        bool // who the client is
	name, addr, port, helo, proto string
	ident                         string
	source                        string // rewrite context: local or remote; empty when it was not told
}

func (x *xforward) apply(c *mail.Client) {
	if x.client {
		*c = mail.Client{Name: x.name, Addr: x.addr, Port: x.port, Helo: x.helo, Proto: x.proto}
	}
}

func (x *xforward) log(e *maillog.SMTPDClient) {
	e.OrigQueueID = x.ident
	if x.client {
		e.OrigName, e.OrigAddr = x.name, x.addr
	}
}

// xforwardCmd is XFORWARD.
func (s *session) xforwardCmd() *smtpwire.Reply {
	switch {
	case !s.mayXforward():
		return unauthorized
	case s.a.HasSender:
		return smtpwire.R(503, dsn.S(5, 5, 1), "Error: MAIL transaction in progress")
	}
	next := s.tx.forwarded
	if !next.given {
		next = xforward{given: true, name: "unknown", addr: "unknown", port: "unknown"}
	}
	if r := s.attributes(next.set); r != nil {
		return r
	}
	s.tx.forwarded = next
	return ok200
}

func (x *xforward) set(name, value string) *smtpwire.Reply {
	gone := strings.EqualFold(value, unavailable)
	orUnknown := func(to *string) {
		if *to = value; gone {
			*to = "unknown"
		}
	}
	orNone := func(to *string) {
		if *to = value; gone {
			*to = ""
		}
	}
	switch name {
	case "NAME", "ADDR", "PORT", "HELO", "PROTO":
		x.client = true
	}
	switch name {
	case "NAME":
		if !gone && !resolver.ValidHostname(value) {
			return badAttribute(name, value)
		}
		orUnknown(&x.name)
	case "ADDR":
		if !gone {
			a, ok := parseAddr(value)
			if !ok {
				return badAttribute(name, value)
			}
			value = a.String()
		}
		orUnknown(&x.addr)
	case "PORT":
		if n, err := strconv.ParseUint(value, 10, 16); !gone && (err != nil || n == 0) {
			return badAttribute(name, value)
		}
		orUnknown(&x.port)
	case "HELO":
		value = neutered(value)
		orNone(&x.helo)
	case "PROTO":
		if len(value) > maxProtocol {
			return badAttribute(name, value)
		}
		value = neutered(value)
		orNone(&x.proto)
	case "IDENT":
		if !gone && !mail.QueueID(value).Valid() {
			return badAttribute(name, value)
		}
		orNone(&x.ident)
	case "SOURCE":
		if gone {
			value = "local"
		}
		if x.source = strings.ToLower(value); x.source != "local" && x.source != "remote" {
			return badAttribute(name, value)
		}
	default:
		return smtpwire.R(501, dsn.S(5, 5, 4), "Bad XFORWARD attribute name: "+clip(name, 100))
	}
	return nil
}

// The PROXY protocol, versions 1 and 2: a proxy says whose connection it
// passes on, before anything else.

var proxySignature = []byte("\r\n\r\n\x00\r\nQUIT\n")

const (
	proxyV1Max = 107
	proxyV2Max = 536 // header and addresses; more than any proxy sends in extras that matter
)

var errProxyForm = errors.New("malformed header")

// proxyHeader reads the header that the configured proxy sends.
func (s *session) proxyHeader() error {
	p := s.srv.proxies
	if !p.haproxy {
		return nil
	}
	w := &s.wire
	timeout := w.timeout
	w.timeout, w.deadline = p.timeout, time.Now().Add(p.timeout)
	defer func() { w.timeout, w.deadline = timeout, time.Time{} }()
	for {
		used, client, server, err := parseProxy(w.buf[w.r:w.w])
		if err == nil && used > 0 {
			w.r += used
			if client != nil {
				s.setEndpoints(client, server)
			}
			return nil
		}
		if err == nil {
			w.makeRoom(smallBuf)
			err = w.fill(nil)
		}
		if err != nil {
			s.srv.log.LogWarning(maillog.ProxyHeaderFailed{Addr: s.a.AddrText, Reason: err.Error()})
			s.a.Stage = "" // there has been no session
			s.ended, s.quiet = true, true
			return err
		}
	}
}

// parseProxy reads a header at the start of b. used is 0 when more input is
// needed. No addresses come of a header that says that the connection is the
// proxy's own.
func parseProxy(b []byte) (used int, client, server net.Addr, err error) {
	n := min(len(b), len(proxySignature))
	if bytes.Equal(b[:n], proxySignature[:n]) && n > 0 {
		return parseProxy2(b)
	}
	if n := min(len(b), 6); !bytes.Equal(b[:n], []byte("PROXY ")[:n]) {
		return 0, nil, nil, errProxyForm
	}
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		if len(b) >= proxyV1Max {
			err = errProxyForm
		}
		return 0, nil, nil, err
	}
	line, crlf := bytes.CutSuffix(b[:i+1], []byte("\r\n"))
	f := strings.Split(string(line), " ")
	if !crlf || i >= proxyV1Max || len(f) < 2 {
		return 0, nil, nil, errProxyForm
	}
	if f[1] == "UNKNOWN" {
		return i + 1, nil, nil, nil
	}
	if len(f) != 6 || f[1] != "TCP4" && f[1] != "TCP6" {
		return 0, nil, nil, errProxyForm
	}
	client, err1 := tcpAddr(f[2], f[4], f[1] == "TCP4")
	server, err2 := tcpAddr(f[3], f[5], f[1] == "TCP4")
	if err := errors.Join(err1, err2); err != nil {
		return 0, nil, nil, err
	}
	return i + 1, client, server, nil
}

func tcpAddr(host, port string, v4 bool) (*net.TCPAddr, error) {
	a, err := netip.ParseAddr(host)
	n, err2 := strconv.ParseUint(port, 10, 16)
	if err != nil || err2 != nil || a.Is4() != v4 || a.Zone() != "" {
		return nil, errProxyForm
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, uint16(n))), nil
}

func parseProxy2(b []byte) (used int, client, server net.Addr, err error) {
	if len(b) < 16 {
		return 0, nil, nil, nil
	}
	size := int(binary.BigEndian.Uint16(b[14:]))
	if b[12]>>4 != 2 || size > proxyV2Max-16 {
		return 0, nil, nil, errProxyForm
	}
	if len(b) < 16+size {
		return 0, nil, nil, nil
	}
	used = 16 + size
	addrs := b[16:used]
	switch command, family := b[12]&15, b[13]; {
	case command == 0, command == 1 && family == 0: // LOCAL, or of no family
		return used, nil, nil, nil
	case command != 1:
		return 0, nil, nil, errProxyForm
	case family == 0x11 && size >= 12:
		return used, proxyAddr(addrs[:4], addrs[8:]), proxyAddr(addrs[4:8], addrs[10:]), nil
	case family == 0x21 && size >= 36:
		return used, proxyAddr(addrs[:16], addrs[32:]), proxyAddr(addrs[16:32], addrs[34:]), nil
	}
	return 0, nil, nil, errProxyForm
}

func proxyAddr(ip, port []byte) net.Addr {
	return &net.TCPAddr{IP: bytes.Clone(ip), Port: int(binary.BigEndian.Uint16(port))}
}
