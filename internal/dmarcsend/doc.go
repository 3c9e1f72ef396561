// Package dmarcsend keeps account of what became of mail that claims to be of other domains, and
// sends those that ask for it an aggregate report each day (RFC 9990).
//
// cleanup calls [Log.Record] for each message that mail_authentication has checked and whose DMARC
// record has an address for reports (rua). Counts are gathered in memory and appended once a minute
// to a file for each day (package dayreport). Within four hours after the end of a day there is one
// report for each domain with a record. It goes by mail to each address that the record names then,
// if that address wants it: one in another organization must say so in the DNS (RFC 9990 section
// 4). The report passes through cleanup like all mail, where it is signed (dkim_sign_maps): so it
// passes DMARC itself if dmarc_report_sender is in a domain that is signed or whose SPF record has
// this host. One that cannot be sent is tried again for a day, and then dropped with a warning.
//
// A report names the domains and addresses of servers, and no recipient.
//
// # Loops
//
// Reports about reports are the beginning of a loop. Mail that looks like a report is counted, but
// is no reason for a report by itself. Nobody is told when a report cannot be delivered.
//
// # Durability
//
// A crash loses the counts of the last minute.
//
// # Security
//
// Strangers decide how many domains and sources there are: both are bounded, and so is the size of
// a report and the number of addresses that it goes to. Sizes in a record ("!10m") have no effect,
// as RFC 9990 says. What strangers have said goes into a report as XML text without control
// characters. A day's counts take at most 256 MB on disk. The reports of a day are made of 64 MB of
// different rows at most, which take about 130 MB of memory for some seconds.
//
// # Standards
//
// RFC 9989 (DMARC), RFC 9990 (aggregate reports).
//
// # Diagnostics
//
// "dmarc report: ..." warnings for what cannot be kept or sent; one line at level info for each
// report that was sent.
package dmarcsend
