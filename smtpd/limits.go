// What one client may do in a unit of time: the smtpd_client_..._limit parameters.

package smtpd

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"posthaste/internal/anvil"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// limits counts what each client does: what Postfix's anvil does for its many
// processes, one for each service and client network. It may be used concurrently.
// Counting goes on without a limit too, since the peaks are logged and anvil's
// clients may ask.
type limits struct {
	*anvil.Table[netip.Prefix] // the counts; it has a lock of its own
	log                        *maillog.Logger
	service                    string           // name in master.cf, for log lines
	bits4, bits6               int              // of an address that make one client
	max                        [len(events)]int // by event; 0 or less: no limit
	exempt                     *table.List      // clients without limits
	hostname                   string           // for 421 replies, which begin with it
}

// events are, for each event, the parameter that limits it and the words of warnings.
var events = [...]struct{ param, warning string }{
	anvil.Connections: {"smtpd_client_connection_count_limit", "Connection concurrency"},
	anvil.Connect:     {"smtpd_client_connection_rate_limit", "Connection rate"},
	anvil.Message:     {"smtpd_client_message_rate_limit", "Message delivery request rate"},
	anvil.Recipient:   {"smtpd_client_recipient_rate_limit", "Recipient address rate"},
	anvil.NewTLS:      {"smtpd_client_new_tls_session_rate_limit", "New TLS session rate"},
	anvil.Auth:        {"smtpd_client_auth_rate_limit", "AUTH command rate"},
}

// newLimits reads the limits. An error is that of
// smtpd_client_event_limit_exceptions.
func newLimits(cfg *config.Config, service string, log *maillog.Logger, now func() time.Time, o table.Options) (*limits, error) {
	l := &limits{log: log, service: service, hostname: cfg.String("myhostname"),
		bits4: cfg.Int("smtpd_client_ipv4_prefix_length"), bits6: cfg.Int("smtpd_client_ipv6_prefix_length")}
	for e := range events {
		l.max[e] = cfg.Int(events[e].param)
	}
	l.Table = anvil.NewTable(anvil.Options[netip.Prefix]{Unit: cfg.Duration("anvil_rate_time_unit"), Updates: cfg.Duration("anvil_status_update_time"),
		Now: now, Log: log,
		Name: func(k netip.Prefix) string { return service + ":" + k.Addr().String() },
		// One connection at a time tells nobody anything.
		Quiet: func(e anvil.Event) bool { return e != anvil.Connections && e != anvil.Connect && l.max[e] == 0 }})
	var err error
	l.exempt, err = table.NewList("smtpd_client_event_limit_exceptions", cfg.List("smtpd_client_event_limit_exceptions"),
		table.ListOptions{Kind: table.Clients, Parent: true, Table: o})
	return l, err
}

// key is the network that a counts as: by default an IPv4 address, or the /84 of an
// IPv6 address, since a client with IPv6 has a whole network of them. An address
// that is not known ("unknown" after XCLIENT) counts as one client with all others
// of its kind.
func (l *limits) key(a netip.Addr) netip.Prefix {
	bits := l.bits4
	if a.Is6() {
		bits = l.bits6
	}
	p, err := a.Prefix(min(bits, a.BitLen()))
	if err != nil {
		return netip.PrefixFrom(a, a.BitLen())
	}
	return p
}

// lookup tells anvil's clients what a client, by its address or network, has done.
// ok is false for what is no address.
func (l *limits) lookup(client string) (anvil.Counts, bool) {
	address, _, _ := strings.Cut(client, "/")
	a, err := netip.ParseAddr(address)
	if err != nil {
		return anvil.Counts{}, false
	}
	return l.Lookup(l.key(a)), true
}

// exceeded counts an event and says whether the client may not do it, which is
// logged. The event counts in any case: a client that keeps trying stays over its
// limit.
func (l *limits) exceeded(s *session, e anvil.Event) bool {
	n := l.Add(l.key(s.a.Addr), e)
	if l.max[e] <= 0 || n <= l.max[e] || s.privileged {
		return false
	}
	if l.spared(s.ctx(), s) {
		return false
	}
	l.log.LogWarning(maillog.LimitExceeded{What: events[e].warning, Count: n, Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.LogPort, Service: l.service})
	return true
}

// spared says whether a client is one of smtpd_client_event_limit_exceptions, which is
// without limits.
func (l *limits) spared(ctx context.Context, s *session) bool {
	exempt, err := l.exempt.MatchClient(ctx, s.a.Name, s.a.AddrText)
	if err != nil {
		l.log.Warning("%v", err)
	}
	return exempt
}

// connection counts a connection, which disconnect takes back, and refuses one that
// is too many: at a time, or in the unit of time. 421 ends the session.
func (l *limits) connection(s *session) *smtpwire.Reply {
	if s.limited {
		return nil // XCLIENT: the connection is the same
	}
	s.limited, s.limitedBy = true, s.a.Addr
	if l.exceeded(s, anvil.Connections) {
		return smtpwire.R(421, dsn.S(4, 7, 0), l.hostname+" Error: too many connections from "+s.a.AddrText)
	}
	if l.exceeded(s, anvil.Connect) {
		return smtpwire.R(421, dsn.S(4, 7, 0), l.hostname+" Error: too many connections from "+s.a.AddrText)
	}
	return nil
}

// connections is how many connections the client has open, for filters; 0 if there
// is no limit, as Postfix says 0 then.
func (l *limits) connections(s *session) int {
	if l.max[anvil.Connections] <= 0 {
		return 0
	}
	return l.Lookup(l.key(s.a.Addr))[anvil.Connections]
}

// disconnect takes back what connection counted.
func (l *limits) disconnect(s *session) {
	if !s.limited {
		return
	}
	s.limited = false
	l.Drop(l.key(s.limitedBy))
}

// message counts a MAIL command, and refuses it for now if it is one too many.
func (l *limits) message(s *session) *smtpwire.Reply {
	if l.exceeded(s, anvil.Message) {
		return smtpwire.R(450, dsn.S(4, 7, 1), "Error: too much mail from "+s.a.AddrText)
	}
	return nil
}

// recipient counts a RCPT or VRFY command, and refuses it for now if it is one too
// many.
func (l *limits) recipient(s *session) *smtpwire.Reply {
	if l.exceeded(s, anvil.Recipient) {
		return smtpwire.R(450, dsn.S(4, 7, 1), "Error: too many recipients from "+s.a.AddrText)
	}
	return nil
}
