// Package smtp is the SMTP and LMTP delivery client: the services smtp, relay
// and lmtp of master.cf. It brings a message to the recipients of one
// delivery request, tries the servers of the destination in order, and says
// of each recipient whether it was delivered, is to be tried again, or never
// will be.
//
// A destination ("nexthop") is a list of domains, hosts in square brackets
// that are not looked up as mail domains, and ports; for LMTP also
// unix:/path. The servers of a domain are its MX hosts by preference, those of
// equal preference in random order per address.
//
// With PIPELINING, MAIL, all RCPTs and DATA go out in one flight. A session
// that is likely to be wanted again at once stays open for a while, under the
// destination's name and the server's address.
//
// # What counts against a destination
//
// A reply to MAIL, RCPT, DATA or the message does not: the destination works.
// That no server can be reached, greets, or lives to the end of a session
// does, when the failure is temporary, it was the last server to be tried, and
// no session of the request went well.
//
// # TLS and passwords
//
// What a server's TLS must be like is decided by smtp_tls_policy_maps or
// smtp_tls_security_level (package tlspolicy), by TLSA records at level dane,
// and by a domain's MTA-STS policy where mta-sts:DIRECTORY is among the policy
// tables. A level that is not met defers the mail. At level may a server whose
// TLS does not work is spoken to in the clear only for a message that has
// waited for minimal_backoff_time, and never when there is a password for it.
//
// A message with REQUIRETLS goes only to a server whose name is
// configured or vouched for by DNSSEC or MTA-STS, whose certificate is for that
// name, and that offers REQUIRETLS itself (RFC 8689 section 4.2.1); the level
// is raised to verify for it where it is lower. When no server is like that
// the message goes back with 5.7.10 or 5.7.30. smtp_requiretls_policy, a list
// of tables by destination and a word for the others, says otherwise:
// opportunistic+starttls is content with TLS, opportunistic with anything,
// disable passes nothing on. By default destinations that are addresses,
// localhost or within mydomain, such as content filters, are spared. "TLS-Required: no" in the header, which cleanup
// has noticed, lowers the level to may for a message without REQUIRETLS.
//
// With smtp_tlsrpt_enable = yes each new session with a mail domain's server is
// counted by how its TLS went, and domains that ask for it get a report each
// day (RFC 8460; package tlsrpt, which keeps its files in
// $data_directory/tlsrpt). A policy of MTA-STS in testing mode is reported of
// as if it were enforced. Reports are mail from smtp_tlsrpt_sender, which
// dkim_sign_maps should have a key for, or HTTPS requests.
//
// Sessions with TLS are kept like others where smtp_tls_connection_reuse, or
// the policy, says so.
//
// TLS sessions are resumed for smtp_tls_session_cache_timeout, with or without
// smtp_tls_session_cache_database; with it also by the next process, since they
// are written to PATH.json when the service stops and read when it starts.
//
// CAs, trust anchors, and the certificates and keys that we show to servers are
// read at the start. When one of the files changes the service is replaced by
// one that reads it, ten seconds of use later at most. Files that tafile= names are
// read when they are first needed, by the service's user and inside its chroot:
// "posthaste reload" has new ones read.
//
// A mechanism that sends a token, XOAUTH2 or OAUTHBEARER, which
// smtp_sasl_mechanism_filter must name, takes for token what stands in place of
// the password; the content of a file, if that is file:/PATH, read each time;
// or, if it is empty, what smtp_sasl_token_command says. The command is run
// without a shell, with SASL_USER and SMTP_HOST in its environment, and answers with the token or
// with the JSON of an OAuth server; that is used for smtp_sasl_token_time, or
// as long as expires_in says, and asked for anew at once when a server refuses it.
//
// # On the way out
//
// Content goes out as it lies in the spool, unless something has to be done to
// it: dots at the start of lines, lines that are too long, addresses of
// smtp_generic_maps, header and body checks, eight-bit parts for a server
// without 8BITMIME. Only then is it looked at.
//
// # Where Postfix does otherwise
//
// The time limit of a reply is for the whole of it, not for each read, and a
// reply of over 500 lines or 64 KB ends the session: there, a server that
// never ends its reply holds a delivery for ever. RSET is sent before a kept
// session is used again only when its last transaction did not end at the
// final dot, since nothing is left to reset after that. One that the server has
// ended while it was kept, or over which it has said something that is not TLS's,
// is not used: nothing is sent over it, and what was said is nobody's answer. One that proves
// dead at its first reply is replaced without a word, too. A delivery
// that is cut short because the service must stop, or that fails because this
// system is short of descriptors or memory, does not count against its
// destination. An international domain is looked up in smtp_tls_policy_maps and
// smtp_requiretls_policy in both its forms, not only in the one that the address was
// written in. BODY=7BIT, which is the default, is not said. What
// smtp_sasl_auth_cache_name names is kept in memory, not in that table.
//
// # Security
//
// Everything that a server says is hostile: a reply is bounded in length of
// lines, number of lines and time, as a whole and not by each read, so that a
// server that sends a byte now and then holds nothing up for ever; what is
// logged of it is made printable. Nothing in an address can end a command:
// addresses are quoted, and those with control characters are refused.
// What a server sent before TLS was set up is never taken for what came after.
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
// best_mx_transport, connection_cache_ttl_limit, disable_dns_lookups, dnssec_probe, helpful_warnings, ignore_mx_lookup_error,
// inet_interfaces, inet_protocols, line_length_limit, minimal_backoff_time,
// myhostname, notify_classes, proxy_interfaces, relayhost, soft_bounce,
// tcp_windowsize.
//
// # Diagnostics
//
// One log line per recipient and attempt, written by package agent. Failures
// that lead to the next server, and servers that cannot be reached, are logged
// as they happen. With class protocol or data in notify_classes postmaster is
// mailed the transcript of a session in which a server's reply made no sense,
// or said that our command made none, or the message could not be read.
package smtp
