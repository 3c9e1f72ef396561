package config

// globalParams are the parameters of no one service: names, directories, table defaults.
var globalParams = []Param{
	{Name: "alternate_config_directories", Type: List, Tier: 3, Doc: "Other config directories that set-gid commands may use"},
	{Name: "berkeley_db_create_buffer_size", Type: Bytes, Default: "16777216", Min: 1, Tier: 3, Doc: "Memory buffer when building hash or btree files"},
	{Name: "berkeley_db_read_buffer_size", Type: Bytes, Default: "131072", Min: 1, Tier: 3, Doc: "Memory buffer when reading hash or btree files"},
	{Name: "config_directory", Type: String, Default: "/etc/posthaste", Tier: 1, Doc: "Location of main.cf and master.cf"},
	{Name: "debug_peer_level", Type: Int, Default: "2", Tier: 3, Doc: "Log the dialogue with listed peers, and in smtpd what restrictions and tables say, if above 0"},
	{Name: "debug_peer_list", Type: List, Tier: 3, Doc: "Peers that get verbose logging"},
	{Name: "debugger_command", Type: String, Tier: 3, Doc: "Command started for daemons run with -D"},
	{Name: "default_cache_db_type", Type: String, Default: "btree", Tier: 2, Origin: Newer, Doc: "Table type for caches"},
	{Name: "default_database_type", Type: String, Default: "hash", Tier: 2, Doc: "Table type assumed when none is given"},
	{Name: "default_delivery_status_filter", Type: List, Tier: 3, Doc: "Table that changes delivery status codes"},
	{Name: "dkim_key_directory", Type: String, Default: "$config_directory/dkim", Tier: 2, Origin: Own, Doc: "Where posthaste domain keeps DKIM keys and what it knows of them"},
	{Name: "dkim_key_lifetime", Type: Duration, Default: "0", Unit: 'd', Tier: 2, Origin: Own, Doc: "After how long posthaste domain rotate makes the key that comes next; 0: when it is told to"},
	{Name: "dkim_key_retire_time", Type: Duration, Default: "14d", Unit: 'd', Min: 1, Tier: 2, Origin: Own, Doc: "How long the record of a DKIM key stays after the last signature"},
	{Name: "dont_remove", Type: Int, Default: "0", Tier: 3, Doc: "Keep finished queue files in saved directory"},
	{Name: "enable_errors_to", Type: Bool, Tier: 3, Origin: OldName, Doc: "Obsolete Errors-To support"},
	{Name: "enable_idna2003_compatibility", Type: Bool, Default: "no", Tier: 3, Doc: "Use old IDNA conversion rules"},
	{Name: "enable_long_queue_ids", Type: Bool, Default: "yes", Tier: 1, Doc: "Use non-repeating long queue IDs"},
	{Name: "error_service_name", Type: String, Default: "error", Tier: 3, Doc: "master.cf name of the error service"},
	{Name: "extract_recipient_limit", Type: Int, Tier: 3, Origin: OldName, Doc: "Obsolete sendmail -t limit"},
	{Name: "fault_injection_code", Type: Int, Default: "0", Tier: 3, Doc: "Testing aid for forced errors"},
	{Name: "service_sandbox", Type: Bool, Default: "yes", Tier: 3, Origin: Own, Doc: "Have the kernel refuse services what they never do: execute programs, write elsewhere"},
	{Name: "helpful_warnings", Type: Bool, Default: "yes", Tier: 3, Doc: "Log advice about questionable settings"},
	{Name: "html_directory", Type: String, Default: "/usr/share/doc/posthaste/html", Tier: 3, Doc: "Location of HTML documentation"},
	{Name: "known_tcp_ports", Type: List, Default: "lmtp=24, smtp=25, smtps=submissions=465, submission=587", Tier: 3, Doc: "Built-in port names that skip services lookup"},
	{Name: "lmdb_map_size", Type: Bytes, Default: "16777216", Min: 1, Tier: 3, Doc: "Initial size of LMDB files"},
	{Name: "mail_name", Type: String, Default: "Posthaste", Tier: 3, Doc: "Software name in headers and banner"},
	{Name: "mail_release_date", Type: String, Default: "20261121", Tier: 3, Doc: "Release date (read-only)"},
	{Name: "mail_version", Type: String, Default: release, Tier: 3, Doc: "Version (read-only)"},
	{Name: "manpage_directory", Type: String, Default: "/usr/share/man", Tier: 3, Doc: "Location of manual pages"},
	{Name: "meta_directory", Type: String, Default: "/etc/posthaste", Tier: 3, Doc: "Location of installation metadata"},
	{Name: "mydomain", Type: String, Tier: 1, Doc: "Domain of this host"},
	{Name: "myhostname", Type: String, Tier: 1, Doc: "Internet name of this host"},
	{Name: "myorigin", Type: String, Default: "$myhostname", Tier: 1, Doc: "Domain added to local addresses, or a file with it (/etc/mailname)"},
	{Name: "non_bdb_custom_mapping", Type: String, Tier: 3, Origin: Newer, Doc: "Own replacements for Berkeley DB types"},
	{Name: "non_bdb_migration_allow_root_prefixes", Type: List, Tier: 3, Origin: Newer, Doc: "Paths migrated with root rights"},
	{Name: "non_bdb_migration_allow_user_prefixes", Type: List, Tier: 3, Origin: Newer, Doc: "Paths migrated with user rights"},
	{Name: "non_bdb_migration_level", Type: String, Default: "disable", Tier: 2, Origin: Newer, Doc: "How Berkeley DB tables are replaced"},
	{Name: "non_bdb_migration_log_redirect", Type: Bool, Default: "yes", Tier: 3, Origin: Newer, Doc: "Log each table type replacement"},
	{Name: "non_bdb_migration_service_name", Type: String, Default: "nbdb_reindex", Tier: 3, Origin: Newer, Doc: "master.cf name of the migration service"},
	{Name: "pickup_service_name", Type: String, Default: "pickup", Tier: 3, Doc: "master.cf name of the pickup service"},
	{Name: "pipe_delivery_status_filter", Type: List, Default: "$default_delivery_status_filter", Tier: 3, Doc: "Status code filter of pipe delivery"},
	{Name: "process_name", Type: String, Tier: 3, Doc: "Program name (read-only)"},
	{Name: "proxy_read_maps", Type: List, Default: "$local_recipient_maps $mydestination $virtual_alias_maps $virtual_alias_domains $virtual_mailbox_maps $virtual_mailbox_domains $relay_recipient_maps $relay_domains $canonical_maps $sender_canonical_maps $recipient_canonical_maps $relocated_maps $transport_maps $mynetworks $smtpd_sender_login_maps $sender_bcc_maps $recipient_bcc_maps $smtp_generic_maps $lmtp_generic_maps $alias_maps $smtpd_client_restrictions $smtpd_helo_restrictions $smtpd_sender_restrictions $smtpd_relay_restrictions $smtpd_recipient_restrictions $address_verify_sender_dependent_default_transport_maps $address_verify_sender_dependent_relayhost_maps $address_verify_transport_maps $fallback_transport_maps $lmtp_discard_lhlo_keyword_address_maps $lmtp_pix_workaround_maps $lmtp_sasl_password_maps $lmtp_tls_policy_maps $mailbox_command_maps $mailbox_transport_maps $postscreen_discard_ehlo_keyword_address_maps $rbl_reply_maps $sender_dependent_default_transport_maps $sender_dependent_relayhost_maps $smtp_discard_ehlo_keyword_address_maps $smtp_pix_workaround_maps $smtp_sasl_password_maps $smtp_tls_policy_maps $smtpd_discard_ehlo_keyword_address_maps $smtpd_milter_maps $virtual_gid_maps $virtual_uid_maps $local_login_sender_maps $postscreen_reject_footer_maps $smtpd_reject_footer_maps $tls_server_sni_maps $tlsproxy_client_policy_maps $default_delivery_status_filter $lmtp_delivery_status_filter $lmtp_dns_reply_filter $lmtp_reply_filter $local_delivery_status_filter $pipe_delivery_status_filter $postscreen_command_filter $smtp_delivery_status_filter $smtp_dns_reply_filter $smtp_reply_filter $smtpd_command_filter $smtpd_dns_reply_filter $virtual_delivery_status_filter $body_checks $header_checks $lmtp_body_checks $lmtp_header_checks $lmtp_mime_header_checks $lmtp_nested_header_checks $milter_header_checks $mime_header_checks $nested_header_checks $smtp_body_checks $smtp_header_checks $smtp_mime_header_checks $smtp_nested_header_checks", Tier: 3, Doc: "Tables that proxymap may read"},
	{Name: "proxy_write_maps", Type: List, Default: "$smtp_sasl_auth_cache_name $lmtp_sasl_auth_cache_name $address_verify_map $postscreen_cache_map", Tier: 3, Doc: "Tables that proxymap may update"},
	{Name: "proxymap_service_name", Type: String, Default: "proxymap", Tier: 3, Doc: "master.cf name of the table proxy"},
	{Name: "proxywrite_service_name", Type: String, Default: "proxywrite", Tier: 3, Doc: "master.cf name of the writing table proxy"},
	{Name: "queue_service_name", Type: String, Default: "qmgr", Tier: 3, Doc: "master.cf name of the queue manager"},
	{Name: "readme_directory", Type: String, Default: "/usr/share/doc/posthaste", Tier: 3, Doc: "Location of README files"},
	{Name: "sample_directory", Type: String, Default: "/etc/posthaste", Tier: 3, Doc: "Location of sample configuration"},
	{Name: "sender_based_routing", Type: Bool, Tier: 3, Origin: OldName, Doc: "Obsolete"},
	{Name: "shlib_directory", Type: Bool, Default: "no", Tier: 3, Doc: "Location of shared libraries"},
	{Name: "showq_service_name", Type: String, Default: "showq", Tier: 3, Doc: "master.cf name of the queue lister"},
	{Name: "socketmap_max_query_size", Type: Bytes, Default: "10000", Tier: 3, Origin: Newer, Doc: "Largest socketmap request"},
	{Name: "socketmap_max_reply_size", Type: Bytes, Default: "100000", Tier: 3, Origin: Newer, Doc: "Largest socketmap reply"},
	{Name: "soft_bounce", Type: Bool, Default: "no", Tier: 2, Doc: "Turn permanent failures into temporary ones"},
	{Name: "srs_classes", Type: List, Default: "forwarded", Tier: 2, Origin: Own, Doc: "Which mail from foreign senders to foreign destinations has its sender rewritten by SRS: forwarded (the recipient is an alias or user of this system), local (submitted with sendmail), relayed (all other mail)"},
	{Name: "srs_domain", Type: String, Tier: 1, Origin: Own, Doc: "The domain of rewritten senders (SRS); empty: senders are not rewritten"},
	{Name: "srs_exclude_domains", Type: List, Tier: 2, Origin: Own, Doc: "Sender domains that are not rewritten by SRS, besides the domains of this system"},
	{Name: "srs_hash_length", Type: Int, Default: "4", Min: 4, Max: 27, Tier: 3, Origin: Own, Doc: "Characters of the hash in addresses that SRS makes"},
	{Name: "srs_hash_minimum", Type: Int, Default: "4", Min: 4, Max: 27, Tier: 3, Origin: Own, Doc: "Characters that the hash of an SRS address must have to be valid"},
	{Name: "srs_max_age", Type: Duration, Default: "21d", Unit: 'd', Min: 86400, Max: 88300800, Tier: 2, Origin: Own, Doc: "How long an SRS address is valid, in whole days"},
	{Name: "srs_secret_file", Type: String, Default: "$config_directory/srs.secret", Tier: 1, Origin: Own, Doc: "The file with the secrets of SRS, one on a line: the first one signs, all verify"},
	{Name: "srs_separator", Type: Enum, Default: "=", Values: "=|+|-", Tier: 3, Origin: Own, Doc: "The character after SRS0 and SRS1"},
	{Name: "tcp_windowsize", Type: Int, Default: "0", Tier: 3, Doc: "Socket buffers, in octets, of SMTP servers and clients; 0 leaves them to the system"},
	{Name: "tlsmgr_service_name", Type: String, Default: "tlsmgr", Tier: 3, Doc: "master.cf name of the TLS manager"},
	{Name: "verp_delimiter_filter", Type: String, Default: "-=+", Tier: 3, Doc: "Characters usable as VERP delimiters"},
}

