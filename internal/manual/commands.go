package manual

import (
	"cmp"
	"slices"
	"strings"
)

// configDir is the option that every command has.
var configDir = option{'c', "config_dir", directory, "Read main.cf and master.cf in this directory. Without the option, the directory is that of the environment variable MAIL_CONFIG, or /etc/posthaste."}

func ignored(letter byte) option {
	return option{letter, "", none, "Accepted, and ignored."}
}

// statuses are those of sysexits(3) that commands share, in order.
func statuses(list ...status) []status { return append([]status{{0, "Success."}}, list...) }

var (
	badUsage    = status{64, "The command line is wrong."}
	unavailable = status{69, "The mail system is down, or refuses the request."}
	outputError = status{74, "Output or a file cannot be written."}
	notAllowed  = status{77, "Permission denied."}
	badConfig   = status{78, "There is an error in main.cf or master.cf."}
)

// commands are the programs of section 1.
func commands() []command {
	return []command{
		posthastePage(), sendmailPage(), postqueuePage(), postsuperPage(), postcatPage(), qshapePage(), postconfPage(),
		postmapPage(), postaliasPage(), postkickPage(), postlogPage(), postdropPage(), postmultiPage(), postlockPage(), posttlsfingerPage(),
	}
}

func posthastePage() command {
	return command{
		name:     "posthaste",
		aliases:  []string{"postfix"},
		what:     "control the mail system",
		synopsis: []string{"[-v] [-c config_dir] command [arguments]"},
		about: []string{
			"posthaste(1) starts and stops the mail system, makes a running one reload its configuration, and checks a configuration. The same program is every service and every tool of the mail system: the name it is called by, or its first argument, selects which. It is also installed as postfix, so that existing scripts work.",
			"Only root may use the commands that act on the mail system, unless an ordinary user runs a private mail system.",
		},
		words: posthasteWords(),
		options: []option{
			configDir,
			{'v', "", none, "With start and start-fg: add one -v to the arguments of every service in master.cf."},
			{'D', "", none, "Accepted with a warning: debugger_command is not run. Attach a debugger to the process of a service instead."},
		},
		sections: posthasteSections(),
		files: []item{
			{"Pa /etc/posthaste/main.cf", "Settings; see main.cf(5)."},
			{"Pa /etc/posthaste/master.cf", "Services; see master.cf(5)."},
			{"Pa /var/spool/posthaste", "The queue: the spool's log, the directory where local mail is dropped, and the services' sockets."},
			{"Pa /var/lib/posthaste", "Data that services keep, such as probed addresses and clients that passed postscreen's tests."},
		},
		status: []status{{0, "Success."}, {1, "Failure; the reason is on standard error and in the log. The tools have statuses of their own."}},
		see:    []string{"mailq.1", "postconf.1", "postqueue.1", "postsuper.1", "sendmail.1", "main.cf.5", "master.cf.5", "master.8"},
	}
}

