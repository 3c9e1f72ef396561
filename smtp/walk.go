// The way through the servers of one destination: which is tried next, over a kept
// session or a new one, and what happens to the session afterwards.

package smtp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/service"
	"posthaste/internal/tlspolicy"
)

// walk is the way through the servers of one nexthop. It belongs to one delivery,
// and lives as long as tryHop.
type walk struct {
	list     []target // that have not been tried, best first; shared with route's answer, and not changed
	sessions int      // that got as far as a transaction, which is what smtp_mx_session_limit counts
}

// tryHop tries the servers of the present nexthop until no recipient is left to
// deliver to, or no server. What it leaves behind is d.why, the reason for the
// recipients that are left.
func (d *delivery) tryHop(ctx context.Context) {
	list, f := d.route(ctx)
	if f != nil {
		d.why = f
		// This host is the best MX host itself: what fallback relays might do with such mail is send
		// it back here.
		if f.loop {
			d.finalHop = true
		}
		return
	}
	// smtp_mx_address_limit: a domain with a hundred addresses, all of them dead,
	// must not occupy a delivery for an hour.
	if n := d.set.maxAddrs; n > 0 && len(list) > n {
		list = list[:n]
	}
	w := &walk{list: list}
	// Kept sessions go before preference: one that is open costs nothing, and has been chosen once.
	if d.load {
		d.reuse(ctx, w)
	}
	for len(w.list) > 0 && len(d.left()) > 0 && ctx.Err() == nil {
		t := w.list[0]
		w.list = w.list[1:]
		// reuse has looked for sessions with the best servers already.
		if d.load && !t.best {
			if s := d.a.cache.takeAddr(d.addrKey(&t)); s != nil && d.useKept(ctx, w, s, &t) {
				continue
			}
		}
		d.tryTarget(ctx, w, &t)
	}
}

// takeNamed takes a session that was kept for the destination: the one that the
// queue manager means, if that is there and can be used, or any. nil if there is
// none.
func (d *delivery) takeNamed() *session {
	name := d.nameKey()
	if s := d.a.cache.takeNumber(d.session); s != nil {
		if s.kept.name == name {
			return s
		}
		d.a.leave(s) // set up under other demands, or for a former queue manager
	}
	return d.a.cache.takeName(name)
}

// reuse delivers over sessions that were kept: one under the destination's name,
// else one of each of the best servers. Servers that were used are taken off the
// walk's list.
func (d *delivery) reuse(ctx context.Context, w *walk) {
	for range 5 { // a server that was restarted leaves several dead ones
		s := d.takeNamed()
		if s == nil {
			break
		}
		i := slices.IndexFunc(w.list, func(t target) bool { return t.ip == s.ip && (t.path == "" || t.path == s.addr) })
		// The session is with a server that the destination has no more: the DNS
		// has changed since.
		if i < 0 {
			// The destination is served elsewhere now.
			d.a.leave(s)
			continue
		}
		t := w.list[i]
		rest := without(w.list, i)
		if d.useKept(ctx, &walk{list: rest, sessions: w.sessions}, s, &t) {
			w.list, w.sessions = rest, w.sessions+1
			w.limit(d)
			break
		}
	}
	for i := 0; i < len(w.list) && w.list[i].best && len(d.left()) > 0; {
		t := w.list[i]
		s := d.a.cache.takeAddr(d.addrKey(&t))
		if s == nil {
			i++
			continue
		}
		rest := without(w.list, i)
		if d.useKept(ctx, &walk{list: rest, sessions: w.sessions}, s, &t) {
			w.list, w.sessions = rest, w.sessions+1
			w.limit(d)
		}
	}
}

// without is list, which stays as it is, without its element i.
func without(list []target, i int) []target {
	if i == 0 {
		return list[1:]
	}
	return slices.Concat(list[:i], list[i+1:])
}

// limit ends the walk when smtp_mx_session_limit is reached: that many servers have
// had their say on the recipients that are left.
func (w *walk) limit(d *delivery) {
	if n := d.set.maxSessions; n > 0 && w.sessions >= n {
		w.list = nil
	}
}

