package manual

// A standIn is the page of a service of Postfix's that has no process here:
// its line in master.cf is accepted, and others do its work.
type standIn struct {
	name, what string
	about      []string
	parameters []string // how the work is steered here; names of main.cf
	differs    string
	see        []string
}

// standIns has one for each name that master accepts without a program; a test
// compares the two.
var standIns = []standIn{
	{name: "dnsblog", what: "ask DNS lists",
		about:      []string{"With Postfix, postscreen(8) has dnsblog(8) look up clients in DNS lists, because it must not wait itself. Here each session of postscreen(8) is a thread of work of its own: it asks all lists of postscreen_dnsbl_sites at the same time, and does not wait for other sessions' lists."},
		parameters: []string{"postscreen_dnsbl_sites", "postscreen_dnsbl_threshold", "postscreen_dnsbl_timeout", "postscreen_dnsbl_max_ttl", "postscreen_dnsbl_min_ttl", "postscreen_dnsbl_reply_map"},
		see:        []string{"postscreen.8"}},
	{name: "flush", what: "deliver what waits for a destination",
		about: []string{
			"With Postfix, flush(8) keeps a file for each destination of fast_flush_domains that says which messages wait for it, so that ETRN and postqueue(1) -s need not read the whole queue. Here qmgr(8) knows of every message in the queue which of these domains it is for. It delivers what waits for one of them at once, and keeps no files.",
		},
		parameters: []string{"fast_flush_domains", "smtpd_etrn_restrictions", "authorized_flush_users"},
		differs:    "As there are no files, fast_flush_purge_time and fast_flush_refresh_time have no effect.",
		see:        []string{"postqueue.1", "qmgr.8", "smtpd.8"}},
	{name: "scache", what: "keep SMTP sessions for the next delivery",
		about: []string{"With Postfix, scache(8) holds the open sessions of smtp(8), so that another process can use them. Here smtp(8) is one process for a transport, and keeps its sessions itself, by destination and by server address."},
		parameters: []string{"smtp_connection_cache_on_demand", "smtp_connection_cache_destinations", "smtp_connection_cache_time_limit", "smtp_connection_reuse_time_limit", "smtp_connection_reuse_count_limit",
			"connection_cache_ttl_limit", "smtp_tls_connection_reuse"},
		differs: "Sessions with TLS are kept in the process that has negotiated them, without tlsproxy(8).",
		see:     []string{"smtp.8"}},
	{name: "tlsmgr", what: "keep TLS sessions and random numbers",
		about:      []string{"With Postfix, tlsmgr(8) holds the cache of TLS sessions, the keys of session tickets, and a pool of random numbers for processes in a chroot. Here each service keeps its own sessions, and random numbers come from the system."},
		parameters: []string{"smtp_tls_session_cache_database", "smtp_tls_session_cache_timeout", "smtpd_tls_session_cache_timeout"},
		differs:    "tls_random_source and its kin have no effect.",
		see:        []string{"smtp.8", "smtpd.8"}},
	{name: "tlsproxy", what: "do TLS for others",
		about:      []string{"With Postfix, tlsproxy(8) does TLS for postscreen(8), which must not be held up, and for smtp(8) with smtp_tls_connection_reuse. Here both do TLS themselves."},
		parameters: []string{"smtp_tls_connection_reuse", "smtpd_tls_security_level"},
		see:        []string{"postscreen.8", "smtp.8"}},
}

// page writes the page.
func (s *standIn) page() []byte {
	p := newPage(s.name, 8, s.what)
	p.section("Description")
	p.paragraphs(s.about...)
	p.line(".Pp")
	p.prose("A line for " + s.name + "(8) in master.cf(5) is accepted, so that Postfix's file can be used unchanged. It starts no process, and may go.")
	if s.differs != "" {
		p.subsection(differsTitle)
		p.prose(s.differs)
	}
	writeNamed(p, s.parameters)
	p.seeAlso(append([]string{"main.cf.5", "master.cf.5", "master.8"}, s.see...)...)
	return p.Bytes()
}
