// Package tlsrpt keeps account of how TLS went with other mail domains, and
// tells those that ask for it once a day (RFC 8460).
//
// A delivery client calls [Log.Record] for each session with a domain's
// servers. Counts are gathered in memory and appended once a minute to a file
// for each day (UTC) in a directory that several processes may share:
//
//	DIR/2026-11-21.log     counts, one JSON object a line
//	DIR/report/...json     reports that have not been sent yet
//	DIR/lock               is held by the process that makes and sends reports
//
// Some time in the four hours after a day has ended, at a moment that
// differs from one system to the other, its counts are made into one report
// for each domain. A domain that has a _smtp._tls TXT record gets its report
// where that says: by mail, which goes through cleanup like all mail and is
// DKIM-signed there by dkim_sign_maps, or by HTTPS POST. What cannot be sent
// is tried again for a day, and then dropped with a warning.
//
// # Durability
//
// A crash loses the counts of the last minute. A report is kept until it has
// been handed on; after a crash at the wrong moment it may be sent twice, with the
// same report-id.
//
// # Security
//
// The DNS of strangers says where reports go: at most five places for a
// domain are heeded. An HTTPS request goes only to public addresses, and to those that
// smtp_https_networks allows, follows no redirection, and is bounded in time; nothing of the answer but its status
// is looked at. What servers said goes into a report only as JSON strings.
//
// # Standards
//
// RFC 8460; RFC 3464's multipart/report with report-type=tlsrpt.
//
// # Diagnostics
//
// "tlsrpt: ..." warnings for what cannot be kept or sent; one line at level
// info for each report that was sent.
package tlsrpt
