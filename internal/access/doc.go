// Package access judges SMTP sessions: it is the whole of Postfix's restriction language, from
// smtpd_client_restrictions to access tables. It knows nothing of sockets or of the protocol.
// It is told what is known of a session and its envelope, and returns a refusal or nothing.
//
// An Evaluator is made from the configuration once, and parses the restriction lists into
// trees; a Session holds what one client has said. The server fills in the Session's exported
// fields as the client goes along, and calls Connect, Helo, Mail, Rcpt, Data, EndOfData, Vrfy
// and Etrn at the stages that they are named for. What restrictions ask for besides a refusal
// (hold the message, add a recipient) gathers in Session.Effects.
//
// # Evaluation
//
// A list is evaluated in order. Each restriction permits, which ends this list and no other;
// refuses, which ends everything; or decides nothing. The end of a list decides nothing, and
// if nothing has decided by the end of all lists, the client is permitted.
//
// There are three exceptions. warn_if_reject turns a refusal into a log line. defer_if_reject
// turns a permanent refusal into a temporary one if something could not be looked up at this
// stage. defer_if_permit remembers that something could not be looked up, and refuses for the
// time being if everything else permits, at this stage or a later one.
//
// # Security
//
// Everything in a Session may come from a stranger, except what the server itself has
// verified. If a table or a service cannot be asked, the client is never permitted but told to
// come back. An access list that would permit on the word of the client's own DNS (OK from
// check_*_mx_access and the like) is rejected as a mistake; a DNS allowlist permits only mail
// that this site delivers or relays; and of a certificate only fingerprints are looked up. No
// reply code, whether from a parameter or a table, turns a refusal into a permission. At least
// one of smtpd_relay_restrictions and smtpd_recipient_restrictions must keep strangers from
// relaying, or New fails.
//
// # Standards
//
//	RFC 5321 section 3.6 (relaying), section 4.5.1 (postmaster)
//	RFC 3463 (enhanced status codes), RFC 5782 (DNS lists), RFC 7505 (null MX)
//
// # Diagnostics
//
// Every refusal is logged as Postfix logs it:
//
//	NOQUEUE: reject: RCPT from NAME[ADDR]: CODE DSN TEXT; from=<S> to=<R> proto=P helo=<H>
//
// with reject_warning, hold, discard, filter, redirect, bcc, info, warn or
// permit in the place of reject for what else restrictions do.
package access
