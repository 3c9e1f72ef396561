// Package spools keeps one queue in several spools, on a disk each (spool_directories). It is an engine in front of
// others: see the contracts in package storage. Each of the others has a log, a writer and syncs of its own, and is as it
// would be alone; package spool has its format, and what becomes of it when power fails.
//
// # Where a message is
//
// New mail goes round among the spools that take it, by the numbers in the queue IDs, so that the ID says where a message
// is looked for first. It goes elsewhere when that spool has failed, is full, does not answer, or has much more to do
// than the next one; then the others are asked, too, each of which has an index in memory. Within one spool nothing
// moves to another but by [Set.Drain]. A queue.Ref names the spool that its record is in.
//
// The numbers come from the first spool that can be written, whose own number is in the upper 5 bits: that in
// queue_directory has 0, so that its IDs are what they are with one spool.
//
// Content in a file is in the spool of its message. Where spool_content_directory is set, it is that of the spool
// in queue_directory, and all large messages go there as long as they can.
//
// # What becomes durable together
//
// A batch is written to one spool, and is there as a whole or not at all. One that adds mail and changes a message, as a
// notice does, goes to where that message is. A batch that is Apart is divided. Changes of several messages in a batch that
// is not are refused. The order of changes is kept for each message, and not between messages in different spools.
//
// # A spool that fails
//
// When a write or sync fails the spool is closed, and opened again every half second, as a new process would do it. Until it
// is back it takes no new mail, and the others go on. What it has stays known from memory, and is named in the log. Its
// deferred mail does not come due. What becomes of its mail that the queue manager had in memory is remembered, and recorded when it
// can be, before anybody hears that it is back. The queue is shown as if it were recorded, so that a queue manager that is told
// the queue meanwhile does not deliver it again; the queue manager is told at once that it is not recorded, so that operators'
// commands fail with the reason. When the process ends before, it is named as in doubt, since it may arrive twice.
// Reading goes on as far as the disk permits.
//
// A spool that is full takes no new mail either, and is asked again after a second. Of one whose disk does not answer
// the same is true, by its own watch (internal/spool/silence.go).
//
// # Which spools there are
//
// MEMBERS, in the spool in queue_directory, names those that were ever added, with number and identity. It has two slots,
// written in turn, each with a generation and a checksum. A start is refused, with nothing changed, when one of them is not
// in main.cf any more, is not there, is empty, or is another queue's: the mail in it would be lost sight of. It is not when
// spool_directories_absent names it. A fresh spool is entered when it has been opened, is empty, and before it gets mail.
// Its number is never given to another one.
//
// Mail is moved out of a spool while the mail system is down. MEMBERS says so before, and no longer when the
// spool is empty. Each message is durable where it goes before it is removed where it was. If that is interrupted the next start
// removes what is in both from the one that was being emptied, before anybody has changed either.
//
// # Security
//
// As package spool: directories belong to mail_owner and nobody else can read them. Processes open them before
// they give up their rights.
//
// # Bugs
//
// If a disk dies while mail is moved out of it, or to it, and the mail system goes on without it, what was moved just then may be
// in both places: what has been delivered meanwhile from the one is delivered once more when the disk is used again. What is still
// queued in both is not: that is looked for until all directories are there.
package spools
