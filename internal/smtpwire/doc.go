// Package smtpwire is the grammar of SMTP: command lines, paths, ESMTP
// parameters and replies, as values in and values out. It is vocabulary: no
// I/O, no state, safe for any number of callers at once.
//
// The parsers accept what RFC 5321 section 4.1.1 defines, and the few departures from it that
// are seen every day (spaces after the colon, a path without angle brackets), and nothing
// else. A refusal is a Reply that is ready to be sent, in the words of Postfix, since that is
// what clients, logs and log readers know.
//
// # Security
//
// Lines come from strangers. No function allocates more than a small multiple
// of what it is given, and whoever reads lines bounds their length. Addresses
// that come out of here hold no control characters and are valid UTF-8.
//
// # Standards
//
//	RFC 5321 sections 4.1.1, 4.1.2, 4.2 (commands, paths, replies)
//	RFC 1870 (SIZE), RFC 6152 (BODY), RFC 3461 (DSN), RFC 4954 (AUTH=)
//	RFC 6531 (SMTPUTF8), RFC 8689 (REQUIRETLS), RFC 3030 (BDAT)
//	RFC 2034, RFC 3463 (enhanced status codes)
package smtpwire
