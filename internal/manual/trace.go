package manual

// traceSection describes posthaste trace.
func traceSection() section {
	return section{
		title: "Tracing",
		about: []string{
			"A pattern is a queue ID (of this system, or one that a next hop has told), an address, a @domain, a Message-ID, the name, address or network of a client, the name or address of a next hop, or the name as which a client logged in. <> is the null sender. Several patterns and options must all apply: to a message, or to others that are connected with it. Case does not matter, except in queue IDs. Each message is printed as a block: whom it is from, each recipient with each attempt and the remote's reply, everything else that the log has of it, and what became of it: messages that an alias, a list or a .forward file sent on, reports, what a content filter brought back, and what was queued again. A line that belongs to no message is a block of its own.",
			"The log is maillog_file and what it was called after logrotate, compressed by gzip, bzip2, xz, zstd or lz4 or not. Beside it there is an index, in track_index_directory. A search completes the index first, if the user may write there; --build does the same and nothing else. What the index does not have is read. The index may be removed at any time. Nothing else in the mail system uses it.",
		},
		items: []item{
			{"Fl -from Ar address, Fl -to Ar address", "The sender; a recipient, before or after aliases. @domain stands for all addresses of the domain."},
			{"Fl -client Ar host", "The client's name, address or network (address/length), or what it called itself in HELO; also the client before a content filter."},
			{"Fl -relay Ar host", "The name or address of the next hop."},
			{"Fl -id Ar ID, Fl -message-id Ar ID, Fl -user Ar name", "The queue ID; the Message-ID, with its brackets or without; the name as which the client logged in."},
			{"Fl -reply Ar text", "A part of a reply, of a reason, or of a line that has no other form. It is not in the index: give another condition or a time with it, or all of the log is read."},
			{"Fl s Ar time, Fl -since Ar time", "Only lines from this time on are compared: 2026-11-24T08:00, 08:00 for today, or 2h for so long ago. A message is shown as a whole."},
			{"Fl u Ar time, Fl -until Ar time", "Only lines before this time are compared."},
			{"Fl n Ar number, Fl -limit Ar number", "End after so many blocks."},
			{"Fl j, Fl -json", "Print each block as one JSON object on a line."},
			{"Fl l, Fl -lines", "Print each step with its file, line number and line of the log."},
			{"Fl f, Fl -follow", "Print the steps as they are logged from now on, until the command is interrupted."},
			{"Fl -log Ar file", "Search this file; may be given several times, in any order. - is standard input, and is read without an index."},
			{"Fl -no-index", "Do not use the index: read the log from its beginning to its end, and print what is complete on the way."},
			{"Fl -build", "Make or complete the index, and print its size."},
			{"Exit status", "0 if something was found; 64 if the command line is wrong; 66 if nothing was found or a log cannot be read; 69 if the index cannot be made; 74 if output cannot be written; 75 if another process makes the index; 78 if main.cf is wrong."},
		},
		example: `posthaste trace ann@example.com @example.org
posthaste trace --since 2h --client 192.0.2.0/24
posthaste trace --reply 'mailbox full' --to @example.net -s 1d
journalctl -o short-iso -u posthaste | posthaste trace --log - 4jWzqL72J2zDQqwN7`,
	}
}
