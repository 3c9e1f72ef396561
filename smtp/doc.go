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
// (enhanced codes), 6531 (SMTPUTF8), 3207 (STARTTLS), 7505 (null MX), 2033
// (LMTP).
//
// # Parameters
//
// The smtp_ family, or the lmtp_ family when the program is lmtp: see
// settings.go, which reads every one of them; also best_mx_transport,
// connection_cache_ttl_limit, disable_dns_lookups, ignore_mx_lookup_error,
// inet_interfaces, inet_protocols, line_length_limit, minimal_backoff_time,
// myhostname, proxy_interfaces, relayhost, soft_bounce.
//
// # Diagnostics
//
// One log line per recipient and attempt, written by package agent. Failures
// that lead to the next server, and servers that cannot be reached, are logged
// as they happen.
package smtp