// logParams are the parameters of logging.
var logParams = []Param{
	{Name: "delay_logging_resolution_limit", Type: Int, Default: "2", Max: 6, Tier: 3, Doc: "Decimal places in logged delays"},
	{Name: "info_log_address_format", Type: Enum, Default: "external", Values: "external|internal", Tier: 3, Doc: "Address form in log lines"},
	{Name: "maillog_file", Type: String, Tier: 2, Doc: "Log file written without syslog"},
	{Name: "maillog_file_compressor", Type: String, Default: "gzip", Tier: 3, Doc: "Program that compresses rotated logs"},
	{Name: "maillog_file_permissions", Type: String, Default: "0600", Tier: 3, Origin: Newer, Doc: "Mode of the log file"},
	{Name: "maillog_file_prefixes", Type: List, Default: "/var, /dev/stdout", Tier: 3, Doc: "Permitted locations of the log file"},
	{Name: "maillog_file_rotate_suffix", Type: String, Default: "%Y%m%d-%H%M%S", Tier: 3, Doc: "Time format added to rotated logs"},
	{Name: "maillog_format", Type: Enum, Default: "postfix", Values: "postfix|json", Tier: 1, Origin: Own, Doc: "Form of log records: the classic text line or one JSON object a line"},
	{Name: "console_hosts", Type: List, Tier: 2, Origin: Own, Doc: "Names besides $myhostname by which browsers call the console"},
	{Name: "console_listen", Type: String, Default: "127.0.0.1:8025", Tier: 2, Origin: Own, Doc: "Address and port of the console, or unix: and the path of a socket"},
	{Name: "console_operators", Type: List, Tier: 2, Origin: Own, Doc: "Users of the console who may change something; the others may look"},
	{Name: "console_tls", Type: Bool, Default: "no", Tier: 2, Origin: Own, Doc: "The console speaks TLS, with the certificates of the SMTP server"},
	{Name: "console_user_maps", Type: List, Tier: 2, Origin: Own, Doc: "Tables of users who may log in to the console, with what posthaste passwd prints"},
	{Name: "metrics_listen", Type: String, Tier: 2, Origin: Own, Doc: "Address and port of the HTTP server that publishes metrics, such as 127.0.0.1:9187; empty for none"},
	{Name: "postlog_service_name", Type: String, Default: "postlog", Tier: 3, Doc: "master.cf name of the postlog service"},
	{Name: "postlogd_watchdog_timeout", Type: Duration, Default: "10s", Min: 1, Tier: 3, Doc: "Watchdog limit of postlogd"},
	{Name: "queue_history_directory", Type: String, Default: "$data_directory/history", Tier: 2, Origin: Own, Doc: "Directory of the samples of the queue that the console service takes, for qshape --at"},
	{Name: "queue_history_limit", Type: Bytes, Default: "1g", Tier: 2, Origin: Own, Doc: "Largest size of those samples; the oldest go first. 0 is no limit"},
	{Name: "queue_history_time", Type: Duration, Default: "30d", Tier: 2, Origin: Own, Doc: "How long those samples are kept. 0 is no limit"},
	{Name: "respectful_logging", Type: Bool, Default: "${{$compatibility_level} <level {3.6} ? {no} : {yes}}", Tier: 3, Doc: "Use allowlist and denylist words in logs"},
	{Name: "syslog_facility", Type: Enum, Default: "mail", Values: "auth|authpriv|cron|daemon|ftp|kern|lpr|mail|news|security|syslog|user|uucp|local0|local1|local2|local3|local4|local5|local6|local7", Tier: 1, Doc: "Syslog facility"},
	{Name: "syslog_name", Type: String, Default: "${multi_instance_name?{$multi_instance_name}:{postfix}}", Tier: 1, Doc: "Name in log lines"},
	{Name: "syslog_protocol", Type: Enum, Default: "rfc3164", Values: "rfc3164|rfc5424|journal", Tier: 2, Origin: Own, Doc: "How the system's log service is spoken to: either form of syslog, or the protocol of systemd's journal"},
	{Name: "syslog_socket", Type: String, Tier: 2, Origin: Own, Doc: "Path of the log service's socket, or udp:ADDRESS:PORT for one elsewhere; empty for the usual one, /dev/log or the journal's"},
	{Name: "track_index_directory", Type: String, Default: "$data_directory/track", Tier: 2, Origin: Own, Doc: "Directory of the index that posthaste trace makes of the log; it may be removed at any time"},
	{Name: "track_index_limit", Type: Bytes, Default: "1g", Tier: 2, Origin: Own, Doc: "Largest size of that index; what is about the oldest log goes first. 0 is no limit"},
}

