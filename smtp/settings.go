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

// settings is what main.cf says about this agent.
type settings struct {
	lmtp       bool
	myhostname string
	helloName  string
	port       string
	ports      portNames
	time       timeouts

	dns          dnsLevel
	names        resolver.Names // the rule that the resolver converts international names by
	hostDNS      bool           // smtp_host_lookup
	hostNative   bool
	families     resolver.Family
	dnsFilter    []string // smtp_dns_reply_filter
	srv          []string // use_srv_lookup
	srvFallback  bool
	srvIgnoreErr bool
	ignoreMXErr  bool // ignore_mx_lookup_error
	deferNoAddr  bool // smtp_defer_if_no_mx_address_found
	randomize    bool
	preference   string // ipv4, ipv6, any
	balance      bool
	maxAddrs     int
	maxSessions  int
	fallback     []string
	relayhost    string
	bestMX       string   // best_mx_transport
	ownAddrs     []string // inet_interfaces
	proxyAddrs   []string // proxy_interfaces
	bind4        string
	bind6        string
	bindEnforce  bool

	skip5xxGreeting bool
	alwaysEHLO      bool
	neverEHLO       bool
	discard         []string
	discardMaps     []string
	pix             []string
	pixMaps         []string
	replyFilter     []string
	throttleReplies []string
	throttle        throttle // parsed from that
	pixThreshold    time.Duration
	pixDelay        time.Duration

	dummyAuth     bool
	xforward      bool
	quoteEnvelope bool
	lineLimit     int // of content lines
	replyLimit    int // of reply lines
	verifyAtData  bool
	assumeFinal   bool // lmtp_assume_final
	skipQuitReply bool
	deadline      bool // smtp_per_request_deadline
	minRate       int
	softBounce    bool
	helpful       bool // helpful_warnings
	window        int  // tcp_windowsize, 0: the system's
	debugPeers    []string
	debugLevel    int
	cnameNames    bool // smtp_cname_overrides_servername
	minBackoff    time.Duration

	cacheDests    []string
	cacheOnDemand bool
	idleLimit     time.Duration
	reuseTime     time.Duration
	reuseCount    int
}

// timeouts are the limits of a session's stages; zero means none.
type timeouts struct {
	connect, hello, starttls, xforward, mail, rcpt, dataInit, dataXfer, dataDone, rset, quit time.Duration
}

// dnsLevel is smtp_dns_support_level.
type dnsLevel uint8

const (
	dnsDisabled dnsLevel = iota
	dnsEnabled
	dnsSecure
)

// load reads the parameters of the program, smtp or lmtp.
func load(cfg *config.Config, lmtp bool) *settings {
	var s *settings
	if lmtp {
		s = lmtpSettings(cfg)
	} else {
		s = smtpSettings(cfg)
	}
	s.lmtp = lmtp
	s.ports = cfg.Port
	s.names = resolver.NamesOf(cfg)
	if n, err := cfg.Port(s.port); err == nil { // else deliveries say so
		s.port = strconv.Itoa(int(n))
	}
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
	if !lmtp {
		s.srv = cfg.List("use_srv_lookup")
		s.srvFallback = cfg.Bool("allow_srv_lookup_fallback")
		s.srvIgnoreErr = cfg.Bool("ignore_srv_lookup_error")
	}
	if s.dns == dnsEnabled && cfg.Bool("disable_dns_lookups") {
		s.dns = dnsDisabled
	}
	for _, p := range cfg.List("inet_protocols") {
		switch strings.ToLower(p) {
		case "ipv4":
			s.families |= resolver.IPv4
		case "ipv6":
			s.families |= resolver.IPv6
		default:
			s.families |= resolver.IPv4 | resolver.IPv6
		}
	}
	return s
}

// hostLookup reads smtp_host_lookup into s.
func (s *settings) hostLookup(methods []string) {
	s.hostDNS = slices.Contains(methods, "dns")
	s.hostNative = slices.Contains(methods, "native")
}

func parseDNSLevel(text string) dnsLevel {
	switch text {
	case "disabled":
		return dnsDisabled
	case "dnssec":
		return dnsSecure
	}
	return dnsEnabled
}

