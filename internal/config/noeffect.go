package config

import "strings"

// NoEffect returns why a parameter of Postfix can do nothing in Posthaste, or ""
// if it can. These are parameters of helper processes that Posthaste does not need, and
// remains that Postfix itself no longer acts upon. One that some code reads has an effect.
func NoEffect(name string) string {
	if Supported(name) {
		return ""
	}
	if reason, ok := noEffect[name]; ok {
		return reason
	}
	for _, p := range noEffectPrefixes {
		if strings.HasPrefix(name, p.prefix) {
			return p.reason
		}
	}
	return ""
}

var noEffectPrefixes = []struct{ prefix, reason string }{
	{"tlsproxy_", "every service speaks TLS itself, there is no TLS proxy process"},
	{"non_bdb_", "hash and btree tables never were Berkeley DB files here"},
	{"postscreen_tls_", asSMTPD},
	{"qmqpd_", "QMQP is not spoken"},
	{"tls_random_", "the operating system's random numbers are used"},
}

const (
	onlyLongIDs   = "only long queue IDs exist"
	noMessageFile = "messages are records of one log, not files in directories"
	noOpenSSL     = "TLS is Go's crypto/tls, not OpenSSL"
	goneInPostfix = "Postfix ignores it too"
	noDSA         = "nobody has DSA certificates any more, and crypto/tls does not support them"
	noCyrus       = "Cyrus SASL is not used for logins to other servers"
	forInstaller  = "it tells Postfix's installer where files are"
	noRawKeys     = "crypto/tls has no raw public keys (RFC 7250)"
	ownMechanisms = "the client's SASL mechanisms are built in"
	oneProcess    = "a service is one process that serves many clients and ends when it is told to"
	anyProxied    = "proxymap serves every table of its types that a setting names, and no other"
	noProxyWrite  = "no service writes to a table by way of another"
	asSMTPD       = "behind postscreen's tests is smtpd itself, from the greeting on: its smtpd_ parameter counts"
	noWatchdog    = "no request waits for another one, and each has its own time limit"
	oneConnection = "services keep one connection to each other, on which each request has its own time limit"
	inTheLog      = "what became of recipients is in the queue's log; bounce_service_name writes all notices"
	noHelper      = "the service that needs it does this work itself"
)

