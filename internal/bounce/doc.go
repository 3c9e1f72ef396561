// Package bounce tells people what became of their mail: it writes delivery
// status notifications and decides who gets them. It is the program behind
// the services bounce, defer and trace of master.cf.
//
// A [Composer] is the pure part: from a message's envelope, its content and the outcomes of
// some of its recipients it writes a multipart/report of three parts: a text for people, a
// delivery status for programs, and the message or its header. A [Service] is the shell: it
// answers the queue manager's Notify requests, reads the message from the spool, and submits
// what is to be sent.
//
// Unlike Postfix's, the service keeps no log files of its own: the reasons are kept with the
// queue entry, and come with the request.
//
// # Who gets what
//
//	kind      sender of the message   notice
//	failure   any, of a list          to the list's owner, from <> (owner_request_special)
//	failure   an address              to it, from <>; recipients with NOTIFY=FAILURE or no NOTIFY
//	                                  class bounce: also to bounce_notice_recipient, header only
//	failure   <>                      class bounce or 2bounce: to 2bounce_notice_recipient
//	failure   double-bounce           none, a warning is logged
//	delay     an address              to it, from <>; recipients with NOTIFY=DELAY or no NOTIFY
//	                                  class delay: also to delay_notice_recipient, header only
//	delay     <>                      none
//	success   an address              to it, from <>; recipients with NOTIFY=SUCCESS
//	trace     an address              to it, from <>; all recipients
//
// Notices to postmaster come from the double-bounce address. A notice from <>
// that fails can therefore cause only one from double-bounce, and that one
// causes nothing: no chain of notices is longer than two.
//
// The notice about a failure, and the record that nothing more is to be done for those
// recipients, become durable together (proto.Settle), so that a crash neither loses the notice
// nor sends it twice. A request that is repeated is compared with what cleanup knows to be
// done, and only the rest is reported. Copies for postmaster of notices that have been sent
// are a courtesy: if one cannot be submitted, that is logged, and the notice is not sent
// again.
//
// A recipient that local delivery has expanded is reported member by member, each with a block
// of its own (mail.Outcome.Parts). Members that fail for good are reported at the end of the
// attempt, even if the recipient remains in the queue for the others, and the record of which
// have been reported becomes durable with the notice. Postfix reports them again after every
// attempt.
//
// With VERP, each recipient's failure causes a notice of its own, to the sender's address with
// the recipient's address in it, unless disable_verp_bounces is set. Postmaster's copy (class
// bounce) then reports all of them, where Postfix sends a copy of each notice: that a list's
// mail went to a thousand dead addresses is worth one message.
//
// A copy for postmaster is sent after the notices that it reports. If one of several notices
// cannot be sent, the copy reports those that were.
//
// # Security
//
// Everything in a notice except the template comes from strangers. Replies of remote servers,
// addresses and envelope identifiers lose their control characters and cannot end a line or
// begin a header; what is returned of the message is bounded by bounce_size_limit, its header
// included.
//
// # Standards
//
//	RFC 3464 (delivery status notifications)
//	RFC 3461 (NOTIFY, RET, ENVID, ORCPT)
//	RFC 6522 (multipart/report)
//	RFC 6533 (internationalized delivery status notifications)
//	RFC 3834 (Auto-Submitted)
//	RFC 5321 section 6.1 (notices go from <> and never cause another)
//
// # Parameters
//
// 2bounce_notice_recipient, bounce_notice_recipient, bounce_size_limit,
// bounce_template_file, confirm_delay_cleared, delay_notice_recipient,
// delay_warning_time, disable_verp_bounces, double_bounce_sender, enable_threaded_bounces,
// internal_mail_filter_classes, mail_name, maximal_queue_lifetime,
// myhostname, myorigin, notify_classes, requiretls_redact_dsn.
//
// # Diagnostics
//
//	ID: sender non-delivery notification: NEWID
//	ID: sender delay notification: NEWID
//	ID: sender delivery status notification: NEWID
//	ID: postmaster non-delivery notification: NEWID
//	ID: postmaster delay notification: NEWID
//	warning: ID: undeliverable postmaster notification discarded
//
// If a template file cannot be used, a warning is logged and the built-in texts are used,
// because mail that cannot be delivered must still be returned.
package bounce