// masterParams are the parameters of master and of every service.
var masterParams = []Param{
	{Name: "application_event_drain_time", Type: Duration, Default: "100s", Tier: 3, Doc: "How long a stopping daemon waits for pending work"},
	{Name: "compatibility_level", Type: String, Default: "0", Tier: 1, Doc: "Chooses between old and new default settings"},
	{Name: "daemon_directory", Type: String, Default: "/usr/lib/posthaste", Tier: 2, Doc: "Where the daemon programs are installed"},
	{Name: "daemon_table_open_error_is_fatal", Type: Bool, Default: "no", Tier: 3, Doc: "Stop daemon at unusable table instead of deferring"},
	{Name: "daemon_timeout", Type: Duration, Default: "18000s", Min: 1, Tier: 2, Doc: "Longest time that a delivery agent gives one delivery"},
	{Name: "data_directory", Type: String, Default: "/var/lib/posthaste", Tier: 1, Doc: "Writable directory for caches and seeds"},
	{Name: "default_process_limit", Type: Int, Default: "100", Min: 1, Tier: 1, Doc: "Default maximum processes per service"},
	{Name: "fork_attempts", Type: Int, Default: "5", Min: 1, Tier: 3, Doc: "Retries when creating a process fails"},
	{Name: "fork_delay", Type: Duration, Default: "1s", Tier: 3, Doc: "Pause between process creation retries"},
	{Name: "in_flow_delay", Type: Duration, Default: "1s", Tier: 2, Doc: "Input pause when mail arrives too fast"},
	{Name: "inet_interfaces", Type: List, Default: "all", Tier: 1, Doc: "Addresses on which mail is received"},
	{Name: "inet_protocols", Type: List, Default: "all", Tier: 1, Doc: "IP versions in use"},
	{Name: "ipc_idle", Type: Duration, Default: "5s", Tier: 3, Doc: "Time after which idle internal connections close"},
	{Name: "ipc_timeout", Type: Duration, Default: "3600s", Min: 1, Tier: 3, Doc: "Time limit for internal messages"},
	{Name: "ipc_ttl", Type: Duration, Default: "1000s", Tier: 3, Doc: "Maximum life of an internal connection"},
	{Name: "mail_owner", Type: String, Tier: 1, Doc: "Unprivileged account that owns the mail system"},
	{Name: "master_service_disable", Type: List, Tier: 3, Doc: "Services that master must not run"},
	{Name: "max_idle", Type: Duration, Default: "100s", Tier: 2, Doc: "Idle time before a daemon exits"},
	{Name: "max_use", Type: Int, Default: "100", Min: 1, Tier: 2, Doc: "Clients served before a daemon exits"},
	{Name: "process_id", Type: Int, Tier: 3, Doc: "PID (read-only)"},
	{Name: "process_id_directory", Type: String, Default: "pid", Tier: 3, Doc: "Directory of lock and PID files"},
	{Name: "proxy_interfaces", Type: List, Tier: 2, Doc: "Public addresses of a NAT or proxy in front"},
	{Name: "queue_directory", Type: String, Default: "/var/spool/posthaste", Tier: 1, Doc: "Root of the mail queue"},
	{Name: "service_name", Type: String, Tier: 3, Doc: "Service name (read-only)"},
	{Name: "service_throttle_time", Type: Duration, Default: "60s", Min: 1, Tier: 3, Doc: "Longest pause before a service that fails at its start is started again; the first pauses are of 1, 2, 4 seconds"},
	{Name: "setgid_group", Type: String, Default: "postdrop", Tier: 1, Doc: "Group of set-gid commands"},
	{Name: "trigger_timeout", Type: Duration, Default: "10s", Min: 1, Tier: 3, Doc: "Time limit for trigger messages"},
}

