// The parameters of smtp and lmtp, and the tables that they name. Those of TLS, SASL
// and of the conversion of content are read by the files that they concern.

package smtp

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
)

// settings is what main.cf says about this agent. It is read once and never changed, so that any
// number of deliveries may use it at once. Comments name the parameter without its prefix where
// smtp and lmtp both have it, smtp_connect_timeout and lmtp_connect_timeout, for example.
type settings struct {
	// own reads the parameters of the program: those that begin with smtp_, or with lmtp_.
	own  config.Prefixed
	lmtp bool // the program is lmtp: LHLO, and a reply to the content for each recipient (RFC 2033)

	myhostname string
	helloName  string // helo_name, lmtp_lhlo_name: what EHLO, HELO and LHLO say
	// port is tcp_port, for destinations that have none: in digits, unless it is no known service,
	// which each delivery then says.
	port  string
	ports portNames // how ports and services are read
	time  timeouts

	dns dnsLevel
	// names is the rule that the resolver converts international names by.
	names resolver.Names
	// hostDNS and hostNative are host_lookup: the DNS, then what nsswitch.conf says. With dns alone,
	// names are complete. With native alone, the DNS is not asked for addresses.
	hostDNS, hostNative bool
	families            resolver.Family // inet_protocols, less IPv6 where this system has none
	// srv are the services (use_srv_lookup) whose destinations SRV records stand for in the place of
	// MX records (RFC 2782). LMTP has none.
	srv          []string
	srvFallback  bool // allow_srv_lookup_fallback: to MX records where no SRV record can be had
	srvIgnoreErr bool // ignore_srv_lookup_error: and where the lookup fails
	// ignoreMXErr is ignore_mx_lookup_error: a lookup of MX records that fails is as one that finds
	// none, so that mail may go to the domain's own address.
	ignoreMXErr bool
	deferNoAddr bool // defer_if_no_mx_address_found: such mail is not returned but tried again

	// randomize shuffles servers of equal preference, which shares the load among them (RFC 5321
	// section 5.1).
	randomize  bool
	preference string // address_preference: ipv4, ipv6, any
	// balance is balance_inet_protocols: maxAddrs, which may cut the list of addresses short, takes
	// from both families.
	balance     bool
	maxAddrs    int // mx_address_limit; 0: none
	maxSessions int // mx_session_limit: sessions that got as far as a transaction; 0: no limit

	fallback   []string // fallback_relay: destinations that are tried after those of the request
	relayhost  string   // failures of it are the administrator's to mend, and no mail is returned for them
	bestMX     string   // best_mx_transport; empty: mail that would loop is returned
	ownAddrs   []string // inet_interfaces
	proxyAddrs []string // proxy_interfaces

	// bind4 and bind6 are bind_address and bind_address6, empty where the system chooses. With
	// bindEnforce a connection whose source address cannot be had is not made.
	bind4, bind6 string
	bindEnforce  bool

	// skip5xxGreeting: a server that greets with 5xx does not get to decide for the others. The next
	// one is tried.
	skip5xxGreeting bool
	alwaysEHLO      bool // whether or not the greeting says ESMTP; true for LMTP, which has LHLO alone
	neverEHLO       bool
	discard         []string // discard_ehlo_keywords: offers that are not believed
	pix             []string // pix_workarounds, for servers that the table of them does not name
	// pixThreshold is how old a message must be before a PIX firewall, which may be what kept it
	// from being delivered, is given pixDelay of rest before the final dot.
	pixThreshold, pixDelay time.Duration
	// throttle are the replies of throttle_replies. It is empty until open has read them.
	throttle throttle

	dummyAuth     bool // send_dummy_mail_auth: MAIL says AUTH=<> (RFC 4954 section 5)
	xforward      bool // send_xforward_command, to servers that offer it
	quoteEnvelope bool // quote_rfc821_envelope
	lineLimit     int  // of content lines, in octets without CRLF; 0: none
	replyLimit    int  // line_length_limit: of the lines of a reply, in octets
	// verifyAtData: an address probe goes on to DATA, for servers that do not judge recipients
	// before. Nothing is sent: RSET follows, or QUIT.
	verifyAtData bool
	// assumeFinal is lmtp_assume_final: what an LMTP server that does not offer DSN has taken is in
	// the mailbox, so that a sender who asks for a notification gets "delivered", not "relayed".
	assumeFinal   bool
	skipQuitReply bool // skip_quit_response: the connection is closed behind QUIT
	// deadline is per_request_deadline: a time limit is for a whole request with its reply, and for
	// the content grows with its size at minRate octets a second (min_data_rate; 0: it does not).
	deadline   bool
	minRate    int
	softBounce bool // soft_bounce: no failure is final
	helpful    bool // helpful_warnings
	window     int  // tcp_windowsize, in octets; 0: the system's
	debugPeers []string
	debugLevel int
	// cnameNames is cname_overrides_servername: a host that is an alias goes by the name that the
	// alias leads to, in the log and in TLS.
	cnameNames bool
	// minBackoff is minimal_backoff_time: a message that is younger has not been tried before, and
	// opportunistic TLS that fails does not yet make it go in the clear.
	minBackoff time.Duration

	// cacheOnDemand is connection_cache_on_demand: sessions are kept where the queue manager has
	// more mail for the destination. Destinations of connection_cache_destinations need no such
	// advice.
	cacheOnDemand bool
	idleLimit     time.Duration // connection_cache_time_limit: how long a session is kept unused
	reuseTime     time.Duration // connection_reuse_time_limit: how old it gets; 0: no limit
	reuseCount    int           // connection_reuse_count_limit: how many messages it serves; 0: no limit
}

