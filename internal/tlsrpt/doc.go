// Package tlsrpt keeps account of the TLS sessions with other mail domains, and sends a report
// each day to the domains that ask for one (RFC 8460).
//
// A delivery client calls [Log.Record] for each session with a domain's
// servers. Counts are gathered in memory and appended once a minute to a file
// for each day (UTC) in a directory that several processes may share:
//
//	DIR/2026-11-21.log     counts, one JSON object a line
//	DIR/report/...json     reports that have not been sent yet
//	DIR/lock               is held by the process that makes and sends reports
//
// Within four hours after the end of a day, at a time that differs from system to system, its
// counts are made into one report for each domain. A domain with a _smtp._tls TXT record
// receives its report where the record says: by mail, which passes through cleanup like all
// mail and gets its DKIM signature there (dkim_sign_maps), or by HTTPS POST. A report that
// cannot be sent is tried again for a day, and then dropped with a warning.
//
// # Durability
//
// A crash loses the counts of the last minute. A report is kept until it has
// been handed on; after a crash at the wrong moment it may be sent twice, with the
// same report-id.
//
// # Security
//
// The DNS of strangers says where reports go. At most five places for each domain are used. An
// HTTPS request goes only to public addresses, and to those that smtp_https_networks allows,
// follows no redirection, and is bounded in time; only the status of the reply is examined.
// What servers said goes into a report only as JSON strings.
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
