package manual

import (
	"cmp"
	"slices"
	"strings"
)

// configDir is the option that every command has.
var configDir = option{'c', "config_dir", directory, "Read main.cf and master.cf in this directory, not in that of the environment variable MAIL_CONFIG or in /etc/posthaste."}

func ignored(letter byte) option {
	return option{letter, "", none, "Accepted, and changes nothing."}
}

// statuses are those of sysexits(3) that commands share, in order.
func statuses(list ...status) []status { return append([]status{{0, "Success."}}, list...) }

var (
	badUsage    = status{64, "The command line is wrong."}
	unavailable = status{69, "The mail system is needed and down, or refuses."}
	outputError = status{74, "Output or a file cannot be written."}
	notAllowed  = status{77, "This user may not do that."}
	badConfig   = status{78, "main.cf or master.cf is wrong."}
)

// commands are the programs of section 1.
func commands() []command {
	return []command{
		posthastePage(), sendmailPage(), postqueuePage(), postsuperPage(), postcatPage(), qshapePage(), postconfPage(),
		postmapPage(), postaliasPage(), postkickPage(), postlogPage(), postdropPage(), postmultiPage(),
		postlockPage(), posttlsfingerPage(),
	}
}

func posthastePage() command {
	return command{
		name:     "posthaste",
		aliases:  []string{"postfix"},
		what:     "control the mail system",
		synopsis: []string{"[-v] [-c config_dir] command [arguments]"},
		about: []string{
			"posthaste(1) starts and stops the mail system, tells a running one to read its configuration again, and says whether a configuration is right. It is also every service and every tool of the mail system: which one it is follows from the name by which it is called, or from its first argument. Called as postfix it is the same, so that scripts find it under the name that they know.",
			"Commands that act on the mail system are for root, unless an ordinary user runs a mail system of his own.",
		},
		words: []word{
			{"start", "[-w]", "Start the mail system in the background. The command returns when the sockets are open, or reports why they cannot be. It also reports what check finds in the services' settings, which a service itself reports only when it is needed."},
			{"start-fg", "", "Run the mail system in the foreground, for service managers and containers."},
			{"stop", "", "Stop, after work in progress has ended, within bounds."},
			{"abort", "", "Stop at once. No mail is lost; deliveries in progress may be repeated."},
			{"reload", "", "Read the configuration again. A configuration with errors is refused, and the old one stays in use. No connection is refused meanwhile, and sessions under way end under the settings they began with. It returns when every new client is served with the new configuration, or master has refused it (exit status 1); after 17 seconds it says that the reload is still in progress. Warnings are those of start."},
			{"status", "", "Report whether the mail system runs. The exit status is 0 if it does, 1 if it does not."},
			{"flush", "", "Try to deliver all waiting mail now."},
			{"check", "[-v]", "Check the configuration and the directories. Missing directories are made. A directory in which the mail system cannot make files is reported, for example on a file system that is mounted read-only. Root also has postdrop and postqueue checked: their owner, group and mode must let users send mail and list the queue, and their file system must not be mounted nosuid. The services read their settings and open tables, keys and certificates, as they do when they start. An error is a setting that has mail refused or deferred. It is reported with its file and line, and with a remedy: a table that is not built, a misspelt restriction or parameter, a transport that master.cf does not have (in a setting or in a table), an invalid relay host, incomplete settings of a database, an unknown action in an access table (REJCT), a missing key, user or program, a key that does not belong to its certificate, a certificate of the SMTP server that has expired or is not valid yet, a queue file system without room. A warning is a probable mistake: a $name without a value, a domain in two classes, a world-writable file, a table whose text is newer, an unknown action in header_checks and the like, a certificate that expires within ten days, and an expired one of the client. Up to 4 megabytes of each table's text are read, but no database or other server is queried. The exit status is 1 if there are errors, else 0. An expired certificate of the server is an error, because mail programs, and senders that verify it (DANE, MTA-STS), do not deliver to it. \"posthaste start\" and \"posthaste reload\" report the same. With -v, settings that work but may be unwise follow, such as a world-readable private key, and then, line by line, what would behave differently from Postfix with the same files."},
			{"set-permissions", "[name=value ...]", "Give the mail system's directories, postdrop and postqueue their owners, groups and modes, and the files of the queue and of data_directory their owner. Only root can do that. Before that the arguments are set in main.cf: mail_owner, setgid_group, and the directories of an installation."},
			{"upgrade-configuration", "[name=value ...]", "Append to master.cf, as a new installation has them, those services that the mail system depends on and that are missing there, and set the arguments in main.cf, as set-permissions does. Each change is printed. What is there stays as it is."},
			{"logrotate", "", "Rename the file that maillog_file names, have a new one opened, and compress the old one."},
			{"migrate", "[--from dir] [--to dir] [--dry-run] [--queue | --back]", "Take over the configuration of a Postfix, from /etc/postfix unless --from says otherwise: main.cf and master.cf, the files that they name, and the tables, built anew. It prints the changes, the differences, and the decisions that are left to you. With --queue move the queue of the stopped Postfix here, with --back that of the stopped Posthaste there. With --dry-run only print what would be done. Nothing below /etc/postfix is changed."},
			{"try", "[-d dir] [-p port]", "Run a private mail system in the foreground, on the loopback interface, with all its files below one directory. The defaults are run and 2525. The files of an earlier run are kept, and so is its port unless -p names another. It prints where it listens, as which user it runs and where mail is delivered. If root starts it, no process runs as root: it runs as the owner of the directory or, in a new directory, as the user who called sudo, or as posthaste or nobody."},
			{"spool", "command ...", "Look at the spool, check it, and move messages out of it and into it. See THE SPOOL below."},
			{"explain", "ID|destination ...", "Explain why messages are still in the queue: their state, the outcome for each recipient, and the time of the next attempt. For a destination, print its concurrency window and the feedback for and against it; with threads, whether it has an agent or after how many deliveries it gets one; until when it is considered dead; by whom, why and until when it is suspended; how much mail waits for it and since when; the next attempts, and the last replies. Destinations are written as for suspend."},
			{"queue", "command ...", "List and change the queue, selecting mail by common properties. See THE QUEUE and SELECTING MAIL below."},
			{"suspend", "target [--reason text] [--until time | --for time] [-n] [-j]", "Do not try some mail until it is resumed, or until the time that is given. What is meant by a target, and what becomes of the mail, is under SUSPENSIONS below. The reason is for whoever looks: it stands in the log and in listings, and what the sender is told of a delay or a return has it, too. With -n nothing is changed: it says how many messages would not be tried now. With -j output is JSON."},
			{"resume", "target [-j]", "End a suspension. What has waited is tried, in the order of its arrival. The target is written as it was for suspend, or as suspended -j has it; the exit status is 66 if it is not suspended. Of several suspensions that are for the same mail each ends by itself."},
			{"suspended", "[-j]", "List what is suspended, by whom, since when, until when and why, and how many deferred messages have come up since and wait for that. With -j each is a JSON object on a line: target, by, since, until (if it ends by itself), reason, waiting; times are seconds of the epoch."},
			{"tls", "command ...", "Turn opportunistic TLS on, and make and deploy the server's keys and certificates. See TLS below."},
			{"audit", "[-j] [-q file|none] [-s time] [-u time] [file ...]", "Hold the log against the queue, and say whether everything that was accepted has been delivered, returned, or is still there. See THE AUDIT below."},
			{"classify", "[-j] [-f file] [reply ...]", "Say what kind of failure a server's reply is: an unknown recipient, a full mailbox, a block. For each reply, given as an argument or as a line of standard input, the class is printed and the rule that says so. The rules are those of -f, which may be given several times and may be builtin, else those that bounce_class_files names, else those that come with the program. With -j each is a JSON object on a line: class, file, pattern, text. Use it to try rules before they are put to use."},
			{"trace", "[option ...] pattern ...", "Find messages in the mail log by sender, recipient, domain, queue ID, Message-ID, client, next hop or reply, and follow each through aliases, lists, content filters, reports and requeuing, with each attempt to deliver. Refusals before there is a queue ID are found, too. See TRACING below."},
			{"collate", "[file ...]", "Read the mail log, from files or standard input, and print the lines of each message together, when it has left the queue, and of those that have not at the end."},
			{"watch", "client|destination NAME|ADDRESS", "Print the SMTP dialogues with one client, or with one destination, as they go on, until the command is interrupted. A name stands for the names below it as well; a network is given as address/length. A destination matches by its domain, by the name of the server or by its address. Each line has the time, the service's process, < for what the peer says and > for what it is told, and the peer. All processes of smtpd(8), or of smtp(8) and lmtp(8), are followed, those that start later too, and sessions under way from the next line on. Nothing is reloaded and nothing is logged. What belongs to AUTH, and the content of messages, is left out. When lines come faster than they can be printed some are lost, and the command says how many. Only root may watch."},
			{"passwd", "[user]", "Read a password from standard input and print an entry for a table of users (smtpd_sasl_type = table). With -c read such a table and say which entries cannot be used."},
			{"dkim", "!genkey|record -d domain -s selector ...", "Make a key to sign mail with (genkey, of the type and size that -t and -b say, in the directory of -o), or read one (record); print the DNS record to publish."},
			{"domain", "!add|rotate|check|records ...", "Add a mail domain with its DKIM keys, rotate the keys, say which DNS records it should have, and check what the world sees of it. See DOMAINS below."},
			{"simulate", "[-csv | -svg] [file]", "Run a description of mail and servers through the scheduler in virtual time, and report throughput, waits and concurrency, as text, CSV or SVG."},
			{"help", "", "List the commands."},
			{"version", "", "Say which version this is, of which commit, and what it was built with. --version is the same."},
			{"tool", "arguments", "Run sendmail(1), mailq(1), newaliases(1), postqueue(1), postsuper(1), postcat(1), postconf(1), postmap(1), postalias(1), postkick(1), postlock(1), postlog(1), postmulti(1), posttls-finger(1) or qshape(1)."},
		},
		options: []option{
			configDir,
			{'v', "", none, "With start and start-fg: every service is started with one -v more than its line of master.cf has."},
			{'D', "", none, "Accepted with a warning: debugger_command is not run. Attach a debugger to the process of a service instead."},
		},
		sections: posthasteSections(),
		files: []item{
			{"Pa /etc/posthaste/main.cf", "Settings; see main.cf(5)."},
			{"Pa /etc/posthaste/master.cf", "Services; see master.cf(5)."},
			{"Pa /var/spool/posthaste", "The queue: the spool's log, the directory where local mail is dropped, and the services' sockets."},
			{"Pa /var/lib/posthaste", "What services remember, such as probed addresses and clients that passed postscreen's tests."},
		},
		status: []status{{0, "Success."}, {1, "Failure; the reason is on standard error and in the log. The tools have statuses of their own."}},
		see:    []string{"mailq.1", "postconf.1", "postqueue.1", "postsuper.1", "sendmail.1", "main.cf.5", "master.cf.5", "master.8"},
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
				{"Cm spool dump Op Fl m", "Print the log record by record; with -m, the messages."},
				{"Cm spool check", "Verify every checksum and count. Damage gives exit status 65. It is reported with file and octet, and lost messages with their queue IDs."},
				{"Cm spool doubtful Op Fl js", "List the messages that may have arrived twice, since the mail system or the machine ended in the middle of their delivery, oldest first, with the outcome of each. With -j each is a line of JSON; with -s they are marked as seen, and are not listed again."},
				{"Cm spool stats", "Print counts and sizes."},
				{"Cm spool export Ar ID", "Write one message to standard output, as a plain file with its envelope."},
				{"Cm spool export Fl d Ar dir ID ...", "Write messages to files in a directory."},
				{"Cm spool export Fl a Ar dir", "Write all messages to files in a directory."},
				{"Cm spool export Fl p Ar dir Op Fl r", "Make queue files of a stopped Postfix of all messages, in its queue directory dir; with -r each message is removed here when its file is there."},
				{"Cm spool import Oo Fl nrv Oc Ar path ...", "Take in exported files, directories of them, queue files of Postfix, or a whole Postfix queue directory. With -n files are only read; with -r each is removed when its message is on stable storage; with -v each is named."},
				{"Cm spool salvage Oo Fl d Ar dir Oc Ar target", "Write all readable messages of a spool that is damaged, or does not start, to files in the directory target, as export does. List the others in target/LOST. The copies of damaged segments that a start has kept are searched as well. With -d the spool is in dir. Stop the mail system before."},
			},
		},
		{
			title: "The queue",
			about: []string{
				"list and flush are for whom authorized_mailq_users and authorized_flush_users permit it, as with postqueue(1); the other commands are for root and the mail owner, as postsuper(1) is.",
			},
			items: []item{
				{"Cm queue list Op Fl j Oo Ar condition ... Oc", "List the mail that fulfils all conditions, as mailq does, or with -j as JSON, one object a line."},
				{"Cm queue hold | release | delete | requeue | expire Ar ID ... | Cm ALL | Ar condition ... Op Fl -dry-run", "Change the selected messages: put on hold, release from hold, delete without a notification, send through address mapping and content checks again, return to the sender at once. A message is changed only if it fulfils the conditions at that moment. Without queue IDs or conditions, ALL is required."},
				{"Cm queue flush Ar ID ... | Cm ALL | Ar condition ... Op Fl -dry-run", "Try it now."},
				{"Cm queue suspend | resume | suspended Ar ...", "The same as suspend, resume and suspended alone."},
			},
		},
		suspensionSection(),
		selectionSection(),
		auditSection(),
		traceSection(),
		domainSection(),
		{
			title: "TLS",
			about: []string{
				"Keys and certificates are new files in the configuration directory, whose names say when they were made. What there is stays. The algorithm is rsa, the default, or ecdsa; bits is the size of an RSA key, 2048 by default, or a curve: secp256r1, the default, secp384r1 or secp521r1. Names of files may be relative to the configuration directory; that of a key may be an algorithm, which stands for the key that is deployed.",
			},
			items: []item{
				{"Cm tls enable-client Op Fl r Ar randsource", "Enable TLS in the SMTP client where servers have it, if its settings are at their defaults; otherwise only say which are usual. With -r tls_random_source is set, too."},
				{"Cm tls enable-server Oo Fl r Ar randsource Oc Oo Fl a Ar algorithm Oc Oo Fl b Ar bits Oc Op Ar hostname ...", "Make a key and a self-signed certificate and enable TLS in the SMTP server, if its settings are at their defaults; otherwise only say which are usual."},
				{"Cm tls new-server-key Oo Fl a Ar algorithm Oc Oo Fl b Ar bits Oc Op Ar hostname ...", "Make a key and a self-signed certificate, and say how to deploy them. The certificate is for the names, or for myhostname."},
				{"Cm tls new-server-cert Oo Fl a Ar algorithm Oc Oo Fl b Ar bits Oc Op Ar hostname ...", "The same with the key that is deployed, if there is one, so that TLSA records stay right."},
				{"Cm tls deploy-server-cert Ar certfile keyfile", "Name a certificate and its key in main.cf."},
				{"Cm tls output-server-csr Oo Fl k Ar keyfile Oc Op Ar hostname ...", "Print a certificate signing request."},
				{"Cm tls output-server-tlsa Oo Fl h Ar hostname Oc Op Ar keyfile ...", "Print DANE TLSA records, 3 1 1, of keys: by default of those that are deployed."},
				{"Cm tls all-default-client", "Exit with status 0 if all settings of the SMTP client's TLS are at their defaults, else with 1."},
				{"Cm tls all-default-server", "The same of the SMTP server."},
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
				{"Ev MAIL_CONFIG", "The directory of main.cf and master.cf, where no option says it."},
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
			"sendmail(1) is how the programs of a machine send mail. It reads a message from standard input and puts it into the queue, whether the mail system runs or not. The message ends at the end of input, or at a line with a lone dot.",
			"Called as mailq it lists the queue, as newaliases it builds the tables that alias_database names.",
			"Options of Sendmail that mean nothing here are accepted.",
		},
		options: []option{
			{'A', "x", none, "Accepted, and changes nothing."},
			{'B', "type", "7BIT|8BITMIME", "The kind of content: 7BIT or 8BITMIME."},
			{'b', "mode", "d|h|i|l|m|p|s|v", "What to do: m deliver (the default), p list the queue, i build the alias tables, s speak SMTP on standard input and output, d or l start the mail system, v deliver nothing and report by mail what would become of each recipient, h or H nothing."},
			{'C', "path", file, "The configuration directory, or a file in it."},
			ignored('c'),
			{'e', "x", none, "Accepted, and changes nothing."},
			{'F', "name", none, "The sender's full name, for messages without a From: header."},
			{'f', "address", none, "The envelope sender. An empty one is the null sender, whose mail is never answered."},
			{'G', "", none, "The message comes from elsewhere: addresses in its header are not completed with our domain."},
			{'h', "count", none, "Accepted, and changes nothing."},
			{'I', "", none, "Build the alias tables, as -bi does."},
			{'i', "", none, "A line with a lone dot is a line like any other. The form -oi does the same."},
			{'L', "label", none, "Accepted, and changes nothing."},
			ignored('m'),
			{'N', "events", none, "When to notify the sender: never, or a comma-separated list of delay, failure and success."},
			{'O', "name=value", none, "An option of Sendmail by its long name. SMTPUTF8=yes asks for it to be required; the others change nothing."},
			{'o', "option", none, "An option of Sendmail by its short name. The letter i is heeded, the others change nothing."},
			{'p', "protocol", none, "Accepted, and changes nothing."},
			{'q', "", none, "Try to deliver all waiting mail. -qI with a queue ID is for one message, -qR with a domain for all that waits for it. An interval, as in -q30m, means something with -bd only and is accepted."},
			{'R', "what", "full|hdrs", "What a notice of failure returns: full or hdrs."},
			{'r', "address", none, "The same as -f."},
			{'t', "", none, "Recipients are also those in the To:, Cc: and Bcc: headers, or in their Resent- forms where there are such."},
			ignored('U'),
			{'V', "envid", none, "An identifier that notices about the message will carry."},
			{'v', "", none, "Report by mail what became of the first attempt to deliver."},
			{'X', "V", none, "-XV, or -XV and two delimiters: each recipient gets the message from an address of his own, so that a returned message says whose it was. Anything else after -X is the name of a log and changes nothing."},
			ignored('x'),
		},
		files: []item{
			{"Pa /var/spool/posthaste/maildrop", "Mail that was submitted and that pickup(8) has not yet taken."},
			{"Pa /etc/aliases", "Aliases, as alias_database says by default."},
		},
		status: []status{
			{0, "The message is on stable storage."}, {65, "The input is malformed."}, {69, "The message was not queued."},
			{71, "The system failed."}, {73, "A file cannot be made."}, {75, "Try again later; also a wrong command line, and a message without recipients, as with Postfix."}, notAllowed, badConfig,
		},
		see: []string{"postalias.1", "postdrop.1", "postqueue.1", "cleanup.8", "pickup.8"},
		sections: []section{{
			title: "Security considerations",
			about: []string{"It runs with its caller's privileges. Only postdrop(1) and postqueue(1), which it calls, have a privilege that their caller lacks."},
		}},
	}
}