// timeouts are the limits of a session's stages (RFC 5321 section 4.5.3.2); zero means none.
type timeouts struct {
	connect, hello, starttls, xforward, mail, rcpt, dataInit, dataXfer, dataDone, rset, quit time.Duration
}

// dnsLevel is smtp_dns_support_level.
type dnsLevel uint8

const (
	dnsDisabled dnsLevel = iota // names are asked of the system, and there are no MX records
	dnsEnabled                  // the DNS is asked
	dnsSecure                   // and whether DNSSEC vouches for its answers: DANE needs it
)

// load reads the parameters of the program, smtp or lmtp.
func load(cfg *config.Config, lmtp bool) *settings {
	s := &settings{own: ownParameters(cfg, lmtp), lmtp: lmtp, ports: cfg.Port, names: resolver.NamesOf(cfg)}
	s.readOwn()
	if lmtp {
		s.readLMTP(cfg)
	} else {
		s.readSMTP(cfg)
	}
	s.readShared(cfg)
	if n, err := cfg.Port(s.port); err == nil {
		s.port = strconv.Itoa(int(n))
	}
	return s
}

// ownParameters are those of a program: relay, which is smtp under another name, has smtp's.
func ownParameters(cfg *config.Config, lmtp bool) config.Prefixed {
	if lmtp {
		return cfg.Prefix("lmtp")
	}
	return cfg.Prefix("smtp")
}

// readOwn reads what smtp and lmtp both have, each under its own prefix.
func (s *settings) readOwn() {
	own := s.own
	s.port = own.String("tcp_port")
	s.time.connect = own.Duration("connect_timeout")
	s.time.starttls = own.Duration("starttls_timeout")
	s.time.xforward = own.Duration("xforward_timeout")
	s.time.mail = own.Duration("mail_timeout")
	s.time.rcpt = own.Duration("rcpt_timeout")
	s.time.dataInit = own.Duration("data_init_timeout")
	s.time.dataXfer = own.Duration("data_xfer_timeout")
	s.time.dataDone = own.Duration("data_done_timeout")
	s.time.rset = own.Duration("rset_timeout")
	s.time.quit = own.Duration("quit_timeout")

	s.dns = parseDNSLevel(own.String("dns_support_level"))
	methods := own.List("host_lookup")
	s.hostDNS, s.hostNative = slices.Contains(methods, "dns"), slices.Contains(methods, "native")
	s.deferNoAddr = own.Bool("defer_if_no_mx_address_found")
	s.randomize = own.Bool("randomize_addresses")
	s.preference = own.String("address_preference")
	s.balance = own.Bool("balance_inet_protocols")
	s.maxAddrs = own.Int("mx_address_limit")
	s.maxSessions = own.Int("mx_session_limit")
	s.fallback = own.List("fallback_relay")
	s.bind4, s.bind6 = own.String("bind_address"), own.String("bind_address6")
	s.bindEnforce = own.Bool("bind_address_enforce")

	s.skip5xxGreeting = own.Bool("skip_5xx_greeting")
	s.pix = own.List("pix_workarounds")
	s.pixThreshold = own.Duration("pix_workaround_threshold_time")
	s.pixDelay = own.Duration("pix_workaround_delay_time")
	s.dummyAuth = own.Bool("send_dummy_mail_auth")
	s.xforward = own.Bool("send_xforward_command")
	s.quoteEnvelope = own.Bool("quote_rfc821_envelope")
	s.lineLimit = own.Int("line_length_limit")
	s.verifyAtData = own.String("address_verify_target") == "data"
	s.skipQuitReply = own.Bool("skip_quit_response")
	s.deadline = own.Bool("per_request_deadline")
	s.minRate = own.Int("min_data_rate")
	s.cnameNames = own.Bool("cname_overrides_servername")

	s.cacheOnDemand = own.Bool("connection_cache_on_demand")
	s.idleLimit = own.Duration("connection_cache_time_limit")
	s.reuseTime = own.Duration("connection_reuse_time_limit")
	s.reuseCount = own.Int("connection_reuse_count_limit")
}

