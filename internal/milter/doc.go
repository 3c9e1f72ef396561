// Package milter speaks to mail filters: programs that watch SMTP sessions and
// may change or refuse messages, by the protocol that Sendmail began and
// Postfix takes part in. OpenDKIM, Rspamd, ClamAV and others are such filters.
//
// A [Session] stands for one SMTP session and all filters that watch it. It is
// told the events as they happen, Connect, Helo, Mail, Rcpt, Data and, with all of
// the content, Message; each gives a [mailfilter.Verdict]. Filters are asked in the order
// in which they are configured, each of them sees a message as the ones before
// it have left it. What a filter wants changed is applied when it has said
// all that it has to say, never in part.
//
// # Where sessions live
//
// Sessions live in the cleanup service, also those for mail that comes by SMTP.
// Filters see content as it will be queued: with the header completed and
// rewritten, after header and body checks; only so is a signature that a
// filter makes good for what is delivered. The content is in cleanup, and is
// so neither sent back nor copied for filters. The SMTP server tells the events
// before the content over ipc, one small request each while the filters take
// milliseconds, and so can answer each command as the filters want. The other
// way, to begin in smtpd and pass connections and state on for the content,
// saves those requests and costs a second copy of this package's state in
// every message. When cleanup is reloaded or dies, the SMTP server has the next
// one tell the filters again what they had been told of the session and of the open
// transaction, before anything else. If one then refuses what it had let
// pass, the message is not taken.
//
// # Security
//
// Filters are chosen by the administrator, and believed: they may redirect and
// change any mail. They are not trusted to work. Each reply is waited for
// during milter_command_timeout, or milter_content_timeout for header, body and the end,
// and ten minutes at most in all however often a filter reports progress; replies
// are bounded in size, changes in number; whatever is malformed or was not
// negotiated ends the use of that filter for the SMTP session, with
// milter_default_action as its verdict. Header fields that filters add cannot
// smuggle others in: line ends in them always continue the field.
//
// # Standards
//
// The protocol is defined by Sendmail's libmilter and its documentation.
// Versions 2, 3, 4 and 6 are spoken. Filters do not see the first Received:
// field, which is our own; positions at which they insert count it.
//
// # Parameters
//
// milter_protocol, milter_connect_timeout, milter_command_timeout,
// milter_content_timeout, milter_default_action, milter_connect_macros,
// milter_helo_macros, milter_mail_macros, milter_rcpt_macros,
// milter_data_macros, milter_end_of_header_macros,
// milter_end_of_data_macros, milter_unknown_command_macros. In a list of filters
// { inet:host:port, default_action=accept, connect_timeout=10s } gives a
// filter settings of its own: those and command_timeout, content_timeout,
// protocol. One is ours: connection_reuse=yes keeps the connection to the filter
// open between SMTP sessions, for filters that know how (SMFIC_QUIT_NC).
//
// # Diagnostics
//
// warning: connect to Milter service inet:host:port: ...; warning: milter
// inet:host:port: ... These are handed to the function that Open was given.
package milter
