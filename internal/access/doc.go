// Package access judges SMTP sessions: it is the whole of Postfix's
// restriction language, from smtpd_client_restrictions to access tables. It
// knows nothing of sockets and of the protocol. It is given what is known of
// a session and its envelope, and answers with a refusal or with nothing.
//
// An Evaluator is made from the configuration once, and reads the restriction
// lists into trees; a Session holds what one client has told. The server
// fills in the Session's exported fields as the client goes along, and calls
// Connect, Helo, Mail, Rcpt, Data, EndOfData, Vrfy and Etrn at the stages
// that they are named for. What restrictions ask for besides a refusal (hold
// the message, add a recipient) gathers in Session.Effects.
//
// # Evaluation
//
// A list is gone through in order. Each restriction says OK, which ends this
// list and no other, or no, which ends everything, or nothing. The end of a
// list means nothing, and nothing at the end of everything means yes.
//
// Before "no" is said in earnest there are three ways out: warn_if_reject
// turns it into a log line, defer_if_reject turns a permanent no into a
// temporary one when something could not be looked up at this stage, and defer_if_permit
// remembers that something could not be looked up in case all else says yes,
// here or at a later stage.
//
// # Security
//
// Everything in a Session may come from a stranger, except what the server
// itself has verified. A table or a service that cannot be asked never means
// yes: the client is told to come again. An access list that would let
// through by what the client's DNS says (check_*_mx_access and kin saying OK)
// is refused as a mistake; a DNS whitelist lets through nothing but mail that is
// ours to deliver or to relay, and of a certificate only fingerprints are looked
// up. No code of an administrator's or a table's makes a refusal into consent.
// At least one of smtpd_relay_restrictions and
// smtpd_recipient_restrictions must keep strangers from relaying, or New
// fails.
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