// posthasteWords are the commands of posthaste(1).
func posthasteWords() []word {
	return []word{
		{"start", "[-w]", "Start the mail system in the background. The command returns when the sockets are open, or reports why they cannot be opened. It also reports what check finds in the services' settings, because a service itself would report it only when it is first needed."},
		{"start-fg", "", "Run the mail system in the foreground, for service managers and containers."},
		{"stop", "", "Stop the mail system. Work in progress may end first, within time limits."},
		{"abort", "", "Stop at once. No mail is lost, but deliveries in progress may be repeated."},
		{"reload", "", "Read the configuration again. A configuration with errors is refused, and the old one stays in use. No connection is refused meanwhile, and sessions under way end under the settings they began with. The command returns when every new client is served with the new configuration, or when master has refused the configuration (exit status 1). After 17 seconds it says that the reload is still in progress. It prints the same warnings as start."},
		{"status", "", "Report whether the mail system is running. The exit status is 0 if it is, 1 if it is not."},
		{"flush", "", "Try to deliver all waiting mail now."},
		{"check", "[-v]", "Check the configuration and the directories. Missing directories are made. A directory in which the mail system cannot create files is reported, for example one on a file system that is mounted read-only. When root runs it, the command also checks postdrop and postqueue: their owner, group and mode must let users send mail and list the queue, and their file system must not be mounted nosuid. The services read their settings and open tables, keys and certificates, as they do when they start. An error is a setting because of which mail would be refused or deferred. It is reported with its file and line, and with a remedy: a table that is not built, a misspelt restriction or parameter, a transport that is not in master.cf (in a setting or in a table), an invalid relay host, incomplete settings of a database, an unknown action in an access table (REJCT), a missing key, user or program, a key that does not belong to its certificate, a certificate of the SMTP server that has expired or is not valid yet, or a full queue file system. A warning is a probable mistake: a $name without a value, a domain in two classes, a world-writable file, a table older than its source, an unknown action in header_checks or a similar table, a certificate that expires within ten days, or an expired client certificate. Up to 4 megabytes of each table's text are read, but no database or other server is queried. The exit status is 1 if there are errors, else 0. An expired server certificate is an error, because mail programs and senders that verify it (DANE, MTA-STS) do not deliver to it. \"posthaste start\" and \"posthaste reload\" report the same. With -v, the command also lists settings that work but may be unwise, such as a world-readable private key, and then, line by line, what would behave differently from Postfix with the same files."},
		{"set-permissions", "[name=value ...]", "Set the owners, groups and modes of the mail system's directories, of postdrop and of postqueue, and the owner of the files in the queue and in data_directory. Only root can do that. The arguments are written to main.cf first: mail_owner, setgid_group, and the directories of an installation."},
		{"upgrade-configuration", "[name=value ...]", "Append to master.cf the services that the mail system depends on and that are missing there, with the entries of a new installation, and set the arguments in main.cf, as set-permissions does. Each change is printed. Existing entries are not changed."},
		{"logrotate", "", "Rename the log file (maillog_file), have a new one opened, and compress the old one."},
		{"migrate", "[--from dir] [--to dir] [--dry-run] [--queue | --back]", "Take over the configuration of a Postfix system, from /etc/postfix unless --from names another directory: main.cf and master.cf, the files that they name, and the tables, which are built again. The command prints the changes, the differences, and the decisions that are left to you. With --queue, move the queue of the stopped Postfix to Posthaste; with --back, move the queue of the stopped Posthaste to Postfix. With --dry-run, only print what would be done. Nothing below /etc/postfix is changed."},
		{"try", "[-d dir] [-p port]", "Run a private mail system in the foreground, on the loopback interface, with all its files below one directory. The defaults are run and 2525. The files of an earlier run are kept, and so is its port unless -p names another. The command prints where the mail system listens, as which user it runs, and where mail is delivered. If root starts it, no process runs as root: the user is the owner of the directory or, for a new directory, the user who called sudo, or posthaste or nobody."},
		{"spool", "command ...", "Show or check the spool, or move messages into it or out of it. See THE SPOOL below."},
		{"explain", "ID|destination ...", "Explain why messages are still in the queue: their state, the outcome for each recipient, and the time of the next attempt. For a destination, print its concurrency window and the positive and negative feedback; with threads, whether it has an agent or how many deliveries come before it gets one; until when it is considered dead; who has suspended, limited or diverted it, why, and until when; how much mail waits for it and since when; the next attempts; what its hosts answered in the last 15 minutes, grouped by what they say, as shares of the sessions; and the last replies. If the mail for a domain goes through relay hosts, the same is printed of them. Destinations are written as for suspend. For tenant=NAME, print how much mail of the tenant there is in memory, its limit, how much of that is used, and what is suspended or returned of it."},
		{"sources", "[-j] [name ...]", "Show how the sources of egress_source_maps do that mail goes from, or those that are named: what belongs to each, the pools that it is in with its weights, the day of its warm-up, how many recipients it has had today and may have at each provider, site or domain, the limits that hold for it alone and how many destinations wait for them, and the destinations at which it rests, with the reason. A source is known once mail has gone from it, or could have, since the queue manager started, and while something has been counted for it today. With -j, each is a JSON object on a line: name, spec, pools (name, weight), day, per_day and wait if it warms up, suspended if it is, limits (level, name, sent, warmup, text, waiting), and dead (transport, destination, until, reason). The exit status is 66 if a source that is named is not known."},
		{"queue", "command ...", "List and change the queue, selecting mail by common properties. See THE QUEUE and SELECTING MAIL below."},
		{"suspend", "target [--reason text] [--until time | --for time] [-n] [-j]", "Stop delivery attempts for some mail until it is resumed, or until a given time. The target is a domain or next hop, or an option such as --sender=address. The reason appears in the log, in listings, and in the notices of delay or failure that senders receive. With -n, nothing is changed, and the command says how many messages would be suspended. With -j, the output is JSON. See SUSPENSIONS below."},
		{"resume", "target [-j]", "End a suspension. The mail that has waited is tried in the order of its arrival. Write the target as for suspend, or as suspended -j prints it; the exit status is 66 if it is not suspended. If several suspensions cover the same mail, each must be ended separately."},
		{"suspended", "[-j]", "List the suspensions: the target, who suspended it, since when, until when and why, and how many deferred messages have become due since and wait for its end. With -j, each is a JSON object on a line: target, by, since, until (if it ends by itself), reason, waiting; times are in seconds since the epoch."},
		{"limit", "destination number [--raise] [--reason text] [--until time | --for time] [-n] [-j]", "Limit the number of simultaneous deliveries to a destination, until the limit is lifted or until a given time, in addition to the limits in main.cf. A number that is not below that of main.cf is refused, unless --raise is given: then it is the limit even if main.cf allows less. With -n, nothing is changed, and the command says what the limit would apply to now. With -j, the output is JSON. See LIMITS below."},
		{"unlimit", "destination [-j]", "Lift a limit. Write the destination as for limit; the exit status is 66 if it has no limit. The concurrency window then grows again as deliveries succeed."},
		{"limited", "[-j]", "List the limits: the destination, the number, who set it, since when, until when and why, and how many deliveries it applies to at the moment. With -j, each is a JSON object on a line: target, limit, raises, by, since, until (if it ends by itself), reason, destinations, under_way, waiting; times are in seconds since the epoch."},
		{"divert", "target nexthop [--reason text] [--until time | --for time] [-n] [-j]", "Send mail for a destination by another next hop, until the diversion is ended or until a given time. With -n, nothing is changed, and the command says how many messages are meant. With -j, the output is JSON. See DIVERSIONS below."},
		{"undivert", "target [-j]", "End a diversion. Write the target as for divert; the exit status is 66 if it is not diverted."},
		{"diverted", "[-j]", "List the diversions: the target, the next hop, who ordered it, since when, until when and why. With -j, each is a JSON object on a line: target, nexthop, by, since, until (if it ends by itself), reason; times are in seconds since the epoch."},
		{"bounce", "target --until time | --for time [--reason text] [-n] [-j]", "Return some mail to its senders without a delivery attempt, for a time, which must be given: what comes, and what is in the queue when it is next tried. The target is a recipient's domain, or an option such as --campaign=tenant/name. The reason appears in the log, in listings, and in the notices that senders receive. With -n, nothing is changed, and the command says how many messages are meant. With -j, the output is JSON. See RETURNED MAIL below."},
		{"unbounce", "target [-j]", "End that before its time. Write the target as for bounce, or as bounced -j prints it; the exit status is 66 if it is not returned. Notices that were sent cannot be called back."},
		{"bounced", "[-j]", "List what is returned: the target, who ordered it (automation stands for a rule of shaping_files), since when, until when and why. With -j, each is a JSON object on a line: target, by, since, until, reason; times are in seconds since the epoch."},
		{"tls", "command ...", "Turn opportunistic TLS on, and make and deploy the server's keys and certificates. See TLS below."},
		{"audit", "[-j] [-q file|none] [-s time] [-u time] [file ...]", "Compare the log with the queue, and say whether each accepted message was delivered or returned, or is still queued. See THE AUDIT below."},
		{"shaping", "check|explain|acts|lift|allow [-f file] [--source=name] [domain | file ... | target]", "Read the files of shaping_files, or those that are named. check prints what has no effect, with file and line: keys that are not honoured, and providers, endings and expressions that never match; then it counts. The exit status is 78 if a file has an error. explain prints what the files say of a domain: its mail hosts, its provider, each value with the file, the line and the section that it is from, and the rules of automation that hold for it; with --source, for mail from a source of egress_source_maps. Tables of main.cf, such as destination_limit_maps, count more than the files, and are not looked at; \"posthaste explain\" says what holds in the running system. acts lists what rules of automation have done that holds now, with the reply that caused it, and what they may not do again for now because an operator has taken it back. lift takes back all that was set or suspended at a target, written as acts has it, and rules do not do it again there for as long as it would have held; allow has them act again. The exit status of both is 66 if there is nothing."},
		{"classify", "[-j] [-f file] [reply ...]", "Say what kind of failure a server's reply describes: an unknown recipient, a full mailbox, a block. For each reply, given as an argument or as a line of standard input, the command prints the class and the rule that matched. The rules are those of -f, which may be repeated and may name builtin; otherwise those of bounce_class_files; otherwise the built-in ones. With -j, each is a JSON object on a line: class, file, pattern, text. Use the command to test rules before you configure them."},
		{"trace", "[option ...] pattern ...", "Find messages in the mail log by sender, recipient, domain, queue ID, Message-ID, client, next hop or reply, and follow each through aliases, lists, content filters, reports and requeuing, with every delivery attempt. Mail that was refused before it had a queue ID is found, too. See TRACING below."},
		{"top", "[-1j] [-i seconds] [-n node]", "Show what the first page of the console shows, on a terminal: the number of messages in each queue and the age of the oldest, the domains whose mail has waited longest and what is wrong with each, how providers took mail in the last 24 hours, with what bounced later and how many complained, the suspensions, the limits and the diversions, and from the second update on what came in and went out since the one before. The display is updated every 5 seconds, or at the interval of -i, until the command is interrupted. With -1, or if the output is not a terminal, it is printed once; with -j, once as a JSON object, in the form of the console's API. Where nodes share the queue, the mail of all of them is counted, and the nodes that are down or do not answer are named; with -n, the mail of one node. Only root and the mail owner may use the command."},
		{"whatif", "[-j] [-s seed] [-o name=value ...]", "Forecast how long the mail in the queue will take, with the settings as they are and with those of -o: when half of it, 95 and 99 in 100 messages, and all of it will have left the queue, by destination, and by tenant if there are any. The scheduler is run over a copy of the queue in virtual time; destinations take mail as they have done since the queue manager was started. Deliveries are not stopped for that. New mail is not in the forecast, nor is mail on hold or suspended. The forecast is made three times, with different chance: a column says how far these runs are apart. Remarks say what is not certain: a destination of which nothing is known, one that does not answer, more deliveries at once than were ever seen there. A parameter that has no effect on the forecast is refused, with exit status 64. With -j, the forecast is a JSON object, with times in seconds; -s gives the same chance again. A queue of more than 100,000 messages is forecast by a part of it. The exit status is 65 if there is no forecast: the queue is empty or too large, or it is not known of any mail where it goes. Limits in common, sources and tenants are in the forecast; what of them is left out is said in sentences. Only root and the mail owner may use the command."},
		{"collate", "[file ...]", "Read the mail log, from files or standard input, and print the lines of each message together once it has left the queue. Messages that have not left it are printed at the end."},
		{"token", "!add|list|remove ...", "Make, list and remove the tokens by which programs use the HTTP services of the mail system. add prints a new token, which cannot be shown again: only a hash of it is stored. Its options: -r, which may be repeated, is a role: inject (hand in mail; the default), look (see what the console shows), operate (change what the console can change) or read (read what messages in the queue say) or suppress (see and change the suppression list of the tenant, which it needs). -s, which may be repeated and which the role inject needs, is a permitted sender: an address, a domain, a domain with a dot before it for all domains below, <> for the null sender, or * for all. -t is the name of a tenant, -q the number of recipients a day, and -e the number of days until the token expires. list prints all tokens, with -j as a JSON object on a line each. remove withdraws tokens by name; services notice within a second. The command is for root and the mail owner."},
		{"cluster", "!init|status|shards|doubtful|[un]drain ...", "Make the database for a queue that several nodes share (spool_type = postgresql), and show how they stand. init makes the tables and prints each statement before it is carried out; -n is the number of parts, each of which one node owns (16; 64 at most). It is run once, and not for each node. shards adds empty parts, so that there are as many as it is told; they cannot be made fewer. status shows the nodes, who owns each part and for how much longer, the database's standbys, and parameters that main.cf does not set to the same on all nodes; -j prints JSON. doubtful lists the deliveries that were under way when a node lost its part of the queue, and that may have been made twice; -j prints a JSON object on a line each. drain has a node, this one if none is named, hand its parts over to the others, and waits until it has; undrain ends that."},
		{"events", "!status|replay|retry|dead|resend ...", "Show how far the sinks of events are (event_sinks), and send events once more. status prints which events the journal keeps, and for each sink how many events it does not have yet, and why it fails; with -j, as a JSON object. replay sends a sink all events that are kept, or with -f those from a number on, once more. retry makes a sink's next attempt now. dead prints the events that the sinks, or one sink, have refused for good, as a JSON object on a line each: refused (the time), reason, number, kind, key, event. resend sends a sink's dead letters again; those that it refuses again stay. The command is for root and the mail owner. The exit status is 66 if there is no such sink, and 69 if events are off or the service does not answer."},
		{"watch", "client|destination NAME|ADDRESS", "Print the SMTP dialogues with one client, or with one destination, as they happen, until the command is interrupted. A name also stands for the names below it; a network is given as address/length. A destination matches by its domain, by the name of the server or by its address. Each line has the time, the service's process, the peer, and < for what the peer sends or > for what is sent to it. The command follows all processes of smtpd(8), or of smtp(8) and lmtp(8), including those that start later; sessions in progress are shown from their next line on. Nothing is reloaded and nothing is logged. AUTH exchanges and message content are left out. If lines come faster than they can be printed, some are dropped, and the command says how many. Only root may use it."},
		{"account", "command [argument ...]", "Edit the accounts of people who send mail, and make application passwords. See ACCOUNTS below."},
		{"passwd", "[user]", "Read a password from standard input and print an entry for a table of users (smtpd_sasl_type = table). With -c, read such a table and report the entries that cannot be used."},
		{"dkim", "!genkey|record -d domain -s selector ...", "Make a DKIM key (genkey; -t and -b give its type and size, -o its directory), or read one (record), and print the DNS record to publish."},
		{"dmarc", "!report [-j] [--show|--send-now] [file ...]", "Read reports that receivers sent: DMARC aggregate reports (RFC 9990 and its predecessors) and TLS reports (RFC 8460). They are read from files or standard input, as messages, as attachments (gzip, zip) or unpacked. For each domain, a table is printed of who sends in its name, from where, and whether that mail passes, with failures first. A report that is found twice counts once. With -j, each row is a JSON object on a line. If a file is not a report, the others are still read, and the exit status is 65. Files that unpack to more than 32 megabytes are refused. With --show, list the DMARC reports that this system is to send (dmarc_report_enable), by day and domain, with the numbers of messages and rows; -j prints JSON. With --send-now, make and send the reports of all days that are over, without waiting until they are due; the exit status is 75 if one could not be sent. Both are for root and the mail owner."},
		{"cert", "!list|renew|rollover ...", "Show the certificates of the mail system's servers (list): their names, who issued them, how long they are valid, and the TLSA records (DANE) of their keys for port 25; with tls_acme also when they are renewed, and what the last attempt failed of. With -j, each is a JSON object on a line. With tls_acme, renew has the acme service request a new certificate at once, whatever its age, with the same key, and waits for it; the exit status is 69 if there is none. Authorities limit the number of requests. rollover makes the next private key, once, and prints its TLSA records; the acme service uses the key when all name servers of the zone have shown the records for two times their TTL, or at once where there are no TLSA records. The command is for root and the mail owner."},
		{"domain", "!add|rotate|check|records ...", "Add a mail domain with its DKIM keys, rotate the keys, print the DNS records that the domain should have, and check how the domain looks from outside. See DOMAINS below."},
		{"setup", "[option ...] site|relay|null-client|backup-mx|sender", "Write a commented main.cf and master.cf for one of the usual cases, and check them. See SETUP below."},
		{"srs", "!encode|decode [address ...]", "Rewrite senders as the mail system does when it forwards mail (encode), or print which sender an address in srs_domain stands for (decode); srs_domain must be set. Without arguments, addresses are read from standard input, one a line. If one cannot be rewritten or decoded, the others still are, and the exit status is 65. The command needs to read srs_secret_file, and so is for root."},
		{"suppress", "!add|remove|check|list|export|import ...", "Look at the suppression list (suppress_list_maps, suppress_tenants), and change it: add [-t tenant] [-l list] [-r reason] [-e days] address ..., remove [-t tenant] [-l list] address ..., check [-t tenant] [-l list] address ..., list [-j] [-t tenant] [-l list], export [-t tenant] [-l list] [-F tab|csv|json], import [-t tenant] [-l list] [-r reason] [-F tab|csv|json] [file]. -t alone is all mail of a tenant, and with -l one list of it; list and export with -t alone print the entries of all its lists. Without -t and -l, or with -l '*', add, remove and import mean entries that hold for all mail under the suppression list; mail of a list or a tenant, and check with one, find these, too. Without them check says on which lists an address is, and list and export print all entries. -e is after how many days the entry ends. export prints an entry a line: address (with a \\ before it if it begins with # or \\), list, reason, time, end, origin and details between tabs; -F csv the same as CSV, with the names of the columns first, and -F json as list -j does. A list of a tenant is TENANT/LIST there, and TENANT/ is all mail of it. Addresses have the form of RFC 5321 everywhere: a local part with a space has quotes, and quotes that are not needed count for nothing. import reads that, or a file with only an address on each line, from standard input if no file is given; of csv and json only the address must be there. Either all of it counts when the command ends, or nothing. With -t nothing is imported to another tenant. Where there is an entry already a complaint stays, then that somebody has unsubscribed, then what holds for ever beside what ends, and then the newer one counts. While the list is lost (suppressd(8)) an import with -t or -l counts, and mail under the list waits on: one without them says what all of the list is. The exit status is 0 if all has been done, and for import whenever the entries count; 1 of check if one of the addresses is suppressed, and of import if the entries count and the list is still lost; 64 for a wrong command line; 65 if a line cannot be read, or remove has not found an address; 66 if the file cannot be read; 69 if the service does not answer: of an import that says so it is not known whether it counts, and it may be repeated; 74 if the output cannot be written. The service suppress must be in master.cf and the mail system must be running. The command is for root and mail_owner."},
		{"simulate", "[-csv | -svg] [file]", "Simulate in virtual time how the scheduler delivers the described mail to the described servers, and report throughput, waits and concurrency, as text, CSV or SVG."},
		{"help", "", "List the commands."},
		{"version", "", "Print the version, its commit, and the compiler that built it. --version does the same."},
		{"tool", "arguments", "Run sendmail(1), mailq(1), newaliases(1), postqueue(1), postsuper(1), postcat(1), postconf(1), postmap(1), postalias(1), postkick(1), postlock(1), postlog(1), postmulti(1), posttls-finger(1) or qshape(1)."},
	}
}