// useKept delivers over a session from the cache. It returns false when the session
// is dead or too old, in which case the server counts as not tried.
func (d *delivery) useKept(ctx context.Context, w *walk, s *session, t *target) bool {
	// It was kept while more was allowed.
	if d.most > 0 && s.uses >= d.most {
		d.a.leave(s)
		return false
	}
	if d.set.reuseTime > 0 && time.Since(s.started) >= d.set.reuseTime {
		d.a.leave(s)
		return false
	}
	return d.use(ctx, w, s, t) != errStale
}

// tryTarget connects to a server and delivers. Where TLS is a wish only (level may)
// and breaks, the same server is tried once more without: the next server would
// have the same TLS.
func (d *delivery) tryTarget(ctx context.Context, w *walk, t *target) {
	// Known before the connection is made: a failure to connect may be the last
	// word, too.
	d.final, d.rest = d.finalHop && len(w.list) == 0, w.list
	s, f := d.connect(ctx, t)
	plain := f != nil && f.retry && d.plainAllowed(t)
	// TLS may also break later, with the first data: TLS 1.3 has the client learn of a refused
	// certificate only then.
	if f == nil {
		d.mayRetryPlain = s.tls != nil && d.plainAllowed(t)
		plain = d.use(ctx, w, s, t) == errRetryPlain
		d.mayRetryPlain = false
	}
	if plain {
		d.log.Log(maillog.SMTPWithoutTLS{ID: d.id, Host: t.host})
		if s, f = d.connectPlain(ctx, t); f == nil {
			d.use(ctx, w, s, t)
		}
	}
	if f != nil {
		d.connectFailed(f)
	}
}

// connectFailed takes note of why there is no session. A server that could not be
// reached is no news as long as there are others.
func (d *delivery) connectFailed(f *failure) {
	if f.kind == sessionFailed && !f.said {
		d.why = f // said when no server is left
		return
	}
	// The server has replied. That is logged where it happens, whichever server
	// comes next.
	d.fail(f, d.left())
}

// use delivers over a session and then keeps or ends it. It returns errStale or
// errRetryPlain when the session turned out to be of no use, and has been closed;
// nil otherwise, whatever became of the recipients.
func (d *delivery) use(ctx context.Context, w *walk, s *session, t *target) *failure {
	// What fails now is the last word only if no server is left to try. It must be
	// known before the first reply: failures are recorded where they happen.
	last := len(w.list) == 0 || (d.set.maxSessions > 0 && w.sessions+1 >= d.set.maxSessions)
	d.final = d.finalHop && last
	s.uses++
	// Each delivery may spend as much on patterns as another, however often the session is used.
	if s.budget != nil {
		s.budget.Renew()
	}
	s.by = d
	d.req.ConnectionDone(time.Now())
	stop := s.cutOff(ctx)
	f := d.transactAll(ctx, s)
	if !stop() {
		s.bad = true // its deadline is spoilt, and so is the day
	}
	d.notify(ctx, s)
	if f != nil {
		s.close()
		return f
	}
	// Stopping: those who wait for another session are deferred like the rest.
	if ctx.Err() != nil {
		d.waiting = nil
	}
	// The server has had as many recipients in this session as it takes (RFC 9422).
	// The others get another session with it, now.
	if d.waiting != nil {
		d.finish(s, t)
		return d.useAnother(ctx, w, t)
	}
	w.sessions++
	w.limit(d)
	d.finish(s, t)
	return nil
}

// useAnother delivers over a new session with the same server to those who were too
// many for the one before (RFC 9422). It does not count for smtp_mx_session_limit.
func (d *delivery) useAnother(ctx context.Context, w *walk, t *target) *failure {
	s, f := d.connect(ctx, t)
	if f != nil {
		d.waiting = nil
		d.connectFailed(f)
		// The session before was one, too.
		w.sessions++
		w.limit(d)
		return nil
	}
	return d.use(ctx, w, s, t)
}

// garbage warns of a line that is no part of a reply. Where several commands are
// under way nobody knows any more which reply is to which; without PIPELINING the
// next reply puts things right.
func (d *delivery) garbage(s *session, line []byte) {
	if s.offers&offersPipelining == 0 {
		return
	}
	proto := "ESMTP"
	if d.set.lmtp {
		proto = "LMTP"
	}
	d.log.LogWarning(maillog.SMTPStrayLine{ID: d.id, Proto: proto, Relay: s.relay, Line: printable(clip(line, 100))})
	if !d.set.helpful {
		return
	}
	d.log.LogWarning(maillog.SMTPPipeliningHint{Addr: s.addr, Parameter: d.tab.discard.Title()})
}

