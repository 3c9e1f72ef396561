package manual

// auditSection describes posthaste audit.
func auditSection() section {
	return section{
		title: "The audit",
		about: []string{
			"For a span of time, the audit reports how many messages and recipients were in the queue at its beginning, how many were accepted, and their outcomes: delivered; forwarded, in a new message; discarded, by a rule, a filter or discard(8); bounced; expired; returned, because an operator made them expire; deleted; or still queued. It also reports mail that was requeued, set aside as damaged (corrupt), or sent only to verify an address (probed). Notices are separate messages.",
			"The files are logs, in any order, which may be compressed with gzip, bzip2, xz, zstd or lz4 (for the last three, their programs must be installed); - is standard input. The default is maillog_file and its rotated files. The logs must include the time when the queue is listed, and should begin before the span. The queue comes from the queue manager, or from the spool while the mail system is down.",
			"Nodes that share a queue have a log each, and one may deliver what another accepted. Give the logs of all nodes, to compare them together: they are read side by side, and files of one host that do not overlap in time are one log. With the log of one node, mail that it handed over, or that is queued on another node, is reported as handed over, and mail that other nodes accepted as taken over. Mail that was taken from a node that was down is then known only while it is queued.",
		},
		items: []item{
			{"Fl j", "Print the report as one JSON object."},
			{"Fl q Ar file", "Read the queue from this file, a listing by postqueue -j as of the file's modification time. With none, the queue is not examined, and every message without a logged end is assumed to be queued."},
			{"Fl s Ar time", "The beginning of the span: 2026-11-24T08:00, 08:00 for today, or 2h for two hours ago. By default it is the beginning of the log."},
			{"Fl u Ar time", "The end of the span. By default it is the end of the log, or the time when the queue is listed."},
			{"Cm lost", "A message was accepted, some of its recipients have no outcome, and it is not in the queue."},
			{"Cm vanished", "A client was told that more messages were queued than the log and the queue show."},
			{"Cm outcome", "A message has left the queue without an outcome for every recipient, or it is in the queue without a recipient that has no outcome."},
			{"Cm stays", "A message has left the queue according to the log, but is in the queue."},
			{"Cm silent", "A message is in the queue, and the log does not mention it."},
			{"Cm twice", "A recipient has received a message twice, and the log has no warning that it might."},
			{"Exit status", "0 if there are no findings; 1 if there are; 64 if the command line is wrong; 66 if a log cannot be read; 69 if the queue cannot be read; 74 if the report cannot be written; 77 if permission is denied; 78 if main.cf is wrong."},
		},
		example: `posthaste audit -s 24h
posthaste audit -s 2026-11-23 -u 2026-11-24 /var/log/maillog*
journalctl -o short-iso -u posthaste | posthaste audit -j -`,
	}
}
