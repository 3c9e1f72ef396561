package config

// A Difference is a parameter whose default is not that of Postfix 3.7.
type Difference struct {
	Name    string
	Postfix string // Postfix's default
	Reason  string
}

// Differences lists every default that is not Postfix 3.7's. Who moves a site and wants
// the old behavior sets the parameter to the value in the second column.
func Differences() []Difference {
	const (
		place  = "Posthaste's own place, so that both can be installed"
		name   = "it is another program"
		safer  = "the default since Postfix 3.9: it stops SMTP smuggling"
		noFile = "there is no such thing to install"
	)
	return []Difference{
		{"smtpd_forbid_bare_newline", "no", safer},
		{"smtpd_forbid_unauth_pipelining", "no", safer},
		{"smtp_tls_security_level", "", "the default since Postfix 3.11: from compatibility level 3.11 on there is TLS where it is offered"},
		{"tls_eecdh_auto_curves", "X25519 X448 prime256v1 secp521r1 secp384r1", "a key exchange that quantum computers do not break is wanted too"},
		{"enable_long_queue_ids", "no", "queue IDs are long, and unique for ever"},
		{"alias_maps", "hash:/etc/aliases, nis:mail.aliases", "there are no NIS tables; a Postfix built without NIS has this default"},
		{"config_directory", "/etc/postfix", place},
		{"queue_directory", "/var/spool/postfix", place},
		{"data_directory", "/var/lib/postfix", place},
		{"meta_directory", "/etc/postfix", place},
		{"sample_directory", "/etc/postfix", place},
		{"readme_directory", "/usr/share/doc/postfix", place},
		{"html_directory", "/usr/share/doc/postfix/html", place},
		{"daemon_directory", "/usr/lib/postfix/sbin", place},
		{"shlib_directory", "/usr/lib/postfix", noFile},
		{"mail_owner", "postfix", "the user posthaste if there is one, else postfix"},
		{"mail_name", "Postfix", name},
		{"mail_version", "3.7.11", name},
		{"mail_release_date", "20240304", name},
	}
}
