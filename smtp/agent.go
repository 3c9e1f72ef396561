// The Agent, which a process has one of, and a delivery, which is one request to it:
// what they consist of, and how the destinations of a request are tried in turn.

package smtp

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/resolver"
	"posthaste/internal/reuse"
	"posthaste/internal/shaping"
	"posthaste/internal/submit"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy/mtasts"
	"posthaste/internal/tlsrpt"
	"posthaste/internal/watch"
)

// deps are what an Agent works with. They belong to the caller, who closes them
// after the Agent.
type deps struct {
	Config   *config.Config
	Log      *maillog.Logger
	Resolver resolver.Resolver // nil: the Agent makes its own, as smtp_dns_support_level says
	Tables   table.Options     // of the tables that the configuration names
	LMTP     bool              // the program is lmtp
	Args     []string          // of the service in master.cf: flags=DORX
	Submit   *submit.Client    // for mail to postmaster and reports; nil: there is none
	Verbose  int               // how often master.cf has -v: with one or more all dialogues are logged
	Watch    *watch.Hub        // is told the dialogues that somebody watches; nil: nobody can
	// Dial connects, if it is not nil, in place of the network: for tests
	// and simulation. It gets an address, never a name.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Lookups are the options of the resolver that the Agent makes when Resolver is nil; nil: those of the parameters.
	Lookups func() (resolver.Options, error)
	// Random fills what chance begins with; nil: package rand does.
	Random func(b []byte)
	// Own makes the socket by which dialogues are watched: ownsocket.Listen.
	Own func(dir, name string) (net.Listener, error)
}

// lookups are the options of the resolver that the Agent makes.
func (d *deps) lookups() (resolver.Options, error) {
	if d.Lookups != nil {
		return d.Lookups()
	}
	return resolver.Configured(d.Config)
}

// Agent delivers over SMTP or LMTP. One serves a whole process; any number of
// deliveries use it at once.
type Agent struct {
	// Read once and never changed: a reload starts a new process. All of it may be used by any
	// number of deliveries at once.
	set  *settings
	tab  *tables
	log  *maillog.Logger
	dns  resolver.Resolver
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// listen makes the socket of trace.hub.
	listen func(dir, name string) (net.Listener, error)
	// inet_interfaces and proxy_interfaces. An MX record of this host among the best means
	// that mail would come back.
	own   []netip.Addr // addresses at which mail for others would loop
	bind  map[bool]source
	tls   *tlsClient
	sasl  *saslClient
	rules *outputRules
	// The only state that one delivery leaves to the next, but for certificates of sources.
	cache       *cache
	sourceCerts sourceCerts
	sources     usedSources
	advised     advised
	trace       tracer
	options

	notices      *notice.Mailer // nil: nobody wants any
	doubleBounce string         // the sender of notices
	probe        *probe
	reports      *reporter // nil: nobody is to get any
	// smtp_https_networks: the sites of policies and reports may be there too.
	webNetworks *table.List
	// Called by Close in the reverse order.
	free []func() // of what newAgent has made, the latest last

	// mu guards rnd, which shuffles addresses of equal preference (RFC 5321 section 5.1).
	mu  sync.Mutex
	rnd *rand.Rand
}

var _ agent.Deliverer = (*Agent)(nil)

