// Package smtpd is the SMTP server, for port 25 and for submission. It judges
// each command and streams the messages that it accepts to cleanup; a 250
// reply to a message is given only when cleanup has it on stable storage.
//
// A session has three layers. The wire layer owns the socket: lines and
// their limits, time limits, the end of data, the batching of replies. The
// transaction engine (github.com/emersion/go-smtp) decides which command is
// in order; it is driven through a port, one command at a time, see
// engine.go. Policy is package access: it gets what is known of the session
// and the envelope, and permits or refuses. Between these layers stands the session,
// which knows the client, reads arguments with package smtpwire, keeps the
// transaction, and words every reply.
//
// Mail filters (smtpd_milters, by client smtpd_milter_maps) are told of each
// command and may refuse it. The sessions with filters live in cleanup, see package
// milter; this end is in milter.go. When a filter refuses the session, the client is
// told at MAIL, AUTH, STARTTLS, VRFY and ETRN, as with Sendmail.
//
// With smtpd_proxy_filter, content goes to a filter before the queue instead of
// cleanup, and the filter's replies to each recipient and to the message are passed
// on to the client, see filter.go.
//
// # Security
//
// Clients are strangers. What they send is bounded per line, per command and
// per message. A session holds at most one command line, 16 KiB of replies,
// 16 KiB of transcript and, while content arrives, one 64 KiB buffer and what
// package submit keeps. Before authentication, nothing else grows with what a
// client sends except the list of recipients (smtpd_recipient_limit). An
// idle session costs about 25 KB with its stack and buffers; a session whose
// client sends as much as a stranger may costs less than 256 KiB, and what the
// addresses of its recipients take. Content ends at CRLF "." CRLF and nowhere
// else, whatever other systems take for an end: see content.go. What a client sends
// before STARTTLS is discarded. Replies and log lines never contain control
// characters that a client sent.
//
// # Standards
//
//	RFC 5321 (SMTP), RFC 6409 (submission), RFC 8314 (TLS for submission)
//	RFC 2920 (PIPELINING), RFC 1870 (SIZE), RFC 6152 (8BITMIME), RFC 3030 (CHUNKING)
//	RFC 3461 (DSN), RFC 6531 (SMTPUTF8), RFC 2034 (ENHANCEDSTATUSCODES)
//	RFC 3207 (STARTTLS), RFC 4954 (AUTH), RFC 1985 (ETRN), RFC 8689 (REQUIRETLS)
//	RFC 9422 (LIMITS)
//
// BINARYMIME is not offered: content is stored as lines. The parameter
// BODY=BINARYMIME is refused with 555.
//
// Where this server is stricter than Postfix 3.7: "." ends a message only
// between two CRLFs, even with smtpd_forbid_bare_newline = no, unless the
// client ends all its lines in LF alone and is exempt. Command lines that are too
// long are refused, not cut. Comments and white space within addresses are
// refused.
//
// # Parameters
//
// Those named smtpd_ and postscreen_, which "postconf" lists with a
// sentence for each, and message_size_limit, line_length_limit, mynetworks,
// relay_domains, local_recipient_maps, content_filter,
// receive_override_options, broken_sasl_auth_clients, soft_bounce,
// anvil_rate_time_unit, notify_classes and error_notice_recipient (see package
// notice), requiretls_enable, the _reject_code parameters, address_verify_ ones
// that are about probes, and tls_server_sni_maps. With smtpd_sasl_type = table,
// smtpd_sasl_path is a list of type:table with users and what "posthaste
// passwd" prints for them; a file sasl_decoy in data_directory then gives unknown users
// their salts, so that they look like known ones. With dovecot it is the socket of
// Dovecot's authentication server. Those named account_: the tables of smtpd_sasl_type =
// accounts, and limits on what accounts send.
//
// # Diagnostics
//
// Log lines are those of Postfix: connect from, client=, reject:, lost
// connection after, timeout after, too many errors after, improper command
// pipelining after, disconnect from with the counts of commands.
package smtpd

// The files of the package, in groups: what a function calls is in its own
// group or in one below. A test of package arch reads this list, and holds functions
// and the session's methods to it.
//
//	connection: spec server engine greet dispatch
//	commands: commands auth tls proxies peer screen
//	transaction: transaction mail data bdat received foresee cleanuptrace
//	policy: limits nodes allowance milter filter filterbuffer
//	session: session offers reply dialogue notify
//	wire: wire content verbs settings names keyring ticket
//
// The connection accepts clients, greets them, and reads commands. It hands each
// to a function of the commands or of the transaction, which asks for what policy
// thinks of it and returns the reply: none of them reads a command or ends the session
// behind the back of the connection. What all of them need of the session (its state,
// what the client is offered, how a reply is sent and recorded) is below them, and
// what knows no session is at the bottom.