// posthasteSections are what the page of posthaste(1) says of groups of commands.
func posthasteSections() []section {
	return []section{
		{
			title: "The spool",
			about: []string{
				"Messages are records of one log. These commands show it and take messages out of it; they are for root and the mail owner.",
			},
			items: []item{
				{"Cm spool dump Op Fl m", "Print the log record by record; with -m, list the messages."},
				{"Cm spool check", "Verify every checksum and count. Damage gives exit status 65. Damage is reported with the file and the offset, lost messages with their queue IDs."},
				{"Cm spool doubtful Op Fl js", "List the messages that may have arrived twice, because the mail system or the machine stopped during their delivery, oldest first, with the outcome of each. With -j, each is a line of JSON. With -s, they are marked as seen, and are not listed again."},
				{"Cm spool stats", "Print counts and sizes."},
				{"Cm spool export Ar ID", "Write one message to standard output, as a plain file with its envelope."},
				{"Cm spool export Fl d Ar dir ID ...", "Write messages to files in a directory."},
				{"Cm spool export Fl a Ar dir", "Write all messages to files in a directory."},
				{"Cm spool export Fl p Ar dir Op Fl r", "Write all messages as queue files to dir, the queue directory of a stopped Postfix. With -r, each message is removed from the spool when its file is complete."},
				{"Cm spool import Oo Fl nrv Oc Ar path ...", "Take in exported files, directories of them, queue files of Postfix, or a whole Postfix queue directory. With -n, files are only read. With -r, each file is removed when its message is on stable storage. With -v, each file is named."},
				{"Cm spool migrate Oo Fl v Oc Ar from", "Move the queue from the engine from, log or postgresql, into the one that spool_type names. The mail system must be stopped on this machine. A message keeps all that the queue knows of it, but for its queue ID; with -v, the former and the new one are printed. A move that was interrupted goes on with the same command, and nothing is lost or there twice. See the page on clusters for how it is done."},
				{"Cm spool directories", "List the spools of a queue that is in several directories (spool_directories): number, whether new mail goes there, messages, and free space."},
				{"Cm spool drain Ar dir", "Move all mail of one of them to those of the others that take new mail. Queue IDs stay. The mail system must be stopped; a move that was interrupted goes on with the same command, and nothing is lost or there twice. The directory can then be taken out of spool_directories."},
				{"Cm spool forget Ar dir", "Go on for good without a directory of spool_directories_absent, and the mail in it: its disk is lost. The mail system must be stopped."},
				{"Cm spool salvage Oo Fl d Ar dir Oc Ar target", "Write all readable messages of a spool that is damaged, or that the mail system cannot start with, to files in the directory target, as export does. List the others in target/LOST. Copies of damaged segments that a start has kept are also searched. With -d, the spool is in dir. Stop the mail system first."},
			},
		},
		{
			title: "The queue",
			about: []string{
				"list and flush are for whom authorized_mailq_users and authorized_flush_users permit it, as with postqueue(1); the other commands are for root and the mail owner, as postsuper(1) is.",
			},
			items: []item{
				{"Cm queue list Oo Fl j Oc Op Ar condition ...", "List the mail that matches all conditions, as mailq does, or with -j as JSON, one object per line."},
				{"Cm queue hold | release | delete | requeue | expire Ar ID ... | Cm ALL | Ar condition ... Op Fl -dry-run", "Change the selected messages: put on hold, release from hold, delete without a notification, send through address mapping and content checks again, return to the sender at once. A message is changed only if it matches the conditions at that moment. Without queue IDs or conditions, ALL is required."},
				{"Cm queue flush Ar ID ... | Cm ALL | Ar condition ... Op Fl -dry-run", "Try the selected messages now."},
				{"Cm queue suspend | resume | suspended | limit | unlimit | limited | divert | undivert | diverted | bounce | unbounce | bounced Ar ...", "The same as these commands alone."},
			},
		},
		suspensionSection(),
		limitSection(), diversionSection(), returnSection(),
		selectionSection(),
		auditSection(),
		traceSection(),
		domainSection(), accountSection(), setupSection(),
		{
			title: "TLS",
			about: []string{
				"Keys and certificates are new files in the configuration directory, whose names say when they were made. What there is stays. The algorithm is rsa, the default, or ecdsa; bits is the size of an RSA key, 2048 by default, or a curve: secp256r1, the default, secp384r1 or secp521r1. Names of files may be relative to the configuration directory; that of a key may be an algorithm, which stands for the key that is deployed.",
			},
			items: []item{
				{"Cm tls enable-client Op Fl r Ar randsource", "Enable TLS in the SMTP client for servers that offer it, if the client's TLS settings are at their defaults; otherwise only print the usual settings. With -r, also set tls_random_source."},
				{"Cm tls enable-server Oo Fl r Ar randsource Oc Oo Fl a Ar algorithm Oc Oo Fl b Ar bits Oc Op Ar hostname ...", "Make a key and a self-signed certificate, and enable TLS in the SMTP server, if the server's TLS settings are at their defaults; otherwise only print the usual settings."},
				{"Cm tls new-server-key Oo Fl a Ar algorithm Oc Oo Fl b Ar bits Oc Op Ar hostname ...", "Make a key and a self-signed certificate, and say how to deploy them. The certificate is for the names, or for myhostname."},
				{"Cm tls new-server-cert Oo Fl a Ar algorithm Oc Oo Fl b Ar bits Oc Op Ar hostname ...", "The same with the deployed key, if there is one, so that TLSA records stay valid."},
				{"Cm tls deploy-server-cert Ar certfile keyfile", "Set a certificate and its key in main.cf."},
				{"Cm tls output-server-csr Oo Fl k Ar keyfile Oc Op Ar hostname ...", "Print a certificate signing request."},
				{"Cm tls output-server-tlsa Oo Fl h Ar hostname Oc Op Ar keyfile ...", "Print DANE TLSA records (3 1 1) for keys, by default for the deployed keys."},
				{"Cm tls all-default-client", "Exit with status 0 if all settings of the SMTP client's TLS are at their defaults, else with 1."},
				{"Cm tls all-default-server", "The same for the SMTP server."},
			},
		},
		{
			title: "Examples",
			about: []string{"Move a site from Postfix, first looking at what would change:"},
			example: `posthaste migrate --dry-run
posthaste migrate
posthaste check
postfix stop
posthaste start
posthaste migrate --queue`,
		},
		{
			title: "Environment",
			items: []item{
				{"Ev MAIL_CONFIG", "The directory of main.cf and master.cf, unless an option gives it."},
			},
		},
	}
}

