package smtpd

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// limits counts what each client does: what Postfix's anvil does for its many
// processes, one for each service and client network. An interval of a rate
// begins with a client's first event and lasts anvil_rate_time_unit.
type limits struct {
	log      *maillog.Logger
	service  string
	unit     time.Duration
	bits4    int
	bits6    int
	max      [nevents]int
	exempt   *table.List
	updates  time.Duration
	now      func() time.Time
	hostname string

	mu      sync.Mutex
	clients map[netip.Prefix]*clientCount
	swept   time.Time
	peaks   [nevents]peak
	peakAll int // most clients at a time
	peakAt  time.Time
	said    time.Time
}

// event is something that is counted.
type event uint8

const (
	evCount event = iota // connections at a time
	evConnect
	evMessage
	evRecipient
	evTLS
	evAuth
	nevents
)

// events are the words for each: in warnings and in statistics.
var events = [nevents]struct{ param, warning, stat string }{
	evCount:     {"smtpd_client_connection_count_limit", "Connection concurrency", "connection count"},
	evConnect:   {"smtpd_client_connection_rate_limit", "Connection rate", "connection rate"},
	evMessage:   {"smtpd_client_message_rate_limit", "Message delivery request rate", "message rate"},
	evRecipient: {"smtpd_client_recipient_rate_limit", "Recipient address rate", "recipient rate"},
	evTLS:       {"smtpd_client_new_tls_session_rate_limit", "New TLS session rate", "newtls rate"},
	evAuth:      {"smtpd_client_auth_rate_limit", "AUTH command rate", "auth rate"},
}

type clientCount struct {
	began  time.Time // of the interval
	counts [nevents]int
}

type peak struct {
	value int
	who   netip.Prefix
	at    time.Time
}

func newLimits(cfg *config.Config, service string, log *maillog.Logger, now func() time.Time, o table.Options) (*limits, error) {
	l := &limits{log: log, service: service, unit: cfg.Duration("anvil_rate_time_unit"),
		updates: cfg.Duration("anvil_status_update_time"), now: now, hostname: cfg.String("myhostname"),
		bits4: cfg.Int("smtpd_client_ipv4_prefix_length"), bits6: cfg.Int("smtpd_client_ipv6_prefix_length"),
		clients: make(map[netip.Prefix]*clientCount)}
	for e := range nevents {
		l.max[e] = cfg.Int(events[e].param)
	}
	var err error
	l.exempt, err = table.NewList("smtpd_client_event_limit_exceptions", cfg.List("smtpd_client_event_limit_exceptions"),
		table.ListOptions{Kind: table.Clients, Parent: true, Table: o})
	l.said = now()
	return l, err
}

// count adds one event and returns the number in this interval.
func (l *limits) count(a netip.Addr, e event) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	c := l.client(a, now)
	c.counts[e]++
	n := c.counts[e]
	if p := &l.peaks[e]; n > p.value {
		*p = peak{n, l.key(a), now}
	}
	if len(l.clients) > l.peakAll {
		l.peakAll, l.peakAt = len(l.clients), now
	}
	return n
}

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

// client returns the counters of a client, begun anew when the interval is
// over. Called with mu held.
func (l *limits) client(a netip.Addr, now time.Time) *clientCount {
	k := l.key(a)
	c := l.clients[k]
	if c == nil {
		l.sweep(now)
		c = &clientCount{began: now}
		l.clients[k] = c
	}
	if now.Sub(c.began) >= l.unit {
		c.began = now
		for e := evConnect; e < nevents; e++ {
			c.counts[e] = 0
		}
	}
	return c
}

// sweep drops clients that are gone for longer than an interval, now and
// then, and logs statistics when they are due. Called with mu held.
func (l *limits) sweep(now time.Time) {
	if l.updates > 0 && now.Sub(l.said) >= l.updates {
		l.statistics(now)
	}
	if now.Sub(l.swept) < l.unit {
		return
	}
	l.swept = now
	for k, c := range l.clients {
		if c.counts[evCount] == 0 && now.Sub(c.began) >= l.unit {
			delete(l.clients, k)
		}
	}
}

// statistics logs the maxima since the last time. Called with mu held.
func (l *limits) statistics(now time.Time) {
	l.said = now
	for _, e := range []event{evConnect, evCount, evMessage, evRecipient, evTLS, evAuth} {
		p := l.peaks[e]
		// One connection at a time tells nobody anything.
		if p.value == 0 || e > evConnect && l.max[e] == 0 {
			continue
		}
		value := fmt.Sprint(p.value)
		if e != evCount {
			value += fmt.Sprintf("/%ds", int(l.unit/time.Second))
		}
		l.log.Log(maillog.ClientStatistics{What: events[e].stat, Value: value,
			For: l.service + ":" + p.who.Addr().String(), At: p.at.Format("Jan _2 15:04:05")})
	}
	if l.peakAll > 0 {
		l.log.Info("statistics: max cache size %d at %s", l.peakAll, l.peakAt.Format("Jan _2 15:04:05"))
	}
	l.peaks, l.peakAll = [nevents]peak{}, 0
}

// finish logs what is left of the statistics.
func (l *limits) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statistics(l.now())
}

// exceeded counts an event and says whether the client may not do it.
func (l *limits) exceeded(s *session, e event) bool {
	n := l.count(s.a.Addr, e)
	if l.max[e] <= 0 || n <= l.max[e] || s.privileged {
		return false
	}
	exempt, err := l.exempt.MatchClient(s.ctx(), s.a.Name, s.a.AddrText)
	if err != nil {
		l.log.Warning("%v", err)
	}
	if exempt {
		return false
	}
	l.log.LogWarning(maillog.LimitExceeded{What: events[e].warning, Count: n, Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.LogPort, Service: l.service})
	return true
}

// connection counts a connection, which disconnect takes back.
func (l *limits) connection(s *session) *smtpwire.Reply {
	if s.limited {
		return nil // XCLIENT: the connection is the same
	}
	s.limited, s.limitedBy = true, s.a.Addr
	if l.exceeded(s, evCount) {
		return smtpwire.R(421, dsn.S(4, 7, 0), l.hostname+" Error: too many connections from "+s.a.AddrText)
	}
	if l.exceeded(s, evConnect) {
		return smtpwire.R(421, dsn.S(4, 7, 0), l.hostname+" Error: too many connections from "+s.a.AddrText)
	}
	return nil
}

// connections is how many the client has open; 0 if nobody counts them.
func (l *limits) connections(s *session) int {
	if l.max[evCount] <= 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client(s.a.Addr, l.now()).counts[evCount]
}

func (l *limits) disconnect(s *session) {
	if !s.limited {
		return
	}
	s.limited = false
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.clients[l.key(s.limitedBy)]; c != nil {
		c.counts[evCount]--
	}
}

func (l *limits) message(s *session) *smtpwire.Reply {
	if l.exceeded(s, evMessage) {
		return smtpwire.R(450, dsn.S(4, 7, 1), "Error: too much mail from "+s.a.AddrText)
	}
	return nil
}

func (l *limits) recipient(s *session) *smtpwire.Reply {
	if l.exceeded(s, evRecipient) {
		return smtpwire.R(450, dsn.S(4, 7, 1), "Error: too many recipients from "+s.a.AddrText)
	}
	return nil
}