// finish keeps a session for the next delivery, or ends it. The session must not be
// touched after this.
func (d *delivery) finish(s *session, t *target) {
	if s.bad {
		s.close()
		return
	}
	if d.wantsKeep(s) {
		var name cacheKey
		// Under the destination's name only one session is kept for a request:
		// another delivery looks there first, and several sessions would be more
		// than the destination gets mail for.
		if d.first && !d.named {
			name = d.nameKey()
		}
		s.by = nil
		// The queue manager may know better than the parameter how long the
		// destination will have no mail.
		limit := d.set.idleLimit
		if d.keepFor > 0 {
			limit = d.keepFor
		}
		if d.a.cache.put(s, d.session, name, d.addrKey(t), time.Now().Add(limit)) {
			d.named = true
			d.req.SessionKept()
			return
		}
	}
	s.quit(d.set.time.quit, !d.set.skipQuitReply)
}

// wantsKeep says whether a session is to stay open after this transaction. It is
// asked before the final dot as well, since a session that is not kept gets QUIT
// with it.
func (d *delivery) wantsKeep(s *session) bool {
	switch {
	case !d.keep && !(d.set.cacheOnDemand && s.uses > 1):
		return false // one that was kept once was worth it
	// What has answered nonsense once is not to be trusted with another message.
	case s.odd, d.env.Trace.DontDeliver():
		// A probe stops in the middle of a transaction, and nobody waits for the next one.
		return false
	case s.exhausted(), d.waiting != nil: // it has had all that the server takes
		return false
	case s.r != s.w: // it has said more than it was asked
		return false
	case s.tls != nil && !s.tls.policy.Reuse:
		// smtp_tls_connection_reuse is off, as with Postfix: the next delivery may have a policy
		// of its own.
		return false
	// Servers have limits on the messages of a session: we end it before they do.
	case d.set.reuseCount > 0 && s.uses >= d.set.reuseCount, d.most > 0 && s.uses >= d.most:
		return false
	case d.set.reuseTime > 0 && time.Since(s.started) >= d.set.reuseTime:
		return false
	}
	return true
}

// nameKey is what sessions for the present nexthop are kept under, whichever server
// they are with.
func (d *delivery) nameKey() cacheKey {
	k := d.demands()
	k.hop = d.hop.text
	return k
}

// addrKey is what sessions with a server are kept under, whichever destination they
// were for, unless TLS or a password was agreed on for the destination.
func (d *delivery) addrKey(t *target) cacheKey {
	k := d.demands()
	k.host, k.ip, k.port, k.path = t.host, t.ip, t.port, t.path
	if d.a.tls.Level != tlspolicy.None || !d.a.tls.maps.Empty() || !d.a.tls.sites.Empty() || d.a.sasl.enabled || d.env.RequireTLS || d.client != nil {
		// What was agreed with the server may hold for this destination alone.
		k.hop = d.hop.text
	}
	return k
}

// demands is a key that keeps apart sessions that were set up under different
// demands: a message must not go out over a session that is less than it asks for,
// nor under another sender's password.
func (d *delivery) demands() cacheKey {
	k := cacheKey{
		utf8:        d.env.Body&mail.BodySMTPUTF8 != 0,
		requireTLS:  d.env.RequireTLS,
		tlsOptional: d.env.TLSOptional,
		source:      d.sourceKey(),
	}
	if d.a.sasl.enabled && d.a.sasl.bySender {
		k.sender = d.req.OwnSender()
	}
	return k
}

