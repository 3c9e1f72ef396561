package smtpd

import (
	"fmt"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// bareNewline is the value of smtpd_forbid_bare_newline.
type bareNewline uint8

const (
	bareAllow bareNewline = iota
	bareNormalize
	bareNote
	bareReject
)

// settings are the parameters that sessions need, read once.
type settings struct {
	myhostname, mailName, banner, service string
	timeout, startTLSTimeout              time.Duration
	perRequest                            bool
	minDataRate                           int
	lineLimit                             int
	messageLimit                          int64
	queueNeed, contentNeed                int64 // bytes to be free on either file system; 0: any
	inlineLimit                           int64 // larger messages go to the second one
	queueDir                              string
	heloRequired, vrfyDisabled, strict    bool
	softBounce                            bool
	softErrors, hardErrors, junkLimit     int
	errorSleep                            time.Duration
	rcptLimit, overshoot                  int
	announceLimits                        bool
	delayOpen                             bool
	bare                                  bareNewline
	bareCode                              int
	bareExempt, verpClients               *table.List
	debugPeers                            *table.List // whose dialogues are logged,
	debugLevel                            int         // if this is more than 0
	pipelining                            bool        // smtpd_forbid_unauth_pipelining
	noop                                  map[string]bool
	forbidden                             *table.List
	smtputf8, strictUTF8                  bool
	discard                               map[string]bool
	discardMaps                           *table.Maps
	commandFilter                         *table.Maps
	rejectFilter                          *table.Maps
	footer                                string
	footerMaps                            *table.Maps
	override                              map[string]bool
	withheld                              proto.SubmitFlags // of receive_override_options
	autoUTF8                              proto.SubmitFlags // of smtputf8_autodetect_classes
	hideClient, tlsReceived, saslReceived bool
	lookupNames, logPort, requireTLS      bool
	requireTLSField                       bool // a content filter before the queue is told in the header
	historyLimit                          int  // lines of transcript
	verpDelims, verpFilter                string
	localRewrite                          []string
	filter                                string
}

func readSettings(cfg *config.Config, service string, o table.Options) (*settings, error) {
	s := &settings{
		myhostname: cfg.String("myhostname"), mailName: cfg.String("mail_name"), banner: cfg.String("smtpd_banner"),
		service: service,
		timeout: cfg.Duration("smtpd_timeout"), startTLSTimeout: cfg.Duration("smtpd_starttls_timeout"),
		perRequest: cfg.Bool("smtpd_per_request_deadline"), minDataRate: cfg.Int("smtpd_min_data_rate"),
		lineLimit: int(cfg.Bytes("line_length_limit")), messageLimit: cfg.Bytes("message_size_limit"),
		inlineLimit: cfg.Bytes("spool_inline_limit"), queueDir: ".",
		heloRequired: cfg.Bool("smtpd_helo_required"), vrfyDisabled: cfg.Bool("disable_vrfy_command"),
		strict: cfg.Bool("strict_rfc821_envelopes"), softBounce: cfg.Bool("soft_bounce"),
		softErrors: cfg.Int("smtpd_soft_error_limit"), hardErrors: cfg.Int("smtpd_hard_error_limit"),
		junkLimit: cfg.Int("smtpd_junk_command_limit"), errorSleep: cfg.Duration("smtpd_error_sleep_time"),
		rcptLimit: cfg.Int("smtpd_recipient_limit"), overshoot: cfg.Int("smtpd_recipient_overshoot_limit"),
		announceLimits: cfg.Bool("smtpd_announce_limits"),
		delayOpen:      cfg.Bool("smtpd_delay_open_until_valid_rcpt"),
		bareCode:       cfg.Int("smtpd_forbid_bare_newline_reject_code"),
		pipelining:     cfg.Bool("smtpd_forbid_unauth_pipelining"),
		noop:           upperSet(cfg.List("smtpd_noop_commands")),
		smtputf8:       cfg.Bool("smtputf8_enable"), strictUTF8: cfg.Bool("strict_smtputf8"),
		discard:    lowerSet(cfg.List("smtpd_discard_ehlo_keywords")),
		footer:     cfg.String("smtpd_reject_footer"),
		override:   lowerSet(cfg.List("receive_override_options")),
		withheld:   proto.OverrideFlags(cfg.List("receive_override_options")),
		autoUTF8:   proto.AutoUTF8(cfg.List("smtputf8_autodetect_classes"), "smtpd"),
		hideClient: cfg.Bool("smtpd_hide_client_session"), tlsReceived: cfg.Bool("smtpd_tls_received_header"),
		saslReceived:    cfg.Bool("smtpd_sasl_authenticated_header"),
		lookupNames:     cfg.Bool("smtpd_peername_lookup"),
		logPort:         cfg.Bool("smtpd_client_port_logging"),
		requireTLS:      cfg.Bool("requiretls_enable"),
		requireTLSField: cfg.Bool("requiretls_esmtp_header"),
		historyLimit:    cfg.Int("smtpd_history_flush_threshold"),
		verpDelims:      cfg.String("default_verp_delimiters"),
		verpFilter:      cfg.String("verp_delimiter_filter"),
		localRewrite:    cfg.List("local_header_rewrite_clients"),
		filter:          cfg.String("content_filter"),
	}
	s.setNeeds(cfg)
	switch v := strings.ToLower(cfg.String("smtpd_forbid_bare_newline")); v {
	case "no", "":
		s.bare = bareAllow
	case "yes", "normalize":
		s.bare = bareNormalize
	case "note":
		s.bare = bareNote
	case "reject":
		s.bare = bareReject
	default:
		return nil, fmt.Errorf("smtpd_forbid_bare_newline = %s: expected yes, no, normalize, note or reject", v)
	}
	var err error
	list := func(name string, kind table.Kind) *table.List {
		l, e := table.NewList(cfg.Source(name), cfg.List(name), table.ListOptions{Kind: kind, Parent: true, Table: o})
		if e != nil && err == nil {
			err = e
		}
		return l
	}
	s.bareExempt = list("smtpd_forbid_bare_newline_exclusions", table.Clients)
	s.debugPeers, s.debugLevel = list("debug_peer_list", table.Clients), cfg.Int("debug_peer_level")
	s.verpClients = list("smtpd_authorized_verp_clients", table.Clients)
	s.forbidden = list("smtpd_forbidden_commands", table.Strings)
	open := func(name string) *table.Maps { return table.OpenMaps(name, cfg.List(name), o) }
	s.discardMaps, s.commandFilter = open("smtpd_discard_ehlo_keyword_address_maps"), open("smtpd_command_filter")
	s.rejectFilter, s.footerMaps = open("smtpd_reject_filter_maps"), open("smtpd_reject_footer_maps")
	return s, err
}

// setNeeds says how much has to be free for mail to be taken: on the file system of the queue,
// one and a half times the largest message that goes there, and on that of
// spool_content_directory, if there is one, the same for the largest of all.
func (s *settings) setNeeds(cfg *config.Config) {
	most := s.messageLimit
	if cfg.String("spool_content_directory") != "" {
		most = s.inlineLimit
		if s.messageLimit > 0 {
			most = min(most, s.messageLimit)
		}
	}
	least := cfg.Bytes("queue_minfree")
	s.queueNeed = max(least, most+most/2)
	s.contentNeed = max(least, s.messageLimit+s.messageLimit/2)
}

func upperSet(words []string) map[string]bool {
	m := make(map[string]bool, len(words))
	for _, w := range words {
		m[strings.ToUpper(w)] = true
	}
	return m
}

func lowerSet(words []string) map[string]bool {
	m := make(map[string]bool, len(words))
	for _, w := range words {
		m[strings.ToLower(w)] = true
	}
	return m
}

func (s *settings) close() {
	for _, m := range []*table.Maps{s.discardMaps, s.commandFilter, s.rejectFilter, s.footerMaps} {
		m.Close()
	}
}