// anvilParams are the parameters of anvil.
var anvilParams = []Param{
	{Name: "anvil_rate_time_unit", Type: Duration, Default: "60s", Min: 1, Tier: 2, Doc: "Interval over which client rates are counted"},
	{Name: "anvil_status_update_time", Type: Duration, Default: "600s", Min: 1, Tier: 3, Doc: "How often anvil logs its peak values"},
}

// scacheParams are the parameters of scache.
var scacheParams = []Param{
	{Name: "connection_cache_protocol_timeout", Type: Duration, Default: "5s", Min: 1, Tier: 3, Doc: "Time limit for talking to the session cache"},
	{Name: "connection_cache_service_name", Type: String, Default: "scache", Tier: 3, Doc: "master.cf name of the session cache"},
	{Name: "connection_cache_status_update_time", Type: Duration, Default: "600s", Min: 1, Tier: 3, Doc: "How often the session cache logs statistics"},
	{Name: "connection_cache_ttl_limit", Type: Duration, Default: "2s", Tier: 3, Doc: "Upper limit for cached session life"},
}

// qmqpdParams are the parameters of qmqpd.
var qmqpdParams = []Param{
	{Name: "qmqpd_authorized_clients", Type: List, Tier: 3, Doc: "Clients allowed to use QMQP"},
	{Name: "qmqpd_client_port_logging", Type: Bool, Default: "no", Tier: 3, Doc: "Log the QMQP client port"},
	{Name: "qmqpd_error_delay", Type: Duration, Default: "1s", Tier: 3, Doc: "Pause after a QMQP error"},
	{Name: "qmqpd_timeout", Type: Duration, Default: "300s", Min: 1, Tier: 3, Doc: "QMQP network time limit"},
}