func sendmailPage() command {
	return command{
		name:    "sendmail",
		aliases: []string{"mailq", "newaliases"},
		what:    "send mail, as Sendmail does",
		synopsis: []string{
			"[options] [recipient ...]",
			"-bp",
			"-bi",
			"-q",
		},
		about: []string{
			"Programs on this machine send mail with sendmail(1). It reads a message from standard input and puts it into the queue, whether or not the mail system is running. The message ends at the end of the input, or at a line with only a dot.",
			"Called as mailq, it lists the queue; called as newaliases, it builds the tables of alias_database.",
			"Options of Sendmail that have no meaning here are accepted and ignored.",
		},
		options: []option{
			{'A', "x", none, "Accepted, and changes nothing."},
			{'B', "type", "7BIT|8BITMIME", "The kind of content: 7BIT or 8BITMIME."},
			{'b', "mode", "d|h|i|l|m|p|s|v", "What to do: m (the default) submit a message, p list the queue, i build the alias tables, s speak SMTP on standard input and output, d or l start the mail system, v deliver nothing and report by mail what would happen for each recipient, h or H nothing."},
			{'C', "path", file, "The configuration directory, or a file in it."},
			ignored('c'),
			{'e', "x", none, "Accepted, and changes nothing."},
			{'F', "name", none, "The sender's full name, for messages without a From: header."},
			{'f', "address", none, "The envelope sender. An empty address is the null sender: no notice is ever sent to it."},
			{'G', "", none, "The message comes from another system: do not complete addresses in its header with the local domain."},
			{'h', "count", none, "Accepted, and changes nothing."},
			{'I', "", none, "Build the alias tables, as -bi does."},
			{'i', "", none, "A line with only a dot does not end the message. -oi does the same."},
			{'L', "label", none, "Accepted, and changes nothing."},
			ignored('m'),
			{'N', "events", none, "When to notify the sender: never, or a comma-separated list of delay, failure and success."},
			{'O', "name=value", none, "An option of Sendmail by its long name. SMTPUTF8=yes makes the message require SMTPUTF8; all others are ignored."},
			{'o', "option", none, "An option of Sendmail by its short name. i is supported; all others are ignored."},
			{'p', "protocol", none, "Accepted, and changes nothing."},
			{'q', "", none, "Try to deliver all waiting mail now; with -qI and a queue ID one message, with -qR and a domain the mail for that domain. An interval, as in -q30m, is accepted and ignored."},
			{'R', "what", "full|hdrs", "How much of the message a failure notice returns: full or hdrs."},
			{'r', "address", none, "The same as -f."},
			{'t', "", none, "Also take recipients from the To:, Cc: and Bcc: headers, or from the Resent- headers if there are any."},
			ignored('U'),
			{'V', "envid", none, "An envelope ID, which notices about the message will contain."},
			{'v', "", none, "Report the outcome of the first delivery attempt by mail."},
			{'X', "V", none, "-XV, optionally with two delimiter characters: use VERP, so that each recipient gets the message from a different envelope sender, and a returned message identifies its recipient. Anything else after -X is the name of a log file and is ignored."},
			ignored('x'),
		},
		files: []item{
			{"Pa /var/spool/posthaste/maildrop", "Submitted mail that pickup(8) has not processed yet."},
			{"Pa /etc/aliases", "The default of alias_database."},
		},
		status: []status{
			{0, "The message is on stable storage."}, {65, "The input is malformed."}, {69, "The message was not queued."},
			{71, "System error."}, {73, "A file cannot be created."}, {75, "Try again later. As with Postfix, this is also the status for a wrong command line and for a message without recipients."}, notAllowed, badConfig,
		},
		see: []string{"postalias.1", "postdrop.1", "postqueue.1", "cleanup.8", "pickup.8"},
		sections: []section{{
			title: "Security considerations",
			about: []string{"sendmail(1) runs with its caller's privileges. Only postdrop(1) and postqueue(1), which it executes, have more."},
		}},
	}
}