func postqueuePage() command {
	return command{
		name: "postqueue",
		what: "list the mail queue, or have it tried again",
		synopsis: []string{
			"[-v] [-c config_dir] -p | -j | -f",
			"[-v] [-c config_dir] -i queue_id",
			"[-v] [-c config_dir] -s site",
			"[-v] [-c config_dir] -p | -j | -f [--dry-run] condition ...",
		},
		about: []string{
			"postqueue(1) lists the queue, or has the queue manager retry now. While the mail system is down, a user who may read the spool is shown its messages.",
			"authorized_mailq_users says who may list the queue, authorized_flush_users who may have it tried again.",
		},
		options: []option{
			configDir,
			{'f', "", none, "Try to deliver all mail that waits."},
			{'i', "queue_id", queueID, "Try to deliver one message. The option may be repeated."},
			{'j', "", none, "List the queue as JSON, one object a line. Behind Postfix's fields stand attempts, next_attempt, client_name, client_address and sasl_username, and for each recipient dsn, the status code of its last reply, and suspended, the target of the suspension for which it is not tried; unknown values are left out."},
			{'p', "", none, "List the queue as mailq does. After a queue ID, an asterisk means that the message is being delivered, an exclamation mark that it is on hold, a number sign that it is told to expire."},
			{'s', "site", site, "Try to deliver all mail that waits for a site."},
			ignored('v'),
		},
		status: statuses(badUsage, unavailable, outputError, notAllowed, badConfig),
		see:    []string{"mailq.1", "postcat.1", "postsuper.1", "qshape.1", "qmgr.8"},
		long:   selectionOptions(),
		sections: []section{selectionSection("With -p, -j and -f only the mail is listed or tried that fulfils conditions."), {
			title: "Security considerations",
			about: []string{
				"The program is set-gid setgid_group, so that users can ask the queue manager. It ignores the environment but for MAIL_CONFIG, and that, like -c, must name a directory that alternate_config_directories lists in the default main.cf, unless it is run by root.",
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
			"postsuper(1) changes what is in the queue. While the mail system runs each change is an order to the queue manager, and a message that is being delivered is left alone until that attempt has ended. While it is down the command opens the spool itself.",
			"A queue ID of - means that IDs are read from standard input, one a line. ALL means every message, in the queues that are named: hold, incoming, active and deferred, or where only -d does something, maildrop and corrupt. Options may be repeated.",
		},
		options: []option{
			configDir,
			{'d', "queue_id", queueID, "Delete the message."},
			{'e', "queue_id", queueID, "Have the message expire: it is returned to its sender when it would be tried next."},
			{'f', "queue_id", queueID, "The same as -e, and the message is released if it is on hold."},
			{'H', "queue_id", queueID, "Release a message that is on hold."},
			{'h', "queue_id", queueID, "Put the message on hold: no attempt is made to deliver it."},
			{'p', "", none, "Remove files in maildrop that a sendmail program did not live to finish, a week after. In the spool there is nothing to purge: recovery does it whenever the spool is opened."},
			{'r', "queue_id", queueID, "Requeue the message: it gets a new queue ID, its age begins anew, and the original addresses of the recipients that are not done are mapped again. A recipient who has got the message does not get it twice, and the sender gets no second report of members of an alias that have failed."},
			{'S', "", none, "Accepted, as -s is."},
			{'s', "", none, "Accepted: the structure is checked whenever the spool is opened."},
			ignored('v'),
		},
		operands: queueName,
		long:     selectionOptions(),
		sections: []section{
			selectionSection("Conditions narrow the selection by ID or ALL. A message is changed only if it fulfils them at that moment."),
			{title: "Examples", about: []string{"Delete all mail from one sender, after a look at what that would be:"},
				example: "postsuper -d ALL --sender=lists@example.com --dry-run\npostsuper -d ALL --sender=lists@example.com"},
			{title: "Security considerations", about: []string{"Only root, the mail owner and the owner of the queue directory may use it."}},
		},
		status: statuses(badUsage, unavailable, status{75, "Another process has the spool."}, notAllowed, badConfig),
		see:    []string{"postcat.1", "postqueue.1", "cleanup.8", "qmgr.8"},
	}
}

func postcatPage() command {
	return command{
		name:     "postcat",
		what:     "show a queued message",
		synopsis: []string{"[-bdefhorv] [-c config_dir] [-q] [-s offset] [queue_id | file ...]"},
		about: []string{
			"postcat(1) prints the envelope and the content of messages, by queue ID with -q. Otherwise its arguments are files: exported messages, files of the maildrop directory, and queue files of Postfix. Without arguments it reads standard input.",
			"Of -b, -e and -h those parts are shown that are given, and all when none is.",
		},
		options: []option{
			{'b', "", none, "Show the body."},
			configDir,
			{'d', "", none, "Print the types of records, as numbers that Postfix has for the same."},
			{'e', "", none, "Show the envelope."},
			{'f', "", none, "Print the name of the message before each line."},
			{'h', "", none, "Show the header."},
			{'o', "", none, "Print before each line where it begins in the content."},
			{'q', "", none, "The arguments are queue IDs."},
			{'r', "", none, "Accepted: records have no other order than the one that is shown."},
			{'s', "offset", none, "Begin at this place in the content."},
			{'v', "", none, "Also show the delivery attempts."},
		},
		operands: queueID,
		status: statuses(badUsage, status{65, "A file is no message, or damaged."}, status{66, "There is no such message or file."},
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
			"postconf(1) prints parameters of main.cf(5) as \"name = value\": all of them, or those that are named. It also edits main.cf, and shows and edits master.cf(5).",
			"An edit keeps comments and order, and the file's owner and mode; new settings go to the end. A program that reads the file meanwhile sees it as it was before the edit or as it is after it. Two edits at a time wait for each other.",
		},
		options: []option{
			{'A', "", none, "List the SASL mechanisms' implementations for the SMTP client."},
			{'a', "", none, "List the SASL mechanisms' implementations for the SMTP server."},
			{'b', "", none, "Print the texts of notices with parameters expanded: the built-in ones, or those of a file."},
			{'C', "class", "builtin|service|user|own|all", "Only parameters of a class: builtin, service (one set for each transport), user (a site's own), own (those that only Posthaste has) or all, the default."},
			configDir,
			{'d', "", none, "Print defaults, not actual values."},
			{'e', "", none, "Edit: the arguments are name=value. Such an argument alone is an edit, too."},
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
			{'o', "name=value", none, "As if main.cf said so, too. May be repeated."},
			{'P', "", none, "Show or edit the -o settings of master.cf: service/type/parameter."},
			{'p', "", none, "Print parameters of main.cf: the default."},
			{'q', "", none, "Do not warn."},
			{'T', "what", "compile-version|run-version|public-key-algorithms", "Say which TLS this is: compile-version, run-version or public-key-algorithms."},
			{'t', "", none, "Print the texts of notices without expanding parameters."},
			{'v', "", none, "Say which files are read, and what each parameter means."},
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
		{'f', "", none, "Keep the letter case of keys."},
		{'i', "", none, "Add the entries on standard input to the table, which goes on to have the others."},
		{'j', "", none, "With -q and -s: print each key and its value as a JSON object on a line of its own, as Postfix 3.11 does: {\"key\": \"value\"}."},
		{'N', "", none, "Write a zero byte at the end of keys and values, for other readers of cdb: tables."},
		{'n', "", none, "Write no zero byte: the default."},
		{'o', "", none, "Keep root's rights although the source belongs to somebody else."},
		{'p', "", none, "Do not take over the permissions of the source."},
		{'q', "key", none, "Look the key up and print what is found. With - the keys are read from standard input."},
		{'r', "", none, "Entries take the place of others with the same key, without a warning."},
		{'s', "", none, "List all entries."},
		{'U', "", none, "Keys and values must be UTF-8; others are passed over with a warning."},
		{'u', "", none, "Keys and values are any bytes, whatever smtputf8_enable says."},
		{'v', "", none, "Say what is done."},
		{'w', "", none, "Entries whose keys are there already are passed over without a warning."},
	}, more...)
	slices.SortFunc(list, func(a, b option) int {
		return cmp.Or(cmp.Compare(strings.ToLower(string(a.letter)), strings.ToLower(string(b.letter))), cmp.Compare(a.letter, b.letter))
	})
	return list
}

var tableSecurity = section{
	title: "Security considerations",
	about: []string{"Run by root with a source that belongs to another user, the command takes that user's rights, unless -o is given: he could put something else into the place of the file that is written."},
}

var tableStatus = []status{{0, "Success."}, {1, "Something failed, or a key was not found."}}

func postmapPage() command {
	return command{
		name: "postmap",
		what: "build, change and ask lookup tables",
		synopsis: []string{
			"[-fiNnoprUuvw] [-c config_dir] [type :]file ...",
			"[-bfFhjmv] [-c config_dir] -q key [type :]file ...",
			"[-fv] [-c config_dir] -d key [type :]file ...",
			"[-Fjv] [-c config_dir] -s [type :]file ...",
		},
		about: []string{
			"postmap(1) builds the table of each file, beside it, and puts it in the place of the one before at once. Services see the old table or the new one and take up the new one without a restart. A file is text: a key, white space, and the value; lines that begin with white space continue the one before, lines that begin with # are comments.",
			"Without a type the table is of default_database_type. The types hash, btree and lmdb are written as indexed files of our own, with a name that ends in .phdb; cdb is the public format. The files that Postfix has written for these types, whose names end in .db or .lmdb, are read as they are, where they are newer or there is no other.",
			"With -q tables of every type can be asked, also those that are not built: regexp, pcre, cidr, texthash, inline, static, unionmap, pipemap, randmap, environ, unix, socketmap and tcp.",
		},
		options: tableOptions(
			option{'b', "", none, "With -q -: the input is a message, and the lines of its body are looked up."},
			option{'F', "", none, "Values are names of files, whose content is put into the table as base64. With -q and -s values are decoded."},
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
		what: "build, change and ask alias tables",
		synopsis: []string{
			"[-fiNnoprUuvw] [-c config_dir] [type :]file ...",
			"[-fjv] [-c config_dir] -q key [type :]file ...",
			"[-fv] [-c config_dir] -d key [type :]file ...",
			"[-jv] [-c config_dir] -s [type :]file ...",
		},
		about: []string{
			"postalias(1) does for files of aliases what postmap(1) does for others. A line is a name, a colon, and a comma-separated list of what it stands for: addresses, commands (\"|command\"), files (/path), and files with more of the same (:include:/path). Lines that begin with white space continue the one before, lines that begin with # are comments.",
			"newaliases(1) builds all tables that alias_database names.",
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
		what:     "wake a service of the mail system up",
		synopsis: []string{"[-v] [-c config_dir] class service request"},
		about: []string{
			"postkick(1) sends request, which is letters, to the socket of the service in the directory class of the queue directory: public or private. It waits until the service has them, not until it has done anything.",
			"W is a wake-up by the clock, to pickup(8) and qmgr(8). qmgr(8) takes D, I, A and F as \"posthaste flush\" sends them.",
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
			"postlog(1) logs its arguments as one line, or without arguments each line of standard input, where the mail system logs. On a terminal the lines are also shown.",
			"With maillog_file set it is for root, the mail owner and members of setgid_group, whom alone the postlog service takes lines from. It is not set-gid, as it is the program that all services are.",
		},
		options: []option{
			configDir,
			{'i', "", none, "Accepted: the process ID is always logged."},
			{'p', "priority", "info|warn|error|fatal|panic", "How grave it is: info (the default), warn, error, fatal or panic."},
			{'t', "tag", none, "What the lines begin with, in place of syslog_name followed by /postlog."},
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
			"postdrop(1) is how sendmail(1) leaves mail for pickup(8). It reads a message in the maildrop's own form from standard input, makes a file of it, and returns when that is on stable storage. People do not call it.",
		},
		options: []option{configDir, ignored('r'), ignored('v')},
		status: []status{
			{0, "The message is on stable storage."}, badUsage, {65, "The input is no message."}, {69, "The message is larger than message_size_limit."},
			{75, "The message could not be stored; try again later. Or the user may not submit mail (authorized_submit_users), or not with that sender (local_login_sender_maps): why is on standard output in the latter case."}, badConfig,
		},
		see: []string{"sendmail.1", "pickup.8"},
		sections: []section{{
			title: "Security considerations",
			about: []string{
				"This program has one privilege that its caller lacks: as setgid_group it may make files in the maildrop directory. Any user may run it. It ignores the environment except MAIL_CONFIG, and that, like -c, must name a directory that alternate_config_directories lists in the default main.cf. Who submitted a message is what the kernel says.",
				"authorized_submit_users says who may submit mail at all, and local_login_sender_maps which envelope senders each login may use. sendmail(1) leaves it to this program to ask, also for root.",
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
			"An instance is a mail system with a configuration directory, a queue and data of its own; instances share the programs. The primary instance is that of the configuration directory; its multi_instance_directories lists those of the others. An instance's multi_instance_name is also the first word of its log lines.",
			"With -l instances are listed: name, group, whether they are enabled, and configuration directory. With -x a program is run for each, with MAIL_CONFIG, config_directory, command_directory, daemon_directory, queue_directory, data_directory, multi_instance_name, multi_instance_group and multi_instance_enable in its environment.",
			"With -p a command of posthaste(1) is carried out for each. One of postmulti_start_commands only checks instances that multi_instance_enable does not enable. One of postmulti_stop_commands goes through the list backwards, and passes over them; so does one of postmulti_control_commands.",
			"When multi_instance_directories is not empty, posthaste(1) without a configuration directory hands its commands to multi_instance_wrapper, which -e init sets to this command. Under a service manager, which runs posthaste start-fg, each instance is a service of its own.",
		},
		options: []option{
			configDir,
			{'a', "", none, "All instances, which is the default. With create and import: put the new one at the front of the list."},
			{'e', "action", "init|create|import|destroy|deport|enable|disable|assign", "Change the list, or an instance; see ACTIONS below."},
			{'G', "group", none, "The group to assign; - for none."},
			{'g', "group", none, "Members of this group only. With create and import: put the new one before the first of them."},
			{'I', "name", none, "The name to assign, which begins with posthaste- or postfix-; - for none."},
			{'i', "name", none, "The instance of this name or configuration directory only; - is the primary one. With create and import: put the new one before it."},
			{'j', "", none, "With -l: print each instance as a JSON object on a line of its own, as Postfix 3.11 does, with the names name, group, enabled and config_directory. What has no name or group has \"-\"; enabled is \"y\" or \"n\"."},
			{'l', "", none, "List instances."},
			{'p', "", none, "Carry out a command of posthaste(1)."},
			{'R', "", none, "In reverse order."},
			{'v', "", none, "Set MAIL_VERBOSE for what is run."},
			{'x', "", none, "Run a program."},
		},
		sections: []section{
			{
				title: "Actions",
				items: []item{
					{"Cm init", "Set multi_instance_wrapper and multi_instance_enable of the primary instance."},
					{"Cm create Op Ar parameter Ns = Ns Ar value ...", "Make an instance and append it to the list. Its config_directory, queue_directory and data_directory are what the arguments say, or those of the primary instance with the last part replaced by the name. It is not enabled, listens nowhere and takes no mail of users until its settings are made. One that exists already is taken in as it is."},
					{"Cm import Op Cm config_directory Ns = Ns Ar path", "Append an instance that exists to the list."},
					{"Cm enable", "Set multi_instance_enable."},
					{"Cm disable", "Unset it."},
					{"Cm assign", "Give an instance the name of -I, the group of -G, or both."},
					{"Cm deport", "Take an instance off the list."},
					{"Cm destroy", "Take an instance that is disabled and stopped, and has no mail, off the list, and remove what the mail system made for it. Directories with other files in them stay."},
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
		status: []status{{0, "Success."}, {1, "Something failed; the other instances were still tried. The reason is on standard error."}},
		see:    []string{"postconf.1", "posthaste.1", "main.cf.5"},
	}
}

func postlockPage() command {
	return command{
		name:     "postlock",
		what:     "lock a mailbox and execute a command",
		synopsis: []string{"[-v] [-c config_dir] [-l lock_style] file command ..."},
		about: []string{
			"postlock(1) locks a mailbox as local(8) does when it delivers, executes the command, without a shell, and gives the lock up when that has ended. A file that is not there is made.",
			"deliver_lock_attempts and deliver_lock_delay say how long it waits for a lock that somebody else has, stale_lock_time how old a .lock file may become.",
		},
		options: []option{
			configDir,
			{'l', "lock_style", none, "How to lock: a comma-separated list of dotlock, fcntl and flock, in place of mailbox_delivery_lock."},
			{'v', "", none, "Say when the lock is had."},
		},
		operands: file,
		status: []status{{0, "Success. The status is otherwise that of the command."}, {1, "The command cannot be executed, or was killed."},
			{75, "The mailbox cannot be locked, or the command line or main.cf is wrong."}},
		see: []string{"local.8"},
	}
}

func posttlsfingerPage() command {
	return command{
		name:     "posttls-finger",
		what:     "say what TLS an SMTP or LMTP server has",
		synopsis: []string{"[options] [inet :]domain[:port] [match ...]", "-S [options] unix:pathname [match ...]"},
		about: []string{
			"posttls-finger(1) connects to a destination as smtp(8) would, switches to TLS, and says how the session is encrypted, what certificate the server has, and whether it is what the security level demands. It asks no tables, and no service of the mail system.",
			"The destination is a domain, whose MX records count, or a host in brackets. The port is 25, or 24 with -S, unless it is given.",
			"What is said is what Postfix's command of this name says, but that a server without STARTTLS is named. Traces of handshakes and packets, which are OpenSSL's (-L ssl-debug and the like), do not exist.",
			"The arguments after the destination are the names for which the certificate may be, at levels verify and secure, or its fingerprints, at level fingerprint.",
		},
		options: []option{
			{'a', "family", "any|ipv4|ipv6", "The addresses to use."},
			{'A', "tafile", file, "Trust anchors, in place of -F and -P. May be repeated."},
			{'C', "", none, "Print the certificates that the server sends, in PEM form."},
			{'c', "", none, "Do not show the SMTP dialogue."},
			{'d', "mdalg", "md5|sha1|sha256|sha384|sha512", "The digest of fingerprints, in place of smtp_tls_fingerprint_digest."},
			{'F', "CAfile", file, "The CAs to trust. None is without this option, -P and -A."},
			{'f', "", none, "Ask for TLSA records also where the addresses of the host are not vouched for by DNSSEC."},
			{'g', "grade", "export|low|medium|high|null", "The least grade of ciphers; medium by default."},
			{'H', "chainfiles", file, "Files of keys and certificates to show to the server."},
			{'h', "host_lookup", none, "How to look hosts up: dns, the default, native or both."},
			{'K', "keyfile", file, "The key of our certificate; by default the file of -k."},
			{'k', "certfile", file, "Our certificate; by default the file of -K."},
			{'L', "logopts", none, "What to say of TLS: none (0), routine (1), peercert, certmatch, untrusted, cache, verbose, or debug (2), in a list; routine,certmatch by default."},
			{'l', "level", "none|may|encrypt|fingerprint|dane|dane-only|verify|secure", "The security level; dane by default. Without TLSA records dane and dane-only are as secure."},
			{'M', "policy", "dane|encrypt|may", "What to make of TLSA records of an MX host that an insecure MX record names; dane by default."},
			{'m', "count", none, "How often to connect again with -r; 5 by default."},
			{'o', "name=value", none, "As if main.cf said so. May be repeated."},
			{'P', "CApath", directory, "A directory with CAs to trust."},
			{'p', "protocols", none, "The TLS protocols; >=TLSv1 by default."},
			{'r', "delay", none, "Connect again after so many seconds, and say whether the server takes the TLS session up again."},
			{'S', "", none, "Speak LMTP."},
			{'s', "servername", none, "The name to ask for (SNI). With TLSA records it is theirs."},
			{'T', "timeout", none, "The time limit of a command in seconds; 30 by default."},
			{'t', "timeout", none, "The time limit of a connection and of the greeting in seconds; 30 by default."},
			{'v', "", none, "Name the MX hosts and the addresses."},
			{'w', "", none, "TLS from the first octet, as on port 465."},
			{'X', "", none, "Refused: there is no tlsproxy."},
		},
		operands: site,
		status:   []status{{0, "The server has been tried, whatever came of it."}, {1, "The command line is wrong, or a file that it names cannot be used."}},
		see:      []string{"smtp.8", "main.cf.5"},
		sections: []section{{
			title:   "Examples",
			about:   []string{"Whether a domain's TLSA records are right:"},
			example: "posttls-finger -c example.com",
		}},
	}
}
