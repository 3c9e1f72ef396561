// Who the client is: its address, its verified name, and what follows from them. Both
// come before the greeting, since smtpd_client_restrictions and the log need them.

package smtpd

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"posthaste/internal/watch"
	"slices"
	"strconv"
	"strings"

	"posthaste/internal/access"
	"posthaste/internal/maillog"
	"posthaste/internal/quickio"
	"posthaste/internal/resolver"
)

// identifyClient finds out who the client is, and says so in the log. The order is
// fixed: a proxy's header says whose address all else is about, and postscreen's
// tests come before the DNS is asked, since most clients that fail them are not
// worth a lookup. An error has ended the session.
func (s *session) identifyClient(ctx context.Context) error {
	if err := s.proxyHeader(); err != nil {
		return err
	}
	if s.srv.screen != nil {
		if err := s.screen(ctx); err != nil {
			s.a.Stage = "" // there has been no session
			return err
		}
	}
	s.lookUp(ctx)
	s.logPort()
	s.srv.log.Log(maillog.SMTPDConnect{Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.LogPort})
	s.applyClientSettings(ctx)
	return nil
}

// logPort makes the port part of the client's name in log lines and replies where
// smtpd_client_port_logging asks for it.
func (s *session) logPort() {
	if s.set.logPort {
		s.a.LogPort = s.a.Port
	}
}

// applyClientSettings works out what depends on who the client is. It is called
// again after XCLIENT, and forgets what was worked out for the client before.
func (s *session) applyClientSettings(ctx context.Context) {
	s.logPort()
	trusted, err := s.set.bareExempt.MatchClient(ctx, s.a.Name, s.a.AddrText)
	if err != nil {
		s.srv.log.Warning("%v", err)
	}
	// A table that cannot be asked trusts nobody: the error leaves trusted false.
	s.trusted = trusted
	s.privileged = s.listed(s.srv.proxies.xclient)
	s.trace(s.debugged())
	s.talk = watch.Talk{}
	s.discard = nil
}

// addrOf takes an address apart as the rest of the system knows it: without zone,
// IPv4 as IPv4 even where the socket listens to both families. A connection that is
// not TCP's is from this host (systemd and tests pass Unix-domain sockets), and
// gets the loopback address.
func addrOf(a net.Addr) (netip.Addr, string) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), "0"
	}
	ip, _ := netip.AddrFromSlice(t.IP)
	return ip.Unmap().WithZone(""), strconv.Itoa(t.Port)
}

// setEndpoints sets both ends of the connection, from the socket, or as a proxy's
// header says.
func (s *session) setEndpoints(client, server net.Addr) {
	c := &s.a.Client
	c.Addr, c.Port = addrOf(client)
	c.AddrText = c.Addr.String()
	srv, port := addrOf(server)
	c.ServerAddr, c.ServerPort = srv.String(), port
}

// lookUp finds the client's name: what the address points at, if that name has the
// address in turn. Anybody can make an address point anywhere, so that a name in
// one direction proves nothing. The name that was not confirmed is kept as
// ReverseName, for reject_unknown_reverse_client_hostname and for policy services.
// Restrictions tell "there is no name" (5xx) from "the name servers do not answer"
// (4xx) by the status.
func (s *session) lookUp(ctx context.Context) {
	c := &s.a.Client
	c.Name, c.ReverseName = "unknown", "unknown"
	c.NameStatus, c.ReverseStatus = access.NameNotFound, access.NameNotFound
	if !s.set.lookupNames || s.srv.names == nil {
		return
	}
	ptr, err := s.srv.names.PTR(ctx, c.Addr)
	if err != nil {
		if resolver.KindOf(err) == resolver.TempFail {
			c.NameStatus, c.ReverseStatus = access.NameTempFail, access.NameTempFail
		}
		return
	}
	name := strings.TrimSuffix(ptr.Records[0], ".")
	// A name with control characters, blanks or worse would end up in log lines and
	// Received: fields.
	if !resolver.ValidHostname(name) {
		return
	}
	c.ReverseName, c.ReverseStatus = name, access.NameOK
	family := resolver.IPv4
	if c.Addr.Is6() {
		family = resolver.IPv6
	}
	addrs, err := s.srv.names.Addrs(ctx, name, family)
	switch {
	// NameTempFail, not NameForged: the next attempt of the client may find the
	// name confirmed.
	case err != nil && resolver.KindOf(err) == resolver.TempFail:
		c.NameStatus = access.NameTempFail
		s.srv.log.LogWarning(maillog.NameMismatch{Name: name, Addr: c.AddrText, Reason: err.Error()})
	case err != nil:
		c.NameStatus = access.NameForged
		s.srv.log.LogWarning(maillog.NameMismatch{Name: name, Addr: c.AddrText, Reason: err.Error()})
	case !slices.Contains(addrs.Records, c.Addr):
		c.NameStatus = access.NameForged
		s.srv.log.LogWarning(maillog.NameMismatch{Name: name, Addr: c.AddrText})
	default:
		c.Name, c.NameStatus = name, access.NameOK
	}
}

// earlyTalker ends the session of a client that speaks before it was greeted: RFC
// 5321 section 4.3.1 has clients wait for the greeting, and those that do not are
// mostly spam software. Behind postscreen's tests that is for those to judge.
func (s *session) earlyTalker() error {
	if s.srv.screen == nil && !s.a.Pipelined && s.sentAhead() && s.pipelined(string(s.wire.unread())) {
		return errRefused
	}
	return nil
}

// sentAhead says whether the client has sent more than was asked for, also when it
// has not been read yet: what is in the socket is read, without waiting. An error
// is left to the next read.
func (s *session) sentAhead() bool {
	w := &s.wire
	// From here on buf is empty: it has room for whatever has arrived.
	if w.buffered() > 0 {
		return true
	}
	w.makeRoom(smallBuf)
	n := 0
	switch c := w.nc.(type) {
	case *quickio.Conn:
		n = c.ReadNow(w.buf[w.w:])
	case *tls.Conn:
		n = s.tls.under.readNow(c, w.buf[w.w:])
	}
	w.w += n
	w.received += int64(n)
	return n > 0
}
