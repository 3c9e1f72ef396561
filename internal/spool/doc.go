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
//     a crash; those of which a trace is left are in [RecoveryReport].InDoubt.
//   - After a failed write or sync nothing more is written by this process: a
//     second sync that succeeds proves nothing. Recovery writes what
//     was in doubt again.
//   - Damage to what was durable is told through Options.Warn. A message with
//     damaged content goes to the corrupt queue; nothing is silently dropped,
//     and content is never given out before its checksum was verified.
//   - A disposition can always be recorded, for ever and on a disk that others have
//     filled to the last block: new mail is refused while there is still room
//     for it. If there is none all the same (below), it waits.
//   - Disk use is at most twice the live bytes and 27 segments, one of which are
//     spent content files; each byte accepted is written less than 1.3 times. (TestMonth.)
//
// # Files
//
//	LOCK               locked (flock) by the writer, whose process number is in it
//	seg/00000017.seg   segments of the log; the number is the file's, and never used twice
//	big/ID             content of a message larger than the inline limit
//	big/ID.spent       one that is not needed any more, to be written anew
//
// A segment file is filled with zeros once, and then used again and again, so
// that a commit is one write and one fdatasync without a change of metadata.
// Its uses are numbered over the whole log (segno, from 1). Numbers below are
// little-endian; checksums are CRC-32C.
//
// # Segment
//
// Block 0 (4096 bytes) holds the header twice, at 0 and at 3584, written
// together with the segment's first batch:
//
//	 0  magic "PHSEG001"
//	 8  segno u64
//	16  promised u64: highest batch known durable when this was written
//	24  recovery point: segno u64, first segment to read
//	32  recovery point: batch u64, first batch that matters; both were durable before
//	40  first batch of this segment u64
//	48  size of the segment u32
//	52  version u16 (1), block size u16 (4096)
//	56  salt u64, random at each use
//	64  identity of the spool, 16 random bytes
//	80  when, microseconds since 1970, i64
//	508 checksum of 0..507
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
//	 4  type u8: 1 MSG, 2 STATE, 3 DONE, 4 BOOT, 5 CKPT, 6 CLOSE
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
//	            in big/, 16 damaged), t trace, D bitmap of recipients done, O
//	            outcomes (package mail)
//	STATE       L where its MSG is (f file, s segno, o offset, l length), or
//	            b distance back to it in the same batch and l its length
//	MSG         X length of the content file, Y checksum of its trailer
//	DONE        r indexes of recipients, varints; none when the message is gone
//	BOOT        V batches over this and under its own are void, B S recovery point
//	CKPT        B S recovery point: batch and segno
//
// A newer program reads what an older one wrote; a version that is not known
// stops the older one with a message that says so.
//
// A content file is the content, followed by the checksums of its chunks of
// 64 KiB, 4 bytes each. It is durable, with its name, before its MSG is
// written. After the DONE is durable it is spent: the next large content is written
// where it is, which takes less than freeing blocks and memory and finding
// others, unless somebody still reads there. Spent files have a segment's size in all at
// most, give way to whatever needs the room, and are removed at the end, as is,
// at the next start, what a crash leaves.
//
// # Writing
//
// The writer takes all that waits, up to 4 MiB, encodes it, writes it at a
// block boundary, syncs once, tells the index, and answers. The next batch
// is written only then, so that the existence of batch n+1 proves batch n. A batch
// is half a segment at most.
//
// # Recovery
//
// The recovery point is a batch such that every live message has a MSG or STATE
// from there on. It moves when all states before it have been recorded again:
// retries do that by themselves, and a checkpoint does the rest. Recovery
//
//  1. locks, and syncs the directories: a dead process may not have;
//  2. reads the segments' headers; the recovery point is the highest in them;
//  3. replays the segments from there on in the order of batch numbers, while
//     a goroutine of its own reads ahead, passing over content, skipping what a BOOT voided, noting what is damaged, and
//     dropping what a later CKPT proves to be over;
//  4. takes batches over the highest promise as the tail: complete ones count,
//     since they may have been acknowledged, torn ones do not;
//  5. opens a new segment, in a file that is free whether or not the tail
//     survives, and writes one batch: BOOT and all that the tail said, with the
//     states of all mail when that is little, which makes it a checkpoint;
//  6. and only when that is durable believes the tail, frees segments, and
//     begins.
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
// Three of the free segments are for starts. On such a disk a start does not
// end before it has given back the one that it took. Any number of starts may die
// one after the other, but not more than two in a row between their first two
// syncs: the one after those may find no segment to write to.
//
// What is alive cannot be won back. Should states grow beyond what was reckoned
// with, by long replies of many hosts, the last segment is left to the next start,
// and what cannot be recorded waits, and is tried again every second.
//
// # Parameters
//
// spool_inline_limit, spool_segment_size, spool_size_limit, spool_commit_delay
// and queue_minfree, through [Options].
//
// # Diagnostics
//
// The errors of Commit tell a full spool (452 4.3.1), a broken one (451 4.3.0,
// exit, be restarted) and a message that is too large apart. [Check], [Dump],
// [View] and [Export] are for people.
//
// # Security
//
// Files are made with mode 0600. Content comes from anybody and is given a
// length, a checksum, and no say in what counts as a record. What is read back
// is bounded by the size of its segment.
//
// # Bugs
//
// On copy-on-write file systems (btrfs, ZFS) writing over a recycled segment
// takes new space: a full disk can then fail a commit, which breaks the log
// until a restart. Rot in the last batch of a process that was killed cannot be
// told from a torn write.
package spool
