package manual

func qshapePage() command {
	return command{
		name: "qshape",
		what: "show the queue by domain and age",
		synopsis: []string{"[-lps] [-m min_subdomains] [-b bucket_count] [-t bucket_time] [-w terminal_width] [-N batch_msg_count] " +
			"[-n batch_top_domains] [-c config_dir] [--at time] [--by tenant|campaign|source] [queue ...]"},
		about: []string{
			"qshape(1) prints a row for each destination domain: the number of recipients, in total and by age in minutes. The age limit of a column is twice that of the previous one; the last column has none.",
			"The queues are incoming and active unless others are named: deferred, hold, corrupt and maildrop.",
			"A row ends with the word suspended if a suspension (see posthaste(1)) covers its domain, a next hop of that name or, with -s, the sender's domain. Without -s, it ends with the word limited if a next hop of that name has a limit for now, and with the word diverted if its mail is diverted. Without suspensions, limits and diversions the table is the same as Postfix's.",
		},
		long: []longOption{{"at", "time", none, "Print the table of an earlier time: 2026-11-24T08:00, or 08:00 for the most recent 8 o'clock. The last sample before that time is printed."},
			{"by", "what", none, "Print a row for each tenant (tenant), for each campaign (campaign, as TENANT/CAMPAIGN), or for each egress source that messages wait for (source). Messages are counted, those that have one, in incoming, active, deferred and hold; -s and -p cannot be used. Sources are known while the mail system runs."}},
		options: []option{
			{'b', "bucket_count", none, "The number of columns; 10 by default."},
			configDir,
			{'l', "", none, "Age limits grow linearly, by the time of -t, instead of by a factor of two."},
			{'h', "", none, "Print how the command is used."},
			{'m', "min_subdomains", none, "With -p: the minimal number of subdomains for which a parent domain gets a row; 5 by default."},
			{'N', "batch_msg_count", none, "Accepted, and ignored: there are no intermediate results to print."},
			{'n', "batch_top_domains", none, "The number of rows that are printed on a terminal; 20 by default, and 0 means all."},
			{'p', "", none, "Also count for parent domains, whose names are shown with a dot before them."},
			{'s', "", none, "Count messages by the domains of their senders, not recipients."},
			{'t', "bucket_time", none, "The age limit of the first column in minutes; 5 by default."},
			{'w', "terminal_width", none, "The width of lines; 80 by default."},
		},
		sections: []section{{title: "Earlier times", about: []string{
			"While the console service runs, it stores a sample of the queue in queue_history_directory every minute. With --at, qshape prints a sample, as it would have printed the queue at that time. For each queue, a sample has the 150 domains with the most mail; all others are added up in the last row, (others). Mail whose recipients the queue manager had not yet read, for example just after a start, is counted as (not read yet), one per message. Suspensions, limits and diversions are not marked. The queues are incoming, active, deferred and hold, and the columns are those of qshape without -l and -t.",
		}}},
		operands: queueName,
		status:   statuses(badUsage, status{66, "There is no sample of the time of --at."}, unavailable, outputError, notAllowed, badConfig),
		see:      []string{"postqueue.1", "qmgr.8"},
	}
}