// flushParams are the parameters of flush.
var flushParams = []Param{
	{Name: "fast_flush_domains", Type: List, Default: "$relay_domains", Tier: 2, Doc: "Sites with per-destination flush logs"},
	{Name: "fast_flush_purge_time", Type: Duration, Default: "7d", Unit: 'd', Min: 1, Tier: 3, Doc: "Age to delete empty flush logs"},
	{Name: "fast_flush_refresh_time", Type: Duration, Default: "12h", Unit: 'h', Min: 1, Tier: 3, Doc: "Age to refresh unused flush logs"},
	{Name: "flush_service_name", Type: String, Default: "flush", Tier: 3, Doc: "master.cf name of the flush service"},
}

// postmultiParams are the parameters of postmulti.
var postmultiParams = []Param{
	{Name: "multi_instance_directories", Type: List, Tier: 2, Doc: "Config directories of further instances"},
	{Name: "multi_instance_enable", Type: Bool, Default: "no", Tier: 2, Doc: "Whether this instance may be started"},
	{Name: "multi_instance_group", Type: String, Tier: 3, Doc: "Group name of this instance"},
	{Name: "multi_instance_name", Type: String, Tier: 2, Doc: "Name of this instance"},
	{Name: "multi_instance_wrapper", Type: String, Tier: 3, Doc: "Program that manages multiple instances"},
	{Name: "postmulti_control_commands", Type: List, Default: "reload flush", Tier: 3, Doc: "Commands passed to each instance"},
	{Name: "postmulti_start_commands", Type: List, Default: "start", Tier: 3, Doc: "Commands that start instances"},
	{Name: "postmulti_stop_commands", Type: List, Default: "stop abort drain quick-stop", Tier: 3, Doc: "Commands that stop instances in reverse order"},
}

