// Package mailauth finds out whether mail comes from the domain that it claims to come from:
// SPF checks the client, DKIM the content, and DMARC whether these agree with the From:
// address. Where DMARC fails, the ARC chain of a forwarder who is trusted can vouch for the
// message. It also makes the DKIM signatures of our own mail. The results go into an Authentication-Results: field. cleanup uses it, since
// everything that it needs is there; smtpd uses it for SPF.
//
// # Security
//
// All input is hostile: messages, and the DNS zones of strangers. The header that signatures
// are looked for in is bounded, and so is the number of signatures, of the names that one
// signs, the length of keys, and the time for all of it; the number of names that SPF looks up
// is bounded as RFC 7208 section 4.6.4 says; a DMARC tree walk makes at most eight queries.
// Each signature is verified by itself, so a signature that covers another one is not
// recognized. Fields that claim to be results of this system are removed from the mail of
// strangers.
//
// # Standards
//
//	RFC 7208 (SPF), by blitiri.com.ar/go/spf
//	RFC 6376, RFC 8301, RFC 8463 (DKIM): signatures are made by this package, and verified by
//	github.com/emersion/go-msgauth; keys with t=s are heeded here
//	RFC 9989 (DMARC, with its tree walk), by this package
//	RFC 8617 (ARC), reading only: the newest signature and all seals of a chain of up to ten sets
//	RFC 8601 (Authentication-Results)
//	RFC 7372 (enhanced status codes)
//
// # Parameters
//
// mail_authentication, authserv_id, mail_authentication_exempt_networks,
// dmarc_reject, arc_trusted_sealers.
package mailauth
