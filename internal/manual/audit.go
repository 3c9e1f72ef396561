package manual

// auditSection describes posthaste audit.
func auditSection() section {
	return section{
		title: "The audit",
		about: []string{
			"Of a span of time it says how many messages and recipients were in the queue at its beginning, were accepted, and what became of them: delivered; forwarded, which is that a new message carries them on; discarded, by a rule, a filter or discard(8); bounced; expired; returned, which is that an operator had them expire; deleted; or still queued. If there are such, it also names those that were queued again (requeued), set aside as damaged (corrupt), or only to find out whether an address is good (probed). Notices are messages of their own.",
			"The files are logs, in any order, compressed by gzip, bzip2, xz, zstd or lz4 or not (for the last three their programs must be installed); - is standard input. Without files they are maillog_file and what it was called after logrotate. They must reach up to the time when the queue is listed, and should reach back to before the span. The queue manager is asked for the queue first; while the mail system is down the spool is read.",
		},
		items: []item{
			{"Fl j", "Print the report as one JSON object."},
			{"Fl q Ar file", "The queue is that of a listing by postqueue -j, as old as the file. With none the queue is not looked at, and what the log does not end is believed to be in it."},
			{"Fl s Ar time", "Begin with this time: 2026-11-24T08:00, 08:00 for today, or 2h for so long ago. By default the span begins with the log."},
			{"Fl u Ar time", "End before this time. By default the span ends with the log, or when the queue is listed."},
			{"Cm lost", "A message was accepted, nothing is known of some recipients, and it is not in the queue."},
			{"Cm vanished", "A client was told that more messages are queued than the log and the queue know of."},
			{"Cm outcome", "A message has left the queue without an outcome of all its recipients, or it is in the queue without some of those."},
			{"Cm stays", "A message has left the queue, by the log, and is in it."},
			{"Cm silent", "A message is in the queue, and the log does not mention it."},
			{"Cm twice", "A recipient has got a message twice, and the log does not say that it is in doubt."},
			{"Exit status", "0 if it adds up; 1 if it does not; 64 if the command line is wrong; 66 if a log cannot be read; 69 if the queue cannot; 74 if the report cannot be written; 77 if the user may not; 78 if main.cf is wrong."},
		},
		example: `posthaste audit -s 24h
posthaste audit -s 2026-11-23 -u 2026-11-24 /var/log/maillog*
journalctl -o short-iso -u posthaste | posthaste audit -j -`,
	}
}
