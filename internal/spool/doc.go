// Package spool keeps the queue: one log, written by one process, on which a
// message is durable before anybody says so. One sync serves all who wait
// when it starts. The design is after Tony Finch's "How not to design an MTA,
// part 5: spool file logistics".
//
// cleanup opens the [Spool] and is the only writer. Everybody else has a
// [Reader], in any process, and reads envelopes and content straight from the
// log's files by a [Ref]. Messages do not move when their state changes:
// incoming, deferred, hold and corrupt are states (the active queue is in
// qmgr's memory), and a queue ID stays the same for a message's life.
//
// # What is promised
//
//   - Commit that returns nil: the batch survives a power cut.
//   - A batch is all there or not at all, also after a crash.
//   - What was refused, or never submitted, does not appear.
//   - Recipients whose [Batch.Done] was durable are not pending again. With
//     Post, the last 50 ms of deliveries (spool_commit_delay) may repeat after
//     a crash; [RecoveryReport].InDoubt names them. It is exact when each delivery
//     waits for its [Batch.Handed] to be durable (spool_exact_doubt): what was handed to an agent, and
//     of which nothing is recorded since, and nothing else. (TestCrashHanded.)
//   - After a failed write or sync of the log, or of a directory, nothing more is
//     written by this process: a second sync that succeeds proves nothing. A content
//     file that cannot be written is its message's affair. Recovery writes what
//     was in doubt again.
//   - Damage to what was durable is told through Options.Warn, and in
//     [RecoveryReport] by the queue IDs that it concerns. A message with
//     damaged content goes to the corrupt queue; nothing is silently dropped,
//     and content is never given out before its checksum was verified.
//   - A disposition can always be recorded, for ever and on a disk that others have
//     filled to the last block: new mail is refused while there is still room
//     for it. If there is none all the same (below), it waits.
//   - Disk use is at most twice the live bytes and 30 segments, one of which are
//     spent content files, and six more for each segment that the states of all mail
//     fill; each byte accepted is written less than 1.3 times. (TestMonth.)
//
// # What is promised for each failure
//
//   - A power cut at any moment: Nothing that was acknowledged is lost. Deliveries of
//     the last 50 ms (spool_commit_delay) may repeat, and are named as far as that is
//     known: exactly with spool_exact_doubt. New mail of which the client may not have
//     been told is named.
//   - A process is killed, or panics: The same.
//   - One bit of the log is wrong: One message at most: it is named by queue ID as
//     lost, or goes to corrupt when it is its content. If only its last state is
//     damaged it stays, and recipients who were done since may get it again, by name.
//   - One block of 4 KB is zeroed or garbage: No more than the messages with a record
//     in it. Those are named: another record, the rest of theirs, or the LIST of a later
//     batch tells the ID. Only of one that 16384 others came after before it was listed
//     the report says no more than when it came. What was delivered according to that
//     block may be delivered again. Messages of which nobody can tell whether they were
//     delivered are held, by name. Headers and identity are in two blocks.
//   - Anything rots while it lies there: It is found when a [Scrubber] comes to it
//     (spool_scrub_period), with the queue ID, file and offset.
//   - A read fails (EIO): Nothing is taken for empty or damaged. A start tries again
//     for 2.6 s and is then refused, with file, offset and cause, nothing changed.
//     Deliveries are tried again later. What becomes of mail is recorded, if need be
//     2.6 s later; if the last state of the message cannot be read then either, what
//     former attempts said of its recipients is left out.
//   - A write or sync fails: What waits for it is refused with 451. Nothing more is
//     written before a restart has written again what was in doubt.
//   - A write or sync neither succeeds nor fails: New mail that is not part of it is
//     refused with 451 after 10 s, and was not written. What is part of it waits.
//   - A file is gone or cut short: A segment's messages as with a block, save that a
//     LIST may be gone with what it lists: of those the report says only when they came.
//     When it is the last segment, nothing may be left that knows of its last batches. A
//     content file's message goes to corrupt. IDENTITY is restored from the segments, or
//     they from it; without both the start is refused.
//   - The file system of Options.ContentDir is not there, or is another spool's: A start is
//     refused, nothing changed, as long as messages have content there. When it fails or is full while
//     the spool is open, large messages are refused, and those that are queued wait.
//   - The whole disk: Nothing. The spool has no second copy: mirror the disk (RAID 1),
//     or the file system.
//   - A disk that says that it has written and has not: Nothing that was acknowledged
//     since it last told the truth. What is missing is found as damage, if later writes
//     survived, and reported; when the lies end with the log, nothing can tell.
//   - The disk is full: New mail is refused with 452. What becomes of queued mail is
//     recorded all the same.
//   - An operator removes or overwrites files: As with a file. A directory with data
//     and without identity, or with another spool's segments, is not started on. What
//     is restored from a backup may be delivered again.
//
// # Files
//
//	LOCK               locked (flock) by the writer, whose process number is in it
//	IDENTITY           which spool this is
//	seg/00000017.seg   segments of the log; the number is the file's, and never used twice
//	big/ID             content of a message larger than the inline limit
//	big/ID.spent       one that is not needed any more, to be written anew
//	CONTENT            where these are instead of in big/: see Place
//	damaged/           copies of damaged segments, and reports, for people; see Damage
//	scrub              how far a Scrubber has come
//	doubtful*          messages that may have arrived twice; see package doubtful
//
// A segment file is filled with zeros once, and then used again and again, so
// that a commit is one write and one fdatasync without a change of metadata. Until
// its first use it begins with a mark, "PHSEGNEW", which spares a start from looking
// for records in it.
// Its uses are numbered over the whole log (segno, from 1). Numbers below are
// little-endian; checksums are CRC-32C.
//
// # Identity
//
// IDENTITY is written and synced before anything else of a new spool. The
// record is in it twice, at 0 and at 4096:
//
//	 0  magic "PHIDENT1"
//	 8  version u16 (1)
//	16  identity of the spool, 16 random bytes
//	32  when it was made, microseconds since 1970, i64
//	40  size that new segments had then, u64
//	508 checksum of 0..507
//
// Every segment's header has the identity as well, and the one is written again
// from the other. It enters every record's checksum: who has neither can verify
// nothing. A directory that holds data and does not tell its identity is not
// started on, and neither is one with headers that disagree: a new identity would
// make all of the mail free space. "posthaste spool salvage" works all the
// same.
//
// # Place
//
// Content files may be in a directory of another file system (Options.ContentDir), which
// then has a copy of IDENTITY. CONTENT says where, so that tools know and a start notices a change.
// The record is in it twice, at 0 and at 4096, written one after the other:
//
//	 0    magic "PHPLACE1"
//	 8    version u16 (1)
//	10    length of the path u16
//	16    path
//	4092  checksum of 0..4091
//
// A start that is told a place replays the log and, before it writes anything, is refused with
// ErrContent when
//
//   - the IDENTITY there is another spool's;
//   - the place is another one than before, and some content file that a message has is not there;
//   - the place is the same as before, and it is gone, or has no IDENTITY: nothing is
//     mounted there, or something else. When all content files are there it is written again;
//   - it is new, and something else is in it.
//
// It is made only if it was never used. First its IDENTITY is durable and then CONTENT. A Reader takes content for
// gone or damaged only where it has seen the IDENTITY. What is not named like a content file is
// left alone.
//
// The place has room of its own: Budget and what dispositions need are the log's, MinFree is held
// on either file system for what goes there. It has failures of its own, too: when names in it
// cannot be made durable, large messages that have begun to come in are refused, and 10 seconds later others are
// taken if it works again. Links and renames stay within it. A crash is one of both file
// systems; a content file and its name are durable before the record that has them is
// written, whatever becomes of the log in between.
//
// # Segment
//
// Blocks 0 and 1 (4096 bytes each) begin with the header, so that no one bad
// block takes it. It is written together with the segment's first batch:
//
//	 0  magic "PHSEG001"
//	 8  segno u64
//	16  promised u64: highest batch known durable when this was written
//	24  recovery point: segno u64, first segment to read
//	32  recovery point: batch u64, first batch that matters; both were durable before
//	40  first batch of this segment u64
//	48  size of the segment u32
//	52  version u16 (2), block size u16 (4096)
//	56  salt u64, random at each use
//	64  identity of the spool, 16 random bytes
//	80  when, microseconds since 1970, i64
//	508 checksum of 0..507
//
// In version 1 both copies are in block 0, at 0 and at 3584, and the first batch is at
// 4096. Such segments are read as they are, and become version 2 when they are used
// again. The size is the file's own: spool_segment_size may change between starts.
// A segment whose copies are both damaged is known by its records, which have its
// number and half of its salt; a start reads it like any other, and writes the header again.
//
// Batches follow, each from a multiple of 4096 on. Two segments may be open
// for writing: the log's head, and the cold one with what the cleaner copies.
// Batches are numbered over both.
//
// # Record
//
// A batch is a row of records, each padded with zeros to a multiple of 8:
//
//	 0  magic "PHR1"
//	 4  type u8: 1 MSG, 2 STATE, 3 DONE, 4 BOOT, 5 CKPT, 6 CLOSE, 7 LIST,
//	   8 HANDED
//	 5  flags u8: 1 first of its batch, 2 last, 4 message gone, 8 by an
//	    operator, 16 content was damaged when copied
//	 6  version u16 (1)
//	 8  length of metadata u32
//	12  length of content u32
//	16  segno u64
//	24  record number u64, contiguous in a batch
//	32  message number u64
//	40  batch number u64
//	48  promised u64: highest batch durable when this was written
//	56  checksum of metadata u32
//	60  checksum of content u32
//	64  salt u32, low half of the segment's
//	68  checksum of 0..67, starting from the salt xor the checksum of the
//	    spool's identity
//	72  metadata, content
//
// The segment number and the salt tell records from what a former use left
// over, and the identity, which no sender knows, from what looks like a record
// in the content of a message. The promise tells a torn tail, which was
// never acknowledged, from rot, which is an alarm.
//
// Metadata are fields (package pack):
//
//	MSG, STATE  q time in the queue ID (µs), E envelope, R recipients (both
//	            encoded by package mail; a STATE leaves long ones to its MSG),
//	            n number of recipients, z size, Q queue, N next attempt (µs),
//	            A attempts, F flags (1 warned, 2 expire, 4 null sender, 8 content
//	            in big/, 16 damaged), t trace, T tenant, D bitmap of recipients done, O
//	            outcomes (package mail), h in hand, repeated: a when (µs), h where to, r
//	            recipients, varints of the differences
//	STATE       L where its MSG is (f file, s segno, o offset, l length), or
//	            b distance back to it in the same batch and l its length
//	MSG         X length of the content file, Y checksum of its trailer
//	DONE        r indexes of recipients, varints; none when the message is gone
//	HANDED      h: what an agent has in hand now, in addition
//	BOOT        V batches over this and under its own are void, B S recovery point, x
//	            exact: nothing is delivered before its HANDED is durable
//	CKPT        B S recovery point: batch and segno, x
//	LIST        which messages earlier batches have: for each, as varints of the
//	            differences to the one before, batch, number, time in the queue ID (µs)
//
// HANDED says that recipients may have the message from now on. DONE settles that, and so does
// a new outcome (a STATE does not have it any more). What is not settled goes into every STATE, so that the
// recovery point may move. A copy of a message has it, too.
//
// A LIST is there so that the ID is known of a message whose only record was in a block
// that is gone. It takes the padding of the next batches with room for it, and of long
// batches a thirty-second part: no write is longer or more for it with little mail. 16384
// messages at most wait to be listed.
//
// A newer program reads what an older one wrote; a version that is not known
// stops the older one with a message that says so.
//
// A content file is the content, followed by the checksums of its chunks of
// 64 KiB, 4 bytes each. It is durable, with its name, before its MSG is
// written: written, synced, linked, and synced again, since a file that does not
// count its name on the disk is removed by the check of a file system that has no
// journal; and then its directory. After the DONE is durable it is spent: the next large content is written
// where it is, which takes less than freeing blocks and memory and finding
// others, unless somebody still reads there. Spent files have a segment's size in all at
// most, give way to whatever needs the room, and are removed at the end, as is,
// at the next start, what a crash leaves.
//
// # Writing
//
// The writer takes all that waits, up to 4 MiB, encodes it, writes it at a
// block boundary, syncs once, and tells the index. The next batch
// is written only then, so that the existence of batch n+1 proves batch n. A batch
// is half a segment at most.
//
// One goroutine does that, and so bounds the spool on any number of processors (BenchmarkSerial). What does not need
// it is done by others: checksums and encoding by those who commit, whose contents are written from where they
// have them and not copied, and answering, which wakes them, by a goroutine of its own.
//
// # The volatile area
//
// Beside the log, volatile/ has messages that are delivered before their clients are told 250
// ([Spool.Stash]): four files of 8 MiB at most, numbered from 0, which a Ref names by numbers from 2^31 on. Each begins with
// a segment's header, and has MSG records one behind the other. They are written, and never
// synced; recovery does not read them, and nothing in the log depends on them. Who leaves the area (Drop)
// becomes a DONE of the same length where it lies. A file is used again, with another number and salt, when
// nobody in it is left, so that a late reader finds that its message is not there any more.
// A start names those that had not left, and that the log does not have (RecoveryReport.Withdrawn), with those that had left
// within a second of the end, whose clients may not have heard so, and removes the files. After
// a loss of power there may be less to name.
//
// After a failed write the area is not used for ten seconds. Unlike the log it may go on then: nothing in it was ever
// promised to be durable, a write that failed is written over, and readers verify what they read.
//
// # Memory
//
// What is alive is known by an index in the writer's memory, and by nothing else: it is made from the
// log at each start. A message takes 8 to 22 octets of it. Entries that something happened to of late,
// those of 131,072 messages at most, are as they are used, and take 13 MB; the others are packed, outside of
// Go's heap. To change a packed entry takes some microseconds, for the 63 beside it are unpacked with it and
// packed again later. So a start is slower when the log has the states of a queue of millions in no order at all: by some
// microseconds for each.
//
// # Recovery
//
// The recovery point is a batch such that every live message has a MSG or STATE
// from there on. It moves when all states before it have been recorded again:
// retries do that by themselves, and a checkpoint does the rest. Recovery
//
//  1. locks, and syncs the directories, that of content elsewhere in 5: a dead process may not have;
//  2. reads IDENTITY and the segments' headers, and syncs IDENTITY for the same reason where no header says the same;
//     the recovery point is the highest in them;
//  3. replays the segments from there on, each to its end or its CLOSE, in the order of batch numbers, while
//     a goroutine of its own reads ahead, passing over content, and another decodes what that has read; skipping what a BOOT
//     voided, noting what is damaged, and dropping what a later CKPT proves to be over;
//  4. takes batches over the highest promise as the tail: complete ones count,
//     since they may have been acknowledged, torn ones do not;
//  5. sees whether the place for content files is the right one, and opens a new segment, in a file that is free whether or not the tail
//     survives, and writes one batch: BOOT and all that the tail said, with the
//     states of all mail when that is little, which makes it a checkpoint;
//  6. and only when that is durable believes the tail, frees segments, and
//     begins.
//
// What the disk does not give it reads again, four times in all with pauses of 2.6 s
// together. If it is still not to be had the start is refused, and nothing was changed:
// what cannot be read may be mail, and is neither passed over nor written over.
//
// # Handing over
//
// While one process has the spool open, its successor follows the log with a [Follower]: it does 3,
// without the lock and again and again, as far as later records promise what is there. When it is
// the successor's turn Open does 1 and 2, and in 3 goes on from there. It does so only if the log
// ends with CLOSE, nothing is missing or damaged, and nobody else had the spool since; otherwise it
// reads everything. A segment that is used again or removed meanwhile takes along what is known by its
// former use: by invariants 4 and 5 whatever of it still matters is in batches to come, and Open goes by
// what was followed only when they have come, or a recovery point has passed all that was replayed
// before: then the message is gone. A follower that finds a gap looks for a recovery point behind it,
// which a durable record tells before any header does, and begins anew from there. TestCrashFollow compares what is found in this way
// with what a recovery finds, while processes write, clean, die, fail with their disk, and hand over
// with other parameters, and several follow them.
//
// # Damage
//
// When something that was durable turns out to be damaged, a start
//
//   - finds out whose it is: a record whose header is sound, or has one wrong bit,
//     says that;
//   - falls back on an older record of the same message, also from before the
//     recovery point: recipients who were done since may get it again, and
//     the report says so by queue ID;
//   - names by queue ID each message that has no other record, as lost. When
//     the time in the ID is not known either, its end from "z" on is given, which
//     no other message has;
//   - when it cannot be known whose the damaged records are, puts on hold, by ID, all
//     messages that are in the log, have left no trace of their end, and are
//     not in the queue. Of a message all of whose records were in the block that is gone,
//     nothing tells the ID: the report says after what time it came;
//   - copies the damaged segments to damaged/, 16 of them and 1 GiB at most, while there
//     is room on the disk, with a report of what was found, for postmaster;
//   - keeps content files that no message has while anything is in damaged/.
//     To remove it is to say that it has been dealt with.
//
// Then it goes on with the rest. When the log has been idle for 100 to 200 ms one batch is
// written that promises the last: from then on damage to that is told from a torn write.
//
// # Cleaning
//
// A segment is free when the durable recovery point has passed all its batches
// and nothing in it is live. When free ones are short, or the disk used comes
// over its bound, the cleaner copies live messages out of the segments where
// that wins most for its cost, (1-u)*age/(1+u), into segments of their own.
// Content is never copied because of a retry.
//
// # A full disk
//
// When no segment can be made, the log lives on those that there are. New mail
// leaves five of them free, or two while less than half a segment is alive, and
// what the states of mail without one would fill in the end. Before the next
// segment is begun, a sweep wins back what is dead in others until as many are
// free again: it moves the recovery point over all of the log, and copies what
// is alive out of as many segments as it takes. That may take long, and who
// commits waits for it.
//
// Three of the free segments are for starts, and when the states of all mail do
// not fit into one batch (half a segment), as many more as the batches that they
// take, up to nine. On such a disk a start does not end before it has given back
// the segment that it took. A start that dies early has taken one, and has moved
// the recovery point by the states that its first batch holds; when starts have
// been through all states, the segment of the first of them is free again. Not more
// than two in a row may die between their first two syncs: the one after those may
// find no segment to write to. Any number may die later when the states fit into one
// batch; when they take more, starts that die while they win segments back lose one
// now and then, and it takes many in a row until none is left (TestStartsManyStates
// has thirty die). A sweep that begins with fewer free segments than are left for
// starts may take one of these, since a disposition would take it and give nothing
// back.
//
// When a start is told another size of segments, and the disk has no room for as many of these
// as must be free, the size stays that of most segments, with a warning, until a start finds
// room (TestSizeOnFullDisk).
//
// What is alive cannot be won back. Should states grow beyond what was reckoned
// with, by long replies of many hosts, the last segment is left to the next start,
// and what cannot be recorded waits, and is tried again every second.
//
// # File systems
//
// TestPowerCutFS cuts the power under a process that says what was acknowledged,
// and finds all of it, small mail and large, on
//
//   - ext4 with a journal: the file system is shut down without writing its
//     journal (EXT4_IOC_SHUTDOWN).
//   - ext4 without a journal: the same, and then e2fsck -fy.
//   - XFS: the same (XFS_IOC_GOINGDOWN).
//   - btrfs: a copy of its device at one moment, since it cannot be shut down.
//     What btrfs has written by then and not flushed is in the copy, which a
//     disk with a cache may lose.
//
// Others are not tested. One without unnamed files (O_TMPFILE), and a process inside chroot, which has no
// /proc to name one by, get names that begin with ".tmp-", which a start removes.
//
// # Parameters
//
// spool_content_directory, spool_inline_limit, spool_segment_size, spool_size_limit,
// spool_commit_delay, spool_exact_doubt and queue_minfree, through [Options];
// spool_scrub_period, through [NewScrubber].
//
// # Diagnostics
//
// The errors of Commit tell a full spool (452 4.3.1), a broken one (451 4.3.0,
// exit, be restarted), a disk that does not answer (451 4.3.0) and a message that is
// too large apart. [Check], [Dump],
// [View], [Export] and [Salvage] are for people.
//
// # Security
//
// Files are made with mode 0600, ContentDir with 0700. Content comes from anybody and is given a
// length, a checksum, and no say in what counts as a record. What is read back
// is bounded by the size of its segment.
//
// # Bugs
//
// On copy-on-write file systems (btrfs, ZFS) writing over a recycled segment
// takes new space: a full disk can then fail a commit, which breaks the log
// until a restart. Rot in the last batch of a process that was killed within
// 200 ms of it, or that fills its segment, cannot be told from a torn write.
package spool
