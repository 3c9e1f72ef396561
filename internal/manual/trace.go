package manual

// traceSection describes posthaste trace.
func traceSection() section {
	return section{
		title: "Tracing",
		about: []string{
			"A pattern is a queue ID (of this system, or one in a next hop's reply), an address, a @domain, a Message-ID, the name, address or network of a client, the name or address of a next hop, or a client's login name. <> is the null sender. If there are several patterns and options, all must match a message or the messages that are connected with it. Case does not matter, except in queue IDs. Each message is printed as a block: its sender, each recipient with each attempt and the remote reply, everything else that the log has about it, and the messages that it became: those that an alias, a list or a .forward file forwarded, reports, what a content filter returned, and requeued mail. A line that belongs to no message is a block of its own.",
			"The log is maillog_file and its rotated files, which may be compressed with gzip, bzip2, xz, zstd or lz4. There is an index of it in track_index_directory. A search updates the index first, if the user may write there; --build only updates the index. Parts of the log that the index does not cover are read. Lines without a time zone are in that of TZ= in import_environment, or else in that of the user. The index may be removed at any time. Nothing else in the mail system uses it.",
		},
		items: []item{
			{"Fl -from Ar address, Fl -to Ar address", "The sender; a recipient, before or after aliases. @domain stands for all addresses of the domain."},
			{"Fl -client Ar host", "The client's name, address or network (address/length), or its HELO name; also the original client of mail from a content filter."},
			{"Fl -relay Ar host", "The name or address of the next hop."},
			{"Fl -id Ar ID, Fl -message-id Ar ID, Fl -user Ar name", "The queue ID; the Message-ID, with or without brackets; the client's login name."},
			{"Fl -reply Ar text", "Part of a reply, of a reason, or of a line without a recipient, a client or a sender."},
			{"Fl -text Ar text", "Part of any line of a message or a session, as it stands behind the queue ID: part of an address, a host name, a TLS cipher. A text of one or two characters is not in the index: the whole log is read, or the time that is given."},
			{"Fl s Ar time, Fl -since Ar time", "Only lines from this time on are compared: 2026-11-24T08:00, 08:00 for today, or 2h for two hours ago. A message is always shown as a whole."},
			{"Fl u Ar time, Fl -until Ar time", "Only lines before this time are compared."},
			{"Fl n Ar number, Fl -limit Ar number", "Stop after this many blocks."},
			{"Fl j, Fl -json", "Print each block as one JSON object on a line."},
			{"Fl l, Fl -lines", "Print each step with its file, line number and line of the log."},
			{"Fl f, Fl -follow", "Print the steps as they are logged from now on, until the command is interrupted."},
			{"Fl -log Ar file", "Search this file. The option may be repeated, in any order. - is standard input, which is read without an index."},
			{"Fl -no-index", "Do not use the index: read the log from beginning to end, and print each message when it is complete."},
			{"Fl -build", "Make or complete the index, and print its size."},
			{"Exit status", "0 if something was found; 64 if the command line is wrong; 66 if nothing was found or a log cannot be read; 69 if the index cannot be made; 74 if output cannot be written; 75 if another process is building the index; 78 if main.cf is wrong."},
		},
		example: `posthaste trace ann@example.com @example.org
posthaste trace --since 2h --client 192.0.2.0/24
posthaste trace --reply 'mailbox full' --to @example.net -s 1d
journalctl -o short-iso -u posthaste | posthaste trace --log - 4jWzqL72J2zDQqwN7`,
	}
}