func postqueuePage() command {
	return command{
		name: "postqueue",
		what: "list or flush the mail queue",
		synopsis: []string{
			"[-v] [-c config_dir] -p | -j | -f",
			"[-v] [-c config_dir] -i queue_id",
			"[-v] [-c config_dir] -s site",
			"[-v] [-c config_dir] -p | -j | -f [--dry-run] condition ...",
		},
		about: []string{
			"postqueue(1) lists the queue, or makes the queue manager retry deliveries now. While the mail system is down, it lists the queue only for users who may read the spool.",
			"If nodes share the queue (spool_type = postgresql), all of it is listed and retried, on whatever node the command is called. Above the mail of another node -p prints a line \"-- On node NAME:\", and -j has the field node. The mail of a node that is down is listed too, and marked. A message of another node is listed as active only while it is being delivered.",
			"The parameter authorized_mailq_users lists the users who may list the queue, authorized_flush_users those who may flush it.",
		},
		options: []option{
			configDir,
			{'f', "", none, "Try to deliver all waiting mail now."},
			{'i', "queue_id", queueID, "Try to deliver one message now. The option may be repeated."},
			{'j', "", none, "List the queue as JSON, one object per line. Postfix's fields are followed by attempts, next_attempt, client_name, client_address, sasl_username, tenant and campaign, and for each recipient by dsn, the status code of its last reply, suspended, the target of the suspension that holds it back, limited, the destination whose limit applies to it, and diverted, the target of the diversion that its mail takes. Unknown values are left out."},
			{'p', "", none, "List the queue as mailq does. After a queue ID, an asterisk means that the message is being delivered, an exclamation mark that it is on hold, a number sign that it was made to expire."},
			{'s', "site", site, "Try to deliver all mail for a site now."},
			ignored('v'),
		},
		status: statuses(badUsage, unavailable, outputError, notAllowed, badConfig),
		see:    []string{"mailq.1", "postcat.1", "postsuper.1", "qshape.1", "qmgr.8"},
		long:   selectionOptions(),
		sections: []section{selectionSection("With -p, -j and -f, conditions select the mail that is listed or tried."), {
			title: "Security considerations",
			about: []string{
				"The program is set-gid setgid_group, so that users can talk to the queue manager. It ignores the environment except MAIL_CONFIG. Unless root runs it, MAIL_CONFIG and -c must name a directory that alternate_config_directories lists in the default main.cf.",
			},
		}},
	}
}

