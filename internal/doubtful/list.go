// Package doubtful is the list of messages that may have arrived twice. cleanup keeps
// it in the spool's directory, adds to it what a start finds to be in doubt
// (spool.RecoveryReport), and notes what becomes of each; "posthaste spool doubtful"
// shows it.
//
// # What is in it
//
// One entry is a recipient of a message of whom it is not known whether the message was delivered when a
// process or the machine died, or a new message whose client may not have been told that it was queued, then or because
// the disk took too long; or a message that was in hand before its client was told 250 (smtpd_delivery_wait), and was
// not kept.
// The mail system delivers such mail, again as it may be: a copy too many is better than none. The
// entry stays when the message has left the queue, with the time when it did:
// then, and not before, somebody may have two copies. It goes when an operator has said
// that he has seen it, or to make room for newer ones: [Max] are kept.
//
// # Files
//
//	doubtful       one line of JSON for each entry, oldest first
//	doubtful.new   the same, on its way; good when there is no other
//	doubtful.seen  up to when an operator has seen what was found (RFC 3339)
//
// A new list is written whole, and synced, before the old one is removed. Only cleanup writes it,
// and only the tool writes what has been seen.
package doubtful

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

const (
	listName = "doubtful"
	newName  = "doubtful.new"
	seenName = "doubtful.seen"
)

const (
	// Max bounds the entries; older ones give way.
	Max = 1000
	// MaxRcpts bounds the entries of one message that are found at once.
	MaxRcpts = 20
	// maxFile bounds what is read of a file, in octets.
	maxFile = 8 << 20
)

// Why something is in doubt.
const (
	InHand     = "in hand"    // an agent had it in hand, which was on stable storage
	Trace      = "trace"      // a torn record says that it was delivered
	New        = "new"        // it is new mail, which is given out at once
	Agent      = "agent"      // the delivery agent ended in the middle of the delivery
	Lost       = "lost"       // records of the queue are lost, one of which may have said that it was delivered
	Withdrawn  = "withdrawn"  // it was in hand before its client was told 250
	Unanswered = "unanswered" // its client may have been told 451, or nothing, and may have sent it again
)

// What has become of it.
const (
	Queued    = "queued"    // it is in the queue
	Delivered = "delivered" // delivered: again, unless Exact and not Again
	Returned  = "returned"  // returned to its sender
	Removed   = "removed"   // by an operator
	Left      = "left"      // Withdrawn: it is not in the queue
	// Away is of a queue that nodes share: it is not in this node's part any more. Another node has it, or has delivered it, or it had
	// left before that could be noted here.
	Away = "away"
)

// An Entry is one line of the list.
type Entry struct {
	ID     mail.QueueID `json:"queue_id"`
	Sender string       `json:"sender"`
	// Rcpt is the recipient's index in the message; -1 of Unanswered: all of them.
	Rcpt      int        `json:"index"`
	Recipient string     `json:"recipient,omitempty"` // the first one of Unanswered
	More      int        `json:"more,omitempty"`      // recipients of the message that have no entry
	Nexthop   string     `json:"nexthop,omitempty"`   // or next host; "": not known
	Why       string     `json:"why"`
	Began     *time.Time `json:"began,omitempty"` // when it was in hand; nil: not known
	Found     time.Time  `json:"found"`           // when it was found to be in doubt
	State     string     `json:"state"`
	// Exact says that it is known whether it was sent again, and Again that it was (spool_exact_doubt).
	Exact bool       `json:"exact,omitempty"`
	Again bool       `json:"again,omitempty"`
	Ended *time.Time `json:"ended,omitempty"` // when State became other than Queued
}

// IsOpen says that what becomes of it may still be noted.
func (e *Entry) IsOpen() bool { return e.State == Queued || e.State == Away }

// key tells the same thing found twice.
type key struct {
	id   mail.QueueID
	rcpt int
	why  string
}

// A List is all of it, oldest first. It belongs to one goroutine.
type List []Entry

// Add adds e. An entry for the same that is still open gives way to it.
func (l *List) Add(e Entry) {
	k := key{e.ID, e.Rcpt, e.Why}
	*l = slices.DeleteFunc(*l, func(o Entry) bool { return o.IsOpen() && key{o.ID, o.Rcpt, o.Why} == k })
	*l = append(*l, e)
	if more := len(*l) - Max; more > 0 {
		*l = slices.Delete(*l, 0, more)
	}
}