// newAgent makes an Agent as the configuration says. Its errors name the parameter.
// What it opens is closed by Close; after an error the process ends, and nothing is
// closed.
func newAgent(deps deps) (*Agent, error) {
	// Reports are switched on before tables are opened: a table of the type mta-sts
	// tells the reporter of its policies (openSTS).
	set := load(deps.Config, deps.LMTP)
	a := &Agent{set: set, log: deps.Log, dns: deps.Resolver, dial: deps.Dial, listen: deps.Own,
		rnd: newRand(deps.Random), doubleBounce: notice.Sender(deps.Config)}
	if !deps.LMTP && deps.Config.Bool("smtp_tlsrpt_enable") {
		a.reports = &reporter{skipReused: deps.Config.Bool("smtp_tlsrpt_skip_reused_handshakes"),
			record: func(time.Time, tlsrpt.Policy, *tlsrpt.Failure) {}}
	}
	a.notices = newNotices(deps.Config, deps.Submit, deps.Log)
	if a.dns == nil {
		if !hasIPv6() {
			// Postfix does without what the kernel does not have, too: a message is not put off because of
			// addresses that can never be reached.
			set.families &^= resolver.IPv6
		}
		ro, err := deps.lookups()
		if err != nil {
			return nil, err
		}
		ro.DNSSEC = set.dns == dnsSecure
		if len(set.own.List("dns_reply_filter")) > 0 {
			ro.Filter = a.keepRecord
		}
		c := resolver.New(ro)
		a.dns, a.free = c, append(a.free, c.Close)
	}
	// Outside of what follows, so that tables and policies ask through it as well.
	a.dns = followedDNS(a.dns, set.names, deps.Verbose)
	warn := func(text string) { deps.Log.Warning("%s", text) }
	o := deps.Tables
	if o.Warn == nil {
		o.Warn = warn
	}
	var err error
	if a.webNetworks, err = table.NewList("smtp_https_networks", deps.Config.List("smtp_https_networks"), table.ListOptions{Kind: table.Addresses, Table: o}); err != nil {
		return nil, err
	}
	o.Types = map[string]table.Opener{"mta-sts": a.openSTS(warn)}
	if a.options, err = parseArgs(deps.Args); err != nil {
		return nil, err
	}
	if a.probe, err = newProbe(deps.Config.String("dnssec_probe")); err != nil {
		return nil, err
	}
	peers, err := table.NewList("debug_peer_list", set.debugPeers, table.ListOptions{Kind: table.Clients,
		Parent: slices.Contains(deps.Config.List("parent_domain_matches_subdomains"), "debug_peer_list"), Table: o})
	if err != nil {
		return nil, err
	}
	a.trace = tracer{peers: peers, level: set.debugLevel, all: deps.Verbose > 0, hub: deps.Watch}
	if a.tab, err = set.open(o); err != nil {
		return nil, err
	}
	if a.tls, err = newTLSClient(deps.Config, deps.LMTP, o); err != nil {
		return nil, err
	}
	if a.rules, err = newOutputRules(deps.Config, deps.LMTP, o); err != nil {
		return nil, err
	}
	if a.sasl, err = newSASLClient(deps.Config, deps.LMTP, o); err != nil {
		return nil, err
	}
	own, err := table.OwnAddresses(context.Background(), set.ownAddrs)
	if err != nil {
		return nil, err
	}
	proxy, err := table.OwnAddresses(context.Background(), set.proxyAddrs)
	if err != nil {
		return nil, err
	}
	if a.bind, err = set.bindAddrs(own); err != nil {
		return nil, err
	}
	// Mail for an address of a proxy in front of us would come back as well.
	a.own = append(own, proxy...)
	a.cache = newCache(a.leave)
	if a.reports != nil && deps.Submit != nil {
		stop, err := a.openReports(deps.Config, deps.Submit)
		if err != nil {
			return nil, err
		}
		a.free = append(a.free, stop)
	}
	return a, nil
}