func postsuperPage() command {
	return command{
		name:     "postsuper",
		what:     "delete, requeue, hold, release and expire queued mail",
		synopsis: []string{"[-psSv] [-c config_dir] [-d queue_id] [-e queue_id] [-f queue_id] [-h queue_id] [-H queue_id] [-r queue_id] [condition ...] [--dry-run] [queue ...]"},
		about: []string{
			"postsuper(1) changes the queue. While the mail system is running, it asks the queue manager to make each change, and a message that is being delivered is changed after that attempt has ended. While the mail system is down, the command opens the spool itself.",
			"If nodes share the queue (spool_type = postgresql), all of it is meant, on whatever node the command is called. A node changes what it has itself, and both logs say who has asked for it. A node that does not answer is named, and the exit status is 69; what it has was left alone, unless the message says that this is not known. Mail in the queue corrupt is deleted only on its own node.",
			"A queue ID of - means that IDs are read from standard input, one per line. ALL means every message in the named queues: hold, incoming, active and deferred, and for -d also maildrop and corrupt. Options may be repeated.",
		},
		options: []option{
			configDir,
			{'d', "queue_id", queueID, "Delete the message."},
			{'e', "queue_id", queueID, "Expire the message: it is returned to its sender at its next delivery attempt."},
			{'f', "queue_id", queueID, "Expire the message as -e does, and release it if it is on hold."},
			{'H', "queue_id", queueID, "Release the message if it is on hold."},
			{'h', "queue_id", queueID, "Put the message on hold: no delivery is attempted."},
			{'p', "", none, "Remove unfinished files that a sendmail program left in maildrop more than a week ago. The spool needs no purge: recovery does that whenever the spool is opened."},
			{'r', "queue_id", queueID, "Requeue the message: it gets a new queue ID, its age starts again at zero, and the original addresses of its remaining recipients are mapped again. A recipient who has received the message does not get it twice, and the sender gets no second report about members of an alias that have already failed."},
			{'S', "", none, "Accepted, and ignored."},
			{'s', "", none, "Accepted, and ignored: the structure is checked whenever the spool is opened."},
			ignored('v'),
		},
		operands: queueName,
		long:     selectionOptions(),
		sections: []section{
			selectionSection("Conditions narrow the selection by ID or ALL. A message is changed only if it meets them at that moment."),
			{title: "Examples", about: []string{"Show what deleting all mail from one sender would remove, then delete it:"},
				example: "postsuper -d ALL --sender=lists@example.com --dry-run\npostsuper -d ALL --sender=lists@example.com"},
			{title: "Security considerations", about: []string{"Only root, the mail owner and the owner of the queue directory may use it."}},
		},
		status: statuses(badUsage, unavailable, status{75, "Another process has the spool open."}, notAllowed, badConfig),
		see:    []string{"postcat.1", "postqueue.1", "cleanup.8", "qmgr.8"},
	}
}

func postcatPage() command {
	return command{
		name:     "postcat",
		what:     "show a queued message",
		synopsis: []string{"[-bdefhorv] [-c config_dir] [-q] [-s offset] [queue_id | file ...]"},
		about: []string{
			"postcat(1) prints the envelope and the content of messages, by queue ID with -q. Otherwise its arguments are files: exported messages, files in the maildrop directory, or Postfix queue files. Without arguments it reads standard input.",
			"If nodes share the queue (spool_type = postgresql), -q finds the messages of all nodes, also of one that is down.",
			"The options -b, -e and -h select the parts to show. Without any of them, all parts are shown.",
		},
		options: []option{
			{'b', "", none, "Show the body."},
			configDir,
			{'d', "", none, "Print record types as Postfix's numbers."},
			{'e', "", none, "Show the envelope."},
			{'f', "", none, "Print the message's name before each line."},
			{'h', "", none, "Show the header."},
			{'o', "", none, "Print the offset of each line in the content."},
			{'q', "", none, "The arguments are queue IDs."},
			{'r', "", none, "Accepted, and ignored: records are always shown in their order."},
			{'s', "offset", none, "Start at this offset in the content."},
			{'v', "", none, "Also show the delivery attempts."},
		},
		operands: queueID,
		status: statuses(badUsage, status{65, "A file is not a message, or is damaged."}, status{66, "There is no such message or file."},
			unavailable, outputError, notAllowed, badConfig),
		see: []string{"posthaste.1", "postqueue.1", "postsuper.1"},
	}
}

func postconfPage() command {
	return command{
		name: "postconf",
		what: "show and change the configuration",
		synopsis: []string{
			"[-dfhHnpqvx] [-c config_dir] [-C class] [-o name=value] [parameter ...]",
			"[-e] [-qv] [-c config_dir] name=value ...",
			"-X | -# [-qv] [-c config_dir] parameter ...",
			"-M | -F | -P [-efHhoqvxX#] [-c config_dir] [service ...]",
			"-a | -A | -l | -m [-c config_dir]",
			"-b | -t [-c config_dir] [template_file]",
			"-T what",
		},
		about: []string{
			"postconf(1) prints parameters of main.cf(5) as \"name = value\": all of them, or the named ones. It also edits main.cf, and shows and edits master.cf(5).",
			"An edit preserves comments, the order of lines, and the file's owner and mode; new settings are added at the end. A program that reads the file at the same time sees it either before or after the edit. Concurrent edits wait for each other.",
		},
		options: []option{
			{'A', "", none, "List the SASL implementations of the SMTP client."},
			{'a', "", none, "List the SASL implementations of the SMTP server."},
			{'b', "", none, "Print the templates of notices with parameters expanded: the built-in ones, or those of a file."},
			{'C', "class", "builtin|service|user|own|all", "Only parameters of a class: builtin, service (one set for each transport), user (a site's own), own (those that only Posthaste has) or all, the default."},
			configDir,
			{'d', "", none, "Print defaults, not actual values."},
			{'e', "", none, "Edit: the arguments are name=value. Such an argument is an edit even without -e."},
			ignored('E'),
			{'F', "", none, "Show or edit fields of master.cf: service/type/field."},
			{'f', "", none, "Fold long lines."},
			{'H', "", none, "Print names only."},
			{'h', "", none, "Print values only."},
			{'j', "", none, "Print each setting as a JSON object on a line of its own, as Postfix 3.11 does: {\"name\": \"value\"}. With -M the names are service/type, with -F and -P service/type/name."},
			{'l', "", none, "List the ways to lock a mailbox."},
			{'M', "", none, "Show or edit entries of master.cf: service/type."},
			{'m', "", none, "List the types of lookup tables."},
			{'n', "", none, "Print only what main.cf sets."},
			{'o', "name=value", none, "Override a main.cf setting. May be repeated."},
			{'P', "", none, "Show or edit the -o settings of master.cf: service/type/parameter."},
			{'p', "", none, "Print parameters of main.cf: the default."},
			{'q', "", none, "Do not warn."},
			{'T', "what", "compile-version|run-version|public-key-algorithms", "Print information about TLS: compile-version, run-version or public-key-algorithms."},
			{'t', "", none, "Print the templates of notices without expanding parameters."},
			{'v', "", none, "Print which files are read, and what each parameter means."},
			{'X', "", none, "Remove parameters from main.cf, or with -M and -P from master.cf."},
			{'x', "", none, "Print values with $name replaced."},
			{'#', "", none, "Comment parameters out."},
		},
		operands: parameter,
		status:   []status{{0, "Success. An unknown name is a warning."}, {1, "Failure; the reason is on standard error."}},
		see:      []string{"posthaste.1", "main.cf.5", "master.cf.5"},
		sections: []section{{
			title:   "Examples",
			example: "postconf -n\npostconf -e 'message_size_limit = 40m'\npostconf -M smtp/inet\npostconf -P submission/inet/smtpd_tls_security_level=encrypt",
		}},
	}
}