func smtpSettings(cfg *config.Config) *settings {
	s := &settings{
		helloName: cfg.String("smtp_helo_name"),
		port:      cfg.String("smtp_tcp_port"),
		time: timeouts{
			connect:  cfg.Duration("smtp_connect_timeout"),
			hello:    cfg.Duration("smtp_helo_timeout"),
			starttls: cfg.Duration("smtp_starttls_timeout"),
			xforward: cfg.Duration("smtp_xforward_timeout"),
			mail:     cfg.Duration("smtp_mail_timeout"),
			rcpt:     cfg.Duration("smtp_rcpt_timeout"),
			dataInit: cfg.Duration("smtp_data_init_timeout"),
			dataXfer: cfg.Duration("smtp_data_xfer_timeout"),
			dataDone: cfg.Duration("smtp_data_done_timeout"),
			rset:     cfg.Duration("smtp_rset_timeout"),
			quit:     cfg.Duration("smtp_quit_timeout"),
		},
		dns:         parseDNSLevel(cfg.String("smtp_dns_support_level")),
		dnsFilter:   cfg.List("smtp_dns_reply_filter"),
		deferNoAddr: cfg.Bool("smtp_defer_if_no_mx_address_found"),
		randomize:   cfg.Bool("smtp_randomize_addresses"),
		preference:  cfg.String("smtp_address_preference"),
		balance:     cfg.String("smtp_balance_inet_protocols") == "yes",
		maxAddrs:    cfg.Int("smtp_mx_address_limit"),
		maxSessions: cfg.Int("smtp_mx_session_limit"),
		fallback:    cfg.List("smtp_fallback_relay"),
		bind4:       cfg.String("smtp_bind_address"),
		bind6:       cfg.String("smtp_bind_address6"),
		bindEnforce: cfg.Bool("smtp_bind_address_enforce"),

		skip5xxGreeting: cfg.Bool("smtp_skip_5xx_greeting"),
		alwaysEHLO:      cfg.Bool("smtp_always_send_ehlo"),
		neverEHLO:       cfg.Bool("smtp_never_send_ehlo"),
		discard:         cfg.List("smtp_discard_ehlo_keywords"),
		discardMaps:     cfg.List("smtp_discard_ehlo_keyword_address_maps"),
		pix:             cfg.List("smtp_pix_workarounds"),
		pixMaps:         cfg.List("smtp_pix_workaround_maps"),
		replyFilter:     cfg.List("smtp_reply_filter"),
		throttleReplies: cfg.List("smtp_throttle_replies"),
		pixThreshold:    cfg.Duration("smtp_pix_workaround_threshold_time"),
		pixDelay:        cfg.Duration("smtp_pix_workaround_delay_time"),

		dummyAuth:     cfg.Bool("smtp_send_dummy_mail_auth"),
		xforward:      cfg.Bool("smtp_send_xforward_command"),
		quoteEnvelope: cfg.Bool("smtp_quote_rfc821_envelope"),
		lineLimit:     cfg.Int("smtp_line_length_limit"),
		verifyAtData:  cfg.String("smtp_address_verify_target") == "data",
		skipQuitReply: cfg.Bool("smtp_skip_quit_response"),
		deadline:      cfg.Bool("smtp_per_request_deadline"),
		minRate:       cfg.Int("smtp_min_data_rate"),
		cnameNames:    cfg.Bool("smtp_cname_overrides_servername"),

		cacheDests:    cfg.List("smtp_connection_cache_destinations"),
		cacheOnDemand: cfg.Bool("smtp_connection_cache_on_demand"),
		idleLimit:     cfg.Duration("smtp_connection_cache_time_limit"),
		reuseTime:     cfg.Duration("smtp_connection_reuse_time_limit"),
		reuseCount:    cfg.Int("smtp_connection_reuse_count_limit"),
	}
	s.hostLookup(cfg.List("smtp_host_lookup"))
	return s
}

