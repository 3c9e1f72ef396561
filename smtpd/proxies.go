// Clients that speak for others: XCLIENT, by which an authorized client takes on
// another identity; XFORWARD, by which it tells whose message it passes on; and the
// PROXY protocol, in which a load balancer says whose connection it hands over. All of
// it overrides what the socket says, so that each is accepted only from whom the
// configuration names.

package smtpd

import (
	"bytes"
	"encoding/binary"
	"errors"
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

// proxySettings say who may speak for others. They do not change.
type proxySettings struct {
	xclient, xforward *table.List   // smtpd_authorized_xclient_hosts and _xforward_hosts
	haproxy           bool          // each connection begins with a PROXY header
	timeout           time.Duration // for all of that header
}

// readProxies reads them. screen says that the service is postscreen, which has its
// own parameters for the PROXY protocol.
func readProxies(cfg *config.Config, screen bool, o table.Options) (*proxySettings, error) {
	protocol, timeout := cfg.String("smtpd_upstream_proxy_protocol"), cfg.Duration("smtpd_upstream_proxy_timeout")
	if screen { // it is postscreen that the proxy speaks to
		protocol, timeout = cfg.String("postscreen_upstream_proxy_protocol"), cfg.Duration("postscreen_upstream_proxy_timeout")
	}
	p := &proxySettings{haproxy: protocol == "haproxy", timeout: timeout}
	var err error
	list := func(name string) *table.List {
		l, e := table.NewList(name, cfg.List(name), table.ListOptions{Kind: table.Clients, Parent: true, Table: o})
		err = errors.Join(err, e)
		return l
	}
	p.xclient, p.xforward = list("smtpd_authorized_xclient_hosts"), list("smtpd_authorized_xforward_hosts")
	return p, err
}

// The attributes of either command, as EHLO announces them.
const (
	xclientNames  = "NAME ADDR PROTO HELO REVERSE_NAME PORT LOGIN DESTADDR DESTPORT"
	xforwardNames = "NAME ADDR PROTO HELO SOURCE PORT IDENT"

	// unavailable and tempUnavail stand for a value that is not known, for good or for
	// now. Case does not matter.
	unavailable = "[UNAVAILABLE]"
	tempUnavail = "[TEMPUNAVAIL]"
	// maxAttribute and maxProtocol bound a value, in octets: host names have 255.
	maxAttribute = 255
	maxProtocol  = 64
)

// unauthorized is said to others: the commands are known, and not for them.
var unauthorized = smtpwire.R(550, dsn.S(5, 7, 0), "Error: insufficient authorization")

// attributes reads the arguments of XCLIENT and XFORWARD: name=value, the value in
// xtext (RFC 3461 section 4). It gives each to set and returns the first refusal.
// Values with controls are refused: they end up in log lines and header fields.
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

// badAttribute refuses a value that does not have the form of its attribute.
func badAttribute(name, value string) *smtpwire.Reply {
	return smtpwire.R(501, dsn.S(5, 5, 4), "Bad "+name+" syntax: "+clip(value, 100))
}

// xclient is XCLIENT: an authorized client says whom it speaks for. Without a reply
// the session is to be welcomed anew, as that client's: the new client is judged
// and greeted like any other, and may not use XCLIENT unless it is authorized
// itself.
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

// xclientState is what XCLIENT tells, as it is read. It begins as what the client
// is now: attributes that are left out stay.
type xclientState struct {
	client      access.Client
	helo, proto string // of a HELO that the client is not going to send; proto is SMTP or ESMTP
	login       string // the user that it has authenticated as; empty: none
}

// set takes one attribute. A reply refuses the command.
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

// parseAddr reads an address as XCLIENT and XFORWARD have it: IPv6 may have the
// prefix of an address literal (RFC 5321 section 4.1.3). ok is false for what is no
// address.
func parseAddr(s string) (netip.Addr, bool) {
	if len(s) > 5 && strings.EqualFold(s[:5], "IPv6:") {
		s = s[5:]
	}
	a, err := netip.ParseAddr(s)
	return a.Unmap().WithZone(""), err == nil
}

// xforward is what an authorized client has told of the message's way up to it: a
// content filter that hands a message back says where it came from. It is for logs
// and for the queue; it changes nothing of who the client is. The zero value is
// "nothing was told".
type xforward struct {
	given  bool // XFORWARD has come
	client bool // and has told something of the client
	// name, addr and port are "unknown" when they are not known, helo and proto empty.
	name, addr, port, helo, proto string
	ident                         string // the message's queue ID where it came from; may be empty
	source                        string // rewrite context: local or remote; empty when it was not told
}

// apply has c be the client that was told of, if any was.
func (x *xforward) apply(c *mail.Client) {
	if x.client {
		*c = mail.Client{Name: x.name, Addr: x.addr, Port: x.port, Helo: x.helo, Proto: x.proto}
	}
}

// log has the client= line show the message's queue ID and client of before: this
// is how one follows a message through a content filter.
func (x *xforward) log(e *maillog.SMTPDClient) {
	e.OrigQueueID = x.ident
	if x.client {
		e.OrigName, e.OrigAddr = x.name, x.addr
	}
}

// xforwardCmd is XFORWARD. It may come more than once before MAIL; later attributes
// replace earlier ones.
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

// set takes one attribute. A reply refuses the command.
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

// The PROXY protocol, versions 1 and 2: a proxy says whose connection it passes on,
// before anything else. A connection without the header is not from the proxy, and
// is ended: to take it as a plain one would let anybody who reaches the port choose
// an address.

// proxySignature begins a header of version 2. No SMTP client begins so.
var proxySignature = []byte("\r\n\r\n\x00\r\nQUIT\n")

const (
	proxyV1Max = 107 // the longest line of version 1 that its specification allows
	proxyV2Max = 536 // header and addresses; more than any proxy sends in extras that matter
)

// errProxyForm is what the log says of a header that is none.
var errProxyForm = errors.New("malformed header")

// proxyHeader reads the header that the configured proxy sends, and takes the
// addresses from it. An error has ended the session: nothing is said to a peer that
// is not the proxy.
func (s *session) proxyHeader() error {
	p := s.srv.proxies
	if !p.haproxy {
		return nil
	}
	w := &s.wire
	timeout := w.timeout
	// One deadline for all of the header, however it is cut into packets.
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

// parseProxy reads a header at the start of b. used is 0 when more input is needed,
// which happens at most up to the two limits. No addresses come of a header that
// says that the connection is the proxy's own (a health check): then the socket's
// are kept.
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

// tcpAddr is an address of version 1, which must be of the family that the line
// names.
func tcpAddr(host, port string, v4 bool) (*net.TCPAddr, error) {
	a, err := netip.ParseAddr(host)
	n, err2 := strconv.ParseUint(port, 10, 16)
	if err != nil || err2 != nil || a.Is4() != v4 || a.Zone() != "" {
		return nil, errProxyForm
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, uint16(n))), nil
}

// parseProxy2 reads a header of version 2, which begins with the signature: 16
// octets, and then as many as its length says. Extras behind the addresses are
// skipped.
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

// proxyAddr is an address of version 2. The octets are copied: they are in the
// wire's buffer.
func proxyAddr(ip, port []byte) net.Addr {
	return &net.TCPAddr{IP: bytes.Clone(ip), Port: int(binary.BigEndian.Uint16(port))}
}
