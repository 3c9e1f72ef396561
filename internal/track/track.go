// Package track finds messages in the mail log, and follows each through all that it became: what aliases, lists and
// .forward files send on, what a content filter brings back, reports, and what was queued again.
//
// It keeps no store of its own. The log is what package logread reads: plain or JSON lines, the present file and rotated
// ones, compressed or not. Beside it there may be an index, which says in which parts of the log a queue ID, an
// address, a domain, a Message-ID, a client or a next hop occurs, and in which a text may. It may be thrown away at any time. Nothing
// but a search reads it, and nothing but a search, or the command that makes it, writes it.
//
// # What belongs together
//
// Lines of a message have its queue ID. Messages are connected by what the lines name: "forwarded as", the report that
// bounce has queued, orig_id= and "requeued as" of postsuper -r, orig_queue_id= of XFORWARD, and "queued as" in
// the next hop's reply. A reply is a stranger's word: that one counts where the next hop is on this machine, or both messages have the
// same Message-ID. A message that a program of this machine has brought in is connected with the last one before
// it of the same Message-ID that was handed to a program or a server of this machine.
//
// A refusal before there is a queue ID, and a session that brought no message, are found by themselves: they are one line
// each.
//
// # The search
//
// With the index: the condition that occurs in the fewest blocks of the log is taken, these blocks are read, and from what
// they have the blocks of all that is connected with it are found in turn. What the index names is always compared
// with the text: of a block the lines are taken apart in which the text of a wanted key stands, or all of them if it might
// stand there in another form, as escaped in JSON. The first messages are reported before the others are looked for, four at
// first and then twice as many each time. All processors go through blocks, each block once: what a group of messages is found in is kept
// until their lines have been read. Without the index the log is read once from its beginning to its end, and what is complete is
// reported as it goes on.
//
// # Bounds
//
// A search without the index keeps the lines of messages that have not ended, and of those that may still be connected with others:
// at most 128 MiB, by what they take. What was used least recently is dropped when that is reached; it is
// reported at that moment if it is what is looked for. A search with the index keeps the lines of
// one group of messages at a time, at most 50,000 queue IDs, and 32 MiB of blocks; of the index it keeps
// about 360 kB for each GB of log, and 4 MB more, at most 64 MiB in all, when it looks for many messages. Making a volume of it takes 140 MiB for a moment.
// Making the index takes 18 MiB for each processor and 17 MiB besides.
//
// # The index
//
// A file of the index is of 16 MiB of the text of one log, which is cut into blocks of 128 KiB. For each block it has the sorted fingerprints, of
// 33 bits, of the keys in it, and a filter of 4 KiB of the trigrams of its lines' text, in lower case, and of its clients' networks. Where there are
// 11,000 trigrams in a block, which is usual, the filter is half full: it takes every fourth trigram that is not there for one that is,
// and so a text of which five are not there in one block of a thousand. It knows nothing of texts of less than three octets and of networks larger than
// 2^24 IPv4 addresses or 2^96 IPv6 ones. The filters are stored by their bits: one bit of all blocks together.
//
// A file has the name of the hash of the first 1024 octets of the log's text, and a number. Sixteen of them, once there are
// so many, become one: a volume, in which a key is looked up by one read of some kilobytes. So
// renaming a log changes nothing, and after compressing it the files are used again once the log was
// read through. Of a compressed log there is a file with the hash of its ends and its size; where that is there, and no key
// is in the log, it is not opened further. A file of the index says what the text's last 4 KiB must be; they are compared at each
// search, where the log is not compressed. A log that is changed in the middle, without a change of its
// length, is not noticed: a log is only appended to. Headers, entries and filters have checksums. What is damaged is made again. What is of a log
// that is not there any more goes with the next search of all logs.
//
// A file named "format" has the version of the index and its sizes; an index of another one is made anew. Lines without a zone are of that of
// Options.Now, and those without a year of the one before their file was written last. Segments that have such lines say in which zone they were read:
// in another one they are made anew, or, where nothing can be written, used without their times. So are those whose lines are of another year by now.
//
// # Security
//
// The text of a log comes from strangers in part. What is returned has it as it stands; whoever shows it on a terminal must
// make control characters visible. The index is readable for its owner only, as it tells who has written to whom to those who can
// guess; the filters tell them also what a text was like. It holds no text.
package track

import (
	"context"
	"io"
	"time"
)

// Options say what is searched.
type Options struct {
	// Logs are the names of files, in any order. "-" is Stdin; then there is no index.
	Logs  []string
	Stdin io.Reader
	// Index is the directory of the index; its parent must exist. Empty: none is used. IndexLimit bounds it, in octets: what
	// is of the oldest lines goes first.
	Index      string
	IndexLimit int64
	// Others says that there are other logs that the index is of. If it is false, what the index has of logs that are not there any
	// more, and were older than these, is removed.
	Others bool
	Now    time.Time // lines without a year lie before it; what does not name its time zone is of that of Now
	// Warn is told what does not keep the search from going on. Progress, which may be nil, is told how much of
	// the text that has no index has one now, in octets, by one goroutine at a time.
	Warn     func(format string, args ...any)
	Progress func(done, total int64, now time.Time)

	sizes sizes // zero: the usual ones
}

// A Found is one thing that was found: a message, with what came of it, or a line that is of no message.
type Found struct {
	Messages []*Message // those that came from outside, or whose origin the log does not have; others are their children
	Refusal  *Refusal   // if there are no messages
}

// Search calls yield for all that a query finds, until yield returns false: with an index by the place where it is first
// found, without it by when it is complete. A message that yield was called with may come again, when more of it was
// found after it seemed to be complete.
func Search(ctx context.Context, o Options, q Query, yield func(Found) bool) error {
	p, err := q.plan()
	if err != nil {
		return err
	}
	x := newRun(o)
	x.plan, x.yield = p, yield
	defer x.close()
	return x.search(ctx)
}

// Built is what Build has done.
type Built struct {
	Text    int64 // octets of log that the index is of
	Added   int64 // those of them that were added now
	Size    int64 // octets of the index, with that of other logs
	Refused bool  // it is not complete, as it has reached its limit
}

// Build makes the index of all logs, or completes it. Unlike a search it fails when the index cannot be written.
func Build(ctx context.Context, o Options) (Built, error) {
	x := newRun(o)
	defer x.close()
	return x.buildAll(ctx)
}
