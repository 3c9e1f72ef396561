// Package dmarcreport reads the reports that receivers of mail send about a domain, and says
// who sends in its name, from where, and whether that passes: DMARC aggregate reports and TLS
// reports. It is the command posthaste dmarc.
//
// A report may come as it was mailed, as the attachment of that mail (gzip or zip), or unpacked.
// Which it is, its first octets say. Reports that come twice count once.
//
// # Security
//
// Reports come from strangers, and nothing in them is true because it is written there. Reading is
// bounded: a file has at most 32 MB, what it unpacks to 32 MB, a record of a report 1 MB, and all
// reports together 100000 different rows. Control characters are never printed.
//
// # Standards
//
// RFC 9990 and the forms before it: RFC 7489 appendix C, and reports without a namespace. RFC 8460
// section 4 for TLS reports.
//
// # Diagnostics
//
// A file that is not a report is named, and the others are read. The exit status is then 65.
package dmarcreport
