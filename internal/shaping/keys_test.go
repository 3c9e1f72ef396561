package shaping

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryKey: each key that KumoMTA's manual has is honoured, so that it changes what holds for a destination, or is
// named with file and line, each where it stands alone.
func TestEveryKey(t *testing.T) {
	t.Parallel()
	honoured := map[string]string{"connection_limit": "3", "max_connection_rate": "'5/s'", "max_message_rate": "'6/s'", "max_deliveries_per_connection": "7",
		"max_recipients_per_batch": "8", "idle_timeout": "'1s'", "connect_timeout": "'2s'", "banner_timeout": "'3s'", "ehlo_timeout": "'4s'",
		"mail_from_timeout": "'5s'", "rcpt_to_timeout": "'6s'", "data_timeout": "'7s'", "data_dot_timeout": "'8s'", "rset_timeout": "'9s'",
		"starttls_timeout": "'10s'", "enable_tls": "'Required'", "enable_dane": "true", "enable_pipelining": "false", "prohibited_hosts": "['10.0.0.0/8']",
		"skip_hosts": "['10.0.0.0/8']", "ip_lookup_strategy": "'Ipv4Only'", "smtp_port": "26", "ehlo_domain": "'h.test'",
		"provider_connection_limit": "4", "provider_max_message_rate": "'9/s'"}
	named := map[string]string{"additional_connection_limits": "{a=1}", "additional_message_rate_throttles": "{a='1/s'}", "source_selection_rate": "'1/s'",
		"additional_source_selection_rates": "{a='1/s'}", "auth_timeout": "'1s'", "system_shutdown_timeout": "'1s'", "consecutive_connection_failures_before_delay": "1",
		"enable_mta_sts": "true", "remember_broken_tls": "'1s'", "opportunistic_tls_reconnect_on_failed_handshake": "true", "tls_prefer_openssl": "true",
		"tls_certificate": "'f'", "tls_private_key": "'f'", "openssl_cipher_list": "'x'", "openssl_cipher_suites": "'x'", "openssl_options": "'x'",
		"rustls_cipher_suites": "['x']", "enable_rset": "true", "ignore_8bit_checks": "true", "smtp_auth_plain_username": "'u'", "smtp_auth_plain_password": "'p'",
		"allow_smtp_auth_plain_without_tls": "true", "allow_smtp_auth_plain_without_valid_certificate": "true", "use_lmtp": "true",
		"reconnect_strategy": "'TerminateSession'", "try_next_host_on_transport_error": "true", "max_ready": "1", "provider_name": "'x'", "refresh_interval": "'1s'",
		"refresh_strategy": "'Ttl'", "ready_queue_wakeup_strategy": "'x'", "maintainer_wakeup_strategy": "'x'", "dispatcher_wakeup_strategy": "'x'",
		"low_memory_reduction_policy": "'x'", "no_memory_reduction_policy": "'x'", "readyq_pool_name": "'x'", "aggressive_connection_opening": "true",
		"dispatcher_progress_watchdog_timeout": "'1s'", "provider_source_selection_rate": "'1/s'"}
	file := func(key, value string) string {
		return "['default']\n[provider.p]\nmatch = [{DomainSuffix='x.test'}]\n" + key + " = " + value + "\n"
	}
	holds := func(rules *Rules) string {
		s := rules.Resolve(&Query{Domain: "x.test", Hosts: []string{"mx.x.test"}})
		return s.Limits("", false) + "|" + s.ProviderLimits("") + "|" + s.Advice("u", s.Limits("", false), s.ProviderLimits(""))
	}
	none, _ := load(t, "['default']\n[provider.p]\nmatch = [{DomainSuffix='x.test'}]\n")
	for key, value := range honoured {
		rules, warnings := load(t, file(key, value))
		if n, _, _ := rules.Count(); n != 1 || len(warnings) > 0 || holds(rules) == holds(none) {
			t.Errorf("%s changes nothing: %q, warned of %v", key, holds(rules), warnings)
		}
	}
	for key, value := range named {
		rules, warnings := load(t, file(key, value))
		if n, _, _ := rules.Count(); n != 0 || len(warnings) != 1 || filepath.Base(warnings[0].At.File) != "1.toml" || warnings[0].At.Line != 4 ||
			!strings.Contains(warnings[0].Text, key) {
			t.Errorf("%s is not named: %v", key, warnings)
		}
	}
}
