// Package mailauth finds out whether mail is from whom it says it is: SPF for
// the client, DKIM for the content, DMARC for how both agree with the From:
// address. What is found is told in an Authentication-Results: field. It is
// used by cleanup, which has all that is needed, and by smtpd for SPF.
//
// # Security
//
// All input is hostile: messages, and the DNS zones of strangers. The header
// that signatures are looked for in is bounded, and so is the number of
// signatures, of the names that one signs, the length of keys, and the time for all of it; names that zones lead to are bounded as RFC
// 7208 section 4.6.4 says; a DMARC walk asks eight questions at most. A signature
// is verified by itself, without the other signatures in view: one that
// covers another signature is not recognized. Fields that claim to
// be our own findings are taken out of what strangers send.
//
// # Standards
//
//	RFC 7208 (SPF), by blitiri.com.ar/go/spf
//	RFC 6376, RFC 8301, RFC 8463 (DKIM), by github.com/emersion/go-msgauth; keys with t=s are heeded here
//	RFC 9989 (DMARC, with its tree walk), by this package
//	RFC 8601 (Authentication-Results)
//	RFC 7372 (enhanced status codes)
//
// # Parameters
//
// mail_authentication, authserv_id, mail_authentication_exempt_networks,
// dmarc_reject.
package mailauth