var noEffect = map[string]string{
	"error_service_name":                     goneInPostfix,
	"enable_long_queue_ids":                  onlyLongIDs,
	"hash_queue_depth":                       noMessageFile,
	"hash_queue_names":                       noMessageFile,
	"dont_remove":                            noMessageFile,
	"queue_file_attribute_count_limit":       noMessageFile,
	"backwards_bounce_logfile_compatibility": noMessageFile,

	"berkeley_db_create_buffer_size": "hash and btree tables are Posthaste's own format",
	"berkeley_db_read_buffer_size":   "hash and btree tables are Posthaste's own format",

	"postscreen_command_filter":                    asSMTPD,
	"postscreen_disable_vrfy_command":              asSMTPD,
	"postscreen_discard_ehlo_keyword_address_maps": asSMTPD,
	"postscreen_discard_ehlo_keywords":             asSMTPD,
	"postscreen_enforce_tls":                       asSMTPD,
	"postscreen_expansion_filter":                  asSMTPD,
	"postscreen_helo_required":                     asSMTPD,
	"postscreen_reject_footer":                     asSMTPD,
	"postscreen_reject_footer_maps":                asSMTPD,
	"postscreen_starttls_timeout":                  asSMTPD,
	"postscreen_use_tls":                           asSMTPD,
	"postscreen_watchdog_timeout":                  oneProcess,
	"smtpd_sasl_application_name":                  goneInPostfix,
	"smtpd_tls_dcert_file":                         noDSA,
	"smtpd_tls_dkey_file":                          noDSA,
	"smtpd_tls_cipherlist":                         noOpenSSL,
	"smtpd_tls_always_issue_session_ids":           "TLS sessions are resumed by tickets, which clients keep",
	"smtpd_tls_session_cache_database":             "TLS sessions are resumed by tickets, which clients keep",
	"smtpd_tls_trace_size_limit":                   noOpenSSL,
	"tls_trace_rate_limit":                         noOpenSSL,
	"tls_null_cipherlist":                          noOpenSSL,
	"tls_session_ticket_cipher":                    noOpenSSL,
	"tls_legacy_public_key_fingerprints":           noOpenSSL,
	"tls_preempt_cipherlist":                       "Go's crypto/tls chooses the cipher by what both ends are good at",
	"tls_eecdh_strong_curve":                       goneInPostfix,
	"tls_eecdh_ultra_curve":                        goneInPostfix,
	"tls_fast_shutdown_enable":                     "nobody waits for the end of a TLS session here",
	"max_use":                                      oneProcess,
	"proxy_read_maps":                              anyProxied,
	"proxy_write_maps":                             noProxyWrite,
	"proxywrite_service_name":                      noProxyWrite,
	"connection_cache_service_name":                noHelper,
	"connection_cache_status_update_time":          noHelper,
	"connection_cache_protocol_timeout":            noHelper,
	"tlsmgr_service_name":                          noHelper,
	"flush_service_name":                           noHelper,
	"fast_flush_purge_time":                        "the queue itself is searched, there are no flush logs",
	"fast_flush_refresh_time":                      "the queue itself is searched, there are no flush logs",
	"dnsblog_service_name":                         noHelper,
	"dnsblog_reply_delay":                          noHelper,
	"fork_attempts":                                "services do not fork per client",
	"fork_delay":                                   "services do not fork per client",

	"tls_config_file":                     noOpenSSL,
	"tls_config_name":                     noOpenSSL,
	"openssl_path":                        noOpenSSL,
	"tls_disable_workarounds":             noOpenSSL,
	"tls_daemon_random_bytes":             "the operating system's random numbers are used",
	"smtpd_tls_dh1024_param_file":         "TLS here has no finite-field Diffie-Hellman",
	"tls_ffdhe_auto_groups":               "TLS here has no finite-field Diffie-Hellman",
	"smtpd_tls_dh512_param_file":          goneInPostfix,
	"tls_dane_digest_agility":             goneInPostfix,
	"tls_dane_trust_anchor_digest_enable": goneInPostfix,

	"smtp_tls_cipherlist":             noOpenSSL,
	"smtp_tls_trace_size_limit":       noOpenSSL,
	"lmtp_tls_trace_size_limit":       noOpenSSL,
	"smtp_tls_dcert_file":             noDSA,
	"smtp_tls_dkey_file":              noDSA,
	"lmtp_tls_dcert_file":             noDSA,
	"lmtp_tls_dkey_file":              noDSA,
	"smtpd_tls_enable_rpk":            noRawKeys,
	"smtpd_tls_eecdh_grade":           goneInPostfix,
	"smtp_tls_enable_rpk":             noRawKeys,
	"lmtp_tls_enable_rpk":             noRawKeys,
	"smtp_tls_block_early_mail_reply": "the attack is on renegotiation, which crypto/tls does not do",
	"lmtp_tls_block_early_mail_reply": "the attack is on renegotiation, which crypto/tls does not do",
	"smtp_tlsrpt_socket_name":         "reports are collected and sent by Posthaste itself: smtp_tlsrpt_enable",
	"smtp_log_tls_feature_status":     "delivery log lines are those of Postfix 3.7; smtp_tls_loglevel = 1 logs each session's TLS",
	"lmtp_log_tls_feature_status":     "delivery log lines are those of Postfix 3.7; lmtp_tls_loglevel = 1 logs each session's TLS",
	"smtp_dns_resolver_options":       "names are looked up as they are, without the search list of resolv.conf",
	"lmtp_dns_resolver_options":       "names are looked up as they are, without the search list of resolv.conf",
	"smtp_sasl_type":                  ownMechanisms,
	"smtp_sasl_path":                  ownMechanisms,
	"lmtp_sasl_type":                  ownMechanisms,
	"lmtp_sasl_path":                  ownMechanisms,

	"send_cyrus_sasl_authzid": noCyrus,

	"extract_recipient_limit":   goneInPostfix,
	"enable_errors_to":          goneInPostfix,
	"sender_based_routing":      goneInPostfix,
	"qmgr_fudge_factor":         goneInPostfix,
	"lmtp_cache_connection":     goneInPostfix,
	"smtp_skip_4xx_greeting":    goneInPostfix,
	"dns_ncache_ttl_fix_enable": "DNS replies do not come through the C library",

	"sendmail_path":     forInstaller,
	"newaliases_path":   forInstaller,
	"mailq_path":        forInstaller,
	"html_directory":    forInstaller,
	"manpage_directory": forInstaller,
	"sample_directory":  forInstaller,
	"readme_directory":  forInstaller,
	"meta_directory":    forInstaller,

	"qmgr_daemon_timeout":              noWatchdog,
	"postlogd_watchdog_timeout":        noWatchdog,
	"ipc_idle":                         oneConnection,
	"ipc_timeout":                      oneConnection,
	"ipc_ttl":                          oneConnection,
	"qmgr_ipc_timeout":                 oneConnection,
	"defer_service_name":               inTheLog,
	"trace_service_name":               inTheLog,
	"showq_service_name":               "postqueue asks the queue manager; programs that read the showq socket know its path",
	"default_cache_db_type":            "caches are files of Posthaste's own format, whatever type is named",
	"sendmail_fix_line_endings":        "every line in the queue ends in CRLF, whichever way it came",
	"daemon_table_open_error_is_fatal": "a service never ends for a table that it cannot open: mail that needs the table waits, with a warning",
	"lmdb_map_size":                    "the file of an lmdb table is as long as it must be",

	"fault_injection_code":       "it is for tests of Postfix itself",
	"sun_mailtool_compatibility": "mailbox_delivery_lock says how mailboxes are locked",

	"debugger_command": "attach a debugger to the service's process instead",
	"shlib_directory":  "there are no shared libraries",
}
