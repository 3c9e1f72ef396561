// The parameters of main.cf that sessions need, each read once, and the two of them
// that need more than reading. Parameters of TLS, SASL, proxies, limits and filters
// are read by the files that they concern.

package smtpd

import (
	"fmt"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/proto"
	"posthaste/internal/storage"
	"posthaste/internal/table"
)

// bareNewline is the value of smtpd_forbid_bare_newline: what is done to a client
// that ends lines in LF alone. Whatever it is, such a line never helps to end a
// message (see content).
type bareNewline uint8

const (
	// bareAllow takes them as lines, and LF "." LF as the end of a message from a client
	// that ended its DATA command so.
	bareAllow bareNewline = iota
	// bareNormalize takes them as lines. "yes" means this.
	bareNormalize
	// bareNote does the same, and adds notes=bare_lf to the disconnect line.
	bareNote
	// bareReject refuses the command and ends the session, or refuses the message.
	bareReject
)

// settings are the parameters that sessions need, read once. They do not change,
// and all sessions that began under the same configuration share them: those under
// stress have other ones. A limit of 0 is no limit, except where a comment says so.
type settings struct {
	// What the greeting, replies and Received: fields call us.
	myhostname, mailName, banner string

	// timeout bounds one read or one write, startTLSTimeout a whole handshake. With
	// perRequest timeout bounds a whole command instead; while content arrives, each
	// minDataRate octets of it then buy one more second.
	timeout, startTLSTimeout time.Duration
	perRequest               bool
	minDataRate              int

	// lineLimit is the longest command line in octets, without its end.
	lineLimit int
	// messageLimit is the largest message in octets, as counted by content.
	messageLimit int64
	// queueNeed and contentNeed are how many bytes must be free on the file systems of
	// queue_directory and spool_content_directory before MAIL is accepted.
	queueNeed, contentNeed int64
	// inlineLimit is spool_inline_limit: larger messages go to spool_content_directory.
	inlineLimit int64
	// queueDir is the queue directory, which is where services run.
	queueDir string

	heloRequired, vrfyDisabled bool
	// strict is strict_rfc821_envelopes: addresses must be in angle brackets.
	strict     bool
	softBounce bool // 5xx replies become 4xx

	// The limits on mistakes; see reply and nextCommand. errorSleep is the delay of each
	// reply once softErrors is reached.
	softErrors, hardErrors, junkLimit int
	errorSleep                        time.Duration
	// rcptLimit is the number of recipients of one message, overshoot the number beyond
	// it that a client may ask for without an error being counted.
	rcptLimit, overshoot int
	announceLimits       bool // LIMITS RCPTMAX in the reply to EHLO, RFC 9422
	// delayOpen has the queue ID allocated at the first accepted recipient, not at MAIL.
	delayOpen bool

	bare       bareNewline
	bareCode   int         // of the refusal for bareReject: 5xx, or 4xx to try again
	bareExempt *table.List // clients that may send bare newlines
	// verpClients may use XVERP; verpDelims are the delimiters for an XVERP without its
	// own, and verpFilter the characters that a client may choose as such.
	verpClients            *table.List
	verpDelims, verpFilter string

	debugPeers *table.List // whose dialogues are logged,
	debugLevel int         // if this is more than 0
	pipelining bool        // smtpd_forbid_unauth_pipelining
	// noop has the commands, in upper case, that do nothing and succeed.
	noop      map[string]bool
	forbidden *table.List // commands of other protocols, which end the session

	smtputf8, strictUTF8 bool
	// discard has the EHLO keywords, in lower case, that are not announced, for clients
	// that discardMaps has nothing for.
	discard     map[string]bool
	discardMaps *table.Maps
	// commandFilter may replace each command line, and rejectFilter each refusal.
	commandFilter, rejectFilter *table.Maps
	// footer is added to refusals, unless footerMaps has another one for the reply.
	footer     string
	footerMaps *table.Maps

	// override is receive_override_options; withheld is the part of it that concerns
	// cleanup: what it is told not to do.
	override map[string]bool
	withheld proto.SubmitFlags
	autoUTF8 proto.SubmitFlags // of smtputf8_autodetect_classes

	// What a Received: field says and does not say.
	hideClient, tlsReceived, saslReceived bool

	lookupNames bool // smtpd_peername_lookup
	logPort     bool // smtpd_client_port_logging
	requireTLS  bool // REQUIRETLS is offered under TLS, RFC 8689
	// requireTLSField has a content filter before the queue told of REQUIRETLS in the
	// header, since it speaks plain SMTP with us.
	requireTLSField bool

	historyLimit int           // lines of transcript after which it is posted or emptied
	localRewrite []string      // local_header_rewrite_clients
	wait         time.Duration // smtpd_delivery_wait; 0: no client waits for deliveries
	refuse       bool          // smtpd_delivery_wait_failure
	filter       string        // content_filter: what each queued message is to pass first
}

// readSettings reads them for one configuration. An error names the parameter. The
// tables that it opens are closed by close.
func readSettings(cfg *config.Config, o table.Options) (*settings, error) {
	s := &settings{
		myhostname: cfg.String("myhostname"), mailName: cfg.String("mail_name"), banner: cfg.String("smtpd_banner"),
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
		wait:            cfg.Duration("smtpd_delivery_wait"),
		refuse:          cfg.String("smtpd_delivery_wait_failure") == "refuse",
	}
	// Both promise that what may have arrived is known after a crash, and that takes the storage.
	switch {
	case s.wait > 0 && storage.Elsewhere(cfg):
		return nil, fmt.Errorf("smtpd_delivery_wait = %v: with spool_type = %s every message must be stored before it is delivered", s.wait, cfg.String("spool_type"))
	case s.wait > 0 && cfg.Bool("spool_exact_doubt"):
		return nil, fmt.Errorf("smtpd_delivery_wait = %v: with spool_exact_doubt = yes every message must be stored before it is delivered", s.wait)
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

// setNeeds works out how much has to be free for mail to be taken: on the file
// system of the queue, one and a half times the largest message that goes there,
// and on that of spool_content_directory, if there is one, the same for the largest
// message of all. The factor is Postfix's; it leaves clients that are in the middle
// of a message the room to finish. A client is told 452 at MAIL, before it has sent
// content in vain.
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

// upperSet is words as a set of upper-case words, for what is compared with
// commands.
func upperSet(words []string) map[string]bool {
	m := make(map[string]bool, len(words))
	for _, w := range words {
		m[strings.ToUpper(w)] = true
	}
	return m
}

// lowerSet is words as a set of lower-case words.
func lowerSet(words []string) map[string]bool {
	m := make(map[string]bool, len(words))
	for _, w := range words {
		m[strings.ToLower(w)] = true
	}
	return m
}

// close closes the tables. No session may use the settings any more.
func (s *settings) close() {
	for _, m := range []*table.Maps{s.discardMaps, s.commandFilter, s.rejectFilter, s.footerMaps} {
		m.Close()
	}
}
