// Package smtp is the SMTP and LMTP delivery client: the services smtp, relay
// and lmtp of master.cf. It delivers a message to the recipients of one
// delivery request. It tries the servers of the destination in order, and
// reports for each recipient whether the message was delivered, should be tried
// again later, or cannot be delivered.
//
// A destination ("nexthop") is a list of domains, hosts in square brackets
// that are not looked up as mail domains, and ports; for LMTP also
// unix:/path. The servers of a domain are its MX hosts by preference, those of
// equal preference in random order per address.
//
// With PIPELINING, MAIL, all RCPTs and DATA go out in one flight. A session
// that is likely to be needed again soon stays open for a while. It is kept under
// the destination's name and the server's address.
//
// # What counts against a destination
//
// A refusal of MAIL, RCPT, DATA or the message does not count: the destination
// works. It counts when no server can be reached, or none completes a session,
// provided that the failure is temporary, that no other server is left to try, and
// that no session of the request succeeded.
//
// # TLS and passwords
//
// The TLS that a server must have is decided by smtp_tls_policy_maps or
// smtp_tls_security_level (package tlspolicy), by TLSA records at level dane,
// and by a domain's MTA-STS policy where mta-sts:DIRECTORY is among the policy
// tables. Mail for a server that does not reach the level is deferred. At level
// may, a server whose TLS fails gets mail in the clear only when the message has
// waited for minimal_backoff_time, and never when there is a password for the server.
//
// A message with REQUIRETLS goes only to a server whose name is configured, or
// authenticated by DNSSEC or MTA-STS, whose certificate is for that name, and that
// offers REQUIRETLS itself (RFC 8689 section 4.2.1). The level is raised to verify
// where it is lower. If no server meets this, the message is returned with 5.7.10
// or 5.7.30. smtp_requiretls_policy, a list of tables by destination with a word
// for all others, relaxes this: opportunistic+starttls only demands TLS,
// opportunistic demands nothing and passes REQUIRETLS on where it is offered, and
// disable ignores it. The default exempts destinations that are addresses,
// localhost, or within mydomain, such as content filters. "TLS-Required: no" in
// the header, which cleanup recognizes, lowers the level to may for a message
// without REQUIRETLS.
//
// With smtp_tlsrpt_enable = yes the outcome of TLS is counted for each new session
// with a mail domain's server, and domains that ask for it get a report each
// day (RFC 8460; package tlsrpt, which keeps its files in
// $data_directory/tlsrpt). An MTA-STS policy in testing mode is reported on
// as if it were enforced. Reports are sent by HTTPS, or by mail from
// smtp_tlsrpt_sender, for which dkim_sign_maps should have a key.
//
// Connections with TLS are kept open like others where smtp_tls_connection_reuse
// or the policy allows it.
//
// TLS sessions are resumed for smtp_tls_session_cache_timeout, with or without
// smtp_tls_session_cache_database. With it the next process can resume them too:
// they are written to PATH.json when the service stops, and read when it starts.
//
// CAs, trust anchors, and our own certificates and keys are read at the start.
// When one of the files changes, the service is replaced by one that reads it, at
// the latest after ten seconds of use. Files named by tafile= are read when they
// are first needed, by the service's user and inside its chroot. To have a new
// version read, use "posthaste reload".
//
// The mechanisms XOAUTH2 and OAUTHBEARER send a token instead of a password, and
// are used only if smtp_sasl_mechanism_filter names them. The token is the text in
// the password's place. If that is file:/PATH, the token is the content of the
// file, which is read each time. If it is empty, the token comes from
// smtp_sasl_token_command. The command runs without a shell, with SASL_USER and
// SMTP_HOST in its environment, and prints the token or the JSON of an OAuth
// server. The token is used for smtp_sasl_token_time, or for as long as expires_in
// says, and renewed at once when a server refuses it.
//
// # On the way out
//
// Content is sent as it is stored, without being looked at, unless something has to
// be done to it: dots at the start of lines, lines that are too long, addresses in
// smtp_generic_maps, header and body checks, and eight-bit parts for a server
// without 8BITMIME.
//
// # Where Postfix does otherwise
//
// The time limit of a reply covers the whole reply, not each read, and a reply of
// more than 500 lines or 64 KB ends the session. With Postfix, a server that never
// ends its reply holds a delivery for ever. RSET is sent before a kept session is
// used again only if its last transaction did not end at the final dot; after that
// nothing is left to reset. A kept session is not used if the server has closed it
// meanwhile, or has sent anything over it (other than TLS records): nothing is sent
// over it, and what the server sent is not taken for a reply. A kept session that
// turns out to be dead at its first reply is replaced silently as well. A delivery
// that is cut short because the service must stop, or that fails because this
// system is short of descriptors or memory, does not count against its
// destination. An international domain is looked up in smtp_tls_policy_maps and
// smtp_requiretls_policy in both its forms, not only in the form in which the address was
// written. BODY=7BIT, which is the default, is not sent. The cache of
// smtp_sasl_auth_cache_name is kept in memory, not in that table.
//
// # Security
//
// Everything that a server sends is treated as hostile. A reply is bounded in the
// length of its lines, their number, and the time for the whole reply, so that a
// server that sends an octet now and then cannot hold up a delivery for ever. What
// is logged of it is made printable. Nothing in an address can end a command:
// addresses are quoted, and those with control characters are refused.
// Nothing that a server sent before TLS was set up is taken for what comes after.
//
// # Standards
//
// RFC 5321, 2920 (PIPELINING), 1870 (SIZE), 6152 (8BITMIME), 3461 (DSN), 2034
// (enhanced codes), 6531 and 6533 (SMTPUTF8), 3207 (STARTTLS), 7505 (null MX),
// 2782 (SRV), 2033 (LMTP), 4954 (AUTH), 5802 and 7677 (SCRAM), 7628
// (OAUTHBEARER), 6698 and 7672 (DANE), 8460 (TLSRPT), 8461
// (MTA-STS), 8689 (REQUIRETLS), 9422 (LIMITS).
//
// # Parameters
//
// The smtp_ family, or the lmtp_ family when the program is lmtp: see
// settings.go, tlssettings.go, sasl.go and output.go, which read them; also
// best_mx_transport, connection_cache_ttl_limit, disable_dns_lookups,
// dnssec_probe, helpful_warnings, ignore_mx_lookup_error, inet_interfaces,
// inet_protocols, line_length_limit, minimal_backoff_time, myhostname,
// notify_classes, proxy_interfaces, relayhost, soft_bounce, tcp_windowsize.
//
// # Diagnostics
//
// One log line per recipient and attempt, written by package agent. Failures
// that lead to the next server, and servers that cannot be reached, are logged
// as they happen. With class protocol or data in notify_classes, the postmaster gets
// a transcript of each session in which a server's reply made no sense, or a server
// said that our command made none, or the message could not be read.
package smtp