// tableOptions are those that postmap and postalias share.
func tableOptions(more ...option) []option {
	list := append([]option{
		configDir,
		{'d', "key", none, "Delete the entry. With - the keys are read from standard input."},
		{'f', "", none, "Do not convert keys to lower case."},
		{'i', "", none, "Add the entries on standard input to the table, and keep its other entries."},
		{'j', "", none, "With -q and -s: print each key and its value as a JSON object on a line of its own, as Postfix 3.11 does: {\"key\": \"value\"}."},
		{'N', "", none, "Write a zero byte at the end of keys and values, for other readers of cdb: tables."},
		{'n', "", none, "Do not write a zero byte. This is the default."},
		{'o', "", none, "Keep root's privileges although the source belongs to another user."},
		{'p', "", none, "Do not copy the permissions of the source file."},
		{'q', "key", none, "Look the key up and print what is found. With - the keys are read from standard input."},
		{'r', "", none, "Replace entries with the same key, without a warning."},
		{'s', "", none, "List all entries."},
		{'U', "", none, "Keys and values must be UTF-8; other entries are skipped with a warning."},
		{'u', "", none, "Allow any bytes in keys and values, whatever the value of smtputf8_enable."},
		{'v', "", none, "Print what is done."},
		{'w', "", none, "Skip entries whose keys exist already, without a warning."},
	}, more...)
	slices.SortFunc(list, func(a, b option) int {
		return cmp.Or(cmp.Compare(strings.ToLower(string(a.letter)), strings.ToLower(string(b.letter))), cmp.Compare(a.letter, b.letter))
	})
	return list
}

var tableSecurity = section{
	title: "Security considerations",
	about: []string{"If root runs the command and the source file belongs to another user, the command drops to that user's privileges unless -o is given: that user could otherwise redirect what root writes."},
}

var tableStatus = []status{{0, "Success."}, {1, "Something failed, or a key was not found."}}

func postmapPage() command {
	return command{
		name: "postmap",
		what: "build, change and query lookup tables",
		synopsis: []string{
			"[-fiNnoprUuvw] [-c config_dir] [type :]file ...",
			"[-bfFhjmv] [-c config_dir] -q key [type :]file ...",
			"[-fv] [-c config_dir] -d key [type :]file ...",
			"[-Fjv] [-c config_dir] -s [type :]file ...",
		},
		about: []string{
			"postmap(1) builds a table from each file, stores it beside the file, and replaces the previous table atomically. Services see either the old table or the new one, and use the new one without a restart. Each line of the file has a key, white space, and the value. A line that begins with white space continues the previous one, and a line that begins with # is a comment.",
			"If no type is given, it is that of default_database_type. Tables of the types hash, btree and lmdb are written in Posthaste's own indexed format, to a file whose name ends in .phdb; cdb tables have the public format. Files that Postfix has written for these types, with names that end in .db or .lmdb, are read as they are if they are newer, or if there is no .phdb file.",
			"With -q, tables of every type can be queried, including those that are not built: regexp, pcre, cidr, texthash, inline, static, unionmap, pipemap, randmap, environ, unix, socketmap and tcp.",
		},
		options: tableOptions(
			option{'b', "", none, "With -q -: the input is a message, and the lines of its body are looked up."},
			option{'F', "", none, "Each value is the name of a file, whose content is stored in the table as base64. With -q and -s, values are decoded."},
			option{'h', "", none, "With -q -: the input is a message, and the fields of its header are looked up."},
			option{'m', "", none, "With -b and -h: fields of MIME parts belong to the header, not to the body."},
		),
		operands: tableSpec,
		sections: []section{tableSecurity},
		status:   tableStatus,
		see:      []string{"postalias.1", "postconf.1", "main.cf.5"},
	}
}

func postaliasPage() command {
	return command{
		name: "postalias",
		what: "build, change and query alias tables",
		synopsis: []string{
			"[-fiNnoprUuvw] [-c config_dir] [type :]file ...",
			"[-fjv] [-c config_dir] -q key [type :]file ...",
			"[-fv] [-c config_dir] -d key [type :]file ...",
			"[-jv] [-c config_dir] -s [type :]file ...",
		},
		about: []string{
			"postalias(1) does for alias files what postmap(1) does for other files. Each line has a name, a colon, and a comma-separated list of what the name stands for: addresses, commands (\"|command\"), files (/path), and files with more such entries (:include:/path). A line that begins with white space continues the previous one, and a line that begins with # is a comment.",
			"newaliases(1) builds all tables of alias_database.",
		},
		options:  tableOptions(),
		operands: tableSpec,
		sections: []section{tableSecurity},
		status:   tableStatus,
		see:      []string{"newaliases.1", "postmap.1", "local.8"},
	}
}

func postkickPage() command {
	return command{
		name:     "postkick",
		what:     "send a request to a service of the mail system",
		synopsis: []string{"[-v] [-c config_dir] class service request"},
		about: []string{
			"postkick(1) sends a request, a string of letters, to a service's socket. class is the directory of that socket below the queue directory: public or private. The command waits until the service has received the request, not until it has acted on it.",
			"W is the periodic wake-up of pickup(8) and qmgr(8). D, I, A and F are the requests with which \"posthaste flush\" makes qmgr(8) scan the queue.",
		},
		options: []option{configDir, ignored('v')},
		status:  []status{{0, "Success."}, {1, "Failure; the reason is on standard error."}},
		see:     []string{"posthaste.1", "pickup.8", "qmgr.8"},
	}
}

