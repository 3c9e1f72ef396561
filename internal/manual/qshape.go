package manual

func qshapePage() command {
	return command{
		name: "qshape",
		what: "show how queued mail is spread over domains and age",
		synopsis: []string{"[-lps] [-m min_subdomains] [-b bucket_count] [-t bucket_time] [-w terminal_width] [-N batch_msg_count] " +
			"[-n batch_top_domains] [-c config_dir] [queue ...]"},
		about: []string{
			"qshape(1) prints a row for each domain that mail waits for: how many recipients, and how many of them are how old, in minutes. The age limit of a column is twice that of the one before it; the last has none.",
			"The queues are incoming and active unless others are named: deferred, hold, corrupt and maildrop.",
			"Behind a row stands suspended when a suspension (see posthaste(1)) is for all its mail, as far as its domain tells: of the domain, of a next hop of that name, with -s of the sender's domain. Where nothing is suspended the table is Postfix's.",
		},
		options: []option{
			{'b', "bucket_count", none, "The number of columns; 10 by default."},
			configDir,
			{'l', "", none, "Age limits grow by the time of -t, not by a factor of two."},
			{'h', "", none, "Print how the command is used."},
			{'m', "min_subdomains", none, "With -p: the number of different names below a parent domain that give it a row; 5 by default."},
			{'N', "batch_msg_count", none, "Accepted: results come at once, so that there are no intermediate ones to print."},
			{'n', "batch_top_domains", none, "How many rows are printed on a terminal; 0 means all, and the default is 20."},
			{'p', "", none, "Also count for parent domains, whose names are shown with a dot before them."},
			{'s', "", none, "Count messages by the domains of their senders, not recipients."},
			{'t', "bucket_time", none, "The age limit of the first column in minutes; 5 by default."},
			{'w', "terminal_width", none, "The width of lines; 80 by default."},
		},
		operands: queueName,
		status:   statuses(badUsage, unavailable, outputError, notAllowed, badConfig),
		see:      []string{"postqueue.1", "qmgr.8"},
	}
}