// readSMTP reads what lmtp has not, or has under another name.
func (s *settings) readSMTP(cfg *config.Config) {
	s.helloName = cfg.String("smtp_helo_name")
	s.time.hello = cfg.Duration("smtp_helo_timeout")
	s.discard = cfg.List("smtp_discard_ehlo_keywords")
	s.alwaysEHLO = cfg.Bool("smtp_always_send_ehlo")
	s.neverEHLO = cfg.Bool("smtp_never_send_ehlo")
	s.srv = cfg.List("use_srv_lookup")
	s.srvFallback = cfg.Bool("allow_srv_lookup_fallback")
	s.srvIgnoreErr = cfg.Bool("ignore_srv_lookup_error")
}

// readLMTP reads what smtp has not, or has under another name.
func (s *settings) readLMTP(cfg *config.Config) {
	s.helloName = cfg.String("lmtp_lhlo_name")
	s.time.hello = cfg.Duration("lmtp_lhlo_timeout")
	s.discard = cfg.List("lmtp_discard_lhlo_keywords")
	s.alwaysEHLO = true // LMTP has no other greeting
	s.assumeFinal = cfg.Bool("lmtp_assume_final")
}

// readShared reads the parameters that are not the program's own, which may bound those that are.
func (s *settings) readShared(cfg *config.Config) {
	s.myhostname = cfg.String("myhostname")
	s.ignoreMXErr = cfg.Bool("ignore_mx_lookup_error")
	s.relayhost = cfg.String("relayhost")
	s.bestMX = cfg.String("best_mx_transport")
	s.ownAddrs = cfg.List("inet_interfaces")
	s.proxyAddrs = cfg.List("proxy_interfaces")
	s.replyLimit = cfg.Int("line_length_limit")
	s.debugPeers = cfg.List("debug_peer_list")
	s.debugLevel = cfg.Int("debug_peer_level")
	s.softBounce = cfg.Bool("soft_bounce")
	s.helpful = cfg.Bool("helpful_warnings")
	s.window = cfg.Int("tcp_windowsize")
	s.minBackoff = cfg.Duration("minimal_backoff_time")
	s.idleLimit = min(s.idleLimit, cfg.Duration("connection_cache_ttl_limit"))
	if s.dns == dnsEnabled && cfg.Bool("disable_dns_lookups") {
		s.dns = dnsDisabled
	}
	for _, p := range cfg.List("inet_protocols") {
		switch strings.ToLower(p) {
		case "ipv4":
			s.families |= resolver.IPv4
		case "ipv6":
			s.families |= resolver.IPv6
		default: // all
			s.families |= resolver.IPv4 | resolver.IPv6
		}
	}
}

// parseDNSLevel reads smtp_dns_support_level; empty is enabled. The configuration
// has refused other words.
func parseDNSLevel(text string) dnsLevel {
	switch text {
	case "disabled":
		return dnsDisabled
	case "dnssec":
		return dnsSecure
	}
	return dnsEnabled
}

// tables are the lookup tables that the parameters name. They may be used by all
// deliveries at once.
type tables struct {
	discard    *table.Maps // discard_ehlo_keyword_address_maps: by a server's address, what of its offers is not believed
	pix        *table.Maps // pix_workaround_maps, by a server's address
	records    *table.Maps // dns_reply_filter
	replies    *table.Maps // reply_filter
	cacheDests *table.List // connection_cache_destinations
}

// open opens the tables, and reads what is checked only when an agent starts. Its
// errors name the parameter. Tables close with the process.
func (s *settings) open(o table.Options) (*tables, error) {
	own := s.own
	dests, err := table.NewList(own.Name("connection_cache_destinations"), own.List("connection_cache_destinations"),
		table.ListOptions{Kind: table.Domains, Parent: true, Table: o})
	if err != nil {
		return nil, err
	}
	if s.throttle, err = parseThrottle(own.Name("throttle_replies"), own.List("throttle_replies")); err != nil {
		return nil, err
	}
	t := &tables{
		pix:        openMaps(own, "pix_workaround_maps", o),
		records:    openMaps(own, "dns_reply_filter", o),
		replies:    openMaps(own, "reply_filter", o),
		cacheDests: dests,
	}
	if s.lmtp {
		t.discard = openMaps(own, "discard_lhlo_keyword_address_maps", o)
	} else {
		t.discard = openMaps(own, "discard_ehlo_keyword_address_maps", o)
	}
	return t, nil
}

// openMaps opens the tables of one of the program's parameters. One that cannot be opened is warned of, and tried again by the lookups.
func openMaps(own config.Prefixed, suffix string, o table.Options) *table.Maps {
	return table.OpenMaps(own.Name(suffix), own.List(suffix), o)
}