func lmtpSettings(cfg *config.Config) *settings {
	s := &settings{
		helloName: cfg.String("lmtp_lhlo_name"),
		port:      cfg.String("lmtp_tcp_port"),
		time: timeouts{
			connect:  cfg.Duration("lmtp_connect_timeout"),
			hello:    cfg.Duration("lmtp_lhlo_timeout"),
			starttls: cfg.Duration("lmtp_starttls_timeout"),
			xforward: cfg.Duration("lmtp_xforward_timeout"),
			mail:     cfg.Duration("lmtp_mail_timeout"),
			rcpt:     cfg.Duration("lmtp_rcpt_timeout"),
			dataInit: cfg.Duration("lmtp_data_init_timeout"),
			dataXfer: cfg.Duration("lmtp_data_xfer_timeout"),
			dataDone: cfg.Duration("lmtp_data_done_timeout"),
			rset:     cfg.Duration("lmtp_rset_timeout"),
			quit:     cfg.Duration("lmtp_quit_timeout"),
		},
		dns:         parseDNSLevel(cfg.String("lmtp_dns_support_level")),
		dnsFilter:   cfg.List("lmtp_dns_reply_filter"),
		deferNoAddr: cfg.Bool("lmtp_defer_if_no_mx_address_found"),
		randomize:   cfg.Bool("lmtp_randomize_addresses"),
		preference:  cfg.String("lmtp_address_preference"),
		balance:     cfg.String("lmtp_balance_inet_protocols") == "yes",
		maxAddrs:    cfg.Int("lmtp_mx_address_limit"),
		maxSessions: cfg.Int("lmtp_mx_session_limit"),
		fallback:    cfg.List("lmtp_fallback_relay"),
		bind4:       cfg.String("lmtp_bind_address"),
		bind6:       cfg.String("lmtp_bind_address6"),
		bindEnforce: cfg.Bool("lmtp_bind_address_enforce"),

		skip5xxGreeting: cfg.Bool("lmtp_skip_5xx_greeting"),
		alwaysEHLO:      true, // there is no other greeting
		discard:         cfg.List("lmtp_discard_lhlo_keywords"),
		discardMaps:     cfg.List("lmtp_discard_lhlo_keyword_address_maps"),
		pix:             cfg.List("lmtp_pix_workarounds"),
		pixMaps:         cfg.List("lmtp_pix_workaround_maps"),
		replyFilter:     cfg.List("lmtp_reply_filter"),
		throttleReplies: cfg.List("lmtp_throttle_replies"),
		pixThreshold:    cfg.Duration("lmtp_pix_workaround_threshold_time"),
		pixDelay:        cfg.Duration("lmtp_pix_workaround_delay_time"),

		dummyAuth:     cfg.Bool("lmtp_send_dummy_mail_auth"),
		xforward:      cfg.Bool("lmtp_send_xforward_command"),
		quoteEnvelope: cfg.Bool("lmtp_quote_rfc821_envelope"),
		lineLimit:     cfg.Int("lmtp_line_length_limit"),
		verifyAtData:  cfg.String("lmtp_address_verify_target") == "data",
		assumeFinal:   cfg.Bool("lmtp_assume_final"),
		skipQuitReply: cfg.Bool("lmtp_skip_quit_response"),
		deadline:      cfg.Bool("lmtp_per_request_deadline"),
		minRate:       cfg.Int("lmtp_min_data_rate"),
		cnameNames:    cfg.Bool("lmtp_cname_overrides_servername"),

		cacheDests:    cfg.List("lmtp_connection_cache_destinations"),
		cacheOnDemand: cfg.Bool("lmtp_connection_cache_on_demand"),
		idleLimit:     cfg.Duration("lmtp_connection_cache_time_limit"),
		reuseTime:     cfg.Duration("lmtp_connection_reuse_time_limit"),
		reuseCount:    cfg.Int("lmtp_connection_reuse_count_limit"),
	}
	s.hostLookup(cfg.List("lmtp_host_lookup"))
	return s
}

// tables are the lookup tables that the parameters name.
type tables struct {
	discard    *table.Maps
	pix        *table.Maps
	records    *table.Maps // smtp_dns_reply_filter
	replies    *table.Maps // smtp_reply_filter
	cacheDests *table.List
}

func (s *settings) open(o table.Options) (*tables, error) {
	family := "smtp_"
	if s.lmtp {
		family = "lmtp_"
	}
	dests, err := table.NewList(family+"connection_cache_destinations", s.cacheDests,
		table.ListOptions{Kind: table.Domains, Parent: true, Table: o})
	if err != nil {
		return nil, err
	}
	if s.throttle, err = parseThrottle(family+"throttle_replies", s.throttleReplies); err != nil {
		return nil, err
	}
	return &tables{
		discard:    table.OpenMaps(family+"discard_ehlo_keyword_address_maps", s.discardMaps, o),
		pix:        table.OpenMaps(family+"pix_workaround_maps", s.pixMaps, o),
		records:    table.OpenMaps(family+"dns_reply_filter", s.dnsFilter, o),
		replies:    table.OpenMaps(family+"reply_filter", s.replyFilter, o),
		cacheDests: dests,
	}, nil
}
