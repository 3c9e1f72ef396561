// Package local delivers mail to the users of this system. It decides as
// Postfix's local does, for each recipient in this order:
//
//  1. aliases: alias_maps, by the whole local part, then without extension
//  2. the user's .forward file (forward_path)
//  3. mailbox_transport_maps, mailbox_transport
//  4. mailbox_command_maps, mailbox_command
//  5. home_mailbox
//  6. the mailbox in mail_spool_directory
//  7. for unknown users: fallback_transport_maps, fallback_transport, luser_relay
//
// Aliases, .forward files and the :include: files that they name list
// addresses, commands (|command), files (/file; /maildir/) and further
// :include: files. Addresses of local users are expanded in turn; what is not
// local, what a user's .forward sends to another user, and what a list sends
// out is queued again as a new message with a Delivered-To: line, so that
// each recipient has a record of its own. A message that comes back to a
// recipient who is in its Delivered-To: lines is returned.
//
// What a recipient was expanded to is one outcome for the queue: it is tried
// again when any part of it must be, and then nothing is queued again in
// this attempt. Commands and files that did succeed get the message again;
// better twice than not at all. The sender hears of each part by itself, and of
// one that has failed for good at once, even when others are to be tried again.
// As many as one outcome has room for (mail.BoundParts) are named, the rest counted.
//
// # Rights
//
// Files and mailboxes are written, and .forward files read, with the user's
// file rights (package rights), commands run as the user altogether, with his
// supplementary groups (package command), but never with group 0 or that of
// mail_owner. Postfix gives commands no supplementary groups. Destinations in aliases have the
// rights of the alias database's owner, those in an :include: file of root's
// aliases the rights of that file's owner, or, if it is in a directory of somebody
// else's, of the directory's owner, with whose rights it is also read; where that comes to root or to
// mail_owner, those of default_privs, and so it is with what their .forward
// files name. Only root's own
// mailbox and .forward file are used with root's rights.
//
// Mail given to another transport (mailbox_transport and its kin) is a part
// like others: what its agent says counts together with what came of the rest.
//
// mailbox_size_limit bounds every file that local and the commands that it runs
// write, as with Postfix: beyond it they are told "File too large".
//
// When the mail system does not run as root, everything is done with the
// rights that it has.
//
// # Security
//
// Addresses come from strangers: nothing of them is part of a path or a
// command before forward_expansion_filter, command_expansion_filter or
// execution_directory_expansion_filter has passed it, extensions with a slash
// are dropped, and a user's name is only used for a path when the user exists.
// .forward and :include: files that others can write to are refused, and
// .forward files that are symbolic links. What one user's own files list, and
// what they lead to, is bounded: one process delivers for all users.
// Environment and working directory of commands are set, not inherited.
//
// # Differences from Postfix
//
// A .forward file, with the :include: files that it names, lists 10000
// destinations at most, and each of these files has a megabyte at most; more
// is returned as a problem of the list (5.2.4). Lists of aliases have no bound.
//
// What mail_owner's .forward file or alias table names has the rights of
// default_privs, as root's has: mail_owner reads the whole queue. Alias tables
// that everybody can write to are not believed.
//
// Of a part that fails for good in each of several attempts the sender is told
// once, and so he is that an alias was expanded (NOTIFY=SUCCESS).
//
// A list's members do not have the sender's NOTIFY (RFC 3461 section 5.2.7.4).
//
// luser_relay is followed once: where it leads to a name that is unknown too,
// the mail is returned, and not lost as a duplicate.
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
// What another transport delivered is logged by its agent, and mail that was
// queued again once for each new message, for the recipient.
package local