func postlogPage() command {
	return command{
		name:     "postlog",
		what:     "write a line to the mail log",
		synopsis: []string{"[-iv] [-c config_dir] [-p priority] [-t tag] [text ...]"},
		about: []string{
			"postlog(1) writes its arguments to the mail system's log as one line. Without arguments it logs each line of standard input. If standard error is a terminal, the lines are also shown there.",
			"If maillog_file is set, only root, the mail owner and members of setgid_group can use the command: the postlog service takes lines from nobody else. The command is not set-gid, because it is the same program as all services.",
		},
		options: []option{
			configDir,
			{'i', "", none, "Accepted: the process ID is always logged."},
			{'p', "priority", "info|warn|error|fatal|panic", "The severity: info (the default), warn, error, fatal or panic."},
			{'t', "tag", none, "The tag at the beginning of each line, instead of syslog_name and /postlog."},
			ignored('v'),
		},
		status: []status{{0, "Success."}, {1, "Failure; the reason is on standard error."}},
		see:    []string{"postconf.1", "postlogd.8"},
	}
}

func postdropPage() command {
	return command{
		name:     "postdrop",
		what:     "put a message into the maildrop directory",
		synopsis: []string{"[-rv] [-c config_dir]"},
		about: []string{
			"sendmail(1) uses postdrop(1) to hand mail to pickup(8). postdrop(1) reads a message in the format of the maildrop directory from standard input, writes it to a file there, and returns when that file is on stable storage. It is not meant to be called by users.",
		},
		options: []option{configDir, ignored('r'), ignored('v')},
		status: []status{
			{0, "The message is on stable storage."}, badUsage, {65, "The input is not a message."}, {69, "The message is larger than message_size_limit."},
			{75, "The message could not be stored; try again later. Also: the user may not submit mail (authorized_submit_users), or not with that sender (local_login_sender_maps); in the latter case standard output has the reason."}, badConfig,
		},
		see: []string{"sendmail.1", "pickup.8"},
		sections: []section{{
			title: "Security considerations",
			about: []string{
				"This program has one privilege that its caller lacks: as a member of setgid_group it may create files in the maildrop directory. Any user may run it. It ignores the environment except MAIL_CONFIG, and both MAIL_CONFIG and -c must name a directory that alternate_config_directories lists in the default main.cf. The submitter's identity comes from the kernel.",
				"authorized_submit_users lists the users who may submit mail, and local_login_sender_maps the envelope senders that each login may use. This program enforces both, for root too.",
			},
		}},
	}
}

func postmultiPage() command {
	return command{
		name: "postmulti",
		what: "manage several mail systems on one machine",
		synopsis: []string{
			"-l [-ajRv] [-c config_dir] [-g group] [-i name]",
			"-p [-av] [-c config_dir] [-g group] [-i name] command [arguments]",
			"-x [-aRv] [-c config_dir] [-g group] [-i name] program [arguments]",
			"-e action [-av] [-c config_dir] [-g group] [-i name] [-G group] [-I name] [parameter=value ...]",
		},
		about: []string{
			"An instance is a mail system with its own configuration directory, queue and data; instances share the programs. The primary instance is the one in the default configuration directory; its multi_instance_directories parameter lists the directories of the others. An instance's multi_instance_name is also the first word of its log lines.",
			"With -l, the command lists instances: name, group, whether they are enabled, and configuration directory. With -x, it runs a program for each, with MAIL_CONFIG, config_directory, command_directory, daemon_directory, queue_directory, data_directory, multi_instance_name, multi_instance_group and multi_instance_enable in its environment.",
			"With -p, it runs a posthaste(1) command for each instance. For instances that are not enabled (multi_instance_enable), a command in postmulti_start_commands is replaced by check, and commands in postmulti_stop_commands and postmulti_control_commands skip them. Stop commands go through the list in reverse order.",
			"If multi_instance_directories is not empty, posthaste(1) without a configuration directory passes its commands to multi_instance_wrapper, which -e init sets to this command. Under a service manager, which runs posthaste start-fg, each instance is a separate service.",
		},
		options: []option{
			configDir,
			{'a', "", none, "All instances; this is the default. With create and import: put the new instance first in the list."},
			{'e', "action", "init|create|import|destroy|deport|enable|disable|assign", "Change the list, or an instance; see ACTIONS below."},
			{'G', "group", none, "The group to assign; - for none."},
			{'g', "group", none, "Only members of this group. With create and import: put the new instance before the first of them."},
			{'I', "name", none, "The name to assign, which begins with posthaste- or postfix-; - for none."},
			{'i', "name", none, "Only the instance with this name or configuration directory; - is the primary instance. With create and import: put the new instance before it."},
			{'j', "", none, "With -l: print each instance as a JSON object on a line of its own, as Postfix 3.11 does, with the names name, group, enabled and config_directory. A missing name or group is \"-\"; enabled is \"y\" or \"n\"."},
			{'l', "", none, "List instances."},
			{'p', "", none, "Run a posthaste(1) command."},
			{'R', "", none, "In reverse order."},
			{'v', "", none, "Set MAIL_VERBOSE for what is run."},
			{'x', "", none, "Run a program."},
		},
		sections: []section{
			{
				title: "Actions",
				items: []item{
					{"Cm init", "Set multi_instance_wrapper and multi_instance_enable of the primary instance."},
					{"Cm create Op Ar parameter Ns = Ns Ar value ...", "Make an instance and append it to the list. Its config_directory, queue_directory and data_directory are those in the arguments, or those of the primary instance with the last path component replaced by the name. The new instance is not enabled, does not listen, and accepts no mail from local users until you configure it. An existing instance is added unchanged."},
					{"Cm import Op Cm config_directory Ns = Ns Ar path", "Append an existing instance to the list."},
					{"Cm enable", "Set multi_instance_enable."},
					{"Cm disable", "Unset multi_instance_enable."},
					{"Cm assign", "Give an instance the name of -I, the group of -G, or both."},
					{"Cm deport", "Remove an instance from the list."},
					{"Cm destroy", "Remove an instance from the list, and remove what the mail system made for it. The instance must be disabled and stopped, and its queue empty. Directories that contain other files stay."},
				},
			},
			{
				title: "Examples",
				about: []string{"A second instance, for outgoing mail:"},
				example: `postmulti -e init
postmulti -I posthaste-out -G mta -e create
postconf -c /etc/posthaste-out -e 'master_service_disable =' ...
postmulti -i posthaste-out -e enable
posthaste start`,
			},
		},
		status: []status{{0, "Success."}, {1, "The command failed for an instance; it still ran for the others. The reason is on standard error."}},
		see:    []string{"postconf.1", "posthaste.1", "main.cf.5"},
	}
}

func postlockPage() command {
	return command{
		name:     "postlock",
		what:     "lock a mailbox and execute a command",
		synopsis: []string{"[-v] [-c config_dir] [-l lock_style] file command ..."},
		about: []string{
			"postlock(1) locks a mailbox as local(8) does for a delivery, executes the command without a shell, and releases the lock when the command ends. A missing file is created.",
			"deliver_lock_attempts and deliver_lock_delay determine how long it waits for a lock that another process holds, and stale_lock_time the age at which a .lock file is ignored.",
		},
		options: []option{
			configDir,
			{'l', "lock_style", none, "How to lock: a comma-separated list of dotlock, fcntl and flock, in place of mailbox_delivery_lock."},
			{'v', "", none, "Report when the lock has been acquired."},
		},
		operands: file,
		status: []status{{0, "Success. Otherwise the status is that of the command."}, {1, "The command cannot be executed, or was killed."},
			{75, "The mailbox cannot be locked, or the command line or main.cf is wrong."}},
		see: []string{"local.8"},
	}
}