// sendmailParams are the parameters of sendmail.
var sendmailParams = []Param{
	{Name: "authorized_flush_users", Type: List, Default: "static:anyone", Tier: 2, Doc: "Users allowed to flush the queue"},
	{Name: "authorized_mailq_users", Type: List, Default: "static:anyone", Tier: 2, Doc: "Users allowed to list the queue"},
	{Name: "authorized_submit_users", Type: List, Default: "static:anyone", Tier: 2, Doc: "Users allowed to submit mail with sendmail"},
	{Name: "empty_address_local_login_sender_maps_lookup_key", Type: String, Default: "<>", Tier: 3, Doc: "Key for null sender in login table"},
	{Name: "local_login_sender_maps", Type: List, Default: "static:*", Tier: 3, Doc: "Sender addresses each login may use with sendmail"},
	{Name: "authorized_verp_clients", Type: List, Tier: 3, Origin: OldName, Doc: "Old name of smtpd_authorized_verp_clients"},
	{Name: "import_environment", Type: List, Default: "MAIL_CONFIG MAIL_DEBUG MAIL_LOGTAG TZ XAUTHORITY DISPLAY LANG=C POSTLOG_SERVICE POSTLOG_HOSTNAME", Tier: 3, Doc: "Variables taken over from the caller"},
	{Name: "mailq_path", Type: String, Default: "/usr/bin/mailq", Tier: 3, Doc: "Path of the mailq command"},
	{Name: "newaliases_path", Type: String, Default: "/usr/bin/newaliases", Tier: 3, Doc: "Path of the newaliases command"},
	{Name: "sendmail_fix_line_endings", Type: Enum, Default: "always", Values: "always|strict|never", Tier: 3, Doc: "Convert CRLF input of the sendmail command"},
	{Name: "sendmail_path", Type: String, Default: "/usr/sbin/sendmail", Tier: 3, Doc: "Path of the sendmail command"},
}
