// Package milter talks to mail filters: programs that observe SMTP sessions and may change or
// refuse messages, by the protocol that Sendmail introduced and Postfix supports. OpenDKIM,
// Rspamd, ClamAV and others are such filters.
//
// A [Session] represents one SMTP session and all filters that observe it. It is told of the
// events as they happen (Connect, Helo, Mail, Rcpt, Data and, with the whole content,
// Message), and returns a [mailfilter.Verdict] for each. Filters are asked in the order in
// which they are configured, and each sees a message as the filters before it have left it. A
// filter's changes are applied when it has sent all of them, and never in part.
//
// # Where sessions live
//
// Sessions live in the cleanup service, even those for mail that arrives by SMTP. Filters see
// content as it will be queued: with the header completed and rewritten, and after header and
// body checks. Only then is a signature that a filter makes valid for what is delivered. Since
// the content is in cleanup, it is neither sent back nor copied for filters. The SMTP server
// reports the events before the content over ipc, so that it can answer each command as the
// filters want. That is one small request for each, while the filters take milliseconds. The
// alternative, to begin in smtpd and pass connections and state on for the content, would save
// those requests but cost a second copy of this package's state for every message. When
// cleanup is reloaded or dies, the SMTP server has the next one tell the filters again what
// they had been told of the session and of the open transaction, before anything else. If one
// then refuses what it had let pass, the message is not taken.
//
// # Security
//
// The administrator chooses the filters, and they are believed: they may redirect and change
// any mail. They are not trusted to work properly. A reply may take milter_command_timeout, or
// milter_content_timeout for the header, the body and the end, and ten minutes at most in all,
// however often a filter reports progress. Replies are bounded in size and changes in number.
// Anything that is malformed or was not negotiated ends the use of that filter for the SMTP
// session, with milter_default_action as its verdict. Header fields that filters add cannot
// smuggle others in: line ends in them always continue the field.
//
// # Standards
//
// The protocol is defined by Sendmail's libmilter and its documentation. Versions 2, 3, 4 and
// 6 are supported. Filters do not see the first Received: field, which is our own; positions
// at which they insert count it.
//
// # Parameters
//
// milter_protocol, milter_connect_timeout, milter_command_timeout, milter_content_timeout,
// milter_default_action, milter_connect_macros, milter_helo_macros, milter_mail_macros,
// milter_rcpt_macros, milter_data_macros, milter_end_of_header_macros,
// milter_end_of_data_macros, milter_unknown_command_macros. In a list of filters {
// inet:host:port, default_action=accept, connect_timeout=10s } gives a filter settings of its
// own: those and command_timeout, content_timeout, protocol. One setting is Posthaste's own:
// connection_reuse=yes keeps the connection to the filter open between SMTP sessions, for
// filters that support it (SMFIC_QUIT_NC).
//
// # Diagnostics
//
// warning: connect to Milter service inet:host:port: ...; warning: milter
// inet:host:port: ... These are handed to the function that Open was given.
package milter
