// Package local delivers mail to local users. As in Postfix, it tries these
// for each recipient, in this order:
//
//  1. alias_maps, for the whole local part, then without the extension
//  2. the user's .forward file (forward_path)
//  3. mailbox_transport_maps, mailbox_transport
//  4. mailbox_command_maps, mailbox_command
//  5. home_mailbox
//  6. the mailbox in mail_spool_directory
//  7. for unknown users: fallback_transport_maps, fallback_transport, luser_relay
//
// Aliases, .forward files and the :include: files in them list addresses,
// commands (|command), files (/file; /maildir/) and further :include: files.
// Addresses of local users are expanded in turn. Mail for addresses that are not
// local, mail that a user's .forward file sends to another user, and mail for the
// members of a list is queued again as a new message with a Delivered-To: line,
// so that each recipient has its own record. A message that comes back to a
// recipient in its Delivered-To: lines is returned.
//
// The destinations that a recipient expands to have one outcome for the queue. If
// any of them must be tried again, the recipient is tried again, and nothing is
// forwarded in this attempt. Commands and files that have succeeded then get the
// message twice, which is better than not at all. The sender is told about each
// destination separately, and about a permanent failure at once, even if others
// will be tried again. Each outcome names a limited number of destinations
// (mail.BoundParts), and counts the rest.
//
// # Rights
//
// Files and mailboxes are written, and .forward files read, with the user's file
// access rights (package rights). Commands run as the user, with the user's
// supplementary groups (package command), but never with group 0 or that of
// mail_owner. Postfix gives commands no supplementary groups.
//
// Destinations in aliases have the rights of the owner of the alias database.
// Destinations in an :include: file of root's aliases have the rights of that
// file's owner or, if the file is in a directory of another user, of the
// directory's owner; the file is read with the same rights. The rights of
// default_privs are used instead of those of root or mail_owner, and also for the
// destinations in their .forward files. Only root's own mailbox and .forward file
// are used with root's rights.
//
// Mail that is passed to another transport (mailbox_transport and similar
// parameters) is a destination like the others: the result of its agent is
// combined with the results of the rest.
//
// As in Postfix, mailbox_size_limit bounds every file that local and its commands
// write: writing more fails with "File too large".
//
// If the mail system does not run as root, everything is done with the rights
// that it has.
//
// # Security
//
// Addresses come from strangers. No part of an address becomes part of a path or
// a command unless forward_expansion_filter, command_expansion_filter or
// execution_directory_expansion_filter allows it. Extensions with a slash are
// dropped, and a user name is used in a path only if the user exists. .forward and
// :include: files that others can write to are refused, and so are .forward files
// that are symbolic links. The destinations of one user's files, direct and
// indirect, are bounded, because one process delivers for all users. The
// environment and working directory of commands are set, not inherited.
//
// # Differences from Postfix
//
// A .forward file, together with the :include: files that it names, can list at
// most 10000 destinations, and each of these files at most a megabyte; with more,
// the mail is returned with 5.2.4. Lists in aliases have no limit.
//
// Destinations in the .forward file or alias table of mail_owner have the rights
// of default_privs, as root's have, because mail_owner can read the whole queue.
// Alias tables that everybody can write to are not used.
//
// The sender is told once about a destination that fails permanently in several
// attempts, and once that an alias was expanded (NOTIFY=SUCCESS).
//
// The sender's NOTIFY does not apply to a list's members (RFC 3461 section
// 5.2.7.4).
//
// luser_relay is followed once. If it leads to another unknown name, the mail is
// returned instead of being lost as a duplicate.
//
// # Standards
//
//	RFC 5321 section 3.9 (aliases and lists)
//	RFC 3461 section 5.2.7 (notices about expanded recipients)
//
// # Parameters
//
// alias_maps, allow_mail_to_commands, allow_mail_to_files, biff,
// command_execution_directory, command_expansion_filter, command_time_limit,
// confirm_delay_cleared, default_privs, deliver_lock_attempts, deliver_lock_delay,
// double_bounce_sender, duplicate_filter_limit, enable_original_recipient,
// execution_directory_expansion_filter, expand_owner_alias,
// export_environment, fallback_transport, fallback_transport_maps,
// forward_expansion_filter, forward_path, frozen_delivered_to, home_mailbox,
// local_command_shell, luser_relay, mail_name, mail_owner,
// mail_spool_directory, mailbox_command, mailbox_command_maps,
// mailbox_delivery_lock, mailbox_size_limit, mailbox_transport,
// mailbox_transport_maps, message_size_limit, myhostname,
// owner_request_special, prepend_delivered_header,
// propagate_unmatched_extensions, recipient_delimiter,
// require_home_directory, reset_owner_alias, spool_segment_size,
// stale_lock_time, strict_mailbox_ownership.
//
// # Diagnostics
//
//	ID: to=<a@b>, relay=local, ..., status=sent (delivered to mailbox)
//	status=sent (delivered to maildir), (delivered to file: PATH),
//	(delivered to command: LINE), (forwarded as ID), (discarded)
//	status=bounced (unknown user: "NAME"), (mail forwarding loop for ADDRESS), ...
//	warning: file PATH: it lists more than 10000 destinations, or is larger than ...
//
// Mail that another transport delivers is logged by its agent. Forwarded mail is
// logged once for each new message, for the recipient.
package local
