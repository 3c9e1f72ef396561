// Package dmarcreport is the command posthaste dmarc. It reads the reports that receivers of mail
// send about a domain, DMARC aggregate reports and TLS reports, and says who sends mail in the
// domain's name, from where, and whether that mail passes.
//
// A report may be the message that was received, an attachment of it (gzip or zip), or an
// unpacked file. Its first octets tell which. A report that is found twice counts once.
//
// With --show and --send-now it is about the reports that this system sends (package dmarcsend): it
// lists what is to be sent, or sends it at once.
//
// # Security
//
// Reports come from strangers and may be forged. Reading is bounded: a file and its unpacked
// content have at most 32 MB each, a record of a report at most 1 MB, and all reports together at
// most 100000 different rows. Control characters are never printed.
//
// # Standards
//
// RFC 9990 and its predecessors: RFC 7489 appendix C, and reports without a namespace. RFC 8460
// section 4 for TLS reports.
//
// # Diagnostics
//
// A file that is not a report is named; the others are still read, and the exit status is 65.
package dmarcreport