// End notes what has become of recipients of message id whose entries are open; rcpts nil means all. It
// says whether there were any.
func (l List) End(id mail.QueueID, rcpts []int, state string, now time.Time) (changed bool) {
	for i := range l {
		e := &l[i]
		if e.ID != id || !e.IsOpen() || rcpts != nil && !slices.Contains(rcpts, e.Rcpt) {
			continue
		}
		e.State, e.Ended, changed = state, &now, true
	}
	return changed
}

// Handed notes that recipients of message id whose entries are open are about to be sent again. It says whether
// there were any.
func (l List) Handed(id mail.QueueID, rcpts []int) (changed bool) {
	for i := range l {
		if e := &l[i]; e.ID == id && e.IsOpen() && !e.Again && slices.Contains(rcpts, e.Rcpt) {
			e.Again, changed = true, true
		}
	}
	return changed
}

// Open says whether message id has an entry that is open.
func (l List) Open(id mail.QueueID) bool {
	return slices.ContainsFunc(l, func(e Entry) bool { return e.ID == id && e.IsOpen() })
}

// Load reads the list in the spool's directory, without what has been seen. None is an empty one.
func Load(f vfs.FS, dir string) (List, error) {
	b, err := read(f, path.Join(dir, listName))
	if errors.Is(err, fs.ErrNotExist) {
		b, err = read(f, path.Join(dir, newName))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	seen, err := Seen(f, dir)
	if err != nil {
		return nil, err
	}
	var l List
	for line := range bytes.Lines(b) {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return l, fmt.Errorf("%s: line %d: %w", path.Join(dir, listName), len(l)+1, err)
		}
		if e.Found.After(seen) {
			l = append(l, e)
		}
	}
	return l, nil
}

// Save writes the list in the spool's directory, without what has been seen. It is durable when it returns.
func (l *List) Save(f vfs.FS, dir string) error {
	seen, err := Seen(f, dir)
	if err != nil {
		return err
	}
	*l = slices.DeleteFunc(*l, func(e Entry) bool { return !e.Found.After(seen) })
	var b []byte
	for i := range *l {
		line, err := json.Marshal(&(*l)[i])
		if err != nil {
			return err
		}
		b = append(append(b, line...), '\n')
	}
	if err := write(f, dir, newName, b); err != nil {
		return err
	}
	if err := remove(f, path.Join(dir, listName)); err != nil {
		return err
	}
	if err := f.Rename(path.Join(dir, newName), path.Join(dir, listName)); err != nil {
		return err
	}
	return f.SyncDir(dir)
}

// Seen is up to when an operator has seen what was found; zero: never.
func Seen(f vfs.FS, dir string) (time.Time, error) {
	b, err := read(f, path.Join(dir, seenName))
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	t, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(string(b)))
	if err != nil {
		return time.Time{}, nil // cut short by a crash: he is asked once more
	}
	return t, nil
}

// SetSeen says that an operator has seen what was found until then.
func SetSeen(f vfs.FS, dir string, until time.Time) error {
	if err := remove(f, path.Join(dir, seenName)); err != nil {
		return err
	}
	return write(f, dir, seenName, []byte(until.UTC().Format(time.RFC3339Nano)+"\n"))
}

func remove(f vfs.FS, name string) error {
	if err := f.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func read(f vfs.FS, name string) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read from
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	if size > maxFile {
		return nil, fmt.Errorf("%s: %d octets: it is not a list of doubtful messages", name, size)
	}
	b := make([]byte, size)
	if n, err := file.ReadAt(b, 0); n < len(b) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// write makes a file that has b, and its name, durable. One that a crash has left is replaced.
func write(f vfs.FS, dir, name string, b []byte) error {
	if err := remove(f, path.Join(dir, name)); err != nil {
		return err
	}
	file, err := f.Create(path.Join(dir, name))
	if err != nil {
		return err
	}
	if len(b) > 0 {
		_, err = file.WriteAt(b, 0)
	}
	if err == nil {
		err = file.Datasync()
	}
	return errors.Join(err, file.Close(), f.SyncDir(dir))
}