// newRand makes the source of the agent's chance: simulations give a seed, so that
// they can be repeated.
func newRand(fill func(b []byte)) *rand.Rand {
	if fill == nil {
		return rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	var seed [32]byte
	fill(seed[:])
	return rand.New(rand.NewChaCha8(seed))
}

// openSTS opens tables of the type mta-sts: the policies of MTA-STS (RFC 8461),
// which the reports of TLS tell of too.
func (a *Agent) openSTS(warn func(string)) table.Opener {
	return func(dir string, _ table.Options) (table.Table, error) {
		t := mtasts.New(mtasts.Options{Dir: dir, Resolver: a.dns, Names: a.set.names, Allowed: a.webNetwork, Warn: warn})
		if a.reports != nil {
			a.reports.sts = t
		}
		return t, nil
	}
}

// webNetwork says whether a web site that a stranger names may have an address that
// is not public (smtp_https_networks). Whoever publishes a policy or asks for
// reports chooses the host that we call: without this they could have us call hosts
// inside.
func (a *Agent) webNetwork(ctx context.Context, addr netip.Addr) (bool, error) {
	return a.webNetworks.Match(ctx, addr.String())
}

// hasIPv6 says whether this system can have IPv6 connections at all.
func hasIPv6() bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// Close ends the sessions that are kept, and closes what newAgent has opened. Call
// it after the last Deliver.
func (a *Agent) Close() {
	a.cache.close()
	_ = a.tls.maps.Close() // read only: nothing can be lost
	if err := a.tls.sessions.save(); err != nil {
		a.log.Warning("TLS sessions are not kept: %v", err)
	}
	for _, f := range slices.Backward(a.free) {
		f()
	}
}

// Dismiss implements agent.Dismisser: the queue manager has no more mail for the
// destination for which a session was kept, so that the server need not wait for
// the session to time out.
func (a *Agent) Dismiss(session uint64) {
	if s := a.cache.takeNumber(session); s != nil {
		a.leave(s)
	}
}

// leave ends a session that was kept and is not wanted any more, with QUIT. It does
// not wait for the reply.
func (a *Agent) leave(s *session) { s.quit(a.set.time.quit, false) }

// request is what this package needs of an agent.Request. Each recipient gets exactly one of Sent,
// Defer, Bounce and Pass; Pending says whether it has not had it yet. All is called by the goroutine of
// the delivery.
type request interface {
	Content() (agent.Content, error)
	Connecting()
	ConnectionDone(now time.Time)
	SiteFailure(status dsn.Status, reason string)
	SiteBusy(status dsn.Status, reason string)
	SessionKept()
	OwnSender() string
	ConnectionOpened()
	Secured(text string)
	Pending(i int) bool
	Deferred(i int) bool
	Sent(i int, status dsn.Status, text string, d agent.Detail)
	Defer(i int, status dsn.Status, text string, d agent.Detail)
	Bounce(i int, status dsn.Status, text string, d agent.Detail)
	Pass(i int, transport mail.Transport, nexthop mail.Nexthop)
	Exact() bool
	Hand(rcpts []int, relay string) (wait func() error)
}

// order is what a request asks for, in the agent's own words: tests make orders
// without a queue.
type order struct {
	env     *mail.Envelope
	nexthop mail.Nexthop
	// cacheKeep is the queue manager's advice to keep the session, under the
	// name session, 0 being none, for keepFor, 0 being for as long as the
	// settings say.
	cacheKeep bool
	session   uint64
	keepFor   time.Duration
	// most bounds the messages over one connection, besides the settings; 0: it does not.
	most int
	// source is what connections come from; nil: what the settings say.
	source *usedSource
	// advice is what is to be done otherwise than the settings say, as shaping.ParseAdvice reads it.
	advice string
}

// Hands implements agent.Hander: that a delivery is about to be made is recorded while the message is sent,
// and waited for before its end is (spool_exact_doubt).
func (a *Agent) Hands() {}

// Deliver implements agent.Deliverer. When it returns, each recipient has had its
// outcome. When ctx ends, what is under way is cut off, and the recipients are
// deferred.
func (a *Agent) Deliver(ctx context.Context, r *agent.Request) {
	source, err := a.sources.of(r)
	if err != nil {
		// Of another version's making: a queue manager sends no such thing.
		for i := range r.Envelope.Recipients {
			r.Defer(i, dsn.S(4, 3, 5), err.Error(), agent.Detail{})
		}
		return
	}
	if source != nil {
		r.SentFrom()
	}
	a.deliver(ctx, r, order{env: r.Envelope, nexthop: r.Nexthop, cacheKeep: r.CacheKeep, session: r.Session, keepFor: r.Keep, most: r.Most, source: source, advice: r.Advice})
}

// deliver is Deliver for any request. The delivery, and the memory that it has
// grown, is used again.
func (a *Agent) deliver(ctx context.Context, r request, o order) {
	d := deliveries.Get()
	d.a, d.set, d.tab, d.log, d.req, d.id, d.order = a, a.set, a.tab, a.log, r, string(o.env.ID), o
	if o.advice != "" {
		adv := a.advised.of(a.set, o.advice)
		d.set, d.client = &adv.settings, &adv.client
	}
	d.run(d.followed(ctx))
	d.slowDown()
	if d.body != nil {
		_ = d.body.Close() // it was read; nothing depends on it any more
	}
	d.reset() // the message is not to be kept in memory
	deliveries.Put(d)
}

// deliveries are what deliver works with: nothing refers to one when it returns,
// and one that has been put back is empty.
var deliveries reuse.Pool[delivery]

// reset leaves nothing of a delivery but memory for its lists: no address, and no
// reference to the message.
func (d *delivery) reset() {
	*d = delivery{todo: reuse.Truncated(d.todo), lists: reuse.Truncated(d.lists)}
}

// delivery is one request under way. All of it belongs to the goroutine of the request. The value is
// used again for another request: see reset.
type delivery struct {
	a   *Agent
	set *settings // a's, or with advice in them
	tab *tables   // a's
	log *maillog.Logger
	req request
	// client is the advice; nil: there is none.
	client *shaping.Client
	id     string // queue ID
	order

	// hop is the destination that is being tried; nil until the first is.
	hop *nexthop
	one [1]nexthop // room for hop, which mostly is the only one
	// lone is room for the only address of hop.
	lone     [1]target
	first    bool // hop is the first of the list: sessions are kept under its name
	finalHop bool // hop is the last that will be tried
	final    bool // this is the last server that will be tried: a temporary failure is the last word
	// completed: a session of this request went well. A failure of another server then does not
	// count against the destination as a whole.
	completed bool
	// some: some recipient has got the message. A reply that asks for less mail then makes the
	// window smaller, but the destination is no nearer to being dead.
	some bool
	// slower is the reply by which the destination has said that it wants less mail at a time; nil:
	// it has not. One from a session that had not delivered anything outranks one that had.
	slower   *failure
	named    bool // a session was kept under the nexthop's name: one is enough
	fallback bool // hop is from smtp_fallback_relay
	// rest are the servers of hop that have not been tried, in the order of preference. Empty when
	// the last is being tried.
	rest []target

	// mayRetryPlain says that a TLS session that breaks is to be tried again
	// without TLS. It is set while such a session is in use.
	mayRetryPlain bool

	// require is what REQUIRETLS comes to at hop; requireErr, that it cannot
	// be found out, keeps new sessions from being set up.
	require    requireLevel
	requireErr error

	// load: kept sessions are looked for. keep: one is kept when it is done.
	load, keep bool
	// why is the latest failure that was not the last word: what recipients are deferred with when
	// no server is left. nil while nothing has failed.
	why  *failure
	todo []int // what left returns
	more bool  // this session has another transaction for the message
	// waiting are recipients for another session with the same server, as this one has had as many
	// as the server takes (RFC 9422); nil: none.
	waiting []int
	lists   []int         // memory for the lists of a transaction
	body    agent.Content // nil until a session needs it; closed by deliver
	say     table.Trace   // master.cf has -v: what is asked and said is logged; else nil
}

// content opens the message, once. A delivery that reaches no server never reads
// it.
func (d *delivery) content() error {
	if d.body != nil {
		return nil
	}
	c, err := d.req.Content()
	d.body = c
	return err
}

// run tries the destinations of the request in order: the next hop, which may be a
// list, and then the relays of smtp_fallback_relay. When it returns each recipient
// has its outcome.
func (d *delivery) run(ctx context.Context) {
	hops, err := parseNexthops(d.one[:0], string(d.nexthop), d.set.port, d.set.lmtp, d.set.ports)
	// A next hop that cannot be parsed is a mistake in a table or in main.cf. The
	// mail stays, and the postmaster finds the reason in the log and in the queue.
	if err != nil {
		d.log.Warning("%v", err)
		d.record(&failure{kind: sessionFailed, status: dsn.S(4, 3, 5), text: "mail system configuration error"}, d.left())
		return
	}
	d.req.Connecting()
	// Those of smtp_fallback_relay come after; what fails there is that relay's doing.
	own := len(hops)
	hops = d.withFallback(hops)
	for i := range hops {
		d.hop, d.first, d.finalHop, d.fallback = &hops[i], i == 0, i == len(hops)-1, i >= own
		d.require, d.requireErr = d.requires(ctx)
		d.advice(ctx)
		d.hintSMTPS()
		d.tryHop(ctx)
		// Every recipient has its outcome: the other destinations are alternatives, not copies.
		if len(d.left()) == 0 {
			return
		}
		if ctx.Err() != nil || d.finalHop {
			break
		}
	}
	d.giveUp(ctx)
}

// hintSMTPS tells the administrator who sends to port 465 without
// smtp_tls_wrappermode what that port wants: the server there says nothing until
// TLS has begun, and the delivery would only show a timeout.
func (d *delivery) hintSMTPS() {
	if !d.set.helpful || d.a.tls.wrapper || d.hop.port != smtpsPort {
		return
	}
	d.log.Log(maillog.SMTPWrapperHint{Port: smtpsPort, Wrapper: d.set.own.Name("tls_wrappermode"), Level: d.set.own.Name("tls_security_level")})
}

// withFallback appends the destinations of smtp_fallback_relay. One that cannot be
// parsed is left out. A next hop that is a Unix-domain socket has none, as with
// Postfix.
func (d *delivery) withFallback(hops []nexthop) []nexthop {
	if len(d.set.fallback) == 0 || hops[0].path != "" {
		return hops
	}
	for _, text := range d.set.fallback {
		more, err := parseNexthops(hops, text, d.set.port, d.set.lmtp, d.set.ports)
		if err != nil {
			d.log.Warning("smtp_fallback_relay: %v", err)
			continue
		}
		hops = more
	}
	return hops
}

// advice sets whether sessions are taken from the cache and given to it. To look
// for one costs next to nothing here, so that it is done even where the queue
// manager sees no reason to: it has forgotten a destination for which there was
// nothing to do for a moment. It asks for one to be kept when it has more mail for
// the destination.
func (d *delivery) advice(ctx context.Context) {
	always, err := d.tab.cacheDests.Match(ctx, cmp.Or(d.hop.host, d.hop.path))
	if err != nil {
		d.log.Warning("%v", err)
	}
	d.load = always || d.set.cacheOnDemand
	d.keep = always || d.cacheKeep && d.set.cacheOnDemand
}

// giveUp records what is left when no server is. It is the one place where a
// destination as a whole fails: until here, another server could still have taken
// the mail.
func (d *delivery) giveUp(ctx context.Context) {
	if ctx.Err() != nil {
		// The destination is not to blame.
		d.record(&failure{kind: messageFailed, status: dsn.S(4, 3, 2), text: "mail system is stopping"}, d.left())
		return
	}
	f := d.why
	if f == nil {
		f = &failure{status: dsn.S(4, 3, 0), text: "server unavailable or unable to receive mail"}
	}
	own := *f
	// What no server would take is held against the destination, unless this system was short of
	// descriptors or memory.
	if own.kind = siteFailed; own.ours {
		own.kind = messageFailed
	}
	if !own.soft() {
		switch {
		// A permanent failure here would return mail because of a mistake in main.cf: it is kept, and
		// the log says whose the mistake is.
		case d.fallback:
			d.log.LogWarning(maillog.SMTPRelayProblem{Parameter: d.set.own.Name("fallback_relay"), Reason: own.text})
			own.status = dsn.S(4, 3, 5)
		case d.hop.text == d.set.relayhost:
			d.log.LogWarning(maillog.SMTPRelayProblem{Parameter: "relayhost", Reason: own.text})
			own.status = dsn.S(4, 3, 5)
		// best_mx_transport: mail for a domain whose best MX host this is.
		case own.loop && d.set.bestMX != "":
			d.passOn()
			return
		}
	}
	d.record(&own, d.left())
}

// passOn has what is left delivered by best_mx_transport: this system is where the
// DNS says that mail for the destination is to go. The transport may come with a
// next hop of its own.
func (d *delivery) passOn() {
	transport, nexthop, _ := strings.Cut(d.set.bestMX, ":")
	if nexthop == "" {
		nexthop = string(d.nexthop)
	}
	for _, i := range d.left() {
		d.req.Pass(i, mail.Transport(transport), mail.Nexthop(nexthop))
	}
}