// dial connects to a server, from the address of smtp_bind_address where there is
// one. A failure is of this server, and logged.
func (d *delivery) dial(ctx context.Context, t *target) (net.Conn, *failure) {
	// Every read and write has a time limit: keep-alives would only wake peers up.
	dialer := net.Dialer{Timeout: d.set.time.connect, KeepAlive: -1}
	// A next hop of LMTP may be a socket of this host.
	network, addr := "tcp", ""
	if t.path != "" {
		network, addr = "unix", t.path
	} else {
		if d.set.window > 0 {
			dialer.Control = d.windowSize
		}
		addr = net.JoinHostPort(t.ip.String(), t.port)
		if from, ok := d.a.bind[t.ip.Is4()]; ok && d.source == nil {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from.addr, 0))
		}
	}
	dial := d.dialWith(&dialer)
	if d.source != nil && t.path == "" {
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return d.dialFrom(ctx, &dialer, t) }
	}
	conn, err := dial(ctx, network, addr)
	if f, ok := d.sourceFailed(err); ok {
		return nil, f
	}
	if err != nil && dialer.LocalAddr != nil && isBindError(err) {
		from := d.a.bind[t.ip.Is4()]
		// An interface that is down. Unless smtp_bind_address_enforce says otherwise, mail goes out
		// from another address rather than not at all.
		d.log.Warning("smtp_connect_addr: bind %s: %s", from.addr, errnoText(err))
		if from.given && d.set.bindEnforce {
			return nil, &failure{kind: sessionFailed, status: dsn.S(4, 4, 0), text: "server configuration error"}
		}
		dialer.LocalAddr = nil
		conn, err = dial(ctx, network, addr)
	}
	if err != nil {
		// The text is Postfix's: "connect to host[addr]:port: reason". It is what
		// the sender of returned mail reads.
		reason := errnoText(err)
		event := &maillog.ConnectFailed{Host: t.host, Addr: t.address(), Port: t.port, Reason: reason}
		if t.path != "" {
			event.Port = ""
		}
		d.log.Log(event)
		f := &failure{kind: sessionFailed, status: dsn.S(4, 4, 1), text: string(event.Append(nil)), ours: isShortage(err)}
		if f.ours {
			f.status = dsn.S(4, 3, 0)
		}
		if _, ok := errors.AsType[*proxyError](err); ok { // the server may well be there
			f.status = dsn.S(4, 3, 0)
		}
		return nil, f
	}
	return conn, nil
}

// windowSize gives a socket the buffers of tcp_windowsize. It has to be done before
// the connection is made: the window's scale is agreed on with it. It is
// net.Dialer's Control.
func (d *delivery) windowSize(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		for _, err := range service.SetWindow(int(fd), d.set.window) {
			d.log.Warning("%v", err)
		}
	})
}

// isBindError says whether connecting failed for the source address's sake.
func isBindError(err error) bool {
	sys, ok := errors.AsType[*os.SyscallError](err)
	return ok && sys.Syscall == "bind"
}

// connect sets up a session: TLS policy, connection, greeting, TLS, AUTH. The
// policy comes first: a destination whose policy cannot be found out is not called.
func (d *delivery) connect(ctx context.Context, t *target) (*session, *failure) {
	if f := d.certFailed(); f != nil {
		return nil, f
	}
	policy, f := d.policy(ctx, t)
	if f != nil {
		return nil, f
	}
	d.req.ConnectionOpened()
	return d.open(ctx, t, policy)
}

// open connects and shakes hands as policy p demands. The session that it returns
// is ready for MAIL. A failure has ended the session.
func (d *delivery) open(ctx context.Context, t *target, p *policy) (*session, *failure) {
	conn, f := d.dial(ctx, t)
	if f != nil {
		return nil, f
	}
	s := d.a.newSession(conn, t)
	d.traceTo(s, t)
	stop := s.cutOff(ctx)
	f = d.handshake(ctx, s, t, p)
	// TLS reports count this session whether or not it came to anything (RFC 8460 section 4.3).
	d.reportSession(s, t, p)
	if f == nil {
		f = d.login(ctx, s, t)
	}
	// Cut off just now: the deadline of the connection is in the past, and nothing can be sent.
	if !stop() && f == nil {
		f = s.broken(stageEHLO, context.Cause(ctx))
	}
	if f == nil {
		d.req.Secured(s.security(p))
	}
	if f != nil {
		d.notify(ctx, s)
		// Level may wants mail to go out rather than TLS: see tryTarget.
		if f.kind == streamFailed && s.tls != nil && p.Level == tlspolicy.May {
			f.retry = true
		}
		// QUIT only where both sides are still in step.
		if f.kind == streamFailed || f.hangUp {
			s.close()
		} else {
			s.quit(d.set.time.quit, false)
		}
		return nil, f
	}
	return s, nil
}
