// The keys that a section may have.

package shaping

// An effect is what becomes of a key here.
type effect uint8

const (
	honoured effect = iota
	without         // it is warned of
	inside          // it steers the insides of KumoMTA, and is warned of, too
)

// A key is what is known of a key.
type key struct {
	form     form
	effect   effect
	words    string // of wordForm: what it may be
	why      string // of a key without effect: what to use in its place
	provider bool   // only a provider may have it
}

// keyOf is what is known of a key; nil: it is not known. These are all keys that an egress path of
// KumoMTA has, and those of providers.
func keyOf(name string) *key {
	switch name {
	case "connection_limit", "max_deliveries_per_connection", "max_recipients_per_batch":
		return &key{form: limitForm}
	case "provider_connection_limit":
		return &key{form: limitForm, provider: true}
	case "max_connection_rate", "max_message_rate":
		return &key{form: rateForm}
	case "provider_max_message_rate":
		return &key{form: rateForm, provider: true}
	case "connect_timeout", "banner_timeout", "ehlo_timeout", "mail_from_timeout", "rcpt_to_timeout", "data_timeout", "data_dot_timeout",
		"rset_timeout", "starttls_timeout", "idle_timeout":
		return &key{form: timeForm}
	case "enable_tls":
		return &key{form: wordForm, words: "Opportunistic OpportunisticInsecure Required RequiredInsecure Disabled"}
	case "enable_dane", "enable_pipelining":
		return &key{form: boolForm}
	case "smtp_port":
		return &key{form: countForm}
	case "ehlo_domain":
		return &key{form: textForm}
	case "prohibited_hosts", "skip_hosts":
		return &key{form: hostsForm}
	case "ip_lookup_strategy":
		return &key{form: wordForm, words: "Ipv4AndIpv6 Ipv4Only Ipv6Only Ipv6ThenIpv4 Ipv4ThenIpv6"}
	}
	if k := withoutEffect(name); k != nil {
		return k
	}
	return insideKey(name)
}

// withoutEffect are the keys that are warned of, with what does the same here.
func withoutEffect(name string) *key {
	no := func(f form, why string) *key { return &key{form: f, effect: without, why: why} }
	switch name {
	case "additional_connection_limits", "additional_message_rate_throttles", "additional_source_selection_rates":
		return no(namedForm, "a limit of a name is shared here by a provider, a site or a domain: use provider_connection_limit and provider_max_message_rate")
	case "source_selection_rate":
		return no(rateForm, "use warmup= in egress_source_maps")
	case "provider_source_selection_rate":
		k := no(rateForm, "use warmup= in egress_source_maps")
		k.provider = true
		return k
	case "auth_timeout":
		return no(timeForm, "smtp_helo_timeout holds for logging in")
	case "consecutive_connection_failures_before_delay":
		return no(countForm, "use destination_concurrency_failed_cohort_limit of the transport")
	case "enable_mta_sts":
		return no(boolForm, "use smtp_tls_policy_maps")
	case "remember_broken_tls":
		return no(timeForm, "a server whose TLS fails is tried without it at the next attempt, where the level is may")
	case "opportunistic_tls_reconnect_on_failed_handshake":
		return no(boolForm, "a server whose TLS fails is tried without it at the next attempt, where the level is may")
	case "tls_prefer_openssl", "tls_certificate", "tls_private_key", "openssl_cipher_list", "openssl_cipher_suites", "openssl_options", "rustls_cipher_suites":
		return no(anyForm, "use the parameters smtp_tls_... and tls_cert= in egress_source_maps")
	case "enable_rset":
		return no(boolForm, "RSET is sent where it must be")
	case "ignore_8bit_checks":
		return no(boolForm, "use disable_mime_output_conversion")
	case "smtp_auth_plain_username", "smtp_auth_plain_password":
		return no(anyForm, "use smtp_sasl_password_maps")
	case "allow_smtp_auth_plain_without_tls", "allow_smtp_auth_plain_without_valid_certificate":
		return no(boolForm, "use smtp_sasl_security_options")
	case "use_lmtp":
		return no(boolForm, "name the transport lmtp in transport_maps")
	case "reconnect_strategy":
		return no(wordAny, "use smtp_mx_session_limit")
	case "try_next_host_on_transport_error":
		return no(boolForm, "use smtp_mx_session_limit")
	case "provider_name":
		return no(textForm, "the name of a provider's section is its name")
	}
	return nil
}

// wordAny is the form of a word that is not looked at.
const wordAny = anyForm

// insideKey are the keys that steer the insides of KumoMTA. Nothing here is like them.
func insideKey(name string) *key {
	switch name {
	case "max_ready", "refresh_interval", "refresh_strategy", "ready_queue_wakeup_strategy", "maintainer_wakeup_strategy", "dispatcher_wakeup_strategy",
		"low_memory_reduction_policy", "no_memory_reduction_policy", "readyq_pool_name", "aggressive_connection_opening",
		"dispatcher_progress_watchdog_timeout", "system_shutdown_timeout":
		return &key{form: anyForm, effect: inside}
	}
	return nil
}
