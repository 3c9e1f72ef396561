package manual

// masterPage is master.cf(5).
func masterPage() []byte {
	p := newPage("master.cf", 5, "services of the mail system")
	p.section("Synopsis")
	p.line(".Pa /etc/posthaste/master.cf")
	p.section("Description")
	p.paragraphs(
		`master.cf(5) lists the services, one a line, in eight fields and the arguments of a command. A line that begins with white space continues the one before it. Empty lines, and lines whose first character that is no white space is #, are ignored. When there are two lines for a service the last counts, and a warning says so.`,
		`Unlike with Postfix, a service is one process that serves many clients at a time. It is started when its first client comes.`,
	)
	p.subsection("Fields")
	p.line("A dash means the default.")
	p.items("Ds", []item{
		{"service", "For inet a port, by name or number, with an address or a host and a colon before it; without one, each address of inet_interfaces counts. Otherwise the name of a socket in the queue directory."},
		{"type", "inet (TCP), unix, unix-dgram, or pass (connections that another service hands over)."},
		{"private", "y, the default: only the mail system can reach the socket. Services of type inet are n."},
		{"unpriv", "y, the default: the process runs as mail_owner. n: it runs as root, as local(8), virtual(8) and pipe(8) must, so that they can become the user they deliver for."},
		{"chroot", "y: the process sees only the queue directory. n is the default, unless compatibility_level is 0."},
		{"wakeup", "Seconds between two wake-ups; 0, the default, means none. With a question mark after it, only once the service has been used."},
		{"maxproc", "How many clients or deliveries it serves at a time. 0 means any number, a dash default_process_limit."},
		{"command", "The program and its arguments."},
	})
	p.subsection("Arguments")
	p.items("Ds", []item{
		{"Fl o Ar name=value", "A setting as if it stood at the end of main.cf(5), for this service only. With white space in it: -o { name = value }."},
		{"Fl v", "More is logged."},
		{"attributes", "What pipe(8) takes, such as user=, flags= and argv=. Braces keep a text with white space together."},
	})
	p.section("Programs")
	p.prose("These have processes: acme(8), anvil(8), bounce(8), cleanup(8), console(8), discard(8), error(8), events(8), inject(8), lmtp(8), local(8), pickup(8), pipe(8), policyhost(8), postlogd(8), postscreen(8), proxymap(8), qmgr(8), showq(8), smtp(8), smtpd(8), trivial-rewrite(8), unsubscribe(8), verify(8) and virtual(8).")
	p.line(".Pp")
	p.prose("Lines for these are accepted, and others do their work:")
	p.items("Ds", []item{
		{"dnsblog , tlsproxy", "smtpd(8) and postscreen(8) ask DNS lists and do TLS themselves."},
		{"flush", "qmgr(8) knows what waits for a destination."},
		{"defer , trace", "bounce(8) writes all reports; why mail is delayed is in the queue's log."},
		{"proxywrite", "Services write their own files."},
		{"scache", "smtp(8) keeps its own sessions."},
		{"tlsmgr", "Each service keeps its own TLS sessions."},
	})
	p.line(".Pp")
	p.prose("Any other program is an error with its line. master_service_disable turns services off without an edit.")
	p.section("Files")
	p.items("Ds", []item{{"Pa /etc/posthaste/master.cf", "The services."}})
	p.section("Examples")
	p.prose("Submission by users who must log in, and deliveries that go slowly:")
	p.literal(`submission inet n - n - - smtpd
  -o syslog_name=postfix/submission
  -o smtpd_tls_security_level=encrypt
  -o smtpd_sasl_auth_enable=yes
  -o smtpd_recipient_restrictions=permit_sasl_authenticated,reject
slow      unix  - - n - - smtp`)
	p.prose("and in main.cf:")
	p.literal(`transport_maps = inline:{ slow.example=slow: }
slow_destination_concurrency_limit = 2
slow_destination_rate_delay = 1s`)
	p.seeAlso("postconf.1", "posthaste.1", "main.cf.5", "master.8")
	p.section("Security considerations")
	p.prose("Who can write this file says what runs as root: it must belong to root, and so must its directory.")
	return p.Bytes()
}
